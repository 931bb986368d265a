"""How far a reference may differ from itself, measured again."""

import pytest

from codeneedle.probes.metrics import LossKind
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.noise_floor import NoiseFloor

LIMITS = Limits(max_loss=0.02, max_lost=0.04, max_eval_lost=0.03)


@pytest.mark.parametrize(
    ("kind", "limit", "told"),
    [
        (LossKind.PROBABILITY, 0.02, "by 2.1 %, more than the limit of 2.0 %"),
        (LossKind.NATS, 0.02, "by 2.1 %, more than the limit of 2.0 %"),
        (LossKind.ANSWERS, 0.04, "by 4.1 %, more than the limit of 4.0 %"),
        (LossKind.CHANGE, 0.06, "by 0.0610 nats, more than the limit of 0.0600 nats"),
    ],
)
def test_it_may_differ_by_the_limit_and_no_more(kind, limit, told):
    assert LIMITS.of(kind) == pytest.approx(limit)
    assert "" == NoiseFloor(repeated=LIMITS.of(kind)).excess(kind, LIMITS)
    assert told in NoiseFloor(repeated=limit + 0.001).excess(kind, LIMITS)


def test_scores_and_what_was_measured_once_differ_by_nothing():
    """Intervals of scores have the noise of sampling in them."""
    assert "" == NoiseFloor(repeated=0.5).excess(LossKind.SCORE, LIMITS)
    assert "" == NoiseFloor().excess(LossKind.PROBABILITY, LIMITS)
