"""Captions: what a run was measured on, and what marks and words in a grid mean."""

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from codeneedle.cache_types import Pair, most_precise, named_pairs, pairs_by
from codeneedle.corpora.fitting import filled_phrase
from codeneedle.errors import NothingToShow
from codeneedle.models.pretrained import BUILT_IN
from codeneedle.probes import PROBES, frames, gap_lines
from codeneedle.probes.frames import Cells, CellValue
from codeneedle.probes.metrics import Metric
from codeneedle.records.record import (
    Attention,
    CellRecord,
    Json,
    Run,
    Setup,
    Status,
)
from codeneedle.report.display import Display, display_of
from codeneedle.text import (
    NO_VALUE_WORD,
    in_words,
    number,
    plural,
    size,
    sweep_command,
    visible,
)
from codeneedle.verdict.order import order_in

if TYPE_CHECKING:  # a live grid does not wait for statistics
    from codeneedle.report.losses import Losses

_SHORT_HASH = 8


def names_of(runs: Sequence[Run]) -> list[str]:
    """The names of *runs*; the folders of those that share one."""
    names = [run.name for run in runs]
    return [
        visible(str(run.folder) if names.count(run.name) > 1 else run.name)
        for run in runs
    ]


def setup_line(setup: Setup) -> str:
    """The model, the corpus if any probe reads it, and how it is asked, on one line."""
    corpus = f" on {setup.corpus.name}" if setup.corpus.is_counted else ""
    return visible(f"{setup.weights.name}{corpus}: context {_context_phrase(setup)}")


def _context_phrase(setup: Setup, records: Iterable[CellRecord] = ()) -> str:
    """``8,192 tokens, chat prompt, 16 functions written, 5 lines of 32 forced``."""
    form = f"{setup.prompt_form} prompt"
    return ", ".join([filled(setup), form, *_asked(setup, records)])


def filled(setup: Setup) -> str:
    """``8,192 tokens``, or ``7,109 of 32,768 tokens`` of a text that ends before."""
    return filled_phrase(setup.corpus.tokens, setup.context)


def _asked(setup: Setup, records: Iterable[CellRecord] = ()) -> list[str]:
    """
    What all probes ask, a phrase each.

    Of how many functions is what *records* have; without any, what every pair is asked.
    """
    order = order_in(setup)
    first = next(iter(order.looks), None) if order else None
    counts = {
        probe.further.units(record)
        for record in records
        if (probe := PROBES.get(record.probe)) and probe.further and record.has_numbers
    }
    units = sorted(counts - {0}) or [*filter(None, [first])]
    return [each for probe in PROBES.values() for each in probe.phrases(setup, units)]


def corpus_line(setup: Setup) -> str:
    """The corpus as it was sent, on one line; empty if no probe has read it."""
    corpus = setup.corpus
    if not corpus.is_counted:
        return ""
    about = f" ({setup.lengths})" if setup.lengths else ""
    tokens = f"{plural(corpus.tokens, 'token')}{about}"
    sent = [f"{corpus.name}: {corpus.origin}", corpus.kind, tokens]
    return visible("; ".join([*sent, _functions_sent(setup)]))


def _functions_sent(setup: Setup) -> str:
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
    weights = f"{size(model.size_bytes)}, sha256 {model.sha256[:_SHORT_HASH]}"
    known = weights if model.size_bytes else "known by its name alone"
    rotation = "" if setup.rotation else ", rotation off"
    lines = [
        ("model", f"{model.name}, {known}"),
        *([("corpus", corpus_line(setup))] if setup.corpus.is_counted else []),
        ("context", f"{_context_phrase(setup, run.records)}{rotation}"),
        *probe_settings(run),
        *_not_shown(run),
        engine_line(setup.engine, " ".join([setup.llama, *setup.server_args])),
        ("machine", setup.machine),
        ("date", dates(run)),
    ]
    return tuple((word, visible(phrase)) for word, phrase in lines)


def divergence_facts(run: Run, probe: str) -> list[tuple[str, str]]:
    """What a table of *probe*, which has a text of its own, was measured on."""
    own = [*(word for word, _ in probe_settings(run) if word == probe), "model"]
    engine, _ = engine_line(run.setup.engine, run.setup.llama)
    words = {*own, engine, "machine", "date"}
    rotation = "on" if run.setup.rotation else "off"
    known = [entry for entry in run_facts(run) if entry[0] in words]
    return [*known[:1], ("rotation", rotation), *known[1:]]


def conditions(run: Run) -> tuple[str, str]:
    """What *run* was measured on, in two lines."""
    setup = run.setup
    asked = _asked(setup, run.records)
    corpus = setup.corpus
    cut = f" ({corpus.functions} of {corpus.functions_before} functions)"
    sent = f" on {corpus.name}{cut if corpus.is_trimmed else ''}"
    if not corpus.is_counted:
        sent = ""
    what = [filled(setup), *asked]
    engine = " ".join(engine_line(setup.engine, setup.llama))
    return (
        visible(f"{setup.weights.name}{sent}, {', '.join(what)}"),
        visible(f"{engine}, {_device(setup.machine)}, {dates(run)}"),
    )


def _device(machine: str) -> str:
    """The accelerators of a machine, or else its processor."""
    processor, _, devices = machine.partition("; ")
    return devices or processor.partition(", ")[0]


def engine_line(name: str, version: str) -> tuple[str, str]:
    """The name of an engine and its version, which may begin with that name."""
    return name, version.removeprefix(f"{name} ")


def _not_shown(run: Run) -> Iterator[tuple[str, str]]:
    """What is not shown of the most precise pair, where the server does not tell."""
    proved = [
        record.pair
        for record in run.records
        if record.has_numbers and record.effective.cache_evidence is not None
    ]
    if proved and not (pair := most_precise(proved)).is_plain:
        phrase = (
            f"{pair} and other pairs are shown to differ, not that {pair} is what it "
            "is called: no pair that is not quantized was measured"
        )
        yield "cache", phrase


def probe_settings(run: Run) -> tuple[tuple[str, str], ...]:
    """The settings of each probe that has records, where it has any."""
    seen = dict.fromkeys(record.probe for record in run.records)
    phrases = {name: _settings(_told(run.setup, name)) for name in seen}
    return tuple(
        (visible(name), visible(phrase)) for name, phrase in phrases.items() if phrase
    )


def _told(setup: Setup, probe: str) -> Json:
    known = PROBES.get(probe)
    if known is None:
        return setup.probes.get(probe, {})
    settings, order = known.shown_settings(setup), order_in(setup)
    if known.further and order and order.looks and known.further.setting in settings:
        # What the first step of a sweep that decides has asked of every pair.
        settings = {**settings, known.further.setting: order.looks[0]}
    return settings


def _settings(settings: Json) -> str:
    """Numbers and names, without hashes and what other facts say."""
    phrases = []
    for key, value in settings.items():
        values = value if isinstance(value, list) else [value]
        shown = [
            in_words(each)
            for each in values
            if isinstance(each, str | int | float) and each != ""
        ]
        if shown and "sha256" not in key and key != "llama":
            phrases.append(f"{key.replace('_', ' ')} {', '.join(shown)}")
    return "; ".join(phrases)


def dates(run: Run) -> str:
    """
    The day of its records, or the first and the last day.

    The day on which the run folder was made if no record has a date: those that
    cannot be read have none.
    """
    days = sorted({record.started[:10] for record in run.records} - {""})
    if not days:
        return run.setup.created[:10]
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def cautions(run: Run) -> tuple[str, ...]:
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
        visible(
            "The built-in model can only recall incompressible text: its numbers on "
            f"{setup.corpus.name} mean nothing."
        ),
        *missing,
    )


NOT_RUN_WORD = "."
"""Shown for a pair that was not run."""

STATUS_WORDS: dict[Status, str] = {
    Status.FINISHED: NO_VALUE_WORD,
    Status.UNSUPPORTED: "unsupp.",
    Status.OUT_OF_MEMORY: "oom",
    Status.TIMED_OUT: "t/o",
    Status.CRASHED: "crash",
    Status.MISMATCHED: "mismatch",
    Status.UNVERIFIED: "unverif.",
    Status.INTERRUPTED: "intr.",
}
"""Short enough for a column; the legend below the grid explains them."""


def status_word(status: str) -> str:
    """The short word of a status, or of a pair that was not run: ``oom``, ``.``."""
    return STATUS_WORDS[Status(status)] if status else NOT_RUN_WORD


def cell_word(cell: frames.CellValue) -> str:
    """What stands in place of a value; nothing where none was to be measured."""
    return "" if cell.is_hole else status_word(cell.status)


ERROR_ENTRY = ("±", "standard error")
"""In legends of what `value_text` shows."""


def shows_errors(cells: Iterable[CellValue], display: Display) -> bool:
    """Whether `value_text` shows any."""
    return display.shows_error and any(math.isfinite(cell.error) for cell in cells)


def with_error(
    value: float, error: float | None, *, digits: int, mark: str = "±"
) -> str:
    """``16.52±0.31``; ``16.52`` where the *error* is unknown."""
    shown = number(value, digits=digits)
    if error is None or not math.isfinite(error):
        return shown
    return f"{shown}{mark}{number(error, digits=digits)}"


def value_text(
    cell: CellValue, display: Display, *, digits: int | None = None, mark: str = "±"
) -> str:
    """
    The value of *cell*, `with_error` of metrics whose error is worth showing.

    Behind it where attention ran, if in no kernel: ``0.98 cpu``.
    """
    places = display.digits if digits is None else digits
    error = cell.error if display.shows_error else None
    shown = with_error(cell.value, error, digits=places, mark=mark)
    return f"{shown} {cell_mark(cell)}".rstrip()


def unit_counts(metric: Metric, cells: Iterable[CellValue]) -> dict[Pair, str]:
    """
    ``of 6``, beside each value, where some are over more units than others.

    ``of 6/8`` where two of eight have no score. Empty where all are over as many as
    were asked for, and of what is no mean of units.
    """
    valued = [cell for cell in cells if cell.has_value]
    is_alike = len({cell.units for cell in valued}) < 2  # noqa: PLR2004
    is_whole = is_alike and not any(cell.left_out for cell in valued)
    if metric.quantity != "quality" or is_whole:
        return {}
    return {cell.pair: count_text(cell) for cell in valued}


def count_text(cell: CellValue) -> str:
    """``of 6``, or ``of 6/8`` where two of eight units have no score."""
    asked = f"/{cell.units + cell.left_out:,}" if cell.left_out else ""
    return f"of {cell.units:,}{asked}"


ELSEWHERE = "other"
"""Behind a speed that was measured on another device than the reference's."""


def cell_mark(cell: CellValue) -> str:
    """``cpu``, ``f16`` or ``other`` of what is not compared; mostly empty."""
    return attention_mark(cell.attention) or ELSEWHERE * cell.is_elsewhere


def attention_mark(attention: Attention | None) -> str:
    """``cpu`` or ``f16``; empty for attention in a kernel, or unknown."""
    return attention.mark if attention else ""


def loss_word(losses: "Losses", cell: CellValue) -> str:
    """
    What stands below a loss: its word, of which kind of text it is or what else decides
    it, and where attention ran.

    ``within``, ``beyond text``, ``beyond kld``, ``open cpu``.
    """
    pair, mark = cell.pair, attention_mark(cell.attention)
    by = losses.decided_by(pair) or losses.text_of(pair)
    words = (losses.word(pair), by, mark)
    return visible(" ".join(filter(None, words)))


_ATTENTION_PHRASES = {
    Attention.CPU: "attention on the CPU: this backend has no kernel for",
    Attention.CONVERTED: "cache converted to f16 at each step: no kernel was built for",
    Attention.PLAIN: "no flash attention, which this model does not have, with",
}


def attention_entries(cells: Cells) -> Iterator[tuple[str, str]]:
    """An entry for each mark of `value_text`, with its pairs and what tells."""
    elsewhere = [cell for cell in cells if attention_mark(cell.attention)]
    marked = pairs_by((cell.attention, cell.pair) for cell in elsewhere)
    for attention, pairs in marked.items():
        if attention is None:
            continue
        of_mark = [cell for cell in elsewhere if cell.attention is attention]
        evidence = f" ({visible(of_mark[0].evidence)})" if of_mark[0].evidence else ""
        phrase = f"{_ATTENTION_PHRASES[attention]} {named_pairs(pairs)}{evidence}"
        if not all(cell.is_ranked for cell in of_mark):
            phrase += "; such speeds are compared with none"
        yield attention_mark(attention), phrase


def device_entries(cells: Cells) -> Iterator[tuple[str, str]]:
    """An entry for speeds of another device than the reference's, with their pairs."""
    marked = (cell.pair for cell in cells if cell_mark(cell) == ELSEWHERE)
    if pairs := dict.fromkeys(marked):
        phrase = f"{named_pairs(list(pairs))}: {frames.OTHER_DEVICE}"
        yield ELSEWHERE, f"{phrase}; compared with none"


def described(metric: Metric) -> str:
    """The label, and the unit if the label lacks it."""
    label = display_of(metric).label
    return label + ("" if metric.unit in label else f", {metric.unit}")


def combined(metric: Metric, cells: Cells) -> str:
    """How many observations a cell's number combines: `` (mean of 16 functions)``."""
    most = frames.most_observations(cells)
    if most < 2:  # noqa: PLR2004 - nothing to combine
        return ""
    # A text has an observation per question.
    counted = "questions" if metric.noun == "texts" else metric.noun
    noun = f" {counted}" if metric.quantity == "quality" else ""
    return f" ({'sum' if metric.is_sum else 'mean'} of {most}{noun})"


REFERENCE_MARK = "*"
"""Behind the value of the pair that others are compared with."""


def legend_entries(
    setup: Setup,
    cells: Cells,
    metric: Metric,
    inferred: Mapping[Pair, Pair] | None = None,
) -> list[tuple[str, str]]:
    """Each mark and word in the grid, with its meaning; *inferred* as `not_run`."""
    entries = [*_reference_entries(cells, metric), *failure_entries(cells)]
    entries += attention_entries(cells)
    entries += device_entries(cells)
    finished = (cell for cell in cells if cell.status == Status.FINISHED)
    if not all(cell.has_value for cell in finished):
        entries.append((NO_VALUE_WORD, no_value_phrase(setup, metric)))
    entries += left_out_entries(cells)
    entries += not_run(cells, inferred or {})
    if shows_errors(cells, display_of(metric)):
        entries.append(ERROR_ENTRY)
    return entries


def not_run(cells: Cells, inferred: Mapping[Pair, Pair]) -> Iterator[tuple[str, str]]:
    """The entries for pairs without a record; *inferred* are beyond, as finer ones."""
    missing = [c.pair for c in cells if c.status == frames.NOT_RUN and not c.is_hole]
    left = [pair for pair in missing if pair not in inferred]
    if left:
        only = f": {named_pairs(left)}" if left != missing else ""
        yield NOT_RUN_WORD, f"not run{only}"
    if not inferred:
        return
    from codeneedle.verdict.remarks import inferred_phrases

    for phrase in inferred_phrases({p: inferred[p] for p in missing if p in inferred}):
        yield NOT_RUN_WORD, f"not measured, {phrase}"


def no_value_phrase(setup: Setup, metric: Metric) -> str:
    """What a finished cell without a value of *metric* means, with a known reason."""
    reason = metric.why_none(setup)
    why = f": {reason}" if reason else ""
    return f"finished, without a value of {metric.name}{why}"


def _reference_entries(cells: Cells, metric: Metric) -> Iterator[tuple[str, str]]:
    if reference := frames.reference(cells):
        yield REFERENCE_MARK, f"the reference, {visible(str(reference))}"
        if metric.floor:
            floor = small_number(
                frames.value_at(cells, reference), display_of(metric).digits
            )
            meaning = f"noise floor {floor}: the reference compared with itself"
            yield REFERENCE_MARK, meaning
    if note := reference_note(cells):
        yield "against", note


def left_out_entries(cells: Cells) -> Iterator[tuple[str, str]]:
    """What values leave out because it could not be measured."""
    if partial := next((cell for cell in cells if cell.left_out), None):
        yield count_text(partial), "over those of all that have a score of each answer"
    for cell in cells:
        if cell.lacking:
            yield "left out", visible(f"{cell.pair}: {cell.lacking}")


def floor_entries(run: Run, metric: Metric, cells: Cells) -> list[tuple[str, str]]:
    """The noise floors of a metric whose reference was measured again, or elsewhere."""
    pair = visible(str(frames.reference(cells)))
    entries = []
    for on_cpu, how in ((False, "measured twice"), (True, "with attention on the CPU")):
        apart = frames.floor(run, metric, cells, on_cpu=on_cpu)
        if not math.isnan(apart):
            shown = small_number(apart, display_of(metric).digits)
            entries.append(("floor", f"{shown}: {pair}, {how}, differs by as much"))
    return entries


def small_number(value: float, digits: int) -> str:
    """``0.50``, or ``3e-10`` of what *digits* decimals would show as nothing."""
    if 0 < abs(value) < 10**-digits:
        return f"{value:.1g}"
    return number(value, digits=digits)


def reference_note(cells: Cells) -> str:
    """Why no pair is the reference although records name one; empty otherwise."""
    named = [visible(str(pair)) for pair in frames.named_references(cells)]
    if len(named) > 1:
        pairs = " or ".join(named)
        return f"measured against {pairs}: not comparable, no noise floor"
    if named and not frames.reference(cells):
        return f"measured against {named[0]}, which has no value"
    return ""


def failure_entries(cells: Cells) -> Iterator[tuple[str, str]]:
    """One entry per status and reason: the word, the pairs, and the reason."""
    failed = pairs_by(
        ((cell.status, cell.reason), cell.pair)
        for cell in cells
        if cell.status not in {Status.FINISHED, frames.NOT_RUN}
    )
    for (status, reason), pairs in failed.items():
        yield status_word(status), failure_phrase(pairs, status, reason)


def failure_phrase(pairs: Sequence[Pair], status: str, reason: str) -> str:
    """``q8_0/q4_0, q4_0/q4_0 out-of-memory: cannot allocate``."""
    why = f": {visible(reason)}" if reason else ""
    return f"{named_pairs(pairs)} {status}{why}"


def nothing_to_show(run: Run, what: str, probe: str) -> NothingToShow:
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
        for record in frames.of_probe(run, probe).records
        if record.has_numbers and metric.values(record, run.setup)
    ]
    hint = f"See why: codeneedle table {shlex.quote(visible(str(run.folder)))}"
    if others:
        shown = sweep_command(run.folder).replace(" sweep ", " grid ", 1)
        hint = f"This run measured {others[0]}: {shown} --metric {others[0]}"
    elif run.sweep:
        added = () if probe in run.setup.probes else ("--probe", probe)
        hint = f"Measure them: {sweep_command(run.folder, *added)}"
    return NothingToShow(run=visible(run.name), what=what, hint=hint)


def probe_of(run: Run, metric: str) -> str:
    """Name of the probe that measures *metric*, one of *run* if any of those does."""
    in_run = {each.name for each in PROBES.values() if each.name in run.setup.probes}
    for probe in sorted(PROBES.values(), key=lambda each: each.name not in in_run):
        more = probe.metrics_of(run.setup) if probe.name in in_run else ()
        if metric in {each.name for each in (*probe.metrics, *more)}:
            return probe.name
    return next(iter(PROBES))


def unmeasured_lines(run: Run, metric: Metric) -> list[str]:
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
        if metric.name.partition("@")[0] not in {each.name for each in probe.metrics}
    ]
    hint = f"; this run was set up for {', '.join(offers)}" if offers else ""
    return [f"no cell was measured for {metric.name}{hint}"]


def incomplete_lines(run: Run) -> list[str]:
    """A line for answers that are missing, of each metric that has such."""
    lines = []
    for probe in sorted({record.probe for record in run.records} & PROBES.keys()):
        known = (*PROBES[probe].metrics, *PROBES[probe].metrics_of(run.setup))
        for metric in {each.name: each for each in known}.values():
            if metric.loss and (by_pair := _unanswered(run, probe, metric)):
                most, of = max(by_pair.values())
                named = named_pairs(list(by_pair))
                what = f"{metric.noun} without a score, which are left out"
                lines.append(f"{what} (at most {most} of {of}): {named}")
    return list(dict.fromkeys(lines))


def _unanswered(run: Run, probe: str, metric: Metric) -> dict[Pair, tuple[int, int]]:
    """
    Of pairs with units of *metric* that have no answer: these, and all that were asked.

    Empty where no pair has any answer: then nothing tells pairs apart.
    """
    names = (metric.loss and metric.loss.units) or metric.names
    if names is None:
        return {}
    records = [r for r in run.records if r.probe == probe and r.has_numbers]
    asked = {each.pair: len(names(each, run.setup)) for each in records}
    missing = {each.pair: len(metric.unanswered(each, run.setup)) for each in records}
    if missing == asked:
        return {}
    return {pair: (count, asked[pair]) for pair, count in missing.items() if count}
