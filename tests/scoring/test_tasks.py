"""Answers to tasks: what they are by rule, whatever their wording."""

import pytest

from codeneedle.corpora.tasks import make_texts
from codeneedle.scoring.tasks import Mode, judge

(TEXT,) = make_texts(
    "multikey", dial=2, characters=900, depths=[0.5], questions=1, seed=3
)
ASKED = TEXT.questions[0]


@pytest.mark.parametrize(
    "wording", ["{}", "It is {}.", "**{}**", "{}\nThe code of Rom"]
)
def test_the_right_payload_is_correct_in_any_wording(wording):
    """
    What stands around it is not judged.
    """
    judged = judge(ASKED, wording.format(ASKED.payload))

    assert (Mode.CORRECT, 1.0) == (judged.mode, judged.share)


def test_a_value_of_another_key_is_an_intrusion_that_is_named():
    """
    With the key that it belongs to, and how far away that stands.
    """
    decoy = ASKED.decoys[-1]
    judged = judge(ASKED, f"{decoy.payload}.")

    assert (Mode.INTRUSION, decoy.key) == (judged.mode, judged.decoy)
    assert decoy.place - ASKED.place == judged.away
