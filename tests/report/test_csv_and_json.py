"""Reports as data: fields of CSV and values of JSON."""

import csv
import io
import json
import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from codeneedle.report.data import csv_text, json_text
from codeneedle.report.tidy import COLUMNS, TableRow
from codeneedle.text import escape_invisible

NUMBERS = dict.fromkeys(("error", "low", "high", "limit"))
ROW = TableRow(
    **{**dict.fromkeys(COLUMNS, ""), **NUMBERS, "value": 1.5, "n": 3, "context": 512}
)


@given(st.text())
def test_no_field_of_a_table_is_a_formula(text):
    """Spreadsheets would compute it."""
    made = msgspec.structs.replace(ROW, reason=text)
    (row,) = csv.DictReader(io.StringIO(csv_text([made])))

    assert not row["reason"].startswith(("=", "+", "-", "@"))
    assert row["reason"] in {escape_invisible(text), f"'{escape_invisible(text)}"}


def test_what_is_no_number_is_an_empty_field():
    (row,) = csv.DictReader(io.StringIO(csv_text([ROW])))

    assert list(COLUMNS) == list(row)
    assert ("1.5", "", "", "3") == tuple(
        row[name] for name in ("value", "error", "limit", "n")
    )
    assert ",".join(COLUMNS) + "\n" == csv_text([])


def test_numbers_that_are_none_are_null():
    found = {"a": [math.nan, {"b": (-math.inf, 1.5)}]}

    assert {"a": [None, {"b": [None, 1.5]}]} == json.loads(json_text(found))


def test_names_of_json_are_strings():
    assert {"4096": {"0.5": 1}} == json.loads(json_text({4096: {0.5: 1}}))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_json_reads_back_as_it_was(value):
    assert value == json.loads(json_text(value))


def test_a_row_is_a_line_of_json():
    text = json_text({"rows": [{"a": 1, "b": None}, {"a": 2}], "of": {"c": []}})

    assert [
        "{",
        '  "rows": [',
        '    {"a": 1, "b": null},',
        '    {"a": 2}',
        "  ],",
        '  "of": {',
        '    "c": []',
        "  }",
        "}",
    ] == text.splitlines()
