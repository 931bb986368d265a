"""Questions behind a text: how they are asked, what is stored, when it is enough."""

from dataclasses import replace

import pytest
from asked_retrieval import REFERENCE, looked_up, measured
from fake_engine import ByteTokenizer, FakeEngine
from made_contexts import real_context, stored_by
from made_records import made_setup
from made_retrieval import made_run

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import Ability
from codeneedle.engines.messages import Chat, PromptCut
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.prompts import PromptForm
from codeneedle.probes.retrieval.asker import PRIMING_TOKENS, enough_for_question
from codeneedle.probes.retrieval.dial import DIAL_QUESTIONS, fitted_character_count
from codeneedle.probes.retrieval.outcomes import outcomes
from codeneedle.probes.retrieval.probe import PROBE
from codeneedle.probes.retrieval.record import NAME
from codeneedle.probes.retrieval.settings import RetrievalSettings
from codeneedle.probes.retrieval.task_kinds import TASKS, make_texts
from codeneedle.records.record import CellRecord, Status
from codeneedle.records.store import find_stores_or_refuse

LAST = len(TASKS["multikey"].levels) - 1


def test_a_server_that_cuts_the_texts_of_tasks_is_a_gap(tmp_path):
    def cut(question):
        right = looked_up(question)
        return replace(right, prompt_tokens=len(question.prompt) * 4 // 5)

    with pytest.raises(PromptCut, match="cut the prompt"):
        measured(tmp_path, FakeEngine(reply=cut))


# What is asked and stored


def test_every_text_is_read_by_a_question_that_is_not_scored(tmp_path):
    engine = FakeEngine(reply=looked_up)

    found = measured(tmp_path, engine)

    asked = engine.server.questions[DIAL_QUESTIONS:]
    primings = [at for at, q in enumerate(asked) if q.max_tokens == PRIMING_TOKENS]
    assert len(found.texts) == len(primings) == 2
    for at, text in zip(primings, found.texts, strict=True):
        own = [each.prompt for each in asked[at : at + len(text.answers) + 1]]
        assert own[0] == own[-1]
        assert text.characters == len(own[0].rpartition("\n")[0])
    assert 1 == engine.server.settled


def test_answers_are_stored_as_they_come_and_judged_when_read(tmp_path):
    engine = FakeEngine(reply=looked_up)

    found = measured(tmp_path, engine)

    for text in found.texts:
        for each in text.answers:
            assert f" {each.payload}.\nmore\n" == each.answer.text
            assert len(each.payload) + 1 == len(each.answer.scores.logprobs)
    assert {1.0} == {each.score.share for each in outcomes(found.record)}
    assert engine.server.forced == [
        f" {each.payload}" for text in found.texts for each in text.answers
    ]


def test_an_indentation_before_an_answer_stays_in_the_prompt(tmp_path):
    """As in the text: a single blank is tokenized with what follows it."""
    engine = FakeEngine()

    found = measured(tmp_path, engine, tasks=("twins",), lengths=(1500,))

    last = found.texts[-1].answers[-1]
    assert last.begin.endswith("\n   ")
    assert engine.server.questions[-1].prompt.endswith(f"\n{last.begin}")
    assert last.payload == engine.server.forced[-1]


def test_a_chat_gets_the_question_behind_the_text(tmp_path):
    """Small models go on with the text otherwise."""
    engine = FakeEngine()

    found = measured(tmp_path, engine, form=PromptForm.CHAT)

    question = engine.server.questions[-1]
    assert isinstance(question, Chat)
    last = found.texts[-1].answers[-1]
    asked, begun = question.messages
    assert asked.content.endswith(f"---\n{last.prompt}")
    assert f"{begun.content} " == last.begin
    assert f" {last.payload}" == engine.server.forced[-1]


def test_an_engine_without_probabilities_leaves_the_graded_endpoint_out(
    tmp_path, golden
):
    engine = FakeEngine(reply=looked_up, abilities=frozenset({Ability.SPEED}))

    found = measured(tmp_path, engine)

    assert [] == engine.server.forced
    assert {None} == {
        each.answer.scores for text in found.texts for each in text.answers
    }
    assert golden == stored_by(PROBE, made_run(tmp_path, engine))["graded"]


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), None], ids=["counted", "not"])
def test_texts_get_as_long_as_asked_for(tokenizer):
    """In tokens where they can be counted, at most 3 % shorter; else in characters."""

    def make(characters):
        return "x" * characters

    found = fitted_character_count(make, length=1000, tokenizer=tokenizer, begin=4000)

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
    run = replace(run, setup=replace(setup, probes={NAME: stored_by(PROBE, run)}))
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
    scores = [each.scores for each in found]
    assert all(each.leading_first_choices == len(each.logprobs) > 30 for each in scores)
    assert all(each.asked.answer.cached_tokens > 1400 for each in found)


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
    (store,) = find_stores_or_refuse(tmp_path / "runs", "random-bodies")
    first, second = (
        store.read_record_if_there(Pair(k, "f16"), NAME) for k in ("f16", "q4_0")
    )
    pairs = list(zip(outcomes(first), outcomes(second), strict=True))
    assert 4 == len(pairs)
    for ours, theirs in pairs:
        assert ours.question == theirs.question
        assert (
            ours.scores.mean_logprob
            < 0
            > theirs.scores.mean_logprob
            != ours.scores.mean_logprob
        )
        assert ours.scores.cached_tokens > ours.scores.prompt_tokens - 20
