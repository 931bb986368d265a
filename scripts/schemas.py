"""
Write the JSON schemas of what codeneedle prints and stores, from its types.

    python scripts/schemas.py   # writes codeneedle/schemas/*.json

They are drafts 2020-12, and part of the package.
"""

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from codeneedle.records.record import CellRecord
from codeneedle.report.data import RunTable
from codeneedle.report.verdict_data import VerdictObject

FOLDER = Path(__file__).parents[1] / "codeneedle" / "schemas"

TYPES: dict[str, tuple[Any, str]] = {
    "verdict": (
        VerdictObject | list[VerdictObject],
        "`codeneedle verdict --json`: of one run an object, of several a list",
    ),
    "table": (
        list[RunTable],
        "`--json` of grid, table, panels and memory: rows of the one table, by run",
    ),
    "record": (
        CellRecord,
        "A stored record of a cell, without its checksum",
    ),
}
"""The type of each schema, and its title."""


ATTRIBUTE = re.compile(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", re.MULTILINE | re.DOTALL)
"""A field and what a docstring says of it."""


def schema(name: str) -> str:
    """The schema of that name as the text of its file."""
    layout, title = TYPES[name]
    found = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **msgspec.json.schema(layout),
    }
    for each in found["$defs"].values():
        describe(each)
    return f"{json.dumps(found, indent=2, ensure_ascii=False)}\n"


def describe(definition: dict[str, Any]) -> None:
    """Move what the docstring of a type says of its fields to these fields."""
    said, _, fields = definition.get("description", "").partition("\n\nAttributes:\n")
    if said:
        definition["description"] = " ".join(said.split())
    for name, text in ATTRIBUTE.findall(fields):
        definition["properties"][name]["description"] = " ".join(text.split())


if __name__ == "__main__":
    for each in TYPES:
        (FOLDER / f"{each}.json").write_text(schema(each), encoding="utf-8")
