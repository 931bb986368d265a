#!/usr/bin/env python3
r"""
A server with OpenAI's API that misbehaves on request, in nothing but the standard
library.

It goes on with a text as the text itself does where its last line occurs first.
Beside ``--port``, ``--k``, ``--v``, ``--context`` it takes ``--fakes FILE``, JSON lists
of the following by type of K, and ``--fake NAME`` or ``--fake NAME=VALUE`` as often as
wanted:

    ignore-v            compute the same whatever the cache type of V is
    no-logprobs         tell no probabilities
    echo                tell probabilities of the prompt, too, as vLLM does
    echo-refused=N      answer N to whoever asks for that
    echo-refused-at=N   answer 400 to whoever asks for the Nth of them
    logprob=X           tell X as each log-probability: 5, NaN, -Infinity
    alone               list no token beside the one that comes
    twice               list the token that comes again, under another text
    mangled             tell tokens that do not spell the text
    parts=HOW           have a token for each byte of a character beyond ASCII, told as
                        U+FFFD (unknown), with the last (last), <0xE2> (hex), or
                        bytes:\xe2 (bytes)
    offsets=HOW         tell places of tokens that are bare (none), zero, minus or
                        falling
    most=N              end each reply after N tokens
    counts=X            tell X as each count of tokens: -3, 1e400, null
    no-usage            tell no counts of tokens
    no-models           have no list of models
    none-listed         list none
    models=N            list N million models without names
    echoes=N            answer N million empty echoes
    says-key            say the key that a request has
    tells=PLACE         tell that key at a place of each answer: .choices.0.text, a name
                        in usage (.usage.+), a header (Retry-After:), the status line
                        (reason), a line that is none (line), or the log (log)
    tells-how=HOW       not whole, but broken by a line end (line), by blanks of other
                        kinds (blank), into three lines (three), or often
    open-end            keep the connection open behind the end of a reply
    endless-end         end a reply again and again
    no-end              send pings behind the last token, and never end the reply
    other-model         list another one
    serves=NAME         list a model of this name
    chat-only           have no /completions
    strict              refuse fields that are not OpenAI's
    stricter            refuse log-probabilities and stream options, too
    wants=KEY           refuse requests without this key, and quote the one they have
    busy=N              answer N questions with 429 and Retry-After
    retry-after=TEXT    answer all questions with 429 and this Retry-After
    down=N              answer N questions with 503
    broken=N            answer N questions with 500
    odd=N               answer N questions with 400
    refuse=N            answer all questions with N
    redirect=URL        lead elsewhere
    redirect-post=URL   the same of questions to the model alone
    leave               leave a process that bears our mark
    cookie=TEXT         set this cookie with each answer
    mute                take questions, and never answer
    die=N               exit with N at once
    die-in-round=N      exit with N in the middle of a reply
    loading=N           answer 503 to the first N questions of /health
    flood               write lines into the log without end
    flood-in-round      the same from the first question on
    leak=N              hold N bytes for each token of context
    port-taken=FILE     fail to bind, as long as FILE exists, and remove it
"""

import argparse
import contextlib
import hashlib
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMAND = shlex.join([sys.executable, "-S", __file__])
"""Starts it; it needs nothing that is installed."""

MODEL = "made/model"
HEALTH = ("/health", "/api/version", "/api/extra/version")
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


def many(name, millions):
    """An answer of so many million empty objects, in 3 MB each."""
    return b'{"%s":[%s{}]}' % (name.encode(), b"{}," * (millions * 10**6))


class Handler(BaseHTTPRequestHandler):
    """Answers by the faults of its server."""

    def log_message(self, *_args):
        pass

    @property
    def faults(self):
        return self.server.faults

    def answer(self, code, body, **headers):
        body = self.with_key(body)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.begin(code)
        if "cookie" in self.faults:
            headers["Set_Cookie"] = self.faults["cookie"]
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def key(self):
        """What the request has as its key, in the form that is asked for."""
        key = self.headers.get("Authorization", "").rpartition(" ")[2]
        third = len(key) // 3
        parts = key[:third], key[third : 2 * third], key[2 * third :]
        return {
            "line": f"{parts[0]}\n{parts[1]}{parts[2]}",
            "blank": f"{parts[0]}\u00a0{parts[1]}\u2028{parts[2]}",
            "three": "\n".join(parts),
            "often": " ".join([key] * 200),
        }.get(self.faults.get("tells-how"), key)

    def with_key(self, body):
        """*body* with the key at the place of JSON that is asked for."""
        _, *path, last = ("", *self.faults.get("tells", "").split("."))
        if not path or path.pop(0):
            return body
        inner = body
        for name in path:
            inner = inner[int(name)] if isinstance(inner, list) else inner.get(name)
            if not inner:
                return body
        if isinstance(inner, list):
            inner[int(last)] = self.key()
        elif isinstance(inner, dict) and last == "+":
            inner[self.key()] = -3.0
        elif isinstance(inner, dict):
            inner[last] = self.key()
        return body

    def begin(self, code):
        """The status line, and headers of questions to the model that have the key."""
        place = self.faults.get("tells", "") if self.command == "POST" else ""
        self.send_response(code, self.key() if place == "reason" else None)
        if place.endswith(":"):
            self.send_header(place[:-1], self.key())
        if place == "line":
            self.wfile.write(f"{self.key()}\r\n".encode())
        if place == "log":
            print(self.key(), flush=True)  # noqa: T201 - its log

    def refuse(self, code, message, **headers):
        error = {"message": message, "type": "invalid_request_error", "code": code}
        self.answer(code, {"error": error}, **headers)

    def is_refused(self):
        sent = self.headers.get("Authorization", "")
        self.server.seen.append((self.path, sent))
        redirect = "redirect-post" if self.command == "POST" else "redirect"
        if redirect := self.faults.get("redirect", self.faults.get(redirect)):
            self.answer(307, {}, Location=redirect)
        elif "wants" in self.faults and sent != f"Bearer {self.faults['wants']}":
            self.refuse(401, f"Incorrect API key provided: {sent.split()[-1:]}")
        else:
            return False
        return True

    def count_down(self, name):
        """Whether this is one of the first questions that *name* is about."""
        self.server.counted[name] += 1
        return self.server.counted[name] <= int(self.faults.get(name, 0))

    def is_at(self, name):
        """Whether this is the one question that *name* is about."""
        self.server.counted[name] += 1
        return self.server.counted[name] == int(self.faults.get(name, 0))

    def is_busy(self):
        if self.count_down("busy"):
            self.refuse(429, "slow down", Retry_After="0.25")
        elif "retry-after" in self.faults:
            self.refuse(429, "slow down", Retry_After=self.faults["retry-after"])
        elif self.count_down("down"):
            self.refuse(503, "overloaded")
        elif "refuse" in self.faults:
            self.refuse(int(self.faults["refuse"]), "no such thing")
        elif self.count_down("odd"):
            self.refuse(400, "not now")
        elif self.count_down("broken"):
            self.refuse(500, "internal error")
        else:
            return False
        return True

    def do_GET(self):
        if self.is_refused():
            return
        if self.path in HEALTH:
            loading = self.count_down("loading")
            self.answer(503 if loading else 200, {})
        elif self.path == "/v1/models" and "models" in self.faults:
            self.answer(200, many("data", int(self.faults["models"])))
        elif self.path == "/v1/models" and "no-models" not in self.faults:
            own = self.faults.get("serves", MODEL)
            name = "another" if "other-model" in self.faults else own
            listed = [] if "none-listed" in self.faults else [{"id": name}]
            self.answer(200, {"object": "list", "data": listed})
        else:
            self.refuse(404, "Not Found")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if self.is_refused():
            return
        if "flood-in-round" in self.faults:
            threading.Thread(target=flood, daemon=True).start()
        if "mute" in self.faults:
            time.sleep(60)
        elif self.path == "/v1/completions" and "chat-only" in self.faults:
            self.refuse(404, "Not Found")
        elif self.is_busy():
            pass
        elif "echo-refused" in self.faults and body.get("echo"):
            self.refuse(int(self.faults["echo-refused"]), "echo is not implemented")
        elif body.get("echo") and self.is_at("echo-refused-at"):
            self.refuse(400, "no echo of this one")
        elif field := self.unwanted(body):
            self.refuse(400, f"Unrecognized request argument supplied: {field}")
        elif body.get("stream"):
            self.stream(body)
        else:
            self.whole(body)

    def whole(self, body):
        """A reply of one token in one piece, behind the prompt if that is asked for."""
        if "echoes" in self.faults:
            self.answer(200, many("choices", int(self.faults["echoes"])))
            return
        prompt = body["prompt"] * ("echo" in self.faults)
        said = continued(body["prompt"])[:4]
        # A token that begins a prompt has a text, which the places count, too.
        parts = [*self.parts(prompt)]
        pieces = [*["<s>"] * bool(prompt), *parts, said]
        places = [sum(map(len, pieces[:at])) for at in range(len(pieces))]
        told = [None, *(self.logprob(at) for at in range(1, len(pieces)))]
        found = {
            "tokens": list(map(self.spelled, pieces)),
            "token_logprobs": told,
            "top_logprobs": [
                n and dict(self.tops(piece, n))
                for piece, n in zip(pieces, told, strict=True)
            ],
            "text_offset": {
                "zero": [0] * len(places),
                "falling": places[::-1],
                "minus": [-1] * len(places),
                "bare": None,
            }.get(self.faults.get("offsets"), places),
        }
        choice = {"text": prompt + said, "logprobs": found, "finish_reason": "length"}
        usage = self.usage(len(pieces) - 1, 1)
        self.answer(200, {"choices": [choice], "usage": usage})

    def usage(self, prompt, said):
        told = {"prompt_tokens": prompt, "completion_tokens": said}
        if "counts" in self.faults:
            told = dict.fromkeys(told, json.loads(self.faults["counts"]))
        return told

    def parts(self, prompt):
        """The tokens of *prompt*, four characters each, as their texts are told."""
        for at in range(0, len(prompt), 4):
            piece = prompt[at : at + 4]
            if piece.isascii() or "parts" not in self.faults:
                yield piece
                continue
            for character in piece:
                yield from self.told_bytes(character)

    def told_bytes(self, character):
        data = character.encode()
        yield from (
            {
                "unknown": ["\ufffd"] * len(data),
                "last": [*[""] * (len(data) - 1), character],
                "hex": [f"<0x{byte:02X}>" for byte in data],
                "bytes": [f"bytes:\\x{byte:02x}" for byte in data],
            }[self.faults["parts"]]
            if data[1:]
            else character
        )

    def tops(self, piece, own):
        """What is listed beside a token, itself included."""
        if piece == "\ufffd":
            # Others that are told alike are one entry of the list with it.
            return [(piece, own)]
        next_best = -9.0 if "logprob" in self.faults else own - 2
        others = [] if "alone" in self.faults else [("other", next_best)]
        if "twice" in self.faults:
            others = [(f"Ġ{piece}", own)]
        return [(self.spelled(piece), own), *others]

    def spelled(self, piece):
        return piece[::-1] if "mangled" in self.faults else piece

    def unwanted(self, body):
        known = set(STANDARD)
        if "stricter" in self.faults:
            known -= {"logprobs", "top_logprobs", "stream_options"}
        is_strict = self.faults.keys() & {"strict", "stricter"}
        return next((name for name in body if name not in known), "") * bool(is_strict)

    def stream(self, body):
        self.begin(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        is_chat = "messages" in body
        prompt = body["messages"][-1]["content"] if is_chat else body["prompt"]
        text = continued(prompt)
        if "says-key" in self.faults:
            text = f"{self.headers.get('Authorization', '')}\n"
        pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
        said = pieces[: min(body["max_tokens"], int(self.faults.get("most", 1000)))]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for number, piece in enumerate(said):
                if number == 1 and "die-in-round" in self.faults:
                    os._exit(int(self.faults["die-in-round"]))
                self.event(self.choice(body, number, piece, is_chat=is_chat))
            reason = "length" if len(said) < len(pieces) else "stop"
            last = {"delta": {}} if is_chat else {"text": ""}
            self.event({"choices": [{**last, "finish_reason": reason}]})
            if "no-usage" not in self.faults and "stream_options" in body:
                usage = self.usage(-(-len(prompt) // 4), len(said))
                self.event({"choices": [], "usage": usage})
            while "no-end" in self.faults:
                self.wfile.write(b": ping\n\n")
                time.sleep(0.02)
            self.wfile.write(b"data: [DONE]\n\n")
            while "endless-end" in self.faults:
                self.wfile.write(b"data: [DONE]\n\n")
            if "open-end" in self.faults:
                self.connection.recv(1)

    def choice(self, body, number, piece, *, is_chat):
        told = {"delta": {"content": piece}} if is_chat else {"text": piece}
        choice = {**told, "finish_reason": None, "logprobs": None}
        if body.get("logprobs") and "no-logprobs" not in self.faults:
            own, spelled = self.logprob(number), self.spelled(piece)
            tops = self.tops(piece, own)
            if is_chat:
                listed = [{"token": t, "logprob": p} for t, p in tops]
                first = {"token": spelled, "logprob": own, "top_logprobs": listed}
                choice["logprobs"] = {"content": [first]}
            else:
                choice["logprobs"] = {
                    "tokens": [spelled],
                    "token_logprobs": [own],
                    "top_logprobs": [dict(tops)],
                }
        return {"choices": [choice]}

    def logprob(self, number):
        if "logprob" in self.faults:
            return json.loads(self.faults["logprob"])
        known = self.server.types
        if "ignore-v" in self.faults:
            known = known.partition("/")[0]
        digest = hashlib.sha256(f"{known}:{number}".encode()).digest()
        return -0.5 - digest[0] / 1000

    def event(self, event):
        self.wfile.write(f"data: {json.dumps(self.with_key(event))}\n\n".encode())
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
    parser.add_argument("--fakes", type=Path)
    asked = parser.parse_args()
    if asked.fakes:
        asked.fake += json.loads(asked.fakes.read_text()).get(asked.k, [])
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
    if "leave" in faults:
        subprocess.Popen(
            ["/bin/sleep", "600"],
            env=os.environ,
            start_new_session=True,
        )
    if "flood" in faults:
        threading.Thread(target=flood, daemon=True).start()
    server.serve_forever()


def flood():
    while True:
        print("x" * 4000)  # noqa: T201 - its log


if __name__ == "__main__":
    main()
