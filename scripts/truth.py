"""
How often is the verdict wrong? Simulated on the lines of a real run.

    python scripts/truth.py                       # the tables of scenarios and attacks
    python scripts/truth.py --decide              # the same of a sweep that decides
    python scripts/truth.py --coverage FOLDER ... # intervals beside real units
    python scripts/truth.py --take FOLDER         # store a run's probabilities

The input, ``truth.npz``, holds the probabilities of all right tokens of a real 6 x 6
grid: SmolLM2-135M-Instruct, 24 functions of 8 lines. A grid of known truth is made of
it: functions are drawn with replacement, for all pairs alike, then lines of each. What
a function deviates from its pair's mean, and a line from its function's, is real; the
mean loss of each pair is replaced by that of the scenario.
"""

import argparse
import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from fuzz_seeds import made

from codeneedle.cache_types import DEFAULT_TYPES, FIRST, Candidate, Pair, bits_per_value
from codeneedle.corpora.needles import block_ends
from codeneedle.engines.pace import Pace, Price
from codeneedle.probes import PROBES
from codeneedle.probes.divergence.metrics import TEXT_LOGP
from codeneedle.probes.divergence.probe import DEFAULT_CHUNKS, DEFAULT_CONTEXT
from codeneedle.probes.divergence.record import divergence_of, stored_chunks_by_context
from codeneedle.probes.estimates import TEXT_SHARE
from codeneedle.probes.metrics import Loss, LossKind
from codeneedle.probes.recall.metrics import FORCED
from codeneedle.probes.recall.record import right_line_answers
from codeneedle.probes.recall.settings import (
    DECIDING_FUNCTIONS,
    DECIDING_LINES,
    DECIDING_READ,
    FORCED_BESIDE,
    Way,
)
from codeneedle.records.record import CellRecord, Run, Setup
from codeneedle.records.store import Store
from codeneedle.sweep.steps import (
    first_look_index,
)
from codeneedle.verdict.asking_order import (
    JointOrder,
    Order,
    PairState,
    next_target,
    pairs_ruled_out_by_finer,
)
from codeneedle.verdict.budget_border import (
    next_budget_target,
    unmeasured_dominated_pairs,
)
from codeneedle.verdict.budget_border import pair_of_least_upper_loss as best_on_border
from codeneedle.verdict.judge import Verdict, judge_units
from codeneedle.verdict.limits import MAX_LOSS, Limits
from codeneedle.verdict.metric_results import MetricUnits
from codeneedle.verdict.noise_floor import NoiseFloor
from codeneedle.verdict.remarks import KINDS_OF_TEXT
from codeneedle.verdict.statistics import (
    Bounds,
    Decision,
    error_share,
    mean_loss_interval,
    units_needed,
)

Numbers = npt.NDArray[np.float64]

SCORING = 1.1
"""
How much longer a text takes whose second half is read with probabilities, about.

The output layer, of which a prompt needs the last row alone, is a quarter of SmolLM2.
"""

TOKENS_OF_TEXT = DEFAULT_CONTEXT * DEFAULT_CHUNKS
"""Of ordinary text, which every pair reads once."""

DATA = Path(__file__).with_name("truth.npz")
RECALL_LOGP = FORCED[0]
PAIRS = [Pair(k, v) for k in DEFAULT_TYPES for v in DEFAULT_TYPES]
OTHERS = PAIRS[1:]
DESIGNS = (
    (3, 20),
    (6, 10),
    (8, 5),
    (12, 5),
    (16, 4),
    (16, 5),
    (20, 3),
    (20, 5),
    (32, 5),
    (32, 20),
)
"""Functions and lines of each: make sweep asks (20, 3), other sweeps (32, 5)."""

K_LOSS = dict(zip(DEFAULT_TYPES, (0.0, 0.001, 0.01, 0.02, 0.06, 0.11), strict=True))
V_LOSS = dict(zip(DEFAULT_TYPES, (0.0, 0.001, 0.002, 0.003, 0.006, 0.008), strict=True))
"""Like SmolLM2's: K carries the damage."""

COLLAPSING, COLLAPSE = 0.1, 0.6
"""Share of functions that collapse in the last scenario, and what these lose."""


@dataclass(frozen=True, slots=True)
class Lines:
    """
    Losses of the lines of a real grid.

    Attributes:
        functions: What each function deviates from the mean of its pair, without the
            noise of its lines: (35 pairs, functions).
        residuals: What each line deviates from its function: (35, functions, lines).
    """

    functions: Numbers
    residuals: Numbers


@dataclass(frozen=True, slots=True)
class Scenario:
    """
    A grid whose truth is known.

    Attributes:
        name: What it is.
        losses: Mean loss of each of the 35 pairs.
        noise: Factor of all that is random.
        shape: How functions vary instead of the real way, from a generator and a
            count: a factor of the mean loss, with a mean of 1; None for the real way.
        independent: Whether each pair has functions and lines of its own.
    """

    name: str
    losses: Numbers
    noise: float = 1.0
    shape: Callable[[np.random.Generator, int], Numbers] | None = None
    independent: bool = False


def read_lines() -> Lines:
    """The lines of the stored run, as deviations."""
    with np.load(DATA) as stored:
        probabilities = np.exp(stored["logprobs"].astype(float))
        function, line = stored["functions"], stored["lines"]
    functions, of_each = function.max() + 1, line.max() + 1
    means = np.array(
        [
            [
                probabilities[:, (function == f) & (line == at)].mean(axis=1)
                for at in range(of_each)
            ]
            for f in range(functions)
        ]
    ).transpose(2, 0, 1)
    losses = means[:1] - means[1:]
    of_functions = losses.mean(axis=2)
    residuals = losses - of_functions[:, :, np.newaxis]
    deviations = of_functions - of_functions.mean(axis=1, keepdims=True)
    noise = residuals.var(axis=(1, 2), ddof=1) / of_each
    seen = deviations.var(axis=1, ddof=1)
    # The variance between functions, less what the noise of their lines explains.
    shrunk = np.sqrt(np.clip(1 - noise / seen, 0.0, 1.0))
    return Lines(deviations * shrunk[:, np.newaxis], residuals)


def drawn(
    lines: Lines,
    scenario: Scenario,
    design: tuple[int, int],
    chance: np.random.Generator,
) -> Numbers:
    """Losses of the functions of one grid: (35 pairs, functions)."""
    functions, asked = design
    pairs, known, of_each = lines.residuals.shape
    rows = pairs if scenario.independent else 1
    which = chance.integers(known, size=(rows, functions))
    at = chance.integers(of_each, size=(rows, functions, asked))
    every = np.arange(pairs)[:, np.newaxis]
    deviations = lines.functions[every, which]
    noise = lines.residuals[every[..., np.newaxis], which[..., np.newaxis], at].mean(2)
    mean = scenario.losses[:, np.newaxis]
    if scenario.shape:
        mean = mean * scenario.shape(chance, functions)
        deviations = np.zeros_like(deviations)
    found: Numbers = mean + scenario.noise * (deviations + noise)
    return found


def scenarios() -> Iterator[Scenario]:
    """What may be true of a grid."""
    like = np.array([K_LOSS[pair.k] + V_LOSS[pair.v] for pair in OTHERS])
    yield Scenario("like SmolLM2", like)
    yield Scenario("the same, noise x 1.6", like, noise=1.6)
    harder = np.where(like > 0, like + 0.003, 0.0)
    yield Scenario("harder: q8_0/q8_0 loses 0.5 %", harder)
    yield Scenario("flat: nothing is lost", np.zeros(35))
    limit = np.full(35, MAX_LOSS * 1.000001)
    yield Scenario("all at the limit", limit)
    coarse = {"q5_0", "q4_1", "q4_0"}
    some = np.array([limit[0] * (p.k in coarse or p.v == "q4_0") for p in OTHERS])
    yield Scenario("some at the limit, not additive", some)
    yield Scenario("the same, pairs independent", some, independent=True)
    odd = like.copy()
    odd[OTHERS.index(Pair("q8_0", "q5_1"))] = 0.15
    yield Scenario("odd pair: q8_0/q5_1 loses 15 %", odd)
    yield Scenario("lopsided, at the limit", limit, shape=_lopsided)
    yield Scenario("1 function in 10 collapses", limit, shape=_collapsing)


def _lopsided(chance: np.random.Generator, count: int) -> Numbers:
    return chance.gamma(0.5, 2.0, size=count)


def _collapsing(chance: np.random.Generator, count: int) -> Numbers:
    hit = chance.random(count) < COLLAPSING
    return np.where(hit, COLLAPSE / MAX_LOSS, 0.0)


@dataclass(slots=True)
class Outcomes:
    """How many of the grids had what."""

    grids: int = 0
    wrong_within: int = 0
    wrong_set: int = 0
    wrong_beyond: int = 0
    q8_within: int = 0
    q4_beyond: int = 0
    answers: int = 0

    def add(self, words: Sequence[Decision], truth: Numbers) -> None:
        """Count a grid: what was said of each pair, and its true mean loss."""
        self.grids += 1
        by_pair = dict(zip(OTHERS, words, strict=True))
        is_beyond = dict(zip(OTHERS, truth > MAX_LOSS, strict=True))
        within = [pair for pair in OTHERS if by_pair[pair] is Decision.WITHIN]
        chosen = min(within, key=_size) if within else None
        self.wrong_within += any(is_beyond[pair] for pair in within)
        self.wrong_set += chosen is not None and bool(is_beyond[chosen])
        self.wrong_beyond += any(
            by_pair[pair] is Decision.BEYOND and not is_beyond[pair] for pair in OTHERS
        )
        self.q8_within += by_pair[Pair("q8_0", "q8_0")] is Decision.WITHIN
        self.q4_beyond += all(
            by_pair[pair] is Decision.BEYOND for pair in OTHERS if pair.k == "q4_0"
        )
        self.answers += chosen is not None

    def row(self) -> str:
        """Shares in per cent, for a table."""
        counts = (
            self.wrong_within,
            self.wrong_set,
            self.wrong_beyond,
            self.q8_within,
            self.q4_beyond,
            self.answers,
        )
        return " | ".join(f"{100 * count / self.grids:.1f}" for count in counts)


def _share(k: str, v: str) -> float:
    """Size of a cache beside one that is not quantized."""
    return Pair(k, v).size_to_compare


def _size(pair: Pair) -> float:
    return (bits_per_value(pair.k) or 0.0) + (bits_per_value(pair.v) or 0.0)


def simulate(
    lines: Lines, scenario: Scenario, design: tuple[int, int], grids: int
) -> Outcomes:
    """Judge *grids* made grids at first look."""
    chance = np.random.default_rng(42)
    share, found = error_share(0, len(OTHERS)), Outcomes()
    truth = scenario.losses
    if scenario.shape is _collapsing:
        truth = np.full(35, COLLAPSING * COLLAPSE)
    for _ in range(grids):
        losses = drawn(lines, scenario, design, chance)
        words = [
            mean_loss_interval(row.tolist(), share).decision(MAX_LOSS) for row in losses
        ]
        found.add(words, truth)
    return found


HEADING = (
    "| functions x lines | wrong within, % | wrong Set, % | wrong beyond, % "
    "| q8_0/q8_0 within, % | all K q4_0 beyond, % | an answer, % |"
)


def table(lines: Lines, grids: int, designs: Sequence[tuple[int, int]]) -> None:
    """Print a table for each scenario."""
    for scenario in scenarios():
        print(f"\n{scenario.name}\n\n{HEADING}")
        print("| --- | --: | --: | --: | --: | --: | --: |")
        for design in designs:
            found = simulate(lines, scenario, design, grids)
            print(f"| {design[0]} x {design[1]} | {found.row()} |", flush=True)


# --- a sweep that decides


TEXT, OF_FUNCTION, OF_QUESTION = 4_632, 24, 47
"""
Tokens of `contexts.DECIDING_CORPUS`, of three of its lines, and of a question with
these.

Counted with SmolLM2. By writing, the question is read as well, which is not counted.
"""

CONTEXT = 8_192
"""Tokens that all of the text is read in; slower machines get a part of it."""

ASKED_AT_MOST = 96
"""Functions of that text."""


@dataclass(frozen=True, slots=True)
class Machine:
    """
    A model on a machine whose sweep decides; times are computed by token counts.

    Attributes:
        name: Size of the model.
        tg: Tokens per second that are written or forced.
        pp: Likewise, read.
        way: How right lines are scored.
        context: Tokens that the text is read in.
    """

    name: str
    tg: float
    pp: float
    way: Way = Way.READ
    context: int = CONTEXT

    @property
    def text(self) -> int:
        """Tokens of the text: as much of it as the context holds."""
        return min(TEXT, int(TEXT_SHARE * self.context))

    @property
    def most(self) -> int:
        """Functions of that text."""
        return ASKED_AT_MOST * self.text // TEXT

    @property
    def ends(self) -> list[int]:
        """Numbers of functions after which a pair may be judged."""
        is_read = self.way is Way.READ
        fewest = DECIDING_READ if is_read else DECIDING_FUNCTIONS
        return block_ends(min(fewest, self.most), self.most)

    def cell_s(self, functions: int, known: int = 0) -> float:
        """Seconds until a pair has so many *functions*, of which some are *known*."""
        asked = functions - known
        pace = Pace(read_s=1 / self.pp, write_s=1 / self.tg)
        if self.way is Way.FORCE:
            return pace.seconds_for(
                Price.of_cell([self.text], written=asked * OF_FUNCTION)
            )
        texts = 1 + sum(known < end < functions for end in self.ends)
        read = texts * self.text + asked * OF_QUESTION
        return pace.seconds_for(Price(read=SCORING * read))

    @property
    def ordinary_s(self) -> float:
        """What ordinary text takes, which each pair reads once."""
        return TOKENS_OF_TEXT / self.pp

    @property
    def check_s(self) -> float:
        """What forcing a few functions takes, where others are read; else 0."""
        return (self.way is Way.READ) * (
            self.text / self.pp + FORCED_BESIDE * OF_FUNCTION / self.tg
        )

    @property
    def first(self) -> int:
        """Functions of the first step; see `sweep.steps.first_look_index`."""
        spent_s = self.check_s + self.cell_s(self.ends[0]) + 4 * self.ordinary_s
        return self.ends[
            first_look_index(self.ends, self.cell_s, cells=4, spent_s=spent_s)
        ]

    @property
    def heading(self) -> str:
        """What its columns show."""
        how = f"{self.first} functions {self.way}"
        return f"{self.name} {self.tg}/{self.pp:,}, {how}: first, Set, last, end, min"


MACHINES = (
    Machine("27B", 15, 200),
    Machine("27B", 15, 200, Way.FORCE),
    Machine("8B", 100, 4_000),
    Machine("70B", 6, 80, Way.FORCE, context=2_048),
)


@dataclass(slots=True)
class Decided:
    """
    Sweeps that decided, and what they took.

    Attributes:
        outcomes: Words that were measured, and those that were inferred.
        inferred_wrong: Sweeps in which a pair within the limit was inferred beyond it.
        turns: Cells of each sweep.
        times: By machine, of each sweep; see `times_of`.
    """

    outcomes: Outcomes
    inferred_wrong: int
    turns: list[int]
    times: dict[Machine, list[tuple[float, float, float, float]]]

    def row(self) -> str:
        """Shares in per cent, the number of steps, and times in minutes."""
        found = self.outcomes
        counts = (
            found.wrong_within,
            found.wrong_set,
            found.wrong_beyond,
            self.inferred_wrong,
            found.answers,
        )
        shares = [f"{100 * count / found.grids:.1f}" for count in counts]
        shares.append(
            f"{np.median(self.turns):.0f}, {np.quantile(self.turns, 0.9):.0f}"
        )
        for machine in MACHINES:
            minutes = np.quantile(np.array(self.times[machine]) / 60, 0.9, axis=0)
            shares.append(", ".join(f"{each:.1f}" for each in minutes))
        return " | ".join(shares)


class AskedCell(NamedTuple):
    """A cell behind the reference."""

    functions: int  # that it is asked
    best: Pair | None  # what is set behind it
    is_new: bool = False  # whether the pair had no numbers


def decided(
    losses: Numbers, looks: tuple[int, ...]
) -> tuple[dict[Pair, PairState], list[AskedCell]]:
    """
    The words of one sweep that decides, by pair; and its cells, with the best so far.

    Args:
        losses: Of all functions that may be asked: (35 pairs, functions).
        looks: Numbers of functions after which a pair is judged, ascending.

    Returns:
        Of each cell behind the reference, functions that it is asked, whether the pair
        is new, and what is set.
    """
    order = Order(pairs=tuple(map(str, OTHERS)), looks=looks)
    seen: dict[Pair, PairState] = {}
    cells: list[AskedCell] = []
    of_reference = looks[0]
    while asked := next_target(order, seen):
        if asked.goal > of_reference:
            further = asked.goal - of_reference
            cells.append(AskedCell(further, best_of(seen)))
            of_reference = asked.goal
        for pair in asked.pairs:
            before = seen[pair].units if pair in seen else 0
            look, pairs = looks.index(asked.goal), order.error_sharing_count(pair)
            values = losses[OTHERS.index(pair), : asked.goal].tolist()
            bounds = mean_loss_interval(values, error_share(look, pairs))
            seen[pair] = PairState(
                decision=bounds.decision(MAX_LOSS),
                units=asked.goal,
                needed=units_needed(values, MAX_LOSS, look=look + 1, pairs=pairs),
                is_below=bounds.mean < MAX_LOSS,
            )
            cells.append(
                AskedCell(asked.goal - before, best_of(seen), is_new=not before)
            )
    return seen, cells


def best_of(seen: Mapping[Pair, PairState]) -> Pair | None:
    """The smallest pair within the limit; None if none is."""
    within = [pair for pair, each in seen.items() if each.decision is Decision.WITHIN]
    return min(within, key=_size) if within else None


def times_of(
    cells: Sequence[AskedCell], machine: Machine
) -> tuple[float, float, float, float]:
    """
    Seconds until the first three pairs, a pair to set, the last such pair, and the end.

    Without a pair to set, those until the end, at which no pair is checked.
    """
    now = machine.check_s + machine.cell_s(machine.first) + machine.ordinary_s
    best, turns, of_first = None, list[float](), 0.0
    for at, (functions, so_far, is_new) in enumerate(cells):
        now += machine.cell_s(functions) + is_new * machine.ordinary_s
        of_first = now if at < len(FIRST) else of_first
        turns += [now] if so_far != best else []
        best = so_far
    end = now + (machine.check_s if best else 0) + machine.cell_s(machine.ends[0])
    turns = turns or [now]
    return of_first, turns[0], turns[-1], end


def simulate_deciding(lines: Lines, scenario: Scenario, grids: int) -> Decided:
    """Let *grids* sweeps of a *scenario* decide; words are of the first machine."""
    chance = np.random.default_rng(42)
    found = Decided(Outcomes(), 0, [], {machine: [] for machine in MACHINES})
    truth = scenario.losses
    if scenario.shape is _collapsing:
        truth = np.full(35, COLLAPSING * COLLAPSE)
    is_beyond = dict(zip(OTHERS, truth > MAX_LOSS, strict=True))
    for _ in range(grids):
        losses = drawn(lines, scenario, (ASKED_AT_MOST, DECIDING_LINES), chance)
        done: dict[tuple[int, ...], Any] = {}
        for machine in MACHINES:
            looks = tuple(end for end in machine.ends if end >= machine.first)
            if looks not in done:
                done[looks] = decided(losses, looks)
            cells = done[looks][1]
            found.times[machine].append(times_of(cells, machine))
        seen, cells = next(iter(done.values()))
        words = {pair: each.decision for pair, each in seen.items() if each.decision}
        every = dict.fromkeys(OTHERS, Decision.OPEN) | words
        found.outcomes.add([every[pair] for pair in OTHERS], truth)
        out = pairs_ruled_out_by_finer(words, OTHERS)
        found.inferred_wrong += any(not is_beyond[pair] for pair in out)
        found.turns.append(len(cells) + 2)
    return found


DECIDING_HEADING = (
    "| scenario | wrong within, % | wrong Set, % | wrong beyond, % "
    "| wrongly inferred, % | an answer, % | cells: median, 9 in 10 | "
)


def table_of_deciding(lines: Lines, grids: int) -> None:
    """Print a row for each scenario, with minutes that 9 of 10 sweeps take at most."""
    of_machines = " | ".join(machine.heading for machine in MACHINES)
    print(f"{DECIDING_HEADING}{of_machines} |")
    print(f"| --- |{' --: |' * (6 + len(MACHINES))}")
    for scenario in scenarios():
        found = simulate_deciding(lines, scenario, grids)
        print(f"| {scenario.name} | {found.row()} |", flush=True)


# --- one budget for weights and cache


@dataclass(frozen=True, slots=True)
class Files:
    """
    Three files of weights with 16 pairs each, whose truth is known.

    Attributes:
        name: What it is.
        loss: The mean loss of weights with a pair, from what each loses alone.
        independent: Whether each candidate has functions and lines of its own.
    """

    name: str
    loss: Callable[[float, float], float]
    independent: bool = False


WEIGHTS = {"Q8_0": (8.5, 0.0), "Q6_K": (6.6, 0.004), "Q4_K_M": (4.85, 0.02)}
"""Gigabytes, of a model of 8 billion weights, and what they lose."""

CACHE = 4.3
"""Gigabytes of a cache that is not quantized, at 32K tokens."""

BUDGETS = (5.0, 6.5, 7.5, 8.5, 9.5, 10.5, 11.5)
FILE_TYPES = ("bf16", "q8_0", "q5_1", "q4_0")
LIKE_WEIGHTS = OTHERS.index(Pair("bf16", "q4_0"))
"""Whose functions and lines deviate as those of coarser weights are taken to."""

CANDIDATES = tuple(
    Candidate(
        k, v, weights=name, weight_bits=gigabytes, size=gigabytes + CACHE * _share(k, v)
    )
    for name, (gigabytes, _) in WEIGHTS.items()
    for k in FILE_TYPES
    for v in FILE_TYPES
)
"""The first is the reference."""


def files() -> Iterator[Files]:
    """What may be true of weights and caches together."""
    yield Files("additive", lambda weights, cache: weights + cache)
    yield Files("the same, on their own", lambda w, c: w + c, independent=True)
    yield Files("the larger loss counts", max)
    yield Files("each makes the other worse", lambda w, c: w + c + 40 * w * c)
    yield Files("weights hide the cache", lambda w, c: c if w < MAX_LOSS else w)
    yield Files("coarser weights lose less", lambda w, c: c - w)
    yield Files("nothing is lost", lambda _w, _c: 0.0)


def true_loss(scenario: Files, candidate: Candidate) -> float:
    """What *candidate* loses, beside the first of `CANDIDATES`."""
    cache = K_LOSS[candidate.k] + V_LOSS[candidate.v]
    return scenario.loss(WEIGHTS[candidate.weights][1], cache)


def losses_of_files(
    lines: Lines, scenario: Files, functions: int, chance: np.random.Generator
) -> dict[Pair, list[float]]:
    """Losses of the functions of all candidates but the reference."""
    flat = Scenario("", np.zeros(len(OTHERS)), independent=scenario.independent)
    design = (functions, DECIDING_LINES)
    noise = drawn(lines, flat, design, chance)
    found: dict[Pair, list[float]] = {}
    of_weights = {name: np.zeros(functions) for name in WEIGHTS}
    for at, name in enumerate(WEIGHTS):
        if at:
            # The same text: all pairs of a file have what its weights do to it.
            of_weights[name] = chance.permutation(noise[LIKE_WEIGHTS])
    for candidate in CANDIDATES[1:]:
        if scenario.independent:
            noise = drawn(lines, flat, design, chance)
        values = true_loss(scenario, candidate) + of_weights[candidate.weights]
        if candidate.without_weights in OTHERS:
            values = values + noise[OTHERS.index(candidate.without_weights)]
        found[candidate] = values.tolist()
    return found


@dataclass(slots=True)
class OneBudget:
    """How many of the sweeps had what, over all budgets."""

    sweeps: int = 0
    set: int = 0  # candidates that were set
    wrong: int = 0  # that lose more than their upper end
    wrong_within: int = 0  # that are called within, and are not
    worse: float = 0.0  # what they lose more than the best that fits, in sum
    inferred_wrong: int = 0  # with one that loses less than what rules it out
    asked: int = 0

    def add(
        self, truth: Mapping[Pair, float], bounds: Mapping[Pair, Bounds], most: float
    ) -> None:
        """Count a sweep: what is known of those that were asked, under a budget."""
        self.sweeps += 1
        self.asked += len(bounds)
        fitting = [c for c in CANDIDATES if c.size <= most]
        if CANDIDATES[0] in fitting:
            return
        found: dict[Pair, Bounds] = {
            pair: each for pair, each in bounds.items() if pair in fitting
        }
        out = unmeasured_dominated_pairs(fitting, found)
        self.inferred_wrong += any(truth[p] < truth[f] for p, f in out.items())
        best = best_on_border(found)
        if best is None:
            return
        self.set += 1
        self.wrong += truth[best] > found[best].high
        is_within = found[best].decision(MAX_LOSS) is Decision.WITHIN
        self.wrong_within += is_within and truth[best] > MAX_LOSS
        self.worse += truth[best] - min(truth[pair] for pair in fitting)

    def row(self) -> str:
        """Shares in per cent, and the number of candidates that were asked."""
        shares = (self.wrong, self.wrong_within, self.inferred_wrong, self.set)
        told = [f"{100 * count / self.sweeps:.1f}" for count in shares]
        told.append(f"{100 * self.worse / max(self.set, 1):.2f}")
        return " | ".join([*told, f"{self.asked / self.sweeps:.1f}"])


def asked_on_border(
    losses: Mapping[Pair, list[float]], looks: tuple[int, ...], most: float
) -> dict[Pair, Bounds]:
    """What is known of the candidates that one sweep under a budget asks."""
    order = JointOrder(
        pairs=tuple(map(str, CANDIDATES)), candidates=CANDIDATES, looks=looks
    )
    fitting = [c for c in CANDIDATES[1:] if c.size <= most]
    seen: dict[Pair, PairState] = {}
    bounds: dict[Pair, Bounds] = {}
    if CANDIDATES[0].size <= most:
        return bounds
    while asked := next_budget_target(order, seen, bounds, fitting):
        (pair,) = asked.pairs
        look, pairs = looks.index(asked.goal), order.error_sharing_count(pair)
        values = losses[pair][: asked.goal]
        bounds[pair] = mean_loss_interval(values, error_share(look, pairs))
        seen[pair] = PairState(
            decision=bounds[pair].decision(MAX_LOSS),
            units=asked.goal,
            needed=units_needed(values, MAX_LOSS, look=look + 1, pairs=pairs),
            is_below=bounds[pair].mean < MAX_LOSS,
        )
    return bounds


FILE_LOOKS = (16, 32, 64)


def table_of_files(lines: Lines, grids: int) -> None:
    """Print rows for each truth of weights and caches: a grid, and the border alone."""
    print("\n| three files x 16 pairs | wrong Set, % | wrong within, % ", end="")
    print("| wrongly inferred, % | an answer, % | worse than the best, % | asked |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    share = error_share(0, len(CANDIDATES) - 1)
    for scenario in files():
        chance = np.random.default_rng(42)
        truth: dict[Pair, float] = {c: true_loss(scenario, c) for c in CANDIDATES}
        grid, walk = OneBudget(), OneBudget()
        for _ in range(grids):
            losses = losses_of_files(lines, scenario, FILE_LOOKS[-1], chance)
            whole: dict[Pair, Bounds] = {
                candidate: mean_loss_interval(values[: FILE_LOOKS[0]], share)
                for candidate, values in losses.items()
            }
            most = float(chance.choice(BUDGETS))
            grid.add(truth, whole, most)
            walk.add(truth, asked_on_border(losses, FILE_LOOKS, most), most)
        print(f"| {scenario.name}: grid | {grid.row()} |")
        print(f"| {scenario.name}: --decide | {walk.row()} |", flush=True)


# --- what an attack on a verdict looks like


GridUnits = dict[Pair, dict[str, float]]
"""By pair, the mean probability of the right tokens of each unit."""


@dataclass(frozen=True, slots=True)
class Attack:
    """
    A grid that was measured wrongly, and the truth of it.

    Attributes:
        name: What went wrong.
        spoil: Takes the units of a grid, by pair and by name of the unit, and a
            generator; returns what the verdict is told of them.
    """

    name: str
    spoil: Callable[[GridUnits, np.random.Generator], GridUnits]


ATTACKED = (20, 5)
"""Functions and lines of a grid that is attacked."""


def _broken_reference(by: float) -> Callable[..., GridUnits]:
    """Of the reference, all units lose so much."""

    def spoil(units: GridUnits, chance: np.random.Generator) -> GridUnits:
        broken = {
            name: value - by * chance.uniform(0.5, 1.5)
            for name, value in units[PAIRS[0]].items()
        }
        return units | {PAIRS[0]: broken}

    return spoil


def _half_broken(units: GridUnits, _chance: np.random.Generator) -> GridUnits:
    """Of the reference, every second unit loses 30 %."""
    broken = {
        name: value - 0.3 * (at % 2)
        for at, (name, value) in enumerate(units[PAIRS[0]].items())
    }
    return units | {PAIRS[0]: broken}


def _copies(units: GridUnits, _chance: np.random.Generator) -> GridUnits:
    """The first two units ten times each, of which the verdict counts one."""
    return {
        pair: dict(itertools.islice(of_pair.items(), 2))
        for pair, of_pair in units.items()
    }


def _hard_units_fail(units: GridUnits, _chance: np.random.Generator) -> GridUnits:
    """Of each pair, the units without a score are those in which it loses most."""
    there = units[PAIRS[0]]

    def kept(of_pair: dict[str, float]) -> dict[str, float]:
        by_loss = sorted(of_pair, key=lambda name: there[name] - of_pair[name])
        return {name: of_pair[name] for name in by_loss[: len(by_loss) * 3 // 4]}

    return {p: each if p == PAIRS[0] else kept(each) for p, each in units.items()}


def _hard_units_fail_the_reference(
    units: GridUnits, _chance: np.random.Generator
) -> GridUnits:
    """Of the reference alone, the units without a score are those that most lose."""
    there, worst = units[PAIRS[0]], units[Pair("q4_0", "q4_0")]
    by_loss = sorted(there, key=lambda name: there[name] - worst[name])
    kept = by_loss[: len(by_loss) * 3 // 4]
    return units | {PAIRS[0]: {name: there[name] for name in kept}}


ATTACKS = (
    Attack("nothing", lambda units, _chance: units),
    Attack("a reference that loses 15 %", _broken_reference(0.15)),
    Attack("a reference that loses 5 %", _broken_reference(0.05)),
    Attack("a reference that loses 2 %", _broken_reference(0.02)),
    Attack("a reference that loses 1 %", _broken_reference(0.01)),
    Attack("a reference that loses 30 % of every second unit", _half_broken),
    Attack("copies of two units", _copies),
    Attack("failures of a pair hit its hard units", _hard_units_fail),
    Attack("failures of the reference hit hard units", _hard_units_fail_the_reference),
)


def judged(by_metric: Mapping[str, GridUnits], names: Sequence[str] = ()) -> Verdict:
    """
    The verdict on right tokens.

    Args:
        by_metric: Units of each pair by name of a metric; the first of `PAIRS` is the
            reference.
        names: Of all units that were asked for; those that there are if empty.
    """
    return judge_units(
        RUN,
        [_metric_units(name, units, names) for name, units in by_metric.items()],
        Limits(),
    )


def _metric_units(name: str, units: GridUnits, names: Sequence[str]) -> MetricUnits:
    asked = names or [*units[PAIRS[0]]]
    loss = Loss(kind=LossKind.PROBABILITY, units=lambda _record, _setup: asked)
    metric = replace(PROBES["recall"].metrics_of(RUN.setup)[0], name=name, loss=loss)
    return MetricUnits(
        metric=metric,
        loss=loss,
        probe=PROBES["reuse"],
        setup=RUN.setup,
        records={record.pair: record for record in RUN.records},
        units=units,
        reference=PAIRS[0],
        noise=NoiseFloor(),
    )


MADE = made("made_records")
RUN = Run(
    name="made",
    setup=MADE.made_setup(),
    records=tuple(MADE.sized(MADE.made_record(pair, [])) for pair in PAIRS),
)
"""A run whose records say nothing but sizes."""


def units_of(losses: Numbers, chance: np.random.Generator) -> GridUnits:
    """Units of a grid: those of the reference, less the *losses* of each pair."""
    there = chance.uniform(0.5, 0.7, size=losses.shape[1])
    every = np.vstack([there, there - losses])
    return {
        pair: {str(at): float(value) for at, value in enumerate(row)}
        for pair, row in zip(PAIRS, every, strict=True)
    }


def table_of_attacks(lines: Lines, grids: int) -> None:
    """Print a row for each attack, on grids like SmolLM2's."""
    print("\n| what went wrong | wrong Set, % | the reference in doubt, % | Set, % |")
    print("| --- | --: | --: | --: |")
    scenario = next(scenarios())
    is_beyond = dict(zip(OTHERS, scenario.losses > MAX_LOSS, strict=True))
    for attack in ATTACKS:
        chance = np.random.default_rng(42)
        wrong = doubted = answers = 0
        for _ in range(grids):
            whole = units_of(drawn(lines, scenario, ATTACKED, chance), chance)
            spoilt = {"recall-logp": attack.spoil(whole, chance)}
            found = judged(spoilt, [*whole[PAIRS[0]]])
            wrong += found.chosen is not None and is_beyond[found.chosen]
            doubted += bool(found.reference_doubts_by_metric)
            answers += found.chosen is not None
        shares = (f"{100 * count / grids:.1f}" for count in (wrong, doubted, answers))
        print(f"| {attack.name} | {' | '.join(shares)} |", flush=True)


# --- two kinds of text


TEXT_DESIGN = (16, 5)
"""Chunks of ordinary text, and lines that each is drawn of."""


def disagreeing() -> Iterator[tuple[str, Numbers, Numbers]]:
    """What may be true of recall and of ordinary text, each by pair."""
    like = np.array([K_LOSS[pair.k] + V_LOSS[pair.v] for pair in OTHERS])
    none, limit = np.zeros(35), np.full(35, MAX_LOSS * 1.000001)
    coarse = np.array([limit[0] * (pair.k not in {"bf16", "q8_0"}) for pair in OTHERS])
    yield "both like SmolLM2's recall", like, like
    yield "recall loses nothing, text what the limit allows", none, limit
    yield "text loses nothing, recall what the limit allows", limit, none
    yield "recall loses nothing, text of K below q8_0 at the limit", none, coarse
    yield "text loses nothing, recall of K below q8_0 at the limit", coarse, none
    yield "recall loses nothing, text of K below q8_0 9 %", none, 9 * coarse
    yield "both lose what the limit allows", limit, limit


def table_of_texts(lines: Lines, grids: int) -> None:
    """Print a row for each way in which two kinds of text may disagree."""
    print("\n| truth | wrong within, % | wrong Set, % | Set, % |")
    print("| --- | --: | --: | --: |")
    for name, *losses in disagreeing():
        chance = np.random.default_rng(42)
        is_beyond = dict(zip(OTHERS, np.maximum(*losses) > MAX_LOSS, strict=True))
        wrong = wrong_set = answers = 0
        for _ in range(grids):
            by_metric = {
                metric: units_of(drawn(lines, Scenario("", of), design, chance), chance)
                for metric, of, design in zip(
                    KINDS_OF_TEXT, losses, (ATTACKED, TEXT_DESIGN), strict=True
                )
            }
            found = judged(by_metric)
            within = [e.pair for e in found.results if e.decision is Decision.WITHIN]
            wrong += any(is_beyond[pair] for pair in within)
            wrong_set += found.chosen is not None and is_beyond[found.chosen]
            answers += found.chosen is not None
        shares = (f"{100 * count / grids:.1f}" for count in (wrong, wrong_set, answers))
        print(f"| {name} | {' | '.join(shares)} |", flush=True)


def coverage(folder: Path) -> None:
    """
    Print how often intervals of few units miss the mean of all of a real run.

    Of functions that were forced, and of chunks of ordinary text; of these also how
    much the losses of neighbours vary together.
    """
    run = Store(folder).read_run()
    if run is None:
        raise SystemExit(f"{folder} is no run folder")
    for probe, metric, counts in (
        ("recall", RECALL_LOGP, (12,)),
        ("divergence", TEXT_LOGP, (8, 16)),
    ):
        units = {
            record.pair: by_unit
            for record in run.records
            if record.probe == probe and record.has_numbers
            if (by_unit := metric.loss_values_by_unit(record, run.setup))
        }
        if len(units) > 1:
            _coverage_of(f"{folder}: {metric.unit_noun}", units, counts)
    texts = {
        record.pair: record
        for record in run.records
        if record.probe == "divergence" and record.has_numbers
    }
    if len(texts) > 1:
        _autocorrelation(run, texts)
        _coverage_of_many(run, texts)


def _coverage_of(
    name: str, units: Mapping[Pair, dict[str, float]], counts: Sequence[int]
) -> None:
    """Print the misses of intervals of so few units, of each pair."""
    draws = 10_000
    reference, *others = sorted(units, key=_size, reverse=True)
    chance = np.random.default_rng(42)
    print(f"\n{name}: {len(units[reference])}, of which few are drawn")
    ways = " | ".join(f"{few}: above | below" for few in counts)
    print(f"| pair | mean loss | share, % | missed, %, of {ways} |")
    print(f"| --- |{' --: |' * (2 + 2 * len(counts))}")
    for pair, share in itertools.product(others, (0.025, error_share(0, len(OTHERS)))):
        names = [name for name in units[reference] if name in units[pair]]
        losses = np.array([units[reference][n] - units[pair][n] for n in names])
        shown = " | ".join(
            f"{above:.2f} | {below:.2f}"
            for few in counts
            for above, below in [
                _missed(
                    losses.mean(), partial(_some_of, losses, few, chance), share, draws
                )
            ]
        )
        print(f"| {pair} | {losses.mean():.2%} | {100 * share:.2f} | {shown} |")


def _some_of(losses: Numbers, few: int, chance: np.random.Generator) -> Numbers:
    """So *few* of *losses*, drawn with replacement."""
    found: Numbers = chance.choice(losses, few)
    return found


def _missed(
    mean: float, draw: Callable[[], Numbers], share: float, draws: int
) -> tuple[float, float]:
    """In how many of 100 draws the interval is below the *mean*, and above it."""
    above = below = 0
    for _ in range(draws):
        bounds = mean_loss_interval(draw().tolist(), share)
        above += mean > bounds.high
        below += mean < bounds.low
    return 100 * above / draws, 100 * below / draws


LAGS = (1, 2, 4, 8, 16, 32)
BLOCKS = (8, 16, 32, 63)


def _autocorrelation(run: Run, records: Mapping[Pair, CellRecord]) -> None:
    """
    Print how much losses of tokens vary with those behind them, and means of blocks.

    Of independent tokens the variance of a block's mean, times its length, is that of a
    token, so that the ratio is 1. Chunks are blocks, too, of which neighbours follow
    each other, and every second is of the same source.
    """
    reference, *others = sorted(records, key=_size, reverse=True)
    there = _by_chunk(records[reference], run.setup)
    lags = " | ".join(f"lag {lag}" for lag in LAGS)
    blocks = " | ".join(f"blocks of {size}" for size in BLOCKS)
    print(
        f"\n| pair | tokens | {lags} | {blocks} | chunks | neighbours, next to them |"
    )
    print(f"| --- |{' --: |' * (3 + len(LAGS) + len(BLOCKS))}")
    for pair in others:
        losses = there - _by_chunk(records[pair], run.setup)
        length = losses.shape[1]
        found = [f"{_correlation(losses, lag):.2f}" for lag in LAGS]
        for size in (*BLOCKS, length):
            count = length // size
            means = losses[:, : count * size].reshape(-1, size).mean(axis=1)
            found.append(f"{size * float(means.var(ddof=1)) / float(losses.var()):.2f}")
        chunks = losses.mean(axis=1)[np.newaxis]
        near = ", ".join(f"{_correlation(chunks, lag):.2f}" for lag in (1, 2))
        print(f"| {pair} | {losses.size} | {' | '.join(found)} | {near} |")


def _coverage_of_many(run: Run, records: Mapping[Pair, CellRecord]) -> None:
    """Print the misses of intervals of chunks like the real ones, of which many are."""
    reference, *others = sorted(records, key=_size, reverse=True)
    there = _by_chunk(records[reference], run.setup)
    chance = np.random.default_rng(42)
    print("\n| pair | of 16 of many: above, % | below | lopsided: above | below |")
    print("| --- | --: | --: | --: | --: |")
    for pair in others:
        losses = there - _by_chunk(records[pair], run.setup)
        shown = list[str]()
        effects = [chance.standard_normal(10_000), chance.exponential(1, 10_000) - 1]
        for of_chunks in effects:
            many = _many_chunks(losses, chance, of_chunks)
            draw = partial(_some_of, many, 16, chance)
            missed = _missed(many.mean(), draw, 0.025, 10_000)
            shown += [f"{share:.2f}" for share in missed]
        print(f"| {pair} | {' | '.join(shown)} |")


def _many_chunks(
    losses: Numbers, chance: np.random.Generator, effects: Numbers
) -> Numbers:
    """
    Mean losses of as many chunks as there are *effects*, which have a variance of 1.

    They vary as much as those of *losses*, (chunks, tokens), beyond what their tokens
    explain, which are real.
    """
    tokens = (losses - losses.mean(axis=1, keepdims=True)).ravel()
    explained = float(losses.var(axis=1, ddof=1).mean()) / losses.shape[1]
    beyond = max(0.0, float(losses.mean(axis=1).var(ddof=1)) - explained)
    noise = chance.choice(tokens, (len(effects), losses.shape[1])).mean(axis=1)
    found: Numbers = losses.mean() + math.sqrt(beyond) * effects + noise
    return found


def _correlation(rows: Numbers, lag: int) -> float:
    """How much values vary with those *lag* behind them in their row."""
    centred = rows - rows.mean()
    together = float((centred[:, lag:] * centred[:, :-lag]).mean())
    return together / float((centred**2).mean())


def _by_chunk(record: CellRecord, setup: Setup) -> Numbers:
    """Probabilities of right tokens: (chunks, tokens of each)."""
    answer = divergence_of(record)
    compared = (
        answer.comparison_at(None, stored_chunks_by_context(setup.probes["divergence"]))
        if answer
        else None
    )
    if compared is None or not compared.logprobs:
        raise SystemExit(f"{record.pair} has no right tokens")
    found: Numbers = np.exp(np.array(compared.logprobs))
    return found.reshape(compared.chunks, -1)


def take(folder: Path) -> None:
    """Store the log-probabilities of the right tokens of a real grid as `DATA`."""
    run = Store(folder).read_run()
    if run is None:
        raise SystemExit(f"{folder} is no run folder")
    records = {r.pair: r for r in run.records if r.probe == "recall"}
    answers = [
        [answer for _, answer in right_line_answers(records[pair], run.setup) if answer]
        for pair in PAIRS
    ]
    places = [
        (number, line)
        for number, answer in enumerate(answers[0])
        for line in _line_numbers(answer.scores.ends, answer.needle.lines)
    ]
    np.savez_compressed(
        DATA,
        # 36 pairs, every right token; the function and the line of each.
        logprobs=np.array(
            [[p for a in of_pair for p in a.scores.logprobs] for of_pair in answers],
            dtype=np.float16,
        ),
        functions=np.array([function for function, _ in places], dtype=np.uint8),
        lines=np.array([line for _, line in places], dtype=np.uint8),
    )
    print(f"{DATA}: {len(places)} tokens, {DATA.stat().st_size:,} bytes")


def _line_numbers(ends: Sequence[int], lines: Sequence[str]) -> list[int]:
    """The line, from 0, of each token, given where tokens end in the joined lines."""
    stops = list(itertools.accumulate(len(line) + 1 for line in lines))
    return [min(bisect.bisect_left(stops, end), len(lines) - 1) for end in ends]


def half_widths(lines: Lines, designs: Sequence[tuple[int, int]]) -> None:
    """Print the mean distance from the mean to "at most", of three pairs."""
    pairs = [Pair("q8_0", "q8_0"), Pair("q5_1", "bf16"), Pair("q4_0", "bf16")]
    print(f"\n| mean to at most, % | {' | '.join(map(str, pairs))} |")
    print(f"| --- |{' --: |' * len(pairs)}")
    chance = np.random.default_rng(42)
    scenario = Scenario("", np.zeros(35))
    for design in designs:
        widths: list[list[float]] = [[] for _ in pairs]
        for _ in range(200):
            losses = drawn(lines, scenario, design, chance)
            for row, pair in zip(widths, pairs, strict=True):
                bounds: Bounds = mean_loss_interval(
                    losses[OTHERS.index(pair)], error_share(0, len(OTHERS))
                )
                row.append(bounds.high - bounds.mean)
        shown = " | ".join(f"{100 * np.mean(row):.2f}" for row in widths)
        print(f"| {design[0]} x {design[1]} | {shown} |")


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grids", type=int, default=1_000)
    parser.add_argument(
        "--decide", action="store_true", help="sweeps that decide, step by step"
    )
    parser.add_argument("--designs", help="3x20,16x5: functions x lines")
    parser.add_argument("--coverage", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--take", type=Path, metavar="FOLDER")
    return parser.parse_args(arguments)


def main() -> None:
    """Simulate, or take the lines of a run, or look at real intervals."""
    given = parsed()
    designs: Sequence[tuple[int, int]] = DESIGNS
    if given.designs:
        words = (word.split("x") for word in given.designs.split(","))
        designs = [(int(functions), int(lines)) for functions, lines in words]
    if given.take:
        take(given.take)
    elif given.coverage:
        for folder in given.coverage:
            coverage(folder)
    elif given.decide:
        table_of_deciding(read_lines(), given.grids)
    else:
        lines = read_lines()
        half_widths(lines, designs)
        table(lines, given.grids, designs)
        table_of_attacks(lines, given.grids)
        table_of_texts(lines, given.grids)
        table_of_files(lines, given.grids)


if __name__ == "__main__":
    main()
