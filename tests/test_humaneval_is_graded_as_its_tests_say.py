"""HumanEval: answers end with their function, and its tests decide the score."""

import json

import humaneval
import pytest
from sandboxed import confined

PROBLEM = humaneval.Problem(
    task_id="Made/0",
    prompt='def twice(n):\n    """Twice n."""\n',
    entry_point="twice",
    canonical_solution="    return 2 * n\n",
    test="def check(candidate):\n    assert 4 == candidate(2)\n",
)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("    return 1\n", "    return 1\n"),
        ("    return 1\n\n\nx = 2\n", "    return 1\n\n\n"),
        (" return 1\n\n    y\n# z\n", " return 1\n\n    y\n"),
        ("return 1", "return 1"),
        ("    return [\n]\nx", "    return [\n]\n"),
        ("", ""),
    ],
)
def test_an_answer_ends_with_its_function(answer, expected):
    assert expected == humaneval.up_to_its_end(answer)


@confined
@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (PROBLEM.canonical_solution, 1),
        (f"{PROBLEM.canonical_solution}\nraise ValueError\n", 1),
        ("    return 3 * n\n", 0),
        ("    return (\n", 0),
        ("    raise SystemExit(0)\n", 0),
        ("", 0),
    ],
)
def test_tests_decide_the_score(answer, score):
    assert score == humaneval.graded(PROBLEM, answer, is_confined=True)["score"]


@confined
def test_every_answer_has_a_line_of_results(tmp_path, monkeypatch):
    monkeypatch.setattr(humaneval, "problems", lambda: [PROBLEM])
    answer = {"id": "Made/0", "text": "    return n + n\n", "tokens": 4}
    (tmp_path / humaneval.ANSWERS).write_text(f"{json.dumps(answer)}\n")

    humaneval.grade(tmp_path, is_confined=True)

    (line,) = (tmp_path / humaneval.RESULTS).read_text().splitlines()
    result = json.loads(line)
    assert ("Made/0", 1, 4) == (result["id"], result["score"], result["tokens"])
    assert 64 == len(result["prompt_sha"])


def test_grading_is_refused_without_a_sandbox(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["humaneval.py", "grade", str(tmp_path)])

    code = humaneval.main()

    assert 3 == code
    assert "--no-sandbox" in capsys.readouterr().err
