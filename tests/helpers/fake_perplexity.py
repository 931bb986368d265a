"""
A stand-in for llama-perplexity: prints what the real one printed, or misbehaves.

The first argument is a fault: one word, or ``word=value``; the others are the tool's.
Of ``real=HOW:PATH``, the real one at PATH runs, and HOW says what becomes of its rows
on their way into a pipe: whole, short, long, foreign, other-text, noise, none, or half
of them before it dies or hangs.
"""

import math
import os
import signal
import stat
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

LOGS = Path(__file__).parent / "logs"
CONTEXT, VOCABULARY, CHUNKS = 512, 260, 4
HELP = """\
-t,    --threads N                      number of threads
-b,    --batch-size N                   logical maximum batch size
-ub,   --ubatch-size N                  physical maximum batch size
-ngl,  --gpu-layers, --n-gpu-layers N   layers in memory of devices
-dev,  --device LIST                    devices
-ncmoe, --n-cpu-moe N                     experts that stay on the host
-kvo,  --kv-offload, -nkvo, --no-kv-offload
                                        where the cache is
--override-kv LIST                      other facts of the weights
--swa-full                              whole caches of windows
"""
"""Of llama-perplexity and llama-fit-params, shortened."""

VERSION = "version: 0.6.0-dev (build 11434, commit fake)"


def option(arguments, name):
    return arguments[arguments.index(name) + 1]


def log(name, k, v):
    text = (LOGS / f"perplexity-{name}.txt").read_text(encoding="utf-8")
    for before in ("f16", "q4_0"):
        text = text.replace(f"K ({before})", f"K ({k})")
        text = text.replace(f"V ({before})", f"V ({v})")
    return text


def row(first):
    """A row in which the first token has that probability, all others the same."""
    others = math.log((1 - first) / (VOCABULARY - 1))
    scale = max(0.0, (math.log(first) - others) / 65535)
    values = struct.pack("<H", 65535 if scale else 0) + bytes(2 * (VOCABULARY - 1))
    return struct.pack("<ff", scale, others) + values


def base(chunks=CHUNKS, first=1 / VOCABULARY):
    """A base file whose tokens are 0, and have that probability at each place."""
    header = b"_logits_" + struct.pack("<Iii", CONTEXT, VOCABULARY, chunks)
    rows = row(first) * (chunks * (CONTEXT // 2 - 1))
    return header + bytes(4 * CONTEXT * chunks) + rows


def say(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def babble(fault, error):
    """Print what no tool should; *error* for the fault of that name."""
    if fault == "garbage":
        sys.stdout.buffer.write(os.urandom(1 << 16))
    if fault == "long":
        for _ in range(100):
            say("a line of no interest\n" * ((1 << 20) // 22))
    if fault == "error":
        say(error)
    if fault == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()


def misbehave(fault, value, path, k, v):
    """Do what *fault* says; return whether that was all."""
    if fault == "die":
        say(log("disk-full", k, v))
        sys.exit(int(value))
    if fault == "signal":
        os.kill(os.getpid(), int(value))
    if fault == "hang":
        path.write_bytes(base()[:100_000])
        say(log("disk-full", k, v))
        signal.pause()
    if fault == "print":
        say(log(value, k, v))
        return True
    return False


def pour(fault, value, path, data):
    """Write to a pipe."""
    if fault == "short-base":
        data = data[: int(value)]
    if fault == "long-base":
        data += data
    if fault == "absurd":
        data = data[:2068] + b"\xff" * (len(data) - 2068)
    with path.open("wb") as pipe:
        pipe.write(data)


def write(fault, value, path, k, v, *, chunks, is_comparing):
    """Write a base file, or pour it into a pipe."""
    if path.exists() and stat.S_ISFIFO(path.stat().st_mode):
        is_other = is_comparing and (k, v) != ("f16", "f16")
        first = 0.5 if is_other else 1 / VOCABULARY
        pour(fault, value, path, base(chunks, first))
    else:
        data = base()
        if fault == "cut-nan":
            data = data[:-528] + b"\xff" * 528
        if fault == "cut-noise":
            data = data[:-528] + b"\x2a" * 528
        path.write_bytes(data[: int(value)] if fault == "short-base" else data)
    told = log("base", k, v)
    if is_cut(fault, value, is_comparing):
        end = "warming up" if fault == "cut-early" else "Final estimate"
        told = told.partition(end)[0].rpartition("\n")[0]
    say(told)


def is_cut(fault, value, is_comparing):
    """Whether the log lacks its end: so many times, where pairs or where bases are."""
    if fault in {"cut-nan", "cut-noise"}:
        return not is_comparing
    if fault == "cut-early":
        return is_comparing
    is_meant = fault == ("cut" if is_comparing else "cut-base")
    return is_meant and was_asked("compare" if is_comparing else "write") <= int(value)


def spoiled(data, how):
    """The base file *data*, as a pipe of a real run brings it."""
    middle = len(data) // 2
    return {
        "whole": data,
        "none": b"",
        "short": data[:-7],
        "long": data + data[-8:],
        "foreign": data[:12] + struct.pack("<i", VOCABULARY + 1) + data[16:],
        "other-text": data[:24] + struct.pack("<i", 7) + data[28:],
        "noise": data[:middle] + b"\xff" * (len(data) - middle),
    }.get(how, data[:middle])


def run_the_real_one(value, arguments):
    """What the real tool does, but for the rows in a pipe."""
    how, _, program = value.partition(":")
    at = 0
    if "--kl-divergence-base" in arguments:
        at = 1 + arguments.index("--kl-divergence-base")
    if not at or not stat.S_ISFIFO(Path(arguments[at]).stat().st_mode):
        os.execv(program, [program, *arguments])  # noqa: S606 - as it was asked
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "base"
        argv = [program, *arguments[:at], str(file), *arguments[at + 1 :]]
        told, returncode = told_and_returncode(argv)
        data = file.read_bytes() if file.exists() else b""
    with Path(arguments[at]).open("wb") as pipe:
        pipe.write(spoiled(data, how))
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hangs":
        signal.pause()
    sys.stdout.buffer.write(told)
    sys.stdout.flush()
    sys.exit(returncode)


def told_and_returncode(argv):
    """What a program says, and its exit code; meanwhile this one is not silent."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as program:
        while True:
            try:
                told, _ = program.communicate(timeout=0.2)
            except subprocess.TimeoutExpired:
                say(".\n")
            else:
                return told, program.returncode


def was_asked(what):
    """How often there was something to compare, or to write, this time included."""
    asked = Path(f"{os.environ['HOME']}/asked").read_text(encoding="utf-8")
    return asked.count(what)


def main():
    fault, _, value = sys.argv[1].partition("=")
    arguments = sys.argv[2:]
    if arguments in (["--version"], ["--help"]):
        say(f"{VERSION}\n" if arguments == ["--version"] else HELP)
        return
    k, v = option(arguments, "--cache-type-k"), option(arguments, "--cache-type-v")
    babble(fault, "main: failed to decode: \x1b]0;OWNED\x07\x1b[31m\n")
    if fault in {"garbage", "error", "silent"}:
        return
    path = Path(option(arguments, "--kl-divergence-base"))
    chunks = int(option(arguments, "--chunks"))
    is_pipe = path.exists() and stat.S_ISFIFO(path.stat().st_mode)
    # Right tokens of recall are read from a pipe, too, which has one chunk.
    is_comparing = is_pipe and chunks > 1
    with Path(f"{os.environ['HOME']}/asked").open("a", encoding="utf-8") as asked:
        asked.write(f"{'compare' if is_comparing else 'write'} {k}/{v}\n")
    is_due = not fault.startswith("then-") or is_comparing
    if is_due and misbehave(fault.removeprefix("then-"), value, path, k, v):
        return
    if fault == "mute" and is_comparing:
        say("llama_model_loader: loaded meta data\n")
        if was_asked("compare") > int(value):
            say(log("unknown-type", k, v))
        sys.exit(1)
    if fault == "wrong-types":
        k = "f16"
    write(fault, value, path, k, v, chunks=chunks, is_comparing=is_comparing)


if __name__ == "__main__":
    if sys.argv[1].startswith("real="):
        run_the_real_one(sys.argv[1].removeprefix("real="), sys.argv[2:])
    main()
