"""Stored rounds beside the truth: each record read once, each reply scored once."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from codeneedle.margins import Margins, margins
from codeneedle.records import BadRecord, CellRecord, NeedleFacts, Setup
from codeneedle.rounds import Recall, Round, read_recall
from codeneedle.scoring import PASS_LINES, Mark, answer_end, answer_lines, score


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """
    How stored replies are read; changing it re-scores, never re-measures.

    Attributes:
        strict_indent: Whether leading white space counts.
    """

    strict_indent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """
    A round in numbers of lines, of the 20 that were asked for.

    Attributes:
        matched: Expected lines given back in order.
        missing: Expected lines that are not.
        hallucinated: Lines of the answer that match nothing.
        bonus: Correct lines past the asked ones.
        overrun: Lines past the end of the answer that match nothing.
    """

    matched: int
    missing: int
    hallucinated: int
    bonus: int
    overrun: int

    @property
    def passed(self) -> bool:
        """Whether the published sweeps would call it a pass."""
        return self.matched >= PASS_LINES


@dataclass(frozen=True, slots=True)
class AskedRound:
    """
    A stored round beside the truth that it is scored against.

    Attributes:
        needle: What was asked for.
        round: What came.
        kept: The margins of the answer, where its gaps were let go.
    """

    needle: NeedleFacts
    round: Round
    kept: Margins | None = None

    @property
    def error(self) -> str:
        """Why there is nothing to score; empty if there is."""
        if self.round.error:
            return self.round.error
        return "" if _says_something(self.needle, self.round.reply) else "empty answer"

    def counts(self, reading: Reading) -> Counts:
        """Its score, by *reading*."""
        return _counts(
            self.needle, self.round.reply, strict_indent=reading.strict_indent
        )

    @property
    def gaps(self) -> tuple[float, ...]:
        """
        The gaps of the answer's own tokens, in nats.

        What comes after the answer is left out: how sure a model is of how to go
        on tells nothing of how close the answer was to breaking.
        """
        return _answer_gaps(self.needle, self.round)

    @property
    def margins(self) -> Margins | None:
        """What these gaps say of the answer; None where none was stored."""
        return self.kept or margins(self.gaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class BriefRecord(CellRecord):
    """
    A record of the recall probe as reports need it: without its tokens.

    Thousands of records fit into memory this way. The observation is empty.

    Attributes:
        asked: Its rounds, in asking order, without probabilities and gaps.
        priming: The unscored round before them, likewise.
        has_margins: Whether the rounds have kept their margins.
        counts: Scores that were asked for before, by reading.
    """

    asked: tuple[AskedRound, ...]
    priming: Round | None
    has_margins: bool
    counts: dict[Reading, tuple[Counts, ...]] = field(
        default_factory=dict, compare=False, repr=False
    )


def counts_of(record: CellRecord, setup: Setup, reading: Reading) -> tuple[Counts, ...]:
    """
    The scores of the rounds of *record* that have an answer, in asking order.

    Raises:
        BadRecord: As of `asked_rounds`.
    """
    if not isinstance(record, BriefRecord):
        return _counted(asked_rounds(record, setup), reading)
    if reading not in record.counts:
        record.counts[reading] = _counted(record.asked, reading)
    return record.counts[reading]


def _counted(rounds: Sequence[AskedRound], reading: Reading) -> tuple[Counts, ...]:
    return tuple(asked.counts(reading) for asked in rounds if not asked.error)


def margins_of(record: CellRecord, setup: Setup) -> list[Margins]:
    """
    The margins of the answers of *record* that have gaps, in asking order.

    Raises:
        BadRecord: As of `asked_rounds`.
        ValueError: If they were not kept when the record was read.
    """
    if isinstance(record, BriefRecord):
        if not record.has_margins:
            raise ValueError(f"{_file(record)} was read without its tokens")
        return [asked.kept for asked in record.asked if asked.kept]
    rounds = (asked for asked in asked_rounds(record, setup) if not asked.error)
    return [told for asked in rounds if (told := asked.margins)]


def asked_rounds(record: CellRecord, setup: Setup) -> tuple[AskedRound, ...]:
    """
    The rounds of *record*, in asking order.

    Raises:
        BadRecord: If it holds something else, or asks for a needle that *setup*
            does not have.
    """
    if isinstance(record, BriefRecord):
        return record.asked
    needles = {needle.name: needle for needle in setup.needles}
    try:
        return tuple(
            AskedRound(needles[asked.needle], asked)
            for asked in recall_of(record).rounds
        )
    except KeyError as error:
        reason = f"its setup has no needle {error}"
        raise BadRecord(file=_file(record), reason=reason) from error


@dataclass(frozen=True, slots=True, eq=False)
class _Itself:
    """A record that equals itself alone: records hold dicts, which have no hash."""

    record: CellRecord

    def __hash__(self) -> int:
        return id(self.record)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.record is other.record


def recall_of(record: CellRecord) -> Recall:
    """
    What the recall probe stored of *record*.

    Raises:
        BadRecord: If it is something else.
    """
    if isinstance(record, BriefRecord):
        rounds = tuple(asked.round for asked in record.asked)
        return Recall(rounds=rounds, priming=record.priming)
    return _read_once(_Itself(record))


# Small: one record is asked for all its metrics, then the next. Its entries hold
# tens of thousands of numbers each.
@functools.lru_cache(maxsize=64)
def _read_once(itself: _Itself) -> Recall:
    record = itself.record
    return read_recall(record.observation or {}, file=_file(record))


# Large: an entry is five numbers, and flat grids give the same reply everywhere.
@functools.lru_cache(maxsize=65_536)
def _counts(needle: NeedleFacts, reply: str, *, strict_indent: bool) -> Counts:
    scored = score(needle, reply, strict_indent=strict_indent)
    return Counts(**{mark.value: scored.count(mark) for mark in Mark})


# A round is asked for three margins in a row.
@functools.lru_cache(maxsize=64)
def _answer_gaps(needle: NeedleFacts, asked: Round) -> tuple[float, ...]:
    return answer_gaps(needle, asked)


def answer_gaps(needle: NeedleFacts, asked: Round) -> tuple[float, ...]:
    """The gaps that `AskedRound.gaps` tells of."""
    if not asked.lengths:
        return asked.gaps
    end = _answer_end(needle, asked.reply)
    # From the end, which is near: a reply is cut soon after its answer.
    own, start = len(asked.lengths) + 1, sum(asked.lengths)
    while own and start >= end:
        own -= 1
        start -= asked.lengths[own - 1] if own else 0
    return asked.gaps[:own]


@functools.lru_cache(maxsize=65_536)
def _answer_end(needle: NeedleFacts, reply: str) -> int:
    return answer_end(needle, reply)


@functools.lru_cache(maxsize=65_536)
def _says_something(needle: NeedleFacts, reply: str) -> bool:
    return any(map(str.strip, answer_lines(reply, signature=needle.signature)))


def _file(record: CellRecord) -> str:
    return f"the {record.probe} record of {record.pair}"
