"""Readers of results: lines of ours, and what tools wrote."""

import json
import os
import re
from pathlib import Path

import pytest

from codeneedle.probes.evaluation import readers
from codeneedle.probes.evaluation.readers import Unreadable, read_samples_of_known_tool
from codeneedle.probes.evaluation.record import Sample

PAGE = Path(__file__).parents[3] / "docs/your-own.md"

WRITTEN = Path(__file__).parent / "written"
"""What the real tools wrote, of answers of SmolLM2."""


def lines(folder, *objects):
    """A file of lines in *folder*; texts are written as they are."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in objects]
    (folder / "results.jsonl").write_text("\n".join(texts), encoding="utf-8")
    return folder


# Lines of ours


def test_lines_hold_ids_scores_groups_seeds_and_errors(tmp_path):
    lines(
        tmp_path,
        {"id": "a", "score": 1, "group": "g", "seed": 2, "prompt_sha": "p"},
        "",
        {"id": 7, "score": True, "tokens": 12},
        {"id": "c", "error": "no reply"},
        {"id": "d"},
    )

    assert (
        "lines",
        (
            Sample(id="a", score=1.0, group="g", seed=2, prompt="p"),
            Sample(id="7", score=1.0),
            Sample(id="c", score=0.0, error="no reply"),
            Sample(id="d", score=0.0, error="no score"),
        ),
    ) == read_samples_of_known_tool(tmp_path)


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param([], id="none"),
        pytest.param([{"id": "a", "score": 1.5}], id="above"),
        pytest.param([{"id": "a", "score": -0.1}], id="below"),
        pytest.param([{"id": "a", "score": "1"}], id="text"),
        pytest.param([{"id": "a", "score": 1}, '{"id": "b", "sco'], id="cut"),
        pytest.param([{"id": "a", "score": 1}] * 2, id="twice"),
        pytest.param([{"id": "a", "socre": 1}], id="mistyped"),
        pytest.param([[1]], id="list"),
        pytest.param(["\x00\x01"], id="bytes"),
    ],
)
def test_damaged_lines_are_no_scores(tmp_path, objects, golden):
    with pytest.raises(Unreadable) as caught:
        read_samples_of_known_tool(lines(tmp_path, *objects))
    assert golden == str(caught.value)


def test_a_line_that_nests_too_deep_is_no_score(tmp_path):
    """Versions of Python say so in different words."""
    with pytest.raises(Unreadable, match="line 1: "):
        read_samples_of_known_tool(lines(tmp_path, "[" * 5000))


def test_two_tries_of_a_sample_have_seeds(tmp_path):
    lines(tmp_path, *({"id": "a", "score": 1, "seed": at} for at in range(3)))

    assert 3 == len(read_samples_of_known_tool(tmp_path)[1])


def test_results_that_are_not_there_are_told_with_what_is(tmp_path, golden):
    with pytest.raises(Unreadable) as caught:
        read_samples_of_known_tool(tmp_path)
    assert golden == str(caught.value)
    (tmp_path / "trace\x1b.txt").touch()
    with pytest.raises(Unreadable, match=r"only trace\\x1b.txt"):
        read_samples_of_known_tool(tmp_path)
    (tmp_path / "1.eval").touch()
    with pytest.raises(Unreadable) as caught:
        read_samples_of_known_tool(tmp_path)
    assert "--log-format json" in caught.value.hint


def test_a_file_or_a_number_of_samples_beyond_the_limit_is_refused(
    tmp_path, monkeypatch
):
    lines(tmp_path, *({"id": at, "score": 1} for at in range(9)))
    monkeypatch.setattr(readers, "MOST_SAMPLES", 8)
    with pytest.raises(Unreadable, match="more than 8 samples"):
        read_samples_of_known_tool(tmp_path)
    os.truncate(tmp_path / "results.jsonl", readers.FILE_LIMIT_BYTES + 1)
    with pytest.raises(Unreadable, match=r"results.jsonl has "):
        read_samples_of_known_tool(tmp_path)


def test_texts_are_stored_in_one_line_of_limited_length(tmp_path):
    lines(tmp_path, '{"id": "a\\n\\tb", "error": "' + "x" * 999 + '"}')

    (sample,) = read_samples_of_known_tool(tmp_path)[1]

    assert ("a b", readers.ID_LENGTH) == (sample.id, len(sample.error))


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "results.jsonl")

    with pytest.raises(Unreadable, match="wrote no"):
        read_samples_of_known_tool(tmp_path)


# What tools write


def test_samples_of_lm_eval_are_read_filter_by_filter():
    """Version 0.4.13: a sample has a row for each filter, which is a group."""
    reader, samples = read_samples_of_known_tool(WRITTEN / "lm-eval")

    assert "lm-eval" == reader
    assert 8 == len(samples)
    first = samples[0]
    assert "capitals:0:ed26fab82df9:last-name" == first.id
    assert "capitals:0:ed26fab82df9" == first.group
    assert first.prompt.startswith("8335be15ae52ab5c")
    assert [1, 1, 1, 0, 0, 0, 0, 0] == [each.score for each in samples]
    assert 4 == len({each.group for each in samples})


@pytest.mark.parametrize(
    ("metric", "stated", "score"),
    [
        ("brier_score", None, 0.75),
        ("brier_score", True, 0.25),
        ("ter", None, 0.75),
        ("odd", None, 0.25),
        ("odd", False, 0.75),
    ],
)
def test_a_metric_of_lm_eval_that_is_an_error_is_turned_round(
    tmp_path, metric, stated, score
):
    """brier_score was once read as if more were better."""
    row = {"doc_id": 0, "metrics": [metric], metric: 0.25}
    name = "samples_quiz_2026-11-01T00-00-00.jsonl"
    (tmp_path / name).write_text(json.dumps(row), encoding="utf-8")
    results = {"higher_is_better": {"quiz": {metric: stated}}}
    file = tmp_path / "results_2026-11-01T00-00-00.json"
    file.write_text(json.dumps(results), encoding="utf-8")

    _, (sample,) = read_samples_of_known_tool(tmp_path, "lm-eval")

    assert score == sample.score


def test_samples_of_inspect_ai_are_read_epoch_by_epoch():
    """Version 0.3.285: two epochs of two samples, in JSON."""
    reader, samples = read_samples_of_known_tool(WRITTEN / "inspect")

    assert "inspect" == reader
    assert [
        ("capitals:france", 1, 1.0),
        ("capitals:germany", 1, 1.0),
        ("capitals:france", 2, 1.0),
        ("capitals:germany", 2, 1.0),
    ] == [(each.id, each.seed, each.score) for each in samples]


def changed_inspect(folder, change):
    """The log of inspect_ai in *folder*, with a changed first sample."""
    (file,) = (WRITTEN / "inspect").glob("*.json")
    log = json.loads(file.read_text(encoding="utf-8"))
    change(log["samples"][0])
    (folder / "log.json").write_text(json.dumps(log), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("value", "score"), [("I", 0.0), ("P", 0.5), ("N", 0.0), (0.25, 0.25), (True, 1.0)]
)
def test_values_of_inspect_ai_are_scores(tmp_path, value, score):
    def change(sample):
        sample["scores"]["includes"]["value"] = value

    assert (
        score
        == read_samples_of_known_tool(changed_inspect(tmp_path, change))[1][0].score
    )


@pytest.mark.parametrize("status", ["error", "cancelled", "started"])
def test_an_evaluation_of_inspect_ai_that_did_not_end_is_a_gap(tmp_path, status):
    """Its samples were once all that other cells could have."""
    (file,) = (WRITTEN / "inspect").glob("*.json")
    log = json.loads(file.read_text(encoding="utf-8")) | {"status": status}
    (tmp_path / "log.json").write_text(json.dumps(log), encoding="utf-8")

    with pytest.raises(Unreadable, match=f"is not done: {status}"):
        read_samples_of_known_tool(tmp_path)


def test_a_sample_of_inspect_ai_that_failed_scores_0_with_its_error(tmp_path):
    def change(sample):
        sample["scores"], sample["error"] = None, {"message": "no reply"}

    first = read_samples_of_known_tool(changed_inspect(tmp_path, change))[1][0]

    assert (0.0, "no reply") == (first.score, first.error)


@pytest.mark.parametrize("value", [{"a": 1}, [1], "excellent", 7])
def test_values_of_inspect_ai_that_are_no_score_are_refused(tmp_path, value):
    def change(sample):
        sample["scores"]["includes"]["value"] = value

    with pytest.raises(Unreadable, match="the score of '"):
        read_samples_of_known_tool(changed_inspect(tmp_path, change))


def test_aggregated_metrics_of_lm_eval_are_refused(tmp_path):
    """A perplexity of all samples is no score of one: divergence does that better."""
    row = {"doc_id": 0, "metrics": ["word_perplexity"], "word_perplexity": [1.0, 2]}
    (tmp_path / "samples_wikitext.jsonl").write_text(json.dumps(row))

    with pytest.raises(Unreadable, match=r"\(word_perplexity\) is no number"):
        read_samples_of_known_tool(tmp_path)


def test_results_of_promptfoo_are_read_test_by_test():
    """Version 0.121.20."""
    reader, samples = read_samples_of_known_tool(WRITTEN / "promptfoo")

    assert "promptfoo" == reader
    assert [
        ("test 0 prompt 0", 1.0),
        ("test 1 prompt 0", 1.0),
        ("test 2 prompt 0", 0.0),
        ("test 3 prompt 0", 1.0),
    ] == sorted((each.id, each.score) for each in samples)
    assert "test 3" in {each.group for each in samples}


def promptfoo(folder, *results):
    """Promptfoo's file of *results*, whose tests are others unless told."""
    made = [
        {"testIdx": at, "vars": {"q": at}, "success": False, **each}
        for at, each in enumerate(results)
    ]
    file = {"results": {"version": 3, "results": made}}
    (folder / "out.json").write_text(json.dumps(file))
    return read_samples_of_known_tool(folder)[1]


def graded(reason, *, score=0, **more):
    """A result with that *reason* of its grade, which an assertion repeats."""
    grade = {"pass": bool(score), "score": score, "reason": reason}
    failed = {} if score else {"failureReason": 1, "error": reason}
    return {"score": score, "gradingResult": grade, **failed, **more}


RIGHT = graded("All assertions passed", score=1)


@pytest.mark.parametrize(
    "failed",
    [
        graded("API error: 503 Service Unavailable"),
        graded("API call error: FetchError: connect ECONNREFUSED 127.0.0.1:443"),
        graded("Error: 429 Too Many Requests"),
        graded("No output"),
        graded("llm-rubric produced malformed response: {"),
        graded("Could not extract JSON from llm-rubric response"),
        graded("Request timed out after 300000 ms"),
        graded("Wrong", error="another error than that of the grade"),
        {"score": 0, "failureReason": 2, "error": "API error: 500"},
        {"score": 0, "failureReason": 2},
        {"score": 0, "failureReason": 1},
        {"score": 0},
        {**RIGHT, "score": None},
        {
            **graded("1 of 2 failed", score=0.5),
            "gradingResult": {
                "reason": "1 of 2 failed",
                "componentResults": [{"reason": "ok"}, {"reason": "No output"}, None],
            },
        },
    ],
)
def test_a_judge_that_failed_gives_no_score_of_promptfoo(tmp_path, failed):
    """It once was 0, so that a pair won what the reference's judge had lost."""
    samples = promptfoo(tmp_path, RIGHT, failed)

    assert [False, True] == [bool(sample.error) for sample in samples]


@pytest.mark.parametrize(
    "reason",
    [
        'Expected output "API error: 503" to contain "Madrid"',
        "The API error handling is missing from the answer.",
        "500 words were asked for, 20 are there",
        "Output does not mention that the request failed to include a key",
        "No output format was kept",
    ],
)
def test_an_assertion_that_failed_is_a_score_of_0(tmp_path, reason):
    _, wrong = promptfoo(tmp_path, RIGHT, graded(reason))

    assert (0.0, "") == (wrong.score, wrong.error)


def test_a_file_of_promptfoo_without_any_grades_is_read_by_its_scores(tmp_path):
    """Its writer can be told to leave them out."""
    right = {"score": 1, "success": True, "failureReason": 0}
    wrong = {"score": 0, "failureReason": 1, "error": "Expected output to be 7"}
    down = {"score": 0, "failureReason": 1, "error": "API error: 503"}

    samples = promptfoo(tmp_path, right, wrong, down)

    assert [(1, False), (0, False), (0, True)] == [
        (each.score, bool(each.error)) for each in samples
    ]


def test_repeats_of_promptfoo_are_one_sample_wherever_they_stand(tmp_path):
    """Thirty questions, fifty times each, were once 1,500 samples."""
    every = [{**RIGHT, "vars": {"q": at % 3}} for at in range(30)]

    units = {sample.unit for sample in promptfoo(tmp_path, *every)}

    assert 3 == len(units)


def test_a_scorer_of_inspect_ai_that_found_no_grade_gives_no_score(tmp_path):
    def change(sample):
        sample["scores"]["includes"] |= {
            "value": "I",
            "explanation": "Grade not found in model output: 503",
        }

    first = read_samples_of_known_tool(changed_inspect(tmp_path, change))[1][0]

    assert first.error.startswith("Grade not found")


def test_a_sample_of_inspect_ai_that_ran_out_of_time_has_no_score(tmp_path, golden):
    """That of tokens is one of the model's own text, and is scored."""

    def change(sample):
        sample["limit"] = {"type": "time", "limit": 60}

    first, *others = read_samples_of_known_tool(changed_inspect(tmp_path, change))[1]

    assert golden == first.error
    assert not any(sample.error for sample in others)


def test_the_example_of_its_page_converts_what_no_reader_knows(tmp_path, monkeypatch):
    """One case is pending, one has failed."""
    (example,) = re.findall(
        r"```python\n(import json.*?)```", PAGE.read_text("utf-8"), re.DOTALL
    )
    case = {"correct": True, "status": "ok", "problem_idx": 7, "tokens": 9}
    cases = {
        "aime_000_007": case,
        "aime_001_007": {**case, "correct": False},
        "aime_000_008": {**case, "status": "pending", "correct": None},
        "aime_001_008": {**case, "status": "error: no reply"},
    }
    state = {"id": "aime", "task_states": {"total": 4, "cases": cases}}
    (tmp_path / "llama-eval-state.json").write_text(json.dumps(state))
    with pytest.raises(Unreadable, match=r"wrote no results\.jsonl"):
        read_samples_of_known_tool(tmp_path)

    monkeypatch.chdir(tmp_path)
    exec(example, {})  # noqa: S102 - our own page

    reader, samples = read_samples_of_known_tool(tmp_path)
    assert "lines" == reader
    assert [1.0, 0.0, 0.0, 0.0] == [each.score for each in samples]
    assert {"problem 7"} == {each.group for each in samples}
    assert ["", "", "pending", "error: no reply"] == [each.error for each in samples]


def test_a_reader_that_is_named_reads_nothing_else(tmp_path, golden):
    lines(tmp_path, {"id": "a", "score": 1})

    with pytest.raises(Unreadable) as caught:
        read_samples_of_known_tool(tmp_path, "lm-eval")
    assert golden == str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("results.jsonl", '{"id": "a", "score": ' + "9" * 400 + "}"),
        (
            "samples_x.jsonl",
            '{"doc_id": 1, "metrics": ["acc"], "acc": ' + "9" * 400 + "}",
        ),
        (
            "log.json",
            '{"eval": {"task": "x"}, "samples": [{"id": "a", "scores": '
            '{"m": {"value": ' + "9" * 400 + "}}}]}",
        ),
    ],
)
def test_a_score_of_any_length_is_a_gap(name, text, tmp_path):
    (tmp_path / name).write_text(text)

    with pytest.raises(readers.Unreadable):
        readers.read_samples_of_known_tool(tmp_path)
