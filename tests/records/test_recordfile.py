"""Records as bytes."""

import msgspec
from made_records import made_needle, made_record, made_round

from codeneedle.records.encoding import decode_at_once, decode_record, encode
from codeneedle.records.record import SCHEMA, CellRecord


def test_lists_of_numbers_take_one_line():
    """
    A person who opens a record scrolls past a line, not past thousands.
    """
    data = encode(made_record("q8_0/q4_0", [made_round(made_needle())]))

    assert b'"gaps": [5.0,4.0,6.0],\n' in data


def test_texts_that_look_like_lists_of_numbers_stay_as_they_are():
    """
    Whatever white space is in them.
    """
    reply = "x = [ 1, 2 ]\ny = [\n  1,\n  2\n]\n[ \t3]"
    record = made_record("q8_0/q4_0", [made_round(made_needle(), reply=reply)])

    assert record == decode_record(encode(record), file="x")


def test_what_is_no_record_of_this_schema_is_not_read_at_once():
    """
    It is left to what can upgrade it, or tell what is wrong.
    """
    data = encode(made_record("q8_0/q4_0", []))
    bare = msgspec.json.encode(made_record("q8_0/q4_0", []))

    assert SCHEMA == decode_at_once(data, CellRecord).schema
    assert None is decode_at_once(data.replace(b"q8_0", b"q9_0"), CellRecord)
    assert None is decode_at_once(bare, CellRecord)
    assert None is decode_at_once(data, list)
