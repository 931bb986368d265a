"""The divergence probe, with a tool that a test controls, and the real one."""

import hashlib
from dataclasses import replace

import msgspec
import pytest
from fake_engine import made_weights
from fake_tools import FakeDivergence, ToolEngine
from made_contexts import made_outlook, real_context, run_context
from made_records import failed_record, made_setup
from programs import script

from codeneedle.cache_types import Pair, most_precise_first
from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.llama_cpp import installation
from codeneedle.errors import BadInput, CellError, FolderUnusable
from codeneedle.probes import in_common
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.divergence import comparison
from codeneedle.probes.divergence.probe import (
    GROWTH,
    NAME,
    PROBE,
    DivergenceSettings,
)
from codeneedle.probes.divergence.record import Divergence, divergence_of
from codeneedle.records.record import Attention, Run, Status, from_json
from codeneedle.records.store import Store
from codeneedle.sweep import runner
from codeneedle.sweep.runner import CellEnded, Runner
from codeneedle.system import files

TEXT = "".join(f"line {at}: {at * 7919:x}\n" for at in range(400))
SHA256 = "326cc5e1e3102cf43e309a411ca022b51be876568a5d8b3dbef7c17e6b781796"
F16, Q8, Q4 = (Pair(name, name) for name in ("f16", "q8_0", "q4_0"))


@pytest.fixture
def made_run(tmp_path):
    """Makes the context of a run with a fake tool; *chosen* are settings."""

    def made(tool=None, *, corpus=TEXT, stretched=False, changes=(), **chosen):
        chosen = {"contexts": (512,), **chosen}
        facts = {
            "setup": made_setup(types_k=("f16", "q8_0", "q4_0")),
            "text": corpus,
            "settings": {NAME: DivergenceSettings(**chosen)},
            **dict(changes),
        }
        tool = tool or FakeDivergence()
        engine = ToolEngine(divergence=tool, stretches_context=stretched)
        return run_context(tmp_path / "run", engine, **facts)

    return made


def with_conditions(run):
    """The same run after planning."""
    probes = {NAME: PROBE.as_stored(run)}
    return replace(run, setup=replace(run.setup, probes=probes))


@pytest.mark.parametrize(("present", "notes"), [(0, 1), (1 << 30, 0)])
def test_the_file_of_the_reference_is_told_before_a_sweep(tmp_path, present, notes):
    """192 MiB of a --decide were once in no plan."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    tool = FakeDivergence()
    tool.missing_bytes = lambda _folder, **_sizes: max(0, (192 << 20) - present)
    engine = ToolEngine(divergence=tool)
    settings = DivergenceSettings(file=text)

    estimates = made_outlook(engine=engine, folder=tmp_path)
    told = PROBE.notes(settings, estimates)

    assert notes == len(told)
    assert all("192.0 MiB" in each for each in told)


def swept(run, pairs=(F16, Q8, Q4), **changes):
    """The records of a sweep over *pairs*, in the order they ended."""
    events = []
    run, store = with_conditions(run), Store(run.folder)
    run = replace(run, setup=store.adopt(run.setup))
    Runner(run=run, store=store, **changes).sweep(
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


# Conditions


def test_the_text_is_the_corpus_as_sent(made_run):
    chosen = PROBE.as_stored(made_run(chunks=(4,)))

    assert {
        "contexts": [512],
        "chunks": [4],
        "text": "random-bodies",
        "text_sha256": hashlib.sha256(TEXT.encode()).hexdigest(),
        "llama": "1.2 (fake)",
        "arguments": ["-t", "1"],
        "ignored": ["--temp", "1"],
    } == chosen


def test_a_file_takes_the_place_of_the_corpus(made_run, tmp_path):
    file = tmp_path / "wiki.txt"
    file.write_text("x" * 5000)
    chosen = PROBE.as_stored(made_run(file=file))

    assert ("wiki.txt", hashlib.sha256(b"x" * 5000).hexdigest()) == (
        chosen["text"],
        chosen["text_sha256"],
    )


def test_a_file_is_checked_before_anything_starts(tmp_path):
    file = tmp_path / "wiki.txt"
    file.write_text("x" * 5000)
    tool = FakeDivergence()
    estimates = made_outlook(engine=ToolEngine(divergence=tool))

    PROBE.adapt(DivergenceSettings(file=file), estimates)

    assert 5000 == tool.checked[0]["text_bytes"]


def test_each_context_is_checked_by_the_tool(made_run):
    tool = FakeDivergence()
    unasked = PROBE.as_stored(made_run(tool, contexts=()))
    tool.checked.clear()
    chosen = PROBE.as_stored(made_run(tool, contexts=(4096, 512, 4096)))

    assert ([4096, 512], [2, 8]) == (chosen["contexts"], chosen["chunks"])
    assert ([256], [4]) == (unasked["contexts"], unasked["chunks"])
    assert [(4096, 2), (512, 8)] == [
        (each["context"], each["chunks"]) for each in tool.checked
    ]
    assert {("random-bodies", len(TEXT))} == {
        (each["text_name"], each["text_bytes"]) for each in tool.checked
    }


@pytest.mark.parametrize(
    ("size", "changes", "expected"),
    [
        (5000, {}, 256),
        (70_000, {}, 1024),
        (70_000, {"weights": made_weights(training_context=512)}, 512),
        (500, {}, 256),
        (9000, {}, 512),
        (9000, {"is_built_in": True}, 1024),
    ],
)
def test_the_default_context_suits_text_and_weights(made_run, size, changes, expected):
    run = made_run(corpus="x" * size, contexts=(), changes=changes)

    assert [expected] == PROBE.as_stored(run)["contexts"]


def test_a_context_beyond_the_training_is_refused(made_run):
    changes = {"weights": made_weights(training_context=256)}

    with pytest.raises(BadInput, match=r"--divergence-context 512: .* 256 tokens"):
        PROBE.as_stored(made_run(changes=changes))
    run = made_run(changes=changes, stretched=True)
    assert [512] == PROBE.as_stored(run)["contexts"]


def test_a_disk_that_is_too_small_is_refused_before_anything_starts(
    made_run, monkeypatch
):
    tool = FakeDivergence()
    run = made_run(tool, contexts=(512, 1024), chunks=(4,))
    needed = 2 * 4000 + comparison.SPARE_BYTES
    monkeypatch.setattr(files, "free_disk_bytes", lambda _: needed - 1)
    with pytest.raises(FolderUnusable, match=r"take 7\.8 KiB"):
        PROBE.as_stored(run)

    monkeypatch.setattr(files, "free_disk_bytes", lambda _: needed)
    assert PROBE.as_stored(run)
    assert [] == tool.calls


# Settings, before anything is loaded


@pytest.mark.parametrize("name", ["", "nowhere.txt", "n" * 300])
def test_a_text_that_is_no_file_is_refused_in_planning(tmp_path, name):
    with pytest.raises(BadInput, match="--text"):
        PROBE.adapt(DivergenceSettings(file=tmp_path / name), made_outlook())


def test_a_text_that_is_too_large_is_refused_in_planning(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "MAX_TEXT_BYTES", 10)
    file = tmp_path / "wiki.txt"
    file.write_text("x" * 10)
    estimates = made_outlook(engine=ToolEngine(divergence=FakeDivergence()))
    PROBE.adapt(DivergenceSettings(file=file), estimates)
    file.write_text("x" * 11)

    with pytest.raises(BadInput, match="it has more than 10 B"):
        PROBE.adapt(DivergenceSettings(file=file), estimates)


def test_more_chunks_than_a_text_can_have_are_refused_in_planning(tmp_path):
    file = tmp_path / "wiki.txt"
    file.write_text("x" * 5000)
    in_file = DivergenceSettings(file=file, contexts=(400, 500), chunks=(10,))
    estimates = made_outlook(engine=ToolEngine(divergence=FakeDivergence()))
    PROBE.adapt(in_file, estimates)
    engine = ToolEngine(model=replace(estimates.engine.model, is_tiny=True))
    of_corpus, corpus = replace(estimates, engine=engine), estimates.corpus
    fitting = corpus.size_bytes // 500
    PROBE.adapt(DivergenceSettings(contexts=(500,), chunks=(fitting,)), of_corpus)

    with pytest.raises(BadInput) as caught:
        PROBE.adapt(msgspec.structs.replace(in_file, chunks=(11,)), estimates)
    assert "Use --chunks 10 or less, or a longer --text." == caught.value.hint
    with pytest.raises(BadInput, match=r"--chunks \d+: the corpus has at") as caught:
        PROBE.adapt(
            DivergenceSettings(contexts=(500,), chunks=(fitting + 1,)), of_corpus
        )
    assert f"Use --chunks {fitting} or less, or a longer" in caught.value.hint


def test_contexts_have_one_number_of_chunks_or_one_each(made_run):
    sizes = {"contexts": (512, 1024, 256)}
    stored = PROBE.as_stored(made_run(**sizes, chunks=(4, 2, 4)))
    uneven = DivergenceSettings(contexts=(512, 1024, 256), chunks=(4, 2))

    assert [4, 2, 4] == stored["chunks"]
    assert [2, 2, 2] == PROBE.as_stored(made_run(**sizes, chunks=(2,)))["chunks"]
    with pytest.raises(BadInput, match=r"--chunks 4,2: are 2 numbers for 3 contexts"):
        PROBE.adapt(uneven, made_outlook())


# Measuring


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


def test_each_context_is_compared_with_steps_over_all_of_them(made_run):
    steps = []
    run = made_run(contexts=(512, 256), chunks=(4,))
    observation = PROBE.measure(context_of(run, tell=steps.append))

    found = from_json(observation, Divergence, file="x")
    assert ["512x4", "256x4"] == [*found.answers]
    assert {16} == {step.total for step in steps}
    done = [step.done for step in steps]
    assert sorted(done) == done
    assert [0, 4, 4, 5, 8, 12, 12, 13] == done
    assert "computing the reference at 512 tokens" == steps[0].what


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


def test_a_context_with_more_chunks_is_compared_anew_and_no_other(made_run):
    tool = FakeDivergence()
    first = beside_f16(made_run(tool, contexts=(512, 256), chunks=(4,)))
    before = PROBE.measure(context_of(first, Q8))
    stored = PROBE.as_stored(first)
    wanted = PROBE.as_stored(made_run(tool, contexts=(256,), chunks=(6,)))
    fewer = PROBE.as_stored(made_run(tool, contexts=(512,), chunks=(2,)))
    grown = GROWTH.joined(stored, wanted)
    tool.kept.clear()
    tool.calls.clear()

    setup = replace(first.setup, probes={NAME: grown})
    previous = replace(failed_record("q8_0/q8_0"), probe=NAME, observation=before)
    context = context_of(first, Q8, previous_record=previous)
    context.run = replace(first, setup=setup)
    after = PROBE.measure(context)

    assert ([512, 256], [4, 6]) == (grown["contexts"], grown["chunks"])
    assert {"contexts": (512, 256), "chunks": (4,)} == GROWTH.choice(
        PROBE.settings, grown
    )
    assert stored == GROWTH.joined(stored, fewer)
    assert ["write f16/f16@256", "compare q8_0/q8_0@256"] == tool.calls
    assert ["512x4", "256x4", "256x6"] == [*after["answers"]]
    assert before["answers"] == {key: after["answers"][key] for key in ANSWERED}
    assert 6 == after["answers"]["256x6"]["chunks"]
    assert "another" == GROWTH.joined(stored, {**wanted, "text": "another"})["text"]


ANSWERED = ("512x4", "256x4")


def test_reports_take_the_most_chunks_that_all_pairs_have(made_run):
    first = beside_f16(made_run(contexts=(512, 256), chunks=(4,)))
    few = PROBE.measure(context_of(first, Q8))
    more = few | {"answers": {**few["answers"], "256x6": few["answers"]["256x4"]}}
    wanted = PROBE.as_stored(made_run(contexts=(256,), chunks=(6,)))
    grown = GROWTH.joined(PROBE.as_stored(first), wanted)
    setup = replace(first.setup, probes={NAME: grown}, grows={NAME: GROWTH.names})

    def read(*observed):
        made = [
            replace(
                failed_record(pair),
                probe=NAME,
                status=Status.FINISHED,
                observation=each,
            )
            for pair, each in zip(("f16/f16", "q8_0/q8_0"), observed, strict=True)
        ]
        run = Run(name="c/m", setup=setup, records=tuple(made))
        return in_common(run).probes[NAME]

    assert grown == read(more, more)
    assert grown | {"chunks": [4, 4]} == read(few, more)


def test_prose_takes_the_place_of_the_corpus_but_with_the_built_in_model(made_run):
    plain, engine = DivergenceSettings(), made_run().engine
    engine.model = ModelSpec(weights=made_weights(), name="some")
    tiny = ToolEngine(model=replace(engine.model, is_tiny=True))

    def adapted(settings, engine):
        return PROBE.adapt(settings, made_outlook(engine=engine))

    prose = adapted(plain, engine)

    assert "python-3.11-reference.txt" == prose.file.name
    assert SHA256 == hashlib.sha256(prose.file.read_bytes()).hexdigest()
    assert (plain, prose) == (adapted(plain, tiny), adapted(prose, engine))
    assert [None, ""] == [PROBE.own_text(plain, each) for each in (tiny, engine)]


def test_a_text_that_turns_out_too_short_ends_the_sweep(made_run):
    error = BadInput(source="wiki.txt", reason="too short", hint="Use a longer one.")

    with pytest.raises(BadInput, match="too short"):
        swept(made_run(FakeDivergence(outcome=lambda _pair: error)))


def test_a_text_that_changed_meanwhile_is_refused(made_run, tmp_path):
    file = tmp_path / "wiki.txt"
    file.write_text("x" * 5000)
    cell = context_of(made_run(file=file))
    file.write_text("y" * 5000)

    with pytest.raises(BadInput, match="it has changed since"):
        PROBE.measure(cell)


# The real tool


@pytest.mark.real
def test_a_real_full_disk_is_noticed(tmp_path, llama_server, monkeypatch):
    """With writes beyond 200 KB refused, the real tool exits 0 and says nothing."""
    # The setup is a made one: it names other weights.
    monkeypatch.setattr(runner, "refuse_replaced", lambda *_, **__: None)
    real = installation.find(llama_server=llama_server).perplexity
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
    assert "the base file is not whole" in record.reason
