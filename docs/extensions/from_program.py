"""
Directives for tables of what the program knows: tasks, languages, sweep files and their
keys, and the table of models.
"""

from collections.abc import Collection, Iterable, Sequence
from importlib import resources

from docutils import nodes
from docutils.nodes import Node
from msgspec import Meta
from msgspec.structs import fields
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typing_extensions import override

from codeneedle.corpora.languages import all_languages
from codeneedle.document import Block, Facts, Heading, Lines, Table
from codeneedle.probes.retrieval.task_kinds import TASKS
from codeneedle.report.models import models_document, read_shipped_rows
from codeneedle.sweep.request import TABLES


def table(head: Sequence[str], rows: Iterable[Sequence[Node]]) -> nodes.table:
    """A table of *rows*, whose entries are inline nodes."""
    group = nodes.tgroup("", cols=len(head))
    group += [nodes.colspec(colwidth=1) for _ in head]
    titles = [nodes.Text(word) for word in head]
    group += nodes.thead("", _row(titles))
    group += nodes.tbody("", *map(_row, rows))
    return nodes.table("", group, classes=["colwidths-auto"])


def _row(cells: Sequence[Node]) -> nodes.row:
    entries = (nodes.entry("", nodes.paragraph("", "", each)) for each in cells)
    return nodes.row("", *entries)


class RetrievalTasks(SphinxDirective):
    """Every task of retrieval and what it asks for."""

    @override
    def run(self) -> list[Node]:
        """The table."""
        rows = [
            (nodes.literal("", task.name), nodes.Text(task.about))
            for task in TASKS.values()
        ]
        return [table(["task", "asks for"], rows)]


class Languages(SphinxDirective):
    """Every language of corpora, with the suffixes of its files."""

    @override
    def run(self) -> list[Node]:
        """The table."""
        rows = [
            (nodes.Text(language.title), nodes.literal("", " ".join(language.suffixes)))
            for language in all_languages().values()
        ]
        return [table(["language", "files"], sorted(rows, key=lambda row: str(row[0])))]


class ShippedSweeps(SphinxDirective):
    """Every sweep file of the package, with the comment that it begins with."""

    @override
    def run(self) -> list[Node]:
        """The definition list."""
        entries = []
        folder = resources.files("codeneedle") / "sweep" / "files"
        for file in sorted(folder.iterdir(), key=lambda each: each.name):
            name = file.name.removesuffix(".toml")
            lines = file.read_text(encoding="utf-8").splitlines()
            head = [line[1:].strip() for line in lines if line.startswith("#")]
            text = " ".join(head).partition(" Known to go wrong:")[0]
            term = nodes.term("", "", nodes.literal("", name))
            below = nodes.definition("", nodes.paragraph("", text))
            entries.append(nodes.definition_list_item("", term, below))
        return [nodes.definition_list("", *entries, classes=["options"])]


class SweepTables(SphinxDirective):
    """The keys of each table of a sweep file, and their options."""

    @override
    def run(self) -> list[Node]:
        """A list of keys for each table, below its name."""
        found: list[Node] = []
        for name, kind in TABLES.items():
            entries = [
                _entry(field.name, *field.type.__metadata__) for field in fields(kind)
            ]
            if entries:
                found.append(nodes.rubric("", "", nodes.literal("", f"[{name}]")))
                found.append(nodes.definition_list("", *entries, classes=["options"]))
        return found


def _entry(key: str, described: Meta) -> nodes.definition_list_item:
    """A *key* with the option and the text that it is *described* by."""
    facts = described.extra or {}
    default = f" Default: {facts['default']}." if "default" in facts else ""
    option = nodes.inline("", f" {facts['option']}", classes=["kind"])
    term = nodes.term("", "", nodes.literal("", key), option)
    text = f"{described.description}{default}"
    below = nodes.definition("", nodes.paragraph("", text))
    return nodes.definition_list_item("", term, below)


class TableOfModels(SphinxDirective):
    """The table of models, as ``codeneedle models`` shows it."""

    @override
    def run(self) -> list[Node]:
        """A rubric, a table, and what it was measured on, for each model."""
        self.env.note_reread()  # its rows may change while the page does not
        return [
            node
            for block in models_document(read_shipped_rows())
            for node in _shown(block)
        ]


def _shown(block: Block) -> list[Node]:
    match block:
        case Heading(text):
            return [nodes.rubric("", text)]
        case Table(heading, rows, words):
            texts = ([nodes.Text(str(each)) for each in row] for row in rows)
            return [_with_numbers(table(heading, texts), heading, words)]
        case Facts(entries):
            lines = [f"{word}: {phrase}" for word, phrase in entries]
        case Lines(given):
            lines = [*map(str, given)]
        case _:
            raise TypeError(f"the table of models has no {type(block).__name__}")
    items = (nodes.list_item("", nodes.paragraph("", line)) for line in lines)
    return [nodes.bullet_list("", *items)]


def _with_numbers(
    made: nodes.table, heading: Sequence[str], words: Collection[str]
) -> nodes.table:
    """*made*, with the class ``number`` at each column that is not of *words*."""
    made["classes"].append("models")
    for row in made.findall(nodes.row):
        for name, entry in zip(heading, row.children, strict=True):
            if name not in words:
                entry["classes"].append("number")  # type: ignore[index]
    return made


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("languages", Languages)
    app.add_directive("retrieval-tasks", RetrievalTasks)
    app.add_directive("shipped-sweeps", ShippedSweeps)
    app.add_directive("sweep-tables", SweepTables)
    app.add_directive("table-of-models", TableOfModels)
    return {"parallel_read_safe": True}
