"""Shares of a grid: which cells each of several hosts, or tasks of SLURM, measures."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from codeneedle.cache_types import Pair, most_precise
from codeneedle.errors import BadInput
from codeneedle.records.store import share_suffix
from codeneedle.text import plural

_SHARE = re.compile(r"([1-9]\d*)/([1-9]\d*)")


@dataclass(frozen=True, slots=True)
class Share:
    """One of several shares of a grid."""

    number: int  # from 1
    of: int  # number of shares

    @override
    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> "Share":
        """
        The share that ``3/8`` names.

        Raises:
            BadInput: If *text* is anything else.
        """
        share = _SHARE.fullmatch(text)
        if not share or int(share[1]) > int(share[2]):
            raise BadInput(
                source="--shard",
                reason=f"'{text}' is not a share such as 3/8",
                hint="Give the number of the share, from 1, and how many there are.",
            )
        return cls(int(share[1]), int(share[2]))

    def own_pairs_and_reference(self, pairs: Sequence[Pair]) -> tuple[Pair, ...]:
        """
        Those of *pairs*, in running order, that are in this share.

        The most precise one, the reference, is in all shares, and comes first: it shows
        whether hosts compute alike.
        """
        mine = (most_precise(pairs), *pairs[self.number - 1 :: self.of])
        return tuple(dict.fromkeys(mine))

    @property
    def folder_suffix(self) -> str:
        """What ends the name of its run folder."""
        return share_suffix(self.number, self.of)


def slurm_task_share(environment: Mapping[str, str] = os.environ) -> Share | None:
    """
    The share of a task of a SLURM array; None outside of one.

    Raises:
        BadInput: If its tasks are not numbered without gaps.
    """
    names = ("ID", "COUNT", "MIN", "STEP")
    texts = [environment.get(f"SLURM_ARRAY_TASK_{name}", "") for name in names]
    if not (texts[0].isdecimal() and texts[1].isdecimal()):
        return None
    task, count = int(texts[0]), int(texts[1])
    least, step = (int(text) if text.isdecimal() else 1 for text in texts[2:])
    number, rest = divmod(task - least, step)
    if rest or not 0 <= number < count:
        raise BadInput(
            source=f"SLURM_ARRAY_TASK_ID={task}",
            reason=f"this array of {plural(count, 'task')} has gaps",
            hint="Say which share this task has: --shard 3/8",
        )
    return Share(number + 1, count)
