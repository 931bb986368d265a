"""
The directive ``every-command``: a section for each command, as the program has it.

What ``--help`` prints becomes usage, paragraphs and lists of options; each section is
the target of the label ``codeneedle-COMMAND``.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.main import get_command
from typing_extensions import override

from codeneedle.cli.app import app


class Pages:
    """What commands write their help to, in place of click's ``HelpFormatter``."""

    width = 10_000
    """Descriptions are not cut."""

    def __init__(self) -> None:
        self.written: list[nodes.Node] = []

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:  # noqa: ARG002 - of click
        """The line of the usage."""
        self._block(f"{prog} {args}")

    def write_text(self, text: str) -> None:
        """A paragraph for each that *text* has."""
        for each in text.strip().split("\n\n"):
            self.written.append(nodes.paragraph("", " ".join(each.split())))

    def write_paragraph(self) -> None:
        """Paragraphs stand apart by themselves."""

    def indentation(self) -> contextlib.AbstractContextManager[None]:
        """Nothing is indented."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Options below a heading."""
        self.written.append(nodes.rubric("", name))
        yield

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None:
        """Options or commands, each with its description."""
        entries = []
        for name, text in rows:
            term = nodes.term("", "", nodes.literal("", " ".join(name.split())))
            words = nodes.paragraph("", " ".join(text.split()))
            entries.append(
                nodes.definition_list_item("", term, nodes.definition("", words))
            )
        self.written.append(nodes.definition_list("", *entries, classes=["options"]))

    def write(self, text: str) -> None:
        """The end of a help text: indented lines are examples."""
        lines = text.strip("\n").splitlines()
        examples = [line.strip() for line in lines if line.startswith("  ")]
        if examples:
            self.written.append(nodes.rubric("", "Examples"))
            self._block("\n".join(examples))
        for line in lines:
            if line and not line.startswith("  ") and line != "Examples:":
                self.write_text(line)

    def _block(self, text: str) -> None:
        self.written.append(nodes.literal_block(text, text, language="none"))


def commands(
    command: Any, name: str = "codeneedle", parent: Any = None
) -> Iterator[tuple[str, Any, Any]]:
    """*command* and those below it: name, command and context of each."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    yield context.command_path, command, context
    for each, below in sorted(getattr(command, "commands", {}).items()):
        yield from commands(below, each, context)


class EveryCommand(SphinxDirective):
    """A section for each command, in the order of the alphabet."""

    @override
    def run(self) -> list[nodes.Node]:
        """The sections, and a label for each."""
        labels = self.env.domains.standard_domain
        sections: list[nodes.Node] = []
        for path, command, context in commands(get_command(app)):
            label = path.replace(" ", "-")
            page = Pages()
            command.format_help(context, page)
            title = nodes.title("", "", nodes.literal("", path))
            section = nodes.section("", title, *page.written, ids=[label])
            self.state.document.note_explicit_target(section)
            labels.labels[label] = (self.env.docname, label, path)
            labels.anonlabels[label] = (self.env.docname, label)
            sections.append(section)
        return sections


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("every-command", EveryCommand)
    return {"parallel_read_safe": False}
