"""When generation may end."""

from made_records import made_needle

from codeneedle.probes.recall import SLACK_LINES, TAIL_LINES, enough_for

NEEDLE = made_needle()
IS_ENOUGH = enough_for(NEEDLE)
BODY = "\n".join(NEEDLE.lines) + "\n"


def test_a_complete_answer_still_gets_its_tail():
    """
    Whether a model runs on shows only if it may.
    """
    assert not IS_ENOUGH(BODY)
    assert not IS_ENOUGH(BODY + "x\n" * (TAIL_LINES - 1))
    assert IS_ENOUGH(BODY + "x\n" * TAIL_LINES)


def test_an_unfinished_line_does_not_count():
    """
    The verdict does not depend on where a token ends.
    """
    assert not IS_ENOUGH(BODY + "x\n" * (TAIL_LINES - 1) + "half a line")


def test_a_faulty_answer_ends_after_some_slack():
    """
    A reply that never gets there is not read for ever.
    """
    wrong = "".join(f"wrong {n}\n" for n in range(20 + SLACK_LINES))

    assert IS_ENOUGH(wrong)
    assert not IS_ENOUGH(wrong.rpartition("wrong")[0])


def test_thoughts_are_not_taken_for_an_answer():
    """
    Thirty lines of thinking are no lines of an answer.
    """
    assert not IS_ENOUGH("<think>\n" + "hm\n" * 30)


def test_talk_after_a_closed_fence_is_a_tail():
    """
    A model that explains its complete answer is stopped, too.
    """
    assert IS_ENOUGH(f"```\n{BODY}```\nThis function\nassigns\nvalues\n")


def test_blank_lines_without_end_are_looked_at_once(monkeypatch):
    """
    Each is a line break at which is asked; none is a reason to read it all again.
    """
    looks = []
    monkeypatch.setattr(
        "codeneedle.probes.recall.answer_lines",
        lambda _needle, text: looks.append(text) or text.split("\n"),
    )
    judge = enough_for(NEEDLE)
    verdicts = {judge("x\n" * 20 + "\n" * blank) for blank in range(100)}

    assert {False} == verdicts
    assert 1 == len(looks)
