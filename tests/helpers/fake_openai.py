#!/usr/bin/env python3
"""
A server with OpenAI's API that misbehaves on request, in nothing but the standard
library.

It goes on with a text as the text itself does where its last line occurs first. Beside
``--port``, ``--k``, ``--v`` and ``--context`` it takes ``--fake NAME`` or
``--fake NAME=VALUE`` as often as wanted:

    ignore              compute the same whatever the cache types are
    ignore-v            the same, of V alone
    drift               tell other probabilities each time
    no-logprobs         tell no probabilities
    echo                tell probabilities of the prompt, too, as vLLM does
    echo-bare           the same, without the places of tokens
    echo-refused=N      answer N to whoever asks for that
    no-usage            tell no counts of tokens
    no-models           list no models
    other-model         list another one
    chat-only           have no /completions
    strict              refuse fields that are not OpenAI's
    stricter            refuse log-probabilities and stream options, too
    key=KEY             refuse requests without this key, and quote the one they have
    busy=N              answer N questions with 429 and Retry-After
    down=N              answer N questions with 503
    broken=N            answer N questions with 500
    redirect=URL        lead elsewhere
    mute                take questions, and never answer
    die=N               exit with N at once
    die-in-round=N      exit with N in the middle of a reply
    loading=N           answer 503 to the first N questions of /health
    leak=N              hold N bytes for each token of context
    port-taken=FILE     fail to bind, as long as FILE exists, and remove it
"""

import argparse
import contextlib
import hashlib
import json
import os
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODEL = "made/model"
STANDARD = {
    *("model", "prompt", "messages", "max_tokens", "temperature", "top_p", "seed"),
    *("presence_penalty", "frequency_penalty", "stream", "stream_options"),
    *("logprobs", "top_logprobs"),
}


def continued(prompt):
    """What follows in *prompt* where its last line occurs first."""
    lines = prompt.rstrip("\n").split("\n")
    at = lines.index(lines[-1])
    return "\n".join(lines[at + 1 : -1] or ["nothing"]) + "\n"


class Handler(BaseHTTPRequestHandler):
    """Answers by the faults of its server."""

    def log_message(self, *_args):
        pass

    @property
    def faults(self):
        return self.server.faults

    def answer(self, code, body, **headers):
        data = json.dumps(body).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, code, message, **headers):
        error = {"message": message, "type": "invalid_request_error", "code": code}
        self.answer(code, {"error": error}, **headers)

    def is_refused(self):
        sent = self.headers.get("Authorization", "")
        self.server.seen.append((self.path, sent))
        if "redirect" in self.faults:
            self.answer(307, {}, Location=self.faults["redirect"])
        elif "key" in self.faults and sent != f"Bearer {self.faults['key']}":
            self.refuse(401, f"Incorrect API key provided: {sent.split()[-1:]}")
        else:
            return False
        return True

    def count_down(self, name):
        """Whether this is one of the first questions that *name* is about."""
        self.server.counted[name] += 1
        return self.server.counted[name] <= int(self.faults.get(name, 0))

    def do_GET(self):
        if self.is_refused():
            return
        if self.path == "/health":
            loading = self.count_down("loading")
            self.answer(503 if loading else 200, {})
        elif self.path == "/v1/models" and "no-models" not in self.faults:
            name = "another" if "other-model" in self.faults else MODEL
            self.answer(200, {"object": "list", "data": [{"id": name}]})
        else:
            self.refuse(404, "Not Found")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if self.is_refused():
            return
        if "mute" in self.faults:
            time.sleep(60)
        elif self.path == "/v1/completions" and "chat-only" in self.faults:
            self.refuse(404, "Not Found")
        elif self.count_down("busy"):
            self.refuse(429, "slow down", Retry_After="0.25")
        elif self.count_down("down"):
            self.refuse(503, "overloaded")
        elif self.count_down("broken"):
            self.refuse(500, "internal error")
        elif "echo-refused" in self.faults and body.get("echo"):
            self.refuse(int(self.faults["echo-refused"]), "echo is not implemented")
        elif field := self.unwanted(body):
            self.refuse(400, f"Unrecognized request argument supplied: {field}")
        elif body.get("stream"):
            self.stream(body)
        else:
            self.whole(body)

    def whole(self, body):
        """A reply of one token in one piece, behind the prompt if that is asked for."""
        is_echo = bool({"echo", "echo-bare"} & self.faults.keys())
        prompt, said = body["prompt"] * is_echo, continued(body["prompt"])[:4]
        # A token that begins a prompt has a text, which the places count, too.
        parts = [prompt[at : at + 4] for at in range(0, len(prompt), 4)]
        pieces = [*["<s>"] * is_echo, *parts, said]
        places = [sum(map(len, pieces[:at])) for at in range(len(pieces))]
        numbers = [None, *(self.logprob(at) for at in range(1, len(pieces)))]
        told = {
            "tokens": pieces,
            "token_logprobs": numbers,
            "top_logprobs": [
                n and {piece: n, "other": n - 2}
                for piece, n in zip(pieces, numbers, strict=True)
            ],
            "text_offset": places,
        }
        if "echo-bare" in self.faults:
            del told["text_offset"]
        usage = {"prompt_tokens": len(pieces) - 1, "completion_tokens": 1}
        choice = {"text": prompt + said, "logprobs": told, "finish_reason": "length"}
        self.answer(200, {"choices": [choice], "usage": usage})

    def unwanted(self, body):
        known = set(STANDARD)
        if "stricter" in self.faults:
            known -= {"logprobs", "top_logprobs", "stream_options"}
        is_strict = self.faults.keys() & {"strict", "stricter"}
        return next((name for name in body if name not in known), "") * bool(is_strict)

    def stream(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        is_chat = "messages" in body
        prompt = body["messages"][-1]["content"] if is_chat else body["prompt"]
        text = continued(prompt)
        pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
        said = pieces[: body["max_tokens"]]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for number, piece in enumerate(said):
                if number == 1 and "die-in-round" in self.faults:
                    os._exit(int(self.faults["die-in-round"]))
                self.event(self.choice(body, number, piece, is_chat=is_chat))
            reason = "length" if len(said) < len(pieces) else "stop"
            last = {"delta": {}} if is_chat else {"text": ""}
            self.event({"choices": [{**last, "finish_reason": reason}]})
            usage = {
                "prompt_tokens": -(-len(prompt) // 4),
                "completion_tokens": len(said),
            }
            if "no-usage" not in self.faults and "stream_options" in body:
                self.event({"choices": [], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")

    def choice(self, body, number, piece, *, is_chat):
        told = {"delta": {"content": piece}} if is_chat else {"text": piece}
        choice = {**told, "finish_reason": None, "logprobs": None}
        if body.get("logprobs") and "no-logprobs" not in self.faults:
            own = self.logprob(number)
            if is_chat:
                tops = [(piece, own), ("other", own - 2)]
                listed = [{"token": t, "logprob": p} for t, p in tops]
                first = {"token": piece, "logprob": own, "top_logprobs": listed}
                choice["logprobs"] = {"content": [first]}
            else:
                choice["logprobs"] = {
                    "tokens": [piece],
                    "token_logprobs": [own],
                    "top_logprobs": [{piece: own, "other": own - 2}],
                }
        return {"choices": [choice]}

    def logprob(self, number):
        known = self.server.types
        if "ignore" in self.faults:
            known = "nothing"
        elif "ignore-v" in self.faults:
            known = known.partition("/")[0]
        if "drift" in self.faults:
            known = f"{known}{time.monotonic_ns()}"
        digest = hashlib.sha256(f"{known}:{number}".encode()).digest()
        return -0.5 - digest[0] / 1000

    def event(self, event):
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()


def made_server(*faults, port=0, types="f16/f16"):
    """A server that is not serving yet; ``seen`` and ``bodies`` tell what it got."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.faults = dict(fault.partition("=")[::2] for fault in faults)
    server.types = types
    server.counted, server.seen, server.bodies = Counter(), [], []
    return server


@contextlib.contextmanager
def endpoint(*faults, types="f16/f16"):
    """A server in this process, for the length of a block; it has its ``url``."""
    server = made_server(*faults, types=types)
    server.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--k", default="f16")
    parser.add_argument("--v", default="f16")
    parser.add_argument("--context", type=int, default=0)
    parser.add_argument("--version", action="version", version="fake version 1")
    parser.add_argument("--fake", action="append", default=[])
    asked = parser.parse_args()
    faults = dict(fault.partition("=")[::2] for fault in asked.fake)
    if "die" in faults:
        print("RuntimeError: no kernel for this cache type")  # noqa: T201 - its log
        sys.exit(int(faults["die"]))
    taken = Path(faults.get("port-taken", "/nowhere/at/all"))
    if taken.exists():
        taken.unlink()
        sys.exit("OSError: [Errno 98] Address already in use")
    held = b"x" * (int(faults.get("leak", 0)) * asked.context)
    server = made_server(*asked.fake, port=asked.port, types=f"{asked.k}/{asked.v}")
    print(f"serving with {len(held)} bytes", flush=True)  # noqa: T201 - its log
    server.serve_forever()


if __name__ == "__main__":
    main()
