"""Judges a run by all that was measured: what types cost, and which pair to set."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from codeneedle.analysis import recall, verdict
from codeneedle.analysis.metrics import Metric
from codeneedle.analysis.verdict import (
    ALPHA,
    AXIS_ALPHA,
    EFFECTS,
    LOST_SHARE,
    ODD_ALPHA,
    AxisFinding,
    Certificate,
    Numbers,
    OddCell,
)
from codeneedle.grid import Pair
from codeneedle.probes import PROBES
from codeneedle.records.record import Run, Setup
from codeneedle.report.captions import number
from codeneedle.report.table import Column, PairTable, pair_table
from codeneedle.scoring.rounds import Reading
from codeneedle.text import visible

ANSWERED_SHARE = 0.9
"""A cell with fewer answers than this share of its rounds is unreliable."""

FLOOR_SHARE = 0.1
"""A metric says nothing where the reference has this little of its range, or less."""

FEWEST_UNITS = 2
"""Units that a test needs."""

AXES = ("K", "V")

NOTHING_LOST, WITHIN_LIMIT = "nothing lost", "within the limit"
LEAST_MEMORY, FASTEST = "least memory", "fastest"
SHOWN_GOALS = (NOTHING_LOST, WITHIN_LIMIT)
"""Goals that a pair reaches only by a certificate, or by an upper bound."""

SPEED = "tg"
"""The writing speed that advice may rest on: by-products of recall are too noisy."""

RANKING = ("kld", "recall-logp", "copy-logp", "retrieval-logp")
"""Metrics by which pairs are ranked: each has a gradient where answers have none."""

SIZES = ("top1", "copy-ppl", "copy-top1", "recall-right")
"""Metrics whose values people understand; none of them is tested."""

COSTS, FREE, UNDECIDED, NOT_JUDGED = "costs", "free", "undecided", "not judged"
"""What `Verdict.word` says of a pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    What a user is ready to lose.

    Attributes:
        max_changed: Tokens with another first choice, in per cent.
        max_kld: Mean KL divergence from the reference, in nats per token.
    """

    max_changed: float | None = None
    max_kld: float | None = None

    @property
    def by_metric(self) -> dict[str, float]:
        """The largest loss of each metric that is limited."""
        known = {"top1": self.max_changed, "kld": self.max_kld}
        return {name: limit for name, limit in known.items() if limit is not None}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """
    What is known of one pair.

    Attributes:
        pair: The cache types.
        memory: Of its KV cache, as a share of the reference's; None if unknown.
        speed: Of writing, likewise.
        losses: By metric, the mean loss against the reference and the half-width of
            its 95 % interval, over units; in the metric's unit.
        seen: Metrics by which this pair alone is less than the reference, p at most
            5 %; of the whole grid that says nothing.
        sizes: Its values of the metrics of `SIZES`.
        certificate: Of lost units; None where no metric can tell.
        trouble: Why nothing is said of its quality; empty if something is.
        is_on_front: Whether no other pair is as good in all and better in something.
    """

    pair: Pair
    memory: float | None
    speed: float | None
    losses: Mapping[str, tuple[float, float]]
    seen: tuple[str, ...] = ()
    sizes: Mapping[str, float] = field(default_factory=dict)
    certificate: Certificate | None = None
    trouble: str = ""
    is_on_front: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """
    One recommendation.

    Attributes:
        goal: ``nothing lost``, ``within the limit``, ``least memory`` or ``fastest``.
        pair: What to set; None where nothing can be recommended.
        reason: Why, as a sentence.
    """

    goal: str
    pair: Pair | None
    reason: str

    @property
    def is_shown(self) -> bool:
        """Whether it rests on what was shown, not on what was not found."""
        return self.pair is not None and self.goal in SHOWN_GOALS


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """
    What a run allows to conclude.

    Attributes:
        run: The run.
        reference: The pair that all are compared with; None without numbers.
        judged: One for each metric that was tested, or that has no say.
        standings: One for each pair with a record, most precise first.
        advice: The recommendations, the first one first.
        certified: The metric behind the certificates; None where none can be given.
        ranking: Name of the metric by which pairs are ranked; empty without any.
    """

    run: Run
    reference: Pair | None
    judged: tuple[Judged, ...] = ()
    standings: tuple[Standing, ...] = ()
    advice: tuple[Advice, ...] = ()
    certified: Metric | None = None
    ranking: str = ""

    def standing(self, pair: Pair) -> Standing:
        """What is known of *pair*, which has a record."""
        return next(each for each in self.standings if each.pair == pair)

    def word(self, pair: Pair, metric: str = "") -> str:
        """
        What tables, grids, pictures and the page say of *pair*.

        `FREE` by its certificate; `COSTS` by its certificate, its types, or because
        it is odd; `UNDECIDED`; `NOT_JUDGED` where its cell is missing or unreliable.
        Empty for the reference, and where no metric has a say.

        Args:
            pair: Any pair of the grid.
            metric: Name of the only metric to ask; all that vote if empty.
        """
        asked = [
            each
            for each in self.judged
            if (each.metric.name == metric if metric else each.votes)
            if not each.silent
        ]
        if not asked or pair == self.reference:
            return ""
        standing = next((each for each in self.standings if each.pair == pair), None)
        if standing is None or standing.trouble or not standing.losses:
            return NOT_JUDGED
        certifies = self.certified and metric in {"", self.certified.name}
        certificate = standing.certificate if certifies else None
        if certificate and certificate.verdict != UNDECIDED:
            return certificate.verdict
        return COSTS if any(each.charges(pair) for each in asked) else UNDECIDED

    def axis_words(self, metric: str) -> str:
        """
        Which types of K and V cost by *metric*: ``none``, or ``V: q4_0, q4_1``.

        ``not tested`` where it has no say or both axes have gaps; empty where the
        metric is none that is judged.
        """
        each = next((j for j in self.judged if j.metric.name == metric), None)
        if each is None:
            return ""
        if all(math.isnan(finding.p) for finding in each.axes):
            return "not tested"
        costly = {axis: [t for a, t in each.costing() if a == axis] for axis in AXES}
        parts = [
            f"{axis}: {', '.join(sorted(types, key=kinds.index))}"
            for (axis, types), kinds in zip(costly.items(), each.types, strict=True)
            if types
        ]
        return "; ".join(parts) or "none"


def judge(
    run: Run,
    reading: Reading,
    limits: Limits | None = None,
    *,
    with_power: bool = True,
) -> Verdict:
    """
    Judge *run* by all that was measured.

    Everything is fixed before the numbers are looked at: the reference, what counts
    as lost, and 5 % of false alarms over the whole grid, shared among the metrics (see
    `FIRST_SHARE`).
    Missing answers count as nothing recalled; a pair with fewer than nine answers in
    ten is not judged.

    Args:
        run: With the records of all probes.
        reading: How stored replies are read.
        limits: What the user can bear to lose.
        with_power: Whether to find the smallest effects that would have been found,
            which takes seconds.
    """
    table = pair_table(run, tuple(PROBES.values()), reading)
    reference = table.reference
    if reference is None:
        return Verdict(run=run, reference=None)
    scored = scored_metrics(table)
    speaking = [each for each in scored.values() if not each.silent]
    certifying = _certifying(speaking)
    shares = _shares(speaking, certifying)
    judged = tuple(
        each.judged(share=shares.get(each.metric.name, 1.0), with_power=with_power)
        for each in scored.values()
        if each.silent or each.is_compared
    )
    standings = _standings(table, scored, certifying)
    ranking = _ranking([each.metric.name for each in speaking])
    found = Verdict(
        run=run,
        reference=reference,
        judged=judged,
        standings=_with_front(standings, reference, ranking),
        certified=certifying.metric if certifying else None,
        ranking=ranking,
    )
    return replace(found, advice=tuple(_advice(found, table, limits or Limits())))


FIRST_SHARE = 0.8
"""
Share of the false alarms of the first metric where there are several.

That is the one of the certificates, or else the first. The others show what they show
by far more than their noise: a small share of the alarms costs them little power.
"""


def _shares(
    speaking: Sequence["UnitScores"], certifying: "UnitScores | None"
) -> dict[str, float]:
    """The share of the false alarms of each metric, by name; they sum to 1."""
    names = [each.metric.name for each in speaking]
    first = certifying.metric.name if certifying else next(iter(names), "")
    if len(names) == 1:
        return {first: 1.0}
    rest = (1 - FIRST_SHARE) / max(len(names) - 1, 1)
    return {name: FIRST_SHARE if name == first else rest for name in names}


def _certifying(speaking: Sequence["UnitScores"]) -> "UnitScores | None":
    """The first metric that can tell lost units; of two, the one with more units."""
    found = [each for each in speaking if each.metric.lost_from is not None]
    return max(found, key=lambda each: each.answered, default=None)


def _ranking(names: Sequence[str]) -> str:
    return next((name for name in (*RANKING, *names) if name in names), "")


def words_of(table: PairTable) -> dict[Pair, str]:
    """What the verdict on the run of *table* says of each pair, where it says any."""
    found = judge(table.run, table.reading, with_power=False)
    words = {pair: found.word(pair) for pair in table.pairs}
    return {pair: word for pair, word in words.items() if word}


def scored_metrics(table: PairTable) -> dict[str, "UnitScores"]:
    """The judged metrics of *table* that have a value, by name."""
    return {
        column.metric.name: UnitScores(column, table)
        for column in table.columns
        if column.metric.is_judged and column.has_values
    }


class UnitScores:
    """The units of one metric in every cell, higher is better."""

    def __init__(self, column: Column, table: PairTable) -> None:
        self.metric = column.metric
        self._column = column
        self._cells = {
            pair: _units(column, table, pair)
            for pair in table.pairs
            if column.cell(pair).has_value
        }
        self.reference = column.reference or table.reference
        self._missing = {pair: _missing(column, table, pair) for pair in self._cells}
        own = self._cells.get(self.reference or table.pairs[0], {})
        missing = _missing(column, table, self.reference)
        counts = Counter(
            name
            for pair, units in self._cells.items()
            for name in units.keys() | self._missing[pair]
        )
        # What the reference did not answer cannot be lost, and is no evidence.
        self._answered = [name for name in own if name not in missing]
        # Some pairs were asked for further functions: the grid has those of most.
        self.names = [
            name for name in self._answered if 2 * counts[name] > len(self._cells)
        ]
        self.units = len(self.names)
        self._is_reliable = not _is_unreliable(
            len(missing), len(missing) + len(self._answered)
        )
        self._unreliable = {
            pair
            for pair, lacking in self._missing.items()
            if _is_unreliable(len(lacking), len(lacking | self._cells[pair].keys()))
        }

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
        if not self._is_reliable:
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
        values = {} if pair in self._unreliable else self._cells.get(pair, {})
        if not names or not values.keys() >= set(names):
            return None
        return np.array([values[name] for name in names]) * self.sign

    def shared(self, pair: Pair) -> tuple[Numbers, Numbers] | None:
        """
        What *pair* and the reference have for the units that both were asked for.

        None where there are none, *pair* lacks one of them, or too many answers.
        """
        ours = {} if pair in self._unreliable else self._cells.get(pair, {})
        theirs = self._cells.get(self.reference, {}) if self.reference else {}
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
        return tuple(pair for pair in self._cells if self.of(pair) is None)

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
        odd = verdict.odd_cell(
            scores, alpha=ODD_ALPHA * share, reference=self._place(types)
        )
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
        pairs = list(self._column.cells)
        measured = set(self._cells)
        k_types = dict.fromkeys(pair.k for pair in pairs if pair in measured)
        v_types = dict.fromkeys(pair.v for pair in pairs if pair in measured)
        v_order = [v for v in dict.fromkeys(pair.v for pair in pairs) if v in v_types]
        return tuple(k_types), tuple(v_order)

    def _place(self, types: tuple[tuple[str, ...], tuple[str, ...]]) -> tuple[int, int]:
        """Where the reference stands, which has a value."""
        pair = self.reference or next(iter(self._cells))
        return types[0].index(pair.k), types[1].index(pair.v)

    def _scores(self, types: tuple[tuple[str, ...], tuple[str, ...]]) -> Numbers:
        shape = (len(types[0]), len(types[1]), self.units)
        scores = np.full(shape, math.nan)
        for at, k in enumerate(types[0]):
            for across, v in enumerate(types[1]):
                values = self.of(Pair(k, v))
                if values is not None:
                    scores[at, across] = values
        return scores

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


def _is_unreliable(missing: int, asked: int) -> bool:
    """Whether fewer than `ANSWERED_SHARE` of what was asked have an answer."""
    return missing > (1 - ANSWERED_SHARE) * asked


def _units(column: Column, table: PairTable, pair: Pair) -> dict[str, float]:
    """The value of each unit of *pair*, by name: a needle, a chunk, or a text."""
    record = table.records[pair, column.probe]
    return column.metric.by_unit(record, table.run.setup, table.reading)


def _missing(column: Column, table: PairTable, pair: Pair | None) -> frozenset[str]:
    """Names of the units of *pair* without an answer that the metric is read from."""
    record = table.records.get((pair, column.probe)) if pair else None
    if column.probe != recall.NAME or record is None or not record.has_numbers:
        return frozenset()
    return recall.unanswered(
        record, table.run.setup, recall.part_of(column.metric.name)
    )


def _standings(
    table: PairTable, scored: Mapping[str, UnitScores], certifying: UnitScores | None
) -> tuple[Standing, ...]:
    tried = {record.pair for record in table.run.records}
    pairs = [pair for pair in table.pairs if pair in tried]
    troubles = {pair: _trouble(table, pair) for pair in pairs}
    judged = [pair for pair in pairs if not troubles[pair] and pair != table.reference]
    losses = {
        pair: {
            name: values
            for name, each in scored.items()
            if not each.silent and (values := each.losses(pair)) is not None
        }
        for pair in pairs
    }
    asked = [pair for pair in judged if certifying and certifying.shared(pair)]
    shares = comparisons(table.run.setup, table.reference or pairs[0], asked)
    return tuple(
        Standing(
            pair=pair,
            memory=_memory(table, pair),
            speed=_share(table, SPEED, pair),
            losses={
                name: verdict.mean_interval(values)
                for name, values in losses[pair].items()
            },
            seen=tuple(
                name
                for name, values in losses[pair].items()
                if not scored[name].metric.floor
                if verdict.sign_flip_p(values) <= ALPHA
            ),
            sizes={
                column.metric.name: column.cell(pair).value
                for column in table.columns
                if column.metric.name in SIZES and column.cell(pair).has_value
            },
            certificate=certifying.certificate(pair, comparisons=shares)
            if certifying and pair in judged
            else None,
            trouble=troubles[pair],
        )
        for pair in pairs
    )


def _trouble(table: PairTable, pair: Pair) -> str:
    """Why nothing is said of the quality of *pair*."""
    records = [table.records.get((pair, probe)) for probe in table.probes]
    failed = [each for each in records if each and not each.has_numbers]
    if failed:
        return visible(f"{failed[0].status.value}: {failed[0].reason}")
    record, setup = table.records.get((pair, recall.NAME)), table.run.setup
    whole = table.records.get((table.reference or pair, recall.NAME))
    if record is None or whole is None or not whole.has_numbers:
        return ""
    for part in recall.asked_of(setup).parts:
        # An engine may have no scores of forced lines: nobody has them then.
        if recall.is_answered(whole, setup, part):
            asked = len(recall.asked_for(record, part))
            missing = len(recall.unanswered(record, setup, part))
            if _is_unreliable(missing, asked):
                answered = asked - missing
                return f"unreliable: {answered} of {asked} functions have an answer"
    return ""


def comparisons(setup: Setup, reference: Pair, asked: Iterable[Pair]) -> int:
    """
    Pairs whose certificates share the chance of an error.

    Those that were *asked*, and those that were chosen to be asked: the number must
    not follow from the answers.
    """
    chosen = {*asked, *map(Pair.parse, setup.finalists)} - {reference}
    return max(len(chosen), 1)


def deciding_metrics(run: Run, reading: Reading) -> list[UnitScores]:
    """The metrics that can tell lost units, the first one first, silent or not."""
    table = pair_table(run, tuple(PROBES.values()), reading)
    found = scored_metrics(table).values()
    return [each for each in found if each.metric.lost_from is not None]


def _memory(table: PairTable, pair: Pair) -> float | None:
    """The KV cache of *pair* by the reference's, as one probe measured both."""
    for probe in table.probes:
        ours = table.records.get((pair, probe))
        whole = table.records.get((table.reference or pair, probe))
        if ours and whole and ours.effective.context == whole.effective.context:
            size, of = ours.effective.kv_mib, whole.effective.kv_mib
            if size is not None and of:
                return size / of
    return None


def _share(table: PairTable, name: str, pair: Pair) -> float | None:
    """The value of *pair* as a share of the reference's; None where there is none."""
    column = next((c for c in table.columns if c.metric.name == name), None)
    if column is None or table.reference is None:
        return None
    whole = column.cell(table.reference).value
    share = column.cell(pair).value / whole if whole else math.nan
    return share if math.isfinite(share) else None


def _with_front(
    standings: Sequence[Standing], reference: Pair, ranking: str
) -> tuple[Standing, ...]:
    """Mark the pairs that no other one beats in loss, memory and speed."""
    sound = [
        each
        for each in standings
        if not each.trouble and each.memory is not None
        if not ranking or ranking in each.losses
    ]
    if not sound:
        return tuple(standings)
    # Of a pair that was not asked nothing is known where others were.
    unknown = 1.0 if any(each.certificate for each in sound) else 0.0
    costs, margins = [], []
    for each in sound:
        is_reference = each.pair == reference
        certificate = each.certificate
        upper = certificate.upper if certificate else unknown * (not is_reference)
        loss, half = each.losses.get(ranking, (0.0, 0.0))
        costs.append([upper, loss, each.memory or 1.0, -(each.speed or 0.0)])
        margins.append([0.0, half, 0.0, SPEED_MARGIN])
    rows = verdict.pareto_front(np.array(costs), np.array(margins))
    front = {sound[row].pair for row in rows}
    return tuple(replace(s, is_on_front=s.pair in front) for s in standings)


SPEED_MARGIN = 0.03
"""Shares of speed closer than this are not told apart: machines are noisy."""


def _advice(found: Verdict, table: PairTable, limits: Limits) -> Iterator[Advice]:
    """The recommendations, the one to follow first; none twice."""
    sound = [each for each in found.standings if not each.trouble]
    smaller = sorted(
        (s for s in sound if s.memory is not None and s.memory < 1),
        key=lambda s: (s.memory, s.pair.k),
    )
    offers = [_within(smaller, table, limits)] if limits.by_metric else []
    offers += [
        _nothing_lost(found, smaller),
        _least_memory(found, smaller),
        *_fastest(found, sound),
    ]
    told: set[Pair] = set()
    for offer in offers:
        if offer.pair is None or offer.pair not in told:
            yield offer
        told |= {offer.pair} if offer.pair else set()


NO_SMALLER = "no smaller cache could be judged, or no log tells its size"


def _least_memory(found: Verdict, smaller: Sequence[Standing]) -> Advice:
    candidates = [s.pair for s in smaller if _shows_no_loss(found, s)]
    if candidates:
        reason = (
            "the smallest cache of which no loss was shown; that is no proof that "
            "nothing is lost"
        )
    elif smaller:
        reason = (
            "of every smaller cache a loss was seen, or nothing could be; state "
            "what you can bear: --max-changed 2% or --max-kld 0.01"
        )
    else:
        reason = NO_SMALLER
    pair = candidates[0] if candidates else None
    return Advice(goal=LEAST_MEMORY, pair=pair, reason=reason)


def _fastest(found: Verdict, sound: Sequence[Standing]) -> Iterator[Advice]:
    """The fastest pair that is not worse, if it is faster than the reference."""
    speeds = {
        s.pair: s.speed
        for s in sound
        if s.speed is not None and _shows_no_loss(found, s)
    }
    best = max(speeds, key=lambda pair: speeds[pair], default=None)
    if best and speeds[best] > 1 + SPEED_MARGIN:
        reason = "writes fastest of those of which no loss was shown"
        yield Advice(goal=FASTEST, pair=best, reason=reason)


def _shows_no_loss(found: Verdict, standing: Standing) -> bool:
    """
    Whether a pair was compared with the reference and nothing speaks against it.

    Against it speaks that it costs, or that it alone is seen to be less. A pair that
    only distances could compare has shown nothing.
    """
    voting = {each.metric.name for each in found.judged if each.votes}
    return (
        standing.pair != found.reference
        and bool(voting & standing.losses.keys())
        and not standing.seen
        and found.word(standing.pair) != COSTS
    )


def _nothing_lost(found: Verdict, smaller: Sequence[Standing]) -> Advice:
    goal = NOTHING_LOST
    free = [each for each in smaller if found.word(each.pair) == FREE]
    if free:
        words = _lost_words(found, free[0])
        return Advice(goal=goal, pair=free[0].pair, reason=words)
    if found.certified is None:
        return Advice(
            goal=goal,
            pair=None,
            reason="no pair can be called free: recall or a task that the model can "
            "do was not measured",
        )
    certificates = [s.certificate for s in smaller if s.certificate]
    more = [each.more for each in certificates if each.verdict == UNDECIDED]
    if not more:
        reason = "every smaller cache that could be judged loses something"
        if not smaller:
            reason = NO_SMALLER
        elif not certificates:
            reason = "no smaller cache has answers to compare with the reference's"
        return Advice(goal=goal, pair=None, reason=reason)
    return Advice(
        goal=goal,
        pair=None,
        reason=f"not shown of any pair: it takes {min(more)} more "
        f"{found.certified.noun} that could be lost, and none that is, to show that "
        "fewer than "
        f"{LOST_SHARE:.0%} are",
    )


def _lost_words(found: Verdict, standing: Standing) -> str:
    certificate = standing.certificate
    if certificate is None or found.certified is None:
        return ""
    return (
        f"{certificate.lost} {found.certified.noun} lost {found.certified.lost_from:g} "
        f"{found.certified.unit} or more, of {certificate.needles} that could; fewer "
        f"than {LOST_SHARE:.0%} do ({ALPHA:.0%} error over the whole grid)"
    )


def _within(smaller: Sequence[Standing], table: PairTable, limits: Limits) -> Advice:
    """
    The smallest cache whose loss is surely within what the user can bear.

    The pairs that could be named share the 5 % of error: the smallest of many bounds
    is low by chance.
    """
    goal = WITHIN_LIMIT
    by_name = {column.metric.name: column for column in table.columns}
    missing = [name for name in limits.by_metric if name not in by_name]
    if missing:
        reason = f"{missing[0]} was not measured: sweep with --probe divergence"
        return Advice(goal=goal, pair=None, reason=reason)
    tried = [
        each
        for each in smaller
        if all(by_name[name].cell(each.pair).has_value for name in limits.by_metric)
    ]
    for standing in tried:
        uppers = {
            name: _upper_loss(
                by_name[name], table, standing.pair, alpha=ALPHA / len(tried)
            )
            for name in limits.by_metric
        }
        if all(uppers[name] <= limit for name, limit in limits.by_metric.items()):
            words = ", ".join(
                f"{_loss_word(name)} at most {number(upper, digits=4)}"
                for name, upper in uppers.items()
            )
            reason = f"the smallest cache that is surely within: {words}"
            return Advice(goal=goal, pair=standing.pair, reason=reason)
    return Advice(
        goal=goal, pair=None, reason="no smaller cache is surely within the limit"
    )


def _loss_word(name: str) -> str:
    return {"top1": "tokens with another first choice (%)", "kld": "KLD (nats)"}[name]


def _upper_loss(column: Column, table: PairTable, pair: Pair, *, alpha: float) -> float:
    """Upper bound of a loss, wrong by *alpha*; infinite without several chunks."""
    units = np.array(list(_units(column, table, pair).values()))
    if column.metric.name == "top1":
        units = 100 - units
    return sum(verdict.mean_interval(units, alpha=2 * alpha))
