"""
Metrics of generation: which answers are lost, as they loop, are empty or do not end;
where they leave the reference's, which is no loss; how many prompts can show no loss.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

from codeneedle.probes.cell_metrics import OF_CELL
from codeneedle.probes.generation.comparing import AnswerComparison, compared_answers
from codeneedle.probes.generation.record import NAME, written_answers_by_prompt
from codeneedle.probes.metrics import (
    Loss,
    LossKind,
    Metric,
    UnitKind,
    Values,
    metric_by_unit,
    values_from_number,
)
from codeneedle.probes.observations import Observed, observation_of
from codeneedle.records.record import CellRecord, Setup

PROMPTS = UnitKind(
    noun="prompts", more="--prompts", others="others", others_by="--prompts"
)

LEAST_LOST = 0.10
"""Share of answers lost that is the usual limit, ``--max-lost``."""


def prompts_needed_without_loss(share: float) -> int:
    """
    Prompts whose answers must all be kept to show that at most `LEAST_LOST` are lost.

    Args:
        share: Chance of an error; see `verdict.statistics.error_share`.

    Source:
        Clopper and Pearson's interval without a loss: 1 - share^(1/n).
    """
    return math.ceil(math.log(share) / math.log1p(-LEAST_LOST))


def comparisons_not_out(record: CellRecord, setup: Setup) -> list[AnswerComparison]:
    """The answers beside those of the reference, without prompts that are out."""
    return [
        compared_answer
        for compared_answer in compared_answers(record, setup)
        if not compared_answer.is_out
    ]


def _is_ended_and_not_empty(comparison: AnswerComparison) -> bool:
    """Whether the model ended its answer, and wrote something."""
    return comparison.ours.has_ended and not comparison.ours.is_empty


def _loss_of_answers(
    is_kept: Callable[[AnswerComparison], bool],
    *,
    can_lose: Callable[[AnswerComparison], bool] = lambda _each: True,
    right: str = "of the model's own answers, {able} neither loop nor are empty with "
    "{pair}",
) -> Loss:
    """
    Answers that are lost where the reference has them.

    If none could be lost, every prompt counts as 0, so that the verdict is silent.

    Args:
        is_kept: Whether an answer is not lost.
        can_lose: Whether that of the reference could be; where it loops or is empty,
            it cannot.
        right: See `Loss`.
    """

    def kept_by_prompt(record: CellRecord, setup: Setup) -> dict[str, float]:
        losable = [
            comparison
            for comparison in comparisons_not_out(record, setup)
            if can_lose(comparison)
        ]
        kept = {comparison.prompt: float(is_kept(comparison)) for comparison in losable}
        # Of every prompt nothing is right: the verdict then says why it is silent.
        return kept or {
            compared_answer.prompt: 0.0
            for compared_answer in compared_answers(record, setup)
        }

    def kept_share_of_all(record: CellRecord, setup: Setup) -> float:
        """Share kept of all answers; one that is out, or cannot be lost, is not."""
        asked = len(compared_answers(record, setup))
        return sum(kept_by_prompt(record, setup).values()) / asked if asked else 0.0

    return Loss(
        kind=LossKind.ANSWERS,
        by_unit=kept_by_prompt,
        lost_from=1.0,
        units=_answered_prompt_names,
        able=kept_share_of_all,
        right=right,
    )


def _answered_prompt_names(record: CellRecord, setup: Setup) -> list[str]:
    """The prompts that were answered, those that are out among them."""
    return [
        compared_answer.prompt for compared_answer in compared_answers(record, setup)
    ]


def _comparisons_by_prompt(
    record: CellRecord, setup: Setup
) -> Iterator[tuple[str, AnswerComparison]]:
    """The answers to prompts that are not out."""
    for comparison in comparisons_not_out(record, setup):
        yield comparison.prompt, comparison


def tokens_before_difference(comparison: AnswerComparison) -> int:
    """Tokens until an answer leaves the reference's; all of them if it never does."""
    return (
        comparison.difference.tokens
        if comparison.difference
        else comparison.theirs.tokens
    )


def _tokens_before_change_unless_out(record: CellRecord, setup: Setup) -> list[float]:
    """For each prompt that is not out, `tokens_before_difference`."""
    return [
        float(tokens_before_difference(comparison))
        for comparison in comparisons_not_out(record, setup)
    ]


def _median_lead(record: CellRecord, setup: Setup) -> list[float]:
    """The median lead where answers differ; none if no answer does, or none is told."""
    every = comparisons_not_out(record, setup)
    leads = [e.difference.lead for e in every if e.difference]
    known = [lead for lead in leads if lead is not None]
    return [median(known)] if known else []


def _median_reader(values: Values) -> Values:
    """Returns what reads the median of *values*, alone in a list; empty without any."""

    def median_of_record(record: CellRecord, setup: Setup) -> Sequence[float]:
        found = values(record, setup)
        return [median(found)] if found else []

    return median_of_record


def pair_compared_with(record: CellRecord) -> str | None:
    """
    The pair that answers are compared with, itself of the reference.

    None if untold.
    """
    return observation_of(record, Observed).facts.get("against")


def _accepted_draft_percent(record: CellRecord) -> float | None:
    """Drafted tokens that were accepted, in percent; None if none was drafted."""
    answers = written_answers_by_prompt(record).values()
    drafted = sum(answer.drafted for answer in answers)
    accepted = sum(answer.accepted for answer in answers)
    return 100 * accepted / drafted if drafted else None


def _metric_by_prompt(number: Callable[[AnswerComparison], float]) -> partial[Metric]:
    """A metric of the *number* of each prompt that is not out."""
    return partial(
        metric_by_unit(_comparisons_by_prompt, number),
        unit_kind=PROMPTS,
        reference=pair_compared_with,
    )


METRICS: tuple[Metric, ...] = (
    _metric_by_prompt(tokens_before_difference)(
        name="diverges-at",
        unit="tokens",
        better="higher",
        values=_median_reader(_tokens_before_change_unless_out),
        units=_tokens_before_change_unless_out,
    ),
    Metric(
        name="diverges-lead",
        unit="nats",
        better="lower",
        values=_median_lead,
        unit_kind=PROMPTS,
        reference=pair_compared_with,
        why_none=lambda _setup: "no answer differs, or its server tells no leads",
    ),
    _metric_by_prompt(lambda comparison: 100 * (comparison.loop is not None))(
        name="loops",
        unit="%",
        better="lower",
        loss=_loss_of_answers(lambda comparison: comparison.loop is None),
    ),
    _metric_by_prompt(lambda comparison: 100 * comparison.ours.is_empty)(
        name=f"{NAME}-empty",
        unit="%",
        better="lower",
        loss=_loss_of_answers(lambda comparison: not comparison.ours.is_empty),
    ),
    _metric_by_prompt(lambda comparison: 100 * _is_ended_and_not_empty(comparison))(
        name="ends",
        unit="%",
        better="higher",
        loss=_loss_of_answers(
            _is_ended_and_not_empty,
            can_lose=lambda comparison: comparison.theirs.has_ended,
            right="the model itself ends {able} of its answers with {pair}",
        ),
    ),
    _metric_by_prompt(lambda comparison: comparison.ours.tokens)(
        name="length", unit="tokens", better="neither"
    ),
    Metric(
        name=f"{NAME}-accepted",
        unit="%",
        better="neither",
        values=values_from_number(_accepted_draft_percent),
        quantity="speed",
    ),
    *OF_CELL,
)
"""
The first is the headline.

Where answers leave those of the reference is a change and no loss: it enters nothing.
An answer that loops, that its limit ends, or that is empty, where the reference's is
none of these, is lost.
"""
