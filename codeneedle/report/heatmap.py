"""Heatmaps of a grid, as PNG and SVG; every byte follows from the records."""

import math
from collections.abc import Collection, Sequence
from pathlib import Path

from codeneedle import frames, stats
from codeneedle.frames import Cells
from codeneedle.grid import Pair
from codeneedle.metrics import Metric
from codeneedle.records import Run
from codeneedle.report import headline
from codeneedle.report.cells import number, status_word
from codeneedle.report.layout import has_labels
from codeneedle.report.legend import reference_note, unmeasured_lines
from codeneedle.report.painting import save
from codeneedle.report.picture import Picture, Square
from codeneedle.report.safetext import visible
from codeneedle.report.scale import difference_scale, value_scale
from codeneedle.resampling import CONFIDENCE
from codeneedle.scored_rounds import Reading
from codeneedle.store import FolderUnwritable
from codeneedle.units import plural


def draw(
    run: Run,
    metric: Metric,
    reading: Reading,
    *,
    difference: bool = False,
    zoom: bool = False,
    folder: Path,
) -> tuple[Path, Path]:
    """
    Write ``heatmap-METRIC.png`` and ``.svg`` into *folder*.

    Args:
        run: Records of one probe.
        metric: What to draw.
        reading: How stored replies are read.
        difference: Whether to draw what each pair has more than the reference;
            the files are then called ``heatmap-METRIC-difference``.
        zoom: Whether the colours span the values alone, not the natural bounds.
        folder: Where the files go; made if need be.

    Returns:
        The paths of the PNG and of the SVG.

    Raises:
        FolderUnwritable: If the disk refuses.
    """
    picture = (
        differences_picture(run, metric, reading)
        if difference
        else values_picture(run, metric, reading, zoom=zoom)
    )
    name = f"heatmap-{metric.name}{'-difference' if difference else ''}"
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save(picture, png=png, svg=svg)
    except OSError as error:
        raise FolderUnwritable(folder=folder, reason=str(error)) from error
    return png, svg


def values_picture(
    run: Run, metric: Metric, reading: Reading, *, zoom: bool = False
) -> Picture:
    """The value of every pair, the lighter the better, or the higher."""
    cells = frames.cells_frame(run, metric, reading)
    values = [cell.value for cell in cells]
    many = frames.most_observations(cells)
    how = "sum" if metric.is_sum else "mean"
    of_many = f" ({how} of {many})" if many > 1 else ""
    labels = [number(value, digits=metric.digits) for value in values]
    return Picture(
        k_types=tuple(frames.k_types(cells)),
        v_types=tuple(frames.v_types(cells)),
        squares=_squares(cells, values, labels, told=frozenset()),
        scale=value_scale(metric, values, rounds=many, zoom=zoom),
        colours=f"lighter is {'lower' if metric.better == 'lower' else 'higher'}",
        caption=metric.unit or metric.name,
        title=f"{_capital(metric.label)}{of_many}",
        notes=_notes(run, metric, cells),
        reference=frames.reference(cells),
    )


def differences_picture(run: Run, metric: Metric, reading: Reading) -> Picture:
    """What every pair has more than the reference; bold where that can be told."""
    cells = frames.cells_frame(run, metric, reading)
    reference = frames.reference(cells)
    if reference is None:
        return values_picture(run, metric, reading)
    its_value = frames.value_at(cells, reference)
    gaps = [cell.value - its_value for cell in cells]
    scale = difference_scale(
        metric, gaps, reference=its_value, rounds=frames.most_observations(cells)
    )
    labels = [number(gap, digits=metric.digits, sign=True) for gap in gaps]
    k_types, v_types = frames.k_types(cells), frames.v_types(cells)
    told: frozenset[Pair] = frozenset()
    if has_labels(k_types, v_types):
        told = _told(run, cells, reference, metric, reading)
    its_label = number(its_value, digits=metric.digits)
    return Picture(
        k_types=tuple(k_types),
        v_types=tuple(v_types),
        squares=_squares(cells, gaps, labels, told=told),
        scale=scale,
        colours="around zero",
        caption=f"difference, {metric.unit or metric.name}",
        title=f"{_capital(metric.label)}: difference to {reference} ({its_label})",
        notes=(*_notes(run, metric, cells), *_bold_note(len(told), of=len(cells) - 1)),
        reference=reference,
    )


def _squares(
    cells: Cells,
    values: Sequence[float],
    labels: Sequence[str],
    *,
    told: Collection[Pair],
) -> tuple[tuple[Square, ...], ...]:
    """Values and labels in the order of *cells*, as rows of squares."""
    flat = [
        Square(
            value, _word(cell.status) if math.isnan(value) else label, cell.pair in told
        )
        for value, label, cell in zip(values, labels, cells, strict=True)
    ]
    across = len(frames.v_types(cells))
    return tuple(tuple(flat[at : at + across]) for at in range(0, len(flat), across))


def _word(status: str) -> str:
    return status_word(status) if status else "not run"


def _told(
    run: Run, cells: Cells, reference: Pair, metric: Metric, reading: Reading
) -> frozenset[Pair]:
    """The pairs whose difference to *reference* has an interval without zero."""
    having = {cell.pair for cell in cells if cell.has_value} - {reference}
    return stats.told_pairs(run, having, reference, metric, reading)


def _notes(run: Run, metric: Metric, cells: Cells) -> tuple[str, ...]:
    said = dict(headline.facts(run))
    return (
        visible(run.name),
        f"{said['model']}  |  context {said['context']}",
        said["corpus"],
        *(f"{name}: {phrase}" for name, phrase in headline.probe_settings(run)),
        f"llama.cpp {said['llama.cpp']}  |  {said['machine']}  |  {said['date']}",
        *headline.cautions(run.setup),
        *map(_capital, unmeasured_lines(run, metric)),
        *filter(None, [_capital(reference_note(cells))]),
    )


def _bold_note(told: int, *, of: int) -> tuple[str, ...]:
    if not told:
        return ()
    share = round(CONFIDENCE * 100)
    by_chance = round(of * (1 - CONFIDENCE))
    meaning = f"Bold: the {share} % interval of the difference leaves out 0"
    return (f"{meaning} (of {plural(of, 'pair')}, {by_chance} would by chance).",)


def _capital(label: str) -> str:
    return visible(label[:1].upper() + label[1:])
