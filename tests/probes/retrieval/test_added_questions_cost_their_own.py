"""What is added costs its own texts alone."""

import pytest
from asked_retrieval import (
    OTHER,
    REFERENCE,
    failing_from,
    looked_up,
    measured,
    nine_in_ten,
)
from fake_engine import FakeEngine
from made_retrieval import made_run

from codeneedle.probes.retrieval.probe import GROWTH, PROBE
from codeneedle.probes.retrieval.record import NAME
from codeneedle.probes.retrieval.task_kinds import TASKS

LAST = len(TASKS["multikey"].levels) - 1


def test_an_added_length_costs_its_own_texts_alone(tmp_path):
    engine = FakeEngine(reply=nine_in_ten)
    first = measured(tmp_path, engine, dial=(), lengths=(1000,))
    other = measured(
        tmp_path, engine, OTHER, first.calibration, dial=(), lengths=(1000,)
    )
    every = measured(tmp_path, engine, dial=(), lengths=(1000, 2000))

    wider = {"dial": (), "lengths": (1000, 2000)}
    again = FakeEngine(reply=nine_in_ten)
    ours = measured(
        tmp_path,
        again,
        REFERENCE,
        first.calibration,
        previous_record=first.record,
        **wider,
    )
    asked = len(again.server.questions)
    theirs = measured(
        tmp_path, again, OTHER, ours.calibration, previous_record=other.record, **wider
    )

    new = ours.texts[len(first.texts) :]
    assert first.texts == ours.texts[: len(first.texts)]
    assert {2000} == {text.length for text in new}
    assert asked == sum(1 + len(text.answers) for text in new)
    assert every.calibration == ours.calibration == theirs.calibration
    assert [t.sha256 for t in every.texts] == [t.sha256 for t in theirs.texts]


def wider(folder, **asked):
    """Conditions of the usual questions, and of those with what is *asked* added."""
    usual = made_run(folder, FakeEngine()).setup.probes[NAME]
    more = made_run(folder, FakeEngine(), **asked).setup.probes[NAME]
    return GROWTH.joined(usual, more)


@pytest.mark.parametrize(
    ("asked", "added"),
    [
        ({"questions": 4}, [0.1, 0.9] * 2),
        ({"depths": (0.5,)}, [0.5] * 2),
        ({"depths": (0.1, 0.5), "questions": 3}, [0.1, 0.9, *[0.5] * 3]),
    ],
    ids=["questions", "depths", "both"],
)
def test_added_depths_and_questions_cost_their_texts_alone(tmp_path, asked, added):
    before = measured(tmp_path, FakeEngine(reply=looked_up))
    again, later = FakeEngine(reply=looked_up), FakeEngine(reply=looked_up)
    more = {"conditions": wider(tmp_path, **asked)}

    ours = measured(
        tmp_path,
        again,
        REFERENCE,
        before.calibration,
        previous_record=before.record,
        **more,
    )
    theirs = measured(tmp_path, later, OTHER, ours.calibration, **more)

    new = ours.texts[len(before.texts) :]
    names = [each.name for text in ours.texts for each in text.answers]
    assert before.texts == ours.texts[: len(before.texts)]
    assert before.calibration == ours.calibration == theirs.calibration
    assert sorted(added) == sorted(each.depth for text in new for each in text.answers)
    assert len(again.server.questions) == sum(1 + len(text.answers) for text in new)
    assert len(names) == len(set(names))
    assert [t.sha256 for t in ours.texts] == [t.sha256 for t in theirs.texts]
    assert len(ours.texts) == len({text.sha256 for text in ours.texts})


def test_a_run_grows_twice_and_takes_on_no_other_setting(tmp_path):
    usual = made_run(tmp_path, FakeEngine()).setup.probes[NAME]
    first = wider(tmp_path, questions=3)
    wanted = made_run(tmp_path, FakeEngine(), depths=(0.5,)).setup.probes[NAME]
    other = made_run(tmp_path, FakeEngine(), dial=(1,)).setup.probes[NAME]

    second = GROWTH.joined(first, wanted)

    assert [] == usual["blocks"]
    assert [([0.1, 0.9], 2), ([0.1, 0.9], 1), ([0.5], 3)] == [
        (each["depths"], each["questions"]) for each in second["blocks"]
    ]
    assert ([0.1, 0.5, 0.9], 3) == (second["depths"], second["questions"])
    assert {"lengths": (500,), "depths": (0.1, 0.5, 0.9), "questions": 3} == (
        GROWTH.choice(PROBE.settings, second)
    )
    assert second == GROWTH.joined(second, usual)
    assert other["dial"] == GROWTH.joined(first, other)["dial"]


def test_the_gate_is_asked_at_added_lengths_and_leaves_out_none_that_is_there(tmp_path):
    right, failing = FakeEngine(reply=looked_up), FakeEngine(reply=failing_from(800))
    first = measured(tmp_path, right, lengths=(500, 2000))
    wider = {"previous_record": first.record, "lengths": (500, 1000, 2000, 3000)}

    ours = measured(tmp_path, failing, REFERENCE, first.calibration, **wider)

    assert [500, 1000, 2000] == sorted({text.length for text in ours.texts})
    assert [3000] == [each.length for each in ours.calibration.left_out]


def test_an_added_length_that_is_too_short_for_the_dial_is_left_out(tmp_path):
    engine = FakeEngine(reply=looked_up)
    dial = (f"multikey={LAST}",)
    first = measured(tmp_path, engine, lengths=(4000,), dial=dial)
    wider = {"previous_record": first.record, "lengths": (40, 4000), "dial": dial}

    ours = measured(tmp_path, engine, REFERENCE, first.calibration, **wider)

    assert {4000} == {text.length for text in ours.texts}
    assert [40] == [each.length for each in ours.calibration.left_out]
