"""Tests whether the answers to a task depend on length, on depth, or on the pair."""

import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from codeneedle.grid import Pair, reference_among
from codeneedle.probes import answers_by_length
from codeneedle.probes.answers import Answer
from codeneedle.records.record import Run
from codeneedle.verdict.statistics import ALPHA

PERMUTATIONS = 1_999
"""The smallest p is 1 / 2,000: enough for nine tasks with three tests each."""

_AT_ONCE = 100
"""Permutations that are held in memory together."""

_Key = TypeVar("_Key", bound=Hashable)

_Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """
    A possible influence on the answers to a task, with its test.

    Attributes:
        name: ``length``, ``depth`` or ``pair``.
        p: p-value, adjusted for all tests of the run.
        best: Phrase for the level with the most right answers.
        worst: Phrase for the level with the fewest.
        most: Share of right answers at the best level, from 0 to 1.
        least: Share of right answers at the worst level.
    """

    name: str
    p: float
    best: str
    worst: str
    most: float
    least: float

    @property
    def is_shown(self) -> bool:
        """True if the test shows that the answers depend on it."""
        return self.p <= ALPHA


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    """
    The data of one test.

    Attributes:
        name: Of the factor.
        shares: Shares of right answers.
        levels: Level of the factor, per share.
        strata: Stratum within which shares are permuted, per share.
        phrase: Makes a phrase of a level.
    """

    name: str
    shares: Sequence[float]
    levels: Sequence[Hashable]
    strata: Sequence[Hashable]
    phrase: Callable[[Hashable], str]


def factors(run: Run) -> dict[str, tuple[Factor, ...]]:
    """
    Tests of the factors of each task of *run*, by the name of the task.

    Permutation tests (Edgington and Onghena, Randomization Tests, 4th edition, 2007);
    the statistic is the sum of squares between the means of the levels, as in an
    analysis of variance. Permuted are:

    - length: whole texts of the reference, so that questions of one text stay together;
    - depth: answers of the reference within a text, or within a length if each text
      has a single depth;
    - pair: the pairs within a text that all of them were asked, as blocks; Cochran's Q,
      for shares.

    Tests of length and depth use only the reference, so that losses of a smaller cache
    at a length do not count as an effect of the length. All tests of a run are adjusted
    together (Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979): in
    at most 5 % of runs is a factor shown that has no influence. A factor that is not
    shown may have one. A factor with a single level is not tested.
    """
    by_pair = answers_by_length(run)
    chosen = reference_among(r for r in run.records if r.pair in by_pair)
    if chosen is None:
        return {}
    reference = by_pair[chosen]
    tested = []
    for task in dict.fromkeys(answer.task for answer in reference):
        answers = [answer for answer in reference if answer.task == task]
        tests = (_by_length(answers), _by_depth(answers), _by_pair(task, by_pair))
        tested += [(task, values) for values in tests if len(set(values.levels)) > 1]
    adjusted = _holm([_p(values) for _, values in tested])
    by_task: dict[str, tuple[Factor, ...]] = {}
    for (task, values), p in zip(tested, adjusted, strict=True):
        by_task[task] = (*by_task.get(task, ()), _factor(values, p))
    return by_task


def sentences(run: Run) -> dict[str, str]:
    """A sentence on the shown factors of each task; none for tasks without any."""
    return {
        task: _sentence(task, of_task)
        for task, of_task in factors(run).items()
        if any(factor.is_shown for factor in of_task)
    }


def _sentence(task: str, of_task: Sequence[Factor]) -> str:
    shown = " and on ".join(
        f"{factor.name} ({factor.most:.0%} right {factor.best}, {factor.least:.0%} "
        f"{factor.worst}; p = {factor.p:.2g})"
        for factor in of_task
        if factor.is_shown
    )
    others = " or ".join(factor.name for factor in of_task if not factor.is_shown)
    text = f"{task}: answers depend on {shown}"
    return f"{text}; that they depend on {others} is not shown" if others else text


# --- the data of each test


def _by_length(answers: Sequence[Answer]) -> _Values:
    texts = _means(answers)
    lengths = {answer.text: answer.length for answer in answers}
    return _Values(
        name="length",
        shares=list(texts.values()),
        levels=[lengths[text] for text in texts],
        strata=[0] * len(texts),
        phrase=lambda length: f"at {length:,} tokens",
    )


def _by_depth(answers: Sequence[Answer]) -> _Values:
    depths: dict[str, set[float]] = {}
    for answer in answers:
        depths.setdefault(answer.text, set()).add(answer.depth)
    return _Values(
        name="depth",
        shares=[answer.right for answer in answers],
        levels=[answer.depth for answer in answers],
        strata=[
            answer.text if len(depths[answer.text]) > 1 else answer.length
            for answer in answers
        ],
        phrase=lambda depth: f"at depth {depth:g}",
    )


def _by_pair(task: str, by_pair: Mapping[Pair, Sequence[Answer]]) -> _Values:
    texts = {
        pair: _means(answer for answer in answers if answer.task == task)
        for pair, answers in by_pair.items()
    }
    common = set.intersection(*(set(of_pair) for of_pair in texts.values()))
    blocks = [(pair, text) for pair in texts for text in texts[pair] if text in common]
    return _Values(
        name="pair",
        shares=[texts[pair][text] for pair, text in blocks],
        levels=[pair for pair, _ in blocks],
        strata=[text for _, text in blocks],
        phrase=lambda pair: f"with {pair}",
    )


def _means(answers: Iterable[Answer]) -> dict[str, float]:
    """Mean share of right answers by the name of a text."""
    return _mean_by((answer.text, answer.right) for answer in answers)


def _mean_by(shares: Iterable[tuple[_Key, float]]) -> dict[_Key, float]:
    by_key: dict[_Key, list[float]] = {}
    for key, share in shares:
        by_key.setdefault(key, []).append(share)
    return {key: statistics.fmean(of_key) for key, of_key in by_key.items()}


def _factor(values: _Values, p: float) -> Factor:
    means = _mean_by(zip(values.levels, values.shares, strict=True))
    best, worst = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    return Factor(
        name=values.name,
        p=p,
        best=values.phrase(best),
        worst=values.phrase(worst),
        most=means[best],
        least=means[worst],
    )


# --- the test


def _p(values: _Values) -> float:
    """Share of seeded permutations whose levels differ at least as much."""
    strata = np.asarray(_numbers(values.strata))
    order = np.argsort(strata, kind="stable")
    strata = strata[order]
    shares = np.asarray(values.shares, dtype=float)[order]
    levels = np.asarray(_numbers(values.levels))[order]
    counts = np.bincount(strata)
    shares = shares - (np.bincount(strata, weights=shares) / counts)[strata]
    varies = np.bincount(strata, weights=np.abs(shares)) > 1e-9  # noqa: PLR2004
    sizes = np.bincount(levels).astype(float)
    keep = varies[strata]  # a stratum of equal shares adds nothing
    shares, strata, levels = shares[keep], strata[keep], levels[keep]
    of_level = np.eye(len(sizes))[levels]
    random = np.random.default_rng(0)

    def between(rows: _Array) -> _Array:
        return np.asarray(((rows @ of_level) ** 2 / sizes).sum(axis=-1))

    least, extreme, done = between(shares) - 1e-9, 0, 0
    while done < PERMUTATIONS:
        count = min(_AT_ONCE, PERMUTATIONS - done)
        places = np.argsort(strata + random.random((count, len(shares))), axis=1)
        extreme += int((between(shares[places]) >= least).sum())
        done += count
    return (1 + extreme) / (1 + PERMUTATIONS)


def _numbers(names: Iterable[Hashable]) -> list[int]:
    """The names as numbers from 0, equal for equal names."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


def _holm(ps: Sequence[float]) -> list[float]:
    """*ps*, adjusted for multiple testing."""
    adjusted, highest = [1.0] * len(ps), 0.0
    for rank, at in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        highest = max(highest, min(1.0, ps[at] * (len(ps) - rank)))
        adjusted[at] = highest
    return adjusted
