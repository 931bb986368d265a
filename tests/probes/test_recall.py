"""The recall probe: what is asked, what is stored, when a reply is enough."""

from dataclasses import replace

import pytest
from fake_engine import FakeEngine, FakeServer, forced_to, is_for, reply_to
from made_contexts import run_context
from made_records import made_needle, made_record, made_round, made_run, made_setup

from codeneedle.analysis.recall import Ask
from codeneedle.engines.engine import Ability
from codeneedle.engines.messages import BadReply, Chat, ServerGone
from codeneedle.errors import CellError, ToolMissing
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
    RecallSettings,
    enough_for,
    measure,
)
from codeneedle.records.record import (
    CellRecord,
    Effective,
    Recall,
    Status,
    from_json,
)

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


def test_a_server_that_drafts_gives_no_margins(tmp_path):
    """
    It tells no probabilities of drafted tokens: those of the others are not all.
    """
    drafting = FakeEngine(reply=lambda asked: reply_to(asked, drafted=3, accepted=2))
    found = measured(tmp_path, drafting)

    for asked in found.rounds:
        assert ((), (), ()) == (asked.logprobs, asked.gaps, asked.lengths)
        assert asked.reply


@pytest.mark.parametrize(
    ("chosen", "stored", "expected"),
    [
        (None, {}, {"ask": "both"}),
        (None, {"recall": {}}, {}),
        (None, {"recall": {"ask": "forced"}}, {"ask": "forced"}),
        (None, {"divergence": {}}, {"ask": "both"}),
        (Ask.WRITTEN, {"recall": {"ask": "both"}}, {}),
        (Ask.FORCED, {"recall": {}}, {"ask": "forced"}),
    ],
)
def test_a_folder_goes_on_with_what_it_was_asked(chosen, stored, expected, tmp_path):
    """
    Both where nothing was asked yet; a setup that does not say is one of lines that
    were written, as is one of the published protocol.
    """
    setup = replace(made_setup(), probes=stored)
    settings = {"recall": RecallSettings(ask=chosen)}

    assert expected == PROBE.conditions(
        run_context(tmp_path, setup=setup, settings=settings)
    )


# Forced recall


def of_setup(ask):
    """What `made_context` takes to ask so."""
    setup = made_setup(needles=3)
    needles = tuple(replace(each, budget=50) for each in setup.needles)
    return replace(setup, needles=needles, probes={"recall": {"ask": ask}})


@pytest.mark.parametrize(
    ("ask", "written", "forced"), [("forced", 0, 3), ("both", 3, 3)]
)
def test_right_lines_are_scored_after_what_was_written(ask, written, forced, tmp_path):
    """
    Each needle's, joined as they stand in the text, with the same question.
    """
    engine = FakeEngine(force=lambda *asked: forced_to(*asked, bounds=(0,)))
    engine.server = FakeServer(engine)
    context = made_context(tmp_path, engine)
    context.run = replace(context.run, setup=of_setup(ask))

    found = from_json(measure(context), Recall, file="x")

    needles = made_setup(needles=3).needles
    assert (written, forced) == (len(found.rounds), len(found.forced))
    assert ["\n".join(needle.lines) for needle in needles] == engine.server.forced
    assert [needle.name for needle in needles] == [r.needle for r in found.forced]
    assert {(0,)} == {asked.bounds for asked in found.forced}
    assert 1 + written == len(engine.server.questions)
    if written:
        assert [r.prompt_sha256 for r in found.rounds] == [
            r.prompt_sha256 for r in found.forced
        ]


def test_what_was_written_stays_where_nothing_can_be_scored(tmp_path):
    """
    A server may tell no probabilities; the rounds say so.
    """
    engine = FakeEngine(force=lambda *_: BadReply(expected="probabilities"))
    engine.server = FakeServer(engine)
    context = made_context(tmp_path, engine)
    context.run = replace(context.run, setup=of_setup("both"))

    found = from_json(measure(context), Recall, file="x")

    assert 3 == len(found.rounds)
    assert all("did not answer with probabilities" in r.error for r in found.forced)
    context.run = replace(context.run, setup=of_setup("forced"))
    with pytest.raises(CellError, match="--ask written needs none") as caught:
        measure(context)
    assert Status.UNSUPPORTED == caught.value.status


@pytest.mark.parametrize(
    ("ask", "abilities", "suited"),
    [
        (None, {Ability.FORCED}, None),
        (None, (), Ask.WRITTEN),
        (Ask.WRITTEN, (), Ask.WRITTEN),
        (Ask.FORCED, {Ability.FORCED}, Ask.FORCED),
    ],
)
def test_an_engine_that_cannot_score_lines_is_asked_for_written_ones(
    ask, abilities, suited
):
    """
    Unless scores are asked for: that is refused.
    """
    engine = FakeEngine(abilities=frozenset(abilities))

    assert RecallSettings(suited) == PROBE.suited(RecallSettings(ask), engine)
    for more in (Ask.FORCED, Ask.BOTH):
        if not abilities:
            with pytest.raises(ToolMissing, match="no tool for forced recall"):
                PROBE.suited(RecallSettings(more), engine)


def test_why_there_are_no_margins_is_said():
    asked = replace(made_round(NEEDLE), logprobs=(), gaps=())
    record = made_record("f16/f16", [asked])
    telling = replace(record, effective=Effective(unscored="a log-probability of 5"))

    for one, told in ((record, "no probabilities"), (telling, "a log-probability of")):
        run = replace(made_run(), setup=made_setup(), records=(one,))
        assert f"no margins: the server tells {told}" in " ".join(PROBE.remarks(run))


def test_scoring_is_tried_again_where_the_connection_breaks(tmp_path):
    """
    As a question is.
    """
    left = [GONE]
    engine = FakeEngine(force=lambda *a: left.pop() if left else forced_to(*a))

    scored = asker(tmp_path, engine).scored(NEEDLE)

    assert 1 == len(scored.retries)
    assert len("\n".join(NEEDLE.lines)) == len(scored.logprobs) == scored.ends[-1]


@pytest.mark.parametrize(
    ("matched", "words"),
    [
        (lambda _pair, _at: 20, "at its ceiling: 20.00 lines of 20"),
        (lambda pair, _at: 20 if pair.k == "bf16" else 3, None),
        (lambda _pair, _at: 1, "at its floor: 1.00 lines of 20 with bf16/bf16"),
    ],
)
def test_written_recall_that_tells_nothing_says_so(matched, words):
    """
    Where no pair loses a line, and where the reference has none to lose.
    """
    said = " ".join(PROBE.remarks(made_run(matched)))

    assert (words or "") in said
    assert bool(words) == bool(said)


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


def test_a_further_server_adds_to_what_was_answered_before(tmp_path):
    """
    It reads the text once more and asks what is new alone; each answer is told at once.
    """
    engine = FakeEngine()
    engine.server = FakeServer(engine)
    context = made_context(tmp_path, engine)
    first, *rest = context.run.setup.needles
    told = []

    short = replace(context.run.setup, needles=(first,))
    context.run = replace(context.run, setup=short)
    former = CellRecord(
        pair=context.pair,
        probe="recall",
        status=Status.FINISHED,
        started="",
        observation=recall.measure_blocks(context, iter(["matched"])),
    )
    longer = replace(short, further=tuple(rest))
    context.run = replace(context.run, setup=longer)
    both = recall.measure_blocks(context, iter(["matched"]), former, told.append)
    before = from_json(former.observation, Recall, file="x")
    found = from_json(both, Recall, file="x")

    assert (1, 2) == (before.starts, found.starts)
    assert before.priming == found.priming
    assert [each.name for each in (first, *rest)] == [r.needle for r in found.rounds]
    assert () == found.forced
    assert list(range(2, len(rest) + 2)) == [len(each.rounds) for each in told]
    assert len(rest) + 3 == len(engine.server.questions)
