"""
The verdict on a run, in words: its first lines, or why nothing is set and the command
that goes on; and the table of pairs with loss, interval and decision.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from rich.text import Text

from codeneedle.cache_types import (
    Pair,
    PairFlags,
    distinct_most_precise_first,
    pairs_phrase,
)
from codeneedle.document import Document, Facts, Heading, Lines, ShownText, Table
from codeneedle.probes.metrics import LossKind
from codeneedle.report import captions
from codeneedle.report.kernels import memory_gain_line
from codeneedle.report.losses import (
    differing_text_kinds_by_metric,
    has_losses,
    has_text_loss,
    shown_loss_row,
)
from codeneedle.report.shown import (
    REFERENCE_MARK,
    Shown,
    legend,
    non_kernel_attention_marks,
)
from codeneedle.text import (
    NO_VALUE_WORD,
    escape_invisible,
    plural,
    size_text,
    sweep_command,
)
from codeneedle.verdict.commands import (
    how_to_decide_phrases,
    limit_options,
    new_run_command,
)
from codeneedle.verdict.judge import (
    Outcome,
    PairResult,
    Verdict,
    pareto_front_with_chosen_pair,
    relative_cache_size,
)
from codeneedle.verdict.limits import CHANGE_BY_LOSS
from codeneedle.verdict.metric_phrases import (
    amount_phrase,
    decision_phrase,
    decision_word,
    loss_clause,
    losses_sentence,
    mean_loss_phrase,
    units_phrase,
    units_to_decide_phrase,
)
from codeneedle.verdict.metric_results import FEWEST_UNITS, MetricResult
from codeneedle.verdict.remarks import remarks
from codeneedle.verdict.statistics import Decision

INSTRUMENT = (
    "No recommendation: the built-in model is a test fixture, not a language model."
)
"""The first line of a verdict on the built-in model."""

LITTLE_GAIN = 0.05
"""Share of a model's memory below which the verdict begins with what a pair saves."""

ENOUGH_UNITS = 12
"""Units that a sweep should have: with fewer, most pairs stay open."""


def verdicts_document(
    of_runs: Sequence[Verdict], pair_flags_of: Callable[[str], PairFlags]
) -> Document:
    """
    Whole verdicts: a row for every pair.

    *pair_flags_of* spells pairs in the words of an engine. Of several runs, their
    answers stand first.
    """
    if of_runs[1:]:
        yield answers_table(of_runs)
    for verdict in of_runs:
        pair_flags = pair_flags_of(verdict.run.setup.engine)
        yield Heading(f"{verdict.run.name}: verdict")
        yield headline_and_gain_lines(verdict, pair_flags)
        if verdict.compared_results:
            yield from verdict_table_and_legend(verdict, verdict.results)
            yield from further_metric_tables(verdict, verdict.results)
        yield remark_lines(verdict, pair_flags)
        yield Facts(captions.run_facts(verdict.run), is_quiet=True)


def answers_table(of_runs: Sequence[Verdict]) -> Table:
    """A row for each run: the pair to set, what it takes, and what it loses."""
    names = captions.run_names_or_folders([verdict.run for verdict in of_runs])
    heading = ["run", "pair to set", "memory", "loss", "at most"]
    rows = [
        [name, answer_phrase(verdict), *_chosen_row(verdict)]
        for name, verdict in zip(names, of_runs, strict=True)
    ]
    return Table(heading, rows, words={*heading[:2]})


def answer_phrase(verdict: Verdict) -> str:
    """
    ``q8_0/q5_1``, ``keep f16/f16``, ``nothing fits``, ``no answer yet``.

    Of a pair that is not set with its decision: ``q8_0/q5_1, open``. A dash for the
    built-in model.
    """
    if verdict.is_of_built_in_model:
        return NO_VALUE_WORD
    if verdict.chosen:
        decision = verdict.decision(verdict.chosen)
        is_set = verdict.outcome is Outcome.SET
        return f"{verdict.chosen}{'' if is_set else f', {decision}'}"
    return {
        Outcome.KEEP: f"keep {verdict.reference}",
        Outcome.NOTHING_FITS: "nothing fits",
    }.get(verdict.outcome, "no answer yet")


def _chosen_row(verdict: Verdict) -> list[str]:
    """Memory, loss and its upper end of the chosen pair; three empty texts without."""
    chosen = verdict.result(verdict.chosen) if verdict.chosen else None
    row = shown_loss_row(verdict, chosen) if chosen else None
    if chosen is None or row is None:
        return ["", "", ""]
    memory = f"{relative_cache_size(chosen):.0%}"
    loss, _, most = _loss_and_ends(verdict, row)
    return [memory, loss, most]


def brief_document(verdict: Verdict, pair_flags: PairFlags) -> Document:
    """What to set and why, for the end of a sweep: the rows that matter."""
    yield headline_and_gain_lines(verdict, pair_flags)
    if verdict.compared_results:
        rows = pareto_front_with_chosen_pair(verdict)
        yield from verdict_table_and_legend(verdict, rows)
        yield from further_metric_tables(verdict, rows)
        left = len(verdict.results) - len(rows)
        if left:
            options = limit_options(verdict)
            command = captions.run_command_text("verdict", verdict.run, *options)
            line = f"{plural(left, 'more pair')}: {command}"
            yield Lines([line], style="dim")
    yield remark_lines(verdict, pair_flags)


def conclusion_document(verdict: Verdict, pair_flags: PairFlags) -> Document:
    """What to set and why, without a table."""
    yield headline_and_gain_lines(verdict, pair_flags)
    yield remark_lines(verdict, pair_flags)


def first_lines_document(
    of_runs: Sequence[Verdict], pair_flags_of: Callable[[str], PairFlags]
) -> Document:
    """The first line of each verdict, named if several, for the end of a long one."""
    lines: list[ShownText] = []
    for verdict in of_runs:
        first, *_ = headline_sentences(verdict, pair_flags_of(verdict.run.setup.engine))
        name = f"{escape_invisible(verdict.run.name)}: " if of_runs[1:] else ""
        lines.append(Text(name + escape_invisible(first), first_line_style(verdict)))
    yield Lines(lines)


def remark_lines(verdict: Verdict, pair_flags: PairFlags) -> Lines:
    """What a verdict says beside the answer, a line each."""
    return Lines([remark.text for remark in remarks(verdict, pair_flags)])


def headline_and_gain_lines(verdict: Verdict, pair_flags: PairFlags) -> Lines:
    """
    The `headline_sentences`, its first line coloured, and what there is to gain.

    That stands first where it is little: then nothing that is set changes much. Of a
    pair that is not set it is what there would be at most.
    """
    first, *rest = headline_sentences(verdict, pair_flags)
    lines: list[ShownText] = [
        Text(escape_invisible(first), first_line_style(verdict)),
        *rest,
    ]
    gain = None if verdict.is_of_built_in_model else verdict.memory_saving
    if gain is None:
        return Lines(lines)
    pair, what = escape_invisible(str(gain.pair)), memory_gain_line(gain)
    is_set, is_little = gain.pair == verdict.chosen, gain.saved_share < LITTLE_GAIN
    start = "There is little to gain" if is_little else "What there is to gain at most"
    sentence = f"{start} (by {pair}, {_decision_phrase(verdict, gain.pair)}), {what}."
    if is_set:
        sentence = f"{f'{start}: ' if is_little else '     '}{pair}, {what}."
    return Lines([sentence, *lines] if is_little else [*lines, sentence])


def _decision_phrase(verdict: Verdict, pair: Pair) -> str:
    """``which is beyond the limit``, ``which is open``."""
    decision = verdict.decision(pair)
    return f"which is {decision}{'' if decision == Decision.OPEN else ' the limit'}"


def first_line_style(verdict: Verdict) -> str:
    """The style of the first line: green where there is an answer."""
    is_open = verdict.outcome in {Outcome.NO_ANSWER, Outcome.NOTHING_FITS}
    return "bold yellow" if is_open else "bold green"


# --- the first lines


def headline_sentences(verdict: Verdict, pair_flags: PairFlags) -> list[str]:
    """What to set and what that loses, or why nothing is set and the way on."""
    if verdict.reference is None:
        return _lines_without_reference(verdict)
    if verdict.is_of_built_in_model:
        return [INSTRUMENT]
    if why := [*_why_nothing_is_set(verdict)]:
        return why
    chosen = verdict.result(verdict.chosen) if verdict.chosen else None
    if chosen and chosen.leading_result:
        if chosen.decision is not Decision.WITHIN:
            return [
                *_lines_on_least_loss(verdict, chosen, pair_flags),
                *_quantized_reference_line(verdict),
            ]
        gain = _memory_and_speed_phrase(verdict, chosen)
        return [
            f"Set: {pair_flags(chosen.pair)}   ({gain})",
            f"     {losses_sentence(verdict.limits, chosen)}",
            *_quantized_reference_line(verdict),
        ]
    kept = _lines_without_pair(verdict, pair_flags(verdict.reference))
    return [*kept, *_command_for_rest(verdict), *_quantized_reference_line(verdict)]


def _lines_without_reference(verdict: Verdict) -> list[str]:
    """Why a run has no reference."""
    has_numbers = any(record.has_numbers for record in verdict.run.records)
    why = (
        "nothing that was measured can show a loss"
        if has_numbers
        else "no cell of this run has numbers"
    )
    return [
        f"No verdict: {why}.",
        f"See why: {captions.run_command_text('table', verdict.run)}",
    ]


def _why_nothing_is_set(verdict: Verdict) -> Iterator[str]:
    """Why nothing that was measured may be set; nothing where something may be."""
    if not verdict.may_have_pair_in_kernel:
        yield "No recommendation: no pair that was measured has a kernel here."
        yield "Its losses are below; what has a kernel: codeneedle kernels"
    elif verdict.reference_doubts_by_metric:
        yield from _lines_on_reference_doubts(verdict)
        yield from _quantized_reference_line(verdict)


def _lines_on_reference_doubts(verdict: Verdict) -> Iterator[str]:
    """Why nothing is set beside a reference in doubt, and the way on."""
    why = "; ".join(
        f"{text} ({name})" for name, text in verdict.reference_doubts_by_metric.items()
    )
    yield f"No answer: beside {escape_invisible(str(verdict.reference))} {why}."
    yield "     A cache with fewer bits cannot be better: something is wrong with it."
    yield f"See how it ran: {captions.run_command_text('table', verdict.run)}"
    yield f"Measure it anew: {new_run_command(verdict, '--out', 'again')}"


def _lines_on_least_loss(
    verdict: Verdict, chosen: PairResult, pair_flags: PairFlags
) -> Iterator[str]:
    """Lines on the pair that loses least of what fits, not shown within the limit."""
    row, limits = chosen.leading_result, verdict.limits
    if row is None:
        return
    context = limits.at or verdict.run.setup.context
    where = f"{size_text(limits.max_memory_bytes or 0)} at {context:,} tokens"
    saving = _memory_and_speed_phrase(verdict, chosen)
    yield f"Least loss that fits {where}: {pair_flags(chosen.pair)}   ({saving})"
    yield f"     {losses_sentence(verdict.limits, chosen)}: {chosen.decision}"
    limit = f"your limit of {amount_phrase(verdict.limits, row, row.limit)}"
    is_above = row.bounds.mean > row.limit
    stands = f"above {limit}" if is_above else f"not shown to be within {limit}"
    fitting = [result for result in verdict.compared_results if verdict.fits(result)]
    none = "; nothing that fits is shown to be within it"
    if any(result.decision is Decision.WITHIN for result in fitting):
        none = ""
    yield f"     This is {stands}{none}."


def _memory_and_speed_phrase(verdict: Verdict, result: PairResult) -> str:
    """What a pair takes of memory, and writes of speed."""
    parts = []
    if verdict.limits.max_memory_bytes and result.memory_bytes is not None:
        context = verdict.limits.at or verdict.run.setup.context
        parts.append(f"{size_text(result.memory_bytes)} at {context:,} tokens")
    reference = escape_invisible(str(verdict.reference))
    if result.memory is not None:
        parts.append(f"{result.memory:.0%} of the KV memory of {reference}")
    else:
        parts.append(
            f"about {relative_cache_size(result):.0%} of {reference}, by its types"
        )
    if result.speed is not None:
        parts.append(f"{result.speed:.0%} of its writing speed")
    return ", ".join(parts)


def _quantized_reference_line(verdict: Verdict) -> Iterator[str]:
    """A line if the reference is quantized itself, whose own loss is unknown."""
    reference = verdict.reference
    if reference and not reference.is_unquantized:
        plain = [result for result in verdict.results if result.pair.is_unquantized]
        measured = [result for result in plain if not result.trouble]
        lacks = "a kernel" if measured else "numbers"
        why = f"no pair without quantization has {lacks}"
        if late := [
            result.pair
            for result in measured
            if result.pair in verdict.pairs_finer_than_reference
        ]:
            why = f"it was measured before {pairs_phrase(late)}"
        yield (
            f"     All this is beside {escape_invisible(str(reference))}, whose own "
            f"loss is unknown: {why}."
        )


def _lines_without_pair(verdict: Verdict, kept: str) -> Iterator[str]:
    """Lines where no pair is set: the reference, spelled as *kept*, or no answer."""
    limits = verdict.limits
    if limits.max_memory_bytes is not None:
        yield from _lines_on_limited_memory(verdict, kept)
        return
    if verdict.pairs_finer_than_reference:
        yield from _lines_on_missing_finest_pair(verdict)
        return
    if not verdict.compared_results:
        none = (
            f"no pair can be compared with {escape_invisible(str(verdict.reference))}"
        )
        silent = "nothing that was measured has a say"
        yield f"No answer yet: {silent if verdict.silent else none}."
        return
    if not verdict.has_mean_loss:
        yield from _lines_without_mean_loss(verdict, kept)
        return
    rows = verdict.results_of_main_metric
    loss = limits.loss_amount_text(rows[0].kind, rows[0].limit)
    what = " of the score" if rows[0].kind is LossKind.SCORE else ""
    yield from _lines_on_none_within(verdict, kept, f"less than {loss}{what}")
    units, kind = min(row.bounds.units for row in rows), rows[0].metric.unit_kind
    if units < FEWEST_UNITS:
        is_open = all(row.decision is Decision.OPEN for row in rows)
        yield (
            f"{units_phrase(rows[0], units)} can show "
            f"{'nothing' if is_open else 'little'}: ask "
            f"{ENOUGH_UNITS} or more ({kind.more})."
        )
        return
    yield from _lines_on_nearest_pair(verdict)


def _lines_on_none_within(verdict: Verdict, kept: str, what: str) -> Iterator[str]:
    """
    Lines on what no smaller cache is shown to lose, which *what* says.

    To keep the reference is an answer once all of them were measured or ruled out.
    """
    unasked = len(verdict.unasked_pairs)
    if not unasked:
        yield f"Keep: {kept}. No smaller cache is shown to lose {what}."
        return
    were = f"{plural(unasked, 'smaller cache')} {'was' if unasked == 1 else 'were'}"
    yield (
        f"No answer yet: {were} not measured, and none of those that were is shown to "
        f"lose {what}."
    )


def _command_for_rest(verdict: Verdict) -> Iterator[str]:
    """The command that measures the rest, where that is the next step."""
    is_next = verdict.has_mean_loss and not verdict.pairs_finer_than_reference
    if is_next and verdict.unasked_pairs and verdict.limits.max_memory_bytes is None:
        yield f"To go on: {sweep_command(verdict.run.folder)}"


def _lines_on_missing_finest_pair(verdict: Verdict) -> Iterator[str]:
    """Lines where no pair is the most precise in both K and V: what to measure."""
    finer = verdict.pairs_finer_than_reference
    sides = [*finer, *filter(None, [verdict.reference])]
    best = Pair(
        distinct_most_precise_first(pair.k for pair in sides)[0],
        distinct_most_precise_first(pair.v for pair in sides)[0],
    )
    has = "have" if finer[1:] else "has"
    yield (
        f"No verdict: {pairs_phrase(finer)} {has} a finer K or V than "
        f"{escape_invisible(str(verdict.reference))}, the reference, whose own loss "
        "is unknown."
    )
    result = verdict.result(best)
    if result and result.trouble:
        yield (
            f"{escape_invisible(str(best))} would tell: "
            f"{escape_invisible(result.trouble)}"
        )
        return
    if best in finer:
        # Others were measured from the reference, which stays what it is.
        command = new_run_command(verdict, "--out", "again")
        yield (
            f"{escape_invisible(str(best))} would tell, where it is measured first: "
            f"{command}"
        )
        return
    command = sweep_command(verdict.run.folder, "--pairs", str(best))
    yield f"{escape_invisible(str(best))} would tell: {command}"


def _lines_without_mean_loss(verdict: Verdict, kept: str) -> Iterator[str]:
    """Lines where no mean loss has a say, nor a score: by answers, else divergence."""
    answers = [
        row
        for result in verdict.compared_results
        for row in result.metric_results
        if row.kind is LossKind.ANSWERS
    ]
    if answers:
        lost = verdict.limits.loss_amount_text(
            LossKind.ANSWERS, verdict.limits.max_lost
        )
        noun = answers[0].metric.unit_noun
        yield from _lines_on_none_within(verdict, kept, f"fewer than {lost} of {noun}")
        yield from _lines_on_nearest_pair(verdict)
        return
    yield from _lines_on_divergence(verdict)


def _lines_on_divergence(verdict: Verdict) -> Iterator[str]:
    """What divergence alone tells, and the command that measures losses."""
    candidates = _divergence_candidates_phrase(verdict)
    yield f"No answer yet: losses were not measured; {candidates}."
    yield f"Measure them: {sweep_command(verdict.run.folder, '--decide')}"


def _divergence_candidates_phrase(verdict: Verdict) -> str:
    """What divergence alone proposes, of the pairs that fit."""
    most = verdict.limits.max_memory_bytes
    pairs = [
        result.pair
        for result in pareto_front_with_chosen_pair(verdict)
        if result.metric_results
        and all(row.decision is Decision.WITHIN for row in result.metric_results)
        if most is None or (result.memory_bytes or math.inf) <= most
    ]
    if pairs:
        return f"candidates by divergence: {pairs_phrase(pairs)}"
    fitting = "smaller cache" if most is None else "cache that fits"
    return f"no {fitting} is within the limit of divergence"


def _lines_on_limited_memory(verdict: Verdict, kept: str) -> Iterator[str]:
    """Why no pair is set in a limited memory, or that the reference fits and stays."""
    most = verdict.limits.max_memory_bytes or 0
    context = verdict.limits.at or verdict.run.setup.context
    where = f"{size_text(most)} at {context:,} tokens"
    sizes = {
        result.pair: result.memory_bytes
        for result in verdict.results
        if result.memory_bytes is not None
    }
    fits = verdict.reference and sizes.get(verdict.reference, math.inf) <= most
    if fits and verdict.pairs_finer_than_reference:
        yield from _lines_on_missing_finest_pair(verdict)
    elif fits:
        yield f"Keep: {kept}. It fits into {where}."
    elif not sizes:
        yield "No answer yet: no log of this run tells the size of a cache."
    elif min(sizes.values()) > most:
        least = min(sizes, key=lambda pair: sizes[pair])
        smallest = f"{escape_invisible(str(least))} takes {size_text(sizes[least])}"
        yield f"Nothing fits into {where}: the smallest, {smallest}."
    elif not verdict.has_mean_loss and verdict.compared_results:
        yield from _lines_on_divergence(verdict)
    else:
        yield f"No pair that fits into {where} was compared with the reference."


MOST_TIMES_LARGER, LARGEST_ADVISED = 10.0, 0.5
"""A limit so many times the present one, or such a loss, is no advice to anybody."""


def _lines_on_nearest_pair(verdict: Verdict) -> Iterator[str]:
    """
    The smaller pair that is decided soonest, or loses least; and the command for it.

    That asks for more units of a pair that is measured below the limit. Another one is
    accepted by a larger limit alone.
    """
    near = [
        (_nearest_sort_key(result, row), result, row)
        for result in verdict.compared_results
        if relative_cache_size(result) < 1
        if (row := shown_loss_row(verdict, result)) and row.kind is not LossKind.CHANGE
    ]
    if not near:
        return
    _, result, row = min(near, key=lambda entry: entry[0])
    loses = loss_clause(verdict.limits, row)
    start = f"Nearest: {escape_invisible(str(result.pair))} {loses}"
    leading = result.leading_result or row
    if leading is row and (needed := row.units_to_decide):
        yield f"{start}; {units_to_decide_phrase(row)}."
        way = " ".join(
            how_to_decide_phrases(verdict, result, needed, row.metric.unit_kind)
        )
        yield f"To decide it: {way}"
        return
    word, _, why = decision_phrase(result, leading).partition(": ")
    if leading is row and row.kind is LossKind.SCORE and not row.doubts_phrase:
        why = ""  # which its sentence has told
    by = "" if leading is row else f" by {leading.metric.name}"
    yield f"{start}: {why or word}{by}."
    is_doubted = leading.doubts_phrase and leading.kind is not LossKind.SCORE
    is_accepted = not is_doubted and result.has_all_deciding_metrics
    largest = min(LARGEST_ADVISED, MOST_TIMES_LARGER * leading.limit)
    if is_accepted and leading.accepting_limit <= largest:
        command = _command_with_accepting_limit(verdict, leading)
        yield f"A limit that accepts this: {command}"


def _nearest_sort_key(
    result: PairResult, row: MetricResult
) -> tuple[bool, float, float]:
    """Order of pairs: not beyond, then decided by the fewest units, then by loss."""
    return (
        result.decision is Decision.BEYOND,
        row.units_to_decide or math.inf,
        row.bounds.mean / row.limit,
    )


def _command_with_accepting_limit(verdict: Verdict, row: MetricResult) -> str:
    """The command that shows the verdict with a limit that *row* is within."""
    share = CHANGE_BY_LOSS if row.kind is LossKind.CHANGE else 1.0
    most = min(1.0, math.ceil(1000 * row.accepting_limit / share) / 1000)
    limits = replace(verdict.limits, max_loss=most)
    if row.kind is LossKind.ANSWERS:
        limits = replace(verdict.limits, max_lost=most)
    elif row.kind is LossKind.SCORE:
        limits = replace(verdict.limits, max_eval_lost=most)
    options = limit_options(replace(verdict, limits=limits))
    return captions.run_command_text("verdict", verdict.run, *options)


# --- the table


HEADING = ["K/V", "memory", "speed", "loss", "from", "to", "verdict", "by"]
"""
Columns of the table, before those of `_token_class_headings`.

Those that no row fills are left out.
"""


def verdict_table(verdict: Verdict, results: Sequence[PairResult]) -> Table:
    """
    A row for each of *results*, the largest cache first.

    Of those that fit where the memory is limited, and of the reference. The heading
    says of how many units most rows are; each other row has its own. Where several
    kinds of text were measured, each has a column.
    """
    fitting = [
        result
        for result in results
        if result.pair == verdict.reference or verdict.fits(result)
    ]
    ordered = sorted(fitting, key=relative_cache_size, reverse=True)
    kinds, parts = (
        differing_text_kinds_by_metric(verdict),
        _token_class_headings(verdict, results),
    )
    usual = "" if kinds else _usual_units_phrase(verdict, ordered)
    start = ["K/V", "memory", "speed", *kinds.values(), "verdict"] if kinds else HEADING
    rows = [
        [
            *(
                _row_by_text_kind(verdict, result, kinds)
                if kinds
                else _table_row(verdict, result, usual)
            ),
            *_token_class_losses(verdict, result, parts),
        ]
        for result in ordered
    ]
    heading = [*start, *parts.values()]
    filled = [at for at, _ in enumerate(heading) if any(row[at] for row in rows)]
    names = {"verdict": f"of {usual}" if usual else "verdict"}
    if not has_losses(verdict):
        names["loss"] = "change"
    heading = [names.get(name, name) for name in heading]
    return Table(
        [heading[at] for at in filled],
        [[row[at] for at in filled] for row in rows],
        words={"K/V", names["verdict"], "by"},
    )


def verdict_table_and_legend(
    verdict: Verdict, results: Sequence[PairResult]
) -> Document:
    """The `verdict_table`, and what the marks of its pairs mean."""
    yield verdict_table(verdict, results)
    marked = [
        (e.pair, non_kernel_attention_marks(e.attention, e.evidence)) for e in results
    ]
    shown = [Shown(pair=pair, text="", marks=tuple(marks)) for pair, marks in marked]
    yield Facts(legend(shown))


def _usual_units_phrase(verdict: Verdict, results: Sequence[PairResult]) -> str:
    """How many units the losses of most *results* are of: ``24 functions``."""
    units = Counter(
        units_phrase(row)
        for result in results
        if (row := shown_loss_row(verdict, result))
    )
    return max(units, key=lambda phrase: units[phrase], default="")


def _token_class_headings(
    verdict: Verdict, results: Sequence[PairResult]
) -> dict[str, str]:
    """
    Headings of the columns for classes of tokens, by name of the metric.

    And of their whole, ``all``, if one of them decides a pair.
    """
    rows = [
        row for e in results for row in e.metric_results if row.kind.is_of_right_tokens
    ]
    parts = {row.metric.name: row.metric for row in rows if row.metric.of}
    shown = (shown_loss_row(verdict, result) for result in results)
    leads = [row.metric.of for row in shown if row and row.metric.name in parts]
    return {
        **dict.fromkeys(leads, "all"),
        **{name: metric.facet.partition("=")[2] for name, metric in parts.items()},
    }


def _row_by_text_kind(
    verdict: Verdict, result: PairResult, kinds: Mapping[str, str]
) -> list[str]:
    """
    A pair with its loss of each kind of text, ``0.1 % (0.0 to 0.3)``, and a decision.

    *kinds* are headings by name of the metric.
    """
    start = _pair_memory_and_speed_texts(verdict, result)
    if result.pair == verdict.reference:
        return [*start, *[""] * len(kinds), f"reference {REFERENCE_MARK}"]
    leading = result.leading_result
    if leading is None or result.decision is None:
        trouble = result.trouble.partition(":")[0] or "not compared"
        return [*start, *[""] * len(kinds), trouble]
    rows = [result.metric_result(name) for name in kinds]
    phrase = decision_phrase(result, leading)
    if phrase == Decision.BEYOND:
        phrase += f" by {kinds.get(leading.metric.name, leading.metric.name)}"
    return [*start, *(_loss_and_interval_text(verdict, row) for row in rows), phrase]


def _loss_and_interval_text(verdict: Verdict, row: MetricResult | None) -> str:
    """``0.1 % (0.0 to 0.3)``; empty without a *row*."""
    if row is None:
        return ""
    mean, *ends = _loss_and_ends(verdict, row)
    low, high = (end.removesuffix(" %") for end in ends)
    return f"{mean} ({low} to {high})"


def _token_class_losses(
    verdict: Verdict, result: PairResult, parts: Mapping[str, str]
) -> Iterator[str]:
    """The loss by each metric of *parts*, and its decision if not that of the pair."""
    for name in parts:
        row = result.metric_result(name)
        decision = row.decision if row and row.decision != result.decision else ""
        yield (
            f"{mean_loss_phrase(verdict.limits, row)} {decision}".rstrip()
            if row
            else ""
        )


def further_metric_tables(
    verdict: Verdict, results: Sequence[PairResult]
) -> Iterator[Table]:
    """What further metrics say of *results*, a row each; divergence by itself."""
    ordered = sorted(results, key=relative_cache_size, reverse=True)
    names = {row.metric.name for result in results for row in result.metric_results}
    names -= (
        _token_class_headings(verdict, results).keys()
        | differing_text_kinds_by_metric(verdict).keys()
    )
    further = [
        (escape_invisible(str(result.pair)), row)
        for name in sorted(names)
        for result in ordered
        if (row := result.metric_result(name)) and verdict.fits(result)
        if row is not shown_loss_row(verdict, result)
        and row.kind is not LossKind.ANSWERS
        if not (row.kind is LossKind.CHANGE and has_text_loss(result))
    ]
    changes = [entry for entry in further if entry[1].kind is LossKind.CHANGE]
    for what, rows in (
        ("loss", [entry for entry in further if entry not in changes]),
        ("change", changes),
    ):
        if rows:
            heading = ["metric", "K/V", what, "from", "to", "by this metric"]
            yield Table(
                heading,
                [
                    [
                        row.metric.name,
                        pair,
                        *_loss_and_ends(verdict, row),
                        _decision_and_doubts_phrase(row),
                    ]
                    for pair, row in rows
                ],
                words={*heading[:2], heading[-1]},
            )


def _loss_and_ends(verdict: Verdict, row: MetricResult) -> tuple[str, str, str]:
    """The mean loss of *row*, then the lower and the upper end of its interval."""
    low, high = (
        amount_phrase(verdict.limits, row, end)
        for end in (row.bounds.low, row.bounds.high)
    )
    return mean_loss_phrase(verdict.limits, row), low, high


def _decision_and_doubts_phrase(row: MetricResult) -> str:
    """``within, of 80 samples: 3 lost, 1 won``."""
    phrase = f"{decision_word(row)}, of {units_phrase(row)}"
    if row.kind is LossKind.SCORE:
        phrase += f": {row.lost} lost, {row.won} won"
    return f"{phrase}; {row.doubts_phrase}" if row.doubts_phrase else phrase


def _pair_memory_and_speed_texts(verdict: Verdict, result: PairResult) -> list[str]:
    """A pair with signs of its attention, memory and speed; empty where unknown."""
    memory = f"{result.memory:.0%}" if result.memory is not None else ""
    if verdict.limits.max_memory_bytes is not None and result.memory_bytes is not None:
        memory = size_text(result.memory_bytes)
    speed = f"{result.speed:.0%}" if result.speed is not None else ""
    pair = escape_invisible(str(result.pair))
    signs = (
        mark.sign
        for mark in non_kernel_attention_marks(result.attention, result.evidence)
    )
    return [" ".join([pair, *signs]), memory, speed]


def _table_row(verdict: Verdict, result: PairResult, usual: str) -> list[str]:
    """
    A pair with its loss and interval.

    Its units where they are not the *usual* ones.
    """
    start, none = _pair_memory_and_speed_texts(verdict, result), ["", "", ""]
    if result.pair == verdict.reference:
        return [*start, *none, f"reference {REFERENCE_MARK}", ""]
    leading, row = result.leading_result, shown_loss_row(verdict, result)
    if leading is None or result.decision is None:
        # The reason stands below the table.
        trouble = result.trouble.partition(":")[0] or "not compared"
        return [*start, *none, trouble, ""]
    phrase = decision_phrase(result, leading)
    if row and units_phrase(row) != usual:
        phrase += f" (of {units_phrase(row)})"
    main = verdict.results_of_main_metric[0].metric.name
    by = "" if leading.metric.name == main or row is None else leading.metric.name
    return [*start, *(_loss_and_ends(verdict, row) if row else none), phrase, by]


# --- by metric


def decision_entries(verdict: Verdict, metric: str) -> list[tuple[str, str]]:
    """The pairs of each decision by *metric*, or why it has no say: word and phrase."""
    if metric in verdict.silent:
        return [("verdict", f"no say: {escape_invisible(verdict.silent[metric])}")]
    entries = []
    for decision in Decision:
        pairs = [
            result.pair
            for result in verdict.compared_results
            if verdict.decision(result.pair, metric) == decision
        ]
        if pairs:
            row = next(
                row
                for e in verdict.compared_results
                if (row := e.metric_result(metric))
            )
            meaning = _decision_meaning(verdict, decision, metric)
            label = decision_word(replace(row, decision=decision))
            entries.append((label, f"{pairs_phrase(pairs)}: {meaning}"))
    return entries


def _decision_meaning(verdict: Verdict, decision: Decision, metric: str) -> str:
    """What a decision says of pairs, with the limit: ``loss at most 1.0 %``."""
    if decision is Decision.OPEN:
        return "neither is shown"
    row = next(
        row
        for result in verdict.compared_results
        if (row := result.metric_result(metric))
    )
    what = "change" if row.kind is LossKind.CHANGE else "loss"
    if row.kind is LossKind.SCORE:
        what = "loss of the score"
    if row.kind is LossKind.ANSWERS:
        what = f"lost {row.metric.unit_noun}"
    how = "at most" if decision is Decision.WITHIN else "more than"
    return f"{what} {how} {amount_phrase(verdict.limits, row, row.limit)}"


def beyond_phrase(verdict: Verdict, metric: str = "") -> str:
    """
    What is beyond the limit: ``K q4_1, q4_0``; ``none``; or how many pairs.

    By the *metric* of that name alone, or by all if empty; empty where it has no say.
    """
    has_rows = any(
        not metric or result.metric_result(metric)
        for result in verdict.compared_results
    )
    if metric in verdict.silent or not has_rows:
        return ""
    types = [
        f"{axis.upper()} {', '.join(map(escape_invisible, names))}"
        for axis in ("k", "v")
        if (names := verdict.types_with_decision(Decision.BEYOND, axis, metric))
    ]
    pairs = sum(
        verdict.decision(e.pair, metric) == Decision.BEYOND
        for e in verdict.compared_results
    )
    return "; ".join(types) or (plural(pairs, "pair") if pairs else "none")
