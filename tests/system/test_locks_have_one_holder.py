"""A lock has one holder, and no link or pipe takes its place."""

import os
import platform

import pytest

from codeneedle.system.files import holding_lock, lock_holder


def test_a_lock_has_one_holder(tmp_path):
    path = tmp_path / "lock"
    assert "" == lock_holder(path)
    with holding_lock(path), pytest.raises(BlockingIOError), holding_lock(path):
        pass

    assert f"pid {os.getpid()} on {platform.node()}" == lock_holder(path)
    with holding_lock(path, is_shared=True):
        assert "" == lock_holder(path)


def test_a_lock_may_be_waited_for(tmp_path):
    path = tmp_path / "lock"
    holder = holding_lock(path)
    holder.__enter__()
    waits = []

    def waiting():
        waits.append(True)
        if len(waits) == 3:
            holder.__exit__(None, None, None)

    with holding_lock(path, waiting=waiting):
        pass

    assert 3 == len(waits)


def test_a_lock_whose_file_was_taken_away_is_lost(tmp_path):
    path = tmp_path / "lock"
    with holding_lock(path) as lock:
        assert not lock.is_lost()
        path.unlink()
        assert lock.is_lost()
        path.touch()
        assert lock.is_lost()


def test_a_lock_is_neither_waited_for_as_a_pipe_nor_made_behind_a_link(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("victim")

    with holding_lock(tmp_path / "pipe"):
        pass
    with (
        pytest.raises(OSError, match="symbolic links"),
        holding_lock(tmp_path / "link"),
    ):
        pass

    assert not (tmp_path / "victim").exists()
