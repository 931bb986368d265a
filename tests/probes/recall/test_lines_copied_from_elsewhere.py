"""Lines of an answer that stand elsewhere in the text are told from invented ones."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import (
    made_needle,
    made_record,
    made_round,
    made_run,
    made_setup,
    written_of,
)

from codeneedle.probes.recall.alignment import Mark, align_reply
from codeneedle.probes.recall.copied_lines import (
    TextLines,
    hash_lines,
    mark_misplaced_lines,
)
from codeneedle.verdict.judge import judge
from codeneedle.verdict.remark_kinds import RemarkKind
from codeneedle.verdict.remarks import remarks

TEXT = ["def a():", "    one", "    two", "    x = 1", "", "def b():", "    two"]
TEXT += ["    three", "    x = 1", "    four"]
LINES = hash_lines("\n".join(TEXT), [1, 6])
NEEDLE = replace(
    made_needle(), signature="def b():", line=6, lines=tuple(TEXT[6:]), more=()
)


def placed(reply, needle=NEEDLE):
    """The lines of *reply* that match nothing, with the place of each."""
    rows = mark_misplaced_lines(align_reply(needle, reply), needle, LINES).rows
    marks = (Mark.MISPLACED, Mark.HALLUCINATED, Mark.OVERRUN)
    return [(row.produced, row.mark, row.place) for row in rows if row.mark in marks]


def test_a_line_of_another_function_is_misplaced_and_an_invented_one_is_not():
    assert [
        ("    one", Mark.MISPLACED, 2),
        ("    five", Mark.HALLUCINATED, None),
    ] == placed("    one\n    two\n    five\n    three")


def test_of_several_places_it_is_where_the_line_before_goes_on():
    assert [
        ("    one", Mark.MISPLACED, 2),
        ("    two", Mark.MISPLACED, 3),
        ("    x = 1", Mark.MISPLACED, 4),
    ] == placed("    one\n    two\n    x = 1", replace(NEEDLE, lines=("    four",) * 3))


def test_lines_behind_the_answer_stay_overrun():
    assert [("    one", Mark.OVERRUN, None)] == placed(
        "\n".join([*TEXT[6:], "    one"])
    )


def test_white_space_around_a_line_does_not_make_it_another():
    assert [("one", Mark.MISPLACED, 2)] == placed("one\n" + "\n".join(TEXT[6:]))


@pytest.mark.parametrize(
    "stored",
    [
        {"digests": "AAA"},
        {"digests": "!!!!"},
        {"digests": "AAAA"},
        {"functions": [2, 1]},
        {"functions": [1, 1]},
    ],
)
def test_damaged_hashes_are_refused(stored):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(stored, TextLines)


@given(
    st.lists(st.sampled_from(["a", "b", " c", "", "d d"]), max_size=12),
    st.lists(st.sampled_from(["a", "b", "c", "x", "", "d d"]), max_size=12),
)
def test_a_line_is_misplaced_exactly_if_the_text_has_it(text, reply):
    lines = hash_lines("\n".join(text), [])
    before = align_reply(NEEDLE, "\n".join(reply))
    after = mark_misplaced_lines(before, NEEDLE, lines)
    stands = {line.strip() for line in text}
    assert len(before.rows) == len(after.rows)
    for old, new in zip(before.rows, after.rows, strict=True):
        moved = old.mark is Mark.HALLUCINATED and old.produced.strip() in stands
        assert (Mark.MISPLACED if moved else old.mark) is new.mark
        assert (new.place is not None) is moved
        assert not moved or text[new.place - 1].strip() == new.produced.strip()


def test_a_pair_that_copies_from_the_wrong_place_is_told_from_one_that_invents(golden):
    setup = made_setup(needles=6)
    asked = {**setup.probes["recall"], "text": msgspec.to_builtins(LINES)}
    setup = replace(setup, probes={"recall": asked})
    answers = {
        "bf16/bf16": "\n".join,
        "q4_0/bf16": lambda lines: "\n".join(["    one"] * 4 + list(lines[4:])),
        "bf16/q4_0": lambda lines: "\n".join(["    invented"] * 4 + list(lines[4:])),
    }
    records = [
        made_record(
            pair, [made_round(n, reply=reply(n.lines)) for n in written_of(setup)]
        )
        for pair, reply in answers.items()
    ]
    verdict = judge(replace(made_run(lambda *_: 20, setup=setup), records=records))

    said = {
        str(*remark.pairs): remark.text
        for remark in remarks(verdict)
        if remark.kind is RemarkKind.FAULTS
    }
    assert ["bf16/q4_0", "q4_0/bf16"] == sorted(said)
    assert golden == said


def test_a_pair_that_invents_where_the_reference_copied_is_told_so(golden):
    """The number of its wrong lines is the same."""
    setup = made_setup(needles=6)
    asked = {**setup.probes["recall"], "text": msgspec.to_builtins(LINES)}
    setup = replace(setup, probes={"recall": asked})
    records = [
        made_record(
            pair,
            [
                made_round(n, reply="\n".join([line] * 4 + list(n.lines[4:])))
                for n in written_of(setup)
            ],
        )
        for pair, line in {"bf16/bf16": "    one", "q4_0/bf16": "    new"}.items()
    ]
    verdict = judge(replace(made_run(lambda *_: 20, setup=setup), records=records))

    (said,) = [r.text for r in remarks(verdict) if r.kind is RemarkKind.FAULTS]
    assert golden == said


def test_wrong_lines_are_compared_over_the_functions_that_both_have():
    """A cell that ended early was said to copy more, as its functions are hard."""
    setup = made_setup(needles=6)
    asked = {**setup.probes["recall"], "text": msgspec.to_builtins(LINES)}
    setup = replace(setup, probes={"recall": asked})
    rounds = [
        made_round(n, reply="\n".join([*["    one"] * 4, *n.lines[4:]]))
        if at < 2
        else made_round(n, reply="\n".join(n.lines))
        for at, n in enumerate(written_of(setup))
    ]
    records = [made_record("bf16/bf16", rounds), made_record("q4_0/bf16", rounds[:2])]
    verdict = judge(replace(made_run(lambda *_: 20, setup=setup), records=records))

    assert [] == [r for r in remarks(verdict) if r.kind is RemarkKind.FAULTS]
