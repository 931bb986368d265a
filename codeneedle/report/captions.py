"""Captions: what a run was measured on, and what the marks and words in a grid mean."""

from codeneedle.analysis import frames
from codeneedle.analysis.frames import Cell, Cells
from codeneedle.analysis.metrics import Metric
from codeneedle.probes import PROBES
from codeneedle.records.record import Json, Run, Setup, Status
from codeneedle.report.cells import NO_VALUE_WORD, NOT_RUN_WORD, number, status_word
from codeneedle.text import plural, size, visible

BUILT_IN_MODEL = "needle-nano"
"""Name of the weights that come with codeneedle."""

_SHORT_HASH = 8


def setup_line(setup: Setup) -> str:
    """The model and how it is asked, on one line."""
    return visible(
        f"{setup.weights.name} on {setup.corpus.name}: "
        f"context {plural(setup.context, 'token')}, "
        f"{plural(len(setup.needles), 'round')}, {setup.prompt_form} prompt"
    )


def corpus_line(setup: Setup) -> str:
    """The corpus as it was sent, on one line."""
    corpus = setup.corpus
    parts = [
        f"{corpus.name}: {corpus.origin}",
        corpus.kind,
        plural(corpus.tokens, "token"),
        fitting(setup),
    ]
    return visible("; ".join(parts))


def fitting(setup: Setup) -> str:
    """How much of the corpus was sent: ``trimmed to 16 of 200 functions``."""
    corpus = setup.corpus
    if corpus.is_trimmed:
        before = plural(corpus.functions_before, "function")
        return f"trimmed to {corpus.functions:,} of {before}"
    return plural(corpus.functions, "function")


def facts(run: Run) -> tuple[tuple[str, str], ...]:
    """All that a reader needs to judge a number: a word and a phrase for each."""
    setup = run.setup
    weights = f"{setup.weights.name}, {size(setup.weights.size_bytes)}, "
    asked = (
        f"{plural(setup.context, 'token')}, {plural(len(setup.needles), 'round')}, "
        f"{setup.prompt_form} prompt{'' if setup.rotation else ', rotation off'}"
    )
    lines = [
        ("model", f"{weights}sha256 {setup.weights.sha256[:_SHORT_HASH]}"),
        ("corpus", corpus_line(setup)),
        ("context", asked),
        *probe_settings(run),
        ("llama.cpp", " ".join([setup.llama, *setup.server_args])),
        ("machine", setup.machine),
        ("date", dates(run)),
    ]
    return tuple((word, visible(phrase)) for word, phrase in lines)


def probe_settings(run: Run) -> tuple[tuple[str, str], ...]:
    """What each probe that has records was told to do, where it was told anything."""
    seen = dict.fromkeys(record.probe for record in run.records)
    told = {name: _settings(run.setup.probes.get(name, {})) for name in seen}
    trial = run.setup.trial
    if trial and told.get("recall"):
        told["recall"] += f"; {trial.phrase}"
    return tuple(
        (visible(name), visible(phrase)) for name, phrase in told.items() if phrase
    )


def _settings(settings: Json) -> str:
    """Numbers and names; hashes, and what the facts tell anyway, are left out."""
    said = []
    for key, value in settings.items():
        values = value if isinstance(value, list) else [value]
        shown = [str(each) for each in values if isinstance(each, str | int)]
        if shown and "sha256" not in key and key != "llama":
            said.append(f"{key.replace('_', ' ')} {', '.join(shown)}")
    return "; ".join(said)


def dates(run: Run) -> str:
    """The day of its records, or the first and the last; else when it was made."""
    days = sorted({record.started[:10] for record in run.records})
    if not days:
        return run.setup.created[:10]
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def cautions(setup: Setup) -> tuple[str, ...]:
    """What a reader should not conclude, as sentences; most often none."""
    is_built_in = setup.weights.name == BUILT_IN_MODEL
    if not is_built_in or setup.corpus.kind == "incompressible":
        return ()
    instrument = "The built-in model is an instrument for incompressible text"
    return (f"{instrument}: what it does on {setup.corpus.name} tells nothing.",)


REFERENCE_MARK = "*"
"""Behind the value of the pair that others are compared with."""

PAIRS_NAMED = 4
"""Pairs that a line of the legend names before it counts the others."""


def legend(cells: Cells, metric: Metric) -> list[str]:
    """A line for each mark and word that stands in the grid, with the reasons."""
    entries = legend_entries(cells, metric)
    width = max((len(word) for word, _ in entries), default=0)
    return [f"{word.ljust(width)}  {meaning}" for word, meaning in entries]


def legend_entries(cells: Cells, metric: Metric) -> list[tuple[str, str]]:
    """Each mark and word that stands in the grid, with its meaning."""
    entries = _references(cells, metric)
    entries += _failures(cells)
    finished = (cell for cell in cells if cell.status == Status.FINISHED)
    if not all(cell.has_value for cell in finished):
        entries.append((NO_VALUE_WORD, f"finished, without a value of {metric.name}"))
    if any(cell.status == frames.NOT_RUN for cell in cells):
        entries.append((NOT_RUN_WORD, "not run"))
    return entries


def _references(cells: Cells, metric: Metric) -> list[tuple[str, str]]:
    entries = []
    if reference := frames.reference(cells):
        entries.append((REFERENCE_MARK, f"the reference, {visible(str(reference))}"))
        if metric.floor:
            floor = number(frames.value_at(cells, reference), digits=metric.digits)
            meaning = f"noise floor {floor}: the reference against itself"
            entries.append((REFERENCE_MARK, meaning))
    if note := reference_note(cells):
        entries.append(("against", note))
    return entries


def reference_note(cells: Cells) -> str:
    """Why no pair is the reference, where records name one; empty otherwise."""
    named = [visible(str(pair)) for pair in frames.named_references(cells)]
    if len(named) > 1:
        return f"measured against {' or '.join(named)}: not comparable, no floor"
    if named and not frames.reference(cells):
        return f"measured against {named[0]}, which has no value"
    return ""


def _failures(cells: Cells) -> list[tuple[str, str]]:
    """One entry per status and reason: the word, the pairs, and why."""
    failed: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.status not in {Status.FINISHED, frames.NOT_RUN}:
            failed.setdefault((cell.status, cell.reason), []).append(cell)
    entries = []
    for (status, reason), group in failed.items():
        why = f": {visible(reason)}" if reason else ""
        entries.append((status_word(status), f"{_named(group)} {status}{why}"))
    return entries


def unmeasured_lines(run: Run, metric: Metric) -> list[str]:
    """
    A line for a run without a record of the metric's probe; most often none.

    Args:
        run: Records of that probe alone; its setup tells of the others.
        metric: What is shown; each other probe is offered with its first one.
    """
    if run.records:
        return []
    others = [PROBES[name] for name in run.setup.probes if name in PROBES]
    offers = [
        f"{probe.name} (--metric {probe.metrics[0].name})"
        for probe in others
        if metric.name.partition("@")[0] not in {each.name for each in probe.metrics}
    ]
    hint = f"; this run was set up for {', '.join(offers)}" if offers else ""
    return [f"no cell was measured by the probe of {metric.name}{hint}"]


def short_lines(cells: Cells) -> list[str]:
    """A line for the cells that rest on fewer observations than others."""
    most = frames.most_observations(cells)
    short = [cell for cell in cells if 0 < cell.n < most]
    if not short:
        return []
    fewest = min(cell.n for cell in short)
    return [f"fewer than {most} values, at least {fewest}, behind {_named(short)}"]


def _named(cells: Cells) -> str:
    named = ", ".join(visible(str(cell.pair)) for cell in cells[:PAIRS_NAMED])
    rest = len(cells) - PAIRS_NAMED
    return named if rest <= 0 else f"{named} and {rest} more"
