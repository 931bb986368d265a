"""An answer that a record holds, as reports show it, whichever probe asked for it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from codeneedle.document import Document


@dataclass(frozen=True, slots=True)
class View:
    """How an answer is to be shown."""

    width: int = 80  # columns of the terminal
    transcript: Path | None = None
    """The file whose text no run holds; None for the measured one."""


Beside = Sequence[tuple[str | None, str | None]]
"""Lines that were expected, and that were answered; None where there is no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswer:
    """What became of a question, a function or a turn."""

    name: str  # the same for every pair
    show: Callable[[View], Document]  # all that is known of it
    task: str = ""
    """What it belongs to; empty where lengths and depths say nothing of it."""

    length: int = 0  # of the text before it, in tokens
    depth: float = 0.0  # where in the text it is about, from 0 to 1
    text: str = ""  # name of the text, where there are several of each length
    right: float = math.nan  # how much of it is right, from 0 to 1
    logp: float | None = None
    """Mean log-probability of the right tokens, in nats; None if unknown."""

    outcome: str = ""  # the same in words: ``13 of 20``
    error: str = ""  # why there is none; empty if there is one
    beside: Callable[[], Beside] | None = None
    """Its lines beside the expected ones; None if it has none."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Why a *task* is not asked at a *length*, in tokens: of all pairs, or of one."""

    task: str  # name of the task
    length: int  # in tokens
    reason: str  # why
