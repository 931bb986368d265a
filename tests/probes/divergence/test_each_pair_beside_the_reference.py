"""Each pair beside the reference, whose distributions are written once."""

from dataclasses import replace

import pytest
from fake_tools import FakeDivergence
from made_contexts import real_context, stored_by
from made_divergences import TEXT
from made_records import made_setup
from programs import script

from codeneedle.cache_types import Pair, most_precise_first
from codeneedle.engines.llama_cpp import installation
from codeneedle.errors import BadInput, CellError
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.divergence.probe import NAME, PROBE, DivergenceSettings
from codeneedle.probes.divergence.record import Divergence, divergence_of
from codeneedle.records.record import Attention, Status, from_json
from codeneedle.records.store import Store
from codeneedle.sweep import runner
from codeneedle.sweep.runner import CellEnded, Runner

F16, Q8, Q4 = (Pair(name, name) for name in ("f16", "q8_0", "q4_0"))


def with_conditions(run):
    """The same run after planning."""
    probes = {NAME: stored_by(PROBE, run)}
    return replace(run, setup=replace(run.setup, probes=probes))


def swept(run, pairs=(F16, Q8, Q4), **changes):
    """The records of a sweep over *pairs*, in the order they ended."""
    events = []
    run, store = with_conditions(run), Store(run.folder)
    run = replace(run, setup=store.check_and_store_setup(run.setup))
    Runner(run=run, store=store, **changes).measure_pairs(
        PROBE, most_precise_first(pairs), tell=events.append
    )
    ended = [event.record for event in events if isinstance(event, CellEnded)]
    return {record.pair: record for record in ended}


def context_of(run, pair=F16, **changes):
    """One cell of *run*."""
    run.folder.mkdir(exist_ok=True)
    return ProbeContext(run=with_conditions(run), pair=pair, logs=run.folder, **changes)


def fails_for(pair):
    """An outcome that is an error for one pair."""
    error = CellError("no such type", hint="Look.", status=Status.UNSUPPORTED)
    return lambda asked: error if asked == pair else None


def beside_f16(run):
    """*run*, whose cells are compared with f16/f16."""
    kept = {NAME: {"reference": str(F16)}}
    return replace(run, setup=replace(run.setup, calibrated=kept))


def test_the_reference_runs_first_and_is_written_once(made_run):
    tool = FakeDivergence()
    records = swept(made_run(tool, chunks=(4,)), pairs=(Q4, F16, Q8))

    assert ["write f16/f16@512"] + [
        f"compare {pair}@512" for pair in ("f16/f16", "q8_0/q8_0", "q4_0/q4_0")
    ] == tool.calls
    assert {Status.FINISHED} == {record.status for record in records.values()}
    assert {"f16/f16"} == {divergence_of(r).reference for r in records.values()}
    (compared,) = divergence_of(records[Q4]).answers.values()
    assert (512, 4, 1020, 2.5, 4.0) == (
        compared.context,
        compared.chunks,
        compared.tokens,
        compared.base_seconds,
        compared.reference_ppl,
    )


@pytest.mark.parametrize(
    ("read_back", "status"),
    [(4.0001, Status.FINISHED), (4.1, Status.MISMATCHED), (3.2, Status.MISMATCHED)],
)
def test_a_pair_beside_other_distributions_than_its_neighbours_is_no_number(
    made_run, read_back, status
):
    """A base file that changed has another perplexity, whatever else is right."""
    tool = FakeDivergence(perplexities={str(Q4): read_back})
    records = swept(made_run(tool, chunks=(4,)))

    assert Status.FINISHED is records[Q8].status
    assert status is records[Q4].status


def test_a_pair_whose_perplexity_is_missing_has_finished_and_is_measured_no_more(
    made_run,
):
    tool = FakeDivergence(untold=frozenset({str(Q4)}))
    records = swept(made_run(tool, chunks=(4,)))
    (compared,) = divergence_of(records[Q4]).answers.values()
    calls = [*tool.calls]

    assert (Status.FINISHED, None) == (records[Q4].status, compared.statistics.ppl)
    assert 0.25 == compared.statistics.kld.value
    assert {} == swept(made_run(tool, chunks=(4,)), retry_failed=True)
    assert calls == tool.calls


def test_each_context_is_compared_with_steps_over_all_of_them(made_run, golden):
    steps = []
    run = made_run(contexts=(512, 256), chunks=(4,))
    observation = PROBE.measure(context_of(run, tell=steps.append))

    found = from_json(observation, Divergence, file="x")
    assert ["512x4", "256x4"] == [*found.answers]
    assert {16} == {step.total for step in steps}
    done = [step.done for step in steps]
    assert sorted(done) == done
    assert [0, 4, 4, 5, 8, 12, 12, 13] == done
    assert golden == steps[0].what


def test_a_record_holds_what_ran_in_its_own_comparison(made_run):
    tool = FakeDivergence(reference_attention=Attention.CPU)
    cell = context_of(beside_f16(made_run(tool)), Q8)
    own = context_of(made_run(FakeDivergence(reference_attention=Attention.CPU)), F16)
    PROBE.measure(cell)
    PROBE.measure(own)

    assert ("tool", "compare q8_0/q8_0@512") == cell.command
    assert "q8_0/q8_0" == cell.effective.build
    assert None is cell.effective.attention
    assert "compare f16/f16@512" == own.command[1]
    assert cell.phases.measure_s is not None


def test_the_next_most_precise_pair_replaces_a_reference_that_fails(made_run):
    records = swept(made_run(FakeDivergence(outcome=fails_for(F16))))

    failed = records[F16]
    assert (Status.UNSUPPORTED, "no such type") == (failed.status, failed.reason)
    assert ("tool", "write f16/f16@512") == failed.command
    assert "q8_0/q8_0" == divergence_of(records[Q4]).reference


def test_a_reference_that_runs_at_last_does_not_replace_the_present_one(made_run):
    swept(made_run(FakeDivergence(outcome=fails_for(F16))))

    records = swept(made_run(), retry_failed=True)

    assert [F16] == list(records)
    assert "q8_0/q8_0" == divergence_of(records[F16]).reference


def test_a_text_that_turns_out_too_short_ends_the_sweep(made_run):
    error = BadInput(source="wiki.txt", reason="too short", hint="Use a longer one.")

    with pytest.raises(BadInput, match="too short"):
        swept(made_run(FakeDivergence(outcome=lambda _pair: error)))


def test_a_text_that_changed_meanwhile_is_refused(made_run, tmp_path, golden):
    file = tmp_path / "wiki.txt"
    file.write_text("x" * 5000)
    cell = context_of(made_run(file=file))
    file.write_text("y" * 5000)

    with pytest.raises(BadInput) as caught:
        PROBE.measure(cell)
    assert golden == str(caught.value)


# The real tool


@pytest.mark.real
def test_a_real_full_disk_is_noticed(tmp_path, llama_server, monkeypatch):
    """With writes beyond 200 KB refused, the real tool exits 0 and says nothing."""
    # The setup is a made one: it names other weights.
    monkeypatch.setattr(runner, "refuse_replaced", lambda *_, **__: None)
    real = installation.locate_tools(llama_server=llama_server).perplexity
    limited = script(
        tmp_path / "limited", f"trap '' XFSZ\nulimit -f 200\nexec {real} \"$@\""
    )
    run = real_context(
        tmp_path / "run",
        tools={"perplexity": limited},
        setup=made_setup(types_k=("f16",), types_v=("f16",)),
        text=TEXT,
        settings={NAME: DivergenceSettings(contexts=(512,), chunks=(4,))},
    )

    record = swept(run, [F16])[F16]

    assert Status.CRASHED == record.status
    assert "is not whole" in record.reason
