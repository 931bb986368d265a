"""Documents on a terminal: where it is narrow, columns fold or stand in blocks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from codeneedle.document import (
    CORNER,
    Block,
    Document,
    Facts,
    Grid,
    Heading,
    Lines,
    ShownText,
    Table,
    has_content,
)
from codeneedle.text import escape_invisible

GAPS = (2, 1)
"""Blanks between columns; the second where that saves a block."""

LEAST_COLUMN = 6
"""Least width of a column of a grid, in characters."""

LEAST_FOLDED = 12
"""Columns of words are narrowed to this before blocks are made, in characters."""


def render(document: Document) -> RenderableType:
    """The blocks of *document*, an empty line between them."""
    parts: list[RenderableType] = []
    for block in filter(has_content, document):
        parts += [Text()] if parts else []
        parts += _renderables(block)
    return Group(*parts)


def print_with_end_if_long(
    console: Console, document: Document, end: Document = ()
) -> None:
    """
    Print *document*, and on a terminal that it scrolls through, its *end* below it.

    Args:
        console: Where to print it.
        document: What is shown.
        end: Its lines that answer the question, of which the first ones scroll away.
    """
    shown = render(document)
    console.print(shown, crop=False)
    if console.is_terminal and len(console.render_lines(shown)) >= console.height:
        console.print()
        console.print(render(end), crop=False)


def _renderables(block: Block) -> Iterator[RenderableType]:
    match block:
        case Heading(text):
            yield Text(escape_invisible(text), style="bold")
        case Grid():
            yield _grid(block)
        case Table():
            yield _table(block)
        case Facts():
            yield _facts(block)
        case Lines(lines, style, copied):
            for line in lines:
                shown = _text(line, style)
                yield _forbid_line_breaks(shown) if copied else _fold_if_indented(shown)


def _text(shown: ShownText, style: str = "") -> Text:
    """*shown*; a plain string in *style*, safe to show."""
    return Text(escape_invisible(shown), style) if isinstance(shown, str) else shown


def _fold_if_indented(line: Text) -> "Text | _Columns":
    """*line*; a single one that begins with blanks is folded below its first word."""
    blanks = len(line.plain) - len(line.plain.lstrip(" "))
    if not blanks or "\n" in line.plain:
        return line
    words = _TextColumn([line[blanks:]], starts_left=True, folds=True)
    return _Columns(_TextColumn([Text(" " * (blanks - 1))]), [words], gaps=(1,))


def _forbid_line_breaks(line: Text) -> Text:
    """Keep rich from folding *line*, or cutting it with ``crop=False``; return it."""
    line.no_wrap, line.overflow = True, "ignore"
    return line


@dataclass(frozen=True, slots=True)
class _TextColumn:
    """Texts below each other, the heading first if there is any."""

    texts: Sequence[Text]  # all of them
    starts_left: bool = False  # whether they are words, not numbers
    folds: bool = False  # whether it may be narrowed
    least: int = 0  # least width

    @property
    def width(self) -> int:
        """Columns of the terminal that it takes unfolded."""
        lines = (line for text in self.texts for line in text.split(allow_blank=True))
        return max(self.least, *(line.cell_len for line in lines))

    def width_folded_to(self, least: int) -> int:
        """Its width; at most *least* if it may be narrowed."""
        return min(least, self.width) if self.folds else self.width

    def folded_and_padded_lines(
        self, at: int, console: Console, width: int
    ) -> list[Text]:
        """Lines of the text at index *at*, padded to *width*; folded if it `folds`."""
        text = self.texts[at]
        if self.folds:
            lines = list(text.wrap(console, width, overflow="fold"))
        else:
            lines = list(text.split(allow_blank=True))
        for line in lines:
            line.rstrip_end(width)
            missing = max(0, width - line.cell_len)
            (line.pad_right if self.starts_left else line.pad_left)(missing)
        return lines


@dataclass(frozen=True, slots=True)
class _Columns:
    """
    Columns beside each other.

    Where the terminal is too narrow, columns that fold are narrowed; if that is not
    enough, further columns stand in blocks below, beside the first one again.
    """

    first: _TextColumn
    others: Sequence[_TextColumn]
    gaps: Sequence[int] = GAPS

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        width = options.max_width
        packed = [(self._pack(width, gap), gap) for gap in self.gaps]
        blocks, gap = min(packed, key=lambda entry: len(entry[0]))
        for at, block in enumerate(blocks):
            if at:
                yield Text()
            yield from _block_lines(block, console, width, gap)

    def _pack(self, width: int, gap: int) -> list[list[_TextColumn]]:
        """Columns in blocks, as many in each as fit beside the first; at least one."""
        blocks: list[list[_TextColumn]] = [] if self.others else [[self.first]]
        left = 0
        for column in self.others:
            needed = column.width_folded_to(LEAST_FOLDED) + gap
            if not blocks or needed > left:
                blocks.append([self.first])
                left = width - self.first.width
            blocks[-1].append(column)
            left -= needed
        return blocks


def _block_lines(
    columns: Sequence[_TextColumn], console: Console, width: int, gap: int
) -> Iterator[Text]:
    """The lines of *columns* beside each other, the widest folded first to *width*."""
    widths = [column.width for column in columns]
    narrow = [column.width_folded_to(1) for column in columns]
    while sum(widths) + gap * (len(widths) - 1) > width and widths != narrow:
        slack = [wide - least for wide, least in zip(widths, narrow, strict=True)]
        widths[slack.index(max(slack))] -= 1
    for at in range(len(columns[0].texts)):
        cells = [
            column.folded_and_padded_lines(at, console, wide)
            for column, wide in zip(columns, widths, strict=True)
        ]
        for row in range(max(map(len, cells))):
            line = Text(" " * gap).join(
                cell[row] if row < len(cell) else Text(" " * wide)
                for cell, wide in zip(cells, widths, strict=True)
            )
            if columns[-1].starts_left:
                line.rstrip()
            yield _forbid_line_breaks(line)


def _grid(grid: Grid) -> _Columns:
    """A grid whose columns are as wide as their types, with room for a mark."""
    types = [Text(escape_invisible(k), "bold") for k in (CORNER, *grid.k_types)]
    across = []
    for at, v in enumerate(grid.v_types):
        # The blank behind a type is the place of the reference's mark.
        texts = [
            Text(f"{escape_invisible(v)} ", "bold"),
            *(_text(row[at]) for row in grid.rows),
        ]
        wide = _TextColumn(texts, least=LEAST_COLUMN).width
        across.append(_TextColumn(texts, least=wide + 1))
    return _Columns(_TextColumn(types, starts_left=True), across, gaps=(1,))


def _table(table: Table) -> _Columns:
    """A table; all columns of words but the first may be folded."""
    columns = []
    for at, name in enumerate(table.heading):
        head = Text("\n".join(map(escape_invisible, name.split("\n"))), "bold")
        is_words = name in table.words
        texts = [head, *(_text(row[at]) for row in table.rows)]
        columns.append(
            _TextColumn(texts, starts_left=is_words, folds=is_words and at > 0)
        )
    return _Columns(columns[0], columns[1:])


def _facts(facts: Facts) -> _Columns:
    """Words with their phrases, which are folded beside them."""
    style = "dim" if facts.is_quiet else ""
    words = [Text(escape_invisible(word), style) for word, _ in facts.entries]
    phrases = [_text(phrase) for _, phrase in facts.entries]
    first = _TextColumn(words, starts_left=True)
    return _Columns(first, [_TextColumn(phrases, starts_left=True, folds=True)])
