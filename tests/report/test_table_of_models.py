"""The table of models: receipts by model, then by pair."""

from dataclasses import replace
from pathlib import Path

import pytest
from printing import printed

from codeneedle.cache_types import Pair
from codeneedle.errors import BadInput
from codeneedle.records.store import Store
from codeneedle.report.models import (
    model_objects,
    models_document,
    read_rows_from,
    read_shipped_rows,
    with_rows_of_same_weights,
)
from codeneedle.report.receipt import Receipt, receipt_markdown

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "runs"


def stored_run(name="divergence", **facts):
    run = Store(GOLDEN / name / "golden" / "needle-nano").read_run()
    return replace(run, setup=replace(run.setup, **facts))


@pytest.fixture
def folder(tmp_path):
    """A folder of three receipts: two of one model, one of other weights."""
    weights = replace(stored_run().setup.weights, name="other", sha256="f" * 64)
    runs = {
        "ada": stored_run(),
        "bea": stored_run(cpu_features="NEON"),
        "cyd": stored_run(weights=weights),
    }
    for name, run in runs.items():
        text = f"# Heading\n\nBy {name}.\n\n{receipt_markdown(run)}"
        (tmp_path / f"{name}.md").write_text(text, encoding="utf-8")
    return tmp_path


def test_rows_of_one_model_stand_beside_each_other_by_pair(folder):
    text = printed(models_document(read_rows_from(folder)), width=300)
    first, second = text.split("needle-nano (3319a9a0)")[1].split("other (ffffffff)")

    lines = [line.split()[:2] for line in first.splitlines() if "q4_0/" in line]
    assert [["q4_0/f16", "1"], ["q4_0/f16", "2"]] == lines[:2]
    assert "1 row" in second
    assert "1  ada: llama.cpp 0.6.0-dev" in first
    assert "By bea." in first


def test_what_may_be_compared_is_said_by_kind_of_number(folder, golden):
    text = printed(models_document(read_rows_from(folder)), width=300)

    assert golden == [line for line in text.splitlines() if "compared" in line]
    assert "losses" not in text


def test_speeds_that_were_asked_for_and_not_measured_are_not_compared(folder):
    names = {"pp tokens/s": "x", "tg tokens/s": "y"}
    rows = []
    for row in read_rows_from(folder):
        columns = tuple(names.get(name, name) for name in row.receipt.columns)
        rows.append(replace(row, receipt=replace(row.receipt, columns=columns)))

    assert "speeds" not in printed(models_document(rows), width=300)


def test_a_row_that_was_sent_stands_beside_those_of_its_weights_alone(folder):
    sent, others = read_rows_from(folder / "bea.md"), read_rows_from(folder)

    assert ["bea", "ada"] == [
        row.name for row in with_rows_of_same_weights(sent, others)
    ]


def test_as_data_each_row_has_its_name_its_note_and_its_receipt(folder):
    first, *_ = model_objects(read_rows_from(folder))

    assert {"name": "ada", "note": "By ada."}.items() <= first.items()
    assert "f16/f16" == first["setup"]["reference"]
    assert "reference" == first["pairs"][0]["verdict"]


def test_a_file_without_a_receipt_is_refused_with_what_prints_one(tmp_path, golden):
    file = tmp_path / "mine.md"
    file.write_text("see below", encoding="utf-8")

    with pytest.raises(BadInput) as caught:
        read_rows_from(tmp_path)

    assert golden == caught.value.reason
    assert "codeneedle sweep row" in caught.value.hint


def test_every_row_of_the_project_can_be_read_and_names_its_weights():
    rows = read_shipped_rows()

    assert rows
    assert all(len(row.weights_hash_or_name) == 8 for row in rows)
    assert all(row.note for row in rows)


def written(
    folder, name, model="a (llama, F16)", column="loss by matched", facts="x y"
):
    known = {"model": model, "engine": "openai", "context": "2,048"}
    parts = (part.partition(" ") for part in facts.split("; "))
    known |= {word: fact for word, _, fact in parts}
    receipt = Receipt(
        facts={**known, "limit": "1 %"},
        columns=("verdict", column),
        rows={
            Pair("f16", "f16"): ("reference", ""),
            Pair("q8_0", "q8_0"): ("open", "0.0 % (0.0 % to 30.0 %)"),
        },
    )
    (folder / f"{name}.md").write_text(receipt.text(), encoding="utf-8")


def test_models_whose_weights_have_no_hash_are_told_apart_by_their_names(tmp_path):
    written(tmp_path, "ada", "alpha (llama, F16)")
    written(tmp_path, "bea", "beta (llama, F16)")
    text = printed(models_document(read_rows_from(tmp_path)), width=200)

    assert "alpha (llama, F16): 1 row" in text
    assert "beta (llama, F16): 1 row" in text
    assert "can be compared" not in text


@pytest.mark.parametrize(
    ("column", "heading"),
    [
        ("loss by recall-logp", "right tokens lost"),
        ("loss by matched", "loss by matched"),
        ("loss by loops", "loss by loops"),
    ],
)
def test_only_a_share_of_right_tokens_is_headed_so(tmp_path, column, heading):
    written(tmp_path, "ada", column=column)
    text = printed(models_document(read_rows_from(tmp_path)), width=200)

    assert heading in text.splitlines()[2]
    assert ("right tokens" in text) == (heading == "right tokens lost")


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"column": "loss by matched"},
        {"facts": "recall lines 5"},
        {"facts": "recall lines 3; rotation off"},
    ],
    ids=["the same", "another metric", "other lines", "another rotation"],
)
def test_losses_are_compared_by_one_metric_of_equal_settings(tmp_path, other, golden):
    same = {"column": "loss by recall-logp", "facts": "recall lines 3"}
    written(tmp_path, "ada", **same)
    written(tmp_path, "bea", **same | other)
    text = printed(models_document(read_rows_from(tmp_path)), width=200)

    assert golden == [line for line in text.splitlines() if "compared" in line]
    assert "memory" not in text
