"""
An evaluation as users write them, and what one may do wrong.

    python evaluation.py ADDRESS MODEL OUT

Asks the server to go on with short texts, and scores each answer. The environment's
FAULTS, ``q8_0-q4_0:hangs,q4_0-q4_0:fails``, are of these cells.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

SAMPLES = 12


def answer(address, model, prompt):
    """What the server writes behind *prompt*."""
    body = {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0}
    parts = urlsplit(address)
    server = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    headers = {
        "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "Content-Type": "application/json",
    }
    path = f"{parts.path}/completions"
    server.request("POST", path, json.dumps(body), headers)
    return json.load(server.getresponse())["choices"][0]["text"]


def results(address, model):
    """A line for each sample."""
    for at in range(SAMPLES):
        text = answer(address, model, f"def f_{at}():\n    v = '{at * 7919:05x}")
        yield {
            "id": f"s{at}",
            "score": float(sum(text.encode()) % 3 > 0),
        }


def server_of(address):
    """The process that listens there."""
    import psutil

    port = int(address.rpartition(":")[2].partition("/")[0])
    return next(
        process
        for process in psutil.process_iter()
        if process.name() == "llama-server"
        and any(
            each.laddr.port == port for each in process.net_connections() if each.laddr
        )
    )


def misbehave(fault, address, lines):
    """What becomes of the *lines*."""
    if fault == "fails":
        sys.stdout.write("Traceback: no such task\n")
        sys.exit(3)
    if fault == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hangs":
        subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.stdout.write("waiting for a reply\n")
        sys.stdout.flush()
        time.sleep(600)
    if fault == "ends the server":
        server_of(address).kill()
    if fault == "nothing":
        return []
    if fault == "too much":
        with Path("traces.bin").open("wb") as file:
            file.truncate(1 << 30)
    changed = {
        "other ids": lambda line: {**line, "id": f"other-{line['id']}"},
        "beyond 1": lambda line: {**line, "score": 1.5},
        "no number": lambda line: {**line, "score": float("nan")},
        "a score of 400 digits": lambda line: {**line, "score": 10**400},
        "twice": lambda line: {**line, "id": "s0"},
        "errors": lambda line: {"id": line["id"], "error": "no reply"},
    }.get(fault, lambda line: line)
    written = [json.dumps(changed(line)) for line in lines]
    if fault == "half a line":
        written[-1] = written[-1][: len(written[-1]) // 2]
    return written[:-2] if fault == "missing" else written


def main(address, model, out):
    """Evaluate, and write what there is."""
    faults = dict(
        each.split(":") for each in os.environ.get("FAULTS", "").split(",") if each
    )
    fault = faults.get(Path(out).name, "")
    lines = list(results(address, model))
    key = os.environ["OPENAI_API_KEY"]
    sys.stdout.write(f"evaluated {len(lines)} samples with {key}\n")
    sys.stdout.flush()
    written = misbehave(fault, address, lines)
    if written:
        Path("results.jsonl").write_text("\n".join(written), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
