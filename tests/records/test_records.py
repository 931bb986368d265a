"""Records survive the disk, and nothing else passes for one."""

import json

import pytest
from made_records import made_record, made_round, made_setup

from codeneedle.records.encoding import decode_record, decode_setup, encode, sealed
from codeneedle.records.record import SCHEMA, BadRecord, RecordTooNew

RECORD = made_record("q8_0/q4_0", [made_round(made_setup().needles[0])])


def resealed(data: bytes, **changes: object) -> bytes:
    """*data* as a program would have written it that means *changes*."""
    body = json.loads(data)
    del body["crc32"]
    return sealed(json.dumps(body | changes).encode())


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


def test_a_record_of_the_first_schema_is_still_read():
    """
    Its files bore no seal.
    """
    body = json.loads(encode(RECORD))
    del body["crc32"]
    data = json.dumps(body | {"schema": 1}, indent=1).encode()

    assert RECORD == decode_record(data, file="a")


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace('"finished"', '"crashed"'),
        lambda text: text.replace('"crc32": "', '"crc32": "0'),
        lambda text: json.dumps(json.loads(text) | {"crc32": None}),
        lambda text: json.dumps(json.loads(text)),
    ],
)
def test_a_record_edited_by_hand_is_told_from_one_that_was_written(edit):
    """
    It reads well, and is refused all the same: nobody measured it.
    """
    with pytest.raises(BadRecord, match="not what was written"):
        decode_record(edit(encode(RECORD).decode()).encode(), file="a")


def test_white_space_at_the_end_is_no_damage():
    """
    Some editors end a file with a line break, others take it away.
    """
    data = encode(RECORD)

    assert RECORD == decode_record(data + b"\r\n", file="a")
    assert RECORD == decode_record(data.rstrip(), file="a")


def test_a_record_from_the_future_is_refused_with_a_hint():
    """
    A newer layout is never half understood.
    """
    data = resealed(encode(RECORD), schema=SCHEMA + 1)

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
        b'{"schema": true}',
        b'{"schema": 0}',
        b'{"schema": -7}',
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
    data = resealed(encode(RECORD), status="done")

    with pytest.raises(BadRecord, match="status"):
        decode_record(data, file="a")
