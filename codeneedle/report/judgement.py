"""Judges a run by all that was measured: what types cost, and which pair to set."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from codeneedle.analysis import recall, verdict
from codeneedle.analysis.metrics import Metric
from codeneedle.analysis.verdict import (
    ALPHA,
    LOST_SHARE,
    Certificate,
)
from codeneedle.grid import Pair
from codeneedle.probes import PROBES
from codeneedle.records.record import Run, Setup
from codeneedle.report.captions import number
from codeneedle.report.table import Column, PairTable, pair_table
from codeneedle.report.units import (
    AXES,
    Judged,
    UnitScores,
    is_unreliable,
    scored_metrics,
    units_of,
)
from codeneedle.scoring.rounds import Reading
from codeneedle.text import visible

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
    speaking: Sequence[UnitScores], certifying: UnitScores | None
) -> dict[str, float]:
    """The share of the false alarms of each metric, by name; they sum to 1."""
    names = [each.metric.name for each in speaking]
    first = certifying.metric.name if certifying else next(iter(names), "")
    if len(names) == 1:
        return {first: 1.0}
    rest = (1 - FIRST_SHARE) / max(len(names) - 1, 1)
    return {name: FIRST_SHARE if name == first else rest for name in names}


def _certifying(speaking: Sequence[UnitScores]) -> UnitScores | None:
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
            if is_unreliable(missing, asked):
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
    free = next((each for each in smaller if found.word(each.pair) == FREE), None)
    return Advice(
        goal=NOTHING_LOST,
        pair=free.pair if free else None,
        reason=_lost_words(found, smaller, free),
    )


def _lost_words(
    found: Verdict, smaller: Sequence[Standing], free: Standing | None
) -> str:
    """Why *free* loses nothing, or why that was not shown of any *smaller* pair."""
    certified, certificates = found.certified, [s.certificate for s in smaller]
    if certified is None:
        return (
            "no pair can be called free: recall or a task that the model can do was "
            "not measured"
        )
    if free and free.certificate:
        return (
            f"{free.certificate.lost} {certified.noun} lost {certified.lost_from:g} "
            f"{certified.unit} or more, of {free.certificate.needles} that could; "
            f"fewer than {LOST_SHARE:.0%} do ({ALPHA:.0%} error over the whole grid)"
        )
    more = [each.more for each in certificates if each and each.verdict == UNDECIDED]
    if more:
        return (
            f"not shown of any pair: {min(more)} more {certified.noun} without a loss "
            f"would show that fewer than {LOST_SHARE:.0%} are lost"
        )
    if not smaller:
        return NO_SMALLER
    if any(certificates):
        return "every smaller cache that could be judged loses something"
    return "no smaller cache has answers to compare with the reference's"


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
    units = np.array(list(units_of(column, table, pair).values()))
    if column.metric.name == "top1":
        units = 100 - units
    return sum(verdict.mean_interval(units, alpha=2 * alpha))
