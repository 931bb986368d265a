"""What ``verdict --check`` says of one pair, and the exit code that it ends with."""

from enum import IntEnum

from codeneedle import exit_codes
from codeneedle.cache_types import Pair
from codeneedle.errors import did_you_mean
from codeneedle.text import escape_invisible
from codeneedle.verdict.judge import Verdict
from codeneedle.verdict.metric_phrases import (
    decision_phrase,
    loss_sentence,
    losses_sentence,
)
from codeneedle.verdict.statistics import Decision


class Check(IntEnum):
    """Exit codes of a check, beside those of every command."""

    WITHIN = 0
    OPEN = exit_codes.OPEN
    """Also of a pair that was not measured, or has no numbers."""

    BEYOND = exit_codes.BEYOND


def exit_code_and_reason(verdict: Verdict, pair: Pair) -> tuple[Check, str]:
    """The exit code of a check of *pair*, and a line on why."""
    result, name = verdict.result(pair), escape_invisible(str(pair))
    if pair == verdict.reference:
        return Check.WITHIN, f"{name}: within, as the reference"
    if result is None or not (result.leading_result and result.decision):
        trouble = result.trouble if result else ""
        if pair not in (grid := verdict.run.setup.grid):
            trouble = f"not measured. {did_you_mean(str(pair), [*map(str, grid)])}"
        return Check.OPEN, f"{name}: {escape_invisible(trouble) or 'not measured'}"
    leading = result.leading_result
    sentence = f"{loss_sentence(verdict.limits, leading)}, by {leading.metric.name}"
    if result.decision is Decision.WITHIN:
        sentence = losses_sentence(verdict.limits, result)
    if result.decision is Decision.OPEN:
        return Check.OPEN, f"{name}: {decision_phrase(result, leading)}; {sentence}"
    code = Check.WITHIN if result.decision is Decision.WITHIN else Check.BEYOND
    return code, f"{name}: {result.decision}: {sentence}"
