"""What fails before the program is loaded is told in a line, with exit code 3."""

import resource
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def started(*argv, memory_bytes=None):
    """Exit code and stderr of a Python program, with a limit of its address space."""

    def limit():
        if memory_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))

    done = subprocess.run(
        [sys.executable, *argv],
        preexec_fn=limit,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no such limit")
@pytest.mark.parametrize("mib", [25, 40, 60, 80, 110, 200])
def test_too_little_memory_to_load_numpy_is_told_before_it_is_loaded(mib, golden):
    """OpenBLAS would end the process with exit code 1, and imports with a traceback."""
    code, said = started("-m", "codeneedle", "grid", "x", memory_bytes=mib << 20)

    assert 3 == code, said
    assert golden == said


@pytest.mark.parametrize(
    "error",
    [
        "MemoryError()",
        "OSError(24, 'Too many open files')",
        "ImportError('no msgspec')",
    ],
    ids=["memory", "files", "module"],
)
def test_a_program_that_cannot_be_loaded_says_so_in_a_line(error, golden):
    program = f"""
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "codeneedle.cli.app":
            raise {error}
sys.meta_path.insert(0, Finder())
from codeneedle.__main__ import main
main()
"""
    code, said = started("-c", program)

    assert 3 == code, said
    assert golden == said
