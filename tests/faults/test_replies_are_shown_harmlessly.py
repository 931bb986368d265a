"""
Whatever a model says is stored whole, and escaped on a terminal and in exports.

Exports are CSV, JSON, Markdown, PNG and SVG; there is no HTML.
"""

import csv
import io
import itertools
import json
import time

import pytest
from answers import written
from calls import called
from injections import error_line, put_corpus, statuses
from made_records import made_needle, made_round
from programs import misbehave, server
from started_sweeps import controls, impatient, on_terminal, problem, record, run

from codeneedle.probes.recall.alignment import align_reply, answer_end_offset
from codeneedle.probes.recall.answers import side_by_side_document
from codeneedle.probes.recall.rounds import ScoredRound

EVIL = "\x1b]0;OWNED\x07\x1b[2J\x1b[31mRED\x9b31m\x1bP1;2q\x1b\\\x08\x0b\x0c\x00"
LINE = "    value = 'x'  # {}\n"


def said(text, *, times=1):
    """*text* as an event of a reply, JSON in ASCII."""
    return [json.dumps(text * times).encode()]


REPLIES = {
    "fences without end": said("```python\n" * 30),
    "a fence that never closes": said("```python\n" + LINE.format(1) * 22),
    "NUL and control bytes": said("".join(map(chr, range(32))), times=30),
    "terminal escapes": said(f"    {EVIL}\n", times=24),
    "HTML and script": said("<script>alert(1)</script><img src=x>\n", times=24),
    "right-to-left marks": said("    \u202edrow\u2066 = \u200f1\u2069\n", times=24),
    "lone surrogates": [rb'"\ud800 = 1\n\udfff = 2\n"'] * 15,
    "invalid UTF-8": [b'"\xff\xfe\xc0\xaf = 1\\n"'] * 24,
    "line separators": said("a = 1\u2028b = 2\u2029c = 3\x85d = 4\n", times=24),
    "thousands of combining marks": said("e" + "\u0301" * 5000 + "\n", times=4),
    "one token for ever": said(" the", times=9000),
    "spreadsheet formulas": said("=HYPERLINK(1)\n@SUM(1)\n", times=12),
    "rich markup": said("[bold red]x[/] [link=http://x]y[/link] [/]\n", times=24),
    "a thought without end": said("<think>\nwell\n", times=400),
}
"""Replies that cost nothing, as the events of a server, JSON texts."""

EVIL_ONES = ("terminal escapes", "right-to-left marks")

LONG = {
    "10 MB on one line": said("x", times=5 << 20) * 2,
    "10 MB of line ends": said("\n", times=1 << 20) * 10,
    "10 MB of short lines": said("x\n", times=1 << 19) * 10,
    "10 MB a line break at a time": said("\n", times=1000) * 10_000,
}
"""Longer than any number of tokens that was allowed."""

SWEEP = ("sweep", "--corpus", "tiny", "--context", "18432", "--types")
REPORTS = {
    "grid": ("grid", "tiny"),
    "CSV": ("grid", "tiny", "--csv"),
    "JSON": ("grid", "tiny", "--json"),
    "Markdown": ("grid", "tiny", "--markdown"),
    "table": ("table", "tiny"),
    "table as CSV": ("table", "tiny", "--csv"),
    "table as JSON": ("table", "tiny", "--json"),
    "show": ("show", "tiny", "q8_0/q8_0"),
    "heatmap": ("heatmap", "tiny"),
}


@pytest.fixture(autouse=True)
def _needed(nano):
    """The weights are there."""


def replying(folder, replies, *faults):
    """A server whose nth reply is the nth of *replies*, after the priming round."""
    said_in = folder.path / "replies"
    said_in.mkdir(exist_ok=True)
    for at, events in enumerate([said("a\n"), *replies]):
        (said_in / f"{at:03}").write_bytes(b"\n".join(events))
    put_corpus(folder.path, functions=max(3, len(replies)))
    return server(folder.path, {"q8_0-q8_0": [f"replies={said_in}", *faults]})


def shown(folder, *arguments):
    """The raw bytes that the command sends to a terminal."""
    code, raw = on_terminal(folder, *arguments)
    assert code in {0, 1}, raw.decode(errors="replace")
    return raw


def test_whatever_a_model_says_is_kept_scored_and_shown_harmlessly(
    folder, ledger, times
):
    path = folder.path
    binary = replying(folder, [*REPLIES.values()])
    sweep = (*SWEEP, "q8_0", "--llama-server", binary)
    raw = shown(path, *sweep)
    stored = record(path, "q8_0-q8_0")

    assert "finished" == stored["status"], problem(stored)
    assert len(REPLIES) == len(written(stored["observation"]))
    assert [] == controls(raw)
    often = times(len(REPLIES), quick=3)
    for name, arguments in [*REPORTS.items()][:often]:
        assert [] == controls(shown(path, *arguments)), name
    for at, name in enumerate(REPLIES):
        asked = written(stored["observation"])[at]
        needle = asked["name"].rpartition(".")[2]
        if name in EVIL_ONES or often == len(REPLIES):
            raw = shown(path, "show", "tiny", "q8_0/q8_0", needle)
            assert [] == controls(raw), name
        ledger.note(f"a model says {name}", asked["error"], of=folder)
    _assert_exports_are_read(path)


def _assert_exports_are_read(path):
    def told(*arguments):
        done = called(path, *arguments)
        assert 0 == done.returncode, done.stderr
        return done.stdout

    rows = [*csv.DictReader(io.StringIO(told(*REPORTS["CSV"])))]
    (run,) = json.loads(told(*REPORTS["JSON"]))
    markdown = told(*REPORTS["Markdown"])
    told("heatmap", "tiny")
    svg = next(path.rglob("*.svg")).read_text(encoding="utf-8")

    assert {"finished"} == {row["status"] for row in rows}
    assert len(rows) == len(run["rows"])
    assert {"finished"} == {row["status"] for row in run["rows"]}
    assert all(
        word not in text for text in (markdown, svg) for word in ("<script", EVIL)
    )


def test_a_reply_longer_than_its_tokens_is_an_error_of_the_cell(folder, ledger, times):
    chosen = dict([*LONG.items()][: times(len(LONG), quick=2)])
    for name, events in chosen.items():
        sweep = (*SWEEP, "q8_0", "--llama-server", replying(folder, [events]))
        told = impatient(folder.path, *sweep, "--retry-failed", silence_s=600)
        stored = record(folder.path, "q8_0-q8_0")

        assert 1 == told.returncode, told.stderr
        assert "crashed" == stored["status"]
        assert "longer than" in stored["reason"]
        ledger.note(f"a model says {name}", problem(stored), of=folder)
    misbehave(folder.path, {})
    assert 0 == impatient(folder.path, *sweep, "--retry-failed").returncode


LINES = {
    "bytes that are no text": [b'"\xff\xfe\xc0"', b'" = 1\\n"'] * 24,
    "half a character": [b'"\xf0\x9f"', b'"\x98\x80 = 1\\n"'] * 24,
    "half a surrogate": [rb'"\ud83d"', b'" = 1\\n"'] * 24,
    "a token without text": [b'""', b'"x = 1\\n"'] * 24,
}
"""Replies by what their lines begin with, an event for each token."""


def test_no_margin_is_invented_where_a_token_is_no_text(folder, ledger):
    path = folder.path
    binary = replying(folder, [*LINES.values()], "probable")
    swept = impatient(path, *SWEEP, "q8_0", "--llama-server", binary)
    rounds = written(record(path, "q8_0-q8_0")["observation"])
    table = io.StringIO(called(path, *REPORTS["table as CSV"]).stdout)
    (row,) = [each for each in csv.DictReader(table) if each["metric"] == "margin"]

    assert 0 == swept.returncode, swept.stderr
    assert 1.25 == float(row["value"])
    for name, asked in zip(LINES, rounds, strict=True):
        reply = asked["reply"]
        assert {1.25} == set(reply["gaps"]), name
        assert len(reply["gaps"]) == len(reply["lengths"]), name
        assert len(reply["text"]) == sum(reply["lengths"]), name
        ledger.note(f"a line of an answer begins with {name}", of=folder)


@pytest.mark.real
def test_no_margin_is_invented_for_characters_of_several_bytes(
    folder, ledger, llama_server
):
    """llama-server states no character of which it has half."""
    lines = (f"{chr(0x1F600 + at)}é日{at * 7919 % 9973:04}\n" for at in range(24))
    source = folder.path / "text.py"
    source.write_text(f'def first():\n    return """\n{"".join(lines)}"""\n')
    swept = called(folder.path, "sweep", "--corpus", "text.py", *SWEEP[-3:], "q8_0")
    (file,) = folder.path.rglob("cells/*.json")
    (asked,) = written(json.loads(file.read_bytes())["observation"])

    assert 0 == swept.returncode, swept.stderr
    assert asked["reply"]["text"].count("é日") > 10
    reply = asked["reply"]
    assert len(reply["gaps"]) == len(reply["lengths"]) < reply["predicted_tokens"]
    assert len(reply["text"]) == sum(reply["lengths"])
    assert min(reply["gaps"]) > 1
    ledger.note("a line of an answer begins with an emoji", of=folder)


@pytest.mark.parametrize("name", LONG)
def test_a_long_reply_that_is_stored_is_scored_in_the_time_it_takes_to_read(
    name, times
):
    reply = "".join(map(json.loads, LONG[name]))
    needle = made_needle()
    part = reply[: times(40, quick=1) << 18]
    asked = ScoredRound(needle, made_round(needle, reply=part))

    spent = time.process_time()
    scored = align_reply(needle, asked.round.text)
    assert 0 == scored.matched_line_count
    assert asked.error in {"", "empty answer"}
    assert answer_end_offset(needle, part[: 1 << 20]) >= 0
    short = align_reply(needle, part[: 1 << 15])
    assert side_by_side_document(needle, short, width=100)
    # Hours where a line is read once for each line; it is seconds.
    assert time.process_time() - spent < 120


def test_a_hostile_log_does_not_reach_the_terminal(folder, ledger, times):
    line = f"error loading model: {EVIL}\u202e[bold]x[/bold]<script>"
    binary = server(folder.path, {"q8_0-q8_0": [f"say={line}", "die=1"]})
    raw = shown(folder.path, *SWEEP, "q8_0", "--llama-server", binary)
    stored = record(folder.path, "q8_0-q8_0")

    assert [] == controls(raw)
    assert "crashed" == stored["status"]
    for name, arguments in [*REPORTS.items()][: times(len(REPORTS), quick=2)]:
        assert [] == controls(shown(folder.path, *arguments)), name
    ledger.note(
        "a model says terminal escapes by way of a log", problem(stored), of=folder
    )


ENDLESS = "{% for i in range(1000000000) %}NOTHING{% endfor %}"
TEMPLATES = {
    "drops the text": ("hi", "lacks the "),
    "fills the memory": (ENDLESS.replace("NOTHING", "x"), "of memory"),
    "joins lines": ("{{ messages[0].content | replace('\n', ' ') }}", "lacks the "),
    "cuts the text": ("{{ messages[0].content[:99] }}", "lacks the "),
    "never ends": (ENDLESS.replace("NOTHING", ""), "cannot count the corpus"),
    "is no template": ("{% for %}", ""),
    "is of 100 KB": ("{# " + "x" * 100_000 + " #}" + "hi", "lacks the "),
}
"""Chat templates, and words of the error that names them."""


@pytest.mark.real
def test_a_chat_template_that_hides_the_text_is_refused_before_the_first_cell(
    folder, ledger, times, llama_server
):
    """Recall would be 0.00 in every cell, as if the model had forgotten everything."""
    names = list(TEMPLATES)[: times(9, quick=1)]
    for name, probe in itertools.product(names, ("recall", "retrieval")):
        template, words = TEMPLATES[name]
        told = run(
            folder.path,
            *("sweep", "--corpus", "tiny", "--types", "q8_0", "--context", "4096"),
            *(("--lengths", "1K") if probe == "retrieval" else ()),
            *("--probe", probe, "--prompt-form", "chat"),
            *("--", "--chat-template", template),
            faults=[
                ("replaced", {"point": "memory of counting", "value": 256 << 20}),
                ("replaced", {"point": "timeout of counting", "value": 3.0}),
            ],
        )
        assert told.returncode in {2, 3}, (name, told.stderr)
        assert words in told.stderr, (name, told.stderr)
        assert "hint: " in told.stderr
        assert [] == statuses(folder.path)
        fault = f"a chat template {name}, {probe}"
        ledger.note(fault, error_line(told.stderr), of=folder)
