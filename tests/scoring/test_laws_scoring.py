"""Laws of scoring, held against a plain algorithm that is too slow to use."""

import functools

from hypothesis import given
from hypothesis import strategies as st
from unhurried import unhurried

from codeneedle.probes.recall import enough_for
from codeneedle.records.record import NeedleFacts
from codeneedle.scoring.alignment import Mark, answer_end, answer_lines, score

WORDS = st.sampled_from(["a", "b", "c", " a", "a ", "\ta", "d = 1", "é", "x\u2028y"])
TRUTH = st.lists(WORDS, min_size=1, max_size=20)
LINES = st.lists(WORDS | st.sampled_from(["", "  "]), max_size=40)
ANY_REPLY = (
    st.lists(
        WORDS | st.text(max_size=4) | st.sampled_from(["```", "~~~", "```py", "sig"])
    ).map("\n".join)
    | st.text()
)


def needle_of(truth, more=()):
    return NeedleFacts(
        name="f", signature="sig", line=1, depth=0, lines=tuple(truth), more=tuple(more)
    )


def longest_common(a, b):
    """Length of a longest common subsequence, straight from its definition."""

    @functools.cache
    def of(at, to):
        if at == len(a) or to == len(b):
            return 0
        if a[at] == b[to]:
            return 1 + of(at + 1, to + 1)
        return max(of(at + 1, to), of(at, to + 1))

    return of(0, 0)


def content(lines, key):
    return [key(line) for line in lines if line.strip()]


@unhurried
@given(truth=TRUTH, reply=LINES, strict=st.booleans())
def test_as_many_lines_match_as_the_plain_algorithm_finds(truth, reply, strict):
    """
    Without further lines of the source, matches are a longest common subsequence.
    """
    key = str.rstrip if strict else str.strip
    scored = score(needle_of(truth), "\n".join(reply), strict_indent=strict)

    assert scored.matched == longest_common(content(truth, key), content(reply, key))


@unhurried
@given(truth=TRUTH, more=st.lists(WORDS, max_size=5), reply=LINES)
def test_further_lines_of_the_source_never_make_more_of_a_reply(truth, more, reply):
    """
    Matches and bonus together are the longest subsequence, so matches never exceed it.
    """
    scored = score(needle_of(truth, more), "\n".join(reply))
    given_lines = content(reply, str.strip)
    most = longest_common(content(truth, str.strip), given_lines)
    whole = longest_common(content([*truth, *more], str.strip), given_lines)

    assert scored.matched <= most
    assert scored.matched + scored.count(Mark.BONUS) == whole


@unhurried
@given(truth=TRUTH, more=st.lists(WORDS, max_size=5), reply=ANY_REPLY)
def test_rows_are_both_texts_in_their_order(truth, more, reply):
    """
    Every asked line stands in one row and every line of the answer in one, both in
    reading order; two that share a row are equal, and no row is empty.
    """
    scored = score(needle_of(truth, more), reply)
    produced = [row.produced for row in scored.rows if row.produced is not None]
    asked = [
        row.expected
        for row in scored.rows
        if row.expected is not None and row.mark is not Mark.BONUS
    ]
    bonus = [row.expected for row in scored.rows if row.mark is Mark.BONUS]
    rest = iter(more)

    assert [line for line in truth if line.strip()] == asked
    answer = answer_lines(reply, signature="sig")
    assert [line for line in answer if line.strip()] == produced
    assert all(line in rest for line in bonus)
    for row in scored.rows:
        assert row.expected is not None or row.produced is not None
        if row.expected is not None and row.produced is not None:
            assert row.expected.strip() == row.produced.strip()


@unhurried
@given(truth=TRUTH, reply=ANY_REPLY)
def test_the_counts_are_bounded(truth, reply):
    """
    Matched and missing make what was asked; the rest is at most what was said.
    """
    scored = score(needle_of(truth), reply)
    counts = {mark: scored.count(mark) for mark in Mark}
    said = len([line for line in reply.splitlines() if line.strip()])

    assert len(truth) == counts[Mark.MATCHED] + counts[Mark.MISSING]
    assert counts[Mark.MATCHED] <= said
    assert counts[Mark.HALLUCINATED] + counts[Mark.OVERRUN] <= said


@unhurried
@given(truth=TRUTH, reply=LINES)
def test_counting_leading_space_never_helps(truth, reply):
    """
    What matches strictly matches otherwise, too.
    """
    text = "\n".join(reply)
    strict, loose = (
        score(needle_of(truth), text, strict_indent=strict).matched
        for strict in (True, False)
    )

    assert strict <= loose


@unhurried
@given(truth=TRUTH)
def test_the_truth_itself_is_perfect(truth):
    """
    Repeating what was asked matches all of it, and invents nothing.
    """
    scored = score(needle_of(truth), "\n".join(truth))

    assert {Mark.MATCHED} == {row.mark for row in scored.rows}


@unhurried
@given(truth=TRUTH, reply=LINES, line=WORDS)
def test_saying_more_never_unmatches_a_line(truth, reply, line):
    """
    A reply that goes on matches at least as many lines as before.
    """
    before = score(needle_of(truth), "\n".join(reply)).matched
    after = score(needle_of(truth), "\n".join([*reply, line])).matched

    assert before <= after <= before + 1


@unhurried
@given(reply=ANY_REPLY)
def test_cleaning_only_takes_away(reply):
    """
    Never are there more lines than before, the first time or the second.
    """
    once = answer_lines(reply, signature="sig")
    twice = answer_lines("\n".join(once), signature="sig")

    assert len(once) <= len(reply.replace("\r", "\n").split("\n"))
    assert len(twice) <= max(len(once), 1)


@unhurried
@given(truth=TRUTH, reply=ANY_REPLY)
def test_an_answer_ends_within_its_reply(truth, reply):
    """
    At the start, at the end, or between; never outside.
    """
    assert 0 <= answer_end(needle_of(truth), reply) <= len(reply)


@unhurried
@given(reply=LINES, tail=st.text(alphabet="abc"))
def test_the_verdict_that_it_is_enough_does_not_hang_on_a_line_half_said(reply, tail):
    """
    Only complete lines count, so tokens may be cut anywhere.
    """
    is_enough = enough_for(needle_of(["a"] * 20))
    so_far = "".join(f"{line}\n" for line in reply)

    assert is_enough(so_far) == is_enough(so_far + tail)
