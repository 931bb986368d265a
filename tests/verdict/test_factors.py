"""What the answers to a task depend on."""

import pytest
from made_panels import run_of
from made_retrieval import made_texts, retrieval_record

from codeneedle.corpora.random_bodies import random_bytes
from codeneedle.grid import Pair
from codeneedle.probes.answers import Answer
from codeneedle.verdict import factors as module
from codeneedle.verdict.factors import factors, sentences

PAIRS = ("f16/f16", "q4_0/f16")
LENGTHS = (512, 1024, 2048)


def record(pair, is_right, *, tasks=("single",)):
    """Answers to 18 texts of each task and length; right where *is_right* says so."""

    def answer(asked, length):
        return asked.payload if is_right(length, asked.depth) else "nothing"

    texts = (
        text
        for task in tasks
        for length in LENGTHS
        for text in made_texts(task, dial=0, length=length, questions=6, answer=answer)
    )
    return retrieval_record(pair, texts)


def shown(*records):
    """Names of the factors that are shown."""
    (of_task,) = factors(run_of(*records)).values()
    return [factor.name for factor in of_task if factor.is_shown]


def always(_length, _depth):
    return True


@pytest.mark.parametrize(
    ("reference", "other", "names"),
    [
        (always, always, []),
        (always, lambda length, _depth: length < 2048, ["pair"]),
        (lambda n, _: n < 2048, lambda n, _: n < 2048, ["length"]),
        (lambda _, depth: depth != 0.5, lambda _, depth: depth != 0.5, ["depth"]),
        (lambda n, _: n < 2048, lambda n, _: n < 1024, ["length", "pair"]),
    ],
    ids=["nothing", "pair", "length", "depth", "length and pair"],
)
def test_what_makes_the_difference_is_shown_and_nothing_else(reference, other, names):
    assert names == shown(record("f16/f16", reference), record("q4_0/f16", other))


def test_chance_alone_shows_something_in_few_runs():
    """All tests of a run together: at most 5 %, here of 20 runs with two tasks."""
    chance = iter(random_bytes("factors"))

    def toss(_length, _depth):
        return next(chance) < 180

    runs = [
        run_of(*(record(p, toss, tasks=("single", "nth")) for p in PAIRS))
        for _ in range(20)
    ]

    assert sum(bool(sentences(run)) for run in runs) <= 3


def test_a_sentence_names_the_ends_and_what_is_not_shown():
    def early(length, _depth):
        return length < 2048

    run = run_of(record("f16/f16", early), record("q4_0/f16", early))

    assert {
        "single": "single: answers depend on length (100% right at 512 tokens, 0% at "
        "2,048 tokens; p = 0.0015); that they depend on depth or pair is not shown"
    } == sentences(run)


def test_without_answers_nothing_is_tested():
    assert {} == factors(run_of()) == sentences(run_of())


def test_depths_are_compared_within_texts_of_which_some_are_harder(monkeypatch):
    """Where later depths are better in each text, but were asked of harder ones."""
    texts = [
        *((f"easy-{n}", {0.1: 0.8, 0.5: 1.0}) for n in range(12)),
        *((f"hard-{n}", {0.5: 0.0, 0.9: 0.2}) for n in range(12)),
    ]
    answers = [
        Answer(
            name=f"{text}-{depth}",
            show=lambda _view: (),
            task="single",
            length=512,
            depth=depth,
            text=text,
            right=right,
        )
        for text, rights in texts
        for depth, right in rights.items()
    ]
    by_pair = {Pair("f16", "f16"): answers}
    monkeypatch.setattr(module, "answers_by_length", lambda _run: by_pair)

    assert ["depth"] == shown()
