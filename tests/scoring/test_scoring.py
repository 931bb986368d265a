"""Scoring, by examples and by law."""

import difflib

from hypothesis import given
from hypothesis import strategies as st
from made_records import made_needle

from codeneedle.records.record import NeedleFacts
from codeneedle.scoring.alignment import Mark, Score, answer_end, answer_lines, score

NEEDLE = made_needle()
ASKED = list(NEEDLE.lines)
MORE = list(NEEDLE.more)


def counts(scored: Score) -> dict[str, int]:
    """Only the marks that occur, by name."""
    return {mark.value: n for mark in Mark if (n := scored.count(mark))}


def test_a_perfect_answer_matches_every_line():
    """
    The lines as they stand give 20 of 20 and nothing else.
    """
    assert {"matched": 20} == counts(score(NEEDLE, "\n".join(ASKED)))


def test_an_empty_answer_misses_every_line():
    """
    Nothing said is nothing matched, and nothing made up.
    """
    assert {"missing": 20} == counts(score(NEEDLE, ""))


def test_reading_on_is_a_bonus_then_an_overrun_and_never_a_hallucination():
    """
    Lines after the complete answer are told apart from made-up ones.
    """
    reply = "\n".join([*ASKED, *MORE, "def other():", "    pass"])

    assert {"matched": 20, "bonus": 2, "overrun": 2} == counts(score(NEEDLE, reply))


def test_lines_made_up_within_the_answer_are_hallucinated():
    """
    An inserted line costs a hallucination, and no match.
    """
    reply = "\n".join([*ASKED[:10], "    nonsense = 1", *ASKED[10:]])

    assert {"matched": 20, "hallucinated": 1} == counts(score(NEEDLE, reply))


def test_twenty_wrong_lines_are_all_hallucinated():
    """
    The answer lasts at least as many lines as were asked for.
    """
    reply = "\n".join(f"wrong {n}" for n in range(25))

    assert {"missing": 20, "hallucinated": 20, "overrun": 5} == counts(
        score(NEEDLE, reply)
    )


def test_blank_lines_count_nowhere():
    """
    Blank lines are neither credited nor held against a reply.
    """
    reply = "\n\n".join(ASKED) + "\n\n\n"

    assert {"matched": 20} == counts(score(NEEDLE, reply))


def test_indentation_counts_only_when_it_is_asked_to():
    """
    Both readings come from the same reply.
    """
    reply = "\n".join(line.strip() for line in ASKED)

    assert 20 == score(NEEDLE, reply).matched
    assert 0 == score(NEEDLE, reply, strict_indent=True).matched


def test_fences_thoughts_and_talk_around_the_answer_are_taken_off():
    """
    A think echo is no hallucination, nor is a preamble outside the fence.
    """
    body = "\n".join(ASKED)
    reply = f"<think>\nhm\n</think>\nSure!\n```python\n{body}\n```\nAnything else?"

    assert {"matched": 20} == counts(score(NEEDLE, reply))


def test_an_unfinished_thought_leaves_no_answer():
    """
    What follows an opening think tag without end was never said.
    """
    assert [""] == answer_lines("<think>\nwell", signature="def f():")


def test_a_fence_without_end_lasts_to_the_end():
    """
    A reply cut inside its fence keeps its lines.
    """
    reply = "```\n" + "\n".join(ASKED)

    assert {"matched": 20} == counts(score(NEEDLE, reply))


def test_a_fence_that_only_closes_ends_the_answer():
    """
    A reply that goes on inside a prefilled fence keeps its lines.
    """
    reply = "\n".join(ASKED) + "\n```\nThat was all."

    assert {"matched": 20} == counts(score(NEEDLE, reply))


def test_a_repeated_signature_is_no_part_of_the_answer():
    """
    Models like to begin with the line that was quoted at them.
    """
    reply = "\n".join([NEEDLE.signature, *ASKED])

    assert {"matched": 20} == counts(score(NEEDLE, reply))


def test_eight_matched_lines_pass():
    """
    The threshold is the published one.
    """
    assert score(NEEDLE, "\n".join(ASKED[:8])).passed
    assert not score(NEEDLE, "\n".join(ASKED[:7])).passed


def test_the_answer_ends_before_its_tail():
    """
    What a model writes after its answer is no part of it.
    """
    body = "\n".join(ASKED) + "\n"

    assert len(body) == answer_end(NEEDLE, body + "def other():\n    pass\n")
    assert len("Sure:\n```\n" + body) == answer_end(
        NEEDLE, f"Sure:\n```\n{body}```\nAnything else?"
    )
    assert 0 == answer_end(NEEDLE, "")


LINES = st.lists(
    st.sampled_from(["a", "b", "c", " a", "```", "", "<think>", "x\u2028y"])
)


@given(truth=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=20), reply=LINES)
def test_marks_add_up_and_order_is_kept(truth, reply):
    """
    Every asked line is matched or missing, and rows keep both texts' order.
    """
    needle = NeedleFacts(name="f", signature="sig", line=1, depth=0, lines=tuple(truth))
    scored = score(needle, "\n".join(reply))
    expected = [row.expected for row in scored.rows if row.expected is not None]

    assert len(truth) == scored.matched + scored.count(Mark.MISSING)
    assert truth == expected
    assert 0 <= scored.matched <= len(truth)


@given(
    truth=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=20),
    reply=st.lists(st.sampled_from("abcdef")),
)
def test_matches_are_never_fewer_than_difflib_finds(truth, reply):
    """
    A longest common subsequence is at least as long as any other alignment.
    """
    needle = NeedleFacts(name="f", signature="sig", line=1, depth=0, lines=tuple(truth))
    blocks = difflib.SequenceMatcher(None, truth, reply, autojunk=False)
    found = sum(block.size for block in blocks.get_matching_blocks())

    assert score(needle, "\n".join(reply)).matched >= found


@given(reply=LINES)
def test_cleaning_twice_is_cleaning_once(reply):
    """
    What cleaning leaves has nothing left to clean but blank lines.
    """
    once = answer_lines("\n".join(reply), signature="sig")
    twice = answer_lines("\n".join(once), signature="sig")

    assert [line for line in once if line] == [line for line in twice if line]
