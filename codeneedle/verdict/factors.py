"""Whether the answers to a task depend on length, on depth, or on the pair."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from codeneedle.grid import Pair, most_precise
from codeneedle.probes import answers_by_length
from codeneedle.probes.answers import Answer
from codeneedle.records.record import Run
from codeneedle.verdict.statistics import ALPHA

PERMUTATIONS = 1_999
"""The least p is one of so many and one more: enough for nine tasks of three tests."""

_AT_ONCE = 100

_Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """
    What the answers to a task may depend on.

    Attributes:
        name: ``length``, ``depth`` or ``pair``.
        p: Of its test, adjusted for all tests of the run.
        best: The level with most right answers, as a phrase.
        worst: The level with fewest.
        most: Share of right answers at the best level, from 0 to 1.
        least: Share at the worst level.
    """

    name: str
    p: float
    best: str
    worst: str
    most: float
    least: float

    @property
    def is_shown(self) -> bool:
        """Whether the answers depend on it."""
        return self.p <= ALPHA


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    """Shares of right answers, with the level and the stratum of each."""

    name: str
    shares: Sequence[float]
    levels: Sequence[Hashable]
    strata: Sequence[Hashable]
    phrase: Callable[[Hashable], str]


def factors(run: Run) -> dict[str, tuple[Factor, ...]]:
    """
    What the answers to each task of *run* depend on, by the name of the task.

    Permutation tests (Edgington and Onghena, Randomization Tests, 4th edition, 2007);
    the statistic is the sum of squares between the means of the levels, that of an
    analysis of variance. What is exchanged:

    - length: whole texts of the reference, so that questions of one text stay together;
    - depth: answers of the reference within a text, or within a length where a text
      asks at one depth alone;
    - pair: the pairs within a text, which all of them were asked, as blocks; as in
      Cochran's Q, for shares.

    Length and depth are about the reference alone, so that what a smaller cache loses
    at a length is not taken for the length. All tests of a run are adjusted together
    (Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979): in at most
    5 % of runs is anything named that does not matter. A factor that is not shown may
    matter nevertheless. One that has a single level is not tested.
    """
    by_pair = answers_by_length(run)
    if not by_pair:
        return {}
    reference = by_pair[most_precise(by_pair)]
    tested = [
        (task, values)
        for task in dict.fromkeys(answer.task for answer in reference)
        for values in (
            _by_length([answer for answer in reference if answer.task == task]),
            _by_depth([answer for answer in reference if answer.task == task]),
            _by_pair(task, by_pair),
        )
        if len(set(values.levels)) > 1
    ]
    adjusted = _holm([_p(values) for _, values in tested])
    by_task: dict[str, tuple[Factor, ...]] = {}
    for (task, values), p in zip(tested, adjusted, strict=True):
        by_task[task] = (*by_task.get(task, ()), _factor(values, p))
    return by_task


def sentences(run: Run) -> dict[str, str]:
    """What the answers depend on, by task; none of a task where nothing is shown."""
    return {
        task: _sentence(task, of_task)
        for task, of_task in factors(run).items()
        if any(factor.is_shown for factor in of_task)
    }


def _sentence(task: str, of_task: Iterable[Factor]) -> str:
    tests = list(of_task)
    shown = " and on ".join(
        f"{each.name} ({each.most:.0%} right {each.best}, {each.least:.0%} "
        f"{each.worst}; p = {each.p:.2g})"
        for each in tests
        if each.is_shown
    )
    others = " or ".join(each.name for each in tests if not each.is_shown)
    text = f"{task}: answers depend on {shown}"
    return f"{text}; that they depend on {others} is not shown" if others else text


# --- what is compared


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
    shares: dict[str, list[float]] = {}
    for answer in answers:
        shares.setdefault(answer.text, []).append(answer.right)
    return {name: math.fsum(values) / len(values) for name, values in shares.items()}


def _factor(values: _Values, p: float) -> Factor:
    shares: dict[Hashable, list[float]] = {}
    for level, share in zip(values.levels, values.shares, strict=True):
        shares.setdefault(level, []).append(share)
    means = {level: math.fsum(some) / len(some) for level, some in shares.items()}
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
    """Share of permutations within strata that differ at least as much; seeded."""
    _, strata = np.unique(_numbers(values.strata), return_inverse=True)
    order = np.argsort(strata, kind="stable")
    strata = strata[order]
    shares = np.asarray(values.shares, dtype=float)[order]
    levels = np.asarray(_numbers(values.levels))[order]
    counts = np.bincount(strata)
    shares = shares - (np.bincount(strata, weights=shares) / counts)[strata]
    varies = np.bincount(strata, weights=np.abs(shares)) > 1e-9  # noqa: PLR2004
    if not varies.any():
        return 1.0
    sizes = np.bincount(levels).astype(float)
    keep = varies[strata]  # what is the same in a stratum stays so, and sums to 0
    shares, strata, levels = shares[keep], strata[keep], levels[keep]
    of_level = np.eye(len(sizes))[levels]
    chance = np.random.default_rng(0)

    def between(rows: _Array) -> _Array:
        return np.asarray(((rows @ of_level) ** 2 / sizes).sum(axis=-1))

    least, as_far, done = between(shares) - 1e-9, 0, 0
    while done < PERMUTATIONS:
        count = min(_AT_ONCE, PERMUTATIONS - done)
        places = np.argsort(strata + chance.random((count, len(shares))), axis=1)
        as_far += int((between(shares[places]) >= least).sum())
        done += count
    return (1 + as_far) / (1 + PERMUTATIONS)


def _numbers(names: Iterable[Hashable]) -> list[int]:
    """A number for each of *names*, the same for the same."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


def _holm(ps: Sequence[float]) -> list[float]:
    """*ps*, adjusted so that all of them hold together."""
    adjusted, highest = [1.0] * len(ps), 0.0
    for rank, at in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        highest = max(highest, min(1.0, ps[at] * (len(ps) - rank)))
        adjusted[at] = highest
    return adjusted
