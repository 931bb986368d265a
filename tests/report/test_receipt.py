"""Receipts: what is in them, what is refused, and what stands side by side."""

import base64
import io
import re
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from made_losses import diverging, losing_run, losing_setup
from made_records import made_run

from codeneedle.engines.llama_cpp.arguments import (
    base_command,
    build_option,
    comparison,
)
from codeneedle.errors import BadInput
from codeneedle.grid import DEFAULT_TYPES
from codeneedle.records.store import Store
from codeneedle.report.compare import WALL
from codeneedle.report.llama_form import Dialect
from codeneedle.report.markdown import markdown
from codeneedle.report.receipt import (
    LINE_BYTES,
    MARK,
    MOST_RECEIPTS,
    TEXT_BYTES,
    UNITS_BYTES,
    Receipt,
    are_texts,
    line,
    merged,
    packed,
    read_receipts,
    receipt_markdown,
    receipts_in,
    signed,
    unpacked,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
DIALECT = Dialect(base=base_command, compares=comparison, build=build_option)
RUNS = ("divergence", "recall", "retrieval", "mlx")


def golden(name="divergence"):
    return Store(GOLDEN / name / "golden" / "needle-nano").read()


def receipt_of(run):
    (found,) = receipts_in(receipt_markdown(run, DIALECT), source="text")
    return found


def changed(receipt, **fields):
    """The line of *receipt* with other *fields* and a checksum that fits."""
    return line(signed(msgspec.structs.replace(receipt, **fields)))


def elsewhere(run, **facts):
    return replace(run, setup=replace(run.setup, **facts))


@pytest.mark.parametrize("name", RUNS)
def test_a_receipt_is_read_as_it_was_printed(name):
    run = golden(name)
    text = receipt_markdown(run, DIALECT)
    quoted = "".join(f"> {each}\r\n" for each in text.splitlines())

    (found,) = receipts_in(f"Hello, {{}}!\n\n{quoted}\nand thanks", source="text")

    assert receipt_of(run) == found
    assert run.setup.weights.sha256 == found.model.sha256
    assert [*map(str, run.setup.grid)] == [str(each.pair) for each in found.pairs]


def test_the_table_is_that_of_llama_cpp_where_divergence_was_measured():
    assert "| K | V | BPV | PPL |" in receipt_markdown(golden(), DIALECT)
    assert "### matched: " in receipt_markdown(golden("recall"), DIALECT)
    assert WALL not in receipt_markdown(golden("recall"), DIALECT)


def test_the_values_of_each_unit_are_in_it():
    found = receipt_of(golden())

    assert (0.9053, 0.8143, 0.9155) == unpacked(found.units)["kld"][1]
    assert 0.0 == found.floor["kld"]


def test_36_pairs_with_16_chunks_take_about_5_kb():
    pairs = [f"{k}/{v}" for k in DEFAULT_TYPES for v in DEFAULT_TYPES]
    first = pairs[0]
    records = [
        diverging(
            pair, [0.001 * at * (1 + 0.618 * c % 1) for c in range(16)], reference=first
        )
        for at, pair in enumerate(pairs)
    ]
    run = replace(losing_run({}, reference=""), records=tuple(records))
    setup = losing_setup(pairs)
    run = replace(run, setup=replace(setup, probes={"divergence": {"contexts": [512]}}))

    assert len(line(receipt_of(run))) < 8_000


PRIVATE = "/home/ada/own folder"


def with_secrets(run):
    """*run* with a path or a text of its user wherever one may stand."""
    setup = run.setup
    probes = {
        name: {**each, "text": f"{PRIVATE}/x"} for name, each in setup.probes.items()
    }
    for name in probes.keys() - {"divergence"}:
        probes[name]["note"] = "ada's own"
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
    run = with_secrets(golden(name))
    text = receipt_markdown(run, DIALECT)

    for word in ("ada", "own", "home", "/root", "cache/"):
        assert word not in text.lower(), text
    for needle in (*run.setup.needles, *run.setup.forced):
        assert needle.name not in text
        assert not any(each.strip() in text for each in needle.lines)


# --- what is refused


def test_any_byte_that_differs_is_damage():
    text = line(receipt_of(golden()))
    for at in range(0, len(text) - 1, 97):
        other = "7" if text[at] != "7" else "8"
        damaged = f"{text[:at]}{other}{text[at + 1 :]}"
        if MARK in damaged:
            with pytest.raises(BadInput):
                list(receipts_in(damaged, source="text"))


def bomb():
    """Little that unpacks to much."""
    return base64.b64encode(zlib.compress(b" " * (UNITS_BYTES + 1), 9)).decode()


def trailing():
    """Something behind the compressed values."""
    return base64.b64encode(zlib.compress(b"{}") + b"more").decode()


FORGED = [
    ({"units": bomb()}, "too long"),
    ({"units": trailing()}, "not alone"),
    ({"units": "###"}, "cannot be read"),
    ({"units": base64.b64encode(b"no zlib").decode()}, "cannot be read"),
    ({"units": packed({"kld": ((0.1,),) * 4})}, "by its units"),
    ({"units": packed({"kld": ((0.1,),)})}, "of other pairs"),
    ({"units": packed({"other": ((0.1,),) * 4})}, "of other pairs"),
    ({"reference": "q8_0/q8_0"}, "no pair q8_0/q8_0"),
    ({"floor": {"kld": 0.5}}, "the floor of kld"),
    ({"metrics": (("divergence", "kld"),)}, "numbers of other metrics"),
    ({"metrics": (("divination", "kld"),)}, "no probe divination"),
    ({"metrics": (("divergence", "kld"),) * 2}, "stands in it twice"),
    ({"metrics": (("divergence", "kld"),) * 201}, "it has 201 metrics"),
    ({"codeneedle": 2}, "version 2"),
]


@pytest.mark.parametrize(("fields", "words"), FORGED)
def test_what_cannot_be_true_is_refused_though_its_checksum_fits(fields, words):
    text = changed(receipt_of(golden()), **fields)

    with pytest.raises(BadInput, match=re.escape(words)) as caught:
        list(receipts_in(f"\n{text}", source="issue.md"))

    assert "issue.md, line 2" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("metric", "value"), [("kld", -0.2), ("top1", 101.0), ("ppl", 0.5), ("pp", -1.0)]
)
def test_a_number_that_its_metric_cannot_have_is_refused(metric, value):
    found = receipt_of(golden())
    at = [name for _, name in found.metrics].index(metric)
    first, *rest = found.pairs
    values = (*first.values[:at], value, *first.values[at + 1 :])
    pairs = (msgspec.structs.replace(first, values=values), *rest)

    with pytest.raises(BadInput, match=f"{metric} of f16/f16 is"):
        list(receipts_in(changed(found, pairs=pairs), source="text"))


def hostile():
    text = line(receipt_of(golden()))
    return {
        "cut off": text[:900],
        "another key": text.replace('"floor"', '"extra":1,"floor"'),
        "a key twice": text.replace('"floor"', '"codeneedle":1,"floor"'),
        "blanks": text.replace(",", ", "),
        "nested": MARK + "[" * 100_000 + "}",
        "not a number": text.replace("0.000017", "NaN"),
        "infinite": text.replace("0.000017", "1e999"),
        "long": MARK + " " * LINE_BYTES + "}",
        "twice on a line": text * 2,
        "no JSON": MARK + "1}",
        "no text": MARK + '1,"model":"\ud800"}',
    }


@pytest.mark.parametrize("name", hostile())
def test_a_line_that_is_no_receipt_is_refused_with_a_hint(name):
    with pytest.raises(BadInput, match=r"text, line 1.*receipt") as caught:
        list(receipts_in(hostile()[name], source="text"))

    assert "Copy the whole line" in caught.value.hint


def test_a_text_without_receipts_or_with_too_much_is_refused(tmp_path):
    file = tmp_path / "issue.md"
    file.write_text("nothing", encoding="utf-8")
    with pytest.raises(BadInput, match="no receipt in it"):
        read_receipts([str(file)])

    file.write_bytes(b" " * (TEXT_BYTES + 1))
    with pytest.raises(BadInput, match="more than 16 MiB"):
        read_receipts([str(file)])

    found = receipt_of(golden())
    many = [
        changed(found, codeneedle=1, setup=with_seed(found, at)) for at in range(33)
    ]
    file.write_text("\n".join(many), encoding="utf-8")
    with pytest.raises(BadInput, match=f"more than the {MOST_RECEIPTS}"):
        read_receipts([str(file)])
    with pytest.raises(BadInput, match="cannot be read"):
        read_receipts([str(tmp_path / "none")])


def with_seed(receipt: Receipt, seed):
    return msgspec.structs.replace(receipt.setup, seed=seed)


def test_texts_and_folders_are_not_merged_at_once(tmp_path):
    file = tmp_path / "issue.md"
    file.touch()

    assert are_texts([str(file), "-"])
    assert not are_texts([str(tmp_path)])
    with pytest.raises(BadInput, match="is no text"):
        are_texts([str(file), str(tmp_path)])


# --- side by side


def test_the_same_receipt_counts_once_and_standard_input_is_read(monkeypatch):
    text = receipt_markdown(golden(), DIALECT)
    stdin = SimpleNamespace(buffer=io.BytesIO(f"{text}\n{text}".encode()))
    monkeypatch.setattr("sys.stdin", stdin)

    assert [receipt_of(golden())] == read_receipts(["-"])


def tables(*runs):
    """The tables of the receipts of *runs* by metric, a list of headings for each."""
    text = markdown(merged([receipt_of(run) for run in runs]))
    found = {}
    for title, heading in re.findall(r"### ([\w-]+):.*\n\n\| K/V \| (.*) \|", text):
        found.setdefault(title, []).append(heading)
    return found, text


BUILD = {"llama": "0.6.0-dev (build 11500, commit 123456789)"}
FEATURES = {"cpu_features": "SSE3 AVX NEON"}


@pytest.mark.parametrize("facts", [BUILD, FEATURES])
def test_divergence_of_other_builds_and_processors_never_stands_in_one_table(facts):
    run = golden()
    found, text = tables(run, elsewhere(run, **facts))

    for metric in ("kld", "kld999", "top1", "dp-rms"):
        assert ["1", "2"] == found[metric]
    assert ["1 | 2"] == found["ppl"] == found["tg"]
    assert WALL.partition(".")[0] in text
    assert "Divergence of 1 and 2 is not compared: other" in text
    for named in ("11434", "11500") if facts is BUILD else ("AVX512", "NEON"):
        assert named in text.partition("Divergence of 1 and 2")[2]


def test_runs_that_measured_the_same_stand_in_one_table():
    run = golden()
    found, text = tables(run, elsewhere(run, seed=7))

    assert ["1 | 2"] == found["kld"] == found["tg"]
    assert "| q4/f16 | 0.5434 ± 0.1027 | 0.5434 ± 0.1027 |" in text.replace("\\_0", "")
    assert "not compared" not in text


def test_other_texts_machines_and_models_have_tables_of_their_own():
    run = golden()
    text = replace(run.setup.corpus, sha256="ab" * 32)
    model = replace(run.setup.weights, sha256="cd" * 32)
    recall, retrieval = golden("recall"), golden("retrieval")

    assert ["1", "2"] == tables(recall, elsewhere(recall, corpus=text))[0]["matched"]
    assert ["1 | 2"] == tables(run, elsewhere(run, corpus=text))[0]["ppl"]
    assert ["1", "2"] == tables(retrieval, elsewhere(retrieval, seed=7))[0]["single"]
    assert ["1", "2"] == tables(run, elsewhere(run, machine="another"))[0]["tg"]
    assert ["1", "2"] == tables(run, elsewhere(run, weights=model))[0]["kld"]


def test_names_from_elsewhere_change_no_table_and_no_terminal():
    found = receipt_of(golden())
    model = msgspec.structs.replace(found.model, name="<b>|\x1b[31m\n# x")
    text = markdown(merged([*receipts_in(changed(found, model=model), source="text")]))

    assert "\x1b" not in text
    assert "<b>" not in text.replace("\\<", "")
    assert "\n# x" not in text


def test_a_pair_that_failed_says_how():
    found = receipt_of(made_run())
    pairs = [
        msgspec.structs.replace(
            each, status="out-of-memory", values=(None,) * len(each.values)
        )
        if at
        else each
        for at, each in enumerate(found.pairs)
    ]
    text = changed(found, pairs=tuple(pairs), units=packed({}))

    assert "| oom |" in markdown(merged([*receipts_in(text, source="text")]))
