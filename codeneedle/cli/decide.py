"""
Decides pairs: all are screened at reading speed, and a few are asked for functions,
or questions of tasks, until each is decided.

Which pairs are asked follows from the screening alone; how long they are asked, from
their answers. The certificates of `analysis.verdict` hold at any time, so that a sweep
may be stopped and continued at will.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from msgspec import Struct
from rich.console import Console

from codeneedle.analysis import verdict
from codeneedle.analysis.recall import NAME as RECALL
from codeneedle.analysis.verdict import Certificate
from codeneedle.cli.progress import SweepDisplay, SweepProgress, note_lines, say
from codeneedle.corpora.corpus import BLOCK, LIMIT
from codeneedle.errors import BadInput, CellError
from codeneedle.grid import Pair
from codeneedle.probes import PROBES
from codeneedle.probes.probe import Blocks, Effort, Probe, ProbeContext
from codeneedle.records.record import (
    CellRecord,
    Json,
    Run,
    Setup,
    Status,
    as_json,
)
from codeneedle.report.judgement import (
    UNDECIDED,
    comparisons,
    judge,
)
from codeneedle.report.units import UnitScores, deciding_metrics
from codeneedle.scoring.rounds import Reading
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

DECIDERS = tuple(name for name, probe in PROBES.items() if probe.blocks)
"""Probes that decide."""

FINALISTS = 5
"""Pairs that are decided, at most: each raises the evidence that all of them need."""


def deciding(request: Request, *, screens: bool) -> Request:
    """
    *request* with the probes that it takes: the one that decides, recall by default,
    behind those that screen.

    Args:
        request: What a user asked for.
        screens: Whether pairs are screened, or one is named.

    Raises:
        BadInput: If a probe is asked for that decides nothing, or two that decide.
    """
    deciders = [name for name in request.probes if name in DECIDERS] or [RECALL]
    named = tuple(name for name in request.probes if name in SCREENS)
    others = [name for name in request.probes if name not in {*SCREENS, deciders[0]}]
    if request.shard is not None:
        raise BadInput(
            source=f"--shard {request.shard}",
            reason="a share of the grid cannot choose which pairs to decide",
            hint="Sweep shares with --probe divergence, then decide without --shard.",
        )
    if others:
        raise BadInput(
            source=f"--decide --probe {','.join(request.probes)}",
            reason=f"pairs are decided by {' or '.join(DECIDERS)}, one at a time, "
            f"after {' or '.join(SCREENS)}",
            hint="Name one of these with --decide, and sweep the others without it.",
        )
    first = (named or SCREENS[:1]) if screens else ()
    return replace(request, probes=(*first, deciders[0]))


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
    store, probe = plan.store, plan.probes[-1]
    run = Run(name=store.name, setup=runner.run.setup, records=tuple(store.records()))
    reference, pairs = (
        _to_settle(run, wish.settle, probe.name)
        if wish.settle
        else _proposed(run, console)
    )
    if reference is None or not pairs:
        return 0
    context = runner.run
    if probe.reads_corpus(_settings_of(plan)):
        context = with_further(plan, context, LIMIT)
    if not wish.settle:
        setup = replace(context.setup, finalists=tuple(map(str, pairs)))
        context = replace(context, setup=store.adopt(setup))
    runner.run = context
    return Decider(
        plan=plan,
        runner=runner,
        console=console,
        reference=reference,
        pairs=pairs,
        is_over=is_over,
    ).decide()


def _settings_of(plan: Plan) -> Struct:
    """What the user chose for the probe of *plan* that decides."""
    probe = plan.probes[-1]
    return plan.request.settings.get(probe.name, probe.settings())


def blocks_of(probe: Probe) -> Blocks:
    """
    How *probe* is asked, which decides.

    Raises:
        TypeError: If it decides nothing.
    """
    if probe.blocks is None:
        raise TypeError(f"{probe.name} decides nothing")
    return probe.blocks


def _to_settle(run: Run, pair: Pair, probe: str) -> tuple[Pair | None, list[Pair]]:
    reference = reference_of(run, (probe,))
    if reference is None or reference == pair:
        reason = f"{pair} is the reference" if reference else f"{probe} has no numbers"
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
    Asks pairs of a run until each is decided: for functions, or about texts.

    Attributes:
        plan: The page; its last probe asks.
        runner: Measures cells.
        console: Where to show what happens.
        reference: What the pairs are compared with.
        pairs: Those to decide, in asking order.
        is_over: Called between blocks; true ends it there.
        failed: Pairs that have no numbers or whose server failed, and why.
        asking: What the record of a pair would be whose server is being asked.
    """

    plan: Plan
    runner: Runner
    console: Console
    reference: Pair
    pairs: Sequence[Pair]
    is_over: Callable[[], bool] = lambda: False
    failed: dict[Pair, str] = field(default_factory=dict)
    asking: dict[Pair, CellRecord] = field(default_factory=dict)
    _shares: int = field(default=0, init=False)
    _known: dict[Pair, CellRecord | None] = field(default_factory=dict, init=False)

    def decide(self) -> int:
        """
        Ask the reference, then each pair, in as few servers as it takes.

        The reference is asked until a pair that loses nothing would be free. A pair is
        asked until it is decided, or as much as the reference. Where that is not
        enough, further servers ask the reference and then the pair.

        Returns:
            The exit code: 1 if a cell failed.

        Raises:
            KeyboardInterrupt: As it came; what was answered is kept.
        """
        goal: int | None = None
        with SweepDisplay(self.console, self._progress()) as display:
            while goal != 0 and not self.is_over():
                self._ask(self.reference, display.show, partial(self._is_short, goal))
                if self.reference in self.failed or self.metric() is None:
                    break
                for pair in self.pairs:
                    self._ask(pair, display.show, partial(self._is_open, pair))
                goal = self._next_goal()
        self._tell()
        return 1 if self.failed else 0

    @property
    def probe(self) -> Probe:
        """What asks."""
        return self.plan.probes[-1]

    @property
    def setup(self) -> Setup:
        """Of the run."""
        return self.runner.run.setup

    # What is known

    def record(self, pair: Pair) -> CellRecord | None:
        """What *pair* has answered so far; None if it has no numbers."""
        if pair in self.asking:
            return self.asking[pair]
        if pair not in self._known:
            self._known[pair] = self.plan.store.record(pair, self.probe.name)
        record = self._known[pair]
        return record if record and record.has_numbers else None

    def metrics(self, *pairs: Pair) -> list[UnitScores]:
        """What may decide, of the reference and *pairs*, the first one first."""
        records = map(self.record, dict.fromkeys((self.reference, *pairs)))
        run = Run(
            name=self.plan.store.name,
            setup=self.setup,
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

    def is_undecided(self, pair: Pair) -> bool:
        """Whether further answers could decide *pair*."""
        found = self.certificate(pair)
        return found is None or found.verdict == UNDECIDED

    def _comparisons(self) -> int:
        """Pairs that share the error; the same from the first question to the last."""
        if not self._shares:
            stored = self.plan.store.records(self.probe.name)
            asked = [each.pair for each in stored if each.has_numbers]
            self._shares = comparisons(
                self.setup, self.reference, [*asked, *self.pairs]
            )
        return self._shares

    # How far each is asked

    def _ends(self) -> Sequence[int]:
        """After how many functions, or texts, each block of a pair ends."""
        record, settings = self.record(self.reference), _settings_of(self.plan)
        ends = blocks_of(self.probe).ends
        return ends(settings, self.plan.corpus, self.setup, record)

    def deciding_name(self) -> str:
        """The metric that decides; empty before the reference has any."""
        found = self.metric()
        return found.metric.name if found else ""

    def _asked(self, pair: Pair) -> int:
        """Functions, or texts, that *pair* was asked about, without a gap."""
        record, asked = self.record(pair), blocks_of(self.probe).asked
        return asked(record, self.setup, self.deciding_name()) if record else 0

    def _next_goal(self) -> int:
        """How far to ask the reference again; 0 if that decides nothing."""
        asked = self._asked(self.reference)
        found = [
            self.certificate(pair)
            for pair in self.pairs
            if pair not in self.failed and self.is_undecided(pair)
        ]
        more = max((each.whole - each.asked for each in found if each), default=0)
        goal = min(asked + more, self._ends()[-1])
        return goal if goal > asked else 0

    def _is_short(self, goal: int | None) -> bool:
        """
        Whether the reference is to be asked further, up to *goal*.

        Without one: until a pair that loses nothing would be free, but the whole
        first block, which may begin with a task that tells nothing.
        """
        asked, ends = self._asked(self.reference), self._ends()
        if asked and asked >= ends[-1]:
            return False
        if asked < ends[0] or self.metric() is None:
            # Of one function or text nothing can be told: that is no floor.
            return asked < max(ends[0], BLOCK)
        return asked < goal if goal else self.is_undecided(self.reference)

    def _is_open(self, pair: Pair) -> bool:
        """Whether *pair* is undecided, and the reference was asked further."""
        is_behind = self._asked(pair) < self._asked(self.reference)
        return is_behind and self.is_undecided(pair)

    # Asking

    def _ask(
        self, pair: Pair, show: Callable[[Event], None], wants: Callable[[], bool]
    ) -> None:
        """Ask *pair* in one server, block by block, as long as it *wants* more."""
        stored = self.plan.store.record(pair, self.probe.name)
        if stored and not self.runner.retry_failed and _is_failed(stored):
            self.failed[pair] = f"{stored.status}: {stored.reason}"
        if pair in self.failed or self.is_over() or not wants():
            return
        cell = _Cell(self, pair, wants, self.record(pair))
        probe = replace(self.probe, measure=cell.measure)
        pairs = (self.reference, *self.pairs)
        try:
            record = self.runner.again(probe, pair, pairs, tell=show)
        finally:
            self.asking.pop(pair, None)
            self._known.pop(pair, None)
        if isinstance(cell.error, KeyboardInterrupt):
            raise cell.error
        if cell.error or not record.has_numbers:
            why = one_line(str(cell.error)) if cell.error else record.reason
            self.failed[pair] = why

    # Telling

    def _progress(self) -> SweepProgress:
        pairs = (self.reference, *self.pairs)
        store, name = self.plan.store, self.probe.name
        found = {pair: store.record(pair, name) for pair in pairs}
        return SweepProgress(
            name=store.name,
            setup=self.setup,
            pairs=pairs,
            probe=self.probe,
            records={pair: each for pair, each in found.items() if each},
            is_first=False,
        )

    def _tell(self) -> None:
        """What became of each pair, and what it took."""
        for pair, reason in self.failed.items():
            note_lines(self.console, [f"{pair} was asked no further: {reason}"])
        metric, name = self.metric(), self.probe.name
        is_short = metric is None and self._is_short(None)
        if self.record(self.reference) and metric is None and not is_short:
            silent = [f"{each.metric.name}: {each.silent}" for each in self.metrics()]
            run = self.plan.store.read()
            told = self.probe.remarks(run) if run and not silent else ()
            note_lines(self.console, silent or told)
            say(self.console, f"{name} decides nothing with this model and this text")
            return
        for pair in self.pairs:
            found = self.certificate(pair)
            is_asked = self.record(pair) is not None
            phrase = "not judged: too few answers" if is_asked else "not asked yet"
            if found and metric:
                lost = plural(found.lost, metric.metric.noun.removesuffix("s"))
                phrase = (
                    f"{found.verdict}: {lost} lost of {found.needles} that could be"
                )
            self.console.print(f"{visible(str(pair)):<13} {phrase}")
        run = self.plan.store.read()
        if run:
            say(self.console, spent(run, self.plan))


def _is_failed(record: CellRecord) -> bool:
    return not record.has_numbers and record.status is not Status.INTERRUPTED


@dataclass(slots=True)
class _Cell:
    """One pair while a server is asked about it."""

    decider: Decider
    pair: Pair
    wants: Callable[[], bool]
    former: CellRecord | None
    found: object = None
    error: CellError | KeyboardInterrupt | None = None

    def measure(self, context: ProbeContext) -> Json:
        """
        Ask blocks; where that ends early, return what was answered until then.

        Raises:
            CellError: If the server failed before there was any new answer: the
                record that there is stays as it is.
            KeyboardInterrupt: Likewise.
        """
        ask = blocks_of(self.decider.probe).measure
        try:
            return ask(context, self._blocks(), self.former, self._keep)
        except (CellError, KeyboardInterrupt) as error:
            if self.found is None:
                raise
            self.error = error
            return as_json(self.found)
        finally:
            if self.former:
                context.phases = context.phases.after(self.former.phases)

    def _keep(self, found: object) -> None:
        self.found = found

    def _blocks(self) -> Iterator[str]:
        """What each block is for; a server that runs is asked one at least."""
        yield self.decider.deciding_name()
        while self.found is not None and not self.decider.is_over():
            self.decider.asking[self.pair] = CellRecord(
                pair=self.pair,
                probe=self.decider.probe.name,
                status=Status.FINISHED,
                started="",
                observation=as_json(self.found),
            )
            if not self.wants():
                return
            yield self.decider.deciding_name()


# --- what it takes


def _whole(effort: Effort, time_s: float = math.nan) -> str:
    """``36 readings of text and 576 rounds, about 1:02:03``."""
    phrase = f"{plural(effort.readings, 'reading')} of text and "
    phrase += plural(effort.rounds, "round")
    return phrase if math.isnan(time_s) else f"{phrase}, about {duration(time_s)}"


def _full_grid(plan: Plan, setup: Setup | None) -> Effort:
    """What a sweep of all pairs takes."""
    blocks, settings = blocks_of(plan.probes[-1]), _settings_of(plan)
    first, *_ = blocks.ends(settings, plan.corpus, setup, _frozen_by(plan))
    cell, cells = blocks.effort_for(settings, setup, first), len(plan.pairs)
    return Effort(readings=cells * cell.readings, rounds=cells * cell.rounds)


def _frozen_by(plan: Plan) -> CellRecord | None:
    """A record whose settings are those of all pairs, if there is one."""
    found = plan.store.records(plan.probes[-1].name)
    return next((each for each in found if each.has_numbers), None)


def spent(run: Run, plan: Plan) -> str:
    """What *run* took to screen and to decide, and what a full grid would take."""
    probe = plan.probes[-1]
    blocks = blocks_of(probe)
    known = [r for r in run.records if r.probe == probe.name and r.has_numbers]
    took = duration(sum(record.phases.total_s for record in known))
    phrase = f"{_whole(blocks.total(known))} in {took}"
    screened = [each for each in run.records if each.probe in SCREENS]
    if screened:
        time = duration(sum(each.phases.total_s for each in screened))
        phrase += f", {plural(len(screened), 'screening')} in {time}"
    full = _full_grid(plan, run.setup)
    return f"{phrase}; the full grid: {_whole(full, blocks.time_s(full, known))}"


def price(plan: Plan) -> list[tuple[str, str]]:
    """What it would take to decide, beside the full grid: a word and a phrase each."""
    probe, setup, settings = plan.probes[-1], plan.store.setup(), _settings_of(plan)
    blocks, screens = blocks_of(probe), [each.name for each in plan.probes[:-1]]
    records = list(plan.store.records())
    known = [r for r in records if r.probe == probe.name and r.has_numbers]
    times = [r.phases.total_s for r in records if r.probe in screens and r.has_numbers]
    screening = f"{plural(len(plan.pairs), 'pair')} by {' and '.join(screens)}"
    if times:
        left = len(plan.pairs) * len(screens) - len(times)
        each_s = sum(times) / len(times)
        screening += f", {duration(each_s)} each, {duration(left * each_s)} left"
    asked = 1 + min(FINALISTS, len(plan.pairs) - 1)
    none = np.empty(0)
    free = verdict.certificate(
        none, none, comparisons=max(asked - 1, 1), lost_from=1
    ).more
    ends = blocks.ends(settings, plan.corpus, setup, _frozen_by(plan))
    units = next((end for end in ends if end >= free), ends[-1])
    cell = blocks.effort_for(settings, setup, units)
    least = Effort(readings=asked * cell.readings, rounds=asked * cell.rounds)
    full = _full_grid(plan, setup)
    noun = "functions" if probe.name == RECALL else "texts"
    deciding = (
        f"the reference and at most {plural(asked - 1, 'pair')}, where none loses "
        f"anything: {_whole(least, blocks.time_s(least, known))}; at most "
        f"{ends[-1]} {noun} a pair"
    )
    return [
        ("screening", screening),
        ("deciding", deciding),
        ("full grid", _whole(full, blocks.time_s(full, known))),
    ]
