"""The copy probe: texts that stand twice, with a fake tool and with the real one."""

import math
import re
import struct
from dataclasses import replace

import pytest
from fake_tools import FakeDivergence, ToolEngine
from made_contexts import real_context, run_context
from made_copies import copied, run_of_copies
from made_records import made_setup

from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.llama_cpp import installation
from codeneedle.engines.llama_cpp.engine import LlamaCpp
from codeneedle.engines.messages import TokenPiece
from codeneedle.errors import BadInput, FolderUnusable
from codeneedle.grid import Pair
from codeneedle.models.weights import read_header
from codeneedle.probes.divergence import copies
from codeneedle.probes.divergence.copies import (
    NAME,
    PROBE,
    CopySettings,
    Cutter,
    laid_out,
    made_words,
)
from codeneedle.probes.divergence.record import Divergence
from codeneedle.probes.probe import ProbeContext
from codeneedle.records.record import from_json
from codeneedle.system import files

F16, K4 = Pair("f16", "f16"), Pair("q4_0", "f16")
BEGIN = -1


class Merging:
    """
    A tokenizer that merges: quotes with line breaks, line breaks, parts of words.

    Attributes:
        begins: Whether a special token begins each prompt.
        blank: Whether a blank is put before every text.
        pattern: What is a token.
    """

    def __init__(self, *, begins=False, blank=False, pattern=""):
        self.begins, self.blank = begins, blank
        self.pattern = pattern or r'"\n+|\n+| ?[a-zA-Z]{1,4}| ?\S| '
        self.known = {}

    def tokens(self, text, *, add_special=True):
        found = re.findall(self.pattern, f" {text}" if self.blank else text, re.DOTALL)
        numbers = [self.known.setdefault(piece, len(self.known)) for piece in found]
        begin = [TokenPiece(BEGIN, "")] if self.begins and add_special else []
        return (*begin, *map(TokenPiece, numbers, found))


def chunks_of(tokenizer, text, context):
    """The chunks of *text* as the tool reads them, numbers of tokens."""
    ids = [token.id for token in tokenizer.tokens(text)]
    return [ids[at : at + context] for at in range(0, len(ids) - context, context)]


# The layout


@pytest.mark.parametrize("blank", [False, True])
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("context", [64, 130])
def test_the_second_half_of_a_chunk_repeats_the_first_token_by_token(
    context, begins, blank
):
    """Only the first token of a chunk may be another, as the tool may overwrite it."""
    tokenizer = Merging(begins=begins, blank=blank)
    text = laid_out(Cutter(tokenizer, "seed"), context=context, chunks=5)

    chunks = chunks_of(tokenizer, text, context)
    assert 5 == len(chunks)
    half = context // 2
    for chunk in chunks:
        assert chunk[1:half] == chunk[half + 1 :]
        assert chunks[1][0] == chunk[half]
    assert 5 == len({tuple(chunk[half:]) for chunk in chunks})


def test_a_tokenizer_whose_copies_would_differ_is_refused():
    tokenizer = Merging(pattern=r"\s+\S+|\S+")
    with pytest.raises(BadInput, match="not the same tokens"):
        laid_out(Cutter(tokenizer, "seed"), context=64, chunks=2)


def test_made_texts_depend_on_the_seed_alone():
    assert made_words("a", 900).startswith(made_words("a", 500))
    assert made_words("a", 500) != made_words("b", 500)
    assert 500 <= len(made_words("a", 500)) < 600
    assert set(copies.WORDS) >= set(re.findall("[a-z]+", made_words("a", 9000)))
    assert len(set(copies.WORDS)) == len(copies.WORDS) <= 256


# Settings and conditions


@pytest.fixture
def made_run(tmp_path):
    """Makes the context of a run with a fake tool; *chosen* are settings."""

    def made(tool=None, *, tokenizer=None, changes=(), **chosen):
        engine = ToolEngine(
            divergence=tool or FakeDivergence(),
            tokenizer=tokenizer or Merging(begins=True),
        )
        facts = {
            "setup": made_setup(types_k=("f16", "q4_0")),
            "settings": {NAME: CopySettings(**{"contexts": (256,), **chosen})},
            **dict(changes),
        }
        return run_context(tmp_path / "run", engine, **facts)

    return made


def with_conditions(run):
    """The same run after planning."""
    return replace(run, setup=replace(run.setup, probes={NAME: PROBE.conditions(run)}))


def test_texts_are_laid_out_once_and_kept_in_the_run_folder(made_run):
    run = made_run(contexts=(256, 512), chunks=3)
    first = PROBE.conditions(run)

    assert first == PROBE.conditions(run)
    assert 1 == run.engine.counted
    assert ([256, 512], 3) == (first["contexts"], first["chunks"])
    other = PROBE.conditions(made_run(contexts=(256, 512), chunks=4))
    assert set() == set(first["texts_sha256"]) & set(other["texts_sha256"])
    assert 4 == len(list((run.folder / NAME).glob("*.txt")))


def test_contexts_and_disk_are_checked_before_the_first_cell(made_run, monkeypatch):
    tool = FakeDivergence()
    with pytest.raises(BadInput, match="--copy-context 100000"):
        PROBE.conditions(made_run(contexts=(100_000,)))
    PROBE.conditions(made_run(tool, contexts=(), chunks=2))
    assert [(1024, 2)] == [(each["context"], each["chunks"]) for each in tool.checked]

    monkeypatch.setattr(files, "free_disk_bytes", lambda _: 0)
    with pytest.raises(FolderUnusable, match="take 2"):
        PROBE.conditions(made_run(tool, chunks=2))


def test_what_the_reference_takes_on_the_disk_is_told_in_planning(made_run):
    tool = FakeDivergence()
    run = made_run(tool)
    told = [CopySettings(chunks=20), run.weights, run.engine, run.folder]

    assert ("the probe copy keeps 19.5 KiB in the run folder",) == PROBE.notes(*told)
    tool.kept[F16, 1024] = None
    assert () == PROBE.notes(*told)


# Measuring


def test_a_cell_is_compared_in_a_folder_of_its_own(made_run):
    """The divergence probe may keep distributions of the same context."""
    tool = FakeDivergence()
    run = with_conditions(made_run(tool, contexts=(256, 512), chunks=2))
    cell = ProbeContext(run=run, pair=F16, logs=run.folder)
    found = from_json(PROBE.measure(cell), Divergence, file="x")

    assert ["write f16/f16@256", "compare f16/f16@256"] == tool.calls[:2]
    assert {run.folder / NAME} == {task.folder for task in tool.tasks}
    assert [256, 512] == [each.context for each in found.contexts]
    assert 2 == len(found.contexts[0].by_chunk)


def test_a_stored_text_that_changed_is_refused(made_run):
    run = with_conditions(made_run(chunks=2))
    (text,) = (run.folder / NAME).glob("*.txt")
    text.write_text(" something else")

    with pytest.raises(BadInput, match="it has changed"):
        PROBE.measure(ProbeContext(run=run, pair=F16, logs=run.folder))


# Remarks


@pytest.mark.parametrize(
    ("copy_loss", "recall_loss", "disagree"),
    [
        (0.2, 0.2, False),
        (0.2, 0.0, True),
        (0.0, 0.2, True),
        (0.2, -0.2, True),
        (0.2, 0.15, False),
        (0.0, 0.0, False),
    ],
)
def test_pairs_on_which_reading_and_writing_disagree_are_told(
    copy_loss, recall_loss, disagree
):
    """One path loses significantly, and the other by its interval less than half."""
    run = run_of_copies(copy_loss, recall_loss)

    found = PROBE.remarks(run)
    assert disagree == bool(found)
    if disagree:
        assert "q4_0/f16, in nats per token from the reference: copy-logp" in found[0]
    assert () == PROBE.remarks(replace(run, records=run.records[::2]))


def test_values_of_chunks_are_told_apart_by_their_number():
    record = copied("q4_0/f16", [-1.0, -2.0])
    metrics = {metric.name: metric for metric in PROBE.metrics}

    logp, ppl = metrics["copy-logp"], metrics["copy-ppl"]
    assert [-1.0, -2.0] == logp.values(record, made_setup())
    assert {"0": -1.0, "1": -2.0} == logp.by_unit(record, made_setup())
    assert pytest.approx([math.e, math.e**2]) == ppl.values(record, made_setup())


# The real tool


def measured(run, pair):
    """The observation of *pair*."""
    cell = ProbeContext(run=run, pair=pair, logs=run.folder)
    return from_json(PROBE.measure(cell), Divergence, file="x").contexts[0]


@pytest.mark.real
def test_the_real_tool_reads_equal_halves(tmp_path):
    """The tokens in the file of the reference are those that were computed."""
    run = with_conditions(
        real_context(
            tmp_path / "run",
            setup=made_setup(types_k=("f16",), types_v=("f16",)),
            settings={NAME: CopySettings(contexts=(256,), chunks=3)},
        )
    )
    found = measured(run, F16)

    (base,) = (run.folder / NAME / "base").glob("*.kld")
    data = base.read_bytes()[20 : 20 + 4 * 3 * 256]
    for number in range(3):
        chunk = struct.unpack_from("<256i", data, 4 * 256 * number)
        assert chunk[1:128] == chunk[129:]
    assert [100.0] * 3 == [round(each.same_top, 0) for each in found.by_chunk]
    assert 3 * 127 == found.tokens
    assert all(each.logp < 0 for each in found.by_chunk)


@pytest.mark.real
def test_of_real_weights_a_coarse_k_spoils_the_second_copy(tmp_path, smollm2):
    """Measured: perplexity +28 % in a context of 1,024 tokens; required here: 10 %."""
    header, found = read_header(smollm2), installation.find()
    engine = LlamaCpp(
        tools=found,
        facts=installation.ask(found.server),
        model=ModelSpec(weights=header, name="smollm2", arguments=("-t", "1")),
    )
    run = with_conditions(
        run_context(
            tmp_path / "run",
            engine,
            weights=header,
            setup=made_setup(types_k=("f16", "q4_0"), types_v=("f16",)),
            settings={NAME: CopySettings(contexts=(512,), chunks=1)},
        )
    )
    exact = measured(run, F16).statistics
    coarse = measured(run, K4).statistics

    assert coarse.ppl.value > 1.1 * exact.ppl.value
