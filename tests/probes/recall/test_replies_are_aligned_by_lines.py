"""Scores of replies, by examples and by law."""

import functools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import made_needle

from codeneedle.probes.recall.alignment import (
    Mark,
    align_reply,
    answer_end_offset,
    answer_lines,
)

NEEDLE = made_needle()
ASKED = list(NEEDLE.lines)
MORE = list(NEEDLE.more)
BODY = "\n".join(ASKED)


def needle_of(truth, more=()):
    return replace(NEEDLE, signature="sig", lines=tuple(truth), more=tuple(more))


def counts(needle, reply, **more):
    """Only the marks that occur, by name."""
    scored = align_reply(needle, reply, **more)
    return {mark.value: n for mark in Mark if (n := scored.count(mark))}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (BODY, {"matched": 20}),
        ("", {"missing": 20}),
        (BODY.replace("\n", "\r\n"), {"matched": 20}),
        (BODY.replace("\n", " \r"), {"matched": 20}),
        ("\n\n".join(ASKED) + "\n\n\n", {"matched": 20}),
        ("\n".join([NEEDLE.signature, *ASKED]), {"matched": 20}),
        (
            "\n".join([*ASKED, *MORE, "def other():", "    pass"]),
            {"matched": 20, "bonus": 2, "overrun": 2},
        ),
        (
            "\n".join([*ASKED[:10], "    nonsense = 1", *ASKED[10:]]),
            {"matched": 20, "hallucinated": 1},
        ),
        (
            "\n".join([*ASKED[:19], "wrong", "wrong", ASKED[19], "wrong"]),
            {"matched": 20, "hallucinated": 2, "overrun": 1},
        ),
        (
            "\n".join(f"wrong {n}" for n in range(25)),
            {"missing": 20, "hallucinated": 20, "overrun": 5},
        ),
        (
            "\n".join([*reversed(ASKED), ASKED[0]]),
            {"matched": 1, "missing": 19, "hallucinated": 19, "overrun": 1},
        ),
    ],
)
def test_lines_are_counted_by_what_became_of_them(reply, expected):
    """An answer lasts at least as many lines as were asked for."""
    assert expected == counts(NEEDLE, reply)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("x\ny\nz", {"missing": 1, "hallucinated": 1, "overrun": 2}),
        ("a\nx\nb", {"matched": 1, "overrun": 1, "bonus": 1}),
        ("x\na\ny\nb", {"matched": 1, "hallucinated": 1, "overrun": 1, "bonus": 1}),
        ("b\nx", {"missing": 1, "bonus": 1, "overrun": 1}),
    ],
)
def test_what_follows_the_last_asked_line_is_no_part_of_the_answer(reply, expected):
    assert expected == counts(needle_of(["a"], ["b"]), reply)


def test_indentation_counts_only_with_strict_indent():
    reply = "\n".join(f"{line.strip()}  " for line in ASKED)

    assert {"matched": 20} == counts(NEEDLE, reply)
    assert 0 == align_reply(NEEDLE, reply, strict_indent=True).matched_line_count
    assert 20 == align_reply(NEEDLE, BODY + " ", strict_indent=True).matched_line_count


@pytest.mark.parametrize(
    "reply",
    [
        f"<think>\nhm\n</think>\nSure!\n```python\n{BODY}\n```\nAnything else?",
        f"<thinking>{BODY[:99]}</thinking>{BODY}",
        f"</think>\n{BODY}",
        f"{BODY}\n<think>is that all?",
        "Let me see.\n" * 30 + f"```\n{BODY}\n```\n" + "So it goes.\n" * 30,
        f"~~~\n{BODY}\n~~~",
        f"```\n{BODY}",
        f"{BODY}\n```\nThat was all.",
        "```\n" + "\n".join(ASKED[:9]) + "\n```\nand\n```\n" + "\n".join(ASKED[9:]),
        "\nand\n".join(
            "\n".join(("```", *ASKED[at : at + 5], "```")) for at in (0, 5, 10, 15)
        ),
    ],
)
def test_fences_thoughts_and_text_around_the_answer_are_removed(reply):
    """A fence may be open at the end, or at the start of a prefilled reply."""
    assert {"matched": 20} == counts(NEEDLE, reply)


def test_an_unfinished_thought_leaves_no_answer():
    assert [] == answer_lines(NEEDLE, f"<think>\n{BODY}")


IN_TRUTH = {
    "a fence in the docstring": {2: "    ```python", 8: "    ```"},
    "a fence that never closes": {18: "    ```pycon"},
    "a think tag": {4: '    text = text.replace("<think>", "")'},
    "both think tags": {4: '    a = "<think>"', 9: '    b = "</think>"'},
    "a closing think tag": {4: '    end = text.index("</think>")'},
    "a lone line of tildes": {16: "    ~~~"},
    "two pairs of fences": {1: "```", 3: "```", 12: "~~~sh", 15: "~~~"},
    "its own signature": {0: "    def f_a():"},
}


@pytest.mark.parametrize("lines", IN_TRUTH.values(), ids=IN_TRUTH)
@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "```python\n{}\n```",
        "```\n{}\n```\nAnything else?",
        "```\n{}",
        "<think>\nhm\n</think>\n\n{}",
        "<think>\nhm\n</think>\nSure:\n```python\n{}\n```",
    ],
)
def test_a_perfect_reply_scores_20_whatever_its_lines_look_like(lines, around):
    truth = [lines.get(at, line) for at, line in enumerate(ASKED)]
    needle = replace(NEEDLE, lines=tuple(truth))

    assert {"matched": 20} == counts(needle, around.format("\n".join(truth)))


def test_thoughts_do_not_match_where_the_truth_has_no_think_tag():
    fenced = replace(NEEDLE, lines=("    ```", *ASKED[1:]))

    assert 0 == align_reply(NEEDLE, f"<think>{BODY}</think>").matched_line_count
    assert 0 == align_reply(fenced, f"<think>{BODY}</think>").matched_line_count


def test_a_tie_goes_to_an_asked_line_and_not_to_a_following_one():
    """Four closing braces are asked for and two follow: 19 of 20 match, not 17."""
    asked = [f"x{at}" for at in range(16)] + ["}"] * 4
    reply = "\n".join(line for line in asked if line != "x10")

    found = counts(needle_of(asked, ["}", "}"]), reply)

    assert {"matched": 19, "missing": 1} == found


def test_of_alignments_that_differ_in_length_the_longest_wins():
    """A reply that reads on behind a gap is not credited with a later like line."""
    needle = needle_of(["a", "}"], ["b", "c", "}"])

    assert {"matched": 1, "missing": 1, "bonus": 3} == counts(needle, "a\nb\nc\n}")


def test_rows_keep_lines_as_they_stand_in_their_texts():
    rows = align_reply(needle_of(["  a", "b"], ["c"]), "a \nx\nc\ny\nz").rows

    assert [
        (Mark.MATCHED, "  a", "a "),
        (Mark.MISSING, "b", None),
        (Mark.HALLUCINATED, None, "x"),
        (Mark.BONUS, "c", "c"),
        (Mark.OVERRUN, None, "y"),
        (Mark.OVERRUN, None, "z"),
    ] == [(row.mark, row.expected, row.produced) for row in rows]


def test_of_equal_alignments_the_one_with_the_earliest_lines_is_taken():
    """Of two exchanged lines the one that the reply says first is matched."""
    rows = align_reply(needle_of(["a", "b"]), "b\na").rows

    assert [
        (Mark.MISSING, "a", None),
        (Mark.MATCHED, "b", "b"),
        (Mark.HALLUCINATED, None, "a"),
    ] == [(row.mark, row.expected, row.produced) for row in rows]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("", "def other():\n    pass\n"),
        ("\r\n \n", "x"),
        ("Sure:\n```\n", "```\nAnything else?"),
        (f"<think>{BODY}\n{BODY}\n</think>\n", "x = 1\n"),
        ("<think>\n" + "\n".join(ASKED[:5]) + "</think>", "x = 1\n"),
    ],
)
def test_the_answer_ends_before_its_tail_and_never_in_a_thought(before, after):
    """Lines that the model also thought of are not taken for it."""
    reply = f"{before}{BODY}\n{after}"

    assert len(f"{before}{BODY}\n") == answer_end_offset(NEEDLE, reply)


def test_an_answer_of_nothing_ends_at_the_start():
    assert 0 == answer_end_offset(NEEDLE, "")
    assert 0 == answer_end_offset(NEEDLE, f"<think>\n{BODY}")


WORDS = st.sampled_from(["a", "b", "c", " a", "a ", "\ta", "d = 1", "é", "x\u2028y"])
MARKUP = st.sampled_from(["```", "~~~", "```py", "sig", "<think>", "</think>"])
TRUTH = st.lists(WORDS, min_size=1, max_size=20)
ANY_TRUTH = st.lists(WORDS | MARKUP, min_size=1, max_size=20)
LINES = st.lists(WORDS | st.sampled_from(["", "  "]), max_size=40)
ANY_REPLY = st.lists(WORDS | MARKUP | st.text(max_size=4)).map("\n".join) | st.text()


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


def content(lines, key=str.strip):
    return [key(line) for line in lines if line.strip()]


@given(truth=TRUTH, more=st.lists(WORDS, max_size=5), reply=LINES, strict=st.booleans())
def test_marks_are_those_of_the_best_alignment(truth, more, reply, strict):
    """Matches and bonus together are a longest common subsequence."""
    key = str.rstrip if strict else str.strip
    asked, after, said = (content(lines, key) for lines in (truth, more, reply))
    parted = [
        (longest_common(asked, said[:at]), longest_common(after, said[at:]))
        for at in range(len(said) + 1)
    ]
    most = max(sum(both) for both in parted)
    matched = max(first for first, last in parted if first + last == most)

    scored = align_reply(needle_of(truth, more), "\n".join(reply), strict_indent=strict)

    assert (matched, most - matched) == (
        scored.matched_line_count,
        scored.count(Mark.BONUS),
    )


@given(truth=ANY_TRUTH, more=st.lists(WORDS, max_size=5), reply=ANY_REPLY)
def test_rows_are_both_texts_in_their_order(truth, more, reply):
    needle = needle_of(truth, more)
    rows = align_reply(needle, reply).rows
    bonus = [row.expected for row in rows if row.mark is Mark.BONUS]
    rest = iter(more)

    assert truth == [
        row.expected
        for row in rows
        if row.expected is not None and row.mark is not Mark.BONUS
    ]
    assert answer_lines(needle, reply) == [
        row.produced for row in rows if row.produced is not None
    ]
    assert all(line in rest for line in bonus)
    for row in rows:
        assert row.expected is not None or row.produced is not None
        if row.expected is not None and row.produced is not None:
            assert row.expected.strip() == row.produced.strip()


@given(truth=ANY_TRUTH)
def test_the_truth_itself_is_perfect(truth):
    assert {"matched": len(truth)} == counts(needle_of(truth), "\n".join(truth))


@given(truth=ANY_TRUTH, reply=ANY_REPLY)
def test_lines_of_the_answer_are_lines_of_the_reply(truth, reply):
    needle = needle_of(truth)
    lines = answer_lines(needle, reply)

    assert all(line.strip() for line in lines)
    assert len(lines) <= len(reply.replace("\r", "\n").split("\n"))
    assert 0 <= answer_end_offset(needle, reply) <= len(reply)
