"""What ``codeneedle sweep --probe generation`` refuses, stores and shows."""

import hashlib
import json
import re
import shlex

import fake_openai
import pytest
from calls import called
from started_sweeps import going, until

from codeneedle.probes.generation.probe import PROBE
from codeneedle.probes.generation.prompts import make_built_in_prompts

pytestmark = pytest.mark.real

SWEEP = ("sweep", "--probe", "generation")
PAIRS = ("--pairs", "f16/f16,q4_0/q4_0")
RUN = "sweeps/asked/needle-nano"

FORBIDDING = """
{%- if enable_thinking and messages[0].content | length > 200 -%}
{{ raise_exception('no thinking') }}
{%- endif -%}
{%- if tools -%}{{ raise_exception('no tools') }}{%- endif -%}
{%- for m in messages -%}{{ '<' + m.role + '>' + m.content }}{%- endfor -%}
"""

OFFERING = """
{%- if tools -%}
{{ '<tools>' }}{%- for each in tools -%}{{ each.function.name + ';' }}{%- endfor -%}
{%- endif -%}
{%- for m in messages -%}{{ '<' + m.role + '>' + m.content }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<assistant>' }}
{{- '<think>' if enable_thinking else '<think></think>' }}
{%- endif -%}
"""

REFUSED = {
    "none.txt": None,
    "empty.txt": b"\n \n",
    "other.json": b'{"question": "Why?"}',
    "long.txt": b"Why?\n" + b"and why " * 900,
}
"""Files of prompts; None where there is no such file."""


@pytest.fixture(autouse=True)
def _needed(llama_server, nano):
    """The program and the weights are there."""


@pytest.mark.parametrize("name", REFUSED)
def test_prompts_that_cannot_be_asked_are_refused_before_a_server_starts(
    tmp_path, name, golden
):
    if REFUSED[name] is not None:
        (tmp_path / name).write_bytes(REFUSED[name])

    done = called(tmp_path, *SWEEP, *PAIRS, "--prompts", name, "--context", "4096")

    assert 2 == done.returncode, done.stderr
    assert golden == done.stderr.partition("error: ")[2]
    assert not (tmp_path / "sweeps").exists()


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("--generation-tokens 4096", id="too-large"),
        pytest.param("--generation-tokens 8", id="too-small"),
        pytest.param("--generation-tokens 16 --context 256", id="little-context"),
    ],
)
def test_a_limit_of_answers_beyond_the_context_is_refused_with_one_that_fits(
    tmp_path, words, golden
):
    sizes = ("--context", "4096", *shlex.split(words))

    done = called(tmp_path, *SWEEP, *PAIRS, *sizes)

    assert 2 == done.returncode, done.stderr
    assert golden == done.stderr.partition("error: ")[2]
    assert not (tmp_path / "sweeps").exists()


def test_a_template_without_thinking_and_tools_is_asked_without_and_that_is_said(
    tmp_path, nano, golden
):
    (tmp_path / "forbidding.jinja").write_text(FORBIDDING, encoding="utf-8")
    model = ("--model", nano, "--prompt-form", "chat", "--generation-tokens", "16")
    template = ("--", "--chat-template-file", "forbidding.jinja")

    done = called(tmp_path, *SWEEP, *PAIRS, *model, "--out", "runs", *template)
    told = called(tmp_path, "verdict", "--out", "runs", "--json")

    assert 0 == done.returncode, done.stderr
    assert golden == json.loads(told.stdout)["facts"]["generation"]


def test_a_template_with_tools_and_thinking_gets_both(tmp_path, nano):
    (tmp_path / "offering.jinja").write_text(OFFERING, encoding="utf-8")
    model = ("--model", nano, "--prompt-form", "chat", "--generation-tokens", "16")
    template = ("--", "--chat-template-file", "offering.jinja")

    done = called(tmp_path, *SWEEP, *PAIRS, *model, "--out", "runs", *template)
    (file,) = (tmp_path / "runs").glob("*/*/setup.json")
    asked = json.loads(file.read_bytes())["probes"]["generation"]

    assert 0 == done.returncode, done.stderr
    assert "allowed" == asked["thinking"]
    expected = {each.name: hashed(offered(each)) for each in make_built_in_prompts(42)}
    assert expected == {each["name"]: each["sha256"] for each in asked["prompts"]}


def offered(prompt):
    """What the template `OFFERING` makes of *prompt*, the thought begun."""
    names = "".join(f"{each['function']['name']};" for each in prompt.tools)
    tools = f"<tools>{names}" if names else ""
    return f"{tools}<user>{prompt.messages[0]['content']}<assistant><think>"


def hashed(text):
    """Its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_server_that_ends_answers_early_is_a_gap_and_no_loss(tmp_path, golden):
    chosen = {"f16": [], "q8_0": ["most=7"]}
    (tmp_path / "fakes.json").write_text(json.dumps(chosen), encoding="utf-8")
    (tmp_path / "asked.txt").write_text("one two three\n", encoding="utf-8")
    fakes = tmp_path / "fakes.json"
    words = f"{fake_openai.COMMAND} --port ${{port}} --k ${{k}} --fakes {fakes}"

    done = called(
        tmp_path,
        *(*SWEEP, "--engine", "command", "--command", words, "--health", "/health"),
        *("--served-name", fake_openai.MODEL, "--no-evidence-by-memory"),
        *("--context", "4096", "--prompt-form", "completion", "--generation-tokens"),
        *("64", "--prompts", "asked.txt", "--pairs", "f16/f16,q8_0/q8_0"),
    )
    verdict = called(tmp_path, "verdict")

    assert 1 == done.returncode, done.stderr
    (file,) = tmp_path.glob("sweeps/*/*/cells/q8_0-q8_0.generation.json")
    record = json.loads(file.read_bytes())
    assert "mismatched" == record["status"]
    assert golden == record["reason"]
    assert f"mismatched: {record['reason']}" in done.stderr
    assert "Not compared: q8_0/q8_0: mismatched" in verdict.stdout


def test_a_prompt_without_an_answer_is_out_and_one_that_a_pair_leaves_blank_is_lost(
    tmp_path, golden
):
    """The built-in model writes blanks to this one with q4_0, and a letter with f16."""
    asked = "What is the sesame password of the harbour?\n"
    (tmp_path / "asked.txt").write_text(asked, encoding="utf-8")
    words = (*SWEEP, "--prompts", "asked.txt", "--generation-tokens", "16")

    alone = called(tmp_path, *words, "--pairs", "q4_0/q4_0", "--out", "alone")
    beside = called(tmp_path, *words, *PAIRS)
    table = called(tmp_path, "table")

    assert (0, 0) == (alone.returncode, beside.returncode), beside.stderr
    (line,) = (each for each in alone.stderr.splitlines() if "left out" in each)
    assert golden == line
    assert "q4_0/q4_0 writes nothing: 1" in table.stdout


def answers(folder, pair):
    """What is stored of *pair*, by prompt; nothing before its first answer."""
    file = folder / RUN / "cells" / f"{pair}.generation.json"
    record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    stored = (record.get("observation") or {}).get("answers", {})
    told = ("text", "finish", "lengths", "gaps")
    return {
        name: {key: each["reply"][key] for key in told} for name, each in stored.items()
    }


def test_a_cell_killed_half_way_keeps_its_answers_and_goes_on(tmp_path):
    """In the end it has written what a cell that was never stopped writes."""
    lines = [f"{word} and {word} again:" for word in ("salt", "rope", "tar", "wool")]
    (tmp_path / "asked.txt").write_text("\n".join(lines), encoding="utf-8")
    words = (*SWEEP, "--prompts", "asked.txt", "--generation-tokens", "512")
    once = ("--pairs", "f16/f16")
    with going(tmp_path, *words, *once) as sweep:
        until(lambda: answers(tmp_path, "f16-f16"), unless=sweep.poll)
        sweep.kill()
        sweep.communicate()
    kept = answers(tmp_path, "f16-f16")

    resumed = called(tmp_path, *words, *once)
    whole = answers(tmp_path, "f16-f16")
    anew = called(tmp_path, *words, *once, "--out", "anew")

    other = tmp_path / "anew" / "asked" / "needle-nano"
    assert (0, 0) == (resumed.returncode, anew.returncode), resumed.stderr
    assert 0 < len(kept) < len(lines)
    assert kept.items() <= whole.items()
    (tmp_path / "sweeps").rename(tmp_path / "former")
    (tmp_path / "anew").rename(tmp_path / "sweeps")
    assert whole == answers(tmp_path, "f16-f16"), other


SHOWN = (
    "grid",
    "grid --json",
    "grid --csv",
    "grid --markdown",
    "table",
    "table --json",
    "table --csv",
    "table --markdown",
    "verdict",
    "verdict --json",
    "verdict --markdown",
    "receipt",
    "memory",
    "page",
    "heatmap",
    "compare asked/needle-nano asked/needle-nano",
    f"plan {RUN}",
    "show asked/needle-nano q4_0/q4_0",
)
"""Commands that show no answer; the last one names loops."""

ASKED = (
    "You have three tools: find_sesame(city, guests, day), weather(city, day) and "
    "book(room, day, name). First make a plan: which tool with which arguments."
)
"""The built-in model goes on with more than blanks."""

QUOTED = 12
"""So many characters of an answer, one after the other, are a part of it."""


def test_answers_are_stored_in_the_run_folder_and_shown_by_show_alone(tmp_path):
    said = json.dumps({"messages": [{"role": "user", "content": "Whose parsnips?"}]})
    (tmp_path / "asked.txt").write_text(ASKED, encoding="utf-8")
    (tmp_path / "asked.jsonl").write_text(said, encoding="utf-8")
    sizes = (*PAIRS, "--generation-tokens", "48")
    swept = [
        called(tmp_path, *SWEEP, *sizes, "--prompts", "asked.txt"),
        called(tmp_path, *SWEEP, *sizes, "--prompts", "asked.jsonl", "--out", "json"),
    ]
    assert [0, 0] == [done.returncode for done in swept], swept[0].stderr
    written = [each["text"] for each in answers(tmp_path, "q4_0-q4_0").values()]
    shown = [called(tmp_path, *words.split()) for words in SHOWN]
    alone = called(tmp_path, "show", "asked/needle-nano", "q4_0/q4_0", "1")

    told = [done.stdout + done.stderr for done in (*swept, *shown)]
    stored = {
        file: file.read_text(encoding="utf-8", errors="replace")
        for file in tmp_path.rglob("*")
        if file.is_file() and file.parent != tmp_path
    }
    keeping = {"setup.json", "f16-f16.generation.json", "q4_0-q4_0.generation.json"}
    others = [text for file, text in stored.items() if file.name not in keeping]
    pieces = [
        text[at : at + QUOTED]
        for text in written
        for at in range(0, len(text) - QUOTED, QUOTED)
        if len({*text[at : at + QUOTED]}) > QUOTED // 2  # blanks are in any table
    ]
    assert pieces
    assert not [each for each in pieces if any(each in text for text in told + others)]
    for word in ("sesame", "parsnips"):
        assert not [text for text in (*told, *stored.values()) if word in text]
    assert "codeneedle show" in swept[0].stderr.partition("note: generation:")[2]
    assert re.sub(r"\s", "", written[0])[-QUOTED:] in re.sub(r"\s", "", alone.stdout)


def test_the_reference_again_is_the_floor(tmp_path, nano):
    (tmp_path / "asked.txt").write_text("one\n", encoding="utf-8")
    words = ("--model", nano, "--prompts", "asked.txt", "--generation-tokens", "16")

    done = called(tmp_path, *SWEEP, *PAIRS, *words)
    table = called(tmp_path, "table")

    assert 0 == done.returncode, done.stderr
    assert "floor: f16/f16 again" in table.stdout
    assert PROBE.repeats
