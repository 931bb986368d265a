"""Readers of bytes from elsewhere: what once escaped them, and how they are fuzzed."""

import json
import math
import struct
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from gguf_files import SHAPE, gguf_bytes

from codeneedle.cache_types import Pair
from codeneedle.engines.llama_cpp import log as serverlog
from codeneedle.engines.llama_cpp import perplexity
from codeneedle.engines.llama_cpp.base_file import BaseFile, Identity
from codeneedle.engines.llama_cpp.bench import read_result
from codeneedle.engines.tools import SpeedTask
from codeneedle.errors import CellError, WeightsUnusable
from codeneedle.models import gguf
from codeneedle.models.gguf import BadHeader
from codeneedle.models.weights import read_weights_from_headers, weights_of
from codeneedle.records.record import KvBuffer

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.append(str(SCRIPTS))
import fuzz_targets  # noqa: E402 - found in the folder just added

pytestmark = pytest.mark.slow

DIGITS = "9" * 5_000
"""Python refuses to read a number this long."""


# --- what once came out


def test_a_number_without_end_in_a_server_log_is_no_number():
    kv = (
        "llama_kv_cache: size = 1.0 MiB ( {} cells, 7 layers, 1/1 seqs), "
        "K (q8_0): {} MiB, V (q4_0): 0.5 MiB"
    )
    good = KvBuffer(
        cells=4, layers=7, k_type="q8_0", v_type="q4_0", k_mib=0.5, v_mib=0.5
    )

    assert (good,) == serverlog.effective_settings(kv.format("4", "0.5")).kv
    assert () == serverlog.effective_settings(kv.format("4", "1.2.3")).kv
    assert () == serverlog.effective_settings(kv.format("4", "...")).kv
    assert () == serverlog.effective_settings(kv.format("9" * 400, "0.5")).kv
    assert serverlog.effective_settings(f"n_threads = {'9' * 400}").threads is None
    assert (
        serverlog.effective_settings("CPU compute buffer size = 1.2.3 MiB").compute_mib
        is None
    )


def test_a_number_without_end_in_a_log_of_perplexity_is_no_number():
    log = f"[1]2.5,[{DIGITS}]2.5,\ncomputing {DIGITS} chunks, n_ctx={DIGITS}\n"
    short = f"you need at least {DIGITS} tokens\ntokenizes to only {DIGITS} tokens"

    assert 1 == perplexity.chunks_done(log)
    assert perplexity.announced_chunks_and_context(log) is None
    assert perplexity.lengths_if_text_too_short(short) is None


def test_a_result_line_that_is_nested_without_end_is_no_result():
    asked = SpeedTask(
        pair=Pair("f16", "f16"),
        depth=0,
        prompt_tokens=1,
        generated_tokens=1,
        repetitions=1,
    )

    with pytest.raises(CellError):
        read_result('{"a":' * 20_000, asked)


def test_a_note_of_more_chunks_than_a_header_can_state_is_of_another_file(tmp_path):
    """A base file counts in 32 bits, a note in as many as it likes."""
    base = BaseFile(tmp_path / "x.kld")
    identity = Identity(
        text_sha256="",
        weights_sha256="",
        llama="",
        reference="f16/f16",
        context=4,
        chunks_asked=1,
        vocabulary=3,
    )
    base.path.write_bytes(b"_logits_" + struct.pack("<Iii", 4, 3, 1))
    note = {
        "identity": asdict(identity),
        "chunks": 2**40,
        "size_bytes": 0,
        "fingerprint": "",
        "ppl": 1.0,
        "seconds": 1.0,
    }
    base.note_path.write_text(json.dumps(note), encoding="utf-8")

    assert base.usable_reference(identity) is None
    assert BaseFile.fault(base.path, identity, chunks=2**40)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_model_whose_shape_is_no_number_has_no_shape(odd):
    file = {"files": [Path("x.gguf")], "size_bytes": 1}
    without = gguf.parse(gguf_bytes(SHAPE | {"llama.block_count": odd}))
    usual = gguf.parse(gguf_bytes(SHAPE | {"llama.context_length": odd}))

    with pytest.raises(BadHeader):
        weights_of(without, **file)
    assert 0 == weights_of(usual, **file).training_context


def test_a_header_that_is_all_text_is_not_kept_in_memory(monkeypatch):
    monkeypatch.setattr(gguf, "MOST_KEPT", 600)
    keys = SHAPE | {"a.text": "x" * 500, "a.list": [1] * 200, "a.last": 5}
    header = gguf.parse(gguf_bytes(keys))

    assert "" == header.values["a.text"]
    assert "a.list" not in header.values
    assert 200 == header.lengths["a.list"]


def test_a_part_of_a_model_in_no_parts_is_a_file(tmp_path):
    path = tmp_path / "x-00001-of-00000.gguf"
    path.write_bytes(b"no model")

    with pytest.raises(WeightsUnusable, match="not a GGUF"):
        read_weights_from_headers(path)


# --- how they are fuzzed


@pytest.mark.parametrize("name", fuzz_targets.TARGETS)
def test_each_reader_takes_its_seeds_and_long_stretches_of_one_thing(name):
    target = fuzz_targets.TARGETS[name]

    for data in target.inputs():
        target.digest(data)


def test_a_defect_is_not_taken_for_a_refusal():
    target = replace(fuzz_targets.TARGETS["gguf"], reads=lambda data: data[99])

    with pytest.raises(IndexError):
        target.digest(b"")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--target", "ggfu"), 2, "Known: answers"),
        (("--target", "gguf", "--inputs", "1"), 3, "pip install 'codeneedle[fuzz]'"),
    ],
)
def test_fuzzing_says_what_is_missing(arguments, code, words):
    # An empty module path: atheris may be installed here.
    body = (
        "import importlib.util, runpy, sys;"
        "importlib.util.find_spec = lambda name: None;"
        f"sys.argv = {['fuzz.py', *arguments]!r};"
        f"sys.path.insert(0, {str(SCRIPTS)!r});"
        f"runpy.run_path({str(SCRIPTS / 'fuzz.py')!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", body], capture_output=True, encoding="utf-8", check=False
    )

    assert (code, True) == (done.returncode, words in done.stderr), done.stderr
