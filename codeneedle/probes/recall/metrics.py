"""
Metrics of recall, written and forced: with how many lines a function passes or is lost,
when right tokens are those that the form of code tells, and speeds of reading prompts.
"""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import fmean
from typing import TypeVar

from codeneedle.corpora.needles import WRITTEN_LINES
from codeneedle.engines.messages import Forced, Reply
from codeneedle.probes.cell_metrics import OF_CELL
from codeneedle.probes.metrics import (
    Found,
    Loss,
    LossKind,
    Metric,
    RightTokens,
    metric_by_unit,
)
from codeneedle.probes.recall.alignment import Mark
from codeneedle.probes.recall.record import (
    RightLineAnswer,
    recall_of,
    right_line_answers,
)
from codeneedle.probes.recall.rounds import (
    Margins,
    ScoredRound,
    answered_rounds,
    margins_of_gaps,
    scored_rounds,
)
from codeneedle.probes.recall.settings import settings_of
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


_Answered = TypeVar("_Answered")

PASS_LINES = 8
"""Matched lines from which a round passes, as in the published sweeps."""

LOST_LINES = 4
"""A function is lost that has this many lines fewer than with the reference."""

FORM = 0.6
"""
Share of right tokens up to which they may all be told by the form of code.

Measured 0.40 to 0.52 where no line is right: Qwen2.5-Coder-0.5B in texts of 7,558 to
125,547 tokens, with pairs that find nothing.
"""

FORM_LINES = 0.05
"""
Share of right lines below which nothing was looked up.

Of lines of seven tokens 0.21 or more are right where something is, and 0.00 to 0.01
where nothing is (see `FORM`).
"""

LEAST_LINES = 20
"""Lines from which on it tells something that fewer of them are right."""


def _answered_rounds_or_none(
    record: CellRecord, setup: Setup
) -> Iterator[tuple[str, ScoredRound | None]]:
    """The rounds of functions to be written; None for those without an answer."""
    for scored_round in scored_rounds(record, setup):
        yield scored_round.needle.name, None if scored_round.error else scored_round


def _right_line_scores(
    record: CellRecord, setup: Setup
) -> Iterator[tuple[str, Forced | None]]:
    """The scores of `right_line_answers`; None for a function without."""
    for name, answer in right_line_answers(record, setup):
        yield name, answer.scores if answer else None


def _why_guessed(record: CellRecord, setup: Setup) -> str:
    """
    Phrase for a record whose right tokens may all be the form of code; else empty.

    Form takes no look-up, and gives hardly a whole line.
    """
    answers = [answer for _, answer in right_line_answers(record, setup) if answer]
    lines = [is_right for answer in answers for is_right in answer.right_line_flags]
    tokens = fmean([answer.scores.first_choice_share for answer in answers] or [0])
    is_form = tokens < FORM and sum(lines) < FORM_LINES * len(lines)
    if len(lines) < LEAST_LINES or not is_form:
        return ""
    return (
        f"the model itself has {tokens:.0%} of the tokens right with {record.pair}, "
        f"and {sum(lines)} of {len(lines)} lines: the form of code, and not what it "
        "looks up"
    )


def _every_score(record: CellRecord) -> Iterator[Forced | None]:
    """Scores of all right lines, whatever the setup has; None for those without."""
    return (answer.scores for answer in recall_of(record).scored_answers)


def _written_function_names(record: CellRecord, _setup: Setup) -> list[str]:
    """Names of the functions to be written, those without an answer among them."""
    return [answer.name for answer in recall_of(record).rounds]


def _crosscheck_probabilities(record: CellRecord, setup: Setup) -> dict[str, float]:
    """
    Mean probability of the right tokens of each function forced for a check, by name.

    Empty where none are read.
    """
    if not settings_of(setup).reads_instead_of_forcing:
        return {}
    every = recall_of(record).forced
    return {
        answer.name: answer.scores.mean_probability for answer in every if answer.scores
    }


def _lines_matched(answer: ScoredRound) -> int:
    return answer.line_counts_by_mark[Mark.MATCHED]


def matched_share(record: CellRecord, setup: Setup) -> float:
    """The share of lines of answered rounds that were written back; 0 without any."""
    matched = [_lines_matched(answer) for answer in answered_rounds(record, setup)]
    return fmean(matched or [0]) / WRITTEN_LINES


def _rounds_with_function_names(
    record: CellRecord, setup: Setup
) -> Iterator[tuple[str, ScoredRound]]:
    """The rounds of functions to be written, those with an error among them."""
    for scored_round in scored_rounds(record, setup):
        yield scored_round.needle.name, scored_round


def _reading_speeds(record: CellRecord, _setup: Setup) -> list[float]:
    """
    Tokens read per second in each round without error that read most of its prompt.

    The unscored round is among them.
    """
    recall = recall_of(record)
    rounds = [*([recall.priming] if recall.priming else []), *recall.rounds]
    speeds = (
        reading_speed_if_uncached(e.reply) for e in rounds if e.reply and not e.error
    )
    return [speed for speed in speeds if speed is not None]


def reading_speed_if_uncached(reply: Reply) -> float | None:
    """Tokens read per second; None where much of the prompt came from the cache."""
    read = reply.prompt_tokens - reply.cached_tokens
    is_whole = read > 0 and read >= WHOLE_READING * reply.prompt_tokens
    if not is_whole or reply.prompt_ms <= 0:
        return None
    return read / reply.prompt_ms * 1000


def _writing_speeds(record: CellRecord, _setup: Setup) -> list[float]:
    """Writing speed of each reply of `STEADY_TOKENS` or more, in tokens per second."""
    return [
        reply.predicted_tokens / reply.predicted_ms * 1000
        for answer in recall_of(record).rounds
        if (reply := answer.reply) and not answer.error
        if reply.predicted_tokens >= STEADY_TOKENS and reply.predicted_ms > 0
    ]


def _accepted_draft_percents(record: CellRecord, _setup: Setup) -> list[float]:
    """Accepted of drafted tokens in percent, of each reply with some."""
    return [
        100 * answer.reply.accepted / answer.reply.drafted
        for answer in recall_of(record).rounds
        if answer.reply and answer.reply.drafted
    ]


def _line_metric(number: Callable[[ScoredRound], float | None]) -> partial[Metric]:
    """A metric of a number of lines of each answer."""
    return partial(metric_by_unit(_answered_rounds_or_none, number), unit="lines")


def _margin_metric(
    found: Found[_Answered],
    margins_of: Callable[[_Answered], Margins | None],
    number: Callable[[Margins], float],
) -> partial[Metric]:
    """A metric of the margins of what is *found*; what has none has no value."""

    def margin(answer: _Answered) -> float | None:
        found_margins = margins_of(answer)
        return number(found_margins) if found_margins else None

    metric = metric_by_unit(found, margin)
    return partial(metric, unit="nats", better="higher")


def _margins_written(answer: ScoredRound) -> Margins | None:
    return answer.margins


def _margins_of_right_lines(answer: RightLineAnswer) -> Margins | None:
    return margins_of_gaps(answer.scores.leads)


_written_margin = partial(_margin_metric, _answered_rounds_or_none, _margins_written)

_forced_margin = partial(_margin_metric, right_line_answers, _margins_of_right_lines)

_speed = partial(Metric, unit="tokens/s", better="higher", quantity="speed")

METRICS: tuple[Metric, ...] = (
    _line_metric(_lines_matched)(
        name="matched",
        better="higher",
        loss=Loss(
            kind=LossKind.ANSWERS,
            lost_from=LOST_LINES,
            units=_written_function_names,
            able=matched_share,
            faults=(
                ("misplaced", "that stand elsewhere in the text"),
                ("hallucinated", "found nowhere in the text"),
            ),
        ),
    ),
    metric_by_unit(
        _answered_rounds_or_none, lambda answer: _lines_matched(answer) >= PASS_LINES
    )(name="pass", unit="rounds", better="higher", is_sum=True),
    _line_metric(lambda answer: answer.misplaced_line_count)(
        name="misplaced", better="lower"
    ),
    _line_metric(lambda answer: answer.line_counts_by_mark[Mark.HALLUCINATED])(
        name="hallucinated", better="lower"
    ),
    _line_metric(lambda answer: answer.line_counts_by_mark[Mark.MISSING])(
        name="missing", better="lower"
    ),
    _line_metric(lambda answer: answer.line_counts_by_mark[Mark.BONUS])(
        name="bonus", better="neither"
    ),
    _line_metric(lambda answer: answer.line_counts_by_mark[Mark.OVERRUN])(
        name="overrun", better="neither"
    ),
    _line_metric(lambda answer: answer.lines_matched_with_indent)(
        name="matched-strict", better="higher"
    ),
    _written_margin(lambda found: found.least)(name="margin"),
    _written_margin(lambda found: found.fifth)(name="margin5"),
    _written_margin(lambda found: found.mean)(name="margin-mean"),
    _speed(name="prefill", values=_reading_speeds, is_prompt_speed=True),
    _speed(name="decode", values=_writing_speeds),
    Metric(
        name="accepted",
        unit="%",
        better="neither",
        values=_accepted_draft_percents,
        quantity="speed",
    ),
    *OF_CELL,
    metric_by_unit(
        _rounds_with_function_names, lambda scored_round: bool(scored_round.error)
    )(name="errors", unit="rounds", better="lower", is_sum=True),
)
"""All of them; the first is the headline."""


_RIGHT = RightTokens(_right_line_scores)

FORCED: tuple[Metric, ...] = (
    _RIGHT.log_probability_metric()(
        name="recall-logp",
        loss=_RIGHT.loss(
            _every_score,
            what="recall",
            crosschecked=_crosscheck_probabilities,
            why_guessed=_why_guessed,
        ),
    ),
    _RIGHT.first_choice_percent_metric()(name="recall-right"),
    metric_by_unit(right_line_answers, lambda answer: answer.lines_before_break)(
        name="breaks-at", unit="lines", better="higher"
    ),
    _forced_margin(lambda found: found.mean)(name="lead"),
    _forced_margin(lambda found: found.fifth)(name="lead5"),
)
"""Those of forced recall, in runs that asked for it; the first is their headline."""


def right_line_metrics(setup: Setup) -> tuple[Metric, ...]:
    """The metrics of *setup* beyond `METRICS`; empty if it scores no right lines."""
    return FORCED if settings_of(setup).scores_right_lines else ()
