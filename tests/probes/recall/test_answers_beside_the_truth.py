"""The answers of a recall record, next to the expected lines."""

from dataclasses import replace

from made_records import (
    asking_for,
    asking_recall,
    forced_of,
    lost_round,
    made_forced,
    made_needle,
    made_record,
    made_round,
    made_run,
    made_setup,
    with_scores,
    written_of,
)
from printing import printed
from rich.cells import cell_len

from codeneedle.cache_types import Pair
from codeneedle.probes.answers import View
from codeneedle.probes.recall.alignment import align_reply
from codeneedle.probes.recall.answers import (
    overview,
    overview_row,
    side_by_side_document,
)
from codeneedle.probes.recall.rounds import ScoredRound
from codeneedle.report.answers import answers_document

NEEDLE = made_needle(3)
LINES = NEEDLE.lines
TYPES = ("bf16", "q4_0")
SETUP = made_setup(needles=3, types_k=TYPES, types_v=TYPES)
PAIR = Pair("q4_0", "q4_0")


def shown(*runs, function=None, colour=False):
    """What a terminal gets of the answers of `PAIR`."""
    found = answers_document(runs, PAIR, function, View(width=100))
    return printed(found, colour=colour)


def compared(reply, *, needle=NEEDLE, width=100, colour=False):
    """The lines of one reply, without title, heading and tally."""
    view = side_by_side_document(needle, align_reply(needle, reply), width=width)
    lines = printed(view, width=width, colour=colour).splitlines()
    return [line.rstrip() for line in lines[2:-2]]


def test_matching_lines_are_next_to_each_other():
    lines = compared("\n".join(LINES))

    assert 20 == len(lines)
    assert f"74   {LINES[0]}" in lines[0]
    assert lines[0].endswith(f"|   {LINES[0]}")
    assert lines[-1].startswith("93")


def test_every_kind_of_line_has_its_mark():
    reply = [*LINES[:5], *LINES[6:15], "    made_up()", *LINES[15:]]

    lines = compared("\n".join([*reply, *NEEDLE.more, "after"]))

    assert f"79 - {LINES[5]}" in lines[5]
    assert any(line.endswith("| +     made_up()") for line in lines)
    assert 2 == sum("| *" in line for line in lines)
    assert lines[-1].endswith("| ~ after")


def test_a_line_in_place_of_another_is_next_to_it():
    slip = LINES[4].replace("0000", "0007")
    reply = "\n".join([*LINES[:4], slip, *LINES[5:]])
    other = "\n".join([*LINES[:4], "return", *LINES[5:]])

    assert 20 == len(compared(reply))
    assert "- " in compared(reply)[4]
    assert compared(reply)[4].endswith(f"| + {slip}")
    assert 2 == compared(reply, colour=True)[4].count("\x1b[1;4;")
    assert 0 == compared(other, colour=True)[4].count("\x1b[1;4;")


def test_blank_lines_count_in_the_numbering():
    spaced = replace(NEEDLE, lines=(LINES[0], "", *LINES[1:]))

    lines = compared("\n".join(LINES), needle=spaced)

    assert ["74", "76"] == [line[:2] for line in lines[:2]]


def test_control_characters_of_replies_are_escaped():
    evil = "\x1b[2J\x1b]0;title\x07\u202eback\x9b1m [red]markup[/red]"

    text = "\n".join(compared("\n".join([evil, *LINES]), width=160))

    assert r"\x1b[2J\x1b]0;title\x07\u202eback\x9b1m [red]markup[/red]" in text
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)


def test_long_lines_continue_in_the_next_row():
    long = "    x = " + repr("".join(chr(ord("a") + at % 26) for at in range(90)))
    needle = replace(NEEDLE, lines=(long, *LINES[1:]))

    lines = compared("\n".join(needle.lines), needle=needle, width=80)

    left = "".join(line.partition(" |")[0][5:].rstrip() for line in lines[:-19])
    assert long.replace(" ", "") == left.replace(" ", "")
    assert max(map(len, lines)) <= 80


def test_wide_characters_keep_the_columns_aligned():
    needle = replace(NEEDLE, lines=("\tx = '漢字漢字漢字漢字漢字漢字'", *LINES[1:]))

    rows = compared("\n".join(needle.lines), needle=needle, width=70)

    assert 21 == len(rows)
    assert "»" in rows[0]
    assert 1 == len({cell_len(row.partition("|")[0]) for row in rows})


def test_the_overview_has_a_line_per_round():
    run = made_run(lambda pair, at: 20 - at, setup=made_setup(needles=2))

    lines = printed(overview(run, run.records[0])).splitlines()

    assert "2 of 2 rounds answered" in lines
    assert [
        ["f_a", "0%", "1", "20", "0", "0", "0", "0", "1", "4.00", "cut"],
        ["f_b", "50%", "25", "19", "1", "0", "1", "0", "0", "4.00", "cut"],
    ] == [line.split() for line in lines[-2:]]


def test_a_round_without_an_answer_has_its_error():
    first, second, _ = written_of(SETUP)
    lost = lost_round(first, "HTTP 500 \x1b[1m")
    record = made_record(PAIR, [lost, made_round(second)])
    run = made_run(setup=SETUP, failed=[record])

    text = printed(overview(run, record), width=140)

    assert r"error: HTTP 500 \x1b[1m" in text
    assert "1 of 2 rounds answered" in text
    assert r"no answer: HTTP 500 \x1b[1m" in shown(run, function="f_a")


def test_the_overview_names_a_method_without_its_class():
    needle = replace(written_of(SETUP)[0], name="VeryLongRequestHandler.f_a")
    run = made_run(setup=asking_for(SETUP, written=[needle, *written_of(SETUP)[1:]]))

    assert "f_a" == overview_row(ScoredRound(needle, made_round(needle)))[0]
    assert "VeryLongRequestHandler.f_a" in shown(run, function="f_a")


def test_one_round_is_shown_line_by_line():
    run = made_run(setup=SETUP)
    text = shown(run, function="f_b")

    assert text.startswith("random-bodies/made-model  q4_0/q4_0  f_b")
    assert written_of(SETUP)[1].lines[0].strip() in text
    assert written_of(SETUP)[0].lines[0].strip() not in text
    assert "\x1b[" not in text
    assert "\x1b[" in shown(run, function="f_b", colour=True)


def test_a_forced_function_shows_what_each_token_lost_against_the_reference(golden):
    setup = asking_recall(SETUP, {"way": ["force"]})
    whole = made_forced(forced_of(setup)[0], logprob=-0.01)
    chances = (-0.01, -3.0, *whole.scores.logprobs[2:])
    worse = with_scores(whole, logprobs=chances, bounds=(1,))
    records = [
        made_record(
            f"{k}/{v}", [], forced=[worse if (k, v) == TYPES[1:] * 2 else whole]
        )
        for k in TYPES
        for v in TYPES
    ]
    run = made_run(setup=setup, failed=records)
    second = forced_of(setup)[0].lines[1]

    text = shown(run, function="f_a")

    assert f"lost most: '\\n{second}' 94%; mean of 5 tokens 18.8%" in text
    assert ["at", "most", "5.0%", "99.0%", "94.0", "yes"] == text.split(second)[
        -1
    ].split()[1:7]
    assert "\x1b[" in shown(run, function="f_a", colour=True)
    alone = replace(run, records=tuple(r for r in run.records if r.pair == PAIR))
    assert golden == shown(alone, function="f_a")


def test_forced_lines_are_shown_by_needle(golden):
    setup = asking_recall(made_setup(needles=2), {"way": ["write", "force"]})
    first, _ = written_of(setup)
    scored, other = forced_of(setup)
    forced = [made_forced(scored, behind=[3]), made_forced(other)]
    run = made_run(setup=setup)

    for rounds in ([], [made_round(first)]):
        record = made_record("q8_0/q8_0", rounds, forced=forced)
        text = printed(overview(run, record))
        assert golden == text
        assert bool(rounds) == ("1 of 1 round answered" in text)
        rows = [line.split() for line in text.splitlines()[-2:]]
        assert ["f_a", "0%", "1", "3", "-0.700", "80.0", "-1.00"] == rows[0]
        assert "5" == rows[1][3]
