"""The arithmetic of measurements: medians with their spread, ratios, shares."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PER_CENT = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """
    Repetitions of a number, in short.

    Attributes:
        median: Of all.
        least: The smallest.
        most: The largest.
        count: How many there were, 1 or more.
    """

    median: float
    least: float
    most: float
    count: int

    def phrase(self, digits: int = 1) -> str:
        """``4.2 (4.0 to 4.9)``; of a single one, or of equal ones, ``4.2``."""
        middle, least, most = (
            f"{number:,.{digits}f}" for number in (self.median, self.least, self.most)
        )
        return middle if least == most else f"{middle} ({least} to {most})"


def spread(numbers: Iterable[float]) -> Spread:
    """
    Median, smallest and largest of *numbers*, in any unit.

    Raises:
        ValueError: If there are none.
    """
    known = sorted(numbers)
    if not known:
        raise ValueError("nothing was measured, so it has no median")
    return Spread(
        median=statistics.median(known),
        least=known[0],
        most=known[-1],
        count=len(known),
    )


def phrase(numbers: Iterable[float | None], digits: int = 1) -> str:
    """The spread of those *numbers* that are known, as a phrase; a dash of none."""
    known = [number for number in numbers if number is not None]
    return spread(known).phrase(digits) if known else "-"


def ratios(
    numerators: Sequence[float], denominators: Sequence[float]
) -> tuple[float, ...]:
    """
    One ratio for each repetition; to be summarised only then.

    Parts of a repetition follow each other, so what slows the machine down for a
    while slows both of them. The ratio of two medians may compare different whiles.

    Args:
        numerators: Of each repetition, in order.
        denominators: Likewise, as many, none of them 0.
    """
    return tuple(a / b for a, b in zip(numerators, denominators, strict=True))


def totals(parts: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """
    The sum of each repetition.

    Args:
        parts: Of each part, its repetitions in order; as many of each.
    """
    return tuple(sum(repetition) for repetition in zip(*parts, strict=True))


def share(part: float, whole: float) -> float:
    """*part* of *whole*, in per cent."""
    return PER_CENT * part / whole


def best(numbers: Iterable[float]) -> float:
    """The smallest: what a command takes when nothing is in its way."""
    return spread(numbers).least


def spaced(count: int, wanted: int) -> list[int]:
    """
    At most *wanted* of the numbers below *count*, evenly, first and last included.

    Args:
        count: 1 or more.
        wanted: 1 or more.
    """
    places = min(wanted, count)
    gaps = max(places - 1, 1)
    return [at * (count - 1) // gaps for at in range(places)]
