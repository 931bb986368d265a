"""What a build needs of the machine: compilers, cmake, ninja, and how many at once."""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from codeneedle import machine, process
from codeneedle.errors import MachineError
from codeneedle.sourcearchive import DownloadFailed
from codeneedle.workshop import Workshop, last_lines

OLDEST_CMAKE = (3, 24)
"""The first that knows ``native`` as an architecture of CUDA."""

BYTES_PER_JOB = 2 << 30
"""Memory of one compiler at its worst, with room to spare."""

_ASK_TIMEOUT_S = 60.0


class CompilerMissing(MachineError):  # noqa: N818 - named after the fact
    """Nothing here compiles C or C++."""

    def __init__(self, *, missing: str) -> None:
        mend = (
            "xcode-select --install"
            if sys.platform == "darwin"
            else "apt install build-essential (Debian, Ubuntu), "
            "dnf install gcc-c++ (Fedora)"
        )
        super().__init__(f"there is no {missing} to build with", hint=f"Try: {mend}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTools:
    """
    What turns a tree into programs.

    Attributes:
        cmake: Its path.
        ninja: Its path.
    """

    cmake: str
    ninja: str


def cuda_compiler() -> str | None:
    """Path of nvcc, where there also is a GPU to compile for; None otherwise."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    homes += ["/usr/local/cuda", "/opt/cuda"]
    candidates = ["nvcc", *(f"{home}/bin/nvcc" for home in homes if home)]
    nvcc = next((path for name in candidates if (path := shutil.which(name))), None)
    return nvcc if has_nvidia_gpu() else None


def has_nvidia_gpu() -> bool:
    """Whether NVIDIA's driver runs here; Windows' Linux has its own way to it."""
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg"))


def jobs() -> int:
    """Compilers to run at once: one per core, as long as memory lasts."""
    fitting = machine.available_memory_bytes() // BYTES_PER_JOB
    return max(1, min(machine.usable_cores(), fitting))


def refuse_without_compiler() -> None:
    """
    Stop where C or C++ cannot be compiled.

    Raises:
        CompilerMissing: If a compiler is missing.
    """
    if sys.platform == "darwin":
        # The commands are always there; without the tools they ask to install them.
        asked = process.output_of(
            ["/usr/bin/xcode-select", "-p"], timeout_s=_ASK_TIMEOUT_S
        )
        if asked.returncode:
            raise CompilerMissing(missing="compiler")
    for variable, names, language in (
        ("CC", ("cc", "gcc", "clang"), "C"),
        ("CXX", ("c++", "g++", "clang++"), "C++"),
    ):
        if not os.environ.get(variable) and not any(map(shutil.which, names)):
            raise CompilerMissing(missing=f"{language} compiler")


def build_tools(shop: Workshop, pip: Sequence[str]) -> BuildTools:
    """Find cmake and ninja: on PATH if they are new enough, else on PyPI."""
    cmake, ninja = shutil.which("cmake"), shutil.which("ninja")
    if cmake and ninja and _version_of(cmake) >= OLDEST_CMAKE:
        return BuildTools(cmake=cmake, ninja=ninja)
    home = shop.folder / "tools"
    shop.do(
        "fetching cmake and ninja",
        [
            *(*pip, "install", "--only-binary", ":all:", "--target", str(home)),
            *("cmake", "ninja"),
        ],
        failed=lambda log, path: DownloadFailed(
            what="cmake and ninja", log=path, reason=last_lines(log)[-3:]
        ),
    )
    # The programs themselves: the scripts in bin/ need a Python that finds them.
    found = {
        name: next(home.glob(f"{name}/data/bin/{name}"), home / "bin" / name)
        for name in ("cmake", "ninja")
    }
    return BuildTools(cmake=str(found["cmake"]), ninja=str(found["ninja"]))


def _version_of(cmake: str) -> tuple[int, int]:
    try:
        text = process.output_of([cmake, "--version"], timeout_s=_ASK_TIMEOUT_S).stdout
    except MachineError:
        return (0, 0)
    found = re.search(r"version (\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
