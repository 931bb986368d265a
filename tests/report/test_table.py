"""One row per pair with the metrics of all probes."""

import io
import math
from dataclasses import replace

import pytest
from made_metrics import (
    DIVERGENCE,
    KLD,
    PROBES,
    TG,
    failed,
    fell_back,
    lost,
    made_metric,
    made_probe,
    run_of_all,
)
from made_records import made_run
from rich.console import Console

from codeneedle.analysis.stats import half_interval
from codeneedle.errors import BadInput, UnknownName
from codeneedle.grid import Pair
from codeneedle.records.record import Status
from codeneedle.report.table import (
    pair_table,
    separations,
    table_view,
)
from codeneedle.scoring.rounds import Reading

READING = Reading()


def table_of(run=None, probes=PROBES, **options):
    """The table of *run*."""
    return pair_table(run or run_of_all(), probes, READING, **options)


def column(table, name):
    """The column of one metric."""
    return next(each for each in table.columns if each.metric.name == name)


def value(table, name, pair):
    """The value of one metric of one pair."""
    return column(table, name).cell(Pair.parse(pair)).value


def ratio(table, name, pair):
    """The same divided by the reference's."""
    return column(table, name).over_reference(Pair.parse(pair))


def shown(table):
    """Names of the columns that a terminal shows."""
    return [each.metric.name for each in table.shown]


def lines_of(run=None, *, width=100, probes=PROBES, sort=None):
    """What a terminal of *width* columns gets, without trailing blanks."""
    console = Console(file=io.StringIO(), width=width)
    console.print(table_view([table_of(run, probes, sort=sort)]), crop=False)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def row(lines, pair):
    """The words of the first row of *pair*."""
    return next(line for line in lines if line.startswith(pair)).split()


def test_columns_are_ordered_by_quality_speed_and_memory():
    """
    Within a group, probes and their metrics keep their order.
    """
    expected = ["matched", "margin", "kld", "top1", "ppl", "tg", "kv"]

    assert expected == shown(table_of())


def test_probes_without_records_have_no_columns():
    """
    A sweep of recall alone is a table of recall alone.
    """
    table = table_of(made_run())

    assert ("recall",) == table.probes
    assert ["matched", "margin", "kv"] == shown(table)


def test_metrics_that_are_not_shown_are_in_the_table():
    """
    Exports need them.
    """
    names = {each.metric.name for each in table_of().columns}

    assert {"quiet", "kv-per-1k", "hallucinated", "rss"} <= names


def test_metrics_that_settings_add_have_columns():
    """
    Such as a speed at each depth.
    """
    more = replace(DIVERGENCE, more_metrics=lambda _setup: (made_metric("kld@512"),))

    assert "kld@512" in shown(table_of(probes=[more]))


def test_remarks_of_a_probe_are_below_its_table():
    """
    Escaped: they name pairs.
    """
    probe = replace(DIVERGENCE, remarks=lambda _run: ("never\x1b[2J faster",))

    assert r"never\x1b[2J faster" in lines_of(probes=[probe])


def test_every_pair_of_the_grid_has_a_row():
    """
    Most precise first, K slowest.
    """
    pairs = list(map(str, table_of().pairs))

    assert 9 == len(pairs)
    assert ["bf16/bf16", "bf16/q8_0", "bf16/q4_0", "q8_0/bf16"] == pairs[:4]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("kld", 16.0), ("tg", 192.5 / 200), ("kv", 1.0), ("matched", math.nan)],
)
def test_values_are_divided_by_the_reference(metric, expected):
    """
    Where the metric has a noise floor or a ratio; never for the reference itself.
    """
    table = table_of()

    assert Pair("bf16", "bf16") == table.reference
    assert ratio(table, metric, "q8_0/bf16") == pytest.approx(expected, nan_ok=True)
    assert math.isnan(ratio(table, metric, "bf16/bf16"))


@pytest.mark.parametrize(("floor", "expected"), [(-0.5, 14.0), (0, math.nan)])
def test_a_floor_of_zero_or_less(floor, expected):
    """
    Rounding can leave a negative one, which counts as positive; 0 gives no ratio.
    """
    found = ratio(table_of(run_of_all(floor=floor)), "kld", "q8_0/bf16")

    assert found == pytest.approx(expected, nan_ok=True)


def test_the_next_pair_is_the_reference_of_a_probe_whose_first_failed():
    """
    As in a grid: the most precise pair with a value. The column says so.
    """
    run = run_of_all(changes=[failed("throughput", "bf16/bf16")])
    table = table_of(run)

    assert Pair("bf16", "bf16") == table.reference
    assert Pair("bf16", "q8_0") == column(table, "tg").reference
    assert 184.5 / 192.5 == ratio(table, "tg", "bf16/q4_0") * (184.5 / 188.5)
    assert "tg       compared with bf16/q8_0" in lines_of(run)


def test_a_table_without_finished_cells_has_no_reference():
    """
    It shows the failures.
    """
    run = run_of_all()
    broken = replace(run.records[0], status=Status.CRASHED, observation=None)
    table = table_of(replace(run, records=(broken,)))

    assert None is table.reference
    assert [] == separations(table)
    assert not column(table, "matched").has_values
    assert "the reference" not in " ".join(lines_of(table.run))


def test_a_failed_cell_leaves_gaps_in_the_columns_of_its_probe():
    """
    Other probes have their numbers; the legend has status, probe and reason.
    """
    run = run_of_all(changes=[failed("divergence", "q4_0/q4_0")])
    lines = lines_of(run)

    assert math.isnan(value(table_of(run), "kld", "q4_0/q4_0"))
    assert ["20.00", "4.00", "oom", "oom", "oom"] == row(lines, "q4_0/q4_0")[1:6]
    reason = "q4_0/q4_0 out-of-memory (divergence): cannot allocate"
    assert f"oom      {reason}" in lines


def test_a_fallback_cell_is_a_gap_in_the_table_as_in_the_grid():
    """
    It was not measured as asked for, so it has a word, and does not rank.
    """
    run = run_of_all(changes=[fell_back("throughput", "q4_0/q4_0", tg=[999.0])])
    lines = lines_of(run, sort="tg")

    assert "on-cpu" in row(lines, "q4_0/q4_0")
    assert "999" not in "\n".join(lines)
    assert "on-cpu   q4_0/q4_0 fallback-cpu (throughput): 38 graph splits" in lines
    assert Pair("q4_0", "q4_0") == table_of(run, sort="tg").pairs[-1]
    first = run_of_all(changes=[fell_back("throughput", "bf16/bf16", tg=[1])])
    assert Pair("bf16", "q8_0") == column(table_of(first), "tg").reference


def test_a_metric_of_two_probes_comes_from_the_first_with_a_value():
    """
    Their contexts may differ, so the values are not mixed.
    """
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


@pytest.mark.parametrize("metric", ["kld", "top1", "tg", "quiet"])
def test_sorting_puts_the_best_first_and_shows_the_column(metric):
    """
    The lowest or the highest value, whichever is better.
    """
    table = table_of(sort=metric)

    assert (Pair("bf16", "bf16"), Pair("q4_0", "q4_0")) == (
        table.pairs[0],
        table.pairs[-1],
    )
    assert metric in shown(table)


def test_sorting_puts_gaps_last_and_keeps_the_order_of_equals():
    """
    All pairs match 20 lines here.
    """
    run = run_of_all(changes=[failed("divergence", "bf16/bf16")])

    assert Pair("bf16", "bf16") == table_of(run, sort="kld").pairs[-1]
    assert table_of().pairs == table_of(sort="matched").pairs


def test_only_a_known_metric_with_a_better_end_sorts():
    """
    The nearest known name is offered, or those that sort.
    """
    with pytest.raises(UnknownName) as caught:
        table_of(sort="kdl")
    assert "kld" in caught.value.hint

    with pytest.raises(BadInput) as caught:
        table_of(sort="ppl")
    assert "Sort by one of matched, margin, kld, top1, tg, kv." == caught.value.hint


def test_a_column_is_compared_with_the_pair_that_its_records_name():
    """
    A sweep of q8_0 that went on with bf16: KLD stays measured against q8_0.
    """
    run = run_of_all(against="q8_0/q8_0")
    table, lines = table_of(run), lines_of(run)

    assert Pair("bf16", "bf16") == table.reference == column(table, "tg").reference
    assert Pair("q8_0", "q8_0") == column(table, "kld").reference
    assert 15.5 / 0.5 == ratio(table, "kld", "bf16/bf16")
    assert "kld      compared with q8_0/q8_0" in lines
    assert ["15.5000", "(31x)"] == row(lines, "bf16/bf16*")[3:5]
    assert "(" not in row(lines, "q8_0/q8_0")[4]


def test_records_that_name_several_references_have_no_noise_floor():
    """
    What was measured against different pairs is not comparable.
    """
    key, record = fell_back(
        "divergence", "q4_0/q4_0", against="bf16/bf16", kld=[3.0], top1=[9], ppl=[9]
    )
    change = (key, replace(record, status=Status.FINISHED, reason=""))
    run = run_of_all(against="q8_0/q8_0", changes=[change])
    text = "\n".join(lines_of(run))

    assert None is column(table_of(run), "kld").reference
    said = "measured against bf16/bf16 or q8_0/q8_0: not comparable, no noise floor"
    assert f"kld      {said}\n" in text
    assert "x)" not in text


def test_a_row_has_values_and_their_ratios():
    """
    Multiples of the noise floor in parentheses, shares of the reference in percent.
    """
    lines = lines_of()

    assert "q8_0/bf16 20.00 4.00 8.0000 (16x) 92.50 12.345 192.5 96% 3.5 100%" == (
        " ".join(row(lines, "q8_0/bf16"))
    )
    assert "bf16/bf16* 20.00 4.00 0.5000 100.00 12.345 200.0 3.5" == " ".join(
        row(lines, "bf16/bf16")
    )
    assert "*        the reference, bf16/bf16" in lines
    assert "kld      the kld, nats" in lines
    assert "(2x)     times the noise floor: the reference compared with itself" in lines
    assert "98%      of the reference's value" in lines
    assert "compared with bf16/bf16" not in "\n".join(lines)


def test_headings_are_above_their_columns():
    """
    Numbers are right-aligned with their heading.
    """
    lines = lines_of()
    heading = next(line for line in lines if line.startswith("K/V"))
    at = heading.index("ppl") + 3

    assert ["K/V", "matched", "margin", "kld", "top1", "ppl", "tg", "kv"] == (
        heading.split()
    )
    assert (
        "12.345"
        == next(line for line in lines if line.startswith("q8_0/q8_0"))[at - 6 : at]
    )


@pytest.mark.parametrize(
    ("floor", "word"), [(7.5, "(2.0x)"), (0.5, "(16x)"), (2e-5, "(375Kx)")]
)
def test_ratios_are_short(floor, word):
    """
    A decimal below 10, thousands from 10,000 on.
    """
    assert word in row(lines_of(run_of_all(floor=floor)), "q8_0/bf16")


def test_a_noise_floor_of_zero_is_explained():
    """
    There are no ratios, and no legend of any.
    """
    lines = lines_of(run_of_all(floor=0))

    assert "kld      no ratios: the noise floor is 0" in lines
    assert "x)" not in "\n".join(lines)


def test_cells_without_a_value_are_a_dot_or_a_dash():
    """
    Not run, or finished without a value; the legend has both.
    """
    empty = made_metric("empty", values=lambda *_: [])
    run = run_of_all(changes=[(("divergence", "q4_0/q4_0"), None)])
    lines = lines_of(run, probes=[made_probe("divergence", KLD, empty)])

    assert [".", "."] == row(lines, "q4_0/q4_0")[1:]
    assert "-" == row(lines, "q8_0/q4_0")[-1]
    assert {"-      finished, without a value of empty", ".      not run"} <= set(lines)


def test_values_from_1000_on_have_no_decimals():
    """
    They would cost a column.
    """
    large = made_metric("large", values=lambda *_: [12345.678])

    assert "12346" in row(lines_of(probes=[made_probe("divergence", large)]), "q4_0")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_table_fits_the_terminal(width):
    """
    Columns that do not fit are printed in another block.
    """
    assert width >= max(map(len, lines_of(width=width)))


def test_blocks_repeat_the_pairs():
    """
    In the same order, with a heading that names it.
    """
    lines = lines_of(width=60, sort="tg")
    at = [number for number, line in enumerate(lines) if line.startswith("K/V")]
    blocks = [[line.split()[0] for line in lines[n : n + 10]] for n in at]

    assert "random-bodies/made-model: all metrics, sorted by tg" == (lines[0])
    assert 2 == len(blocks)
    assert blocks[0] == blocks[1]


def test_a_column_wider_than_the_terminal_is_not_cut():
    """
    A cut number would be another number.
    """
    assert {"8.0000", "(16x)"} <= set(
        row(lines_of(width=20, probes=[DIVERGENCE]), "q8_0/bf16")
    )


def test_every_table_has_what_it_was_measured_on():
    """
    Each of several runs.
    """
    console = Console(file=io.StringIO(), width=100)
    console.print(table_view([table_of()] * 2), crop=False)
    text = console.file.getvalue()

    assert 2 == text.count("all metrics")
    assert 2 == text.count("12,288 tokens, 4 rounds")


def test_control_characters_of_reasons_are_escaped():
    """
    Reasons come from logs.
    """
    change = failed("divergence", "q4_0/q4_0", reason="\x1b[31mred")

    assert "\x1b" not in "\n".join(lines_of(run_of_all(changes=[change])))


def separated(run=None, probes=PROBES):
    """The significant differences of *run*, by metric."""
    found = separations(table_of(run, probes))
    return {each.metric.name: each for each in found}


def test_significant_differences_have_a_table():
    """
    Quality and speed; memory has no noise, and perplexity no better end.
    """
    lines = lines_of()
    words = [line.split() for line in lines]

    assert ["matched", "margin", "kld", "top1", "tg"] == list(separated())
    assert ["matched", "0", "of", "8", "0.00", "-", "0.0"] in words
    assert ["kld", "8", "of", "8", "+23.0000", "q4_0/q4_0", "46"] in words
    assert any(line.startswith("significant: differs") for line in lines)


def test_a_noise_floor_is_the_noise():
    """
    A high one hides the pairs that lost less; the reference is not compared.
    """
    found = separated()["kld"]

    assert (8, 8) == (found.significant, found.compared)
    assert (Pair("q4_0", "q4_0"), 23.0) == (
        found.largest.pair,
        found.largest.difference,
    )
    assert 46.0 == found.largest.times_noise
    assert 4 == separated(run_of_all(floor=12))["kld"].significant
    named = separated(run_of_all(against="q8_0/q8_0"))["kld"]
    assert (Pair("bf16", "bf16"), 15.0) == (
        named.largest.pair,
        named.largest.difference,
    )


def test_rounds_are_compared_needle_by_needle():
    """
    Where no round differs, no pair is significant; where all do, it is.
    """
    found = separated(
        run_of_all(
            matched=lambda pair, at: (
                12 + at if str(pair) == "q4_0/q4_0" else 18 + at % 2
            )
        )
    )

    assert 1 == found["matched"].significant
    assert (Pair("q4_0", "q4_0"), -5.0) == (
        found["matched"].largest.pair,
        found["matched"].largest.difference,
    )
    assert (0, 0.0) == (
        found["margin"].significant,
        found["margin"].largest.times_noise,
    )


def test_stored_errors_are_noise():
    """
    Half a percent each way: 1.96 times their hypotenuse is 1.39.
    """
    found = separated()["top1"]

    assert 8 == found.significant
    assert pytest.approx(1.96 * math.sqrt(0.5)) == found.largest.noise


def test_single_numbers_without_an_error_have_unknown_noise():
    """
    The table shows a dash.
    """
    probe = made_probe("divergence", made_metric("quiet"))
    found = separated(probes=[probe])["quiet"]

    assert (None, 8) == (found.significant, found.compared)
    assert math.isnan(found.largest.noise)
    assert ["quiet", "-"] in [line.split()[:2] for line in lines_of(probes=[probe])]


def test_repetitions_have_a_variance():
    """
    Three speeds each, one token per second apart; no variance, no noise.
    """
    found = separated()["tg"]
    exact = made_metric(TG.name, values=lambda r, *_: [lost(r.pair)] * 3)

    assert (8, -23.0) == (found.significant, found.largest.difference)
    expected = half_interval([199, 200, 201], [176, 177, 178])
    assert pytest.approx(expected) == found.largest.noise
    found = separated(probes=[made_probe("throughput", exact)])["tg"]
    assert math.inf == found.largest.times_noise


def test_cells_without_numbers_are_not_compared():
    """
    Failures have none, nor have fallbacks.
    """
    run = run_of_all(
        changes=[
            failed("throughput", "q8_0/q8_0"),
            fell_back("throughput", "q4_0/q4_0", tg=[1.0, 2.0]),
        ]
    )

    assert 6 == separated(run)["tg"].compared
