"""One row per pair with the metrics of all probes, compared with the reference."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
from rich.text import Text

from codeneedle.cache_types import Pair, most_precise, whole_grid
from codeneedle.document import Block, Document, Facts, Heading, Lines, Table
from codeneedle.errors import BadInput, UnknownName
from codeneedle.probes import frames
from codeneedle.probes.frames import CellValue
from codeneedle.probes.metrics import Metric
from codeneedle.probes.probe import Probe
from codeneedle.records.record import CellRecord, Run
from codeneedle.report import captions
from codeneedle.report.data import RunTable, run_tables
from codeneedle.report.display import GROUPS, display_of
from codeneedle.report.shown import (
    DECISIONS,
    REFERENCE_MARK,
    NumberMark,
    Shown,
    legend,
    shown_cells,
    small_number_text,
    values_to_show,
)
from codeneedle.report.tidy import TableRow, loss_and_metric_rows
from codeneedle.text import NO_VALUE_WORD, escape_invisible, number_text
from codeneedle.verdict.remarks import refused_probe_lines

if TYPE_CHECKING:
    from codeneedle.cache_types import PairFlags
    from codeneedle.verdict.judge import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One metric of a table."""

    metric: Metric  # what it shows
    probe: str  # name of the probe whose records it is read from
    cells: Mapping[Pair, CellValue]  # the cell of each pair
    is_shown: bool
    """
    Whether the table shows it, which it does not where its probe has values of other
    metrics alone; exports hold all columns.
    """

    reference: Pair | None
    """
    The pair that the others are compared with; see `frames.reference_pair`. None
    if there is none.
    """

    reference_value: float  # the value of *reference*; NaN without one

    @property
    def has_values(self) -> bool:
        """Whether any pair has a value."""
        return any(cell.has_value for cell in self.cells.values())

    @property
    def is_uninformative(self) -> bool:
        """Whether it says nothing: it has no values, or zeros that need no column."""
        values = [cell.value for cell in self.cells.values() if cell.has_value]
        needs_more = display_of(self.metric).is_left_out_as_zero
        return not (any(values) if needs_more else values)

    @property
    def is_noise_floor_rounding(self) -> bool:
        """Whether the noise floor is no noise, but rounding of 32-bit arithmetic."""
        return self.metric.floor and abs(self.reference_value) < ROUNDING

    def cell(self, pair: Pair) -> CellValue:
        """The cell of *pair*; one that was not run if the probe knows no such pair."""
        return self.cells.get(pair) or CellValue(pair=pair)

    def ratio_to_reference(self, pair: Pair) -> float:
        """
        The value of *pair* divided by the reference's.

        NaN where the metric has no such ratio, for the reference itself, and where
        either value is missing or the reference's is 0, or a floor that is rounding.
        """
        has_ratio = self.metric.floor or display_of(self.metric).relative
        if not has_ratio or pair == self.reference or not self.reference_value:
            return math.nan
        if self.is_noise_floor_rounding or not self.cell(pair).is_ranked:
            return math.nan
        # Rounding can leave a noise floor slightly below zero.
        return self.cell(pair).value / abs(self.reference_value)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTable:
    """All metrics of all pairs of a run."""

    run: Run  # the run, with the records of all probes
    columns: tuple[Column, ...]  # every metric of every probe that has records
    pairs: tuple[Pair, ...]  # every pair of the grid, in the order of the rows
    records: Mapping[tuple[Pair, str], CellRecord]  # the record of each pair and probe
    reference: Pair | None
    """
    The reference of the first column that has one; columns that are compared with
    another pair say so.
    """

    sorted_by: str | None
    """Name of the metric that orders the rows; None: precision does."""

    remarks: tuple[str, ...] = ()  # sentences of the probes about the run
    verdict: "Verdict | None" = None  # on the run; None where nothing was judged

    @property
    def decision_by_pair(self) -> dict[Pair, str]:
        """What the verdict says of each pair, where it says anything."""
        if self.verdict is None:
            return {}
        words = {pair: self.verdict.decision(pair) for pair in self.pairs}
        return {pair: word for pair, word in words.items() if word}

    @property
    def shown_columns(self) -> tuple[Column, ...]:
        """The columns that the table shows."""
        return tuple(column for column in self.columns if column.is_shown)

    @property
    def probes(self) -> tuple[str, ...]:
        """Names of the probes that have records, in the order of the columns."""
        return tuple(dict.fromkeys(column.probe for column in self.columns))


def pair_table(
    run: Run, probes: Sequence[Probe], *, sort: str | None = None
) -> PairTable:
    """
    One row per pair of *run*, with the metrics of all *probes* that have records.

    It has no verdict yet. A metric that several probes have is taken from the first
    with a value: their contexts may differ, so that values of different probes are not
    comparable.

    Args:
        run: With the records of all probes.
        probes: All probes, in the order of their columns.
        sort: Name of a metric; its best value comes first, pairs without one last.
            By default, and between equals, the most precise pair comes first.

    Raises:
        UnknownName: If no column is called *sort*.
        BadInput: If neither end of that metric is better.
    """
    columns = _columns(run, probes, sort)
    references = (column.reference for column in columns if column.is_shown)
    return PairTable(
        run=run,
        columns=columns,
        pairs=tuple(_ordered_pairs(run, columns, sort)),
        records={(record.pair, record.probe): record for record in run.records},
        reference=next(filter(None, references), None),
        sorted_by=sort,
        remarks=(
            *(line for probe in probes for line in probe.remarks(run)),
            *refused_probe_lines(run),
        ),
    )


def _columns(run: Run, probes: Iterable[Probe], sort: str | None) -> tuple[Column, ...]:
    """
    A column for each metric of *probes* with records, by quantity.

    One that several probes have is that of the first with values; those that say
    nothing are not shown beside others.
    """
    chosen: dict[str, Column] = {}
    for probe in probes:
        narrowed = run.of_probe(probe.name)
        if not narrowed.records:
            continue
        every = (*probe.metrics, *probe.metrics_of(run.setup))
        metrics = {metric.name: metric for metric in every}
        tables = frames.cells_frames(narrowed, list(metrics.values()))
        for name, cells in tables.items():
            if name not in chosen or not chosen[name].has_values:
                metric = metrics[name]
                shown = display_of(metric).in_table or name == sort
                column = _column(metric, probe.name, cells, is_shown=shown)
                if name not in chosen or column.has_values:
                    chosen[name] = column
    # Stable: within a group, probes and their metrics keep their order.
    by_group = sorted(chosen.values(), key=lambda c: GROUPS.index(c.metric.quantity))
    measured = {column.probe for column in by_group if column.has_values}
    return tuple(
        replace(column, is_shown=False)
        if column.probe in measured
        and column.is_uninformative
        and column.metric.name != sort
        else column
        for column in by_group
    )


def _column(
    metric: Metric, probe: str, cells: Sequence[CellValue], *, is_shown: bool
) -> Column:
    reference = frames.reference_pair(cells)
    return Column(
        metric=metric,
        probe=probe,
        cells={cell.pair: cell for cell in cells},
        is_shown=is_shown,
        reference=reference,
        reference_value=frames.value_at(cells, reference) if reference else math.nan,
    )


def _ordered_pairs(
    run: Run, columns: Sequence[Column], sort: str | None
) -> Sequence[Pair]:
    """
    The pairs of *run*, most precise first, or the best value of *sort* first.

    Behind those that are compared come those that are not, then those without a value.
    """
    measured = {*run.setup.grid, *(record.pair for record in run.records)}
    pairs = [
        pair for pair in whole_grid(*frames.k_and_v_types(run)) if pair in measured
    ]
    if sort is None:
        return pairs
    column = _checked_sorting_column(sort, columns)
    sign = 1 if column.metric.better == "lower" else -1

    def rank(pair: Pair) -> tuple[bool, bool, float]:
        cell = column.cell(pair)
        value = sign * cell.value if cell.has_value else 0.0
        return not cell.has_value, not cell.is_ranked, value

    return sorted(pairs, key=rank)


def _checked_sorting_column(sort: str, columns: Sequence[Column]) -> Column:
    """The column called *sort*; refuses one that is unknown, or has no better end."""
    by_name = {column.metric.name: column for column in columns}
    if sort not in by_name:
        raise UnknownName(kind="metric", name=sort, known=list(by_name))
    if by_name[sort].metric.better == "neither":
        shown = [column.metric for column in columns if column.is_shown]
        others = [metric.name for metric in shown if metric.better != "neither"]
        raise BadInput(
            source="--sort",
            reason=f"neither high nor low values of {sort} are better",
            hint=f"Sort by one of {', '.join(others)}.",
        )
    return by_name[sort]


VERDICT = "verdict"
"""Above what the verdict says of pairs."""

DECIMAL_BELOW = 10
"""Ratios below this have a decimal."""

ROUNDING = 2**-20
"""Noise floors below this are rounding: log-probabilities of -8 to -16 in float32 are
as far apart. MLX on a CPU gave -5e-07 nats, where no divergence can be negative."""

THOUSANDS_FROM = 10_000
"""Ratios from which thousands are counted."""


def tables_document(
    tables: Iterable[PairTable],
    pair_flags_of: Callable[[str], "PairFlags"] | None = None,
) -> Document:
    """
    Each of *tables* with its legend and its facts.

    Args:
        tables: What to show.
        pair_flags_of: Spells pairs in the words of an engine. With it a table can be
            passed on: it has the verdict, the memory, and the commands that made it.
    """
    for table in tables:
        run = table.run
        pair_flags = pair_flags_of and pair_flags_of(run.setup.engine)
        order = f", sorted by {table.sorted_by}" if table.sorted_by else ""
        yield Heading(f"{run.name}: all metrics{order}")
        yield _table_of_pairs(table, has_memory=bool(pair_flags))
        if pair_flags and table.verdict:
            # Tables without it do not wait for statistics.
            from codeneedle.report.verdict import conclusion_document

            yield from conclusion_document(table.verdict, pair_flags)
        yield Facts(table_legend(table, has_memory=bool(pair_flags)))
        yield Lines(table.remarks)
        yield Lines(captions.caution_and_gap_sentences(run), style="bold")
        yield Facts(captions.run_facts(run), is_quiet=True)
        if pair_flags:
            yield _sweep_and_commands_block(run)


def _table_of_pairs(table: PairTable, *, has_memory: bool) -> Table:
    """A row for each pair: metrics, with ratios, and the verdict if there is any."""
    columns = [_aligned_texts(column, table) for column in table.shown_columns]
    heading = ["K/V", *(column.metric.name for column in table.shown_columns)]
    if has_memory:
        heading.insert(1, MEMORY)
        columns.insert(
            0, [_memory_or_prediction_text(table.verdict, pair) for pair in table.pairs]
        )
    if words := table.decision_by_pair:
        heading.append(VERDICT)
        columns.append([words.get(pair, "") for pair in table.pairs])
    rows = []
    for pair, *texts in zip(table.pairs, *columns, strict=True):
        is_reference = pair == table.reference
        style, mark = ("bold", REFERENCE_MARK) if is_reference else ("", "")
        names = [f"{_pair_text(pair)}{mark}", *texts]
        rows.append([Text(text, style) for text in names])
    return Table(heading, rows, words={"K/V", VERDICT})


def shown_cells_of_column(column: Column, table: PairTable) -> list[Shown]:
    """Each pair of *table* in *column*; its note is its ratio to the reference."""
    metric, usual = column.metric, display_of(column.metric)
    is_graded = metric.loss is not None and metric.loss.kind.is_of_right_tokens
    # Losses are computed of the error of such a mean.
    display = replace(usual, shows_error=usual.shows_error or is_graded)
    cells = [column.cell(pair) for pair in table.pairs]
    found = shown_cells(
        metric,
        cells,
        numbers=values_to_show(metric, cells, display),
        setup=table.run.setup,
        where=column.probe,
    )
    return [_with_ratio(shown_cell, column) for shown_cell in found]


def _with_ratio(shown: Shown, column: Column) -> Shown:
    """*shown* with its ratio, without the reference's mark, which its row has."""
    ratio = ratio_mark_if_finite(column.metric, column.ratio_to_reference(shown.pair))
    marks = [mark for mark in shown.marks if mark.sign != REFERENCE_MARK]
    if ratio:
        marks.append(ratio)
    return replace(shown, marks=tuple(marks), note=ratio.sign if ratio else "")


def ratio_mark_if_finite(metric: Metric, ratio: float) -> NumberMark | None:
    """``(24x)`` the noise floor, or ``98%`` of the reference; None if not finite."""
    if not math.isfinite(ratio):
        return None
    if metric.floor:
        what = "times the noise floor: the reference compared with itself"
        return NumberMark(f"({_ratio_text(ratio)}x)", what)
    return NumberMark(f"{ratio:.0%}", "of the reference's value")


def _aligned_texts(column: Column, table: PairTable) -> list[str]:
    """Values and ratios, aligned where there are any ratios."""
    shown = shown_cells_of_column(column, table)
    right = max((len(cell.note) for cell in shown), default=0)
    gap = " " if right else ""
    values = [f"{cell.text} {cell.below}".rstrip() for cell in shown]
    return [
        f"{value}{gap}{cell.note.rjust(right)}"
        for value, cell in zip(values, shown, strict=True)
    ]


def table_legend(
    table: PairTable, *, has_memory: bool = False
) -> list[tuple[str, str]]:
    """Each column, mark and word of *table*, with its meaning."""
    entries = [
        (shown_column.metric.name, captions.label_with_unit(shown_column.metric))
        for shown_column in table.shown_columns
    ]
    if table.reference:
        entries.append(
            (REFERENCE_MARK, f"the reference, {_pair_text(table.reference)}")
        )
    shown = [
        cell
        for column in table.shown_columns
        for cell in shown_cells_of_column(column, table)
    ]
    words = {*table.decision_by_pair.values()}
    memory = [
        _memory_or_prediction_text(table.verdict, pair)
        for pair in table.pairs
        if has_memory
    ]
    is_predicted = any(share.startswith(BY_TYPES.sign) for share in memory)
    return [
        *entries,
        *legend(shown),
        *_reference_notes(table),
        *(entry for entry in DECISIONS.items() if entry[0] in words),
        *([(BY_TYPES.sign, BY_TYPES.meaning)] if is_predicted else []),
    ]


def _ratio_text(ratio: float) -> str:
    """``1.4``, ``24``, ``566K``: a tiny noise floor makes huge multiples."""
    if abs(ratio) >= THOUSANDS_FROM:
        return f"{ratio / 1000:,.0f}K"
    return number_text(ratio, digits=1 if abs(ratio) < DECIMAL_BELOW else 0)


def _reference_notes(table: PairTable) -> Iterator[tuple[str, str]]:
    """Columns without a reference, with another one, or without a noise floor."""
    for column in table.shown_columns:
        name = column.metric.name
        if note := captions.why_no_reference(list(column.cells.values())):
            yield name, note
        elif column.reference and column.reference != table.reference:
            yield name, f"compared with {_pair_text(column.reference)}"
        if column.is_noise_floor_rounding:
            floor = small_number_text(column.reference_value, 0)
            cause = ", rounding of 32-bit numbers" if column.reference_value else ""
            yield name, f"no ratios: the noise floor is {floor}{cause}"


def _pair_text(pair: Pair) -> str:
    return escape_invisible(str(pair))


MEMORY = "KV memory"
"""Heading of the cache's size."""

BY_TYPES = NumberMark("~", "predicted from the bits of the types")


def _memory_or_prediction_text(verdict: "Verdict | None", pair: Pair) -> str:
    """``53%`` of the reference's cache, marked where only the types tell."""
    from codeneedle.verdict.judge import PairResult, relative_cache_size

    result = (verdict and verdict.result(pair)) or PairResult(pair=pair)
    share = relative_cache_size(result)
    mark = BY_TYPES.sign if result.memory is None else ""
    return f"{mark}{share:.0%}" if math.isfinite(share) else NO_VALUE_WORD


def _sweep_and_commands_block(run: Run) -> Block:
    """The sweep file, and what ran for the most precise pair."""
    pair = most_precise({record.pair for record in run.records})
    ran = (record.command for record in run.records if record.pair == pair)
    commands = [captions.command_line(run.setup, words) for words in dict.fromkeys(ran)]
    return Lines(
        [*run.sweep.splitlines(), "", *commands], copied="Sweep file and commands"
    )


# --- as data


def pair_table_rows(tables: Sequence[PairTable]) -> list[TableRow]:
    """Losses and all metrics of *tables*, pairs in the order of their rows."""
    runs = [table.run for table in tables]
    judged = [table.verdict for table in tables if table.verdict]
    places = {
        (name, str(pair)): at
        for name, table in zip(captions.run_names_or_folders(runs), tables, strict=True)
        for at, pair in enumerate(table.pairs)
    }
    groups = itertools.groupby(
        loss_and_metric_rows(runs, judged),
        key=lambda row: (row.run, row.probe, row.metric, row.facet),
    )
    return [
        row
        for _, group in groups
        for row in sorted(group, key=lambda row: places[row.run, row.pair])
    ]


def table_objects(tables: Sequence[PairTable]) -> list[RunTable]:
    """The rows and the setup of each run."""
    found = run_tables([table.run for table in tables], pair_table_rows(tables))
    return [
        msgspec.structs.replace(of_run, sorted_by=table.sorted_by)
        for of_run, table in zip(found, tables, strict=True)
    ]
