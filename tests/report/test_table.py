"""The price of every pair on a terminal."""

import io
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
    priced_run,
)
from made_records import made_run
from rich.console import Console

from codeneedle.records.record import Status
from codeneedle.report.comparison import price_table
from codeneedle.report.table import table_view
from codeneedle.scoring.rounds import Reading

READING = Reading()


def lines_of(run=None, *, width=100, probes=PROBES, sort=None):
    """What a terminal of *width* columns gets, without trailing blanks."""
    table = price_table(run or priced_run(), probes, READING, sort=sort)
    console = Console(file=io.StringIO(), width=width)
    console.print(table_view([table], READING), crop=False)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def row(lines, pair):
    """The words of the first row of *pair*."""
    return next(line for line in lines if line.startswith(pair)).split()


def test_a_row_has_values_and_what_stands_beside_them():
    """
    Multiples of the floor in parentheses, shares of the reference behind.
    """
    words = row(lines_of(), "q8_0/bf16")

    assert "q8_0/bf16 20.00 4.00 8.0000 (16x) 92.50 12.345 192.5 96% 3.5 100%" == (
        " ".join(words)
    )


def test_the_reference_is_marked():
    """
    Nothing stands beside its values: it is what the others are compared with.
    """
    lines = lines_of()

    assert "bf16/bf16* 20.00 4.00 0.5000 100.00 12.345 200.0 3.5" == " ".join(
        row(lines, "bf16/bf16")
    )
    assert "*        the reference, bf16/bf16" in lines


def test_headings_stand_above_their_columns():
    """
    Every line of a block ends where its heading ends, or before.
    """
    lines = lines_of()
    heading = next(line for line in lines if line.startswith("K/V"))

    assert ["K/V", "matched", "margin", "kld", "top1", "ppl", "tg", "kv"] == (
        heading.split()
    )
    at = heading.index("ppl") + 3
    assert (
        "12.345"
        == next(line for line in lines if line.startswith("q8_0/q8_0"))[at - 6 : at]
    )


def test_all_columns_are_explained():
    """
    With their units, and what the numbers beside them are.
    """
    lines = lines_of()

    assert "kld      the kld, nats" in lines
    assert "(2x)     times the noise floor: the reference compared with itself" in lines
    assert "98%      of the reference's value" in lines


def test_small_multiples_have_a_decimal():
    """
    Whether it is 1.0 or 1.4 times the floor matters.
    """
    words = row(lines_of(priced_run(floor=7.5)), "q8_0/bf16")

    assert "(2.0x)" in words


def test_huge_multiples_stay_short():
    """
    A floor in the last decimal that is printed is next to nothing.
    """
    assert "(375Kx)" in row(lines_of(priced_run(floor=2e-5)), "q8_0/bf16")


def test_a_floor_of_zero_is_said():
    """
    There are no multiples of it, and no mention of any.
    """
    lines = lines_of(priced_run(floor=0))

    assert "kld      floor is 0: the reference repeats itself exactly" in lines
    assert "x)" not in "\n".join(lines)


def test_a_reference_without_a_value_is_said():
    """
    A column that could have ratios tells why it has none.
    """
    lines = lines_of(priced_run(changes=[failed("divergence", "bf16/bf16")]))

    assert "kld      the reference has none, so there are no ratios" in lines


def test_a_failed_cell_shows_its_word_and_its_reason():
    """
    Which probe, and why, stands below; the other probes have their numbers.
    """
    lines = lines_of(priced_run(changes=[failed("divergence", "q4_0/q4_0")]))

    assert ["20.00", "4.00", "oom", "oom", "oom"] == row(lines, "q4_0/q4_0")[1:6]
    reason = "q4_0/q4_0 out-of-memory (divergence): cannot allocate"
    assert f"oom      {reason}" in lines


def test_pairs_that_failed_alike_share_a_line():
    """
    Four are named, the others counted.
    """
    pairs = ["q4_0/q4_0", "q4_0/q8_0", "q8_0/q4_0", "q8_0/q8_0", "bf16/q4_0"]
    changes = [failed("throughput", pair, Status.CRASHED, "it died") for pair in pairs]

    lines = lines_of(priced_run(changes=changes))

    said = "bf16/q4_0, q8_0/q8_0, q8_0/q4_0, q4_0/q8_0 and 1 more crashed (throughput)"
    assert f"crash    {said}: it died" in lines


def test_a_fallback_is_marked():
    """
    Its number is shown, and said not to rank.
    """
    change = fell_back("throughput", "q4_0/q4_0", tg=[999.04])
    text = " ".join(lines_of(priced_run(changes=[change])))

    assert " 999.0! " in text
    assert "q4_0/q4_0 fallback-cpu (throughput): 38 graph splits;" in text
    assert "its speed does not rank" in text


def test_what_was_not_run_is_a_dot():
    """
    A table of half a sweep says which half.
    """
    change = (("divergence", "q4_0/q4_0"), None)
    lines = lines_of(priced_run(changes=[change]))

    assert "." == row(lines, "q4_0/q4_0")[3]
    assert ".        not run" in lines


def test_what_has_no_value_is_a_dash():
    """
    A cell may finish without a value: none of its rounds had an answer.
    """
    empty = made_metric("empty", values=lambda *_: [])
    lines = lines_of(probes=[made_probe("divergence", KLD, empty)])

    assert "-" == row(lines, "q4_0/q4_0")[-1]
    assert "-      finished, without a value" in lines


def test_large_values_go_without_decimals():
    """
    From 1,000 on they tell nothing, and cost a column.
    """
    large = made_metric("large", values=lambda *_: [12345.678])

    assert "12346" in row(lines_of(probes=[made_probe("divergence", large)]), "q4_0")


def test_an_order_is_named():
    """
    The heading says what the rows are sorted by.
    """
    lines = lines_of(sort="kld")

    assert "random-bodies/made-model: the price of a pair, best kld first" == lines[0]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_table_fits_the_terminal(width):
    """
    Columns that do not fit beside the others stand below them.
    """
    lines = lines_of(width=width)

    assert width >= max(map(len, lines))


def test_blocks_repeat_the_pairs():
    """
    A narrow terminal gets two tables, of the same rows in the same order.
    """
    lines = lines_of(width=60, sort="tg")
    at = [number for number, line in enumerate(lines) if line.startswith("K/V")]
    blocks = [[line.split()[0] for line in lines[n : n + 10]] for n in at]

    assert 2 == len(blocks)
    assert blocks[0] == blocks[1]


def test_a_column_wider_than_the_terminal_is_shown_whole():
    """
    Cutting a number would make another one of it.
    """
    lines = lines_of(width=20, probes=[DIVERGENCE])

    assert "8.0000" in row(lines, "q8_0/bf16")
    assert "(16x)" in row(lines, "q8_0/bf16")


def test_what_separates_the_pairs_stands_below():
    """
    How many each metric tells from the reference, and the most it tells.
    """
    lines = lines_of()

    words = [line.split() for line in lines]

    assert ["matched", "0", "of", "8", "0.00", "-", "0.0"] in words
    assert ["kld", "8", "of", "8", "+23.0000", "q4_0/q4_0", "46"] in words
    assert any(line.startswith("told apart:") for line in lines)


def test_noise_that_is_unknown_is_a_dash():
    """
    A single number without an error says nothing of its noise.
    """
    lines = lines_of(probes=[made_probe("divergence", made_metric("quiet"))])

    assert any(["quiet", "-"] == line.split()[:2] for line in lines)


def test_no_number_goes_without_what_it_was_measured_on():
    """
    Model, corpus, context, build, machine and date stand below.
    """
    text = "\n".join(lines_of())

    for word in ("made-model", "12,288 tokens", "b11434", "Xeon", "2025-11-20"):
        assert word in text


def test_recall_alone_makes_a_table():
    """
    A sweep without the other probes has fewer columns, and no gaps.
    """
    lines = lines_of(made_run())

    assert "bf16/q8_0 20.00 4.00 3.5 100%" == " ".join(row(lines, "bf16/q8_0"))


def test_several_runs_stand_below_each_other():
    """
    Each with its own legend and facts.
    """
    tables = [price_table(priced_run(), PROBES, READING)] * 2
    console = Console(file=io.StringIO(), width=100)

    console.print(table_view(tables, READING), crop=False)

    assert 2 == console.file.getvalue().count("the price of a pair")


def test_names_from_elsewhere_move_no_cursor():
    """
    Reasons come from logs, and logs may hold anything.
    """
    change = failed("divergence", "q4_0/q4_0", reason="\x1b[31mred")

    assert "\x1b" not in "\n".join(lines_of(priced_run(changes=[change])))


def test_a_column_with_a_reference_of_its_own_says_so():
    """
    The star stays where it is; multiples are of the other pair's floor.
    """
    lines = lines_of(priced_run(against="q8_0/q8_0"))

    assert "kld      against q8_0/q8_0" in lines
    assert "*        the reference, bf16/bf16" in lines
    assert ["15.5000", "(31x)"] == row(lines, "bf16/bf16*")[3:5]
    assert "0.5000" == row(lines, "q8_0/q8_0")[3]
    assert "(" not in row(lines, "q8_0/q8_0")[4]


def test_references_that_disagree_are_named():
    """
    There is no floor to tell multiples of.
    """
    pair = "q4_0/q4_0"
    change = fell_back("divergence", pair, against="bf16/bf16", kld=[3.0])
    key, record = change
    done = (key, replace(record, status=Status.FINISHED, reason=""))

    lines = lines_of(priced_run(against="q8_0/q8_0", changes=[done]))

    said = "against bf16/bf16 or q8_0/q8_0: not comparable, no floor"
    assert f"kld      {said}" in lines
    assert "x)" not in "\n".join(lines)
