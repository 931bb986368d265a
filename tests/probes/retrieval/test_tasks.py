"""What tasks are made with."""

from codeneedle.probes.retrieval.tasks import Chance


def test_chance_is_even():
    chance = Chance("even")
    found = [chance.below(6) for _ in range(6000)]

    assert all(900 < found.count(n) < 1100 for n in range(6))
