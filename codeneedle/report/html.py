"""Documents as HTML: plain tables and lists, every text escaped."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from markupsafe import Markup, escape

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
    is_bold,
)
from codeneedle.text import escape_invisible, escape_invisible_in_lines


def html(document: Document) -> Markup:
    """The blocks of *document*, below each other."""
    return Markup("\n").join(map(_block, filter(has_content, document)))


def _block(block: Block) -> Markup:
    """*block* as HTML; lines that are to be copied as they are."""
    match block:
        case Heading(text):
            return _element("h3", text)
        case Grid(k_types, v_types, rows):
            lines = [[k, *row] for k, row in zip(k_types, rows, strict=True)]
            return _table([CORNER, *v_types], lines, {CORNER})
        case Table(heading, rows, words):
            return _table(heading, rows, words)
        case Facts(entries):
            return _element_of_parts("dl", _entries(entries))
        case Lines(lines, copied=title) if title:
            whole = "\n".join(escape_invisible_in_lines(str(line)) for line in lines)
            note = Markup('<p class="note">{}</p>').format(title)
            return note + Markup("<pre>{}</pre>").format(whole)
        case Lines(lines, style):
            kinds = ["bold" if is_bold(line, style) else "" for line in lines]
            return _element_of_parts(
                "ul", map(_element, ["li"] * len(kinds), lines, kinds)
            )


def _entries(entries: Iterable[tuple[str, ShownText]]) -> Iterator[Markup]:
    for word, phrase in entries:
        yield _element("dt", word) + _element("dd", phrase)


def _table(
    heading: Sequence[str], rows: Iterable[Sequence[ShownText]], words: Collection[str]
) -> Markup:
    """A table that scrolls sideways; columns of *words* have a class."""
    kinds = ["words" if name in words else "" for name in heading]
    lines = [("th", heading), *(("td", row) for row in rows)]
    body = (
        _element_of_parts("tr", map(_element, [tag] * len(kinds), line, kinds))
        for tag, line in lines
    )
    scroll = Markup('<div class="scroll" tabindex="0">{}</div>')
    return scroll.format(_element_of_parts("table", body))


def _element(tag: str, shown: ShownText, kind: str = "") -> Markup:
    """*shown* without styles, escaped, in an element of a *tag* with a class *kind*."""
    text = escape_invisible(shown) if isinstance(shown, str) else shown.plain
    opening = Markup(f'<{tag} class="{kind}">' if kind else f"<{tag}>")  # noqa: S704
    return opening + escape(text) + Markup(f"</{tag}>")  # noqa: S704 - our own tags


def _element_of_parts(tag: str, parts: Iterable[Markup]) -> Markup:
    return Markup(f"<{tag}>") + Markup().join(parts) + Markup(f"</{tag}>")  # noqa: S704
