"""
The divergence probe: its options, contexts and numbers of chunks where none are chosen,
refusals of more chunks than a text has, and of a text that has changed.
"""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, structs
from typing_extensions import override

from codeneedle.engines.engine import Ability, Engine
from codeneedle.engines.pace import Price
from codeneedle.errors import BadInput
from codeneedle.probes.cell import ProbeContext, RunContext
from codeneedle.probes.cell_metrics import OF_CELL
from codeneedle.probes.divergence import texts
from codeneedle.probes.divergence.comparison import (
    MOST_CHUNKS,
    compare_with_reference,
    divergence_tool_or_none,
    read_text_as_utf8,
    refuse_full_disk,
    refuse_untrained,
)
from codeneedle.probes.divergence.metrics import (
    METRICS,
    TEXT_LOGP,
    metrics_if_several_contexts,
    metrics_of_parts,
)
from codeneedle.probes.divergence.record import (
    NAME,
    ComparedWith,
    comparison_key,
    divergence_of,
    stored_chunks_by_context,
)
from codeneedle.probes.divergence.scored import BY_SERVER, score_chunks_by_server
from codeneedle.probes.estimates import Bill, Estimates
from codeneedle.probes.metrics import Metric
from codeneedle.probes.observations import settings_in
from codeneedle.probes.probe import Calibrating, Probe, Question
from codeneedle.records.record import (
    MOST_TOKENS,
    CellRecord,
    Json,
    Run,
    Setup,
    as_json,
)
from codeneedle.text import plural, size_text

DEFAULT_CONTEXT = 256
"""
Tokens of a chunk, where text and training allow it.

Chunks are the units of a loss, so that many short ones tell more than few long ones of
the same text; what a token loses does not grow with its place. Source: RESULTS.md.
"""

SMALLEST_DEFAULT_CONTEXT = 64
DEFAULT_CHUNKS = 16
"""
Where nothing is asked: 2,032 scored tokens, of which an interval is narrower than 1 %
where little is lost (RESULTS.md); a first answer for all pairs is to take minutes.
"""

ASKED_CHUNKS = 8
"""Of the contexts that are asked for, which are longer."""

_Context = Annotated[int, Meta(ge=2, le=MOST_TOKENS)]
_Chunks = Annotated[int, Meta(ge=1, le=MOST_CHUNKS)]


class DivergenceSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose; empty or None for what suits text and model."""

    contexts: Annotated[
        tuple[_Context, ...],
        Meta(
            description="Contexts to compare distributions at, in tokens.",
            extra={
                "option": "--divergence-context",
                "metavar": "LIST",
                "unit": "tokens",
                "default": "256",
            },
        ),
    ] = ()
    chunks: Annotated[
        tuple[_Chunks, ...],
        Meta(
            description="Chunks of text to compare distributions on: one number, or "
            "one for each context.",
            extra={"option": "--chunks", "metavar": "NUMBERS"},
        ),
    ] = ()
    file: Annotated[
        Path | None,
        Meta(
            description="What to compare distributions on.",
            extra={
                "option": "--text",
                "metavar": "FILE",
                "default": "prose and code, chunk by chunk; the corpus for the "
                "built-in model",
            },
        ),
    ] = None


class DivergenceLayout(
    DivergenceSettings, frozen=True, omit_defaults=True, kw_only=True
):
    """
    What a setup stores: settings that suit text and model, a number of chunks for each
    context, and what else must be equal for divergences to be comparable.

    The first context is the headline's. A text may have fewer chunks than are asked
    for. The path of its file is not stored, which is the user's own.
    """

    text: str  # name of the text
    text_sha256: str  # of the text, as it is handed to the tool
    llama: str  # the tool's version, as it states it; `BY_SERVER` without one
    arguments: tuple[str, ...]
    """Of the arguments for the engine, those the tool takes too."""

    parts: tuple[str, ...] = ()
    """What its chunks are of, in turn: ``prose``, ``code``; empty for one text."""

    cuts: tuple[int, ...] = ()
    """Where each part of the text ends, in bytes of its source; empty likewise."""

    def __post_init__(self) -> None:
        """
        Refuse what a damaged setup may hold.

        Raises:
            ValueError: If there is no context, or one has no number of chunks.
        """
        if not len(self.contexts) == len(self.chunks) > 0:
            raise ValueError("contexts and numbers of chunks do not belong together")


def _contexts_with_chunk_counts(
    settings: DivergenceSettings,
    known: Json,
    of: RunContext | Estimates,
    context: int,
    text_size: int,
) -> list[tuple[int, int]]:
    """
    Contexts with their chunks: those chosen, else *known*, else what suits.

    Args:
        settings: What the user chose.
        known: What the run folder stores of the probe; empty if nothing.
        of: The run, or the plan of one.
        context: Of the run, in tokens.
        text_size: Length of the text, in bytes.
    """
    stored = stored_chunks_by_context(known)
    contexts = tuple(dict.fromkeys(settings.contexts)) or tuple(stored)
    if not contexts:
        trained = of.weights.training_context or DEFAULT_CONTEXT
        tokens = text_size // (1 if of.is_built_in else texts.BYTES_PER_TOKEN)
        contexts = (
            _halve_until_enough(min(DEFAULT_CONTEXT, trained, context), tokens),
        )
    chunks = _chosen_chunks_by_context(settings, contexts) or stored
    return [
        (
            chunk_context,
            chunks.get(chunk_context)
            or _default_chunk_count(settings, chunk_context, text_size),
        )
        for chunk_context in contexts
    ]


def _chosen_chunks_by_context(
    settings: DivergenceSettings, contexts: Sequence[int]
) -> dict[int, int]:
    """
    Chunks that *settings* name, by context: one number for all, or one for each.

    Empty if they name none.
    """
    if len(settings.chunks) == 1:
        return dict.fromkeys(contexts, settings.chunks[0])
    return dict(zip(settings.contexts, settings.chunks, strict=False))


def _refuse_unpaired_chunk_counts(settings: DivergenceSettings) -> None:
    """
    Stop at several numbers of chunks that are not one for each context.

    Raises:
        BadInput: If they are not.
    """
    contexts, chunks = len(settings.contexts), len(settings.chunks)
    if chunks > 1 and chunks != contexts:
        raise BadInput(
            source=f"--chunks {','.join(map(str, settings.chunks))}",
            reason=f"are {chunks} numbers for {plural(contexts, 'context')}",
            hint="Give one number for all, or one for each of --divergence-context.",
        )


def _refuse_unfit_contexts(
    of: RunContext | Estimates,
    sizes: Sequence[tuple[int, int]],
    text_name: str,
    text_size: int,
) -> None:
    """
    Stop at *sizes* that weights, tool or disk cannot do on a text.

    Raises:
        BadInput: If the text is too short, or a context too long.
        MachineError: If the tool is missing or too old, or the disk too small.
    """
    for context, _ in sizes:
        refuse_untrained(of, context)
    tool = divergence_tool_or_none(of.engine)
    if tool is None:
        return
    for context, chunks in sizes:
        tool.check(
            text_name=text_name, text_bytes=text_size, context=context, chunks=chunks
        )
    refuse_full_disk(of, sizes)


def _refuse_too_many_chunks(settings: DivergenceSettings, length: int) -> None:
    """
    Stop at more chunks than a text of *length* bytes has.

    Raises:
        BadInput: With as many as it has at most.
    """
    contexts = settings.contexts or (SMALLEST_DEFAULT_CONTEXT,)
    for context, chunks in sorted(
        _chosen_chunks_by_context(settings, contexts).items(), reverse=True
    ):
        fitting = max(1, length // context)
        if chunks > fitting:
            name = settings.file.name if settings.file else "the corpus"
            raise BadInput(
                source=f"--chunks {chunks}",
                reason=f"{name} has at most {length:,} tokens, which make "
                f"{plural(fitting, 'chunk')} of {context:,}",
                hint=f"Use {_fitting_options_phrase(length, context)}, "
                "or a longer --text.",
            )


def _fitting_options_phrase(tokens: int, context: int) -> str:
    """Options for as much as a text of *tokens* has: with one chunk nothing is told."""
    if tokens // context > 1:
        return f"--chunks {tokens // context} or less"
    shorter = _halve_until_enough(context, tokens)
    chunks = max(1, tokens // shorter)
    return f"--divergence-context {shorter} --chunks {min(chunks, DEFAULT_CHUNKS)}"


def _halve_until_enough(context: int, tokens: int) -> int:
    """
    *context*, halved until a text of *tokens* tokens most likely suffices.

    Not below `SMALLEST_DEFAULT_CONTEXT`.
    """
    while (
        DEFAULT_CHUNKS * context > tokens and context // 2 >= SMALLEST_DEFAULT_CONTEXT
    ):
        context //= 2
    return context


class DivergenceProbe(Probe):
    """Compares distributions on prose, or on a text of the user's."""

    @override
    def adapt(
        self, settings: DivergenceSettings, estimates: Estimates
    ) -> DivergenceSettings:
        """
        *settings* with a text; without one for the built-in model: the corpus.

        Raises:
            BadInput: If ``--text`` is not a file of text, or too large; if the text has
                fewer bytes than the chunks would have tokens; if a context is too long,
                or too few tokens would be scored.
            MachineError: If the tool is missing or too old, or the disk too small.
        """
        _refuse_unpaired_chunk_counts(settings)
        if self.own_text_name(settings, estimates.engine) is None:
            _refuse_too_many_chunks(settings, estimates.corpus.size_bytes)
            return settings
        settings = structs.replace(settings, file=settings.file or texts.ORDINARY)
        length = _text_size_bytes(settings)
        _refuse_too_many_chunks(settings, length)
        known = estimates.setup.probes.get(NAME, {}) if estimates.setup else {}
        sizes = _contexts_with_chunk_counts(
            settings, known, estimates, estimates.context, length
        )
        _refuse_unfit_contexts(estimates, sizes, _file_name_or_empty(settings), length)
        return settings

    @override
    def needs_of(self, engine: Engine) -> frozenset[Ability]:
        """What *engine* reads texts with: distributions, or right tokens alone."""
        return frozenset({engine.text_scoring_ability})

    @override
    def gap_phrases(self, record: CellRecord, _setup: Setup) -> tuple[str, ...]:
        """Why the server scores no text, each reason once; none if it does."""
        divergence = divergence_of(record)
        skipped = divergence.skipped.values() if divergence else ()
        return tuple(f"no ordinary text: {reason}" for reason in {*skipped})

    @override
    def left_out_lines(self, run: Run) -> tuple[str, ...]:
        """Copies among the chunks, of the first context."""
        sizes = stored_chunks_by_context(run.setup.probes.get(NAME, {}))
        found = [divergence_of(record) for record in run.records if record.has_numbers]
        every = [
            at
            for divergence in found
            if divergence and (at := divergence.comparison_at(None, sizes))
        ]
        most = max((len(comparison.copied_chunks) for comparison in every), default=0)
        return (f"left out: {plural(most, 'chunk')}, copies of others",) * bool(most)

    @override
    def metrics_of(self, setup: Setup) -> tuple[Metric, ...]:
        """`metrics`, ``text-logp`` of parts of the text, others of several contexts."""
        return (
            *self.metrics,
            *metrics_of_parts(setup),
            *metrics_if_several_contexts(setup),
        )

    @override
    def own_text_name(self, settings: DivergenceSettings, engine: Engine) -> str | None:
        """Empty; None for the built-in model without a text, which reads the corpus."""
        return None if settings.file is None and engine.model.is_tiny else ""

    @override
    def notes(
        self, settings: DivergenceSettings, estimates: Estimates
    ) -> tuple[str, ...]:
        """What the distributions of the reference take on the disk."""
        tool = divergence_tool_or_none(estimates.engine)
        if settings.file is None or tool is None:
            return ()
        tokens = _text_size_bytes(settings) // texts.BYTES_PER_TOKEN
        trained = estimates.weights.training_context or DEFAULT_CONTEXT
        longest, folder = min(DEFAULT_CONTEXT, trained), estimates.folder
        needed = sum(
            tool.bytes_to_write(folder, context=context, chunks=chunks)
            for context, chunks in _estimated_contexts_and_chunks(
                settings, longest, tokens
            )
        )
        if not needed:
            return ()
        note = (
            f"{NAME}: the distributions of the reference take about "
            f"{size_text(needed)} in {folder / 'base'}, which may be deleted once no "
            "pair is left to compare"
        )
        return (note,)

    @override
    def bill(self, settings: DivergenceSettings, estimates: Estimates) -> Bill:
        """Each chunk once, as many as the text is likely to have."""
        tokens, name = estimates.sent_corpus_tokens, "the corpus"
        if settings.file is not None:
            tokens = _text_size_bytes(settings) // texts.BYTES_PER_TOKEN
            name = _file_name_or_empty(settings)
        longest = min(DEFAULT_CONTEXT, estimates.context)
        sizes = _estimated_contexts_and_chunks(settings, longest, tokens)
        what = (
            "distributions on"
            if divergence_tool_or_none(estimates.engine)
            else "right tokens of"
        )
        return Bill(
            price=Price.of_cell(
                context for context, chunks in sizes for _ in range(chunks)
            ),
            phrase=f"{what} {name}",
        )

    @override
    def as_stored(self, settings: DivergenceSettings, run: RunContext) -> Json:
        """
        What *run* compares distributions on.

        Where no contexts or chunks are chosen, those of the run folder.

        Raises:
            BadInput: Where that is the corpus; see `adapt`.
            MachineError: See `adapt`, in that case.
        """
        tool = divergence_tool_or_none(run.engine)
        known = run.setup.probes.get(NAME, {})
        is_corpus = settings.file is None
        size = len(run.text.encode()) if is_corpus else _text_size_bytes(settings)
        sizes = _contexts_with_chunk_counts(
            settings, known, run, run.setup.context, size
        )
        name = run.setup.corpus.name if is_corpus else _file_name_or_empty(settings)
        if is_corpus:
            _refuse_unfit_contexts(run, sizes, name, size)
        is_default = settings.file == texts.ORDINARY
        return as_json(
            DivergenceLayout(
                contexts=tuple(context for context, _ in sizes),
                chunks=tuple(chunks for _, chunks in sizes),
                text=name,
                text_sha256=texts.prose_and_code_sha256()
                if is_default
                else hashlib.sha256(_read_file_or_corpus_text(run)).hexdigest(),
                llama=tool.version if tool else BY_SERVER,
                arguments=tool.arguments if tool else (),
                parts=texts.PARTS if is_default else (),
                cuts=_stored_or_new_block_ends(run, known, sizes) if is_default else (),
            )
        )

    @override
    def questions(self, setup: Setup, _goal: int | None = None) -> Iterator[Question]:
        """Each context with its chunks."""
        sizes = stored_chunks_by_context(setup.probes.get(NAME, {}))
        return map(Question, itertools.starmap(comparison_key, sizes.items()))

    @override
    def measure(self, context: ProbeContext) -> Json:
        """
        Compare the cell with the reference, at each context that it lacks.

        Distributions of the reference that are missing, truncated or of something else
        are computed again. The reference is compared with itself, too: the noise floor.
        Without a tool that compares, a server scores the text instead.

        Raises:
            BadInput: If the text has changed, or turns out to be too short.
            CellError: If tool or server fails, or other cache types run than asked for.
        """
        chosen = settings_in(context.run.setup, NAME, DivergenceLayout)
        if chosen.cuts:
            data, sha256 = (
                texts.join_built_in_blocks(chosen.cuts),
                texts.prose_and_code_sha256(),
            )
        else:
            data = _read_file_or_corpus_text(context.run)
            sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != chosen.text_sha256:
            raise BadInput(
                source=chosen.text,
                reason="it has changed since this sweep began",
                hint="Run the command again, with another --out for the new text.",
            )
        sizes = list(zip(chosen.contexts, chosen.chunks, strict=True))
        if divergence_tool_or_none(context.run.engine) is None:
            return score_chunks_by_server(
                context, _chunk_texts_by_key(chosen, data, sizes)
            )
        return compare_with_reference(context, data, name=chosen.text, sizes=sizes)


class OneReference(Calibrating):
    """The pair that all are compared with, which each record names."""

    @override
    def recover_calibration(self, records: Sequence[CellRecord]) -> Json | None:
        """
        The pair that *records* name, with what it did not read.

        None if they name several, or none.
        """
        every = [found for record in records if (found := divergence_of(record))]
        names = {divergence.reference for divergence in every}
        if len(names) != 1:
            return None
        (name,) = names
        own = [divergence_of(record) for record in records if str(record.pair) == name]
        unread = next((divergence.skipped for divergence in own if divergence), {})
        return as_json(ComparedWith(reference=name, unread=unread))


PROBE = DivergenceProbe(
    name=NAME,
    purpose="next-token distributions beside the reference's",
    metrics=(*METRICS, TEXT_LOGP, *OF_CELL),
    settings=DivergenceSettings,
    layout=DivergenceLayout,
    needs=frozenset({Ability.DIVERGENCE}),
    step="chunk",
    calibrating=OneReference(decides=False),
)


def _estimated_contexts_and_chunks(
    settings: DivergenceSettings, longest: int, tokens: int
) -> list[tuple[int, int]]:
    """Chosen contexts, else one up to *longest*; with chunks of a text of *tokens*."""
    contexts = settings.contexts or (_halve_until_enough(longest, tokens),)
    chunks = _chosen_chunks_by_context(settings, contexts)
    return [
        (
            context,
            chunks.get(context) or _default_chunk_count(settings, context, tokens),
        )
        for context in contexts
    ]


OF_USER = (DivergenceSettings, NAME)
"""What the user chose, for `RunContext.chosen_or_default_settings`."""


def _read_file_or_corpus_text(run: RunContext) -> bytes:
    """The text to compare on: the file asked for, else the corpus as it is sent."""
    path = run.chosen_or_default_settings(*OF_USER).file
    return run.text.encode() if path is None else read_text_as_utf8(path)


def _file_name_or_empty(settings: DivergenceSettings) -> str:
    """The name of the file that is compared on; empty for the corpus."""
    return settings.file.name if settings.file else ""


def _text_size_bytes(settings: DivergenceSettings) -> int:
    """Bytes of the text to compare on; of the built-in one, twice its shorter part."""
    if settings.file in {None, texts.ORDINARY}:
        return 2 * min(map(len, texts.read_prose_and_code()))
    return len(read_text_as_utf8(settings.file))


def _stored_or_new_block_ends(
    run: RunContext, known: Json, sizes: Sequence[tuple[int, int]]
) -> tuple[int, ...]:
    """
    Where the parts of the usual text end, of as many tokens as *sizes* take.

    Each part is as long as a chunk of the first context; one more is behind them, as a
    text may have a few tokens fewer than its parts have alone.
    """
    context = next(iter(stored_chunks_by_context(known)), sizes[0][0])
    blocks = 1 + -(
        -max(chunk_context * max(2, chunks) for chunk_context, chunks in sizes)
        // context
    )
    stored = tuple(known.get("cuts", ()))
    if len(stored) >= blocks or run.preparation is None:
        return stored
    if divergence_tool_or_none(run.engine) is None:
        return texts.interleaved_block_ends_by_lines(context, blocks)
    return texts.interleaved_block_ends(
        run.preparation.prompts().tokenizer, context, blocks
    )


def _chunk_texts_by_key(
    chosen: DivergenceLayout, data: bytes, sizes: Sequence[tuple[int, int]]
) -> dict[str, list[str]]:
    """The chunks of each question, by its key, where no tool divides the text."""
    found = {
        comparison_key(context, chunks): texts.cut_into_chunks(
            data.decode(), context, chunks
        )
        for context, chunks in sizes
    }
    if chosen.cuts:
        context, chunks = sizes[0]
        blocks = texts.built_in_text_blocks(chosen.cuts)[:chunks]
        found[comparison_key(context, chunks)] = [block.decode() for block in blocks]
    return found


def _default_chunk_count(
    settings: DivergenceSettings, context: int, text_size: int
) -> int:
    """Chunks at *context* where none are chosen; fewer of a short text, but two."""
    most = ASKED_CHUNKS if settings.contexts else DEFAULT_CHUNKS
    return min(most, max(2, text_size // max(1, context)))
