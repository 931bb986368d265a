"""Plays one cell: a probe on a stage, ending in a record whatever happens."""

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from codeneedle.clock import now
from codeneedle.comparability import stamp
from codeneedle.errors import CellError
from codeneedle.fingerprints import refuse_replaced
from codeneedle.grid import Pair
from codeneedle.planning import Plan
from codeneedle.probe import Probe, Step
from codeneedle.records import CellRecord, Json, Setup, Status
from codeneedle.runner import CellEnded, CellStepped, Event, Noted
from codeneedle.stage import Stage


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
        self.setup = self.plan.store.note_trial(stage.trial)
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
