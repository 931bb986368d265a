"""Texts of tasks: the same bytes everywhere, each answer once, at its depth."""

import pytest

from codeneedle.corpora.tasks import TASKS, make_texts
from codeneedle.errors import BadInput, UnknownName


def test_an_unknown_task_is_told_with_the_nearest_known():
    """
    As an unknown corpus is.
    """
    with pytest.raises(UnknownName, match="multikeys") as caught:
        make_texts(
            "multikeys", dial=0, characters=999, depths=[0.5], questions=1, seed=1
        )
    assert "multikey" in caught.value.hint


@pytest.mark.parametrize("dial", [-1, len(TASKS["multikey"].settings)])
def test_a_setting_that_is_not_there_is_told_with_those_that_are(dial):
    """
    Settings are numbered from 0.
    """
    with pytest.raises(BadInput) as caught:
        make_texts(
            "multikey", dial=dial, characters=999, depths=[0.5], questions=1, seed=1
        )
    assert "from 0 to 8" in caught.value.hint
