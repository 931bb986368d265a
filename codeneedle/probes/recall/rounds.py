"""
Scores of stored recall rounds: counts of lines, margins of tokens, right lines before
greedy writing would leave them; and which empty answers are errors.
"""

import bisect
import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles

from codeneedle.corpora.needles import NeedleFacts
from codeneedle.engines.messages import Reply
from codeneedle.probes.observations import Answer, keep_results
from codeneedle.probes.recall.alignment import (
    Alignment,
    Mark,
    align_reply,
    answer_end_offset,
)
from codeneedle.probes.recall.copied_lines import (
    NO_LINES,
    TextLines,
    mark_misplaced_lines,
)
from codeneedle.probes.recall.record import needle_named, recall_of
from codeneedle.probes.recall.settings import recall_layout
from codeneedle.records.record import CellRecord, Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """How far the tokens of one answer were ahead of the second most probable ones."""

    least: float  # the smallest gap of log-probabilities, in nats
    fifth: float  # their 5th percentile
    mean: float  # their mean


@dataclass(frozen=True)
class ScoredRound:
    """A stored round beside the truth that it is scored against."""

    needle: NeedleFacts  # what was asked for
    round: Answer  # what was answered
    text: TextLines = NO_LINES  # the lines of the text that was sent

    @functools.cached_property
    def error(self) -> str:
        """
        Why there is nothing to score; empty if there is.

        An empty answer that the model ended itself is one, of no right line; one that a
        limit or the server ended is none: nobody knows what would have come.
        """
        if self.round.reply and self.round.reply.finish == "stop":
            return ""
        if self.round.error:
            return self.round.error
        is_empty = self.line_counts_by_mark.keys() <= {Mark.MISSING}
        return "empty answer" if is_empty else ""

    @property
    def line_counts_by_mark(self) -> Counter[Mark]:
        """Lines of each kind, leading white space aside."""
        return _mark_counts(self.needle, self.round.text, self.text)

    @property
    def misplaced_line_count(self) -> int | None:
        """Wrong lines that stand elsewhere in the text; None if that is not known."""
        return self.line_counts_by_mark[Mark.MISPLACED] if self.text.digests else None

    @property
    def alignment(self) -> Alignment:
        """Lines of answer and truth side by side, leading white space aside."""
        scored = align_reply(self.needle, self.round.text)
        return mark_misplaced_lines(scored, self.needle, self.text)

    @property
    def lines_matched_with_indent(self) -> int:
        """Lines that match with their leading white space."""
        return _lines_matched_with_indent(self.needle, self.round.text)

    @functools.cached_property
    def margins(self) -> Margins | None:
        """
        Margins of the tokens of the answer; None where not all their gaps are stored.

        How sure a model is of what it writes after the answer tells nothing of how
        close the answer was to breaking. A server that speculates tells no
        probabilities of the tokens that it drafted.
        """
        reply = self.round.reply
        if reply is None or reply.drafted:
            return None
        return margins_of_gaps(self._answer_token_gaps(reply))

    def _answer_token_gaps(self, reply: Reply) -> tuple[float, ...]:
        """
        Gaps of the tokens that begin before the end of the answer.

        All of them if that end is unknown.
        """
        if not reply.lengths:
            return reply.gaps
        end = _answer_end(self.needle, reply.text)
        begins = list(itertools.accumulate(reply.lengths, initial=0))
        return reply.gaps[: bisect.bisect_left(begins, end)]


def margins_of_gaps(gaps: Sequence[float]) -> Margins | None:
    """The margins of an answer whose tokens have *gaps*; None if there are none."""
    if not gaps:
        return None
    ordered = sorted(gaps)
    fifth = ordered[0]
    if len(ordered) > 1:
        # Between order statistics: definition 7 of Hyndman & Fan, 1996.
        fifth, *_ = quantiles(ordered, n=20, method="inclusive")
    return Margins(least=ordered[0], fifth=fifth, mean=fmean(gaps))


@keep_results()
def scored_rounds(record: CellRecord, setup: Setup) -> tuple[ScoredRound, ...]:
    """
    The rounds of *record*, in asking order.

    Raises:
        BadRecord: If it holds something else, or asks for a needle that *setup*
            does not have.
    """
    functions = recall_layout(setup)
    by_name = {needle.name: needle for needle in functions.written}
    rounds = recall_of(record).rounds
    return tuple(
        ScoredRound(needle_named(by_name, stored.name, record), stored, functions.text)
        for stored in rounds
    )


def answered_rounds(record: CellRecord, setup: Setup) -> list[ScoredRound]:
    """
    The rounds of *record* that have an answer, in asking order.

    Raises:
        BadRecord: See `scored_rounds`.
    """
    return [
        scored_round
        for scored_round in scored_rounds(record, setup)
        if not scored_round.error
    ]


# Large: an entry is five numbers, and the cells of a good grid give equal replies.
@functools.lru_cache(maxsize=65_536)
def _mark_counts(needle: NeedleFacts, reply: str, text: TextLines) -> Counter[Mark]:
    """Lines of *reply* by mark; those that stand in *text* are misplaced."""
    scored = mark_misplaced_lines(align_reply(needle, reply), needle, text)
    return Counter(row.mark for row in scored.rows)


@functools.lru_cache(maxsize=65_536)
def _lines_matched_with_indent(needle: NeedleFacts, reply: str) -> int:
    return align_reply(needle, reply, strict_indent=True).matched_line_count


@functools.lru_cache(maxsize=65_536)
def _answer_end(needle: NeedleFacts, reply: str) -> int:
    return answer_end_offset(needle, reply)
