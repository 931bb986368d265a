"""
The verdict on several files of weights, in words: what to set, or why nothing is; what
the weights lose alone; and a row for each candidate.
"""

import itertools
import math
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from codeneedle.cache_types import Pair, PairFlags, pairs_phrase
from codeneedle.document import Document, Facts, Heading, Lines, ShownText, Table
from codeneedle.probes.metrics import LossKind
from codeneedle.records.record import Run
from codeneedle.records.store import SWEEP
from codeneedle.report import captions
from codeneedle.report.losses import shown_loss_row
from codeneedle.report.shown import (
    REFERENCE,
    SET,
    UNFIT,
    UNTOLD_SIZE,
    NumberMark,
    Shown,
    decision_mark,
    legend,
    trouble_mark,
)
from codeneedle.report.verdict import first_line_style
from codeneedle.text import (
    escape_invisible,
    number_text,
    plural,
    size_text,
    sweep_command,
)
from codeneedle.verdict.asking_order import JointOrder, JointRun, order_of
from codeneedle.verdict.commands import limit_options
from codeneedle.verdict.joint import bits_per_weight, memory_of, weight_names
from codeneedle.verdict.judge import Outcome, PairResult, Verdict
from codeneedle.verdict.metric_phrases import (
    amount_phrase,
    decision_phrase,
    loss_phrase,
    mean_loss_phrase,
)
from codeneedle.verdict.remark_kinds import Remark, RemarkKind
from codeneedle.verdict.remarks import joint_remarks

MARK = "*"
"""Before what is set."""


def budget_document(verdict: Verdict, pair_flags: PairFlags) -> Document:
    """What to set of all candidates, and a row for each of them."""
    yield budget_headline_lines(verdict, pair_flags)
    yield from candidates_table_and_legend(verdict)
    yield Lines([budget_remark.text for budget_remark in budget_remarks(verdict)])
    yield Facts(weight_facts(verdict), is_quiet=True)


def budget_document_with_run_facts(verdict: Verdict, pair_flags: PairFlags) -> Document:
    """A heading, the `budget_document`, and what it was measured on."""
    yield Heading(f"{verdict.run.name}: one budget")
    yield from budget_document(verdict, pair_flags)
    yield Facts(captions.run_facts(verdict.run), is_quiet=True)


def budget_closing_line(verdict: Verdict, pair_flags: PairFlags) -> Document:
    """The first line of the answer, for the end of a long table."""
    first, *_ = budget_headline(verdict, pair_flags)
    yield Lines([Text(escape_invisible(first), first_line_style(verdict))])


def budget_headline_lines(verdict: Verdict, pair_flags: PairFlags) -> Lines:
    """The `budget_headline`, its first line coloured."""
    first, *rest = budget_headline(verdict, pair_flags)
    lines: list[ShownText] = [
        Text(escape_invisible(first), first_line_style(verdict)),
        *map(escape_invisible, rest),
    ]
    return Lines(lines)


# --- the first lines


def budget_headline(verdict: Verdict, pair_flags: PairFlags) -> list[str]:
    """Which weights and pair to set and what they lose, or why not; a line each."""
    reference = verdict.reference
    if reference is None:
        return ["No verdict: no candidate has numbers that can show a loss."]
    if not verdict.has_fitting_reference and (why := [*_why_nothing_is_set(verdict)]):
        return why
    chosen = verdict.result(verdict.chosen) if verdict.chosen else None
    if chosen is not None:
        taken = memory_phrase(verdict, chosen)
        flags = model_and_pair_flags(verdict, chosen.pair, pair_flags)
        return [
            f"Set: {flags}   ({taken})",
            f"     {loss_to_reference_sentence(verdict, chosen)}",
            *_loss_of_weights_line(verdict, chosen),
        ]
    return [*_why_reference_stays(verdict, reference, pair_flags)]


def _why_nothing_is_set(verdict: Verdict) -> Iterator[str]:
    """Why no candidate may be set; no line if one may be, or if none fits."""
    name = escape_invisible(str(verdict.reference))
    if verdict.reference_doubts_by_metric:
        why = "; ".join(
            f"{text} ({metric})"
            for metric, text in verdict.reference_doubts_by_metric.items()
        )
        yield f"No answer: beside {name} {why}."
    elif verdict.pairs_finer_than_reference:
        finer = escape_invisible(str(verdict.pairs_finer_than_reference[0]))
        yield (
            f"No answer: {finer} has a finer K or V than {name}, the reference, whose "
            "own loss is unknown. Measure its weights with that pair, too."
        )
    elif verdict.outcome is Outcome.NOTHING_FITS:
        return
    elif not verdict.compared_results:
        yield f"No answer yet: nothing was compared with {name}."
    elif not verdict.has_mean_loss and not verdict.results_of_main_metric:
        yield "No answer yet: losses were not measured."


def _why_reference_stays(
    verdict: Verdict, reference: Pair, pair_flags: PairFlags
) -> Iterator[str]:
    """Why nothing is set: the reference fits, nothing does, or nothing is within."""
    most = verdict.limits.max_memory_bytes
    flags = model_and_pair_flags(verdict, reference, pair_flags)
    own = verdict.result(reference) if verdict.has_fitting_reference else None
    if not any(result.memory_bytes for result in verdict.results):
        yield "No answer yet: no log of these runs tells the size of a cache."
        return
    if most is None:
        loss = verdict.limits.loss_amount_text(
            LossKind.PROBABILITY, verdict.limits.max_loss
        )
        yield f"Keep: {flags}. Nothing smaller is shown to lose less than {loss}."
        yield "     What loses least of what fits: --max-memory SIZE --at TOKENS"
        return
    budget = f"{size_text(most)} at {_memory_context(verdict):,} tokens"
    sizes = {r.pair: r.memory_bytes for r in verdict.results if r.memory_bytes}
    order = order_of(verdict.run)
    if isinstance(order, JointOrder):
        sizes |= {candidate: candidate.size_to_compare for candidate in order.too_large}
    if own:
        taken = memory_phrase(verdict, own)
        yield f"Keep: {flags}   ({taken})"
        yield f"     It is the reference, and fits into {budget}."
    elif min(sizes.values()) > most and not verdict.fitting_candidates:
        yield from _nothing_fits_lines(verdict, sizes, most, budget)
    else:
        yield f"No answer yet: nothing that fits into {budget} has a bound of its loss."


def _nothing_fits_lines(
    verdict: Verdict, sizes: dict[Pair, float], most: int, budget: str
) -> Iterator[str]:
    """What is nearest to the *budget*, a phrase of *most*, and what would fit."""
    least = min(sizes, key=lambda pair: (sizes[pair], str(pair)))
    takes = f"{escape_invisible(str(least))} takes {size_text(sizes[least])}"
    yield f"Nothing fits into {budget}: the nearest, {takes}."
    run = run_of(verdict, least)
    memory = memory_of(run, least.without_weights)
    if context := memory.longest_fitting_context(
        most, least.without_weights, at=_memory_context(verdict)
    ):
        yield f"     It would fit at {context:,} tokens: --at {context}"
    else:
        without = size_text(memory.fixed_bytes)
        yield f"     Without any cache it takes {without}: smaller weights would fit."


def loss_to_reference_sentence(verdict: Verdict, result: PairResult) -> str:
    """``loses 0.9 % ... beside Q8_0 with f16/f16, at most 1.4 %``; empty if unknown."""
    what = f"the right tokens beside {_weights_with_pair_phrase(verdict.reference)}"
    return (
        loss_phrase(verdict.limits, result.leading_result, what)
        if result.leading_result
        else ""
    )


def _weights_with_pair_phrase(pair: Pair | None) -> str:
    """``Q8_0 with f16/f16``."""
    if pair and pair.weights:
        return escape_invisible(f"{pair.weights} with {pair.without_weights}")
    return escape_invisible(str(pair))


def _loss_of_weights_line(verdict: Verdict, chosen: PairResult) -> Iterator[str]:
    """
    How much of the loss is that of the weights, where that was measured.

    Nothing of the weights of the reference, or of a pair with its cache.
    """
    reference, pair = verdict.reference, chosen.pair
    if (
        reference is None
        or pair.weights == reference.weights
        or pair.without_weights == reference.without_weights
    ):
        return
    alone = next(
        (
            row
            for result in verdict.compared_results
            if (result.pair.weights, result.pair.without_weights)
            == (pair.weights, reference.without_weights)
            if (row := shown_loss_row(verdict, result))
        ),
        None,
    )
    if alone:
        loss = mean_loss_phrase(verdict.limits, alone)
        yield f"     The weights alone, with {reference.without_weights}, lose {loss}."


def memory_phrase(verdict: Verdict, result: PairResult) -> str:
    """``7.4 GiB at 32,768 tokens``; ``memory unknown`` without a size."""
    if result.memory_bytes is None:
        return "memory unknown"
    return f"{size_text(result.memory_bytes)} at {_memory_context(verdict):,} tokens"


def _memory_context(verdict: Verdict) -> int:
    """The context, in tokens, that memory is told for."""
    return verdict.limits.at or verdict.run.setup.context


def model_and_pair_flags(verdict: Verdict, pair: Pair, pair_flags: PairFlags) -> str:
    """``-m qwen-Q6_K.gguf -ctk q8_0 -ctv q5_1``."""
    run = run_of(verdict, pair)
    return (
        f"{pair_flags.model} {shlex.quote(weights_file_name(run))} "
        f"{pair_flags(pair.without_weights)}"
    )


def run_of(verdict: Verdict, pair: Pair) -> Run:
    """The run that *pair* was measured in."""
    run = verdict.run
    if not isinstance(run, JointRun):
        return run
    names = weight_names(run.runs)
    return run.runs[names.index(pair.weights)]


def weights_file_name(run: Run) -> str:
    """The name of the file of weights, without folders, as its sweep has named it."""
    return Path(_weights_as_named(run)).name


def _weights_as_named(run: Run) -> str:
    """The first file that its sweep names; the name of the weights if it names none."""
    try:
        named = tomllib.loads(run.sweep).get("models")
    except tomllib.TOMLDecodeError:
        named = None
    first = named[0] if isinstance(named, list) and named else None
    return first if isinstance(first, str) else run.setup.weights.name


# --- the table


def candidates_table_and_legend(verdict: Verdict) -> Iterator[Table | Facts]:
    """
    A row for each candidate, by weights, the largest cache first; and its legend.

    Nothing where nothing was compared.
    """
    if not verdict.compared_results:
        return
    heading = ["weights", "K/V", "memory", "loss", "from", "to", "verdict"]
    rows = [
        _candidate_row(verdict, result)
        for result in sorted(verdict.results, key=_row_sort_key)
    ]
    texts = [[cell.text for cell in row] for row in rows]
    yield Table(heading, texts, words={*heading[:2], heading[-1]})
    yield Facts(legend(itertools.chain(*rows)))


def _row_sort_key(result: PairResult) -> tuple[float, str, float, str]:
    """What sorts rows: the most precise weights first, then the largest cache."""
    pair = result.pair
    return (
        -pair.weight_bits,
        pair.weights,
        -(result.memory_bytes or math.inf),
        str(pair),
    )


def _candidate_row(verdict: Verdict, result: PairResult) -> list[Shown]:
    """A candidate with its memory, loss, interval and verdict."""
    pair, row = result.pair, shown_loss_row(verdict, result)
    memory, limits = result.memory_bytes, verdict.limits
    bounds = ["", "", ""]
    if row:
        ends = (row.bounds.low, row.bounds.high)
        bounds = [
            mean_loss_phrase(limits, row),
            *(amount_phrase(limits, row, end) for end in ends),
        ]
    said = [*_verdict_words_with_marks(verdict, result)]
    texts = [
        escape_invisible(pair.weights),
        escape_invisible(str(pair.without_weights)),
    ]
    return [
        *(Shown(pair=pair, text=text) for text in texts),
        Shown(pair=pair, text=size_text(memory))
        if memory is not None
        else Shown(pair=pair, text=UNTOLD_SIZE.sign, marks=(UNTOLD_SIZE,)),
        *(Shown(pair=pair, text=text) for text in bounds),
        Shown(
            pair=pair,
            text=", ".join(text for text, _ in said),
            marks=tuple(mark for _, mark in said),
        ),
    ]


def _verdict_words_with_marks(
    verdict: Verdict, result: PairResult
) -> Iterator[tuple[str, NumberMark]]:
    """The words of a row, with marks: ``reference``, ``does not fit``, ``* set``."""
    if result.pair == verdict.chosen:
        yield f"{MARK} {SET.sign}", replace(SET, sign=MARK)
    if result.pair == verdict.reference:
        yield "reference", replace(REFERENCE, sign="reference")
    elif result.decision is None:
        mark = trouble_mark(result.trouble or "not compared")
        yield mark.sign, mark
    elif result.leading_result:
        yield (
            decision_phrase(result, result.leading_result),
            decision_mark(result.decision),
        )
    if not verdict.fits(result):
        yield UNFIT.sign, UNFIT


# --- beside the answer


def budget_remarks(verdict: Verdict) -> list[Remark]:
    """What is said beside the answer: of the runs, and of their being one question."""
    return [
        *_remark_on_fitting_now(verdict),
        *joint_remarks(verdict),
        *_remark_on_buffers(verdict),
        *_remarks_on_model_identity(verdict),
    ]


def _remark_on_fitting_now(verdict: Verdict) -> Iterator[Remark]:
    """A remark on candidates that fit only now, with the command that measures them."""
    pairs, runs = verdict.newly_fitting_candidates, _judged_runs(verdict)
    if pairs:
        models = [word for run in runs for word in ("--model", _weights_as_named(run))]
        where = captions.root_options(runs[0].root)
        options = [*models, *limit_options(verdict), *where]
        command = sweep_command(runs[0].folder / SWEEP, "--decide", *options)
        text = (
            f"Not measured, and too large before: {pairs_phrase(pairs)}. To ask what "
            f"fits now, too: {command}"
        )
        yield Remark(RemarkKind.FITS_NOW, text, pairs)


def _judged_runs(verdict: Verdict) -> tuple[Run, ...]:
    """The runs that are judged, the most precise weights first."""
    return verdict.run.runs if isinstance(verdict.run, JointRun) else (verdict.run,)


def _remark_on_buffers(verdict: Verdict) -> Iterator[Remark]:
    """A remark that buffers grow with the context at which they were told."""
    at, context = verdict.limits.at, verdict.run.setup.context
    if at and at > context:
        text = (
            f"Memory is that of weights, cache, states and buffers; buffers are those "
            f"of {context:,} tokens, and take more at {at:,}."
        )
        yield Remark(RemarkKind.MEMORY, text)


def _remarks_on_model_identity(verdict: Verdict) -> Iterator[Remark]:
    """Remarks on what does not show that the files are weights of one model."""
    runs = _judged_runs(verdict)
    if not all(run.setup.model.tokenizer for run in runs):
        text = (
            "A run does not say what tokenizer its file has: that it is the same "
            "follows from the length of text and prompts, and from their tokens' ends."
        )
        yield Remark(RemarkKind.ONE_MODEL, text)
    names = dict.fromkeys(r.setup.model.name for r in runs if r.setup.model.name)
    if len(names) > 1:
        named = ", ".join(escape_invisible(name) for name in names)
        text = f"Their authors name them otherwise ({named}): are they one model?"
        yield Remark(RemarkKind.ONE_MODEL, text)


def weight_facts(verdict: Verdict) -> list[tuple[str, str]]:
    """A phrase for each file of weights: its size, and its bits per weight."""
    runs = _judged_runs(verdict)
    return [
        (escape_invisible(name), _weights_file_phrase(run))
        for name, run in zip(weight_names(runs), runs, strict=True)
    ]


def _weights_file_phrase(run: Run) -> str:
    """Name, size, bits per weight if known, and number of pairs measured."""
    setup = run.setup
    bits = bits_per_weight(setup)
    phrases = [
        escape_invisible(weights_file_name(run)),
        size_text(setup.weights.size_bytes),
        *([f"{number_text(bits, digits=2)} bits per weight"] if bits else []),
        plural(len({r.pair for r in run.records if r.has_numbers}), "pair"),
    ]
    return ", ".join(phrases)
