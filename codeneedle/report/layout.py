"""Where things stand in a heatmap: its proportions, in inches and points."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from codeneedle.report.picture import Picture

CELL = 0.80
"""Side of a cell, in inches; the figure grows with the grid."""

LABELLED = 40
"""
Types of an axis up to which cells are labelled.

A larger grid would be wider than a wall, and take minutes to paint: there, colours
speak alone, on small cells.
"""

SMALL_CELL, TOP_TURNED_LABELS = 0.2, 1.05
"""Side of a cell without a label, and room for V types that stand upright."""

MARGIN, LEFT, TOP_LABELS, BAR_GAP, BAR, BAR_LABELS = 0.30, 1.05, 0.55, 0.22, 0.16, 0.95
"""Around the grid, in inches: the edge, K types, V types, and the colour scale."""

TITLE_LINE, NOTE_LINE = 0.27, 0.175
"""Heights of a line, in inches."""

TITLE_POINTS, NOTE_POINTS, TYPE_POINTS, CELL_POINTS = 13.0, 8.0, 10.0, 10.5

NARROWEST = 6.6
"""Width of the figure of a small grid, in inches: its notes need room."""

EM, DIGIT_EM = 0.57, 0.64
"""Width of a letter on average, and of a digit, in sizes of this font."""

POINTS_PER_INCH = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """
    Where things stand, in inches from the lower left.

    Attributes:
        width: Of the figure.
        height: Of the figure.
        grid: Left, bottom, width and height of the grid.
        title: The headline, broken into lines.
        notes: The notes, likewise.
    """

    width: float
    height: float
    grid: tuple[float, float, float, float]
    title: tuple[str, ...]
    notes: tuple[str, ...]

    def share(
        self, left: float, bottom: float, width: float, height: float
    ) -> tuple[float, float, float, float]:
        """A rectangle as parts of the figure."""
        return (
            left / self.width,
            bottom / self.height,
            width / self.width,
            height / self.height,
        )


def laid_out(picture: Picture) -> Layout:
    """Room for all that *picture* shows; the figure grows with it."""
    cell, top = (
        (CELL, TOP_LABELS)
        if has_labels(picture.k_types, picture.v_types)
        else (SMALL_CELL, TOP_TURNED_LABELS)
    )
    wide, high = len(picture.v_types) * cell, len(picture.k_types) * cell
    width = max(LEFT + wide + BAR_GAP + BAR + BAR_LABELS, NARROWEST)
    room = width - 2 * MARGIN
    title = _broken(picture.title, points=TITLE_POINTS * 1.2, inches=room)
    notes = tuple(
        line
        for note in picture.notes
        for line in _broken(note, points=NOTE_POINTS, inches=room)
    )
    head = TITLE_LINE * len(title) + NOTE_LINE * len(notes) + 0.16
    return Layout(
        width=width,
        height=MARGIN + high + top + head + MARGIN,
        grid=(LEFT, MARGIN, wide, high),
        title=title,
        notes=notes,
    )


def has_labels(k_types: Sequence[str], v_types: Sequence[str]) -> bool:
    """Whether there is room for a label in each cell."""
    return max(len(k_types), len(v_types)) <= LABELLED


def _broken(text: str, *, points: float, inches: float) -> tuple[str, ...]:
    characters = int(inches * POINTS_PER_INCH / (points * EM))
    return tuple(textwrap.wrap(text, characters))
