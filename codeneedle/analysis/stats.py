"""Statistics over cells: spread, gradient, and differences with bootstrap intervals."""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from codeneedle.analysis.frames import Cell, Cells
from codeneedle.grid import Pair, bits

Numbers = npt.NDArray[np.float64]

SEED = 42
"""Of all random numbers in reports: the same records give the same report."""

SHUFFLES = 9_999
"""Random orders that an observed gradient is compared with."""

SIGNIFICANCE = 0.05
"""A gradient with a p value above this is called none."""

FEWEST_CELLS = 6
"""With fewer cells, hardly any order has a p value below `SIGNIFICANCE`."""

RESAMPLES = 9_999
"""Bootstrap samples behind an interval."""

CONFIDENCE = 0.95
"""Share of bootstrap samples inside an interval."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """
    Rank correlation of a metric with precision.

    Attributes:
        rho: Correlation of value and bits, from -1 to 1; NaN where there is none:
            too few cells, or all values or all bits alike.
        p: Share of random orders that correlate at least as much; NaN likewise.
        cells: Cells it is computed from.
    """

    rho: float
    p: float
    cells: int

    @property
    def is_told(self) -> bool:
        """Whether chance alone shows it in less than `SIGNIFICANCE` of orders."""
        return self.p <= SIGNIFICANCE

    @property
    def words(self) -> str:
        """``none``, ``too few cells``, or its direction with rho and p."""
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
    sized = [(cell, _bits(cell.pair)) for cell in cells if cell.has_value]
    known = [cell for cell, size in sized if size is not None]
    x = _centred_ranks([size for _, size in sized if size is not None])
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
    orders = chance.permuted(np.tile(y, (SHUFFLES, 1)), axis=1)
    products: Numbers = orders @ x
    return products


def _bits(pair: Pair) -> float | None:
    k, v = bits(pair.k), bits(pair.v)
    return None if k is None or v is None else k + v


def _centred_ranks(values: Sequence[float]) -> Numbers:
    """Ranks less their mean; equal values share the middle of their ranks."""
    # Rounded: means of the same observations in another order are ties.
    rounded = np.array(values, dtype=np.float64).round(9)
    _, place, times = np.unique(rounded, return_inverse=True, return_counts=True)
    last = np.cumsum(times)
    ranks: Numbers = (last - (times - 1) / 2)[place]
    return ranks - (len(ranks) + 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """
    A cell's value less the reference's.

    Attributes:
        mean: The difference, in the metric's unit.
        low: Lower end of the 95 % interval; NaN where single observations give none.
        high: Its upper end. An interval of no width means that no round
            differed, not that none ever would.
    """

    mean: float
    low: float
    high: float

    @property
    def is_told(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


def cell_difference(
    ours: Cell, theirs: Cell, *, needles: int, is_sum: bool
) -> Difference:
    """
    Compare two cells: by the names of their observations, where they have any.

    What only one of the two has does not count. Observations of one text are not
    independent: texts are drawn, where there are several. Otherwise as `difference`.
    """
    known = dict(zip(theirs.names, theirs.observations, strict=False))
    both = [
        (text, value - known[text, name])
        for (text, name), value in zip(ours.names, ours.observations, strict=False)
        if (text, name) in known
    ]
    if not both:
        mine, other = ours.observations, theirs.observations
        return difference(mine, other, needles=needles, is_sum=is_sum)
    of_texts: dict[str, float] = {}
    for text, gap in both:
        of_texts[text] = of_texts.get(text, 0.0) + gap
    gaps = list(of_texts.values()) if len(of_texts) > 1 else [gap for _, gap in both]
    parts = 1 if is_sum else len(both)
    return _paired_difference(np.array(gaps, dtype=np.float64), parts=parts)


def difference(
    ours: Sequence[float], theirs: Sequence[float], *, needles: int, is_sum: bool
) -> Difference:
    """
    Compare the values of a cell with *theirs*, those of the reference.

    Where both have a value for every needle, rounds are compared needle by needle:
    what makes a needle hard cancels out. Otherwise (rounds without an answer,
    repetitions, single numbers) the two are taken as independent.

    Args:
        ours: One or more values.
        theirs: Likewise.
        needles: Of the run.
        is_sum: Whether sums are compared, not means.

    Source:
        Percentile bootstrap, `RESAMPLES` seeded samples. Efron & Tibshirani, An
        Introduction to the Bootstrap, 1993, chapter 13.
    """
    if len(ours) == len(theirs) == needles > 1:
        gaps = np.subtract(ours, theirs, dtype=np.float64)
        return _paired_difference(gaps, parts=1 if is_sum else len(gaps))
    total = math.fsum if is_sum else statistics.fmean
    mean = total(ours) - total(theirs)
    half = half_interval(ours, theirs, is_sum=is_sum)
    return Difference(mean=mean, low=mean - half, high=mean + half)


def _paired_difference(gaps: Numbers, *, parts: int) -> Difference:
    """
    The `Difference` of two cells by their *gaps*, which are drawn.

    Args:
        gaps: One per needle or text.
        parts: What their sum is divided by.
    """
    if not gaps.any():  # equal answers, as most pairs of a good grid give
        return Difference(mean=0.0, low=0.0, high=0.0)
    resampled = gaps @ _times_drawn(len(gaps))
    # Sums of the same gaps in another order differ in the last bits, also from zero.
    resampled[np.abs(resampled) < 1e-12 * np.abs(gaps).max()] = 0
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled / parts, [tail, 1 - tail])
    return Difference(mean=float(gaps.sum() / parts), low=float(low), high=float(high))


@functools.lru_cache(maxsize=4)
def _times_drawn(count: int) -> Numbers:
    """How often each of *count* values is in each sample, a column per sample."""
    drawn = np.random.default_rng(SEED).integers(count, size=(RESAMPLES, count))
    times = [np.count_nonzero(drawn == value, axis=1) for value in range(count)]
    return np.array(times, dtype=np.float64)


NORMAL_95 = 1.96
"""Standard errors to either side that hold 95 % of a normal distribution."""


def half_interval(
    ours: Sequence[float], theirs: Sequence[float], *, is_sum: bool = False
) -> float:
    """
    Half of the 95 % interval of the difference of two means or sums.

    For the few repetitions of a speed, for which a bootstrap is too narrow.

    Args:
        ours: Observations.
        theirs: Likewise, not paired with them.
        is_sum: Whether sums are compared.

    Returns:
        NaN if either is a single observation, which has no variance.

    Source:
        Welch, The generalization of Student's problem when several different
        population variances are involved, 1947. Quantile of Student's t by its
        expansion at the normal one: Abramowitz & Stegun, 26.7.5; 0.3 % too low
        with 8 degrees of freedom, 10 % with 2.
    """
    if min(len(ours), len(theirs)) < 2:  # noqa: PLR2004 - one value has no spread
        return math.nan
    parts = [
        statistics.variance(each) * (len(each) if is_sum else 1 / len(each))
        for each in (ours, theirs)
    ]
    whole = math.fsum(parts)
    if not whole:
        return 0.0
    # Shares of the whole: squares of very small variances would underflow.
    shares = (
        (part / whole) ** 2 / (len(each) - 1)
        for part, each in zip(parts, (ours, theirs), strict=True)
    )
    freedom = 1 / math.fsum(shares)
    z = NORMAL_95
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return (z + first / freedom + second / freedom**2) * math.sqrt(whole)
