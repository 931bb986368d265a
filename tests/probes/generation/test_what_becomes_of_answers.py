"""What becomes of answers that leave the reference's, loop, or do not end."""

import math
from dataclasses import replace

import pytest
from made_generation import generation_record, generation_setup, written

from codeneedle.cache_types import Pair
from codeneedle.document import Table
from codeneedle.engines.messages import Reply
from codeneedle.probes.answers import View
from codeneedle.probes.generation.comparing import FirstDifference, first_difference
from codeneedle.probes.generation.metrics import METRICS, prompts_needed_without_loss
from codeneedle.probes.generation.probe import PROBE
from codeneedle.probes.generation.record import NAME, written_from
from codeneedle.probes.metrics import cell_value
from codeneedle.records.record import AGAIN, Run
from codeneedle.verdict.judge import judge
from codeneedle.verdict.remark_kinds import RemarkKind
from codeneedle.verdict.remarks import remarks
from codeneedle.verdict.statistics import Decision, error_share, lost_share_interval

LOOPING = "so " + "idea " * 80
REFERENCE = {
    "one": written("the sum of all is nine"),
    "two": written("first salt then rope then tar"),
    "three": written("a mill by the water", finish="length"),
    "four": written(LOOPING, finish="length"),
}
SETUP = generation_setup("f16/f16", REFERENCE)
OTHER = {
    "one": written("the sum of most is ten"),
    "two": REFERENCE["two"],
    "three": written("a mill by the road"),
    "four": written("so it is"),
}


def value(name, answers, pair="q4_0/q4_0"):
    """The value of the metric *name*."""
    metric = next(metric for metric in METRICS if metric.name == name)
    return cell_value(metric, metric.values(generation_record(pair, answers), SETUP))


def test_the_first_difference_is_told_with_the_lead_of_the_reference():
    reference, other = written("one two three", lead=0.25), written("one two four")

    assert FirstDifference(character=8, tokens=2, lead=0.25) == first_difference(
        reference, other
    )


def test_an_answer_that_goes_on_where_the_reference_ends_differs_there():
    reference = written("one two")

    found = first_difference(reference, written("one two three"))

    assert FirstDifference(character=7, tokens=2, lead=None) == found


def test_equal_texts_differ_if_one_was_cut():
    cut = written("one two", finish="length")

    assert first_difference(written("one two"), written("one two")) is None
    assert first_difference(written("one two"), cut)


def test_what_follows_the_token_of_the_first_difference_counts_no_longer():
    reference = written("ab longerword c d")
    other = replace(reference, text="ab longerWord c d")

    assert 1 == first_difference(reference, other).tokens


def test_a_reference_of_no_text_is_left_at_once():
    """Such as one whose only token has no text."""
    empty = replace(written(""), tokens=1, lengths=(), leads=())

    assert FirstDifference(character=0, tokens=0, lead=None) == first_difference(
        empty, written("so")
    )


def test_the_lead_of_every_token_is_kept_to_a_thousandth_of_a_nat():
    one = Reply(text="so", finish="stop", lengths=(2,), gaps=(0.12345,))

    assert (0.123,) == written_from(one).leads
    assert () == written_from(replace(one, gaps=(0.1, 0.2))).leads
    assert () == written_from(replace(one, gaps=())).leads


@pytest.mark.parametrize(
    ("told", "kept"),
    [("stop", "stop"), ("length", "length"), ("", "length"), ("filter", "length")],
)
def test_an_answer_that_the_model_did_not_end_was_ended_by_a_limit(told, kept):
    written = written_from(Reply(text="so", finish=told, lengths=(2,)))

    assert (kept, kept == "stop") == (written.finish, written.has_ended)


def test_the_lead_where_answers_differ_is_the_median_of_those_that_are_told():
    assert 1.0 == value("diverges-lead", OTHER)
    untold = {name: replace(each, leads=()) for name, each in REFERENCE.items()}
    setup = generation_setup("f16/f16", untold | {"one": REFERENCE["one"]})
    metric = next(metric for metric in METRICS if metric.name == "diverges-lead")
    record = generation_record("q4_0/q4_0", OTHER)

    assert [1.0] == metric.values(record, setup)
    assert [] == metric.values(record, generation_setup("f16/f16", untold))


def drafted(text, **changes):
    """An answer as a server tells it that has drafted all tokens but the first."""
    reply = Reply(
        text=text,
        finish="length",
        predicted_tokens=3 * len(text.split()),
        lengths=(len(text),),
        gaps=(0.5,),
        drafted=9,
        accepted=8,
    )
    return written_from(replace(reply, **changes))


def test_words_count_in_place_of_tokens_that_were_drafted():
    """A server tells no more of them than their number: here three to a word."""
    reference, other = drafted("one two three"), drafted("one two four")

    assert ("one ", "two ", "three") == tuple(reference.token_or_word_texts)
    assert FirstDifference(character=8, tokens=6, lead=None) == first_difference(
        reference, other
    )


def test_characters_of_several_tokens_count_as_these():
    """As of llama-server: a rocket takes three tokens, and is told once it is whole."""
    each = {"lengths": (1,) * 4, "gaps": (0.5,) * 4}
    reference = drafted("🚀🚀🚀🚀", predicted_tokens=13, drafted=0, **each)
    other = replace(reference, text="🚀🚀🚂🚀")

    assert FirstDifference(character=2, tokens=6, lead=0.5) == first_difference(
        reference, other
    )


def test_an_answer_of_drafted_tokens_can_loop():
    answers = {"one": drafted("it ends"), "two": drafted("so it is")}
    looping = answers | {"two": drafted(LOOPING)}
    setup = generation_setup("f16/f16", answers)
    metric = next(metric for metric in METRICS if metric.name == "loops")

    values = metric.values(generation_record("q4_0/q4_0", looping), setup)

    assert [0.0, 100.0] == values


def test_what_was_accepted_is_a_share_of_all_drafted_tokens():
    answers = {"one": drafted("so"), "two": drafted("it", drafted=1, accepted=0)}

    assert math.isclose(80.0, value(f"{NAME}-accepted", answers))
    assert math.isnan(value(f"{NAME}-accepted", OTHER))


def test_prompts_that_are_out_are_told_once_the_reference_has_written(golden):
    answers = {"one": written("it is nine"), "two": written("")}
    setup = generation_setup("f16/f16", answers)
    record = generation_record("q4_0/q4_0", answers)
    run = Run(name="a/b", setup=setup, records=(record,))

    named = {each.name: [*each.values(record, setup)] for each in METRICS[:5]}

    assert [3.0] == named["diverges-at"]
    assert [100.0] == named["ends"]
    assert golden == PROBE.remarks(run)
    assert golden == PROBE.calibrating.calibration_lines(setup)


@pytest.mark.parametrize(
    ("text", "silent"),
    [(LOOPING, {"loops", "generation-empty", "ends"}), ("no end", {"ends"})],
)
def test_a_reference_with_nothing_to_lose_has_no_say_and_that_is_said(text, silent):
    answers = {str(at): written(text, finish="length") for at in range(8)}
    records = [generation_record(pair, answers) for pair in ("f16/f16", "q4_0/q4_0")]
    run = Run(
        name="a/b", setup=generation_setup("f16/f16", answers), records=tuple(records)
    )

    assert silent == judge(run).silent.keys()


@pytest.mark.parametrize(("ended", "is_silent"), [(3, True), (4, False)])
def test_a_reference_of_which_few_answers_end_has_no_say_about_endings(
    ended, is_silent
):
    answers = {
        str(at): written("an end", finish="length" if at >= ended else "stop")
        for at in range(20)
    }
    records = [generation_record(pair, answers) for pair in ("f16/f16", "q4_0/q4_0")]
    run = Run(
        name="a/b", setup=generation_setup("f16/f16", answers), records=tuple(records)
    )

    assert is_silent == ("ends" in judge(run).silent)


def test_why_answers_have_no_say_is_said_in_words_of_answers(golden):
    answers = {str(at): written(LOOPING, finish="length") for at in range(8)}
    record = generation_record("f16/f16", answers)
    run = Run(name="a/b", setup=generation_setup("f16/f16", answers), records=(record,))

    told = judge(run).silent

    assert golden == {name: told[name] for name in ("loops", "ends")}


@pytest.mark.parametrize("out", [0, 6])
def test_the_verdict_says_what_it_is_about_in_words_of_prompts(out, golden):
    whole = {str(at): written("it ends well") for at in range(8)}
    answers = whole | {str(at): written(LOOPING) for at in range(out)}
    records = [generation_record(pair, answers) for pair in ("f16/f16", "q4_0/q4_0")]
    setup = generation_setup("f16/f16", answers)
    verdict = judge(Run(name="a/b", setup=setup, records=tuple(records)))

    (about,) = (r for r in remarks(verdict) if r.kind is RemarkKind.POPULATION)
    assert golden == about.text


def test_an_empty_answer_is_no_loop():
    answers = {"one": written("it ends"), "two": written("so it is")}
    record = generation_record("q4_0/q4_0", answers | {"two": written("")})
    setup = generation_setup("f16/f16", answers)

    shown = {each.name: [*each.values(record, setup)] for each in METRICS}

    assert [[0.0, 0.0], [0.0, 100.0], [100.0, 0.0]] == [
        shown[name] for name in ("loops", "generation-empty", "ends")
    ]


def test_the_verdict_says_of_how_many_prompts_it_speaks():
    """One of the eight is out: the reference loops on it."""
    whole = {str(at): written("it ends well") for at in range(7)}
    answers = whole | {"7": written(LOOPING)}
    records = [generation_record(pair, answers) for pair in ("f16/f16", "q4_0/q4_0")]
    run = Run(
        name="a/b", setup=generation_setup("f16/f16", answers), records=tuple(records)
    )

    result = judge(run).result(Pair("q4_0", "q4_0"))

    assert result is not None
    assert [(7, 8)] * 3 == [
        (row.bounds.units, row.asked) for row in result.metric_results
    ]


def test_the_verdict_says_how_many_prompts_would_decide_a_pair():
    for lost, needed in ((0, 36), (2, 22)):
        result = verdict_of(lost, 8).result(Pair("q4_0", "q4_0"))
        assert result is not None
        assert needed == max(
            row.needed or 0 for row in result.metric_results if row.lost == lost
        )


def test_a_pair_that_is_within_or_beyond_needs_no_further_prompts():
    for lost, decision in ((0, Decision.WITHIN), (40, Decision.BEYOND)):
        result = verdict_of(lost, 40).result(Pair("q4_0", "q4_0"))
        assert result is not None
        decided = [row for row in result.metric_results if row.lost == lost]
        assert {(decision, None)} == {(row.decision, row.needed) for row in decided}


def test_a_prompt_on_which_the_reference_loops_is_out():
    """Of the other three, one answer is the same to its end."""
    assert 4.0 == value("diverges-at", OTHER)
    assert math.isclose(100.0, value("ends", OTHER))
    assert 0.0 == value("loops", OTHER)


def test_the_answers_of_the_reference_are_its_own():
    assert 6.0 == value("diverges-at", REFERENCE, pair="f16/f16")
    assert math.isnan(value("diverges-lead", REFERENCE, pair="f16/f16"))


def verdict_of(lost, of, *, finish="stop", text=LOOPING):
    """The verdict on a pair that loses so many of so many answers."""
    names = [str(at) for at in range(of)]
    whole = {name: written("it ends well") for name in names}
    broken = {name: written(text, finish=finish) for name in names[:lost]}
    records = (
        generation_record("f16/f16", whole),
        generation_record("q4_0/q4_0", whole | broken),
    )
    run = Run(name="a/b", setup=generation_setup("f16/f16", whole), records=records)
    return judge(run)


@pytest.mark.parametrize(
    ("lost", "of", "word"), [(0, 8, Decision.OPEN), (6, 8, Decision.BEYOND)]
)
def test_loops_and_endings_are_answers_lost(lost, of, word):
    for text, finish in ((LOOPING, "stop"), ("no end", "length"), (" ", "stop")):
        result = verdict_of(lost, of, finish=finish, text=text).result(
            Pair("q4_0", "q4_0")
        )

        assert result is not None
        assert result.decision is word
        assert lost == max(row.lost for row in result.metric_results)


def test_a_pair_that_writes_nothing_is_not_within():
    """Also where the limit ends all answers of the reference."""
    for finish in ("stop", "length"):
        whole = {str(at): written("so it is", finish=finish) for at in range(40)}
        records = (
            generation_record("f16/f16", whole),
            generation_record("q4_0/q4_0", dict.fromkeys(whole, written(""))),
        )
        setup = generation_setup("f16/f16", whole)
        result = judge(Run(name="a/b", setup=setup, records=records)).result(
            Pair("q4_0", "q4_0")
        )

        assert result is not None
        assert Decision.BEYOND is result.decision


def test_a_prompt_on_which_the_reference_writes_nothing_is_out(golden):
    whole = {"one": written(""), "two": written("so it is")}
    run = Run(
        name="a/b",
        setup=generation_setup("f16/f16", whole),
        records=(
            generation_record("f16/f16", whole),
            generation_record("q4_0/q4_0", dict.fromkeys(whole, written(""))),
        ),
    )

    assert golden == PROBE.remarks(run)


def test_where_answers_differ_is_no_loss():
    """Nothing but that: the pair stays as open as eight prompts leave it."""
    verdict = verdict_of(8, 8, text="it is another end")
    result = verdict.result(Pair("q4_0", "q4_0"))

    assert result is not None
    assert {"loops", "generation-empty", "ends"} == {
        row.metric.name for row in result.metric_results
    }
    assert Decision.OPEN is result.decision


def test_so_many_prompts_without_a_loss_are_within():
    needed = prompts_needed_without_loss(error_share(0, 1))

    assert 36 == needed
    assert lost_share_interval(0, needed, error_share(0, 1)).high <= 0.1
    assert lost_share_interval(0, needed - 1, error_share(0, 1)).high > 0.1


def test_remarks_tell_the_floor_and_what_is_out(golden):
    records = (
        generation_record("f16/f16", REFERENCE),
        replace(generation_record("f16/f16", REFERENCE), variant=AGAIN),
        generation_record("q4_0/q4_0", OTHER),
    )

    run = Run(name="a/b", setup=SETUP, records=()).with_every_record(records)

    assert golden == PROBE.remarks(run)


def test_remarks_quote_no_answer():
    """They stand in pages and receipts."""
    answers = {name: written(LOOPING.replace("idea", "sesame")) for name in REFERENCE}
    records = (
        generation_record("f16/f16", REFERENCE),
        generation_record("q4_0/q4_0", answers),
    )

    lines = PROBE.remarks(Run(name="a/b", setup=SETUP, records=records))

    assert "q4_0/q4_0 loops" in " ".join(lines)
    assert "sesame" not in " ".join(lines)


def test_long_paragraphs_stand_beside_each_other_in_the_width_of_a_terminal():
    """The second answer had one column, a character wide."""
    paragraph = "so it goes on and on " * 30
    answers = {"one": written(f"a {paragraph}")}
    record = generation_record("q4_0/q4_0", {"one": written(f"b {paragraph}")})
    run = Run(name="a/b", setup=generation_setup("f16/f16", answers), records=(record,))

    (answer,) = PROBE.answers(run, record)
    (table,) = (b for b in answer.show(View(width=60)) if isinstance(b, Table))

    lines = [str(text).split("\n") for text in table.rows[0]]
    assert [29, 29] == [max(map(len, each)) for each in lines]
