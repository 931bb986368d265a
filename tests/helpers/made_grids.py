"""A whole grid whose losses look like those of a small language model."""

import random
from dataclasses import replace

from made_losses import diverging, losing, losing_rounds, losing_setup
from made_records import (
    asking_for,
    failed_record,
    made_priming,
    made_reply,
    made_round,
    observed,
    sized,
    written_of,
)
from made_retrieval import (
    made_calibration,
    made_dial,
    made_texts,
    retrieval_record,
    right,
    with_calibration,
)
from made_speeds import measured, run_of

from codeneedle.cache_types import DEFAULT_TYPES, Pair
from codeneedle.probes.recall.record import Recall
from codeneedle.probes.retrieval.settings import RetrievalLayout
from codeneedle.records.record import CellRecord, Run, Setup, Status, as_json

FUNCTIONS = 24

BY_K = dict(zip(DEFAULT_TYPES, (0.0, 0.001, 0.016, 0.022, 0.08, 0.10), strict=True))
BY_V = dict(zip(DEFAULT_TYPES, (0.0, 0.0, 0.001, 0.004, 0.006, 0.012), strict=True))
"""Losses of the types of K and of V; those of a pair add up."""

FAILED = "q4_1/q4_0"
"""The pair without numbers."""

PAIRS = [Pair(k, v) for k in DEFAULT_TYPES for v in DEFAULT_TYPES]


def losses_of_pair(pair: Pair) -> list[float]:
    """The loss of each function, the same in every call."""
    chance = random.Random(str(pair))  # noqa: S311 - repeatable, not secret
    loss = BY_K[pair.k] + BY_V[pair.v]
    spread = 0.15 * loss + 0.006 if loss else 0.0
    return [loss + chance.uniform(-spread, spread) for _ in range(FUNCTIONS)]


def lossy_grid(*, written: bool = False) -> Run:
    """36 pairs of forced, and of *written* recall; one pair ran out of memory."""
    setup = losing_setup([str(p) for p in PAIRS], forced=FUNCTIONS, functions=FUNCTIONS)
    failed = failed_record(FAILED, Status.OUT_OF_MEMORY, "cannot allocate 9 GiB")
    setup = asking_for(setup, written=_written(setup) if written else ())
    records = [
        failed if str(pair) == FAILED else _recalled(setup, pair) for pair in PAIRS
    ]
    return Run(name="random-bodies/made-model", setup=setup, records=tuple(records))


def whole_grid() -> Run:
    """The same with written recall, divergence, speeds and answers to tasks."""
    run = lossy_grid(written=True)
    more = [
        each for record in run.records if record.has_numbers for each in _more(record)
    ]
    asked = RetrievalLayout(
        tasks=("multikey", "nth"),
        lengths=(1024, 4096),
        depths=(0.1, 0.5, 0.9),
        questions=3,
        dial=(),
        gate=False,
        graded="",
    )
    timed = run_of(depths=(0, 4096)).setup.probes
    probes = {"retrieval": as_json(asked), **timed}
    setup = replace(run.setup, probes={**run.setup.probes, **probes})
    frozen = made_calibration(made_dial(), made_dial("nth"))
    return replace(
        run, setup=with_calibration(setup, frozen), records=(*run.records, *more)
    )


def _more(record: CellRecord) -> list[CellRecord]:
    pair, loss = record.pair, BY_K[record.pair.k] + BY_V[record.pair.v]

    def answer(question, length):  # type: ignore[no-untyped-def]
        is_lost = hash((question.depth, length)) % 100 < 900 * loss
        return "no such line, as far as I can see" if is_lost else right(question, 0)

    texts = [
        text
        for task in ("multikey", "nth")
        for length in (1024, 4096)
        for text in made_texts(task, length=length, questions=3, answer=answer)
    ]
    speed = 40.0 + 10 * (pair.k == pair.v) - 100 * loss
    return [
        diverging(str(pair), [0.3 * loss + 1e-4] * 8),
        measured(pair, {0: speed, 4096: speed / 2}),
        retrieval_record(str(pair), texts),
    ]


def _written(setup: Setup) -> tuple:  # type: ignore[type-arg]
    from made_records import made_needle

    return tuple(made_needle(at) for at in range(16)) if setup else ()


def _recalled(setup: Setup, pair: Pair) -> CellRecord:
    record = losing(setup, str(pair), losses_of_pair(pair))
    if not written_of(setup):
        return record
    lost = round(150 * (BY_K[pair.k] + BY_V[pair.v]))
    rounds = [
        made_round(needle, reply=made_reply(needle, matched=20 - lost % 20, junk=2))
        for needle in written_of(setup)
    ]
    recall = Recall(
        rounds=tuple(rounds),
        forced=tuple(losing_rounds(setup, losses_of_pair(pair))),
        priming=made_priming(written_of(setup)[-1]),
    )
    return sized(replace(record, observation=observed(recall)))
