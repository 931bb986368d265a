"""The lock of a run folder."""

import pytest

from codeneedle.system.files import (
    LOCK,
    FolderBusy,
    FolderLost,
    hold,
    opened,
    refuse_lost,
)


def test_a_lock_has_one_holder(tmp_path):
    """
    The second one is told, until the first one lets go.
    """
    with opened(tmp_path / LOCK) as first, opened(tmp_path / LOCK) as second:
        hold(first, folder=tmp_path)
        with pytest.raises(FolderBusy):
            hold(second, folder=tmp_path)
        first.close()
        hold(second, folder=tmp_path)


def test_a_folder_that_was_taken_away_is_noticed(tmp_path):
    """
    Whoever comes next finds another lock, or none: both are not ours.
    """
    with opened(tmp_path / LOCK) as file:
        hold(file, folder=tmp_path)
        refuse_lost(file, folder=tmp_path)
        (tmp_path / LOCK).unlink()
        with pytest.raises(FolderLost, match="removed or moved"):
            refuse_lost(file, folder=tmp_path)
        (tmp_path / LOCK).touch()
        with pytest.raises(FolderLost):
            refuse_lost(file, folder=tmp_path)
