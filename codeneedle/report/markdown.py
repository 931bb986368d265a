"""Documents as GitHub renders Markdown."""

from collections.abc import Collection, Iterator, Sequence
from html import escape

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
from codeneedle.text import escape_invisible_in_lines, escape_markdown


def markdown(document: Document) -> str:
    """The blocks of *document*, an empty line between them."""
    blocks = ("\n".join(_lines(block)) for block in document if has_content(block))
    return "\n\n".join(blocks) + "\n"


def _lines(block: Block) -> Iterator[str]:
    """The lines of *block*; those that are to be copied without markup."""
    match block:
        case Heading(text):
            yield f"### {escape_markdown(text)}"
        case Grid(k_types, v_types, rows):
            lines = [[k, *row] for k, row in zip(k_types, rows, strict=True)]
            yield from _table([CORNER, *v_types], lines, {CORNER})
        case Table(heading, rows, words):
            yield from _table(heading, rows, words)
        case Facts(entries):
            yield from (
                f"- {escape_markdown(word)}: {_text(phrase)}"
                for word, phrase in entries
            )
        case Lines(lines, copied=title) if title:
            # No markup in them, so that any of them can be copied.
            whole = "\n".join(
                escape_invisible_in_lines(str(line)).rstrip() for line in lines
            )
            yield f"<details><summary>{escape_markdown(title)}</summary>"
            yield f"<pre>\n{escape(whole, quote=False)}\n</pre>\n</details>"
        case Lines(lines, style):
            for line in lines:
                mark = "**" if is_bold(line, style) else ""
                yield f"- {mark}{_text(line)}{mark}"


def _text(shown: ShownText) -> str:
    """*shown* without styles, escaped, on one line, with single blanks."""
    return escape_markdown(" ".join(str(shown).split()))


def _table(
    heading: Sequence[str], rows: Sequence[Sequence[ShownText]], words: Collection[str]
) -> Iterator[str]:
    """A table; columns of *words* begin left, others end right."""
    rule = [":--" if name in words else "--:" for name in heading]
    names = [escape_markdown(name.replace("\n", " ")) for name in heading]
    for row in (names, rule, *([_text(cell) for cell in row] for row in rows)):
        yield f"| {' | '.join(row)} |"
