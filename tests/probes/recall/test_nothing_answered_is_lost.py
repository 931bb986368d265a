"""Answers are kept at once and gone on behind; what failed is tried again, or told."""

from dataclasses import replace

import pytest
from asked_recall import made_context, measured, seen
from fake_engine import FakeEngine, FakeServer, forced_to, is_for, reply_to
from made_records import (
    asking_recall,
    forced_of,
    made_forced,
    made_needle,
    made_record,
    made_setup,
    written_of,
)

from codeneedle.engines.messages import BrokenOff, ServerGone
from codeneedle.errors import CellError
from codeneedle.probes.probe import Question
from codeneedle.probes.recall.asker import FunctionAsker
from codeneedle.probes.recall.further_functions import FURTHER
from codeneedle.probes.recall.probe import PROBE
from codeneedle.probes.recall.settings import Way
from codeneedle.records.record import CellRecord, Status

NEEDLE = made_needle()
GONE = ServerGone(reason="reset\nby peer")


def asker(folder, engine, **changes):
    """Asks a server of *engine*."""
    engine.server = FakeServer(engine)
    return FunctionAsker(engine.server, made_context(folder, engine, **changes))


def breaks(times):
    """Replies of which the first ones never come."""
    left = [GONE] * times
    return lambda question: left.pop() if left else reply_to(question)


def test_scoring_is_tried_again_where_the_connection_breaks(tmp_path):
    left = [GONE]
    engine = FakeEngine(force=lambda *a: left.pop() if left else forced_to(*a))

    asked = asker(tmp_path, engine).ask(Question("", body=(Way.FORCE, NEEDLE)))

    assert 1 == len(asked.retries)
    length, scores = len("\n".join(NEEDLE.lines)), asked.scores
    assert length == len(scores.logprobs) == scores.ends[-1]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"text": "", "finish": "stop"}, id="empty"),
        pytest.param({"text": " \n", "finish": "length"}, id="blank"),
        pytest.param(
            {"text": "", "reasoning": "hm", "finish": "length", "predicted_tokens": 50},
            id="thoughts",
        ),
    ],
)
def test_a_cell_without_any_answer_fails_and_says_why(changes, tmp_path, golden):
    engine = FakeEngine(reply=lambda asked: reply_to(asked, **changes))

    with pytest.raises(CellError) as caught:
        measured(tmp_path, engine, conditions={"way": ["write"]})
    assert golden == str(caught.value)
    assert "--prefill-no-think" in caught.value.hint


def test_one_round_without_an_answer_is_an_error_of_that_round(tmp_path, golden):
    first = written_of(made_setup(needles=3))[0]

    def reply(asked):
        return reply_to(asked, text="" if is_for(first, asked) else "an answer\n")

    found = measured(tmp_path, FakeEngine(reply=reply))

    error, *others = (asked.error for asked in found.rounds)
    assert golden == error
    assert ["", ""] == others


def test_a_reply_that_the_server_broke_off_is_an_error_of_that_round(tmp_path):
    first = written_of(made_setup(needles=3))[0]

    def reply(asked):
        is_first = is_for(first, asked)
        return BrokenOff("content_filter") if is_first else reply_to(asked)

    found = measured(tmp_path, FakeEngine(reply=reply))

    assert [True, False, False] == [bool(asked.error) for asked in found.rounds]
    assert "content_filter" in found.rounds[0].error


def test_a_connection_that_breaks_is_tried_again(tmp_path):
    ask = asker(tmp_path, FakeEngine(reply=breaks(2)))
    asked, after = (ask.ask_for_needle(NEEDLE, tokens=50) for _ in range(2))

    assert "an answer\n" == asked.text
    assert 2 == len(asked.retries)
    assert all("\n" not in reason for reason in asked.retries)
    assert () == after.retries


def test_a_completed_reply_is_never_asked_for_again(tmp_path):
    ask = asker(tmp_path, FakeEngine())
    asked = ask.ask_for_needle(NEEDLE, tokens=50)

    assert ((), "") == (asked.retries, asked.error)
    assert 1 == len(ask.served.questions)


def names_of(context):
    """Of the functions that any sweep asks, in asking order."""
    setup = context.run.setup
    return [each.name for each in (*written_of(setup), *forced_of(setup)[:4])]


def answers_of(observation):
    """Functions that have an answer, in order."""
    return [each.name for each in seen(observation).answers]


def record_of(context, observation, status=Status.INTERRUPTED):
    """The record of a cell that an earlier server has answered so far."""
    return CellRecord(
        pair=context.pair,
        probe="recall",
        status=status,
        started="",
        observation=observation,
    )


def test_each_answer_is_kept_at_once(tmp_path):
    engine, kept = FakeEngine(), []
    engine.server = FakeServer(engine)
    context = made_context(tmp_path, engine)
    context.store_observation_so_far = kept.append

    found = PROBE.measure(context)

    names = names_of(context)
    assert [names[: n + 1] for n in range(7)] == [answers_of(each) for each in kept]
    assert found == kept[-1]


def test_nothing_is_kept_until_there_is_an_answer(tmp_path):
    first = written_of(made_setup(needles=3))[0]
    engine, kept = FakeEngine(), []
    engine.reply = lambda asked: reply_to(
        asked, text="" if is_for(first, asked) else "an answer\n"
    )
    engine.server = FakeServer(engine)
    context = made_context(tmp_path, engine)
    context.store_observation_so_far = kept.append

    PROBE.measure(context)

    assert names_of(context)[:2] == answers_of(kept[0])


@pytest.mark.parametrize("after", range(1, 8))
def test_a_cell_goes_on_from_what_was_answered(after, tmp_path):
    engine, kept = FakeEngine(), []
    engine.server = FakeServer(engine)
    context = made_context(tmp_path, engine)
    context.store_observation_so_far = kept.append
    whole = seen(PROBE.measure(context))

    engine.server = FakeServer(engine)
    context.previous_record = record_of(context, kept[after - 1])
    found = seen(PROBE.measure(context))

    assert replace(whole, starts=2) == replace(found, forced=whole.forced)
    assert [r.name for r in whole.forced] == [r.name for r in found.forced]
    asked = len(engine.server.questions) - 1 + len(engine.server.forced)
    assert 7 - after == asked


def test_further_functions_are_forced_and_nothing_is_written_again(tmp_path):
    engine = FakeEngine()
    engine.server = FakeServer(engine)
    context = made_context(tmp_path, engine)
    first = PROBE.measure(context)

    engine.server = FakeServer(engine)
    context.previous_record, context.goal = (
        record_of(context, first, Status.FINISHED),
        5,
    )
    found = PROBE.measure(context)

    assert [*names_of(context), forced_of(context.run.setup)[4].name] == answers_of(
        found
    )
    assert (1, 1) == (len(engine.server.questions), len(engine.server.forced))


def test_a_pair_is_judged_after_each_block_of_forced_functions(tmp_path):
    setup = asking_recall(made_setup(needles=0, forced=40), {"functions": 16})
    written = made_setup(needles=3, forced=0)

    assert [16, 32, 40] == FURTHER.units_at_looks(setup)
    assert [] == FURTHER.units_at_looks(written)
    looks = {
        units: FURTHER.look_number(
            made_record(
                "q8_0/q8_0", [], forced=map(made_forced, forced_of(setup)[:units])
            ),
            setup,
        )
        for units in (16, 17, 32, 40)
    }
    assert {16: 0, 17: 1, 32: 1, 40: 2} == looks
