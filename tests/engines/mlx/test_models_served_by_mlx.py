"""A model served by the child: answers, scores, what runs, and what it compares."""

import os
import signal
import sys
from dataclasses import replace

import pytest
from made_mlx import nano_weights

pytest.importorskip(
    "mlx.core", reason="MLX is not installed: pip install 'codeneedle[mlx]'"
)
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")

import httpx

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import CellSpec, ModelSpec
from codeneedle.engines.messages import Chat, Completion, Message, Refused
from codeneedle.engines.mlx.engine import Mlx, package_versions
from codeneedle.engines.mlx.settings import MlxSettings
from codeneedle.engines.tools import DivergenceTask, SpeedTask
from codeneedle.errors import BadInput, CellError
from codeneedle.records.record import Status
from codeneedle.system import orphans

pytestmark = pytest.mark.slow

TEXT = """\
def alpha(count):
    zebra = 'hjkqwz'
    return 93

def beta(value):
    quokka = 'plmokn'
    return 17
"""
PROMPT = f"{TEXT}\n# recall\ndef beta(value):\n"
ANSWER = "    quokka = 'plmokn'\n"
SPLIT = CellSpec(Pair("kv8", "kv4"), 512)


def ignore(_):
    """A callback that nothing depends on."""


@pytest.fixture(scope="module")
def engine():
    model = ModelSpec(weights=nano_weights(), name="nano", is_tiny=True)
    return Mlx(versions=package_versions(), model=model)


@pytest.fixture(scope="module")
def served(engine, tmp_path_factory):
    log = tmp_path_factory.mktemp("logs") / "kv8-kv4.log"
    with engine.serving(SPLIT, log=log) as server:
        yield server


def test_a_served_model_writes_what_it_reads(served):
    question = Completion(prompt=PROMPT, max_tokens=60)
    first = served.client.complete(question, enough=lambda text: "\n" in text)
    again = served.client.complete(question, enough=lambda text: "\n" in text)

    assert ANSWER == first.text == again.text
    assert ("cut", len(PROMPT) + 1) == (first.finish, first.prompt_tokens)
    assert len(first.text) == len(first.logprobs) == len(first.gaps)
    assert again.cached_tokens > len(TEXT)


def test_a_chat_goes_through_the_template(served):
    asked = f"{TEXT}---\nRepeat `def beta(value):`"
    reply = served.client.chat(
        Chat(messages=(Message("user", asked),), max_tokens=30),
        enough=lambda text: "\n" in text,
    )

    assert ANSWER == reply.text


def test_forced_tokens_are_scored_as_written_ones_are(served):
    question = Completion(prompt=PROMPT, max_tokens=len(ANSWER))
    written = served.client.complete(question)
    right = served.client.force(question, ANSWER)
    wrong = served.client.force(question, "    zebra")

    assert pytest.approx(written.logprobs, abs=0.01) == right.logprobs
    assert min(right.leads) > 0
    assert min(wrong.leads) < -1
    assert ANSWER[: right.ends[-1]] == ANSWER


def test_lines_are_read_where_they_stand_by_one_request(served):
    """Each as it is forced behind all that is before it."""
    asked = f"{PROMPT}{ANSWER}\n# recall\ndef alpha(count):\n"
    prompt = f"{asked}    zebra = 'hjkqwz'"
    passages = [(len(PROMPT), len(PROMPT) + len(ANSWER)), (len(asked), len(prompt))]
    forced = [
        served.client.force(Completion(prompt=prompt[:begin], max_tokens=1), right)
        for begin, end in passages
        if (right := prompt[begin:end])
    ]
    question = Completion(prompt=prompt, max_tokens=1)
    read = served.client.force_each(question, passages)

    for one, other in zip(read, forced, strict=True):
        assert pytest.approx(other.logprobs, abs=0.05) == one.logprobs
        assert pytest.approx(other.leads, abs=0.1) == one.leads
        assert (other.ends, other.prompt_tokens) == (one.ends, one.prompt_tokens)
    assert all(each.wall_s > 0 for each in read)


def test_a_prompt_that_does_not_fit_is_refused(served):
    with pytest.raises(Refused) as caught:
        served.client.complete(Completion(prompt="a" * 600, max_tokens=1))

    assert "Use --context 768 or more." == caught.value.hint


def test_nobody_else_is_answered(served):
    url = str(served.client._http.base_url)

    assert 401 == httpx.post(f"{url}/tokenize", json={"content": "a"}).status_code
    assert 401 == httpx.get(f"{url}/v1/models").status_code
    assert all("key" not in word for word in served.command)


def test_what_runs_is_read_from_the_arrays(served):
    found = served.effective()
    (cache,) = found.kv

    assert () == served.differences_from_cell(SPLIT)
    assert ("SplitKVCache", "kv8", "kv4") == (
        cache.class_name,
        cache.k_type,
        cache.v_type,
    )
    assert (64 + 4, 32 + 4) == (cache.k_bytes_per_token, cache.v_bytes_per_token)
    assert (7, 0, ()) == (cache.layers, found.quantized_kv_start, found.unquantized)
    assert (7 * 512 * (68 + 36)) / 2**20 == pytest.approx(
        cache.k_mib + cache.v_mib, rel=1e-3
    )


def test_what_was_not_asked_for_is_a_mismatch(served, golden):
    asked = CellSpec(Pair("kv4", "kv4"), 1024)

    assert golden == served.differences_from_cell(asked)


def test_a_child_that_is_killed_is_named(engine, tmp_path):
    def ask_a_killed_one():
        with engine.serving(SPLIT, log=tmp_path / "child.log") as server:
            os.kill(server.child.pid, signal.SIGKILL)
            server.client.complete(Completion(prompt="a", max_tokens=9))

    with pytest.raises(CellError, match="SIGKILL") as caught:
        ask_a_killed_one()

    assert Status.CRASHED.value == caught.value.status
    assert [] == orphans.orphans()


def test_tokens_are_counted_without_weights(engine, tmp_path):
    with engine.tokenizing(log=tmp_path / "counting.log") as tokenizer:
        assert 4 == tokenizer.count_tokens("abc")
        assert [1, 0, 5] == tokenizer.token_counts_without_special(["a", "", "<|eos"])
        assert 2 == tokenizer.count_tokens("<|eos|>")
        assert 7 == len(tokenizer.tokens("<|eos|>", add_special=False))
        (split,) = {each.piece for each in tokenizer.tokens("ä", add_special=False)[:1]}
        assert (0xC3,) == split


def task(tmp_path, pair):
    return DivergenceTask(
        pair=pair,
        reference=Pair("f16", "f16"),
        context=256,
        chunks=2,
        text=(TEXT * 8).encode(),
        text_name="text",
        weights_sha256="0" * 64,
        folder=tmp_path,
    )


def test_distributions_are_compared_with_the_reference(engine, tmp_path):
    tool = engine.divergence_tool()
    rest = {"log": tmp_path / "tool.log", "note": ignore, "progress": ignore}
    runs = []
    asked = task(tmp_path, Pair("f16", "f16"))
    kept = tool.write_reference(asked, **(rest | {"note": runs.append}))
    same = tool.compare(asked, kept, **rest)
    coarse = tool.compare(task(tmp_path, Pair("kv2", "kv2")), kept, **rest)

    assert kept == tool.find_stored_reference(asked)
    assert None is tool.find_stored_reference(replace(asked, text=b"another"))
    assert 2 * 127 == same.tokens
    assert abs(same.statistics.kld.value) < 1e-4
    assert same.statistics.same_top.value > 99
    assert pytest.approx(kept.ppl, rel=1e-4) == same.statistics.ppl.value
    assert coarse.statistics.kld.value > 0.01
    assert coarse.statistics.kld.value == pytest.approx(
        sum(chunk.kld for chunk in coarse.by_chunk) / 2
    )
    assert "f16" == runs[-1].effective.kv[0].k_type


def test_a_text_that_turns_out_too_short_is_refused(engine, tmp_path):
    tool = engine.divergence_tool()
    asked = replace(task(tmp_path, Pair("f16", "f16")), text=TEXT.encode())

    with pytest.raises(BadInput, match="tokens"):
        tool.write_reference(
            asked, log=tmp_path / "tool.log", note=ignore, progress=ignore
        )
    assert None is tool.find_stored_reference(asked)


def test_speed_is_measured_at_a_depth(engine, tmp_path):
    found = engine.speed_tool().measure(
        SpeedTask(
            pair=Pair("kv4", "kv4"),
            depth=40,
            prompt_tokens=20,
            generated_tokens=3,
            repetitions=2,
        ),
        log=tmp_path / "speed.log",
        silence_s=600,
        note=ignore,
        progress=ignore,
    )

    assert (2, 2) == (len(found.pp), len(found.tg))
    assert min(found.pp + found.tg) > 0
    assert found.peak_bytes > 1 << 20


def test_it_reads_lines_without_a_tool(engine):
    assert engine.scores_prompts
    assert "" == engine.why_it_cannot_read(2048)


def test_what_changes_the_arithmetic_is_part_of_the_setup(engine):
    settings = MlxSettings(group_size=(64, 32), max_kv_size=128, compute="model")

    assert (
        "--kv-group-size 64,32",
        "--quantized-kv-start 0",
        "--max-kv-size 128",
        "--compute model",
    ) == replace(engine, settings=settings).identity().arguments


def test_a_gpu_is_used_as_the_weights_are_and_tells_its_memory(engine, monkeypatch):
    """On a CPU, which computes in float32, users are told that it is slow."""
    (slow, at_once) = engine.notes()
    assert "float32" == engine.compute_precision
    monkeypatch.setattr(sys, "platform", "darwin")

    assert "CPU" in slow
    assert ("model", (at_once,), ("Metal",)) == (
        engine.compute_precision,
        engine.notes(),
        engine.identity().devices,
    )


def test_a_run_says_from_which_token_on_caches_are_quantized(engine, golden):
    later = MlxSettings(quantized_kv_start=5000)

    assert golden == engine.notes()[-1]
    assert golden == replace(engine, settings=later).notes()[-1]
