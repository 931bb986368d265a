"""Samples are those of the first cell; others, and unscored ones, are no loss."""

import pytest

from codeneedle.errors import CellError
from codeneedle.probes.evaluation.probe import (
    align_or_refuse_samples,
    refuse_too_many_unscored,
    reset_seed_if_shared,
)
from codeneedle.probes.evaluation.record import Evaluation, Sample


def test_samples_are_those_of_the_first_cell_and_a_missing_one_has_no_score():
    first = Evaluation(
        samples=(
            Sample(id="a", score=1.0, group="g"),
            Sample(id="b", score=1.0, group="g"),
        ),
        against="f16/f16",
    )

    assert (
        Sample(id="a", score=0.0, group="g", error="missing"),
        Sample(id="b", score=0.5, group="g"),
    ) == align_or_refuse_samples([Sample(id="b", score=0.5)], first)


def test_the_seed_of_the_command_is_no_attempt_and_attempt_42_stays_one():
    """Attempt 42 once became attempt 0, beside which there was one already."""
    own = [Sample(id=name, score=1.0, seed=42) for name in "ab"]
    attempts = [Sample(id="a", score=1.0, seed=at) for at in (0, 42)]

    assert [0, 0] == [each.seed for each in reset_seed_if_shared(own, 42)]
    assert tuple(attempts) == reset_seed_if_shared(attempts, 42)


def test_an_evaluation_that_failed_itself_is_a_gap(golden):
    """A judge that was down for half of the samples was once a loss of 50 %."""
    samples = [
        Sample(id=f"s{at}", score=0.0, error="judge: HTTP 503" if at < 40 else "")
        for at in range(80)
    ]

    with pytest.raises(CellError) as caught:
        refuse_too_many_unscored(samples)

    assert golden == str(caught.value)
    refuse_too_many_unscored(samples[36:])


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(Sample(id="c", score=1.0), id="name"),
        pytest.param(Sample(id="a", score=1.0, seed=1), id="seed"),
        pytest.param(Sample(id="a", score=1.0, prompt="p"), id="prompt"),
    ],
)
def test_other_samples_are_a_mismatch(sample, golden):
    first = Evaluation(samples=(Sample(id="a", score=1.0),), against="f16/f16")

    with pytest.raises(CellError) as caught:
        align_or_refuse_samples([sample], first)

    assert "mismatched" == caught.value.status
    assert golden == str(caught.value)
