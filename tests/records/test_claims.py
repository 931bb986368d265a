"""Claims: one owner per cell, heartbeats, and who takes over when."""

import os
import threading
from pathlib import Path

import pytest

from codeneedle.records import claims
from codeneedle.records.claims import STALE_S, Claims

CELL = "q8_0-q4_0.recall"
HOUR_NS = 3600 * 10**9


@pytest.fixture
def at():
    """Our clock, in seconds."""
    return [0.0]


@pytest.fixture
def ours(tmp_path, at):
    """This process, by a clock that a test sets."""
    with Claims(tmp_path, clock=lambda: at[0]) as found:
        yield found


@pytest.fixture
def far_away(tmp_path, monkeypatch):
    """A process of another host."""
    with monkeypatch.context() as patch:
        patch.setattr(claims, "this_host", lambda: "far away")
        found = Claims(tmp_path)
        with found:
            yield found


def test_of_several_who_claim_a_cell_one_owns_it(ours, far_away):
    """
    The owner may ask again; a finished cell leaves no file of a claim.
    """
    mine = ours.take(CELL)

    assert mine is ours.take(CELL)
    assert mine.is_mine()
    assert far_away.take(CELL) is None
    mine.remove()
    assert not list(ours.folder.glob("*claim*"))


def test_of_eight_at_once_one_owns_it(tmp_path):
    """
    The file system decides, not what they saw before.
    """
    several = [Claims(tmp_path) for _ in range(8)]
    start, found = threading.Barrier(8), []

    def claim(who):
        with who:
            start.wait()
            found.append(who.take(CELL))
            start.wait()

    threads = [threading.Thread(target=claim, args=(who,)) for who in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 1 == len([each for each in found if each])


def test_what_an_ended_process_left_is_taken_over_at_once(ours, tmp_path):
    """
    Its file is gone; the former claim stays, so that numbers never begin anew.
    """
    with Claims(tmp_path) as former:
        left = former.take(CELL)

    mine = ours.take(CELL)

    assert mine is not None
    assert not left.is_mine()
    assert [f"{CELL}.claim-1", f"{CELL}.claim-2"] == sorted(
        path.name for path in tmp_path.glob("*claim*")
    )
    mine.remove()
    assert not list(tmp_path.glob("*claim*"))


def test_a_killed_process_of_this_host_is_known_to_be_gone(ours, tmp_path, monkeypatch):
    """
    Its file is there, and the process is not: nothing is waited for.
    """
    killed = Claims(tmp_path)
    killed.__enter__()
    killed.take(CELL)
    killed._ended.set()

    assert ours.take(CELL) is None
    monkeypatch.setattr(claims.Process, "is_alive", lambda _: False)
    assert ours.take(CELL).is_mine()


@pytest.mark.parametrize("hour_ns", [-HOUR_NS, 0, HOUR_NS])
def test_a_host_that_beats_keeps_its_cell_whatever_its_clock_says(
    ours, far_away, at, hour_ns
):
    """
    The time that a file bears is compared with that of the same file alone.
    """
    theirs = far_away.take(CELL)
    owner = next(p for p in ours.folder.glob("*.owner") if "far" in p.read_text())
    now_ns = owner.stat().st_mtime_ns + hour_ns

    for beat in range(4):
        os.utime(owner, ns=(now_ns + beat, now_ns + beat))
        assert ours.take(CELL) is None
        at[0] += STALE_S

    assert theirs.is_mine()


@pytest.mark.parametrize("hour_ns", [-HOUR_NS, 0, HOUR_NS])
def test_a_host_that_does_not_beat_loses_its_cell(ours, far_away, at, hour_ns):
    """
    After the time that it may be silent, by the clock of who waits, and not before.
    """
    theirs = far_away.take(CELL)
    owner = next(p for p in ours.folder.glob("*.owner") if "far" in p.read_text())
    beat_ns = owner.stat().st_mtime_ns + hour_ns
    os.utime(owner, ns=(beat_ns, beat_ns))

    assert ours.take(CELL) is None
    at[0] = STALE_S - 1
    assert ours.take(CELL) is None
    at[0] = STALE_S + 1

    assert ours.take(CELL).is_mine()
    # It comes back from a long sleep: the cell is not its any more.
    assert not theirs.is_mine()
    assert far_away.take(CELL) is None


def test_a_claim_that_is_still_empty_is_watched_like_any_other(ours, at):
    """
    Its owner may be about to write its name, or may have been killed before.
    """
    Path(ours.folder / f"{CELL}.claim-1").touch()

    assert ours.take(CELL) is None
    at[0] = STALE_S + 1
    assert ours.take(CELL).is_mine()


def test_a_living_process_touches_its_file(ours, tmp_path, monkeypatch):
    """
    Its time changes and its size does not: that works on a full disk, too.
    """
    monkeypatch.setattr(claims, "HEARTBEAT_S", 0.001)
    with Claims(tmp_path) as other:
        file = other._file(other._name)
        os.utime(file, ns=(0, 0))
        while file.stat().st_mtime_ns == 0:
            pass
    assert not file.exists()
