"""
The directive ``fields-of``: a table of the fields of a class, as its source has them.

    ```{fields-of} codeneedle.records.record.CellRecord
    ```
"""

import ast
import re
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typing_extensions import override


def fields(place: str) -> dict[str, tuple[str, str]]:
    """
    Type and description of each field of the class at *place*, by its name.

    Raises:
        LookupError: If there is no such class, or a field has no description.
    """
    module, _, name = place.rpartition(".")
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise LookupError(f"no module {module}")
    source = Path(spec.origin).read_text(encoding="utf-8")
    lines = source.splitlines()
    for found in ast.walk(ast.parse(source)):
        if isinstance(found, ast.ClassDef) and found.name == name:
            told = _attributes(ast.get_docstring(found) or "")
            return _described(found, told, lines)
    raise LookupError(f"no class {place}")


def _attributes(text: str) -> dict[str, str]:
    """Descriptions by name, of the section of a docstring."""
    _, _, section = text.partition("Attributes:\n")
    section = dedent(section.partition("\n\n")[0])
    entries = re.findall(r"^(\w+): (.*(?:\n .*)*)", section, re.MULTILINE)
    return {name: " ".join(told.split()) for name, told in entries}


def _described(
    found: ast.ClassDef, told: dict[str, str], lines: list[str]
) -> dict[str, tuple[str, str]]:
    described = {}
    for at, node in enumerate(found.body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        name, after = node.target.id, found.body[at + 1 : at + 2]
        text = told.get(name) or lines[node.lineno - 1].partition("  # ")[2]
        match after:
            case [ast.Expr(value=ast.Constant(value=str() as below))] if not text:
                text = " ".join(below.split())
        if not text:
            raise LookupError(f"{found.name}.{name} has no description")
        sentence = f"{text[0].upper()}{text[1:].removesuffix('.')}."
        described[name] = (ast.unparse(node.annotation), sentence)
    return described


class FieldsOf(SphinxDirective):
    """A definition list of the fields of a class."""

    required_arguments = 1

    @override
    def run(self) -> list[nodes.Node]:
        """The list."""
        try:
            found = fields(self.arguments[0])
        except LookupError as error:
            raise self.error(str(error)) from error
        entries = []
        for name, (kind, text) in found.items():
            kinds = [nodes.Text(" "), nodes.inline("", kind, classes=["kind"])]
            term = nodes.term("", "", nodes.literal("", name), *kinds)
            words, _ = self.state.inline_text(text.replace("`", "``"), self.lineno)
            below = nodes.definition("", nodes.paragraph("", "", *words))
            entries.append(nodes.definition_list_item("", term, below))
        return [nodes.definition_list("", *entries, classes=["options"])]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("fields-of", FieldsOf)
    return {"parallel_read_safe": True}
