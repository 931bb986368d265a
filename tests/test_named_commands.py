"""Commands that documents and hints name are ones that the program takes."""

import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from calls import called
from made_records import made_run, made_setup
from named_commands import named, wrong_command

from codeneedle.corpora.registry import BUILT_IN
from codeneedle.report.captions import command_line, nothing_to_show_error

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "RESULTS.md", "CONTRIBUTING.md", "corpora/README.md")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_names_commands_that_are_taken(document):
    """Those of the pages: see `test_pages_build_without_warnings`."""
    text = (ROOT / document).read_text(encoding="utf-8")
    commands = [*named(text)]

    assert {} == {each: why for each in commands if (why := wrong_command(each))}


def test_a_command_that_is_not_taken_is_found():
    assert "" == wrong_command("codeneedle grid NAME --metric kld")
    assert "No such option" in wrong_command("codeneedle grid NAME --metrics kld")
    assert "is no command" in wrong_command("codeneedle gird")


def sections():
    """Each section of the results that shows numbers, by its heading."""
    text = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        if "\n| " in part or "```" in part:
            yield pytest.param(part, id=part.partition("\n")[0])


@pytest.mark.parametrize("section", list(sections()))
def test_results_say_how_to_measure_them_again(section):
    assert re.search(
        r"`(codeneedle sweep|make|python scripts/\w+\.py) ?[^`]*`", section
    )


def test_the_hint_of_missing_numbers_asks_for_their_probe():
    run = replace(made_run(setup=made_setup(needles=1)), records=(), sweep="seed = 1")

    hint = nothing_to_show_error(run, "tg", "throughput").hint

    _, command = hint.split("Measure them: codeneedle ")
    assert ["--probe", "throughput"] == shlex.split(command)[-2:]


def test_a_shell_reads_the_variables_of_a_command_as_the_program_got_them():
    value = "a b; $HOME 'c'"
    line = command_line(made_setup(), [f"ASKED={value}", "printenv", "ASKED"])

    assert f"{value}\n" == subprocess.check_output(["/bin/sh", "-c", line], text=True)


def test_a_grid_without_a_value_fails_and_names_a_metric_that_the_run_has(
    tmp_path, golden
):
    corpus = ROOT / "tests" / "golden" / "runs" / "recall" / "golden"
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "golden").symlink_to(corpus)
    shown = called(tmp_path, "grid", "--metric", "tg")

    assert 1 == shown.returncode
    assert golden == shown.stderr


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


def test_doctor_says_whose_figures_it_shows_without_a_model(tmp_path, golden):
    shown = called(tmp_path, "doctor").stdout

    assert golden == [line for line in shown.splitlines() if "not given" in line]


def test_the_page_of_corpora_names_all_that_come_with_the_program():
    text = (ROOT / "corpora" / "README.md").read_text(encoding="utf-8")
    sentence = re.search(r"built-in names are ([^;]+);", text)

    assert sentence
    assert [*BUILT_IN] == re.findall(r"`([^`]+)`", sentence[1])
