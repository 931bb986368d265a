"""Readers of results: lines of ours, and what tools wrote."""

import json
import os
import re

import pytest

from codeneedle.probes.evaluation import readers
from codeneedle.probes.evaluation.readers import Unreadable, read
from codeneedle.probes.evaluation.record import Sample


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
    ) == read(tmp_path)


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ([], "there is no sample"),
        ([{"id": "a", "score": 1.5}], "line 1: Expected `float` <= 1.0"),
        ([{"id": "a", "score": -0.1}], "line 1: Expected `float` >= 0.0"),
        (['{"id": "a", "score": NaN}'], "line 1: JSON is malformed"),
        ([{"id": "a", "score": 1}, '{"id": "b", "sco'], "line 2: Input data was trunc"),
        ([{"id": "a", "score": 1}] * 2, "two results of 'a'"),
        ([{"id": "a", "socre": 1}], "unknown field `socre`"),
        ([[1]], "line 1: Expected `object`"),
        (["\x00\x01"], "line 1: JSON is malformed"),
        (["[" * 5000], "line 1: "),
    ],
)
def test_damaged_lines_are_no_scores(tmp_path, objects, reason):
    with pytest.raises(Unreadable, match=re.escape(reason)):
        read(lines(tmp_path, *objects))


def test_two_tries_of_a_sample_have_seeds(tmp_path):
    lines(tmp_path, *({"id": "a", "score": 1, "seed": at} for at in range(3)))

    assert 3 == len(read(tmp_path)[1])


def test_results_that_are_not_there_are_told_with_what_is(tmp_path):
    with pytest.raises(Unreadable, match=r"wrote no results.jsonl or .*, nothing"):
        read(tmp_path)
    (tmp_path / "trace\x1b.txt").touch()
    with pytest.raises(Unreadable, match=r"only trace\\x1b.txt"):
        read(tmp_path)
    (tmp_path / "1.eval").touch()
    with pytest.raises(Unreadable) as caught:
        read(tmp_path)
    assert "--log-format json" in caught.value.hint


def test_a_file_or_a_number_of_samples_beyond_the_limit_is_refused(
    tmp_path, monkeypatch
):
    lines(tmp_path, *({"id": at, "score": 1} for at in range(9)))
    monkeypatch.setattr(readers, "MOST_SAMPLES", 8)
    with pytest.raises(Unreadable, match="more than 8 samples"):
        read(tmp_path)
    monkeypatch.setattr(readers, "FILE_LIMIT_BYTES", 100)
    with pytest.raises(Unreadable, match=r"results.jsonl has "):
        read(tmp_path)


def test_texts_are_stored_in_one_line_of_limited_length(tmp_path):
    lines(tmp_path, '{"id": "a\\n\\tb", "error": "' + "x" * 999 + '"}')

    (sample,) = read(tmp_path)[1]

    assert ("a b", readers.ID_LENGTH) == (sample.id, len(sample.error))


def test_a_pipe_is_not_waited_for(tmp_path):
    """A command may leave anything."""
    os.mkfifo(tmp_path / "results.jsonl")

    with pytest.raises(Unreadable, match="wrote no"):
        read(tmp_path)
