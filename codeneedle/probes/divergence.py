"""
The divergence probe: next-token distributions compared with the reference, by llama-
perplexity.
"""

import contextlib
import hashlib
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from codeneedle.analysis.divergence import (
    METRICS,
    NAME,
    Compared,
    Divergence,
    divergence_of,
    more_metrics,
)
from codeneedle.engines.engine import Statistics
from codeneedle.engines.llama_cpp import base_file, log, perplexity
from codeneedle.engines.llama_cpp.arguments import shared_arguments
from codeneedle.engines.llama_cpp.base_file import (
    LEAST_SCORED,
    BaseFile,
    Identity,
    Note,
    scored_tokens,
)
from codeneedle.engines.llama_cpp.perplexity import (
    Job,
    NoStatistics,
    command,
    computing,
    verify,
)
from codeneedle.errors import CellError, FolderUnusable, MachineError, RequestError
from codeneedle.grid import Pair, precision
from codeneedle.probes.probe import Measurement, Probe, Stage, Step
from codeneedle.records.record import BadRecord, Json, Phases, as_json
from codeneedle.records.store import Store
from codeneedle.sweep.plan import Plan, is_stretched
from codeneedle.system import machine, processes
from codeneedle.system.files import write_whole
from codeneedle.text import plural
from codeneedle.text import size as size_phrase

DEFAULT_CONTEXT = 4096
"""Tokens, where text and training allow it; more than the 512 that hide so much."""

SMALLEST_DEFAULT_CONTEXT = 256
DEFAULT_CHUNKS = 8

BYTES_PER_TOKEN = 4
"""Of English and code, roughly; only for the choice of a default context."""

MAX_TEXT_BYTES = 256 << 20
"""The tool reads and tokenizes all of a text, however few chunks it computes."""

_ASK_TIMEOUT_S = 60.0


_Context = Annotated[int, Meta(ge=2)]
_Chunks = Annotated[int, Meta(ge=1)]


class DivergenceSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose; empty or None for what suits text and model."""

    contexts: Annotated[
        tuple[_Context, ...],
        Meta(
            description="Contexts to compare distributions at, in tokens.",
            extra={
                "option": "--divergence-context",
                "metavar": "LIST",
                "default": "4096, or what the weights were trained for",
            },
        ),
    ] = ()
    chunks: Annotated[
        _Chunks | None,
        Meta(
            description="Chunks of text to compare distributions on.",
            extra={"option": "--chunks"},
        ),
    ] = None
    text: Annotated[
        Path | None,
        Meta(
            description="What to compare distributions on.",
            extra={"option": "--text", "metavar": "FILE", "default": "the corpus"},
        ),
    ] = None


def _asked(plan: Plan) -> DivergenceSettings:
    found = plan.request.settings.get(NAME, DivergenceSettings())
    if not isinstance(found, DivergenceSettings):
        raise TypeError(found)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """
    What must be equal for divergences to be comparable.

    Attributes:
        contexts: Lengths of chunks, in tokens; the first is the headline's.
        chunks: Chunks at each of them, at most.
        text: Name of the text.
        text_sha256: Of the text, as it is handed to the tool.
        llama: The tool's version, as it states it.
        arguments: Of the arguments for llama-server, those the tool takes too.
        ignored: The others, which change nothing here.
    """

    contexts: tuple[int, ...]
    chunks: tuple[int, ...]
    text: str
    text_sha256: str
    llama: str
    arguments: tuple[str, ...]
    ignored: tuple[str, ...]


def conditions(plan: Plan, text: str) -> Json:
    """
    What *plan* compares distributions on, checked as far as can be without a model.

    Args:
        plan: Tool, weights, request.
        text: The corpus as it is sent; used unless the request names a text.

    Raises:
        PerplexityMissing: If the tool is.
        TextUnreadable: If ``--text`` is no text.
        TextTooShort: If it cannot have enough tokens.
        TooFewScored: If the tool would make no statistics.
        DivergenceContextTooLong: If the weights were not trained for a context.
        SizeOverflows: If the tool is too old for this vocabulary and context.
        NoRoomForBase: If the base files do not fit on the disk.
    """
    if plan.tools.perplexity is None:
        raise PerplexityMissing(server=plan.tools.server)
    data = text_bytes(plan, text)
    contexts = chosen_contexts(plan, len(data))
    arguments, ignored = shared_arguments(plan.request.server_args)
    chosen = Conditions(
        contexts=contexts,
        chunks=tuple(_chunks(plan, context, len(data)) for context in contexts),
        text=text_name(plan),
        text_sha256=hashlib.sha256(data).hexdigest(),
        llama=tool_version(plan.tools.perplexity),
        arguments=arguments,
        ignored=ignored,
    )
    sizes = list(zip(chosen.contexts, chosen.chunks, strict=True))
    for context, chunks in sizes:
        check(plan, chosen.text, len(data), context=context, chunks=chunks)
    check_disk(plan, sizes)
    stored: Json = msgspec.json.decode(msgspec.json.encode(chosen), type=Json)
    return stored


def read_conditions(stored: Json, *, file: str) -> Conditions:
    """
    Read what `conditions` returned.

    Raises:
        BadRecord: If it is something else.
    """
    try:
        return msgspec.convert(stored, type=Conditions)
    except msgspec.ValidationError as error:
        raise BadRecord(file=file, reason=str(error)) from error


def text_bytes(plan: Plan, text: str) -> bytes:
    """
    The text to compare on: the file asked for, else the corpus as it is sent.

    Raises:
        TextUnreadable: If the file is none, or too large.
    """
    path = _asked(plan).text
    if path is None:
        return text.encode()
    try:
        if not path.is_file():
            reason = "it is a folder" if path.is_dir() else "there is no such file"
            raise TextUnreadable(path=path, reason=reason)
        if path.stat().st_size > MAX_TEXT_BYTES:
            reason = f"it has more than {size_phrase(MAX_TEXT_BYTES)}"
            raise TextUnreadable(path=path, reason=reason)
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise TextUnreadable(path=path, reason=reason) from error


def text_name(plan: Plan) -> str:
    """What the text is called: the name of its file, else the corpus'."""
    path = _asked(plan).text
    return path.name if path else plan.corpus.name


def chosen_contexts(plan: Plan, text_size: int) -> tuple[int, ...]:
    """
    The contexts asked for, else one for which the text most likely suffices.

    Args:
        plan: Request, weights and the context of the sweep.
        text_size: Length of the text, in bytes.
    """
    if _asked(plan).contexts:
        return tuple(dict.fromkeys(_asked(plan).contexts))
    trained = plan.weights.training_context or DEFAULT_CONTEXT
    context = min(DEFAULT_CONTEXT, trained, plan.context)
    tokens = text_size // (1 if plan.is_built_in else BYTES_PER_TOKEN)
    while 2 * context > tokens and context // 2 >= SMALLEST_DEFAULT_CONTEXT:
        context //= 2
    return (context,)


def tool_version(tool: Path) -> str:
    """
    What llama-perplexity calls itself; ``unknown`` if it does not tell.

    Raises:
        MachineError: If it cannot be started, or hangs.
    """
    answer = processes.output_of((str(tool), "--version"), timeout_s=_ASK_TIMEOUT_S)
    for line in f"{answer.stdout}\n{answer.stderr}".splitlines():
        if line.startswith("version:"):
            return line.removeprefix("version:").strip()
    return "unknown"


def _chunks(plan: Plan, context: int, text_size: int) -> int:
    """Chunks at *context*; of a short text fewer, but not of those asked for."""
    asked = _asked(plan).chunks
    if asked is not None:
        return asked
    return min(DEFAULT_CHUNKS, max(2, text_size // max(1, context)))


SPARE_BYTES = 64 << 20
"""Disk that logs and records may need beside the base files."""

FIRST_WIDE_BUILD = 9512
"""
A build of 2026-06-04, with 64-bit sizes of the base file.

They came on 2026-05-24 (llama.cpp #23496 and #23623); b9292 of the day before still
crashes. A build between the two may be refused without need.
"""


class PerplexityMissing(MachineError):  # noqa: N818 - named after the fact
    """No llama-perplexity beside the llama-server in use."""

    def __init__(self, *, server: Path) -> None:
        super().__init__(
            f"there is no llama-perplexity beside {server}",
            hint="Build both with 'codeneedle llama', or point --llama-server at an "
            "installation that has it, or leave out --probe divergence.",
        )


class TextUnreadable(RequestError):  # noqa: N818 - named after the fact
    """The file named with ``--text`` is no text that could be read."""

    def __init__(self, *, path: Path, reason: str) -> None:
        super().__init__(
            f"--text {path}: {reason}",
            hint="Name a plain text file, or leave --text out to use the corpus.",
        )


class TextTooShort(RequestError):  # noqa: N818 - named after the fact
    """The tool wants two chunks of text, or those that were asked for."""

    def __init__(self, *, name: str, has: int, needed: int, context: int) -> None:
        super().__init__(
            f"{name} has at most {has:,} tokens; to compare distributions at "
            f"{context:,} tokens takes {needed:,}",
            hint=f"Use --divergence-context {max(1, has // 2)} or less, fewer "
            "--chunks, or a longer --text.",
        )


class TooFewScored(RequestError):  # noqa: N818 - named after the fact
    """Fewer tokens than the tool makes statistics of."""

    def __init__(self, *, chunks: int, context: int) -> None:
        scored = scored_tokens(chunks=chunks, context=context)
        super().__init__(
            f"{plural(chunks, 'chunk')} of {context:,} tokens score {scored} tokens; "
            f"llama-perplexity makes no statistics of fewer than {LEAST_SCORED}",
            hint="Use more --chunks, a larger --divergence-context or a longer --text.",
        )


class DivergenceContextTooLong(RequestError):  # noqa: N818 - named after the fact
    """More tokens than the weights were trained for."""

    def __init__(self, *, context: int, trained: int) -> None:
        super().__init__(
            f"--divergence-context {context:,} exceeds the {trained:,} tokens that "
            "these weights were trained for",
            hint=f"Use --divergence-context {trained} or less.",
        )


class SizeOverflows(MachineError):  # noqa: N818 - named after the fact
    """An old llama-perplexity counts this base file with 32 bits."""

    def __init__(self, *, context: int, vocabulary: int, build: int) -> None:
        values = base_file.row_values(vocabulary)
        super().__init__(
            f"llama-perplexity of build {build} crashes at a context of {context:,}: "
            f"{context:,} x {values:,} (vocabulary) = {context * values:,} is not "
            f"below 2^31",
            hint=f"Use --divergence-context {(2**31 - 1) // values} or less, or a "
            f"llama.cpp of build {FIRST_WIDE_BUILD} or later: 'codeneedle llama'.",
        )


class NoRoomForBase(MachineError):  # noqa: N818 - named after the fact
    """The base files would not fit on the disk."""

    def __init__(self, *, needed: int, free: int, folder: Path) -> None:
        super().__init__(
            f"the base files take {size_phrase(needed)}, and {folder} has "
            f"{size_phrase(free)} free",
            hint="Use fewer --chunks, a smaller --divergence-context, or a disk with "
            "more room: --out.",
        )


def check(plan: Plan, name: str, text_size: int, *, context: int, chunks: int) -> None:
    """
    Stop at what could not be compared at one context.

    Args:
        plan: Weights, build, and arguments that stretch a context on purpose.
        name: Of the text.
        text_size: Its length, in bytes.
        context: Length of a chunk, in tokens.
        chunks: How many.

    Raises:
        DivergenceContextTooLong: If the weights were not trained for it.
        TextTooShort: If the text cannot have enough tokens.
        TooFewScored: If the tool would make no statistics.
        SizeOverflows: If the tool is too old for it.
    """
    trained = plan.weights.training_context
    if trained and context > trained and not is_stretched(plan.request):
        raise DivergenceContextTooLong(context=context, trained=trained)
    # No tokenizer makes more tokens than bytes, but for one or two at the start.
    needed = max(2, chunks) * context
    if text_size + 2 < needed:
        raise TextTooShort(name=name, has=text_size, needed=needed, context=context)
    if scored_tokens(chunks=chunks, context=context) < LEAST_SCORED:
        raise TooFewScored(chunks=chunks, context=context)
    _check_overflow(plan, context)


def _check_overflow(plan: Plan, context: int) -> None:
    # Builds from an archive call themselves 0: nothing is known of their age.
    build = plan.server.build or FIRST_WIDE_BUILD
    vocabulary = plan.weights.vocabulary
    overflows = context * base_file.row_values(vocabulary) >= 2**31
    if overflows and build < FIRST_WIDE_BUILD:
        raise SizeOverflows(context=context, vocabulary=vocabulary, build=build)


def check_disk(plan: Plan, sizes: Sequence[tuple[int, int]]) -> None:
    """
    Stop if the base files would not fit on the disk.

    Args:
        plan: Weights, and the run folder.
        sizes: Context and chunks of each base file.

    Raises:
        NoRoomForBase: If they would not.
    """
    needed = 0
    for context, chunks in sizes:
        size = base_file.predicted_bytes(
            vocabulary=plan.weights.vocabulary, chunks=chunks, context=context
        )
        needed += max(
            0, size - BaseFile.of(plan.store.folder, context=context).present_bytes()
        )
    free = machine.free_disk_bytes(plan.store.folder)
    if needed + SPARE_BYTES > free:
        raise NoRoomForBase(needed=needed, free=free, folder=plan.store.folder)


Progress = Generator[tuple[int, str], None, Compared]
"""Yields the chunks behind it and what it does; returns the comparison."""


RETRIES = 5
"""
Further runs of the tool where the end of its log is missing, and so all numbers.

Measured with the built-in model on two busy cores: 3 runs of 30. A large model takes
longer to go than its log to be written.
"""


class TextChanged(RequestError):  # noqa: N818 - named after the fact
    """The text is no longer what it was when the sweep was prepared."""

    def __init__(self, *, name: str) -> None:
        super().__init__(
            f"{name} has changed since this sweep began",
            hint="Run the command again, with another --out for the new text.",
        )


class BaseIncomplete(CellError):  # noqa: N818 - named after the fact
    """The tool wrote a base file, and not all of it; it says nothing of a full disk."""

    def __init__(self, *, reason: str, folder: Path) -> None:
        super().__init__(
            f"the base file is not whole: {reason}",
            hint=f"Is the disk of {folder} full?",
        )


@dataclass(frozen=True, slots=True)
class Part:
    """
    One context of one cell.

    Attributes:
        stage: The cell.
        chosen: Conditions of the probe.
        reference: What the cell is compared with; may be the cell itself.
        context: Length of a chunk, in tokens.
        chunks: Chunks, at most.
    """

    stage: Stage
    chosen: Conditions
    reference: Pair
    context: int
    chunks: int

    def steps(self) -> int:
        """Chunks to compute: twice as many if the base file is to be written."""
        is_there = self._base().usable(self._identity()) is not None
        return self.chunks if is_there else 2 * self.chunks

    def compared(self) -> Progress:
        """Compare with the reference, its base file written first if need be."""
        note = self._base().usable(self._identity())
        behind = 0
        if note is None:
            yield 0, f"writing down {self.reference}"
            note = yield from self._written()
            behind = self.chunks
        yield behind, "comparing"
        started = time.monotonic()
        job = self._job()
        self._note_command(job)
        log_text, retries = yield from self._computed(job, behind, "comparing")
        statistics = self._statistics(job, log_text, note)
        return Compared(
            context=self.context,
            chunks=note.chunks,
            tokens=scored_tokens(chunks=note.chunks, context=self.context),
            seconds=round(time.monotonic() - started, 4),
            base_seconds=note.seconds,
            reference_ppl=note.ppl,
            statistics=statistics,
            retries=retries,
        )

    def _written(self) -> Generator[tuple[int, str], None, Note]:
        """Run the reference, and keep what it wrote if that is whole."""
        base = self._base()
        with self._translated():
            base.make_room()
            text = self._text()
        job = replace(
            self._job(),
            pair=self.reference,
            base=base.draft,
            text=text,
            log=self._log(f"{self.reference.slug}.{NAME}-base.{self.context}"),
        )
        self._note_command(job)
        started = time.monotonic()
        try:
            log_text, _ = yield from self._computed(
                job, 0, f"writing down {self.reference}"
            )
            seconds = round(time.monotonic() - started, 4)
            return self._kept(base, job, log_text, seconds=seconds)
        finally:
            base.drop_draft()

    def _kept(self, base: BaseFile, job: Job, log_text: str, *, seconds: float) -> Note:
        said = perplexity.too_short(log_text)
        if said is not None:
            raise TextTooShort(
                name=self.chosen.text,
                has=said.found,
                needed=said.needed,
                context=self.context,
            )
        ppl = perplexity.final_perplexity(log_text)
        size = perplexity.size(log_text)
        if ppl is None or size is None:
            raise NoStatistics(log=job.log, log_text=log_text)
        verify(job, log_text)
        fault = base.fault(base.draft, self._identity(), chunks=size.chunks)
        if fault is not None:
            raise BaseIncomplete(reason=fault, folder=base.path.parent)
        self._refuse_few(size.chunks)
        with self._translated():
            return base.keep(
                self._identity(), chunks=size.chunks, ppl=ppl.value, seconds=seconds
            )

    def _computed(
        self, job: Job, behind: int, doing: str
    ) -> Generator[tuple[int, str], None, tuple[str, int]]:
        """Its log, and how often it ran again because the end of that was missing."""
        log_text = yield from self._run_once(job, behind, doing)
        retries = 0
        while retries < RETRIES and perplexity.ends_early(log_text):
            log_text = yield from self._run_once(job, behind, doing)
            retries += 1
        if job.pair == self.stage.pair:  # or else the reference, run in its cell
            self.stage.effective = log.read(log_text)
            self.stage.trouble = self.stage.trouble or log.fallback(log_text)
        return log_text, retries

    def _run_once(
        self, job: Job, behind: int, doing: str
    ) -> Generator[tuple[int, str], None, str]:
        with contextlib.closing(computing(job)) as tool:
            while True:
                try:
                    done = next(tool)
                except StopIteration as end:
                    log_text: str = end.value
                    return log_text
                yield behind + min(done, self.chunks), doing

    def _statistics(self, job: Job, log_text: str, note: Note) -> Statistics:
        statistics = perplexity.statistics(log_text)
        size = perplexity.size(log_text)
        expected = perplexity.Size(chunks=note.chunks, context=self.context)
        if statistics is None or size != expected:
            raise NoStatistics(log=job.log, log_text=log_text)
        verify(job, log_text)
        return statistics

    def _refuse_few(self, chunks: int) -> None:
        if scored_tokens(chunks=chunks, context=self.context) < LEAST_SCORED:
            raise TooFewScored(chunks=chunks, context=self.context)

    def _job(self) -> Job:
        plan = self.stage.plan
        if plan.tools.perplexity is None:
            raise PerplexityMissing(server=plan.tools.server)
        return Job(
            tool=plan.tools.perplexity,
            weights=plan.weights.path,
            pair=self.stage.pair,
            context=self.context,
            chunks=self.chunks,
            base=self._base().path,
            text=None,
            log=self._log(f"{self.stage.pair.slug}.{NAME}.{self.context}"),
            arguments=self.chosen.arguments,
            options=plan.server.options,
            rotation=plan.request.rotation,
            is_tiny=plan.is_built_in,
        )

    def _base(self) -> BaseFile:
        return BaseFile.of(self.stage.plan.store.folder, context=self.context)

    def _identity(self) -> Identity:
        return Identity(
            text_sha256=self.chosen.text_sha256,
            weights_sha256=self.stage.setup.weights.sha256,
            llama=self.chosen.llama,
            reference=str(self.reference),
            context=self.context,
            chunks_asked=self.chunks,
            vocabulary=self.stage.plan.weights.vocabulary,
            arguments=self.chosen.arguments,
            rotation=self.stage.plan.request.rotation,
        )

    def _text(self) -> Path:
        """
        The text as a file beside the base files.

        Raises:
            TextChanged: If it is another one than the settings name.
        """
        data = text_bytes(self.stage.plan, self.stage.text)
        if hashlib.sha256(data).hexdigest() != self.chosen.text_sha256:
            raise TextChanged(name=self.chosen.text)
        path = self._base().path.with_name(f"{self.chosen.text_sha256[:16]}.txt")
        write_whole(path, data)
        return path

    def _log(self, name: str) -> Path:
        # The store makes the folder of its logs.
        return self.stage.plan.store.log(self.stage.pair).with_name(f"{name}.log")

    def _note_command(self, job: Job) -> None:
        self.stage.command = tuple(command(job))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        folder = self._base().path.parent
        try:
            yield
        except OSError as error:
            raise FolderUnusable(folder=folder, reason=str(error)) from error


def most_precise_first(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """
    The running order: the reference first, then those that would step in for it.

    The other probes shuffle, against heat and drift; here nothing is timed.
    """
    return sorted(pairs, key=lambda pair: (*precision(pair.k), *precision(pair.v)))


def reference_of(store: Store) -> Pair | None:
    """What the stored divergences are compared with; None if there are none yet."""
    for record in store.records(NAME):
        found = divergence_of(record)
        if found is not None:
            return Pair.parse(found.reference)
    return None


def measure(stage: Stage) -> Measurement:
    """
    Compare the cell with the reference, at each context of the settings.

    A base file that is missing, truncated or foreign is written again, by running
    the reference. The reference is compared with itself, too: the noise floor.

    Raises:
        RequestError: If the text turns out to be too short.
        CellError: If the tool fails, or runs other cache types than asked for.
    """
    chosen = read_conditions(stage.setup.probes[NAME], file="setup.json")
    reference = reference_of(stage.plan.store) or stage.pair
    sizes = list(zip(chosen.contexts, chosen.chunks, strict=True))
    parts = [Part(stage, chosen, reference, *size) for size in sizes]
    started = time.monotonic()
    total = sum(part.steps() for part in parts)
    behind = 0
    compared: list[Compared] = []
    try:
        for part in parts:
            steps = part.steps()
            what = f"{part.context:,} tokens"
            compared.append((yield from _counted(part.compared(), what, behind, total)))
            behind += steps
    finally:
        seconds = round(time.monotonic() - started, 4)
        stage.phases = Phases(measure_s=seconds)
    return as_json(Divergence(reference=str(reference), contexts=tuple(compared)))


def _counted(
    part: Progress, what: str, behind: int, total: int
) -> Generator[Step, None, Compared]:
    with contextlib.closing(part):
        while True:
            try:
                done, doing = next(part)
            except StopIteration as end:
                compared: Compared = end.value
                return compared
            yield Step(min(behind + done, total), total, f"{doing} at {what}")


PROBE = Probe(
    name=NAME,
    metrics=METRICS,
    measure=measure,
    settings=DivergenceSettings,
    conditions=conditions,
    more_metrics=more_metrics,
    order=most_precise_first,
)
