"""The answers of a retrieval record: what was right, and how the others failed."""

import re
from dataclasses import replace

import pytest
from made_records import failed_record, made_setup
from made_retrieval import made_texts, retrieval_record, scored_texts
from printing import printed

from codeneedle.cache_types import Pair
from codeneedle.errors import UnknownName
from codeneedle.probes.answers import View
from codeneedle.probes.retrieval.answers import answer_mode_phrase
from codeneedle.probes.retrieval.outcomes import outcomes
from codeneedle.records.record import Run
from codeneedle.report.answers import answers_document


def missed(question, _length):
    """At depth 0.1 the answer to another question, at 0.5 one wrong digit."""
    if question.depth < 0.4:
        return question.decoys[0].payload
    if question.depth < 0.8:
        return question.payload[:-1] + ("0" if question.payload[-1] != "0" else "1")
    return question.payload


TASKS_RUN = Run(
    name="random-bodies/made-model",
    setup=made_setup(),
    records=(retrieval_record("q4_0/q4_0", made_texts(answer=missed)),),
)
QUESTIONS = outcomes(TASKS_RUN.records[0])


def on_screen(run, function=None):
    pair = Pair("q4_0", "q4_0")
    return printed(answers_document([run], pair, function, View()), width=100)


def task_answers(run, function=None):
    return " ".join(on_screen(run, function).split())


def test_failure_modes_of_a_pair_are_counted_by_task():
    text = task_answers(TASKS_RUN)

    assert "2 of 6 questions right" in text
    assert "task correct intrusion" in text
    assert "multikey 2 2" in text
    assert "-0.500" in text
    assert "salad" not in text


def test_a_wrong_answer_stands_beside_what_was_expected():
    text = task_answers(TASKS_RUN)
    intrusion = next(each for each in QUESTIONS if each.depth < 0.4)

    assert f"{intrusion.asked.payload} {intrusion.asked.answer.text}" in text
    assert f"intrusion of {intrusion.score.decoy}" in text
    said = answer_mode_phrase(intrusion.score)
    assert re.search(r"intrusion of .+, \d+% (later|earlier)", said)


def test_one_question_is_shown_in_full():
    asked = QUESTIONS[0]
    text = task_answers(TASKS_RUN, asked.question)

    assert f"expected {asked.asked.payload} answered {asked.asked.answer.text}" in text
    assert "multikey, 1,024 tokens, depth 0.1" in text
    assert "-0.500 nats per token" in text


def test_right_tokens_of_a_question_stand_beside_those_of_the_reference(golden):
    """As those of functions and turns do."""
    likely = retrieval_record("f16/f16", scored_texts([-0.1]))
    unlikely = retrieval_record("q4_0/q4_0", scored_texts([-2.3]))
    both = replace(TASKS_RUN, records=(likely, unlikely))
    (question, *_) = outcomes(unlikely)

    lines = on_screen(both, question.question).splitlines()

    *_, token = [at for at, line in enumerate(lines) if line.startswith("token ")]
    assert golden == "\n".join(lines[token : token + 2])


def test_an_unknown_question_is_refused_with_the_nearest():
    with pytest.raises(UnknownName) as caught:
        task_answers(TASKS_RUN, QUESTIONS[0].question[:-1] + "x")

    assert QUESTIONS[0].question[:-1] in caught.value.hint


def test_a_pair_that_did_not_answer_says_why():
    failed = replace(failed_record("q4_0/q4_0"), probe="retrieval")

    assert "crashed: it died" in task_answers(replace(TASKS_RUN, records=(failed,)))


def test_long_answers_are_shortened_and_cannot_write_on_the_terminal():
    def answer(_question, _length):
        return "\x1b[2J" + "never " * 20

    record = retrieval_record("q4_0/q4_0", made_texts(answer=answer))
    run = replace(TASKS_RUN, records=(record,))

    assert "\x1b" not in task_answers(run)
    assert "never never never..." in task_answers(run)
    assert "never " * 19 in task_answers(run, QUESTIONS[0].question)
