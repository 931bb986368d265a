"""Scores an answer against the expected lines by longest common subsequence."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rapidfuzz.distance import LCSseq

from codeneedle.records.record import NeedleFacts

PASS_LINES = 8
"""Matched lines from which a round passes, as in the published sweeps."""


class Mark(StrEnum):
    """What became of a line."""

    MATCHED = "matched"
    MISSING = "missing"
    HALLUCINATED = "hallucinated"
    BONUS = "bonus"
    OVERRUN = "overrun"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    One line of the alignment, as it stands in its text.

    Attributes:
        mark: What became of it.
        expected: The needle's line; None for hallucinated and overrun lines.
        produced: The reply's line; None for missing lines.
    """

    mark: Mark
    expected: str | None = None
    produced: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """
    A reply, aligned with its needle. Blank lines count nowhere.

    Attributes:
        rows: The alignment, in reading order.
    """

    rows: tuple[Row, ...]

    def count(self, mark: Mark) -> int:
        """How many lines bear *mark*."""
        return sum(row.mark is mark for row in self.rows)

    @property
    def matched(self) -> int:
        """Expected lines that the reply gives back, in order."""
        return self.count(Mark.MATCHED)

    @property
    def passed(self) -> bool:
        """Whether enough lines match for the published sweeps to call it a pass."""
        return self.matched >= PASS_LINES


def score(needle: NeedleFacts, reply: str, *, strict_indent: bool = False) -> Score:
    """
    Align *reply* with the lines that *needle* asks for.

    Lines match whole, trailing white space aside; repeating or reordering them
    earns nothing. The reply is aligned with the asked lines and the few that
    follow them in the source, so that a model which reads on earns a bonus
    instead of a reproach. What matches nothing is hallucinated as long as the
    answer lasts - up to the last matched line, and at least as many lines as
    were asked for - and overrun after that.

    Args:
        needle: The truth: n asked lines that are not blank, and some more.
        reply: What the model said, verbatim.
        strict_indent: Whether leading white space counts.

    Returns:
        Each non-blank line of truth and reply with its mark.

    Source:
        Longest common subsequence of lines, by rapidfuzz's bit-parallel
        ``LCSseq``. Hyyro, Bit-Parallel LCS-length Computation Revisited, 2004.
    """
    asked = _content(needle.lines)
    more = _content(needle.more)
    produced = _content(answer_lines(reply, signature=needle.signature))
    truth = [_key(line, strict_indent=strict_indent) for line in (*asked, *more)]
    given = [_key(line, strict_indent=strict_indent) for line in produced]
    pairs = _aligned(truth, given)
    last = max((g for t, g in pairs if t < len(asked)), default=-1)
    rows = _rows(
        truth=(*asked, *more),
        asked=len(asked),
        produced=produced,
        pairs=pairs,
        answer_ends=max(last + 1, len(asked)),
    )
    return Score(rows=tuple(rows))


def answer_end(needle: NeedleFacts, reply: str) -> int:
    """
    Where the answer in *reply* ends, in characters from its start.

    That is behind its last matched or hallucinated line: the tail that follows
    is the model's own idea, and no part of what it was asked.
    """
    rows = [row for row in score(needle, reply).rows if row.produced is not None]
    last = max((at for at, row in enumerate(rows) if row.mark in _ANSWER), default=-1)
    sought = [row.produced for row in rows[: last + 1]]
    end = at = found = 0
    for line in _LINE.findall(reply):
        at += len(line)
        if found < len(sought) and line.rstrip("\r\n") == sought[found]:
            end = at
            found += 1
    return len(reply) if found < len(sought) else end


_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_ANSWER = {Mark.MATCHED, Mark.HALLUCINATED}


def answer_lines(reply: str, *, signature: str) -> list[str]:
    """
    The lines of *reply* that are the answer, verbatim.

    Thinking blocks go first, an unfinished one with all that follows it. Of a
    reply with code fences, what stands inside them is the answer; a fence that
    never closes lasts to the end. A repeated signature at the top is no part of it.
    """
    text = _THINKING.sub("", reply.replace("\r\n", "\n").replace("\r", "\n"))
    lines = _inside_fences(text.split("\n"))
    return _without_signature(lines, signature=signature)


_THINKING = re.compile(
    r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)|</think(?:ing)?>", re.DOTALL
)
_FENCE = re.compile(r"\s*(?:```|~~~)[\w+.#-]*\s*")


def _inside_fences(lines: Sequence[str]) -> list[str]:
    fences = [at for at, line in enumerate(lines) if _FENCE.fullmatch(line)]
    if not fences:
        return list(lines)
    readings = [_between(lines, fences)]
    if len(fences) % 2:
        # One is alone: the last never closed, or the first closes an answer that
        # began inside (a prefilled reply does). The longer reading is the answer.
        readings.append(_between(lines, [-1, *fences]))
    return max(readings, key=lambda inside: len(_content(inside)))


def _between(lines: Sequence[str], fences: Sequence[int]) -> list[str]:
    inside: list[str] = []
    for opens, closes in zip(fences[::2], [*fences[1::2], len(lines)], strict=False):
        inside += lines[opens + 1 : closes]
    return inside


def _without_signature(lines: list[str], *, signature: str) -> list[str]:
    head = [line.strip() for line in signature.split("\n")]
    start = next((at for at, line in enumerate(lines) if line.strip()), 0)
    top = [line.strip() for line in lines[start : start + len(head)]]
    return lines[start + len(head) :] if top == head else lines


def _content(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.strip()]


def _key(line: str, *, strict_indent: bool) -> str:
    return line.rstrip() if strict_indent else line.strip()


def _aligned(truth: Sequence[str], given: Sequence[str]) -> list[tuple[int, int]]:
    """Index pairs of a longest common subsequence, ascending."""
    return [
        (block.a + offset, block.b + offset)
        for block in LCSseq.opcodes(truth, given).as_matching_blocks()
        for offset in range(block.size)
    ]


def _rows(
    *,
    truth: Sequence[str],
    asked: int,
    produced: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    answer_ends: int,
) -> list[Row]:
    rows: list[Row] = []
    at_truth = at_given = 0
    for next_truth, next_given in [*pairs, (len(truth), len(produced))]:
        rows += [
            Row(mark=Mark.MISSING, expected=truth[t])
            for t in range(at_truth, min(next_truth, asked))
        ]
        rows += [
            Row(
                mark=Mark.HALLUCINATED if g < answer_ends else Mark.OVERRUN,
                produced=produced[g],
            )
            for g in range(at_given, next_given)
        ]
        if next_truth < len(truth):
            mark = Mark.MATCHED if next_truth < asked else Mark.BONUS
            rows.append(
                Row(
                    mark=mark, expected=truth[next_truth], produced=produced[next_given]
                )
            )
        at_truth, at_given = next_truth + 1, next_given + 1
    return rows
