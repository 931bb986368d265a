"""
The words for what a metric says of a pair: its loss and what that is at most, its
decision, and why it is open, or how many units would decide it.
"""

import math

from codeneedle.probes.metrics import LossKind
from codeneedle.text import NO_VALUE_WORD, plural
from codeneedle.verdict.judge import PairResult
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.metric_results import FEWEST_UNITS, MetricResult
from codeneedle.verdict.statistics import Decision, paired_p_value

LEAST_P_VALUE = 0.001
"""Smaller ones are not told apart."""


def p_value_phrase(lost: int, won: int) -> str:
    """The `paired_p_value` of samples that are *lost* and *won*: 0.031, < 0.001."""
    value = paired_p_value(lost, won)
    return f"{value:.3f}" if value >= LEAST_P_VALUE else f"< {LEAST_P_VALUE}"


def losses_sentence(limits: Limits, result: PairResult) -> str:
    """
    What a pair loses by all graded metrics, in one breath: ``loses 0.1 % of recall, at
    most 0.3 %, and 0.2 % of ordinary text, at most 0.5 % (limit 1.0 %)``.

    Of one metric, or of a pair that another metric decides, `loss_sentence`.
    """
    leading, rows = result.leading_result, result.right_token_results
    if leading is None:
        return ""
    if len(rows) < 2 or leading not in rows:  # noqa: PLR2004 - several
        return loss_sentence(limits, leading)
    parts = [loss_phrase(limits, row, row.what_is_lost) for row in rows]
    for at in range(len(parts) - 1, 0, -1):
        if parts[at - 1].startswith("loses "):
            parts[at] = parts[at].removeprefix("loses ")
    limit = f"(limit {amount_phrase(limits, leading, leading.limit)})"
    return f"{', and '.join(parts)} {limit}"


def loss_phrase(limits: Limits, row: MetricResult, what: str) -> str:
    """``loses 0.1 % of recall, at most 0.3 %``; ``shows no loss of recall``."""
    loss, most = (
        amount_phrase(limits, row, row.bounds.mean),
        _at_most_phrase(limits, row),
    )
    if loss.startswith("-"):
        return f"shows no loss of {what.removeprefix('the ')}{most}"
    return f"loses {loss} of {what}{most}"


def loss_sentence(limits: Limits, row: MetricResult) -> str:
    """``loses 0.1 % of the right tokens, at most 0.9 % (limit 1.0 %)``."""
    return f"{loss_clause(limits, row)} (limit {amount_phrase(limits, row, row.limit)})"


def loss_clause(limits: Limits, row: MetricResult) -> str:
    """``loses 0.1 % of the right tokens, at most 0.9 %``: without the limit."""
    if row.kind.is_of_right_tokens:
        is_of_text = row.metric.unit_noun == "chunks"
        return loss_phrase(
            limits, row, row.what_is_lost if is_of_text else "the right tokens"
        )
    if row.kind is LossKind.SCORE:
        return _score_clause(limits, row)
    what = f"loses {row.lost} of {row.bounds.units} {row.metric.unit_noun}"
    if row.kind is LossKind.CHANGE:
        what = f"changes by {amount_phrase(limits, row, row.bounds.mean)}"
    return f"{what}{_at_most_phrase(limits, row)}"


def _score_clause(limits: Limits, row: MetricResult) -> str:
    """``loses 1.0 points of the score (3 lost, 2 won of 100 samples), at most 4.0``."""
    flips = f"({row.lost} lost, {row.won} won of {row.bounds.units:,} samples)"
    mean = mean_loss_phrase(limits, row)
    if row.bounds.mean < 0:
        # Nobody is to read the most that is lost as the most that is won.
        return f"is {mean} {flips}{_at_most_phrase(limits, row, verb='loses ')}"
    return f"loses {mean} of the score {flips}{_at_most_phrase(limits, row)}"


def _at_most_phrase(limits: Limits, row: MetricResult, *, verb: str = "") -> str:
    """``, at most 0.3 %``; empty where nothing bounds the loss, or even that gains."""
    high = row.bounds.high
    is_bound = math.isfinite(high) and high >= 0
    return f", {verb}at most {amount_phrase(limits, row, high)}" if is_bound else ""


def amount_phrase(limits: Limits, row: MetricResult, value: float) -> str:
    """A loss as reports show it: ``0.9 %``, ``0.0120 nats``; ``-`` if not finite."""
    if not math.isfinite(value):
        return NO_VALUE_WORD
    return limits.loss_amount_text(row.kind, value)


def mean_loss_phrase(limits: Limits, row: MetricResult) -> str:
    """The mean loss; of a score that rises, ``33.3 points better``."""
    mean = row.bounds.mean
    if row.kind is LossKind.SCORE and mean < 0:
        return f"{amount_phrase(limits, row, -mean)} better"
    return amount_phrase(limits, row, mean)


def units_phrase(row: MetricResult, units: int | None = None) -> str:
    """``24 functions``, of so many *units*; None for those of *row*."""
    count = row.bounds.units if units is None else units
    return plural(count, row.metric.unit_noun.removesuffix("s"))


def decision_word(row: MetricResult) -> str:
    """``within``, ``beyond``, ``open``; ``candidate`` where divergence is within."""
    is_candidate = row.kind is LossKind.CHANGE and row.decision is Decision.WITHIN
    return "candidate" if is_candidate else str(row.decision)


def decision_phrase(result: PairResult, row: MetricResult) -> str:
    """``open: about 47 functions would decide it``; ``within``."""
    decision = result.decision
    why = row.doubts_phrase
    if row.kind is LossKind.SCORE and not why:
        why = f"{row.lost} lost, {row.won} won"
    elif decision is Decision.OPEN and not why:
        why = why_open_phrase(result, row)
    return f"{decision}: {why}" if why else str(decision)


def why_open_phrase(result: PairResult, row: MetricResult) -> str:
    """
    Why a pair is open, by the first reason that applies.

    Empty if *row* is decided, or of answers without a number that would decide it.
    """
    needed, noun = row.units_to_decide, row.metric.unit_noun
    is_change = row.kind is LossKind.CHANGE
    reasons = (
        (
            result.failed,
            ", ".join(f"{record.probe} {record.status}" for record in result.failed),
        ),
        (
            result.lacking and not is_change,
            f"{row.metric.name} alone, no {', '.join(result.lacking)}",
        ),
        (is_change and row.decision is Decision.WITHIN, "a candidate by divergence"),
        (row.decision is not Decision.OPEN, ""),
        (row.kind is LossKind.ANSWERS and row.needed is None, ""),
        (row.bounds.units < FEWEST_UNITS, f"too few {noun}: {row.bounds.units}"),
        (row.bounds.mean >= row.limit, _probably_beyond_phrase(row)),
        (needed is not None, units_to_decide_phrase(row)),
    )
    otherwise = "too near the limit to be decided"
    return next((why for applies, why in reasons if applies), otherwise)


def units_to_decide_phrase(row: MetricResult) -> str:
    """How many units, those that it has included, would decide an open pair."""
    return f"about {row.units_to_decide or 0:,} {row.metric.unit_noun} would decide it"


def _probably_beyond_phrase(row: MetricResult) -> str:
    """``probably beyond``, and of answers how many units would show it."""
    if row.kind is LossKind.ANSWERS and row.needed:
        needed = f"{row.needed:,} {row.metric.unit_noun}"
        return f"probably beyond; about {needed} would show it"
    return "probably beyond"
