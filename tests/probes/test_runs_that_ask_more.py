"""A run that asks more than before: what cells lack, and what reports are of."""

from dataclasses import replace

import pytest
from made_records import failed_record
from made_retrieval import made_calibration, made_dial, made_texts, retrieval_record
from made_speeds import F16, Q8, measured, run_of

from codeneedle.probes import PROBES, in_common
from codeneedle.probes.probe import lacks
from codeneedle.probes.retrieval.probe import GROWTH
from codeneedle.probes.retrieval.settings import RetrievalSettings, layout_of
from codeneedle.records.record import AGAIN, Run, Status, as_json

THROUGHPUT, RETRIEVAL = PROBES["throughput"], PROBES["retrieval"]


def test_a_cell_lacks_what_was_added_since_it_was_measured():
    run = run_of(depths=(0, 100, 4096))
    few, every = measured(F16, {0: 9, 100: 8}), measured(F16, {0: 9, 100: 8, 4096: 7})
    gap = measured(F16, {0: 9, 100: 8, 4096: None})

    def is_short(record, **changes):
        return lacks(THROUGHPUT, replace(record, **changes), run.setup)

    assert [True, False, False] == [is_short(few), is_short(every), is_short(gap)]
    assert not is_short(few, observation=None)
    assert not is_short(
        few, status=Status.CRASHED
    )  # it ended early: that is said apart
    assert not is_short(few, probe=f"throughput{AGAIN}")


@pytest.mark.parametrize(
    ("depths", "expected"),
    [
        ([(0, 100), (0, 100, 4096)], [0, 100]),
        ([(0, 100, 4096)] * 2, [0, 100, 4096]),
        ([(0, 100), (100, 4096)], [100]),
        ([(0,), (4096,)], [0, 100, 4096]),
    ],
)
def test_speeds_are_read_at_the_depths_that_all_pairs_have(depths, expected):
    records = [
        measured(pair, dict.fromkeys(of_pair, 1.0))
        for pair, of_pair in zip((F16, Q8), depths, strict=True)
    ]
    run = run_of(*records, failed_record("q4_0/q4_0"), depths=(0, 100, 4096))
    run = replace(run, setup=replace(run.setup, grows={"throughput": ("depths",)}))

    assert expected == in_common(run).probes["throughput"]["depths"]


def retrieval_run(*lengths, **asked):
    """A run that asks *asked*; each record has texts of these *lengths*."""
    wanted = {"tasks": ("multikey",), "depths": (0.1, 0.5, 0.9), "questions": 2}
    chosen = as_json(layout_of(RetrievalSettings(**wanted | asked)))
    made = [
        retrieval_record(
            pair, [text for length in each for text in made_texts(length=length)]
        )
        for pair, each in zip(("f16/f16", "q4_0/q4_0"), lengths, strict=True)
    ]
    setup = run_of().setup
    setup = replace(
        setup,
        probes={"retrieval": chosen},
        grows={"retrieval": GROWTH.names},
        calibrated={"retrieval": as_json(made_calibration(made_dial()))},
    )
    return Run(name="c/m", setup=setup, records=tuple(made))


def test_answers_are_read_at_the_lengths_that_all_pairs_have():
    run = retrieval_run((512,), (512, 1024), lengths=(512, 1024))

    assert [True, False] == [lacks(RETRIEVAL, r, run.setup) for r in run.records]
    assert [512] == in_common(run).probes["retrieval"]["lengths"]


def test_answers_are_read_without_questions_that_some_pair_was_not_asked():
    run = retrieval_run((512,), (512,), lengths=(512,))
    before = run.setup.probes["retrieval"]
    more = layout_of(
        RetrievalSettings(tasks=("multikey",), lengths=(512,), questions=3)
    )
    grown = GROWTH.joined(before, as_json(more))
    run = replace(run, setup=replace(run.setup, probes={"retrieval": grown}))

    assert all(lacks(RETRIEVAL, each, run.setup) for each in run.records)
    assert before["questions"] == in_common(run).probes["retrieval"]["questions"]
    assert before["depths"] == in_common(run).probes["retrieval"]["depths"]


def test_before_the_reference_has_set_what_is_asked_no_cell_lacks_anything():
    run = retrieval_run((512,), (512, 1024), lengths=(512, 1024))
    setup = replace(run.setup, calibrated={})

    assert not any(lacks(RETRIEVAL, each, setup) for each in run.records)
    assert in_common(replace(run, setup=setup)) == setup
