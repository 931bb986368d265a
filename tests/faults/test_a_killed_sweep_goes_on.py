"""Codeneedle is killed, hung up on or interrupted: finished cells stay, it goes on."""

import contextlib
import fcntl
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import termios

import pytest
from build_programs import BuildPrograms
from calls import called
from injections import Folder, processes_in, sampled, statuses
from made_conversations import TEMPLATE, made_conversation
from programs import script
from started_sweeps import (
    DIVERGENCE,
    ONE,
    PATIENCE_S,
    RUN,
    THROUGHPUT,
    TWO,
    Series,
    alive,
    at,
    command,
    ended,
    going,
    is_clean,
    record,
    run,
    running_child,
    signal_at,
    told,
    until,
    unwatch,
)

from codeneedle.system.files import cache_folder
from codeneedle.system.orphans import VARIABLE, host_identity

pytestmark = pytest.mark.real

SLUGS = ("q8_0-q8_0", "q8_0-q4_0")
"""Of the cells."""

LONGEST_S = 2.0
"""From the start of a sweep to the end of its second cell, and some."""


@pytest.fixture
def series(folder, llama_server, nano):
    """Two short cells."""
    return Series(folder, *TWO)


def struck(series, delay_s, **changes):
    """What a sweep said before it was killed after a delay; None if it was through."""
    with going(series.path, *series.arguments, **changes) as sweep:
        try:
            said, _ = sweep.communicate(timeout=delay_s)
        except subprocess.TimeoutExpired:
            os.kill(sweep.pid, signal.SIGKILL)
            said, _ = sweep.communicate()
            return said
        assert 0 == sweep.returncode, said
    return None


def test_killed_at_any_moment_the_same_command_goes_on(series, ledger, times):
    chance = random.Random(20)  # noqa: S311 - no secret
    kills, wanted = 0, times(200, quick=1)
    while kills < wanted:
        said = struck(series, chance.uniform(0.1, LONGEST_S))
        if said is None:
            series.complete()
            series.anew()
            continue
        kills += 1
        ledger.add(series.injection("SIGKILL at a random moment", said))
        series.note()
    series.complete()


def test_killed_in_each_write_the_same_command_goes_on(folder, series, ledger, times):
    series = Series(folder, *ONE)
    calls = range(1, 1000) if times(2, quick=1) == 2 else (34,)
    kills = 0
    for call in calls:
        series.anew()
        faults = [("killed_at", {"call": call})]
        code, said = ended(series.path, *series.arguments, faults=faults)
        if code == 0:  # no call is left to be killed at
            break
        assert -signal.SIGKILL == code, said
        kills += 1
        series.note()
        said = series.complete()
        ledger.add(series.injection("SIGKILL around a write or a start", said))
    assert kills >= min(20, len(calls))


@pytest.mark.parametrize("number", sampled([signal.SIGKILL, signal.SIGTERM], quick=1))
def test_stopped_between_two_answers_only_what_is_missing_is_asked(
    series, ledger, number
):
    faults = [signal_at("write a record", 3, number)]
    code, said = ended(series.path, *series.arguments, faults=faults)
    assert code in {-signal.SIGKILL, 130}, said
    series.note()
    (pair,) = [name for name in SLUGS if record(series.path, name)]
    early = record(series.path, pair)
    ledger.add(series.injection(f"{number.name} between two answers", said))

    series.complete()

    late = record(series.path, pair)
    before, after = early["observation"], late["observation"]
    assert "interrupted" == early["status"]
    assert 2 <= len(before["answers"]) < len(after["answers"]) == series.functions
    for key, answer in before["answers"].items():
        assert answer == after["answers"][key]
    assert (1, 2) == (before["starts"], after["starts"])
    assert early["started"] == late["started"]


def killed_beside(series, child_pid):
    """SIGKILL a sweep beside the child that *child_pid* names, frozen; its pid."""
    frozen = set()

    def freeze():
        """Whether a child was stopped in time: some are short, and another follows."""
        pid = child_pid()
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
            frozen.update(alive({pid}))
        return frozen

    with going(series.path, *series.arguments) as sweep:
        assert until(freeze, unless=lambda: sweep.poll() is not None)
        unwatch(sweep)
        series.note()
        sweep.kill()
        sweep.communicate()
    (child,) = frozen
    assert frozen == alive(frozen)
    return child


def line_of(said, pid):
    """The one line of *said* that names a process."""
    (line,) = [line for line in said.splitlines() if line.endswith(f": pid {pid}")]
    return line


@pytest.mark.parametrize("who", sampled(["q8_0-", "counting"], quick=1))
def test_a_server_that_hangs_when_we_are_killed_is_ended(series, ledger, who):
    def child_pid():
        note = running_child(series.path)
        return note.get("pid") if who in str(note.get("alias")) else None

    server = killed_beside(series, child_pid)
    said = series.complete()
    assert "ended a llama-server" in line_of(said, server)
    ledger.add(series.injection("SIGKILL, the server frozen", said))


TOOLS = {"llama-bench": THROUGHPUT, "llama-perplexity": DIVERGENCE}


@pytest.mark.parametrize("tool", sampled(TOOLS, quick=1))
def test_a_tool_that_outlives_us_is_ended(series, ledger, tool):
    series.arguments = (*series.arguments, *TOOLS[tool])
    child = killed_beside(series, lambda: running_child(series.path, tool).get("pid"))
    said = series.complete()
    assert f"ended a {tool}" in line_of(said, child)
    ledger.add(series.injection(f"SIGKILL, {tool} frozen", said))


def test_servers_and_tools_end_with_a_sigkill(series, ledger, times):
    """No later command is needed: the kernel closes a pipe, and a shell sees it."""
    tools = {"llama-server": (), **TOOLS}
    for program in list(tools)[: times(3, quick=1)]:
        series.arguments = ("sweep", *TWO, *tools[program])
        with going(series.path, *series.arguments) as sweep:
            left = set()

            def is_caught(of=program, sweep=sweep, left=left):
                """Whether a child runs while the sweep stands still: some are short."""
                if running_child(series.path, of):
                    sweep.send_signal(signal.SIGSTOP)
                    left |= set(processes_in(series.path)) - {sweep.pid}
                    sweep.send_signal(signal.SIGCONT)
                return left

            assert until(is_caught, unless=lambda: sweep.poll() is not None)
            sweep.kill()
            sweep.communicate()
        assert until(lambda those=left: not alive(those), unless=lambda: False)
        series.folder.look()
        ledger.note(f"SIGKILL beside {program}", of=series.folder)
        series.complete()
        series.anew()


def test_what_outlived_its_run_folder_is_told_and_ended_by_any_sweep(
    series, ledger, tmp_path, golden
):
    """The note of a server is not in the run folder, which may be renamed."""
    server = killed_beside(series, lambda: running_child(series.path).get("pid"))
    series.anew()
    (tmp_path / "other").mkdir()
    other = Series(Folder(tmp_path / "other"), *ONE)

    doctor = run(other.path, "doctor")
    said = other.complete()

    assert f"pid {server}" in doctor.stdout
    assert golden == line_of(said, server).replace(str(server), "PID")
    assert set() == alive({server})
    fault = "SIGKILL, the run folder removed"
    ledger.note(fault, told(doctor.stdout), of=series.folder)


def test_a_copy_of_a_run_folder_knows_nothing_of_its_servers(series, ledger, times):
    ignored = shutil.ignore_patterns("*.draft", "lock")
    for count in range(times(5, quick=1)):
        out = f"copy-{count}"
        with going(series.path, *series.arguments) as sweep:

            def caught(sweep=sweep):
                """The pid of a cell's server, while its sweep stands still."""
                sweep.send_signal(signal.SIGSTOP)
                found = running_child(series.path)
                if "q8_0-" in str(found.get("alias")):
                    return found["pid"]
                sweep.send_signal(signal.SIGCONT)
                return None

            assert until(caught, unless=lambda: sweep.poll() is not None)
            server = caught()
            shutil.copytree(series.path / "sweeps", series.path / out, ignore=ignored)
            code, said = ended(series.path, *series.arguments, "--out", out)
            assert {server} == alive({server})
            sweep.send_signal(signal.SIGCONT)
            original, _ = sweep.communicate(timeout=PATIENCE_S)
        assert (0, 0) == (code, sweep.returncode), said + original
        assert "left behind" not in said
        series.folder.look()
        ledger.note("a sweep in a copied run folder", of=series.folder)
        series.anew()
        shutil.rmtree(series.path / out)


def test_what_was_said_in_a_transcript_goes_with_the_next_command(
    folder, ledger, llama_server, nano
):
    """A server that renders conversations may quote in its log what it cannot."""
    (folder.path / "store.jinja").write_text(TEMPLATE)
    (folder.path / "said.json").write_text(json.dumps(made_conversation(2)))
    server = ("--", "--jinja", "--chat-template-file", "store.jinja")
    size = ("--context", "4096", "--transcript-tokens", "300")
    faults = [signal_at("render a conversation", 3, signal.SIGKILL)]

    asked = ("transcript", "said.json", *size, *server)
    code, said = ended(folder.path, *asked, faults=faults)
    left = [*cache_folder().glob("private/*/rendering.log")]
    again = called(folder.path, *asked)

    assert -signal.SIGKILL == code, said
    assert 1 == len(left)
    assert 0 == again.returncode, again.stderr
    assert [] == [*cache_folder().glob("private/*/*")]
    ledger.note("SIGKILL while a conversation is rendered", told(said), of=folder)


FORGED = {
    "another mark": {"mark": "llama-server.ffffffff"},
    "another host": {"host": "another"},
    "a mark without digits": {"mark": "llama-server"},
    "an owner with a number too large": {"owner": {"pid": 2**70, "started": 1.0}},
}


def test_a_stranger_is_left_alone_whatever_the_note_says(series, ledger, times):
    """A mark has random digits, so it is that of a process that we started."""
    stranger = subprocess.Popen(
        ["/bin/sh", "-c", "echo up; read forever"],
        env={VARIABLE: "llama-server.0a1b2c3d"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
    )
    with stranger:
        stranger.stdout.readline()
        owner = {"pid": 2**22 + 1, "started": 1.0}
        folder = cache_folder() / "running"
        folder.mkdir(parents=True, exist_ok=True)
        for what in list(FORGED)[: times(9, quick=1)]:
            note = {
                "mark": "llama-server.0a1b2c3d",
                "owner": owner,
                "host": host_identity(),
            } | FORGED[what]
            (folder / "llama-server.0a1b2c3d.json").write_text(json.dumps(note))
            said = series.complete()
            assert "left behind" not in said
            assert stranger.poll() is None, what
            ledger.add(series.injection(f"a forged note: {what}", said))
        stranger.kill()


PHASES = {
    "planning": ("make the plan", 1),
    "counting": ("start the counting server", 1),
    "launching": ("start a server process", 2),
    "loading": ("wait for a server", 2),
    "priming": ("ask for a completion", 1),
    "asking a round": ("force a right answer", 3),
    "stopping": ("look whether a process group lives", 4),
    "writing": ("sync a file", 5),
}
"""The point at which a phase begins, and which of its calls that is."""

ENDINGS = {
    "SIGTERM": (signal.SIGTERM, 1),
    "SIGHUP": (signal.SIGHUP, 1),
    "Ctrl-C": (signal.SIGINT, 1),
    "Ctrl-C twice": (signal.SIGINT, 2),
    "Ctrl-C three times": (signal.SIGINT, 3),
}

QUICKLY = [("asking a round", "SIGTERM")]


def test_a_request_to_end_is_heard_in_every_phase(series, ledger, times):
    pairs = [(phase, ending) for phase in PHASES for ending in ENDINGS]
    for phase, ending in pairs[: times(1000, quick=0)] or QUICKLY:
        point, call = PHASES[phase]
        number, sent = ENDINGS[ending]
        faults = [signal_at(point, call, number, times=sent)]
        code, said = ended(series.path, *series.arguments, faults=faults)
        series.folder.look()
        fault = f"{ending} while {phase}"
        ledger.note(fault, told(said), of=series.folder)
        assert 130 == code, (fault, said)
        assert "the same command" in said, (fault, said)
        assert "command to resume" in said, (fault, said)
        assert set(statuses(series.path)) <= {"finished", "interrupted"}, fault
        if "interrupted" in statuses(series.path) and ending == "SIGTERM":
            memory = run(series.path, "memory", "tiny").stdout
            assert "left out: q8_0/" in memory
            assert "q8_0/" not in memory.partition("left out")[0], memory
            ledger.note("memory of a cell that is interrupted", of=series.folder)
        series.complete()
        series.anew()


@pytest.mark.parametrize("is_ignored", sampled([False, True], quick=1))
def test_a_terminal_that_is_closed_ends_a_sweep_in_order(series, ledger, is_ignored):
    master, slave = pty.openpty()

    def before():
        if is_ignored:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    waits = at("force a right answer", 2, "wait_for", file="go")
    with subprocess.Popen(
        command(*series.arguments, faults=[waits]),
        cwd=series.path,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=before,  # noqa: PLW1509 - no threads yet
    ) as sweep:
        os.close(slave)
        os.set_blocking(master, False)

        def is_asking():
            with contextlib.suppress(BlockingIOError):
                os.read(master, 4096)
            return (series.path / "go.reached").exists()

        try:
            assert until(is_asking, unless=lambda: sweep.poll() is not None)
            os.close(master)
            (series.path / "go").touch()
            code = sweep.wait(PATIENCE_S)
        finally:
            sweep.kill()
    series.folder.look()
    ignored = ", under nohup" if is_ignored else ""
    ledger.note(f"the terminal is closed{ignored}", of=series.folder)
    assert (0 if is_ignored else 130) == code
    assert (["finished"] * 2 == statuses(series.path)) == is_ignored
    series.complete()


REPORTS = {
    "grid": ("grid", "tiny"),
    "heatmap": ("heatmap", "tiny"),
    "table": ("table", "tiny", "--csv"),
}
MOMENTS = {
    "grid": ("select runs for a report",),
    "heatmap": ("draw a picture", "sync a file"),
    "table": ("select runs for a report",),
}


def test_a_report_that_is_ended_leaves_no_half_file(series, ledger, times):
    series.complete()
    assert 0 == ended(series.path, *REPORTS["heatmap"])[0]
    before = pictures(series.path)
    numbers = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
    moments = [(name, point) for name in REPORTS for point in MOMENTS[name]]
    if times(2, quick=1) == 1:
        moments, numbers = [("heatmap", "sync a file")], [signal.SIGKILL]
    for name, point in moments:
        for number in numbers:
            faults = [signal_at(point, 1, number)]
            code, said = ended(series.path, *REPORTS[name], faults=faults)
            assert code in {-number, 130}, said
            assert is_clean(said), said
            assert before == pictures(series.path)
            fault = f"{signal.Signals(number).name} while reporting"
            ledger.note(fault, of=series.folder)


def pictures(folder):
    """The pictures in *folder*, by name; drafts are none."""
    return {
        path.name: path.read_bytes()
        for path in sorted((folder / RUN).glob("heatmap-*"))
        if path.suffix != ".draft"
    }


STEPS = {"downloading": "pip", "configuring": "cmake", "compiling": "ninja"}


def test_a_build_that_is_ended_leaves_no_half_llama(tmp_path, ledger, times):
    numbers = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    cases = [(step, number) for step in STEPS for number in numbers]
    for case, (step, number) in enumerate(
        cases if times(2, quick=1) == 2 else cases[8:9]
    ):
        path = tmp_path / str(case)
        path.mkdir()
        world = BuildPrograms(path)
        program = world.bin / STEPS[step]
        real = program.read_text()
        slow = f"echo $$ > {path}/pid; exec sleep 600"
        version = 'if [ "$1" = --version ]; then echo "cmake version 3.30.1"; exit; fi'
        script(program, f"{version if step == 'configuring' else ''}\n{slow}")
        changes = {
            "faults": [("release_of_stand_ins", {"folder": str(path)})],
            "variables": {
                "CODENEEDLE_CACHE": str(path / "cache"),
                "PATH": f"{world.bin}:/usr/bin:/bin",
                "CC": "",
                "CXX": "",
            },
        }
        interrupt_build(path, number, changes)
        folder = path / "cache" / "llama.cpp"
        program.write_text(real)
        assert not (folder / "b11434-4").exists()
        code, said = ended(path, "llama", "--anyway", **changes)
        assert 0 == code, said
        assert sorted(["b11434-4", "b11434-4.lock"]) == sorted(
            file.name for file in folder.iterdir() if file.suffix != ".log"
        )
        ledger.note(f"{number.name} while building llama.cpp", of=Folder(path))


def interrupt_build(path, number, changes):
    """Send *number* to a build in the middle of a step; it says nothing unexpected."""
    with going(path, "llama", "--anyway", **changes) as program:
        pid = path / "pid"
        assert until(
            lambda: pid.exists() and pid.read_text(),
            unless=lambda: program.poll() is not None,
        ), program.stdout.read()
        program.send_signal(number)
        said, _ = program.communicate(timeout=PATIENCE_S)
        assert is_clean(said), said
        expected = -signal.SIGKILL if number == signal.SIGKILL else 130
        assert expected == program.returncode, (number, said)
    assert number == signal.SIGKILL or [] == processes_in(path)
