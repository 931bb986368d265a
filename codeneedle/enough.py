"""When a reply has said enough: its lines are there, and a short tail."""

import functools
from collections.abc import Callable

from codeneedle.needles import ASKED_LINES
from codeneedle.records import NeedleFacts
from codeneedle.scoring import answer_lines, score

TAIL_LINES = 2
"""Lines after a complete answer that are still read, to see whether it runs on."""

SLACK_LINES = 8
"""Lines beyond the asked ones that an answer with slips in it may take."""


def enough_for(needle: NeedleFacts) -> Callable[[str], bool]:
    """
    A judge of the reply so far: true once reading on would tell nothing more.

    That is when every asked line has matched and `TAIL_LINES` more have come, or
    when the answer is `SLACK_LINES` longer than what was asked. Only complete
    lines are looked at, so the verdict does not depend on how tokens fall.
    """
    judge = functools.lru_cache(maxsize=1)(functools.partial(_is_enough, needle))

    def is_enough(so_far: str) -> bool:
        # Blank lines change no verdict, and a model may write them without end.
        return judge(so_far.rpartition("\n")[0].rstrip())

    return is_enough


def _is_enough(needle: NeedleFacts, complete: str) -> bool:
    if complete.count("\n") + 1 < ASKED_LINES:
        return False
    answer = answer_lines(complete, signature=needle.signature)
    lines = sum(bool(line.strip()) for line in answer)
    if lines >= ASKED_LINES + SLACK_LINES:
        return True
    if lines < ASKED_LINES or not _is_whole(needle, complete):
        return False
    return _lines_after_start(complete) >= ASKED_LINES + TAIL_LINES


def _is_whole(needle: NeedleFacts, so_far: str) -> bool:
    return score(needle, so_far).matched == ASKED_LINES


def _lines_after_start(so_far: str) -> int:
    """Non-blank lines of any kind: prose after a closed fence is a tail, too."""
    return sum(bool(line.strip()) for line in so_far.split("\n"))
