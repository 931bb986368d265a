"""Where a benchmark runs: a folder that goes away, and facts that go with numbers."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from codeneedle.engines.llama_cpp import installation
from codeneedle.engines.llama_cpp.installation import LlamaMissing, ServerFacts
from codeneedle.models import weights
from codeneedle.models.nano import model
from codeneedle.models.weights import Weights, read_header
from codeneedle.system import files, machine
from codeneedle.system.processes import now

CORPUS_NAME = "bench"

KNOBS = "value_length = 9\nname_length = 8\nseed = 42\n"
"""With 16 functions of 20 lines: 9,020 bytes, of which the built-in model has a token
each; as many as a corpus of a few functions of real code."""

CONTEXT = 18_432
"""Tokens, on both sides."""


class Stopped(Exception):  # noqa: N818 - named after the fact
    """
    A benchmark that cannot begin or go on.

    No error of the package's: those are all drawn in a tree of its own.
    """

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """
    What the command line asks for.

    Attributes:
        repetitions: Of everything but start-up and extraction.
        pairs: Of the protocol, as ``K/V``.
        functions: Of the corpus.
        reply_tokens: That the published protocol lets a model write.
        rounds: Needles that each setting of speculation is asked for.
        patterns: Lengths of what must stand in the text already, in tokens.
        drafts: Lengths of drafts, in tokens.
        calls: Of each command whose start-up is measured.
        loads: Of a source tree, each way; they take minutes.
        cells: Made records.
        tree_bytes: Of the source tree.
    """

    repetitions: int = 2
    pairs: tuple[str, ...] = ("f16/f16", "q8_0/q8_0", "q4_0/q4_0")
    functions: int = 16
    reply_tokens: int = 1500
    rounds: int = 6
    patterns: tuple[int, ...] = (8, 12, 16)
    drafts: tuple[int, ...] = (16, 32, 48, 64, 128)
    calls: int = 15
    loads: int = 1
    cells: int = 10_000
    tree_bytes: int = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """
    What serves, as far as a section needs it.

    Attributes:
        binary: llama-server.
        server: What it says of itself.
        weights: The built-in model.
        sha256: Of its file.
    """

    binary: Path
    server: ServerFacts
    weights: Weights
    sha256: str

    @property
    def phrase(self) -> str:
        """For the line below a table."""
        build = f"llama.cpp {self.server.version}"
        return f"{build}; weights {model.NAME}, sha256 {self.sha256}"


@dataclass(slots=True, kw_only=True)
class Place:
    """
    A folder for everything, a corpus in it, and what was found of the machine.

    Attributes:
        folder: Goes away with all that is in it.
        asked: The settings.
        model: What serves; looked for when first asked for.
    """

    folder: Path
    asked: Asked
    _model: Model | None = None
    _taken: set[str] = field(default_factory=set)

    @property
    def model(self) -> Model:
        """
        What serves.

        Raises:
            Stopped: If there is no llama-server.
        """
        if self._model is None:
            self._model = _model()
        return self._model

    @property
    def corpus(self) -> Path:
        """The corpus file."""
        path = self.folder / f"{CORPUS_NAME}.toml"
        if not path.exists():
            knobs = f"[generate]\nfunctions = {self.asked.functions}\n{KNOBS}"
            path.write_text(knobs, encoding="utf-8")
        return path

    def fresh(self, name: str) -> Path:
        """An empty folder that nobody has had before; *name* is how it begins."""
        at = 1
        while f"{name}-{at}" in self._taken:
            at += 1
        self._taken.add(f"{name}-{at}")
        path = self.folder / f"{name}-{at}"
        path.mkdir()
        return path


@contextlib.contextmanager
def place(asked: Asked) -> Iterator[Place]:
    """
    A place for the length of a block.

    The user's cache folder is read and not written to: our own programs are given
    one of this place, with the same model and llama-server.

    Raises:
        MachineError: If the environment names a llama-server that is none.
    """
    with tempfile.TemporaryDirectory(prefix="codeneedle-bench-") as name:
        folder = Path(name)
        ours = {files.VARIABLE: str(_cache(folder / "cache"))}
        with contextlib.suppress(LlamaMissing):  # whoever needs it is told then
            ours[installation.VARIABLE] = str(installation.find().server)
        before = os.environ.copy()
        os.environ.update(ours)
        try:
            yield Place(folder=folder, asked=asked)
        finally:
            os.environ.clear()
            os.environ.update(before)


def _cache(folder: Path) -> Path:
    """A cache folder with the built-in model, if the user's has it."""
    folder.mkdir()
    for path in files.cache_folder().glob(f"{model.NAME}-{model.SHA256[:12]}*.gguf"):
        shutil.copyfile(path, folder / path.name)
    return folder


def _model() -> Model:
    try:
        binary = installation.find().server
    except LlamaMissing as error:
        raise Stopped(str(error), hint="Run: make llama") from error
    header = read_header(model.built_in_model())
    return Model(
        binary=binary,
        server=installation.ask(binary),
        weights=header,
        sha256=weights.sha256(header),
    )


def machine_phrase() -> str:
    """Processor, cores, memory, system and Python."""
    facts = machine.facts()
    return f"{facts.phrase()}, Python {facts.python}"


def measured_on(place: Place, *more: str, is_served: bool = True) -> str:
    """
    The line below a table: on what it was measured, and when.

    Args:
        place: Where.
        more: What else decides the numbers, as phrases.
        is_served: Whether a model had to do with it.
    """
    served = (place.model.phrase,) if is_served else ()
    parts = (machine_phrase(), *served, *more, now()[:10])
    return "; ".join(part for part in parts if part)


def rounds_phrase(place: Place, *, tokens: int) -> str:
    """Corpus, rounds and repetitions."""
    asked = place.asked
    return (
        f"corpus {tokens:,} tokens, context {CONTEXT:,}, rounds a cell: "
        f"{asked.functions}, repetitions: {asked.repetitions}"
    )


def load() -> float:
    """How many programs wanted a core, on average over the last minute."""
    return os.getloadavg()[0]


def busy_line() -> str:
    """That numbers will be rough, where the machine is busy; else empty."""
    cores = machine.usable_cores()
    now_wanted = load()
    if now_wanted <= cores / 2:
        return ""
    return (
        f"this machine is busy: {now_wanted:.1f} programs want its "
        f"{cores} core{'s' * (cores > 1)}. Numbers will be rough, ratios less so."
    )
