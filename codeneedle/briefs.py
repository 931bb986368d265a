"""Records of the recall probe in brief: all that reports need, in one pass."""

import contextlib
import operator
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import msgspec

from codeneedle.margins import Margins, margins_of_all
from codeneedle.recordfile import Decode, decode_at_once, decode_record
from codeneedle.records import SCHEMA, BadRecord, CellRecord, NeedleFacts, Setup
from codeneedle.rounds import Recall, Round
from codeneedle.scored_rounds import AskedRound, BriefRecord, answer_gaps, recall_of

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
