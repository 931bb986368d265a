"""One row per pair with the metrics of all probes."""

import json
import math
from dataclasses import replace

import pytest
from made_metrics import (
    DIVERGENCE,
    KLD,
    PROBES,
    THROUGHPUT,
    TYPES,
    failed,
    made_metric,
    made_probe,
    on_cpu,
    run_of_all,
)
from made_records import made_run, made_setup, renamed
from printing import printed

from codeneedle.cache_types import Pair
from codeneedle.errors import BadInput, UnknownName
from codeneedle.records.record import Effective, Status
from codeneedle.report.data import json_text
from codeneedle.report.markdown import markdown
from codeneedle.report.table import (
    pair_table,
    pair_table_rows,
    table_objects,
    tables_document,
)
from codeneedle.verdict.judge import judge


def table_of(run=None, probes=PROBES, **options):
    """The table of *run*."""
    return pair_table(run or run_of_all(), probes, **options)


def column(table, name):
    """The column of one metric."""
    return next(each for each in table.columns if each.metric.name == name)


def value(table, name, pair):
    """The value of one metric of one pair."""
    return column(table, name).cell(Pair.parse(pair)).value


def ratio(table, name, pair):
    """The same divided by the reference's."""
    return column(table, name).ratio_to_reference(Pair.parse(pair))


def shown(table):
    """Names of the columns that a terminal shows."""
    return [each.metric.name for each in table.shown_columns]


def lines_of(run=None, *, width=100, probes=PROBES, sort=None):
    """What a terminal of *width* columns gets, without trailing blanks."""
    view = tables_document([table_of(run, probes, sort=sort)])
    return [line.rstrip() for line in printed(view, width=width).splitlines()]


def row(lines, pair):
    """The words of the first row of *pair*."""
    return next(line for line in lines if line.startswith(pair)).split()


def test_columns_are_ordered_by_quality_speed_and_memory():
    added = made_metric("kld@512", values=lambda *_: [0.1])
    more = made_probe(
        "divergence",
        *DIVERGENCE.metrics,
        metrics_of=lambda _setup: (*DIVERGENCE.metrics, added),
    )
    table, recalled = table_of(), table_of(made_run())
    pairs = list(map(str, table.pairs))

    assert ["matched", "margin", "kld", "top1", "ppl", "tg", "kv"] == shown(table)
    assert (("recall",), ["matched", "margin", "kv"]) == (
        recalled.probes,
        shown(recalled),
    )
    assert "kld@512" in shown(table_of(probes=[more]))
    assert {"kld-max", "kv-per-1k", "hallucinated", "rss"} <= {
        each.metric.name for each in table.columns
    }
    assert ["bf16/bf16", "bf16/q8_0", "bf16/q4_0", "q8_0/bf16"] == pairs[:4]
    assert 9 == len(pairs)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("kld", 16.0), ("tg", 192.5 / 200), ("kv", 1.0), ("matched", math.nan)],
)
def test_values_are_divided_by_the_reference(metric, expected):
    table = table_of()

    assert Pair("bf16", "bf16") == table.reference
    assert ratio(table, metric, "q8_0/bf16") == pytest.approx(expected, nan_ok=True)
    assert math.isnan(ratio(table, metric, "bf16/bf16"))


@pytest.mark.parametrize(("floor", "expected"), [(-0.5, 14.0), (0, math.nan)])
def test_a_floor_of_zero_or_less(floor, expected):
    """Rounding can leave a negative one, which counts as positive; 0 gives no ratio."""
    found = ratio(table_of(run_of_all(floor=floor)), "kld", "q8_0/bf16")

    assert found == pytest.approx(expected, nan_ok=True)


def test_the_next_pair_is_the_reference_of_a_probe_whose_first_failed():
    run = run_of_all(changes=[failed("throughput", "bf16/bf16")])
    table = table_of(run)

    assert Pair("bf16", "bf16") == table.reference
    assert Pair("bf16", "q8_0") == column(table, "tg").reference
    assert 184.5 / 192.5 == ratio(table, "tg", "bf16/q4_0") * (184.5 / 188.5)
    assert "tg       compared with bf16/q8_0" in lines_of(run)


def test_a_failed_cell_leaves_gaps_in_the_columns_of_its_probe(golden):
    run = run_of_all(changes=[failed("divergence", "q4_0/q4_0")])
    lines = lines_of(run)
    broken = replace(run.records[0], status=Status.CRASHED, observation=None)
    nothing = replace(run, records=(broken,))

    assert math.isnan(value(table_of(run), "kld", "q4_0/q4_0"))
    assert ["20.00", "4.00", "oom", "oom", "oom"] == row(lines, "q4_0/q4_0")[1:6]
    assert golden == [line for line in lines if line.startswith("oom ")]
    assert None is table_of(nothing).reference
    assert "the reference" not in " ".join(lines_of(nothing))


def test_a_speed_without_a_kernel_is_shown_marked_and_ranked_with_none():
    run = run_of_all(changes=[on_cpu("throughput", "q4_0/q4_0", tg=[999.0])])
    lines = lines_of(run, sort="tg")

    (line,) = [each for each in lines if each.startswith("q4_0/q4_0")]
    assert " 999.0 cpu " in line
    assert any("cpu" in line and "38 graph splits" in line for line in lines)
    assert Pair("q4_0", "q4_0") == table_of(run, sort="tg").pairs[-1]
    first = run_of_all(changes=[on_cpu("throughput", "bf16/bf16", tg=[1])])
    assert Pair("bf16", "q8_0") == column(table_of(first), "tg").reference


def test_a_metric_of_two_probes_comes_from_the_first_with_a_value():
    none = made_metric("kv", values=lambda *_: [])
    first = made_metric("kv", values=lambda *_: [7.0])
    second = made_metric("kv", values=lambda *_: [8.0])
    by_throughput = table_of(
        probes=[made_probe("divergence", none), made_probe("throughput", second)]
    )
    by_divergence = table_of(
        probes=[made_probe("divergence", first), made_probe("throughput", second)]
    )

    assert ("throughput", "divergence") == (
        column(by_throughput, "kv").probe,
        column(by_divergence, "kv").probe,
    )
    assert 8.0 == value(by_throughput, "kv", "q4_0/q4_0")
    assert 7.0 == value(by_divergence, "kv", "q4_0/q4_0")


def test_a_metric_without_any_value_has_no_column_where_its_probe_has_others():
    none = made_metric("none", values=lambda *_: [])
    some = made_metric("some", values=lambda *_: [7.0])
    probes = [made_probe("divergence", none, some), made_probe("throughput", none)]

    assert ["some"] == shown(table_of(probes=probes))
    assert ["none"] == shown(table_of(probes=probes[1:]))
    assert ["none", "some"] == shown(table_of(probes=probes, sort="none"))


@pytest.mark.parametrize(("most", "has_column"), [(0.0, False), (3.0, True)])
def test_wrong_lines_have_a_column_where_there_are_any(most, has_column):
    def lines(record, _setup):
        return [most if record.pair == Pair.parse("q4_0/q4_0") else 0.0]

    some = made_metric("some", values=lambda *_: [7.0])
    wrong = made_metric("misplaced", values=lines)
    table = table_of(probes=[made_probe("divergence", some, wrong)])

    assert has_column == ("misplaced" in shown(table))
    assert column(table, "misplaced").has_values


@pytest.mark.parametrize("metric", ["kld", "top1", "tg", "kld-max"])
def test_sorting_puts_the_best_first_and_shows_the_column(metric):
    table = table_of(sort=metric)

    assert (Pair("bf16", "bf16"), Pair("q4_0", "q4_0")) == (
        table.pairs[0],
        table.pairs[-1],
    )
    assert metric in shown(table)


def test_sorting_puts_gaps_last_and_keeps_the_order_of_equals():
    run = run_of_all(changes=[failed("divergence", "bf16/bf16")])

    assert Pair("bf16", "bf16") == table_of(run, sort="kld").pairs[-1]
    assert table_of().pairs == table_of(sort="matched").pairs


def test_only_a_known_metric_with_a_better_end_sorts(golden):
    with pytest.raises(UnknownName) as caught:
        table_of(sort="kdl")
    assert "kld" in caught.value.hint

    with pytest.raises(BadInput) as caught:
        table_of(sort="ppl")
    assert golden == caught.value.hint


def test_a_column_is_compared_with_the_pair_that_its_records_name():
    run = run_of_all(against="q8_0/q8_0")
    table, lines = table_of(run), lines_of(run)

    assert Pair("bf16", "bf16") == table.reference == column(table, "tg").reference
    assert Pair("q8_0", "q8_0") == column(table, "kld").reference
    assert 15.5 / 0.5 == ratio(table, "kld", "bf16/bf16")
    assert "kld      compared with q8_0/q8_0" in lines
    assert ["15.5000", "(31x)"] == row(lines, "bf16/bf16*")[3:5]
    assert "(" not in row(lines, "q8_0/q8_0")[4]


def test_records_that_name_several_references_have_no_noise_floor(golden):
    key, record = on_cpu(
        "divergence", "q4_0/q4_0", against="bf16/bf16", kld=[3.0], top1=[9], ppl=[9]
    )
    change = (key, replace(record, status=Status.FINISHED, reason=""))
    run = run_of_all(against="q8_0/q8_0", changes=[change])
    lines = lines_of(run)

    assert None is column(table_of(run), "kld").reference
    assert golden == [line for line in lines if line.startswith("kld ")]
    assert "x)" not in "\n".join(lines)


def test_a_row_has_values_and_their_ratios():
    probe = made_probe(
        "throughput", *THROUGHPUT.metrics, remarks=lambda _run: ("never\x1b[2J faster",)
    )
    lines = lines_of(probes=[*PROBES[:-1], probe])
    heading, *_ = (line for line in lines if line.startswith("K/V"))
    second = next(line for line in lines if line.startswith("q8_0/bf16"))

    assert "q8_0/bf16 20.00 4.00 8.0000 (16x) 92.50 12.3450 192.5±0.6 96% 3.5 100%" == (
        " ".join(second.split())
    )
    assert "bf16/bf16* 20.00 4.00 0.5000 100.00 12.3450 200.0±0.6 3.5" == " ".join(
        row(lines, "bf16/bf16")
    )
    assert heading.index("ppl") + 3 == second.index("12.3450") + 7
    assert "*        the reference, bf16/bf16" in lines
    assert "compared with bf16/bf16" not in "\n".join(lines)
    assert r"never\x1b[2J faster" in lines


@pytest.mark.parametrize(
    ("floor", "word"),
    [
        (7.5, "(2.0x)"),
        (0.5, "(16x)"),
        (2e-5, "(375Kx)"),
        (-5e-7, ""),
        (3e-10, ""),
        (0, ""),
    ],
    ids=["2", "16", "375K", "negative", "tiny", "zero"],
)
def test_ratios_are_short(floor, word, golden):
    lines = lines_of(run_of_all(floor=floor))

    assert bool(word) == ("x)" in "\n".join(lines))
    assert not word or word in row(lines, "q8_0/bf16")
    assert golden == [each for each in lines if "no ratios" in each]


def test_cells_without_a_value_are_a_dot_or_a_dash(golden):
    first = Pair("bf16", "bf16")
    empty = made_metric("void", values=lambda of, *_: [1.0] if of.pair == first else [])
    large = made_metric("large", values=lambda *_: [12345.678])
    run = run_of_all(changes=[(("divergence", "q4_0/q4_0"), None)])
    lines = lines_of(run, probes=[made_probe("divergence", KLD, large, empty)])

    assert [".", ".", "."] == row(lines, "q4_0/q4_0")[1:]
    assert ["12346", "-"] == row(lines, "q8_0/q4_0")[-2:]
    assert golden == [line for line in lines if line[:2] in {"- ", ". "}]


@pytest.mark.parametrize(("width", "blocks"), [(100, 1), (80, 1), (60, 2)])
def test_a_narrow_terminal_gets_blocks_that_repeat_the_pairs(width, blocks, golden):
    lines = lines_of(width=width, sort="tg")
    at = [number for number, line in enumerate(lines) if line.startswith("K/V")]
    found = [[line.split()[0] for line in lines[n : n + 10]] for n in at]

    assert golden == lines[0]
    assert [found[0]] * blocks == found
    assert width >= max(len(line) for n in at for line in lines[n : n + 10])


def test_several_tables_and_a_column_wider_than_the_terminal():
    text = printed(tables_document([table_of(probes=[DIVERGENCE])] * 2), width=20)

    assert 2 == text.count("all metrics")
    assert 2 == " ".join(text.split()).count("4 functions written")
    assert {"8.0000", "(16x)"} <= set(row(text.splitlines(), "q8_0/bf16"))


def test_the_verdict_on_each_pair_is_its_last_column_and_the_legend_explains_it():
    run = made_run(
        lambda pair, at: 18 + at % 2 - 5 * (pair.k == "q4_0"),
        setup=made_setup(types_k=TYPES, types_v=TYPES),
    )
    said = replace(table_of(run), verdict=judge(run))
    lines = printed(tables_document([said]), width=120).splitlines()

    assert "beyond" == row(lines, "q4_0/bf16")[-1]
    assert "open" == row(lines, "q8_0/q8_0")[-1]
    assert any(line.startswith("beyond ") for line in lines)
    assert "verdict" in lines[2].split()
    assert "verdict" not in " ".join(lines_of(run))


def test_rows_as_data_have_the_order_of_the_table():
    tables = [table_of(made_run()), table_of(renamed(made_run(), "other/made-model"))]
    ordered = [replace(each, pairs=each.pairs[::-1]) for each in tables]
    pairs = [str(pair) for pair in ordered[0].pairs]

    rows = [row for row in pair_table_rows(ordered) if row.metric == "matched"]
    (found, _) = json.loads(json_text(table_objects(ordered)))

    assert [("random-bodies/made-model", pair) for pair in pairs] == [
        (row.run, row.pair) for row in rows[:36]
    ]
    assert pairs == [row["pair"] for row in found["rows"]][:36]
    assert "sorted_by" not in found
    assert 12288 == found["setup"]["context"]
    assert ["lines"] == [
        each["unit"] for each in found["metrics"] if each["name"] == "matched"
    ]


@pytest.mark.parametrize("floor", [0, 0.5])
def test_a_table_as_markdown_has_its_legend(floor):
    table = table_of(run_of_all(floor=floor))
    text = markdown(tables_document([table], lambda _engine: str))
    lines = text.splitlines()
    legend = lines.index("- matched: matched lines of 20")
    rows = [line for line in lines[:legend] if line.startswith("| ")]

    assert "### random-bodies/made-model: all metrics" == lines[0]
    assert 11 == len(rows)
    assert {10} == {line.replace("\\|", "").count("|") for line in rows}
    assert rows[2].startswith("| bf16/bf16\\* | \\~100% | 20.00 |")
    assert "- \\*: the reference, bf16/bf16" in lines


def test_a_table_as_markdown_has_memory_the_verdict_and_the_commands(golden):
    setup = made_setup(types_k=TYPES, types_v=TYPES)
    run = made_run(lambda pair, at: 20 - 5 * (pair.k == "q4_0"), setup=setup)
    bare = [
        replace(
            each, effective=Effective(), command=("llama-server", "-ctk", each.pair.k)
        )
        for each in run.records
    ]
    run = replace(run, records=tuple(bare), sweep='models = ["m"]\n')
    judged = replace(table_of(run), verdict=judge(run))

    text = markdown(tables_document([judged], lambda _: lambda pair: f"-ctk {pair.k}"))

    assert "| K/V | KV memory | matched |" in text
    assert "| q4\\_0/q4\\_0 | \\~28% | 15.00 |" in text
    assert golden == [x for x in text.split("\n") if x.startswith("- \\~")]
    assert "- **Keep: -ctk bf16." in text
    copied = 'models = ["m"]\n\nllama-server -ctk bf16'
    assert f"</summary>\n<pre>\n{copied}\n</pre>\n</details>" in text
