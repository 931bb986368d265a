"""Judges each pair of a run: within the limit, beyond it, or open."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from codeneedle.grid import (
    FULL_BITS,
    Pair,
    bits,
    by_precision,
    most_precise,
    most_precise_first,
)
from codeneedle.models.pretrained import BUILT_IN
from codeneedle.probes import PROBES, frames
from codeneedle.probes.evaluation.metrics import NOTABLE_LOSS, samples_needed
from codeneedle.probes.metrics import Loss, LossKind, Metric
from codeneedle.probes.probe import Probe
from codeneedle.records.record import AGAIN, CellRecord, Effective, KvBuffer, Run
from codeneedle.text import MIB
from codeneedle.verdict.lengths import LostFrom, lost_from
from codeneedle.verdict.statistics import (
    Bounds,
    Word,
    error_share,
    interval,
    lost_share,
    units_needed,
)

MAX_LOSS = 0.01
"""
Largest loss: one of a hundred right tokens.

About what 4-bit weights cost: of Llama 3 8B on ordinary text, Q4_K_M weights lose
0.6 % of the probability of the right token, Q4_K_S 0.9 %, Q4_0 1.6 % (mean Δp of the
tables in ``tools/perplexity/README.md`` of llama.cpp).
"""

MAX_LOST = 0.10
"""Largest share of lost answers."""

MAX_EVAL_LOST = 0.02
"""Largest loss of the mean score of an evaluation: two of a hundred samples."""

FEWEST_FLIPS = 6
"""
Samples that differ below which their spread is not known.

Of fewer, all on one side, none gives a two-sided exact test a p below 0.05.
"""

CHANGE_BY_LOSS = 3.0
"""
Nats of divergence that are borne per loss.

Q4_K_M weights change by 0.031 nats where they lose 0.6 %; source as of `MAX_LOSS`.
"""

ABLE = 0.2
"""A reference that has less of what is asked right has too little to lose."""

BOUNDED = 0.001
"""Share of tokens of which a bound alone is known, up to which it does not matter."""

FEWEST_UNITS = 6
"""Units below which no interval is narrow enough to say anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    What a user is ready to lose.

    Attributes:
        max_loss: Right tokens, as a share.
        max_lost: Answers that are lost, as a share of those that the reference has.
        max_eval_lost: Of the mean score of an evaluation.
        max_memory_bytes: Size of the KV cache; None for any.
        at: The context that this size is meant for, in tokens; None for the run's.
    """

    max_loss: float = MAX_LOSS
    max_lost: float = MAX_LOST
    max_eval_lost: float = MAX_EVAL_LOST
    max_memory_bytes: int | None = None
    at: int | None = None

    def of(self, kind: LossKind) -> float:
        """The limit of a metric whose losses are of this *kind*."""
        if kind is LossKind.ANSWERS:
            return self.max_lost
        if kind is LossKind.SCORE:
            return self.max_eval_lost
        if kind is LossKind.CHANGE:
            return CHANGE_BY_LOSS * self.max_loss
        return self.max_loss

    def phrase(self, kind: LossKind, loss: float) -> str:
        """
        A loss of this *kind*: ``0.9 %``, never ``-0.0 %``; ``0.0120 nats`` of a change.

        Smaller limits have more digits.
        """
        digits = 1 - math.floor(math.log10(self.of(kind)))
        if kind is LossKind.CHANGE:
            return f"{loss:.{max(4, digits + 1)}f} nats"
        return f"{100 * loss:z.{max(1, digits - 2)}f} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    What one metric says of one pair.

    Attributes:
        metric: The metric.
        bounds: Of the mean loss; of answers, of the share lost.
        limit: What they are held against.
        word: Where they lie beside it.
        needed: Units after which it would be decided, if further ones are like these;
            None where that is not known, or nothing is open.
        lost: Units lost, of answers and scores; 0 of others.
        won: Units with a higher score; 0 of others.
        remark: Why the word is not what the bounds say, if so; empty else.
    """

    metric: Metric
    bounds: Bounds
    limit: float
    word: Word
    needed: int | None = None
    lost: int = 0
    won: int = 0
    remark: str = ""

    @property
    def kind(self) -> LossKind:
        """Of its losses."""
        if self.metric.loss is None:
            raise ValueError(f"{self.metric.name} has no loss")
        return self.metric.loss.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """
    What is known of one pair.

    Attributes:
        pair: The cache types.
        memory: Size of its KV cache by the reference's; None if unknown.
        memory_bytes: Size of its KV cache, at the context of `Limits`; None if unknown.
        speed: Of writing, by the reference's; None if not measured.
        rows: One for each metric that compares it with the reference.
        word: What all of them say; None of the reference, and of a pair in trouble.
        trouble: Why nothing is said of it; empty if something is.
        lacking: Names of graded metrics that it has no value of, where others have.
    """

    pair: Pair
    memory: float | None = None
    memory_bytes: float | None = None
    speed: float | None = None
    rows: tuple[Row, ...] = ()
    word: Word | None = None
    trouble: str = ""
    lacking: tuple[str, ...] = ()

    @property
    def leading(self) -> Row | None:
        """The row that decides its word: of several, the farthest from its limit."""
        rows = [row for row in self.rows if row.word is self.word] or list(self.rows)
        graded = [row for row in rows if row.kind.is_graded] or rows
        return max(graded, key=_severity, default=None)

    def row(self, metric: str) -> Row | None:
        """What the metric of that name says of it."""
        return next((row for row in self.rows if row.metric.name == metric), None)


def _severity(row: Row) -> float:
    return (row.bounds.low if row.word is Word.BEYOND else row.bounds.high) / row.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """
    What a run allows to conclude.

    Attributes:
        run: The run.
        limits: What the pairs are held against.
        reference: The pair that all are compared with; None without numbers.
        standings: One for each pair with a record, most precise first.
        chosen: The pair to set; None where the reference is to be kept.
        units: How many units each metric has, by its name; of the reference.
        silent: Metrics that have no say, by name, and why.
        repeats: By metric, how far the reference is from its own repetition.
        flips: By metric, units that the repetition of the reference has lost and won.
        lost_from: Lengths from which on pairs lose the answers to a task.
    """

    run: Run
    limits: Limits
    reference: Pair | None = None
    standings: tuple[Standing, ...] = ()
    chosen: Pair | None = None
    units: Mapping[str, int] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    repeats: Mapping[str, float] = field(default_factory=dict)
    flips: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    lost_from: tuple[LostFrom, ...] = ()

    @property
    def is_instrument(self) -> bool:
        """Whether the built-in model was measured, which is no language model."""
        return self.run.setup.weights.name == BUILT_IN

    @property
    def graded(self) -> bool:
        """Whether a metric whose mean loss has a limit has a say."""
        rows = (row for standing in self.standings for row in standing.rows)
        return any(row.kind.is_graded or row.kind is LossKind.SCORE for row in rows)

    @property
    def compared(self) -> tuple[Standing, ...]:
        """The pairs that a metric compares with the reference."""
        return tuple(each for each in self.standings if each.word is not None)

    def standing(self, pair: Pair) -> Standing | None:
        """What is known of *pair*; None without a record of it."""
        return next((each for each in self.standings if each.pair == pair), None)

    def word(self, pair: Pair, metric: str = "") -> str:
        """
        What reports say of *pair*: ``within``, ``beyond`` or ``open``.

        Empty for the reference, a pair in trouble, and where nothing compares it.

        Args:
            pair: Any pair.
            metric: Name of the only metric to ask; all of them if empty.
        """
        standing = self.standing(pair)
        if standing is None or standing.trouble:
            return ""
        if not metric:
            return standing.word or ""
        row = standing.row(metric)
        return row.word if row else ""

    def types_all(self, word: Word, axis: str, metric: str = "") -> list[str]:
        """
        The types of *axis*, ``k`` or ``v``, of which every pair has that *word*.

        Only those with two pairs or more beside the reference; most precise first.
        By the *metric* of that name alone, or by all if empty.
        """
        by_type: dict[str, list[str]] = {}
        for each in self.compared:
            if says := self.word(each.pair, metric):
                by_type.setdefault(getattr(each.pair, axis), []).append(says)
        return by_precision(
            name
            for name, words in by_type.items()
            if len(words) > 1 and {*words} == {word}
        )


def judge(run: Run, limits: Limits | None = None) -> Verdict:
    """
    Judge *run* by all that was measured.

    In at most 5 % of sweeps is any pair wrongly called within; likewise beyond, by
    any metric. Only the latest look at a pair counts.

    Args:
        run: With the records of all probes.
        limits: What the user can bear to lose.
    """
    limits = limits or Limits()
    scores = list(_scores(run))
    reference = next((each.reference for each in scores if each.reference), None)
    if reference is None:
        return Verdict(run=run, limits=limits)
    repeats = {each.metric.name: each.repetition() for each in scores}
    silent = {
        each.metric.name: reason for each in scores if (reason := each.silence(limits))
    }
    speaking = [each for each in scores if each.metric.name not in silent]
    lost = tuple(lost_from(run, limits.max_lost))
    found = Verdict(
        run=run,
        limits=limits,
        reference=reference,
        standings=tuple(
            replace(each, rows=rows, word=_word(rows, each.lacking))
            if each.word and (rows := _charged(each, lost))
            else each
            for each in _standings(run, speaking, reference, limits)
        ),
        units={each.metric.name: len(each.of_reference) for each in scores},
        silent=silent,
        repeats={name: loss for name, loss in repeats.items() if loss is not None},
        flips={each.metric.name: each.flips() for each in scores if each.is_repeated},
        lost_from=lost,
    )
    return replace(found, chosen=_chosen(found))


# --- metrics, unit by unit


_ENDS = {
    LossKind.PROBABILITY: (-1.0, 1.0),
    LossKind.NATS: (-math.inf, 1.0),
    LossKind.CHANGE: (0.0, math.inf),
    LossKind.SCORE: (-1.0, 1.0),
}
"""The least and the largest loss that there can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """
    One metric, unit by unit.

    Attributes:
        metric: The metric.
        loss: How it enters the verdict.
        probe: What measured it.
        run: The run.
        reference: The pair that others are compared with; None where there is none.
        records: Of the pairs that have values.
        units: Of each of them, what losses are computed of, by the names of units.
        again: The second record of the reference; None without one.
    """

    metric: Metric
    loss: Loss
    probe: Probe
    run: Run
    reference: Pair | None
    records: Mapping[Pair, CellRecord]
    units: Mapping[Pair, Mapping[str, float]]
    again: CellRecord | None

    @property
    def of_reference(self) -> Mapping[str, float]:
        """The units of the reference."""
        return self.units.get(self.reference, {}) if self.reference else {}

    def losses(self, units: Mapping[str, float]) -> list[float]:
        """The loss of each of *units* that the reference has, too."""
        both = [(self.of_reference[name], units[name]) for name in self._shared(units)]
        if self.loss.kind is LossKind.CHANGE:
            return [ours for _, ours in both]
        if self.loss.kind is LossKind.NATS:
            return [-math.expm1(ours - theirs) for theirs, ours in both]
        if self.loss.kind is LossKind.ANSWERS:
            lost_from = self.loss.lost_from
            return [float(theirs - ours >= lost_from) for theirs, ours in both]
        return [theirs - ours for theirs, ours in both]

    def _shared(self, units: Mapping[str, float]) -> list[str]:
        return [name for name in self.of_reference if name in units]

    def repetition(self) -> float | None:
        """How far the reference is from its own repetition; None without one."""
        if self.again is None:
            return None
        again = self.metric.by_unit(self.again, self.run.setup)
        if self.loss.kind is LossKind.ANSWERS:
            least = self.loss.lost_from
            gaps = [
                again[name] - self.of_reference[name] for name in self._shared(again)
            ]
            losses = [float(abs(gap) >= least) for gap in gaps]
        else:
            losses = self.losses(again)
        return abs(math.fsum(losses)) / len(losses) if losses else None

    def silence(self, limits: Limits) -> str:
        """Why the metric has no say; empty if it has."""
        reference = self.reference
        if reference is None:
            return "the pair that others were measured against has no value"
        able = self.loss.able(self.records[reference], self.run.setup)
        if able < ABLE:
            return (
                f"the model itself has {able:.0%} right with {reference}, so there is "
                "little to lose"
            )
        if self.loss.kind is LossKind.SCORE:
            return ""  # what sampling makes scores differ by is in their intervals
        repeated, kind = self.repetition(), self.loss.kind
        if repeated is not None and repeated > limits.of(kind):
            return (
                f"{reference}, measured twice, differs from itself by "
                f"{limits.phrase(kind, repeated)}, more than the limit of "
                f"{limits.phrase(kind, limits.of(kind))}: this engine does not repeat "
                "itself so closely"
            )
        return ""

    def row(self, pair: Pair, limits: Limits) -> Row | None:
        """What it says of *pair*; None where they share no unit."""
        losses = self.losses(self.units.get(pair, {}))
        if not losses:
            return None
        pairs, limit = len(self.units) - 1, limits.of(self.loss.kind)
        look = self.probe.look(self.records[pair], self.run.setup)
        share = error_share(look, pairs)
        lost, won = _counts(losses) if self.loss.kind in _COUNTED else (0, 0)
        is_score = self.loss.kind is LossKind.SCORE
        is_untold = is_score and lost + won < FEWEST_FLIPS
        if self.loss.kind is LossKind.ANSWERS:
            bounds = lost_share(lost, len(losses), share)
        elif is_untold:
            bounds = _by_counts(losses, share)
        else:
            bounds = interval(losses, share).clipped(*_ENDS[self.loss.kind])
        word = bounds.word(limit)
        remark, word = self._remark(pair, losses, word)
        needed = None
        if word is Word.OPEN and is_untold:
            told = _untold(lost + won, len(losses), share)
            remark = f"{remark}; {told}" if remark else told
        elif word is Word.OPEN and self.loss.kind is not LossKind.ANSWERS:
            needed = units_needed(losses, limit, look=look + 1, pairs=pairs)
        return Row(
            metric=self.metric,
            bounds=bounds,
            limit=limit,
            word=word,
            needed=needed,
            lost=lost,
            won=won,
            remark=remark,
        )

    @property
    def is_repeated(self) -> bool:
        """Whether it is of scores, and the reference has been evaluated again."""
        return self.again is not None and self.loss.kind is LossKind.SCORE

    def flips(self) -> tuple[int, int]:
        """Units that the reference has lost and won in its repetition."""
        if self.again is None:
            return (0, 0)
        again = self.metric.by_unit(self.again, self.run.setup)
        return _counts(self.losses(again))

    def _remark(
        self, pair: Pair, losses: Sequence[float], word: Word
    ) -> tuple[str, Word]:
        """Why *word* is not to be believed as it stands, and what it is then."""
        reference = self.records[self.reference or pair]
        if self.loss.bounded(reference) > BOUNDED and word is Word.BEYOND:
            words = "of some tokens of the reference only a bound is known"
            return f"{words}: it may lose less", Word.OPEN
        missing, of = self._missing(pair)
        if missing:
            words = f"answers missing: {missing} of {of} {self.metric.noun}"
            return words, Word.OPEN if word is Word.WITHIN else word
        if self.loss.bounded(self.records[pair]) > BOUNDED and word is Word.WITHIN:
            return "of some tokens only a bound is known: it may lose more", Word.OPEN
        if self.loss.kind not in _COUNTED and not any(losses):
            return "the same to the last digit: is this cache what it claims?", word
        return "", word

    def _missing(self, pair: Pair) -> tuple[int, int]:
        """Units that *pair* was asked, lacks and the reference has; and all asked."""
        if self.loss.units is None:
            return 0, 0
        asked = self.loss.units(self.records[pair], self.run.setup)
        lacking = [name for name in asked if name not in self.units[pair]]
        return sum(name in self.of_reference for name in lacking), len(asked)


_COUNTED = frozenset({LossKind.ANSWERS, LossKind.SCORE})
"""Of which so often nothing differs that this is no reason for doubt."""


def _counts(losses: Sequence[float]) -> tuple[int, int]:
    """How many units have lost, and won."""
    return sum(loss > 0 for loss in losses), sum(loss < 0 for loss in losses)


def _by_counts(losses: Sequence[float], share: float) -> Bounds:
    """
    The mean loss, where too few units differ for their spread to be known.

    No unit loses more than 1, so that the mean is at most the share that loses; it is
    at least minus the share that wins.
    """
    (lost, won), units = _counts(losses), len(losses)
    return Bounds(
        mean=math.fsum(losses) / units,
        low=-lost_share(won, units, share).high,
        high=lost_share(lost, units, share).high,
        units=units,
    )


def _untold(flips: int, units: int, share: float) -> str:
    """Why so few samples tell nothing, and how many would."""
    needed = samples_needed(flips / units, share=share)
    return (
        f"cannot be told: {flips} of {units} samples differ; about {needed:,} would "
        f"tell a loss of {100 * NOTABLE_LOSS:.0f} points"
    )


def _scores(run: Run) -> Iterator[_Scores]:
    """Each metric that enters the verdict and has values; graded ones first."""
    metrics = [
        (probe, metric, metric.loss)
        for probe in PROBES.values()
        for metric in probe.metrics_of(run.setup)
        if metric.loss
    ]
    metrics.sort(key=lambda each: not each[2].kind.is_graded)
    for probe, metric, loss in metrics:
        records = {
            record.pair: record
            for record in run.records
            if record.probe == probe.name and record.has_numbers
        }
        units = {
            pair: of_pair
            for pair, record in records.items()
            if (of_pair := metric.by_unit(record, run.setup))
        }
        if not units:
            continue
        reference = _reference(metric, [records[pair] for pair in units])
        yield _Scores(
            metric=metric,
            loss=loss,
            probe=probe,
            run=run,
            reference=reference,
            records=records,
            units=units,
            again=next(
                (
                    record
                    for record in run.records
                    if record.probe == probe.name + AGAIN
                    if record.pair == reference and record.has_numbers
                ),
                None,
            ),
        )


def _reference(metric: Metric, records: Sequence[CellRecord]) -> Pair | None:
    """The pair that *records* were measured against, else the most precise one."""
    pairs = [record.pair for record in records]
    named = {frames.reference_named_by(metric, record) for record in records} - {""}
    if not named:
        return most_precise(pairs)
    reference = Pair.parse(min(named))
    return reference if len(named) == 1 and reference in pairs else None


# --- pairs


def _standings(
    run: Run, scores: Sequence[_Scores], reference: Pair, limits: Limits
) -> Iterator[Standing]:
    records = [r for r in run.records if not r.probe.endswith(AGAIN)]
    pairs = most_precise_first({record.pair for record in records})
    context = limits.at or run.setup.context
    sizes = {pair: _kv_bytes(pair, records, context) for pair in pairs}
    speeds = _speeds(run)
    graded = [each for each in scores if each.loss.kind.is_graded]
    answers = [each for each in scores if each.loss.kind is LossKind.ANSWERS]
    evaluated = [each for each in scores if each.loss.kind is LossKind.SCORE]
    for pair in pairs:
        rows = [
            row
            for each in scores
            if pair != each.reference and (row := each.row(pair, limits))
        ]
        trouble = _trouble(pair, records)
        named = {row.metric.name for row in rows}
        lacking = tuple(
            each.metric.name
            for each in (graded or answers) + evaluated
            if each.metric.name not in named
        )
        is_compared = rows and pair != reference and not trouble
        yield Standing(
            pair=pair,
            memory=_ratio(sizes[pair], sizes.get(reference)),
            memory_bytes=sizes[pair],
            speed=_ratio(speeds.get(pair), speeds.get(reference)),
            rows=() if trouble else tuple(rows),
            word=_word(rows, lacking) if is_compared else None,
            trouble=trouble,
            lacking=lacking if is_compared else (),
        )


def _word(rows: Sequence[Row], lacking: Sequence[str]) -> Word:
    """
    Beyond by one is beyond; within needs all that are graded, or all answers, and
    every evaluation.
    """
    if any(row.word is Word.BEYOND for row in rows):
        return Word.BEYOND
    graded = [row for row in rows if row.kind.is_graded]
    answers = [row for row in rows if row.kind is LossKind.ANSWERS]
    change = [row for row in rows if row.kind is LossKind.CHANGE]
    scores = [row for row in rows if row.kind is LossKind.SCORE]
    deciding = (graded or answers) + scores
    is_within = all(row.word is Word.WITHIN for row in (*deciding, *change))
    return Word.WITHIN if deciding and is_within and not lacking else Word.OPEN


def _charged(standing: Standing, lost: Iterable[LostFrom]) -> tuple[Row, ...]:
    """The rows of a pair; what it loses at great lengths alone is beyond, too."""
    remark = "; ".join(
        f"{each.task}: lost from {each.length:,} tokens on"
        for each in lost
        if each.pair == standing.pair
    )
    return tuple(
        replace(row, word=Word.BEYOND, remark=remark)
        if remark and row.kind is LossKind.ANSWERS and row.metric.noun == "texts"
        else row
        for row in standing.rows
    )


def _trouble(pair: Pair, records: Iterable[CellRecord]) -> str:
    """Why nothing is said of the quality of *pair*; empty if something is."""
    timed = {name for name, probe in PROBES.items() if probe.is_timed}
    return next(
        (
            f"{record.status.value}: {record.reason}"
            for record in records
            if record.pair == pair and record.probe not in timed
            if not record.has_numbers
        ),
        "",
    )


def _kv_bytes(pair: Pair, records: Iterable[CellRecord], context: int) -> float | None:
    """Size of the KV cache of *pair* at *context* tokens, as its log has it."""
    for record in records:
        if record.pair == pair and record.effective.kv:
            return math.fsum(
                _buffer_bytes(buffer, record.effective, context)
                for buffer in record.effective.kv
            )
    return None


def _buffer_bytes(buffer: KvBuffer, effective: Effective, context: int) -> float:
    """A buffer at another *context*: a sliding window does not grow with it."""
    longest = max(each.cells for each in effective.kv)
    cells = context if buffer.cells == longest else min(context, buffer.cells)
    return (buffer.k_mib + buffer.v_mib) * MIB * cells / max(buffer.cells, 1)


def _speeds(run: Run) -> dict[Pair, float]:
    """Tokens per second of writing, where that was measured."""
    return {
        cell.pair: cell.value
        for probe in PROBES.values()
        if probe.is_timed
        for cell in frames.cells_frame(
            frames.of_probe(run, probe.name), probe.metrics[0]
        )
        if cell.has_value
    }


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else ours / theirs


def _chosen(found: Verdict) -> Pair | None:
    """What to set: the smallest cache within, or what loses least of all that fit."""
    if found.is_instrument:
        return None
    most = found.limits.max_memory_bytes
    if most is None:
        within = [each for each in found.compared if each.word is Word.WITHIN]
        smaller = [each for each in within if cache_size(each) < 1]
        return min(smaller, key=cache_size).pair if smaller else None
    fitting = [
        each
        for each in found.standings
        if each.memory_bytes is not None and each.memory_bytes <= most
    ]
    if any(each.pair == found.reference for each in fitting):
        return None
    # By divergence alone nothing is recommended.
    judged = [
        each
        for each in fitting
        if any(row.kind is not LossKind.CHANGE for row in each.rows)
    ]
    return min(judged, key=_at_most).pair if judged else None


def _at_most(standing: Standing) -> tuple[float, float]:
    """What a pair loses at most, and what was measured, by the limit of its metric."""
    row = standing.leading
    if row is None:
        return (math.inf, math.inf)
    return (row.bounds.high / row.limit, row.bounds.mean / row.limit)


def cache_size(standing: Standing) -> float:
    """
    Size of a pair's cache by the reference's; by the bits of its types where no log
    tells. Infinite where nothing does.
    """
    if standing.memory is not None:
        return standing.memory
    sizes = [bits(standing.pair.k), bits(standing.pair.v)]
    known = [size for size in sizes if size is not None]
    is_known = len(known) == len(sizes)
    return math.fsum(known) / (2 * FULL_BITS) if is_known else math.inf


def best_by_size(standings: Sequence[Standing]) -> list[Standing]:
    """
    Those of which no other has as small a cache and loses less, the smallest first.

    Losses are measured by the limit of their metric.
    """
    best: list[Standing] = []
    losses = {each.pair: _measured(each) for each in standings}
    ordered = sorted(
        standings, key=lambda s: (cache_size(s), losses[s.pair], str(s.pair))
    )
    for each in ordered:
        least = losses[best[-1].pair] if best else math.inf
        if losses[each.pair] < least:
            best.append(each)
    return best


def _measured(standing: Standing) -> float:
    row = standing.leading
    return row.bounds.mean / row.limit if row else math.inf
