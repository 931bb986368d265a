"""The divergence probe: next-token distributions compared with the reference's."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from codeneedle.analysis.divergence import (
    METRICS,
    NAME,
    Compared,
    Divergence,
    divergence_of,
    more_metrics,
)
from codeneedle.corpora.corpus import Corpus
from codeneedle.engines.engine import (
    Ability,
    DivergenceTask,
    DivergenceTool,
    ToolRun,
)
from codeneedle.errors import BadInput, FolderUnusable
from codeneedle.grid import Pair, precision
from codeneedle.probes.probe import Probe, ProbeContext, RunContext
from codeneedle.records.record import CellRecord, Json, as_json, from_json
from codeneedle.system import machine
from codeneedle.system.files import locked, nap
from codeneedle.text import plural
from codeneedle.text import size as size_phrase

DEFAULT_CONTEXT = 4096
"""Tokens, where text and training allow it; more than the 512 that hide so much."""

SMALLEST_DEFAULT_CONTEXT = 256
DEFAULT_CHUNKS = 8

FEW_CHUNKS = 4
"""
Where nothing is asked and the text is short: its context is so short that it has these.
36 pairs of a model of 135 million parameters then take 10 minutes on two cores.
"""

BYTES_PER_TOKEN = 4
"""Of English and code, roughly; only for the choice of a default context."""

MAX_TEXT_BYTES = 256 << 20
"""A tool reads and tokenizes all of a text, however few chunks it computes."""

SPARE_BYTES = 64 << 20
"""Disk that logs and records may need beside the reference's distributions."""

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


def check(settings: DivergenceSettings, corpus: Corpus | None) -> None:
    """
    Stop at settings that no model can satisfy.

    Args:
        settings: What the user chose.
        corpus: The whole corpus; None if it has not been read yet.

    Raises:
        BadInput: If ``--text`` is not a file of text, or too large; or if the text has
            fewer bytes than the chunks would have tokens.
    """
    text = settings.text
    size = corpus.size_bytes if corpus else None
    if text:
        size = len(file_bytes(text, option="--text"))
    if size is None or settings.chunks is None:
        return
    longest = max(settings.contexts, default=SMALLEST_DEFAULT_CONTEXT)
    fitting = max(1, size // longest)
    if settings.chunks > fitting:
        raise BadInput(
            source=f"--chunks {settings.chunks}",
            reason=f"{text.name if text else 'the corpus'} has at most {size:,} "
            f"tokens, which make {plural(fitting, 'chunk')} of {longest:,}",
            hint=f"Use --chunks {fitting} or less, or a longer --text.",
        )


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
        arguments: Of the arguments for the engine, those the tool takes too.
        ignored: The others, which change nothing here.
    """

    contexts: tuple[int, ...]
    chunks: tuple[int, ...]
    text: str
    text_sha256: str
    llama: str
    arguments: tuple[str, ...]
    ignored: tuple[str, ...]


def conditions(run: RunContext) -> Json:
    """
    What *run* compares distributions on, checked as far as can be without a model.

    Raises:
        BadInput: If the text is too short, a context too long, or too few tokens
            would be scored.
        MachineError: If the tool is missing or too old, or the disk too small.
    """
    tool = run.engine.divergence_tool()
    asked = run.settings_of(DivergenceSettings, NAME)
    data = _text(run)
    contexts = chosen_contexts(run, asked, len(data))
    sizes = [(context, _chunks(asked, context, len(data))) for context in contexts]
    chosen = Conditions(
        contexts=contexts,
        chunks=tuple(chunks for _, chunks in sizes),
        text=asked.text.name if asked.text else run.setup.corpus.name,
        text_sha256=hashlib.sha256(data).hexdigest(),
        llama=tool.version,
        arguments=tool.arguments,
        ignored=tool.ignored,
    )
    for context, chunks in sizes:
        refuse_untrained(run, context, option="--divergence-context")
        tool.check(
            text_name=chosen.text,
            text_bytes=len(data),
            context=context,
            chunks=chunks,
        )
    refuse_full_disk(run, run.folder, sizes)
    return as_json(chosen)


def chosen_contexts(
    run: RunContext, asked: DivergenceSettings, text_size: int
) -> tuple[int, ...]:
    """
    The contexts asked for, else one for which the text most likely suffices.

    Args:
        run: Weights and context.
        asked: What the user chose.
        text_size: Length of the text, in bytes.
    """
    if asked.contexts:
        return tuple(dict.fromkeys(asked.contexts))
    trained = run.weights.training_context or DEFAULT_CONTEXT
    context = min(DEFAULT_CONTEXT, trained, run.setup.context)
    tokens = text_size // (1 if run.is_built_in else BYTES_PER_TOKEN)
    while FEW_CHUNKS * context > tokens and context // 2 >= SMALLEST_DEFAULT_CONTEXT:
        context //= 2
    return (context,)


def measure(context: ProbeContext) -> Json:
    """
    Compare the cell with the reference, at each context of the conditions.

    Distributions of the reference that are missing, truncated or of something else
    are computed again. The reference is compared with itself, too: the noise floor.

    Raises:
        BadInput: If the text turns out to be too short.
        CellError: If the tool fails, or runs other cache types than asked for.
    """
    stored = context.run.setup.probes[NAME]
    chosen = from_json(stored, Conditions, file="setup.json")
    data = _text(context.run)
    if hashlib.sha256(data).hexdigest() != chosen.text_sha256:
        raise BadInput(
            source=chosen.text,
            reason="it has changed since this sweep began",
            hint="Run the command again, with another --out for the new text.",
        )
    texts = [
        Text(name=chosen.text, data=data, context=length, chunks=chunks)
        for length, chunks in zip(chosen.contexts, chosen.chunks, strict=True)
    ]
    return compared(context, texts, folder=context.run.folder, probe=NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """
    What distributions are compared on.

    Attributes:
        name: What it is called in messages.
        data: The text.
        context: Length of a chunk, in tokens.
        chunks: How many chunks are compared, at most.
    """

    name: str
    data: bytes
    context: int
    chunks: int


def compared(
    context: ProbeContext, texts: Sequence[Text], *, folder: Path, probe: str
) -> Json:
    """
    The observation of *probe*: the cell compared with the reference on *texts*.

    Args:
        context: The cell.
        texts: One for each context of the settings.
        folder: Keeps the reference's distributions in it, by context.
        probe: Part of the names of logs.

    Raises:
        BadInput: If a text turns out to be too short.
        CellError: If the tool fails, or runs other cache types than asked for.
    """
    tool = context.run.engine.divergence_tool()
    reference = reference_of(context.records) or context.pair
    tasks = [
        DivergenceTask(
            pair=context.pair,
            reference=reference,
            context=text.context,
            chunks=text.chunks,
            text=text.data,
            text_name=text.name,
            weights_sha256=context.run.setup.weights.sha256,
            folder=folder,
        )
        for text in texts
    ]
    steps = [_steps(tool, task) for task in tasks]
    with context.measuring():
        found = [
            _compared(
                context, tool, task, done=sum(steps[:at]), total=sum(steps), probe=probe
            )
            for at, task in enumerate(tasks)
        ]
    return as_json(Divergence(reference=str(reference), contexts=tuple(found)))


def reference_of(records: Mapping[Pair, CellRecord]) -> Pair | None:
    """The pair that *records* are compared with; None if there are none yet."""
    for record in records.values():
        found = divergence_of(record)
        if found is not None:
            return Pair.parse(found.reference)
    return None


def reads_corpus(settings: DivergenceSettings) -> bool:
    """Whether distributions are compared on the corpus, not on a text of the user's."""
    return settings.text is None


def most_precise_first(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """
    The running order: the reference first, then those that would take its place.

    The other probes shuffle, against heat and drift; here nothing is timed.
    """
    return sorted(pairs, key=lambda pair: (*precision(pair.k), *precision(pair.v)))


PROBE = Probe(
    name=NAME,
    metrics=METRICS,
    measure=measure,
    needs=frozenset({Ability.DIVERGENCE}),
    reads_corpus=reads_corpus,
    settings=DivergenceSettings,
    check=check,
    conditions=conditions,
    more_metrics=more_metrics,
    order=most_precise_first,
    leads=True,
)


def _compared(
    context: ProbeContext,
    tool: DivergenceTool,
    task: DivergenceTask,
    *,
    done: int,
    total: int,
    probe: str,
) -> Compared:
    """One context, the reference's distributions computed first if need be."""

    def tell(what: str, behind: int, chunks: int) -> None:
        at = min(behind + min(chunks, task.chunks), total)
        context.step(at, total, f"{what} at {task.context:,} tokens")

    # Of several workers, one computes the reference if it is missing.
    task.folder.mkdir(parents=True, exist_ok=True)
    with locked(task.folder / "base.lock", waiting=nap):
        reference = tool.reference(task)
        if reference is None:
            what = f"computing the reference {task.reference}"
            tell(what, done, 0)
            name = f"{task.reference.slug}.{probe}-base.{task.context}.log"
            reference = tool.write_reference(
                task,
                log=context.logs / name,
                note=lambda run: context.observe_tool(_of_reference(run, task)),
                progress=lambda chunks: tell(what, done, chunks),
            )
            done += task.chunks
    behind = done
    tell("comparing", behind, 0)
    started = time.monotonic()
    found = tool.compare(
        task,
        reference,
        log=context.log(f"{probe}.{task.context}"),
        note=context.observe_tool,
        progress=lambda chunks: tell("comparing", behind, chunks),
    )
    return Compared(
        context=task.context,
        chunks=reference.chunks,
        tokens=found.tokens,
        seconds=round(time.monotonic() - started, 4),
        base_seconds=reference.seconds,
        reference_ppl=reference.ppl,
        statistics=found.statistics,
        retries=found.retries,
        by_chunk=found.by_chunk,
    )


def _of_reference(run: ToolRun, task: DivergenceTask) -> ToolRun:
    """*run* of the reference, as it concerns the cell of *task*: maybe another pair."""
    is_same = task.pair == task.reference
    return run if is_same else ToolRun(command=run.command)


def _steps(tool: DivergenceTool, task: DivergenceTask) -> int:
    """Chunks to compute: twice as many if the reference is to be computed."""
    return (1 if tool.reference(task) else 2) * task.chunks


def _text(run: RunContext) -> bytes:
    """The text to compare on: the file asked for, else the corpus as it is sent."""
    path = run.settings_of(DivergenceSettings, NAME).text
    return run.text.encode() if path is None else file_bytes(path, option="--text")


def file_bytes(path: Path, *, option: str) -> bytes:
    """
    A text that *option* names.

    Raises:
        BadInput: If it is no file, or too large.
    """
    reason = ""
    try:
        if not path.is_file():
            reason = "it is a folder" if path.is_dir() else "there is no such file"
        elif path.stat().st_size > MAX_TEXT_BYTES:
            reason = f"it has more than {size_phrase(MAX_TEXT_BYTES)}"
        else:
            return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
    raise BadInput(
        source=f"{option} {path}",
        reason=reason,
        hint=f"Name a plain text file, or leave {option} out.",
    )


def _chunks(asked: DivergenceSettings, context: int, text_size: int) -> int:
    """Chunks at *context*; of a short text fewer, but not of those asked for."""
    if asked.chunks is not None:
        return asked.chunks
    is_short = not asked.contexts and context < DEFAULT_CONTEXT
    most = FEW_CHUNKS if is_short else DEFAULT_CHUNKS
    return min(most, max(2, text_size // max(1, context)))


def refuse_untrained(run: RunContext, context: int, *, option: str) -> None:
    """
    Stop at a *context* that is longer than what the weights were trained for.

    Raises:
        BadInput: If it is, and the user's arguments do not stretch it.
    """
    trained = run.weights.training_context
    if trained and context > trained and not run.engine.stretches_context:
        raise BadInput(
            source=f"{option} {context}",
            reason=f"these weights were trained for {trained:,} tokens",
            hint=f"Use {option} {trained} or less.",
        )


def refuse_full_disk(
    run: RunContext, folder: Path, sizes: Sequence[tuple[int, int]]
) -> None:
    """
    Stop if the distributions of the reference would not fit on the disk.

    Args:
        run: The run.
        folder: Where they are kept.
        sizes: Contexts, with the chunks at each.

    Raises:
        FolderUnusable: Naming both sizes.
    """
    tool = run.engine.divergence_tool()
    needed = sum(
        tool.missing_bytes(folder, context=context, chunks=chunks)
        for context, chunks in sizes
    )
    free = machine.free_disk_bytes(run.folder)
    if needed + SPARE_BYTES > free:
        raise FolderUnusable(
            folder=run.folder,
            reason=f"the reference's distributions take {size_phrase(needed)}, and "
            f"{size_phrase(free)} are free",
            hint="Use fewer chunks, a smaller context, or --out on a larger disk.",
        )
