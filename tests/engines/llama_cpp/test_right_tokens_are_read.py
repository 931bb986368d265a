"""Right tokens whose rows are taken while llama-perplexity writes them."""

import errno
import math
import os
import stat
import struct

import numpy as np
import psutil
import pytest
from made_contexts import real_context
from made_records import made_setup
from made_tools import asked as started
from made_tools import made_perplexity, reading_task

from codeneedle.cache_types import Pair
from codeneedle.engines.distributions import DEEPEST, encoded_row
from codeneedle.engines.engine import CellSpec
from codeneedle.engines.llama_cpp.reading import Rows, piping_into_rows, prepare_reading
from codeneedle.engines.messages import Completion
from codeneedle.engines.silence_limits import SilenceLimit
from codeneedle.engines.tools import ReadingTask
from codeneedle.errors import CellError
from codeneedle.probes.cell import tokenizing
from codeneedle.system import machine
from codeneedle.system.files import CACHE_VARIABLE

VOCABULARY, CONTEXT = 7, 12
IDS = tuple(at % VOCABULARY for at in range(CONTEXT))
FIRST = CONTEXT // 2 + 1


def distribution(*logits):
    """Log-probabilities by *logits*, one per token of the vocabulary."""
    row = np.array(logits, dtype=np.float32)
    return (row - np.log(np.exp(row).sum())).astype(np.float32)


def base_file(rows=None, *, ids=IDS, vocabulary=VOCABULARY, chunks=1):
    """The file of one chunk; without *rows*, all tokens are equally probable."""
    rows = rows or [distribution(*[0.0] * VOCABULARY)] * (CONTEXT - FIRST)
    header = struct.pack("<8sIii", b"_logits_", len(ids), vocabulary, chunks)
    tokens = np.array(ids, dtype=np.int32).tobytes()
    return header + tokens + b"".join(encoded_row(row).tobytes() for row in rows)


def rows_of(data, *, size=1 << 20, wanted=(FIRST, 9)):
    """`Rows` that took *data* in pieces of *size* bytes."""
    rows = Rows(ids=IDS, wanted=wanted, vocabulary=VOCABULARY)
    for at in range(0, len(data), size):
        rows.feed_bytes(data[at : at + size])
    return rows


@pytest.mark.parametrize("size", [1, 7, 50, 1 << 20])
def test_rows_of_wanted_tokens_are_scored_whatever_the_pieces(size):
    rows = [distribution(*np.linspace(0, at, VOCABULARY)) for at in range(1, 6)]
    found = rows_of(base_file(rows), size=size, wanted=(FIRST, 9, 11))

    assert "" == found.final_fault
    tokens = found.wanted_token_scores()
    for at, place in enumerate((FIRST, 9, 11)):
        row = rows[place - FIRST]
        right = IDS[place]
        others = np.delete(row, right)
        assert float(row[right]) == pytest.approx(tokens.logprobs[at], abs=3e-4)
        lead = float(row[right] - others.max())
        assert lead == pytest.approx(tokens.leads[at], abs=6e-4)


def test_a_token_16_nats_behind_is_a_bound_and_equal_ones_are_tied():
    behind = distribution(0, -40, -40, -40, -40, -40, -40)
    tied = distribution(-1, -1, 3, 3, -1, -1, -1)
    uniform = distribution(*[0.0] * VOCABULARY)
    found = rows_of(base_file([behind, uniform, tied, uniform, uniform]))

    tokens = found.wanted_token_scores()
    assert 0 == IDS[FIRST]
    assert [0.0, 0.0] == [round(tokens.logprobs[0], 3), tokens.leads[1]]
    assert 16.0 == pytest.approx(tokens.leads[0], abs=1e-3)
    low = rows_of(base_file([uniform, behind, tied, behind, uniform]), wanted=(8, 9))
    assert (0,) == low.wanted_token_scores().bounds
    assert -16.0 == pytest.approx(low.wanted_token_scores().logprobs[0], abs=1e-3)
    assert -16.0 == pytest.approx(low.wanted_token_scores().leads[0], abs=1e-3)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(base_file()[:-1], id="a byte too short"),
        pytest.param(base_file()[:68], id="its header alone"),
        pytest.param(b"", id="empty"),
        pytest.param(base_file() + b"1", id="a byte too long"),
        pytest.param(base_file() * 2, id="twice"),
        pytest.param(b"garbage" * 1000, id="garbage"),
        pytest.param(base_file(vocabulary=8), id="another vocabulary"),
        pytest.param(base_file(chunks=2), id="two chunks"),
        pytest.param(base_file(ids=(*IDS[:3], 6, *IDS[4:])), id="another token"),
        pytest.param(base_file(ids=(*IDS[:3], 6, 5, *IDS[5:])), id="two others"),
        pytest.param(base_file()[:68] + b"\xff" * 110, id="rows of ones"),
        pytest.param(base_file()[:68] + bytes(110), id="rows of zeros"),
    ],
)
def test_a_file_that_is_not_what_was_asked_for_has_a_fault(data, golden):
    assert golden == rows_of(data).final_fault


def test_a_file_that_ends_between_two_rows_is_not_whole(golden):
    """Although all that is wanted has come."""
    found = rows_of(base_file()[:-24], wanted=(FIRST, 9))

    assert not found.is_whole
    assert golden == found.final_fault
    assert len(base_file()) - 24 == found.taken


@pytest.mark.parametrize(
    ("number", "is_known"), [(-1, False), (0, True), (6, True), (7, False)]
)
def test_a_text_has_tokens_of_the_model_alone(number, is_known, golden):
    ids = (*IDS[:2], number, *IDS[3:])
    rows = Rows(ids=ids, wanted=(9,), vocabulary=VOCABULARY)
    rows.feed_bytes(base_file(ids=ids))

    assert is_known == rows.is_whole
    assert golden == rows.final_fault


def stored_row(scale, low, values):
    """A row as it is written."""
    head = struct.pack("<ff", scale, low)
    return head + np.array([*values, 0], dtype=np.uint16).tobytes()


@pytest.mark.parametrize(
    ("scale", "low", "values", "is_one"),
    [
        # One token is certain, and the others so many nats behind.
        (16.04 / 65535, -16.04, [65535, *[0] * 6], True),
        (16.06 / 65535, -16.06, [65535, *[0] * 6], False),
        (-16.0 / 65535, 0.0, [0, *[65535] * 6], False),
        (1.0 / 65535, 0.0, [65535, *[0] * 6], False),
        # Of a flat row all are equal: the sum is seven times that of one.
        (0.0, math.log(1.04 / 7), [0] * 7, True),
        (0.0, math.log(0.96 / 7), [0] * 7, True),
        (0.0, math.log(1.06 / 7), [0] * 7, False),
        (0.0, math.log(0.94 / 7), [0] * 7, False),
        (0.0, math.log(1.055 / 7), [0] * 7, False),
    ],
    ids=[
        *("16.04 nats", "16.06 nats", "a negative scale", "a probability above 1"),
        *("a sum of 1.04", "a sum of 0.96", "a sum of 1.06", "a sum of 0.94"),
        "a sum of 1.055",
    ],
)
def test_a_row_is_a_distribution_up_to_what_rounding_takes(
    scale, low, values, is_one, golden
):
    whole = base_file()
    data = whole[:68] + stored_row(scale, low, values) + whole[92:]
    found = rows_of(data)

    assert is_one == (not found.final_fault)
    assert golden == found.final_fault


def test_the_token_is_named_whose_row_is_nan():
    whole = base_file()
    nan = stored_row(math.nan, 0.0, [0] * 7)
    found = rows_of(whole[:68] + nan + whole[92:], wanted=(FIRST,))

    # Counted from 1.
    assert FIRST + 1 == found.nan_from


def test_a_certain_token_has_no_more_than_all_of_the_probability():
    """Its row may be rounded up."""
    whole = base_file()
    certain = stored_row(16.0 / 65535, -15.9995, [65535, *[0] * 6])
    found = rows_of(whole[:68] + certain + whole[92:], wanted=(FIRST,))

    assert ((0.0,), (16.0,)) == (
        found.wanted_token_scores().logprobs,
        found.wanted_token_scores().leads,
    )


@pytest.mark.parametrize("right", range(VOCABULARY))
def test_the_lead_of_a_first_choice_is_that_over_the_best_other_token(right):
    logits = [1.0] * VOCABULARY
    logits[right], logits[right - 1] = 4.0, 2.0
    ids = (*IDS[:FIRST], right, *IDS[FIRST + 1 :])
    rows = Rows(ids=ids, wanted=(FIRST,), vocabulary=VOCABULARY)
    uniform = distribution(*[0.0] * VOCABULARY)
    rows.feed_bytes(base_file([distribution(*logits), *[uniform] * 4], ids=ids))

    (lead,) = rows.wanted_token_scores().leads
    assert 2.0 == pytest.approx(lead, abs=1e-3)


def test_a_text_is_read_as_one_chunk_with_one_pair(tmp_path):
    task = reading_task(tmp_path / "run", "q8_0/q4_0")
    job, rows = prepare_reading(task, log=tmp_path / "log", vocabulary=VOCABULARY)

    assert (1, len(task.ids)) == (job.task.chunks, job.task.context)
    assert task.pair == job.task.pair == job.task.reference
    assert rows is job.rows
    again, _ = prepare_reading(task, log=tmp_path / "log", vocabulary=VOCABULARY)
    assert job.text == again.text


def test_a_token_that_no_row_tells_of_has_no_score(golden):
    """Such as one of a text that was laid out for another tool: it was 1.0 before."""
    found = rows_of(base_file(), wanted=(FIRST - 1, 9))

    assert golden == found.final_fault
    assert not found.is_whole
    two = rows_of(base_file(), wanted=(FIRST - 2, FIRST - 1, 9))
    assert golden == two.final_fault


def test_a_file_that_is_written_again_is_taken_from_its_beginning():
    rows = rows_of(b"garbage" * 100)
    rows.start_over()
    rows.feed_bytes(base_file())

    assert rows.is_whole


def test_where_no_pipe_can_be_made_a_cell_is_not_read(monkeypatch):
    def mkfifo(_path, mode):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "mkfifo", mkfifo)
    rows = Rows(ids=IDS, wanted=(9,), vocabulary=VOCABULARY)

    with (
        pytest.raises(CellError, match="no pipe can"),
        piping_into_rows(rows),
    ):
        pass


def test_what_is_in_a_pipe_is_taken_until_the_block_ends():
    rows = Rows(ids=IDS, wanted=(9,), vocabulary=VOCABULARY)
    with piping_into_rows(rows) as path:
        path.write_bytes(base_file())

    assert rows.is_whole
    assert not path.parent.exists()


def test_a_pipe_is_open_to_its_user_alone():
    rows = Rows(ids=IDS, wanted=(9,), vocabulary=VOCABULARY)
    with piping_into_rows(rows) as path:
        mode = path.stat().st_mode

    assert (True, 0o600) == (stat.S_ISFIFO(mode), stat.S_IMODE(mode))


def test_a_pipe_that_nobody_writes_to_holds_nobody_up(golden):
    rows = Rows(ids=IDS, wanted=(9,), vocabulary=VOCABULARY)
    with piping_into_rows(rows):
        pass

    assert golden == rows.final_fault


# The tool, by a stand-in


def read(tool, task, *, runs=None):
    """The scores of *task*."""
    log = task.folder.parent / "reading.log"
    return tool.read_and_score(
        task, log=log, note=(lambda _: None) if runs is None else runs.append
    )


@pytest.fixture
def private(tmp_path, monkeypatch):
    """The folder that pipes are made in: beside it, other tests make theirs."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    return folder / "private"


@pytest.mark.slow
def test_nothing_of_a_base_file_is_kept(tmp_path):
    runs = []
    task = reading_task(tmp_path / "run", "q8_0/q4_0")
    found = read(made_perplexity(tmp_path), task, runs=runs)

    assert ((-math.log(260),) * 3, (0.0,) * 3) == (
        pytest.approx(found.logprobs, abs=1e-4),
        found.leads,
    )
    assert ["write q8_0/q4_0"] == started(tmp_path)
    assert [".txt"] == [path.suffix for path in (tmp_path / "run/base").iterdir()]
    assert [None, "q8_0"] == [
        each.effective and each.effective.kv[0].k_type for each in runs
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        *("die=3", "signal=9", "short-base=20000", "long-base", "absurd", "garbage"),
        *("error", "wrong-types"),
    ],
)
def test_a_tool_that_misbehaves_gives_an_error(
    tmp_path, private, monkeypatch, fault, golden
):
    from codeneedle.engines.llama_cpp import perplexity

    monkeypatch.setattr(perplexity, "RETRIES", 1)
    monkeypatch.setattr(machine, "has_memory_kill_since_start", lambda: False)
    with pytest.raises(CellError) as raised:
        read(made_perplexity(tmp_path, fault), reading_task(tmp_path / "r", "q8_0/f16"))

    assert golden == str(raised.value)
    assert [] == [path for path in private.iterdir() if path.is_dir()]


@pytest.mark.slow
def test_a_tool_that_hangs_is_ended_with_what_other_pairs_took(tmp_path):
    limit = SilenceLimit(limit_s=0.3, known="another pair took 0.1 s")
    task = reading_task(tmp_path / "run", silence_limit=limit)
    with pytest.raises(CellError, match="another pair took"):
        read(made_perplexity(tmp_path, "deaf"), task)

    assert [] == [
        each for each in psutil.Process().children() if "perplexity" in str(each.name())
    ]


def test_rows_take_half_a_chunk_twice_over_and_a_batch(tmp_path):
    tool = made_perplexity(tmp_path)
    values = 264

    assert 4 * values * (8192 + 2048) == tool.bytes_needed_to_read(8192)
    assert 4 * values * (512 + 512) == tool.bytes_needed_to_read(512)
    assert range(257, 512) == tool.scorable_places(512)


# The real tool


@pytest.mark.real
@pytest.mark.parametrize("pair", ["bf16/bf16", "q8_0/q4_0"])
def test_read_tokens_have_the_scores_that_a_server_forces(tmp_path, pair):
    run = real_context(tmp_path / "run", setup=made_setup())
    text = "".join(f"def f{at}():\n    return {at * 7919:x}\n" for at in range(120))
    with tokenizing(run.engine, run.folder) as tokenizer:
        pieces = tokenizer.tokens(text)
    size = 2 * (len(pieces) // 4)
    sizes = [piece.utf8_size for piece in pieces]
    # Counted from the end: the token that begins a prompt has a text, too.
    ends = np.cumsum(sizes) - sum(sizes) + len(text)
    wanted = [int(at) for at in np.flatnonzero((ends > 900) & (ends <= 940))]
    task = ReadingTask(
        pair=Pair.parse(pair),
        ids=tuple(piece.id for piece in pieces[:size]),
        wanted=tuple(wanted),
        text=text.encode(),
        text_name="made",
        folder=run.folder,
    )
    tool = run.engine.divergence_tool()
    found = tool.read_and_score(task, log=tmp_path / "read.log", note=lambda _: None)
    cell = CellSpec(Pair.parse(pair), 4096)
    with run.engine.serving(cell, log=tmp_path / "server.log") as served:
        forced = served.client.force(
            Completion(prompt=text[:900], max_tokens=1), text[900:940]
        )

    assert len(forced.logprobs) == len(found.logprobs)
    behind = tuple(at for at, each in enumerate(forced.logprobs) if each < -DEEPEST)
    assert behind == found.bounds
    expected = [max(-DEEPEST, each) for each in forced.logprobs]
    assert expected == pytest.approx(found.logprobs, abs=0.02)
