"""
Decides pairs: all are screened at reading speed, and a few are asked for functions
until each is decided.

Which pairs are asked follows from the screening alone; how long they are asked, from
their answers. The certificates of `analysis.verdict` hold at any time, so that a sweep
may be stopped and continued at will.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from rich.console import Console

from codeneedle.analysis import verdict
from codeneedle.analysis.recall import NAME as RECALL
from codeneedle.analysis.recall import Ask, asked_of, part_of
from codeneedle.analysis.verdict import Certificate
from codeneedle.cli.progress import SweepDisplay, SweepProgress, note_lines, say
from codeneedle.corpora.corpus import BLOCK, LIMIT
from codeneedle.errors import BadInput, CellError
from codeneedle.grid import Pair
from codeneedle.probes import PROBES
from codeneedle.probes.probe import ProbeContext
from codeneedle.probes.recall import Block, measure_blocks
from codeneedle.records.record import (
    CellRecord,
    Json,
    Recall,
    Run,
    Setup,
    Status,
    as_json,
)
from codeneedle.records.store import Store
from codeneedle.report.judgement import (
    UNDECIDED,
    UnitScores,
    comparisons,
    deciding_metrics,
    judge,
)
from codeneedle.scoring.rounds import Reading, recall_of
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.prepare import with_further
from codeneedle.sweep.request import Request
from codeneedle.sweep.runner import Event, Runner
from codeneedle.text import duration, one_line, plural, visible

SCREENS = ("divergence", "copy")
"""
Probes that screen. The first is the default: with SmolLM2 on two cores four chunks of
it take 19 s a pair where 16 copies take 75 s, and it has no floor on weak models.
"""

FINALISTS = 5
"""Pairs that are decided, at most: each raises the evidence that all of them need."""


def deciding(request: Request, *, screens: bool) -> Request:
    """
    *request* with the probes that it takes: recall, behind those that screen.

    Args:
        request: What a user asked for.
        screens: Whether pairs are screened, or one is named.

    Raises:
        BadInput: If a probe is asked for that decides nothing.
    """
    others = [name for name in request.probes if name not in {*SCREENS, RECALL}]
    if request.shard is not None:
        raise BadInput(
            source=f"--shard {request.shard}",
            reason="a share of the grid cannot choose which pairs to decide",
            hint="Sweep shares with --probe divergence, then decide without --shard.",
        )
    if others:
        raise BadInput(
            source=f"--decide --probe {','.join(others)}",
            reason="pairs are decided by recall, after divergence or copy",
            hint="Name only these with --decide, and sweep the others without it.",
        )
    named = tuple(name for name in request.probes if name in SCREENS)
    first = (named or SCREENS[:1]) if screens else ()
    return replace(request, probes=(*first, RECALL))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """
    What a user wants to have decided.

    Attributes:
        settle: The pair; None for those that a screening proposes.
        budget_s: Seconds after which nothing new begins; None for no limit.
    """

    settle: Pair | None = None
    budget_s: float | None = None


def decide(
    plan: Plan,
    runner: Runner,
    console: Console,
    wish: Wish,
    is_over: Callable[[], bool],
) -> int:
    """
    Decide what *wish* says, of a run whose screening is done.

    Args:
        plan: The page.
        runner: Measures its cells; gets the setup with further functions.
        console: Where to show what happens.
        wish: What to decide.
        is_over: Whether to stop: the user wants it, or the time is up.

    Returns:
        The exit code.

    Raises:
        BadInput: If the pair to settle is the reference, or nothing to compare with.
        KeyboardInterrupt: As it came.
    """
    store = plan.store
    run = Run(name=store.name, setup=runner.run.setup, records=tuple(store.records()))
    reference, pairs = (
        _to_settle(run, wish.settle) if wish.settle else _proposed(run, console)
    )
    if reference is None or not pairs:
        return 0
    context = with_further(plan, runner.run, LIMIT)
    if not wish.settle:
        setup = replace(context.setup, finalists=tuple(map(str, pairs)))
        context = replace(context, setup=store.adopt(setup))
    runner.run = context
    return Decider(
        runner=runner,
        store=store,
        console=console,
        reference=reference,
        pairs=pairs,
        is_over=is_over,
        retry_failed=runner.retry_failed,
    ).decide()


def _to_settle(run: Run, pair: Pair) -> tuple[Pair | None, list[Pair]]:
    reference = reference_of(run, (RECALL,))
    if reference is None or reference == pair:
        reason = f"{pair} is the reference" if reference else "recall has no numbers"
        raise BadInput(
            source=f"--settle {pair}",
            reason=f"{reason}: there is nothing to compare it with",
            hint="Sweep with --decide, or name an undecided pair of the verdict.",
        )
    return reference, [pair]


def _proposed(run: Run, console: Console) -> tuple[Pair | None, list[Pair]]:
    reference = reference_of(run, SCREENS)
    chosen = [Pair.parse(each) for each in run.setup.finalists] or finalists(run)
    if not chosen:
        reason = "no pair with numbers has a smaller cache than the reference"
        say(console, f"nothing to decide: {reason}")
    else:
        names = ", ".join(visible(str(each)) for each in chosen)
        say(console, f"to decide, by memory and loss: {names}; against {reference}")
    return reference, chosen


def finalists(run: Run) -> list[Pair]:
    """
    The pairs to decide, by the screening of *run* alone, the largest cache first.

    No other pair has a smaller cache and no larger loss. Of more than `FINALISTS`,
    those that are spread evenly over the front.
    """
    records = tuple(each for each in run.records if each.probe in SCREENS)
    found = judge(replace(run, records=records), Reading(), with_power=False)
    front = [
        each
        for each in found.standings
        if each.is_on_front and each.pair != found.reference
    ]
    pairs = [each.pair for each in sorted(front, key=lambda each: -(each.memory or 0))]
    if len(pairs) <= FINALISTS:
        return pairs
    step = (len(pairs) - 1) / (FINALISTS - 1)
    return [pairs[round(at * step)] for at in range(FINALISTS)]


def reference_of(run: Run, probes: Sequence[str]) -> Pair | None:
    """What pairs are compared with, by the records of *probes*; None without any."""
    records = tuple(each for each in run.records if each.probe in probes)
    narrowed = replace(run, records=records)
    return judge(narrowed, Reading(), with_power=False).reference


@dataclass(slots=True, kw_only=True)
class Decider:
    """
    Asks pairs of a run for functions until each is decided.

    Attributes:
        runner: Measures cells.
        store: Where their records are; it is locked.
        console: Where to show what happens.
        reference: What the pairs are compared with.
        pairs: Those to decide, in asking order.
        is_over: Called between blocks of functions; true ends it there.
        retry_failed: Whether cells that failed are asked again.
        failed: Pairs that have no numbers or whose server failed, and why.
        asking: What the record of a pair would be whose server is being asked.
    """

    runner: Runner
    store: Store
    console: Console
    reference: Pair
    pairs: Sequence[Pair]
    is_over: Callable[[], bool] = lambda: False
    retry_failed: bool = False
    failed: dict[Pair, str] = field(default_factory=dict)
    asking: dict[Pair, CellRecord] = field(default_factory=dict)
    _shares: int = field(default=0, init=False)
    _known: dict[Pair, CellRecord | None] = field(default_factory=dict, init=False)
    _part: tuple[CellRecord, tuple[Ask, ...]] | None = field(default=None, init=False)

    def decide(self) -> int:
        """
        Ask the reference, then each pair, in as few servers as it takes.

        The reference is asked for as many functions as decide a pair that loses none.
        A pair is asked until it is decided, or for as many as the reference. Where
        that is not enough, further servers ask the reference and then the pair.

        Returns:
            The exit code: 1 if a cell failed.

        Raises:
            KeyboardInterrupt: As it came; what was answered is kept.
        """
        goal = self._first_goal()
        with SweepDisplay(self.console, self._progress()) as display:
            while goal and not self.is_over():
                self._ask(self.reference, display.show, partial(self._is_short, goal))
                if self.reference in self.failed or self.metric() is None:
                    break
                for pair in self.pairs:
                    self._ask(pair, display.show, partial(self._is_open, pair))
                goal = self._next_goal()
        self._tell()
        return 1 if self.failed else 0

    @property
    def undecided(self) -> list[Pair]:
        """Pairs that further functions could decide."""
        return [
            pair
            for pair in self.pairs
            if pair not in self.failed
            if (found := self.certificate(pair)) is None or found.verdict == UNDECIDED
        ]

    # What is known

    def record(self, pair: Pair) -> CellRecord | None:
        """What *pair* has answered so far; None if it has no numbers."""
        if pair in self.asking:
            return self.asking[pair]
        if pair not in self._known:
            self._known[pair] = self.store.record(pair, RECALL)
        record = self._known[pair]
        return record if record and record.has_numbers else None

    def metrics(self, *pairs: Pair) -> list[UnitScores]:
        """What may decide, of the reference and *pairs*, the first one first."""
        records = map(self.record, dict.fromkeys((self.reference, *pairs)))
        run = Run(
            name=self.store.name,
            setup=self.runner.run.setup,
            records=tuple(filter(None, records)),
        )
        return deciding_metrics(run, Reading())

    def metric(self, *pairs: Pair) -> UnitScores | None:
        """What decides, of the reference and *pairs*; None if nothing can."""
        if self.record(self.reference) is None:
            return None
        return next((each for each in self.metrics(*pairs) if not each.silent), None)

    def certificate(self, pair: Pair) -> Certificate | None:
        """What the answers of *pair* say so far; None where they say nothing."""
        metric = self.metric(pair) if self.record(pair) else None
        if metric is None:
            return None
        return metric.certificate(pair, comparisons=self._comparisons())

    def _comparisons(self) -> int:
        """Pairs that share the error; the same from the first question to the last."""
        if not self._shares:
            stored = self.store.records(RECALL)
            asked = [each.pair for each in stored if each.has_numbers]
            setup = self.runner.run.setup
            self._shares = comparisons(setup, self.reference, [*asked, *self.pairs])
        return self._shares

    # How far each is asked

    def _parts(self) -> tuple[Ask, ...]:
        """What is asked: of the reference first all, then what decides."""
        record = self.record(self.reference)
        if self._part and self._part[0] is record:
            return self._part[1]
        metric = self.metric()
        parts = asked_of(self.runner.run.setup).parts
        if metric is not None:
            parts = (part_of(metric.metric.name),)
        if record is not None:
            self._part = record, parts
        return parts

    def _missing(self, pair: Pair) -> Block:
        """What *pair* has not been asked yet, function by function."""
        record = self.record(pair)
        found = recall_of(record) if record else Recall(rounds=())
        asked = {
            Ask.WRITTEN: {each.needle for each in found.rounds},
            Ask.FORCED: {each.needle for each in found.forced},
        }
        parts = self._parts()
        return [
            (part, needle)
            for needle in self.runner.run.setup.every_needle
            for part in parts
            if needle.name not in asked[part]
        ]

    def _asked(self, pair: Pair) -> int:
        """Functions that *pair* was asked for, without a gap from the first on."""
        every, missing = self.runner.run.setup.every_needle, self._missing(pair)
        return every.index(missing[0][1]) if missing else len(every)

    def _in_blocks(self, functions: int) -> int:
        """*functions* in whole blocks, as far as there are some."""
        setup = self.runner.run.setup
        first, every = len(setup.needles), len(setup.every_needle)
        blocks = max(0, math.ceil((functions - first) / BLOCK))
        return min(first + blocks * BLOCK, every)

    def _first_goal(self) -> int:
        """Functions that decide a pair that loses none."""
        nothing = np.empty(0)
        found = verdict.certificate(
            nothing, nothing, comparisons=self._comparisons(), lost_from=1
        )
        return self._in_blocks(found.more)

    def _next_goal(self) -> int:
        """How far to ask the reference again; 0 if that decides nothing."""
        asked = self._asked(self.reference)
        found = map(self.certificate, self.undecided)
        more = max((each.whole - each.asked for each in found if each), default=0)
        goal = self._in_blocks(asked + more)
        return goal if goal > asked else 0

    def _is_short(self, goal: int) -> bool:
        """Whether the reference is to be asked further, up to *goal*."""
        asked = self._asked(self.reference)
        tells_nothing = asked > 0 and self.metric() is None
        return asked < goal and not tells_nothing

    def _is_open(self, pair: Pair) -> bool:
        """Whether *pair* is undecided, and the reference was asked further."""
        if self._asked(pair) >= self._asked(self.reference):
            return False
        found = self.certificate(pair)
        return found is None or found.verdict == UNDECIDED

    def block(self, pair: Pair) -> Block:
        """What to ask *pair* next: the needles first, then `BLOCK` by `BLOCK`."""
        end = self._in_blocks(self._asked(pair) + 1)
        wanted = {each.name for each in self.runner.run.setup.every_needle[:end]}
        block = [each for each in self._missing(pair) if each[1].name in wanted]
        parts = self._parts()
        # As in other cells: the written ones come first.
        return sorted(block, key=lambda each: parts.index(each[0]))

    # Asking

    def _ask(
        self, pair: Pair, show: Callable[[Event], None], wants: Callable[[], bool]
    ) -> None:
        """Ask *pair* in one server, block by block, as long as it *wants* more."""
        stored = self.store.record(pair, RECALL)
        if stored and not self.retry_failed and _is_failed(stored):
            self.failed[pair] = f"{stored.status}: {stored.reason}"
        if pair in self.failed or self.is_over() or not wants():
            return
        cell = _Cell(self, pair, wants, self.record(pair))
        probe = replace(PROBES[RECALL], measure=cell.measure)
        pairs = (self.reference, *self.pairs)
        try:
            record = self.runner.again(probe, pair, pairs, tell=show)
        finally:
            self.asking.pop(pair, None)
            self._known.pop(pair, None)
        if cell.former and cell.error and not cell.has_new_answers:
            # What the new record says of its server is of one that may never have run.
            self.store.add(replace(cell.former, phases=record.phases))
        if isinstance(cell.error, KeyboardInterrupt):
            raise cell.error
        if cell.error or not record.has_numbers:
            why = one_line(str(cell.error)) if cell.error else record.reason
            self.failed[pair] = why

    # Telling

    def _progress(self) -> SweepProgress:
        pairs = (self.reference, *self.pairs)
        found = {pair: self.store.record(pair, RECALL) for pair in pairs}
        return SweepProgress(
            name=self.store.name,
            setup=self.runner.run.setup,
            pairs=pairs,
            probe=PROBES[RECALL],
            records={pair: each for pair, each in found.items() if each},
            is_first=False,
        )

    def _tell(self) -> None:
        """What became of each pair, and what it took."""
        for pair, reason in self.failed.items():
            note_lines(self.console, [f"{pair} was asked no further: {reason}"])
        if self.record(self.reference) and self.metric() is None:
            silent = [f"{each.metric.name}: {each.silent}" for each in self.metrics()]
            note_lines(self.console, silent)
            say(self.console, "recall decides nothing with this model and this text")
            return
        for pair in self.pairs:
            found = self.certificate(pair)
            if found is None:
                is_asked = self.record(pair) is not None
                phrase = "not judged: too few answers" if is_asked else "not asked yet"
            else:
                phrase = _phrase(found)
            self.console.print(f"{visible(str(pair)):<13} {phrase}")
        run = self.store.read()
        if run:
            say(self.console, spent(run))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """
    How long the servers of a run took, by what they have answered.

    Attributes:
        readings: Servers; each read the text once.
        rounds: Written and forced ones.
        total_s: All of it, in seconds.
        start_s: A server with its reading, without rounds; NaN before the first.
        round_s: A round.
    """

    readings: int
    rounds: int
    total_s: float
    start_s: float
    round_s: float

    @classmethod
    def of(cls, records: Sequence[CellRecord]) -> "_Rates":
        found = [recall_of(each) for each in records]
        walls = [one.wall_s for each in found for one in each.answers]
        readings = sum(each.starts for each in found)
        total = sum(each.phases.total_s for each in records)
        return cls(
            readings=readings,
            rounds=len(walls),
            total_s=total,
            start_s=(total - sum(walls)) / readings if readings else math.nan,
            round_s=sum(walls) / len(walls) if walls else math.nan,
        )

    def phrase(self, readings: int, rounds: int) -> str:
        """``36 readings of the text and 576 rounds, about 1:02:03``."""
        phrase = f"{plural(readings, 'reading')} of the text and "
        phrase += plural(rounds, "round")
        time_s = readings * self.start_s + rounds * self.round_s
        return phrase if math.isnan(time_s) else f"{phrase}, about {duration(time_s)}"


def _recalled(run: Run) -> list[CellRecord]:
    return [each for each in run.records if each.probe == RECALL and each.has_numbers]


def _full_grid(setup: Setup) -> tuple[int, int]:
    """Readings of the text and rounds of a sweep of all pairs."""
    cells = len(setup.types_k) * len(setup.types_v)
    return cells, cells * len(setup.needles) * len(asked_of(setup).parts)


def spent(run: Run) -> str:
    """What *run* took to screen and to decide, and what a full grid would take."""
    rates = _Rates.of(_recalled(run))
    screened = [each for each in run.records if each.probe in SCREENS]
    phrase = (
        f"{plural(rates.readings, 'reading')} of the text and "
        f"{plural(rates.rounds, 'round')} in {duration(rates.total_s)}"
    )
    if screened:
        time = duration(sum(each.phases.total_s for each in screened))
        phrase += f", {plural(len(screened), 'screening')} in {time}"
    return f"{phrase}; the full grid: {rates.phrase(*_full_grid(run.setup))}"


def price(plan: Plan) -> list[tuple[str, str]]:
    """What it would take to decide, beside the full grid: a word and a phrase each."""
    setup, screens = plan.store.setup(), [each.name for each in plan.probes[:-1]]
    records = list(plan.store.records())
    rates = _Rates.of([r for r in records if r.probe == RECALL and r.has_numbers])
    times = [r.phases.total_s for r in records if r.probe in screens and r.has_numbers]
    screening = f"{plural(len(plan.pairs), 'pair')} by {' and '.join(screens)}"
    if times:
        left = len(plan.pairs) * len(screens) - len(times)
        each_s = sum(times) / len(times)
        screening += f", {duration(each_s)} each, {duration(left * each_s)} left"
    asked = 1 + min(FINALISTS, len(plan.pairs) - 1)
    free = verdict.certificate(
        np.empty(0), np.empty(0), comparisons=max(asked - 1, 1), lost_from=1
    ).more
    first = len(setup.needles) if setup else plan.corpus.sample_k
    free = first + max(0, math.ceil((free - first) / BLOCK)) * BLOCK
    functions = setup.corpus.functions if setup else len(plan.corpus.functions)
    known = min(functions, LIMIT)
    parts = len(asked_of(setup).parts) if setup else 1
    cells = len(plan.pairs)
    return [
        ("screening", screening),
        (
            "deciding",
            (
                f"the reference and at most {asked - 1} pairs, where none loses a "
                f"function: {rates.phrase(asked, asked * min(free, known))}; at most "
                f"{plural(known, 'function')} a pair"
            ),
        ),
        ("full grid", rates.phrase(cells, cells * min(first, known) * parts)),
    ]


def _is_failed(record: CellRecord) -> bool:
    return not record.has_numbers and record.status is not Status.INTERRUPTED


def _phrase(found: Certificate) -> str:
    lost = plural(found.lost, "function")
    return f"{found.verdict}: {lost} lost of {found.needles} that could be"


@dataclass(slots=True)
class _Cell:
    """One pair while a server is asked about it."""

    decider: Decider
    pair: Pair
    wants: Callable[[], bool]
    former: CellRecord | None
    found: Recall | None = None
    error: CellError | KeyboardInterrupt | None = None

    def measure(self, context: ProbeContext) -> Json:
        """
        Ask blocks; where that ends early, return what was answered until then.

        Raises:
            CellError: If the server failed before there was any answer.
            KeyboardInterrupt: If it came before.
        """
        former = recall_of(self.former) if self.former else None
        self.found = former
        try:
            return measure_blocks(
                context, self._blocks(), former=former, keep=self._keep
            )
        except (CellError, KeyboardInterrupt) as error:
            if self.found is None or not _has_answers(self.found):
                raise
            self.error = error
            return as_json(self.found)
        finally:
            if self.former:
                context.phases = context.phases.after(self.former.phases)

    @property
    def has_new_answers(self) -> bool:
        """Whether this server has answered anything."""
        before = recall_of(self.former).answers if self.former else ()
        after = self.found.answers if self.found else ()
        return len(after) > len(before)

    def _keep(self, found: Recall) -> None:
        self.found = found

    def _blocks(self) -> Iterator[Block]:
        while True:
            if self.found:
                self.decider.asking[self.pair] = CellRecord(
                    pair=self.pair,
                    probe=RECALL,
                    status=Status.FINISHED,
                    started="",
                    observation=as_json(self.found),
                )
            if self.decider.is_over() or not self.wants():
                return
            yield self.decider.block(self.pair)


def _has_answers(found: Recall) -> bool:
    return any(not each.error for each in found.answers)
