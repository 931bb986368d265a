"""The divergence probe, on a stand-in of llama-perplexity and on the real one."""

from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from made_divergence import (
    TEXT,
    asked,
    fake_tool,
    made_plan,
    made_weights,
    sha256,
    swept,
    without_tool,
)
from made_records import made_setup
from programs import script

from codeneedle.analysis.divergence import METRICS, divergence_of, more_metrics
from codeneedle.engines.llama_cpp import perplexity
from codeneedle.engines.llama_cpp.arguments import shared_arguments
from codeneedle.engines.llama_cpp.base_file import BaseFile
from codeneedle.engines.llama_cpp.server import Mismatched
from codeneedle.grid import Pair
from codeneedle.models.nano.model import NAME as NANO
from codeneedle.probes.divergence import (
    FIRST_WIDE_BUILD,
    PROBE,
    DivergenceContextTooLong,
    NoRoomForBase,
    PerplexityMissing,
    SizeOverflows,
    TextChanged,
    TextTooShort,
    TextUnreadable,
    TooFewScored,
    conditions,
    most_precise_first,
)
from codeneedle.records.encoding import decode_setup, encode
from codeneedle.records.record import BadRecord, Status
from codeneedle.scoring.rounds import Reading
from codeneedle.sweep import plan as planning
from codeneedle.sweep.prepare import settled
from codeneedle.sweep.request import Request
from codeneedle.sweep.runner import FailingAlike, Player
from codeneedle.system import machine

VALUES = {metric.name: metric.values for metric in METRICS}
SETUP = made_setup()


def value(record, name, setup=SETUP):
    """The one value of a metric."""
    (found,) = VALUES[name](record, setup, Reading())
    return found


# Settings


def test_the_text_is_the_corpus_as_sent(tmp_path):
    """
    Its name and hash are settings, so that another text is refused.
    """
    chosen = conditions(made_plan(tmp_path), TEXT)

    assert "made-corpus" == chosen["text"]
    assert sha256(TEXT) == chosen["text_sha256"]
    assert ([512], [4]) == (chosen["contexts"], chosen["chunks"])
    assert "0.6.0-dev (build 11434, commit fake)" == chosen["llama"]


def test_a_file_takes_the_place_of_the_corpus(tmp_path):
    """
    With ``--text``, its bytes count.
    """
    file = tmp_path / "wiki.txt"
    file.write_text("x" * 5000)

    chosen = conditions(made_plan(tmp_path, text=file), TEXT)

    assert ("wiki.txt", sha256("x" * 5000)) == (chosen["text"], chosen["text_sha256"])


@pytest.mark.parametrize("name", ["", "nowhere.txt"])
def test_a_text_that_is_no_file_is_refused(tmp_path, name):
    """
    A folder, or nothing at all.
    """
    with pytest.raises(TextUnreadable):
        conditions(made_plan(tmp_path, text=tmp_path / name), TEXT)


def test_without_llama_perplexity_nothing_starts(tmp_path):
    """
    It is missing beside some servers.
    """
    with pytest.raises(PerplexityMissing, match="no llama-perplexity beside"):
        conditions(without_tool(made_plan(tmp_path)), TEXT)


def test_the_default_context_suits_text_and_weights(tmp_path):
    """
    4096 tokens where the text most likely has twice as many, and fewer otherwise.
    """
    plan = made_plan(tmp_path, divergence_contexts=(), chunks=None)
    long_plan = made_plan(tmp_path, divergence_contexts=(), chunks=None)
    small = replace(long_plan, weights=made_weights(training_context=2048))

    assert [512] == conditions(plan, "x" * 5000)["contexts"]
    assert [4096] == conditions(long_plan, "x" * 50_000)["contexts"]
    assert [2048] == conditions(small, "x" * 50_000)["contexts"]


def test_a_text_with_fewer_bytes_than_tokens_wanted_is_refused(tmp_path):
    """
    No tokenizer makes more tokens than there are bytes.
    """
    with pytest.raises(TextTooShort, match=r"takes 2,048"):
        conditions(made_plan(tmp_path), "x" * 2000)


def test_at_least_two_chunks_of_text_are_wanted(tmp_path):
    """
    The tool refuses less, however few chunks it is to compute.
    """
    with pytest.raises(TextTooShort, match=r"takes 1,024"):
        conditions(made_plan(tmp_path, chunks=1), "x" * 1000)


@pytest.mark.parametrize(("context", "chunks"), [(64, 3), (512, 0), (2, 50)])
def test_fewer_than_a_hundred_scored_tokens_are_refused(tmp_path, context, chunks):
    """
    The tool would compute them, print no statistics, and exit 0.
    """
    plan = made_plan(tmp_path, divergence_contexts=(context,), chunks=chunks)

    with pytest.raises(TooFewScored):
        conditions(plan, TEXT)


def test_a_hundred_scored_tokens_are_enough(tmp_path):
    """
    4 chunks of 64 tokens score 124.
    """
    plan = made_plan(tmp_path, divergence_contexts=(64,), chunks=4)

    assert [64] == conditions(plan, TEXT)["contexts"]


def test_a_context_beyond_the_training_is_refused(tmp_path):
    """
    Unless somebody stretches it on purpose.
    """
    weights = made_weights(training_context=256)
    stretched = ("--rope-scale", "2")

    with pytest.raises(DivergenceContextTooLong):
        conditions(made_plan(tmp_path, weights=weights), TEXT)
    plan = made_plan(tmp_path, weights=weights, server_args=stretched)
    assert ["--rope-scale", "2"] == conditions(plan, TEXT)["arguments"]


@pytest.mark.parametrize(
    ("build", "context", "refused"),
    [
        (9292, 14_134, True),
        (9292, 14_133, False),
        (FIRST_WIDE_BUILD - 1, 14_134, True),
        (FIRST_WIDE_BUILD, 14_134, False),
        (None, 14_134, False),
        (0, 14_134, False),
    ],
)
def test_old_builds_are_refused_where_they_overflow(tmp_path, build, context, refused):
    """
    At 2^31 values: a vocabulary of 151,936 and 14,134 tokens.
    """
    plan = made_plan(
        tmp_path,
        build=build,
        weights=made_weights(vocabulary=151_936),
        divergence_contexts=(context,),
        chunks=2,
    )

    if refused:
        with pytest.raises(SizeOverflows, match=r"not below 2\^31") as error:
            conditions(plan, "x" * 99_999)
        assert "--divergence-context 14133" in error.value.hint
    else:
        assert [context] == conditions(plan, "x" * 99_999)["contexts"]


def test_a_disk_that_is_too_small_is_refused_before_anything_starts(
    tmp_path, monkeypatch
):
    """
    Nothing is started to find out; what is there already counts.
    """
    monkeypatch.setattr(machine, "free_disk_bytes", lambda _: (64 << 20) + 546_771)
    plan = made_plan(tmp_path)

    with pytest.raises(NoRoomForBase, match=r"take 534\.0 KiB"):
        conditions(plan, TEXT)
    base = BaseFile.of(plan.store.folder, context=512)
    base.make_room()
    base.path.write_bytes(b"x")
    assert [512] == conditions(plan, TEXT)["contexts"]
    assert [] == asked(tmp_path)


def test_arguments_for_the_server_are_handed_on_where_the_tool_takes_them():
    """
    Those that say where and how to compute; the others are listed.
    """
    given = ("-ngl", "7", "--cont-batching", "-ts=1,2", "--swa-full", "--slots", "x")

    shared, ignored = shared_arguments(given)

    assert ("-ngl", "7", "-ts=1,2", "--swa-full") == shared
    assert ("--cont-batching", "--slots", "x") == ignored


def test_a_negative_number_is_a_value():
    """
    ``-ngl -1`` is one option.
    """
    assert (("-ngl", "-1"), ()) == shared_arguments(("-ngl", "-1"))


JOB = perplexity.Job(
    tool=Path("llama-perplexity"),
    weights=Path("made.gguf"),
    pair=Pair("q8_0", "q4_0"),
    context=512,
    chunks=4,
    base=Path("512.kld"),
    text=None,
    log=Path("log"),
)


@pytest.mark.parametrize(("rotation", "said"), [(True, None), (False, "1")])
def test_rotation_is_switched_off_as_for_a_server(rotation, said):
    """
    By the variable that llama.cpp reads.
    """
    job = replace(JOB, rotation=rotation)

    assert said == perplexity.variables(job).get("LLAMA_ATTN_ROT_DISABLE")


def test_all_layers_are_on_the_accelerator_unless_a_number_was_chosen():
    """
    As of a server: distributions of other kernels are not compared unseen.
    """
    told = """\
llama_context: n_ctx_seq             = 512
llama_kv_cache: size = 1.00 MiB ( 512 cells, 1 layers, 1/1 seqs), \
K (q8_0): 0.50 MiB, V (q4_0): 0.50 MiB
load_tensors: offloaded 20/33 layers to GPU
"""

    with pytest.raises(Mismatched, match="20 of 33 layers"):
        perplexity.verify(JOB, told)
    perplexity.verify(replace(JOB, arguments=("-ngl", "20")), told)


# Measuring


def test_the_reference_runs_first_and_writes_the_base_once(tmp_path):
    """
    Then it is compared with itself, and every other pair with it.
    """
    records = swept(made_plan(tmp_path, pairs="q4_0/q4_0 f16/f16 q8_0/q8_0"))

    expected = ["write f16/f16"]
    expected += [f"compare {pair}" for pair in ("f16/f16", "q8_0/q8_0", "q4_0/q4_0")]
    assert expected == asked(tmp_path)
    assert {Status.FINISHED} == {record.status for record in records.values()}
    assert {"f16/f16"} == {divergence_of(r).reference for r in records.values()}


def test_an_observation_comes_back_from_disk_as_it_was(tmp_path):
    """
    Context, chunks, scored tokens, and both perplexities of the reference.
    """
    plan = made_plan(tmp_path)
    records = swept(plan)
    stored = plan.store.record(Pair("q4_0", "q4_0"), "divergence")

    assert divergence_of(records["q4_0/q4_0"]) == divergence_of(stored)
    (compared,) = divergence_of(stored).contexts
    assert (512, 4, 1020) == (compared.context, compared.chunks, compared.tokens)
    assert 14145.3098 == compared.reference_ppl
    assert 2976.113205 == compared.statistics.ppl_base.value


def test_what_is_stored_is_read_strictly(tmp_path):
    """
    Something else than an observation is an error, not an absence.
    """
    record = swept(made_plan(tmp_path, pairs="f16/f16"))["f16/f16"]
    edited = replace(record, observation={"reference": 3})

    with pytest.raises(BadRecord):
        divergence_of(edited)


def test_the_record_says_what_ran(tmp_path):
    """
    Types from the tool's own log, the command, and the time it took.
    """
    record = swept(made_plan(tmp_path))["q8_0/q8_0"]

    assert ("q8_0", "q8_0") == (
        record.effective.kv[0].k_type,
        record.effective.kv[0].v_type,
    )
    assert "--kl-divergence" in record.command
    assert record.phases.measure_s > 0


def test_other_types_than_asked_for_are_a_mismatch(tmp_path):
    """
    A fork may promote a type; then nothing is measured.
    """
    plan = made_plan(
        tmp_path, pairs="q8_0/q8_0 q4_0/q4_0", tool=fake_tool(tmp_path, "wrong-types")
    )

    records = swept(plan)

    assert {Status.MISMATCHED} == {record.status for record in records.values()}
    assert "K is f16, not q8_0" in records["q8_0/q8_0"].reason
    assert not BaseFile.of(plan.store.folder, context=512).path.exists()


def test_the_next_most_precise_pair_steps_in_for_a_reference_that_fails(tmp_path):
    """
    The reference is the most precise pair that ran.
    """
    plan = made_plan(tmp_path, tool=fake_tool(tmp_path, "refuse=f16/f16"))

    records = swept(plan)

    assert Status.UNSUPPORTED == records["f16/f16"].status
    assert "Unsupported cache type" in records["f16/f16"].reason
    assert "q8_0/q8_0" == divergence_of(records["q4_0/q4_0"]).reference


def test_a_reference_that_runs_at_last_does_not_replace_the_one_there_is(tmp_path):
    """
    Within a run, all divergences are from the same pair.
    """
    swept(made_plan(tmp_path, tool=fake_tool(tmp_path, "refuse=f16/f16")))

    records = swept(made_plan(tmp_path), retry_failed=True)

    assert ["f16/f16"] == list(records)
    assert "q8_0/q8_0" == divergence_of(records["f16/f16"]).reference


@pytest.mark.parametrize("damage", ["truncated", "missing", "no note", "foreign"])
def test_a_base_file_that_is_not_right_is_written_again(tmp_path, damage):
    """
    By running the reference, in the cell that needs it.
    """
    plan = made_plan(tmp_path, pairs="f16/f16 q8_0/q8_0")
    swept(plan)
    base = BaseFile.of(plan.store.folder, context=512)
    if damage == "truncated":
        base.path.write_bytes(base.path.read_bytes()[:300_000])
    elif damage == "foreign":
        base.path.write_bytes(b"_logits_" + bytes(546_764))
    else:
        (base.path if damage == "missing" else base.note_path).unlink()

    swept(made_plan(tmp_path, pairs="f16/f16 q8_0/q8_0 q4_0/q4_0"))

    assert ["write f16/f16", "compare q4_0/q4_0"] == asked(tmp_path)[-2:]
    assert 546_772 == base.path.stat().st_size


def test_a_base_file_of_other_weights_is_written_again(tmp_path):
    """
    Its note names the weights.
    """
    swept(made_plan(tmp_path, pairs="f16/f16"))
    weights = replace(made_setup().weights, sha256="cd" * 32)
    stored = tmp_path / "run" / "setup.json"
    setup = decode_setup(stored.read_bytes(), file="setup.json")
    stored.write_bytes(encode(replace(setup, weights=weights)))

    swept(
        made_plan(tmp_path, pairs="f16/f16 q8_0/q8_0"),
        setup=replace(made_setup(), weights=weights),
    )

    assert ["write f16/f16", "compare q8_0/q8_0"] == asked(tmp_path)[-2:]


def test_a_base_file_that_came_out_short_is_never_used(tmp_path):
    """
    The tool does not notice a full disk: it exits 0 with a final estimate.
    """
    tool = fake_tool(tmp_path, "short-base=200000")

    record = swept(made_plan(tmp_path, pairs="f16/f16", tool=tool))["f16/f16"]

    assert Status.CRASHED == record.status
    assert "it has 200,000 bytes instead of 546,772" in record.reason
    folder = tmp_path / "run" / "base"
    assert [".txt"] == [path.suffix for path in folder.iterdir()]
    assert ["write f16/f16"] == asked(tmp_path)


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("die=3", Status.CRASHED, "exit code 3"),
        ("signal=11", Status.CRASHED, "SIGSEGV"),
        ("signal=9", Status.OUT_OF_MEMORY, "SIGKILL"),
        ("then-die=139", Status.CRASHED, "exit code 139"),
        ("then-signal=6", Status.CRASHED, "SIGABRT"),
        ("print=disk-full", Status.CRASHED, "without complete statistics"),
        ("print=base-unwritable", Status.CRASHED, "failed to open"),
        ("then-print=base-truncated", Status.CRASHED, "failed reading log-probs"),
        ("then-print=base-foreign", Status.CRASHED, "does not look like"),
        ("then-print=too-few-scored", Status.CRASHED, "without complete statistics"),
        (
            "then-print=base-of-another-vocabulary",
            Status.CRASHED,
            "inconsistent vocabulary",
        ),
        (
            "then-print=base-of-another-context",
            Status.CRASHED,
            "computed with 512, while the current context is 256",
        ),
        ("then-print=unknown-type", Status.UNSUPPORTED, "Unsupported cache type"),
    ],
)
def test_a_tool_that_fails_is_a_record_with_a_reason(tmp_path, fault, status, words):
    """
    Whatever it exits with: half of these exit 0.
    """
    tool = fake_tool(tmp_path, fault)

    record = swept(made_plan(tmp_path, pairs="f16/f16", tool=tool))["f16/f16"]

    assert status == record.status
    assert words in record.reason
    assert record.observation is None


def test_a_log_that_ends_early_is_no_end(tmp_path):
    """
    The tool runs again: it exited with 0 before its log was written.
    """
    tool = fake_tool(tmp_path, "cut=2")

    record = swept(made_plan(tmp_path, pairs="f16/f16", tool=tool))["f16/f16"]

    assert Status.FINISHED == record.status
    assert 2 == divergence_of(record).contexts[0].retries
    assert ["write f16/f16", *["compare f16/f16"] * 3] == asked(tmp_path)


def test_a_log_that_always_ends_early_is_a_failure(tmp_path):
    """
    Six times is enough; half a log has no numbers.
    """
    tool = fake_tool(tmp_path, "cut=9")

    record = swept(made_plan(tmp_path, pairs="f16/f16", tool=tool))["f16/f16"]

    assert Status.CRASHED == record.status
    assert "without complete statistics" in record.reason
    assert ["write f16/f16", *["compare f16/f16"] * 6] == asked(tmp_path)


def test_a_tool_that_falls_silent_is_ended(tmp_path, monkeypatch):
    """
    Some pairs hang at warm-up on some devices.
    """
    monkeypatch.setattr(perplexity, "SILENCE_S", 0.3)
    monkeypatch.setattr(perplexity, "LOOK_S", 0.02)
    tool = fake_tool(tmp_path, "hang")

    record = swept(made_plan(tmp_path, pairs="f16/f16", tool=tool))["f16/f16"]

    assert Status.TIMED_OUT == record.status
    assert "has written nothing for 0.3 s" in record.reason


def test_a_cell_that_is_left_takes_its_draft_and_its_tool_along(tmp_path, monkeypatch):
    """
    An interrupted reference leaves no half a base file, and nobody running.
    """
    monkeypatch.setattr(perplexity, "LOOK_S", 0.02)
    plan = made_plan(tmp_path, pairs="f16/f16", tool=fake_tool(tmp_path, "hang"))
    setup = replace(SETUP, probes={"divergence": PROBE.conditions(plan, TEXT)})
    player = Player(plan=plan, setup=setup, text=TEXT, probe=PROBE)
    base = BaseFile.of(plan.store.folder, context=512)

    events = player.play(plan.pairs[0], 1)
    while not base.draft.exists():
        next(events)
    events.close()

    assert not base.draft.exists()
    children = psutil.Process().children(recursive=True)
    assert [] == [child for child in children if child.status() != "zombie"]


def test_a_text_that_turns_out_too_short_ends_the_sweep(tmp_path):
    """
    Every other cell would fail alike; the tool's own count is told.
    """
    tool = fake_tool(tmp_path, "print=text-too-short")

    with pytest.raises(TextTooShort, match=r"701 tokens.*takes 1,024"):
        swept(made_plan(tmp_path, tool=tool))


def test_a_tool_that_always_fails_ends_the_sweep(tmp_path):
    """
    After three cells that fail alike.
    """
    tool = fake_tool(tmp_path, "die=3")

    with pytest.raises(FailingAlike):
        swept(made_plan(tmp_path, tool=tool))


def test_a_text_that_changed_meanwhile_is_refused(tmp_path):
    """
    Settings and base file speak of the same text.
    """
    file = tmp_path / "wiki.txt"
    file.write_text("x" * 5000)
    plan = made_plan(tmp_path, text=file)
    chosen = PROBE.conditions(plan, TEXT)
    setup = replace(made_setup(), probes={"divergence": chosen})
    file.write_text("y" * 5000)

    player = Player(plan=plan, setup=setup, text=TEXT, probe=PROBE)
    with pytest.raises(TextChanged):
        list(player.play(plan.pairs[0], 1))


def test_the_order_is_by_precision():
    """
    Each pair comes after those that would be the reference before it.
    """
    pairs = [Pair("q4_0", "q4_0"), Pair("q8_0", "f16"), Pair("f16", "q4_0")]

    assert [pairs[2], pairs[1], pairs[0]] == list(most_precise_first(pairs))


# Metrics


def test_mean_divergence_is_the_headline_and_perplexity_never_ranks():
    """
    PPL may improve while the distributions fall apart.
    """
    better = {metric.name: metric.better for metric in METRICS}

    assert "kld" == METRICS[0].name
    assert ("lower", "higher") == (better["kld"], better["top1"])
    assert {"neither"} == {better["ppl"], better["ppl-ratio"]}


def test_perplexity_can_improve_while_the_distributions_fall_apart(tmp_path):
    """
    Real output: a ninth of the first choices lost, and a lower perplexity.
    """
    record = swept(made_plan(tmp_path))["q4_0/q4_0"]

    assert value(record, "ppl-ratio") < 1
    assert (1.173086, 88.235) == (value(record, "kld"), value(record, "top1"))


def test_the_perplexity_ratio_of_the_reference_is_one(tmp_path):
    """
    Its own is taken from before the base file's 16 bits, which cut off rare tokens.
    """
    record = swept(made_plan(tmp_path))["f16/f16"]

    assert 1.0 == round(value(record, "ppl-ratio"), 6)
    assert 4.7 < divergence_of(record).contexts[0].statistics.ppl_ratio.value


def test_every_metric_has_one_value_and_some_an_error(tmp_path):
    """
    Of a finished record; standard errors where the tool prints them.
    """
    record = swept(made_plan(tmp_path))["q4_0/q4_0"]
    errors = {m.name: m.error(record, SETUP, Reading()) for m in METRICS if m.error}

    assert [1] * len(METRICS) == [
        len(m.values(record, SETUP, Reading())) for m in METRICS
    ]
    assert {"kld": 0.114657, "top1": 1.009, "dp-rms": 1.37, "ppl": 3983.09685} == errors


def test_several_contexts_have_metrics_of_their_own():
    """
    Named ``kld@512``; of one context, there is nothing to add.
    """
    one = replace(SETUP, probes={"divergence": {"contexts": [512]}})
    two = replace(SETUP, probes={"divergence": {"contexts": [512, 4096]}})

    assert () == more_metrics(one) == more_metrics(SETUP)
    names = [metric.name for metric in more_metrics(two)]
    assert 2 * len(METRICS) == len(set(names))
    assert {"kld@512", "top1@4096"} <= set(names)


def test_metrics_tell_what_they_were_measured_against(tmp_path):
    """
    A more precise pair that comes later is compared with the first reference.
    """
    swept(made_plan(tmp_path, pairs="q8_0/q8_0"))
    found = swept(made_plan(tmp_path, pairs="q8_0/q8_0 f16/f16"))
    references = {metric.name: metric.reference for metric in METRICS}

    assert "q8_0/q8_0" == references["kld"](found["f16/f16"])
    assert references["top1"](replace(found["f16/f16"], observation=None)) is None
    assert references["ppl"] is None


# The real tool


@pytest.fixture
def real_plan(tmp_path, llama_server, nano):
    """A plan for the real tool and the built-in model, small."""

    def made(pairs, **changes):
        request = Request(
            k_types=("f16", "q8_0", "q4_0"),
            v_types=("f16", "q8_0", "q4_0"),
            llama_server=llama_server,
            out=tmp_path,
            **changes,
        )
        plan = planning.plan(request)
        return replace(plan, pairs=tuple(map(Pair.parse, pairs.split())))

    return made


def real_sweep(plan):
    """Its records, and the run."""
    ready = settled(plan, [])
    swept(plan, text=ready.text, setup=ready.setup)
    run = plan.store.read()
    return {str(record.pair): record for record in run.records}, run


@pytest.mark.real
def test_real_divergences_grow_as_the_types_shrink(real_plan):
    """
    And the floor is far below them all, at both contexts.
    """
    plan = real_plan(
        "q8_0/q4_0 q8_0/q8_0 f16/f16", divergence_contexts=(512, 1024), chunks=3
    )

    records, run = real_sweep(plan)

    assert NANO == plan.model
    assert {""} == {record.reason for record in records.values()}
    for context in (512, 1024):
        klds = [
            divergence_of(records[pair]).at(context).statistics.kld.value
            for pair in ("f16/f16", "q8_0/q8_0", "q8_0/q4_0")
        ]
        assert sorted(klds) == klds
        assert abs(klds[0]) < 1e-4 < klds[1]
    assert abs(value(records["f16/f16"], "kld999", run.setup)) < 1e-2
    assert ["q8_0"] == [kv.k_type for kv in records["q8_0/q4_0"].effective.kv]
    assert "q4_0" == records["q8_0/q4_0"].effective.kv[0].v_type


@pytest.mark.real
def test_a_real_full_disk_is_found_out(tmp_path, real_plan):
    """
    With writes beyond 200 KB refused, the real tool exits 0 and says nothing.
    """
    plan = real_plan("f16/f16", divergence_contexts=(512,), chunks=4)
    real = plan.tools.perplexity
    limited = script(
        tmp_path / "limited", f"trap '' XFSZ\nulimit -f 200\nexec {real} \"$@\""
    )

    records, _ = real_sweep(
        replace(plan, tools=replace(plan.tools, perplexity=limited))
    )

    assert Status.CRASHED == records["f16/f16"].status
    assert "the base file is not whole" in records["f16/f16"].reason


@pytest.mark.real
def test_a_real_text_that_is_too_short_is_told(tmp_path, real_plan):
    """
    By bytes it might have sufficed; by the tool's own count it does not.
    """
    file = tmp_path / "short.txt"
    file.write_text("x" * 1022)

    plan = real_plan("f16/f16", text=file, divergence_contexts=(512,), chunks=1)

    with pytest.raises(TextTooShort, match=r"at most 1,023 tokens"):
        real_sweep(plan)
    left = (plan.store.folder / "base").iterdir()
    assert [".txt"] == [path.suffix for path in left]
