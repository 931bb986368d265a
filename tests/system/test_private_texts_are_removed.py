"""What is private goes with its block, or with the next command."""

import subprocess
import sys
from pathlib import Path

import pytest

from codeneedle.errors import FolderUnusable
from codeneedle.system.files import CACHE_VARIABLE, temporary_private_folder
from codeneedle.system.orphans import end_orphans_and_clean_up

TELLS = """
from codeneedle.system.files import temporary_private_folder
with temporary_private_folder() as folder:
    (folder / "server.log").write_text("what was said")
    print(folder, flush=True)
    input()
"""


@pytest.mark.slow
def test_what_a_killed_program_kept_private_goes_with_the_next_command(
    tmp_path, monkeypatch
):
    """A server that renders conversations may quote them in its log."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", TELLS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        folder = Path(program.stdout.readline().strip())
        mode = folder.stat().st_mode & 0o777
        end_orphans_and_clean_up()
        is_kept_in_use = (folder / "server.log").exists()
        program.kill()
    is_left = (folder / "server.log").exists()
    end_orphans_and_clean_up()

    assert (0o700, True, True) == (mode, is_kept_in_use, is_left)
    assert not folder.exists()


def test_a_private_folder_is_gone_after_its_block(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    with temporary_private_folder() as folder:
        (folder / "log").write_text("what was said")

    assert not folder.exists()


def test_without_a_place_for_a_private_folder_a_hint_names_the_variable(
    tmp_path, monkeypatch
):
    (tmp_path / "cache").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))

    with pytest.raises(FolderUnusable) as caught, temporary_private_folder():
        pass

    assert CACHE_VARIABLE in caught.value.hint
