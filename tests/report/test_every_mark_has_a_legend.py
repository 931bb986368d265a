"""Every mark of a number in every report has its entry in the legend of that report."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_grids import lossy_grid, whole_grid
from made_metrics import made_metric
from made_panels import RIGHT, record_of, wrong
from made_panels import run_of as asked
from made_records import failed_record, made_run
from made_speeds import F16, Q4, Q8, measured, run_of
from made_verdicts import made_verdicts, without_kernel

from codeneedle.cache_types import Pair, PairFlags
from codeneedle.document import Document, Facts, Grid, Table
from codeneedle.engines.survey import PairSurvey, Survey
from codeneedle.probes import PROBES
from codeneedle.probes.frames import CellValue, of_probe
from codeneedle.records.record import Attention, Effective, Run, Status
from codeneedle.report.grid import loss_report, report
from codeneedle.report.kernels import kernels_document
from codeneedle.report.losses import losses_of
from codeneedle.report.panels import panels_document
from codeneedle.report.runs import losses_side_by_side
from codeneedle.report.selection import default_metric, metric_named
from codeneedle.report.shown import (
    DECISIONS,
    NOT_RUN_WORD,
    STATUS_WORDS,
    legend,
    pivot,
    shown_cells,
)
from codeneedle.report.speeds import speed_table, speeds_document
from codeneedle.report.table import pair_table, tables_document
from codeneedle.report.verdict import verdicts
from codeneedle.verdict.judge import Verdict, judge

NUMBER = r"[-+]?[\d,]+(?:\.\d+)?(?:e-\d+)?K?"
COUNT = re.compile(r"of [\d,]+(?:/[\d,]+)?")
SIGNS = {
    *STATUS_WORDS.values(),
    *(each.mark for each in Attention if each.mark),
    *("other", NOT_RUN_WORD, "±"),
}
"""Marks that a table may have beside the words of its columns."""


def signs(text: str) -> Iterator[str]:
    """The marks in the *text* of a cell: what is no number, and signs at numbers."""
    if COUNT.search(text):
        yield "of"
    for part in COUNT.sub("", text).split():
        number = re.fullmatch(rf"\[?({NUMBER})(±{NUMBER})?\]?(\*?)", part)
        if number is None:
            yield part.rstrip("*,")
        else:
            yield from (sign for sign, group in (("±", 2), ("*", 3)) if number[group])


def unexplained(document: Document) -> set[str]:
    """The marks in grids and tables of *document* that no fact of it explains."""
    blocks = list(document)
    facts = [block for block in blocks if isinstance(block, Facts)]
    known = {word.partition(" ")[0] for block in facts for word, _ in block.entries}
    # The word below the reference's loss is its own explanation.
    known.add("reference")
    found: set[str] = set()
    for block in blocks:
        if isinstance(block, Grid) or (
            isinstance(block, Table) and block.heading[0] == "K/V"
        ):
            of_block = {s for row in block.rows for t in row for s in signs(str(t))}
            marks = of_block if isinstance(block, Grid) else of_block & SIGNS
            found |= marks
    return found - known


def pair_flags_of(_engine):
    return PairFlags(str)


def grids(verdict: Verdict) -> Iterator[Document]:
    run = verdict.run
    chosen, metric = metric_named(default_metric([run]), [run])
    narrowed = of_probe(run, chosen.name)
    yield loss_report([narrowed], [metric], [], [verdict], pair_flags_of)
    for probe in PROBES.values():
        some = [m for m in probe.metrics_of(run.setup) if m.quantity != "speed"]
        if (narrowed := of_probe(run, probe.name)).records:
            yield report([narrowed], some[:3], [], [verdict])


def reports() -> Iterator[tuple[str, Document]]:
    """Reports of runs that have all that can happen to a pair."""
    broken = [failed_record("q4_0/q8_0", status, "full") for status in Status][1:2]
    slow = without_kernel(lossy_grid(), "q8_0/q4_0")
    runs: dict[str, Run] = {
        "lossy": lossy_grid(),
        "whole": whole_grid(),
        "slow": slow,
        "written": made_run(failed=broken, untried=["q4_0/q4_0"]),
    }
    judged = {name: judge(run) for name, run in runs.items()}
    judged |= dict(list(made_verdicts().items())[::4])
    for name, verdict in judged.items():
        yield from ((f"grid of {name}", document) for document in grids(verdict))
        yield f"verdict on {name}", verdicts([verdict], pair_flags_of)
        yield f"losses of {name}", losses_side_by_side([verdict, judged["lossy"]])
    for name, run in runs.items():
        table = pair_table(run, tuple(PROBES.values()))
        table = replace(table, verdict=judged[name])
        yield f"table of {name}", tables_document([table])
        yield f"table of {name} to pass on", tables_document([table], pair_flags_of)
    on_cpu = Effective(attention=Attention.CPU, attention_evidence="graph splits")
    fast = measured(F16, {0: 100.0, 100: 102.0})
    far = replace(measured(Q8, {0: 9.0, 100: None}), device="2")
    fallen = replace(measured(Q4, {0: 10.0, 100: 3.0}), effective=on_cpu)
    yield "speeds", speeds_document([speed_table(run_of(fast, far, fallen), "tg")])
    failed = replace(failed_record("q4_0/f16", Status.CRASHED), probe="retrieval")
    answered = asked(record_of("f16/f16", wrong), failed)
    yield "panels", panels_document([answered], RIGHT, difference=False)
    pairs = dict(zip(Attention, (F16, Q8, Q4, Pair("f16", "q4_0")), strict=True))
    answers = {
        pair: PairSurvey(pair=pair, attention=where) for where, pair in pairs.items()
    }
    answers[Pair("q4_0", "f16")] = PairSurvey(pair=Pair("q4_0", "f16"), refusal="no")
    survey = Survey(context=512, pairs=answers, unknown="the rest")
    types = ("f16", "q8_0", "q4_0")
    yield "kernels", kernels_document(survey, types, types)


@pytest.mark.slow
def test_every_mark_in_every_report_has_its_entry():
    found = {name: left for name, each in reports() if (left := unexplained(each))}

    assert {} == found


CELLS = st.builds(
    CellValue,
    pair=st.just(F16),
    status=st.sampled_from(["", *Status]),
    is_hole=st.booleans(),
    reason=st.sampled_from(["", "full", "it said {pairs}"]),
    value=st.sampled_from([float("nan"), 0.0, -1.5, 12345.6]),
    error=st.sampled_from([float("nan"), 0.1]),
    units=st.integers(1, 3),
    left_out=st.integers(0, 1),
    lacking=st.sampled_from(["", "1 of 2 samples has no score"]),
    attention=st.sampled_from([None, *Attention]),
    is_ranked=st.booleans(),
    is_elsewhere=st.booleans(),
)


@given(cells=st.lists(CELLS, min_size=4, max_size=4))
def test_whatever_a_cell_is_its_grid_explains_it(cells):
    pairs = [Pair(k, v) for k in ("f16", "q4_0") for v in ("f16", "q4_0")]
    grid = [replace(each, pair=pair) for each, pair in zip(cells, pairs, strict=True)]
    found = shown_cells(made_metric("made", quantity="quality"), grid)

    assert set() == unexplained([pivot(found), Facts(legend(found))])


@pytest.mark.parametrize("name", ["lossy", "slow"])
def test_what_stands_below_a_loss_is_explained(name):
    run = lossy_grid()
    run = without_kernel(run, "q8_0/q4_0") if name == "slow" else run
    losses = losses_of(judge(run))
    assert losses
    found = losses.shown()

    words = {word.rstrip(",") for each in found for word in each.below.split()}
    assert set() == words - {sign for sign, _ in legend(found)} - {"reference"}
    assert {*DECISIONS} & words
