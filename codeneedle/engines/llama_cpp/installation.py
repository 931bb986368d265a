"""
llama.cpp's programs: where they are looked for, which are too old, and what they say of
themselves: version, options, cache types, devices, compiled pairs.
"""

import functools
import os
import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from typing_extensions import override

from codeneedle.cache_types import Pair
from codeneedle.engines.exit_causes import exit_phrase
from codeneedle.engines.llama_cpp.release import USABLE_RECIPES, built_folder
from codeneedle.engines.reasons import find_most_telling_trouble
from codeneedle.errors import ToolFailed, ToolMissing
from codeneedle.system import processes
from codeneedle.system.contents import joint_hash
from codeneedle.system.files import exists, expand_home, refuse_unreadable

SERVER, PERPLEXITY, BENCH = "llama-server", "llama-perplexity", "llama-bench"
FIT_PARAMS = "llama-fit-params"
"""Tells what a model would take, and where it would run, without its weights."""

LLAMA = "llama"
"""The single program of upstream's installer, with all others as subcommands."""

SUBCOMMANDS = {
    SERVER: "serve",
    PERPLEXITY: "perplexity",
    BENCH: "bench",
    FIT_PARAMS: "fit-params",
}
"""What `LLAMA` calls the programs (``app/llama.cpp``); most are hidden in its help."""

CACHE = "the cache folder"
"""Where ``codeneedle llama`` builds, as a phrase."""

VARIABLE = "LLAMA_SERVER"
"""Environment variable that names a llama-server."""

ASK_TIMEOUT_S = 60.0
"""Long: the first start on a GPU may compile its kernels."""

TRY_TIMEOUT_S = 20.0
"""How long a program of the name ``llama`` may take to say which one it is."""

_VERSION = re.compile(r"^version: *(?P<version>.+?)\s*$", re.MULTILINE)
_BUILD = re.compile(r"build (?P<new>\d+)|^(?P<old>\d+) \(")

_OPTION_LINE = re.compile(r"\*? {0,14}-")
"""Descriptions stand further to the right; old builds mark some lines with a star."""

_OPTION_NAMES = re.compile(r"(?:-{1,2}[A-Za-z][\w.-]*)(?:,\s*-{1,2}[A-Za-z][\w.-]*)*")
_ALLOWED = re.compile(r"allowed values:\s*([A-Za-z][\w.]*(?:\s*,\s*[A-Za-z][\w.]*)*)")
_DEVICE = re.compile(
    r"\s+(?P<name>[\w:.-]+): (?P<what>.+?) \((?P<mib>\d+) MiB, \d+ MiB free\)\s*"
)
_FEATURES = re.compile(r"\bsystem_info: .*\bCPU : ((?:\w+ = \d+ \|? ?)+)")
_FA_QUANTS = re.compile(
    r"\bsystem_info: .*\bFA_(?:QUANTS = ([\w,; -]+?)|ALL_QUANTS = 1) \|"
)


@dataclass(frozen=True, slots=True)
class Program:
    """How a program of llama.cpp is started: by itself, or by ``llama``."""

    path: Path  # of the file
    subcommand: str = ""  # of `LLAMA`: ``serve``; empty for a separate program

    @property
    def command_words(self) -> tuple[str, ...]:
        """The words that start it, in front of its arguments: path and subcommand."""
        return (str(self.path), *self.subcommand.split())

    @property
    def name(self) -> str:
        """What a user types: ``llama-server``, ``llama serve``."""
        return f"{self.path.name} {self.subcommand}".strip()

    @override
    def __str__(self) -> str:
        return " ".join(self.command_words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The programs of one installation; None where one is not beside the server."""

    server: Program  # llama-server
    perplexity: Program | None  # llama-perplexity
    bench: Program | None  # llama-bench
    source: str  # where the server was found, as a phrase
    fit_params: Program | None = None  # llama-fit-params


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a llama-server says about itself."""

    version: str  # as it states it: ``0.6.0-dev (build 11434, commit unknown)``
    build: int | None  # number of the build; None where it states none
    k_types: tuple[str, ...]
    """Cache types that it accepts for K; empty if it does not tell."""

    v_types: tuple[str, ...]
    """Cache types that it accepts for V; empty if it does not tell."""

    options: frozenset[str]  # long names of all its options: ``--fit``
    devices: tuple[str, ...] = ()
    """Accelerators, with their memory: ``CUDA0 NVIDIA L4 (22563 MiB)``."""

    cpu_features: str = ""
    """What it uses of the processor: ``AVX AVX2 FMA``; empty if it does not tell."""

    fa_quants: str = ""
    """
    Pairs that CUDA or HIP were compiled for: ``q8_0-q8_0,q4_0-q4_0``, or ``all``; empty
    if it does not tell, or has neither.
    """

    def has_compiled(self, pair: Pair) -> bool | None:
        """
        Whether CUDA or HIP were compiled for *pair*; None if they do not tell.

        All builds have f16, which they convert other pairs to (``fattn.cu``).
        """
        if pair == Pair("f16", "f16") or self.fa_quants == "all":
            return True
        names = re.split(r"[,;]\s*", self.fa_quants)
        return f"{pair.k}-{pair.v}" in names if self.fa_quants else None


def locate_tools(*, llama_server: Path | None = None) -> Tools:
    """
    The programs to use.

    Searched in this order: the argument, the environment, ``PATH``, the cache folder.

    Args:
        llama_server: The value of ``--llama-server``.

    Raises:
        ToolFailed: If the argument or the environment name no program.
        ToolMissing: If there is none.
    """
    if llama_server is not None:
        return _tools_of_named_program(llama_server, source="--llama-server")
    if named := os.environ.get(VARIABLE):
        return _tools_of_named_program(Path(named), source=VARIABLE)
    if on_path := shutil.which(SERVER):
        return _tools_beside_server(Program(Path(on_path).absolute()), source="PATH")
    single = shutil.which(LLAMA)
    if single and _has_subcommand(Path(single).absolute(), SERVER):
        return _tools_beside_server(
            _subcommand_program(Path(single).absolute(), SERVER), source="PATH"
        )
    for recipe in USABLE_RECIPES:
        built = built_folder(recipe) / SERVER
        if _is_program(built):
            return _tools_beside_server(Program(built), source=CACHE)
    other = f"; {single} is another program" if single else ""
    raise ToolMissing(
        tool=SERVER,
        reason=f"was not found on PATH or in the cache folder, nor was {LLAMA}{other}",
        hint="Build it with 'codeneedle llama' (some minutes, once), or install it "
        "with 'brew install llama.cpp', or name one with --llama-server.",
    )


def ask_server_facts(server: Program) -> ServerFacts:
    """
    What *server* says about itself.

    Raises:
        ToolFailed: If it crashes, hangs, is too old, or is another program.
    """
    version, help_text = _ask_server(server, "--version"), _ask_server(server, "--help")
    facts = read_help(version, help_text)
    if facts is None:
        answer = version.strip()[:200] or "nothing"
        raise ToolFailed(
            tool=str(server),
            reason=f"does not answer as {SERVER} does, but: {answer}",
            hint=f"Name {SERVER} or {LLAMA} of llama.cpp with --llama-server.",
        )
    if is_too_old(facts, help_text):
        raise ToolFailed(
            tool=str(server),
            reason=f"is too old: {facts.version}; --flash-attn takes a value from "
            f"build {OLDEST_BUILD} on",
            hint="Install a newer one, or build it with 'codeneedle llama'.",
        )
    told = _ask_system_info_with_retries(server, facts.options)
    facts = replace(
        facts,
        cpu_features=parse_cpu_features(told),
        fa_quants=parse_compiled_pairs(told),
    )
    if "--list-devices" not in facts.options:
        return facts
    return replace(facts, devices=list_devices(server))


_INFO = "system_info:"
"""Begins the line that says what is used of the machine."""

INFO_TRIES = 3
"""
Calls until a server is one that tells nothing of its system.

Its log is written by a thread that ends with it: llama.cpp #22142.
"""

OLDEST_BUILD = 6325
"""The first whose ``--flash-attn`` takes ``on``: llama.cpp #15434, 2025-08-30."""

_NO_NUMBER = 1000
"""Builds of an archive, or of a clone without history, state a lower one."""

_FLASH_FLAG = re.compile(r"--flash-attn(?P<value>[ =]\S)?")
"""In a help; descriptions stand further to the right."""


def is_too_old(facts: ServerFacts, help_text: str) -> bool:
    """Whether ``--flash-attn`` takes no value, by the help; else by the build."""
    if flag := _FLASH_FLAG.search(help_text):
        return not flag["value"]
    return facts.build is not None and _NO_NUMBER < facts.build < OLDEST_BUILD


_LIBRARIES = ("lib*.so*", "lib*.dylib")
_OWN_LIBRARIES = ("libggml", "libllama", "libmtmd")


def list_llama_libraries(program: Path) -> Iterator[Path]:
    """
    The shared libraries of llama.cpp beside *program*, or in ``lib`` beside its folder.

    Sorted by name in each.
    """
    folder = program.resolve().parent
    for place in (folder, folder.parent / "lib"):
        for pattern in _LIBRARIES:
            yield from sorted(filter(is_library_of_llama, place.glob(pattern)))


def is_library_of_llama(path: Path) -> bool:
    """Whether *path* is called like a library of llama.cpp."""
    return path.name.startswith(_OWN_LIBRARIES)


def program_hashes(tools: Tools) -> dict[str, str]:
    """A hash of each program of *tools*, with its libraries, by name."""
    programs = (tools.server, tools.perplexity, tools.bench, tools.fit_params)
    return {
        program.name: joint_hash((program.path, *list_llama_libraries(program.path)))
        for program in programs
        if program
    }


def list_devices(server: Program) -> tuple[str, ...]:
    """The accelerators that *server* would use, in its order, without free memory."""
    matches = map(_DEVICE.fullmatch, _ask_server(server, "--list-devices").splitlines())
    return tuple(
        f"{match['name']} {match['what']} ({match['mib']} MiB)"
        for match in matches
        if match
    )


def _ask_system_info_with_retries(server: Program, options: Collection[str]) -> str:
    """The answer of `ask_system_info`, asked again where it lacks `_INFO`."""
    told = ""
    for _ in range(INFO_TRIES):
        told = ask_system_info(server, options)
        if _INFO in told:
            break
    return told


def ask_system_info(server: Program, options: Collection[str]) -> str:
    """
    All that *server* prints when it is to load an empty file; empty if it cannot run.

    It tells of its backends before it loads a model, and ends at once on this one.
    """
    loudly = ("--verbosity", "4") if "--verbosity" in options else ()
    argv = [*server.command_words, "--model", os.devnull, "--port", "0", *loudly]
    try:
        answer = processes.run_for_output(argv, timeout_s=ASK_TIMEOUT_S)
    except ToolFailed:
        return ""
    return answer.stdout + answer.stderr


def parse_cpu_features(told: str) -> str:
    """What is used of the processor, as the program *told*; empty if it did not."""
    match = _FEATURES.search(told)
    stated = match[1].split("|") if match else ()
    return " ".join(
        re.sub(" = 1$| ", "", feature.strip()) for feature in stated
    ).strip()


def parse_compiled_pairs(told: str) -> str:
    """`ServerFacts.fa_quants`, as the program *told*; old builds name all or none."""
    match = _FA_QUANTS.search(told)
    return (match[1] or "all") if match else ""


def read_help(version_text: str, help_text: str) -> ServerFacts | None:
    """What ``--version`` and ``--help`` say; None if they are not llama-server's."""
    match = _VERSION.search(version_text)
    sections = _option_texts(help_text)
    options = frozenset(
        name for names in sections for name in names if name.startswith("--")
    )
    if match is None or "--cache-type-k" not in options:
        return None
    build = _BUILD.search(match["version"])
    return ServerFacts(
        version=match["version"],
        build=int(build["new"] or build["old"]) if build else None,
        k_types=_listed_cache_types(sections, "--cache-type-k"),
        v_types=_listed_cache_types(sections, "--cache-type-v"),
        options=options,
    )


def option_names(help_text: str) -> frozenset[str]:
    """Names, short and long, of the options in a help text like llama-server's."""
    return frozenset(name for names in _option_texts(help_text) for name in names)


def _option_texts(help_text: str) -> dict[tuple[str, ...], str]:
    """The text of each option, by its names, long and short."""
    sections: dict[tuple[str, ...], str] = {}
    names: tuple[str, ...] = ()
    for line in help_text.splitlines():
        if _OPTION_LINE.match(line):
            match = _OPTION_NAMES.search(line)
            names = tuple(re.split(r",\s*", match[0])) if match else ()
            sections[names] = line
        elif not line.strip() or not line.startswith(" "):
            names = ()
        elif names:
            sections[names] += f" {line.strip()}"
    return sections


def _listed_cache_types(
    sections: dict[tuple[str, ...], str], option: str
) -> tuple[str, ...]:
    """The cache types that the help names for *option*; none if it does not."""
    for names, text in sections.items():
        match = _ALLOWED.search(text)
        if option in names and match:
            return tuple(dict.fromkeys(re.split(r"\s*,\s*", match[1])))
    return ()


def _tools_of_named_program(path: Path, *, source: str) -> Tools:
    """
    The programs beside the one that *path* names; refused if it is no program.

    A bare name is looked for on PATH first. A path with the subcommand behind it,
    ``/usr/bin/llama serve``, is taken, too.
    """
    path = expand_home(path)
    if os.sep not in str(path) and (on_path := shutil.which(str(path))):
        path = Path(on_path)
    path = path.absolute()
    if not exists(path):
        # As `Program` is written: ``/usr/local/bin/llama serve``.
        path = path.with_name(path.name.removesuffix(f" {SUBCOMMANDS[SERVER]}"))
    reason = _why_no_program(path)
    if reason:
        raise ToolFailed(
            tool=f"{path}, from {source},",
            reason=reason,
            hint=f"Name the program itself: /path/to/{SERVER}, or /path/to/{LLAMA}. "
            f"Without {source}, PATH and the cache folder are searched.",
        )
    is_single = LLAMA in {path.name, path.resolve().name}
    return _tools_beside_server(
        _subcommand_program(path, SERVER) if is_single else Program(path), source=source
    )


def _why_no_program(path: Path) -> str:
    """
    Why *path* cannot be started, as a phrase; empty if it can.

    Raises:
        SystemRefuses: If a folder that leads to it must not be read.
    """
    if path.is_dir():
        return "is a folder"
    if not exists(path):
        refuse_unreadable(path.parent)
        return "does not exist"
    return "" if _is_program(path) else "is not executable"


def _tools_beside_server(server: Program, *, source: str) -> Tools:
    return Tools(
        server=server,
        perplexity=_companion_program(server, PERPLEXITY),
        bench=_companion_program(server, BENCH),
        source=source,
        fit_params=_companion_program(server, FIT_PARAMS),
    )


def _companion_program(server: Program, name: str) -> Program | None:
    """
    The program *name* of the same installation; None if it is not there.

    It is what the server is, a separate program or a part of ``llama``, if there is
    one of that kind.
    """
    if server.subcommand and _has_subcommand(server.path, name):
        return _subcommand_program(server.path, name)
    if separate := _program_beside(server.path, name):
        return Program(separate)
    single = None if server.subcommand else _program_beside(server.path, LLAMA)
    return (
        _subcommand_program(single, name)
        if single and _has_subcommand(single, name)
        else None
    )


def _subcommand_program(single: Path, name: str) -> Program:
    """The program *name* as a part of ``llama``."""
    return Program(single, SUBCOMMANDS[name])


@functools.cache
def _has_subcommand(single: Path, name: str) -> bool:
    """
    Whether *single*, a program named ``llama``, has *name* as a part; it is asked once.

    Other programs are called ``llama``, too, and a build may lack a part.
    """
    argv = [*_subcommand_program(single, name).command_words, "--help"]
    try:
        answer = processes.run_for_output(argv, timeout_s=TRY_TIMEOUT_S)
    except ToolFailed:
        return False
    options = set(chain.from_iterable(_option_texts(answer.stdout + answer.stderr)))
    wanted = {"--model", "--cache-type-k"}
    return answer.returncode == 0 and wanted <= options


def _program_beside(program: Path, name: str) -> Path | None:
    """
    The program *name* in the folder of another one; None if it is not there.

    Both folders are tried: Homebrew links all programs into one folder, some people
    link only the server into theirs.
    """
    for folder in dict.fromkeys((program.parent, program.resolve().parent)):
        if _is_program(folder / name):
            return folder / name
    return None


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _ask_server(server: Program, question: str) -> str:
    """
    What *server* prints for the option *question*: stdout, then stderr.

    Raises:
        ToolFailed: If a signal ends it, it hangs, or it fails with nothing on stdout.
    """
    argv = [*server.command_words, question]
    child = processes.run_for_output(argv, timeout_s=ASK_TIMEOUT_S)
    text = child.stdout + child.stderr
    code = child.returncode
    # Old servers, and programs of other kinds, end with 1 after a usage text.
    if code < 0 or (code and not child.stdout):
        told = find_most_telling_trouble(text.splitlines())
        last_line = " ".join(text.strip().splitlines()[-1:])[:300]
        why = told.reason if told else last_line
        raise ToolFailed(
            tool=str(server),
            reason=f"{question} ended with {exit_phrase(code)}"
            f"{f': {why}' if why else ''}",
            hint="Install or build it again, or use another one with --llama-server.",
        )
    return text
