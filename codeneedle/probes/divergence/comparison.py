"""
Compares distributions with the reference's, computed once for all pairs; refuses other
ones than pairs had before, full disks, untrained contexts, and bad ``--text`` files.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from codeneedle.cache_types import Pair
from codeneedle.corpora import encodings
from codeneedle.corpora.fitting import Untrained
from codeneedle.engines.engine import Ability, Engine
from codeneedle.engines.tools import (
    Comparison,
    DivergenceTask,
    DivergenceTool,
    ToolRun,
)
from codeneedle.errors import BadInput, CellError, FolderUnusable
from codeneedle.probes.cell import ProbeContext, RunContext
from codeneedle.probes.divergence.record import (
    NAME,
    ComparedWith,
    ContextComparison,
    Divergence,
    comparison_key,
    divergence_of,
    reference_of,
)
from codeneedle.probes.estimates import Estimates
from codeneedle.records.record import Json, Status, as_json
from codeneedle.system import files
from codeneedle.system.files import holding_lock, nap
from codeneedle.text import size_text as size_phrase

MOST_CHUNKS = 100_000
"""Of a text; the distributions of more fill any disk."""

MAX_TEXT_BYTES = 256 << 20
"""A tool reads and tokenizes all of a text, however few chunks it computes."""

SPARE_BYTES = 64 << 20
"""Disk that logs and records may need beside the reference's distributions."""


def compare_with_reference(
    context: ProbeContext, text: bytes, *, name: str, sizes: Sequence[tuple[int, int]]
) -> Json:
    """
    The observation: the cell compared with the reference on *text*.

    What the previous record of the cell has stays as it is. Distributions of the
    reference that are missing are computed; without a reference the cell becomes it.

    Args:
        context: The cell.
        text: What distributions are compared on.
        name: What the text is called in messages.
        sizes: Contexts, with the most chunks at each.

    Raises:
        BadInput: If the text turns out to be too short.
        CellError: If the tool fails, or runs other cache types than asked for.
    """
    tool = context.run.engine.divergence_tool()
    found = earlier_comparison_or_empty(context)
    reference = Pair.parse(found.reference)
    tasks = [
        DivergenceTask(
            pair=context.pair,
            reference=reference,
            context=length,
            chunks=chunks,
            text=text,
            text_name=name,
            weights_sha256=context.run.setup.weights.sha256,
            folder=context.run.folder,
        )
        for length, chunks in sizes
        if comparison_key(length, chunks) not in found.answers
    ]
    steps = [_chunks_to_compute(tool, task) for task in tasks]
    with (
        context.record_tool_time(),
        context.limit_and_record_silence() as silence_limit,
    ):
        for at, task in enumerate(tasks):
            found.answers[comparison_key(task.context, task.chunks)] = (
                _ensure_reference_and_compare(
                    context,
                    tool,
                    replace(task, silence_limit=silence_limit),
                    done=sum(steps[:at]),
                    total=sum(steps),
                )
            )
            context.store_observation_so_far(as_json(found))
    return set_reference_unless_known(context, found)


def earlier_comparison_or_empty(context: ProbeContext) -> Divergence:
    """
    What an earlier server of the cell was compared by, beside the same reference.

    Empty if it was another one; without a reference in the setup it is the pair itself.
    """
    reference = str(reference_of(context.run.setup) or context.pair)
    record = context.previous_record
    previous = divergence_of(record) if record else None
    is_same = previous is not None and previous.reference == reference
    answers = {**previous.answers} if previous and is_same else {}
    return Divergence(reference=reference, answers=answers)


def set_reference_unless_known(context: ProbeContext, found: Divergence) -> Json:
    """*found*, to be stored; the first pair becomes the reference of all others."""
    if reference_of(context.run.setup) is None:
        known = ComparedWith(reference=found.reference, unread={**found.skipped})
        context.calibrate(as_json(known))
    return as_json(found)


def divergence_tool_or_none(engine: Engine) -> DivergenceTool | None:
    """What compares distributions; None where a server scores right tokens alone."""
    if engine.text_scoring_ability is Ability.DIVERGENCE:
        return engine.divergence_tool()
    return None


def _ensure_reference_and_compare(
    context: ProbeContext,
    tool: DivergenceTool,
    task: DivergenceTask,
    *,
    done: int,
    total: int,
) -> ContextComparison:
    """
    The comparison of *task*, the reference's distributions computed first if need be.

    *done* of *total* chunks are behind it, for the progress.
    """

    def report_chunks(what: str, behind: int, chunks: int) -> None:
        at = min(behind + min(chunks, task.chunks), total)
        context.report_step(at, total, f"{what} at {task.context:,} tokens")

    # Of several workers, one computes the reference if it is missing.
    task.folder.mkdir(parents=True, exist_ok=True)
    with holding_lock(task.folder / "base.lock", waiting=nap):
        reference = tool.find_stored_reference(task)
        if reference is None:
            what = "computing the reference"
            report_chunks(what, done, 0)
            name = f"{task.reference.slug}.{NAME}-base.{task.context}.log"
            reference = tool.write_reference(
                task,
                log=context.logs / name,
                note=lambda run: context.record_tool_run(_run_to_keep(run, task)),
                progress=lambda chunks: report_chunks(what, done, chunks),
            )
            done += task.chunks
    behind = done
    report_chunks("comparing", behind, 0)
    started = context.clock()
    comparison = tool.compare(
        task,
        reference,
        log=context.cell_log_path(f"{NAME}.{task.context}"),
        note=context.record_tool_run,
        progress=lambda chunks: report_chunks("comparing", behind, chunks),
    )
    _refuse_other_reference(context, task, comparison)
    return ContextComparison(
        context=task.context,
        chunks=reference.chunks,
        tokens=comparison.tokens,
        seconds=round(context.clock() - started, 4),
        base_seconds=reference.seconds,
        reference_ppl=reference.ppl,
        statistics=comparison.statistics,
        retries=comparison.retries,
        by_chunk=comparison.by_chunk,
        logprobs=comparison.logprobs,
        first_choices=comparison.first_choices,
        same_as=comparison.same_as,
    )


SAME_BASE = 1e-3
"""
By how much of it the reference's perplexity may differ, as tools read it back.

One that is computed once more on a device differs in the fifth digit.
"""


def _refuse_other_reference(
    context: ProbeContext, task: DivergenceTask, comparison: Comparison
) -> None:
    """
    Stop at distributions of the reference that are not those of other pairs.

    Raises:
        CellError: With both perplexities, as they were read back.
    """
    ours = comparison.statistics.ppl_base.value
    for record in context.others:
        found = divergence_of(record)
        other = found and found.answers.get(comparison_key(task.context, task.chunks))
        base = other.statistics if other else None
        theirs = base.ppl_base.value if base else ours
        if abs(ours - theirs) > SAME_BASE * theirs:
            raise CellError(
                "the distributions of the reference are other ones than those that "
                f"{record.pair} was compared with: their perplexity is {ours:,.4f}, "
                f"and was {theirs:,.4f}",
                hint=f"Delete {task.folder / 'base'} and sweep again, or choose "
                "another folder with --out.",
                status=Status.MISMATCHED,
            )


def _run_to_keep(run: ToolRun, task: DivergenceTask) -> ToolRun:
    """
    What the cell of *task* keeps of *run*, which wrote the reference.

    All of it if its pair is the reference; else the command alone.
    """
    is_same = task.pair == task.reference
    return run if is_same else ToolRun(command=run.command)


def _chunks_to_compute(tool: DivergenceTool, task: DivergenceTask) -> int:
    """Chunks to compute: twice as many if the reference is to be computed."""
    return (1 if tool.find_stored_reference(task) else 2) * task.chunks


def read_text_as_utf8(path: Path) -> bytes:
    """
    The text that ``--text`` names, in UTF-8.

    Raises:
        BadInput: If it is no file, too large, or no text in an encoding that is known.
    """
    reason, hint = "", "Name a plain text file, or leave --text out."
    try:
        if not path.is_file():
            reason = "it is a folder" if path.is_dir() else "there is no such file"
        elif path.stat().st_size > MAX_TEXT_BYTES:
            reason = f"it has more than {size_phrase(MAX_TEXT_BYTES)}"
        else:
            return encodings.decode_bytes(path.read_bytes()).encode()
    except OSError as error:
        reason = error.strerror or str(error)
    except encodings.Undecodable as error:
        reason, hint = str(error), encodings.HINT
    raise BadInput(source=f"--text {path}", reason=reason, hint=hint)


def refuse_untrained(of: RunContext | Estimates, context: int) -> None:
    """
    Stop at a *context* that is longer than what the weights were trained for.

    Raises:
        Untrained: If it is, and the user's arguments do not stretch it.
    """
    trained = of.weights.training_context
    if trained and context > trained and not of.engine.stretches_context:
        raise Untrained(
            source=f"--divergence-context {context}",
            trained=trained,
            way=f"--divergence-context {trained} or less",
        )


def refuse_full_disk(
    of: RunContext | Estimates, sizes: Sequence[tuple[int, int]]
) -> None:
    """
    Stop if the distributions of the reference would not fit on the disk.

    Args:
        of: The run, or the plan of one.
        sizes: Contexts, with the chunks at each.

    Raises:
        FolderUnusable: Naming both sizes.
    """
    tool = of.engine.divergence_tool()
    needed = sum(
        tool.bytes_to_write(of.folder, context=context, chunks=chunks)
        for context, chunks in sizes
    )
    free = files.free_disk_bytes(of.folder)
    if needed + SPARE_BYTES > free:
        raise FolderUnusable(
            folder=of.folder,
            reason=f"the reference's distributions take {size_phrase(needed)}, and "
            f"{size_phrase(free)} are free",
            hint="Use fewer chunks, a smaller context, or --out on a larger disk.",
        )
