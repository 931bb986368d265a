"""
Captions of reports: what a run was measured on, its noise floor, cautions, missing
answers, and the command that goes on where there is nothing to show.
"""

import itertools
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from codeneedle.cache_types import RUNS, Pair, most_precise, pairs_phrase
from codeneedle.corpora.fitting import filled_context_phrase
from codeneedle.errors import NothingToShow
from codeneedle.models.pretrained import BUILT_IN
from codeneedle.probes import PROBES, frames, gap_lines
from codeneedle.probes.frames import Cells
from codeneedle.probes.metrics import Metric
from codeneedle.records.record import CellRecord, Json, Run, Setup
from codeneedle.report.display import display_of
from codeneedle.report.shown import small_number_text
from codeneedle.system.inherited_variables import UNROTATED, command_line_with_variables
from codeneedle.text import (
    escape_invisible,
    json_value_phrase,
    plural,
    size_text,
    sweep_command,
)
from codeneedle.verdict.asking_order import stored_asking_order

_SHORT_HASH = 8


def run_names_or_folders(runs: Sequence[Run]) -> list[str]:
    """The names of *runs*; the folders of those that share one."""
    names = [run.name for run in runs]
    return [
        escape_invisible(str(run.folder) if names.count(run.name) > 1 else run.name)
        for run in runs
    ]


def setup_line(setup: Setup) -> str:
    """The model, the corpus if any probe reads it, and how it is asked, on one line."""
    corpus = f" on {setup.corpus.name}" if setup.corpus.is_counted else ""
    return escape_invisible(
        f"{setup.weights.name}{corpus}: context {_context_and_questions_phrase(setup)}"
    )


def _context_and_questions_phrase(
    setup: Setup, records: Iterable[CellRecord] = ()
) -> str:
    """``8,192 tokens, chat prompt, 16 functions written, 5 lines of 32 forced``."""
    form = f"{setup.prompt_form} prompt"
    return ", ".join(
        [text_length_phrase(setup), form, *_probe_question_phrases(setup, records)]
    )


def text_length_phrase(setup: Setup) -> str:
    """``8,192 tokens``, or ``7,109 of 32,768 tokens`` of a text that ends before."""
    return filled_context_phrase(setup.corpus.tokens, setup.context)


def _probe_question_phrases(
    setup: Setup, records: Iterable[CellRecord] = ()
) -> list[str]:
    """
    What all probes ask, a phrase each.

    The number of functions is that of *records*; without any, what every pair is asked.
    """
    order = stored_asking_order(setup)
    first = next(iter(order.looks), None) if order else None
    counts = {
        probe.further.units(record)
        for record in records
        if (probe := PROBES.get(record.probe)) and probe.further and record.has_numbers
    }
    units = sorted(counts - {0}) or [*filter(None, [first])]
    return [
        phrase
        for probe in PROBES.values()
        for phrase in probe.asked_phrases(setup, units)
    ]


def corpus_line(setup: Setup) -> str:
    """The corpus as it was sent, on one line; empty if no probe has read it."""
    corpus = setup.corpus
    if not corpus.is_counted:
        return ""
    about = f" ({setup.lengths})" if setup.lengths else ""
    tokens = f"{plural(corpus.tokens, 'token')}{about}"
    sent = [f"{corpus.name}: {corpus.origin}", corpus.kind, tokens]
    return escape_invisible("; ".join([*sent, _corpus_share_phrase(setup)]))


def _corpus_share_phrase(setup: Setup) -> str:
    """How much of the corpus was sent: ``trimmed to 16 of 200 functions``."""
    corpus = setup.corpus
    if corpus.is_trimmed:
        before = plural(corpus.functions_before, "function")
        return f"trimmed to {corpus.functions:,} of {before}"
    return plural(corpus.functions, "function")


def run_facts(run: Run) -> tuple[tuple[str, str], ...]:
    """What *run* was measured on: a word and a phrase for each fact."""
    setup = run.setup
    model = setup.weights
    weights = f"{size_text(model.size_bytes)}, sha256 {model.sha256[:_SHORT_HASH]}"
    known = weights if model.size_bytes else "known by its name alone"
    rotation = "" if setup.rotation else ", rotation off"
    lines = [
        ("model", f"{model.name}, {known}"),
        *([("corpus", corpus_line(setup))] if setup.corpus.is_counted else []),
        ("context", f"{_context_and_questions_phrase(setup, run.records)}{rotation}"),
        *probe_settings_entries(run),
        *_no_unquantized_pair_entry(run),
        engine_name_and_version(
            setup.engine, " ".join([setup.llama, *setup.server_args])
        ),
        ("machine", setup.machine),
        ("date", dates_phrase(run)),
    ]
    return tuple((word, escape_invisible(phrase)) for word, phrase in lines)


def command_line(setup: Setup, command: Iterable[str]) -> str:
    """
    *command* of a record of *setup*, as a shell does the same again.

    Variables may stand before the program, a word each, as a user's template sets them.
    """
    words = list(command)
    own = [*itertools.takewhile(_VARIABLE.match, words)]
    variables = {} if setup.rotation else UNROTATED
    named = (word.partition("=") for word in own)
    variables = variables | {name: value for name, _, value in named}
    return command_line_with_variables(variables, words[len(own) :])


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
"""Begins a word that sets a variable."""


def measured_on_facts_of_probe(run: Run, probe: str) -> list[tuple[str, str]]:
    """What a table of *probe*, which has a text of its own, was measured on."""
    own = [*(word for word, _ in probe_settings_entries(run) if word == probe), "model"]
    engine, _ = engine_name_and_version(run.setup.engine, run.setup.llama)
    words = {*own, engine, "machine", "date"}
    rotation = "on" if run.setup.rotation else "off"
    known = [entry for entry in run_facts(run) if entry[0] in words]
    return [*known[:1], ("rotation", rotation), *known[1:]]


def measured_on_lines(run: Run) -> tuple[str, str]:
    """What *run* was measured on, in two lines."""
    setup = run.setup
    asked = _probe_question_phrases(setup, run.records)
    corpus = setup.corpus
    cut = f" ({corpus.functions} of {corpus.functions_before} functions)"
    sent = f" on {corpus.name}{cut if corpus.is_trimmed else ''}"
    if not corpus.is_counted:
        sent = ""
    what = [text_length_phrase(setup), *asked]
    engine = " ".join(engine_name_and_version(setup.engine, setup.llama))
    return (
        escape_invisible(f"{setup.weights.name}{sent}, {', '.join(what)}"),
        escape_invisible(
            f"{engine}, {_device_phrase(setup.machine)}, {dates_phrase(run)}"
        ),
    )


def _device_phrase(machine: str) -> str:
    """The accelerators of a machine, or else its processor."""
    processor, _, devices = machine.partition("; ")
    return devices or processor.partition(", ")[0]


def engine_name_and_version(name: str, version: str) -> tuple[str, str]:
    """The name of an engine, and its *version* without that name before it."""
    return name, version.removeprefix(f"{name} ")


def _no_unquantized_pair_entry(run: Run) -> Iterator[tuple[str, str]]:
    """What is not shown where servers tell no types and no unquantized pair was run."""
    proved = [
        record.pair
        for record in run.records
        if record.has_numbers and record.effective.cache_evidence is not None
    ]
    if proved and not (pair := most_precise(proved)).is_unquantized:
        phrase = (
            f"{pair} and other pairs are shown to differ, not that {pair} is what it "
            "is called: no pair that is not quantized was measured"
        )
        yield "cache", phrase


def probe_settings_entries(run: Run) -> tuple[tuple[str, str], ...]:
    """The settings of each probe that has records, where it has any."""
    seen = dict.fromkeys(record.probe for record in run.records)
    phrases = {
        name: _settings_phrase(_settings_to_report(run.setup, name)) for name in seen
    }
    return tuple(
        (escape_invisible(name), escape_invisible(phrase))
        for name, phrase in phrases.items()
        if phrase
    )


def _settings_to_report(setup: Setup, probe: str) -> Json:
    """The settings of *probe* that are told of all pairs; all of an unknown probe."""
    known = PROBES.get(probe)
    if known is None:
        return setup.probes.get(probe, {})
    settings, order = known.shown_settings(setup), stored_asking_order(setup)
    if known.further and order and order.looks and known.further.setting in settings:
        # What the first step of a sweep that decides has asked of every pair.
        settings = {**settings, known.further.setting: order.looks[0]}
    return settings


def _settings_phrase(settings: Json) -> str:
    """Numbers and names, without hashes and what other facts say."""
    phrases = []
    for key, value in settings.items():
        values = value if isinstance(value, list) else [value]
        shown = [
            json_value_phrase(entry)
            for entry in values
            if isinstance(entry, str | int | float) and entry != ""
        ]
        if shown and "sha256" not in key and key != "llama":
            phrases.append(f"{key.replace('_', ' ')} {', '.join(shown)}")
    return "; ".join(phrases)


def dates_phrase(run: Run) -> str:
    """
    The day of its records, or the first and the last day.

    The day on which the run folder was made if no record has a date: those that
    cannot be read have none.
    """
    days = sorted({record.started[:10] for record in run.records} - {""})
    if not days:
        return run.setup.created[:10]
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def caution_and_gap_sentences(run: Run) -> tuple[str, ...]:
    """
    Sentences on what not to conclude from the numbers, and what was asked for and has
    none; mostly none.
    """
    setup = run.setup
    missing = tuple(gap_lines(run))
    is_built_in = setup.weights.name == BUILT_IN
    if not is_built_in or setup.corpus.kind == "incompressible":
        return missing
    return (
        escape_invisible(
            "The built-in model can only recall incompressible text: its numbers on "
            f"{setup.corpus.name} mean nothing."
        ),
        *missing,
    )


def label_with_unit(metric: Metric) -> str:
    """The label, and the unit if the label lacks it."""
    label = display_of(metric).label
    return label + ("" if metric.unit in label else f", {metric.unit}")


def mean_or_sum_phrase(metric: Metric, cells: Cells) -> str:
    """`` (mean of 16 functions)``; empty where a number is a single observation."""
    most = frames.largest_observation_count(cells)
    if most < 2:  # noqa: PLR2004 - nothing to combine
        return ""
    # A text has an observation per question.
    counted = "questions" if metric.unit_noun == "texts" else metric.unit_noun
    noun = f" {counted}" if metric.quantity == "quality" else ""
    return f" ({'sum' if metric.is_sum else 'mean'} of {most}{noun})"


def noise_floor_entries(
    run: Run, metric: Metric, cells: Cells
) -> list[tuple[str, str]]:
    """The noise floors of a metric whose reference was measured again, or elsewhere."""
    pair = escape_invisible(str(frames.reference_pair(cells)))
    entries = []
    for on_cpu, how in ((False, "measured twice"), (True, "with attention on the CPU")):
        apart = frames.noise_floor_of_reference(run, metric, cells, on_cpu=on_cpu)
        if not math.isnan(apart):
            shown = small_number_text(apart, display_of(metric).digits)
            entries.append(("floor", f"{shown}: {pair}, {how}, differs by as much"))
    return entries


def missing_reference_entries(cells: Cells) -> Iterator[tuple[str, str]]:
    """Why no pair is the reference although records name one; mostly nothing."""
    if note := why_no_reference(cells):
        yield "against", note


def why_no_reference(cells: Cells) -> str:
    """Why no pair is the reference although records name one; empty otherwise."""
    named = [
        escape_invisible(str(pair)) for pair in frames.named_reference_pairs(cells)
    ]
    if len(named) > 1:
        pairs = " or ".join(named)
        return f"measured against {pairs}: not comparable, no noise floor"
    if named and not frames.reference_pair(cells):
        return f"measured against {named[0]}, which has no value"
    return ""


def nothing_to_show_error(run: Run, what: str, probe: str) -> NothingToShow:
    """
    The error for *run* without numbers of *what*, with the command that goes on.

    Args:
        run: With the records of *probe*, at least.
        what: Name of the metric, or a phrase.
        probe: Name of the probe that measures it.
    """
    others = [
        metric.name
        for metric in PROBES[probe].metrics_of(run.setup)
        for record in run.of_probe(probe).records
        if record.has_numbers and metric.values(record, run.setup)
    ]
    hint = f"See why: {run_command_text('table', run)}"
    if others:
        shown = run_command_text("grid", run, "--metric", others[0])
        hint = f"This run measured {others[0]}: {shown}"
    elif run.sweep:
        added = () if probe in run.setup.probes else ("--probe", probe)
        hint = f"Measure them: {sweep_command(run.folder, *added)}"
    return NothingToShow(run=escape_invisible(run.name), what=what, hint=hint)


def run_command_text(name: str, run: Run, *options: str) -> str:
    """The command of that *name* that shows *run*, wherever its folder is."""
    words = ["codeneedle", name, run.name, *root_options(run.root), *options]
    return escape_invisible(shlex.join(words))


def root_options(root: Path | None) -> list[str]:
    """``--out ROOT`` of a folder of run folders; empty for the default or None."""
    return [] if root in {None, RUNS} else ["--out", str(root)]


def probe_name_of_metric(run: Run, metric: str) -> str:
    """
    Name of the probe that measures *metric*: one of *run* if any does, else any other.

    Of a metric that no probe has, the first of `PROBES`.
    """
    in_run = {probe.name for probe in PROBES.values() if probe.name in run.setup.probes}
    for probe in sorted(PROBES.values(), key=lambda probe: probe.name not in in_run):
        more = probe.metrics_of(run.setup) if probe.name in in_run else ()
        if metric in {probe_metric.name for probe_metric in (*probe.metrics, *more)}:
            return probe.name
    return next(iter(PROBES))


def unmeasured_metric_lines(run: Run, metric: Metric) -> list[str]:
    """
    A line for a run without records of the metric's probe; mostly none.

    Args:
        run: Records of that probe alone; its setup names the other probes.
        metric: What is shown; of other probes, the headline is offered.
    """
    if run.records:
        return []
    others = [PROBES[name] for name in run.setup.probes if name in PROBES]
    offers = [
        f"{probe.name} (--metric {probe.metrics_of(run.setup)[0].name})"
        for probe in others
        if metric.name.partition("@")[0]
        not in {probe_metric.name for probe_metric in probe.metrics}
    ]
    hint = f"; this run was set up for {', '.join(offers)}" if offers else ""
    return [f"no cell was measured for {metric.name}{hint}"]


def missing_answer_lines(run: Run) -> list[str]:
    """A line for answers that are missing, of each metric that has such."""
    lines = []
    for probe in sorted({record.probe for record in run.records} & PROBES.keys()):
        known = (*PROBES[probe].metrics, *PROBES[probe].metrics_of(run.setup))
        for metric in {metric.name: metric for metric in known}.values():
            if metric.loss and (
                by_pair := _unanswered_and_asked_counts(run, probe, metric)
            ):
                most, of = max(by_pair.values())
                named = pairs_phrase(list(by_pair))
                what = f"{metric.unit_noun} without a score, which are left out"
                lines.append(f"{what} (at most {most} of {of}): {named}")
    return list(dict.fromkeys(lines))


def _unanswered_and_asked_counts(
    run: Run, probe: str, metric: Metric
) -> dict[Pair, tuple[int, int]]:
    """
    How many units of *metric* have no answer, and how many were asked, by pair.

    Pairs with all answers are left out. Empty where no pair has any: then nothing
    tells pairs apart.
    """
    names = (metric.loss and metric.loss.units) or metric.names
    if names is None:
        return {}
    records = [r for r in run.records if r.probe == probe and r.has_numbers]
    asked = {record.pair: len(names(record, run.setup)) for record in records}
    missing = {
        record.pair: len(metric.units_without_value(record, run.setup))
        for record in records
    }
    if missing == asked:
        return {}
    return {pair: (count, asked[pair]) for pair, count in missing.items() if count}
