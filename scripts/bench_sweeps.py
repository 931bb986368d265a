"""A sweep as a person starts it, and what its records say of where the time went."""

import re
from dataclasses import dataclass
from pathlib import Path

from bench_children import codeneedle
from bench_place import CONTEXT, CORPUS_NAME, Place, Stopped
from bench_published import matched

from codeneedle.models.nano import model
from codeneedle.records.record import CellRecord, Phases, Recall, Setup, read_recall
from codeneedle.records.store import Store, run_folder
from codeneedle.system.processes import OMISSION

_TOTAL = re.compile(r"print_timing: .*?total time =\s+(?P<ms>[\d.]+) ms")
"""Of a request that came to its end; one that is cut has no such line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OurCell:
    """
    A cell of a sweep.

    Attributes:
        pair: Its cache types.
        phases: Where its time went.
        busy_s: What its server says that it read and wrote, in seconds: for the
            priming round, the scored ones, and what was asked after them. None
            where its log is too long to have been kept whole.
        matched: Lines of 20, for each function.
        tokens: That were written in scored rounds.
        drafted: Tokens that were guessed.
        accepted: Of these, the right ones.
    """

    pair: str
    phases: Phases
    busy_s: float | None
    matched: tuple[int, ...]
    tokens: int
    drafted: int
    accepted: int

    @property
    def wall_s(self) -> float:
        """The cell from launch to end, with what lay before it, in seconds."""
        return self.phases.total_s + (self.phases.between_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """
    A sweep from its start to its end.

    Attributes:
        command_s: The whole command, in seconds.
        cells: Its cells, in running order.
        corpus_tokens: As its setup says.
        needles: Names of what was asked.
    """

    command_s: float
    cells: tuple[OurCell, ...]
    corpus_tokens: int
    needles: tuple[str, ...]


def swept(
    place: Place, *, k_types: str, v_types: str, speculates: bool = True
) -> Swept:
    """
    Sweep in a fresh folder, by the real program, as a child.

    Args:
        place: Where.
        k_types: As ``--k-types`` takes them.
        v_types: As ``--v-types`` takes them.
        speculates: Whether the corpus may draft its own recall, as it does unless
            a person says else.

    Raises:
        Stopped: If a cell does not finish.
    """
    out = place.fresh("sweeps")
    done = codeneedle(
        *("sweep", "--corpus", str(place.corpus), "--context", str(CONTEXT)),
        *("--k-types", k_types, "--v-types", v_types, "--out", str(out)),
        *(() if speculates else ("--no-speculate",)),
        log=out.with_suffix(".log"),
    )
    store = Store(run_folder(out, corpus=CORPUS_NAME, model=model.NAME))
    setup = store.setup()
    if setup is None:
        raise Stopped("the sweep left no setup", hint=done.output[-300:])
    found = sorted(store.records(), key=lambda record: record.position)
    return Swept(
        command_s=done.wall_s,
        cells=tuple(_cell(store, setup, record) for record in found),
        corpus_tokens=setup.corpus.tokens,
        needles=tuple(needle.name for needle in setup.needles),
    )


def _cell(store: Store, setup: Setup, record: CellRecord) -> OurCell:
    recall = read_recall(record.observation or {}, file=str(record.pair))
    rounds = recall.rounds
    return OurCell(
        pair=str(record.pair),
        phases=record.phases,
        busy_s=busy_s(recall, store.log(record.pair)),
        matched=matched(setup.needles, [asked.reply for asked in rounds]),
        tokens=sum(asked.predicted_tokens for asked in rounds),
        drafted=sum(asked.drafted for asked in rounds),
        accepted=sum(asked.accepted for asked in rounds),
    )


def busy_s(recall: Recall, log: Path) -> float | None:
    """
    What a server read and wrote, in seconds; None if part of its *log* is gone.

    A round that was cut is known from its record, all else that was asked from the
    log alone: questions for leads are not recorded one by one.
    """
    said = log.read_bytes()
    if OMISSION in said:
        return None
    logged = sum(
        float(found["ms"]) for found in _TOTAL.finditer(said.decode(errors="replace"))
    )
    cut = sum(
        asked.prompt_ms + asked.predicted_ms
        for asked in recall.rounds
        if asked.finish == "cut"
    )
    return (logged + cut) / 1000
