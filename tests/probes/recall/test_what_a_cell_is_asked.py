"""What a cell is asked and stores, and when a reply is enough."""

from dataclasses import replace

import pytest
from asked_recall import made_context, measured
from fake_engine import FakeEngine, FakeServer, forced_to, is_for, reply_to
from made_contexts import made_outlook, made_preparation, run_context, stored_by
from made_records import (
    asking_recall,
    forced_of,
    made_needle,
    made_record,
    made_round,
    made_run,
    made_setup,
    written_of,
)

from codeneedle.corpora.registry import load
from codeneedle.engines.engine import Ability
from codeneedle.engines.messages import BadReply, Chat, PromptCut
from codeneedle.errors import BadInput, CellError, ToolMissing
from codeneedle.probes.observations import merge_chosen_settings
from codeneedle.probes.prompts import PromptForm
from codeneedle.probes.recall.alignment import Mark
from codeneedle.probes.recall.asker import stop_test_for_needle
from codeneedle.probes.recall.probe import PRIMING_TOKENS, PROBE
from codeneedle.probes.recall.prompts import chat_messages
from codeneedle.probes.recall.record import recall_of
from codeneedle.probes.recall.rounds import scored_rounds
from codeneedle.probes.recall.settings import RecallSettings, Way, settings_of
from codeneedle.probes.thinking import NO_THINK_ARGS
from codeneedle.records.record import Effective, Status
from codeneedle.records.store import Store, find_stores_or_refuse

NEEDLE = made_needle()
BODY = "\n".join(NEEDLE.lines) + "\n"


# What is asked and stored


def test_all_needles_are_asked_after_one_round_that_is_not_scored(tmp_path):
    """It asks for the last needle: all others find just the corpus in the cache."""
    engine = FakeEngine(reply=lambda asked: reply_to(asked, text=asked.prompt[-10:]))

    found = measured(tmp_path, engine)

    asked = engine.server.questions
    needles = written_of(made_setup(needles=3))
    for needle, question in zip((needles[-1], *needles), asked, strict=True):
        assert is_for(needle, question)
    assert [PRIMING_TOKENS, 50, 50, 50] == [each.max_tokens for each in asked]
    assert [needle.name for needle in needles] == [r.name for r in found.rounds]
    assert needles[-1].name == found.priming.name
    assert 1 == engine.server.settled


def test_a_server_that_cuts_its_prompts_is_a_gap(tmp_path, golden):
    """A cut of less than half was once scored."""
    engine = FakeEngine(
        reply=lambda asked: reply_to(asked, prompt_tokens=len(asked.prompt) * 4 // 5)
    )
    context = made_context(tmp_path, engine)
    text = "CORPUS " * 500
    setup = context.run.setup
    facts = replace(setup.corpus, tokens=len(text))
    context.run = replace(context.run, text=text, setup=replace(setup, corpus=facts))
    engine.server = FakeServer(engine)

    with pytest.raises(PromptCut) as caught:
        PROBE.measure(context)
    assert golden == str(caught.value)


def test_a_chat_is_asked_with_thinking_switched_off(tmp_path):
    engine = FakeEngine()

    measured(tmp_path, engine, form=PromptForm.CHAT, prefill_no_think=True)

    question = engine.server.questions[0]
    assert isinstance(question, Chat)
    assert NO_THINK_ARGS == question.template_args
    assert ["user", "assistant"] == [said.role for said in question.messages]


def test_probabilities_are_stored_where_each_token_has_one(tmp_path):
    found = measured(tmp_path, FakeEngine())

    assert [((-0.1,), (2.0,), (9,))] * 3 == [
        (asked.reply.logprobs, asked.reply.gaps, asked.reply.lengths)
        for asked in found.rounds
    ]


def test_a_server_that_drafts_gives_no_margins(tmp_path):
    """It tells no probabilities of drafted tokens: those of the others are not all."""
    drafting = FakeEngine(reply=lambda asked: reply_to(asked, drafted=3, accepted=2))
    found = measured(tmp_path, drafting)

    for reply in [asked.reply for asked in found.rounds]:
        assert ((), (), ()) == (reply.logprobs, reply.gaps, reply.lengths)
        assert reply.text


@pytest.mark.parametrize(
    ("chosen", "stored", "expected"),
    [
        ({}, {}, (["write", "force"], 16, 5)),
        ({}, {"divergence": {}}, (["write", "force"], 16, 5)),
        ({"functions": 8, "lines": 3}, {}, (["write", "force"], 8, 3)),
        ({"functions": 90}, {}, (["write", "force"], 16, 5)),
        ({"way": (Way.READ,)}, {}, (["read"], 16, 5)),
        ({}, {"recall": {"way": ["force"], "functions": 7}}, (["force"], 7, 5)),
        ({"lines": 3}, {"recall": {"functions": 7}}, (["write", "force"], 7, 3)),
        ({"way": (Way.WRITE,)}, {"recall": {"way": ["force"]}}, (["write"], 16, 5)),
    ],
)
def test_conditions_are_what_was_chosen_then_what_is_stored_then_the_defaults(
    chosen, stored, expected, tmp_path
):
    setup = replace(made_setup(), probes=stored, context=65_536)
    if "recall" in stored:
        setup = asking_recall(made_setup(), stored["recall"])
    settings = {
        "recall": merge_chosen_settings(settings_of(setup), RecallSettings(**chosen))
    }
    run = run_context(tmp_path, setup=setup, settings=settings)

    told = stored_by(PROBE, replace(run, preparation=made_preparation()))

    assert expected == (told["way"], told["functions"], told["lines"])


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ((), ["force"]),
        ((Way.WRITE, Way.READ), ["read"]),
        ((Way.READ,), ["read"]),
    ],
)
def test_lines_are_scored_alone_where_none_can_be_written(chosen, expected, tmp_path):
    setup = replace(made_setup(), probes={}, context=65_536)
    settings = {"recall": RecallSettings(way=chosen, lines=3)}
    run = run_context(tmp_path, setup=setup, settings=settings)
    short = load("random-bodies-short")
    preparation = replace(made_preparation(), corpus=short, whole=short)

    told = stored_by(PROBE, replace(run, preparation=preparation))

    assert (expected, []) == (told["way"], told.get("written", []))


# Forced recall


def adapted(engine, **chosen):
    """Settings as *engine* can ask them."""
    return PROBE.adapt(RecallSettings(**chosen), made_outlook(engine=engine))


@pytest.mark.parametrize(
    ("way", "written", "forced"),
    [(["force"], 0, 4), (["write", "force"], 3, 4), (["write"], 3, 0)],
)
def test_right_lines_are_scored_after_what_was_written(way, written, forced, tmp_path):
    engine = FakeEngine(force=lambda *asked: forced_to(*asked, bounds=(0,)))
    conditions = {"way": way, "functions": 4}

    found = measured(tmp_path, engine, conditions=conditions)

    functions = forced_of(made_setup(forced=5))[:forced]
    assert (written, forced) == (len(found.rounds), len(found.forced))
    assert ["\n".join(each.lines) for each in functions] == engine.server.forced
    assert [each.name for each in functions] == [r.name for r in found.forced]
    assert all((0,) == asked.scores.bounds for asked in found.forced)
    assert 1 + written == len(engine.server.questions)


@pytest.mark.parametrize("form", PromptForm)
def test_the_lines_before_forced_ones_are_in_their_prompt(form, tmp_path):
    asked = []

    def force(question, right):
        asked.append((question, right))
        return forced_to(question, right)

    measured(
        tmp_path, FakeEngine(force=force), form=form, conditions={"way": ["force"]}
    )

    for needle, (question, right) in zip(forced_of(made_setup()), asked, strict=False):
        begun = "".join(f"{line}\n" for line in needle.before)
        if isinstance(question, Chat):
            user, *answer = (said.content for said in question.messages)
            prompt = "".join(answer)
            assert f"first {len(needle.before) + 5} lines" in user
            assert begun == prompt
        else:
            assert question.prompt.endswith(f"{needle.signature}\n{begun}")
        assert "\n".join(needle.lines) == right
    assert 5 == len(asked)


def test_what_was_written_stays_where_nothing_can_be_scored(tmp_path, golden):
    engine = FakeEngine(force=lambda *_: BadReply(expected="probabilities"))

    found = measured(tmp_path, engine)

    assert 3 == len(found.rounds)
    (error,) = {each.error for each in found.forced}
    assert golden == error
    with pytest.raises(CellError) as caught:
        measured(tmp_path, engine, conditions={"way": ["force"]})
    assert golden == str(caught.value)
    assert Status.UNSUPPORTED == caught.value.status


@pytest.mark.parametrize(
    ("way", "abilities", "expected"),
    [
        ((), {Ability.FORCED}, (Way.WRITE, Way.FORCE)),
        ((), (), (Way.WRITE,)),
        ((Way.WRITE,), (), (Way.WRITE,)),
        ((Way.FORCE,), {Ability.FORCED}, (Way.FORCE,)),
    ],
)
def test_an_engine_that_cannot_score_lines_is_asked_for_written_ones(
    way, abilities, expected, golden
):
    engine = FakeEngine(abilities=frozenset(abilities))

    assert RecallSettings(expected) == adapted(engine, way=way)
    for more in ((Way.FORCE,), (Way.WRITE, Way.FORCE)):
        if not abilities:
            with pytest.raises(ToolMissing) as caught:
                adapted(engine, way=more)
            assert golden == (str(caught.value), caught.value.hint)


@pytest.mark.parametrize(
    ("way", "can_force"),
    [((Way.WRITE,), True), ((Way.WRITE,), False), ((), False)],
    ids=["written", "written-unscored", "unscored"],
)
def test_options_of_forced_lines_are_refused_with_what_the_engine_can(
    way, can_force, golden
):
    engine = FakeEngine(abilities=frozenset({Ability.FORCED} if can_force else ()))

    with pytest.raises(BadInput) as caught:
        adapted(engine, way=way, functions=3)

    assert golden == (str(caught.value), caught.value.hint)


def test_a_limit_of_replies_is_of_written_ones(golden):
    for way, expected in (((), (Way.WRITE, Way.FORCE)), ((Way.WRITE,), (Way.WRITE,))):
        assert expected == adapted(FakeEngine(), way=way, reply_tokens=9).way

    with pytest.raises(BadInput) as caught:
        adapted(FakeEngine(), way=(Way.FORCE,), reply_tokens=9)
    assert golden == str(caught.value)


def test_why_there_are_no_margins_is_said(golden):
    asked = made_round(NEEDLE, logprobs=(), gaps=())
    record = made_record("f16/f16", [asked])
    telling = replace(record, effective=Effective(unscored="a log-probability of 5"))

    for one in (record, telling):
        run = replace(made_run(), setup=made_setup(), records=(one,))
        assert golden == PROBE.remarks(run)


@pytest.mark.parametrize(
    ("matched", "is_said"),
    [
        (lambda _pair, _at: 20, True),
        (lambda pair, _at: 20 if pair.k == "bf16" else 3, False),
        (lambda _pair, _at: 1, True),
    ],
    ids=["all", "fewer", "none"],
)
def test_written_recall_that_tells_nothing_says_so(matched, is_said, golden):
    said = PROBE.remarks(made_run(matched))

    assert is_said == bool(said)
    assert golden == said


@pytest.mark.parametrize(("functions", "is_said"), [(19, False), (20, True)])
def test_a_line_of_twenty_functions_is_all_that_the_ceiling_may_lack(
    functions, is_said
):
    run = made_run(
        lambda _pair, at: 19 if at == 0 else 20, setup=made_setup(needles=functions)
    )

    assert is_said == bool(PROBE.remarks(run))


# When a reply is enough


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (BODY, False),
        (BODY + "x\n", False),
        (BODY + "x\n" + "half a line", False),
        (BODY + "x\n" * 2, True),
        ("wrong\n" * 27, False),
        ("wrong\n" * 28, True),
        ("<think>\n" + "hm\n" * 30, False),
        (f"```\n{BODY}```\nThis function\nassigns\nvalues\n", True),
    ],
    ids=[
        *("complete", "short tail", "half a line", "tail"),
        *("slack", "too wrong", "thoughts", "talk after a fence"),
    ],
)
def test_a_reply_is_enough_when_reading_on_would_tell_nothing_more(reply, expected):
    """Whether a model runs on shows only if it may."""
    assert expected == stop_test_for_needle(NEEDLE)(reply)


def test_blank_lines_without_end_are_looked_at_once(monkeypatch):
    """Each is a line break at which is asked; none is a reason to read it all again."""
    looks = []
    monkeypatch.setattr(
        "codeneedle.probes.recall.asker.answer_lines",
        lambda _needle, text: looks.append(text) or text.split("\n"),
    )
    judge = stop_test_for_needle(NEEDLE)
    verdicts = {judge("x\n" * 20 + "\n" * blank) for blank in range(100)}

    assert {False} == verdicts
    assert 1 == len(looks)


@pytest.mark.parametrize(
    "settings",
    [{}, {"way": (Way.FORCE,), "functions": 1}, {"way": (Way.WRITE,)}],
    ids=["default", "forced", "written"],
)
def test_a_plan_names_as_many_functions_as_the_text_has(settings, golden):
    estimates = made_outlook(context=18432, is_built_in=True)

    assert golden == PROBE.bill(RecallSettings(**settings), estimates).phrase


def test_a_plan_says_that_a_context_is_likely_to_hold_no_function(golden):
    estimates = made_outlook(context=512, is_built_in=True)

    assert golden == PROBE.bill(RecallSettings(), estimates).phrase


def test_a_plan_of_a_run_folder_names_what_the_folder_holds(tmp_path):
    setup = made_context(tmp_path, FakeEngine(), conditions={"functions": 4}).run.setup
    estimates = made_outlook(context=1024, is_built_in=True, setup=setup)
    forced = min(len(forced_of(setup)), 4)

    phrase = PROBE.bill(PROBE.adapt(RecallSettings(), estimates), estimates).phrase

    assert phrase.startswith(f"20 lines of {len(written_of(setup))} functions written")
    assert phrase.endswith(f"5 lines of {forced} functions forced")


# The real server


@pytest.mark.real
@pytest.mark.parametrize("form", PromptForm)
def test_the_real_prompt_ends_with_the_lines_before_and_what_is_scored_is_the_text_s(
    codeneedle, tmp_path, form
):
    """With the built-in model a token is a byte."""
    template = ("--", "--chat-template", "chatml") if form is PromptForm.CHAT else ()
    said = codeneedle(
        *("sweep", "--corpus", "random-bodies-short", "--types", "q8_0"),
        *("--way", "force", "--lines", "3", "--prompt-form", form, *template),
    )

    assert 0 == said.returncode, said.stderr
    (folder,) = (tmp_path / "sweeps").glob("*/*")
    store = Store(folder)
    setup, text = store.read_setup(), load("random-bodies-short").text
    body = text.split("\n")
    (record,) = store.read_records("recall")
    found = recall_of(record).forced
    starts = set()
    for needle, scored in zip(forced_of(setup), found, strict=True):
        begun = "".join(f"{line}\n" for line in needle.before)
        right = "\n".join(needle.lines)
        first = needle.line + len(needle.before)
        assert list(needle.lines) == body[first : first + 3]
        prompt = f"{text}\n\n# recall\n{needle.signature}\n{begun}"
        if form is PromptForm.CHAT:
            asked = chat_messages(text, needle)[0].content
            prompt = f"<|im_start|>user\n{asked}<|im_end|>\n"
            prompt += f"<|im_start|>assistant\n{begun}"
        scores = scored.scores
        assert 1 + len(prompt) == scores.prompt_tokens
        assert len(right) == len(scores.logprobs) == scores.ends[-1]
        starts.add(len(needle.before))
    assert 20 == len(found)
    assert {0, 1, 2} == starts


@pytest.mark.real
def test_a_model_that_runs_on_is_seen_where_only_a_limit_ends_replies(
    codeneedle, tmp_path
):
    (tmp_path / "few.toml").write_text(
        "sample_k = 1\n[generate]\nfunctions = 4\nlines = 20\nvalue_length = 4\n"
        "name_length = 4\nindent = 1\nseed = 11\n"
    )
    asked = ("sweep", "--corpus", "few.toml", "--types", "q8_0", "--way", "write")
    limited = codeneedle(*asked, "--reply-tokens", "700", "--context", "4096")
    assert 0 == limited.returncode, limited.stderr
    other = codeneedle(*asked, "--reply-tokens", "600", "--context", "4096")
    usual = codeneedle(*asked, "--context", "4096", "--out", "usual")
    assert 0 == usual.returncode, usual.stderr

    stores = [
        store
        for out in ("sweeps", "usual")
        for store in find_stores_or_refuse(tmp_path / out, "f")
    ]
    rounds = [
        scored_rounds(*each.read_records(), each.read_setup())[0] for each in stores
    ]

    assert 700 == rounds[0].round.reply.predicted_tokens
    first, second = (each.line_counts_by_mark for each in rounds)
    assert 20 == first[Mark.MATCHED] == second[Mark.MATCHED]
    assert first[Mark.OVERRUN] >= 10 > second[Mark.OVERRUN]
    assert "Go on with --reply-tokens 700" in other.stderr


def test_a_setup_of_other_probes_is_not_described_as_recall():
    other = replace(made_setup(needles=4), probes={"opening": {}})
    both = replace(other, probes={**other.probes, **made_setup(needles=4).probes})

    assert () == PROBE.asked_phrases(other)
    assert "4 functions written" == PROBE.asked_phrases(both)[0]
