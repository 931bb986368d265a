"""The contract of evaluations: commands, variables and limits."""

import sys
from pathlib import Path

import pytest

from codeneedle.engines.engine import Address
from codeneedle.errors import BadInput, CellError
from codeneedle.probes.evaluation import contract
from codeneedle.probes.evaluation.contract import (
    OFFLINE,
    PLACEHOLDERS,
    EvaluationCommand,
    run_within_limits,
    split_and_check_command,
)
from codeneedle.system.files import make_or_empty_folder

pytestmark = pytest.mark.slow

ADDRESS = Address(url="http://127.0.0.1:8123/v1", model="m.f16-f16.1a", key="secret-1")


def checked(command, known=PLACEHOLDERS):
    """The words of *command*."""
    return split_and_check_command(command, option="--eval", known=known)


@pytest.fixture
def task(tmp_path):
    """Makes the task of a Python program."""

    def made(code, *words, **changes):
        out = make_or_empty_folder(tmp_path / "out")
        facts = {
            "words": (sys.executable, "-c", code, *words),
            "option": "--eval",
            "out": out,
            "log": tmp_path / "eval.log",
            "values": {"out": out, "seed": 42, "context": 4096, "model": "m"},
            "limit_s": 60.0,
            "address": ADDRESS,
        }
        return EvaluationCommand(**{**facts, **changes})

    return made


def done(task, *, is_served=True, told=None):
    """Run *task* to its end."""
    tell = (told if told is not None else []).append
    run_within_limits(task, tell=tell, is_served=lambda: is_served)


# Commands


def test_a_grader_has_no_server():
    with pytest.raises(BadInput, match="unknown placeholder"):
        checked("sh ${base_url}", OFFLINE)


def test_a_file_of_the_present_folder_is_named_by_its_place(
    tmp_path, monkeypatch, golden
):
    monkeypatch.chdir(tmp_path)
    Path("ask.py").touch()

    with pytest.raises(BadInput, match="runs in") as caught:
        checked("sh ask.py")

    assert golden == caught.value.hint
    assert checked("env -C ${here} sh ask.py")
    assert checked("sh ${here}/ask.py")


# Running


def test_the_key_and_the_address_are_variables_and_nothing_else_is(task, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf-1")
    monkeypatch.setenv("MINE", "mine")
    made = task("", "${model}", "${out}", "${seed}", passed_on=("MINE",))

    variables = made.environment()

    url = ADDRESS.url
    assert {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_BASE": url,
        "OPENAI_API_KEY": "secret-1",
        "CODENEEDLE_API_KEY": "secret-1",
        "CODENEEDLE_BASE_URL": url,
        "CODENEEDLE_MODEL": "m.f16-f16.1a",
        "CODENEEDLE_OUT": str(made.out),
        "CODENEEDLE_SEED": "42",
        "CODENEEDLE_CONTEXT": "4096",
        "MINE": "mine",
    }.items() <= variables.items()
    assert "HF_TOKEN" not in variables
    assert ["m", str(made.out), "42"] == made.argv()[-3:]
    assert not any("secret-1" in word for word in made.argv())


def test_a_grader_gets_neither_key_nor_address(task):
    variables = task("", address=None).environment()

    assert not {"OPENAI_API_KEY", "OPENAI_BASE_URL"} & variables.keys()
    assert "CODENEEDLE_OUT" in variables


def test_a_server_without_a_key_has_one_that_clients_accept(task):
    address = Address(url="http://host/v1", model="m")

    assert "none" == task("", address=address).environment()["OPENAI_API_KEY"]


def test_a_command_runs_in_its_folder_and_its_log_holds_no_key(task):
    made = task("import os; open('x', 'w'); print(os.environ['OPENAI_API_KEY'])")
    done(made)

    assert (made.out / "x").exists()
    assert f"{'*' * 8}\n" == made.log.read_text()


def test_a_secret_that_is_passed_on_is_not_in_its_log_either(task, monkeypatch):
    monkeypatch.setenv("HUB_TOKEN", "hub-1")
    monkeypatch.setenv("PLAIN", "plain")
    code = "import os; print(os.environ['HUB_TOKEN'], os.environ['PLAIN']); exit(1)"
    made = task(code, passed_on=("HUB_TOKEN", "PLAIN"))

    with pytest.raises(CellError, match=r"\*\*\* plain"):
        done(made)

    assert "***** plain\n" == made.log.read_text()


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(3)", "crashed"),
        ("print('why'); raise SystemExit(1)", "crashed"),
        ("import os; os.kill(os.getpid(), 9)", "crashed"),
        ("open('x', 'wb').truncate(2000)", "crashed"),
        ("print('x' * 2000)", "crashed"),
        ("import time; time.sleep(60)", "timed-out"),
    ],
    ids=["code", "code-and-output", "signal", "large-file", "large-log", "time"],
)
def test_a_command_that_fails_is_a_gap_with_its_reason(
    task, monkeypatch, code, status, golden
):
    monkeypatch.setattr(contract, "OUT_LIMIT_BYTES", 1000)
    monkeypatch.setattr(contract, "POLL_S", 0.05)
    limit_s = 0.4 if status == "timed-out" else 60.0

    with pytest.raises(CellError) as caught:
        done(task(code, limit_s=limit_s))

    assert status == caught.value.status
    assert golden == str(caught.value)


def test_the_end_of_the_log_stands_with_the_error_without_key_and_controls(task):
    code = "import os; print('a\\x1b[1m', os.environ['OPENAI_API_KEY']); exit(1)"

    with pytest.raises(CellError) as caught:
        done(task(code))

    assert (r"a\x1b[1m ********",) == caught.value.log_excerpt
    assert "secret-1" not in str(caught.value)


def test_a_command_that_has_lost_its_server_is_ended(task):
    with pytest.raises(CellError, match="lost its server"):
        done(task("import time; time.sleep(60)"), is_served=False)


def test_what_it_does_is_told(task):
    told = []

    done(task("import time; time.sleep(0.8)"), told=told)

    assert told[0].startswith("evaluating for ")
