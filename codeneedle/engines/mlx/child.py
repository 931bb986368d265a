"""
The child process of the MLX engine: serves a model over HTTP on loopback, compares
distributions, or measures speed. Says what it does in lines of its log (`emit`).
"""

import argparse
import codecs
import contextlib
import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from typing_extensions import override

from codeneedle.cache_types import Pair
from codeneedle.engines import distributions
from codeneedle.engines.engine import HOST
from codeneedle.engines.llama_cpp.base_file import (
    HEADER,
    MAGIC,
    BaseFileStatistics,
    Lengths,
)
from codeneedle.engines.mlx import log as logs
from codeneedle.engines.mlx.log import KEY_VARIABLE, emit
from codeneedle.engines.mlx.settings import MlxSettings
from codeneedle.engines.mlx.tokens import TextModel
from codeneedle.engines.tools import Comparison, indices_of_first_equals

Json = dict[str, Any]

MOST_BODY_BYTES = 256 << 20
"""A prompt of a million tokens, as numbers, has some 10 MB."""

LEAST_CHUNKS = 2
"""Of a text whose distributions are compared."""

_FORCED = re.compile(r"<\[(\d+)\]>")
"""A token in the grammar that makes tokens come, see `client.forcing_body`."""


class Refusal(Exception):  # noqa: N818 - named after the fact
    """A request that cannot be answered; its body is sent."""

    def __init__(self, code: int, kind: str, message: str, **more: int) -> None:
        super().__init__(message)
        self.code = code
        self.body = {"error": {"code": code, "type": kind, "message": message, **more}}


class ChildServer(HTTPServer):
    """One request at a time."""

    text: TextModel  # tokenizer and template
    session: Any  # the model; None of a server that only counts
    alias: str  # the name under which it answers
    key: str  # what requests must carry
    context: int  # tokens of a prompt and its reply


class Handler(BaseHTTPRequestHandler):
    """The endpoints of llama-server that our client asks for."""

    server: ChildServer

    def do_GET(self) -> None:
        """Answer ``/health``, which takes no key, and ``/v1/models``."""
        if self.path == "/health":
            self._send_answer(200, {"status": "ok"})
            return
        try:
            self._refuse_strangers()
            if self.path != "/v1/models":
                self._refuse_path({})
            self._send_answer(200, {"data": [{"id": self.server.alias}]})
        except Refusal as refusal:
            self._send_refusal(refusal)

    def do_POST(self) -> None:
        """Answer all other requests, which need a key."""
        answers: dict[str, Callable[[Json], None]] = {
            "/tokenize": self._tokenize,
            "/apply-template": self._render,
            "/completion": self._complete,
            "/v1/chat/completions": self._chat,
        }
        try:
            self._refuse_strangers()
            answers.get(self.path, self._refuse_path)(self._read_body())
        except Refusal as refusal:
            self._send_refusal(refusal)
        except (KeyError, TypeError, ValueError) as error:
            self._send_refusal(Refusal(400, "invalid_request_error", str(error)))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client has enough

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the parent knows what it asks."""

    def _refuse_strangers(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {self.server.key}":
            raise Refusal(401, "authentication_error", "invalid key")

    def _refuse_path(self, _body: Json) -> None:
        raise Refusal(404, "not_found_error", "no such path")

    def _read_body(self) -> Json:
        """The JSON object of the request; stops at none, or over `MOST_BODY_BYTES`."""
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 < length <= MOST_BODY_BYTES:
            raise Refusal(413, "invalid_request_error", "no body, or too large a one")
        body = json.loads(self.rfile.read(length))
        if not isinstance(body, dict):
            raise TypeError("the body is no object")
        return body

    def _send_answer(self, code: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_refusal(self, refusal: Refusal) -> None:
        self._send_answer(refusal.code, refusal.body)

    def _send_event(self, body: Json) -> None:
        """Send *body* as one event of a stream that has begun."""
        self.wfile.write(f"data: {json.dumps(body)}\n\n".encode())
        self.wfile.flush()

    def _begin_stream(self) -> None:
        """Begin a stream of events; from here on no error can be sent."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

    def _tokenize(self, body: Json) -> None:
        """``/tokenize``: token numbers, on request with their parts of the text."""
        text = self.server.text
        tokens: list[Any] = text.ids(
            body["content"],
            add_special=body.get("add_special", False),
            parse_special=body.get("parse_special", True),
        )
        if body.get("with_pieces"):
            tokens = [
                {"id": id_, "piece": _piece_as_json(text.piece(id_))} for id_ in tokens
            ]
        self._send_answer(200, {"tokens": tokens})

    def _render(self, body: Json) -> None:
        """``/apply-template``, which may take `RENDER_MEMORY_BYTES`."""
        with limited_memory(RENDER_MEMORY_BYTES):
            self._send_answer(200, {"prompt": self._prompt_of_messages(body)})

    def _prompt_of_messages(self, body: Json) -> str:
        return self.server.text.render(
            body["messages"], body.get("chat_template_kwargs")
        )

    def _complete(self, body: Json) -> None:
        """``/completion``; a grammar or a bias makes tokens come."""
        prompt = body["prompt"]
        ids = self.server.text.ids(prompt) if isinstance(prompt, str) else prompt
        count, listed = body.get("n_predict", 0), body.get("n_probs", 1)
        self._stream_reply(
            ids, count, _tokens_to_force(body), listed, _completion_event
        )

    def _chat(self, body: Json) -> None:
        """``/v1/chat/completions``; nothing is made to come."""
        with limited_memory(RENDER_MEMORY_BYTES):
            ids = self.server.text.ids(self._prompt_of_messages(body))
        count, listed = body.get("max_tokens", 0), body.get("top_logprobs", 1)
        self._stream_reply(ids, count, [], listed, _chat_event)

    def _stream_reply(
        self,
        ids: list[int],
        count: int,
        forced: Sequence[int],
        listed: int,
        event: Callable[[str, list[Json], Json, str], Json],
    ) -> None:
        """
        Stream a reply of *count* tokens at most, *forced* ones if there are any.

        It has *listed* candidates per token; a last line of the log tells the memory.
        *event* makes an event of a text, its tokens, timings and why it ends.

        Raises:
            Refusal: Before it begins, if the server only counts or *ids* do not fit.
        """
        if self.server.session is None:
            raise Refusal(501, "not_supported_error", "this server only counts")
        # As llama-server does: there must be room for a token of the reply.
        if not ids or len(ids) >= self.server.context:
            raise Refusal(
                400,
                "exceed_context_size_error",
                f"{len(ids)} tokens do not fit",
                n_prompt_tokens=len(ids),
                n_ctx=self.server.context,
            )
        self._begin_stream()
        reply = _ReplyInProgress(self.server, ids, max(1, listed), forced)
        for text, tokens, finish in reply.generate_parts(
            min(count, self.server.context - len(ids)),
            lambda _: self._send_event(event("", [], reply.timings(), "")),
        ):
            self._send_event(event(text, tokens, reply.timings(), finish))
        emit(_memory_use())


class _ReplyInProgress:
    """A reply while it is made, and its counts and times."""

    def __init__(
        self, server: ChildServer, ids: list[int], listed: int, forced: Sequence[int]
    ) -> None:
        """Start the clock of `timings`; nothing is read yet."""
        self._server = server
        self._ids = ids
        self._listed = listed
        self._forced = forced
        self._began = time.perf_counter()
        self._read_s: float | None = None
        self._count = 0

    def timings(self) -> Json:
        """Timings, as llama-server states them."""
        now = time.perf_counter() - self._began
        read = now if self._read_s is None else self._read_s
        reused = self._server.session.reused
        return {
            "cache_n": reused,
            "prompt_n": len(self._ids) - reused,
            "prompt_ms": 1000 * read,
            "predicted_n": self._count,
            "predicted_ms": 1000 * (now - read),
        }

    def generate_parts(
        self, most: int, progress: Callable[[int], None]
    ) -> Iterator[tuple[str, list[Json], str]]:
        """Text, tokens and, of the last one, why the reply ends."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        ends = self._server.text.ends
        for token, scored, is_last in self._generate_tokens(most, progress):
            is_end = token in ends and not self._forced
            piece = b"" if is_end else self._server.text.piece(token)
            text = decoder.decode(piece, final=is_last or is_end)
            finish = "stop" if is_end else "length" if is_last else ""
            yield text, [scored], finish
            if is_end:
                return

    def _generate_tokens(
        self, most: int, progress: Callable[[int], None]
    ) -> Iterator[tuple[int, Json, bool]]:
        """
        Each token, its scores, and whether it is the last.

        The forced ones, or the most probable ones one by one.
        """
        session = self._server.session
        if self._forced:
            rows = session.score(self._ids, self._forced, progress)
            for at, (token, row) in enumerate(zip(self._forced, rows, strict=True)):
                yield (
                    token,
                    self._count_and_score_token(token, row),
                    at == len(self._forced) - 1,
                )
            return
        row = session.read_and_score_prompt(self._ids, progress)
        while True:
            token = int(row.argmax())
            scored = self._count_and_score_token(token, row)
            yield token, scored, self._count >= most
            if self._count >= most:
                return
            row = session.append_and_score_token(token)

    def _count_and_score_token(self, token: int, row: Any) -> Json:
        """
        JSON of *token* and the most probable ones; *row* has log-probabilities by id.

        Counts it; the first one ends the time of reading.
        """
        if self._read_s is None:
            self._read_s = time.perf_counter() - self._began
        self._count += 1
        listed = min(self._listed, len(row))
        top = np.argpartition(row, -listed)[-listed:]
        best = sorted(top.tolist(), key=lambda token_id: -row[token_id])
        return {
            "id": token,
            "logprob": float(row[token]),
            "top_logprobs": [
                {"id": token_id, "logprob": float(row[token_id])} for token_id in best
            ],
        }


def _completion_event(
    text: str, tokens: list[Json], timings: Json, finish: str
) -> Json:
    """An event of ``/completion``; *finish* is empty but for the last."""
    return {
        "content": text,
        "stop": bool(finish),
        "stop_type": {"length": "limit", "stop": "eos"}.get(finish, "none"),
        "completion_probabilities": tokens,
        "timings": timings,
    }


def _chat_event(text: str, tokens: list[Json], timings: Json, finish: str) -> Json:
    """An event of a chat; *finish* is empty but for the last."""
    choice = {
        "delta": {"content": text},
        "logprobs": {"content": tokens},
        "finish_reason": finish or None,
    }
    return {"choices": [choice], "timings": timings}


def _tokens_to_force(body: Json) -> list[int]:
    """The tokens that are made to come, if any."""
    if "grammar" in body:
        return [int(digits) for digits in _FORCED.findall(body["grammar"])]
    return [int(token) for token, _ in body.get("logit_bias", ())]


def _piece_as_json(piece: bytes) -> str | list[int]:
    """*piece* as text; its bytes as numbers where they are no UTF-8."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _memory_use() -> logs.Memory:
    """What MLX has allocated, now and at most."""
    from codeneedle.engines.mlx.model import active_bytes, peak_bytes

    return logs.Memory(peak_bytes=peak_bytes(), active_bytes=active_bytes())


RENDER_MEMORY_BYTES = 4 << 30
"""What a chat template and its prompt may take: it may ask for all there is."""


@contextlib.contextmanager
def limited_memory(more_bytes: int) -> Iterator[None]:
    """Have allocations fail beyond *more_bytes* in the block, where the system can."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    held_bytes = getattr(psutil.Process().memory_info(), "data", None)
    if held_bytes is not None and before[0] == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_DATA, (held_bytes + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def serve(options: argparse.Namespace) -> None:
    """Answer requests until a signal comes; without a model if it only counts."""
    text = TextModel(options.model)
    session = None if options.counting else _load_session_and_log_caches(options)
    server = ChildServer((HOST, options.port), Handler)
    server.text, server.session = text, session
    server.alias, server.context = options.alias, options.context
    server.key = os.environ.pop(KEY_VARIABLE, "")
    server.serve_forever()


def _load_session_and_log_caches(options: argparse.Namespace) -> Any:
    """The model in memory; its log says what its caches are."""
    from codeneedle.engines.mlx.model import Session, versions

    settings = MlxSettings(
        group_size=options.kv_group_size,
        quantized_kv_start=options.quantized_kv_start,
        max_kv_size=options.max_kv_size,
        rope_factor=options.rope_factor,
        compute=options.compute,
    )
    pair = Pair(options.cache_type_k, options.cache_type_v)
    session = Session.load(options.model, pair, settings)
    emit(
        logs.Running(
            build=versions(),
            context=options.context,
            layers=session.clear_and_inspect_caches(),
            quantized_kv_start=options.quantized_kv_start,
            rope_factor=options.rope_factor,
        )
    )
    return session


def run_divergence(options: argparse.Namespace) -> None:
    """Write the reference's rows of a text, or compare with those in the base file."""
    session = _load_session_and_log_caches(options)
    with options.base.open("wb" if options.text else "rb") as base:
        if options.text:
            _write_and_log_base(options, session, base)
        else:
            _compare_with_base(options, session, base)


def _write_and_log_base(options: argparse.Namespace, session: Any, base: Any) -> None:
    """
    Write the rows of the text into *base*, and say so in the log.

    A text of less than `LEAST_CHUNKS` chunks, or NaN, ends it with a line that says so.
    """
    text, context = TextModel(options.model), options.context
    content = options.text.read_bytes().decode(errors="replace")
    ids = text.ids(content, parse_special=False)
    # As llama-perplexity: a shorter text makes fewer chunks, but not fewer than two.
    needed = LEAST_CHUNKS * context
    if len(ids) < needed:
        emit(logs.Short(lengths=Lengths(present=len(ids), needed=needed)))
        return
    chunks = distributions.split_into_chunks(
        ids, context=context, beginning=text.ids("")
    )
    chunks = chunks[: options.chunks]
    base.write(HEADER.pack(MAGIC, context, session.vocabulary, len(chunks)))
    base.write(np.array(chunks, dtype=np.int32).tobytes())
    sums = distributions.Sums()
    for at, chunk in enumerate(chunks):
        for place, (row, right) in enumerate(
            _score_second_half_of_chunk(session, chunk)
        ):
            if _report_if_nan(row, right, at * context + context // 2 + 1 + place):
                return
            base.write(distributions.encoded_row(row).tobytes())
            sums.nll.append(-float(row[right]))
        emit(logs.ChunkRead())
    ppl = float(np.exp(distributions.mean_estimate(np.array(sums.nll)).value))
    emit(logs.Wrote(base=BaseFileStatistics(chunks=len(chunks), ppl=ppl)))


def _compare_with_base(options: argparse.Namespace, session: Any, base: Any) -> None:
    """
    Compare the rows of this pair with those in *base*, and say so in the log.

    NaN ends it with a line that says so.
    """
    header = HEADER.unpack(base.read(HEADER.size))
    _, context, vocabulary, count = header
    if (context, vocabulary) != (options.context, session.vocabulary):
        raise ValueError("the base file is one of another model or context")
    tokens = np.frombuffer(base.read(4 * count * context), dtype=np.int32)
    size = 2 * distributions.values_per_row(vocabulary)
    sums, by_chunk = distributions.Sums(), []
    for at, chunk in enumerate(tokens.reshape(count, context).tolist()):
        start = len(sums)
        for place, (row, right) in enumerate(
            _score_second_half_of_chunk(session, chunk)
        ):
            if _report_if_nan(row, right, at * context + context // 2 + 1 + place):
                return
            stored = np.frombuffer(base.read(size), dtype=np.uint16)
            sums.add_token(row, distributions.decoded_row(stored, vocabulary), right)
        by_chunk.append(sums.means_from(start))
        emit(logs.ChunkRead())
    comparison = Comparison(
        statistics=sums.statistics(),
        tokens=len(sums),
        by_chunk=tuple(by_chunk),
        logprobs=sums.rounded_logprobs,
        first_choices=sums.first_choice_percent,
        same_as=indices_of_first_equals(
            map(tuple, tokens.reshape(count, context)[:, 1:].tolist())
        ),
    )
    emit(logs.TextCompared(comparison=comparison))


def _report_if_nan(row: Any, right: int, token: int) -> bool:
    """Whether *right* has NaN in *row*; the log tells it with the number *token*."""
    is_nan = bool(np.isnan(row[right]))
    if is_nan:
        emit(logs.NanComputed(token=token))
    return is_nan


def _score_second_half_of_chunk(
    session: Any, chunk: Sequence[int]
) -> Iterator[tuple[Any, int]]:
    """Rows and right tokens of the second half of *chunk*, from an empty cache."""
    session.clear_caches()
    at = len(chunk) // 2 + 1
    rows = session.score(chunk[:at], chunk[at:])
    yield from zip(rows, chunk[at:], strict=True)


def run_speed(options: argparse.Namespace) -> None:
    """Measure both speeds at one depth; a line of the log for each repetition."""
    from codeneedle.engines.mlx.model import measure_speeds

    session = _load_session_and_log_caches(options)
    measured = measure_speeds(
        session,
        depth=options.depth,
        prompt=options.prompt_tokens,
        generated=options.generated_tokens,
        repetitions=options.repetitions,
    )
    for speed in measured:
        emit(speed)


def _parse_numbers(text: str) -> tuple[int, ...]:
    """``64``, or ``64,32`` for K and V."""
    return tuple(map(int, text.split(",")))


def parser() -> argparse.ArgumentParser:
    """The arguments of the child."""
    made = argparse.ArgumentParser(prog="codeneedle-mlx", allow_abbrev=False)
    made.add_argument("mode", choices=("serve", "divergence", "speed"))
    made.add_argument("--model", type=Path, required=True)
    made.add_argument("--context", type=int, required=True)
    made.add_argument("--cache-type-k", default="f16")
    made.add_argument("--cache-type-v", default="f16")
    made.add_argument("--kv-group-size", type=_parse_numbers, default=(64,))
    made.add_argument("--quantized-kv-start", type=int, default=0)
    made.add_argument("--max-kv-size", type=int)
    made.add_argument("--rope-factor", type=float)
    made.add_argument("--compute", choices=("float32", "model"), default="model")
    made.add_argument("--alias", default="")
    made.add_argument("--port", type=int, default=0)
    made.add_argument("--counting", action="store_true")
    made.add_argument("--base", type=Path)
    made.add_argument("--text", type=Path)
    numbers = ("chunks", "depth", "prompt-tokens", "generated-tokens", "repetitions")
    for name in numbers:
        made.add_argument(f"--{name}", type=int, default=0)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the arguments say; the exit status is 0, or that of an exception."""
    options = parser().parse_args(arguments)
    modes = {"serve": serve, "divergence": run_divergence, "speed": run_speed}
    try:
        modes[options.mode](options)
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
