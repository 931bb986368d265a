"""Runs the cells that have no record, and turns whatever happens into records."""

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace

from codeneedle.errors import CellError, CodeneedleError
from codeneedle.grid import Pair
from codeneedle.models.weights import refuse_replaced
from codeneedle.probes.probe import Probe, Stage, Step
from codeneedle.records.comparability import stamp
from codeneedle.records.record import CellRecord, Json, Setup, Status
from codeneedle.records.store import Store
from codeneedle.sweep.plan import DiskFull, Plan
from codeneedle.system.machine import free_disk_bytes
from codeneedle.system.processes import now

GIVE_UP_AFTER = 3
"""Cells in a row that fail alike, before any has finished, end the sweep."""

LEAST_FREE_BYTES = 1 << 20
"""A cell that fails where less is free may have failed for that."""


@dataclass(frozen=True, slots=True)
class CellStarted:
    """A server for *pair* is about to start; *position* counts from 1."""

    pair: Pair
    position: int
    total: int


@dataclass(frozen=True, slots=True)
class CellStepped:
    """The probe of *pair* moved on."""

    pair: Pair
    step: Step


@dataclass(frozen=True, slots=True)
class CellEnded:
    """The cell is over and its record is on disk."""

    record: CellRecord


@dataclass(frozen=True, slots=True)
class Noted:
    """Something that a person should know came up; it changes no record."""

    what: str


Event = CellStarted | CellStepped | CellEnded | Noted
Play = Callable[[Pair, int], Generator[Event, None, None]]
"""Plays one cell, given its place in the running order; `CellEnded` comes last."""


class FailingAlike(CodeneedleError):  # noqa: N818 - named after the fact
    """The first cells all failed in the same way; the others would, too."""

    def __init__(self, *, times: int, reason: str) -> None:
        super().__init__(
            f"the first {times} cells failed alike: {reason}",
            hint="Mend that, then run the same command with --retry-failed.",
        )


def run(
    pairs: Sequence[Pair],
    *,
    store: Store,
    probe: str,
    play: Play,
    retry_failed: bool = False,
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> Generator[Event, None, None]:
    """
    Play the pairs that have no record, each record on disk before it is told.

    The caller pulls: stop iterating and the sweep stops, with every finished
    cell already stored.

    Args:
        pairs: The grid, in running order.
        store: Where records are and go.
        probe: Name of the probe whose records count.
        play: Measures one cell.
        retry_failed: Whether cells that failed are played again.
        asked_to_stop: Looked at between cells; true ends the sweep there.

    Raises:
        FailingAlike: If the first cells fail alike and none has finished.
        DiskFull: If a cell failed on a disk that is full.
    """
    open_pairs = pending(pairs, store=store, probe=probe, retry_failed=retry_failed)
    position = {pair: at for at, pair in enumerate(pairs, start=1)}
    streak: list[str] = []
    for pair in open_pairs:
        if asked_to_stop():
            return
        yield CellStarted(pair, position[pair], len(pairs))
        with contextlib.closing(play(pair, position[pair])) as events:
            for event in events:
                if isinstance(event, CellEnded):
                    _refuse_if_full(event.record, store)
                    store.add(event.record)
                    streak = _streak(streak, event.record)
                yield event
        if len(streak) == GIVE_UP_AFTER and not any_finished(pairs, store, probe):
            raise FailingAlike(times=GIVE_UP_AFTER, reason=streak[0])


def pending(
    pairs: Sequence[Pair], *, store: Store, probe: str, retry_failed: bool = False
) -> list[Pair]:
    """
    The pairs still to be played: untried or interrupted, and failed if wished.

    A failure is a result as long as nobody asks for another try: a pair that no
    kernel supports fails again, and costs the time again.
    """
    return [
        pair
        for pair in pairs
        if _is_open(store.record(pair, probe), retry_failed=retry_failed)
    ]


def any_finished(pairs: Sequence[Pair], store: Store, probe: str) -> bool:
    """Whether a cell of *pairs* has numbers."""
    records = (store.record(pair, probe) for pair in pairs)
    return any(record is not None and record.has_numbers for record in records)


def _refuse_if_full(record: CellRecord, store: Store) -> None:
    """Stop at a failure that is the disk's: what had no room in a log is missing."""
    if record.has_numbers or record.status is Status.INTERRUPTED:
        return
    free_bytes = free_disk_bytes(store.folder)
    if free_bytes < LEAST_FREE_BYTES:
        raise DiskFull(folder=store.folder, free_bytes=free_bytes)


def _is_open(record: CellRecord | None, *, retry_failed: bool) -> bool:
    if record is None or record.status is Status.INTERRUPTED:
        return True
    return retry_failed and not record.has_numbers


def _streak(streak: list[str], record: CellRecord) -> list[str]:
    """
    The failures in a row that are alike, this one included.

    A cell that fell back and was measured all the same is none.
    """
    if record.has_numbers or record.observation is not None:
        return []
    failure = f"{record.status}: {record.reason}"
    return [*streak, failure] if streak[:1] in ([], [failure]) else [failure]


@dataclass(slots=True, kw_only=True)
class Player:
    """
    All that is the same for every cell of a sweep, and what they hand on.

    Attributes:
        plan: Binaries, weights, context, where records go.
        setup: Needles and sampling; the first cell may add to it.
        text: The corpus as it is sent.
        probe: What measures.
        gone: When the server of the last cell had ended, in monotonic seconds.
    """

    plan: Plan
    setup: Setup
    text: str
    probe: Probe
    gone: float | None = None

    def play(self, pair: Pair, position: int) -> Generator[Event, None, None]:
        """
        Measure *pair*, the cell at *position* of the running order.

        A cell that fails is a record with a status. So is one that is
        interrupted, before the interruption goes on its way.

        Raises:
            WeightsReplaced: If the weights are not those any more that the sweep
                began with; what was measured meanwhile is nobody's.
        """
        self._hold_weights()
        stage = self._stage(pair)
        recorder = _Recorder(stage, self.probe.name, position, now())
        try:
            observation = yield from self._measured(stage)
        except CellError as error:
            self._hold_weights()
            yield CellEnded(recorder.failed(error))
        except KeyboardInterrupt:
            yield CellEnded(recorder.interrupted())
            raise
        else:
            self._hold_weights()
            yield from self._noted(stage)
            yield CellEnded(recorder.finished(observation))
        finally:
            self.gone = stage.gone

    def _stage(self, pair: Pair) -> Stage:
        return Stage(
            plan=self.plan,
            setup=self.setup,
            text=self.text,
            pair=pair,
            trial=self.setup.trial,
            gone=self.gone,
        )

    def _noted(self, stage: Stage) -> Iterator[Event]:
        """Keep the trial of speculation for the cells to come, if this was it."""
        if stage.trial is None or stage.trial == self.setup.trial:
            return
        self.setup = self.plan.store.adopt(replace(self.setup, trial=stage.trial))
        if stage.trial.difference:
            yield Noted(f"speculation is {stage.trial.phrase}")

    def _hold_weights(self) -> None:
        refuse_replaced(self.plan.weights, expected=self.setup.weights.sha256)

    def _measured(self, stage: Stage) -> Generator[Event, None, Json]:
        if stage.is_in_doubt:
            what = "asking where attention runs"
            yield CellStepped(stage.pair, Step(0, 1, what))
            stage.preflight()
        # Closed here and not by the collector: the server must be gone before
        # an interruption goes on its way.
        with contextlib.closing(self.probe.measure(stage)) as steps:
            while True:
                try:
                    step = next(steps)
                except StopIteration as end:
                    observation: Json = end.value
                    return observation
                yield CellStepped(stage.pair, step)


@dataclass(frozen=True, slots=True)
class _Recorder:
    """Turns what is known of a stage into a record."""

    stage: Stage
    probe: str
    position: int
    started: str

    def finished(self, observation: Json) -> CellRecord:
        trouble = self.stage.trouble
        if trouble is None:
            return self._record(Status.FINISHED, observation=observation)
        return self._record(
            trouble.status, reason=one_line(trouble.reason), observation=observation
        )

    def failed(self, error: CellError) -> CellRecord:
        return self._record(
            Status(error.status),
            reason=one_line(str(error)),
            log_excerpt=error.log_excerpt,
        )

    def interrupted(self) -> CellRecord:
        return self._record(Status.INTERRUPTED, reason="stopped before it was through")

    def _record(
        self,
        status: Status,
        *,
        reason: str = "",
        observation: Json | None = None,
        log_excerpt: tuple[str, ...] = (),
    ) -> CellRecord:
        stage = self.stage
        return CellRecord(
            pair=stage.pair,
            probe=self.probe,
            status=status,
            started=self.started,
            reason=reason,
            position=self.position,
            command=stage.command,
            effective=stage.effective,
            phases=stage.phases,
            peak_rss_bytes=stage.peak_rss_bytes,
            device_bytes=stage.device_bytes,
            log_excerpt=log_excerpt,
            observation=observation,
            setup=stamp(stage.setup, self.probe),
        )


def one_line(text: str) -> str:
    """*text* without line breaks, for a column of reasons."""
    return " ".join(text.split())
