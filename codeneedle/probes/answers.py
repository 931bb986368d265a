"""An answer that a record holds, as reports show it, whichever probe asked for it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from codeneedle.document import Document

USABLE = (0.2, 1.0)
"""
Shares of right answers of the reference, the second excluded, between which a setting
tells most: below there is nothing left to lose, and at the ceiling a small loss may
not show.
"""


@dataclass(frozen=True, slots=True)
class View:
    """
    How an answer is to be shown.

    Attributes:
        width: Columns of the terminal.
        transcript: The file whose text no run holds; None for the measured one.
    """

    width: int = 80
    transcript: Path | None = None


Beside = Sequence[tuple[str | None, str | None]]
"""Lines that were expected, and that were answered; None where there is no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    What became of a question, a function or a turn.

    Attributes:
        name: The same for every pair.
        show: All that is known of it.
        task: What it belongs to; empty where lengths and depths say nothing of it.
        length: Of the text before it, in tokens.
        depth: Where in the text it is about, from 0 to 1.
        text: Name of the text, where there are several of each length.
        right: How much of it is right, from 0 to 1.
        logp: Mean log-probability of the right tokens, in nats; None if unknown.
        outcome: The same in words: ``13 of 20``.
        error: Why there is none; empty if there is one.
        beside: Its lines beside the expected ones; None if it has none.
    """

    name: str
    show: Callable[[View], Document]
    task: str = ""
    length: int = 0
    depth: float = 0.0
    text: str = ""
    right: float = math.nan
    logp: float | None = None
    outcome: str = ""
    error: str = ""
    beside: Callable[[], Beside] | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """
    Why a *task* is not asked at a *length*, in tokens: of all pairs, or of one.

    Attributes:
        task: Name of the task.
        length: In tokens.
        reason: Why.
    """

    task: str
    length: int
    reason: str
