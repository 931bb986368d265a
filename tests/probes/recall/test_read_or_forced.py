"""How functions are asked for: chosen once, before a server starts."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine, FakeServer, reply_to
from made_contexts import made_outlook, stored_by
from made_reading import made_context, made_engine
from made_records import asking_recall, failed_record, made_record, written_of

from codeneedle.cache_types import Pair
from codeneedle.corpora.registry import load
from codeneedle.engines.engine import Ability
from codeneedle.errors import BadInput
from codeneedle.probes.observations import Observed, observation_of
from codeneedle.probes.recall.further_functions import FURTHER
from codeneedle.probes.recall.probe import PROBE
from codeneedle.probes.recall.record import recall_of
from codeneedle.probes.recall.settings import RecallSettings, Way, settings_of
from codeneedle.probes.recall.ways import (
    refuse_lines_no_function_has,
    would_read_lines_if_possible,
)
from codeneedle.records.record import Status

WRITE, FORCE, READ = Way


# The rule


def on_accelerator(**tool):
    """An engine with a tool that reads, on an accelerator."""
    engine = made_engine(**tool)
    engine.devices = ("GPU0",)
    return engine


def adapted(settings=None, **changes):
    """What *settings* become; of a text that fits the context whole."""
    facts = {
        "corpus": load("random-bodies-many"),
        "context": 8_192,
        "engine": on_accelerator(),
        "is_built_in": False,
        "unread": "",
    }
    settings = settings or RecallSettings()
    return PROBE.adapt(settings, made_outlook(**{**facts, **changes}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, READ),
        ({"context": 65_536, "corpus": load("random-bodies")}, FORCE),
        ({"engine": made_engine()}, FORCE),
        ({"unread": "no room for it"}, FORCE),
        ({"is_built_in": True}, FORCE),
    ],
)
@pytest.mark.parametrize("decides", [True, False])
def test_short_texts_are_read_on_an_accelerator_where_they_can_be_and_else_forced(
    changes, expected, decides
):
    written = () if decides else (WRITE,)

    assert (*written, expected) == adapted(decides=decides, **changes).way


@pytest.mark.parametrize(("tokens", "is_read"), [(16_384, True), (16_385, False)])
def test_a_text_of_16k_tokens_is_the_longest_that_is_read(tokens, is_read):
    estimates = SimpleNamespace(
        engine=on_accelerator(), is_built_in=False, sent_corpus_tokens=tokens
    )

    assert is_read == would_read_lines_if_possible(estimates)


def test_as_many_lines_as_the_longest_function_has_can_be_asked_for():
    corpus = load("random-bodies-many")
    longest = max(function.nonblank_line_count for function in corpus.functions)

    refuse_lines_no_function_has(RecallSettings(way=(FORCE,), lines=longest), corpus)
    with pytest.raises(BadInput):
        refuse_lines_no_function_has(
            RecallSettings(way=(FORCE,), lines=longest + 1), corpus
        )


def test_five_lines_of_32_functions_are_asked_for_where_none_are_named():
    stored = RecallSettings().with_defaults

    assert (32, 5) == (stored.functions, stored.lines)


@pytest.mark.parametrize("way", [(WRITE,), (FORCE,), (READ,), (WRITE, READ)])
@pytest.mark.parametrize("decides", [True, False])
def test_a_way_that_is_named_is_taken(way, decides):
    named = RecallSettings(way=way[::-1])

    assert way == adapted(named, decides=decides, corpus=load("random-bodies")).ways


def test_a_run_goes_on_the_way_that_it_was_begun(tmp_path):
    run = made_context(tmp_path, on_accelerator(), conditions={"way": ["force"]}).run

    settings = adapted(setup=run.setup)

    assert (FORCE,) == settings.way
    assert ["force"] == (
        stored_by(PROBE, replace(run, settings={"recall": settings}))["way"]
    )


def test_what_is_forced_is_never_beside_what_is_read(golden):
    with pytest.raises(BadInput) as refused:
        adapted(RecallSettings(way=(FORCE, READ)))

    assert golden == (str(refused.value), refused.value.hint)


def test_lines_are_written_where_replies_are_limited():
    limited = RecallSettings(reply_tokens=9)

    assert (WRITE, READ) == adapted(limited, decides=True).way


def test_a_note_says_why_lines_are_forced_that_would_be_read():
    why = "8,192 tokens take 6 GiB"
    outlook = made_outlook(engine=on_accelerator(), unread=why, is_built_in=False)

    assert [1, 0, 0] == [
        len(PROBE.notes(RecallSettings(way=way), known))
        for way, known in (
            ((FORCE,), outlook),
            ((READ,), outlook),
            ((FORCE,), replace(outlook, engine=made_engine())),
        )
    ]
    assert why in PROBE.notes(RecallSettings(way=(FORCE,)), outlook)[0]


def test_an_engine_that_scores_nothing_is_asked_to_write():
    engine = FakeEngine(abilities=frozenset({Ability.READING}))

    assert (WRITE,) == adapted(engine=engine, decides=True).way


@pytest.mark.parametrize(("way", "functions"), [((READ,), 48), ((FORCE,), 12)])
def test_a_sweep_that_decides_asks_more_functions_where_they_cost_less(way, functions):
    asked = adapted(RecallSettings(way=way), decides=True)

    assert (functions, 3) == (asked.functions, asked.lines)


def test_a_plan_counts_what_is_read_and_its_check(golden):
    brief = RecallSettings(way=(READ,), functions=12, lines=3)
    known = made_outlook(corpus=load("random-bodies-many"), context=8_192, unread="")
    bill, check = PROBE.bill(brief, known), FURTHER.planned_check(brief, known)

    assert golden == (bill.phrase, check.phrase)
    assert 0 == bill.price.written
    assert 6 * 3 * 6 < check.price.written < 6 * 3 * 8
    forced = RecallSettings(way=(FORCE,), functions=12, lines=3)
    assert FURTHER.planned_check(forced, known) is None


# What is asked


def cell_of(context, pair, *others):
    """Another cell of the run of *context*, beside the records of *others*."""
    pair = Pair.parse(pair)
    made = type(context)(run=context.run, pair=pair, logs=context.logs)
    made.others = others
    return made


def measured(context):
    """The record of the cell of *context*."""
    observation = PROBE.measure(context)
    record = failed_record(str(context.pair))
    return replace(record, observation=observation, status=Status.FINISHED, reason="")


def writing(engine, context, lines):
    """The server of *engine* writes so many right lines of each needle."""
    by_signature = {each.signature: each for each in written_of(context.run.setup)}

    def complete(question, *, enough=None):
        at = max(by_signature, key=question.prompt.rfind)
        reply = "\n".join(by_signature[at].lines[:lines]) + "\nnothing\n"
        return reply_to(question, reply, prompt_tokens=1_000, prompt_ms=1_000.0)

    engine.server = FakeServer(engine)
    engine.server.complete = complete


BOTH = {"way": ["write", "force"], "functions": 4}


@pytest.mark.parametrize(("lines", "is_asked"), [(3, False), (4, True), (12, True)])
@pytest.mark.parametrize("scored", ["force", "read"])
def test_no_pair_writes_where_the_reference_writes_too_little(
    tmp_path, lines, is_asked, scored, golden
):
    """A fifth of what is asked is what a pair can lose of, in the verdict, too."""
    engine = made_engine()
    conditions = {"way": ["write", scored], "functions": 4}
    first = made_context(tmp_path, engine, conditions=conditions, pair="f16/f16")
    before = first.run.setup
    writing(engine, first, lines)
    reference = measured(first)
    other = measured(cell_of(first, "q8_0/q8_0", reference))

    asked = len(written_of(before))
    assert [asked, asked * is_asked] == [
        len(recall_of(record).rounds) for record in (reference, other)
    ]
    assert [4, 4] == [
        len(recall_of(record).scored_answers) for record in (reference, other)
    ]
    reasons = {*observation_of(other, Observed).skipped.values()}
    assert (0 if is_asked else 1) == len(reasons)
    assert golden == [*reasons]
    assert before is first.run.setup


@pytest.mark.parametrize(
    ("pair", "conditions"),
    [("f16/f16", BOTH), ("q4_0/q4_0", {"way": ["write"]})],
)
def test_a_pair_writes_that_is_more_precise_or_has_nothing_else_to_do(
    tmp_path, pair, conditions
):
    engine = made_engine()
    first = made_context(tmp_path, engine, conditions=conditions, pair="q8_0/q8_0")
    writing(engine, first, 0)
    reference = measured(first)

    assert recall_of(measured(cell_of(first, pair, reference))).rounds


# Checked


def test_a_pair_that_was_read_is_checked_by_a_few_forced_functions(tmp_path):
    """Nothing is read again, and what all pairs were asked does not grow."""
    engine = made_engine()
    first = made_context(tmp_path, engine, pair="f16/f16")
    setup = first.run.setup
    cell = cell_of(first, "q8_0/q8_0")
    record = replace(made_record("q8_0/q8_0", []), observation=PROBE.measure(cell))
    assert FURTHER.needs_check(record, setup)

    read_before = len(engine.tool.tasks)
    again = cell_of(first, "q8_0/q8_0")
    again.previous_record, again.is_check = record, True
    checked = replace(record, observation=PROBE.measure(again))

    found = recall_of(checked)
    assert [4, 4] == [len(found.forced), len(found.read)]
    assert read_before == len(engine.tool.tasks)
    assert not FURTHER.needs_check(checked, setup)
    assert [] == list(FURTHER.checks(asking_recall(setup, {"way": ["force"]})))


def test_what_was_read_is_compared_with_no_other_and_what_is_written_does_not_count(
    tmp_path,
):
    conditions = {"functions": 4, "lines": 3}
    ways = (["force"], ["write", "force"], ["read"])
    context = made_context(tmp_path, made_engine())
    setups = [
        asking_recall(context.run.setup, {"way": way, **conditions}) for way in ways
    ]

    assert [{"lines": 3}, {"lines": 3}, {"lines": 3, "way": ["read"]}] == [
        PROBE.deciding_settings(setup) for setup in setups
    ]
    assert [False, False, True] == [
        settings_of(setup).reads_instead_of_forcing for setup in setups
    ]
