"""The price of every pair: which columns, which order, beside what."""

import math
from dataclasses import replace

import pytest
from made_prices import (
    DIVERGENCE,
    KLD,
    PROBES,
    failed,
    fell_back,
    made_metric,
    made_probe,
    pairs_of,
    priced_run,
    row_of,
)
from made_records import made_run

from codeneedle.errors import UnknownName
from codeneedle.grid import Pair
from codeneedle.records.record import Status
from codeneedle.report.comparison import NeverRanks, price_table
from codeneedle.scoring.rounds import Reading

READING = Reading()


def priced(run=None, probes=PROBES, **options):
    """The table of *run*."""
    return price_table(run or priced_run(), probes, READING, **options)


def shown(table):
    """Names of the columns that a person sees."""
    return [column.metric.name for column in table.shown]


def test_columns_lead_with_quality_then_speed_then_memory():
    """
    Within a group, probes and their metrics keep their order.
    """
    assert ["matched", "margin", "kld", "top1", "ppl", "tg", "kv"] == shown(priced())


def test_probes_without_records_have_no_columns():
    """
    A sweep of recall alone is a table of recall alone.
    """
    table = priced(made_run())

    assert ("recall",) == table.probes
    assert ["matched", "margin", "kv"] == shown(table)


def test_programs_get_every_metric():
    """
    What is not shown is there all the same.
    """
    names = {column.metric.name for column in priced().columns}

    assert {"quiet", "kv-per-1k", "hallucinated", "rss"} <= names


def test_metrics_of_the_settings_have_columns_too():
    """
    A speed at each depth is a metric that only some runs have.
    """
    more = replace(DIVERGENCE, more_metrics=lambda _setup: (made_metric("kld@512"),))

    assert "kld@512" in shown(priced(probes=[more]))


def test_every_pair_of_the_grid_has_a_row():
    """
    The most precise comes first, K slowest.
    """
    table = priced()

    assert 9 == len(table.rows)
    assert ["bf16/bf16", "bf16/q8_0", "bf16/q4_0", "q8_0/bf16"] == pairs_of(table)[:4]


def test_values_stand_beside_the_reference():
    """
    A floor gives multiples, a ratio a share; the reference itself has neither.
    """
    table = priced()
    row = row_of(table, "q8_0/bf16")

    assert Pair("bf16", "bf16") == table.reference
    assert 8.0 == row.entries["kld"].value
    assert 16.0 == row.entries["kld"].beside
    assert 192.5 / 200 == row.entries["tg"].beside
    assert 1.0 == row.entries["kv"].beside
    assert math.isnan(row.entries["matched"].beside)
    assert math.isnan(row_of(table, "bf16/bf16").entries["kld"].beside)


def test_a_floor_below_zero_is_as_far_from_it():
    """
    Rounding may leave one; a multiple is not negative for that.
    """
    row = row_of(priced(priced_run(floor=-0.5)), "q8_0/bf16")

    assert 7.0 / 0.5 == row.entries["kld"].beside


def test_a_floor_of_zero_gives_no_multiples():
    """
    Nothing is a multiple of nothing.
    """
    row = row_of(priced(priced_run(floor=0)), "q8_0/bf16")

    assert 7.5 == row.entries["kld"].value
    assert math.isnan(row.entries["kld"].beside)


def test_the_reference_is_one_for_all_columns():
    """
    A pair that has no value of its own lends no other's: the ratios are gaps.
    """
    table = priced(priced_run(changes=[failed("divergence", "bf16/bf16")]))
    entry = row_of(table, "q8_0/bf16").entries["kld"]

    assert Pair("bf16", "bf16") == table.reference
    assert 8.0 == entry.value
    assert math.isnan(entry.beside)


def test_a_reference_that_fell_back_is_none():
    """
    Speeds are not compared with those of a slow path.
    """
    change = fell_back("throughput", "bf16/bf16", tg=[20.0])

    entry = row_of(priced(priced_run(changes=[change])), "q8_0/bf16").entries["tg"]

    assert math.isnan(entry.beside)


def test_the_next_pair_is_the_reference_where_the_first_failed_everywhere():
    """
    It is the most precise that finished with any probe.
    """
    changes = [failed(probe.name, "bf16/bf16") for probe in PROBES]

    assert Pair("bf16", "q8_0") == priced(priced_run(changes=changes)).reference


def test_nothing_finished_means_no_reference():
    """
    A table of failures is a table all the same.
    """
    run = priced_run()
    broken = replace(run.records[0], status=Status.CRASHED, observation=None)
    table = priced(replace(run, records=(broken,)))

    assert None is table.reference
    assert all(math.isnan(row.entries["matched"].value) for row in table.rows)


def test_failed_cells_have_a_status_instead_of_a_value():
    """
    Only the columns of the probe that failed have a gap.
    """
    table = priced(priced_run(changes=[failed("divergence", "q4_0/q4_0")]))
    entries = row_of(table, "q4_0/q4_0").entries

    assert math.isnan(entries["kld"].value)
    assert Status.OUT_OF_MEMORY == entries["kld"].status
    assert 20.0 == entries["matched"].value


def test_a_metric_of_two_probes_comes_from_one():
    """
    The first that has a value anywhere: contexts may differ between probes.
    """
    both = made_metric("kv", values=lambda *_: [7.0])
    none = made_metric("kv", values=lambda *_: [])
    probes = [made_probe("divergence", none), made_probe("throughput", both)]

    table = priced(probes=probes)

    assert ["throughput"] == [column.probe for column in table.columns]
    assert {7.0} == {row.entries["kv"].value for row in table.rows}


@pytest.mark.parametrize(
    ("metric", "first", "last"),
    [
        ("kld", "bf16/bf16", "q4_0/q4_0"),
        ("top1", "bf16/bf16", "q4_0/q4_0"),
        ("tg", "bf16/bf16", "q4_0/q4_0"),
        ("quiet", "bf16/bf16", "q4_0/q4_0"),
    ],
)
def test_sorting_puts_the_best_first(metric, first, last):
    """
    The lowest or the highest, as the metric has it.
    """
    found = pairs_of(priced(sort=metric))

    assert [first, last] == [found[0], found[-1]]


def test_sorting_puts_gaps_last():
    """
    A failure is neither good nor bad.
    """
    run = priced_run(changes=[failed("divergence", "bf16/bf16")])

    assert "bf16/bf16" == pairs_of(priced(run, sort="kld"))[-1]


def test_a_speed_that_fell_back_does_not_rank():
    """
    However fast it was, it comes last, and has no ratio.
    """
    run = priced_run(changes=[fell_back("throughput", "q4_0/q4_0", tg=[999.0])])
    table = priced(run, sort="tg")
    entry = row_of(table, "q4_0/q4_0").entries["tg"]

    assert "q4_0/q4_0" == pairs_of(table)[-1]
    assert 999.0 == entry.value
    assert entry.is_fallback
    assert math.isnan(entry.beside)


def test_the_quality_of_a_fallback_ranks():
    """
    What it computed is right, only slowly.
    """
    run = priced_run(changes=[fell_back("divergence", "q4_0/q4_0", kld=[0.1])])

    assert "q4_0/q4_0" == pairs_of(priced(run, sort="kld"))[0]


def test_equal_values_keep_the_order_of_precision():
    """
    All pairs match 20 lines here.
    """
    assert pairs_of(priced()) == pairs_of(priced(sort="matched"))


def test_what_sorts_is_shown():
    """
    An order by a column that nobody sees would be a riddle.
    """
    assert "quiet" in shown(priced(sort="quiet"))


def test_an_unknown_metric_is_refused():
    """
    The nearest known one is offered.
    """
    with pytest.raises(UnknownName) as caught:
        priced(sort="kdl")

    assert "kld" in caught.value.hint


def test_a_metric_without_a_better_end_does_not_sort():
    """
    Perplexity stands beside the others and ranks nothing.
    """
    with pytest.raises(NeverRanks) as caught:
        priced(sort="ppl")

    assert "Sort by one of matched, margin, kld, top1, tg, kv." == caught.value.hint
    assert 2 == caught.value.exit_code


def test_the_floor_is_kept_with_its_column():
    """
    It is the reference's own value.
    """
    columns = {column.metric.name: column for column in priced().columns}

    assert 0.5 == columns[KLD.name].reference


def test_a_column_is_compared_with_the_pair_that_its_records_name():
    """
    A sweep of q8_0 that went on with bf16: KLD stays measured against q8_0.
    """
    table = priced(priced_run(against="q8_0/q8_0"))
    columns = {column.metric.name: column for column in table.columns}
    kld = {str(row.pair): row.entries["kld"] for row in table.rows}

    assert Pair("bf16", "bf16") == table.reference == columns["tg"].against
    assert Pair("q8_0", "q8_0") == columns["kld"].against
    assert 0.5 == columns["kld"].reference == kld["q8_0/q8_0"].value
    assert 15.5 / 0.5 == kld["bf16/bf16"].beside
    assert math.isnan(kld["q8_0/q8_0"].beside)


def test_records_that_name_several_references_have_no_floor():
    """
    What was measured against different pairs is not compared.
    """
    other = replace(
        priced_run(against="q8_0/q8_0").records[-1],
        probe="divergence",
        observation={"against": "bf16/bf16", "kld": [3.0]},
    )
    change = (("divergence", str(other.pair)), other)
    table = priced(priced_run(against="q8_0/q8_0", changes=[change]))
    kld = next(column for column in table.columns if column.metric.name == "kld")

    assert None is kld.against
    assert (Pair("bf16", "bf16"), Pair("q8_0", "q8_0")) == kld.named
    assert math.isnan(kld.reference)
    assert all(math.isnan(row.entries["kld"].beside) for row in table.rows)
