"""
Write the JSON schemas of what codeneedle prints and stores, from its types.

    python scripts/schemas.py   # writes codeneedle/schemas/*.json

They are drafts 2020-12, and part of the package.
"""

import ast
import inspect
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from codeneedle.records.record import CellRecord
from codeneedle.report.answer import AnswerObject
from codeneedle.report.data import RunTable
from codeneedle.report.verdict_data import VerdictObject
from codeneedle.report.weights import WeightsRow

FOLDER = Path(__file__).parents[1] / "codeneedle" / "schemas"

TYPES: dict[str, tuple[Any, str]] = {
    "verdict": (
        VerdictObject | list[VerdictObject],
        "`codeneedle verdict --json`: of one run an object, of several a list",
    ),
    "answer": (
        AnswerObject | list[AnswerObject],
        "`codeneedle verdict --form json`: of one run an object, of several a list",
    ),
    "table": (
        list[RunTable],
        "`--json` of grid, table, panels and memory: rows of the one table, by run",
    ),
    "weights": (
        list[WeightsRow],
        "`codeneedle weights --json`: a row for each model that is kept here",
    ),
    "record": (
        CellRecord,
        "A stored record of a cell, without its checksum",
    ),
}
"""The type of each schema, and its title."""


def schema(name: str) -> str:
    """The schema of that name as the text of its file."""
    layout, title = TYPES[name]
    found = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **msgspec.json.schema(layout),
    }
    for each, definition in found["$defs"].items():
        describe(each, definition)
    return f"{json.dumps(found, indent=2, ensure_ascii=False)}\n"


def describe(name: str, definition: dict[str, Any]) -> None:
    """Add to the fields of a *definition* what the class of that *name* says."""
    if said := definition.get("description"):
        definition["description"] = " ".join(said.split())
    for module in [each for each in sys.modules if each.startswith("codeneedle.")]:
        found = vars(sys.modules[module]).get(name)
        if isinstance(found, type) and found.__module__ == module:
            told = descriptions(inspect.getsource(found))
            for field in told.keys() & definition.get("properties", {}).keys():
                definition["properties"][field].setdefault("description", told[field])


def descriptions(source: str) -> dict[str, str]:
    """What the *source* of a class says of its fields, behind or below each."""
    lines, (found,) = source.splitlines(), ast.parse(source).body
    told = {}
    for field, after in itertools.pairwise([*getattr(found, "body", ()), ast.Pass()]):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = lines[(field.end_lineno or 0) - 1].partition("  # ")[2]
            match after:
                case ast.Expr(value=ast.Constant(value=str() as below)):
                    text = below
            if text:
                text = " ".join(text.split()).removesuffix(".")
                told[field.target.id] = f"{text[0].upper()}{text[1:]}."
    return told


if __name__ == "__main__":
    for each in TYPES:
        (FOLDER / f"{each}.json").write_text(schema(each), encoding="utf-8")
