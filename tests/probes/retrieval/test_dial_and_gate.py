"""The reference sets the dial; the gate leaves out what no pair could answer."""

import zlib
from dataclasses import replace

import pytest
from asked_retrieval import (
    OTHER,
    REFERENCE,
    failing_from,
    looked_up,
    measured,
    nine_in_ten,
)
from fake_engine import FakeEngine, reply_to
from made_retrieval import made_run

from codeneedle.errors import BadInput
from codeneedle.probes.retrieval import texts as texts_module
from codeneedle.probes.retrieval.dial import (
    DIAL_QUESTIONS,
    fitted_character_count,
    turn_dial,
)
from codeneedle.probes.retrieval.outcomes import outcomes
from codeneedle.probes.retrieval.probe import PROBE
from codeneedle.probes.retrieval.record import NAME, DialStep, calibration_of
from codeneedle.probes.retrieval.task_kinds import TASKS, make_texts
from codeneedle.records.record import AGAIN
from codeneedle.records.store import Store
from codeneedle.sweep.runner import Runner


def keys_in(question):
    """How many keys the text of a question has."""
    return question.prompt.count("The code of ") - 1


def right_below(keys):
    """Answers that are right in texts with fewer keys, wrong in others."""

    def reply(question):
        if keys_in(question) < keys:
            return looked_up(question)
        return reply_to(question, text="no idea\n")

    return reply


# The dial


def scores(*shares):
    """Tries that give these shares by level; levels beyond them do not fit."""

    def tried(level):
        if level >= len(shares):
            raise BadInput(source="text", reason="too short", hint="Longer.")
        return DialStep(level, shares[level], 10)

    return tried


@pytest.mark.parametrize(
    ("shares", "path", "level"),
    [
        ([0.7], [0], 0),
        ([1.0, 0.95, 0.8, 0.1], [0, 1, 2], 2),
        ([1.0, 0.95, 0.4, 0.1], [0, 1, 2], 1),
        ([1.0, 0.1], [0, 1], 0),
        ([1.0, 1.0, 1.0], [0, 1, 2], 0),
        ([0.3], [0], 0),
        ([0.1], [0], 0),
    ],
    ids=["at once", "up", "back", "cliff", "ceiling", "hard", "too hard"],
)
def test_the_dial_goes_up_until_the_reference_is_within_the_aim(shares, path, level):
    found = turn_dial("multikey", scores(*shares))

    assert path == [step.level for step in found.path]
    assert (level, False) == (found.level, found.is_fixed)


def test_the_dial_goes_down_from_a_setting_that_is_too_hard_or_does_not_fit(
    monkeypatch,
):
    monkeypatch.setitem(TASKS, "multikey", replace(TASKS["multikey"], start=3))

    down = turn_dial("multikey", scores(1.0, 0.8, 0.4, 0.1))
    shorter = turn_dial("multikey", scores(1.0, 0.8))

    assert [3, 2, 1] == [step.level for step in down.path]
    assert [1] == [step.level for step in shorter.path]
    assert 1 == down.level == shorter.level
    with pytest.raises(BadInput, match="too short"):
        turn_dial("multikey", scores())


@pytest.mark.parametrize(
    ("share", "path"),
    [(0.6, [1]), (0.9, [1]), (0.59, [1, 0]), (0.91, [1, 2])],
)
def test_the_dial_stops_at_the_ends_of_its_aim(monkeypatch, share, path):
    monkeypatch.setitem(TASKS, "multikey", replace(TASKS["multikey"], start=1))

    found = turn_dial("multikey", scores(0.7, share, 0.7))

    assert path == [step.level for step in found.path]


@pytest.mark.parametrize(
    ("easy", "hard", "level"),
    [
        (0.95, 0.5, 0),  # 0.05 above the aim, and 0.1 below it
        (0.95, 0.55, 0),  # both 0.05: the easier one
        (0.99, 0.55, 1),
        (1.0, 0.2, 1),  # at the ceiling a small loss may not show
        (1.0, 0.19, 0),  # nothing is left to lose
    ],
)
def test_of_two_levels_beside_the_aim_the_nearer_one_is_taken(easy, hard, level):
    assert level == turn_dial("multikey", scores(easy, hard)).level


# How long texts are


class Counting:
    """A tokenizer of so many characters to a token."""

    def __init__(self, characters):
        self.characters = characters

    def count_tokens(self, text):
        return int(len(text) / self.characters)


def made_texts_of(begin, *, tokenizer, length=1000):
    """Lengths of the texts that are made until one fits, and what is returned."""
    made = []

    def make(characters):
        made.append(characters)
        return "x" * characters

    found = fitted_character_count(
        make, length=length, tokenizer=tokenizer, begin=begin
    )
    return made, found


@pytest.mark.parametrize(
    ("begin", "fits"), [(969, False), (970, True), (1000, True), (1001, False)]
)
def test_a_text_is_at_most_three_in_a_hundred_shorter_than_its_length(begin, fits):
    made, found = made_texts_of(begin, tokenizer=Counting(1))

    assert fits == (begin == found)
    assert [begin] if fits else [begin, 990] == made
    assert 970 <= found <= 1000


def test_a_text_that_never_gets_its_length_is_the_last_of_six():
    """Such as one of a tokenizer that counts all texts alike."""
    tokenizer = Counting(1)
    tokenizer.count_tokens = lambda _text: 2000
    made, found = made_texts_of(64_000, tokenizer=tokenizer)

    assert 7 == len(made)
    assert 6 == len({*made[:-1]})
    assert made[-1] == found
    assert ([1] * 7, 1) == made_texts_of(1, tokenizer=tokenizer)


def test_without_a_tokenizer_a_text_is_made_once():
    assert ([4000], 4000) == made_texts_of(4000, tokenizer=None)


def test_the_reference_sets_the_dial_on_questions_of_their_own(tmp_path):
    engine = FakeEngine(reply=right_below(8))

    found = measured(tmp_path, engine, dial=(), lengths=(1500,))

    (dial,) = found.calibration.dials
    prompts = [question.prompt for question in engine.server.questions]
    scored = {each.name: each for text in found.texts for each in text.answers}
    assert [(0, 1.0), (1, 1.0), (2, 1.0), (3, 0.0)] == [
        (step.level, step.right) for step in dial.path
    ]
    assert str(REFERENCE) == found.calibration.reference
    assert len(prompts) == len(set(prompts)) + len(found.texts)
    assert 4 == len(scored)


def test_a_fixed_dial_is_tried_once_and_kept(tmp_path):
    engine = FakeEngine(reply=looked_up)

    found = measured(tmp_path, engine, dial=("multikey=1",))

    (dial,) = found.calibration.dials
    assert (1, True, ((1, 1.0, DIAL_QUESTIONS),)) == (
        dial.level,
        dial.is_fixed,
        tuple((step.level, step.right, step.questions) for step in dial.path),
    )


def test_further_pairs_are_asked_the_same_and_set_no_dial(tmp_path):
    first = FakeEngine(reply=nine_in_ten)
    theirs = measured(tmp_path, first, dial=())
    asked = [question.prompt for question in first.server.questions]

    again = FakeEngine(reply=looked_up)
    ours = measured(tmp_path, again, OTHER, theirs.calibration, dial=())

    scored = [question.prompt for question in again.server.questions]
    assert theirs.calibration == ours.calibration
    assert asked[-len(scored) :] == scored
    assert len(asked) >= len(scored) + DIAL_QUESTIONS


def test_a_sweep_that_stopped_behind_the_dial_goes_on_with_it(tmp_path):
    store = Store(tmp_path / "corpus" / "model")
    engines = FakeEngine(reply=nine_in_ten), FakeEngine(reply=looked_up)
    for engine, pairs in zip(engines, ([REFERENCE], [REFERENCE, OTHER]), strict=True):
        run = made_run(tmp_path, engine, dial=())
        setup = replace(run.setup, types_k=("f16", "q4_0"), types_v=("f16", "q4_0"))
        run = replace(run, setup=store.check_and_store_setup(setup))
        Runner(run=run, store=store).measure_pairs(PROBE, pairs)

    first, second = (
        store.read_record_if_there(pair, NAME) for pair in (REFERENCE, OTHER)
    )
    assert [[REFERENCE], [OTHER]] == [[c.pair for c in e.served] for e in engines]
    assert str(REFERENCE) == calibration_of(store.read_setup()).reference
    assert [e.question for e in outcomes(first)] == [
        e.question for e in outcomes(second)
    ]


def test_a_cell_that_failed_leaves_the_dial_to_the_next_one(tmp_path):
    found = measured(tmp_path, FakeEngine(reply=looked_up), OTHER)

    assert str(OTHER) == found.calibration.reference


def test_lengths_beyond_one_where_the_reference_fails_are_asked_of_no_pair(
    tmp_path, golden
):
    engine = FakeEngine(reply=failing_from(800))
    lengths = (500, 1000, 2000)

    found = measured(tmp_path, engine, lengths=lengths)
    other = measured(tmp_path, engine, OTHER, found.calibration, lengths=lengths)

    (left,) = found.calibration.left_out
    assert [500, 1000] == sorted({text.length for text in found.texts})
    assert [500, 1000] == sorted({text.length for text in other.texts})
    assert (("multikey", 2000), found.calibration) == (
        (left.task, left.length),
        other.calibration,
    )
    assert golden == left.reason


@pytest.mark.parametrize("gate", [True, False])
def test_a_pair_that_answers_nothing_is_not_asked_at_greater_lengths(
    tmp_path, gate, golden
):
    asked = {"lengths": (500, 1000, 2000), "gate": gate}
    reference = measured(tmp_path, FakeEngine(reply=looked_up), **asked)
    engine = FakeEngine(reply=failing_from(800))

    found = measured(tmp_path, engine, OTHER, reference.calibration, **asked)

    lengths = [500, 1000] if gate else [500, 1000, 2000]
    left_out = [("multikey", 2000)] if gate else []
    assert lengths == sorted({text.length for text in found.texts})
    assert left_out == [(each.task, each.length) for each in found.not_asked]
    assert golden == [each.reason for each in found.not_asked]
    assert () == found.calibration.left_out


def test_without_the_gate_all_lengths_are_asked(tmp_path):
    engine = FakeEngine(reply=failing_from(800))

    found = measured(tmp_path, engine, lengths=(500, 1000, 2000), gate=False)

    assert [500, 1000, 2000] == sorted({text.length for text in found.texts})
    assert () == found.calibration.left_out


def test_one_depth_that_works_keeps_the_gate_open(tmp_path):
    """That is structure by depth, which is what the map is for."""

    def reply(question):
        text, _, begin = question.prompt.rpartition("\n")
        is_early = text.index(begin) < len(text) / 2
        return looked_up(question) if is_early else reply_to(question, text="no\n")

    found = measured(tmp_path, FakeEngine(reply=reply), lengths=(500, 1000))

    assert () == found.calibration.left_out


def test_a_repetition_of_the_reference_sets_nothing(tmp_path):
    lengths = {"lengths": (500, 1000, 2000)}
    first = measured(tmp_path, FakeEngine(reply=looked_up), **lengths)
    failing = FakeEngine(reply=failing_from(800))

    again = measured(
        tmp_path, failing, REFERENCE, first.calibration, variant=AGAIN, **lengths
    )

    assert first.calibration == again.calibration
    assert [500, 1000, 2000] == sorted({text.length for text in again.texts})


def test_the_dial_stops_where_the_texts_of_the_run_do_not_fit_any_more(
    tmp_path, monkeypatch
):
    run = made_run(tmp_path, FakeEngine())
    own = zlib.crc32(f"{run.setup.seed}:1500:".encode())

    def make(task, *, dial, seed, **facts):
        if dial > 1 and seed == own:
            raise BadInput(source="text", reason="too short", hint="Longer.")
        return make_texts(task, dial=dial, seed=seed, **facts)

    monkeypatch.setattr(texts_module, "make_texts", make)
    engine = FakeEngine(reply=looked_up)

    found = measured(tmp_path, engine, dial=(), lengths=(1500,))

    (dial,) = found.calibration.dials
    assert [0, 1] == [step.level for step in dial.path]
    assert found.texts
