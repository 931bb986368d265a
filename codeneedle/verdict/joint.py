"""
Joins runs of several files of weights, if they are of one model and were asked alike;
how precise each file is, and the memory of a candidate: a file of weights with a pair.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from codeneedle.cache_types import Candidate, Pair
from codeneedle.errors import BadInput
from codeneedle.models.kv_cache import Caches, longest_context_where
from codeneedle.probes.cell_metrics import caches_of, context_tokens_or_zero
from codeneedle.records.comparability import PROGRAM, setup_differences
from codeneedle.records.record import CellRecord, DeviceMemory, ModelFacts, Run, Setup
from codeneedle.text import escape_invisible, json_value_phrase
from codeneedle.verdict.asking_order import (
    JointOrder,
    JointRun,
    differently_calibrated_probes,
    stored_asking_order,
)
from codeneedle.verdict.trust import drop_answers_asked_otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a file of weights takes beside its cache, and what its caches take."""

    weights: int
    """Bytes of the file: copies that are packed for kernels let its pages go."""

    recurrent: int = 0  # bytes of states that cache types do not change
    compute: int = 0  # bytes of the buffers of the graph
    caches: Caches | None = None  # of some pair; None if no engine has told any

    @property
    def fixed_bytes(self) -> int:
        """All but the cache, in bytes."""
        return self.weights + self.recurrent + self.compute

    def total_bytes(self, context: int, pair: Pair) -> float:
        """All of it with *pair* at so many tokens, in bytes; NaN if unknown."""
        cache = self.caches.cache_bytes_at(context, pair) if self.caches else None
        return self.fixed_bytes + cache if cache and self.weights else math.nan

    def longest_fitting_context(self, most: int, pair: Pair, *, at: int) -> int:
        """
        The longest context that fits into *most* bytes with *pair*, in tokens.

        At most *at*; 0 if none fits, or sizes are unknown.
        """
        return longest_context_where(
            lambda context: self.total_bytes(context, pair) <= most, most=at
        )


def memory_of(run: Run, pair: Pair | None = None) -> Memory:
    """
    What the engine has told of *run*, at the longest context that it was told for.

    Of *pair* if it was measured, else of any; the file alone if nothing was told.
    """
    told = [r for r in run.records if r.effective.kv]
    own = [r for r in told if r.pair == pair] or told
    size = run.setup.weights.size_bytes
    if not own:
        return Memory(weights=size)
    effective = max(own, key=lambda r: context_tokens_or_zero(r.effective)).effective
    return Memory(
        weights=size,
        recurrent=effective.recurrent_bytes,
        compute=_graph_buffer_bytes(effective.memory),
        caches=caches_of(effective),
    )


def _graph_buffer_bytes(memory: Sequence[DeviceMemory]) -> int:
    """Bytes of the buffers of the graph, on all devices."""
    return sum(device.compute for device in memory)


def weight_names(runs: Sequence[Run]) -> list[str]:
    """
    What to call the weights of *runs*, in their order.

    The first that no other run has of quantization, file and run; if names are still
    alike, all are files with their digests.
    """
    setups = [run.setup for run in runs]
    quants = Counter(setup.quant for setup in setups)
    files = Counter(setup.weights.name for setup in setups)
    names = [
        setup.quant
        if setup.quant and quants[setup.quant] == 1
        else setup.weights.name
        if files[setup.weights.name] == 1
        else run.name
        for run, setup in zip(runs, setups, strict=True)
    ]
    if len({*names}) == len(names):
        return names
    # Of folders that lie in different places runs may be called alike, too.
    return [f"{setup.weights.name} {setup.weights.sha256[:8]}" for setup in setups]


def bits_per_weight(setup: Setup) -> float | None:
    """
    Bits per weight of the file, with all that is in it.

    None if it was not told how many weights there are, or of fewer than one bit.
    """
    count = setup.model.parameters
    bits = 8 * setup.weights.size_bytes / count if count else 0.0
    return bits if bits >= 1 else None


def join_runs(runs: Sequence[Run], at: int | None = None) -> JointRun:
    """
    *runs* as one, of candidates, so that it is judged as any run is.

    Args:
        runs: One of each file of weights, with trusted records.
        at: Context of the memory that candidates take, in tokens; None for that of the
            runs.

    Raises:
        BadInput: If they do not stand on one scale, with the reason.
    """
    refuse_different_scales(runs)
    setups = [run.setup for run in runs]
    ordered = [runs[at] for at in indices_finest_first(setups)]
    made = candidates_of(ordered, at)
    records = [record for candidates in made for record in candidates.records()]
    first = ordered[0]
    setup = replace(first.setup, order={})
    joint = JointRun(
        name=" + ".join(run.name for run in ordered),
        setup=setup,
        records=(),
        root=first.root,
        runs=tuple(ordered),
        order=_joint_order(made),
    )
    return joint.with_every_record(drop_answers_asked_otherwise(records, setup))


def indices_finest_first(setups: Sequence[Setup]) -> list[int]:
    """The places of *setups* by their weights, the most precise ones first."""
    precision = _precision_measure(setups)

    def sort_key(at: int) -> tuple[float, int, str]:
        weights = setups[at].weights
        return (precision(setups[at]), weights.size_bytes, weights.name)

    return sorted(range(len(setups)), key=sort_key, reverse=True)


def _weights_precision(setup: Setup) -> float:
    """Bits per weight; without a count bytes, which of one model grow with them."""
    return bits_per_weight(setup) or float(setup.weights.size_bytes)


def _precision_measure(setups: Sequence[Setup]) -> Callable[[Setup], float]:
    """What tells how precise weights are: bytes of all where one has no count."""
    if all(map(bits_per_weight, setups)):
        return _weights_precision
    return lambda setup: float(setup.weights.size_bytes)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of one run."""

    run: Run
    name: str  # of its weights
    at: int  # context of their memory, in tokens
    told: Run | None  # one whose engine has told its memory; None if none has
    precision: float  # of its weights, beside those of the other runs

    def candidate_of_pair(self, pair: Pair) -> Candidate:
        """*pair* with the weights of the run."""
        memory = memory_of(self.run, pair)
        if memory.caches is None and self.told:
            memory = replace(memory_of(self.told), weights=memory.weights)
        return Candidate(
            pair.k,
            pair.v,
            weights=self.name,
            weight_bits=self.precision,
            size=memory.total_bytes(self.at, pair),
        )

    def records(self) -> Iterator[CellRecord]:
        """The records of the run, each of its candidate."""
        for record in self.run.every_record:
            yield replace(record, pair=self.candidate_of_pair(record.pair))

    def eligible_or_measured(self) -> Iterator[Candidate]:
        """All that may be measured, or that were."""
        order = stored_asking_order(self.run.setup)
        pairs = order.eligible_pairs if order else self.run.setup.grid
        yield from map(
            self.candidate_of_pair, {*pairs, *(r.pair for r in self.run.records)}
        )

    def larger_than_eligible(self) -> Iterator[Candidate]:
        """Those of the grid larger than all eligible ones; none without an order."""
        order = stored_asking_order(self.run.setup)
        if order is None:
            return
        sizes = (
            self.candidate_of_pair(pair).size_to_compare
            for pair in order.eligible_pairs
        )
        known, most = {*self.eligible_or_measured()}, max(sizes, default=0.0)
        for candidate in map(self.candidate_of_pair, self.run.setup.grid):
            if candidate not in known and candidate.size_to_compare > most:
                yield candidate


def candidates_of(runs: Sequence[Run], at: int | None) -> list[Candidates]:
    """
    The candidates of each of *runs*, with their memory.

    That is *at* so many tokens; None for the context of the run.
    """
    # Caches of one model are alike: what one run has told holds of those without.
    told = next((run for run in runs if memory_of(run).caches), None)
    precision = _precision_measure([run.setup for run in runs])
    return [
        Candidates(
            run, name, at or run.setup.context, told, precision=precision(run.setup)
        )
        for run, name in zip(runs, weight_names(runs), strict=True)
    ]


def _joint_order(made: Sequence[Candidates]) -> JointOrder:
    """
    The order that runs hold, if all hold the same: how the error is shared, and looks.

    Else without looks, which are then those of the probe.
    """
    orders = [stored_asking_order(run_candidates.run.setup) for run_candidates in made]
    fixed = [order for order in orders if order]
    candidates = tuple(
        sorted(
            {
                c
                for run_candidates in made
                for c in run_candidates.eligible_or_measured()
            }
        )
    )
    # Looks that not all have in common are those of the probe, from the first one on.
    is_one = len({(order.looks, order.skipped) for order in fixed}) == 1
    is_of_all = is_one and len(fixed) == len(orders)
    return JointOrder(
        pairs=tuple(map(str, candidates)),
        looks=fixed[0].looks if is_of_all else (),
        skipped=fixed[0].skipped if is_of_all else 0,
        candidates=candidates,
        too_large=tuple(
            sorted(
                c
                for run_candidates in made
                for c in run_candidates.larger_than_eligible()
            )
        ),
        is_fixed=bool(fixed),
    )


# --- what stands on one scale


def refuse_different_scales(runs: Sequence[Run]) -> None:
    """
    Stop at *runs* whose losses do not stand on one scale, and at fewer than two.

    Raises:
        BadInput: With the first two of them, and the reason.
    """
    if len(runs) < 2:  # noqa: PLR2004 - several
        raise BadInput(
            source=runs[0].name if runs else "no run",
            reason="is alone: nothing to weigh its weights against",
            hint="Name a run of each file of weights: codeneedle verdict A B",
        )
    for first, other in combinations(runs, 2):
        if reason := why_not_on_one_scale(first.setup, other.setup):
            raise BadInput(
                source=f"{escape_invisible(first.name)} and "
                f"{escape_invisible(other.name)}",
                reason=reason,
                hint="Look at each by itself (codeneedle verdict NAME), or side by "
                "side: codeneedle compare A B",
            )


def why_not_on_one_scale(first: Setup, other: Setup) -> str:
    """Why losses of both do not stand on one scale, as a phrase; empty if they do."""
    if first.weights.sha256 == other.weights.sha256:
        return "are of the same file of weights"
    architectures = (first.architecture, other.architecture)
    if reason := why_not_one_model(first.model, other.model, architectures):
        return reason
    theirs = replace(
        other,
        weights=first.weights,
        corpus=replace(other.corpus, origin=first.corpus.origin),
    )
    for key, was, now in setup_differences(first, theirs):
        name = key.replace("_", " ")
        return f"differ in {name}: {json_value_phrase(was)}; {json_value_phrase(now)}"
    return _why_calibrated_otherwise(first, other)


def why_not_one_model(
    ours: ModelFacts, theirs: ModelFacts, architectures: tuple[str, str]
) -> str:
    """Why two files are not weights of one model, as a phrase; empty if they may be."""
    if ours.tokenizer and theirs.tokenizer and ours.tokenizer != theirs.tokenizer:
        return (
            "have another tokenizer: a right token of one is none of the other, so "
            "that their losses do not stand on one scale"
        )
    shapes = (ours.shape, theirs.shape)
    if not all(shapes):
        shapes = architectures
    if all(shapes) and shapes[0] != shapes[1]:
        return (
            f"are of other models: {escape_invisible(shapes[0])}, and "
            f"{escape_invisible(shapes[1])}"
        )
    return ""


def _why_calibrated_otherwise(first: Setup, other: Setup) -> str:
    """Why nothing of what both were asked stands on one scale; empty if some does."""
    programs = [setup.calibrated.get(PROGRAM) for setup in (first, other)]
    if all(programs) and programs[0] != programs[1]:
        return "were served by different programs, whatever version they state"
    apart = differently_calibrated_probes((first, other))
    if apart and {*apart} >= first.probes.keys() & other.probes.keys():
        return f"were asked other questions by {apart[0]}, as each reference set them"
    return ""
