"""
llama.cpp's programs: where they are, their version, options, cache
types and devices.
"""

import contextlib
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from codeneedle import __version__
from codeneedle.errors import MachineError
from codeneedle.system import processes
from codeneedle.system.files import cache_folder, expanded, leads_somewhere

_VERSION = re.compile(r"^version: *(?P<version>.+?)\s*$", re.MULTILINE)
_BUILD = re.compile(r"build (?P<new>\d+)|^(?P<old>\d+) \(")

_OPTION_LINE = re.compile(r"\*? {0,14}-")
"""Descriptions stand further to the right; old builds mark some lines with a star."""

_OPTION_NAMES = re.compile(r"(?:-{1,2}[\w-]+)(?:,\s*-{1,2}[\w-]+)*")
_ALLOWED = re.compile(r"allowed values:\s*([A-Za-z][\w.]*(?:\s*,\s*[A-Za-z][\w.]*)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Help:
    """
    What the two texts say.

    Attributes:
        version: As it is stated, without the word.
        build: Number of the build; None where there is none.
        k_types: Cache types accepted for K; empty if the text does not tell.
        v_types: Cache types accepted for V; likewise.
        options: Long names of all options.
    """

    version: str
    build: int | None
    k_types: tuple[str, ...]
    v_types: tuple[str, ...]
    options: frozenset[str]


def read_help(version_text: str, help_text: str) -> Help | None:
    """What the texts say; None if they are not llama-server's."""
    found = _VERSION.search(version_text)
    sections = _sections(help_text)
    options = frozenset(
        name for names in sections for name in names if name.startswith("--")
    )
    if found is None or "--cache-type-k" not in options:
        return None
    build = _BUILD.search(found["version"])
    return Help(
        version=found["version"],
        build=int(build["new"] or build["old"]) if build else None,
        k_types=_types(sections, "--cache-type-k"),
        v_types=_types(sections, "--cache-type-v"),
        options=options,
    )


def _sections(help_text: str) -> dict[tuple[str, ...], str]:
    """The text of each option, by its names, long and short."""
    sections: dict[tuple[str, ...], str] = {}
    names: tuple[str, ...] = ()
    for line in help_text.splitlines():
        if _OPTION_LINE.match(line):
            found = _OPTION_NAMES.search(line)
            names = tuple(re.split(r",\s*", found[0])) if found else ()
            sections[names] = line
        elif not line.strip() or not line.startswith(" "):
            names = ()
        elif names:
            sections[names] += f" {line.strip()}"
    return sections


def _types(sections: dict[tuple[str, ...], str], option: str) -> tuple[str, ...]:
    for names, text in sections.items():
        found = _ALLOWED.search(text)
        if option in names and found:
            return tuple(dict.fromkeys(re.split(r"\s*,\s*", found[1])))
    return ()


SERVER, PERPLEXITY, BENCH = "llama-server", "llama-perplexity", "llama-bench"
VARIABLE = "LLAMA_SERVER"
"""Environment variable that names a llama-server."""

PINNED_BUILD = 11434
"""The release of llama.cpp that ``codeneedle llama`` builds."""

_ASK_TIMEOUT_S = 60.0
"""Long: the first start on a GPU may compile its kernels."""

_DEVICE = re.compile(
    r"\s+(?P<name>[\w:.-]+): (?P<what>.+?) \((?P<mib>\d+) MiB, \d+ MiB free\)\s*"
)


class LlamaMissing(MachineError):  # noqa: N818 - named after the fact
    """No llama-server anywhere."""

    def __init__(self) -> None:
        super().__init__(
            f"{SERVER} is nowhere to be found",
            hint="Build it with 'codeneedle llama' (some minutes, once), or install it "
            "with 'brew install llama.cpp', or point --llama-server at one.",
        )


class LlamaUnusable(MachineError):  # noqa: N818 - named after the fact
    """What was pointed at is no program."""

    def __init__(self, *, path: Path, source: str, reason: str) -> None:
        super().__init__(
            f"{path}, from {source}, {reason}",
            hint=f"Point at the program itself: /path/to/{SERVER}. Without {source}, "
            "it is looked for on PATH and in the cache folder.",
        )


class LlamaBroken(MachineError):  # noqa: N818 - named after the fact
    """The program does not run, or not to its end."""

    def __init__(
        self, *, path: Path, question: str, returncode: int, last_words: str
    ) -> None:
        how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
        said = f": {last_words}" if last_words else ""
        super().__init__(
            f"{path} {question} ends with {how}{said}",
            hint="Install or build it again, or use another one with --llama-server.",
        )


class NotLlamaServer(MachineError):  # noqa: N818 - named after the fact
    """A program that answers, but not as llama-server does."""

    def __init__(self, *, path: Path, answer: str) -> None:
        super().__init__(
            f"{path} does not answer as {SERVER} does, but: {answer or 'nothing'}",
            hint=f"Point --llama-server at the {SERVER} of llama.cpp.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """
    The programs of one installation.

    Attributes:
        server: llama-server.
        perplexity: llama-perplexity; None where it is not beside the server.
        bench: llama-bench; likewise.
        source: Where the server was found, as a phrase.
    """

    server: Path
    perplexity: Path | None
    bench: Path | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """
    What a llama-server says about itself.

    Attributes:
        version: As it states it: ``0.6.0-dev (build 11434, commit unknown)``.
        build: Number of the build; None where it states none.
        k_types: Cache types that it accepts for K; empty if it does not tell.
        v_types: Cache types that it accepts for V; likewise.
        options: Long names of all its options: ``--fit``.
        devices: Accelerators, with their memory: ``CUDA0 NVIDIA L4 (22563 MiB)``.
    """

    version: str
    build: int | None
    k_types: tuple[str, ...]
    v_types: tuple[str, ...]
    options: frozenset[str]
    devices: tuple[str, ...]


def built_folder() -> Path:
    """Where ``codeneedle llama`` leaves the pinned release."""
    return cache_folder() / "llama.cpp" / f"b{PINNED_BUILD}"


def find(*, llama_server: Path | None = None) -> Tools:
    """
    The programs to use.

    Looked for in this order: the argument, the environment, ``PATH``, the cache
    folder.

    Args:
        llama_server: What ``--llama-server`` says.

    Raises:
        LlamaUnusable: If the argument or the environment name no program.
        LlamaMissing: If there is none.
    """
    if llama_server is not None:
        return _named(llama_server, source="--llama-server")
    if named := os.environ.get(VARIABLE):
        return _named(Path(named), source=VARIABLE)
    if on_path := shutil.which(SERVER):
        return _tools(Path(on_path).absolute(), source="PATH")
    built = built_folder() / SERVER
    if _is_program(built):
        return _tools(built, source="the cache folder")
    raise LlamaMissing


def ask(server: Path) -> ServerFacts:
    """
    What *server* says about itself.

    Its version and options are remembered for as long as the file stays the
    same. Its devices are not: they come, go, and depend on the environment.

    Raises:
        MachineError: If it crashes, hangs, or is something else.
    """
    note = cache_folder() / "llama.cpp" / "answers" / f"{_identity(server)}.json"
    answers = _remembered(note)
    if answers is None:
        answers = read_help(_output(server, "--version"), _output(server, "--help"))
        if answers is None:
            answer = _output(server, "--version").strip()
            raise NotLlamaServer(path=server, answer=answer[:200])
        _remember(note, answers)
    return ServerFacts(
        version=answers.version,
        build=answers.build,
        k_types=answers.k_types,
        v_types=answers.v_types,
        options=answers.options,
        devices=devices(server) if "--list-devices" in answers.options else (),
    )


def devices(server: Path) -> tuple[str, ...]:
    """The accelerators that *server* would use, in its order, without free memory."""
    matches = map(_DEVICE.fullmatch, _output(server, "--list-devices").splitlines())
    return tuple(
        f"{found['name']} {found['what']} ({found['mib']} MiB)"
        for found in matches
        if found
    )


def _named(path: Path, *, source: str) -> Tools:
    path = expanded(path)
    if os.sep not in str(path) and (on_path := shutil.which(str(path))):
        path = Path(on_path)
    path = path.absolute()
    if path.is_dir():
        _refuse(path, source, "is a folder")
    if not leads_somewhere(path):
        _refuse(path, source, "does not exist")
    if not _is_program(path):
        _refuse(path, source, "is not executable")
    return _tools(path, source=source)


def _refuse(path: Path, source: str, reason: str) -> NoReturn:
    raise LlamaUnusable(path=path, source=source, reason=reason)


def _tools(server: Path, *, source: str) -> Tools:
    return Tools(
        server=server,
        perplexity=_beside(server, PERPLEXITY),
        bench=_beside(server, BENCH),
        source=source,
    )


def _beside(server: Path, name: str) -> Path | None:
    """
    The program *name* of the same installation.

    Both folders are tried: Homebrew links programs from elsewhere into one
    folder, other people link the server alone into theirs.
    """
    for folder in dict.fromkeys((server.parent, server.resolve().parent)):
        if _is_program(folder / name):
            return folder / name
    return None


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _output(server: Path, question: str) -> str:
    child = processes.output_of([str(server), question], timeout_s=_ASK_TIMEOUT_S)
    text = child.stdout + child.stderr
    # Programs of other kinds and old servers end with 1 after a usage text.
    if child.returncode < 0 or (child.returncode and not child.stdout):
        last_words = text.strip().splitlines()[-1:]
        raise LlamaBroken(
            path=server,
            question=question,
            returncode=child.returncode,
            last_words=" ".join(last_words)[:300],
        )
    return text


def _identity(server: Path) -> str:
    at = server.stat()
    # Our version is part of it, because another one may read the texts otherwise.
    text = f"{__version__} {server.resolve()} {at.st_size} {at.st_mtime_ns}"
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def _remembered(note: Path) -> Help | None:
    try:
        return msgspec.json.decode(note.read_bytes(), type=Help)
    except (OSError, ValueError, RecursionError):
        return None


def _remember(note: Path, answers: Help) -> None:
    draft = note.with_name(f"{note.name}.draft-{os.getpid()}")
    # A cache that cannot be written costs time, nothing else.
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.json.encode(answers))
        draft.replace(note)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
