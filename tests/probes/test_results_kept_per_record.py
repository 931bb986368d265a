"""What is computed of a record is kept for that record alone."""

from codeneedle.probes.observations import keep_results


def test_a_result_is_kept_for_the_same_value_and_no_equal_one():
    """Without a look at all that a record holds."""
    seen = []
    first, second = [1], [1]

    @keep_results()
    def total(values):
        seen.append(values)
        return sum(values)

    assert [1, 1, 1] == [total(first), total(first), total(second)]
    assert [[1], [1]] == seen
