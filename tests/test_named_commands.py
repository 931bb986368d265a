"""Commands that documents and hints name are ones that the program takes."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from calls import called
from made_records import made_run, made_setup
from typer.main import get_command

from codeneedle.cli.app import app
from codeneedle.report.captions import nothing_to_show

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "RESULTS.md", "CONTRIBUTING.md", "corpora/README.md")
PLACES = {
    "sweeps/CORPUS/MODEL": "published",
    "SWEEP": "published",
    "FOLDER": "published",
    "NAME": "random-bodies",
    "FILE": "some.gguf",
    "K/V": "q8_0/q4_0",
    "PAIR": "q8_0/q4_0",
    "M": "some.gguf",
    "PATH": "some.gguf",
    "~/models/some.gguf": "some.gguf",
}
"""What stands in documents for something of the user's."""


def named():
    """Each command of a document: of code spans, and of lines of shell blocks."""
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        lines = [line for block in blocks for line in block.splitlines()]
        for words in (*lines, *re.findall(r"`([^`\n]+)`", text)):
            command = re.sub(r"^(\w+=\S+ )+", "", words)
            if command.startswith("codeneedle ") and "|" not in command:
                yield pytest.param(command, id=f"{document}: {command[:60]}")


def parsed(words):
    """The context of the command that *words* call, its arguments parsed."""
    command, context = get_command(app), None
    rest = list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        parent = context
        context = command.make_context(command.name, ["x"], parent=parent)
        command = command.commands[rest.pop(0)]
    return command.make_context(command.name, rest, parent=context)


@pytest.mark.parametrize("command", list(named()))
def test_a_command_of_a_document_is_parsed(tmp_path, monkeypatch, nano, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.gguf").symlink_to(nano)
    (tmp_path / "chat.jsonl").write_text("[]")
    words = [PLACES.get(word, word) for word in shlex.split(command, comments=True)]
    if command == "codeneedle sweep NAME":
        words[-1] = "published"
    if len(words) == 2 or "--install-completion" in words or "..." in words:
        (name, *_) = [*words[1:], ""]
        assert name in {*get_command(app).commands, "--install-completion"}
        return

    parsed(words[1:])


def test_the_hint_of_missing_numbers_asks_for_their_probe():
    run = replace(made_run(setup=made_setup(needles=1)), records=(), sweep="seed = 1")

    hint = nothing_to_show(run, "tg", "throughput").hint

    _, command = hint.split("Measure them: codeneedle ")
    assert ["--probe", "throughput"] == shlex.split(command)[-2:]


def test_a_grid_without_a_value_fails_and_names_a_metric_that_the_run_has(tmp_path):
    golden = ROOT / "tests" / "golden" / "runs" / "recall" / "golden"
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "golden").symlink_to(golden)
    shown = called(tmp_path, "grid", "--metric", "tg")

    assert 1 == shown.returncode
    assert "has no cell with tg" in shown.stderr


@pytest.mark.parametrize("command", ["plan", "corpus list"])
def test_json_is_for_programs(tmp_path, command):
    import json

    shown = called(tmp_path, *command.split(), "--json")

    assert 0 == shown.returncode, shown.stderr
    assert json.loads(shown.stdout)[0].keys() >= (
        {"order", "probes", "memory", "left_s"} if command == "plan" else {"name"}
    )


@pytest.mark.parametrize(
    ("command", "absent"),
    [("transcript", "--tasks"), ("submit slurm", "--questions")],
)
def test_help_lists_the_options_that_matter_there(tmp_path, command, absent):
    shown = called(tmp_path, *command.split(), "--help").stdout

    assert absent not in shown
    assert "--model" in shown
    assert "codeneedle sweep -h" in shown


def test_a_run_is_short_where_it_is_printed():
    import codeneedle

    run = codeneedle.load(ROOT / "tests/golden/runs/recall/golden/needle-nano")

    assert "golden/needle-nano" in repr(run)
    assert len(repr(run)) < 500
    assert {"load", "LoadedRun", "Pair"} <= {*dir(codeneedle)}


def test_doctor_says_whose_figures_it_shows_without_a_model(tmp_path):
    shown = called(tmp_path, "doctor").stdout

    assert "not given: what follows is of the built-in test fixture" in shown
