"""What a pair answered: all rounds, or one of them."""

import io
from dataclasses import replace

import pytest
from made_records import (
    failed_record,
    made_record,
    made_round,
    made_run,
    made_setup,
    renamed,
)
from rich.console import Console

from codeneedle.errors import UnknownName
from codeneedle.grid import Pair
from codeneedle.records.record import Round, Status
from codeneedle.report.answers import NotMeasured, answers
from codeneedle.scoring.rounds import Reading

TYPES = ("bf16", "q4_0")
SETUP = made_setup(needles=3, types_k=TYPES, types_v=TYPES)
PAIR = Pair("q4_0", "q4_0")
READING = Reading()


def told(*runs, pair=PAIR, function=None, reading=READING, colour=False):
    """What a terminal gets of such a question."""
    console = Console(
        file=io.StringIO(),
        width=100,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
    )
    for part in answers(runs, pair, function, reading, width=100, colour=colour):
        console.print(part)
    return console.file.getvalue()


def run_with(*rounds):
    """A run whose pair answered with *rounds*."""
    return made_run(setup=SETUP, failed=[made_record(PAIR, rounds)])


def test_all_rounds_are_told_at_a_glance():
    """
    One line for each needle.
    """
    text = told(made_run(setup=SETUP))

    assert "3 of 3 rounds answered" in text
    assert all(needle.name in text for needle in SETUP.needles)


def test_one_round_is_told_line_by_line():
    """
    Its run, pair and function above it; nothing of the others.
    """
    text = told(made_run(setup=SETUP), function="f_b")

    assert text.startswith("random-bodies/made-model  q4_0/q4_0  f_b")
    assert SETUP.needles[1].lines[0].strip() in text
    assert SETUP.needles[0].lines[0].strip() not in text


def test_a_method_is_found_by_its_own_name():
    """
    Without that of its class.
    """
    needles = (replace(SETUP.needles[0], name="Shelf.f_a"), *SETUP.needles[1:])
    run = made_run(setup=replace(SETUP, needles=needles))

    assert "Shelf.f_a" in told(run, function="f_a")


def test_an_unknown_function_is_answered_with_the_nearest():
    """
    Of those that were asked for.
    """
    with pytest.raises(UnknownName) as caught:
        told(made_run(setup=SETUP), function="f_bb")

    assert "Did you mean 'f_b'?" == caught.value.hint


def test_a_pair_without_a_record_says_where_to_look():
    """
    It may be a typo, or not have run yet.
    """
    run = made_run(setup=SETUP, untried=["q4_0/q4_0"])

    with pytest.raises(NotMeasured) as caught:
        told(run)

    assert "random-bodies/made-model has no record of q4_0/q4_0" == str(caught.value)
    assert "codeneedle grid random-bodies/made-model" in caught.value.hint


def test_each_run_that_has_the_pair_is_told():
    """
    Pages are told one after the other, those without it left out.
    """
    first = renamed(made_run(setup=SETUP), "c/one")
    second = renamed(made_run(setup=SETUP), "c/two")
    without = renamed(made_run(setup=SETUP, untried=["q4_0/q4_0"]), "c/three")

    text = told(first, second, without)

    assert text.index("c/one") < text.index("c/two")
    assert "c/three" not in text


def test_a_cell_that_failed_tells_why():
    """
    It has no rounds to ask for.
    """
    failed = failed_record(PAIR, Status.OUT_OF_MEMORY, "cannot allocate \x1b[2J")
    run = made_run(setup=SETUP, failed=[failed])

    assert "out-of-memory: cannot allocate" in told(run)
    assert "\x1b" not in told(run)
    with pytest.raises(UnknownName):
        told(run, function="f_a")


def test_a_round_without_an_answer_says_so():
    """
    There is nothing to lay beside the truth.
    """
    silent = Round(needle="f_a", prompt_sha256="d0" * 32, reply="", error="gone away")

    text = told(run_with(silent), function="f_a")

    assert "no answer: gone away" in text


def test_white_space_counts_where_it_is_asked_for():
    """
    The same reply scores otherwise, and no server is asked again.
    """
    needle = SETUP.needles[0]
    flat = "\n".join(line.strip() for line in needle.lines)
    run = run_with(made_round(needle, reply=flat))

    loose = told(run, function="f_a")
    strict = told(run, function="f_a", reading=Reading(strict_indent=True))

    assert "matched 20" in loose
    assert "matched 0" in strict


def test_colours_are_used_where_there_are_any():
    """
    Marks say the same without.
    """
    run = made_run(setup=SETUP)

    assert "\x1b[" in told(run, function="f_a", colour=True)
    assert "\x1b[" not in told(run, function="f_a")
