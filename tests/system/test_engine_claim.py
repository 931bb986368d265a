"""The note of a living server, and the end of those left behind."""

import json
import os
import signal
import subprocess

import pytest

from codeneedle.system.orphans import (
    FILE,
    TOOL_FILE,
    VARIABLE,
    Claim,
    Unclaimable,
    claimed,
    end_orphans,
    noted,
    started_at,
)

ALIAS = "cell.0a1b2c3d"


@pytest.fixture
def orphan():
    """A process as an earlier start may have left it: in a session of its own."""
    argv = ["/bin/sh", "-c", "echo up; read forever", "--alias", ALIAS]
    pipe = subprocess.PIPE
    child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, start_new_session=True)
    with child:
        assert child.stdout is not None
        child.stdout.readline()  # a process has no command line in its first moments
        yield child
        child.kill()


def note(folder, **facts):
    (folder / FILE).write_text(json.dumps({"alias": ALIAS, "port": 1, **facts}))


def test_an_orphan_is_found_and_ended(orphan, tmp_path):
    """
    Pid, start time and alias are those of the note.
    """
    note(tmp_path, pid=orphan.pid, born=started_at(orphan.pid))

    [claim] = end_orphans(tmp_path)

    assert orphan.pid == claim.pid
    assert "server" == claim.what
    assert -signal.SIGINT == orphan.wait()
    assert not (tmp_path / FILE).exists()


def test_an_orphan_whose_pid_was_never_noted_is_found_by_its_alias(orphan, tmp_path):
    """
    We may have been killed between its start and the note.
    """
    note(tmp_path)

    [claim] = end_orphans(tmp_path)

    assert orphan.pid == claim.pid
    assert "server" == claim.what
    assert -signal.SIGINT == orphan.wait()


@pytest.mark.parametrize(
    "facts",
    [
        {"born": 1.0},
        {"born": None},
        {"alias": "cell.ffffffff"},
        {"alias": "forever"},
        {"alias": "--alias"},
        {"pid": os.getpid(), "born": started_at(os.getpid())},
        {"port": None},
    ],
)
def test_a_stranger_with_the_same_pid_is_left_alone(facts, orphan, tmp_path):
    """
    One fact that differs is enough; only the note goes.
    """
    note(tmp_path, **({"pid": orphan.pid, "born": started_at(orphan.pid)} | facts))

    assert [] == end_orphans(tmp_path)
    assert orphan.poll() is None
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", '{"pid": 1}', '{"alias": 3}', '{"alias": "sweep"}'),
        *(
            json.dumps({"alias": ALIAS, "port": 1, "pid": pid, "born": None})
            for pid in (-1, 0, 1, 2**31, 2**70)
        ),
    ],
)
def test_a_note_that_is_none_is_removed(content, tmp_path):
    """
    Nobody is ended for it.
    """
    (tmp_path / FILE).write_text(content)

    assert [] == end_orphans(tmp_path)
    assert not (tmp_path / FILE).exists()


def test_no_note_is_no_orphan(tmp_path):
    """
    Most starts find nothing.
    """
    assert [] == end_orphans(tmp_path)
    assert [] == end_orphans(tmp_path / "gone")


def test_a_note_stays_as_long_as_its_server(orphan, tmp_path):
    """
    What could not be stopped must be found at the next start.
    """
    with claimed(tmp_path, alias=ALIAS, port=1) as claimant:
        claimant.note(orphan.pid)
    stayed = (tmp_path / FILE).exists()
    with claimed(tmp_path, alias="cell.ffffffff", port=1) as claimant:
        claimant.note(os.getpid())

    assert stayed
    assert not (tmp_path / FILE).exists()


def test_a_folder_that_takes_no_file_is_named(tmp_path):
    """
    Disk full, read-only or gone: the sweep cannot go on.
    """
    with (
        pytest.raises(Unclaimable) as caught,
        claimed(tmp_path / "gone", alias=ALIAS, port=1),
    ):
        pass

    assert "gone" in str(caught.value)


def test_a_process_started_when_it_did():
    """
    The start time of a pid does not change, and nobody's is none.
    """
    mine = started_at(os.getpid())

    assert mine is not None
    assert mine == started_at(os.getpid())
    assert started_at(2**22 + 1) is None


def test_a_claim_without_a_process_is_nobody():
    """
    The alias of a server that never started stands on no command line.
    """
    assert Claim(alias="cell.00000000", port=1).process() is None


@pytest.fixture
def tool():
    """A child without an alias on its command line, known by its environment."""
    child = subprocess.Popen(
        ["/bin/sh", "-c", "echo up; read forever"],
        env={VARIABLE: "llama-bench.0a1b2c3d"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


@pytest.mark.parametrize("folder", ["", "logs"])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_tool_that_was_left_behind_is_ended(tool, tmp_path, folder, is_known):
    """
    It is known by its environment; its note lies beside its log.
    """
    facts = {"pid": tool.pid, "born": started_at(tool.pid)} if is_known else {}
    note = tmp_path / folder / TOOL_FILE
    note.parent.mkdir(exist_ok=True)
    note.write_text(json.dumps({"alias": "llama-bench.0a1b2c3d", **facts}))

    [claim] = end_orphans(tmp_path)

    assert (tool.pid, "llama-bench") == (claim.pid, claim.what)
    assert -signal.SIGINT == tool.wait()
    assert not note.exists()


def test_a_noted_child_can_be_found_while_it_lives(tmp_path):
    """
    Pid, start time and mark are on disk, and gone with it.
    """
    with noted(["/bin/cat"], env={}, log=tmp_path / "cat.log") as child:
        child.wait()
    with noted(["/bin/sleep", "60"], env={}, log=tmp_path / "sleep.log") as child:
        note = json.loads((tmp_path / TOOL_FILE).read_text())
        # The system shows the environment of a child a moment after its start.
        while (found := Claim(**note).process()) is None:
            assert child.poll() is None

    assert child.pid == note["pid"] == found
    assert "sleep" == Claim(**note).what
    assert not (tmp_path / TOOL_FILE).exists()
