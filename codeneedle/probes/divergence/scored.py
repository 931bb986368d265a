"""
Ordinary text read by a server that echoes prompts: scores right tokens of the second
half of each chunk, without distributions; refuses a cell with too many unscored chunks.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

from codeneedle.engines.messages import BadReply, Forced
from codeneedle.engines.tools import indices_of_first_equals
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.divergence.comparison import (
    earlier_comparison_or_empty,
    set_reference_unless_known,
)
from codeneedle.probes.divergence.record import ContextComparison, unread_reasons_by_key
from codeneedle.probes.probe import Asker
from codeneedle.records.record import Json, Status, as_json
from codeneedle.text import one_line

MOST_UNSCORED = 0.1
"""Share of chunks without a score above which a cell has failed."""

BY_SERVER = "an echo of prompts"
"""Stands for the version of a tool."""


def score_chunks_by_server(
    context: ProbeContext, chunks: Mapping[str, Sequence[str]]
) -> Json:
    """
    The observation: right tokens of the second half of each chunk.

    The first cell becomes the reference. Where its server tells that it scores no text,
    no other is started.

    Args:
        context: The cell.
        chunks: Those of each question, by its key.

    Raises:
        CellError: If the server fails, or cannot score what others could.
    """
    found = earlier_comparison_or_empty(context)
    missing = {key: chunks[key] for key in chunks if key not in found.answers}
    reasons = unread_reasons_by_key(context.run.setup)
    found.skipped.update({key: reasons[key] for key in missing if key in reasons})
    missing = {key: missing[key] for key in missing if key not in reasons}
    if not missing:
        return as_json(found)
    context.report_step(0, 1, "loading")
    with context.serving() as served:
        asker = Asker(served, context)
        for key, of_key in missing.items():
            try:
                found.answers[key] = _score_chunks(asker, key, of_key)
            except BadReply as error:
                if error.status is not Status.UNSUPPORTED or context.others:
                    raise
                found.skipped[key] = str(error)
            context.store_observation_so_far(as_json(found))
        asker.wait_until_idle()
    return set_reference_unless_known(context, found)


def _score_chunks(asker: Asker, key: str, chunks: Sequence[str]) -> ContextComparison:
    """
    The right tokens of *chunks*, but of those that have no score.

    Raises:
        CellError: If the server fails, or more than `MOST_UNSCORED` have no score.
    """
    clock = asker.context.clock
    length, started = int(key.partition("x")[0]), clock()
    every: list[Forced] = []
    failed: dict[str, BadReply] = {}
    for at, text in enumerate(chunks):
        asker.context.report_step(at, len(chunks), f"reading at {length:,} tokens")
        try:
            every += asker.score_passages(text, [(len(text) // 2, len(text))])
        except BadReply as error:
            failed[str(at)] = error
            every.append(Forced())
        if len(failed) > MOST_UNSCORED * len(chunks):
            raise _scoring_error(
                failed, is_scorer=any(forced.logprobs for forced in every)
            )
    leads = [*chain.from_iterable(forced.leads for forced in every)]
    bounds = sum(len(forced.bounds) for forced in every)
    return ContextComparison(
        context=length,
        chunks=len(chunks),
        tokens=len(leads),
        seconds=round(clock() - started, 4),
        base_seconds=0.0,
        logprobs=tuple(chain.from_iterable(forced.logprobs for forced in every)),
        ends=tuple(chain.from_iterable(forced.ends for forced in every)),
        first_choices=_percent(sum(lead > 0 for lead in leads), len(leads)),
        bounded=_percent(bounds, len(leads)),
        by_chunk_tokens=tuple(len(forced.logprobs) for forced in every),
        untold=sum(forced.untold for forced in every),
        same_as=indices_of_first_equals(chunks),
        unscored={at: one_line(str(error)) for at, error in failed.items()},
    )


def _scoring_error(failed: Mapping[str, BadReply], *, is_scorer: bool) -> BadReply:
    """The first error; of a server that scores other chunks it is a crash."""
    error = next(iter(failed.values()))
    if is_scorer:
        error.status = Status.CRASHED
    return error


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 4)
