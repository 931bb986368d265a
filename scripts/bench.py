"""
How long things take, and where the time goes: one interleaved run on this machine.

    python scripts/bench.py                        # all sections: some 20 minutes
    python scripts/bench.py protocol time          # these alone, from the same cells
    python scripts/bench.py protocol --pairs q8_0/q4_0 --repetitions 1
    python scripts/bench.py --json bench.json      # keeps the raw numbers

Everything happens in a temporary folder, one thing at a time: no run of yours is
touched, and your cache folder is only read. Progress goes to stderr, tables to stdout.

Exit codes: 0, it was measured; 2, there is no such section, pair or number; 3, this
machine cannot: no llama.cpp; 130, interrupted.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import bench_extraction
import bench_protocol
import bench_reports
import bench_speculation
from bench_place import Asked, Place, Stopped, busy_line, load, machine_phrase, place
from bench_protocol import Compared
from bench_shown import Section
from rich.console import Console

from codeneedle.errors import CodeneedleError
from codeneedle.grid import Pair
from codeneedle.records.record import Json
from codeneedle.system.processes import now
from codeneedle.system.signals import unwinding_on_signals
from codeneedle.text import duration

INTERRUPTED = 130

WIDTH = 136
"""Columns of text, at least."""


@dataclass(slots=True)
class Bench:
    """
    One run of the benchmark.

    Attributes:
        place: Where.
        sections: Their names, in order.
        screen: Hears of progress.
    """

    place: Place
    sections: Sequence[str]
    screen: Console
    _compared: Compared | None = None

    def say(self, what: str) -> None:
        """Tell how far it is."""
        self.screen.print(f"  {what}", markup=False)

    def compared(self) -> Compared:
        """The cells that two sections are about, played once."""
        if self._compared is None:
            self._compared = bench_protocol.compared(
                self.place,
                self.say,
                published="protocol" in self.sections,
                sittings="time" in self.sections,
            )
        return self._compared

    def section(self, name: str) -> Section:
        """Measure the section of that *name*."""
        return SECTIONS[name](self)


SECTIONS: Mapping[str, Callable[[Bench], Section]] = {
    "protocol": lambda b: bench_protocol.protocol_section(b.place, b.compared()),
    "time": lambda b: bench_protocol.time_section(b.place, b.compared()),
    "speculation": lambda b: bench_speculation.measured(b.place, b.say),
    "start-up": lambda b: bench_reports.start_up(b.place, b.say),
    "records": lambda b: bench_reports.records(b.place, b.say),
    "extraction": lambda b: bench_extraction.measured(b.place, b.say),
}

SMALLER = (
    *("functions", "reply-tokens", "rounds"),
    *("calls", "loads", "cells", "tree-bytes"),
)
"""Settings to try the program itself with: what they give is not comparable."""

SERVED = frozenset({"protocol", "time", "speculation"})
"""Sections that need a llama-server."""


def measured(bench: Bench, stdout: Console) -> Json:
    """Measure and show all sections; what ``--json`` keeps."""
    if SERVED & set(bench.sections):
        bench.say(bench.place.model.phrase)
    found: Json = {}
    for name in bench.sections:
        bench.screen.print(f"{name} ...", markup=False)
        before, began = load(), time.perf_counter()
        section = bench.section(name)
        took_s = time.perf_counter() - began
        section.show(stdout)
        bench.screen.print(f"{name}: {duration(took_s)}", markup=False)
        found[name] = {"load": before, "took_s": took_s, **section.raw}
    return found


def asked(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=str(__doc__).strip().splitlines()[0],
        epilog=f"Sections: {', '.join(SECTIONS)}.",
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="default: all")
    parser.add_argument(
        "--pairs", type=_pairs, metavar="K/V,...", help="pairs of cache types"
    )
    parser.add_argument("--repetitions", type=_count, help="default: 2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keeps raw numbers")
    for name in SMALLER:
        parser.add_argument(f"--{name}", type=_count, help=argparse.SUPPRESS)
    for name in ("patterns", "drafts"):
        parser.add_argument(f"--{name}", type=_counts, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    for name in given.sections:
        if name not in SECTIONS:
            parser.error(f"no section '{name}': there are {', '.join(SECTIONS)}")
    return given


def settings(given: argparse.Namespace) -> Asked:
    """What the command line says, and else the defaults."""
    said = {field.name: getattr(given, field.name) for field in fields(Asked)}
    return replace(
        Asked(), **{name: value for name, value in said.items() if value is not None}
    )


def _pairs(text: str) -> tuple[str, ...]:
    try:
        return tuple(str(Pair.parse(word)) for word in text.split(","))
    except CodeneedleError as error:
        raise argparse.ArgumentTypeError(f"{error}. {error.hint}") from error


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 1")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(word) for word in text.split(","))


def _wide() -> Console:
    """Tables have many columns; a file and most windows have room."""
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    return console


def main() -> int:
    """Measure what is asked for; the exit code."""
    given = asked()
    screen, stdout = Console(stderr=True, highlight=False, soft_wrap=True), _wide()
    try:
        with unwinding_on_signals(), place(settings(given)) as where:
            screen.print(machine_phrase(), markup=False)
            if busy := busy_line():
                screen.print(busy, style="yellow", markup=False)
            bench = Bench(where, given.sections or tuple(SECTIONS), screen)
            started = {"started": now(), "machine": machine_phrase()}
            found = {**started, "settings": asdict(where.asked)}
            found["sections"] = measured(bench, stdout)
            if given.json:
                given.json.write_text(json.dumps(found, indent=2), encoding="utf-8")
    except KeyboardInterrupt:
        screen.print("stopped: nothing is kept, and nothing is left behind")
        return INTERRUPTED
    except (Stopped, CodeneedleError) as error:
        screen.print(f"error: {error}\n hint: {error.hint}", markup=False)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
