"""The reuse probe: on the real server, and on fakes that lose what they cached."""

from dataclasses import replace

import pytest
from fake_engine import FakeEngine, FakeServer, forced_to, reply_to
from made_contexts import made_outlook, real_context, run_context, stored_by
from made_records import made_setup
from made_servers import fake_llama_cpp

from codeneedle.cache_types import Pair
from codeneedle.corpora.fitting import TooLong
from codeneedle.engines.messages import Completion, PromptCut, ServerGone
from codeneedle.engines.pace import Price
from codeneedle.errors import CellError
from codeneedle.probes import gap_lines
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.reuse.probe import PROBE, ReuseSettings
from codeneedle.probes.reuse.record import NAME, REUSED, CacheState, reuse_of
from codeneedle.records.record import CellRecord, Run, Status

pytestmark = pytest.mark.slow

REFERENCE, OTHER = Pair("f16", "f16"), Pair("q4_0", "q4_0")
SAVES = frozenset({"--slot-save-path"})


def cell(run, *, questions=1, pair=REFERENCE, **facts):
    """A cell of *run*, planned with so many questions of a short text."""
    chosen = {NAME: ReuseSettings(length=512, questions=questions)}
    run = replace(run, settings=chosen)
    setup = replace(run.setup, probes={NAME: stored_by(PROBE, run)})
    run = replace(run, setup=setup)
    return ProbeContext(run=run, pair=pair, logs=run.folder, **facts)


def fake_run(folder, *faults, **facts):
    """A run on the fake llama-server with *faults*."""
    engine = fake_llama_cpp(*faults, options=SAVES)
    setup = made_setup()
    return run_context(folder, engine, setup=setup, is_built_in=True, **facts)


def measured(context):
    """What the probe stores of a cell."""
    return reuse_of(record_of(PROBE.measure(context)))


def record_of(observation, pair=REFERENCE):
    """A finished record that holds it."""
    return CellRecord(
        pair=pair,
        probe=NAME,
        status=Status.FINISHED,
        started="",
        observation=observation,
    )


def test_a_healthy_server_gives_the_same_in_every_way(tmp_path):
    """The real one: the built-in model reads alike, however its batches are cut."""
    run = real_context(tmp_path, setup=made_setup())

    found = measured(cell(run, pair=OTHER))

    (question,) = found.questions
    cold, *again = question.answers
    assert [0.0] * 3 == [found.largest_nats_difference(way) for way in REUSED]
    assert [False] * 3 == [question.differs_from_cold_reply(way) for way in REUSED]
    assert 1 >= cold.cached_tokens
    assert all(each.cached_tokens > 400 for each in again)


def test_a_server_that_cuts_its_prompts_is_a_gap(tmp_path):
    """It would answer alike, whatever is in its cache."""

    def cut(question):
        return reply_to(question, prompt_tokens=len(question.prompt) * 4 // 5)

    context = cell(run_context(tmp_path, FakeEngine(reply=cut), setup=made_setup()))

    with pytest.raises(PromptCut, match="cut the prompt"):
        PROBE.measure(context)


def test_a_turn_finds_more_in_the_cache_than_another_question(tmp_path):
    run = fake_run(tmp_path, "slots=right")

    (question,) = measured(cell(run)).questions

    cached = {each.name: each.cached_tokens for each in question.answers}
    assert 0 == cached[CacheState.COLD]
    assert (
        cached[CacheState.PREFIX]
        == cached[CacheState.RESTORE]
        < cached[CacheState.TURN]
    )


def test_a_server_that_answers_otherwise_after_a_restore_is_named(tmp_path, golden):
    run = fake_run(tmp_path, "slots=damaged")

    context = cell(run, questions=2)
    record = record_of(PROBE.measure(context))
    found = reuse_of(record)

    run_of = Run(name="a/b", setup=context.run.setup, records=(record,))
    (line,) = PROBE.remarks(run_of)
    assert [0.0, 0.0, 3.0] == [found.largest_nats_difference(way) for way in REUSED]
    assert [(False, False, True)] * 2 == [
        tuple(question.differs_from_cold_reply(way) for way in REUSED)
        for question in found.questions
    ]
    assert golden == line


@pytest.mark.parametrize(
    ("faults", "options"),
    [(["slots=right"], frozenset()), (["slots=refused"], SAVES)],
    ids=["no-option", "refused"],
)
def test_a_server_that_cannot_restore_has_a_gap_there_and_nowhere_else(
    tmp_path, faults, options, golden
):
    run = replace(
        fake_run(tmp_path, *faults), engine=fake_llama_cpp(*faults, options=options)
    )
    context = cell(run)

    record = record_of(PROBE.measure(context))
    found = reuse_of(record)

    (gap,) = found.gap_reasons(CacheState.RESTORE)
    lines = gap_lines(Run(name="a/b", setup=context.run.setup, records=(record,)))
    assert [0.0, 0.0, None] == [found.largest_nats_difference(way) for way in REUSED]
    assert golden == (gap, lines)


def test_the_saved_cache_is_gone_after_the_cell(tmp_path):
    run = fake_run(tmp_path, "slots=right")
    left = tmp_path / "f16-f16.slots"
    left.mkdir()
    (left / "cache.bin").touch()

    measured(cell(run))

    assert [] == list(tmp_path.glob("*.slots"))


def test_a_server_that_reuses_nothing_is_unsupported(tmp_path, golden):
    """The fake one takes three tokens from its cache, whatever comes."""
    run = fake_run(tmp_path)

    with pytest.raises(CellError) as caught:
        measured(cell(run))

    assert Status.UNSUPPORTED == caught.value.status
    assert golden == str(caught.value)


def test_a_server_that_keeps_the_cache_of_another_prompt_is_unsupported(
    tmp_path, golden
):
    engine = FakeEngine(
        reply=lambda question: reply_to(question, prompt_tokens=500, cached_tokens=400)
    )

    with pytest.raises(CellError) as caught:
        measured(cell(run_context(tmp_path, engine)))
    assert golden == str(caught.value)


def test_the_cache_is_prepared_anew_where_a_connection_breaks(tmp_path):
    """Or a cold question would find itself in the cache the second time."""
    asked = []

    def reply(question):
        is_clearing = question == Completion(prompt="\n", max_tokens=1)
        asked.append("clear" if is_clearing else "ask")
        if asked == ["ask", "ask", "clear", "ask"]:
            return ServerGone(reason="broken")
        cached = 0 if asked[-2:-1] == ["clear"] else 400
        return reply_to(question, prompt_tokens=500, cached_tokens=cached)

    engine = FakeEngine(
        reply=reply, force=lambda *of: forced_to(*of, cached_tokens=len(asked) % 2)
    )
    engine.server = FakeServer(engine)

    with pytest.raises(CellError, match="never reused"):
        measured(cell(run_context(tmp_path, engine)))

    assert ["ask", "ask", "clear", "ask", "clear", "ask"] == asked[:6]


def test_a_text_beyond_the_context_is_refused_with_one_that_suffices():
    with pytest.raises(TooLong) as caught:
        PROBE.adapt(ReuseSettings(length=4096), made_outlook())
    with pytest.raises(TooLong) as unasked:
        PROBE.adapt(ReuseSettings(), made_outlook(context=512))

    assert 4608 == caught.value.larger
    assert "--probe reuse" == unasked.value.source


def test_the_plan_tells_what_a_pair_reads(tmp_path, golden):
    stored = cell(run_context(tmp_path), questions=2).run.setup

    def bill(**changes):
        estimates = made_outlook(context=2048, **changes)
        return PROBE.bill(PROBE.adapt(ReuseSettings(), estimates), estimates)

    new, known = bill(), bill(setup=stored)

    assert golden == new.phrase
    for each, texts, length in ((new, 7, 1536), (known, 5, 512)):
        written = each.price.written
        assert Price.of_cell([length] * texts, written=written, depth=length) == (
            each.price
        )
