"""Each pair beside the reference, by a stand-in for llama-perplexity."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from fake_engine import made_weights
from fake_perplexity import CONTEXT, VOCABULARY, base, row
from made_tools import TEXT, asked, divergence_task, made_perplexity
from programs import script

from codeneedle.cache_types import Pair
from codeneedle.engines.llama_cpp import perplexity
from codeneedle.engines.llama_cpp.base_file import HEADER, BaseFile, Job
from codeneedle.engines.llama_cpp.installation import Program
from codeneedle.engines.llama_cpp.perplexity import FIRST_WIDE_BUILD
from codeneedle.engines.llama_cpp.reading import CheckedRows, ComparedRows
from codeneedle.engines.silence_limits import SilenceLimit
from codeneedle.engines.tools import Estimate
from codeneedle.errors import BadInput, CellError, FolderUnusable, ToolMissing
from codeneedle.records.record import Status
from codeneedle.scores import ComputesNan

pytestmark = pytest.mark.slow


def ignore(_):
    """A callback that nothing depends on."""


def compared(tool, task, *, runs=None, progress=ignore):
    """Compare as a probe does: the reference's distributions are written if missing."""
    callbacks = {
        "log": task.folder.parent / "perplexity.log",
        "note": ignore if runs is None else runs.append,
        "progress": progress,
    }
    reference = tool.find_stored_reference(task) or tool.write_reference(
        task, **callbacks
    )
    return tool.compare(task, reference, **callbacks)


@pytest.fixture
def run(tmp_path):
    """The run folder."""
    return tmp_path / "run"


def test_a_pair_is_compared_with_the_written_reference(tmp_path, run):
    tool = made_perplexity(tmp_path)
    floor = compared(tool, divergence_task(run))
    found = compared(tool, divergence_task(run, "q4_0/q4_0"))
    reference = tool.find_stored_reference(divergence_task(run))

    assert ["write f16/f16", "compare f16/f16", "compare q4_0/q4_0"] == asked(tmp_path)
    assert 0.0 == floor.statistics.kld.value
    kld = sum(
        share * math.log(share / other)
        for share, other, count in ((1 / 260, 0.5, 1), (1 / 260, 0.5 / 259, 259))
        for _ in range(count)
    )
    assert kld == pytest.approx(found.statistics.kld.value, abs=1e-3)
    assert (1020, 0, 100) == (found.tokens, found.retries, found.first_choices)
    assert (math.log(0.5),) * 1020 == pytest.approx(found.logprobs, abs=1e-3)
    assert (4, 14145.3098) == (len(found.by_chunk), found.statistics.ppl.value)
    assert (4, 14145.3098) == (reference.chunks, reference.ppl)
    (text,) = (run / "base").glob("*.txt")
    assert TEXT == text.read_text()


def test_chunks_are_the_same_whatever_token_begins_them(tmp_path):
    """Which may be one that begins each prompt."""
    tokens = np.zeros((3, CONTEXT), dtype=np.int32)
    tokens[0, 0] = tokens[2, 1] = 1
    whole = base(chunks=3)
    data = (
        whole[: HEADER.size] + tokens.tobytes() + whole[HEADER.size + tokens.nbytes :]
    )
    path = tmp_path / "base"
    path.write_bytes(data)
    rows = ComparedRows(vocabulary=VOCABULARY, context=CONTEXT, chunks=3, base=path)
    rows.start_over()
    rows.feed_bytes(data)
    rows.close()

    assert rows.is_whole
    assert (0, 0, 2) == rows.comparison(ppl=None, retries=0).same_as


def test_the_means_of_a_chunk_are_those_of_its_own_rows(tmp_path):
    whole = base(chunks=3)
    same, other = row(1 / VOCABULARY), row(0.5)
    data = b"".join(
        (
            whole[: HEADER.size + 4 * CONTEXT * 3],
            *(other, same * 254),
            *(same * 254, other),
            same * 255,
        )
    )
    path = tmp_path / "base"
    path.write_bytes(whole)
    rows = ComparedRows(vocabulary=VOCABULARY, context=CONTEXT, chunks=3, base=path)
    rows.start_over()
    rows.feed_bytes(data)
    rows.close()

    first, second, third = rows.comparison(ppl=None, retries=0).by_chunk
    assert rows.is_whole
    assert first.kld == pytest.approx(second.kld)
    assert (0.0, True) == (pytest.approx(third.kld), first.kld > 0)


def test_a_row_tells_of_a_token_of_the_second_half_of_its_chunk():
    rows = CheckedRows(vocabulary=VOCABULARY, context=CONTEXT, chunks=2)

    assert [257, 511, 769, 1023] == [
        rows.token_place_of_row(n) for n in (0, 254, 255, 509)
    ]


def test_each_run_is_noted_before_and_after(tmp_path, run):
    runs = []
    compared(made_perplexity(tmp_path), divergence_task(run, "q4_0/q4_0"), runs=runs)

    types = [each.effective and each.effective.kv[0].k_type for each in runs]
    assert [None, "f16", None, "q4_0"] == types


def test_a_base_file_that_came_out_short_is_an_error(tmp_path, run, golden):
    """The tool does not notice a full disk: it exits 0 with a final estimate."""
    tool = made_perplexity(tmp_path, "short-base=200000")

    with pytest.raises(CellError) as caught:
        compared(tool, divergence_task(run))

    assert golden == str(caught.value)
    assert [".txt"] == [path.suffix for path in (run / "base").iterdir()]


@pytest.mark.parametrize(
    ("changes", "model"),
    [
        ({"weights_sha256": "cd" * 32}, {}),
        ({"text": b"another text"}, {}),
        ({"reference": Pair("q8_0", "q8_0")}, {}),
        ({"chunks": 5}, {}),
        ({}, {"arguments": ("-ngl", "3")}),
        ({}, {"rotation": False}),
    ],
    ids=str,
)
def test_a_reference_of_something_else_is_not_used(tmp_path, run, changes, model):
    task = divergence_task(run)
    compared(made_perplexity(tmp_path), task)

    assert made_perplexity(tmp_path).find_stored_reference(task) is not None
    changed = replace(task, **changes)
    assert made_perplexity(tmp_path, **model).find_stored_reference(changed) is None


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("die=3", "crashed", "exit code 3"),
        ("signal=9", "crashed", "SIGKILL"),
        ("then-die=139", "crashed", "exit code 139"),
        ("print=disk-full", "crashed", "without complete log-probabilities"),
        ("print=base-unwritable", "crashed", "failed to open"),
        ("then-print=disk-full", "crashed", "without complete log-probabilities"),
        ("then-print=unknown-type", "unsupported", "Unsupported cache type"),
        ("wrong-types", "mismatched", "K is f16, not q8_0"),
        ("error", "crashed", "failed to decode"),
    ],
)
def test_a_tool_that_fails_is_an_error_with_a_status(
    tmp_path, run, monkeypatch, fault, status, words
):
    monkeypatch.setattr(perplexity, "RETRIES", 1)
    tool = made_perplexity(tmp_path, fault)
    pair = {"wrong-types": "q8_0/q8_0"}.get(fault, "f16/f16")
    task = divergence_task(run, pair, reference=Pair.parse(pair))

    with pytest.raises(CellError, match=words) as caught:
        compared(tool, task)

    assert status == caught.value.status
    assert caught.value.hint
    assert caught.value.log_excerpt or "signal" in fault
    assert not BaseFile.of(run, context=512).draft.exists()


@pytest.mark.parametrize(
    ("cuts", "runs", "ppl"), [(2, 3, Estimate(14145.3098, 4242.15655)), (30, 4, None)]
)
def test_a_log_without_its_end_is_asked_for_again_and_costs_the_perplexity_alone(
    tmp_path, run, cuts, runs, ppl
):
    """The tool exits with 0 before its log is written; rows tell the rest."""
    (tmp_path / "whole").mkdir()
    whole = compared(made_perplexity(tmp_path / "whole"), divergence_task(run))
    tool, task = made_perplexity(tmp_path, f"cut={cuts}"), divergence_task(run)
    found = compared(tool, task)

    assert replace(whole.statistics, ppl=ppl) == found.statistics
    assert replace(whole, statistics=found.statistics, retries=runs - 1) == found
    assert ["compare f16/f16"] * runs == asked(tmp_path)


def test_the_reference_whose_log_has_no_end_is_kept_without_its_perplexity(
    tmp_path, run
):
    tool, task = made_perplexity(tmp_path, "cut-base=30"), divergence_task(run)
    found = compared(tool, task)
    kept = tool.find_stored_reference(task)

    assert (4, None) == (kept.chunks, kept.ppl)
    assert 0.0 == found.statistics.kld.value
    assert [*["write f16/f16"] * 4, "compare f16/f16"] == asked(tmp_path)


def test_a_reference_that_computes_nan_is_none_though_its_log_has_no_end(tmp_path, run):
    tool, task = made_perplexity(tmp_path, "cut-nan"), divergence_task(run)
    with pytest.raises(ComputesNan) as caught:
        compared(tool, task)

    assert f"{4 * 512:,}" in str(caught.value)
    assert tool.find_stored_reference(task) is None


def test_a_reference_whose_rows_are_noise_is_none_though_its_log_has_no_end(
    tmp_path, run
):
    tool, task = made_perplexity(tmp_path, "cut-noise"), divergence_task(run)
    with pytest.raises(CellError) as caught:
        compared(tool, task)

    assert Status.CRASHED is caught.value.status
    assert tool.find_stored_reference(task) is None


@pytest.mark.parametrize(
    "fault", ["then-print=cut-at-exit", "cut-early"], ids=["rows", "all proofs"]
)
def test_what_is_missing_beside_the_end_of_a_log_is_a_failure(
    tmp_path, run, monkeypatch, fault
):
    """Before the first chunk a log tells of rotation, and where attention runs."""
    monkeypatch.setattr(perplexity, "RETRIES", 4)
    tool = made_perplexity(tmp_path, fault)
    task = divergence_task(run)
    with pytest.raises(CellError) as caught:
        compared(tool, task)

    assert Status.CRASHED is caught.value.status
    assert ["write f16/f16", *["compare f16/f16"] * 5] == asked(tmp_path)


@pytest.mark.parametrize(
    ("fault", "pair", "runs"),
    [("print=base-nan", "f16/f16", 1), ("then-print=base-nan", "f16/f16", 2)],
)
def test_a_pair_that_computes_nan_says_so_and_runs_once(
    tmp_path, run, fault, pair, runs, golden
):
    tool = made_perplexity(tmp_path, fault)

    with pytest.raises(ComputesNan) as caught:
        compared(tool, divergence_task(run, pair, reference=Pair.parse(pair)))

    assert golden == str(caught.value)
    assert ("unsupported", runs) == (caught.value.status, len(asked(tmp_path)))


@pytest.mark.parametrize(
    ("cuts", "status", "runs"), [(2, "unsupported", 3), (30, "crashed", 9)]
)
def test_a_tool_that_fails_without_a_reason_in_its_log_is_asked_again(
    tmp_path, run, cuts, status, runs
):
    """What a model refuses is the last line of a log, which is lost most often."""
    tool, task = made_perplexity(tmp_path, f"mute={cuts}"), divergence_task(run)
    with pytest.raises(CellError) as caught:
        compared(tool, task)

    assert status == caught.value.status
    assert ["write f16/f16", *["compare f16/f16"] * runs] == asked(tmp_path)


def test_a_tool_that_writes_nothing_is_ended(tmp_path, run, monkeypatch, golden):
    """Some pairs hang at warm-up on some devices."""
    monkeypatch.setattr(perplexity, "SILENCE_S", 0.3)

    with pytest.raises(CellError) as caught:
        compared(made_perplexity(tmp_path, "hang"), divergence_task(run))

    assert golden == str(caught.value)
    assert "timed-out" == caught.value.status


def test_a_tool_that_says_nothing_for_longer_than_with_other_pairs_is_ended(
    tmp_path, run, golden
):
    silence_limit = SilenceLimit(limit_s=0.3, known="f16/f16 took 0.1 s")
    task = divergence_task(run, silence_limit=silence_limit)

    with pytest.raises(CellError) as caught:
        compared(made_perplexity(tmp_path, "hang"), task)

    assert golden == str(caught.value)


def test_an_interrupted_run_leaves_no_draft_and_no_child(tmp_path, run):
    draft = BaseFile.of(run, context=512).draft

    def interrupt(chunks):
        if chunks and draft.exists():
            raise KeyboardInterrupt(chunks)

    with pytest.raises(KeyboardInterrupt, match=r"^1$"):
        compared(
            made_perplexity(tmp_path, "hang"), divergence_task(run), progress=interrupt
        )

    assert not draft.exists()
    children = psutil.Process().children(recursive=True)
    assert [] == [child for child in children if child.status() != "zombie"]


def test_a_folder_that_takes_no_file_is_an_error_of_the_folder(tmp_path, run):
    run.write_text("in the way")

    with pytest.raises(FolderUnusable, match=str(run)):
        compared(made_perplexity(tmp_path), divergence_task(run))


def test_a_text_that_turns_out_too_short_is_an_error_of_the_request(tmp_path, run):
    tool = made_perplexity(tmp_path, "print=text-too-short")

    with pytest.raises(BadInput, match=r"701 tokens.*takes 1,024") as caught:
        compared(tool, divergence_task(run))

    assert "made-corpus" == caught.value.source


# The command


def job(*, text=Path("a.txt"), **changes):
    """The writing of what q8_0/q4_0 is compared with."""
    task = divergence_task(Path("run"), "q8_0/q4_0", **changes)
    return Job(task=task, text=text, log=Path("log"))


def value_of(command, option):
    """The word after the last *option*."""
    return command[len(command) - command[::-1].index(option)]


def test_a_pair_reads_the_text_as_the_reference_has(tmp_path):
    """What it writes is compared, so that right tokens are known one by one."""
    command = made_perplexity(tmp_path).command(job())

    assert "--kl-divergence" not in command
    words = ("--file", "--chunks", "--cache-type-v", "--ctx-size")
    assert ["a.txt", "4", "f16", "512"] == [value_of(command, each) for each in words]
    assert "run/base/512.kld.draft" == value_of(command, "--kl-divergence-base")


def test_a_batch_is_never_longer_than_a_chunk(tmp_path):
    """The tool would compute several chunks at once, in a cache of another shape."""
    tool = made_perplexity(tmp_path)

    assert "512" == value_of(tool.command(job()), "--batch-size")
    assert "2048" == value_of(tool.command(job(context=8192)), "--batch-size")


@pytest.mark.parametrize(
    ("arguments", "words", "layers"),
    [
        ((), [], "999"),
        (("-ngl", "20"), ["-ngl", "20"], None),
        (("--n_gpu_layers", "20"), ["--n_gpu_layers", "20"], None),
        (("--n-gpu-layers=20",), ["--n-gpu-layers=20"], None),
        (("--temp", "1", "--swa-full"), ["--swa-full"], "999"),
    ],
)
def test_the_user_s_number_of_layers_is_used_however_it_is_spelled(
    tmp_path, arguments, words, layers
):
    tool = made_perplexity(tmp_path, arguments=arguments)
    command = tool.command(job())

    assert words == command[command.index("--chunks") + 2 :]
    assert layers == (value_of(command, "--n-gpu-layers") if "999" in command else None)


def test_a_tiny_model_gets_few_threads_that_sleep(tmp_path):
    """Spinning threads slow it down many times on a busy machine."""
    tool = made_perplexity(tmp_path, is_tiny=True)

    assert "1" == value_of(tool.command(job()), "--threads")


def test_all_layers_are_to_be_on_the_accelerator_unless_a_number_was_chosen(tmp_path):
    told = """\
llama_context: n_ctx_seq             = 512
llama_kv_cache: size = 1.00 MiB ( 512 cells, 1 layers, 1/1 seqs), \
K (q8_0): 0.50 MiB, V (q4_0): 0.50 MiB
load_tensors: offloaded 20/33 layers to GPU
"""
    asked = job(reference=Pair("q8_0", "q4_0"))

    with pytest.raises(CellError, match="20 of 33 layers"):
        made_perplexity(tmp_path).refuse_mismatch(asked, told)
    made_perplexity(tmp_path, arguments=("-ngl", "20")).refuse_mismatch(asked, told)


def test_the_version_is_that_which_the_tool_states(tmp_path):
    silent = Program(script(tmp_path / "silent", "true"))

    assert "0.6.0-dev (build 11434, commit fake)" == made_perplexity(tmp_path).version
    assert "unknown" == perplexity._ask_version_or_unknown(silent)


# What is refused before anything is started


def check(tool, text_bytes, *, context=512, chunks=4):
    """Refuse what cannot be compared."""
    tool.check(
        text_name="wiki.txt", text_bytes=text_bytes, context=context, chunks=chunks
    )


@pytest.mark.parametrize(
    ("text_bytes", "context", "chunks"),
    [(2000, 512, 4), (1000, 512, 1), (50_000, 512, 99_999_999), (100, 512, 4)],
)
def test_a_text_with_fewer_bytes_than_tokens_needed_is_refused(
    tmp_path, text_bytes, context, chunks, golden
):
    """No tokenizer makes more tokens than bytes."""
    tool = made_perplexity(tmp_path)

    with pytest.raises(BadInput) as caught:
        check(tool, text_bytes, context=context, chunks=chunks)

    assert golden == (str(caught.value), caught.value.hint)


def test_a_text_that_just_suffices_is_accepted(tmp_path):
    """A text begins with up to two tokens more than it has bytes."""
    tool = made_perplexity(tmp_path)
    check(tool, 2046)
    check(tool, 1022, chunks=1)

    with pytest.raises(BadInput, match=r"takes 2,048"):
        check(tool, 2045)
    with pytest.raises(BadInput, match=r"takes 1,024"):
        check(tool, 1021, chunks=1)


@pytest.mark.parametrize(("context", "chunks"), [(64, 3), (2, 50), (50, 4)])
def test_fewer_than_a_hundred_scored_tokens_are_refused(
    tmp_path, context, chunks, golden
):
    """The tool would compute them, print no statistics, and exit 0; 100 suffice."""
    tool = made_perplexity(tmp_path)
    check(tool, 9999, context=51, chunks=4)

    with pytest.raises(BadInput) as caught:
        check(tool, 9999, context=context, chunks=chunks)

    assert golden == str(caught.value)


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
    """At 2^31 values: a vocabulary of 151,936 and 14,134 tokens."""
    weights = made_weights(vocabulary=151_936)
    tool = made_perplexity(tmp_path, build=build, weights=weights)

    if not refused:
        check(tool, 99_999, context=context, chunks=2)
        return
    with pytest.raises(ToolMissing, match=r"not below 2\^31") as caught:
        check(tool, 99_999, context=context, chunks=2)
    assert "--divergence-context 14133" in caught.value.hint


def test_what_a_reference_adds_to_the_disk_is_predicted(tmp_path, run):
    """Files in its place would be replaced, so they count."""
    tool = made_perplexity(tmp_path)
    assert 546_772 == tool.bytes_to_write(run, context=512, chunks=4)

    base = BaseFile.of(run, context=512)
    base.clear_files_for_writing()
    base.path.write_bytes(bytes(46_772))
    assert 500_000 == tool.bytes_to_write(run, context=512, chunks=4)
    base.path.write_bytes(bytes(546_773))
    assert 0 == tool.bytes_to_write(run, context=512, chunks=4)
