#!/usr/bin/env python3
"""
A llama-server that misbehaves on request, in nothing but the standard library.

It takes llama-server's arguments, and ``--fake NAME`` or ``--fake NAME=VALUE`` as
often as wanted:

    say=LINE            print LINE at the start
    types=K/V           load with these cache types, whatever was asked for
    no-kv               name no KV cache in the log
    say-if=WORD=LINE    print LINE at the start, if WORD is among the arguments
    no-flash=WORDS      say WORDS, and that flash attention is off
    say-in-round=LINE   print LINE before a reply
    die=N               exit with N at once
    die-loading=N       exit with N after the first question
    die-in-round=N      exit with N in the middle of a reply
    die-between=N       exit with N after the second reply
    signal=PHASE/N      send itself signal N at the start, at its first question
                        (loading), in the middle of a reply (round) or after the
                        second one (between)
    port-taken=FILE     fail to bind, as long as FILE exists, and remove it
    loading             answer 503 for ever
    early=N             be well at once, and answer 503 to the first N questions
    mute                take connections, and never answer
    stranger            know itself by another alias
    reset               answer /health, and reset every other connection
    reset-times=N       reset the first N questions for a reply
    break-times=N       break the first N replies in the middle
    reads-less          count fewer tokens of a forced prompt than were sent
    no-grammar          refuse questions that have one
    refuse=N            answer questions for a reply with an error N
    slow-headers        send a byte of the headers each 50 ms
    slow                send a byte of a reply each 50 ms
    half-json           end answers in the middle
    html                answer with a page
    wrong-shape         answer with JSON of another kind
    no-last-event       end a stream without its last event
    error-event         end a stream with an error
    pings               send nothing but comments in a stream
    garbage             send 10 MB without a line break in a stream
    garbage-health      send 10 MB of no JSON when asked how it is
    wrong-types         say numbers where text should be, and the other way round
    huge-numbers        say numbers that no machine word holds
    replies=FOLDER      say the nth of the files in FOLDER in the nth reply: JSON
                        texts, a line and so an event each, sent as they stand
    probable            name a token in each of these events, and another with the
                        same text that is less likely
    noisy               be less sure of some tokens, with a V of a quarter
    context=N           load with this context, whatever was asked for
    slots=HOW           keep the last prompt, count what of it comes back, save and
                        restore it; HOW is right, or refused to restore nothing, or
                        damaged to answer otherwise from what was restored
    flood               write to the log without end, from the first reply on
    sparse-log=N        begin to log N bytes into the file
    deaf                ignore SIGINT and SIGTERM
    tells=PATH          say its key in each text of an answer there: /v1/models, or log
    tells-error=PATH    answer there with an error that says it
    key-in=FILE         add its key to FILE
    grandchild=FILE     leave a child behind that is deaf, too; its pid in FILE

With ``--fake-folder FOLDER`` the faults are the lines of FOLDER/K-V, by cache types;
of FOLDER/counting where none are given. ``--help``, ``--version``,
``--list-devices`` and an empty file of weights are answered as llama-server does.
"""

import argparse
import itertools
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TEXT = "".join(f"line {number}\n" for number in range(40))
DRIP_S = 0.05
HELP = """\
--version                               show version and build info
--list-devices                          print list of available devices and exit
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        allowed values: TYPES
-ctv,  --cache-type-v TYPE              KV cache data type for V
                                        allowed values: TYPES
""".replace("TYPES", "f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl")
ANSWERS = {
    "--help": HELP,
    "--version": "version: 0.6.0 (build 11434, commit fake)",
    "--list-devices": "Available devices:\n  (none)",
    os.devnull: "system_info: n_threads = 1 / 2 | CPU : AVX = 1 | ",
}


def arguments():
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--alias", default="fake")
    parser.add_argument("--ctx-size", type=int, default=512)
    parser.add_argument("--cache-type-k", default="f16")
    parser.add_argument("--cache-type-v", default="f16")
    parser.add_argument("--fake", action="append", default=[])
    parser.add_argument("--fake-folder")
    known, _ = parser.parse_known_args()
    if known.fake_folder:
        known.fake += listed(known)
    known.fake = dict(fault.partition("=")[::2] for fault in known.fake)
    return known


def listed(known):
    is_cell = "--cache-type-k" in sys.argv
    cell = f"{known.cache_type_k}-{known.cache_type_v}" if is_cell else "counting"
    try:
        with open(f"{known.fake_folder}/{cell}", encoding="utf-8") as file:  # noqa: PTH123 - starts faster than pathlib
            return file.read().splitlines()
    except FileNotFoundError:
        return []


ASKED = arguments()
FAULTS = ASKED.fake


def say(line):
    print(f"0.00.000.001 I {line}", flush=True)  # noqa: T201 - it is a log


def say_what_runs():
    k, v = ASKED.cache_type_k, ASKED.cache_type_v
    if FAULTS.get("tells") == "log":
        say(f"E srv: cannot go on with {KEY}")
        k = v = KEY
    if "types" in FAULTS:
        k, v = FAULTS["types"].split("/")
    say("cmn  common_param: common_params_print_info: build 1 (fake) with none")
    context = FAULTS.get("context", ASKED.ctx_size)
    say(f"llama_context: n_ctx_seq             = {context}")
    flash = "disabled" if "no-flash" in FAULTS else "enabled"
    say(f"llama_context: flash_attn            = {flash}")
    if FAULTS.get("no-flash"):
        say(FAULTS["no-flash"])
    device = "CPU"
    if "splits" in FAULTS:
        device = "Vulkan0"
        say("load_tensors: offloaded 2/2 layers to GPU")
        say(f"sched_reserve: graph splits = {FAULTS['splits']}")
    if "no-kv" not in FAULTS:
        v_mib = 0.125 if "noisy" in FAULTS else 0.5
        size = f"{0.5 + v_mib:.2f} MiB"
        say(f"llama_kv_cache: {device:>10} KV buffer size =     {size}")
        say(
            f"llama_kv_cache: size =    {size} ( {context} cells,   1 layers, "
            f" 1/1 seqs), K ({k}):    0.50 MiB, V ({v}):    {v_mib:.2f} MiB"
        )


KEY = os.environ.get("LLAMA_API_KEY", "")


def telling(content):
    """*content* with the key in the place of each text."""
    if isinstance(content, dict):
        return {name: telling(each) for name, each in content.items()}
    if isinstance(content, list):
        return list(map(telling, content))
    return f"this is {KEY} " if isinstance(content, str) else content


class Handler(BaseHTTPRequestHandler):
    """Answers as llama-server does, unless it was told otherwise."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.misbehave_before()
        if self.path == "/health":
            self.answer({"status": "ok"})
        elif self.path == "/v1/models":
            alias = "somebody-else" if "stranger" in FAULTS else ASKED.alias
            self.answer({"data": [{"id": alias}]})
        else:
            self.answer({"error": {"code": 404, "message": "no", "type": "n"}}, 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.misbehave_before()
        if counted("early") <= int(FAULTS.get("early", 0)):
            error = {"code": 503, "message": "Loading model", "type": "unavailable"}
            self.answer({"error": error}, 503)
        elif self.path.startswith("/slots/") and "slots" in FAULTS:
            self.act_on_slot(self.path.partition("action=")[2])
        elif self.path == "/tokenize":
            self.answer({"tokens": numbered(body)})
        elif self.path == "/apply-template":
            self.answer({"prompt": str(body["messages"])})
        else:
            self.stream(body)

    def act_on_slot(self, action):
        if action == "restore" and FAULTS["slots"] == "refused":
            error = {"code": 400, "message": "Unable to restore", "type": "invalid"}
            self.answer({"error": error}, 400)
            return
        SLOT[action] = SLOT["now" if action == "save" else "save"]
        if action == "restore":
            SLOT["now"] = SLOT["save"]
        self.answer({"id_slot": 0})

    def misbehave_before(self):
        self.close_connection = True
        if "mute" in FAULTS:
            time.sleep(3600)
        if "die-loading" in FAULTS:
            os._exit(int(FAULTS["die-loading"]))
        signal_at("loading")
        if "reset" in FAULTS and self.path not in {"/health", "/v1/models"}:
            self.reset()

    def reset(self):
        at_once = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        self.connection.close()
        sys.exit()

    def answer(self, content, status=200):
        if FAULTS.get("tells-error") == self.path:
            status, content = 418, {"error": {"code": 418, "message": "m", "type": "t"}}
        if self.path in {FAULTS.get("tells"), FAULTS.get("tells-error")}:
            content = telling(content)
        data = json.dumps(content).encode()
        is_question = self.path not in {"/health", "/v1/models"}
        if "garbage-health" in FAULTS:
            data = b"x" * (10 << 20)
        if "loading" in FAULTS:
            status = 503
            data = b'{"error":{"code":503,"message":"Loading model","type":"u"}}'
        if "html" in FAULTS and is_question:
            data = b"<html><body>It works!</body></html>"
        if "wrong-shape" in FAULTS and is_question:
            data = b'[{"nothing": "of the kind"}]'
        if "half-json" in FAULTS and is_question:
            data = data[: len(data) // 2]
        self.head(status, length=len(data))
        self.send(data)

    def head(self, status, length=None):
        head = f"HTTP/1.1 {status} X\r\nConnection: close\r\n"
        if length is not None:
            head += f"Content-Length: {length}\r\n"
        head += "\r\n"
        slow = "slow-headers" in FAULTS and self.path not in {"/health", "/v1/models"}
        self.send(head.encode(), slow=slow)

    def send(self, data, slow=False):
        for byte in data if slow else ():
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(DRIP_S)
        if not slow:
            self.wfile.write(data)
            self.wfile.flush()

    def event(self, content):
        if FAULTS.get("tells") == self.path:
            content = telling(content)
        data = f"data: {json.dumps(content)}\n\n".encode()
        self.send(data, slow="slow" in FAULTS)

    def stream(self, body):
        if "no-grammar" in FAULTS and "grammar" in body:
            error = {"code": 400, "message": "no grammar", "type": "invalid"}
            self.answer({"error": error}, 400)
            return
        self.prompt = lettered(body.get("prompt", ""))
        self.forces = not {"grammar", "logit_bias"}.isdisjoint(body)
        asked = counted("replies")
        if self.is_misled(asked):
            return
        self.head(200)
        if "say-in-round" in FAULTS:
            say(FAULTS["say-in-round"])
        self.misbehave_within()
        try:
            if not self.say_what_is_in_a_file(asked):
                limit = body.get("n_predict", body.get("max_tokens"))
                self.say_tokens(asked, limit, forced_by(body))
        finally:  # the client may have had enough
            if asked == 2:
                signal_at("between")
                if "die-between" in FAULTS:
                    os._exit(int(FAULTS["die-between"]))

    def is_misled(self, asked):
        """Answer otherwise than with tokens; whether that was all."""
        if asked <= int(FAULTS.get("reset-times", 0)):
            self.reset()
        if FAULTS.get("tells-error") == self.path:
            self.answer({})
            return True
        if "refuse" in FAULTS:
            error = {"code": int(FAULTS["refuse"]), "message": "no", "type": "n"}
            self.answer({"error": error}, int(FAULTS["refuse"]))
            return True
        answers = {
            "html": b"<html>It works!</html>\n",
            "wrong-shape": b'data: {"nothing": "of the kind"}\n\n',
            "half-json": b'data: {"content": "x", "st\n\n',
        }
        chosen = next((name for name in answers if name in FAULTS), None)
        if chosen:
            self.head(200)
            self.send(answers[chosen])
        return chosen is not None

    def say_tokens(self, asked, limit, text):
        if "slots" in FAULTS:
            self.say_from_slot(limit, text)
            return
        for at, letter in enumerate(text[:limit]):
            if at == 10:
                self.break_off(asked)
            if (at == 10 or self.forces) and "error-event" in FAULTS:
                error = {"code": 500, "message": "Compute error.", "type": "server"}
                self.event({"error": error})
                return
            event = token(letter, at)
            if self.forces:
                event["timings"]["cache_n"] = min(3, len(self.prompt) - 1)
                is_cut = "reads-less" in FAULTS
                read = 0 if is_cut else max(1, len(self.prompt) - 3)
                event["timings"]["prompt_n"] = read
            else:
                event["timings"]["prompt_n"] = max(4, len(self.prompt) - 3)
            self.event(bent(event))
        if "no-last-event" not in FAULTS:
            ending = "limit" if limit <= len(text) else "eos"
            self.event({"content": "", "stop": True, "stop_type": ending})

    def say_from_slot(self, limit, text):
        prompt = self.prompt
        both = zip(SLOT["now"], prompt, strict=False)
        cached = sum(1 for _ in itertools.takewhile(lambda two: two[0] == two[1], both))
        is_damaged = FAULTS["slots"] == "damaged" and "restore" in SLOT and cached
        SLOT["now"] = prompt
        SLOT.pop("restore", None)
        if is_damaged and text == TEXT:
            text = text.upper()
        for at, letter in enumerate(text[:limit]):
            event = token(letter, at)
            event["timings"] |= {"cache_n": cached, "prompt_n": len(prompt) - cached}
            (likely,) = event["completion_probabilities"]
            for each in (likely, likely["top_logprobs"][0]):
                each["logprob"] -= 3.0 * bool(is_damaged)
            self.event(event)
        self.event({"content": "", "stop": True, "stop_type": "limit"})

    def break_off(self, asked):
        signal_at("round")
        if "die-in-round" in FAULTS:
            os._exit(int(FAULTS["die-in-round"]))
        if asked <= int(FAULTS.get("break-times", 0)):
            self.reset()

    def say_what_is_in_a_file(self, asked):
        """Say the file of the reply number *asked*; whether there is one."""
        files = sorted(os.listdir(FAULTS["replies"])) if "replies" in FAULTS else []  # noqa: PTH208 - likewise
        if asked > len(files):
            return False
        with open(f"{FAULTS['replies']}/{files[asked - 1]}", "rb") as file:  # noqa: PTH123 - likewise
            for content in file.read().split(b"\n"):
                tokens = probable(content) if "probable" in FAULTS else b""
                self.send(b'data: {"content":' + content + tokens + b"}\n\n")
        self.event({"content": "", "stop": True, "stop_type": "eos"})
        return True

    def misbehave_within(self):
        while "pings" in FAULTS:
            self.send(b":\n\n")
            time.sleep(DRIP_S)
        if "flood" in FAULTS:
            threading.Thread(target=flood, daemon=True).start()
        while "flood" in FAULTS:
            self.event({"content": ""})
            time.sleep(DRIP_S)
        if "garbage" in FAULTS:
            for _ in range(10):
                self.send(b"x" * (1 << 20))

    def log_message(self, *_):
        """Say nothing of requests."""


COUNTS = {}
SLOT = {"now": ""}
"""The prompt that is kept, and the one that was saved."""


def counted(what):
    """How often this was called for *what*, this time included."""
    COUNTS[what] = COUNTS.get(what, 0) + 1
    return COUNTS[what]


def signal_at(phase):
    wanted, _, number = FAULTS.get("signal", "").partition("/")
    if wanted == phase:
        os.kill(os.getpid(), int(number))


def flood():
    line = b"0.00.000.001 W decode: something is wrong, and will be for ever\n"
    while True:
        os.write(1, line * ((1 << 20) // len(line)))


def numbered(body):
    """A letter is a token, with the number that Unicode gives it."""
    letters = body["content"]
    if not isinstance(letters, str):  # texts and numbers mixed, which it cannot
        return list(range(len(letters)))
    if body.get("with_pieces"):
        return [{"id": ord(letter), "piece": letter} for letter in letters]
    return [ord(letter) for letter in letters]


def lettered(prompt):
    """A prompt of letters or of their numbers, as letters."""
    return prompt if isinstance(prompt, str) else "".join(map(chr, prompt))


def forced_by(body):
    """What a bias or a grammar of tokens makes it say; its own text without one."""
    if "logit_bias" in body:
        return chr(body["logit_bias"][0][0])
    numbers = re.findall(r"<\[(\d+)]>", body.get("grammar", ""))
    return "".join(chr(int(number)) for number in numbers) or TEXT


def bent(event):
    if "wrong-types" in FAULTS:
        return {**event, "content": 17, "stop": "no", "timings": "fast"}
    if "huge-numbers" in FAULTS:
        return {**event, "timings": {"prompt_n": 10**40, "prompt_ms": 1e308}}
    return event


def probable(text):
    chosen = b'{"id":9,"logprob":-0.25,"token":' + text
    other = b'{"id":8,"logprob":-1.5,"token":' + text
    listed = b',"top_logprobs":[' + chosen + b"}," + other + b"}]}"
    return b',"completion_probabilities":[' + chosen + listed + b"]"


def token(letter, at):
    logprob = -0.25 - ("noisy" in FAULTS) * (7 * ord(letter) % 5) / 50
    likely = {"id": ord(letter), "logprob": logprob, "token": letter}
    other = {"id": 0, "logprob": -1.5, "token": "?"}
    return {
        "content": letter,
        "stop": False,
        "timings": {
            "cache_n": 3,
            "prompt_n": 4,
            "prompt_ms": 5.5,
            "predicted_n": at + 1,
            "predicted_ms": 6.25,
        },
        "completion_probabilities": [{**likely, "top_logprobs": [likely, other]}],
    }


def main():
    # Python ignores it; a C program is killed by a log that is too long.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    for question in ANSWERS.keys() & sys.argv:
        print(ANSWERS[question])  # noqa: T201 - it is the answer
        return
    if "sparse-log" in FAULTS:
        os.ftruncate(1, int(FAULTS["sparse-log"]))
    signal_at("start")
    with open(FAULTS.get("key-in", os.devnull), "a", encoding="ascii") as file:  # noqa: PTH123 - likewise
        file.write(f"{KEY}\n")
    for line in (FAULTS["say"],) if "say" in FAULTS else ():
        say(line)
    word, _, line = FAULTS.get("say-if", "").partition("=")
    if word and word in sys.argv:
        say(line)
    if "die" in FAULTS:
        sys.exit(int(FAULTS["die"]))
    taken = FAULTS.get("port-taken")
    if taken and os.path.exists(taken):  # noqa: PTH110 - starts faster than pathlib
        os.remove(taken)  # noqa: PTH107 - likewise
        say("init: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 1")
        sys.exit(1)
    if "deaf" in FAULTS:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "grandchild" in FAULTS:
        leave_a_child(FAULTS["grandchild"])
    say_what_runs()
    server = ThreadingHTTPServer(("127.0.0.1", ASKED.port), Handler)
    server.daemon_threads = True
    say(f"listening on port {server.server_port}")
    if "deaf" not in FAULTS:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    server.serve_forever()


def leave_a_child(file):
    deaf = "import signal,time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]"
    child = subprocess.Popen([sys.executable, "-c", f"{deaf}; time.sleep(3600)"])
    with open(file, "w", encoding="ascii") as note:  # noqa: PTH123 - likewise
        note.write(str(child.pid))


if __name__ == "__main__":
    main()
