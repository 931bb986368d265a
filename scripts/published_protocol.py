"""
The protocol of the published KV-cache sweeps, for comparison with ``codeneedle sweep``.

One llama-server per pair of cache types, with flash attention and an explicit context;
everything else, threads included, as llama-server has it by default. Ready when
``/health`` answers 200. One chat request per function, greedy, the whole source text
in each, at most 1,500 tokens, no early end, no log-probabilities. Then the server is
stopped.

Where the publication leaves something open, this takes what is fast: the text comes
first in each prompt, so that it is read once, and ``/health`` is polled every 20 ms.
"""

import socket
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from codeneedle.cache_types import Pair
from codeneedle.corpora.needles import NeedleFacts
from codeneedle.errors import MachineError
from codeneedle.probes.recall.alignment import align_reply
from codeneedle.probes.recall.prompts import chat_messages
from codeneedle.probes.thinking import NO_THINK_ARGS
from codeneedle.records.record import Json
from codeneedle.system.inherited_variables import inherited_variables
from codeneedle.system.processes import Child, running

HOST = "127.0.0.1"
POLL_S = 0.02
REPLY_TIMEOUT_S = 3600.0
"""For 1,500 tokens on a slow and busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """
    What every cell is asked.

    Attributes:
        text: The corpus.
        needles: The functions, in asking order.
        context: Context of the server, in tokens.
        reply_tokens: Most tokens of a reply.
    """

    text: str
    needles: tuple[NeedleFacts, ...]
    context: int
    reply_tokens: int = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCell:
    """
    One cell, measured by the published protocol.

    Attributes:
        wall_s: From the start of its server to its end, in seconds.
        tokens: Written by the server, all replies together.
        prompt_tokens: Read by the server; the others came from its cache.
        matched: Lines of 20 that came back, for each function.
    """

    wall_s: float
    tokens: int
    prompt_tokens: int
    matched: tuple[int, ...]


def measure(
    pair: Pair, questions: Questions, *, server: Path, weights: Path, log: Path
) -> PublishedCell:
    """
    Measure one cell by the published protocol.

    Raises:
        MachineError: If the server cannot be started or stopped, ends early, or
            answers with an error.
    """
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    argv = command(pair, questions, server=server, weights=weights, port=port)
    url = f"http://{HOST}:{port}"
    began = time.perf_counter()
    with (
        running(argv, env=inherited_variables(), log=log) as child,
        httpx.Client(base_url=url, timeout=REPLY_TIMEOUT_S, trust_env=False) as client,
    ):
        _wait_until_ready(child, client, log)
        replies = [_ask(client, questions, needle) for needle in questions.needles]
    wall_s = time.perf_counter() - began
    texts = [str(r["choices"][0]["message"].get("content") or "") for r in replies]
    scored = zip(questions.needles, texts, strict=True)
    return PublishedCell(
        wall_s=wall_s,
        tokens=sum(reply["timings"]["predicted_n"] for reply in replies),
        prompt_tokens=sum(reply["timings"]["prompt_n"] for reply in replies),
        matched=tuple(
            align_reply(needle, text).matched_line_count for needle, text in scored
        ),
    )


def command(
    pair: Pair, questions: Questions, *, server: Path, weights: Path, port: int
) -> list[str]:
    """The argv of the server."""
    return [
        *(str(server), "--model", str(weights)),
        *("--host", HOST, "--port", str(port)),
        *("--ctx-size", str(questions.context), "--flash-attn", "on"),
        *("--cache-type-k", pair.k, "--cache-type-v", pair.v),
    ]


def request_body(questions: Questions, needle: NeedleFacts) -> Json:
    """The body of one chat request."""
    messages = chat_messages(questions.text, needle)
    return {
        "messages": [{"role": m.role, "content": m.content} for m in messages],
        "chat_template_kwargs": NO_THINK_ARGS,
        "max_tokens": questions.reply_tokens,
        "temperature": 0,
    }


def _wait_until_ready(child: Child, client: httpx.Client, log: Path) -> None:
    while child.poll() is None:
        try:
            if client.get("/health").is_success:
                return
        except httpx.TransportError:  # not listening yet
            pass
        time.sleep(POLL_S)
    raise MachineError(
        f"llama-server exited with code {child.returncode} before it was ready",
        hint=f"End of its log: {' '.join(log.read_text().splitlines()[-2:])}",
    )


def _ask(client: httpx.Client, questions: Questions, needle: NeedleFacts) -> Json:
    body = request_body(questions, needle)
    answer = client.post("/v1/chat/completions", json=body)
    if not answer.is_success:
        raise MachineError(
            f"llama-server answered {needle.name} with {answer.status_code}: "
            f"{answer.text[:200]!r}",
            hint="Run the other sections: start-up, records.",
        )
    found: Json = answer.json()
    return found
