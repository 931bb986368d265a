"""Expected and produced lines, side by side."""

import io
import subprocess
import sys
from dataclasses import replace

from made_records import (
    failed_record,
    made_needle,
    made_record,
    made_round,
    made_run,
    made_setup,
)
from rich.cells import cell_len
from rich.console import Console, RenderableType

from codeneedle.records.record import NeedleFacts, Round, Status
from codeneedle.report.answers import overview_row, rounds_overview, side_by_side
from codeneedle.scoring.alignment import score
from codeneedle.scoring.rounds import AskedRound, Reading

NEEDLE = made_needle(3)
LINES = NEEDLE.lines


def printed(view: RenderableType, *, width: int = 100, colour: bool = False) -> str:
    """What a terminal of *width* columns gets."""
    file = io.StringIO()
    Console(
        file=file,
        width=width,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
    ).print(view)
    return file.getvalue()


def shown(
    reply: str, *, needle: NeedleFacts = NEEDLE, width: int = 100, colour: bool = False
) -> list[str]:
    """The display of *reply*, line by line, without title, heading and tally."""
    scored = score(needle, reply)
    view = side_by_side(needle, scored, width=width, colour=colour)
    lines = printed(view, width=width, colour=colour).splitlines()
    return [line.rstrip() for line in lines[2:-2]]


def test_matching_lines_stand_opposite_each_other() -> None:
    """
    Numbered as in the corpus, without a mark.
    """
    lines = shown("\n".join(LINES))

    assert 20 == len(lines)
    assert f"74   {LINES[0]}" in lines[0]
    assert lines[0].endswith(f"|   {LINES[0]}")
    assert lines[-1].startswith("93")


def test_every_kind_of_line_has_its_mark() -> None:
    """
    Missing lines on the left, the others on the right, told apart without colour.
    """
    reply = [*LINES[:5], *LINES[6:15], "    made_up()", *LINES[15:]]

    lines = shown("\n".join([*reply, *NEEDLE.more, "after"]))

    assert f"79 - {LINES[5]}" in lines[5]
    assert any(line.endswith("| +     made_up()") for line in lines)
    assert 2 == sum("| *" in line for line in lines)
    assert lines[-1].endswith("| ~ after")


def test_a_line_in_place_of_another_stands_opposite_it() -> None:
    """
    A slip of one character is one row, and the character is underlined.
    """
    slip = LINES[4].replace("0000", "0007")
    reply = "\n".join([*LINES[:4], slip, *LINES[5:]])

    assert 20 == len(shown(reply))
    assert "- " in shown(reply)[4]
    assert shown(reply)[4].endswith(f"| + {slip}")
    assert 2 == shown(reply, colour=True)[4].count("\x1b[1;4;")


def test_blank_lines_keep_their_place_in_the_numbering() -> None:
    """
    They are not shown, but counted, as an editor does.
    """
    spaced = replace(NEEDLE, lines=(LINES[0], "", *LINES[1:]))

    lines = shown("\n".join(LINES), needle=spaced)

    assert ["74", "76"] == [line[:2] for line in lines[:2]]


def test_replies_cannot_write_on_the_terminal() -> None:
    """
    Escapes, carriage returns and direction marks are shown, not obeyed.
    """
    evil = "\x1b[2J\x1b]0;title\x07\u202eback\x9b1m [red]markup[/red]"

    text = "\n".join(shown("\n".join([evil, *LINES]), width=160))

    assert r"\x1b[2J\x1b]0;title\x07\u202eback\x9b1m [red]markup[/red]" in text
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)


def test_without_colour_there_are_no_escapes_at_all() -> None:
    """
    Even a terminal gets plain text when colour is not wanted.
    """
    view = side_by_side(NEEDLE, score(NEEDLE, "x"), width=80, colour=False)

    assert "\x1b" not in printed(view, colour=True)


def test_long_lines_go_on_in_the_next_row() -> None:
    """
    Nothing is cut off: a difference may be in the last character.
    """
    long = "    x = " + repr("".join(chr(ord("a") + at % 26) for at in range(90)))
    needle = replace(NEEDLE, lines=(long, *LINES[1:]))

    lines = shown("\n".join(needle.lines), needle=needle, width=80)

    left = "".join(line.partition(" |")[0][5:].rstrip() for line in lines[:-19])
    assert long.replace(" ", "") == left.replace(" ", "")
    assert max(map(len, lines)) <= 80


def test_wide_characters_keep_the_columns_straight() -> None:
    """
    They take two columns each, and are counted so.
    """
    needle = replace(NEEDLE, lines=("\tx = '漢字漢字漢字漢字漢字漢字'", *LINES[1:]))

    rows = shown("\n".join(needle.lines), needle=needle, width=70)

    assert 21 == len(rows)
    assert 1 == len({cell_len(row.partition("|")[0]) for row in rows})


def test_an_empty_reply_misses_every_line() -> None:
    """
    Twenty marks on the left, nothing on the right.
    """
    lines = shown("")

    assert 20 == sum(" - " in line for line in lines)
    assert all(line.endswith("|") for line in lines)


def test_the_overview_has_a_line_per_needle() -> None:
    """
    Depth, line, counts, margin and how the reply ended.
    """
    setup = made_setup(needles=2)
    run = made_run(lambda pair, at: 20 - at, setup=setup)

    lines = printed(rounds_overview(run, run.records[0], Reading())).splitlines()

    cells = [[cell.strip() for cell in line.split()] for line in lines[-2:]]
    assert [
        ["f_a", "0%", "1", "20", "0", "0", "0", "1", "4.00", "cut"],
        ["f_b", "50%", "25", "19", "1", "1", "0", "0", "4.00", "cut"],
    ] == cells


def test_the_overview_tells_why_a_round_has_no_answer() -> None:
    """
    An error stands where the numbers would, escaped.
    """
    setup = made_setup(needles=2)
    first, second = setup.needles
    lost = Round(needle=first.name, prompt_sha256="d0", error="HTTP 500 \x1b[1m")
    record = made_record("q8_0/q4_0", [lost, made_round(second)])
    run = replace(made_run(setup=setup), records=(record,))

    text = printed(rounds_overview(run, record, Reading()), width=140)

    assert r"error: HTTP 500 \x1b[1m" in text
    assert "1 of 2 rounds answered" in text


def test_the_overview_of_a_failed_cell_tells_its_reason() -> None:
    """
    There are no rounds to list.
    """
    record = failed_record("q4_0/q4_0", Status.TIMED_OUT, "not ready in 60 s")

    text = printed(rounds_overview(made_run(failed=[record]), record, Reading()))

    assert "timed-out: not ready in 60 s" in text


def test_showing_a_round_costs_no_data_frames() -> None:
    """
    The command that shows one reply does not wait for pandas.
    """
    program = (
        "import sys, codeneedle.report.answers;"
        "print({'pandas', 'matplotlib', 'seaborn'} & sys.modules.keys())"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert "set()" == done.stdout.strip()


def test_the_overview_names_a_method_by_its_own_name():
    """
    What encloses it would fold into many lines of a narrow column.
    """
    run = made_run()
    needle = replace(run.setup.needles[0], name="VeryLongRequestHandler.handle")
    asked = AskedRound(needle, made_round(needle))

    assert "handle" == overview_row(asked, Reading())[0]
