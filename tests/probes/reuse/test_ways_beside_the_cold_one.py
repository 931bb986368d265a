"""Questions asked with a cold cache and again, in `codeneedle show`."""

import re

from made_records import made_run
from made_reuse import made_question, reuse_record
from printing import printed

from codeneedle.cache_types import Pair
from codeneedle.probes.answers import View
from codeneedle.probes.reuse.answers import comparison_blocks
from codeneedle.report.answers import answers_document

PAIR = Pair("q4_0", "q4_0")
OTHER = made_question("abcd", turn=3, replies={"turn": "a = 1\nb = \x1b7\n"})
SAME = made_question("wxyz", prefix=0.25, gaps={"restore": "no such argument"})


def lines_of(*parts):
    """What a terminal gets, each line with single blanks."""
    lines = printed(*parts, width=100).splitlines()
    return [re.sub(" +", " ", line).strip() for line in lines]


def shown(function=None):
    """The answers of a pair that was asked both questions."""
    record = reuse_record(str(PAIR), OTHER, SAME)
    run = made_run(failed=[record])
    return lines_of(answers_document([run], PAIR, function, View()))


def test_each_way_has_a_line_with_what_it_changed(golden):
    assert golden == lines_of(comparison_blocks([OTHER, SAME]))


def test_replies_that_differ_stand_beside_the_cold_one():
    lines = lines_of(comparison_blocks([OTHER, SAME]))

    at = lines.index("abcd cold turn")
    assert ["reply a = 1 a = 1", "b = 2 b = \\x1b7"] == lines[at + 1 : at + 3]
    assert not any(line.startswith("wxyz cold turn") for line in lines)


def test_show_has_all_questions_or_one(golden):
    every, one = shown(), shown("wxyz")

    (line,) = (each for each in every if "cold cache" in each)
    assert golden == (line, one)
    assert "abcd cold turn" in every
    assert not [line for line in one if line.startswith("abcd")]
