"""The command line, as far as it gets without a server."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import made_speeds
import pytest
from made_panels import RUN as TASKS_RUN
from made_panels import run_of
from made_records import made_record, made_round, made_run, stored_run, written_of
from programs import llama_like, script
from started_sweeps import controls, on_terminal

from codeneedle.cli.app import app
from codeneedle.cli.streams import BestEffort, tolerate_stderr_flush_stdout


@pytest.fixture
def swept(tmp_path):
    """A folder in which a sweep on made-up weights has finished."""
    return stored_run(tmp_path / "sweeps")


def test_help_names_every_command(codeneedle):
    shown = codeneedle("--help").stdout

    commands = [each.name or each.callback.__name__ for each in app.registered_commands]
    assert {"sweep", "plan", "grid", "show", "doctor", "llama"} <= set(commands)
    for name in [*commands, "corpus"]:
        assert re.search(rf"^  {name}  +[A-Z].*[^.]\.$", shown, re.MULTILINE), name


@pytest.mark.parametrize("command", ["verdict", "heatmap"])
def test_a_run_without_numbers_is_told_apart_by_the_exit_code(
    codeneedle, tmp_path, command
):
    stored_run(tmp_path / "sweeps", replace(made_run(), records=()))

    assert 1 == codeneedle(command, "random-bodies").returncode
    assert [] == [*tmp_path.rglob("*.png")]


def test_gen_corpus_tells_its_file_which_is_named_after_the_seed(codeneedle, tmp_path):
    first = codeneedle("gen-corpus", "--seed", "7")
    codeneedle("gen-corpus", "--seed", "7", "--out", "again.py")
    data = (tmp_path / "corpora" / "random-bodies-7.py").read_bytes()

    assert first.stdout.startswith("corpora/random-bodies-7.py: 200 functions, ")
    assert hashlib.sha256(data).hexdigest() in first.stdout
    assert data == (tmp_path / "again.py").read_bytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--functions 0", "hint:"),
        ("--seed 7 --out corpora/random-bodies.py", "--out corpora/random-bodies-7.py"),
        ("--functions 2 --out precious.py", "precious.py"),
    ],
)
def test_gen_corpus_replaces_nothing_that_it_did_not_write(
    codeneedle, tmp_path, words, said
):
    (tmp_path / "precious.py").write_text("x = 1\n")

    refused = codeneedle("gen-corpus", *words.split())

    assert 2 == refused.returncode
    assert said in refused.stderr
    assert [tmp_path / "precious.py"] == list(tmp_path.iterdir())
    assert "x = 1\n" == (tmp_path / "precious.py").read_text()


@pytest.mark.usefixtures("swept")
def test_paths_of_pictures_are_verbatim_in_a_pipe_and_safe_on_a_terminal(
    codeneedle, tmp_path
):
    (tmp_path / "sweeps").rename(tmp_path / "odd\x1b[31m")

    piped = codeneedle("heatmap", "random-bodies", "--out", "odd\x1b[31m")
    _, shown = on_terminal(tmp_path, "heatmap", "random-bodies", "--out", "odd\x1b[31m")

    assert [".png", ".svg"] == [line[-4:] for line in piped.stdout.splitlines()]
    assert all(
        line.startswith("odd\x1b[31m/random-bodies/")
        and (tmp_path / line).stat().st_size > 1000
        for line in piped.stdout.splitlines()
    )
    assert rb"odd\x1b[31m/random-bodies/" in shown
    assert [] == controls(shown)


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("grid random-bodys", "random-bodies"),
        ("grid random-bodies --metric matchd", "'matched'"),
        ("grid random-bodies --csv --json", "--csv and --json: choose one"),
        ("grid ../../etc", "../../etc"),
        ("sweep --corpus random-bodys", "random-bodies"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_what_there_is(codeneedle, words, said):
    refused = codeneedle(*words.split())

    assert 2 == refused.returncode
    assert said in refused.stderr


def test_corpus_list_and_show_need_no_server(codeneedle):
    listed = codeneedle("corpus", "list").stdout
    shown = codeneedle("corpus", "show", "random-bodies-mini").stdout

    assert "http_server" in listed
    assert 16 == len(re.findall(r"def \w+\(\):", shown))


def test_the_script_of_an_array_is_written_and_sent(codeneedle, nano, tmp_path, golden):
    server = llama_like(tmp_path / "llama-server")
    script(tmp_path / "bin" / "sbatch", 'echo "Submitted $1"')
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    words = ("submit", "slurm", "--types", "f16,q8_0", "--tasks", "2")

    written = codeneedle(*words, "--script", "a b", LLAMA_SERVER=str(server))
    sent = codeneedle(*words, "--submit", LLAMA_SERVER=str(server), PATH=path)

    assert "a b\n" == written.stdout, written.stderr
    assert golden == written.stderr
    last = (tmp_path / "a b").read_text().splitlines()[-1]
    run = "sweeps/random-bodies-mini/needle-nano"
    assert last.endswith(f'sweep {run} --shard "$SLURM_ARRAY_TASK_ID/2"')
    assert "q8_0" in (tmp_path / run / "sweep.toml").read_text(encoding="utf-8")
    assert "Submitted codeneedle.sbatch\n" == sent.stdout, sent.stderr


def test_what_was_merged_is_told(codeneedle, tmp_path, golden):
    for name in "ab":
        stored_run(tmp_path / name)

    done = codeneedle("merge", "a", "b")

    run = Path("sweeps", "random-bodies", "made-model")
    assert f"{run}\n" == done.stdout, done.stderr
    cells = len(list((tmp_path / run / "cells").iterdir()))
    note = done.stderr.splitlines()[-1]
    assert note.startswith(f"note: {cells} records of 2 folders; ")
    assert golden == note


def test_a_receipt_is_printed_and_read_from_a_text(codeneedle, tmp_path, golden):
    stored_run(tmp_path / "sweeps")
    printed = codeneedle("receipt", "random-bodies")
    (tmp_path / "issue.md").write_text(printed.stdout, encoding="utf-8")

    done = codeneedle("compare", "issue.md")
    data = codeneedle("compare", "issue.md", "random-bodies", "--json")
    refused = codeneedle("compare", "random-bodies")

    assert 0 == printed.returncode, printed.stderr
    assert done.stdout.startswith("1 receipt\n\nsetup"), done.stderr
    (once,) = json.loads(data.stdout)
    assert once["setup"]["model"].startswith("made-model")
    assert (2, "") == (refused.returncode, refused.stdout)
    assert golden == refused.stderr


def test_the_version_is_told(codeneedle):
    told = codeneedle("--version")
    refused = [codeneedle("--version", extra) for extra in ("extra", "llama")]

    assert f"codeneedle {version('codeneedle')}\n" == told.stdout
    assert 0 == told.returncode
    assert [(2, "")] * 2 == [(each.returncode, each.stdout) for each in refused]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gird", "x"], "mean 'grid'?"),
        (["corpus", "lst"], "mean 'list'?"),
        (["panels", "a", "b"], "See codeneedle panels --help"),
        (["grid", "a", "--metrik", "x"], "--metric"),
        (["grid", ""], "'' is empty"),
        (["--verson"], "--version"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_hint(codeneedle, words, said):
    refused = codeneedle(*words)

    assert 2 == refused.returncode
    assert said in refused.stderr
    assert ["error", " hint"] == [
        line.partition(":")[0] for line in refused.stderr.splitlines()
    ]


@pytest.mark.parametrize("words", [[], ["corpus"]])
def test_no_command_shows_the_commands(codeneedle, words):
    """As a usage error: a script that lost its arguments does not go on."""
    told = codeneedle(*words)

    assert 2 == told.returncode
    assert "Commands:" in told.stdout


# --- streams


needs_full = pytest.mark.skipif(
    not os.path.exists("/dev/full"),  # noqa: PTH110
    reason="only Linux has a full disk",
)


@needs_full
def test_write_errors_on_stderr_are_ignored():
    with open("/dev/full", "w", encoding="utf-8", buffering=1) as full:  # noqa: PTH123
        stream = BestEffort(full)
        assert 5 == stream.write("line\n")
        stream.flush()
        full.buffer.raw.close()
    assert 5 == stream.write("line\n")
    stream.flush()


def test_a_best_effort_stream_is_otherwise_its_stream(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with tolerate_stderr_flush_stdout():
        sys.stderr.write("heard\n")
        assert not sys.stderr.isatty()
    assert "heard\n" == sys.stderr.getvalue()


@needs_full
def test_write_errors_on_stdout_are_reported(monkeypatch):
    """Once: the interpreter does not complain a second time."""
    monkeypatch.setattr(sys, "stderr", None)
    with open("/dev/full", "w", encoding="utf-8") as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", full)
        with (
            pytest.raises(OSError, match="No space left"),
            tolerate_stderr_flush_stdout(),
        ):
            sys.stdout.write("k,v\n")
        full.flush()


@pytest.mark.slow
def test_a_closed_stdout_is_an_error(tmp_path, golden):
    shell = f'exec "{sys.executable}" -m codeneedle corpus list >&-'
    done = subprocess.run(
        ["/bin/sh", "-c", shell],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )

    assert 2 == done.returncode
    assert golden == done.stderr


@pytest.mark.slow
def test_a_reader_that_has_gone_is_no_traceback(tmp_path):
    """As in ``codeneedle corpus list | head -0``."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "codeneedle", "--help"],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    os.close(writer)

    assert (1, "") == (done.returncode, done.stderr)


# --- imports of each command

HEAVY = {
    *("esprima", "gguf", "httpx", "matplotlib", "msgspec", "numpy", "pandas"),
    *("psutil", "rapidfuzz", "rich", "scipy", "seaborn", "tree_sitter"),
}
PRINTING = HEAVY - {"httpx", "matplotlib", "pandas", "scipy", "seaborn"}


@pytest.mark.slow
@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize(
    ("commands", "allowed"),
    [
        (["--version", "--help", "grid --help", "llama --help"], set()),
        (["sweep --help", "plan --help"], {"msgspec", "psutil"}),
        (["show random q8_0/q4_0", "memory random"], PRINTING),
        (["grid random", "table random"], PRINTING | {"scipy"}),
    ],
)
def test_commands_wait_for_what_they_use_and_for_nothing_else(
    tmp_path, commands, allowed
):
    program = (
        "import sys\n"
        "from codeneedle.cli.main import main\n"
        f"for command in {commands!r}:\n"
        "    sys.argv = ['codeneedle', *command.split()]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, end.code\n"
        f"print('loaded:', *({HEAVY!r} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert allowed >= set(done.stdout.rpartition("loaded:")[2].split())


def test_panels_are_printed_and_drawn(codeneedle, tmp_path):
    rounds = [made_round(needle) for needle in written_of(TASKS_RUN.setup)]
    recalled = made_record("f16/f16", rounds)
    stored_run(tmp_path / "sweeps", run_of(*TASKS_RUN.records, recalled))
    shown = codeneedle("panels", "random-bodies", "--difference")
    drawn = codeneedle("heatmap", "random-bodies", "--panels", "--difference")
    refused = codeneedle("panels", "random-bodies", "--metric", "intrusion")

    assert "-2 +2" in shown.stdout, shown.stderr
    assert ["panels-multikey-difference.png", "panels-multikey-difference.svg"] == [
        path.rpartition("/")[2] for path in drawn.stdout.split()
    ]
    assert 2 == refused.returncode
    assert "multikey-logp" in refused.stderr


def test_a_speed_has_a_table_and_curves_by_depth(codeneedle, tmp_path, golden):
    run = made_speeds.run_of(
        made_speeds.measured(made_speeds.F16, {0: 100.0, 100: 100.0}),
        made_speeds.measured(made_speeds.Q8, {0: 50.0, 100: 150.0}),
    )
    stored_run(tmp_path / "sweeps", run)
    name = "random-bodies"
    shown = codeneedle("table", name, "--metric", "tg")
    drawn = codeneedle("heatmap", name, "--metric", "tg")
    refused = codeneedle("table", name, "--metric", "matched")

    assert "from 50 tokens" in shown.stdout, shown.stderr
    assert ["heatmap-tg.png", "heatmap-tg.svg", "depths-tg.png", "depths-tg.svg"] == [
        path.rpartition("/")[2] for path in drawn.stdout.split()
    ]
    assert 2 == refused.returncode
    assert golden == refused.stderr


@pytest.mark.parametrize("columns", ["0", "1", "12"])
@pytest.mark.parametrize("command", ["panels", "table"])
def test_reports_are_drawn_whatever_the_terminal_says_of_its_width(
    command, columns, codeneedle
):
    runs = Path(__file__).parents[1] / "golden" / "runs" / "retrieval"

    found = codeneedle(command, "golden", "--out", str(runs), COLUMNS=columns)

    assert (0, "") == (found.returncode, found.stderr)
    assert found.stdout
