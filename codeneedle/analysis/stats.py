"""Statistics over cells: spread, gradient, bootstrap differences with intervals."""

import functools
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from codeneedle.analysis.frames import NOT_RUN, Cells
from codeneedle.analysis.metrics import Metric
from codeneedle.grid import BITS_PER_ELEMENT, Pair
from codeneedle.records.record import CellRecord, Run
from codeneedle.scoring.rounds import Reading

Numbers = npt.NDArray[np.float64]

SEED = 42
"""Of all chance in reports: the same records give the same report."""

RESAMPLES = 9_999
"""Bootstrap samples behind an interval."""

CONFIDENCE = 0.95
"""Share of bootstrap samples inside an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """
    A cell's value less the reference's.

    Attributes:
        mean: The difference, in the metric's unit.
        low: Lower end of the `CONFIDENCE` interval; NaN where single
            observations give none.
        high: Its upper end. An interval of no width means that no round
            differed, not that none ever would.
        is_paired: Whether rounds were compared needle by needle.
    """

    mean: float
    low: float
    high: float
    is_paired: bool

    @property
    def is_told(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


def paired_difference(gaps: Numbers, *, is_sum: bool) -> Difference:
    """The `Difference` of two cells by their *gaps*, one per needle."""
    resampled = gaps @ _draws(len(gaps))
    # Sums of the same gaps in another order differ in the last bits, also from zero.
    resampled[np.abs(resampled) < _NOISE * np.abs(gaps).max()] = 0
    if not is_sum:
        resampled /= len(gaps)
    return _judged(gap_value(gaps, is_sum=is_sum), resampled, is_paired=True)


def gap_value(gaps: Numbers, *, is_sum: bool) -> float:
    """The mean of *gaps*, or their sum."""
    return float(gaps.sum() if is_sum else gaps.mean())


_NOISE = 1e-12
"""Share of the largest gap below which a sum of gaps is zero but for rounding."""


@functools.lru_cache(maxsize=4)
def _draws(count: int) -> Numbers:
    """How often each of *count* values is in each sample, a column per sample."""
    chance = np.random.default_rng(SEED)
    drawn = chance.integers(count, size=(RESAMPLES, count))
    times = [np.count_nonzero(drawn == value, axis=1) for value in range(count)]
    return np.array(times, dtype=np.float64)


def difference_apart(ours: Numbers, theirs: Numbers, *, is_sum: bool) -> Difference:
    """The `Difference` of two cells whose values belong to no common needles."""
    mean = gap_value(ours, is_sum=is_sum) - gap_value(theirs, is_sum=is_sum)
    if min(len(ours), len(theirs)) < 2:  # noqa: PLR2004 - one value has no spread
        return Difference(mean=mean, low=math.nan, high=math.nan, is_paired=False)
    chance = np.random.default_rng(SEED)
    resampled = _resampled(ours, chance, is_sum=is_sum) - _resampled(
        theirs, chance, is_sum=is_sum
    )
    return _judged(mean, resampled, is_paired=False)


def _resampled(
    values: Numbers, chance: np.random.Generator, *, is_sum: bool
) -> Numbers:
    """The mean or sum of each of `RESAMPLES` samples with replacement."""
    drawn = values[chance.integers(len(values), size=(RESAMPLES, len(values)))]
    return _total(drawn, is_sum=is_sum)


def _total(drawn: Numbers, *, is_sum: bool) -> Numbers:
    totals: Numbers = drawn.sum(axis=1) if is_sum else drawn.mean(axis=1)
    return totals


def _judged(mean: float, resampled: Numbers, *, is_paired: bool) -> Difference:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Difference(mean=mean, low=float(low), high=float(high), is_paired=is_paired)


SHUFFLES = 9_999
"""Random orders that an observed gradient is compared with."""

SIGNIFICANCE = 0.05
"""A gradient that chance alone shows more often than this is called none."""

FEWEST_CELLS = 6
"""
With fewer cells hardly any order is rarer than one in twenty, whatever happened.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """
    The values of a grid, as one row of the published table has them.

    Attributes:
        mean: Mean over cells; NaN without any.
        sd: Standard deviation over cells, dividing by their number: a grid is
            the whole population. The published figures (15.97 +/- 0.16 for one
            cell of 15 among 36) come from this form alone.
        low: The smallest.
        high: The largest.
        cells: Cells that have a value.
    """

    mean: float
    sd: float
    low: float
    high: float
    cells: int


def spread(cells: Cells) -> Spread:
    """Summarise the values of a `frames.cells_frame`."""
    values = np.array([cell.value for cell in cells if cell.has_value])
    if not len(values):
        return Spread(mean=math.nan, sd=math.nan, low=math.nan, high=math.nan, cells=0)
    return Spread(
        mean=float(values.mean()),
        sd=float(values.std()),
        low=float(values.min()),
        high=float(values.max()),
        cells=len(values),
    )


def counts(cells: Cells) -> dict[str, int]:
    """How many cells ended in each status; those not run are under `NOT_RUN`."""
    return dict(Counter(cell.status for cell in cells))


def tried(cells: Cells) -> int:
    """How many cells have a record, finished or not."""
    return sum(cell.status != NOT_RUN for cell in cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """
    Whether a metric goes along with precision.

    Attributes:
        rho: Rank correlation of value and bits, from -1 to 1; NaN where it
            cannot be told: too few cells, or all values or all bits alike.
        p: Share of random orders that correlate at least as much; NaN likewise.
        cells: Cells it rests on.
    """

    rho: float
    p: float
    cells: int

    @property
    def is_told(self) -> bool:
        """Whether it can be told from none."""
        return self.p <= SIGNIFICANCE

    @property
    def words(self) -> str:
        """``none``, ``too few cells``, or which way and how surely."""
        if self.cells < FEWEST_CELLS:
            return "too few cells"
        if not self.is_told:
            return "none"
        way = "rises" if self.rho > 0 else "falls"
        return f"{way} with precision (rho {self.rho:+.2f}, p {self.p:.4f})"


def gradient(cells: Cells) -> Gradient:
    """
    Correlate the values of a `frames.cells_frame` with the bits of K and V.

    Two-sided permutation test with `SHUFFLES` seeded orders. Cells are compared
    by rank, so that one bad cell does not make a gradient. Types of unknown size
    are left out.

    Source:
        Spearman's rho is Pearson's on midranks. p = (1 + hits) / (1 + orders):
        Phipson & Smyth, Permutation P-values Should Never Be Zero, 2010.
    """
    known = [cell for cell in cells if cell.has_value and _is_sized(cell.pair)]
    x = _centred_ranks([_bits(cell.pair) for cell in known])
    y = _centred_ranks([cell.value for cell in known])
    scale = math.sqrt(float(x @ x) * float(y @ y))
    if len(known) < FEWEST_CELLS or not scale:
        return Gradient(rho=math.nan, p=math.nan, cells=len(known))
    observed = float(x @ y)
    # A little slack: sums of the same ranks in another order differ in the last bit.
    hits = (np.abs(_shuffled_products(x, y)) >= abs(observed) * (1 - 1e-12)).sum()
    p = (1 + int(hits)) / (1 + SHUFFLES)
    return Gradient(rho=observed / scale, p=p, cells=len(known))


def _shuffled_products(x: Numbers, y: Numbers) -> Numbers:
    """The inner product of *x* with each of `SHUFFLES` orders of *y*."""
    chance = np.random.default_rng(SEED)
    # In blocks of about a million numbers: a grid may have thousands of cells.
    block = max(1, 1_000_000 // len(y))
    sizes = [min(block, SHUFFLES - start) for start in range(0, SHUFFLES, block)]
    blocks = [chance.permuted(np.tile(y, (size, 1)), axis=1) @ x for size in sizes]
    products: Numbers = np.concatenate(blocks)
    return products


def _is_sized(pair: Pair) -> bool:
    return pair.k in BITS_PER_ELEMENT and pair.v in BITS_PER_ELEMENT


def _bits(pair: Pair) -> float:
    return BITS_PER_ELEMENT[pair.k] + BITS_PER_ELEMENT[pair.v]


def _centred_ranks(values: Sequence[float]) -> Numbers:
    """Ranks less their mean; equal values share the middle of their ranks."""
    # Rounded: means of the same observations in another order are ties.
    rounded = np.array(values, dtype=np.float64).round(9)
    _, place, times = np.unique(rounded, return_inverse=True, return_counts=True)
    last = np.cumsum(times)
    ranks: Numbers = (last - (times - 1) / 2)[place]
    return ranks - (len(ranks) + 1) / 2


def difference(
    run: Run, pair: Pair, reference: Pair, metric: Metric, reading: Reading
) -> Difference:
    """
    Compare *pair* with *reference*.

    Where both have a value for every needle, the same needles are drawn for
    both: what makes a needle hard cancels out. Otherwise (rounds without an
    answer, repetitions, single numbers) the two are drawn apart.

    Args:
        run: Records of one probe.
        pair: The one to judge.
        reference: The one that it is compared with.
        metric: What to compare.
        reading: How stored replies are read.

    Raises:
        KeyError: If either has no finished record.
        ValueError: If either has no value.

    Source:
        Percentile bootstrap, `RESAMPLES` seeded samples. Efron & Tibshirani, An
        Introduction to the Bootstrap, 1993, chapter 13.
    """
    ours = _values(_finished(run, pair), run, metric, reading)
    theirs = _values(_finished(run, reference), run, metric, reading)
    gaps = paired_gaps(ours, theirs, run)
    if gaps is not None:
        return paired_difference(gaps, is_sum=metric.is_sum)
    return difference_apart(ours, theirs, is_sum=metric.is_sum)


def told_pairs(
    run: Run,
    pairs: Collection[Pair],
    reference: Pair,
    metric: Metric,
    reading: Reading,
) -> frozenset[Pair]:
    """
    Those of *pairs* whose `difference` to *reference* is told.

    Raises:
        KeyError: As of `difference`, of any of them.
        ValueError: Likewise.
    """
    return frozenset(
        pair
        for pair in pairs
        if difference(run, pair, reference, metric, reading).is_told
    )


def paired_gaps(
    ours: Sequence[float] | Numbers, theirs: Sequence[float] | Numbers, run: Run
) -> Numbers | None:
    """What each needle has more than in the other; None if one lacks a value."""
    if not len(ours) == len(theirs) == len(run.setup.needles) > 1:
        return None
    gaps: Numbers = np.subtract(ours, theirs, dtype=np.float64)
    return gaps


def _finished(run: Run, pair: Pair) -> CellRecord:
    for record in run.records:
        if record.pair == pair and record.has_numbers:
            return record
    raise KeyError(pair)


def _values(record: CellRecord, run: Run, metric: Metric, reading: Reading) -> Numbers:
    values: Sequence[float] = metric.values(record, run.setup, reading)
    if not values:
        raise ValueError(f"{record.pair} has no value of {metric.name}")
    return np.asarray(values, dtype=float)
