"""The recall probe: what is asked, what is stored, when a reply is enough."""

from dataclasses import replace

import pytest
from fake_engine import FakeEngine, FakeServer, is_for, reply_to
from made_contexts import run_context
from made_records import made_needle, made_setup

from codeneedle.engines.messages import Chat, ServerGone
from codeneedle.errors import CellError
from codeneedle.grid import Pair
from codeneedle.probes import recall
from codeneedle.probes.probe import ProbeContext
from codeneedle.probes.prompts import NO_THINK_ARGS, PromptForm
from codeneedle.probes.recall import (
    PRIMING_TOKENS,
    PROBE,
    SLACK_LINES,
    TAIL_LINES,
    Asker,
    enough_for,
    measure,
)
from codeneedle.records.record import Recall, from_json

NEEDLE = made_needle()
BODY = "\n".join(NEEDLE.lines) + "\n"
GONE = ServerGone(reason="reset\nby peer")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Further attempts come soon."""
    monkeypatch.setattr(recall, "BACK_OFF_S", (0.01, 0.02, 0.03))


def made_context(folder, engine, *, form=PromptForm.COMPLETION, **changes):
    """A cell of a run with three needles."""
    setup = made_setup(needles=3)
    needles = tuple(replace(each, budget=50) for each in setup.needles)
    setup = replace(setup, needles=needles, prompt_form=form)
    run = run_context(folder, engine, setup=setup, text="CORPUS", **changes)
    return ProbeContext(run=run, pair=Pair("q8_0", "q4_0"), logs=folder)


def asker(folder, engine, **changes):
    """Asks a server of *engine*."""
    engine.server = FakeServer(engine)
    return Asker(engine.server, made_context(folder, engine, **changes))


def measured(folder, engine, **changes):
    """What the probe stores."""
    engine.server = engine.server or FakeServer(engine)
    return from_json(measure(made_context(folder, engine, **changes)), Recall, file="x")


def breaks(times):
    """Replies of which the first ones never come."""
    left = [GONE] * times
    return lambda question: left.pop() if left else reply_to(question)


# What is asked and stored


def test_all_needles_are_asked_after_one_round_that_is_not_scored(tmp_path):
    """
    That one asks for the last needle: all others find just the corpus in the cache.
    """
    engine = FakeEngine(reply=lambda asked: reply_to(asked, text=asked.prompt[-10:]))

    found = measured(tmp_path, engine)

    asked = engine.server.questions
    needles = made_setup(needles=3).needles
    for needle, question in zip((needles[-1], *needles), asked, strict=True):
        assert is_for(needle, question)
    assert [PRIMING_TOKENS, 50, 50, 50] == [each.max_tokens for each in asked]
    assert [needle.name for needle in needles] == [r.needle for r in found.rounds]
    assert needles[-1].name == found.priming.needle
    assert 1 == engine.server.settled


def test_a_chat_is_asked_with_thinking_switched_off(tmp_path):
    """
    And goes on after an empty thought where that was asked for.
    """
    engine = FakeEngine()

    measured(tmp_path, engine, form=PromptForm.CHAT, prefill_no_think=True)

    question = engine.server.questions[0]
    assert isinstance(question, Chat)
    assert NO_THINK_ARGS == question.template_args
    assert ["user", "assistant"] == [said.role for said in question.messages]


def test_probabilities_are_stored_where_each_token_has_one(tmp_path):
    """
    As the server tells them.
    """
    found = measured(tmp_path, FakeEngine())

    assert [((-0.1,), (2.0,), (9,))] * 3 == [
        (asked.logprobs, asked.gaps, asked.lengths) for asked in found.rounds
    ]


@pytest.mark.parametrize(
    "engine",
    [
        FakeEngine(speculation="ngram-simple, n 12, m 64"),
        FakeEngine(reply=lambda asked: reply_to(asked, drafted=3, accepted=2)),
    ],
    ids=["ours", "the user's"],
)
def test_a_server_that_drafts_gives_no_margins(engine, tmp_path):
    """
    It tells no probabilities of drafted tokens: those of the others are not all.
    """
    found = measured(tmp_path, engine)

    for asked in found.rounds:
        assert ((), (), ()) == (asked.logprobs, asked.gaps, asked.lengths)
        assert asked.reply


def test_speculation_is_a_condition(tmp_path):
    """
    It decides which kernels run; without it nothing is added to the setup.
    """
    plain = made_context(tmp_path, FakeEngine()).run
    drafting = made_context(tmp_path, FakeEngine(speculation="ngram")).run

    assert {} == PROBE.conditions(plain)
    assert {"speculation": "ngram"} == PROBE.conditions(drafting)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text": "", "finish": "stop"}, "the answer is empty"),
        ({"text": " \n", "finish": "length"}, "the answer is empty"),
        (
            {"text": "", "reasoning": "hm", "finish": "length", "predicted_tokens": 50},
            "all 50 tokens went into reasoning",
        ),
    ],
)
def test_a_cell_without_any_answer_fails_and_says_why(changes, words, tmp_path):
    """
    It is never a zero.
    """
    engine = FakeEngine(reply=lambda asked: reply_to(asked, **changes))

    with pytest.raises(CellError, match=f"no round has an answer: {words}") as caught:
        measured(tmp_path, engine)
    assert "--prefill-no-think" in caught.value.hint


def test_one_round_without_an_answer_is_an_error_of_that_round(tmp_path):
    """
    The others count.
    """
    first = made_setup(needles=3).needles[0]

    def reply(asked):
        return reply_to(asked, text="" if is_for(first, asked) else "an answer\n")

    found = measured(tmp_path, FakeEngine(reply=reply))

    assert ["the answer is empty", "", ""] == [asked.error for asked in found.rounds]


# Broken connections


def test_a_connection_that_breaks_is_tried_again(tmp_path):
    """
    The round has the reply, and why it took three attempts, a line each; the next
    round has none of that.
    """
    ask = asker(tmp_path, FakeEngine(reply=breaks(2)))
    asked, after = (ask.round(NEEDLE, tokens=50) for _ in range(2))

    assert "an answer\n" == asked.reply
    assert 2 == len(asked.retries)
    assert all("\n" not in reason for reason in asked.retries)
    assert () == after.retries


@pytest.mark.parametrize(("is_dying", "attempts"), [(False, 4), (True, 1)])
def test_a_connection_that_keeps_breaking_ends_the_cell(tmp_path, is_dying, attempts):
    """
    After three further attempts; that of a dead server breaks a moment before it is
    gone, and is not tried again.
    """
    ask = asker(tmp_path, FakeEngine(reply=breaks(99)))
    ask.served.is_dying = is_dying

    with pytest.raises(ServerGone):
        ask.round(NEEDLE, tokens=50)
    assert attempts == len(ask.served.questions)


def test_a_completed_reply_is_never_asked_for_again(tmp_path):
    """
    Lines that are not the asked ones are an answer, however poor.
    """
    ask = asker(tmp_path, FakeEngine())
    asked = ask.round(NEEDLE, tokens=50)

    assert ((), "") == (asked.retries, asked.error)
    assert 1 == len(ask.served.questions)


# When a reply is enough


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (BODY, False),
        (BODY + "x\n" * (TAIL_LINES - 1), False),
        (BODY + "x\n" * (TAIL_LINES - 1) + "half a line", False),
        (BODY + "x\n" * TAIL_LINES, True),
        ("wrong\n" * (20 + SLACK_LINES - 1), False),
        ("wrong\n" * (20 + SLACK_LINES), True),
        ("<think>\n" + "hm\n" * 30, False),
        (f"```\n{BODY}```\nThis function\nassigns\nvalues\n", True),
    ],
    ids=[
        *("complete", "short tail", "half a line", "tail"),
        *("slack", "too wrong", "thoughts", "talk after a fence"),
    ],
)
def test_a_reply_is_enough_when_reading_on_would_tell_nothing_more(reply, expected):
    """
    Whether a model runs on shows only if it may; an unfinished line does not count, a
    faulty answer ends after some slack, and thoughts are no answer.
    """
    assert expected == enough_for(NEEDLE)(reply)


def test_blank_lines_without_end_are_looked_at_once(monkeypatch):
    """
    Each is a line break at which is asked; none is a reason to read it all again.
    """
    looks = []
    monkeypatch.setattr(
        "codeneedle.probes.recall.answer_lines",
        lambda _needle, text: looks.append(text) or text.split("\n"),
    )
    judge = enough_for(NEEDLE)
    verdicts = {judge("x\n" * 20 + "\n" * blank) for blank in range(100)}

    assert {False} == verdicts
    assert 1 == len(looks)
