"""The table of all pairs and all metrics, for a terminal."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from codeneedle.analysis import frames
from codeneedle.analysis.metrics import Metric
from codeneedle.records.record import Status
from codeneedle.report import captions
from codeneedle.report.captions import PAIRS_NAMED, REFERENCE_MARK
from codeneedle.report.cells import NO_VALUE_WORD, NOT_RUN_WORD, number, status_word
from codeneedle.report.comparison import (
    Column,
    Entry,
    PriceTable,
    Row,
    Separation,
    separations,
    usable,
)
from codeneedle.report.grid import facts_table
from codeneedle.scoring.rounds import Reading
from codeneedle.text import visible

FALLBACK_MARK = "!"
"""Behind a value that was measured, though not on what was asked."""

HEADING = "K/V"
GAPS = (2, 1)
"""Blanks between columns: the second where that saves a block."""

WHOLE_FROM = 1_000
"""Values from which decimals tell nothing."""

FEW_TIMES = 10
"""Multiples below this are shown with a decimal."""

THOUSANDS_FROM = 10_000
"""Multiples that are counted in thousands."""


@dataclass(frozen=True, slots=True)
class _Strip:
    """One column as text: heading and a line per row, all of the same width."""

    lines: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.lines[0])


@dataclass(frozen=True, slots=True)
class _Strips:
    """Columns side by side, in several blocks where the terminal is too narrow."""

    pairs: _Strip
    columns: tuple[_Strip, ...]
    styles: tuple[str, ...]

    def __rich_console__(
        self, _console: Console, options: ConsoleOptions
    ) -> RenderResult:
        for at, (block, gap) in enumerate(self._blocks(options.max_width)):
            if at:
                yield Text()
            yield from self._printed(block, " " * gap)

    def _blocks(self, width: int) -> list[tuple[list[_Strip], int]]:
        packed = [(_packed(self.pairs, self.columns, width, gap), gap) for gap in GAPS]
        blocks, gap = min(packed, key=lambda each: len(each[0]))
        return [(block, gap) for block in blocks]

    def _printed(self, block: Sequence[_Strip], gap: str) -> Iterator[Text]:
        lines = zip(*(strip.lines for strip in (self.pairs, *block)), strict=True)
        for words, style in zip(lines, self.styles, strict=True):
            line = Text(gap.join(words).rstrip(), style=style)
            line.no_wrap, line.overflow = True, "ignore"
            yield line


def table_view(tables: Sequence[PriceTable], reading: Reading) -> RenderableType:
    """Each of *tables*, with its legend, what separates its pairs, and its facts."""
    parts: list[RenderableType] = []
    for table in tables:
        parts += [Text(), *_parts(table, reading)] if parts else _parts(table, reading)
    return Group(*parts)


def entry_texts(metric: Metric, entry: Entry) -> tuple[str, str]:
    """
    What stands in a cell: the value or a word, and what stands beside it.

    The latter is a multiple of the noise floor (``(24x)``), a share of the
    reference's value (``98%``), or empty.
    """
    if math.isnan(entry.value):
        return status_word(entry.status), ""
    mark = FALLBACK_MARK if entry.is_fallback else ""
    digits = 0 if abs(entry.value) >= WHOLE_FROM else metric.digits
    return f"{number(entry.value, digits=digits)}{mark}", _beside(metric, entry.beside)


def table_legend(table: PriceTable) -> list[tuple[str, str]]:
    """Each column, mark and word of *table*, with its meaning."""
    metrics = [column.metric for column in table.shown]
    entries = [(metric.name, _described(metric)) for metric in metrics]
    if table.reference:
        entries.append((REFERENCE_MARK, f"the reference, {_safe(table.reference)}"))
    others = _other_references(table)
    return [*entries, *others, *_ratios(table), *_absences(table), *_words(table)]


def separation_rows(found: Sequence[Separation]) -> list[list[str]]:
    """A heading, and a row per metric: how many pairs it tells apart, by how much."""
    heading = ["metric", "told apart", "largest", "of", "times noise"]
    return [heading, *(_separation_row(each) for each in found)]


SEPARATION_NOTE = (
    "told apart: differs from the reference by more than the noise floor, or than "
    "95 % intervals allow; chance alone tells one in twenty apart"
)


def _parts(table: PriceTable, reading: Reading) -> Iterator[RenderableType]:
    entries = table_legend(table)
    width = max((len(word) for word, _ in entries), default=0)
    order = f", best {visible(table.sorted_by)} first" if table.sorted_by else ""
    found = list(separations(table, reading))
    yield Text(f"{visible(table.run.name)}: the price of a pair{order}", style="bold")
    yield from (Text(), _strips(table), Text())
    yield from (Text(f"{word.ljust(width)}  {meaning}") for word, meaning in entries)
    if found:
        yield from (Text(), _separated(found), Text(SEPARATION_NOTE))
    if table.remarks:
        yield from (Text(), *(Text(visible(line)) for line in table.remarks))
    cautions = captions.cautions(table.run.setup)
    yield from (Text(line, style="bold") for line in cautions)
    yield from (Text(), facts_table(table.run))


def _strips(table: PriceTable) -> _Strips:
    pairs = [HEADING, *(_pair_text(row) for row in table.rows)]
    widest = max(map(len, pairs))
    return _Strips(
        pairs=_Strip(tuple(pair.ljust(widest) for pair in pairs)),
        columns=tuple(_strip(column, table.rows) for column in table.shown),
        styles=("bold", *("bold" if r.is_reference else "" for r in table.rows)),
    )


def _strip(column: Column, rows: Sequence[Row]) -> _Strip:
    metric = column.metric
    texts = [entry_texts(metric, row.entries[metric.name]) for row in rows]
    left = max((len(value) for value, _ in texts), default=0)
    right = max((len(beside) for _, beside in texts), default=0)
    # A column without ratios has no room for any; otherwise digits stay in line.
    gap = " " if right else ""
    lines = [f"{v.rjust(left)}{gap}{beside.rjust(right)}" for v, beside in texts]
    width = max(map(len, (metric.name, *lines)))
    return _Strip(tuple(line.rjust(width) for line in (metric.name, *lines)))


def _packed(
    pairs: _Strip, columns: Sequence[_Strip], width: int, gap: int
) -> list[list[_Strip]]:
    """As many *columns* in each block as fit beside *pairs*; at least one."""
    blocks: list[list[_Strip]] = []
    left = 0
    for column in columns:
        needed = column.width + gap
        if not blocks or needed > left:
            blocks.append([])
            left = width - pairs.width
        blocks[-1].append(column)
        left -= needed
    return blocks


def _pair_text(row: Row) -> str:
    return f"{_safe(row.pair)}{REFERENCE_MARK if row.is_reference else ''}"


def _beside(metric: Metric, ratio: float) -> str:
    if not math.isfinite(ratio):
        return ""
    if metric.floor:
        return f"({_times(ratio)}x)"
    return f"{ratio:.0%}"


def _times(ratio: float) -> str:
    """``1.4``, ``24``, ``566K``: a floor in the last decimal makes huge multiples."""
    if abs(ratio) >= THOUSANDS_FROM:
        return f"{ratio / 1000:,.0f}K"
    return number(ratio, digits=1 if abs(ratio) < FEW_TIMES else 0)


def _described(metric: Metric) -> str:
    """The label, and the unit if the label lacks it."""
    has_unit = not metric.unit or metric.unit in metric.label
    return metric.label if has_unit else f"{metric.label}, {metric.unit}"


def _ratios(table: PriceTable) -> Iterator[tuple[str, str]]:
    """What the numbers beside values are, where there are any."""
    told = [c.metric for c in table.shown if c.reference and math.isfinite(c.reference)]
    if any(metric.floor for metric in told):
        yield "(2x)", "times the noise floor: the reference compared with itself"
    if any(metric.relative for metric in told):
        yield "98%", "of the reference's value"


def _other_references(table: PriceTable) -> Iterator[tuple[str, str]]:
    """Columns that are measured against another pair than the table's reference."""
    for column in table.shown:
        if len(column.named) > 1:
            pairs = " or ".join(map(_safe, column.named))
            yield column.metric.name, f"against {pairs}: not comparable, no floor"
        elif column.against and column.against != table.reference:
            yield column.metric.name, f"against {_safe(column.against)}"


def _absences(table: PriceTable) -> Iterator[tuple[str, str]]:
    """Columns that lack what should stand beside their values, and why."""
    for column in table.shown:
        metric = column.metric
        if len(column.named) > 1 or not (metric.floor or metric.relative):
            continue
        if math.isnan(column.reference):
            yield metric.name, "the reference has none, so there are no ratios"
        elif not column.reference and metric.floor:
            yield metric.name, "floor is 0: the reference repeats itself exactly"


def _words(table: PriceTable) -> Iterator[tuple[str, str]]:
    """Each word and mark of cells without a sound value, with pairs and reasons."""
    for (probe, status, reason), pairs in _troubled(table).items():
        usable_ones = [row for row in pairs if usable(row.records[probe])]
        word = FALLBACK_MARK if usable_ones else status_word(status)
        why = f": {visible(reason)}" if reason else ""
        slow = "; its speed does not rank" if usable_ones else ""
        yield word, f"{_named(pairs)} {status} ({probe}){why}{slow}"
    shown = [row.entries[c.metric.name] for row in table.rows for c in table.shown]
    empty = [entry for entry in shown if math.isnan(entry.value)]
    if any(entry.status == Status.FINISHED for entry in empty):
        yield NO_VALUE_WORD, "finished, without a value"
    if any(entry.status == frames.NOT_RUN for entry in empty):
        yield NOT_RUN_WORD, "not run"


def _troubled(table: PriceTable) -> dict[tuple[str, str, str], list[Row]]:
    """The rows with a record that did not finish, by probe, status and reason."""
    shown = {column.probe for column in table.shown}
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in table.rows:
        for probe, record in row.records.items():
            if probe in shown and not record.has_numbers:
                key = (probe, record.status.value, record.reason)
                found.setdefault(key, []).append(row)
    return found


def _named(rows: Sequence[Row]) -> str:
    named = ", ".join(_safe(row.pair) for row in rows[:PAIRS_NAMED])
    rest = len(rows) - PAIRS_NAMED
    return named if rest <= 0 else f"{named} and {rest} more"


def _separated(found: Sequence[Separation]) -> Table:
    heading, *rows = separation_rows(found)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for at, word in enumerate(heading):
        table.add_column(word, justify="left" if at in {0, 3} else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _separation_row(each: Separation) -> list[str]:
    told = NO_VALUE_WORD if each.told is None else f"{each.told} of {each.compared}"
    times = each.times_noise
    noise = "no noise" if math.isinf(times) else _times(times)
    gap = number(each.difference, digits=each.metric.digits, sign=True)
    pair = _safe(each.pair) if each.difference else NO_VALUE_WORD
    return [each.metric.name, told, gap, pair, noise]


def _safe(pair: object) -> str:
    return visible(str(pair))
