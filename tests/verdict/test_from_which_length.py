"""From which length of text on a pair loses answers."""

from dataclasses import replace

import pytest
from made_panels import SETUP, record_of, run_of, unless, wrong
from made_retrieval import made_texts, retrieval_record, right

from codeneedle.cache_types import Pair
from codeneedle.records.record import Status
from codeneedle.verdict.judge import judge
from codeneedle.verdict.lengths import lost_lengths
from codeneedle.verdict.limits import MAX_LOST
from codeneedle.verdict.remark_kinds import RemarkKind
from codeneedle.verdict.statistics import Decision

LENGTHS = (512, 1024, 2048)
COARSE = Pair("q4_0", "f16")


def record(pair, answer, *, texts=6):
    """Answers to so many texts of each length, of one question each."""
    made = (
        text
        for length in LENGTHS
        for text in made_texts("single", dial=0, length=length, answer=answer)[:texts]
    )
    return retrieval_record(pair, made)


def failing_from(least):
    """Wrong answers from a length on."""

    def answer(asked, length):
        return "nothing" if length >= least else right(asked, length)

    return answer


def lengths(*records, max_lost=MAX_LOST):
    """Where `COARSE` loses answers from."""
    found = lost_lengths(run_of(*records), max_lost)
    return [(each.task, each.length) for each in found if each.pair == COARSE]


@pytest.mark.parametrize("least", [512, 1024, 2048])
def test_answers_are_lost_from_the_length_on_from_which_all_are(least):
    run = (record("f16/f16", right), record("q4_0/f16", failing_from(least)))

    assert [("single", least)] == lengths(*run)


def test_a_length_at_which_answers_come_back_ends_it():
    def answer(asked, length):
        return "nothing" if length in {512, 2048} else right(asked, length)

    reference = record("f16/f16", right)

    assert [("single", 2048)] == lengths(reference, record("q4_0/f16", answer))
    coarse = record("q4_0/f16", lambda asked, n: failing_from(512)(asked, n % 2048))
    assert [] == lengths(reference, coarse)


def test_nothing_is_lost_where_answers_are_the_same_or_better():
    half = record("f16/f16", unless((2048, 0.1)))

    assert [] == lengths(half, record("q4_0/f16", unless((2048, 0.1))))
    assert [] == lengths(half, record("q4_0/f16", right))


def test_few_texts_show_no_loss_and_a_larger_limit_needs_more():
    few = (record("f16/f16", right, texts=1), record("q4_0/f16", wrong, texts=1))
    many = (record("f16/f16", right), record("q4_0/f16", wrong))

    assert [] == lengths(*few)
    assert [("single", 512)] == lengths(*many)
    assert [] == lengths(*many, max_lost=0.9)


@pytest.mark.parametrize(
    ("others", "max_lost", "lost"),
    [(0, 0.45, True), (0, 0.46, False), (1, 0.40, True), (1, 0.41, False)],
)
def test_a_loss_holds_for_all_pairs_and_lengths_at_once(others, max_lost, lost):
    """All of 6 texts: at least (0.05 / 2 / pairs / 3 lengths) ** (1 / 6) of any."""
    run = [record("f16/f16", right), record("q4_0/f16", wrong)]
    run += [record("q8_0/f16", right)] * others

    assert [("single", 512)] * lost == lengths(*run, max_lost=max_lost)


def test_what_an_evaluation_has_measured_beside_it_changes_nothing():
    run = (record("f16/f16", right), record("q4_0/f16", wrong))
    beside = replace(record("q4_0/f16", right), probe="outside")

    assert [("single", 512)] == lengths(*run, beside)


@pytest.mark.parametrize(("of", "lost"), [(5, [("single", 512)]), (6, [])])
def test_the_reference_must_answer_a_fifth_of_a_length(of, lost):
    """Of so many texts it answers one; 30 questions, so that a loss can be shown."""

    def answers(pair, *, is_right):
        texts = []
        for at in range(30):
            said = right if is_right and at % of == 0 else wrong
            (text,) = made_texts("single", dial=0, length=512, answer=said)[:1]
            texts.append(replace(text, number=at))
        return retrieval_record(pair, texts)

    run = (answers("f16/f16", is_right=True), answers("q4_0/f16", is_right=False))

    assert lost == lengths(*run, max_lost=0.01)


def test_a_length_at_which_the_reference_answers_nothing_says_nothing():
    run = (
        record("f16/f16", failing_from(2048)),
        record("q4_0/f16", failing_from(1024)),
    )

    assert [("single", 1024)] == lengths(*run)


def test_a_run_without_tasks_or_without_their_reference_has_no_such_lengths():
    lost = record("q4_0/f16", wrong)
    failed = replace(record("f16/f16", right), status=Status.CRASHED, reason="gone")

    assert [] == lengths(lost)
    assert [] == lengths(lost, failed)
    assert [] == lengths()


def test_questions_of_one_text_are_one_unit():
    reference = record_of("f16/f16", right)
    coarse = record_of("q4_0/f16", wrong)

    assert [] == lengths(reference, coarse)


def audit():
    """Every answer of q8_0 at 8K lost, f16 right; all others right with both."""
    lengths = [512, 1024, 2048, 4096, 8192]
    asked = {"tasks": ["single"], "lengths": lengths}
    setup = replace(SETUP, probes={"retrieval": asked})

    def record_with(pair, answer):
        made = (
            text
            for length in lengths
            for text in made_texts("single", dial=0, length=length, answer=answer)
            if text.number < 5
        )
        return retrieval_record(pair, made)

    return run_of(
        record_with("f16/f16", right),
        record_with("q8_0/f16", failing_from(8192)),
        record_with("q4_0/f16", right),
        setup=setup,
    )


def test_a_loss_at_the_greatest_length_alone_is_beyond_the_limit():
    """A fifth of the texts would be open; all of those of one length are not."""
    found = judge(audit())

    row = found.result(Pair("q8_0", "f16")).metric_result("retrieval")
    assert Decision.BEYOND == found.decision(Pair("q8_0", "f16")) == row.decision
    assert [RemarkKind.LENGTHS] == [each.kind for each in row.doubts]
    assert Decision.OPEN == found.decision(Pair("q4_0", "f16"), "retrieval")


def test_lengths_that_a_pair_was_not_asked_do_not_end_its_loss():
    texts = [
        text
        for length in (512, 1024)
        for text in made_texts("single", dial=0, length=length, answer=wrong)
    ]
    gated = retrieval_record(
        "q4_0/f16",
        texts,
        not_asked=[("single", 2048, "nothing is right")],
    )

    assert [("single", 512)] == lengths(record("f16/f16", right), gated)
