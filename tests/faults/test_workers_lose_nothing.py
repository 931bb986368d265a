"""Sweeps with several workers, or that ask for more, lose nothing that was measured."""

import json
import signal

import pytest
from answers import forced
from calls import called
from injections import SHORT, processes_in, put_corpus, sampled, statuses
from programs import misbehave, server
from started_sweeps import ended, impatient, is_clean, record, signal_at, until

from codeneedle.system.machine import usable_cores

pytestmark = pytest.mark.skipif(usable_cores() < 2, reason="two workers, two cores")

SIZE = ("--corpus", "tiny", "--context", "4096", "--way", "force")
GRID = ("sweep", *SIZE, "--types", "q8_0,q4_0", "--workers", "2")
FAILING = {
    "q8_0-q4_0": ("die-in-round=9", "crashed"),
    "q4_0-q8_0": ("half-json", "crashed"),
    "q4_0-q4_0": ("signal=round/19", "timed-out"),
}
"""What servers do, and the status of their cells; the fourth is good."""

MORE = ("sweep", *SIZE, "--functions", "3", "--k-types", "f16", "--v-types", "f16,q4_0")
COARSE = "f16-q4_0"


@pytest.fixture(autouse=True)
def _needed(nano):
    """The weights are there."""


def finished(folder):
    """The files of finished cells, with what is in them."""
    folder.look()
    return {file: file.read_bytes() for file in folder.finished}


def test_servers_that_fail_side_by_side_cost_their_own_cells_alone(folder, ledger):
    path = folder.path
    faults = {cell: [fault] for cell, (fault, _) in FAILING.items()}
    command = (*GRID, "--llama-server", server(path, faults))

    told = impatient(path, *command, silence_s=1.0, cells=["q4_0-q4_0"])
    seen = {cell: record(path, cell)["status"] for cell in ("q8_0-q8_0", *FAILING)}
    before = finished(folder)
    misbehave(path, {})
    again = called(path, *command, "--retry-failed")

    expected = {cell: status for cell, (_, status) in FAILING.items()}
    assert (1, 0) == (told.returncode, again.returncode), again.stderr
    assert {"q8_0-q8_0": "finished", **expected} == seen
    assert before == {file: file.read_bytes() for file in before}
    assert ["finished"] * 4 == statuses(path)
    ledger.note("servers of two workers fail", of=folder)


@pytest.mark.parametrize(
    "number", sampled([signal.SIGKILL, signal.SIGINT, signal.SIGTERM], quick=1)
)
def test_workers_that_are_ended_leave_no_server_and_go_on(folder, ledger, number):
    """
    A server that one worker starts at the moment of a SIGKILL is ended by the next
    command: nothing can be told of it before.
    """
    path = folder.path
    command = (*GRID, "--llama-server", server(path, {}))
    faults = [signal_at("write a record", 6, number)]

    code, said = ended(path, *command, faults=faults)
    before = finished(folder)
    is_empty = number == signal.SIGKILL or until(
        lambda: not processes_in(path), unless=lambda: False
    )
    again = called(path, *command)

    assert code == (-number if number == signal.SIGKILL else 130), said
    assert is_clean(said), said
    assert is_empty
    assert until(lambda: not processes_in(path), unless=lambda: False)
    assert 0 == again.returncode, again.stderr
    assert before == {file: file.read_bytes() for file in before}
    assert ["finished"] * 4 == statuses(path)
    ledger.note(f"{number.name} beside two workers", of=folder)


@pytest.mark.parametrize(
    "fault", sampled(["die-in-round=9", "signal=round/19", "half-json"], quick=1)
)
def test_a_server_that_fails_while_more_is_asked_costs_no_answer(folder, ledger, fault):
    path = folder.path
    put_corpus(path, functions=12, of=f"{SHORT}lines = 6\n")
    command = (*MORE, "--llama-server", server(path, {COARSE: ["noisy"]}))
    assert 0 == called(path, *command, "--no-more").returncode
    limit = ("--max-loss", f"{_open_at(path):.9f}%")
    before = _answers(path)

    misbehave(path, {COARSE: ["noisy", fault]})
    told = impatient(*(path, *command, *limit, "--more"), silence_s=1.0, cells=[COARSE])
    failed, status = _answers(path), record(path, COARSE)["status"]
    misbehave(path, {COARSE: ["noisy"]})
    again = called(path, *command, *limit, "--more")
    after = _answers(path)

    assert (1, 0) == (told.returncode, again.returncode), told.stderr + again.stderr
    assert "not measured further: " in told.stderr
    assert "finished" == status
    for answers in (failed, after):
        assert before == {key: answers.get(key) for key in before}
    assert 6 <= len(after)
    assert [] == processes_in(path)
    ledger.note(f"a server fails while more is asked: {fault}", of=folder)


def _open_at(folder):
    """A limit in percent within which nobody can say whether the coarse pair is."""
    shown = called(folder, "verdict", "tiny", "--json")
    pairs = json.loads(shown.stdout)["pairs"]
    (row,) = (pair["metrics"][0] for pair in pairs if pair["v"] == "q4_0")
    return 100 * (row["loss"] + row["high"]) / 2


def _answers(folder):
    """The forced answers of the coarse pair, by function."""
    observation = record(folder, COARSE)["observation"]
    return {each["name"]: each for each in forced(observation)}
