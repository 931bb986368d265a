"""
What may be concluded from a grid: axes, odd cells, certificates, the Pareto front.

Every statement holds for the whole grid at once: with the shares of `ALPHA` below, a
grid on which no type matters is called different at most once in twenty times.
`simulate` in ``scripts/truth.py`` measures that through these functions.

A score is a number per K type, V type and needle, higher is better: lines matched,
nats, or minus the divergence of a chunk. Arrays of scores have the shape
(K types, V types, needles), types from the most precise to the coarsest; NaN where a
cell has no numbers. An answer that is missing counts 0 and must be filled in before.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, stdtrit

Numbers = npt.NDArray[np.float64]

ALPHA = 0.05
"""Chance of one false statement or more about a grid on which no type matters."""

AXIS_ALPHA = 0.02
"""Share of `ALPHA` for each axis."""

ODD_ALPHA = 0.01
"""Share of `ALPHA` for the odd cell."""

PERMUTATIONS = 2_000
"""Random relabellings that an observed statistic is compared with."""

_FEW_PERMUTATIONS = 200
"""The same where only power is estimated; more where alpha is very small."""

LOST_SHARE = 0.10
"""The smallest share of lost needles that is of interest."""

_HARMLESS_SHARE = 0.01
"""What a pair without cost is expected to lose: the alternative that is bet on."""

_EXACT_FLIPS = 14
"""Differences of which all signs are tried: 16,384 sums; beyond, a sample."""

_BLOCK = 250
"""Permutations of a whole grid that are held in memory at once."""

_SLACK = 1e-9
"""Sums of the same numbers in another order differ in the last bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeCost:
    """
    A type that scores less than the finest one of its axis.

    Attributes:
        index: Its place on the axis, from 1.
        loss: The mean difference to the finest type, in the unit of the score.
        p: Of a one-sided sign-flip test over needles.
    """

    index: int
    loss: float
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisFinding:
    """
    Whether the types of one axis matter.

    Attributes:
        p: Of the maximum over contrasts; NaN where it cannot be computed.
        costs: The types that cost, the coarsest first; empty unless `matters`.
        split: Place of the first of the coarser types in the largest contrast.
        gap: What those score less than the finer ones, in the unit of the score.
        needles: Needles that it rests on.
        alpha: The chance of a false alarm that was chosen before.
    """

    p: float
    costs: tuple[TypeCost, ...] = ()
    split: int = 0
    gap: float = 0.0
    needles: int = 0
    alpha: float = AXIS_ALPHA

    @property
    def matters(self) -> bool:
        """Whether coarser types of this axis score less."""
        return self.p <= self.alpha


@dataclass(frozen=True, slots=True, kw_only=True)
class OddCell:
    """
    One cell that scores less than its K type and its V type explain.

    Attributes:
        k: Place of its K type.
        v: Place of its V type.
        shortfall: What it lacks beside the additive table, in the score's unit.
        p: Of the largest shortfall of the grid.
    """

    k: int
    v: int
    shortfall: float
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """
    What the needles say of one pair beside the reference.

    Attributes:
        needles: Needles that both answered for and that the reference could lose.
        lost: Those that lost as much as counts as lost.
        verdict: ``free``: fewer than `LOST_SHARE` of needles are lost; ``costs``: it
            scores less than the reference; else ``undecided``.
        upper: Upper confidence bound of the share lost, at 95 %.
        more: Further needles, none of them lost, that would make it ``free``.
        asked: Needles that both answered for.
    """

    needles: int
    lost: int
    verdict: str
    upper: float
    more: int = 0
    asked: int = 0

    @property
    def whole(self) -> int:
        """Needles to ask altogether, if as many of the further ones can be lost."""
        share = self.needles / self.asked if self.needles else 1.0
        return self.asked + math.ceil(self.more / share - _SLACK)


def axis_finding(
    scores: Numbers,
    axis: int,
    *,
    alpha: float = AXIS_ALPHA,
    seed: int = 0,
    permutations: int = PERMUTATIONS,
) -> AxisFinding:
    """
    Test whether coarser types of *axis* score less.

    The statistic is the largest of all contrasts "finer than here against coarser
    than here", of scores and of ranks within a needle, each divided by its standard
    deviation under permutation. The labels of the types are permuted within each
    needle. It is exact if the types of an axis are exchangeable within a needle,
    whatever the other axis does to the replies.

    Args:
        scores: Shape (K types, V types, needles).
        axis: 0 for K, 1 for V.
        alpha: Chance of a false alarm; less where several metrics are tested.
        seed: Of the permutations.
        permutations: How many.

    Returns:
        The finding; with p NaN where fewer than two types or needles have numbers.
    """
    table = type_table(scores, axis)
    needles, types = table.shape
    if needles < 2 or types < 2:  # noqa: PLR2004 - one value cannot be compared
        return AxisFinding(p=math.nan, needles=needles, alpha=alpha)
    p, split = _tested(table, seed=seed, permutations=permutations)
    costs = tuple(_costs(table, alpha=alpha)) if p <= alpha else ()
    gap = float(table.mean(axis=0) @ _contrasts(types)[:, split - 1])
    return AxisFinding(
        p=p, costs=costs, split=split, gap=gap, needles=needles, alpha=alpha
    )


def _tested(table: Numbers, *, seed: int, permutations: int) -> tuple[float, int]:
    """P of the largest contrast of a `type_table`, and where it splits the types."""
    needles, types = table.shape
    contrasts = _contrasts(types)
    values = np.stack([table, _ranks(table)])
    by_place = _standardised(values[np.newaxis], values, contrasts)[0].max(axis=0)
    chance = np.random.default_rng(seed)
    order = chance.random((permutations, needles, types)).argsort(axis=2)
    shuffled = np.take_along_axis(values[np.newaxis], order[:, np.newaxis], axis=3)
    largest = _standardised(shuffled, values, contrasts).max(axis=(1, 2))
    hits = int((largest >= by_place.max() - _SLACK).sum())
    return (1 + hits) / (1 + permutations), int(by_place.argmax()) + 1


def type_table(scores: Numbers, axis: int) -> Numbers:
    """
    Mean score of each needle with each type of *axis*, over the other axis.

    Only types of the other axis without a gap are averaged, so that every mean is
    over the same cells. Shape (needles, types); without rows if none is whole.
    """
    along = scores if axis == 1 else scores.transpose(1, 0, 2)
    whole = whole_types(scores, axis)
    if not whole.any():
        return np.empty((0, along.shape[1]))
    means: Numbers = along[whole].mean(axis=0).T
    return means


def whole_types(scores: Numbers, axis: int) -> npt.NDArray[np.bool_]:
    """Which types of the other axis have no gap: those that *axis* is tested over."""
    gaps: npt.NDArray[np.bool_] = np.isnan(scores)
    return np.logical_not(gaps.any(axis=(axis, 2)))


def odd_cell(
    scores: Numbers,
    *,
    alpha: float = ODD_ALPHA,
    seed: int = 0,
    reference: tuple[int, int] = (0, 0),
) -> OddCell | None:
    """
    The cell that falls short of the additive table K + V, if one stands out.

    The statistic is the largest shortfall of the grid, each divided by its standard
    deviation over needles; K labels and V labels are permuted within each needle. None
    where the grid has gaps, fewer than three types on an axis, no cell that stands
    out, or the one at *reference* does: all others are compared with it.
    """
    k_types, v_types, needles = scores.shape
    if min(k_types, v_types) < 3 or np.isnan(scores).any():  # noqa: PLR2004
        return None
    # Permuting labels permutes the residuals: they are taken once.
    residuals = _residuals(scores.transpose(2, 0, 1))
    oddness = _oddness(residuals)
    place, observed = int(oddness.argmax()), oddness.max()
    shortfall = -float(residuals.mean(axis=0).flat[place])
    if shortfall <= _SLACK or divmod(place, v_types) == reference:
        return None
    chance = np.random.default_rng(seed)
    which = np.arange(needles)[np.newaxis, :, np.newaxis, np.newaxis]
    hits = 0
    for _ in range(PERMUTATIONS // _BLOCK):
        rows = chance.random((_BLOCK, needles, k_types)).argsort(axis=2)
        columns = chance.random((_BLOCK, needles, v_types)).argsort(axis=2)
        shuffled = residuals[which, rows[..., np.newaxis], columns[:, :, np.newaxis]]
        largest = _oddness(shuffled).max(axis=(1, 2))
        hits += int((largest >= observed - _SLACK).sum())
    p = (1 + hits) / (1 + PERMUTATIONS)
    if p > alpha:
        return None
    return OddCell(k=place // v_types, v=place % v_types, shortfall=shortfall, p=p)


def _oddness(residuals: Numbers) -> Numbers:
    """
    Shortfall of each cell, in units of how it varies over needles.

    Half of the mean variance is added to each cell's: a few equal residuals are no
    proof, and types that are only noisier than others are not odd.

    Args:
        residuals: Shape (..., needles, K types, V types).
    """
    means = residuals.mean(axis=-3)
    variances = residuals.var(axis=-3)
    pooled = variances.mean(axis=(-2, -1), keepdims=True)
    oddness: Numbers = -means / np.sqrt(variances + 0.5 * pooled + _SLACK)
    return oddness


def without_cell(scores: Numbers, odd: OddCell) -> Numbers:
    """*scores* with the odd cell replaced by what its row and column predict."""
    others = scores.copy()
    k_types, v_types, _ = scores.shape
    others[odd.k, odd.v] = 0.0
    row, column = others[odd.k].sum(axis=0), others[:, odd.v].sum(axis=0)
    total = others.sum(axis=(0, 1))
    # The missing value of a randomized block design: Yates, 1933.
    predicted = (k_types * row + v_types * column - total) / (
        (k_types - 1) * (v_types - 1)
    )
    others[odd.k, odd.v] = predicted
    return others


def certificate(
    ours: Numbers,
    reference: Numbers,
    *,
    comparisons: int,
    lost_from: float,
    lowest: float = 0.0,
) -> Certificate:
    """
    Judge one pair beside the reference, needle by needle.

    Both tests are products of bets over needles (e-values): valid at any time, so
    that needles may be added until it is decided. Each is held against
    *comparisons* / `ALPHA`, which bounds the chance of one false certificate or more
    (Markov's inequality and a union bound).

    A needle of which the reference has too little to lose says nothing of ``free``.
    Whether one counts follows from the reference alone, so that a lucky answer of it
    is not held against a pair: ``costs`` rests on all needles.

    Args:
        ours: Lines matched of each needle; a missing answer is 0.
        reference: The same of the reference.
        comparisons: Pairs that are judged in the same grid.
        lost_from: A needle is lost that has this much less than with the reference.
        lowest: The lowest score that there is.
    """
    losses = np.asarray(reference) - np.asarray(ours)
    can_be_lost = np.asarray(reference) - lowest >= lost_from - _SLACK
    needles = int(can_be_lost.sum())
    lost = int((losses >= lost_from - _SLACK)[can_be_lost].sum())
    kept = needles - lost
    needed = math.log(comparisons / ALPHA)
    log_free = lost * math.log(_HARMLESS_SHARE / LOST_SHARE)
    log_free += kept * math.log((1 - _HARMLESS_SHARE) / (1 - LOST_SHARE))
    if log_free >= needed:
        verdict = "free"
    elif _log_cost_evidence(losses / lost_from) >= needed:
        verdict = "costs"
    else:
        verdict = "undecided"
    step = math.log((1 - _HARMLESS_SHARE) / (1 - LOST_SHARE))
    more = 0 if verdict != "undecided" else math.ceil((needed - log_free) / step)
    return Certificate(
        needles=needles,
        lost=lost,
        verdict=verdict,
        upper=upper_share(lost, needles),
        more=more,
        asked=len(losses),
    )


def upper_share(lost: int, needles: int) -> float:
    """
    Upper confidence bound of the share of needles lost, at 95 %, one-sided.

    Clopper and Pearson's: the share at which *lost* or fewer of *needles* have a
    chance of 5 %. 1 without needles.
    """
    if lost >= needles:
        return 1.0
    return float(betaincinv(lost + 1, needles - lost, 1 - ALPHA))


def mean_interval(
    losses: Sequence[float] | Numbers, *, alpha: float = ALPHA
) -> tuple[float, float]:
    """
    The mean of *losses* and the half-width of its two-sided interval, by Student's t.

    The half-width is infinite for fewer than two losses.
    """
    mean, count = float(np.mean(losses)), len(losses)
    if count < 2:  # noqa: PLR2004 - one value has no spread
        return mean, math.inf
    error = float(np.std(losses, ddof=1)) / math.sqrt(count)
    return mean, float(stdtrit(count - 1, 1 - alpha / 2)) * error


EFFECTS = ("thin", "lumpy", "consistent")
"""
Ways in which a type may cost lines; ``shift`` is the one of other scores.

thin: every line is a little likelier lost. lumpy: a function loses ten lines, cell by
cell. consistent: the same functions lose ten lines in every cell of that type.
"""


def with_effect(
    scores: Numbers,
    axis: int,
    *,
    kind: str,
    size: float,
    chance: np.random.Generator,
    is_step: bool = False,
) -> Numbers:
    """
    Lower the scores of coarser types of *axis*.

    Args:
        scores: Lines matched, shape (K types, V types, needles).
        axis: 0 for K, 1 for V.
        kind: One of `EFFECTS`; ``shift`` lowers every score alike.
        size: Mean loss of the coarsest type beside the finest, in lines or in the
            unit of the scores; types between lose in proportion to their place.
        chance: Draws which lines are lost.
        is_step: Whether the coarsest type alone loses.
    """
    along = scores.transpose(1, 0, 2) if axis == 0 else scores
    _, types, needles = along.shape
    depth = np.linspace(0.0, 1.0, types)[np.newaxis, :, np.newaxis]
    depth = np.floor(depth) if is_step else depth
    if kind == "shift":
        lost = np.broadcast_to(size * depth, along.shape)
    elif kind == "thin":
        share = np.broadcast_to(np.clip(size * depth / 20.0, 0, 1), along.shape)
        lost = chance.binomial(np.maximum(along, 0).astype(int), share).astype(float)
    else:
        shape = (1, 1, needles) if kind == "consistent" else along.shape
        hit = chance.random(shape) < size * depth / 10.0
        lost = np.minimum(10.0 * np.broadcast_to(hit, along.shape), along)
    lowered = along - lost
    back: Numbers = lowered.transpose(1, 0, 2) if axis == 0 else lowered
    return back


LINE_SIZES = (0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Effects that are tried, in lines."""


def detectable(
    scores: Numbers,
    axis: int,
    kind: str,
    *,
    sizes: Sequence[float] = LINE_SIZES,
    alpha: float = AXIS_ALPHA,
    trials: int = 30,
) -> float:
    """
    The smallest effect on *axis* that this grid would have shown 9 times in 10.

    Effects are put into the observed scores with their labels permuted, and tested
    as `axis_finding` does, *trials* times each; by bisection over *sizes*.

    Returns:
        One of *sizes*, ascending; infinite if the largest is not enough.
    """
    permutations = max(_FEW_PERMUTATIONS, math.ceil(4 / alpha))
    low, high = 0, len(sizes)
    while low < high:
        middle = (low + high) // 2
        chance = np.random.default_rng(middle)
        found = 0
        for trial in range(trials):
            null = _relabelled(scores, axis, chance)
            shown = with_effect(
                null, axis, kind=kind, size=sizes[middle], chance=chance
            )
            table = type_table(shown, axis)
            p, _ = _tested(table, seed=trial, permutations=permutations)
            found += p <= alpha
        low, high = (low, middle) if found >= 0.9 * trials else (middle + 1, high)
    return sizes[low] if low < len(sizes) else math.inf


def pareto_front(costs: Numbers, margins: Numbers) -> list[int]:
    """
    The pairs that no other one beats.

    Args:
        costs: Shape (pairs, criteria), lower is better, no NaN.
        margins: Shape (pairs, criteria): half-width of each interval; 0 if exact.

    Returns:
        Rows that stay: another is never at least as good in all criteria and better
        in one beyond the intervals of both.
    """
    count = len(costs)
    beaten = {
        row
        for row, other in product(range(count), repeat=2)
        if row != other
        and (costs[other] <= costs[row]).all()
        and (costs[other] + margins[other] < costs[row] - margins[row]).any()
    }
    return [row for row in range(count) if row not in beaten]


def _contrasts(types: int) -> Numbers:
    """Finer types less coarser ones, a column per place between two types."""
    columns = np.zeros((types, types - 1))
    for place in range(1, types):
        columns[:place, place - 1] = 1.0 / place
        columns[place:, place - 1] = -1.0 / (types - place)
    return columns


def _standardised(tables: Numbers, observed: Numbers, contrasts: Numbers) -> Numbers:
    """
    The standardised contrasts of each set of tables, shape (sets, kinds, contrasts).

    Args:
        tables: Shape (sets, kinds, needles, types).
        observed: Shape (kinds, needles, types): gives the standard deviations, which
            permuting within a needle does not change.
        contrasts: Shape (types, contrasts).
    """
    types = observed.shape[2]
    spread = observed.var(axis=2, ddof=0).sum(axis=1) * types / (types - 1)
    deviations = np.sqrt(np.outer(spread, (contrasts**2).sum(axis=0)))
    sums = tables.sum(axis=2) @ contrasts
    safe = np.where(deviations > _SLACK, deviations, 1.0)
    standardised: Numbers = np.where(deviations > _SLACK, sums / safe, 0.0)
    return standardised


def _ranks(table: Numbers) -> Numbers:
    """Ranks within each row; equal values share the middle of their ranks."""
    rounded = table.round(9)
    below = (rounded[:, :, np.newaxis] > rounded[:, np.newaxis, :]).sum(axis=2)
    alike = (rounded[:, :, np.newaxis] == rounded[:, np.newaxis, :]).sum(axis=2)
    ranks: Numbers = below + (alike + 1) / 2
    return ranks


def _costs(table: Numbers, *, alpha: float) -> list[TypeCost]:
    """Types that cost, from the coarsest on, up to the first that is not shown to."""
    found = []
    for index in range(table.shape[1] - 1, 0, -1):
        losses = table[:, 0] - table[:, index]
        p = sign_flip_p(losses)
        if p > alpha:
            break
        found.append(TypeCost(index=index, loss=float(losses.mean()), p=p))
    return found


def sign_flip_p(losses: Numbers) -> float:
    """
    One-sided p of a mean loss above zero: share of sign flips with as large a sum.

    Exact up to `_EXACT_FLIPS` losses that are not zero; beyond, a seeded sample.
    """
    sizes = np.abs(losses[losses != 0])
    if not len(sizes):
        return 1.0
    signs = _signs(len(sizes))
    hits = int((signs @ sizes >= losses.sum() - _SLACK).sum())
    extra = int(len(sizes) > _EXACT_FLIPS)  # the observed signs, in a sample
    return (hits + extra) / (len(signs) + extra)


@functools.lru_cache(maxsize=8)
def _signs(count: int) -> Numbers:
    """All signs of *count* losses, or a sample of them; a row per flip."""
    if count <= _EXACT_FLIPS:
        return np.array(list(product((1.0, -1.0), repeat=count)))
    chance = np.random.default_rng(0)
    flipped = chance.integers(0, 2, size=(10 * PERMUTATIONS, count))
    return 1.0 - 2.0 * flipped.astype(np.float64)


def _residuals(tables: Numbers) -> Numbers:
    """What the additive table of rows and columns leaves over, of each table."""
    rows = tables.mean(axis=-1, keepdims=True)
    columns = tables.mean(axis=-2, keepdims=True)
    residuals: Numbers = tables - rows - columns + rows.mean(axis=-2, keepdims=True)
    return residuals


def _relabelled(scores: Numbers, axis: int, chance: np.random.Generator) -> Numbers:
    """*scores* with the labels of *axis* permuted within each needle."""
    order = chance.random((scores.shape[axis], scores.shape[2])).argsort(axis=0)
    index = order[:, np.newaxis] if axis == 0 else order[np.newaxis]
    whole = np.broadcast_to(index, scores.shape)
    return np.take_along_axis(scores, whole, axis=axis)


_STAKES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Shares of the wealth that are bet on the next loss; the wealths are averaged."""

_CLIP = 2.0
"""Losses count up to this many times what makes a needle lost."""


def _log_cost_evidence(losses: Numbers) -> float:
    """
    Logarithm of an e-value against "the mean loss is not above zero".

    *losses* are in units of what makes a needle lost.

    The mean of two: bets on the clipped loss, and a mixture over the share of losses
    among needles that differ (a one-sided sequential sign test).

    Source:
        Waudby-Smith & Ramdas, Estimating means of bounded random variables by
        betting, 2024. A mean of e-values is an e-value.
    """
    clipped = np.clip(losses / _CLIP, -1.0, 1.0)
    logs = [float(np.log1p(stake * clipped).sum()) for stake in _STAKES]
    betting = _log_mean_exp(logs)
    worse, better = int((losses > 0).sum()), int((losses < 0).sum())
    shares = np.linspace(0.505, 0.995, 50)
    signs = worse * np.log(2 * shares) + better * np.log(2 * (1 - shares))
    return _log_mean_exp([betting, _log_mean_exp(signs.tolist())])


def _log_mean_exp(logs: Sequence[float]) -> float:
    largest = max(logs)
    return largest + math.log(sum(math.exp(log - largest) for log in logs) / len(logs))
