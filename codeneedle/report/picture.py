"""What a heatmap shows, before it is painted: plain values, labels and sentences."""

import math
from dataclasses import dataclass

from codeneedle.grid import Pair
from codeneedle.report.scale import Scale


@dataclass(frozen=True, slots=True)
class Square:
    """
    One cell of a picture.

    Attributes:
        value: Gives the colour; NaN is a gap.
        label: What stands in it.
        is_bold: Whether the label stands out.
    """

    value: float
    label: str
    is_bold: bool = False

    @property
    def is_gap(self) -> bool:
        """Whether there is no value, but a word that says why."""
        return math.isnan(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """
    What is to be painted.

    Attributes:
        k_types: Down.
        v_types: Across.
        squares: A row for each K type, with one for each V type.
        scale: The ends of the colours.
        colours: ``lighter is higher``, ``lighter is lower`` or ``around zero``.
        caption: What the colour scale measures.
        title: The headline.
        notes: Lines below it.
        reference: The pair that gets a frame; None if there is none.
    """

    k_types: tuple[str, ...]
    v_types: tuple[str, ...]
    squares: tuple[tuple[Square, ...], ...]
    scale: Scale
    colours: str
    caption: str
    title: str
    notes: tuple[str, ...]
    reference: Pair | None
