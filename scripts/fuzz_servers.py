"""Fuzzed: what servers answer and log, and what tools print."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fuzz_seeds as seeds
import httpx
from fuzz_claims import claim

from codeneedle.engines.client import Chat, Client, Completion, Message
from codeneedle.engines.llama_cpp import log
from codeneedle.engines.llama_cpp.bench import (
    AskedTests,
    differences,
    is_unknown_type,
    last_phase,
)
from codeneedle.engines.llama_cpp.bench import read_result as read_bench
from codeneedle.engines.llama_cpp.installation import read_help
from codeneedle.engines.llama_cpp.log import Asked, mismatches
from codeneedle.engines.llama_cpp.perplexity import (
    chunks_done,
    ends_early,
    failure,
    final_perplexity,
    size,
    statistics,
    too_short,
)
from codeneedle.engines.responses import Reply
from codeneedle.grid import Pair
from codeneedle.probes.recall import enough_for
from codeneedle.records.encoding import decode_record, encode
from codeneedle.records.record import (
    CellRecord,
    Recall,
    Round,
    Status,
    as_json,
    from_json,
)
from codeneedle.sweep.fallbacks import suspects

PAIR = Pair("q8_0", "q4_0")


class _Server(httpx.BaseTransport):
    """A server that says what it is told to say, in pieces of one size."""

    def __init__(self) -> None:
        self.data, self.size, self.code = b"", 1, 200

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer whatever is asked."""
        starts = range(0, len(self.data), self.size)
        chunks = (self.data[at : at + self.size] for at in starts)
        return httpx.Response(self.code, content=chunks, request=request)


_SERVER = _Server()
_CLIENT = Client("http://127.0.0.1:9", alias="alias", api_key="none", transport=_SERVER)
_IS_REFUSED = 0x80
_NEEDLE = seeds.made("made_records").made_needle()
_COMPLETION = Completion(prompt="", max_tokens=1)
_SAID = (Message("user", ""),)


_QUESTIONS: tuple[Callable[[], object], ...] = (
    lambda: _keeps(_CLIENT.complete(_COMPLETION, enough=enough_for(_NEEDLE))),
    lambda: _keeps(_CLIENT.chat(Chat(messages=_SAID, max_tokens=1))),
    lambda: _CLIENT.count_tokens(""),
    lambda: _CLIENT.render(_SAID),
    _CLIENT.readiness,
)


def read_answer(data: bytes) -> None:
    """What a server answers; two bytes before it choose question, success and cuts."""
    how, cut = (*data[:2], 0, 0)[:2]
    _SERVER.data, _SERVER.size = data[2:], 1 + 97 * cut
    _SERVER.code = 400 if how & _IS_REFUSED else 200
    _QUESTIONS[(how & ~_IS_REFUSED) % len(_QUESTIONS)]()


def _keeps(reply: Reply) -> None:
    """A reply is stored, and read back as it was."""
    said = {name: getattr(reply, name) for name in Reply.__slots__}
    said = {name: said[name] for name in said if name in Round.__slots__}
    asked = Round(needle="f_a", prompt_sha256="", reply=reply.text, **said)
    stored = _stored(as_json(Recall(rounds=(asked,))))
    kept = from_json(stored.observation or {}, Recall, file="x").rounds[0]
    claim(kept == asked, "a round is read back as it was")
    numbers = (*asked.logprobs, *asked.gaps, asked.prompt_ms, asked.predicted_ms)
    claim(all(map(math.isfinite, numbers)), "what is observed is a number")
    claim(sum(asked.lengths) <= len(asked.reply), "tokens have no text but the reply")


def _stored(observation: dict[str, Any] | None = None, **facts: Any) -> CellRecord:
    record = CellRecord(
        pair=PAIR,
        probe="recall",
        status=Status.FINISHED,
        started="",
        observation=observation,
        **facts,
    )
    read = decode_record(encode(record), file="x")
    claim(read == record, "a record is read back as it was")
    return read


def read_server_log(data: bytes) -> None:
    """The log of a server, and all that is concluded from it."""
    text = data.decode(errors="replace")
    effective = log.read(text)
    asked = Asked(pair=PAIR, context=4096, all_layers=True)
    phrases = mismatches(asked, effective)
    troubles = [log.trouble(text), log.fallback(text)]
    lines = (*phrases, *log.evidence(text), *log.last_words(text))
    lines = (*lines, *(each.reason for each in troubles if each))
    claim(all("\n" not in line for line in lines), "lines are lines")
    record = _stored(effective=effective, log_excerpt=lines)
    other = replace(record, pair=Pair("f16", "f16"))
    suspects([record, other], speed=lambda _: 1.0, has_device=True)


def read_perplexity(data: bytes) -> None:
    """The log of llama-perplexity."""
    text = data.decode(errors="replace")
    found = statistics(text)
    claim(found is None or failure(text) is None, "failures have no statistics")
    for read in (chunks_done, ends_early, final_perplexity, size, too_short):
        read(text)


def read_bench_lines(data: bytes) -> None:
    """The output of llama-bench, and of ``--help``."""
    text = data.decode(errors="replace")
    last_phase(text)
    is_unknown_type(text)
    version, _, options = text.partition("\0")
    read_help(version, options)
    asked = AskedTests(
        pair=PAIR, depth=0, prompt_tokens=64, generated_tokens=16, repetitions=2
    )
    result = read_bench(text, asked)
    differences(result, asked)
    claim(all(map(math.isfinite, result.pp.speeds)), "speeds are numbers")
