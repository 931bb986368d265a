"""What the recall probe stores of a cell."""

from dataclasses import dataclass
from typing import TypeVar

from codeneedle.engines.messages import Forced, Generation
from codeneedle.probes.stored import Observed, cached, file_of, observed
from codeneedle.records.record import CellRecord, from_json, refuse_impossible

NAME = "recall"
"""Of the probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round(Generation):
    """
    One needle asked of one cell.

    Attributes:
        needle: Name of the function.
        prompt_sha256: Of the prompt's text as sent, UTF-8.
        reply: The model's text, verbatim; empty on an error.
        error: Why there is no reply to score; empty if there is one.
        retries: Why earlier attempts failed before a reply was complete.
    """

    needle: str
    prompt_sha256: str
    reply: str = ""
    error: str = ""
    retries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedRound(Forced):
    """
    Right lines of one function, joined by newlines, scored token by token.

    Attributes:
        needle: Name of the function.
        prompt_sha256: Of the prompt's text as sent, UTF-8.
        error: Why there are no scores; empty if there are.
        retries: Why earlier attempts failed before all were scored.
    """

    needle: str
    prompt_sha256: str
    error: str = ""
    retries: tuple[str, ...] = ()


WRITTEN, FORCED = "written", "forced"
"""What keys of questions begin with; the name of the function follows."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The *priming*, an unscored round before all others of the first server."""

    priming: Round | None = None


_Layout = TypeVar("_Layout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """
    What the recall probe has observed of a cell.

    Attributes:
        rounds: The written rounds, in asking order; empty if none were asked for.
        forced: Right lines that were scored, in asking order; likewise.
        priming: The unscored round before them, of the first server.
        starts: Servers that it took; each read the text once.
    """

    rounds: tuple[Round, ...]
    forced: tuple[ForcedRound, ...] = ()
    priming: Round | None = None
    starts: int = 1

    @property
    def answers(self) -> "tuple[Round | ForcedRound, ...]":
        """The written rounds, and behind them the forced ones."""
        return (*self.rounds, *self.forced)


@cached()
def recall_of(record: CellRecord) -> Recall:
    """
    The observation of the probe in *record*.

    Raises:
        BadRecord: If it has another layout, or scores of other tokens.
    """
    file, stored = file_of(record), observed(record, Observed)
    recall = Recall(
        rounds=_answers(stored, WRITTEN, Round, file=file),
        forced=_answers(stored, FORCED, ForcedRound, file=file),
        priming=from_json(stored.facts, Facts, file=file).priming,
        starts=stored.starts,
    )
    for each in recall.forced:
        is_possible = bool(each.error) or each.is_even
        what = (
            f"the scores of {each.needle} are not of the same tokens, or there is none"
        )
        refuse_impossible(is_possible, what, file=file)
    return recall


def _answers(
    stored: Observed, part: str, layout: type[_Layout], *, file: str
) -> tuple[_Layout, ...]:
    """The answers whose keys begin with *part*."""
    return tuple(
        from_json(answer, layout, file=file)
        for key, answer in stored.answers.items()
        if key.startswith(f"{part} ")
    )
