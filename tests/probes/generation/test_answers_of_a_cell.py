"""The answers of a cell: compared with the reference's, whole or a gap."""

import json
from dataclasses import replace

import pytest
from fake_engine import FakeEngine, reply_to
from made_contexts import made_outlook, real_context, run_context, stored_by
from made_records import made_setup

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import Ability
from codeneedle.engines.messages import PromptCut
from codeneedle.errors import BadInput, CellError
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.generation.probe import PROBE, GenerationSettings
from codeneedle.probes.generation.record import (
    NAME,
    OWN,
    generation_layout,
    parse_written_answers,
    reference_answers,
)
from codeneedle.probes.observations import Observed
from codeneedle.records.comparability import OtherSetup
from codeneedle.records.record import Run, from_json

REFERENCE = Pair("f16", "f16")


def planned(run, **chosen):
    """*run* with the settings and the conditions of the probe."""
    run = replace(run, settings={NAME: GenerationSettings(**chosen)})
    return with_conditions(run)


def with_conditions(run):
    """*run* with the conditions that follow from its settings."""
    return replace(run, setup=replace(run.setup, probes={NAME: stored_by(PROBE, run)}))


def answers_of(observation):
    """What was written, by prompt."""
    return parse_written_answers(from_json(observation, Observed, file=NAME), file=NAME)


def test_the_reference_writes_what_others_are_compared_with(tmp_path):
    """On the real server: again, it writes the same to the last token."""
    run = planned(real_context(tmp_path, setup=made_setup()), tokens=24)
    kept = {}
    reference = ProbeContext(
        run=run, pair=REFERENCE, logs=tmp_path, calibrate=kept.update
    )

    stored = PROBE.measure(reference)

    setup = replace(run.setup, calibrated={NAME: kept})
    first = reference_answers(setup)
    again = ProbeContext(run=replace(run, setup=setup), pair=REFERENCE, logs=tmp_path)
    assert first is not None
    assert "f16/f16" == first.pair
    assert OWN == len(first.answers)
    assert all(24 >= len(each.lengths) > 0 for each in first.answers.values())
    assert answers_of(stored) == answers_of(PROBE.measure(again))


def test_a_server_that_ends_answers_by_its_own_limit_is_a_gap(tmp_path):
    def cut(question):
        return reply_to(question, finish="length", predicted_tokens=32)

    run = planned(run_context(tmp_path, FakeEngine(reply=cut)), tokens=512)

    with pytest.raises(CellError, match="after 32 of 512 tokens"):
        PROBE.measure(ProbeContext(run=run, pair=REFERENCE, logs=tmp_path))


def test_a_prompt_that_is_sent_twice_is_asked_once(tmp_path, golden):
    path = tmp_path / "asked.txt"
    path.write_text("why\nhow\nwhy\n why\n", encoding="utf-8")
    engine = FakeEngine(abilities=frozenset(Ability) - {Ability.CONVERSATIONS})

    run = planned(run_context(tmp_path, engine), file=path, tokens=64)

    layout = generation_layout(run.setup)
    assert (["1", "2"], 2) == ([each.name for each in layout.prompts], layout.copies)
    (said,) = PROBE.left_out_lines(Run(name="r", setup=run.setup, records=()))
    assert golden == said


@pytest.mark.parametrize("form", ["chat", "completion"])
def test_an_endpoint_that_cuts_a_prompt_of_unknown_length_is_a_gap(
    tmp_path, form, golden
):
    """Its answers were compared as if it had read all of it."""
    path = tmp_path / "asked.txt"
    path.write_text("why " * 400, encoding="utf-8")
    engine = FakeEngine(
        reply=lambda question: reply_to(question, prompt_tokens=1000),
        abilities=frozenset(Ability) - {Ability.CONVERSATIONS},
    )
    setup = replace(made_setup(), prompt_form=form)
    run = planned(run_context(tmp_path, engine, setup=setup), file=path, tokens=64)

    with pytest.raises(PromptCut) as caught:
        PROBE.measure(ProbeContext(run=run, pair=REFERENCE, logs=tmp_path))
    assert golden == str(caught.value)


@pytest.mark.parametrize("form", ["chat", "completion"])
def test_calls_of_tools_that_would_not_be_sent_are_refused(tmp_path, form, golden):
    call = {"id": "a", "type": "function", "function": {"name": "x", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Is it wet?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "dry"},
    ]
    path = tmp_path / "asked.json"
    path.write_text(json.dumps({"messages": messages}), encoding="utf-8")
    engine = FakeEngine(abilities=frozenset(Ability) - {Ability.CONVERSATIONS})
    run = run_context(tmp_path, engine, setup=replace(made_setup(), prompt_form=form))

    with pytest.raises(BadInput) as caught:
        planned(run, file=path, tokens=64)
    assert golden == str(caught.value)


def test_prompts_longer_than_the_context_are_refused_by_name(tmp_path):
    path = tmp_path / "asked.txt"
    path.write_text("short?\n" + "why " * 4000, encoding="utf-8")
    setup = replace(made_setup(), prompt_form="chat")

    with pytest.raises(BadInput, match="prompt 2") as refused:
        planned(real_context(tmp_path, setup=setup), file=path, tokens=64)

    assert "--context" in str(refused.value.hint)


def test_a_limit_beyond_the_context_is_refused_before_anything_starts():
    with pytest.raises(BadInput, match="--generation-tokens 4096"):
        PROBE.adapt(GenerationSettings(tokens=4096), made_outlook())

    PROBE.adapt(GenerationSettings(tokens=3584), made_outlook())


def test_a_folder_holds_the_answers_to_one_set_of_prompts(tmp_path):
    path = tmp_path / "asked.txt"
    path.write_text("why?\n", encoding="utf-8")
    run = planned(run_context(tmp_path), file=path, tokens=64)
    path.write_text("how?\n", encoding="utf-8")

    with pytest.raises(OtherSetup, match=NAME):
        with_conditions(run)


def test_no_prompt_of_the_user_is_stored(tmp_path):
    path = tmp_path / "asked.txt"
    path.write_text("what is the sesame password?\n", encoding="utf-8")
    run = planned(run_context(tmp_path), file=path, tokens=64)

    stored = PROBE.measure(ProbeContext(run=run, pair=REFERENCE, logs=tmp_path))

    assert 64 == generation_layout(run.setup).tokens
    assert "sesame" not in json.dumps([stored, run.setup.probes])


def test_each_prompt_begins_with_an_empty_cache(tmp_path):
    """Else an answer would depend on the prompts that its server was asked before."""
    asked = []

    def reply(question):
        asked.append(question.max_tokens)
        return reply_to(question, predicted_tokens=3)

    run = planned(run_context(tmp_path, FakeEngine(reply=reply)), tokens=64)
    PROBE.measure(ProbeContext(run=run, pair=REFERENCE, logs=tmp_path))

    assert [1, 64] * OWN == asked
