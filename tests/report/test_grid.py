"""The grid of a run and the summary of several, on a terminal."""

import re
from collections.abc import Sequence
from dataclasses import replace

from made_records import (
    asking_recall,
    failed_record,
    forced_of,
    lost_round,
    made_forced,
    made_record,
    made_round,
    made_run,
    made_setup,
    renamed,
    written_of,
)
from printing import printed
from syrupy.assertion import SnapshotAssertion

from codeneedle.document import ShownText
from codeneedle.probes import PROBES
from codeneedle.probes.frames import cells_frame
from codeneedle.probes.metrics import Metric
from codeneedle.probes.recall.metrics import FORCED, METRICS
from codeneedle.records.record import Run, Status
from codeneedle.report.grid import (
    grid_blocks,
    grid_report,
    summary_table,
)
from codeneedle.report.markdown import markdown
from codeneedle.report.shown import pivot, shown_cells
from codeneedle.report.table import pair_table, shown_cells_of_column
from codeneedle.verdict.judge import Verdict, judge

METRIC = {metric.name: metric for metric in METRICS}
MATCHED, PASS = METRIC["matched"], METRIC["pass"]
SMALL = made_setup(needles=2, types_k=["bf16", "q4_0"], types_v=["bf16", "q8_0"])


def judged(run: Run) -> Verdict:
    """The verdict on *run*."""
    return judge(run)


def lines_of(run: Run, metric: Metric = MATCHED) -> list[str]:
    """The plain grid report of *run*, line by line, without trailing blanks."""
    text = printed(grid_blocks(run, metric, judged(run)), width=140)
    return [line.rstrip() for line in text.splitlines()]


def headings(*runs: Run, metric: Metric = MATCHED) -> list[str]:
    """Those of the summary, on one line each."""
    table = summary_table(runs, metric, [PASS], [judged(run) for run in runs])
    return [heading.replace("\n", " ") for heading in table.heading]


def row_of(run: Run, metric: Metric = MATCHED, *also: Metric) -> Sequence[ShownText]:
    """The row of a single run in the summary."""
    (row,) = summary_table([run], metric, also, [judged(run)]).rows
    return row


def test_the_summary_has_the_published_form(golden: SnapshotAssertion) -> None:
    run = made_run(lambda pair, at: 15 if str(pair) == "q4_0/q4_0" else 20)
    small = made_run(setup=SMALL)

    assert golden == headings(run)
    assert [
        "36",
        "16.00 +/- 0.00",
        "19.86 +/- 0.82",
        "15.00 - 20.00",
        "1 pair",
    ] == row_of(run, MATCHED, PASS)
    assert ["pairs", "pass /2 (mean +/- sd)", "pass range"] == (
        headings(small, metric=PASS)[:3]
    )
    assert ["run", "pairs", "pass (mean +/- sd)"] == headings(run, small)[:3]


def test_the_summary_says_how_many_pairs_it_rests_on() -> None:
    some = made_run(failed=[failed_record("q4_0/q4_0")], untried=["q4_1/q4_0"])
    none = replace(made_run(setup=SMALL), records=())

    assert "34 of 36" == row_of(some)[0]
    assert ["0 of 4", "-", "-", "-", "-"] == row_of(none, MATCHED, PASS)


def test_the_grid_has_k_down_and_v_across() -> None:
    run = made_run(
        lambda pair, at: {"bf16": 20, "q4_0": 12}[pair.k] - (pair.v == "q8_0"),
        setup=SMALL,
    )

    lines = lines_of(run)

    assert [
        "K \\ V   bf16    q8_0",
        "bf16   20.00*  19.00",
        "q4_0   12.00   11.00",
    ] == lines[2:5]
    assert "*     the reference, bf16/bf16" in lines


def test_a_heading_has_the_unit_and_the_number_of_observations(
    golden: SnapshotAssertion,
) -> None:
    run = made_run(setup=SMALL)

    assert golden == [lines_of(run, each)[0] for each in (MATCHED, PASS, METRIC["kv"])]


def test_wide_numbers_widen_their_column_and_gaps_are_not_coloured() -> None:
    large = replace(MATCHED, values=lambda *_: [1234567.5], names=None)
    run = made_run(setup=SMALL, untried=["q4_0/q8_0"])
    ((first, _), (_, gap)) = pivot(shown_cells(large, cells_frame(run, large))).rows

    assert ["K \\ V     bf16      q8_0", "bf16   1234568*  1234568"] == (
        lines_of(run, large)[2:4]
    )
    assert ("dim", True) == (gap.style, " on #" in str(first.style))


def test_gaps_show_their_status_and_the_legend_its_reason(
    golden: SnapshotAssertion,
) -> None:
    types = ("bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
    setup = made_setup(needles=2, types_k=types, types_v=["bf16", "q8_0"])
    no_room = failed_record("q4_0/q8_0", Status.OUT_OF_MEMORY, "needs 9 GiB, has 8")
    failed = [
        failed_record(f"{k}/bf16", Status.UNSUPPORTED, "no kernel") for k in types
    ]
    first, second = written_of(setup)
    lost = lost_round(first, "HTTP 500")
    partial = made_record("q8_0/q8_0", [lost, made_round(second)])

    lines = lines_of(
        made_run(setup=setup, failed=[no_room, *failed, partial], untried=["q5_1/q8_0"])
    )

    assert ["q4_0", "unsupp.", "oom"] in [line.split() for line in lines]
    assert any("of 1/2" in line for line in lines)
    assert ".        not run" in lines
    assert golden == "\n".join(lines)


def test_values_over_other_numbers_of_units_say_so_and_no_others() -> None:
    """A pair that was asked further, and one that lacks an answer, for example."""
    setup = made_setup(needles=0, forced=4, types_k=("bf16",), types_v=("bf16", "q8_0"))
    few = [made_forced(each) for each in forced_of(setup)]
    first = made_record("bf16/bf16", [], forced=few)
    run = made_run(
        setup=setup, failed=[first, made_record("bf16/q8_0", [], forced=few)]
    )
    shorter = made_record("bf16/q8_0", [], forced=few[:3])
    mixed = made_run(setup=setup, failed=[first, shorter])
    logp = next(each for each in FORCED if each.name == "recall-logp")

    assert not any(" of 4" in line for line in lines_of(run, logp)[1:])
    assert ["of 4", "of 3"] == re.findall(r"of \d", lines_of(mixed, logp)[4])
    table = pair_table(mixed, [PROBES["recall"]])
    column = next(each for each in table.columns if each.metric.name == "recall-logp")
    assert ["of 4", "of 3"] == [
        each.below for each in shown_cells_of_column(column, table)
    ]


def test_missing_answers_are_counted_of_what_was_asked_and_of_parts_that_any_has(
    golden: SnapshotAssertion,
) -> None:
    setup = asking_recall(
        made_setup(needles=4, types_k=("bf16",), types_v=("bf16",)),
        {"way": ["write", "force"], "functions": 2},
    )
    silent = [made_round(each, reply="", error="x") for each in written_of(setup)]
    scored = [made_forced(each) for each in forced_of(setup)]
    lost = [lost_round(each, "timeout") for each in forced_of(setup)]
    record = made_record("bf16/bf16", silent, forced=[*lost[:3], scored[3]])

    lines = lines_of(made_run(setup=setup, failed=[record]))

    assert golden == [line for line in lines if "left out" in line]


def test_the_built_in_model_warns_of_text_it_is_not_made_for(
    golden: SnapshotAssertion,
) -> None:
    setup = replace(SMALL, weights=replace(SMALL.weights, name="needle-nano"))
    unseen = replace(setup, corpus=replace(setup.corpus, kind="unseen"))

    said, warned = (
        printed(grid_report([run], [MATCHED], [PASS], [judged(run)]))
        for run in (made_run(setup=setup), made_run(setup=unseen))
    )

    assert "built-in model" not in said
    assert golden == [x for x in warned.splitlines() if "built-in model" in x]


def test_each_run_has_its_row_and_its_grid() -> None:
    types = [f"type_{at}" for at in range(12)]
    wide = made_run(setup=made_setup(needles=1, types_k=types[:2], types_v=types))
    runs = [renamed(wide, name) for name in ("b/x", "a/y")]
    found = [judged(run) for run in runs]

    text = printed(grid_report(runs, [MATCHED], [PASS], found), width=60)
    rows = [line for line in text.splitlines() if line.startswith("type_")]

    assert text.index("b/x") < text.index("a/y")
    assert 12 * 4 == sum(line.count("20.00") for line in rows)
    assert 60 >= max(map(len, rows))
    assert 2 == printed([summary_table(runs, MATCHED, [PASS], found)]).count(
        "20.00 - 20.00"
    )
    assert "\x1b" not in text
    alone = grid_report(runs[:1], [MATCHED], [PASS], found[:1])
    assert "\x1b[" in printed(alone, colour=True)


def test_the_mark_is_on_the_pair_that_records_name(golden: SnapshotAssertion) -> None:
    metric = replace(MATCHED, reference=lambda _: "q4_0/q8_0", floor=True)
    lines = lines_of(made_run(setup=SMALL), metric)

    assert "*     the reference, q4_0/q8_0" in lines
    assert "q4_0   20.00   20.00*" in lines
    [said] = [line for line in lines if "noise floor" in line]
    assert golden == said
    assert said not in lines_of(made_run(setup=SMALL))


def test_without_one_reference_nothing_is_marked(golden: SnapshotAssertion) -> None:
    several = replace(MATCHED, reference=lambda record: f"{record.pair.k}/bf16")
    missing = replace(MATCHED, reference=lambda _: "f16/f16")
    run = made_run(setup=SMALL)

    for metric in (several, missing):
        assert golden == [x for x in lines_of(run, metric) if x.startswith("against")]
    assert "20.00*" not in printed(grid_blocks(run, several, judged(run)))


def test_a_probe_without_records_says_what_there_is(golden: SnapshotAssertion) -> None:
    setup = replace(SMALL, probes={**SMALL.probes, "divergence": {}, "gone": {}})
    run = replace(made_run(setup=setup), records=())
    said = lines_of(replace(run, setup=SMALL))[-1]

    assert golden == (said, lines_of(run)[-1])
    assert lines_of(run)[-1].startswith(said)
    forced = asking_recall(setup, {"way": ["force"]})
    assert "recall (--metric recall-logp)" in " ".join(
        printed(
            grid_blocks(
                replace(run, setup=forced), replace(MATCHED, name="kld"), judged(run)
            )
        ).split()
    )
    assert said not in printed(
        grid_blocks(made_run(setup=setup), MATCHED, judged(made_run(setup=setup)))
    )


def test_several_long_names_fit_a_narrow_terminal() -> None:
    names = [f"a-corpus-with-a-long-name/some-model-{at}-Q4_K_M" for at in (1, 2)]
    run = made_run(lambda pair, _at: 20 if pair.k == "bf16" else 9)
    runs = [renamed(run, name) for name in names]
    found = [judged(run) for run in runs]

    text = printed([summary_table(runs, MATCHED, [PASS], found)], width=80)

    assert 80 >= max(map(len, text.splitlines()))
    for word in row_of(run, MATCHED, PASS)[:-1]:
        assert 2 <= text.count(str(word))


def test_a_mean_of_nearly_nothing_has_no_sign():
    setup = asking_recall(SMALL, {"way": ["force"], "functions": 1, "lines": 5})
    forced = [made_forced(forced_of(setup)[0], logprob=-1e-5)]
    records = [
        made_record(f"{k}/{v}", [], forced=forced)
        for k in ("bf16", "q4_0")
        for v in ("bf16", "q8_0")
    ]
    run = made_run(setup=setup, failed=records)

    assert "0.000 +/- 0.000" == row_of(run, FORCED[0])[1]


def test_a_reference_that_was_measured_twice_is_the_floor():
    setup = made_setup(types_k=("q8_0", "q4_0"), types_v=("q8_0",))
    run = made_run(setup=setup)
    first = run.records[0]
    second = replace(
        made_run(lambda _pair, at: 20 if at else 12, setup=setup).records[0],
        variant="again",
    )
    narrowed = replace(run, records=(*run.records, second)).of_probe("recall")
    alone = replace(narrowed, records=run.records[1:])

    assert (first.pair, run.records) == (second.pair, narrowed.records)
    said = "floor  0.50: q8_0/q8_0, measured twice"
    assert said in "\n".join(lines_of(narrowed))
    assert "floor" not in "\n".join(lines_of(alone))


REASON = 'it said "no",\nthen\x1b[31m | died'
BROKEN = made_run(
    setup=SMALL,
    failed=[failed_record("q4_0/q8_0", Status.CRASHED, REASON)],
    untried=["q4_0/bf16"],
)


def test_a_grid_as_markdown_has_the_summary_and_the_legend(golden):
    found = [judged(BROKEN)]
    text = markdown(grid_report([BROKEN], [MATCHED], [PASS], found))
    lines = text.split("\n")

    assert r"| K \\ V | bf16 | q8\_0 |" in lines
    assert r"| bf16 | 20.00\* | 20.00 |" in lines
    assert r"| q4\_0 | . | crash |" in lines
    assert r"- \*: the reference, bf16/bf16" in lines
    assert golden == text
    assert r"\| died" in text
    assert "\x1b" not in text
    assert ("", True) == (lines[-1], bool(lines[-2]))


def test_holes_are_blank_and_not_counted() -> None:
    run = made_run(setup=SMALL, untried=["bf16/q8_0", "q4_0/bf16"])
    run = replace(run, setup=replace(SMALL, pairs=("bf16/bf16", "q4_0/q8_0")))
    lines = lines_of(run)

    assert "2" == row_of(run)[0]
    assert ["bf16   20.00*", "q4_0           20.00"] == lines[3:5]
    assert not any(line.endswith("not run") for line in lines)
