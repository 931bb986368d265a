"""
An evaluation that tells its secrets: where, by the name of its working folder's cell.

    python telling_evaluation.py PLACES OUT

PLACES is JSON, a place for each type; those of others, and of the first cell, are good.
"""

import json
import os
import sys
from pathlib import Path

SECRETS = ("OPENAI_API_KEY", "JUDGE_API_KEY")
KEYS = " and ".join(os.environ.get(name, "") for name in SECRETS)
BROKEN = KEYS[:9] + "\n" + KEYS[9:-8] + "\n" + KEYS[-8:]


def line(at, **more):
    return {"id": f"s{at}", "score": at % 2, **more}


def lines(*more):
    return [*(line(at) for at in range(12)), *more]


def results(*written):
    Path("results.jsonl").write_text("\n".join(map(json.dumps, written)))


def inspected(**sample):
    sample = {"id": "a", "scores": {KEYS: {"value": "C"}}, **sample}
    log = {"eval": {"task": KEYS, "scorers": None}, "samples": [sample]}
    Path("log.json").write_text(json.dumps(log))


def evaluated(**row):
    row = {"doc_id": 1, "filter": KEYS, "metrics": [KEYS], KEYS: 1.0, **row}
    name = f"samples_{KEYS.replace('/', '-')}_2026-11-23T00-00-00.jsonl"
    Path(name).write_text(json.dumps(row))


def first():
    said = [line(12, group=KEYS), line(13, prompt_sha=KEYS), line(14, error=KEYS)]
    results(*lines(*said, line(15) | {"id": KEYS}))


def log(code):
    sys.stdout.write(f"{KEYS}\n{BROKEN}\n")
    first()
    sys.exit(code)


def promptfoo():
    row = {"testIdx": 0, "error": KEYS, "failureReason": 2, "score": 0}
    Path("o.json").write_text(json.dumps({"results": {"results": [row]}}))


def llama_eval():
    cases = {KEYS: {"status": KEYS, "problem_idx": 3}}
    Path("state.json").write_text(json.dumps({"task_states": {"cases": cases}}))


PLACES = {
    "first": first,
    "log": lambda: log(0),
    "log of a failure": lambda: log(3),
    "id": lambda: results(*lines(line(15) | {"id": f"other {KEYS}"})),
    "id of two": lambda: results(*[line(15) | {"id": KEYS}] * 2),
    "id of no score": lambda: results(line(1) | {"id": KEYS, "score": 1.5}),
    "long id": lambda: results(line(15) | {"id": "x" * 190 + KEYS}),
    "error": lambda: results(line(1, error=KEYS), line(2, error=BROKEN)),
    "many errors": lambda: results(line(1, error=f"{KEYS} " * 30)),
    "prompt": lambda: results(*lines(line(13, prompt_sha=f"other {KEYS}"))),
    "field": lambda: results(line(1) | {KEYS: 1}),
    "score": lambda: results(line(1) | {"score": KEYS}),
    "no JSON": lambda: Path("results.jsonl").write_text(KEYS),
    "file": lambda: Path(f"{KEYS}.txt").write_text("nothing"),
    "folder": lambda: Path(KEYS, "x").mkdir(parents=True),
    "lm-eval": evaluated,
    "lm-eval's metric": lambda: evaluated(**{KEYS: KEYS}),
    "inspect": inspected,
    "inspect's error": lambda: inspected(error={"message": KEYS}, scores=None),
    "inspect's score": lambda: inspected(scores={KEYS: {"value": KEYS}}),
    "promptfoo": promptfoo,
    "llama-eval": llama_eval,
}


if __name__ == "__main__":
    places, out = Path(sys.argv[1]), Path(sys.argv[2])
    chosen = json.loads(places.read_text())
    PLACES[chosen.get(out.name.partition("-")[0], "first")]()
