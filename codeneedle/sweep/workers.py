"""Workers that measure side by side, their devices, and shares of the grid."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from typing_extensions import override

from codeneedle.cache_types import Pair, most_precise
from codeneedle.engines.engine import Engine
from codeneedle.errors import BadInput
from codeneedle.probes.probe import Probe
from codeneedle.records.comparability import first_other
from codeneedle.records.record import CellRecord
from codeneedle.records.store import Store, share_suffix
from codeneedle.reference import reference_among
from codeneedle.system.machine import usable_cores
from codeneedle.text import plural
from codeneedle.verdict.trust import trusted_records


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker measures."""

    device: str = ""  # the one accelerator that it uses; empty for whatever there is
    threads: int | None = None  # its share of the cores; None for all

    def with_all_cores(self) -> "Place":
        """The same device with all cores."""
        return replace(self, threads=None)

    def phrase(self, engine: Engine) -> str:
        """
        Device and threads, for records; empty for the whole machine.

        Devices of one kind have the same phrase.
        """
        devices = engine.identity().devices if self.device else ()
        # Without the name by which it is called on this host: CUDA0.
        kinds = sorted({name.partition(" ")[2] or name for name in devices})
        threads = [plural(self.threads, "thread")] if self.threads else []
        return ", ".join([*kinds, *threads])


@dataclass(slots=True, kw_only=True)
class Worker:
    """Measures one cell at a time."""

    engine: Engine  # bound to its device and its share of the cores
    device: str = ""  # those; see `Place.phrase`
    is_surveyed: bool = True  # whether the survey of kernels was asked of such a device
    previous_end: float | None = None
    """When its server before had ended, in monotonic seconds."""


def places(
    *, devices: Sequence[str] = (), workers: int | None = None
) -> tuple[Place, ...]:
    """
    Where the workers of one machine measure; its cores are divided between them.

    Args:
        devices: One worker for each.
        workers: So many on the CPU, if there are no *devices*.

    Raises:
        BadInput: If both are given, or there are fewer cores than workers.
    """
    if devices and workers is not None:
        raise BadInput(
            source="--workers",
            reason="there is one worker for each of --devices",
            hint="Leave --workers out.",
        )
    number = len(devices) or workers or 1
    cores = usable_cores()
    if number > cores and not devices:
        raise BadInput(
            source=f"--workers {number}",
            reason=f"there are {plural(cores, 'core')}",
            hint=f"Use --workers {cores} or fewer.",
        )
    threads = None if number == 1 else max(1, cores // number)
    return tuple(Place(device, threads) for device in devices or [""] * number)


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

    def pairs(self, pairs: Sequence[Pair]) -> tuple[Pair, ...]:
        """
        Those of *pairs*, in running order, that are in this share.

        The most precise one, the reference, is in all shares, and comes first: it shows
        whether hosts compute alike.
        """
        mine = (most_precise(pairs), *pairs[self.number - 1 :: self.of])
        return tuple(dict.fromkeys(mine))

    @property
    def suffix(self) -> str:
        """What ends the name of its run folder."""
        return share_suffix(self.number, self.of)


def share_of_array(environment: Mapping[str, str] = os.environ) -> Share | None:
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


def device_kind(phrase: str) -> str:
    """A `Place.phrase` without threads: shares of the cores compute alike."""
    return re.sub(r"(^|, )\d+ threads?$", "", phrase)


def agreement_sentence(
    probe: Probe, variant: str, pairs: Sequence[Pair], *, store: Store
) -> str:
    """
    A sentence on whether two kinds of device agree on the reference.

    Empty where one of them has no numbers of it.
    """
    ours = _reference_record(probe, pairs, store)
    others = trusted_records(store, probe.name, variant)
    theirs = others.get(ours.pair) if ours else None
    if not (ours and theirs and theirs.has_numbers):
        return ""
    place = first_other(ours.observation, theirs.observation)
    where = f"{ours.pair} on {ours.device} and on {theirs.device}"
    if not place:
        return f"{where}: the same {probe.name}"
    return (
        f"{where}: {probe.name} differs from {place} on; differences as small between "
        "cells of the two mean nothing"
    )


def _reference_record(
    probe: Probe, pairs: Sequence[Pair], store: Store
) -> CellRecord | None:
    """The record of the most precise of *pairs* with numbers; None without any."""
    finished = finished_of(probe, pairs, store)
    reference = reference_among(finished.values())
    return finished[reference] if reference else None


def finished_of(
    probe: Probe, pairs: Sequence[Pair], store: Store
) -> dict[Pair, CellRecord]:
    """The records of *probe* that have numbers, by pair, of *pairs*."""
    records = trusted_records(store, probe.name)
    return {p: r for p, r in records.items() if p in pairs and r.has_numbers}
