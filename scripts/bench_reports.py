"""Sections ``start-up`` and ``records``: commands that start no server."""

import sys
from collections.abc import Callable
from pathlib import Path

from bench_children import Timed, codeneedle, timed
from bench_place import Place, measured_on
from bench_shown import Section, lines
from bench_sums import best, phrase

from codeneedle.text import mib

MADE_RUNS = Path(__file__).with_name("made_runs.py")
MADE = "made-corpus"

GRID_CELLS = 36

STARTS: tuple[tuple[str, ...], ...] = (
    ("--help",),
    ("--version",),
    ("grid", MADE),
)
"""Those that the program does not have are left out."""

REPORTS: tuple[tuple[str, ...], ...] = (
    ("grid", MADE),
    ("table", MADE),
    ("heatmap", MADE),
    ("table", MADE, "--csv"),
)

Say = Callable[[str], None]
_Found = dict[tuple[str, ...], list[Timed]]


def start_up(place: Place, say: Say) -> Section:
    """How soon the program is there."""
    known = codeneedle("--help", log=place.folder / "help.log").output
    commands = tuple(each for each in STARTS if each[0] in known)
    found = _called(place, say, commands, cells=GRID_CELLS, times=place.asked.calls)
    rows = [
        (_name(command), f"{best(walls):.3f}", phrase(walls, 3))
        for command, each in found.items()
        if (walls := [call.wall_s for call in each])
    ]
    return Section(
        title="start-up: commands that answer at once, in seconds",
        headings=("command", "best", "median"),
        words=1,
        rows=tuple(rows),
        lines=lines(
            measured_on(
                place,
                f"a finished run of {GRID_CELLS} cells, calls: {place.asked.calls}",
                is_served=False,
            )
        ),
        raw=_raw(found),
    )


def records(place: Place, say: Say) -> Section:
    """How long reports take of far more records than a sweep makes."""
    times, cells = place.asked.repetitions, place.asked.cells
    found = _called(place, say, REPORTS, cells=cells, times=times)
    rows = [
        (
            _name(command),
            phrase([call.wall_s for call in each]),
            phrase([mib(call.peak_bytes) for call in each], 0),
        )
        for command, each in found.items()
    ]
    return Section(
        title=f"records: reports of {cells:,} records",
        headings=("command", "wall s", "peak MiB"),
        words=1,
        rows=tuple(rows),
        lines=lines(
            measured_on(
                place,
                f"made records of 16 rounds of 450 tokens, repetitions: {times}",
                is_served=False,
            )
        ),
        raw=_raw(found),
    )


def _called(
    place: Place,
    say: Say,
    commands: tuple[tuple[str, ...], ...],
    *,
    cells: int,
    times: int,
) -> _Found:
    """Each of *commands* called so often, in turn, on a run of so many *cells*."""
    out = place.fresh("made")
    log = out.with_suffix(".log")
    say(f"making {cells:,} records")
    # As a child, because all others begin as large as we are.
    timed([sys.executable, str(MADE_RUNS), str(out), "--cells", str(cells)], log=log)
    found: _Found = {command: [] for command in commands}
    for at in range(1, times + 1):
        say(f"repetition {at} of {times}")
        for command, calls in found.items():
            where = ("--out", str(out)) if MADE in command else ()
            calls.append(codeneedle(*command, *where, log=log))
    return found


def _name(command: tuple[str, ...]) -> str:
    return " ".join(word for word in command if word != MADE)


def _raw(found: _Found) -> dict[str, list[dict[str, float]]]:
    return {
        _name(command): [
            {"wall_s": call.wall_s, "peak_bytes": call.peak_bytes} for call in calls
        ]
        for command, calls in found.items()
    }
