"""The probe protocol, and what a probe is given to measure one cell."""

import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from codeneedle.analysis.metrics import Metric
from codeneedle.engines.llama_cpp.arguments import Launch, Speculation
from codeneedle.engines.llama_cpp.server import (
    FellBack,
    Served,
    in_doubt,
    preflight,
    serving,
)
from codeneedle.grid import Pair
from codeneedle.probes.prompts import PromptForm
from codeneedle.records.record import (
    Effective,
    Json,
    Phases,
    Run,
    Setup,
    Trial,
    Trouble,
)
from codeneedle.sweep.plan import Plan
from codeneedle.system.machine import usable_cores, used_bytes


@dataclass(slots=True)
class _Clock:
    """When a server was first asked, and when it last had answered, monotonic."""

    asked: float | None = None
    answered: float | None = None


@dataclass(slots=True, kw_only=True)
class Stage:
    """
    One cell while it is measured.

    Attributes:
        plan: Binaries, weights, context: what is the same for every cell.
        setup: Needles and sampling.
        text: The corpus as it is sent.
        pair: The cache types of this cell.
        effective: What really runs, once it does.
        command: What the server was started with.
        phases: Where the time went, so far.
        peak_rss_bytes: Largest resident size of the server that was seen.
        device_bytes: What the server held on accelerators when it was through.
        trouble: What the server did instead of fast attention, if anything.
        trial: How speculation answered, as far as anybody asked; a probe that is
            the first to ask adds it.
        gone: When the last server had ended, in monotonic seconds: of the cell
            before, then of this one. None if there was none.
    """

    plan: Plan
    setup: Setup
    text: str
    pair: Pair
    effective: Effective = field(default_factory=Effective)
    command: tuple[str, ...] = ()
    phases: Phases = field(default_factory=Phases)
    peak_rss_bytes: int | None = None
    device_bytes: int | None = None
    trouble: Trouble | None = None
    trial: Trial | None = None
    gone: float | None = None
    _clock: _Clock = field(default_factory=_Clock)

    @property
    def speculation(self) -> Speculation | None:
        """How the server drafts; None if it cannot, must not, or did so wrongly."""
        is_wrong = self.trial is not None and self.trial.difference
        return None if is_wrong else self.plan.speculation

    @property
    def needs_trial(self) -> bool:
        """Whether nobody knows yet that speculation changes nothing."""
        return self.plan.speculation is not None and self.trial is None

    @property
    def is_in_doubt(self) -> bool:
        """Whether a preflight could tell that attention leaves the accelerator."""
        plan = self.plan
        return in_doubt(
            self.pair, devices=plan.server.devices, extra=plan.request.server_args
        )

    def preflight(self) -> None:
        """
        Ask a short-lived server whether attention stays on the accelerator.

        Once per pair: it loads the weights, and the answer is that of all probes.

        Raises:
            FellBack: If it does not, and such cells are to be skipped.
        """
        found = self.plan.preflights
        if self.pair not in found:
            store = self.plan.store
            found[self.pair] = preflight(
                launch_of(self.plan, self.pair),
                log=store.log(self.pair).with_name(f"{self.pair.slug}.preflight.log"),
                folder=store.folder,
            )
        self.trouble = found[self.pair]
        self.heed(self.trouble)

    def heed(self, trouble: Trouble | None) -> None:
        """
        Go on in spite of *trouble*, unless such cells are to be skipped.

        Raises:
            FellBack: If they are, and there is any.
        """
        if trouble is not None and self.plan.request.skip_fallback:
            raise FellBack(trouble=trouble)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """The time of a question and its answer: what is not, is waiting."""
        clock = self._clock
        clock.asked = clock.asked or time.monotonic()
        yield
        clock.answered = time.monotonic()

    @contextlib.contextmanager
    def serving(self) -> Iterator[Served]:
        """
        A verified server with the cell's cache types, for the length of a block.

        Raises:
            CellError: If it does not come up, or is not what was asked for.
        """
        store = self.plan.store
        last, launched = self.gone, time.monotonic()
        self._clock = _Clock()
        ready: float | None = None
        left: float | None = None
        try:
            with serving(
                launch_of(self.plan, self.pair, speculation=self.speculation),
                log=store.log(self.pair),
                folder=store.folder,
            ) as served:
                ready = time.monotonic()
                self._note(served)
                try:
                    yield served
                    # Only of a server that is through: a driver may take seconds.
                    self.device_bytes = used_bytes(served.pid)
                finally:
                    self.trouble = served.reread() or self.trouble
                    self._note(served)
                    left = time.monotonic()
        finally:
            self.gone = time.monotonic()
            asked, answered = self._clock.asked, self._clock.answered or left
            self.phases = _phases(last, launched, ready, asked, answered, self.gone)

    @contextlib.contextmanager
    def serving_plainly(self, *, tag: str) -> Iterator[Served]:
        """
        Another server of the cell, without speculation, that leaves no mark on it.

        Args:
            tag: Of its log.

        Raises:
            CellError: If it does not come up, or is not what was asked for.
        """
        log = self.plan.store.log(self.pair)
        launch = launch_of(self.plan, self.pair, speculation=None)
        try:
            with serving(
                launch,
                log=log.with_name(f"{self.pair.slug}.{tag}.log"),
                folder=self.plan.store.folder,
            ) as served:
                yield served
        finally:
            self.gone = time.monotonic()

    def _note(self, served: Served) -> None:
        self.command = served.command
        self.effective = served.effective
        seen = served.peak_rss()
        self.peak_rss_bytes = max(seen or 0, self.peak_rss_bytes or 0) or None


def launch_of(
    plan: Plan, pair: Pair, *, speculation: Speculation | None = None
) -> Launch:
    """What the server of *pair* is started with."""
    return Launch(
        binary=plan.tools.server,
        weights=plan.weights.path,
        alias=f"{plan.model}.{pair.slug}.{plan.context}",
        context=plan.context,
        pair=pair,
        extra=(*thinking_args(plan), *plan.request.server_args),
        options=plan.server.options,
        # Of a model this small, a second thread waits more than it computes.
        threads=1 if plan.is_built_in else None,
        batch_threads=usable_cores() if plan.is_built_in else None,
        sleeps=plan.is_built_in,
        rotation=plan.request.rotation,
        speculation=speculation,
    )


def thinking_args(plan: Plan) -> tuple[str, ...]:
    """Server arguments that switch thinking off, where the binary has them."""
    if plan.prompt_form is PromptForm.COMPLETION:
        return ()
    if "--reasoning-budget" in plan.server.options:
        return ("--reasoning-budget", "0")
    return ()


def _phases(
    last: float | None,
    launched: float,
    ready: float | None,
    asked: float | None,
    answered: float | None,
    gone: float,
) -> Phases:
    """What lies between moments, in monotonic seconds; None for one not reached."""
    ends = (launched, ready or gone, asked or gone, answered or gone, gone)
    spans = [round(b - a, 4) for a, b in itertools.pairwise(ends)]
    return Phases(
        between_s=None if last is None else round(launched - last, 4),
        ready_s=spans[0],
        start_s=spans[1] if ready else None,
        measure_s=spans[2] if asked else None,
        stop_s=spans[3] if ready else None,
    )


@dataclass(frozen=True, slots=True)
class Step:
    """
    Where a probe is.

    Attributes:
        done: Rounds that are behind it.
        total: Rounds that it takes.
        what: What it does now, as a phrase.
    """

    done: int
    total: int
    what: str


Measurement = Generator[Step, None, Json]
"""Yields where it is; returns the observation that is stored."""


class NoSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a probe that has none."""


def no_conditions(_plan: Plan, _text: str) -> Json:
    """Conditions of a probe whose setup says it all."""
    return {}


def no_more_metrics(_setup: Setup) -> tuple[Metric, ...]:
    """Of a probe whose metrics do not depend on its settings."""
    return ()


def as_shuffled(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """The running order, left as it is."""
    return pairs


def no_remarks(_run: Run) -> tuple[str, ...]:
    """Of a probe whose numbers speak for themselves."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """
    One way to measure a cell. To add one is to add a module to `probes`.

    Attributes:
        name: What ``--probe`` takes; part of its records' file names.
        metrics: What its records can be asked for; the first is its headline.
        measure: Measures the cell of a stage, which serves the model if asked to.
        settings: What a user may choose, all fields with a default: the table of the
            probe's name in a sweep file, and the options that the fields' metadata
            names.
        conditions: What must be equal for its records to be comparable, beside the
            setup. Takes the plan and the corpus as sent; checks all that can be
            checked before a cell starts, and raises what is wrong.
        more_metrics: Metrics that only these settings have.
        order: Puts the pairs in the order that the probe needs.
        remarks: What its records of a run say in words, a line each.
    """

    name: str
    metrics: tuple[Metric, ...]
    measure: Callable[[Stage], Measurement]
    settings: type[Struct] = NoSettings
    conditions: Callable[[Plan, str], Json] = no_conditions
    more_metrics: Callable[[Setup], tuple[Metric, ...]] = no_more_metrics
    order: Callable[[Sequence[Pair]], Sequence[Pair]] = as_shuffled
    remarks: Callable[[Run], tuple[str, ...]] = no_remarks
