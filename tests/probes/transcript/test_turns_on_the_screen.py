"""Turns on the screen: what would be forced, and what each token lost."""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from made_conversations import FakeTemplate, made_conversation
from made_transcripts import (
    made_conditions,
    transcript_record,
    transcript_run,
)
from msgspec import structs
from printing import printed

from codeneedle.cache_types import Pair
from codeneedle.errors import BadInput
from codeneedle.probes.answers import View
from codeneedle.probes.observations import Answer
from codeneedle.probes.transcript.answers import turn_choice_document
from codeneedle.probes.transcript.choice import render_and_count_turns
from codeneedle.probes.transcript.conversations import parse_and_check_conversations
from codeneedle.probes.transcript.record import NAME
from codeneedle.records.record import as_json
from codeneedle.report.answers import answers_document

SAID = {
    "messages": [
        {"role": "user", "content": "Call f."},
        {
            "role": "assistant",
            "content": "say ",
            "tool_calls": [{"function": {"name": "f", "arguments": "1234"}}],
        },
    ]
}
"""Its turn has the text ``say `` and the arguments ``1234``, a token a character."""


@pytest.fixture
def file(tmp_path):
    """The transcript that `run` was measured on."""
    path = tmp_path / "said.json"
    path.write_text(json.dumps(SAID))
    return path


@pytest.fixture
def run(file):
    """A run of one turn in which a pair loses a half on the last token of text."""
    conditions = structs.replace(
        made_conditions(1), sha256=hashlib.sha256(file.read_bytes()).hexdigest()
    )

    def losing(_turn, at):
        return 0.3 if at == 2 else 0.8

    return transcript_run(
        {"bf16/bf16": lambda _turn, _at: 0.8, "q8_0/q8_0": losing}, conditions
    )


def shown(run, name=None, *, pair="q8_0/q8_0", colour=False, transcript=None):
    """What `answers` shows, as text."""
    view = View(transcript=transcript)
    return printed(answers_document([run], Pair.parse(pair), name, view), colour=colour)


def test_a_turn_lists_what_its_tokens_lost_against_the_reference(run, golden):
    found = shown(run, "1.1")

    assert golden == found
    (row,) = (line for line in found.split("\n") if "50.0" in line)
    assert ["3", "'·'", "text", "30.0%", "80.0%", "50.0", "yes"] == row.split()


def test_the_text_of_a_turn_is_read_from_its_file(run, file):
    found = shown(run, "1.1", transcript=file)

    assert "say 1234" in found
    (row,) = (line for line in found.split("\n") if "50.0" in line)
    assert "'y'" in row.split()


def test_another_file_is_refused(run, file, golden):
    file.write_text(json.dumps(SAID, indent=1))

    with pytest.raises(BadInput) as refused:
        shown(run, "1.1", transcript=file)

    assert golden == str(refused.value)


def test_the_reference_lost_nothing(run, golden):
    lines = shown(run, "1.1", pair="bf16/bf16").split("\n")

    assert golden == [line for line in lines if " lost " in line]


def test_all_turns_are_listed_with_their_depth(run):
    found = shown(run)

    (row,) = (line for line in found.split("\n") if line.startswith("1.1"))
    logp = (7 * math.log(0.8) + math.log(0.3)) / 8
    expected = ["1.1", "100", "8", "8", f"{logp:.3f}", "100.0", "tool,", "text"]
    assert expected == row.split()


def test_a_turn_without_scores_says_why(run):
    pair, conditions = run.records[1].pair, made_conditions(1)
    silent = Answer(name="1.1", error="told nothing")
    record = transcript_record(str(pair), [silent])
    setup = replace(run.setup, probes={NAME: as_json(conditions)})

    found = shown(replace(run, setup=setup, records=(record,)))

    assert "told nothing" in found
    with pytest.raises(BadInput, match="has no answers"):
        shown(replace(run, setup=setup, records=(record,)), "1.1")


def test_text_that_moves_a_cursor_is_shown_as_escapes(run, file):
    said = [*SAID["messages"][:1], {**SAID["messages"][1], "content": "\x1b[2J"}]
    file.write_text(json.dumps({"messages": said}))
    conditions = structs.replace(
        made_conditions(1), sha256=hashlib.sha256(file.read_bytes()).hexdigest()
    )
    setup = replace(run.setup, probes={NAME: as_json(conditions)})

    found = shown(replace(run, setup=setup), "1.1", transcript=file)

    assert r"\x1b[2J1234" in found
    assert "\x1b" not in found


def test_a_loss_is_coloured(run, file):
    assert "\x1b[1;31my" in shown(run, "1.1", transcript=file, colour=True)


def test_turns_that_would_be_forced_are_listed_with_what_is_dropped(golden):
    template = FakeTemplate(drops=("reasoning_content",))
    found = parse_and_check_conversations(
        json.dumps(made_conversation(1)).encode(), Path("x")
    )
    counted = render_and_count_turns(found, template, context=260, limit=None)

    sweep = "codeneedle sweep --transcript said.json"
    view = printed(
        turn_choice_document("said.json", counted, context=260, command=sweep)
    )

    assert golden == view
    assert view.endswith(f"  {sweep}\n")


@pytest.mark.parametrize("drops", ["tools", "tool_calls"])
def test_a_template_without_tools_is_said_to_leave_their_calls_unmeasured(
    drops, golden
):
    """It once named what is dropped, and no consequence."""
    found = parse_and_check_conversations(
        json.dumps(made_conversation(1)).encode(), Path("x")
    )
    template = FakeTemplate(drops=(drops,))
    counted = render_and_count_turns(found, template, context=100_000, limit=None)

    view = printed(
        turn_choice_document("said.json", counted, context=1, command="x"), width=200
    )

    assert golden == [line for line in view.split("\n") if "template" in line]
