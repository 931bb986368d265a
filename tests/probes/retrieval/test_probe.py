"""The retrieval probe: dial and gate, what is asked and stored."""

import zlib
from dataclasses import dataclass, replace

import pytest
from fake_engine import ByteTokenizer, FakeEngine, FakeServer, reply_to
from made_contexts import real_context
from made_records import made_setup
from made_retrieval import made_run, with_calibration

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import Ability
from codeneedle.engines.messages import Chat, PromptCut, ServerGone
from codeneedle.errors import BadInput
from codeneedle.probes import probe as protocol
from codeneedle.probes.answers import Skipped
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.prompts import PromptForm
from codeneedle.probes.retrieval import probe as probe_module
from codeneedle.probes.retrieval.dial import DIAL_QUESTIONS, dialled, fitted_characters
from codeneedle.probes.retrieval.outcomes import outcomes
from codeneedle.probes.retrieval.probe import (
    GROWTH,
    PRIMING_TOKENS,
    PROBE,
    enough_for_question,
)
from codeneedle.probes.retrieval.record import (
    NAME,
    Calibration,
    DialStep,
    calibration_of,
    retrieval_of,
)
from codeneedle.probes.retrieval.settings import RetrievalSettings
from codeneedle.probes.retrieval.task_kinds import TASKS, make_texts
from codeneedle.records.record import AGAIN, CellRecord, Status, from_json
from codeneedle.records.store import Store, find_runs
from codeneedle.sweep.runner import Runner

REFERENCE, OTHER = Pair("f16", "f16"), Pair("q4_0", "q4_0")
LAST = len(TASKS["multikey"].settings) - 1


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Further attempts come soon."""
    monkeypatch.setattr(protocol, "BACK_OFF_S", (0.01, 0.02, 0.03))


def looked_up(question):
    """The right answer: what stands in the text behind the last line of the prompt."""
    text, _, begin = question.prompt.rpartition("\n")
    line = next(line for line in text.split("\n") if line.startswith(begin))
    return reply_to(question, text=f"{line.removeprefix(begin)}\nmore\n")


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


def nine_in_ten(question):
    """Answers of which few are wrong, and always the same ones: within the aim."""
    key = question.prompt.rpartition("\n")[2]
    wrong = sum(key.encode()) % 4 == 0
    return reply_to(question, text="no\n") if wrong else looked_up(question)


@dataclass
class Cell:
    """A record, and what the setup keeps of the reference behind this cell."""

    record: CellRecord
    calibration: Calibration

    @property
    def texts(self):
        return retrieval_of(self.record).texts

    @property
    def not_asked(self):
        return retrieval_of(self.record).not_asked


def measured(
    folder,
    engine,
    pair=REFERENCE,
    calibration=None,
    *,
    previous_record=None,
    probe=PROBE,
    conditions=None,
    **asked,
):
    """A cell of such a run, whose reference has set *calibration* before."""
    engine.server = FakeServer(engine)
    run = made_run(folder, engine, **asked)
    setup = with_calibration(run.setup, calibration) if calibration else run.setup
    if conditions:
        setup = replace(setup, probes={NAME: conditions})
    kept = [setup.calibrated.get(NAME)]
    context = ProbeContext(
        run=replace(run, setup=setup),
        pair=pair,
        logs=folder,
        previous_record=previous_record,
        calibrate=kept.append,
    )
    record = CellRecord(
        pair=pair,
        probe=NAME,
        status=Status.FINISHED,
        started="",
        observation=probe.measure(context),
    )
    return Cell(record, from_json(kept[-1], Calibration, file="x"))


def test_a_server_that_cuts_the_texts_of_tasks_is_a_gap(tmp_path):
    def cut(question):
        right = looked_up(question)
        return replace(right, prompt_tokens=len(question.prompt) * 4 // 5)

    with pytest.raises(PromptCut, match="cut the prompt"):
        measured(tmp_path, FakeEngine(reply=cut))


# The dial


def scores(*shares):
    """Tries that give these shares by setting; settings beyond them do not fit."""

    def tried(setting):
        if setting >= len(shares):
            raise BadInput(source="text", reason="too short", hint="Longer.")
        return DialStep(setting, shares[setting], 10)

    return tried


@pytest.mark.parametrize(
    ("shares", "path", "setting"),
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
def test_the_dial_goes_up_until_the_reference_is_within_the_aim(shares, path, setting):
    found = dialled("multikey", scores(*shares))

    assert path == [step.setting for step in found.path]
    assert setting == found.setting


def test_the_dial_goes_down_from_a_setting_that_is_too_hard_or_does_not_fit(
    monkeypatch,
):
    monkeypatch.setitem(TASKS, "multikey", replace(TASKS["multikey"], start=3))

    down = dialled("multikey", scores(1.0, 0.8, 0.4, 0.1))
    shorter = dialled("multikey", scores(1.0, 0.8))

    assert [3, 2, 1] == [step.setting for step in down.path]
    assert [1] == [step.setting for step in shorter.path]
    assert 1 == down.setting == shorter.setting
    with pytest.raises(BadInput, match="too short"):
        dialled("multikey", scores())


def test_the_reference_sets_the_dial_on_questions_of_their_own(tmp_path):
    engine = FakeEngine(reply=right_below(8))

    found = measured(tmp_path, engine, dial=(), lengths=(1500,))

    (dial,) = found.calibration.dials
    prompts = [question.prompt for question in engine.server.questions]
    scored = {each.name: each for text in found.texts for each in text.asked}
    assert [(0, 1.0), (1, 1.0), (2, 1.0), (3, 0.0)] == [
        (step.setting, step.right) for step in dial.path
    ]
    assert str(REFERENCE) == found.calibration.reference
    assert len(prompts) == len(set(prompts)) + len(found.texts)
    assert 4 == len(scored)


def test_a_fixed_dial_is_tried_once_and_kept(tmp_path):
    engine = FakeEngine(reply=looked_up)

    found = measured(tmp_path, engine, dial=("multikey=1",))

    (dial,) = found.calibration.dials
    assert (1, True, ((1, 1.0, DIAL_QUESTIONS),)) == (
        dial.setting,
        dial.is_fixed,
        tuple((step.setting, step.right, step.questions) for step in dial.path),
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
        run = replace(run, setup=store.adopt(setup))
        Runner(run=run, store=store).sweep(PROBE, pairs)

    first, second = (store.record(pair, NAME) for pair in (REFERENCE, OTHER))
    assert [[REFERENCE], [OTHER]] == [[c.pair for c in e.served] for e in engines]
    assert str(REFERENCE) == calibration_of(store.setup()).reference
    assert [e.question for e in outcomes(first)] == [
        e.question for e in outcomes(second)
    ]


def test_a_cell_that_failed_leaves_the_dial_to_the_next_one(tmp_path):
    found = measured(tmp_path, FakeEngine(reply=looked_up), OTHER)

    assert str(OTHER) == found.calibration.reference


# The gate


def failing_from(characters):
    """Answers that are wrong in texts of at least so many characters."""

    def reply(question):
        short = len(question.prompt) < characters
        return looked_up(question) if short else reply_to(question, text="no\n")

    return reply


def test_lengths_beyond_one_where_the_reference_fails_are_asked_of_no_pair(tmp_path):
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
    assert "f16/f16 has less than 20% right at 1,000 tokens" in left.reason


@pytest.mark.parametrize("gate", [True, False])
def test_a_pair_that_answers_nothing_is_not_asked_at_greater_lengths(tmp_path, gate):
    asked = {"lengths": (500, 1000, 2000), "gate": gate}
    reference = measured(tmp_path, FakeEngine(reply=looked_up), **asked)
    engine = FakeEngine(reply=failing_from(800))

    found = measured(tmp_path, engine, OTHER, reference.calibration, **asked)

    lengths = [500, 1000] if gate else [500, 1000, 2000]
    reason = "nothing is right at 1,000 tokens, of which f16/f16 has 100%"
    left_out = [Skipped("multikey", 2000, reason)] if gate else []
    assert lengths == sorted({text.length for text in found.texts})
    assert left_out == list(found.not_asked)
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


# Lengths that are added


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
    assert asked == sum(1 + len(text.asked) for text in new)
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
    names = [each.name for text in ours.texts for each in text.asked]
    assert before.texts == ours.texts[: len(before.texts)]
    assert before.calibration == ours.calibration == theirs.calibration
    assert sorted(added) == sorted(each.depth for text in new for each in text.asked)
    assert len(again.server.questions) == sum(1 + len(text.asked) for text in new)
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


def test_a_repetition_of_the_reference_sets_nothing(tmp_path):
    lengths = {"lengths": (500, 1000, 2000)}
    first = measured(tmp_path, FakeEngine(reply=looked_up), **lengths)
    failing = FakeEngine(reply=failing_from(800))
    probe = replace(PROBE, name=f"{NAME}{AGAIN}")

    again = measured(
        tmp_path, failing, REFERENCE, first.calibration, probe=probe, **lengths
    )

    assert first.calibration == again.calibration
    assert [500, 1000, 2000] == sorted({text.length for text in again.texts})


# What is asked and stored


def test_every_text_is_read_by_a_question_that_is_not_scored(tmp_path):
    engine = FakeEngine(reply=looked_up)

    found = measured(tmp_path, engine)

    asked = engine.server.questions[DIAL_QUESTIONS:]
    primings = [at for at, q in enumerate(asked) if q.max_tokens == PRIMING_TOKENS]
    assert len(found.texts) == len(primings) == 2
    for at, text in zip(primings, found.texts, strict=True):
        own = [each.prompt for each in asked[at : at + len(text.asked) + 1]]
        assert own[0] == own[-1]
        assert text.characters == len(own[0].rpartition("\n")[0])
    assert 1 == engine.server.settled


def test_answers_are_stored_as_they_come_and_judged_when_read(tmp_path):
    engine = FakeEngine(reply=looked_up)

    found = measured(tmp_path, engine)

    for text in found.texts:
        for each in text.asked:
            assert f" {each.payload}.\nmore\n" == each.reply
            assert len(each.payload) + 1 == len(each.scored.logprobs)
    assert {1.0} == {each.score.share for each in outcomes(found.record)}
    assert engine.server.forced == [
        f" {each.payload}" for text in found.texts for each in text.asked
    ]


def test_an_indentation_before_an_answer_stays_in_the_prompt(tmp_path):
    """As in the text: a single blank is tokenized with what follows it."""
    engine = FakeEngine()

    found = measured(tmp_path, engine, tasks=("twins",), lengths=(1500,))

    last = found.texts[-1].asked[-1]
    assert last.begin.endswith("\n   ")
    assert engine.server.questions[-1].prompt.endswith(f"\n{last.begin}")
    assert last.payload == engine.server.forced[-1]


def test_a_chat_gets_the_question_behind_the_text(tmp_path):
    """Small models go on with the text otherwise."""
    engine = FakeEngine()

    found = measured(tmp_path, engine, form=PromptForm.CHAT)

    question = engine.server.questions[-1]
    assert isinstance(question, Chat)
    last = found.texts[-1].asked[-1]
    asked, begun = question.messages
    assert asked.content.endswith(f"---\n{last.prompt}")
    assert f"{begun.content} " == last.begin
    assert f" {last.payload}" == engine.server.forced[-1]


def test_an_engine_without_probabilities_leaves_the_graded_endpoint_out(tmp_path):
    engine = FakeEngine(reply=looked_up, abilities=frozenset({Ability.SPEED}))

    found = measured(tmp_path, engine)

    assert [] == engine.server.forced
    assert {None} == {each.scored for text in found.texts for each in text.asked}
    assert (
        "fake tells no probabilities"
        == PROBE.as_stored(made_run(tmp_path, engine))["graded"]
    )


def test_a_broken_connection_is_tried_again_and_told(tmp_path):
    left = [ServerGone(reason="reset")]
    count = []

    def reply(question):
        count.append(question)
        # The first scored question: behind the dial's and the first priming.
        if len(count) == DIAL_QUESTIONS + 2:
            return left.pop()
        return looked_up(question)

    found = measured(tmp_path, FakeEngine(reply=reply))

    retries = [each.retries for text in found.texts for each in text.asked]
    assert 1 == len(retries[0])
    assert [()] * 3 == retries[1:]


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), None], ids=["counted", "not"])
def test_texts_get_as_long_as_asked_for(tokenizer):
    """In tokens where they can be counted, at most 3 % shorter; else in characters."""

    def make(characters):
        return "x" * characters

    found = fitted_characters(make, length=1000, tokenizer=tokenizer, begin=4000)

    assert (970 <= found <= 1000) if tokenizer else found == 4000


@pytest.mark.parametrize(
    ("so_far", "is_enough"),
    [("\n\n", False), (" 123", False), (" 123.\n", True), ("\n 123\n", True)],
)
def test_one_line_answers_a_question_of_one_line(so_far, is_enough):
    (text,) = make_texts(
        "single", dial=0, characters=500, depths=(0.5,), questions=1, seed=1
    )

    completion = enough_for_question(text.questions[0], PromptForm.COMPLETION)
    chat = enough_for_question(text.questions[0], PromptForm.CHAT)

    assert is_enough == completion(so_far)
    assert not chat(so_far)
    assert chat(f"Sure:\n{text.questions[0].payload}\n")


def test_an_answer_of_lines_is_read_a_little_beyond_its_last():
    (text,) = make_texts(
        "ledger", dial=1, characters=900, depths=(0.5,), questions=1, seed=1
    )
    enough = enough_for_question(text.questions[0], PromptForm.COMPLETION)

    assert [False, True] == [enough("1\n2\n\n3\n4\n"), enough("1\n" * 5)]


# The real thing


@pytest.mark.real
def test_the_built_in_model_finds_what_its_window_tells_apart(tmp_path):
    settings = RetrievalSettings(
        tasks=("multikey",),
        lengths=(1500,),
        depths=(0.2, 0.8),
        questions=2,
        dial=(LAST,),
    )
    setup = replace(made_setup(), context=4096)
    run = real_context(tmp_path, setup=setup, settings={NAME: settings})
    run = replace(run, setup=replace(setup, probes={NAME: PROBE.as_stored(run)}))
    context = ProbeContext(run=run, pair=REFERENCE, logs=tmp_path)

    stored = PROBE.measure(context)

    record = CellRecord(
        pair=REFERENCE,
        probe=NAME,
        status=Status.FINISHED,
        started="",
        observation=stored,
    )
    found = outcomes(record)
    assert [1.0] * 4 == [each.score.share for each in found]
    assert all(each.until == each.tokens > 30 for each in found)
    assert all(each.answer.cached_tokens > 1400 for each in found)


@pytest.mark.real
def test_a_language_model_is_graded_where_answers_are_all_alike(
    smollm2, codeneedle, tmp_path
):
    done = codeneedle(
        *("sweep", "--model", str(smollm2), "--context", "2048", "--out", "runs"),
        *("--k-types", "f16,q4_0", "--v-types", "f16", "--prompt-form", "completion"),
        *("--probe", "retrieval", "--tasks", "multikey", "--dial", "4"),
        *("--lengths", "250", "--depths", "0.5", "--questions", "4"),
        *("--", "-t", "1", "--poll", "0"),
    )

    assert 0 == done.returncode, done.stderr
    (store,) = find_runs(tmp_path / "runs", "random-bodies")
    first, second = (store.record(Pair(k, "f16"), NAME) for k in ("f16", "q4_0"))
    pairs = list(zip(outcomes(first), outcomes(second), strict=True))
    assert 4 == len(pairs)
    for ours, theirs in pairs:
        assert ours.question == theirs.question
        assert ours.logp < 0 > theirs.logp != ours.logp
        assert ours.answer.cached_tokens > ours.answer.prompt_tokens - 20


def test_the_dial_stops_where_the_texts_of_the_run_do_not_fit_any_more(
    tmp_path, monkeypatch
):
    run = made_run(tmp_path, FakeEngine())
    own = zlib.crc32(f"{run.setup.seed}:1500:".encode())

    def make(task, *, dial, seed, **facts):
        if dial > 1 and seed == own:
            raise BadInput(source="text", reason="too short", hint="Longer.")
        return make_texts(task, dial=dial, seed=seed, **facts)

    monkeypatch.setattr(probe_module, "make_texts", make)
    engine = FakeEngine(reply=looked_up)

    found = measured(tmp_path, engine, dial=(), lengths=(1500,))

    (dial,) = found.calibration.dials
    assert [0, 1] == [step.setting for step in dial.path]
    assert found.texts
