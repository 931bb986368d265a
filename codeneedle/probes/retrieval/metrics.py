"""
Metrics of retrieval by task and length: right answers, their log-probability, failure
modes; when a text is lost; remarks on dials and on how long answers stay right.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

import msgspec

from codeneedle.engines.messages import Forced
from codeneedle.probes.metrics import (
    CEILING,
    Loss,
    LossKind,
    Metric,
    RightTokens,
    UnitKind,
    bound_only_token_share,
    metric_by_unit,
)
from codeneedle.probes.retrieval.outcomes import (
    QuestionOutcome,
    answer_survival_share,
    is_answer_scored_without_reply,
    outcomes,
)
from codeneedle.probes.retrieval.record import (
    NAME,
    Calibration,
    Dialled,
    TextKey,
    calibration_of,
    retrieval_of,
)
from codeneedle.probes.retrieval.scoring import Mode
from codeneedle.probes.retrieval.task_kinds import TASKS
from codeneedle.records.record import BadRecord, CellRecord, Run, Setup

TEXTS = UnitKind(
    noun="texts",
    more="--questions",
    others="other tasks and lengths",
    others_by="--tasks, --lengths",
)

# --- metrics


_Value = TypeVar("_Value")
_Chosen = Callable[[QuestionOutcome, Setup], bool]


def _metric_by_question(
    number: Callable[[QuestionOutcome], float | None], chosen: _Chosen
) -> partial[Metric]:
    """A metric with one value for each chosen question that has one."""

    def outcomes_by_unit(
        record: CellRecord, setup: Setup
    ) -> Iterator[tuple[str, QuestionOutcome]]:
        for outcome in outcomes(record):
            if chosen(outcome, setup):
                yield outcome.text, outcome

    return partial(
        metric_by_unit(outcomes_by_unit, number), unit_kind=TEXTS, better="higher"
    )


def _why_not_forced(setup: Setup) -> str:
    """Why right answers were not forced; empty if they were."""
    return str(setup.probes.get(NAME, {}).get("graded", ""))


def _why_not_written(setup: Setup) -> str:
    """Why no answer has a mode, where right answers were read; else empty."""
    is_read = setup.probes.get(NAME, {}).get("reads")
    return "right answers were read, none was written" if is_read else ""


def _rightness_metric(chosen: _Chosen) -> partial[Metric]:
    """A metric of how right the chosen questions are, from 0 to 1."""
    return partial(
        _metric_by_question(lambda outcome: outcome.rightness, chosen), unit=""
    )


def _right_tokens_of(chosen: _Chosen) -> RightTokens:
    def scores_by_unit(
        record: CellRecord, setup: Setup
    ) -> Iterator[tuple[str, Forced | None]]:
        for outcome in outcomes(record):
            if chosen(outcome, setup):
                yield outcome.text, outcome.scores

    return RightTokens(scores_by_unit)


def _mode_metric(mode: Mode) -> Metric:
    """A metric of how many written answers have *mode*."""
    metric = _metric_by_question(
        lambda outcome: (
            None
            if outcome.is_scored_without_reply or outcome.rightness is None
            else outcome.score.mode is mode
        ),
        lambda *_: True,
    )
    return metric(
        name=mode.value,
        unit="answers",
        better="lower",
        is_sum=True,
        why_none=_why_not_written,
    )


def _is_informative(outcome: QuestionOutcome | TextKey, setup: Setup) -> bool:
    """
    Whether its task counts, at its length, in what is about all tasks.

    All do before the reference has set anything.
    """
    calibration = calibration_of(setup)
    return calibration is None or calibration.is_informative(
        outcome.task, outcome.length
    )


def _reading_speeds(record: CellRecord, _setup: Setup) -> list[float]:
    """Tokens per second of each text that a server read, without what was cached."""
    retrieval = retrieval_of(record)
    texts = retrieval.texts if retrieval else ()
    return [
        (text.prompt_tokens - text.cached_tokens) / text.prompt_ms * 1000
        for text in texts
        if text.prompt_ms > 0
        # What was read behind its text has waited for a program to start.
        if not any(map(is_answer_scored_without_reply, text.answers))
    ]


def _bound_only_token_share(record: CellRecord) -> float:
    """Share of the tokens of right answers of which a bound alone is known."""
    return bound_only_token_share(outcome.scores for outcome in outcomes(record))


def _informative_text_names(record: CellRecord, setup: Setup) -> list[str]:
    """Informative texts; also those that the pair was not asked, as lost on others."""
    retrieval = retrieval_of(record)
    skipped = map(TextKey.parse, retrieval.skipped if retrieval else ())
    asked = [
        outcome.text for outcome in outcomes(record) if _is_informative(outcome, setup)
    ]
    not_asked = [key.name for key in skipped if _is_informative(key, setup)]
    return list(dict.fromkeys([*asked, *not_asked]))


def _right_share_informative_or_all(record: CellRecord, setup: Setup) -> float:
    """
    Share of right answers, from 0 to 1; 0 without answers.

    Of informative tasks where there are any, else of all.
    """
    every = outcomes(record)
    chosen = [outcome for outcome in every if _is_informative(outcome, setup)] or every
    shares = [outcome.rightness for outcome in chosen if outcome.rightness is not None]
    return fmean(shares or [0])


LEAST_LOSS = 1e-9
"""A text is lost that has fewer right answers, by however little."""

NOTHING_INFORMATIVE = "no task is informative"
"""Why a metric of all tasks has no value."""

METRICS: tuple[Metric, ...] = (
    _rightness_metric(_is_informative)(
        name=NAME,
        why_none=lambda _setup: NOTHING_INFORMATIVE,
        loss=Loss(
            kind=LossKind.ANSWERS,
            lost_from=LEAST_LOSS,
            units=_informative_text_names,
            able=_right_share_informative_or_all,
        ),
    ),
    _right_tokens_of(_is_informative).log_probability_metric(unit_kind=TEXTS)(
        name=f"{NAME}-logp",
        why_none=lambda setup: _why_not_forced(setup) or NOTHING_INFORMATIVE,
        loss=Loss(
            kind=LossKind.NATS,
            what="retrieval",
            bounded=_bound_only_token_share,
            units=_informative_text_names,
            able=_right_share_informative_or_all,
        ),
    ),
    _mode_metric(Mode.INTRUSION),
    *(
        _mode_metric(m)
        for m in Mode
        if m not in {Mode.CORRECT, Mode.INTRUSION, Mode.DEPARTS}
    ),
    Metric(
        name="reading",
        unit="tokens/s",
        better="higher",
        values=_reading_speeds,
        quantity="speed",
        is_prompt_speed=True,
    ),
)
"""Those of every run; the first is the headline."""


def metrics_of_tasks(setup: Setup) -> tuple[Metric, ...]:
    """
    Metrics of each task of a run, ``multikey``, ``multikey-logp``; and at each length,
    where there are several: ``multikey@2048``.

    Raises:
        BadRecord: If tasks are stored that are no text, or lengths that are no number.
    """
    tasks = _setting_values(setup, "tasks", str)
    lengths = _setting_values(setup, "lengths", int)
    several = lengths if len(lengths) > 1 else ()
    return tuple(
        metric
        for task in tasks
        for length in (None, *several)
        for metric in _metrics_of_task(task, length)
    )


def _setting_values(setup: Setup, key: str, kind: type[_Value]) -> tuple[_Value, ...]:
    """
    The list *key* of the settings, its values of *kind*; empty if they have none.

    Raises:
        BadRecord: If it is something else.
    """
    stored = setup.probes.get(NAME, {}).get(key, [])
    try:
        return msgspec.convert(stored, type=tuple[kind, ...])  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        reason = f"the tasks or lengths of {NAME} are none: {error}"
        raise BadRecord(file="setup.json", reason=reason) from error


def _metrics_of_task(task: str, length: int | None) -> Iterator[Metric]:
    """
    Metrics of *task*: right, log-probability, where it breaks.

    At *length*, or all.
    """

    def is_of_task_and_length(outcome: QuestionOutcome, _setup: Setup) -> bool:
        return outcome.task == task and length in {None, outcome.length}

    at = "" if length is None else f"@{length}"
    facet = f"task={task}" if length is None else f"task={task} length={length}"
    yield _rightness_metric(is_of_task_and_length)(
        name=f"{task}{at}",
        of=NAME,
        facet=facet,
    )
    tokens = _right_tokens_of(is_of_task_and_length)
    shared: dict[str, Any] = {"unit_kind": TEXTS, "why_none": _why_not_forced}
    yield tokens.log_probability_metric(**shared)(
        name=f"{task}-logp{at}", of=f"{NAME}-logp", facet=facet
    )
    yield tokens.leading_first_choices_metric(**shared)(
        name=f"{task}-until{at}", of=f"{NAME}-until", facet=facet
    )


# --- in words


SURVIVAL_TOKENS = (16, 32, 64, 128, 256, 512)
"""Lengths at which a remark says how many answers are still right."""


def dial_and_survival_remarks(run: Run) -> tuple[str, ...]:
    """The path of each dial, and how long answers survive."""
    records = [r for r in run.records if r.probe == NAME and r.has_numbers]
    calibration = calibration_of(run.setup) if records else None
    return (
        *(_lines_on_dials(calibration) if calibration else ()),
        *_answer_survival_phrases(records),
    )


def _lines_on_dials(calibration: Calibration) -> Iterator[str]:
    """A line for each dial."""
    for dial in calibration.dials:
        yield _dial_phrase(dial, calibration)


def _dial_phrase(dial: Dialled, calibration: Calibration) -> str:
    """The level of a dial, how it was found, and at which lengths too few are right."""
    levels = TASKS[dial.task].levels if dial.task in TASKS else ()
    level = f"level {dial.level}"
    if dial.level < len(levels):
        level += f", {levels[dial.level].says}"
    path = ", ".join(f"{step.level}: {step.right:.0%}" for step in dial.path)
    how = "chosen by the user" if dial.is_fixed else f"found on {calibration.reference}"
    phrase = f"{dial.task}: {level}, {how} ({path} right)"
    if dial.right_share >= CEILING:
        phrase += "; too easy for a small loss to show"
    silent = [
        f"{size.length:,}"
        for size in calibration.sizes
        if size.task == dial.task
        if not calibration.is_informative(size.task, size.length)
    ]
    if not silent:
        return phrase
    return f"{phrase}; too few right at {', '.join(silent)} tokens: in no average"


def _answer_survival_phrases(records: Sequence[CellRecord]) -> Iterator[str]:
    """How long answers survive, of the task whose answers are long: a line per pair."""
    for record in records:
        long = [outcome for outcome in outcomes(record) if outcome.task == "ledger"]
        shares = (
            (tokens, answer_survival_share(long, tokens)) for tokens in SURVIVAL_TOKENS
        )
        known = [
            f"{tokens}: {share:.0%}"
            for tokens, share in shares
            if not math.isnan(share)
        ]
        if known:
            yield (
                f"ledger, {record.pair}: answers right for so many tokens: "
                f"{', '.join(known)}"
            )
