"""A limit of silence that follows from what other pairs took."""

import pytest

from codeneedle.cache_types import Pair
from codeneedle.engines.silence_limits import LEAST_S, MULTIPLE, silence_limit_of

F16, Q8 = Pair("f16", "f16"), Pair("q8_0", "q8_0")


def test_nothing_follows_from_no_other_pair():
    assert (3600.0, "") == silence_limit_of({}).limit_and_cause(3600.0)


@pytest.mark.parametrize(
    ("longest_s", "limit_s"), [(0.0, LEAST_S), (1.0, LEAST_S), (12.0, 12 * MULTIPLE)]
)
def test_the_slowest_of_other_pairs_sets_the_limit(longest_s, limit_s):
    found, known = silence_limit_of(
        {F16: longest_s / 2, Q8: longest_s}
    ).limit_and_cause(3600.0)

    assert limit_s == found
    assert str(Q8 if longest_s else F16) in known


def test_a_slow_machine_gets_no_more_than_before():
    assert (3600.0, "") == silence_limit_of({F16: 100.0}).limit_and_cause(3600.0)
