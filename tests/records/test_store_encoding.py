"""Records and setups as bytes: read back as written, and anything else refused."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_records import made_needle, made_record, made_round, made_setup
from unhurried import outcome, unhurried

from codeneedle.errors import BadInput, RequestError
from codeneedle.grid import Pair
from codeneedle.records.record import (
    SCHEMA,
    BadRecord,
    BadSetup,
    CellRecord,
    Effective,
    KvBuffer,
    NeedleFacts,
    Phases,
    Recall,
    Round,
    Setup,
    Status,
    as_json,
    from_json,
)
from codeneedle.records.store import (
    decode_record,
    decode_setup,
    encode,
    is_intact,
    sealed,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["\x1b[2J", "\u202e", "../../etc", "=1+1", '"\\', "\0", "</script>", "\u2028"]
)
"""Hostile as any: terminal escapes, directions, paths, formulas, null characters."""

FACTS = st.floats(allow_nan=False, allow_infinity=False, width=32)
COUNTS = st.integers(0, 2**53)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)

ROUNDS = st.builds(
    Round,
    needle=TEXT,
    prompt_sha256=TEXT,
    reply=TEXT,
    error=TEXT,
    finish=st.sampled_from([None, "stop", "length", "cut"]),
    prompt_tokens=COUNTS,
    cached_tokens=COUNTS,
    prompt_ms=FACTS,
    predicted_tokens=COUNTS,
    wall_s=FACTS,
    logprobs=st.lists(FACTS, max_size=3).map(tuple),
    gaps=st.lists(FACTS, max_size=3).map(tuple),
    lengths=st.lists(COUNTS, max_size=3).map(tuple),
    retries=TEXTS,
)
RECALLS = st.builds(
    Recall, rounds=st.lists(ROUNDS, max_size=3).map(tuple), priming=st.none() | ROUNDS
)
BUFFERS = st.builds(
    KvBuffer,
    cells=COUNTS,
    layers=COUNTS,
    k_type=TEXT,
    v_type=TEXT,
    k_mib=FACTS,
    v_mib=FACTS,
)
RECORDS = st.builds(
    CellRecord,
    pair=st.builds(Pair, TEXT, TEXT),
    probe=TEXT,
    status=st.sampled_from(Status),
    started=TEXT,
    reason=TEXT,
    position=COUNTS,
    command=TEXTS,
    effective=st.builds(
        Effective,
        build=st.none() | TEXT,
        context=st.none() | COUNTS,
        kv=st.lists(BUFFERS, max_size=2).map(tuple),
        compute_mib=st.none() | FACTS,
    ),
    phases=st.builds(Phases, ready_s=st.none() | FACTS, measure_s=st.none() | FACTS),
    peak_rss_bytes=st.none() | COUNTS,
    log_excerpt=TEXTS,
    observation=st.none() | RECALLS.map(as_json),
)
NEEDLES = st.builds(
    NeedleFacts,
    name=TEXT,
    signature=TEXT,
    line=COUNTS,
    depth=FACTS,
    lines=TEXTS,
    more=TEXTS,
    budget=COUNTS,
)
SETUPS = st.builds(
    lambda needles, texts, text, count: replace(
        made_setup(),
        needles=needles,
        server_args=texts,
        types_k=texts,
        llama=text,
        thinking=text,
        context=count,
        probes={text: {text: [text, count, None, True]}},
    ),
    st.lists(NEEDLES, max_size=3).map(tuple),
    TEXTS,
    TEXT,
    COUNTS,
)


@unhurried
@given(record=RECORDS)
def test_any_record_reads_back_as_it_was_written(record):
    """
    Whatever a model, a server or a log said is in it unchanged, byte for byte; it is
    strict JSON in UTF-8, without NaN, infinity and lone surrogates.
    """
    data = encode(record)

    assert record == decode_record(data, file="x")
    assert data == encode(decode_record(data, file="x"))
    json.loads(data.decode("utf-8"), parse_constant=pytest.fail)


@unhurried
@given(recall=RECALLS)
def test_any_observation_reads_back_as_it_was_made(recall):
    """
    Replies, probabilities and errors survive the way through JSON.
    """
    assert recall == from_json(as_json(recall), Recall, file="x")


@unhurried
@given(setup=SETUPS)
def test_any_setup_reads_back_as_it_was_written(setup):
    """
    So that a resumed sweep finds itself equal to what it was.
    """
    assert setup == decode_setup(encode(setup), file="x")


RECORD = made_record("q8_0/q4_0", [made_round(made_needle())])
WRITTEN = encode(RECORD)


@unhurried
@given(data=st.binary() | st.text().map(str.encode))
@example(b"[]")
@example(b"null")
@example(b"NaN")
@example(b'{"schema": 1}')
def test_what_is_no_record_is_refused_with_a_hint(data):
    """
    Any bytes give a record or an error that names the file and has a hint.
    """
    for decode, error in ((decode_record, BadRecord), (decode_setup, BadSetup)):
        with pytest.raises(error) as caught:
            decode(data, file="x.json")
        assert "x.json cannot be read" in str(caught.value)
        assert caught.value.hint


@unhurried
@given(
    at=st.integers(0, len(WRITTEN) - 1),
    length=st.integers(0, 8),
    junk=st.binary(max_size=8),
)
def test_a_damaged_record_is_refused_or_still_the_same(at, length, junk):
    """
    A damage is never read as another observation.
    """
    damaged = WRITTEN[:at] + junk + WRITTEN[at + length :]
    read = outcome(decode_record, damaged, file="x")

    assert read == RECORD or isinstance(read, RequestError)


@unhurried
@given(schema=st.integers(SCHEMA + 1, 10**30))
def test_every_later_schema_is_too_new(schema):
    """
    A newer layout is not half understood.
    """
    data = json.dumps({"schema": schema, "anything": 1}).encode()

    with pytest.raises(BadInput) as caught:
        decode_record(data, file="x")
    assert str(schema) in str(caught.value)
    assert "Update codeneedle" in caught.value.hint


@unhurried
@given(schema=st.integers(max_value=0) | st.booleans() | st.none() | TEXT | FACTS)
def test_what_never_was_a_schema_is_no_record(schema):
    """
    There is no version to bring up to date from.
    """
    data = json.dumps({"schema": schema}).encode()

    with pytest.raises(BadRecord):
        decode_record(data, file="x")


def test_what_is_no_number_is_stored_as_nothing():
    """
    NaN and infinity are no observations; a record that holds them says so or nothing.
    """
    odd = replace(
        RECORD,
        phases=Phases(ready_s=math.nan, measure_s=math.inf, stop_s=1.0),
    )

    assert Phases(stop_s=1.0) == decode_record(encode(odd), file="x").phases


def test_text_that_no_file_can_hold_becomes_u_fffd_and_all_else_stays():
    """
    The name of a folder may be no Unicode; the record is stored nevertheless.
    """
    odd = replace(RECORD, reason="in a\udcffb", command=("--out", "a\udcffb", "c"))

    read = decode_record(encode(odd), file="x")

    assert (
        replace(odd, reason="in a\ufffdb", command=("--out", "a\ufffdb", "c")) == read
    )


def test_a_truncated_record_is_refused_wherever_it_ends():
    """
    Half a record is no record.
    """
    for end in range(0, len(WRITTEN) - 1, 97):
        with pytest.raises(BadRecord):
            decode_record(WRITTEN[:end], file="a")


@pytest.mark.parametrize("stored", [RECORD, made_setup()], ids=["record", "setup"])
def test_a_file_of_the_first_schema_is_still_read(stored):
    """
    It bore no seal.
    """
    body = json.loads(encode(stored))
    del body["crc32"]
    data = json.dumps(body | {"schema": 1}, indent=1).encode()
    decode = decode_setup if isinstance(stored, Setup) else decode_record

    assert stored == decode(data, file="a")


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
    Its checksum does not match, or is missing.
    """
    with pytest.raises(BadRecord, match="not what was written"):
        decode_record(edit(encode(RECORD).decode()).encode(), file="a")


def test_white_space_at_the_end_is_no_damage():
    """
    Some editors end a file with a line break, others take it away.
    """
    assert RECORD == decode_record(WRITTEN + b"\r\n", file="a")
    assert RECORD == decode_record(WRITTEN.rstrip(), file="a")


def test_an_unknown_status_is_refused():
    """
    Statuses are a vocabulary, not free text.
    """
    body = json.loads(encode(RECORD))
    del body["crc32"]
    data = sealed(json.dumps(body | {"status": "done"}).encode())

    with pytest.raises(BadRecord, match="status"):
        decode_record(data, file="a")


def test_lists_of_numbers_take_one_line():
    """
    So that a record can be read in an editor.
    """
    assert b'"gaps": [5.0,4.0,6.0],\n' in WRITTEN


def test_texts_that_look_like_lists_of_numbers_stay_as_they_are():
    """
    Whatever white space is in them.
    """
    reply = "x = [ 1, 2 ]\ny = [\n  1,\n  2\n]\n[ \t3]"
    record = made_record("q8_0/q4_0", [made_round(made_needle(), reply=reply)])

    assert record == decode_record(encode(record), file="x")


@pytest.mark.parametrize("body", [b'{"a": 1}', b'{\n "a": 1\n}\n', b'{"a": {}}'])
def test_a_sealed_object_is_still_json(body):
    """
    The seal is one more key, and the last.
    """
    data = sealed(body)

    assert is_intact(data)
    assert [*json.loads(body), "crc32"] == list(json.loads(data))


def test_one_changed_bit_anywhere_breaks_the_seal():
    """
    In the seal itself, too: it is broken or gone, never intact.
    """
    data = sealed(b'{"number": 12345, "text": "abc"}')
    end = len(data.rstrip())

    for bit in range(8 * end):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not is_intact(bytes(damaged))


def test_what_bears_no_seal_is_neither_intact_nor_broken():
    """
    Files of the first schema had none.
    """
    for data in (b"", b"{}", b'{"a": 1}', b'{"crc32": "no"}', sealed(b'{"a": 1}')[:-6]):
        assert is_intact(data) is None
