"""Records as grids of cells."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from made_records import (
    failed_record,
    forced_of,
    made_forced,
    made_record,
    made_run,
    made_setup,
)

from codeneedle.cache_types import Pair, whole_grid
from codeneedle.probes import frames
from codeneedle.probes.recall.metrics import FORCED, METRICS
from codeneedle.records import record
from codeneedle.records.record import (
    AGAIN,
    ON_CPU,
    Attention,
    CellRecord,
    Run,
    Status,
)

MATCHED = next(metric for metric in METRICS if metric.name == "matched")
PASS = next(metric for metric in METRICS if metric.name == "pass")
SMALL = made_setup(needles=2, types_k=["q4_0", "bf16"], types_v=["q8_0", "bf16"])


def small_run(*, failed: Sequence[CellRecord] = (), untried: Sequence[str] = ()) -> Run:
    """Two by two cells of two rounds."""
    return made_run(
        lambda pair, at: 20 if pair.k == "bf16" else 4 + at,
        setup=SMALL,
        failed=failed,
        untried=untried,
    )


def pairs_of(cells: frames.Cells) -> list[str]:
    return [str(cell.pair) for cell in cells]


def test_a_grid_runs_from_the_most_precise_type_to_the_least() -> None:
    cells = frames.cells_frame(small_run(), MATCHED)

    assert ["bf16/bf16", "bf16/q8_0", "q4_0/bf16", "q4_0/q8_0"] == pairs_of(cells)
    assert [20.0, 20.0, 4.5, 4.5] == [cell.value for cell in cells]
    assert [cell.value for cell in cells] == [
        frames.value_at(cells, cell.pair) for cell in cells
    ]
    assert [2] * 4 == [cell.observation_count for cell in cells]


def test_cells_that_did_not_finish_are_gaps() -> None:
    run = small_run(
        failed=[failed_record("q4_0/q8_0", Status.CRASHED, "signal 11")],
        untried=["q4_0/bf16"],
    )

    cells = frames.cells_frame(run, MATCHED)
    *_, untried, failed = cells

    assert ["q4_0/bf16", "q4_0/q8_0"] == pairs_of([untried, failed])
    assert not failed.has_value
    assert "signal 11" == failed.reason
    assert frames.NOT_RUN == untried.status
    assert 0 == untried.observation_count


def test_what_was_asked_for_is_listed_once_for_all_cells_and_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Listed for each of them, 50 types on each axis took minutes."""
    listed = []

    def counted(*types: Sequence[str]) -> list[Pair]:
        listed.append(types)
        return whole_grid(*types)

    monkeypatch.setattr(record, "whole_grid", counted)
    cells = frames.cells_frames(small_run(untried=["q4_0/bf16"]), [MATCHED, PASS])

    assert 1 == len(listed)
    assert not any(cell.is_hole for cell in cells["matched"])


def test_sums_are_not_averaged() -> None:
    cells = frames.cells_frame(made_run(), PASS)

    assert 16.0 == cells[0].value


def test_types_that_were_recorded_but_not_asked_for_are_shown() -> None:
    types = ["t2", "t1", "f16", "t3"]
    run = made_run(setup=made_setup(needles=1, types_k=types[:1], types_v=types))
    stranger = failed_record("turbo3/f16", Status.UNSUPPORTED)
    run = replace(run, records=(*run.records, stranger))

    cells = frames.cells_frame(run, MATCHED)

    of_k, of_v = (["turbo3", "t2"], ["f16", "t3", "t2", "t1"])
    assert [Pair(k, v) for k in of_k for v in of_v] == [cell.pair for cell in cells]


def test_records_of_other_probes_are_left_out() -> None:
    run = small_run()
    others = [replace(record, probe="other") for record in run.records]
    both = replace(run, records=(*run.records, *others))

    assert run.records == both.of_probe("recall").records
    with pytest.raises(ValueError, match="narrow"):
        frames.cells_frame(both, MATCHED)


def test_speeds_of_another_device_are_not_ranked_and_other_values_are() -> None:
    run = small_run()
    devices = {Pair("q4_0", "q8_0"): "CUDA1"}
    records = (replace(r, device=devices.get(r.pair, "CUDA0")) for r in run.records)
    run = replace(run, records=tuple(records))
    *others, elsewhere = frames.cells_frame(run, replace(MATCHED, quantity="speed"))

    assert all(cell.has_value for cell in frames.cells_frame(run, MATCHED))
    assert all(cell.is_ranked for cell in others)
    assert (True, True, False) == (
        elsewhere.is_elsewhere,
        elsewhere.has_value,
        elsewhere.is_ranked,
    )
    assert {elsewhere.pair} == frames.pairs_on_other_device(run)


def test_speeds_without_a_kernel_are_not_ranked_and_other_values_are() -> None:
    run = small_run()
    first, *others = run.records
    on_cpu = replace(first.effective, attention=Attention.CPU)
    run = replace(run, records=(replace(first, effective=on_cpu), *others))

    def ranked(quantity: str) -> set[Pair]:
        cells = frames.cells_frame(run, replace(MATCHED, quantity=quantity))
        return {cell.pair for cell in cells if cell.is_ranked}

    assert {record.pair for record in others} == ranked("speed")
    assert {record.pair for record in run.records} == ranked(MATCHED.quantity)


def test_a_part_of_a_cell_that_failed_alone_says_why() -> None:
    metric = replace(
        MATCHED,
        values=lambda record, _: () if record.pair.k == "q4_0" else (5.0,),
        names=None,
        gap=lambda record, _: ("out-of-memory", f"no room for {record.pair}"),
    )
    *finished, one, other = frames.cells_frame(small_run(), metric)

    assert ["finished"] * 2 == [cell.status for cell in finished]
    assert ["out-of-memory"] * 2 == [one.status, other.status]
    assert "no room for q4_0/q8_0" == other.reason


def test_what_is_measured_over_the_reference_is_none_where_that_is_none() -> None:
    metric = replace(
        MATCHED, over_floor=lambda value, base: base - value if value < base else base
    )
    cells = frames.cells_frame(small_run(untried=["q4_0/q8_0"]), metric)

    assert [20.0, 20.0, 15.5] == [cell.value for cell in cells if cell.has_value]
    assert [1, 1, 1, 0] == [cell.observation_count for cell in cells]
    never = replace(MATCHED, over_floor=lambda *_: math.inf)
    assert not any(each.has_value for each in frames.cells_frame(small_run(), never))


@pytest.mark.parametrize(("values", "error"), [([1.0, 3.0], 1.0), ([2.0] * 9, 0.0)])
def test_two_values_have_a_standard_error_and_one_has_none(
    values: list[float], error: float
) -> None:
    assert error == pytest.approx(frames.standard_error_of_mean(values))
    assert math.isnan(frames.standard_error_of_mean(values[:1]))


def test_repeated_records_of_a_probe_are_its_own() -> None:
    run = small_run()
    more = [
        replace(run.records[0], probe=name, variant=variant)
        for name in ("recall", "other")
        for variant in (AGAIN, ON_CPU)
    ]
    found = run.with_every_record((*run.records, *more)).of_probe("recall")

    assert (run.records, (more[0], more[1])) == (found.records, found.variants)


def test_the_reference_is_the_most_precise_pair_that_has_a_value() -> None:
    run = small_run(failed=[failed_record("bf16/bf16")])
    none = replace(run, records=())

    assert Pair("bf16", "q8_0") == (
        frames.reference_pair(frames.cells_frame(run, MATCHED))
    )
    assert None is frames.reference_pair(frames.cells_frame(none, MATCHED))


def test_the_reference_is_the_pair_that_records_name() -> None:
    run = small_run(failed=[failed_record("q4_0/bf16")])

    def cells(named: Callable[[CellRecord], str]) -> frames.Cells:
        metric = replace(MATCHED, reference=named)
        return frames.cells_frame(run, metric)

    several = cells(lambda record: str(record.pair))

    assert Pair("q4_0", "q8_0") == frames.reference_pair(cells(lambda _: "q4_0/q8_0"))
    assert None is frames.reference_pair(cells(lambda _: "f16/f16"))
    assert None is frames.reference_pair(several)
    assert ["bf16/bf16", "bf16/q8_0", "q4_0/q8_0"] == (
        list(map(str, frames.named_reference_pairs(several)))
    )


def test_the_floor_is_what_two_measurements_of_the_reference_differ_by() -> None:
    run = small_run()
    cells = frames.cells_frame(run, MATCHED)
    by_pair = {str(record.pair): record for record in run.records}
    again = replace(
        made_run(lambda *_: 17, setup=SMALL).records[0], pair=Pair("bf16", "bf16")
    )
    others = [by_pair["q4_0/q8_0"], failed_record("bf16/bf16")]

    more = [replace(each, variant=AGAIN) for each in (*others, again)]
    found = [
        frames.noise_floor_of_reference(
            run.with_every_record((*run.records, *variants)), MATCHED, cells
        )
        for variants in (more, more[:-1])
    ]
    assert 3.0 == found[0]
    assert math.isnan(found[1])


def test_differences_are_over_the_units_that_both_have() -> None:
    """A reference that was asked further is no other reference."""
    setup = made_setup(needles=0, forced=3, types_k=["bf16"], types_v=["bf16"])
    logp = next(each for each in FORCED if each.name == "recall-logp")
    scores = [
        made_forced(each, logprob=-(2.0**at))
        for at, each in enumerate(forced_of(setup))
    ]
    every = made_record("bf16/bf16", [], forced=scores)
    once_more = replace(made_record("bf16/bf16", [], forced=scores[:1]), variant=AGAIN)
    both = Run(name="made", setup=setup, records=(every, once_more))
    run = both.of_probe("recall")
    cells = frames.cells_frame(run, logp)

    assert -7 / 3 == pytest.approx(cells[0].value)
    assert 0.0 == frames.noise_floor_of_reference(run, logp, cells)


def test_the_spread_divides_by_the_number_of_cells() -> None:
    """15.97 +/- 0.16 for one cell of 15 among 36 of 16, as published."""
    run = made_run(lambda pair, _at: 15 if str(pair) == "q4_0/q4_0" else 16)
    found = frames.value_spread(frames.cells_frame(run, MATCHED))
    some = frames.value_spread(
        frames.cells_frame(small_run(untried=["q4_0/q8_0"]), MATCHED)
    )

    assert ("15.97", "0.16") == (f"{found.mean:.2f}", f"{found.sd:.2f}")
    assert (15, 16, 36) == (found.low, found.high, found.cells)
    assert 3 == some.cells
    nothing = frames.value_spread([])
    assert math.isnan(nothing.mean)
    assert math.isnan(nothing.sd)
    assert 0 == nothing.cells == frames.largest_observation_count([])


def test_pairs_outside_of_a_grid_with_holes_are_no_gaps() -> None:
    setup = replace(SMALL, pairs=("bf16/bf16", "q4_0/q8_0"))
    run = small_run(untried=["bf16/q8_0", "q4_0/bf16", "q4_0/q8_0"])

    cells = frames.cells_frame(replace(run, setup=setup), MATCHED)

    assert [False, True, True, False] == [cell.is_hole for cell in cells]


def test_the_standard_error_is_over_units_unless_the_tool_states_it() -> None:
    """Two questions of a text count once; a sum has the error of a sum."""
    metric = replace(
        METRICS[0],
        values=lambda *_: (1.0, 3.0, 6.0, 6.0),
        names=lambda *_: ("a", "a", "b", "c"),
    )
    run = made_run(setup=made_setup(types_k=["bf16"], types_v=["bf16"]))

    def cell(**changes: object) -> frames.CellValue:
        return frames.cells_frame(run, replace(metric, **changes))[0]  # type: ignore[arg-type]

    of_mean = math.sqrt(16 / 3) / math.sqrt(3)
    assert (4.0, 3) == (cell().value, cell().units)
    assert of_mean == pytest.approx(cell().error)
    assert 4 * of_mean == pytest.approx(cell(is_sum=True).error)
    assert 0.25 == cell(error=lambda *_: 0.25).error
    assert math.isnan(cell(error=lambda *_: None).error)
    assert math.isnan(cell(values=lambda *_: (1.0,), names=None).error)


def test_a_change_counts_what_was_asked_for_and_is_not_in_it() -> None:
    """Of four units one has no value, and another is not among those of the other."""
    cell = cell_of({"a": 1.0, "b": 2.0, "c": 3.0}, left_out=1)
    other = cell_of({"a": 0.5, "b": 0.5, "d": 9.0}, left_out=1)
    found = frames.cell_with_change(cell, other)

    assert (1.0, 2, 2) == (found.value, found.units, found.left_out)
    more = frames.cell_with_change(cell_of({"a": 1.0, "b": 2.0}), cell_of({"a": 0.5}))
    assert (0.5, 1, 0) == (more.value, more.units, more.left_out)


def cell_of(by_unit: dict[str, float], *, left_out: int = 0) -> frames.CellValue:
    """The value of a pair with these units."""
    return frames.CellValue(
        pair=Pair("q8_0", "q8_0"),
        value=statistics.fmean(by_unit.values()),
        units=len(by_unit),
        by_unit=by_unit,
        left_out=left_out,
    )
