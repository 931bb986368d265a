"""
The sentences of a verdict beside its answer: on types, kernels, noise, wrong lines,
gaps, what the numbers are about and may miss, and how to decide a smaller pair.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from codeneedle.cache_types import (
    Pair,
    PairFlags,
    most_precise_first,
    pairs_by,
    pairs_phrase,
)
from codeneedle.corpora.fitting import (
    filled_context_phrase,
    is_context_filled,
    unmeasured_beyond_phrase,
)
from codeneedle.engines.survey import NO_BUILD
from codeneedle.probes import PROBES, gap_lines, gap_phrases_with_pairs
from codeneedle.probes.metrics import (
    FUNCTIONS,
    LossKind,
    Metric,
    UnitKind,
    samples_needed,
)
from codeneedle.records.record import Attention, Run
from codeneedle.system.inherited_variables import ROTATION
from codeneedle.text import escape_invisible, number_text, plural, sweep_command
from codeneedle.verdict.asking_order import JointRun
from codeneedle.verdict.commands import how_to_decide_phrases
from codeneedle.verdict.judge import Verdict, relative_cache_size
from codeneedle.verdict.metric_phrases import loss_clause, p_value_phrase
from codeneedle.verdict.remark_kinds import Remark, RemarkKind
from codeneedle.verdict.statistics import (
    ALPHA,
    Decision,
    error_share,
)
from codeneedle.verdict.trust import ASKED_OTHERWISE


def remarks(verdict: Verdict, pair_flags: PairFlags | None = None) -> list[Remark]:
    """
    All that a verdict says beside the answer, in the order of reports.

    *pair_flags* spells a build with kernels in the words of an engine.
    """
    return [
        *_remarks_on_smaller_open_pair(verdict),
        *_remarks_on_types(verdict),
        *_remarks_on_inference(verdict),
        *_remarks_on_lengths(verdict),
        *_remarks_on_kernels(verdict, pair_flags),
        *_remarks_on_crosschecks(verdict),
        *_remarks_on_wrong_lines(verdict),
        *_remarks_on_silent_metrics(verdict),
        *_remarks_on_paired_tests(verdict),
        *_remarks_on_noise_floor(verdict),
        *_remarks_on_rotation(verdict.run),
        *_remarks_on_missing_text_kind(verdict),
        *_remarks_on_scope_of_numbers(verdict),
        *(
            Remark(RemarkKind.REFUSED, f"{line}.")
            for line in refused_probe_lines(verdict.run)
        ),
        *_remarks_on_gaps(verdict),
        *_remarks_on_left_out(verdict),
        *asked_otherwise_remarks(verdict.run),
        *_remarks_on_troubles(verdict),
    ]


def joint_remarks(verdict: Verdict) -> list[Remark]:
    """What is said beside the answer of several runs that are judged together."""
    is_by_budget = verdict.limits.max_memory_bytes is not None
    return [
        *(
            _remarks_on_dominated(verdict)
            if is_by_budget
            else _remarks_on_inference(verdict)
        ),
        *_remarks_on_silent_metrics(verdict),
        *_remarks_on_incomparable(verdict.run),
        *_remarks_on_noise_floor(verdict),
        *_remarks_on_scope_of_numbers(verdict),
        *_remarks_on_gaps(verdict),
        *_remarks_on_left_out(verdict),
        *asked_otherwise_remarks(verdict.run),
        *_remarks_on_troubles(verdict),
    ]


def _remarks_on_incomparable(run: Run) -> Iterator[Remark]:
    """Remarks on probes whose questions differ from file to file of several runs."""
    for name in run.incomparable_probes if isinstance(run, JointRun) else ():
        reason = "each file's own reference has set what is asked"
        yield Remark(RemarkKind.SILENT, f"{name} has no say: {reason}.")


def asked_otherwise_remarks(run: Run) -> Iterator[Remark]:
    """Pairs that lack answers, as they were asked another thing than the reference."""
    for record in run.records:
        if record.has_numbers and record.reason.startswith(ASKED_OTHERWISE):
            text = (
                f"{escape_invisible(str(record.pair))}: "
                f"{escape_invisible(record.reason)}."
            )
            yield Remark(RemarkKind.ASKED_OTHERWISE, text, (record.pair,))


def refused_probe_lines(run: Run) -> list[str]:
    """Why probes that *run* was asked for are not measured, a line each."""
    refused = run.setup.refused.items()
    return [
        f"{escape_invisible(name)} is not measured: {escape_invisible(why)}"
        for name, why in refused
    ]


def _remarks_on_smaller_open_pair(verdict: Verdict) -> Iterator[Remark]:
    """How to decide an open pair smaller than the one to set: that of fewest units."""
    chosen = verdict.result(verdict.chosen) if verdict.chosen else None
    if chosen is None or chosen.decision is not Decision.WITHIN:
        return
    near = [
        (needed, result, row)
        for result in verdict.compared_results
        if relative_cache_size(result) < relative_cache_size(chosen)
        and result.has_all_deciding_metrics
        if (row := result.leading_result) and (needed := row.units_to_decide)
    ]
    if near:
        needed, result, row = min(near, key=lambda entry: entry[0])
        way = " ".join(
            how_to_decide_phrases(verdict, result, needed, row.metric.unit_kind)
        )
        yield Remark(
            RemarkKind.SMALLER,
            f"To decide {escape_invisible(str(result.pair))}, which is smaller: {way}",
            (result.pair,),
        )


def _remarks_on_types(verdict: Verdict) -> Iterator[Remark]:
    """A remark on K and one on V, where all pairs of a type have one decision."""
    for axis, other in (("K", "V"), ("V", "K")):
        phrases: list[str] = []
        for decision in (Decision.BEYOND, Decision.WITHIN):
            types = verdict.types_with_decision(decision, axis.lower())
            if types:
                says = "it is" if phrases else "the loss is"
                limit = "" if phrases else " the limit"
                phrases.append(
                    f"with {axis} {_join_by_or(types)} {says} {decision}{limit}"
                )
        if phrases:
            sentence = "; ".join(phrases)
            text = f"{sentence[0].upper()}{sentence[1:]}, with every {other} measured."
            yield Remark(RemarkKind.TYPES, text)


def _join_by_or(types: Sequence[str]) -> str:
    """``q4_1 or q4_0``."""
    safe = [escape_invisible(name) for name in types]
    return " or ".join(filter(None, [", ".join(safe[:-1]), safe[-1]]))


def inferred_pairs_by_phrase(inferred: Mapping[Pair, Pair]) -> dict[str, list[Pair]]:
    """
    Pairs that were not measured, by why they are beyond.

    ``beyond, as q5_0/q4_0 is: q4_1/q4_0``, for each pair that others follow from.
    """
    by_finer = pairs_by((finer, pair) for pair, finer in inferred.items())
    return {
        f"beyond, as {escape_invisible(str(finer))} is: {pairs_phrase(pairs)}": pairs
        for finer, pairs in by_finer.items()
    }


def _remarks_on_inference(verdict: Verdict) -> Iterator[Remark]:
    """Remarks on pairs that were not measured as a finer one is beyond the limit."""
    for phrase, pairs in inferred_pairs_by_phrase(verdict.inferred_pairs).items():
        text = f"Not measured, {phrase}."
        yield Remark(RemarkKind.INFERRED, text, tuple(pairs))


def _remarks_on_dominated(verdict: Verdict) -> Iterator[Remark]:
    """Remarks on unmeasured candidates that fit, as a finer one loses no more."""
    by_finer = pairs_by((finer, pair) for pair, finer in verdict.inferred_pairs.items())
    for finer, pairs in by_finer.items():
        text = (
            "Not measured, taken to lose no less than "
            f"{escape_invisible(str(finer))}, which is "
            f"finer: {pairs_phrase(pairs)}."
        )
        yield Remark(RemarkKind.INFERRED, text, tuple(pairs))


def _remarks_on_lengths(verdict: Verdict) -> Iterator[Remark]:
    """The lengths from which on pairs lose the answers to a task, with those pairs."""
    lost = verdict.lost_from
    by_length = pairs_by(((loss.task, loss.length), loss.pair) for loss in lost)
    share = verdict.limits.loss_amount_text(LossKind.ANSWERS, verdict.limits.max_lost)
    for (task, length), pairs in by_length.items():
        text = (
            f"{task}: more than {share} of texts are lost from {length:,} tokens on "
            f"with {pairs_phrase(pairs)}."
        )
        yield Remark(RemarkKind.LENGTHS, text, tuple(pairs))


_ATTENTION = {
    Attention.CPU: "attention ran on the CPU",
    Attention.CONVERTED: "converted to f16",
}

_PLAIN = "plain: attention ran without flash attention, which this model does not have"


def _remarks_on_kernels(
    verdict: Verdict, pair_flags: PairFlags | None
) -> Iterator[Remark]:
    """
    Remarks on the pair that losses alone would set, and on pairs without a kernel.

    Of those, on what is worth one, and on where attention of each ran.
    """
    best = verdict.result(verdict.elsewhere) if verdict.elsewhere else None
    if best and best.leading_result and verdict.may_have_pair_in_kernel:
        loses = loss_clause(verdict.limits, best.leading_result)
        where = "is converted to f16 at each step"
        if best.attention is Attention.CPU:
            where = "has its attention on the CPU here"
        why = f" ({escape_invisible(best.evidence)})" if best.evidence else ""
        text = (
            f"By its losses alone {escape_invisible(str(best.pair))} would be set: "
            f"it {loses}, at {relative_cache_size(best):.0%} of the KV memory, but "
            f"{where}{why}."
        )
        yield Remark(RemarkKind.WITHOUT_KERNEL, text, (best.pair,))
    if pairs := verdict.worth_compiling:
        named = (
            f"{pairs_phrase(pairs)}{_build_option_phrase(verdict, pairs, pair_flags)}"
        )
        text = f"Worth a kernel, within the limit and smaller: {named}."
        yield Remark(RemarkKind.WORTH_COMPILING, text, pairs)
    elsewhere = [result for result in verdict.results if not result.ran_as_usual]
    attentions = dict.fromkeys(e.attention for e in elsewhere if e.attention)
    if attentions:
        told = "; ".join(f"{ran.mark}: {_ATTENTION[ran]}" for ran in attentions)
        text = f"{told}. Losses count, speeds are compared with none."
        yield Remark(RemarkKind.ATTENTION, text, tuple(e.pair for e in elsewhere))
    plain = [
        result for result in verdict.results if result.attention is Attention.PLAIN
    ]
    if plain:
        text = (
            f"{_PLAIN} ({escape_invisible(plain[0].evidence)}); a quantized V needs it."
        )
        yield Remark(RemarkKind.ATTENTION, text, tuple(e.pair for e in plain))


def _build_option_phrase(
    verdict: Verdict, worth: Sequence[Pair], pair_flags: PairFlags | None
) -> str:
    """
    `` (a build with OPTION)``, which adds kernels for *worth* and keeps the others.

    Empty if a build would help none of *worth*, or the engine names no option.
    """
    every = [result for result in verdict.results if not result.trouble]
    is_cured = any(
        result.attention is Attention.CONVERTED and NO_BUILD not in result.evidence
        for result in every
        if result.pair in worth
    )
    if not (is_cured and pair_flags and pair_flags.compiles):
        return ""
    pairs = [
        result.pair for result in every if result.ran_as_usual or result.pair in worth
    ]
    return f" (a build with {pair_flags.compiles(pairs)})"


def _remarks_on_crosschecks(verdict: Verdict) -> Iterator[Remark]:
    """Whether forced right tokens agree with read ones, or the check is to be made."""
    for pair, check in verdict.crosschecks.items():
        name, noun = escape_invisible(str(pair)), plural(check.units, "function")
        other, loss = (
            verdict.limits.loss_amount_text(check.kind, loss)
            for loss in (check.other, check.loss)
        )
        if check.is_disagreement:
            text = (
                f"Reading and forcing disagree on {name}, by more than their noise: it "
                f"loses {loss} as its lines were read, {other} as those of {noun} were "
                "forced token by token. Kernels for prompts and for single tokens "
                "differ here: measure it by both (--way force with another --out)."
            )
            yield Remark(RemarkKind.DISAGREEMENT, text, (pair,))
        else:
            text = (
                f"{name} was also forced token by token, {noun}: it loses {other} so, "
                f"{loss} as it was read, which agrees within their noise."
            )
            yield Remark(RemarkKind.AGREEMENT, text, (pair,))
    chosen = verdict.chosen
    if verdict.has_crosscheck and chosen and chosen not in verdict.crosschecks:
        text = (
            f"{escape_invisible(str(chosen))} was read, and not checked token by "
            f"token yet: {sweep_command(verdict.run.folder)}"
        )
        yield Remark(RemarkKind.UNCHECKED, text, (chosen,))


NOTABLE_LINES = 1.0
"""More lines of a function of one wrong kind than the reference's, for a remark."""


_WORDS = {True: "more", False: "fewer"}


def _remarks_on_wrong_lines(verdict: Verdict) -> Iterator[Remark]:
    """Remarks on the wrong lines of pairs, by metrics that tell their kinds apart."""
    for probe in PROBES.values():
        metrics = {m.name: m for m in probe.metrics_of(verdict.run.setup)}
        for metric in metrics.values():
            if metric.loss and (faults := metric.loss.faults):
                counted = [(metrics[name], phrase) for name, phrase in faults]
                yield from _wrong_line_remarks_of_probe(verdict, probe.name, counted)


def _wrong_line_remarks_of_probe(
    verdict: Verdict, probe: str, faults: Sequence[tuple[Metric, str]]
) -> Iterator[Remark]:
    """Remarks on pairs that write more lines of a wrong kind than the reference."""
    run, reference = verdict.run, verdict.reference
    counts = {
        record.pair: [
            metric.mean_value_by_unit(record, run.setup) for metric, _ in faults
        ]
        for record in run.records
        if record.probe == probe and record.has_numbers
    }
    theirs = counts.pop(reference, None) if reference else None
    if theirs is None:
        return
    for pair in most_precise_first(counts):
        # Of the functions that both have: a cell may have ended early.
        differences = [
            [ours[name] - own[name] for name in ours.keys() & own.keys()]
            for ours, own in zip(counts[pair], theirs, strict=True)
        ]
        more = [math.fsum(lines) / max(len(lines), 1) for lines in differences]
        if max(more) < NOTABLE_LINES:
            continue
        told = ", ".join(
            f"{number_text(abs(lines), digits=1)} {_WORDS[lines > 0]} {phrase}"
            for lines, (_, phrase) in zip(more, faults, strict=True)
            if round(lines, 1)
        )
        yield Remark(
            RemarkKind.FAULTS,
            f"Wrong lines of a function, {escape_invisible(str(pair))} beside "
            f"{escape_invisible(str(reference))}: {told}.",
            (pair,),
        )


def _remarks_on_silent_metrics(verdict: Verdict) -> Iterator[Remark]:
    for name, reason in verdict.silent.items():
        yield Remark(
            RemarkKind.SILENT, f"{name} has no say: {escape_invisible(reason)}."
        )


def _remarks_on_paired_tests(verdict: Verdict) -> Iterator[Remark]:
    """Remarks on how likely what pairs lost and won is by chance, where some did."""
    for result in verdict.compared_results:
        for row in result.metric_results:
            differ, units = row.lost + row.won, row.bounds.units
            if row.kind is not LossKind.SCORE or not differ:
                continue
            needed = samples_needed(
                row.mean_square, share=error_share(0, 1), loss=row.limit
            )
            text = (
                f"{escape_invisible(str(result.pair))}: {row.lost} lost, {row.won} "
                f"won of {plural(units, 'sample')} ({row.metric.name}), "
                f"mid-p {p_value_phrase(row.lost, row.won)} by an exact paired "
                f"test; where so many differ, about {needed:,} samples show a loss of "
                f"{verdict.limits.loss_amount_text(row.kind, row.limit)}."
            )
            yield Remark(RemarkKind.PAIRED, text, (result.pair,))


def _remarks_on_noise_floor(verdict: Verdict) -> Iterator[Remark]:
    """How far the reference differs from itself, measured again or elsewhere."""
    if verdict.reference is None:
        return
    reference, pairs = escape_invisible(str(verdict.reference)), (verdict.reference,)
    for name, (lost, won, units) in verdict.flips.items():
        text = (
            f"{reference}, evaluated again: {lost} lost, {won} won of "
            f"{plural(units, 'sample')} ({name}): its own flips."
        )
        yield Remark(RemarkKind.FLIPS, text, pairs)
    for name, (kind, loss) in verdict.repeats.items():
        if name not in {*verdict.silent, *verdict.flips} and loss:
            by = verdict.limits.loss_amount_text(kind, loss)
            text = f"{reference}, measured twice, differs from itself by {by} ({name})."
            yield Remark(RemarkKind.REPEATED, text, pairs)
    for name, (kind, loss) in verdict.on_cpu.items():
        by = verdict.limits.loss_amount_text(kind, loss)
        against = "" if kind is LossKind.CHANGE else "; cpu pairs are compared with it"
        text = (
            f"{reference} with attention on the CPU differs from itself in a kernel by "
            f"{by} ({name}){against}."
        )
        yield Remark(RemarkKind.ON_CPU, text, pairs)


def _remarks_on_rotation(run: Run) -> Iterator[Remark]:
    """A remark on what to set beside a pair, of a run without rotation."""
    if not run.setup.rotation:
        text = (
            f"About caches that are not rotated: what is set needs {ROTATION}=1, "
            "without which llama.cpp rotates quantized values."
        )
        yield Remark(RemarkKind.UNROTATED, text)


KINDS_OF_TEXT = {"recall-logp": "recall", "text-logp": "ordinary text"}
"""Metrics whose damage does not tell of the other's, and what each is of."""


def _remarks_on_missing_text_kind(verdict: Verdict) -> Iterator[Remark]:
    """A remark if recall or ordinary text has no numbers: more of it may be lost."""
    rows = [row for result in verdict.compared_results for row in result.metric_results]
    seen = {row.metric.name for row in rows if row.kind.is_of_right_tokens}
    known = [KINDS_OF_TEXT[name] for name in KINDS_OF_TEXT if name in seen]
    missing = [kind for name, kind in KINDS_OF_TEXT.items() if name not in seen]
    if verdict.is_of_built_in_model or not (known and missing):
        return
    probe = "recall" if missing == ["recall"] else "divergence"
    text = (
        f"About {known[0]} alone: a pair may lose more of {missing[0]}, which has no "
        f"numbers here ({sweep_command(verdict.run.folder, '--probe', probe)})."
    )
    yield Remark(RemarkKind.ONE_KIND, text)


def _remarks_on_scope_of_numbers(verdict: Verdict) -> Iterator[Remark]:
    """Remarks on what the numbers are about, and what so few units may hide."""
    if not verdict.compared_results:
        return
    rows = verdict.results_of_main_metric
    units, kind = min(row.bounds.units for row in rows), rows[0].metric.unit_kind
    every = [
        row for result in verdict.compared_results for row in result.right_token_results
    ]
    by_noun = list(dict.fromkeys(row.metric.unit_noun for row in every))
    if {*by_noun} == {"functions", "chunks"}:
        least: dict[str, int] = {
            noun: min(r.bounds.units for r in every if r.metric.unit_noun == noun)
            for noun in by_noun
        }
        about = " and ".join(f"{n} like these {count}" for n, count in least.items())
        text = f"About {about}; other texts can differ by more (--corpus, --text)."
        yield Remark(RemarkKind.POPULATION, text)
        yield from _remarks_on_short_text(verdict, kind)
        yield from _remarks_on_untested(verdict)
        yield from _remarks_on_rare_problems(least)
        return
    yield Remark(RemarkKind.POPULATION, _population_phrase(verdict, units, kind))
    yield from _remarks_on_short_text(verdict, kind)
    yield from _remarks_on_untested(verdict)
    yield from _remarks_on_rare_problems({kind.noun: units})


def _remarks_on_short_text(verdict: Verdict, kind: UnitKind) -> Iterator[Remark]:
    """A remark if a text of functions fills only a part of its context."""
    corpus, context = verdict.run.setup.corpus, verdict.run.setup.context
    is_whole = kind == FUNCTIONS and not corpus.is_trimmed
    is_told = is_whole and not verdict.is_of_built_in_model
    if is_told and not is_context_filled(corpus.tokens, context):
        filled = filled_context_phrase(corpus.tokens, context)
        text = escape_invisible(unmeasured_beyond_phrase(corpus.name, filled))
        yield Remark(RemarkKind.SHORT_TEXT, f"{text[0].upper()}{text[1:]}.")


def _remarks_on_untested(verdict: Verdict) -> Iterator[Remark]:
    """Remarks on what the probes of a run did not test."""
    asked = [name for name in verdict.run.setup.probes if name in PROBES]
    for line in (line for name in asked for line in PROBES[name].caveats(verdict.run)):
        text = escape_invisible(line)
        yield Remark(RemarkKind.UNTESTED, f"{text[0].upper()}{text[1:]}.")


def _remarks_on_rare_problems(units: Mapping[str, int]) -> Iterator[Remark]:
    """A remark on what so few *units*, by their noun, may not have shown."""
    shares = {
        noun: 100 * (1 - ALPHA ** (1 / count))
        for noun, count in units.items()
        if count > 1
    }
    told = " or ".join(
        f"{f'{share:.0f}' if share > 1 else f'{share:.1g}'} % of {noun}"
        for noun, share in shares.items()
    )
    if told:
        text = f"Problems that affect fewer than {told} may be missed."
        yield Remark(RemarkKind.UNSEEN, text)


def _population_phrase(verdict: Verdict, units: int, kind: UnitKind) -> str:
    """``About functions like these 24; ...``, with the option that measures others."""
    noun, place = kind.noun, f", {kind.place}" if kind.place else ""
    these = (
        f"{noun} like these {units}" if units > 1 else f"one {noun.removesuffix('s')}"
    )
    if noun == "prompts":
        asked = max(row.asked or 0 for row in verdict.results_of_main_metric)
        of = f" of {asked} (on the rest the reference has nothing to lose)"
        these = f"{plural(units, 'prompt')}{of if asked > units else ''}"
    by = f" ({kind.others_by})" if kind.others_by else ""
    return f"About {these}{place}; {kind.others} can differ by more{by}."


def _remarks_on_gaps(verdict: Verdict) -> Iterator[Remark]:
    """Remarks on parts of probes that were asked for and lack numbers, with pairs."""
    found = zip(
        gap_phrases_with_pairs(verdict.run), gap_lines(verdict.run), strict=True
    )
    for (_, pairs), line in found:
        text = f"{line[:1].upper()}{line[1:]}."
        yield Remark(RemarkKind.WITHOUT_PART, text, tuple(pairs))


def _remarks_on_left_out(verdict: Verdict) -> Iterator[Remark]:
    """Remarks on what is in no number of a probe that has numbers, and why."""
    measured = {record.probe for record in verdict.run.records if record.has_numbers}
    for probe in (PROBES[name] for name in PROBES if name in measured):
        for line in probe.left_out_lines(verdict.run):
            yield Remark(
                RemarkKind.LEFT_OUT, f"{probe.name}: {escape_invisible(line)}."
            )


def _remarks_on_troubles(verdict: Verdict) -> Iterator[Remark]:
    """Remarks on pairs that are not compared, or open as a probe failed, and why."""
    by_reason = pairs_by((e.trouble, e.pair) for e in verdict.results if e.trouble)
    for reason, pairs in by_reason.items():
        text = f"Not compared: {pairs_phrase(pairs)}: {escape_invisible(reason)}"
        yield Remark(RemarkKind.NOT_COMPARED, text, tuple(pairs))
    by_failure = pairs_by(
        ((record.probe, record.status, record.reason), result.pair)
        for result in verdict.compared_results
        if result.decision is Decision.OPEN
        for record in result.failed
    )
    for (probe, status, reason), pairs in by_failure.items():
        text = (
            f"Open, as {probe} {status}: {pairs_phrase(pairs)}: "
            f"{escape_invisible(reason)}"
        )
        yield Remark(RemarkKind.FAILED, text, tuple(pairs))
