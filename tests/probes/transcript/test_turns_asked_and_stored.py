"""The transcript probe: what is asked, stored, continued and refused."""

import json
from dataclasses import replace

import pytest
from fake_engine import FakeEngine, FakeServer, forced_to
from made_contexts import made_outlook, real_context, run_context, stored_by
from made_conversations import TEMPLATE, FakeTemplate, made_conversation
from made_records import made_setup

from codeneedle.cache_types import Pair
from codeneedle.engines.messages import BadReply, Refused
from codeneedle.errors import BadInput, CellError
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.transcript import probe as module
from codeneedle.probes.transcript.probe import PROBE
from codeneedle.probes.transcript.record import (
    NAME,
    TranscriptSettings,
    transcript_layout,
    turn_answers,
)
from codeneedle.records.comparability import OtherSetup
from codeneedle.records.record import CellRecord, Run, Status


@pytest.fixture(autouse=True)
def anew():
    """What was rendered for another test is not known."""
    module._COUNTED.clear()


def written(folder, value):
    """A file with *value* as JSON."""
    file = folder / "said.json"
    file.write_text(json.dumps(value))
    return file


def made_run(folder, value=None, *, tokens=None, engine=None, **changes):
    """A run that forces *value*, with its conditions."""
    file = written(folder, value or made_conversation(2))
    settings = TranscriptSettings(file=file, tokens=tokens)
    setup = replace(made_setup(needles=0), context=changes.pop("context", 100_000))
    run = run_context(
        folder,
        engine or FakeEngine(template=FakeTemplate()),
        settings={NAME: settings},
        setup=setup,
        **changes,
    )
    return replace(run, setup=with_conditions(run))


def with_conditions(run):
    """The setup of *run* with what the probe stores in it."""
    return replace(run.setup, probes={NAME: stored_by(PROBE, run)})


def measured(run, **changes):
    """What the probe stores of a cell."""
    if isinstance(run.engine, FakeEngine):
        run.engine.server = run.engine.server or FakeServer(run.engine)
    context = ProbeContext(
        run=run, pair=Pair("q8_0", "q4_0"), logs=run.folder, **changes
    )
    return turn_answers(record_of(PROBE.measure(context)))


def record_of(found):
    """A record that was broken off with *found*."""
    return CellRecord(
        pair=Pair("q8_0", "q4_0"),
        probe=NAME,
        status=Status.INTERRUPTED,
        started="",
        observation=json.loads(json.dumps(found)),
    )


def test_each_turn_is_forced_behind_all_that_came_before_it(tmp_path):
    run = made_run(tmp_path)

    found = measured(run)

    turns = transcript_layout(run.setup).turns
    assert ["1.1", "1.2", "1.3", "1.4"] == [turn.name for turn in turns]
    assert [turn.name for turn in turns] == [turn.name for turn in found]
    assert [turn.tokens for turn in turns] == [len(t.scores.logprobs) for t in found]
    assert run.engine.server.forced[0].startswith("<think>The ")
    assert 1 == run.engine.counted


def test_turns_are_rendered_once_and_not_again_for_a_folder_that_knows_them(tmp_path):
    run = made_run(tmp_path)
    module._COUNTED.clear()

    assert run.setup.probes[NAME] == stored_by(PROBE, run)
    assert 1 == run.engine.counted


def test_a_folder_of_another_transcript_names_both_and_the_way_out(tmp_path):
    """It once told how what templates drop differs."""
    run = made_run(tmp_path)
    (tmp_path / "sweep.toml").write_text('[transcript]\nfile = "/a/first.json"\n')
    second = tmp_path / "second.json"
    second.write_text(json.dumps(made_conversation(3)))
    settings = {NAME: TranscriptSettings(file=second)}

    with pytest.raises(OtherSetup, match=r"\(transcript: /a/first") as caught:
        stored_by(PROBE, replace(run, settings=settings))

    assert str(caught.value).endswith(f"; now: {second})")
    assert "one transcript" in caught.value.hint


def test_a_conversation_that_was_broken_off_begins_anew(tmp_path):
    two = [made_conversation(1), made_conversation(1, seed=1)]
    run = made_run(tmp_path, two)
    whole = PROBE.measure(
        ProbeContext(run=run, pair=Pair("q8_0", "q4_0"), logs=tmp_path)
    )
    first = record_of({"answers": {"1": whole["answers"]["1"]}, "starts": 1})
    run.engine.server = FakeServer(run.engine)

    found = measured(run, previous_record=first)

    assert 2 == len(run.engine.server.forced)
    assert ["1.1", "1.2", "2.1", "2.2"] == [turn.name for turn in found]


def test_what_is_observed_is_kept_by_conversation(tmp_path):
    kept = []
    two = [made_conversation(1), made_conversation(1, seed=1)]

    measured(made_run(tmp_path, two), store_observation_so_far=kept.append)

    assert [["1"], ["1", "2"]] == [[*each["answers"]] for each in kept]


def test_no_error_that_is_stored_quotes_the_server(tmp_path, golden):
    """Which may say what was said in the conversation."""
    bad = BadReply(expected="tokens", answer="SECRET")
    refused = Refused(code=500, kind="server_error", message="SECRET")

    def forced_with(error, among):
        answers = iter(among)

        def force(question, right):
            return error if next(answers) else forced_to(question, right)

        return FakeEngine(template=FakeTemplate(), force=force)

    run = made_run(tmp_path, engine=forced_with(bad, [True, False, False, False]))
    found = measured(run)
    assert golden == found[0].error

    for error in (bad, refused):
        run = replace(run, engine=forced_with(error, [True] * 4))
        with pytest.raises(CellError) as failed:
            measured(run)
        assert "SECRET" not in f"{failed.value} {failed.value.hint}"


def test_a_file_that_has_changed_since_is_refused(tmp_path):
    run = made_run(tmp_path)
    written(tmp_path, made_conversation(2, seed=9))

    with pytest.raises(BadInput, match="has changed since"):
        measured(run)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"context": 100}, id="context"),
        pytest.param({"tokens": 1}, id="tokens"),
        pytest.param(
            {
                "engine": FakeEngine(
                    template=FakeTemplate(
                        drops=("content", "tool_calls", "reasoning_content")
                    )
                )
            },
            id="template",
        ),
    ],
)
def test_a_transcript_of_which_no_turn_is_left_is_refused(tmp_path, changes, golden):
    with pytest.raises(BadInput) as refused:
        made_run(tmp_path, made_conversation(1), **changes)

    assert golden == refused.value.hint


def test_without_a_file_the_option_is_named(golden):
    with pytest.raises(BadInput) as refused:
        PROBE.adapt(TranscriptSettings(), made_outlook())

    assert golden == refused.value.hint


def test_the_plan_counts_the_turns_as_the_sweep_will(tmp_path):
    run = made_run(tmp_path)
    settings = run.settings[NAME]
    outlook = made_outlook(context=10_000, engine=run.engine)

    planned = PROBE.bill(settings, outlook)
    counted = PROBE.bill(settings, replace(outlook, setup=run.setup))

    turns = transcript_layout(run.setup).turns
    forced = sum(turn.tokens for turn in turns)
    assert counted == planned
    assert turns[-1].prompt_tokens == counted.price.read
    assert forced == counted.price.written
    assert f"4 turns, {forced} tokens" == counted.phrase
    limited = TranscriptSettings(file=settings.file, tokens=forced - 1)
    assert 0 < PROBE.bill(limited, outlook).price.written < forced


def test_a_context_that_no_turn_reaches_is_said_to_be_untested(tmp_path, golden):
    run = made_run(tmp_path)
    turns = transcript_layout(run.setup).turns
    least, most = turns[0].prompt_tokens, turns[-1].prompt_tokens
    (line,) = PROBE.caveats(Run(name="x", setup=run.setup, records=()))

    assert f"turns stand after {least:,} to {most:,} tokens" in line
    assert golden == line
    reached = replace(run.setup, context=most + 200)
    assert () == PROBE.caveats(Run(name="x", setup=reached, records=()))


def test_what_is_dropped_is_a_note_a_footer_and_a_caveat_in_one_wording(
    tmp_path, golden
):
    template = FakeTemplate(drops=("tool_calls", "tools"))
    run = made_run(tmp_path, engine=FakeEngine(template=template))
    outlook = made_outlook(context=run.setup.context, engine=run.engine)
    whole = Run(name="x", setup=run.setup, records=())
    caveats = PROBE.caveats(whole)

    assert golden == caveats
    assert {*caveats} <= {*PROBE.remarks(whole)}
    for known in (None, run.setup):
        notes = PROBE.notes(run.settings[NAME], replace(outlook, setup=known))
        assert caveats == notes[1:]


def test_a_probe_that_was_not_asked_for_has_no_caveats():
    assert () == PROBE.caveats(Run(name="x", setup=made_setup(needles=0), records=()))


# The real llama-server


def test_the_real_server_renders_and_forces_a_conversation(tmp_path):
    template = tmp_path / "store.jinja"
    template.write_text(TEMPLATE)
    arguments = ("--jinja", "--chat-template-file", str(template))
    file = written(tmp_path, made_conversation(3))
    settings = TranscriptSettings(file=file)
    setup = replace(made_setup(needles=0), context=8192)
    run = real_context(
        tmp_path, arguments=arguments, settings={NAME: settings}, setup=setup
    )
    run = replace(run, setup=with_conditions(run))

    found = measured(run)

    chosen = transcript_layout(run.setup)
    assert ((), ()) == (chosen.left_out, chosen.dropped)
    assert 6 == len(found)
    kinds = {part.kind.value for turn in chosen.turns for part in turn.parts}
    assert {"tool", "reasoning", "code", "text"} == kinds
    for turn, forced in zip(chosen.turns, found, strict=True):
        assert not forced.error
        assert turn.tokens == len(forced.scores.logprobs) == forced.scores.ends[-1]
    # The answer goes on behind the reply of the tool, which is read.
    second = found[1]
    assert second.scores.cached_tokens >= chosen.turns[0].prompt_tokens
