"""
The protocol of the published sweeps, as far as the publication tells of it.

A server with the two cache types, flash attention and an explicit context, the rest
as llama-server has it by default, threads included; ready when ``/health`` says so.
One chat request per function, greedy, the whole source file in each, answers taken
as they come until the model ends or has its 1,500 tokens; then the server is killed.
No early end, no speculation, no log-probabilities.

It exists to be measured beside a sweep, and nowhere in the product. Where the
publication leaves something open, this takes what is fast: the text comes first in
each prompt, so that it is read once, and ``/health`` is asked every 20 ms.
"""

import http.client
import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_place import CONTEXT, Model, Stopped

from codeneedle.grid import Pair
from codeneedle.probes.prompts import NO_THINK_ARGS, chat_messages
from codeneedle.records.record import Json, NeedleFacts
from codeneedle.scoring.alignment import score
from codeneedle.system import processes
from codeneedle.system.processes import Child, running

HOST = "127.0.0.1"
LOOK_S = 0.02
PATIENCE_S = 3600.0
"""For a reply: 1,500 tokens on a machine that is busy with something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """
    A cell of the published protocol.

    Attributes:
        pair: Its cache types.
        wall_s: From the start of its server to its end, in seconds.
        ready_s: Of that, until ``/health`` said that it is ready.
        busy_s: What the server says that it read and wrote, in seconds.
        tokens: That it wrote.
        read: Tokens of prompts that it read; the others it had in its cache.
        matched: Lines of 20, for each function.
    """

    pair: str
    wall_s: float
    ready_s: float
    busy_s: float
    tokens: int
    read: int
    matched: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """
    What is asked, on both sides.

    Attributes:
        text: The corpus.
        needles: The functions, in asking order.
    """

    text: str
    needles: tuple[NeedleFacts, ...]


def played(
    pair: Pair, text: Text, *, model: Model, reply_tokens: int, log: Path
) -> Published:
    """
    Play a cell as it was published.

    Raises:
        Stopped: If the server ends, or does not answer.
        MachineError: If it cannot be started or stopped.
    """
    port = _free_port()
    began = time.perf_counter()
    argv = command(pair, model=model, port=port)
    # The same variables as a server of ours inherits, and none that we set.
    with running(argv, env=processes.clean(os.environ), log=log) as child:
        _wait(child, port, log)
        ready_s = time.perf_counter() - began
        replies = [_asked(port, text, needle, reply_tokens) for needle in text.needles]
    wall_s = time.perf_counter() - began
    return Published(
        pair=str(pair),
        wall_s=wall_s,
        ready_s=ready_s,
        busy_s=sum(busy_ms(reply) for reply in replies) / 1000,
        tokens=sum(reply["timings"]["predicted_n"] for reply in replies),
        read=sum(reply["timings"]["prompt_n"] for reply in replies),
        matched=matched(text.needles, [content(reply) for reply in replies]),
    )


def command(pair: Pair, *, model: Model, port: int) -> list[str]:
    """The argv of its server."""
    return [
        str(model.binary),
        *("--model", str(model.weights.path)),
        *("--host", HOST, "--port", str(port)),
        *("--ctx-size", str(CONTEXT), "--flash-attn", "on"),
        *("--cache-type-k", pair.k, "--cache-type-v", pair.v),
    ]


def question(text: Text, needle: NeedleFacts, reply_tokens: int) -> Json:
    """The body of a request."""
    messages = chat_messages(text.text, needle)
    return {
        "messages": [{"role": m.role, "content": m.content} for m in messages],
        "chat_template_kwargs": NO_THINK_ARGS,
        "max_tokens": reply_tokens,
        "temperature": 0,
    }


def matched(needles: Sequence[NeedleFacts], replies: Sequence[str]) -> tuple[int, ...]:
    """Lines of 20 that each reply gives back, scored as a sweep scores them."""
    return tuple(
        score(needle, reply).matched
        for needle, reply in zip(needles, replies, strict=True)
    )


def content(reply: Json) -> str:
    """What the model said."""
    return str(reply["choices"][0]["message"].get("content") or "")


def busy_ms(reply: Json) -> float:
    """What the server says that it read and wrote for *reply*, in milliseconds."""
    timings = reply["timings"]
    return float(timings["prompt_ms"]) + float(timings["predicted_ms"])


def _wait(child: Child, port: int, log: Path) -> None:
    while child.poll() is None:
        try:
            if _said(port, "GET", "/health")[0] == http.client.OK:
                return
        except OSError:  # nobody listens yet
            pass
        time.sleep(LOOK_S)
    raise Stopped(
        f"llama-server ends with {child.returncode} before it is ready",
        hint=f"Its last words: {' '.join(log.read_text().splitlines()[-2:])}",
    )


def _asked(port: int, text: Text, needle: NeedleFacts, reply_tokens: int) -> Json:
    body = json.dumps(question(text, needle, reply_tokens))
    code, data = _said(port, "POST", "/v1/chat/completions", body)
    if code != http.client.OK:
        raise Stopped(
            f"llama-server answers {needle.name} with {code}: {data[:200]!r}",
            hint="Try it without this section.",
        )
    answer: Json = json.loads(data)
    return answer


def _said(
    port: int, method: str, path: str, body: str | None = None
) -> tuple[int, bytes]:
    line = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    try:
        line.request(method, path, body, {"Content-Type": "application/json"})
        response = line.getresponse()
        return response.status, response.read()
    finally:
        line.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
