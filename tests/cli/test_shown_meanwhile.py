"""What is shown while something runs."""

import io
import re
import time
from dataclasses import replace

import pytest
from made_losses import losing, losing_setup
from made_records import (
    failed_record,
    forced_of,
    made_forced,
    made_record,
    made_round,
    made_setup,
    written_of,
)
from printing import printed
from rich.console import Console

from codeneedle.cache_types import DEFAULT_TYPES, shuffle_pairs, whole_grid
from codeneedle.cli import progress as shown
from codeneedle.cli.progress import (
    PlainLines,
    RunningCell,
    SweepDisplay,
    SweepProgress,
    cell_line,
    live_view,
    print_notes,
    probe_phrase,
    progress_phrase,
    say,
    show_task_progress,
)
from codeneedle.engines.messages import Progress
from codeneedle.probes import PROBES
from codeneedle.probes.cell import Step
from codeneedle.records.record import Attention, Effective, Status
from codeneedle.report.display import display_of
from codeneedle.sweep.runner import CellEnded, CellStarted, CellStepped

PAIRS = shuffle_pairs(whole_grid(DEFAULT_TYPES, DEFAULT_TYPES), seed=42)
SETUP = made_setup()


@pytest.fixture
def progress():
    """A sweep that has not begun."""
    return SweepProgress(setup=SETUP, pairs=PAIRS, probe=PROBES["recall"], records={})


def finished(pair):
    """A cell without failures."""
    return made_record(
        pair,
        [made_round(needle) for needle in written_of(SETUP)],
        forced=[made_forced(needle) for needle in forced_of(SETUP)],
    )


def time_left(view):
    """What is said of the time that is left."""
    return view.rpartition("   left ")[2].splitlines()[0].rstrip()


def test_the_current_cell_tells_its_round(progress, golden):
    before = printed(live_view(progress), width=90)
    progress.note_cell_event(CellStarted(PAIRS[6]))
    progress.note_cell_event(CellStepped(PAIRS[6], Step(8, 16, "f_i")))

    shown = printed(live_view(progress), width=90)

    assert all(name in before for name in DEFAULT_TYPES)
    assert golden == time_left(before)
    assert "cell 7 of 36" in shown
    assert str(PAIRS[6]) in shown
    assert "round 9 of 16  f_i" in shown
    assert "8/16" in shown


def test_the_steps_of_divergence_are_chunks(progress, golden):
    progress.probe = PROBES["divergence"]
    progress.note_cell_event(CellStarted(PAIRS[0]))
    progress.note_cell_event(
        CellStepped(PAIRS[0], Step(2, 8, "comparing at 512 tokens"))
    )

    view = printed(live_view(progress), width=100)

    [line] = [x for x in view.splitlines() if "chunk" in x]
    assert golden == line.rstrip()


def test_a_cell_tells_how_far_the_text_is_read_and_how_long_that_takes(
    progress, monkeypatch, golden
):
    now = time.monotonic()
    monkeypatch.setattr(shown.time, "monotonic", lambda: now)
    cell = progress.running[PAIRS[0]] = RunningCell()
    within = Progress(2048, 6843, is_prompt=True)
    progress.note_cell_event(CellStepped(PAIRS[0], Step(0, 1, "reading the corpus")))
    progress.note_cell_event(
        CellStepped(PAIRS[0], Step(0, 1, "reading the corpus", within))
    )
    cell.since -= 60

    view = printed(live_view(progress), width=120)

    [line] = [x for x in view.splitlines() if "reading" in x]
    assert golden == line.rstrip()
    assert "round" not in view
    assert progress.left_s() is None


def test_the_first_answers_of_the_first_cell_tell_the_time_that_is_left(
    progress, monkeypatch
):
    """A minute of reading, another for half a round of sixteen: 33 minutes a cell."""
    now = time.monotonic()
    monkeypatch.setattr(shown.time, "monotonic", lambda: now)
    cell = progress.running[PAIRS[0]] = RunningCell(started=now - 120, since=now)
    progress.note_cell_event(CellStepped(PAIRS[0], Step(0, 16, "f_a")))
    cell.since -= 60
    within = Step(0, 16, "f_a", Progress(30, 60))
    progress.note_cell_event(CellStepped(PAIRS[0], within))

    assert progress.left_s() == pytest.approx(36 * (60 + 32 * 60) - 120, abs=60)
    assert "f_a, token 30 of 60" in printed(live_view(progress), width=120)


def test_the_first_ctrl_c_is_answered_while_a_cell_says_nothing(progress, golden):
    asked = []
    progress.asked_to_stop = lambda: bool(asked)
    progress.note_cell_event(CellStarted(PAIRS[0]))
    before = printed(live_view(progress), width=90)
    asked.append(True)
    after = printed(live_view(progress), width=90)

    assert golden == [view.rstrip().splitlines()[-1] for view in (before, after)]


def test_a_finished_cell_shows_its_number_and_a_failed_one_its_word(progress):
    """34 cells of 10.7 seconds are six minutes."""
    progress.note_cell_event(CellEnded(finished(PAIRS[0])))
    progress.note_cell_event(CellEnded(failed_record(PAIRS[1], Status.OUT_OF_MEMORY)))
    progress.note_cell_event(CellEnded(failed_record(PAIRS[2], Status.INTERRUPTED)))

    shown = printed(live_view(progress), width=90)

    assert 1 == shown.count("-0.500")
    assert ["oom", f"oom  {PAIRS[1]} out-of-memory"] == re.findall(
        r"oom(?:  \S+ out-of-memory)?", shown
    )
    assert "2 done, 1 without numbers" in shown
    assert progress.left_s() == pytest.approx(34 * 10.7)


def test_a_number_whose_attention_ran_in_no_kernel_has_its_mark(progress, golden):
    record = finished(PAIRS[0])
    on_cpu = Effective(attention=Attention.CPU, attention_evidence="graph splits")
    progress.note_cell_event(CellEnded(replace(record, effective=on_cpu)))

    view = printed(live_view(progress), width=90)

    assert " cpu " in " ".join(view.split())
    [line] = [x for x in view.splitlines() if "no kernel" in x]
    assert golden == line.rstrip()


def test_a_pair_of_further_functions_tells_how_many_its_numbers_are_of(progress):
    progress.setup = losing_setup(["bf16/bf16"], forced=48, functions=12)
    first, more = (
        losing(progress.setup, "bf16/bf16", [0.0] * count) for count in (12, 24)
    )

    assert "function" not in str(cell_line(first, progress))
    assert "  of 24 functions" in str(cell_line(more, progress))


def test_pairs_that_cannot_run_take_none_of_the_time_that_is_left(progress):
    """Of 36 cells one is done, and 30 cannot be."""
    progress.impossible = frozenset(PAIRS[6:])
    progress.note_cell_event(CellEnded(finished(PAIRS[0])))
    progress.note_cell_event(CellEnded(failed_record(PAIRS[6], Status.UNSUPPORTED)))

    assert progress.left_s() == pytest.approx(5 * 10.7)


def test_events_that_come_while_the_grid_is_drawn_do_not_disturb_it(
    progress, monkeypatch
):
    """What comes while a thread draws the grid is shown the next time."""
    rest = iter(PAIRS[2:])

    def meanwhile(*_args):
        progress.note_cell_event(CellStarted(next(rest)))
        progress.note_cell_event(CellEnded(finished(next(rest))))
        return 0.5

    monkeypatch.setattr(shown, "metric_value_or_nan", meanwhile)
    monkeypatch.setattr(shown, "_cell_phrase", lambda *_args: f"cell {meanwhile()}")
    progress.note_cell_event(CellEnded(finished(PAIRS[0])))
    progress.note_cell_event(CellStarted(PAIRS[1]))

    assert "1 done" in printed(live_view(progress), width=90)
    assert progress.ended_count > 1


def test_cells_of_other_shares_do_not_count(progress):
    progress.pairs = PAIRS[:2]
    progress.note_cell_event(CellEnded(failed_record(PAIRS[2], Status.CRASHED)))

    assert (0, 0) == (progress.ended_count, progress.failure_count)


def test_a_pipe_gets_a_line_per_cell(progress):
    out = io.StringIO()
    with SweepDisplay(Console(file=out, width=200), progress) as screen:
        screen.note_and_show_event(CellStarted(PAIRS[0]))
        screen.note_and_show_event(CellEnded(finished(PAIRS[0])))
        screen.note_and_show_event(CellEnded(failed_record(PAIRS[1], reason="it died")))

    lines = out.getvalue().splitlines()

    assert "recall: 36 cells" == lines[2]
    assert f"{PAIRS[0]}" in lines[3]
    assert "matched 20.00" in lines[3]
    assert "crashed: it died" in lines[4]
    assert "\x1b" not in out.getvalue()


def test_a_pipe_gets_a_line_for_each_thing_that_is_waited_for(progress):
    out = io.StringIO()
    steps = [
        Step(0, 1, "waiting: a lock", is_wait=True),
        Step(0, 1, "waiting: a lock", is_wait=True),
        Step(0, 1, "loading"),
        Step(0, 1, "waiting for the server", is_wait=True),
    ]
    with SweepDisplay(Console(file=out, width=200), progress) as screen:
        screen.note_and_show_event(CellStarted(PAIRS[0]))
        for step in steps:
            screen.note_and_show_event(CellStepped(PAIRS[0], step))

    expected = ["waiting: a lock", "waiting for the server"]

    assert [f"{PAIRS[0]}: {what}" for what in expected] == out.getvalue().splitlines()[
        3:
    ]


@pytest.mark.parametrize(
    ("done", "total", "elapsed"),
    [(0, 100, 3.0), (20, 100, 3.0), (100, 100, 9.0), (0, 0, 9.0), (0, 0, 0.0)],
    ids=["nothing done", "a fifth", "all", "of an unknown whole", "just begun"],
)
def test_the_rest_of_a_task_is_estimated_from_what_is_done(
    done, total, elapsed, golden
):
    assert golden == progress_phrase("hashing weights", done, total, elapsed)


def told(*calls, **settings):
    """Lines of a task that tells (second, phase, done of 100) in turn."""
    shown = []
    now = 0.0
    lines = PlainLines(show=shown.append, clock=lambda: now, **settings)
    for second, phase, done in calls:
        now = second
        lines.show_progress_if_due(phase, done, 100)
    return shown


def test_a_task_prints_a_line_after_two_seconds_and_then_every_ten():
    calls = [(float(done), "hashing", done) for done in range(31)]

    assert [
        "hashing: 2 %, 1:38 left",
        "hashing: 12 %, 1:28 left",
        "hashing: 22 %, 1:18 left",
    ] == told(*calls)
    assert [] == told(*calls[:2])


def test_a_new_phase_is_told_at_once_and_estimated_from_its_own_beginning():
    assert [
        "unpacking: 50 %, 3.0 s left",
        "compiling: 0 %",
        "compiling: 50 %, 11.0 s left",
    ] == told(
        (0.0, "unpacking", 0),
        (3.0, "unpacking", 50),
        (4.0, "compiling", 0),
        (15.0, "compiling", 50),
    )


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_task_is_named_on_terminals_and_in_logs(is_terminal):
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=80)
    with show_task_progress(console, "checking") as tell:
        tell("hashing", 10, 100)

    assert "checking" in console.file.getvalue()
    assert ("checking ...\n" == console.file.getvalue()) is not is_terminal


@pytest.mark.parametrize(
    "variant",
    ["", "again", "on-cpu", "on-l4"],
    ids=["none", "again", "on-cpu", "on-l4"],
)
def test_what_measures_the_reference_again_is_shown_as_that(variant, golden):
    assert golden == probe_phrase("recall", variant)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_notes_are_broken_between_words_on_terminals_alone(is_terminal):
    console = Console(
        file=io.StringIO(),
        force_terminal=is_terminal,
        width=20,
        soft_wrap=True,
        color_system=None,
    )
    print_notes(console, ["twenty letters and some more"])

    assert is_terminal == ("note: twenty letters\n" in console.file.getvalue())


def test_before_the_first_answer_the_time_is_that_of_the_plan(progress):
    progress.cell_s = 10.0

    assert 360.0 == progress.left_s()


def test_the_live_grid_says_what_it_shows_and_in_which_unit(progress):
    metric = progress.metrics[0]

    first, *_ = printed(live_view(progress), width=100).split("\n", 1)[1].splitlines()

    assert display_of(metric).label in first
    assert metric.unit in first


def test_a_cell_that_takes_longer_than_estimated_has_no_time_left(progress, golden):
    progress.cell_s, progress.pairs = 1.0, progress.pairs[:1]
    progress.running = {progress.pairs[0]: RunningCell(started=time.monotonic() - 99)}

    text = printed(live_view(progress), width=100)

    assert golden == time_left(text)


def test_the_end_of_a_budget_stands_beside_the_time(progress, golden):
    progress.until = "12:34:56"

    assert golden == time_left(printed(live_view(progress), width=100))


def test_pairs_that_are_not_measured_have_no_dot(progress):
    progress.pairs = [pair for pair in PAIRS if pair.k == pair.v]

    text = printed(live_view(progress), width=100)

    assert len(progress.pairs) == text.partition("between")[0].count(" .")


def test_control_characters_in_paths_are_shown_as_escapes():
    console = Console(file=io.StringIO(), width=80)
    print_notes(console, ["kept as a\x1b[2Jb"])
    say(console, "look at them:\n  a\x1b[2Jb\nretry")

    assert [
        "note: kept as a\\x1b[2Jb",
        "look at them:",
        "  a\\x1b[2Jb",
        "retry",
    ] == console.file.getvalue().splitlines()
