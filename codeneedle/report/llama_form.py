"""
Divergence in the form that llama.cpp's maintainers read: the columns of #7412.

Figures and errors are those of its own tool; the commands give them without this
program.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codeneedle.cache_types import Pair, most_precise_first
from codeneedle.document import Block, Document, Facts, Heading, Lines, Table
from codeneedle.engines.tools import Estimate, Statistics
from codeneedle.errors import BadInput
from codeneedle.models.kv_cache import bits_by_cache_type
from codeneedle.probes.divergence.metrics import (
    UNTOLD_REFERENCE,
    precision_percent,
    why_no_perplexity,
)
from codeneedle.probes.divergence.record import (
    NAME,
    ContextComparison,
    divergence_of,
    stored_chunks_by_context,
)
from codeneedle.records.record import CellRecord, Run, Setup
from codeneedle.report import captions
from codeneedle.report.shown import value_and_error_text
from codeneedle.text import NO_VALUE_WORD, number_text, plural
from codeneedle.verdict.judge import Verdict, pareto_front_with_chosen_pair
from codeneedle.verdict.statistics import Decision

HEADING = (
    *("K", "V", "BPV", "PPL", "ΔPPL", "KLD"),
    *("Mean Δp, %", "RMS Δp, %", "Same top p, %", "Precision, %", "99.9 %"),
)


NOTES = (
    "BPV: bits of a cached value, mean of K and V; of a fork's type as measured.",
    "±: standard error over tokens, as the tool states it.",
    "Precision: exp(floor - KLD), mean and 99.9th percentile; floor: KLD of 'again'.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The words of the tools."""

    base: Callable[[Sequence[str], int], list[str]]
    """
    The command that writes the base file, from that of the reference and the number of
    chunks.
    """

    compares: Callable[[Sequence[str]], list[str]]
    """The command that compares a pair, from that of its record."""

    text: Callable[[Sequence[str]], str]
    """The file of the text that the command of a record reads; empty if it has none."""

    build: Callable[[Iterable[Pair]], str]
    """The option of a build with kernels for some pairs."""


def run_with_divergence_alone(run: Run) -> Run:
    """*run* with the records that `divergence_document` shows."""
    return run.of_probe(NAME)


def divergence_document(verdict: Verdict, dialect: Dialect) -> Document:
    """
    A table for each context of the run that *verdict* judges; commands that measure it.

    Raises:
        BadInput: If divergence was not measured.
    """
    run = verdict.run
    compared = {
        record.pair: (record, seen)
        for record in run_with_divergence_alone(run).records
        if record.has_numbers and (seen := divergence_of(record))
        if any(at.statistics for at in seen.answers.values())
    }
    if not compared:
        raise BadInput(
            source=run.name,
            reason="has no divergence, which this form is of",
            hint=f"It comes from: codeneedle sweep --probe {NAME}",
        )
    pairs = most_precise_first(compared)
    sizes = stored_chunks_by_context(run.setup.probes.get(NAME, {}))
    stored = (at for _, seen in compared.values() for at in seen.answers.values())
    contexts = [*sizes] or [*dict.fromkeys(at.context for at in stored)]
    reference = next(iter(compared.values()))[1].reference
    records = [compared[pair][0] for pair in pairs]
    bits = bits_by_cache_type(
        buffer for record in records for buffer in record.effective.kv
    )
    parts: list[Block] = [Heading(f"{run.name}: divergence")]
    for context in contexts:
        at_context = {
            pair: (at, at.statistics)
            for pair in pairs
            if (at := compared[pair][1].comparison_at(context, sizes)) and at.statistics
        }
        if at_context:  # a sweep may have ended before it came to this context
            parts += _context_table(at_context, reference, bits)
    commands = list(_measuring_commands(verdict, records, reference, dialect))
    return [
        *parts,
        Lines(NOTES),
        Facts(captions.measured_on_facts_of_probe(run, NAME)),
        Lines(commands, copied="Commands"),
    ]


def _context_table(
    at_context: Mapping[Pair, tuple[ContextComparison, Statistics]],
    reference: str,
    bits: Mapping[str, float],
) -> Iterator[Block]:
    """
    The table of one context; the reference stands twice, alone and compared again.

    Below it the perplexity of the base file.
    """
    first, of_first = next(iter(at_context.values()))
    yield Lines([f"{plural(first.chunks, 'chunk')} of {first.context} tokens"])
    rows = []
    floor = next(
        (
            statistics
            for pair, (_, statistics) in at_context.items()
            if str(pair) == reference
        ),
        None,
    )
    for pair, (compared, statistics) in at_context.items():
        name = [pair.k, pair.v, _mean_bits_text(pair, bits)]
        if str(pair) == reference:
            told = compared.reference_ppl
            ppl = number_text(told, digits=4) if told else NO_VALUE_WORD
            rows.append([*name, ppl, *[NO_VALUE_WORD] * (len(HEADING) - 4)])
            name[1] += ", again"
        rows.append(
            [
                *name,
                *_statistics_texts(statistics),
                *(
                    number_text(precision, digits=2)
                    for precision in _mean_and_tail_precision_percent(statistics, floor)
                ),
            ]
        )
    yield Table(HEADING, rows, words=HEADING[:2])
    if missing := list(_why_perplexities_missing(at_context, reference)):
        yield Lines(missing)
    base = number_text(of_first.ppl_base.value, digits=4)
    yield Lines(
        [f"ΔPPL is against the base file, which has 16 bits a value: PPL(base) {base}"]
    )


def _why_perplexities_missing(
    at_context: Mapping[Pair, tuple[ContextComparison, Statistics]], reference: str
) -> Iterator[str]:
    """Why perplexities are missing, a line for each pair that has none."""
    for pair, (compared, statistics) in at_context.items():
        if str(pair) == reference and not compared.reference_ppl:
            yield f"{NO_VALUE_WORD}: PPL of {reference}: {UNTOLD_REFERENCE}"
        if why := why_no_perplexity(compared, statistics):
            again = ", again" if str(pair) == reference else ""
            yield f"{NO_VALUE_WORD}: PPL of {pair}{again}: {why}"


def _mean_and_tail_precision_percent(
    ours: Statistics, floor: Statistics | None
) -> tuple[float, float]:
    """
    Precision of *ours* beside *floor*, by mean and by 99.9th percentile, in percent.

    NaN without a floor.
    """
    if floor is None:
        return math.nan, math.nan
    return (
        precision_percent(ours.kld.value, floor.kld.value),
        precision_percent(ours.kld_999, floor.kld_999),
    )


def _mean_bits_text(pair: Pair, bits: Mapping[str, float]) -> str:
    """Bits of a value of the cache, mean of K and V; a dash where one is unknown."""
    if not {pair.k, pair.v} <= bits.keys():
        return NO_VALUE_WORD
    return f"{(bits[pair.k] + bits[pair.v]) / 2:.4g}"


def _statistics_texts(statistics: Statistics) -> list[str]:
    """The columns from perplexity to the same first choice."""
    return [
        _estimate_text(statistics.ppl, 4),
        _estimate_text(ppl_difference(statistics), 4),
        _estimate_text(statistics.kld, 6),
        _estimate_text(statistics.dp_mean, 3),
        _estimate_text(statistics.dp_rms, 3),
        _estimate_text(statistics.same_top, 2),
    ]


def _estimate_text(estimate: Estimate | None, digits: int) -> str:
    """A number with its error, if that is known; a dash for none."""
    if estimate is None:
        return NO_VALUE_WORD
    return value_and_error_text(
        estimate.value, estimate.error, digits=digits, mark=" ± "
    )


def ppl_difference(statistics: Statistics) -> Estimate | None:
    """
    PPL of a pair less that of the base, with the error that the tool states.

    None if the pair has none.

    The three relative errors e give the covariance of both logarithms, as
    (e_pair^2 + e_base^2 - e_ratio^2) / 2; the tool computes it in the same way.
    """
    pair, base, ratio = statistics.ppl, statistics.ppl_base, statistics.ppl_ratio
    if pair is None:
        return None
    value = pair.value - base.value
    if pair.error is None or base.error is None or ratio.error is None:
        return Estimate(value, None)
    ours, theirs, both = (term.error / term.value for term in (pair, base, ratio))  # type: ignore[operator]
    covariance = pair.value * base.value * (ours**2 + theirs**2 - both**2) / 2
    variance = pair.error**2 + base.error**2 - 2 * covariance
    return Estimate(value, math.sqrt(max(variance, 0.0)))


def _measuring_commands(
    verdict: Verdict, records: Sequence[CellRecord], reference: str, dialect: Dialect
) -> Iterator[str]:
    """The commands that measure *records*, and the build option of the best pairs."""
    setup = verdict.run.setup
    settings = setup.probes.get(NAME, {})
    contexts = settings.get("contexts", [])
    text = f"# text.txt: {settings.get('text', '')}"
    files = (dialect.text(record.command) for record in records)
    if kept := next(filter(None, files), ""):
        text += f"; base/{Path(kept).name} in the run folder"
    yield text
    for record in records:
        compared = divergence_of(record)
        if str(record.pair) == reference and compared:
            *_, last = compared.answers.values()
            chunks = last.chunks
            yield _command_line_without_folders(
                setup, dialect.base(record.command, chunks)
            )
    for record in records:
        yield _command_line_without_folders(setup, dialect.compares(record.command))
    if len(contexts) > 1:
        # A layout has a number of chunks for each context.
        counts = zip(contexts, settings["chunks"], strict=True)
        told = "; ".join(f"{plural(count, 'chunk')} of {at}" for at, count in counts)
        yield f"# the same at each context: {told} tokens"
    worth = pareto_pairs_not_beyond(verdict)
    if worth:
        yield "# CUDA kernels of the pairs that lose least for their size:"
        yield f"# {dialect.build(worth)}"


def _command_line_without_folders(setup: Setup, command: Iterable[str]) -> str:
    """*command* with the names of files alone: it is posted where all can read it."""
    words = (Path(word).name if Path(word).is_absolute() else word for word in command)
    return captions.command_line(setup, words)


def pareto_pairs_not_beyond(verdict: Verdict) -> list[Pair]:
    """The Pareto front by size and loss, and what is set; no pair beyond the limit."""
    pairs = [
        result.pair
        for result in pareto_front_with_chosen_pair(verdict)
        if result.decision is not Decision.BEYOND
    ]
    return most_precise_first(pairs)
