"""From which length of text on a pair loses the answers to a task."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from codeneedle.grid import Pair, most_precise
from codeneedle.probes import PROBES, answers_by_length
from codeneedle.probes.answers import USABLE, Answer
from codeneedle.records.record import Run
from codeneedle.verdict.statistics import Word, error_share, lost_share

Texts = Mapping[str, float]
"""Share of right answers, from 0 to 1, by the name of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostFrom:
    """
    Answers that a pair loses at a length and at all that are longer.

    Attributes:
        task: Name of the task.
        length: The shortest of these lengths, in tokens.
        pair: The cache types.
    """

    task: str
    length: int
    pair: Pair


def lost_from(run: Run, max_lost: float) -> list[LostFrom]:
    """
    The tasks of *run* whose answers pairs lose, and from which length on.

    At a length a text is lost that has fewer right answers than with the reference.
    The share of such texts is beyond *max_lost* by an interval that holds for all pairs
    and lengths at once. A task speaks at each length at which the reference answers,
    the most precise pair; lengths that a pair was not asked do not contradict.
    """
    answers = answers_by_length(run)
    if not answers:
        return []
    reference = _by_length(answers.pop(most_precise(answers)))
    not_asked = {
        (record.pair, gap.task, gap.length)
        for record in run.records
        if record.has_numbers and record.probe in PROBES
        for gap in PROBES[record.probe].gaps(run, record)
        if not gap.is_of_all
    }
    lost = []
    for pair, of_pair in answers.items():
        ours = _by_length(of_pair)
        for task, of_lengths in reference.items():
            known = {
                n: t for n, t in of_lengths.items() if _mean(t.values()) >= USABLE[0]
            }
            share = error_share(0, len(answers) * len(known))
            length = None
            for each in sorted(known, reverse=True):
                if (pair, task, each) in not_asked:
                    continue
                texts = ours.get(task, {}).get(each, {})
                if not _is_lost(known[each], texts, share, max_lost):
                    break
                length = each
            if length is not None:
                lost.append(LostFrom(task=task, length=length, pair=pair))
    return sorted(lost, key=lambda each: (each.task, each.length, str(each.pair)))


def _by_length(answers: Iterable[Answer]) -> dict[str, dict[int, Texts]]:
    """The texts of *answers* by task and length."""
    shares: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for each in answers:
        shares[each.task, each.length, each.text].append(each.right)
    found: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    for (task, length, text), of_text in shares.items():
        found[task].setdefault(length, {})[text] = _mean(of_text)
    return {task: {**of_lengths} for task, of_lengths in found.items()}


def _is_lost(reference: Texts, texts: Texts, share: float, limit: float) -> bool:
    """Whether more than *limit* of the texts of one length have fewer right answers."""
    both = [name for name in reference if name in texts]
    lost = sum(texts[name] < reference[name] for name in both)
    return lost_share(lost, len(both), share).word(limit) is Word.BEYOND


def _mean(values: Iterable[float]) -> float:
    each = list(values)
    return math.fsum(each) / len(each)
