"""A server that scores its prompts scores ordinary text, chunk by chunk."""

from dataclasses import replace

import pytest
from fake_engine import made_weights
from fake_openai import MODEL, endpoint
from made_contexts import made_preparation, run_context, stored_by
from made_records import made_record, made_run, made_setup

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.messages import BadReply, Refused
from codeneedle.engines.openai.engine import endpoint_engine_factory
from codeneedle.engines.openai.settings import EndpointSettings
from codeneedle.probes import gap_lines
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.divergence import texts
from codeneedle.probes.divergence.metrics import METRICS, TEXT_LOGP, metrics_of_parts
from codeneedle.probes.divergence.probe import NAME, PROBE, DivergenceSettings
from codeneedle.probes.divergence.record import ContextComparison, divergence_of
from codeneedle.records.record import Status

SPEC = ModelSpec(weights=made_weights(), name="made")
CHUNKS = ["0", "1", "2", "3"]


@pytest.fixture
def made_context(tmp_path):
    """Makes a cell of an engine that asks the server at a URL."""

    def made(url, pair="f16/f16", *, file=texts.ORDINARY, **changes):
        chunks = changes.pop("chunks", 4)
        settings = EndpointSettings(url=url, pair=pair, served_name=MODEL)
        run = run_context(
            tmp_path,
            endpoint_engine_factory(settings, environment={})(SPEC),
            setup=made_setup(),
            settings={NAME: DivergenceSettings((64,), (chunks,), file)},
            preparation=made_preparation(),
        )
        probes = {NAME: stored_by(PROBE, run)}
        setup = replace(run.setup, probes=probes, calibrated=changes.pop("known", {}))
        run = replace(run, setup=setup)
        return ProbeContext(run=run, pair=Pair.parse(pair), logs=tmp_path, **changes)

    return made


def recorded(context, observation):
    return replace(
        made_record(str(context.pair), []), probe=NAME, observation=observation
    )


def test_right_tokens_of_the_second_half_of_each_chunk_are_scored(made_context):
    with endpoint("echo", "logprob=-0.5") as server:
        context = made_context(server.url)
        record = recorded(context, PROBE.measure(context))

    setup = context.run.setup
    blocks = texts.built_in_text_blocks(setup.probes[NAME]["cuts"])[:4]
    halves = [len(block) - len(block) // 2 for block in blocks]
    answers = TEXT_LOGP.values_by_unit(record, setup)
    assert CHUNKS == [*answers]
    # Tokens of the fake have four characters; one may span the middle.
    for size, of_chunk in zip(halves, answers.values(), strict=True):
        assert {-0.5} == {*of_chunk}
        assert abs(size / 4 - len(of_chunk)) < 2
    assert [{"0", "2"}, {"1", "3"}] == [
        {*part.mean_value_by_unit(record, setup)} for part in metrics_of_parts(setup)
    ]
    assert [] == [m.name for m in METRICS if [*m.values(record, setup)]]


def test_a_file_of_the_users_is_cut_evenly(made_context, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("a line of the text\n" * 80)
    with endpoint("echo", "logprob=-0.5") as server:
        context = made_context(server.url, file=file)
        record = recorded(context, PROBE.measure(context))

    (answer,) = divergence_of(record).answers.values()
    assert (4, CHUNKS) == (
        answer.chunks,
        [*TEXT_LOGP.mean_value_by_unit(record, context.run.setup)],
    )


def test_a_server_that_scores_no_text_says_so_and_no_further_one_is_asked(made_context):
    known = {}
    with endpoint() as server:
        context = made_context(server.url, calibrate=known.update)
        record = recorded(context, PROBE.measure(context))
        other = made_context(server.url, "q8_0/q8_0", known={NAME: known})
    (gap,) = PROBE.gap_phrases(record, context.run.setup)

    assert gap.startswith("no ordinary text: ")
    assert {} == TEXT_LOGP.loss_values_by_unit(record, context.run.setup)
    # The server is gone, and is not missed.
    assert (gap,) == PROBE.gap_phrases(
        recorded(other, PROBE.measure(other)), other.run.setup
    )


def test_what_the_reference_was_refused_alone_is_left_out_of_the_others(made_context):
    reasons = {"128x2": "too long"}
    known = {NAME: {"reference": "f16/f16", "unread": reasons}}
    with endpoint("echo") as server:
        other = made_context(server.url, "q8_0/q8_0", known=known)
        record = recorded(other, PROBE.measure(other))

    assert CHUNKS == [*TEXT_LOGP.mean_value_by_unit(record, other.run.setup)]


def test_curly_quotes_cost_neither_a_chunk_nor_the_sweep(made_context, tmp_path):
    """They are two tokens or three, which servers tell as U+FFFD."""
    file = tmp_path / "mine.txt"
    file.write_text("a line of \u201cthe\u201d text\n" * 60)
    with endpoint("echo", "parts=unknown", "logprob=-0.5") as server:
        context = made_context(server.url, file=file)
        record = recorded(context, PROBE.measure(context))

    (answer,) = divergence_of(record).answers.values()
    run = replace(made_run(), setup=context.run.setup, records=(record,))
    assert CHUNKS == [*TEXT_LOGP.mean_value_by_unit(record, run.setup)]
    assert answer.untold > 0
    assert [f"divergence: {answer.untold} tokens left out"] == [
        line.partition(",")[0] for line in gap_lines(run)
    ]


def test_chunks_of_the_same_text_are_one_unit(made_context, tmp_path, golden):
    """Else a text that repeats itself shows what one chunk of it shows, for sure."""
    file = tmp_path / "mine.txt"
    file.write_text(f"{'one ' * 64}{'two ' * 64}" * 2)
    with endpoint("echo", "logprob=-0.5") as server:
        context = made_context(server.url, file=file)
        record = recorded(context, PROBE.measure(context))

    run = replace(made_run(), setup=context.run.setup, records=(record,))
    assert ["0", "1"] == [*TEXT_LOGP.loss_values_by_unit(record, run.setup)]
    assert ["0", "1"] == [*TEXT_LOGP.loss.units(record, run.setup)]
    assert golden == PROBE.left_out_lines(run)


def test_a_chunk_without_a_score_costs_no_other_one(made_context):
    """It is counted; a pair is not within the limit for as long as one is missing."""
    with endpoint("echo", "logprob=-0.5") as server:
        context = made_context(server.url, chunks=16)
        server.faults["echo-refused-at"] = "3"
        record = recorded(context, PROBE.measure(context))

    (answer,) = divergence_of(record).answers.values()
    setup = context.run.setup
    assert ["2"] == [*answer.unscored]
    assert frozenset({"2"}) == TEXT_LOGP.units_without_value(record, setup)
    assert 15 == len(TEXT_LOGP.loss_values_by_unit(record, setup))
    assert 16 == len(TEXT_LOGP.loss.units(record, setup))


def test_a_cell_many_of_whose_chunks_have_no_score_has_failed(made_context):
    with endpoint("echo", "logprob=-0.5") as server:
        context = made_context(server.url)
        server.faults["echo-refused-at"] = "3"
        with pytest.raises(BadReply) as caught:
            PROBE.measure(context)

    assert Status.CRASHED is caught.value.status


def test_a_server_that_is_busy_for_a_moment_is_not_said_to_score_no_text(made_context):
    known = {}
    with endpoint("echo") as server:
        context = made_context(server.url, calibrate=known.update)
        server.faults["echo-refused"] = "401"
        with pytest.raises(Refused):
            PROBE.measure(context)

    assert {} == known


def test_parts_of_a_character_that_end_alike_begin_no_chunk():
    of_two = comparison_of(ends=(3, 5, 5, 8, 2, 4))

    assert [0, 0, 0, 0, 1, 1] == [chunk for chunk, _ in of_two.logprobs_with_chunks()]


def comparison_of(*, ends):
    return ContextComparison(
        context=64,
        chunks=2,
        tokens=len(ends),
        seconds=1.0,
        base_seconds=0.0,
        logprobs=(-0.5,) * len(ends),
        ends=ends,
    )


def test_a_server_that_scores_a_pair_less_than_the_others_has_failed(made_context):
    with endpoint("echo") as server:
        context = made_context(server.url)
        first = recorded(context, PROBE.measure(context))
    with endpoint() as server, pytest.raises(BadReply):
        PROBE.measure(made_context(server.url, "q8_0/q8_0", others=(first,)))
