"""Records survive the disk, and nothing else passes for one."""

import json

import pytest
from made_records import made_record, made_round, made_setup

from codeneedle.recordfile import decode_record, decode_setup, encode
from codeneedle.records import (
    SCHEMA,
    BadRecord,
    RecordTooNew,
)

RECORD = made_record("q8_0/q4_0", [made_round(made_setup().needles[0])])


def test_a_record_reads_back_as_it_was_written():
    """
    Nothing is lost or changed on the way to the disk and back.
    """
    assert RECORD == decode_record(encode(RECORD), file="a")


def test_a_setup_reads_back_as_it_was_written():
    """
    The same holds for what the records have in common.
    """
    assert made_setup() == decode_setup(encode(made_setup()), file="a")


def test_a_truncated_record_is_refused_wherever_it_ends():
    """
    Half a record is no record.
    """
    data = encode(RECORD)

    for end in range(0, len(data) - 1, 97):
        with pytest.raises(BadRecord):
            decode_record(data[:end], file="a")


def test_a_record_from_the_future_is_refused_with_a_hint():
    """
    A newer layout is never half understood.
    """
    data = json.dumps({**json.loads(encode(RECORD)), "schema": SCHEMA + 1}).encode()

    with pytest.raises(RecordTooNew) as caught:
        decode_record(data, file="a")

    assert "Update codeneedle" in caught.value.hint


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"schema": 1}',
        b'{"schema": "1"}',
        b"\xff\xfe",
        b"NaN",
    ],
)
def test_what_is_no_record_is_refused(data):
    """
    Foreign files are named, and the next action with them.
    """
    with pytest.raises(BadRecord, match="a cannot be read") as caught:
        decode_record(data, file="a")

    assert "Delete the file" in caught.value.hint


def test_an_unknown_status_is_refused():
    """
    Statuses are a vocabulary, not free text.
    """
    data = encode(RECORD).replace(b'"finished"', b'"done"')

    with pytest.raises(BadRecord, match="status"):
        decode_record(data, file="a")
