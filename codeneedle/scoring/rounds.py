"""Stored recall rounds scored: counts of lines, and margins of tokens."""

import contextlib
import functools
import itertools
import math
import operator
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal

import msgspec

from codeneedle.records.encoding import Decode, decode_at_once, decode_record
from codeneedle.records.record import (
    SCHEMA,
    BadRecord,
    CellRecord,
    NeedleFacts,
    Recall,
    Round,
    Setup,
    read_recall,
)
from codeneedle.scoring.alignment import (
    PASS_LINES,
    Mark,
    answer_end,
    answer_lines,
    score,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FIFTH = 0.05
"""The share of tokens that `Margins.fifth` is about."""

_TAME = 2.0**200
"""Gaps between its inverse and this are summed by halves; 0 is, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """
    The gaps of one answer, in nats.

    Attributes:
        least: The smallest.
        fifth: The 5th percentile.
        mean: The mean, as exact as a float can be.
    """

    least: float
    fifth: float
    mean: float


def margins(gaps: Sequence[float]) -> Margins | None:
    """What is kept of *gaps*; None if there are none."""
    if not gaps:
        return None
    return Margins(
        least=min(gaps) + 0.0,
        fifth=percentile(gaps, FIFTH),
        mean=math.fsum(gaps) / len(gaps),
    )


def margins_of_all(answers: Sequence[Sequence[float]]) -> list[Margins | None]:
    """
    The same numbers as `margins` of each of *answers*, all at once.

    Twice as fast: a record has some 7,000 gaps, a report thousands of records.
    """
    # 60 ms, for reports alone.
    import numpy as np

    having = [gaps for gaps in answers if gaps]
    if not having:
        return [None for _ in answers]
    ends = list(itertools.accumulate(map(len, having)))
    flat = np.fromiter(itertools.chain.from_iterable(having), np.float64, ends[-1])
    starts = [0, *ends[:-1]]
    # Of each answer a part that adds up without rounding, and the small rest.
    step = _step(float(np.abs(flat).max()), max(map(len, having)))
    whole = np.rint(flat / step) * step if step else flat
    wholes = np.add.reduceat(whole, starts).tolist()
    rests = np.add.reduceat(flat - whole, starts).tolist()
    sums = map(_total, having, wholes, rests, itertools.repeat(step))
    rows = [flat[start:end] for start, end in zip(starts, ends, strict=True)]
    found = map(_sorted_margins, rows, sums)
    return [next(found) if gaps else None for gaps in answers]


def _sorted_margins(gaps: "npt.NDArray[np.float64]", total: float) -> Margins:
    """The margins of *gaps*, which are sorted on the way, and sum up to *total*."""
    gaps.sort()
    return Margins(
        # Not -0.0, which may sort before 0.0.
        least=float(gaps[0]) + 0.0,
        fifth=_at_share(gaps, FIFTH),
        mean=total / len(gaps),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """
    The value below which *share* of the n >= 1 *values* lie.

    Args:
        values: In any order.
        share: From 0 to 1.

    Source:
        Linear interpolation between order statistics. Definition 7 of Hyndman &
        Fan, Sample Quantiles in Statistical Packages, 1996.
    """
    return _at_share(sorted(values), share)


def _at_share(
    ordered: "Sequence[float] | npt.NDArray[np.float64]", share: float
) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    low, high = float(ordered[below]), float(ordered[above])
    return low + (place - below) * (high - low)


def _step(largest: float, count: int) -> float:
    """
    A power of two whose multiples up to *largest* add up exactly, *count* of them.

    Each is less than 2^52 steps by the number of values: no sum needs more than the
    53 bits of a float. 0 where numbers are too odd for this.
    """
    if not 1 / _TAME < largest < _TAME:
        return 0.0
    return math.ldexp(1.0, math.frexp(largest)[1] + count.bit_length() - 52)


def _total(gaps: Sequence[float], whole: float, rest: float, step: float) -> float:
    """
    What `math.fsum` makes of *gaps*, from two parts of which the first is exact.

    The rounding of the second is bounded: n terms of up to half a step, each sum
    off by 2^-53 of itself. Where that cannot change the total, the total is right.
    """
    slack = len(gaps) ** 2 * step * 2.0**-53
    low, high = whole + (rest - slack), whole + (rest + slack)
    return low if step and low == high else math.fsum(gaps)


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


_NAMED = b'"probe": "recall"'
"""In the first `_HEAD_BYTES` of the files that are worth a try."""

_HEAD_BYTES = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredRound(Round):
    """A round of which the probabilities are skipped: no report shows any."""

    logprobs: msgspec.Raw  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SkimmedRound(_StoredRound):
    """A round of which all that it has of its tokens is skipped."""

    gaps: msgspec.Raw  # type: ignore[assignment]
    lengths: msgspec.Raw  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    rounds: tuple[_StoredRound, ...]
    priming: _StoredRound | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Skimmed:
    rounds: tuple[_SkimmedRound, ...]
    priming: _SkimmedRound | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredRecord(CellRecord):
    observation: _Stored  # type: ignore[assignment]
    schema: Literal[SCHEMA]  # type: ignore[valid-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SkimmedRecord(CellRecord):
    observation: _Skimmed  # type: ignore[assignment]
    schema: Literal[SCHEMA]  # type: ignore[valid-type]


_Seen = _Stored | _Skimmed | Recall

_OF_TOKENS = {"logprobs", "gaps", "lengths"}
_ROUND = [each.name for each in fields(Round) if each.name not in _OF_TOKENS]
_kept = operator.attrgetter(*_ROUND)
_RECORD = [each.name for each in fields(CellRecord) if each.name != "observation"]


def decoding(setup: Setup, *, tokens: bool) -> Decode:
    """
    How records of *setup* are read by reports.

    Those of the recall probe become a `BriefRecord`. All others, and what cannot be
    read, are read whole: the first are small, and of the second the error is told.

    Args:
        setup: Of the run folder.
        tokens: Whether a metric is shown that comes from single tokens.
    """
    needles = {needle.name: needle for needle in setup.needles}

    def decode(data: bytes, *, file: str) -> CellRecord:
        record, seen = _at_once(data, tokens=tokens)
        if record is None or not _is_known(seen, needles):
            record = decode_record(data, file=file)
            seen = _recalled(record)
        if seen is None or not _is_known(seen, needles):
            return record
        return _brief(record, seen, needles, tokens=tokens)

    return decode


def _at_once(data: bytes, *, tokens: bool) -> tuple[CellRecord | None, _Seen | None]:
    """A record of the recall probe with what it saw; None if it is anything else."""
    if _NAMED not in data[:_HEAD_BYTES]:
        return None, None
    layout: type[_StoredRecord | _SkimmedRecord]
    layout = _StoredRecord if tokens else _SkimmedRecord
    stored = decode_at_once(data, layout)
    return (stored, stored.observation) if stored else (None, None)


def _recalled(record: CellRecord) -> Recall | None:
    """What a record that was read whole saw, if it is one of the recall probe."""
    if record.probe != "recall" or record.observation is None:
        return None
    with contextlib.suppress(BadRecord):
        return recall_of(record)
    return None


def _is_known(seen: _Seen | None, needles: Container[str]) -> bool:
    return seen is not None and all(each.needle in needles for each in seen.rounds)


def _brief(
    record: CellRecord,
    seen: _Seen,
    needles: Mapping[str, NeedleFacts],
    *,
    tokens: bool,
) -> BriefRecord:
    rounds = [AskedRound(needles[each.needle], each) for each in seen.rounds]
    kept: Sequence[Margins | None] = [None] * len(rounds)
    if tokens:
        kept = margins_of_all(list(map(_own_gaps, rounds)))
    asked = (
        AskedRound(each.needle, _round(each.round), margins)
        for each, margins in zip(rounds, kept, strict=True)
    )
    return BriefRecord(
        **{name: getattr(record, name) for name in _RECORD},
        observation={},
        asked=tuple(asked),
        priming=_round(seen.priming) if seen.priming else None,
        has_margins=tokens,
    )


def _own_gaps(asked: AskedRound) -> Sequence[float]:
    return () if asked.error else answer_gaps(asked.needle, asked.round)


def _round(stored: Round) -> Round:
    """*stored* without its tokens; replies that are the same take memory once."""
    kept = dict(zip(_ROUND, _kept(stored), strict=True))
    kept["reply"] = sys.intern(stored.reply)
    return Round(**kept)
