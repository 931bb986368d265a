"""The answers of a pair in any runs, and what measured it."""

from dataclasses import replace

import pytest
from made_evaluations import evaluated, failing
from made_records import failed_record, made_record, made_run, made_setup, renamed
from printing import printed

from codeneedle.cache_types import Pair
from codeneedle.engines.messages import Reply
from codeneedle.errors import BadInput, UnknownName
from codeneedle.probes.answers import View
from codeneedle.records.record import Effective, KvBuffer, Status
from codeneedle.report.answers import (
    answers_document,
    parse_run_pair_function,
    replies_document,
)

TYPES = ("bf16", "q4_0")
SETUP = made_setup(needles=3, types_k=TYPES, types_v=TYPES)
PAIR = Pair("q4_0", "q4_0")


def shown(*runs, function=None, colour=False):
    """What a terminal gets of the answers of `PAIR`."""
    found = answers_document(runs, PAIR, function, View(width=100))
    return printed(found, colour=colour)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["tiny", "q4_0"], "codeneedle show tiny q4_0/q4_0"),
        (["q4_0"], "codeneedle show q4_0/q4_0"),
    ],
    ids=["of a run", "of the only run"],
)
def test_a_type_in_the_place_of_a_pair_is_refused_with_the_pair(words, command, golden):
    with pytest.raises(BadInput) as caught:
        parse_run_pair_function(words)
    assert "q4_0" == caught.value.source
    assert golden == caught.value.reason
    assert caught.value.hint.endswith(command)


def test_an_unknown_function_or_pair_is_refused_with_a_hint():
    run = made_run(setup=SETUP)

    with pytest.raises(UnknownName) as caught:
        shown(run, function="f_bb")
    assert "Did you mean 'f_b'?" == caught.value.hint

    with pytest.raises(BadInput) as caught:
        shown(made_run(setup=SETUP, untried=["q4_0/q4_0"]))
    assert "q4_0/q4_0: no record in random-bodies/made-model" == str(caught.value)
    assert "codeneedle grid random-bodies/made-model" in caught.value.hint

    run = made_run(setup=SETUP)
    other = replace(run.records[0], pair=Pair("q4_0", "q4_0"), probe="divergence")
    with pytest.raises(BadInput, match="has no answers"):
        shown(replace(run, records=(other,)), function="f_a")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["q4_0/q4_0"], (None, PAIR, None)),
        (["q4_0/q4_0", "Shop.pay"], (None, PAIR, "Shop.pay")),
        (["tiny/model", "q4_0/q4_0"], ("tiny/model", PAIR, None)),
        (["tiny", "q4_0/q4_0", "pay"], ("tiny", PAIR, "pay")),
    ],
)
def test_the_only_run_needs_no_name(words, expected):
    assert expected == parse_run_pair_function(words)


@pytest.mark.parametrize("words", [["tiny"], ["a", "f16/f16", "two", "words"]])
def test_a_pair_is_asked_for_in_one_way(words):
    with pytest.raises(BadInput):
        parse_run_pair_function(words)


def test_each_run_that_has_the_pair_is_shown():
    first = renamed(made_run(setup=SETUP), "c/one")
    second = renamed(made_run(setup=SETUP), "c/two")
    without = renamed(made_run(setup=SETUP, untried=["q4_0/q4_0"]), "c/three")

    text = shown(first, second, without)

    assert text.index("c/one") < text.index("c/two")
    assert "c/three" not in text


def test_samples_of_an_evaluation_without_a_score_are_counted(golden):
    """Also below the share that makes a gap of the cell."""
    cell = failing(evaluated("q4_0/q4_0", [1.0] * 15 + [0.0] * 5), [3], "HTTP 503")
    run = replace(made_run(setup=SETUP), records=(cell,))

    counted = [line for line in shown(run).splitlines() if "of 20 samples" in line]

    assert golden == counted


def test_a_failed_cell_has_its_reason():
    failed = failed_record(PAIR, Status.OUT_OF_MEMORY, "cannot allocate")
    run = made_run(setup=SETUP, failed=[failed])

    assert "out-of-memory: cannot allocate" in shown(run)
    with pytest.raises(BadInput, match="has no answers"):
        shown(run, function="f_a")


def test_a_cell_shows_its_command_its_log_and_what_that_proved(tmp_path, golden):
    buffer = KvBuffer(
        cells=8192, layers=7, k_type="q4_0", v_type="q4_0", k_mib=1.5, v_mib=1.25
    )
    record = replace(
        made_record(PAIR, []),
        probe="divergence",
        observation={"reference": "bf16/bf16", "answers": {}},
        command=("/bin/llama-server", "--model", "my model.gguf"),
        effective=Effective(kv=(buffer,), flash_attention="enabled", rotation_k=64),
    )
    run = replace(made_run(setup=SETUP), records=(record,), root=tmp_path)
    log = tmp_path / run.name / "logs" / "q4_0-q4_0.log"
    log.parent.mkdir(parents=True)

    said = shown(run)
    log.touch()

    assert golden == said
    assert "q4_0-q4_0.log" not in said
    assert "q4_0-q4_0.log" in "".join(shown(run).split())


def said(text, **changes):
    """A reply of a token for each character, with leads of 0.5 nats."""
    facts = {"finish": "stop", "predicted_tokens": len(text)}
    facts |= {"gaps": (0.5,) * len(text), "lengths": (1,) * len(text)}
    return Reply(text=text, **{**facts, **changes})


F16, Q8 = Pair("f16", "f16"), Pair("q8_0", "q8_0")


@pytest.mark.parametrize(
    "second",
    ["one\ntwo\nthree", "one\ntoo\nthree", "zero"],
    ids=["the same", "in its second line", "from the beginning on"],
)
def test_an_answer_is_shown_from_the_line_in_which_it_differs(second, golden):
    document = [*replies_document([(F16, said("one\ntwo\nthree")), (Q8, said(second))])]
    shown = printed(document[3:-1]).splitlines()

    assert golden == [line for line in shown if line]


def test_an_answer_without_leads_is_compared_and_one_that_failed_is_told(golden):
    plain = {"gaps": (), "lengths": ()}
    answers = [(F16, "crashed: it broke"), (Q8, said("ab")), (F16, said("ac", **plain))]
    shown = printed(replies_document(answers))
    without = printed(replies_document([(F16, said("ac", **plain)), (Q8, said("ab"))]))

    assert "crashed: it broke" in shown
    assert golden == [
        line
        for text in (shown, without)
        for line in text.splitlines()
        if "the same as" in line
    ]
