"""
Evaluations by inspect_ai and lm-eval, on a small language model, read back sample by
sample.

    python scripts/evaluations.py FOLDER    # with the programs of both tools

Sweeps two pairs of SmolLM2 by each tool, on the questions of tests/helpers/capitals,
and compares the mean score of the samples that are stored with what the tool itself
says of it. Then shows the verdict.

Exit codes: 0, they are the same; 1, they are not, or a cell has failed.
"""

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codeneedle.probes.evaluation.record import evaluation_of
from codeneedle.records.store import SETUP, Store
from codeneedle.text import plural

QUESTIONS = Path(__file__).parent.parent / "tests" / "helpers" / "capitals"

INSPECT = (
    "env -C {questions} {programs}/inspect eval capitals.py --log-format json "
    "--model openai-api/codeneedle/${{model}} --log-dir ${{out}} --display plain"
)
LM_EVAL = (
    "{programs}/lm_eval run --model local-chat-completions --tasks capitals "
    "--model_args base_url=${{base_url}}/chat/completions,model=${{model}} "
    "--include_path {folder} --apply_chat_template --log_samples --output_path ${{out}}"
)
PAIRS = "f16/f16,q8_0/q8_0,q4_0/q4_0"
SWEEP = f"sweep --model smollm2 --pairs {PAIRS} --context 2048 --eval-read"


@dataclass(frozen=True, slots=True)
class Tool:
    """
    An evaluation tool.

    Attributes:
        command: With the folders of its programs and of the questions.
        report: The file in which it says the mean score.
        mean: The mean score in that.
    """

    command: str
    report: str
    mean: Callable[[Any], float]


def _mean_of_inspect(log: Any) -> float:
    return float(log["results"]["scores"][0]["metrics"]["accuracy"]["value"])


def _mean_of_lm_eval(report: Any) -> float:
    found = report["results"]["capitals"]
    by_filter = [found[f"exact_match,{name}"] for name in ("last-name", "whole")]
    return math.fsum(by_filter) / len(by_filter)


TOOLS: Mapping[str, Tool] = {
    "inspect": Tool(INSPECT, "*_capitals_*.json", _mean_of_inspect),
    "lm-eval": Tool(LM_EVAL, "results_*.json", _mean_of_lm_eval),
}


def main(programs: Path) -> int:
    """Sweep with each tool; the exit code."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        task = (QUESTIONS / "capitals.yaml").read_text(encoding="utf-8")
        task = task.replace("CAPITALS", str(QUESTIONS))
        (folder / "capitals.yaml").write_text(task, encoding="utf-8")
        return max(_swept(name, tool, programs, folder) for name, tool in TOOLS.items())


def _swept(name: str, tool: Tool, programs: Path, folder: Path) -> int:
    """Sweep with one tool, and compare; the exit code."""
    out = folder / name
    command = tool.command.format(
        programs=programs.absolute(), questions=QUESTIONS, folder=folder
    )
    asked = [*SWEEP.split(), name, "--eval", command, "--out", str(out)]
    code = _codeneedle(*asked)
    for store in (Store(path.parent) for path in out.glob(f"*/*/{SETUP}")):
        for record in store.read_records():
            if not record.has_numbers:
                continue
            samples = evaluation_of(record).samples
            ours = math.fsum(each.score for each in samples) / len(samples)
            again = f".{record.variant}" if record.variant else ""
            left = store.folder / "evaluations" / f"{record.pair.slug}{again}"
            (report,) = left.rglob(tool.report)
            theirs = tool.mean(json.loads(report.read_text(encoding="utf-8")))
            is_same = math.isclose(ours, theirs, abs_tol=1e-3)
            code = code if is_same else 1
            line = (
                f"{name} {record.pair}{again}: {plural(len(samples), 'sample')}, mean "
                f"{ours:.4f}, the tool says {theirs:.4f}"
            )
            sys.stdout.write(f"{line}{'' if is_same else ': NOT THE SAME'}\n")
    sys.stdout.flush()
    return max(code, _codeneedle("verdict", "--out", str(out)))


def _codeneedle(*words: str) -> int:
    done = subprocess.run([sys.executable, "-m", "codeneedle", *words], check=False)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
