"""Finds the lengths of text from which on pairs lose the answers to a task."""

import itertools
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from codeneedle.cache_types import Pair
from codeneedle.probes import PROBES, length_probe_answers_by_pair
from codeneedle.probes.answers import ScoredAnswer
from codeneedle.probes.metrics import ABLE
from codeneedle.records.record import Run
from codeneedle.reference import reference_among
from codeneedle.verdict.statistics import Decision, error_share, lost_share_interval

Texts = Mapping[str, float]
"""Share of right answers, from 0 to 1, by the name of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostFrom:
    """A pair loses the answers to a task at a length and at all greater ones."""

    task: str  # name of the task
    length: int  # the smallest such length, in tokens
    pair: Pair


def lost_lengths(run: Run, max_lost: float) -> list[LostFrom]:
    """
    The tasks of *run* whose answers pairs lose, and from which length on.

    A text is lost if it has fewer right answers than with the reference, the most
    precise pair. At each such length, the share of lost texts is beyond *max_lost* by
    an interval that holds for all pairs and lengths at once. Only lengths at which the
    reference answers count; lengths that a pair was not asked are skipped.
    """
    shares = {
        pair: _right_shares(of)
        for pair, of in length_probe_answers_by_pair(run).items()
    }
    chosen = reference_among(r for r in run.records if r.pair in shares)
    if chosen is None:
        return []
    reference = shares.pop(chosen)
    answered: dict[str, list[int]] = {}
    for (task, length), texts in sorted(reference.items(), reverse=True):
        if statistics.fmean(texts.values()) >= ABLE:
            answered.setdefault(task, []).append(length)
    not_asked = {
        (record.pair, gap.task, gap.length)
        for record in run.records
        if record.has_numbers and record.probe in PROBES
        if (skipped := PROBES[record.probe].skipped)
        for gap in skipped(run, record)
    }
    lost = []
    for (pair, of_pair), (task, lengths) in itertools.product(
        shares.items(), answered.items()
    ):
        share = error_share(0, len(shares) * len(lengths))
        least = None
        for length in lengths:
            if (pair, task, length) in not_asked:
                continue
            texts = of_pair.get((task, length), {})
            if not _is_length_lost(reference[task, length], texts, share, max_lost):
                break
            least = length
        if least is not None:
            lost.append(LostFrom(task=task, length=least, pair=pair))
    return sorted(lost, key=lambda loss: (loss.task, loss.length, str(loss.pair)))


def _right_shares(answers: Iterable[ScoredAnswer]) -> dict[tuple[str, int], Texts]:
    """The share of right answers of each text, by task and length."""
    rights: dict[tuple[str, int], dict[str, list[float]]] = {}
    for answer in answers:
        texts = rights.setdefault((answer.task, answer.length), {})
        texts.setdefault(answer.text, []).append(answer.right)
    return {
        place: {text: statistics.fmean(of_text) for text, of_text in texts.items()}
        for place, texts in rights.items()
    }


def _is_length_lost(reference: Texts, texts: Texts, share: float, limit: float) -> bool:
    """True if surely more than *limit* of *texts* are less right than *reference*."""
    both = [name for name in reference if name in texts]
    lost = sum(texts[name] < reference[name] for name in both)
    return (
        lost_share_interval(lost, len(both), share).decision(limit) is Decision.BEYOND
    )
