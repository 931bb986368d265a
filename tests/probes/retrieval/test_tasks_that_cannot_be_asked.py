"""What the retrieval probe asks: what is refused, and what a plan says."""

import math

import pytest
from fake_engine import ByteTokenizer, FakeEngine, made_weights
from made_contexts import made_outlook, stored_by
from made_retrieval import made_run

from codeneedle.corpora.fitting import TooLong, Untrained
from codeneedle.errors import BadInput, RequestError
from codeneedle.probes.prompts import PromptForm
from codeneedle.probes.retrieval.probe import PROBE
from codeneedle.probes.retrieval.record import NAME
from codeneedle.probes.retrieval.settings import (
    RetrievalSettings,
    layout_of,
    most_question_and_answer_tokens,
    sorted_distinct_lengths,
)
from codeneedle.probes.retrieval.task_kinds import TASKS, make_texts


def adapted(settings, context, **engine):
    """*settings* in a *context*, with weights trained for 8,192 tokens."""
    estimates = made_outlook(
        context=context,
        engine=FakeEngine(**engine),
        weights=made_weights(training_context=8192),
    )
    return PROBE.adapt(settings, estimates)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"tasks": ("multykey",)}, "multykey"),
        ({"depths": (1.5,)}, "--depths 1.5"),
        ({"depths": (-0.1,)}, "--depths -0.1"),
        ({"dial": (99,)}, "--dial 99"),
        ({"dial": ("multikey=x",)}, "--dial multikey=x"),
        ({"dial": ("single=0",), "tasks": ("multikey",)}, "single"),
    ],
)
def test_settings_that_cannot_be_are_refused(asked, words):
    with pytest.raises(RequestError, match=words) as caught:
        adapted(RetrievalSettings(**asked), 4096)

    assert caught.value.hint


def test_both_ends_of_a_text_are_depths():
    settings = adapted(RetrievalSettings(depths=(1.0, 0.0)), 8192)

    assert (0.0, 1.0) == layout_of(settings).depths


def test_the_last_level_of_a_dial_can_be_chosen_and_no_later_one():
    last = len(TASKS["multikey"].levels) - 1
    chosen, beyond = (
        RetrievalSettings(tasks=("multikey",), dial=(level,))
        for level in (last, last + 1)
    )

    assert {"multikey": last} == layout_of(adapted(chosen, 8192)).fixed_levels
    with pytest.raises(BadInput):
        adapted(beyond, 8192)


def test_an_answer_has_room_for_half_as_much_again_and_a_template():
    """Of two characters a token; 128 tokens of a template, and 48 to spare."""
    settings = RetrievalSettings(tasks=("single",), lengths=(1024,))
    ((question,),) = (
        text.questions
        for text in make_texts(
            "single", dial=0, characters=4096, depths=(0.5,), questions=1, seed=0
        )
    )
    written = len(question.prompt) + len(question.begin) + 1.5 * len(question.payload)

    assert math.ceil(written / 2) + 128 + 48 == most_question_and_answer_tokens(
        settings, 8192
    )


def test_lengths_are_distinct_and_sorted():
    settings = RetrievalSettings(lengths=(2048, 512, 1024, 1024))

    assert (512, 1024, 2048) == sorted_distinct_lengths(settings)


def test_a_length_beyond_the_context_is_refused_with_one_that_is_enough():
    settings = RetrievalSettings(lengths=(4096,))

    with pytest.raises(TooLong) as caught:
        adapted(settings, 4096)

    adapted(settings, caught.value.larger)
    adapted(settings, caught.value.needed)
    assert 4096 == caught.value.context
    assert 4096 + most_question_and_answer_tokens(settings, 4096) == caught.value.needed


def test_a_length_beyond_the_training_is_refused_unless_stretched():
    settings = RetrievalSettings(lengths=(16384,))

    with pytest.raises(Untrained) as untrained:
        adapted(settings, 8192)
    with pytest.raises(TooLong) as caught:
        adapted(RetrievalSettings(lengths=(8192,)), 8192)
    adapted(settings, 32768, stretches_context=True)
    assert 8192 == untrained.value.trained
    assert None is caught.value.larger
    assert (
        str(8192 - most_question_and_answer_tokens(settings, 8192))
        in caught.value.ways[0]
    )


def test_a_plan_prices_questions_and_reading(golden):
    """Two lengths, two depths, three questions; six cities share a text."""
    settings = RetrievalSettings(
        tasks=("multikey",), lengths=(512, 1024), depths=(0.1, 0.9), questions=3
    )
    fixed = RetrievalSettings(
        tasks=("multikey",),
        lengths=(512, 1024),
        depths=(0.1, 0.9),
        questions=3,
        dial=(2,),
    )

    found, set_before = (PROBE.bill(each, None) for each in (settings, fixed))

    assert (4608, 1536) == (found.price.read, set_before.price.read)
    assert golden == (found.phrase, set_before.phrase)


@pytest.mark.parametrize(
    ("template", "lost"),
    [
        (lambda said: "hi", "the text"),
        (lambda said: said.content[:99], "the text"),
        (lambda said: said.content.replace("\n", " "), "the text"),
        (lambda said: said.content.replace("What", "what"), "question"),
    ],
    ids=["dropped", "cut", "joined", "changed"],
)
def test_a_template_that_drops_the_text_is_refused_before_the_first_cell(
    tmp_path, template, lost
):
    engine = FakeEngine(tokenizer=ByteTokenizer(template))
    asked = {"tasks": ("twins",), "form": PromptForm.CHAT, "dial": ()}

    with pytest.raises(BadInput, match=f"lacks {lost} of the probe") as caught:
        made_run(tmp_path, engine, **asked)
    assert "--prompt-form completion" in caught.value.hint
    assert [] == engine.served
    made_run(tmp_path, FakeEngine(tokenizer=engine.tokenizer))


def test_a_template_that_keeps_the_text_is_looked_at_once(tmp_path):
    """A template that drops white space around messages keeps the text."""
    tokenizer = ByteTokenizer(lambda said: f"<{said.role}>{said.content.strip()}")
    engine = FakeEngine(tokenizer=tokenizer)

    run = made_run(tmp_path, engine, form=PromptForm.CHAT)
    assert run.setup.probes == {NAME: stored_by(PROBE, run)}

    assert 1 == engine.counted
