"""Commands wait for what they use, and for nothing else."""

import subprocess
import sys

import pytest
from made_records import stored_run

HEAVY = {
    "esprima",
    "gguf",
    "httpx",
    "matplotlib",
    "msgspec",
    "numpy",
    "pandas",
    "psutil",
    "rapidfuzz",
    "rich",
    "scipy",
    "seaborn",
    "tree_sitter",
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A folder of run folders with one run."""
    root = tmp_path_factory.mktemp("sweeps")
    stored_run(root)
    return root


def loaded_by(*command):
    """The modules of `HEAVY` that are there when *command* is through."""
    program = (
        "import sys\n"
        "from codeneedle import __main__\n"
        f"sys.argv = {['codeneedle', *map(str, command)]!r}\n"
        "try:\n"
        "    __main__.main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        f"print('loaded:', *({HEAVY!r} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rpartition("loaded:")[2].split())


@pytest.mark.parametrize(
    "command", ["--help", "--version", "grid --help", "corpus --help", "llama --help"]
)
def test_help_imports_no_library_of_the_work(command):
    """
    Neither for numbers, nor for pictures, parsers, the network or the terminal.
    """
    assert set() == loaded_by(*command.split())


@pytest.mark.parametrize("command", ["sweep --help", "plan --help"])
def test_help_on_a_sweep_imports_neither_reports_nor_rich(command):
    """
    It names the settings of all probes, so the probes are imported.
    """
    loaded = loaded_by(*command.split())

    assert {"msgspec", "psutil"} >= loaded


@pytest.mark.parametrize("command", ["grid", "table", "show", "memory"])
def test_text_imports_no_pictures_no_data_frames_and_no_client(swept, command):
    """
    What is printed is made of plain values, and no server is asked.
    """
    pair = ["q8_0/q4_0"] if command == "show" else []

    loaded = loaded_by(command, "random", *pair, "--out", swept)

    assert set() == loaded & {"httpx", "matplotlib", "pandas", "scipy", "seaborn"}
