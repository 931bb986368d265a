"""The units of a metric in every cell, and what they say of the types of K and of V."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from codeneedle.analysis import recall, verdict
from codeneedle.analysis.metrics import Metric
from codeneedle.analysis.verdict import (
    AXIS_ALPHA,
    EFFECTS,
    ODD_ALPHA,
    AxisFinding,
    Certificate,
    Numbers,
    OddCell,
)
from codeneedle.grid import Pair, by_precision
from codeneedle.probes import PROBES
from codeneedle.records.record import Run
from codeneedle.report.captions import number
from codeneedle.report.table import Column, PairTable, pair_table
from codeneedle.scoring.rounds import Reading

ANSWERED_SHARE = 0.9
"""A cell with fewer answers than this share of its rounds is unreliable."""

FLOOR_SHARE = 0.1
"""A metric says nothing where the reference has this little of its range, or less."""

FEWEST_UNITS = 2
"""Units that a test needs."""

AXES = ("K", "V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """
    What one metric says of the types of K and of V.

    Attributes:
        metric: The metric.
        types: The types of each axis that have numbers, most precise first.
        units: Needles, chunks or questions that every cell shares.
        reference: Mean of the reference.
        axes: One finding for each of `AXES`.
        odd: A cell that its types do not explain; left out of the axes.
        incomplete: Pairs that lack answers which the reference has: not compared.
        least: For each axis, the smallest effects that would have been found 9 times
            in 10, by kind; empty where the axis matters.
        silent: Why the metric has no say; empty if it has.
    """

    metric: Metric
    types: tuple[tuple[str, ...], tuple[str, ...]]
    units: int
    reference: float
    axes: tuple[AxisFinding, ...] = ()
    odd: OddCell | None = None
    least: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    silent: str = ""
    incomplete: tuple[Pair, ...] = ()

    @property
    def votes(self) -> bool:
        """Whether a cost of it is one: a distance is above zero for any rounding."""
        return not self.silent and not self.metric.floor

    def charges(self, pair: Pair) -> bool:
        """Whether *pair* is odd, or its type of K or of V costs."""
        sides = {("K", pair.k), ("V", pair.v)}
        return pair == self.odd_pair or bool(sides & self.costing())

    @property
    def odd_pair(self) -> Pair | None:
        """The types of the odd cell."""
        if self.odd is None:
            return None
        return Pair(self.types[0][self.odd.k], self.types[1][self.odd.v])

    def costing(self) -> set[tuple[str, str]]:
        """
        Axis and type of all that costs.

        Where an axis matters without a single type being shown, the coarser types of
        its largest contrast.
        """
        found = set()
        for axis, types, finding in zip(AXES, self.types, self.axes, strict=False):
            costly = [types[cost.index] for cost in finding.costs]
            if finding.matters:
                found |= {(axis, name) for name in costly or types[finding.split :]}
        return found


class UnitScores:
    """The units of one metric in every cell, higher is better."""

    def __init__(self, column: Column, table: PairTable) -> None:
        self.metric = column.metric
        self.reference = column.reference or table.reference
        self._column = column
        pairs = [pair for pair in table.pairs if column.cell(pair).has_value]
        self._cells: dict[Pair | None, dict[str, float]] = {
            pair: units_of(column, table, pair) for pair in pairs
        }
        self._missing: dict[Pair | None, frozenset[str]] = {
            pair: _missing(column, table, pair) for pair in pairs
        }
        self._unreliable = {
            pair
            for pair, units in self._cells.items()
            if is_unreliable(
                len(self._missing[pair]), len(self._missing[pair] | units.keys())
            )
        }
        missing = self._missing.get(self.reference, frozenset())
        own = self._cells.get(self.reference, {})
        # What the reference did not answer cannot be lost, and is no evidence.
        self._answered = [name for name in own if name not in missing]
        counts = Counter(
            name
            for pair, units in self._cells.items()
            for name in units.keys() | self._missing[pair]
        )
        # Some pairs were asked for further functions: the grid has those of most.
        self.names = [
            name for name in self._answered if 2 * counts[name] > len(self._cells)
        ]
        self.units = len(self.names)

    @property
    def answered(self) -> int:
        """Units that the reference answered, asked of all pairs or of some."""
        return len(self._answered)

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return -1 if self.metric.better == "lower" else 1

    @property
    def silent(self) -> str:
        """Why the metric has no say; empty if it has."""
        if self.reference not in self._cells:
            return "the reference has no value"
        if self.reference in self._unreliable:
            return (
                f"the reference has an answer for {self.units} {self.metric.noun} "
                "only, so nothing can be compared with it"
            )
        if self.units < FEWEST_UNITS:
            return "a single number per pair, so nothing is known of its noise"
        low, high = self.metric.bounds
        if low is None or high is None:
            return ""
        value = float(np.mean(list(self._cells[self.reference].values())))
        worst = high if self.metric.better == "lower" else low
        if abs(value - worst) <= FLOOR_SHARE * (high - low):
            return (
                f"the reference itself has {number(value, digits=2)} of {high:g}: "
                "too hard for this model, so losses cannot be seen"
            )
        return ""

    def of(self, pair: Pair, names: Sequence[str] | None = None) -> Numbers | None:
        """
        The units of *pair*, higher is better; None where they are not whole.

        None, too, where fewer than nine in ten have an answer: zeros of those that
        have none would be charged to the types of *pair*.

        Args:
            pair: Any pair.
            names: Of the units; all of `names` if None.
        """
        names = self.names if names is None else names
        values = self._reliable(pair)
        if not names or not values.keys() >= set(names):
            return None
        return np.array([values[name] for name in names]) * self.sign

    def _reliable(self, pair: Pair) -> dict[str, float]:
        """The units of *pair*; none where it has too few answers."""
        return {} if pair in self._unreliable else self._cells.get(pair, {})

    def shared(self, pair: Pair) -> tuple[Numbers, Numbers] | None:
        """
        What *pair* and the reference have for the units that both were asked for.

        None where there are none, *pair* lacks one of them, or too many answers.
        """
        ours, theirs = self._reliable(pair), self._cells.get(self.reference, {})
        names = [name for name in self._answered if name in ours]
        lacking = self._missing.get(pair, frozenset()) - ours.keys()
        if not names or lacking & set(self._answered):
            return None
        both = (np.array([of[name] for name in names]) for of in (ours, theirs))
        first, second = (values * self.sign for values in both)
        return first, second

    def losses(self, pair: Pair) -> Numbers | None:
        """Loss of each unit that *pair* shares with the reference; None without."""
        both = self.shared(pair)
        # A distance from the reference is a loss as it stands; its floor is noise.
        return None if both is None else both[1] - both[0]

    def certificate(self, pair: Pair, *, comparisons: int) -> Certificate | None:
        """
        What the shared units say of *pair*; None where they say nothing.

        Of the reference: what they would say of a pair that loses nothing.
        """
        both, lost_from = self.shared(pair), self.metric.lost_from
        if both is None or lost_from is None:
            return None
        worst = self.metric.bounds[0 if self.sign > 0 else 1]
        return verdict.certificate(
            *both,
            comparisons=comparisons,
            lost_from=lost_from,
            lowest=-math.inf if worst is None else worst * self.sign,
        )

    @property
    def is_compared(self) -> bool:
        """Whether a pair beside the reference has a value."""
        return bool(self._cells.keys() - {self.reference})

    @property
    def incomplete(self) -> tuple[Pair, ...]:
        """Pairs with a value that lack units of the grid."""
        return tuple(p for p in self._cells if p and self.of(p) is None)

    def table(self) -> Numbers:
        """The units of every pair: (K types, V types, units); NaN where not whole."""
        return self._scores(self._types())

    def judged(self, *, share: float, with_power: bool) -> Judged:
        """Test cells and both axes, with that *share* of the false alarms."""
        types = self._types()
        base = Judged(
            metric=self.metric,
            types=types,
            units=self.units,
            reference=self._column.reference_value,
            silent=self.silent,
        )
        if self.silent:
            return base
        base = replace(base, incomplete=self.incomplete)
        scores = self._scores(types)
        first = self.reference or Pair(types[0][0], types[1][0])
        place = (types[0].index(first.k), types[1].index(first.v))
        odd = verdict.odd_cell(scores, alpha=ODD_ALPHA * share, reference=place)
        if odd is not None:
            scores = verdict.without_cell(scores, odd)
        alpha = AXIS_ALPHA * share
        findings = tuple(
            verdict.axis_finding(scores, axis, alpha=alpha) for axis in (0, 1)
        )
        least = {
            name: self._least(scores, axis, alpha)
            for axis, name in enumerate(AXES)
            if with_power and findings[axis].p > alpha
        }
        return replace(base, axes=findings, odd=odd, least=least)

    def _types(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Types of K and of V that have a value, the most precise first."""
        measured = [pair for pair in self._cells if pair]
        return (
            tuple(by_precision(pair.k for pair in measured)),
            tuple(by_precision(pair.v for pair in measured)),
        )

    def _scores(self, types: tuple[tuple[str, ...], tuple[str, ...]]) -> Numbers:
        gap = np.full(self.units, math.nan)
        cells = [[self.of(Pair(k, v)) for v in types[1]] for k in types[0]]
        return np.array([[gap if c is None else c for c in row] for row in cells])

    def _least(self, scores: Numbers, axis: int, alpha: float) -> dict[str, float]:
        """The smallest effects that would have been found, by kind."""
        whole = verdict.type_table(scores, axis)
        if self.metric.unit == "lines":
            sizes: Sequence[float] = verdict.LINE_SIZES
            kinds: tuple[str, ...] = EFFECTS
        else:
            spread = float((whole - whole.mean(axis=1, keepdims=True)).std()) or 1.0
            sizes = [spread * step for step in (0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2, 3)]
            kinds = ("shift",)
        # As the test itself: a gap leaves out the whole type of the other axis.
        used = verdict.whole_types(scores, axis)
        tested = scores[used] if axis else scores[:, used]
        return {
            kind: verdict.detectable(tested, axis, kind, sizes=sizes, alpha=alpha)
            for kind in kinds
        }


def scored_metrics(table: PairTable) -> dict[str, UnitScores]:
    """The judged metrics of *table* that have a value, by name."""
    return {
        column.metric.name: UnitScores(column, table)
        for column in table.columns
        if column.metric.is_judged and column.has_values
    }


def deciding_metrics(run: Run, reading: Reading) -> list[UnitScores]:
    """The metrics that can tell lost units, the first one first, silent or not."""
    table = pair_table(run, tuple(PROBES.values()), reading)
    found = scored_metrics(table).values()
    return [each for each in found if each.metric.lost_from is not None]


def is_unreliable(missing: int, asked: int) -> bool:
    """Whether fewer than `ANSWERED_SHARE` of what was asked have an answer."""
    return missing > (1 - ANSWERED_SHARE) * asked


def units_of(column: Column, table: PairTable, pair: Pair) -> dict[str, float]:
    """The value of each unit of *pair*, by name: a needle, a chunk, or a text."""
    record = table.records[pair, column.probe]
    return column.metric.by_unit(record, table.run.setup, table.reading)


def _missing(column: Column, table: PairTable, pair: Pair) -> frozenset[str]:
    """Names of the units of *pair* without an answer that the metric is read from."""
    if column.probe != recall.NAME:
        return frozenset()
    record = table.records[pair, column.probe]
    return recall.unanswered(
        record, table.run.setup, recall.part_of(column.metric.name)
    )
