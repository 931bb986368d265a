"""Marks cells whose numbers say, beside those of others, that they fell back."""

import contextlib
import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

from codeneedle.fallbacks import suspects
from codeneedle.grid import Pair
from codeneedle.metrics import Metric
from codeneedle.play import Player
from codeneedle.records import CellRecord
from codeneedle.runner import CellEnded, Event
from codeneedle.scored_rounds import Reading

PROMPT_SPEEDS = frozenset({"prefill", "pp"})
"""Names of the metrics that tell, in tokens per second, how fast prompts are read."""


def judged(
    events: Generator[Event, None, None], player: Player
) -> Generator[Event, None, None]:
    """
    The *events* of a sweep, with cells marked as fallbacks as soon as they show.

    Each cell that ends is held against all that have finished, and these against
    it: what fell back first looks normal until something better has run. A marked
    cell is on disk with its new status and reason, its observation kept, before it
    is told, as one more `CellEnded` where its first one was told already.

    Args:
        events: Of one probe, each record on disk before it is told.
        player: What plays them.
    """
    court = _Court(player)
    with contextlib.closing(events):
        for event in events:
            if not isinstance(event, CellEnded):
                yield event
                continue
            marked = court.marked(event.record)
            # The screen counts on the cell itself to be told first.
            yield CellEnded(marked.pop(event.record.pair, event.record))
            yield from map(CellEnded, marked.values())


@dataclass(slots=True)
class _Court:
    """All records of one probe, and what is known of them together."""

    player: Player
    records: dict[Pair, CellRecord] = field(init=False)

    def __post_init__(self) -> None:
        self.records = {record.pair: record for record in _stored(self.player)}

    def marked(self, ended: CellRecord) -> dict[Pair, CellRecord]:
        """Records that have to be marked, now that *ended* is there; stored so."""
        self.records[ended.pair] = ended
        found = suspects(
            self.records.values(),
            speed=self._speed,
            has_device=bool(self.player.plan.server.devices),
        )
        marked = {
            pair: replace(
                self.records[pair], status=trouble.status, reason=trouble.reason
            )
            for pair, trouble in found.items()
        }
        for record in marked.values():
            self.player.plan.store.add(record)
        self.records |= marked
        return marked

    def _speed(self, record: CellRecord) -> float | None:
        """The slowest of what was seen: a fallback slows down every prompt."""
        metric = _prompt_speed(self.player.probe.metrics)
        if metric is None:
            return None
        values = metric.values(record, self.player.setup, Reading())
        return min(values, default=None)


def _prompt_speed(metrics: tuple[Metric, ...]) -> Metric | None:
    return next((metric for metric in metrics if metric.name in PROMPT_SPEEDS), None)


def _stored(player: Player) -> Iterator[CellRecord]:
    """All of the probe's records in the folder, of this grid and of earlier ones."""
    setup = player.setup
    for k, v in itertools.product(setup.types_k, setup.types_v):
        record = player.plan.store.record(Pair(k, v), player.probe.name)
        if record is not None:
            yield record
