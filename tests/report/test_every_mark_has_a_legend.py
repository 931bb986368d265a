"""Every mark of a number in every report has its entry in the legend of that report."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from made_divergences import golden_run, without_perplexities
from made_grids import lossy_grid, whole_grid
from made_metrics import made_metric
from made_panels import RIGHT, record_of, wrong
from made_panels import run_of as asked
from made_plans import made_world, planned
from made_records import failed_record, made_record, made_run, made_setup
from made_speeds import F16, Q4, Q8, measured, run_of
from made_verdicts import made_verdicts, without_kernel
from made_weights import three_runs

from codeneedle.cache_types import Pair, PairFlags
from codeneedle.cli.engines import engine_pair_flags
from codeneedle.document import Document, Facts, Grid, Table
from codeneedle.engines.engine import CacheTypes
from codeneedle.engines.survey import PairSurvey, Survey
from codeneedle.probes import PROBES
from codeneedle.probes.frames import CellValue
from codeneedle.records.record import Attention, Effective, KvBuffer, Run, Status
from codeneedle.report.budget import budget_document
from codeneedle.report.chosen_runs import default_metric_name, probe_and_metric
from codeneedle.report.compare import compare, comparisons_document
from codeneedle.report.grid import grid_report, loss_report
from codeneedle.report.heatmap import Picture, loss_picture, picture_of
from codeneedle.report.kernels import kernels_document
from codeneedle.report.losses import losses_of
from codeneedle.report.losses_side_by_side import losses_side_by_side
from codeneedle.report.memory import measured_memory_document
from codeneedle.report.models import ModelRow, models_document
from codeneedle.report.page import page
from codeneedle.report.panels import panels_document
from codeneedle.report.plan import plan_document
from codeneedle.report.receipt import receipt_of, receipts_document
from codeneedle.report.shown import (
    DECISIONS,
    ERROR,
    NOT_RUN,
    NOT_RUN_WORD,
    STATUS_WORDS,
    Shown,
    legend,
    pivot,
    shown_cells,
)
from codeneedle.report.speeds import speed_table, speeds_document
from codeneedle.report.table import pair_table, tables_document
from codeneedle.report.verdict import verdicts_document
from codeneedle.report.weights import WeightsRow, weights_document
from codeneedle.verdict.joint import join_runs
from codeneedle.verdict.judge import Verdict, judge
from codeneedle.verdict.limits import Limits

NUMBER = r"[-+]?[\d,]+(?:\.\d+)?(?:e-\d+)?K?"
COUNT = re.compile(r"of [\d,]+(?:/[\d,]+)?")
SIGNS = {
    *STATUS_WORDS.values(),
    *(each.mark for each in Attention if each.mark),
    *("other", NOT_RUN_WORD, "±", "?", "*", "=", "+", "cannot", "(mlx)", "does"),
}
"""Marks that a table may have beside the words of its columns."""


def signs(text: str) -> Iterator[str]:
    """The marks in the *text* of a cell: what is no number, and signs at numbers."""
    if COUNT.search(text):
        yield "of"
    for part in COUNT.sub("", text).split():
        number = re.fullmatch(rf"\[?({NUMBER})(±{NUMBER})?\]?([*=+]*)", part)
        if number is None:
            yield part.rstrip("*,")
        else:
            yield from "±" if number[2] else ""
            yield from number[3]


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
            isinstance(block, Table) and block.heading[0] in {*NAMES_OF_ROWS}
        ):
            of_block = {s for row in block.rows for t in row for s in signs(str(t))}
            marks = of_block if isinstance(block, Grid) else of_block & SIGNS
            found |= marks
    return found - known


NAMES_OF_ROWS = ("K/V", "weights", "--model", "type")
"""First names of tables with numbers of pairs, of weights and of types."""


def unexplained_in_picture(picture: Picture) -> set[str]:
    """The marks in the squares of *picture* that no note below it explains."""
    squares = [square for row in picture.squares for square in row]
    texts = [f"{square.spelled_text} {square.below}" for square in squares]
    found = {sign for text in texts for sign in signs(text.replace("not run", ""))}
    known = {note.partition(":")[0].partition(" ")[0] for note in picture.notes}
    return found - known - {"reference", "set"}


def unexplained_on_page(text: str) -> set[str]:
    """The marks in the grids of a page that the legend below each does not explain."""
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text)
    assert data
    found: set[str] = set()
    for run in json.loads(data[1])["runs"]:
        for metric in run["metrics"]:
            known = {sign.partition(" ")[0] for sign, _ in metric["legend"]}
            texts = [" ".join(cell[:2]) for cell in metric["cells"]]
            marks = {s for each in texts for s in signs(each.replace("not run", ""))}
            found |= marks - known
    return found


def pair_flags_of(_engine):
    return PairFlags(str)


def grids(verdict: Verdict) -> Iterator[Document]:
    run = verdict.run
    chosen, metric = probe_and_metric(default_metric_name([run]), [run])
    narrowed = run.of_probe(chosen.name)
    yield loss_report([narrowed], [metric], [], [verdict], pair_flags_of)
    for probe in PROBES.values():
        some = [m for m in probe.metrics_of(run.setup) if m.quantity != "speed"]
        if (narrowed := run.of_probe(probe.name)).records:
            yield grid_report([narrowed], some[:3], [], [verdict])


def reports() -> Iterator[tuple[str, Document]]:
    """Reports of runs that have all that can happen to a pair."""
    broken = [failed_record("q4_0/q8_0", status, "full") for status in Status][1:2]
    slow = without_kernel(lossy_grid(), "q8_0/q4_0")
    runs: dict[str, Run] = {
        "lossy": lossy_grid(),
        "whole": whole_grid(),
        "slow": slow,
        "written": made_run(failed=broken, untried=["q4_0/q4_0"]),
        "cut": without_perplexities(golden_run(), Pair("q4_0", "q4_0")),
    }
    judged = {name: judge(run) for name, run in runs.items()}
    judged |= dict(list(made_verdicts().items())[::4])
    for name, verdict in judged.items():
        yield from ((f"grid of {name}", document) for document in grids(verdict))
        yield f"verdict on {name}", verdicts_document([verdict], pair_flags_of)
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
    for is_difference in (False, True):
        yield "panels", panels_document([answered], RIGHT, difference=is_difference)
    memory = replace(made_record("f16/f16", []), effective=half_told())
    yield "memory", measured_memory_document(replace(made_run(), records=(memory,)))
    other = compare(runs["written"], replace(runs["written"], name="other"))
    yield "compared", comparisons_document([other, replace(other, changes=())])
    receipts = [receipt_of(run_of(fast, far, fallen)), receipt_of(runs["slow"])]
    yield "receipts", receipts_document(receipts)
    yield "models", models_document([ModelRow(str(r), "", r) for r in receipts])
    budget = Limits(max_memory_bytes=900_000_000, at=8192)
    joint = judge(join_runs(three_runs(), budget.at), budget)
    yield "one budget", budget_document(joint, PairFlags(str))
    yield "weights", weights_document([kept(), kept(coarsest_k="q8_0", is_folder=True)])
    pairs = dict(zip(Attention, (F16, Q8, Q4, Pair("f16", "q4_0")), strict=True))
    answers = {
        pair: PairSurvey(pair=pair, attention=where) for where, pair in pairs.items()
    }
    answers[Pair("q4_0", "f16")] = PairSurvey(pair=Pair("q4_0", "f16"), refusal="no")
    survey = Survey(context=512, pairs=answers, unknown="the rest")
    types = ("f16", "q8_0", "q4_0")
    yield "kernels", kernels_document(survey, types, types)


def half_told() -> Effective:
    """What a log tells that says nothing of buffers."""
    cache = KvBuffer(
        cells=512, layers=4, k_type="f16", v_type="f16", k_mib=1.0, v_mib=1.0
    )
    return Effective(context=512, kv=(cache,))


def kept(**facts: object) -> WeightsRow:
    """A model that somebody keeps, of whose header little is known."""
    words = ("name", "store", "path", "architecture", "quantization", "problem")
    words += ("coarsest_k",)
    numbers = ("size_bytes", "training_context", "at", "k_bias", "k_bias_median")
    row: dict[str, Any] = {**dict.fromkeys(words, ""), **dict.fromkeys(numbers, 0)}
    row |= {"cache_bytes": None, "saved_bytes": None, "has_sinks": False}
    return WeightsRow(**{**row, "is_folder": False, **facts})


@pytest.mark.slow
def test_every_mark_in_every_report_has_its_entry():
    found = {name: left for name, each in reports() if (left := unexplained(each))}

    assert {} == found


def pictures() -> Iterator[tuple[str, Picture]]:
    """Pictures of runs that have all that can happen to a pair."""
    slow = without_kernel(lossy_grid(), "q8_0/q4_0")
    on_cpu = Effective(attention=Attention.CPU, attention_evidence="graph splits")
    fast = measured(F16, {0: 100.0, 100: 102.0})
    far = replace(measured(Q8, {0: 9.0, 100: None}), device="2")
    fallen = replace(measured(Q4, {0: 10.0, 100: 3.0}), effective=on_cpu)
    broken = [failed_record("q4_0/q8_0", Status.TIMED_OUT, "full")]
    runs = {
        "recall": slow,
        "throughput": run_of(fast, far, fallen),
        "written": made_run(failed=broken, untried=["q4_0/q4_0"]),
    }
    for name, run in runs.items():
        verdict = judge(run)
        if losses := losses_of(verdict):
            yield f"losses of {name}", loss_picture(losses, PairFlags(str))
        for probe in PROBES.values():
            if not (of_one := run.of_probe(probe.name)).records:
                continue
            quality = [m for m in probe.metrics_of(run.setup) if m.quantity != "memory"]
            for metric in [*quality[:2], *quality[-2:]]:
                for difference in (False, True):
                    found = picture_of(of_one, metric, verdict, difference=difference)
                    yield f"{metric.name} of {name}", found


@pytest.mark.slow
def test_every_mark_in_every_picture_has_its_note():
    found = {
        n: left for n, each in pictures() if (left := unexplained_in_picture(each))
    }

    assert {} == found


@pytest.mark.slow
def test_every_mark_on_a_page_has_its_entry():
    run = without_kernel(lossy_grid(), "q8_0/q4_0")
    cut = without_perplexities(golden_run(), Pair("q4_0", "q4_0"))

    assert set() == unexplained_on_page(page([run, cut], None, engine_pair_flags))


@pytest.mark.parametrize("is_recall", [True, False])
def test_a_difference_keeps_every_mark_of_its_number(is_recall):
    """A number that is in doubt is so, too, where it is a difference."""
    on_cpu = Effective(attention=Attention.CPU, attention_evidence="graph splits")
    run = run_of(
        measured(F16, {0: 100.0}), replace(measured(Q4, {0: 10.0}), effective=on_cpu)
    )
    if is_recall:
        run = without_kernel(lossy_grid(), "q8_0/q4_0")
    probe, name = ("recall", "recall-logp") if is_recall else ("throughput", "tg@0")
    (metric,) = (m for m in PROBES[probe].metrics_of(run.setup) if m.name == name)
    values, changes = (
        [square for row in found.squares for square in row]
        for found in (
            picture_of(run, metric, judge(run), difference=difference)
            for difference in (False, True)
        )
    )

    kinds = [[mark.sign for mark in square.marks if mark != ERROR] for square in values]
    assert kinds == [[mark.sign for mark in square.marks] for square in changes]
    assert any(square.text.endswith(" cpu") for square in changes)


def test_every_mark_of_a_plan_has_its_entry(tmp_path, monkeypatch):
    made_world(tmp_path, monkeypatch)
    fork = FakeEngine(types=CacheTypes())
    plan = planned(
        engine=fork, k_types=("f16", "q8_0", "turbo3"), v_types=("f16", "q4_0")
    )
    plan.store.check_and_store_setup(made_setup(needles=2))
    plan.store.write_record(made_record("q8_0/q4_0", []))
    plan.store.write_record(failed_record("q8_0/f16", Status.OUT_OF_MEMORY, "no room"))

    assert set() == unexplained(plan_document(plan))


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
    found = losses.shown_losses()

    words = {word.rstrip(",") for each in found for word in each.below.split()}
    assert set() == words - {sign for sign, _ in legend(found)} - {"reference"}
    assert {*DECISIONS} & words


def test_what_is_spelled_where_there_is_room_needs_no_legend():
    dot = Shown(pair=Pair("f16", "f16"), text=NOT_RUN_WORD, marks=(NOT_RUN, ERROR))

    (_, error) = legend([dot])

    assert [error] == legend([dot], is_spelled=True)
