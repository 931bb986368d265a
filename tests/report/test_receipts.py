"""Receipts: what is in them, what is refused, and what stands side by side."""

import getpass
import io
import platform
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_losses import BEYOND, WITHIN, diverging, losing_run, losing_setup
from made_records import failed_record, forced_of, made_run, written_of
from printing import printed

from codeneedle.cache_types import DEFAULT_TYPES, Pair
from codeneedle.errors import BadInput
from codeneedle.records.record import Attention, Run
from codeneedle.records.store import Store
from codeneedle.report.compare import WALL
from codeneedle.report.markdown import markdown
from codeneedle.report.receipt import (
    MOST_BYTES,
    MOST_RECEIPTS,
    NOT_TESTED,
    TEXT_BYTES,
    is_file_or_stdin,
    parse_receipts,
    read_or_make_receipts,
    receipt_markdown,
    receipt_objects,
    receipt_of,
    receipts_document,
)
from codeneedle.system import machine

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
RUNS = ("divergence", "recall", "retrieval", "mlx")


def stored_run(name="divergence") -> Run:
    return Store(GOLDEN / name / "golden" / "needle-nano").read_run()


def elsewhere(run, **facts):
    return replace(run, setup=replace(run.setup, **facts))


def named(*names):
    """The receipts of texts called *names*."""
    return read_or_make_receipts([*map(str, names)], lambda _: stored_run("recall"))


@pytest.mark.parametrize("name", RUNS)
def test_a_receipt_is_read_as_it_was_printed(name):
    run = stored_run(name)
    text = receipt_markdown(run)
    quoted = "".join(f"> {each}\r\n" for each in text.splitlines())

    (found,) = parse_receipts(f"Hello, {{}}!\n\n{quoted}\nand thanks", source="text")

    assert receipt_of(run) == found
    assert f"({run.setup.weights.sha256[:8]})" in found.facts["model"]
    assert [*run.setup.grid] == [*found.rows]


def test_it_holds_what_a_row_of_the_table_of_models_needs(golden):
    run = stored_run()
    ran = {
        "devices": ("CUDA0",),
        "offloaded_layers": 7,
        "total_layers": 8,
        "attention": Attention.KERNEL,
    }
    known = replace(run.setup, architecture="llama", quant="Q4_1")
    records = tuple(
        replace(each, effective=replace(each.effective, **ran)) for each in run.records
    )

    found = receipt_of(replace(run, setup=known, records=records))

    assert {
        "model": "needle-nano (llama, Q4_1, 3319a9a0)",
        "engine": "llama.cpp 0.6.0-dev (build 11434, commit b0a2feb64)",
        "context": "2,048 tokens",
        "date": "2026-11-22",
    }.items() <= found.facts.items()
    assert golden == found.facts["backend"]
    row = dict(zip(found.columns, found.rows[Pair("q4_0", "f16")], strict=True))
    assert {
        "attention": "kernel",
        "kld nats": "0.5434 ± 0.1027",
        "kld999 nats": "14.0180",
        "precision %": "58.08",
        "precision999 %": "0.00",
        "tg tokens/s": "3944",
        "pp tokens/s": "17934",
        "kv MiB": "0.3",
    }.items() <= row.items()


def test_losses_have_their_interval_and_units_and_values_their_error():
    run = losing_run({"q8_0/q8_0": WITHIN, "q4_0/q4_0": BEYOND})
    found = receipt_of(run)
    beyond = dict(zip(found.columns, found.rows[Pair("q4_0", "q4_0")], strict=True))

    assert "beyond" == beyond["verdict"]
    interval = r"10\.0 % \(8\.\d % to 11\.\d %\), 16 functions"
    assert re.fullmatch(interval, beyond["loss by recall-logp"])
    assert re.fullmatch(r"-0\.\d+ ± 0\.\d+", beyond["recall-logp nats"])
    assert "reference" in found.rows[Pair("bf16", "bf16")]


def test_a_pair_that_failed_says_how():
    run = made_run()
    failed = replace(run, records=(*run.records[:-1], failed_record("q4_0/q4_0")))

    row = receipt_of(failed).rows[Pair("q4_0", "q4_0")]

    assert "crash" in " ".join(row)


def wide_run(contexts):
    """36 pairs with a divergence of 16 chunks at each of *contexts*."""
    pairs = [f"{k}/{v}" for k in DEFAULT_TYPES for v in DEFAULT_TYPES]
    records = [
        diverging(pair, [0.001 * at] * 16, reference=pairs[0])
        for at, pair in enumerate(pairs)
    ]
    run = replace(losing_run({}, reference=""), records=tuple(records))
    probes = {"divergence": {"contexts": contexts, "chunks": [16 for _ in contexts]}}
    return replace(run, setup=replace(losing_setup(pairs), probes=probes))


def test_36_pairs_take_less_than_half_of_what_a_receipt_may_have():
    text = receipt_markdown(wide_run([512]))

    assert len(text.encode()) < MOST_BYTES / 2


def test_of_what_is_too_long_the_last_columns_are_left_out_and_named(monkeypatch):
    monkeypatch.setattr("codeneedle.report.receipt.MOST_BYTES", 3_000)
    found = receipt_of(wide_run([512]))

    assert len(found.text().encode()) <= 3_000
    assert found.facts["without"].endswith("kv MiB")
    assert "verdict" == found.columns[0]


PRIVATE = "/home/ada/own folder"


def with_secrets(run):
    """*run* with a path or a text of its user wherever one may stand."""
    setup = run.setup
    probes = {
        name: {**stored, "text": f"{PRIVATE}/x"}
        if name == "divergence"
        else {**stored, "note": "ada's own"}
        for name, stored in setup.probes.items()
    }
    setup = replace(
        setup,
        corpus=replace(
            setup.corpus, name=f"{PRIVATE}/golden", origin=f"file {PRIVATE}/a.py"
        ),
        server_args=("--lora", f"{PRIVATE}/a.gguf", f"--x={PRIVATE}/b", "ada's own"),
        probes=probes,
    )
    records = [
        replace(
            each, command=(*each.command, f"{PRIVATE}/a", "ada's own"), reason=PRIVATE
        )
        for each in run.records
    ]
    return replace(
        run, name=f"{PRIVATE}/x", setup=setup, records=tuple(records), sweep=PRIVATE
    )


@pytest.mark.parametrize("name", RUNS)
def test_no_path_and_no_text_of_the_user_is_in_it(name):
    run = with_secrets(stored_run(name))
    text = receipt_markdown(run)

    for word in ("ada", "own", "home", "/root", "cache/"):
        assert word not in text.lower(), text
    for needle in (*written_of(run.setup), *forced_of(run.setup)):
        assert needle.name not in text
        assert not any(each.strip() in text for each in needle.lines)


def test_nothing_names_the_host_or_its_user():
    here = machine.facts().phrase()

    text = receipt_markdown(elsewhere(stored_run(), machine=here))

    assert here in text
    for name in (platform.node(), getpass.getuser(), str(Path.home())):
        assert name not in re.findall(r"[^\s;,()]+", text)


# --- what is refused


def damaged():
    text = receipt_of(stored_run()).text()
    first, heading, row, *_ = text.split("\n")
    return {
        "a number changed": text.replace("0.5434", "0.5435"),
        "a word changed": text.replace("seed 42", "seed 43"),
        "a row lost": "\n".join(text.split("\n")[:-2]),
        "its sum lost": text.replace("; sum ", "; other "),
        "no rows": first,
        "heading alone": f"{first}\n{heading}",
        "a line of setup cut off": f"{first[:-20]}\n{heading}\n{row}",
        "a row cut off": f"{first}\n{heading}\n{row[:40]}",
        "no pair": f"{first}\n{heading}\n{row.replace('f16/f16', 'f16')}",
        "a pair twice": f"{first}\n{heading}\n{row}\n{row}",
        "a column twice": f"{first}\nK/V | a | a\nf16/f16 | 1 | 2",
        "another heading": f"{first}\n{heading.replace('K/V', 'pair')}\n{row}",
    }


@pytest.mark.parametrize("name", damaged())
def test_what_is_no_whole_receipt_is_refused_with_its_line(name, golden):
    with pytest.raises(BadInput) as caught:
        list(parse_receipts(f"\n{damaged()[name]}", source="issue.md"))

    assert golden == (str(caught.value), caught.value.hint)


def test_a_receipt_of_another_version_is_refused():
    text = receipt_of(stored_run()).text().replace("receipt 3:", "receipt 2:")

    with pytest.raises(BadInput, match="version 2, 3 is known"):
        list(parse_receipts(text, source="text"))


def test_a_text_without_receipts_or_with_too_much_is_refused(tmp_path, golden):
    file = tmp_path / "issue.md"
    file.write_text("nothing; see codeneedle receipt NAME", encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        named(file)
    assert golden == caught.value.reason

    file.write_bytes(b" " * (TEXT_BYTES + 1))
    with pytest.raises(BadInput, match="more than 1 MiB"):
        named(file)

    many = [
        receipt_of(elsewhere(stored_run(), seed=at)).text()
        for at in range(MOST_RECEIPTS + 1)
    ]
    file.write_text("\n".join(many), encoding="utf-8")
    with pytest.raises(BadInput, match=f"more than the {MOST_RECEIPTS}"):
        named(file)
    assert is_file_or_stdin(str(file))
    assert not is_file_or_stdin(str(tmp_path))
    assert not is_file_or_stdin(str(tmp_path / "none"))


def test_a_nested_or_endless_line_is_read_in_time():
    text = "codeneedle receipt 3: " + "; " * 100_000 + "\nK/V" + " | " * 100_000

    with pytest.raises(BadInput, match="no rows"):
        list(parse_receipts(text, source="text"))


# --- side by side


def test_the_same_receipt_counts_once_and_standard_input_is_read(monkeypatch):
    text = receipt_markdown(stored_run())
    stdin = SimpleNamespace(buffer=io.BytesIO(f"{text}\n{text}".encode()))
    monkeypatch.setattr("sys.stdin", stdin)

    assert [receipt_of(stored_run())] == named("-")


def test_a_run_folder_stands_beside_a_text(tmp_path):
    (tmp_path / "issue.md").write_text(receipt_markdown(stored_run()), encoding="utf-8")

    found = named(tmp_path / "issue.md", "recall")

    assert [receipt_of(stored_run()), receipt_of(stored_run("recall"))] == found


def tables(*runs):
    """Headings of the tables of *runs* by column; and the text."""
    text = printed(receipts_document([*map(receipt_of, runs)]), width=400)
    found = {}
    for title, heading in re.findall(r"^(\S.*)\n\nK/V +(.*)$", text, re.MULTILINE):
        found.setdefault(title, []).append(heading.split())
    return found, text


BUILD = {"llama": "0.6.0-dev (build 11500, commit 123456789)"}
FEATURES = {"cpu_features": "SSE3 AVX NEON"}


@pytest.mark.parametrize("facts", [BUILD, FEATURES])
def test_divergence_of_other_builds_and_processors_never_stands_in_one_table(facts):
    run = stored_run()
    found, text = tables(run, elsewhere(run, **facts))

    for column in ("loss by kld", "kld nats", "kld999 nats", "top1 %", "dp-rms %"):
        assert [["1"], ["2"]] == found[column]
    assert [["1", "2"]] == found["ppl"] == found["tg tokens/s"]
    assert WALL.partition(".")[0] in text


def test_runs_that_measured_the_same_stand_in_one_table_and_nothing_is_tested():
    run = stored_run()
    found, text = tables(run, elsewhere(run, seed=7))

    assert [["1", "2"]] == found["kld nats"] == found["tg tokens/s"]
    assert re.search(r"q4_0/f16 +0.5434 ± 0.1027 +0.5434 ± 0.1027", text)
    assert re.search(r"seed +42 +7", text)
    assert NOT_TESTED.partition(".")[0] in text
    assert WALL.partition(".")[0] not in text


def test_names_from_elsewhere_change_no_table_and_no_terminal():
    found = receipt_of(stored_run())
    named = replace(found, facts={**found.facts, "model": "<b>\x1b[31m# x"})
    document = receipts_document([*parse_receipts(named.text(), source="text")])

    shown = markdown(document)

    assert "\x1b" not in shown
    assert "<b>" not in shown.replace("\\<", "")


def test_as_an_object_a_receipt_has_its_setup_and_a_row_for_each_pair():
    (found,) = receipt_objects([receipt_of(stored_run())])

    assert "f16/f16" == found["setup"]["reference"]
    assert {"k": "f16", "v": "f16", "verdict": "reference"}.items() <= found["pairs"][
        0
    ].items()
