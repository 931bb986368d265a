"""Which losses a user may accept."""

import pytest

from codeneedle.errors import BadInput
from codeneedle.verdict.limits import Limits

NAMES = ["max_loss", "max_lost", "max_eval_lost"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("limit", "hint"),
    [
        (0.0, "Write 3 % as 0.03."),
        (-0.5, "Write 3 % as 0.03."),
        (1.5, "Write 1.5 % as 0.015."),
        (3, "Write 3 % as 0.03."),
        (float("nan"), "Write 3 % as 0.03."),
    ],
)
def test_a_limit_that_is_no_share_is_refused_with_how_a_percentage_is_written(
    name, limit, hint
):
    with pytest.raises(BadInput) as refused:
        Limits(**{name: limit})

    assert (f"{name}={limit}", hint) == (refused.value.source, refused.value.hint)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limit", [1e-9, 1.0])
def test_a_limit_may_be_all_or_next_to_nothing(name, limit):
    assert limit == getattr(Limits(**{name: limit}), name)
