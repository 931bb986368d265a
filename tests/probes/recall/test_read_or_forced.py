"""Whether right lines are read or forced, by what the reference showed."""

from dataclasses import astuple, replace

import pytest
from fake_engine import FakeServer, forced_to, reply_to
from made_contexts import made_outlook
from made_reading import made_context, made_engine
from made_records import (
    asking_for,
    asking_recall,
    failed_record,
    forced_of,
    made_forced_needle,
    made_record,
    made_setup,
    written_of,
)

from codeneedle.cache_types import Pair
from codeneedle.corpora.registry import load
from codeneedle.engines.engine import Pace
from codeneedle.errors import CellError
from codeneedle.probes.probe import lacks
from codeneedle.probes.recall import reading
from codeneedle.probes.recall.choice import (
    Load,
    ReferenceTimes,
    ask_phrase,
    choice_phrase,
    planned_choice,
)
from codeneedle.probes.recall.probe import FURTHER, PROBE
from codeneedle.probes.recall.reading import chunks_read
from codeneedle.probes.recall.record import recall_of
from codeneedle.probes.recall.settings import (
    Ask,
    By,
    RecallCalibration,
    RecallSettings,
    choice_in,
    leaves_open,
    settings_of,
)
from codeneedle.records.record import Status, as_json

AUTOMATIC = {"ask": "forced", "functions": 4, "by": "automatic"}
SLOW_WRITING = (1 / 200, 1 / 15)
"""Seconds for a token that is read, and for one that is forced, of a 27B."""

ON_TWO_CORES = (1 / 250, 1 / 77)


def made_load(**changes):
    """A text of 5,000 tokens, of whose functions three lines are asked."""
    facts = {
        "text": 5_000,
        "right": 20.0,
        "chunks": lambda count: chunks_read(5_000, 43 * count, count, 8_192),
        "functions": 12,
        "cells": 35,
    }
    return Load(**{**facts, **changes})


def chosen(speeds, **changes):
    return made_load(**changes).choice(made_speeds(speeds))


def made_speeds(speeds, **changes):
    reading_s, forcing_s = speeds
    return ReferenceTimes(reading_s=reading_s, forcing_s=forcing_s, **changes)


# What pays


@pytest.mark.parametrize(
    ("speeds", "cells", "expected"),
    [
        (SLOW_WRITING, 35, By.READING),
        (SLOW_WRITING, 1, By.WRITING),
        (ON_TWO_CORES, 35, By.WRITING),
        ((1 / 4_000, 1 / 100), 35, By.READING),
    ],
)
def test_reading_is_chosen_where_all_pairs_take_less_time_so(speeds, cells, expected):
    """The reference takes both, so that one pair beside it is not enough."""
    assert expected == chosen(speeds, cells=cells).by


def test_as_many_functions_are_read_as_take_no_longer_than_by_writing():
    found = chosen(SLOW_WRITING, looks=(24, 48, 96))

    assert (By.READING, 48) == (found.by, found.functions)
    assert found.read_cell_s <= found.forced_cell_s
    assert chosen(SLOW_WRITING).functions is None
    assert chosen(ON_TWO_CORES, looks=(24, 48, 96)).functions is None


def test_lines_that_are_written_make_a_server_read_the_text_in_any_case():
    assert By.WRITING is chosen(SLOW_WRITING, has_server=True).by


@pytest.mark.parametrize(
    ("read_s", "start_s", "expected"),
    [(40.0, 0.0, True), (41.5, 0.0, False), (41.5, 3.0, True), (44.0, 3.0, False)],
)
def test_what_the_reference_took_to_be_read_is_compared_with_whole_cells_by_writing(
    read_s, start_s, expected
):
    """Of 41 s, a text of 25 s and 12 functions of 1.3 s; and the start of a server."""
    speeds = made_speeds(SLOW_WRITING, start_s=start_s)

    assert expected is made_load(cells=8_000).is_read(read_s, speeds)


def test_a_pair_beside_the_reference_pays_for_its_check():
    """The rest of the reference is left, too, and a server for it: 33 s and 33 s."""
    speeds = made_speeds(SLOW_WRITING)

    assert [True, False] == [
        made_load(cells=1).is_read(read_s, speeds) for read_s in (40.9, 41.1)
    ]


@pytest.mark.parametrize("speeds", [SLOW_WRITING, ON_TWO_CORES])
def test_both_speeds_are_told(speeds):
    phrase = choice_phrase(chosen(speeds))

    assert f"read {1 / speeds[0]:.0f} tokens/s, and forced {1 / speeds[1]:.1f};" in (
        phrase
    )
    assert "" == choice_phrase(RecallCalibration(by=By.WRITING))


# Before the first cell


def estimates(read_s, write_s, **changes):
    pace = Pace(
        start_s=1, read_s=read_s, write_s=write_s, read_back_s=0, write_back_s=0
    )
    facts = {
        "corpus": load("random-bodies-many"),
        "context": 8_192,
        "pace": pace,
        "cells": 36,
        "unread": "",
    }
    return made_outlook(**{**facts, **changes})


BRIEF = RecallSettings(ask=Ask.FORCED, functions=12, lines=3)


@pytest.mark.parametrize(
    ("settings", "changes", "expected"),
    [
        (BRIEF, {}, By.READING),
        (BRIEF, {"unread": "no tool"}, None),
        (BRIEF, {"is_built_in": True}, None),
        (BRIEF, {"pace": None}, None),
        (RecallSettings(ask=Ask.WRITTEN), {}, None),
        (RecallSettings(ask=Ask.FORCED, by=By.WRITING), {}, None),
    ],
)
def test_a_plan_tells_what_the_reference_is_likely_to_choose(
    settings, changes, expected
):
    found = planned_choice(settings, estimates(*SLOW_WRITING, **changes))

    assert expected == (found.by if found else None)


def test_a_plan_counts_both_ways_of_the_reference():
    work = PROBE.work(BRIEF, estimates(*SLOW_WRITING, may_grow=True))

    assert "3 lines of 48 functions read" == work.phrase
    assert (0, (7168,)) == (work.written, work.texts)
    assert "3 lines of 6 functions forced" == work.first.phrase
    assert 6 * 3 * 6 < work.first.written < 6 * 3 * 8
    forced = PROBE.work(BRIEF, estimates(*ON_TWO_CORES))
    assert ("3 lines of 12 functions forced", None) == (forced.phrase, forced.first)


# The reference chooses


class Server(FakeServer):
    """Reads a text at 1,000 tokens/s."""

    def complete(self, question, *, enough=None):
        return reply_to(question, prompt_tokens=1_000, prompt_ms=1_000.0)

    chat = complete


def led_by(folder, *, wall_s, **changes):
    """The first cell of a run, which forces a function in *wall_s* seconds."""
    engine = made_engine()
    engine.force = lambda question, right: forced_to(question, right, wall_s=wall_s)
    engine.server = Server(engine)
    conditions = AUTOMATIC | changes.pop("conditions", {})
    context = made_context(
        folder, engine, conditions=conditions, pair="f16/f16", **changes
    )
    return engine, context


def told(observation):
    return recall_of(replace(failed_record("f16/f16"), observation=observation))


def test_a_reference_that_forces_slowly_is_read_and_so_are_the_others(tmp_path):
    engine, context = led_by(tmp_path, wall_s=60.0)
    facts = []
    context.calibrate = facts.append
    assert leaves_open(context.run.setup)
    found = told(PROBE.measure(context))

    assert ([4, 4], 1) == ([len(found.forced), len(found.read)], len(engine.served))
    assert 1 == len(found.texts_s)
    likely, choice = facts
    setup = context.run.setup
    assert [False, True] == [likely["is_tried"], choice["is_tried"]]
    assert likely["forced_cell_s"] <= choice["forced_cell_s"]
    assert By.READING is choice_in(setup).by is settings_of(setup).by
    assert (0.001, "reading") == (choice["reading_s"], choice["by"])

    other = replace_context(context, Pair("q8_0", "q8_0"))
    assert [0, 4] == [len(each) for each in both(told(PROBE.measure(other)))]
    assert 1 == len(engine.served)


def replace_context(context, pair):
    """Another cell of the run of *context*."""
    return type(context)(run=context.run, pair=pair, logs=context.logs)


def both(recall):
    return recall.forced, recall.read


def test_a_reference_that_forces_quickly_is_forced_on_the_same_server(tmp_path):
    engine, context = led_by(tmp_path, wall_s=0.001)
    found = told(PROBE.measure(context))

    assert [4, 0] == [len(each) for each in both(found)]
    assert 1 == len(engine.served)
    assert By.WRITING is choice_in(context.run.setup).by
    assert [] == engine.tool.tasks


def reading_in(read_s, monkeypatch):
    """Each chunk is read in so many seconds."""
    read = reading.read

    def slow(context, group):
        answers, _ = read(context, group)
        return answers, read_s

    monkeypatch.setattr(reading, "read", slow)


def test_a_reference_that_is_read_more_slowly_than_expected_is_forced(
    tmp_path, monkeypatch
):
    """So are all pairs: what the tool really takes decides, its start included."""
    reading_in(1_000.0, monkeypatch)
    engine, context = led_by(tmp_path, wall_s=60.0)
    many = asking_for(context.run.setup, forced=eight_functions())
    context.run = replace(context.run, setup=with_functions(many, 8))
    found = told(PROBE.measure(context))
    setup = context.run.setup

    assert ([8, 0], 2) == ([len(each) for each in both(found)], len(engine.served))
    assert ((), 1_000) == (found.texts_s, round(found.tried_s))
    assert (By.WRITING, True) == (choice_in(setup).by, choice_in(setup).is_tried)
    assert not settings_of(setup).is_reading
    (phrase,) = PROBE.calibrating.told(setup)
    assert "a cell takes about 8:09 by writing, and took it 16:40 by reading" in phrase


def test_a_reading_that_was_cut_off_before_it_was_compared_is_compared(
    tmp_path, monkeypatch
):
    _, first = led_by(tmp_path, wall_s=60.0)
    observation = PROBE.measure(first)
    untried = replace(choice_in(first.run.setup), is_tried=False)
    reading_in(1_000.0, monkeypatch)
    context = replace_context(first, first.pair)
    context.set_for_all("recall", as_json(untried))
    context.previous_record = replace(
        failed_record("f16/f16"), status=Status.INTERRUPTED, observation=observation
    )
    found = told(PROBE.measure(context))

    assert (True, By.READING) == (
        choice_in(context.run.setup).is_tried,
        choice_in(context.run.setup).by,
    )
    assert [4, 4] == [len(each) for each in both(found)]


def test_only_the_few_functions_that_it_takes_are_forced_before(tmp_path):
    _, context = led_by(tmp_path, wall_s=60.0, conditions={"functions": 5})
    setup = context.run.setup
    many = asking_for(setup, forced=[*forced_of(setup), *more_functions()])
    context.run = replace(context.run, setup=with_functions(many, 10))
    found = told(PROBE.measure(context))

    assert [6, 10] == [len(each) for each in both(found)]


def more_functions():
    return tuple(made_forced_needle(at) for at in range(5, 10))


def with_functions(setup, count):
    return asking_recall(setup, AUTOMATIC | {"functions": count})


FAILURE = CellError("it wrote nonsense", hint="Look.", status=Status.CRASHED)


def test_where_the_reference_cannot_be_read_all_pairs_are_forced(tmp_path):
    engine, context = led_by(tmp_path, wall_s=60.0)
    many = asking_for(context.run.setup, forced=eight_functions())
    context.run = replace(context.run, setup=with_functions(many, 8))
    engine.tool.error = FAILURE
    found = told(PROBE.measure(context))

    assert ([8, 0], 2) == ([len(each) for each in both(found)], len(engine.served))
    assert 8 == len({each.needle for each in found.forced})
    assert all(each >= 0 for each in spans(context.phases))
    setup = context.run.setup
    assert By.WRITING is choice_in(setup).by
    assert not settings_of(setup).is_reading
    assert PROBE.calibrating.told(setup) == (
        "right lines are forced: they could not be read, it wrote nonsense",
    )


def eight_functions():
    return tuple(made_forced_needle(at) for at in range(8))


def spans(phases):
    return [each for each in astuple(phases) if each is not None]


@pytest.mark.parametrize("others", [True, False])
def test_a_reference_that_is_to_be_compared_with_what_was_read_fails(tmp_path, others):
    engine, first = led_by(tmp_path, wall_s=60.0)
    record = replace(failed_record("q8_0/q8_0"), observation=PROBE.measure(first))
    engine.tool.error = FAILURE
    context = replace_context(first, Pair("f16", "f16"))
    forced = {
        key: answer
        for key, answer in record.observation["answers"].items()
        if key.startswith("forced ")
    }
    previous = replace(
        failed_record("f16/f16"),
        status=Status.INTERRUPTED if others else Status.TIMED_OUT,
        observation=record.observation | {"answers": forced},
    )
    context.previous_record, context.others = previous, [record] if others else []

    with pytest.raises(CellError, match="it wrote nonsense"):
        PROBE.measure(context)
    assert By.READING is choice_in(context.run.setup).by


def test_of_a_setup_that_was_lost_the_other_pairs_tell_what_was_chosen(tmp_path):
    engine, first = led_by(tmp_path, wall_s=60.0)
    record = replace(failed_record("q8_0/q8_0"), observation=PROBE.measure(first))
    _, context = led_by(tmp_path, wall_s=0.001, others=[record])
    found = told(PROBE.measure(context))

    assert [0, 4] == [len(each) for each in both(found)]
    assert 1 == len(engine.served)


# Who chooses


@pytest.mark.parametrize(
    ("settings", "tool", "expected"),
    [
        ({}, {}, "automatic"),
        ({"by": By.WRITING}, {}, None),
        ({"by": By.READING}, {}, "reading"),
        ({"ask": Ask.WRITTEN}, {}, None),
        ({}, {"memory_bytes": 1 << 60}, None),
    ],
)
def test_a_new_run_chooses_where_it_can_and_nothing_was_chosen(
    tmp_path, settings, tool, expected
):
    context = made_context(tmp_path, made_engine(**tool))
    setup = replace(context.run.setup, probes={})
    chosen = {"recall": RecallSettings(**settings)}
    run = replace(context.run, settings=chosen, setup=setup)

    assert expected == PROBE.as_stored(run).get("by")


def test_a_run_goes_on_as_it_was_begun(tmp_path):
    """Also one from before there was a choice; a choice is no condition."""
    context = made_context(tmp_path, made_engine(), conditions={"ask": "forced"})
    assert "by" not in PROBE.as_stored(context.run)

    read = as_json(RecallCalibration(by=By.READING, functions=5))
    setup = replace(
        asking_recall(context.run.setup, AUTOMATIC), calibrated={"recall": read}
    )
    assert 5 == settings_of(setup).functions
    known = made_outlook(engine=context.run.engine, setup=setup)
    settings = {"recall": PROBE.adapt(RecallSettings(), known)}
    kept = PROBE.as_stored(replace(context.run, setup=setup, settings=settings))
    assert AUTOMATIC == {name: kept[name] for name in AUTOMATIC}


# What is asked


BOTH = {"ask": "automatic", "by": None}


def writing(engine, context, lines):
    """The server of *engine* writes so many right lines of each needle."""
    by_signature = {each.signature: each for each in written_of(context.run.setup)}

    def complete(question, *, enough=None):
        text = question.prompt
        at = max(by_signature, key=text.rfind)
        reply = "\n".join(by_signature[at].lines[:lines]) + "\nnothing\n"
        return reply_to(
            question, reply, prompt_tokens=1_000, prompt_ms=1_000.0, wall_s=2.5
        )

    engine.server.complete = complete


@pytest.mark.parametrize(("lines", "expected"), [(3, Ask.FORCED), (12, Ask.BOTH)])
def test_nothing_is_written_where_the_reference_writes_too_little(
    tmp_path, lines, expected
):
    """A fifth of what is asked is what a pair can lose of, in the verdict, too."""
    engine, context = led_by(tmp_path, wall_s=0.001, conditions=BOTH)
    writing(engine, context, lines)
    found = told(PROBE.measure(context))
    setup, written = context.run.setup, len(written_of(context.run.setup))

    assert [written, 4] == [len(found.rounds), len(found.forced)]
    assert expected is settings_of(setup).ask
    assert (lines, 2.5 * written) == (
        choice_in(setup).matched,
        choice_in(setup).written_s,
    )
    other = replace_context(context, Pair("q8_0", "q8_0"))
    again = told(PROBE.measure(other))
    assert [expected is Ask.BOTH, 4] == [bool(again.rounds), len(again.forced)]


def test_what_is_saved_is_told_and_how_to_ask_for_both():
    choice = RecallCalibration(ask=Ask.FORCED, matched=0.3, written_s=60.0)

    assert "0.3 of 20 lines back" in ask_phrase(choice, 35)
    assert "about 1:00 a cell, 35:00 in all (--ask both" in ask_phrase(choice, 35)
    assert "" == ask_phrase(replace(choice, ask=Ask.BOTH), 35)


# Checked


def test_a_pair_that_was_read_is_checked_by_a_few_forced_functions(tmp_path):
    """Nothing is read again, and what all pairs were asked does not grow."""
    engine, first = led_by(tmp_path, wall_s=60.0)
    PROBE.measure(first)
    run, setup = first.run, first.run.setup
    cell = replace_context(first, Pair("q8_0", "q8_0"))
    record = replace(made_record("q8_0/q8_0", []), observation=PROBE.measure(cell))
    assert FURTHER.unchecked(record, setup)
    assert not lacks(PROBE, record, setup)

    read_before = len(engine.tool.tasks)
    again = replace_context(first, record.pair)
    again.previous_record, again.is_check = record, True
    checked = replace(record, observation=PROBE.measure(again))

    assert [4, 4] == [len(each) for each in both(recall_of(checked))]
    assert read_before == len(engine.tool.tasks)
    assert not FURTHER.unchecked(checked, setup)
    assert [] == list(FURTHER.checks(replace(run.setup, calibrated={})))


def test_runs_are_told_as_what_their_references_have_set():
    """So one that was read is compared with no other, and one as ever is."""
    stored = {"recall": {"ask": "automatic", "functions": 4, "by": "automatic"}}
    setup = replace(made_setup(), probes=stored)
    forced = RecallCalibration(by=By.WRITING, ask=Ask.FORCED)
    read = replace(forced, by=By.READING, functions=5)
    told = [
        PROBE.telling.settings(replace(setup, calibrated={"recall": as_json(each)}))
        for each in (forced, read)
    ]

    assert [{"ask": "forced", "functions": 4}, {"functions": 5, "by": "reading"}] == (
        told
    )
