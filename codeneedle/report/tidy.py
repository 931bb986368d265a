"""
The one table: its columns, and a row for each number of each pair, in the form that is
called tidy.

CSV and JSON of every report, the data frames of the Python API, panels and speeds are
filters of it.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from codeneedle.cache_types import Pair
from codeneedle.probes import PROBES, frames, length_probe_answers_by_pair
from codeneedle.probes.answers import ScoredAnswer, Skipped
from codeneedle.probes.frames import Cells, CellValue
from codeneedle.probes.metrics import LossKind, Metric
from codeneedle.probes.probe import Probe
from codeneedle.records.record import Run
from codeneedle.report.captions import run_names_or_folders

if TYPE_CHECKING:  # tables without a verdict do not wait for statistics
    import pandas as pd

    from codeneedle.verdict.judge import Verdict
    from codeneedle.verdict.metric_results import MetricResult

LOSS = "loss"
"""The metric of what a pair loses beside the reference, a share from 0 to 1."""

NOT_RUN_STATUS = "not-run"
"""Status of a pair without a record; an empty field could be taken for missing data."""

KINDS = ("both right", "lost", "gained", "both wrong")
"""What may become of a question that two pairs were asked, the reference first."""

QUESTIONS = "questions"
"""Unit of the metrics that count these."""

Number = float | None


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one metric, or a facet of it, says of one pair."""

    run: Annotated[str, Meta(description="Name of the run; its folder of namesakes.")]
    model: Annotated[str, Meta(description="Name of the weights.")]
    corpus: Annotated[
        str, Meta(description="Name of the text; empty if no probe reads it.")
    ]
    context: Annotated[int, Meta(description="In tokens; of memory, that of the cell.")]
    pair: Annotated[str, Meta(description="Both cache types: `q8_0/q4_0`.")]
    k: Annotated[str, Meta(description="Cache type of K.")]
    v: Annotated[str, Meta(description="Cache type of V.")]
    probe: Annotated[str, Meta(description="The probe that measured it.")]
    metric: Annotated[str, Meta(description="What is measured: `tg`, `kld`, `loss`.")]
    facet: Annotated[
        str,
        Meta(
            description="Part of it: `depth=4096`, `context=512`, `tokens=code`, "
            "`task=nth length=2048 depth=0.5`; `by=METRIC` of a loss. Empty for what "
            "reports show: the whole, the first context, the greatest depth, the loss "
            "that decides."
        ),
    ]
    unit: Annotated[str, Meta(description="Of `value` to `limit`; empty for none.")]
    value: Annotated[Number, Meta(description="Unrounded; null without a number.")]
    error: Annotated[Number, Meta(description="Standard error; null if unknown.")]
    low: Annotated[Number, Meta(description="Lower end of the verdict's interval.")]
    high: Annotated[Number, Meta(description="Upper end of the verdict's interval.")]
    limit: Annotated[Number, Meta(description="What the verdict holds it against.")]
    n: Annotated[int, Meta(description="Units behind it: functions, chunks, texts.")]
    left_out: Annotated[
        int, Meta(description="Units without a score, here or in the reference.")
    ]
    decision: Annotated[
        str,
        Meta(
            description="`within`, `beyond` or `open` by this number; of a loss "
            "without a facet, by all that was measured; empty if it has no say."
        ),
    ]
    reference: Annotated[
        str, Meta(description="The pair that others are compared with, if any.")
    ]
    attention: Annotated[
        str, Meta(description="Where it ran: `kernel`, `cpu`, `converted`, or empty.")
    ]
    status: Annotated[str, Meta(description="How its cell ended, or `not-run`.")]
    reason: Annotated[str, Meta(description="Why there is no number, if that is so.")]


COLUMNS = TableRow.__struct_fields__
"""Names of the columns, in CSV, JSON and data frames alike."""


def table_rows(
    runs: Sequence[Run], verdicts: Sequence["Verdict"] = ()
) -> list[TableRow]:
    """Every number of *runs*: losses and metrics, then `task_facet_rows`."""
    return [*loss_and_metric_rows(runs, verdicts), *task_facet_rows(runs)]


def loss_and_metric_rows(
    runs: Sequence[Run],
    verdicts: Sequence["Verdict"] = (),
    probe: str = "",
) -> list[TableRow]:
    """
    Losses and metrics of *runs*: one by one, pairs in the order of the grid.

    Metrics without a value for any pair are left out, but for those that say why pairs
    have none: the first of each probe, and parts of a cell that may fail alone.

    Args:
        runs: With the records of the probes to show; their setups name the others.
        verdicts: On these runs with all records; without, rows have no loss.
        probe: The only one whose metrics are wanted; empty for all that were measured.
    """
    judged = itertools.chain(verdicts, itertools.repeat(None))
    return [
        row
        for name, run, verdict in zip(
            run_names_or_folders(runs), runs, judged, strict=False
        )
        for row in _loss_and_metric_rows(_JudgedRun(name, run, verdict), probe)
    ]


def task_facet_rows(runs: Sequence[Run]) -> list[TableRow]:
    """Answers of *runs* by task, length and depth, where there are any."""
    return [
        row
        for name, run in zip(run_names_or_folders(runs), runs, strict=True)
        for probe in _probes_of(run)
        if asks_by_length(probe)
        for row in _task_facet_rows(_JudgedRun(name, run), probe)
    ]


def data_frame(rows: Iterable[TableRow]) -> "pd.DataFrame":
    """*rows* as a frame with `COLUMNS`; NaN where there is no number."""
    import pandas as pd

    frame = pd.DataFrame(map(msgspec.structs.astuple, rows), columns=list(COLUMNS))
    numbers = ("value", "error", "low", "high", "limit")
    return frame.astype(
        {**dict.fromkeys(numbers, float), "n": int, "left_out": int, "context": int}
    )


@dataclass(frozen=True, slots=True)
class _JudgedRun:
    """A run with its name, and the verdict on it if it was judged."""

    name: str
    run: Run
    verdict: "Verdict | None" = None

    def row(
        self, cell: CellValue, probe: str, metric: str, **others: object
    ) -> TableRow:
        """A row of *cell*; *others* are columns that it lacks, or replace its own."""
        setup = self.run.setup
        columns = {
            "facet": "",
            "unit": "",
            "value": _finite_or_none(cell.value),
            "error": _finite_or_none(cell.error),
            "low": None,
            "high": None,
            "limit": None,
            "n": cell.units if cell.has_value else 0,
            "left_out": cell.left_out if cell.has_value else 0,
            "decision": "",
            "reference": "",
            **others,
        }
        return msgspec.convert(
            {
                "run": self.name,
                "model": setup.weights.name,
                "corpus": setup.corpus.name if setup.corpus.is_counted else "",
                "context": setup.context,
                "pair": str(cell.pair),
                "k": cell.pair.k,
                "v": cell.pair.v,
                "probe": probe,
                "metric": metric,
                "attention": cell.attention.value if cell.attention else "",
                "status": cell.status or NOT_RUN_STATUS,
                "reason": cell.reason or ("" if cell.is_ranked else cell.evidence),
                **columns,
            },
            TableRow,
        )


def _finite_or_none(value: float) -> Number:
    """*value*; None if it is not finite."""
    return value if math.isfinite(value) else None


def _probes_of(run: Run) -> list[Probe]:
    """The probes that *run* was set up for, or has records of."""
    named = {*run.setup.probes, *(record.probe for record in run.records)}
    return [probe for probe in PROBES.values() if probe.name in named]


def _loss_and_metric_rows(source: _JudgedRun, wanted: str) -> Iterator[TableRow]:
    """Losses, then metrics of each probe, or of the one *wanted*."""
    yield from _loss_rows(source)
    for probe in [PROBES[wanted]] if wanted else _probes_of(source.run):
        run = source.run.of_probe(probe.name)
        metrics = {metric.name: metric for metric in probe.metrics_of(run.setup)}
        tables = frames.cells_frames(run, list(metrics.values()))
        first = next(iter(metrics))
        for name, cells in tables.items():
            metric, has_values = metrics[name], any(cell.has_value for cell in cells)
            has_gaps = metric.gap and any(cell.reason for cell in cells)
            if name == first or has_values or has_gaps:
                yield from _metric_rows(source, probe.name, metric, cells)


def _metric_rows(
    source: _JudgedRun, probe: str, metric: Metric, cells: Cells
) -> Iterator[TableRow]:
    """A row for each pair of *cells* that was to be measured."""
    reference = frames.reference_pair(cells)
    for cell in cells:
        if not cell.is_hole:
            yield source.row(
                cell,
                probe,
                metric.of or metric.name,
                facet=metric.facet,
                unit=metric.unit,
                context=_context_of_cell(source.run, metric, cell),
                reference=str(reference or ""),
                **_judgement_fields(source.verdict, cell.pair, metric),
            )


def _context_of_cell(run: Run, metric: Metric, cell: CellValue) -> int:
    """The context of *run*; of memory that of *cell*, if it has its own."""
    own = cell.context if metric.quantity == "memory" else 0
    return own or run.setup.context


# --- losses


def _judgement_fields(
    verdict: "Verdict | None", pair: Pair, metric: Metric
) -> Mapping[str, object]:
    """
    The columns that say what *verdict* decides of *pair* by *metric*.

    Those of interval and limit are among them only if its loss is a change. Empty
    without a verdict, or for a metric without a loss.
    """
    if verdict is None or not metric.loss:
        return {}
    result = verdict.result(pair)
    row = result.metric_result(metric.name) if result else None
    if row is None or row.kind is not LossKind.CHANGE:
        return {"decision": verdict.decision(pair, metric.name)}
    return _bounds_limit_and_decision_columns(row, verdict.decision(pair, metric.name))


def _bounds_limit_and_decision_columns(
    row: "MetricResult", decision: str
) -> dict[str, object]:
    """Interval, limit and decision as columns; None for an end that is not finite."""
    return {
        "low": _finite_or_none(row.bounds.low),
        "high": _finite_or_none(row.bounds.high),
        "limit": row.limit,
        "decision": decision,
    }


def _loss_rows(source: _JudgedRun) -> Iterator[TableRow]:
    """What decides each pair, then its loss by each metric, without divergences."""
    if source.verdict is None:
        return
    from codeneedle.report.losses import losses_of

    losses = losses_of(source.verdict)
    cells = [cell for cell in losses.cells() if not cell.is_hole] if losses else []
    for cell in cells:
        yield _loss_row(
            source, cell, _shown_loss_or_none(source.verdict, cell.pair), ""
        )
    rows = [row for result in source.verdict.results for row in result.metric_results]
    kinds = {row.metric.name: row.kind for row in rows}
    for name in (name for name, kind in kinds.items() if kind is not LossKind.CHANGE):
        for cell in cells:
            result = source.verdict.result(cell.pair)
            row = result.metric_result(name) if result else None
            if row:
                yield _loss_row(source, cell, row, f"by={name}")


def _loss_row(
    source: _JudgedRun, cell: CellValue, row: "MetricResult | None", facet: str
) -> TableRow:
    """The loss of *row*; without one *cell* itself: 0 of the reference, or a gap."""
    assert source.verdict is not None  # noqa: S101 - `_loss_rows` has looked
    verdict, pair = source.verdict, cell.pair
    named = row.metric.name if row else ""
    found: dict[str, object] = {
        "value": _finite_or_none(cell.value) if not row else None,
        "decision": verdict.decision(pair),
    }
    if row:
        decision = verdict.decision(pair, named) if facet else verdict.decision(pair)
        found = {
            "value": _finite_or_none(row.bounds.mean),
            "n": row.bounds.units,
            "left_out": row.left_out,
            **_bounds_limit_and_decision_columns(row, decision),
        }
    return source.row(
        cell,
        _probe_name_of_metric(source.run, named),
        LOSS,
        facet=facet,
        unit="share",
        reference=str(verdict.reference or ""),
        **found,
    )


def _shown_loss_or_none(verdict: "Verdict", pair: Pair) -> "MetricResult | None":
    """The row of the loss that reports show of *pair*: never that of a divergence."""
    from codeneedle.report.losses import shown_loss_row

    result = verdict.result(pair)
    row = shown_loss_row(verdict, result) if result else None
    return None if row is None or row.kind is LossKind.CHANGE else row


def _probe_name_of_metric(run: Run, metric: str) -> str:
    """Name of the first probe of *run* that has *metric*; empty if none has."""
    probes = (PROBES[name] for name in run.setup.probes if name in PROBES)
    named = (
        probe.name
        for probe in probes
        if any(
            probe_metric.name == metric for probe_metric in probe.metrics_of(run.setup)
        )
    )
    return next(named, "")


# --- places: tasks by length and depth


def asks_by_length(probe: Probe) -> bool:
    """Whether *probe* asks about texts of several lengths, some of which it skips."""
    return probe.skipped is not None


TaskFacet = tuple[str, int, float]
"""Task, length of the text in tokens, and depth from 0 to 1."""


def _task_facet_rows(source: _JudgedRun, probe: Probe) -> Iterator[TableRow]:
    """
    Answers by task, length and depth: shares, log-probabilities, and what changed.

    The metrics of the latter are `KINDS`: of the questions that both the pair and the
    reference were asked, whose number is the ``n`` of the row.
    """
    run = source.run.of_probe(probe.name)
    tables = frames.cells_frames(run, probe.metrics_of(run.setup))
    references = map(frames.reference_pair, tables.values())
    reference = next(filter(None, references), None)
    answers = length_probe_answers_by_pair(run)
    skipped = {
        record.pair: probe.skipped(run, record) if probe.skipped else ()
        for record in run.records
        if record.has_numbers
    }
    places = _task_facets(answers, skipped)
    base = answers.get(reference, ()) if reference else ()
    theirs = {answer.name: answer.right == 1 for answer in base}
    every = itertools.chain.from_iterable(answers.values())
    has_logps = any(answer.logp is not None for answer in every)
    for cell in next(iter(tables.values())):
        by_place: dict[TaskFacet, list[ScoredAnswer]] = {}
        for answer in answers.get(cell.pair, ()):
            by_place.setdefault((answer.task, answer.length, answer.depth), []).append(
                answer
            )
        why = {(e.task, e.length): e.reason for e in skipped.get(cell.pair, ())}
        for place in () if cell.is_hole else places:
            there = by_place.get(place, ())
            reason = cell.reason or ("" if there else why.get(place[:2], ""))
            numbers = _metrics_of_task_facet(
                probe.name, there, theirs, has_logps=has_logps
            )
            for name, columns in numbers:
                yield source.row(
                    cell,
                    probe.name,
                    name,
                    facet="task={} length={} depth={:g}".format(*place),
                    error=None,
                    reason=reason,
                    reference=str(reference or ""),
                    **columns,
                )


def _task_facets(
    answers: Mapping[Pair, Sequence[ScoredAnswer]],
    skipped: Mapping[Pair, Sequence[Skipped]],
) -> list[TaskFacet]:
    """All that any pair was asked, or was not asked on purpose; ordered in a task."""
    asked = [answer for of_pair in answers.values() for answer in of_pair]
    lengths = [
        *((answer.task, answer.length) for answer in asked),
        *((gap.task, gap.length) for of_pair in skipped.values() for gap in of_pair),
    ]
    return [
        (task, length, depth)
        for task in dict.fromkeys(answer.task for answer in asked)
        for length in sorted({length for of, length in lengths if of == task})
        for depth in sorted({answer.depth for answer in asked if answer.task == task})
    ]


def _metrics_of_task_facet(
    probe: str,
    answers: Sequence[ScoredAnswer],
    theirs: Mapping[str, bool],
    *,
    has_logps: bool,
) -> Iterator[tuple[str, dict[str, object]]]:
    """
    The metrics of the *answers* of a place, with the columns of each.

    Counts of `KINDS` only of questions in *theirs*, which says by name whether the
    reference is right.
    """
    found = [(probe, "", [answer.right for answer in answers])]
    if has_logps:
        logps = [answer.logp for answer in answers if answer.logp is not None]
        found.append((f"{probe}-logp", "nats", logps))
    for name, unit, values in found:
        mean = fmean(values) if values else None
        yield name, {"unit": unit, "value": mean, "n": len(values)}
    kinds = [
        question_outcome(theirs[e.name], e.right == 1)
        for e in answers
        if e.name in theirs
    ]
    for kind in KINDS if kinds else ():
        count = float(kinds.count(kind))
        yield (
            outcome_metric_name(kind),
            {"unit": QUESTIONS, "value": count, "n": len(kinds)},
        )


def outcome_metric_name(kind: str) -> str:
    """One of `KINDS` as a metric: ``both-right``."""
    return kind.replace(" ", "-")


def question_outcome(theirs: bool, ours: bool) -> str:
    """Which of `KINDS` a question is: right with the reference, right with the pair."""
    if theirs:
        return KINDS[0] if ours else KINDS[1]
    return KINDS[2] if ours else KINDS[3]
