"""
Finds the answer in a reply, without thoughts and fences, and marks lines as matched,
missing, hallucinated or running on, by longest common subsequence.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from codeneedle.corpora.needles import NeedleFacts
from codeneedle.probes.thinking import FIRST_THOUGHT, THOUGHT, THOUGHT_TAG


class Mark(StrEnum):
    """What became of a line."""

    MATCHED = "matched"
    MISSING = "missing"
    MISPLACED = "misplaced"
    HALLUCINATED = "hallucinated"
    BONUS = "bonus"
    OVERRUN = "overrun"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedLine:
    """One line of the alignment, as it stands in its text."""

    mark: Mark  # what became of it
    expected: str | None = None
    """The needle's line; None for hallucinated and overrun lines."""

    produced: str | None = None  # the reply's line; None for missing lines
    place: int | None = None
    """Of a misplaced line, its number in the text that was sent, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """A reply aligned with its needle. Blank lines are not counted."""

    rows: tuple[AlignedLine, ...]  # the alignment, in reading order

    def count(self, mark: Mark) -> int:
        """Number of lines with *mark*."""
        return sum(row.mark is mark for row in self.rows)

    @property
    def matched_line_count(self) -> int:
        """Expected lines that the reply gives back, in order."""
        return self.count(Mark.MATCHED)


def align_reply(
    needle: NeedleFacts, reply: str, *, strict_indent: bool = False
) -> Alignment:
    """
    Align *reply* with the lines that *needle* asks for.

    Lines match whole, trailing white space aside; repeated or reordered lines match
    once. The reply is aligned with the asked lines and the few that follow them in
    the source, so that reading on is counted as bonus. A line that matches nothing is
    hallucinated within the answer - up to the last matched line, and at least as many
    lines as were asked for - and overrun behind it.

    Args:
        needle: The truth: n asked lines that are not blank, and some more.
        reply: What the model said, verbatim.
        strict_indent: Whether leading white space counts.

    Returns:
        Each non-blank line of truth and reply with its mark.
    """
    asked, more = _nonblank_lines(needle.lines), _nonblank_lines(needle.more)
    produced = answer_lines(needle, reply)
    truth = [
        _comparison_key(line, strict_indent=strict_indent) for line in (*asked, *more)
    ]
    given = [_comparison_key(line, strict_indent=strict_indent) for line in produced]
    pairs = _common_subsequence_pairs(truth, given, asked=len(asked))
    answered = (g for t, g in pairs if t < len(asked))
    rows = _marked_rows(
        truth=(*asked, *more),
        asked=len(asked),
        produced=produced,
        pairs=pairs,
        answer_ends=max([len(asked), *answered]),
    )
    return Alignment(rows=tuple(rows))


def answer_lines(needle: NeedleFacts, reply: str) -> list[str]:
    """
    The lines of *reply* that are the answer, verbatim, without blank ones.

    Thinking blocks are removed, an unfinished one with all that follows it. Of a
    reply with code fences, what stands inside them is the answer; a fence that
    never closes lasts to the end. A repeated signature at the top is removed.

    Where the needle's own lines hold such tags, fences or a signature, the reply is
    also read with them left in; the reading that matches most asked lines is taken.
    """
    return [line.text for line in _best_answer_reading(needle, reply)]


def answer_end_offset(needle: NeedleFacts, reply: str) -> int:
    """
    Where the answer in *reply* ends, in characters from its start.

    That is behind the last line that is matched or hallucinated, its line break
    included. What follows is not part of what the model was asked.
    """
    lines = _best_answer_reading(needle, reply)
    rows = [row for row in align_reply(needle, reply).rows if row.produced is not None]
    ends = [
        line.end
        for line, row in zip(lines, rows, strict=True)
        if row.mark in {Mark.MATCHED, Mark.HALLUCINATED}
    ]
    return max(ends, default=0)


@dataclass(frozen=True, slots=True)
class _ReplyLine:
    """A line of a reply."""

    text: str  # the line as it is read, without its line break
    end: int  # offset in the reply of the first character behind its line break


_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_NEVER = re.compile(r"(?!)")
_FENCE = re.compile(r"\s*(?:```|~~~)[\w+.#-]*\s*")

_REMOVED = "\ud800"
"""Stands for a removed character, so that offsets stay; no reply holds surrogates."""


def _best_answer_reading(needle: NeedleFacts, reply: str) -> list[_ReplyLine]:
    """The answer's lines that are not blank, by the best of the readings."""
    usual, *others = _reply_readings(needle, reply)
    if not others:
        return usual
    asked = [line.strip() for line in _nonblank_lines(needle.lines)]

    def count_matched_lines(lines: Sequence[_ReplyLine]) -> int:
        given = [line.text.strip() for line in lines]
        return len(_common_subsequence_pairs(asked, given, asked=len(asked)))

    return max([usual, *others], key=count_matched_lines)


def _reply_readings(needle: NeedleFacts, reply: str) -> Iterator[list[_ReplyLine]]:
    """Ways to read *reply*, without blank lines; the usual one is first."""
    truth = [*needle.lines, *needle.more]
    has_tags = any(map(THOUGHT_TAG.search, truth))
    has_fences = any(map(_FENCE.fullmatch, truth))
    patterns = [THOUGHT, FIRST_THOUGHT, _NEVER] if has_tags else [THOUGHT]
    head = [line.strip() for line in _nonblank_lines(needle.signature.split("\n"))]
    top = [line.strip() for line in _nonblank_lines(needle.lines)[: len(head)]]
    for pattern in patterns:
        lines = _reply_lines(reply, removed=pattern)
        for inside in _fence_readings(lines, has_fences=has_fences):
            content = [line for line in inside if line.text.strip()]
            starts = [line.text.strip() for line in content[: len(head)]]
            yield content[len(head) :] if starts == head else content
            if starts == head == top:
                yield content


def _reply_lines(reply: str, *, removed: re.Pattern[str]) -> list[_ReplyLine]:
    """
    The lines of *reply* without what matches *removed*, those left empty among them.

    They end where they do in *reply*.
    """
    text = removed.sub(lambda found: _REMOVED * len(found[0]), reply)
    return [
        _ReplyLine(line[0].rstrip("\r\n").replace(_REMOVED, ""), line.end())
        for line in _LINE.finditer(text)
    ]


def _fence_readings(
    lines: Sequence[_ReplyLine], *, has_fences: bool
) -> Iterator[Sequence[_ReplyLine]]:
    """Ways to read code fences; the usual one is first, the longer of two."""
    fences = [at for at, line in enumerate(lines) if _FENCE.fullmatch(line.text)]
    if not fences:
        yield lines
        return
    pairs = [_fenced_lines(lines, fences)]
    if len(fences) % 2:
        # One is alone: the last never closed, or the first closes an answer that
        # began inside (a prefilled reply does).
        pairs.append(_fenced_lines(lines, [-1, *fences]))
    yield max(pairs, key=lambda inside: sum(bool(line.text.strip()) for line in inside))
    if has_fences:
        first, last = fences[0], fences[-1]
        yield from (lines[first + 1 : last], lines[first + 1 :], lines[:last], lines)


def _fenced_lines(
    lines: Sequence[_ReplyLine], fences: Sequence[int]
) -> list[_ReplyLine]:
    """The lines behind each opening fence, up to its closing one or the end."""
    opening, closing = fences[::2], [*fences[1::2], len(lines)]
    inside = (lines[at + 1 : to] for at, to in zip(opening, closing, strict=False))
    return list(itertools.chain.from_iterable(inside))


def _nonblank_lines(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.strip()]


def _comparison_key(line: str, *, strict_indent: bool) -> str:
    """What is compared of a line: without white space behind, or on both sides."""
    return line.rstrip() if strict_indent else line.strip()


def _common_subsequence_pairs(
    truth: Sequence[str], given: Sequence[str], *, asked: int
) -> list[tuple[int, int]]:
    """
    Index pairs of a longest common subsequence, ascending.

    Of several longest ones it is one with the most of the first *asked* lines of
    *truth*: a closing brace of the answer is not taken for one that follows it. Of
    those, it is the one that matches the earliest lines of *given*.

    Source:
        Wagner & Fischer, The String-to-String Correction Problem, 1974; O(n m), with
        a match of an asked line worth a little more than one of a following line.
    """
    known = set(truth)
    places = [g for g, line in enumerate(given) if line in known]
    given = [given[g] for g in places]
    best = _best_alignment_worths(truth, given, asked=asked)
    pairs = []
    t = g = 0
    while t < len(truth) and g < len(given):
        if truth[t] == given[g]:
            pairs.append((t, places[g]))
            t, g = t + 1, g + 1
        elif best[t + 1][g] >= best[t][g + 1]:
            t += 1
        else:
            g += 1
    return pairs


def _best_alignment_worths(
    truth: Sequence[str], given: Sequence[str], *, asked: int
) -> list[list[int]]:
    """
    At [t][g] the worth of the best alignment of truth[t:] with given[g:].

    A match of an asked line is worth one more than that of another.
    """
    row = [0] * (len(given) + 1)
    table = [row]
    for t in reversed(range(len(truth))):
        line, below = truth[t], row
        worth = len(truth) + (t < asked)
        row = below.copy()
        beside = 0
        for g in reversed(range(len(given))):
            if given[g] == line:
                row[g] = beside = worth + below[g + 1]
            elif beside > row[g]:
                row[g] = beside
            else:
                beside = row[g]
        table.append(row)
    table.reverse()
    return table


def _marked_rows(
    *,
    truth: Sequence[str],
    asked: int,
    produced: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    answer_ends: int,
) -> list[AlignedLine]:
    """
    Each line with its mark, in reading order.

    Between two matches missing lines stand before superfluous ones. These are
    hallucinated before *answer_ends*, an index of *produced*, and overrun from there
    on. The first *asked* lines of *truth* can be missing; a match of another is bonus.
    """
    rows: list[AlignedLine] = []
    at_truth = at_given = 0
    for next_truth, next_given in [*pairs, (len(truth), len(produced))]:
        rows += [
            AlignedLine(mark=Mark.MISSING, expected=truth[t])
            for t in range(at_truth, min(next_truth, asked))
        ]
        rows += [
            AlignedLine(
                mark=Mark.HALLUCINATED if g < answer_ends else Mark.OVERRUN,
                produced=produced[g],
            )
            for g in range(at_given, next_given)
        ]
        if next_truth < len(truth):
            mark = Mark.MATCHED if next_truth < asked else Mark.BONUS
            rows.append(
                AlignedLine(
                    mark=mark, expected=truth[next_truth], produced=produced[next_given]
                )
            )
        at_truth, at_given = next_truth + 1, next_given + 1
    return rows
