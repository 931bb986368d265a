"""Runs whose pairs lose what a test wishes, function by function or chunk by chunk."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fake_tools import made_statistics
from made_records import (
    asking_recall,
    failed_record,
    forced_of,
    lost_round,
    made_forced,
    made_record,
    made_setup,
    sized,
    with_scores,
)

from codeneedle.cache_types import Pair
from codeneedle.engines.tools import ChunkValues
from codeneedle.probes.divergence.record import NAME as DIVERGENCE
from codeneedle.probes.divergence.record import ContextComparison, Divergence
from codeneedle.probes.observations import Answer
from codeneedle.records.record import AGAIN, CellRecord, Run, Setup, Status, as_json

REFERENCE = "bf16/bf16"

KEPT = 0.6
"""
Probability of a right token of the first function with the reference; of each further
one it is a little higher.
"""

WITHIN = tuple(0.002 * (-1) ** at for at in range(16))
"""Losses of 16 functions that show that a pair is within 1 %."""

OPEN = tuple(0.005 + 0.02 * (-1) ** at for at in range(16))
"""The same of a pair that is measured below the limit, and not shown to be."""

BEYOND = tuple(0.10 + 0.02 * (-1) ** at for at in range(16))
"""The same of a pair that is beyond it."""


def losing_setup(
    pairs: Sequence[str], *, forced: int = 16, functions: int = 16
) -> Setup:
    """A run that forces *functions* of each pair, and may force *forced* of them."""
    types = [Pair.parse(pair) for pair in pairs]
    setup = made_setup(
        needles=0,
        forced=forced,
        types_k=tuple(dict.fromkeys(pair.k for pair in types)),
        types_v=tuple(dict.fromkeys(pair.v for pair in types)),
    )
    asked = {"way": ["force"], "functions": functions, "lines": 5}
    return replace(asking_recall(setup, asked), pairs=tuple(pairs))


def losing(
    setup: Setup, pair: str, losses: Sequence[float | None], **facts: object
) -> CellRecord:
    """A record of forced recall alone, of `losing_rounds`."""
    rounds = losing_rounds(setup, losses, **facts)
    return sized(made_record(pair, [], forced=rounds))


def losing_rounds(
    setup: Setup,
    losses: Sequence[float | None],
    *,
    bounds: int = 0,
    behind: Sequence[int] = (),
) -> list[Answer]:
    """
    Forced lines whose right tokens have so much less probability than the reference's.

    Args:
        setup: Has the functions.
        losses: Of the first functions; None for one without an answer.
        bounds: Tokens of each function of which a bound alone is known.
        behind: Lines of each function that are no first choice.
    """
    rounds = []
    for at, (needle, loss) in enumerate(zip(forced_of(setup), losses, strict=False)):
        made = made_forced(
            needle, logprob=math.log(KEPT + 0.001 * at - (loss or 0.0)), behind=behind
        )
        made = with_scores(made, bounds=tuple(range(bounds)))
        rounds.append(lost_round(needle, "no answer") if loss is None else made)
    return rounds


def losing_run(
    losses: Mapping[str, Sequence[float | None]],
    *more: CellRecord,
    reference: str = REFERENCE,
    setup: Setup | None = None,
) -> Run:
    """
    A run of forced recall.

    Args:
        losses: By pair, those of its functions, beside the reference.
        more: Further records.
        reference: A pair that is added, and loses nothing; none if empty.
        setup: One with all these pairs and functions if None.
    """
    functions = max((len(each) for each in losses.values()), default=16)
    pairs = [*([reference] if reference else []), *losses]
    setup = setup or losing_setup(pairs, forced=functions, functions=functions)
    every = {reference: [0.0] * functions} if reference else {}
    records = [losing(setup, pair, each) for pair, each in (every | losses).items()]
    run = Run(name="random-bodies/made-model", setup=setup, records=())
    return run.with_every_record((*records, *more))


def repeated(record: CellRecord) -> CellRecord:
    """The same as the second record of a reference."""
    return replace(record, variant=AGAIN)


def diverging(
    pair: str, klds: Sequence[float], *, reference: str = REFERENCE
) -> CellRecord:
    """A record of the divergence probe, with a mean KL divergence for each chunk."""
    compared = ContextComparison(
        context=512,
        chunks=len(klds),
        tokens=255 * len(klds),
        seconds=1.0,
        base_seconds=1.0,
        reference_ppl=4.0,
        statistics=made_statistics(kld=math.fsum(klds) / len(klds)),
        by_chunk=tuple(ChunkValues(logp=-1.0, kld=kld, same_top=99.0) for kld in klds),
    )
    found = Divergence(reference=reference, answers={f"512x{len(klds)}": compared})
    return sized(
        replace(
            failed_record(pair),
            probe=DIVERGENCE,
            status=Status.FINISHED,
            reason="",
            observation=as_json(found),
        )
    )


def text_read(
    pair: str,
    losses: Sequence[float],
    *,
    is_told: bool = True,
    reference: str = REFERENCE,
) -> CellRecord:
    """
    A record of the divergence probe, whose right tokens are less likely by chunks.

    Args:
        pair: Of the cell.
        losses: Of each chunk of 512 tokens.
        is_told: Whether the tool tells log-probabilities of right tokens.
        reference: What it was compared with.
    """
    made = diverging(pair, [0.004] * len(losses), reference=reference)
    stored = made.observation or {}
    (answer,) = stored["answers"].values()
    logprobs = [round(math.log(KEPT - loss), 6) for loss in losses for _ in range(255)]
    answer |= {"logprobs": logprobs if is_told else [], "first_choices": 60.0}
    return made
