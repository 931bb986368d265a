"""
A llama-bench that misbehaves: its first argument is a fault, the others are the tool's.

    half        print the first of two results, and end as if all was well
    torn        end in the middle of a line
    garbage     print bytes of no meaning
    silent      print nothing at all
    long        print 100 MB before the results
    die=N       exit with N after the first result
    signal=N    send itself signal N after the first result
    error       complain, and exit with 0
    deaf        heed neither SIGINT nor SIGTERM, and hang
    escapes     name cache types and phases in terminal escapes
    row=JSON    change fields of both results
    say=LINE    add a line to the log
    print=NAME  print the file NAME of the logs, and exit with 1
    no-kv       name no KV cache in the log
"""

import json
import os
import sys
from pathlib import Path

from fake_perplexity import LOGS, babble, say


def row(asked, prompt, generated, **changes):
    known = {
        "build_commit": "fake",
        "build_number": 11434,
        "cpu_info": "C",
        "gpu_info": "",
        "backends": "CPU",
        "n_threads": 1,
        "type_k": asked["--cache-type-k"],
        "type_v": asked["--cache-type-v"],
        "n_gpu_layers": int(asked["--n-gpu-layers"]),
        "flash_attn": 1,
        "n_prompt": prompt,
        "n_gen": generated,
        "n_depth": int(asked["--n-depth"]),
        "samples_ns": [10**9] * int(asked["--repetitions"]),
        "samples_ts": [1.0] * int(asked["--repetitions"]),
    }
    return json.dumps(known | changes) + "\n"


def log(asked, fault, value):
    context = int(asked["--n-depth"]) + int(asked["--n-prompt"])
    k, v = asked["--cache-type-k"], asked["--cache-type-v"]
    cache = (
        f"llama_kv_cache: size =    1.00 MiB ( {context} cells,   1 layers,  1/1 seqs),"
        f" K ({k}):    0.50 MiB, V ({v}):    0.50 MiB\n"
    )
    return (
        f"llama_context: n_ctx_seq             = {context}\n"
        "llama_context: flash_attn            = enabled\n"
        f"{'' if fault == 'no-kv' else cache}"
        "llama-bench: benchmark 1/2: prompt run 1/1\n"
        f"{value if fault == 'say' else ''}\n"
    )


def before(fault, value):
    """What comes in the place of results; whether that was all."""
    if fault == "print":
        say((LOGS / value).read_text(encoding="utf-8"))
        sys.exit(1)
    babble(fault, "main: error: failed to create context with model\n")
    return fault in {"garbage", "silent", "error"}


def main():
    fault, _, value = sys.argv[1].partition("=")
    if sys.argv[2:] == ["--help"]:
        say((LOGS / "bench-help.txt").read_text(encoding="utf-8"))
        return
    asked = dict(zip(sys.argv[2:], sys.argv[3:], strict=False))
    with Path(f"{os.environ['HOME']}/asked").open("a", encoding="utf-8") as said:
        said.write(f"rotation {os.environ.get('LLAMA_ATTN_ROT_DISABLE', 'on')}\n")
    if before(fault, value):
        return
    say(log(asked, fault, value))
    changes = json.loads(value) if fault == "row" else {}
    first = row(asked, int(asked["--n-prompt"]), 0, **changes)
    if fault == "torn":
        say(first[: len(first) // 2])
        return
    if fault == "escapes":
        say("llama-bench: benchmark 1/2: \x1b]0;OWNED\x07\x1b[31m prompt run\n")
        first = row(asked, int(asked["--n-prompt"]), 0, type_k="\x1b]0;OWNED\x07")
    say(first)
    if fault == "die":
        sys.exit(int(value))
    if fault == "signal":
        os.kill(os.getpid(), int(value))
    if fault != "half":
        say(row(asked, 0, int(asked["--n-gen"]), **changes))


if __name__ == "__main__":
    main()
