"""Reports as data: fields of CSV and values of JSON."""

import csv
import io
import json
import math

from hypothesis import given
from hypothesis import strategies as st

from codeneedle.report.data import csv_text, json_text
from codeneedle.text import visible


@given(st.text())
def test_no_field_of_a_table_is_a_formula(text):
    """Spreadsheets would compute it."""
    (row,) = csv.DictReader(io.StringIO(csv_text([{"text": text, "n": 1}])))

    assert not row["text"].startswith(("=", "+", "-", "@"))
    assert row["text"] in {visible(text), f"'{visible(text)}"}


def test_rows_share_the_columns_of_all_and_gaps_are_empty():
    text = csv_text([{"a": math.nan, "tg@4": 1.5}, {"b-c": 2}])

    assert "a,tg_4,b_c\n,1.5,\n,,2\n" == text


def test_numbers_that_are_none_are_null():
    found = {"a": [math.nan, {"b": (-math.inf, 1.5)}]}

    assert {"a": [None, {"b": [None, 1.5]}]} == json.loads(json_text(found))
