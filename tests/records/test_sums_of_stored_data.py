"""Sums and phrases of the stored data."""

from dataclasses import replace

import pytest
from made_records import failed_record, made_record, made_setup

from codeneedle.records.record import (
    Amount,
    BadRecord,
    CacheEvidence,
    CellRecord,
    Count,
    Effective,
    Length,
    Phases,
    Share,
    Status,
    as_json,
    from_json,
)
from codeneedle.records.store import decode_record, encode_masked_and_sealed

PHASES = Phases(
    between_s=0.25,
    ready_s=1.0,
    start_s=2.0,
    measure_s=4.0,
    stop_s=8.0,
)


def test_a_cell_takes_its_own_phases_alone():
    assert 15.0 == PHASES.total_from_launch_s
    assert 11.25 == PHASES.waiting_s


@pytest.mark.parametrize("missing", ["ready_s", "start_s", "stop_s"])
def test_phases_that_were_not_reached_take_no_time(missing):
    left = replace(PHASES, **{missing: None})
    taken = getattr(PHASES, missing)

    assert (15.0 - taken, 11.25 - taken) == (left.total_from_launch_s, left.waiting_s)
    assert (0.0, 0.0) == (Phases().total_from_launch_s, Phases().waiting_s)


@pytest.mark.parametrize(
    ("memory", "per_token"),
    [
        ((), None),
        (((512, 9),), None),
        (((512, 9), (512, 9)), None),
        (((512, 9), (1024, 521)), 1.0),
        (((512, 9), (1024, 521), (2048, 600)), 1.0),
    ],
)
def test_a_token_takes_what_two_contexts_differ_by(memory, per_token):
    assert per_token == CacheEvidence(memory=memory).bytes_per_token


def test_phases_that_an_earlier_server_also_reached_are_sums():
    previous = Phases(ready_s=0.2, start_s=1.0)

    assert Phases(ready_s=0.3, stop_s=2.0) == Phases(
        ready_s=0.1, stop_s=2.0
    ).with_previous_added(previous)


@pytest.mark.parametrize(
    ("kind", "possible", "impossible"),
    [
        (Count, 0, -1),
        (Length, 0, -1),
        (Amount, 0.0, -0.1),
        (Amount, 1e15, 2e15),
        (Share, 0.0, -0.1),
        (Share, 1.0, 1.1),
    ],
)
def test_numbers_that_cannot_be_are_refused(kind, possible, impossible):
    assert possible == from_json(possible, kind, file="x")
    with pytest.raises(BadRecord):
        from_json(impossible, kind, file="x")


@pytest.mark.parametrize("status", Status)
def test_only_a_finished_cell_has_numbers(status):
    record = replace(made_record("f16/f16", []), status=status)

    assert (status == "finished") is record.has_numbers
    assert not failed_record("f16/f16").has_numbers


def test_a_corpus_is_trimmed_if_it_lost_functions():
    corpus = made_setup().corpus

    assert corpus.is_trimmed
    assert not replace(corpus, functions=corpus.functions_before).is_trimmed


def test_what_a_server_reports_of_its_context_is_stored_whatever_it_is():
    most = 10**15 - 1
    record = made_record("f16/f16", ())
    cache = replace(record.effective.kv[0], cells=most)
    record = replace(record, effective=Effective(context=most, kv=(cache,)))

    assert record == decode_record(encode_masked_and_sealed(record), file="x")


@pytest.mark.parametrize("status", ["fallback-cpu", "fallback-f16"])
def test_a_record_of_a_status_that_is_gone_is_refused_with_what_to_do(status):
    raw = as_json(made_record("f16/q8_0", [])) | {"status": status}

    with pytest.raises(BadRecord, match=status) as caught:
        from_json(raw, CellRecord, file="cells/f16-q8_0.recall.json")

    assert "sweep again" in caught.value.hint
