"""Metrics of the recall probe."""

import math
from collections.abc import Callable
from functools import partial
from statistics import fmean

from codeneedle.corpora.needles import WRITTEN_LINES
from codeneedle.probes.metrics import METRICS as OF_CELL
from codeneedle.probes.metrics import Loss, LossKind, Metric, Values, bounded_share
from codeneedle.probes.recall.alignment import Mark
from codeneedle.probes.recall.record import Round, recall_of
from codeneedle.probes.recall.rounds import (
    ForcedAnswer,
    Margins,
    ScoredRound,
    answered_rounds,
    forced_answers,
    right_rounds,
    scored_rounds,
)
from codeneedle.probes.recall.settings import Ask, settings_of
from codeneedle.records.record import CellRecord, Setup

WHOLE_READING = 0.9
"""
Share of a prompt that must not come from the cache to give a reading speed.

Reading slows down with depth, so speeds compare only where they cover the same
depths: the whole prompt, as in the priming round. What is left after a cached
corpus is a few dozen tokens, whose speed is mostly overhead.
"""

STEADY_TOKENS = 16
"""
Tokens that a reply must have to give a writing speed.

Servers count the first token, though it fell out of reading the prompt: with 16
of them the speed is at most 7 % too high.
"""


PASS_LINES = 8
"""Matched lines from which a round passes, as in the published sweeps."""

LOST_LINES = 4
"""A function is lost that has this many lines fewer than with the reference."""


def _unanswered(record: CellRecord, setup: Setup) -> frozenset[str]:
    """Names of functions to be written that *record* has no answer of."""
    rounds = scored_rounds(record, setup)
    return frozenset(each.needle.name for each in rounds if each.error)


def _unscored(record: CellRecord, setup: Setup) -> frozenset[str]:
    """Names of functions whose right lines have no scores in *record*."""
    forced = right_rounds(record, setup)
    return frozenset(each.needle for each in forced if not each.logprobs)


def _of_answers(number: Callable[[ScoredRound], float]) -> Values:
    """One value for each round that has an answer."""

    def values(record: CellRecord, setup: Setup) -> list[float]:
        return [float(number(each)) for each in answered_rounds(record, setup)]

    return values


def _asked_names(record: CellRecord, _setup: Setup) -> list[str]:
    return [each.needle for each in recall_of(record).rounds]


def _round_names(record: CellRecord, setup: Setup) -> list[str]:
    return [each.needle.name for each in answered_rounds(record, setup)]


def _margin_names(record: CellRecord, setup: Setup) -> list[str]:
    rounds = answered_rounds(record, setup)
    return [each.needle.name for each in rounds if each.margins]


def _of_gaps(number: Callable[[Margins], float]) -> Values:
    """One value for each round that has an answer with gaps."""

    def values(record: CellRecord, setup: Setup) -> list[float]:
        rounds = answered_rounds(record, setup)
        return [number(each.margins) for each in rounds if each.margins]

    return values


def _of_forced(number: Callable[[ForcedAnswer], float]) -> Values:
    """One value for each function of every sweep whose right lines have scores."""

    def values(record: CellRecord, setup: Setup) -> list[float]:
        names = set(_forced_names(record, setup))
        answers = forced_answers(record, setup)
        return [float(number(each)) for each in answers if each.needle.name in names]

    return values


def _forced_names(record: CellRecord, setup: Setup) -> list[str]:
    """
    Functions with scores, of those that every pair is asked for.

    Without further ones of open pairs: a mean over others could not be compared with
    that of another pair.
    """
    asked = right_rounds(record, setup)[: settings_of(setup).function_count]
    return [each.needle for each in asked if each.logprobs]


def _probabilities(record: CellRecord, setup: Setup) -> dict[str, float]:
    """Mean probability of the right tokens of each function, further ones included."""
    answers = forced_answers(record, setup)
    return {each.needle.name: each.probability for each in answers}


def _checked(record: CellRecord, setup: Setup) -> dict[str, float]:
    """As `_probabilities`, of functions that were forced where lines are read."""
    if not settings_of(setup).is_reading:
        return {}
    forced = [each for each in recall_of(record).forced if each.logprobs]
    return {each.needle: fmean(map(math.exp, each.logprobs)) for each in forced}


def _every_name(record: CellRecord, setup: Setup) -> list[str]:
    return [each.needle for each in right_rounds(record, setup)]


def _first_choices(record: CellRecord, setup: Setup) -> float:
    return fmean([each.right for each in forced_answers(record, setup)] or [0])


def _matched(answer: ScoredRound) -> int:
    return answer.counts[Mark.MATCHED]


def _matched_share(record: CellRecord, setup: Setup) -> float:
    matched = [_matched(answer) for answer in answered_rounds(record, setup)]
    return fmean(matched or [0]) / WRITTEN_LINES


def _errors(record: CellRecord, setup: Setup) -> list[float]:
    return [float(bool(answer.error)) for answer in scored_rounds(record, setup)]


def _prefill(record: CellRecord, _setup: Setup) -> list[float]:
    recall = recall_of(record)
    rounds = [*([recall.priming] if recall.priming else []), *recall.rounds]
    speeds = (reading_speed(answer) for answer in rounds)
    return [speed for speed in speeds if speed is not None]


def reading_speed(answer: Round) -> float | None:
    """Tokens per second; None where much of the prompt came from the cache."""
    read = answer.prompt_tokens - answer.cached_tokens
    is_whole = read > 0 and read >= WHOLE_READING * answer.prompt_tokens
    if answer.error or not is_whole or answer.prompt_ms <= 0:
        return None
    return read / answer.prompt_ms * 1000


def _decode(record: CellRecord, _setup: Setup) -> list[float]:
    return [
        answer.predicted_tokens / answer.predicted_ms * 1000
        for answer in recall_of(record).rounds
        if not answer.error
        and answer.predicted_tokens >= STEADY_TOKENS
        and answer.predicted_ms > 0
    ]


def _accepted(record: CellRecord, _setup: Setup) -> list[float]:
    return [
        100 * answer.accepted / answer.drafted
        for answer in recall_of(record).rounds
        if answer.drafted
    ]


_lines = partial(Metric, unit="lines")
_rounds = partial(Metric, unit="rounds", is_sum=True)
_gap = partial(Metric, unit="nats", better="higher")
_speed = partial(Metric, unit="tokens/s", better="higher", quantity="speed")

METRICS: tuple[Metric, ...] = (
    _lines(
        name="matched",
        better="higher",
        values=_of_answers(_matched),
        names=_round_names,
        loss=Loss(
            kind=LossKind.ANSWERS,
            lost_from=LOST_LINES,
            units=_asked_names,
            able=_matched_share,
            unanswered=_unanswered,
            without="functions without an answer, which are left out",
        ),
    ),
    _rounds(
        name="pass",
        better="higher",
        values=_of_answers(lambda each: _matched(each) >= PASS_LINES),
    ),
    _lines(
        name="hallucinated",
        better="lower",
        values=_of_answers(lambda each: each.counts[Mark.HALLUCINATED]),
    ),
    _lines(
        name="missing",
        better="lower",
        values=_of_answers(lambda each: each.counts[Mark.MISSING]),
    ),
    _lines(
        name="bonus",
        better="neither",
        values=_of_answers(lambda each: each.counts[Mark.BONUS]),
    ),
    _lines(
        name="overrun",
        better="neither",
        values=_of_answers(lambda each: each.counts[Mark.OVERRUN]),
    ),
    _lines(
        name="matched-strict",
        better="higher",
        values=_of_answers(lambda each: each.matched_strict),
        names=_round_names,
    ),
    _gap(
        name="margin",
        values=_of_gaps(lambda margins: margins.least),
        names=_margin_names,
    ),
    _gap(
        name="margin5",
        values=_of_gaps(lambda margins: margins.fifth),
    ),
    _gap(
        name="margin-mean",
        values=_of_gaps(lambda margins: margins.mean),
    ),
    _speed(
        name="prefill",
        values=_prefill,
        is_prompt_speed=True,
    ),
    _speed(
        name="decode",
        values=_decode,
    ),
    Metric(
        name="accepted",
        unit="%",
        better="neither",
        values=_accepted,
        quantity="speed",
    ),
    *OF_CELL,
    _rounds(
        name="errors",
        better="lower",
        values=_errors,
    ),
)
"""All of them; the first is the headline."""

_forced = partial(Metric, better="higher", names=_forced_names)

FORCED: tuple[Metric, ...] = (
    _forced(
        name="recall-logp",
        unit="nats",
        values=_of_forced(lambda answer: answer.logp),
        loss=Loss(
            kind=LossKind.PROBABILITY,
            by_unit=_probabilities,
            units=_every_name,
            bounded=lambda record: bounded_share(recall_of(record).scored),
            able=_first_choices,
            unanswered=_unscored,
            without="functions without scores of their lines, which are left out",
            checked=_checked,
        ),
    ),
    _forced(
        name="recall-right",
        unit="%",
        values=_of_forced(lambda answer: 100 * answer.right),
    ),
    _forced(
        name="breaks-at",
        unit="lines",
        values=_of_forced(lambda answer: answer.breaks_at),
    ),
    _forced(
        name="lead",
        unit="nats",
        values=_of_forced(lambda answer: answer.margins.mean if answer.margins else 0),
    ),
    _forced(
        name="lead5",
        unit="nats",
        values=_of_forced(lambda answer: answer.margins.fifth if answer.margins else 0),
    ),
)
"""Those of forced recall, in runs that asked for it; the first is their headline."""


def forced_metrics(setup: Setup) -> tuple[Metric, ...]:
    """The metrics that *setup* has beyond `METRICS`."""
    return FORCED if Ask.FORCED in settings_of(setup).parts else ()
