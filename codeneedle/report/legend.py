"""What the marks and words of a grid mean, and what its cells rest on."""

from codeneedle import frames
from codeneedle.frames import Cell, Cells
from codeneedle.metrics import Metric
from codeneedle.probes import PROBES
from codeneedle.records import Run, Status
from codeneedle.report.cells import NO_VALUE_WORD, NOT_RUN_WORD, number, status_word
from codeneedle.report.safetext import visible

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
