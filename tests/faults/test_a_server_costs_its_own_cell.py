"""A server that fails, hangs or answers nonsense costs its own cell alone."""

import contextlib
import http.server
import random
import re
import threading
from itertools import product

import psutil
import pytest
from answers import forced, written
from calls import called
from injection_points import current, place
from injections import sampled
from made_servers import fake_server
from programs import misbehave, server
from started_sweeps import impatient, problem, record

FAULTS = {
    "exits at once": ("die=3", "crashed", "exit code 3"),
    "freezes at the start": ("signal=start/19", "timed-out", "does not answer"),
    "is killed in a round": ("signal=round/9", "crashed", "SIGKILL: nothing"),
    "freezes between rounds": ("signal=between/19", "timed-out", "said nothing"),
    "logs without end": ("flood", "crashed", "limit of file sizes"),
    "resets every connection": ("reset", "crashed", "connection"),
    "sends half a JSON": ("half-json", "crashed", "did not answer"),
    "sends 10 MB of garbage": ("garbage", "crashed", "longer than"),
    "ends a stream without an end": ("no-last-event", "crashed", "stream ended"),
    "runs other types": ("types=f16/f16", "mismatched", "K is f16"),
    "exits while loading": ("die-loading=3", "crashed", "exit code 3"),
    "exits in a round": ("die-in-round=9", "crashed", "exit code 9"),
    "exits between rounds": ("die-between=4", "crashed", "exit code 4"),
    "is killed at the start": ("signal=start/9", "crashed", "SIGKILL: nothing"),
    "is killed while loading": ("signal=loading/9", "crashed", "SIGKILL: nothing"),
    "is killed between rounds": ("signal=between/9", "crashed", "SIGKILL: nothing"),
    "crashes in a round": ("signal=round/11", "crashed", "SIGSEGV"),
    "freezes while loading": ("signal=loading/19", "timed-out", "does not answer"),
    "freezes in a round": ("signal=round/19", "timed-out", "said nothing"),
    "loads for ever": ("loading", "timed-out", "still loading"),
    "takes connections, answers none": ("mute", "timed-out", "does not answer"),
    "goes by another name": ("stranger", "timed-out", "under its name"),
    "sends 10 MB when asked how it is": ("garbage-health", "timed-out", "its name"),
    "breaks every reply": ("break-times=999", "crashed", "connection"),
    "refuses every question": ("refuse=500", "crashed", "500"),
    "drips its headers": ("slow-headers", "timed-out", "said nothing"),
    "drips its replies": ("slow", "timed-out", "said nothing"),
    "sends nothing but pings": ("pings", "timed-out", "said nothing"),
    "sends JSON of another shape": ("wrong-shape", "crashed", "did not answer"),
    "sends JSON of wrong types": ("wrong-types", "crashed", "did not answer"),
    "sends a page": ("html", "crashed", "did not answer"),
    "ends a stream with an error": ("error-event", "crashed", "Compute error"),
    "says numbers beyond all words": ("huge-numbers", "unsupported", "it read 1"),
    "runs another context": ("context=512", "mismatched", "context"),
    "names no cache": ("no-kv", "mismatched", "cannot be verified"),
}
"""What the server of a cell does, the cell's status, and words of the reason."""

HARMLESS = {
    "does not want to leave": "deaf",
    "leaves a child behind": "grandchild={folder}/grandchild",
    "finds its port taken": "port-taken={folder}/taken",
    "has a log of 200 MB": f"sparse-log={200 << 20}",
}
"""What costs nothing: the cell finishes."""

TYPES = "f16,bf16,q8_0,q5_1,q5_0,q4_1,q4_0"
CELLS = [f"{k}-{v}" for k, v in product(TYPES.split(","), repeat=2)]
SWEEP = ("sweep", "--corpus", "tiny", "--context", "4096")


@pytest.fixture(autouse=True)
def _needed(nano):
    """The weights are there."""


def test_each_fault_of_a_server_costs_its_own_cell_alone(folder, ledger, times):
    path = folder.path
    command = (*SWEEP, "--llama-server", server(path, {}))
    assert 0 == impatient(path, *command, "--types", "f16").returncode
    folder.look()
    faults, cells = _given(path, times(len(FAULTS), quick=10))
    misbehave(path, {cells[name]: [fault] for name, fault in faults.items()})
    (path / "taken").touch()
    command = (*command, *_types(cells.values()))
    slow = [cells[n] for n in faults if FAULTS.get(n, "--")[1] == "timed-out"]
    told = impatient(path, *command, silence_s=0.6, cells=slow)

    assert 1 == told.returncode, told.stderr
    assert [] == [*_wrong(folder, ledger, cells)]
    assert _is_gone(path / "grandchild")
    _assert_measured_memory_is_of_finished_cells(folder, ledger, cells)
    _assert_retried(folder, command, [n for n in faults if n in FAULTS])


def _given(path, often):
    """So many faults and all that is harmless, each with a cell of its own."""
    faults = {name: fault for name, (fault, *_) in [*FAULTS.items()][:often]}
    faults |= {name: fault.format(folder=path) for name, fault in HARMLESS.items()}
    side = next(n for n in range(2, 8) if n * n > len(faults))
    types = TYPES.split(",")[:side]
    cells = [f"{k}-{v}" for k, v in product(types, repeat=2)][1:]
    random.Random(often).shuffle(cells)  # noqa: S311 - no secret
    return faults, dict(zip(faults, cells, strict=False))


def _types(cells):
    names = {name for cell in cells for name in cell.split("-")}
    return ("--types", ",".join(t for t in TYPES.split(",") if t in names))


def _wrong(folder, ledger, cells):
    for name, cell in cells.items():
        _, status, words = FAULTS.get(name, ("", "finished", ""))
        stored = record(folder.path, cell)
        is_told = status == stored["status"] and words in stored["reason"]
        is_empty = status == "finished" and stored.get("observation") is None
        if not is_told or is_empty:
            yield name, problem(stored)
        ledger.note(f"a server {name}", problem(stored), of=folder)


def _assert_measured_memory_is_of_finished_cells(folder, ledger, cells):
    """Logs of other cells may have sizes all the same."""
    shown = called(folder.path, "memory", "tiny").stdout
    table, _, left_out = shown.partition("left out")
    shown = set(re.findall(r"^ *(\w+/\w+) ", table, re.MULTILINE))
    for name, cell in cells.items():
        pair, status = cell.replace("-", "/"), FAULTS.get(name, ("", "finished"))[1]
        assert (pair in shown) == (status == "finished"), name
        if status != "finished":
            assert status in left_out
            # Of one reason, four pairs are named and the others counted.
            assert pair in left_out or " more " in left_out
            ledger.note(f"memory of a cell that is {status}", of=folder)


def _is_gone(note):
    with contextlib.suppress(psutil.NoSuchProcess):
        status = psutil.Process(int(note.read_text())).status()
        return status == psutil.STATUS_ZOMBIE
    return True


def _assert_retried(folder, command, failed):
    misbehave(folder.path, {})
    folder.look()
    before = {file: file.read_bytes() for file in folder.finished}
    again = impatient(folder.path, *command)
    retried = impatient(folder.path, *command, "--retry-failed")

    assert 1 == again.returncode
    assert "nothing to do" in again.stderr
    assert 0 == retried.returncode, retried.stderr
    played = [line for line in retried.stderr.splitlines() if line.startswith("[")]
    assert len(failed) == len(played), retried.stderr
    assert before == {file: file.read_bytes() for file in before}
    folder.look()
    assert 0 == folder.aftermath().cells_lost


def test_a_server_that_hangs_costs_minutes_where_others_took_seconds(folder, ledger):
    """It hangs after its warm-up, and is given up without the hour of a first cell."""
    in_kernel, hangs = "splits=2", "signal=round/19"
    faults = {"f16-f16": [in_kernel], "q8_0-q8_0": [in_kernel, hangs]}
    command = (*SWEEP, "--llama-server", server(folder.path, faults), "--pairs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*place("least limit of silence"), 1.0)
        patch.setattr(*place("multiple of a silence"), 2.0)
        for pairs in ("f16/f16", "f16/f16,q8_0/q8_0"):
            arguments = (folder.path, *command, pairs)
            told = impatient(*arguments, silence_s=90, load_s=60)
    hanging = record(folder.path, "q8_0-q8_0")

    assert 1 == told.returncode, told.stderr
    assert "timed-out" == hanging["status"]
    assert "longest silence with" in hanging["reason"]
    ledger.note("a server hangs after other cells were measured", of=folder)


@pytest.mark.parametrize(
    "case",
    # The priming round is over before the place where replies break.
    sampled(
        [("reset-times=2", 2), ("reset-times=1", 1), ("break-times=2", 1)], quick=1
    ),
)
def test_a_connection_that_breaks_is_tried_again_and_that_is_stored(
    case, folder, ledger
):
    fault, times_broken = case
    binary = server(folder.path, {"q8_0-q8_0": [fault]})
    told = impatient(
        *(folder.path, *SWEEP, "--types", "q8_0", "--llama-server", binary),
        silence_s=60,
        load_s=60,
    )
    stored = record(folder.path, "q8_0-q8_0")["observation"]
    rounds = [stored["facts"]["priming"], *written(stored)]
    retries = [why for asked in rounds for why in asked.get("retries", ())]

    assert 0 == told.returncode, told.stderr
    assert times_broken == len(retries)
    assert all("connection" in why for why in retries)
    ledger.note("a server breaks a connection once or twice", of=folder)


@pytest.mark.parametrize(
    "fault", sampled(["die-between=4", "signal=between/9"], quick=1)
)
def test_a_server_that_ends_between_answers_costs_those_that_it_did_not_give(
    fault, folder, ledger
):
    binary = server(folder.path, {"q8_0-q8_0": [fault]})
    command = (*SWEEP, "--types", "q8_0", "--llama-server", binary)
    told = impatient(folder.path, *command, silence_s=60, load_s=60)
    early = record(folder.path, "q8_0-q8_0")
    misbehave(folder.path, {})
    retried = impatient(folder.path, *command, "--retry-failed")
    late = record(folder.path, "q8_0-q8_0")

    assert (1, 0) == (told.returncode, retried.returncode), retried.stderr
    before, after = early["observation"], late["observation"]
    assert 1 == len(written(before))
    assert written(before) == written(after)[:1]
    assert (1, 2) == (before["starts"], after["starts"])
    assert before["facts"] == after["facts"]
    assert (3, 3) == (len(written(after)), len(forced(after)))
    ledger.note("a server ends between two answers", problem(early), of=folder)


WRITING = {
    "exits in an answer": ("die-in-round=9", "crashed", "exit code 9"),
    "is killed in an answer": ("signal=round/9", "crashed", "SIGKILL: nothing"),
    "freezes in an answer": ("signal=round/19", "timed-out", "said nothing"),
    "breaks every answer": ("break-times=999", "crashed", "connection"),
    "ends an answer with an error": ("error-event", "crashed", "Compute error"),
    "ends an answer without an end": ("no-last-event", "crashed", "stream ended"),
    "ends between answers": ("die-between=4", "crashed", "exit code 4"),
    "sends half a JSON for an answer": ("half-json", "crashed", "did not answer"),
}
"""What a server does to a long answer that it writes, and what becomes of its cell."""


def test_a_server_that_fails_in_a_long_answer_costs_those_that_it_did_not_give(
    folder, ledger, times
):
    path, pairs = folder.path, ["f16-f16", *CELLS[1 : 1 + len(WRITING)]]
    chosen = [*WRITING.items()][: times(len(WRITING), quick=3)]
    cells = dict(zip(pairs[1:], chosen, strict=False))
    binary = server(path, {at: [fault] for at, (_, (fault, *_)) in cells.items()})
    asked = ",".join(pairs[: 1 + len(cells)]).replace("-", "/")
    command = (*SWEEP, "--probe", "generation", "--generation-tokens", "64")
    command = (*command, "--no-calibration")  # what it writes is a loop
    command = (*command, "--llama-server", binary, "--pairs", asked)
    slow = [at for at, (_, (_, status, _)) in cells.items() if status == "timed-out"]
    told = impatient(path, *command, silence_s=0.6, cells=slow)

    assert 1 == told.returncode, told.stderr
    early = {at: record(path, at, "generation") for at in cells}
    for at, (fault, (_, status, words)) in cells.items():
        assert (status, True) == (early[at]["status"], words in early[at]["reason"])
        ledger.note(f"a server {fault}", problem(early[at]), of=folder)
    misbehave(path, {})
    retried = impatient(path, *command, "--retry-failed")
    assert 0 == retried.returncode, retried.stderr
    for at, before in early.items():
        late = record(path, at, "generation")["observation"]["answers"]
        given = (before.get("observation") or {}).get("answers", {})
        assert (8, given) == (len(late), {key: late[key] for key in given})


@pytest.mark.parametrize("at", ["counting", "cells"])
def test_a_server_that_never_works_ends_the_sweep_early_and_says_why(
    at, folder, ledger
):
    path, line = folder.path, "error loading model: it is of no use"
    faults = [f"say={line}", "die=1"]
    cells = ["counting"] if at == "counting" else CELLS
    binary = server(path, dict.fromkeys(cells, faults))
    command = (*SWEEP, "--types", "q8_0,q4_0", "--llama-server", binary)
    told = impatient(path, *command)
    played = len([*path.rglob("cells/*.json")])

    assert (3, 0) == (told.returncode, played) or at == "cells"
    assert (1, 3) == (told.returncode, played) or at == "counting"
    assert line in told.stderr
    assert "hint:" in told.stderr
    error = next(x for x in told.stderr.splitlines() if x.startswith("error:"))
    assert "cells failed alike" in error or at == "counting"
    misbehave(path, {})
    again = impatient(path, *command, "--retry-failed")
    assert 0 == again.returncode, again.stderr
    ledger.note(f"a server never works ({at})", error, of=folder)


class Stranger(http.server.BaseHTTPRequestHandler):
    """Says that all is well, whatever it is asked."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status": "ok", "data": [{"id": "stranger"}]}')

    def log_message(self, *_):
        """Say nothing."""


def test_a_stranger_on_the_chosen_port_is_not_taken_for_the_server(
    tmp_path, monkeypatch, ledger, folder
):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        ports = [stranger.server_port]
        free = current("choose a port")
        monkeypatch.setattr(
            *place("choose a port"), lambda host: ports.pop() if ports else free(host)
        )
        with fake_server(tmp_path) as served:
            port = int(served.command[served.command.index("--port") + 1])
        stranger.shutdown()

    assert port != stranger.server_port
    ledger.note("a stranger's server has the port", of=folder)
