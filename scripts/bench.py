"""
Benchmarks of codeneedle on this machine, with the built-in model.

    python scripts/bench.py                           # all sections, about ten minutes
    python scripts/bench.py cells --pairs q8_0/q4_0 --repetitions 1
    python scripts/bench.py reading --contexts 1024   # of three, a part at a time
    python scripts/bench.py --json bench.json         # keeps the raw numbers

Sections:
    cells     seconds per cell of a sweep beside the published protocol, and the part
              of a cell that is not measuring
    start-up  commands that answer at once
    reading   seconds per cell of SmolLM2 by reading right lines, and by writing them
    records   reports of 1,000 records
    workers   cells that only wait, by up to eight workers; a merge of 10,000

Everything happens in a temporary folder, one thing at a time; the user's runs are not
touched, and of the cache folder the built-in model is copied. Progress goes to stderr,
tables to stdout.

Exit codes: 0, measured; 2, no such section, pair or number; 3, this machine cannot run
it; 130, interrupted.
"""

import argparse
import contextlib
import functools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fuzz_seeds import made
from published_protocol import PublishedCell, Questions, measure
from rich.console import Console
from rich.table import Table
from typing_extensions import override

from codeneedle.cache_types import Pair
from codeneedle.corpora import registry
from codeneedle.engines.llama_cpp import installation
from codeneedle.errors import CodeneedleError, MachineError
from codeneedle.models.pretrained import checked_built_in_path, path_unless_built_in
from codeneedle.probes.cell import ProbeContext, RunContext
from codeneedle.probes.probe import Probe
from codeneedle.probes.recall.alignment import Mark
from codeneedle.probes.recall.record import recall_of
from codeneedle.probes.recall.rounds import answered_rounds
from codeneedle.probes.recall.settings import recall_layout
from codeneedle.records.record import Json
from codeneedle.records.store import Store, encode_masked_and_sealed
from codeneedle.sweep.merge import merge
from codeneedle.sweep.runner import Runner
from codeneedle.sweep.workers import Worker
from codeneedle.system import files, machine
from codeneedle.system.processes import running
from codeneedle.system.signals import interrupting_on_end_signals
from codeneedle.text import duration_text, mib_of_bytes

INTERRUPTED = 130
WIDTH = 190
"""Columns of a table, at least."""

CORPUS = "[generate]\nfunctions = {}\nvalue_length = 9\nname_length = 8\nseed = 42\n"
"""With 16 functions: 9,020 bytes, each of them a token of the built-in model."""

CONTEXT = 18_432
RECORDS, ENGINES = made("made_records"), made("fake_engine")
"""Helpers of the tests: made-up setups, and an engine without a process."""

MADE_RUNS = Path(__file__).with_name("made_runs.py")
MADE = "made-corpus"
START_UP_CELLS = 36
START_UP = (("--help",), ("--version",), ("grid", MADE))
REPORTS = (("grid", MADE), ("table", MADE), ("table", MADE, "--csv"), ("heatmap", MADE))
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1 << 10
"""Of ``ru_maxrss``: bytes on macOS, KiB on Linux, getrusage(2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """
    Settings of one run, and where it happens.

    Attributes:
        folder: Temporary; removed at the end.
        say: Reports progress.
        repetitions: Of everything but start-up.
        pairs: Pairs of cache types, in order.
        functions: Of the corpus that is asked about.
        reply_tokens: Most tokens of a reply of the published protocol.
        calls: Of each command whose start-up is measured.
        records: Pairs with a record in the section of that name.
        merged: Records that are merged.
        model: Weights that right lines are read with; None if they are not there.
        contexts: Of the texts that they are read in, in tokens.
    """

    folder: Path
    say: Callable[[str], None]
    repetitions: int = 2
    pairs: tuple[str, ...] = ("f16/f16", "q8_0/q8_0", "q4_0/q4_0")
    functions: int = 16
    reply_tokens: int = 1500
    calls: int = 15
    records: int = 1_000
    merged: int = 10_000
    model: Path | None = None
    contexts: tuple[int, ...] = (1_024, 4_096, 8_192)

    def fresh(self, name: str) -> Path:
        """A new empty folder whose name begins with *name*."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """
    A section that was measured.

    Attributes:
        title: Above its table.
        headings: Of the columns; the first holds words, the others numbers.
        rows: One text for each column.
        notes: Lines below the table.
        raw: All numbers as they were measured, for ``--json``.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    raw: Json


# --- numbers


def spread(numbers: Iterable[float], digits: int = 1) -> str:
    """Median with smallest and largest, ``4.2 (4.0 to 4.9)``; a dash if none."""
    known = sorted(numbers)
    if not known:
        return "-"
    middle, least, most = (
        f"{number:,.{digits}f}"
        for number in (statistics.median(known), known[0], known[-1])
    )
    return middle if least == most else f"{middle} ({least} to {most})"


# --- programs


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """
    A program that ran to its end.

    Attributes:
        wall_s: From its start to its end, in seconds.
        core_s: Seconds of a core that it used, with all that it started and waited for.
        peak_bytes: Its largest resident size; at least that of this process, of
            which it begins as a copy.
    """

    wall_s: float
    core_s: float
    peak_bytes: int


def timed(argv: Sequence[str], *, log: Path) -> Timed:
    """
    Run *argv* to its end, alone; its output goes to *log*.

    Raises:
        MachineError: If it cannot be started, or ends with another code than 0.
    """
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    # Modules are compiled once, as they are for users.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
    with running(argv, env=env, log=log) as child:
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-2:]
        raise MachineError(
            f"{' '.join(argv[1:])} exited with code {child.returncode}",
            hint=f"End of its output: {' '.join(last)}",
        )
    return Timed(
        wall_s=wall_s,
        core_s=usage.ru_utime + usage.ru_stime,
        peak_bytes=usage.ru_maxrss * MAXRSS_UNIT,
    )


def codeneedle(*arguments: str, log: Path) -> Timed:
    """Run the command with *arguments*; errors are those of `timed`."""
    return timed((sys.executable, "-m", "codeneedle", *arguments), log=log)


# --- cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """
    One repetition of one pair, both ways after each other.

    Attributes:
        command_s: All of ``codeneedle sweep`` for this one pair, in seconds.
        cell_s: From the launch of its server to its end, in seconds.
        overhead_s: The part of that which is not measuring.
        matched: Lines of 20 that came back, for each function.
        published: The cell by the published protocol.
    """

    command_s: float
    cell_s: float
    overhead_s: float
    matched: tuple[int, ...]
    published: PublishedCell


def cells(bench: Bench) -> Section:
    """Seconds per cell, by a sweep and by the published protocol."""
    where = _served_by()
    path = bench.folder / "bench.toml"
    path.write_text(CORPUS.format(bench.functions), encoding="utf-8")
    turns: dict[str, list[Turn]] = {pair: [] for pair in bench.pairs}
    for at in range(1, bench.repetitions + 1):
        for pair, found in turns.items():
            bench.say(f"repetition {at}: {pair}")
            found.append(_turn(bench, path, Pair.parse(pair)))
    bench.say("one sweep of several cells")
    k_types = ",".join(dict.fromkeys(Pair.parse(pair).k for pair in bench.pairs))
    _, store = _sweep(bench, path, k_types, Pair.parse(bench.pairs[-1]).v)
    # Only cells after the first have a cell before them.
    _, *later = sorted(store.read_records(), key=lambda record: record.position)
    overheads = [record.phases.waiting_s for record in later]
    return cells_section(turns, overheads, where=where)


def cells_section(
    turns: Mapping[str, Sequence[Turn]], later: Sequence[float], *, where: str
) -> Section:
    """The table of *turns*, and the overhead of *later* cells of one sweep."""
    every = [turn for of_pair in turns.values() for turn in of_pair]
    lines = [n for turn in every for n in turn.matched + turn.published.matched]
    answers = f"{len(lines)} rounds with the same answers: 20 of 20 lines in each"
    if set(lines) != {20}:
        answers = "NOT the same answers: do not compare the times"
    return Section(
        title="cells: seconds, a sweep beside the published protocol",
        headings=("pair", "published", "command", "cell", "published / cell", "other"),
        rows=tuple(_row(pair, of_pair) for pair, of_pair in turns.items()),
        notes=(
            where,
            "command: 'codeneedle sweep' for that pair alone; cell: as its record says",
            f"other: not measuring; after the first cell of a sweep {spread(later, 2)}",
            answers,
        ),
        raw={
            "turns": {
                pair: [asdict(t) for t in found] for pair, found in turns.items()
            },
            "overhead_s": list(later),
        },
    )


def _row(pair: str, turns: Sequence[Turn]) -> tuple[str, ...]:
    # One ratio per repetition: what slows the machine for a while slows both sides.
    ratios = (turn.published.wall_s / turn.cell_s for turn in turns)
    return (
        pair,
        spread(turn.published.wall_s for turn in turns),
        spread(turn.command_s for turn in turns),
        spread(turn.cell_s for turn in turns),
        spread(ratios),
        spread((turn.overhead_s for turn in turns), 2),
    )


def _turn(bench: Bench, path: Path, pair: Pair) -> Turn:
    command_s, store = _sweep(bench, path, pair.k, pair.v)
    (record,), setup = store.read_records(), store.read_setup()
    assert setup is not None  # noqa: S101 - it has just been written
    questions = Questions(
        text=registry.load(str(path)).text,
        needles=recall_layout(setup).written,
        context=CONTEXT,
        reply_tokens=bench.reply_tokens,
    )
    published = measure(
        pair,
        questions,
        server=installation.locate_tools().server.path,
        weights=checked_built_in_path(),
        log=bench.fresh("published") / "server.log",
    )
    return Turn(
        command_s=command_s,
        cell_s=record.phases.total_from_launch_s + (record.phases.between_s or 0.0),
        overhead_s=record.phases.waiting_s,
        matched=tuple(
            each.line_counts_by_mark[Mark.MATCHED]
            for each in answered_rounds(record, setup)
        ),
        published=published,
    )


def _sweep(bench: Bench, path: Path, k_types: str, v_types: str) -> tuple[float, Store]:
    """Seconds of the whole command, and its store."""
    out = bench.fresh("sweeps")
    done = codeneedle(
        *("sweep", "--corpus", str(path), "--context", str(CONTEXT)),
        *("--k-types", k_types, "--v-types", v_types, "--out", str(out)),
        log=out.with_suffix(".log"),
    )
    (setup,) = out.rglob("setup.json")
    return done.wall_s, Store(setup.parent)


def _served_by(weights: str = "the built-in model") -> str:
    """What the cells were measured on."""
    server = installation.ask_server_facts(installation.locate_tools().server)
    return f"{machine_line()}; llama.cpp {server.version}; weights of {weights}"


# --- right lines, read and written

READ_MODEL, READ_PAIR = "smollm2", Pair("q8_0", "q8_0")
READ_CORPUS = (
    "[generate]\nfunctions = {}\nlines = 5\nvalue_length = 2\nname_length = 3\n"
    "seed = 42\nindent = 1\n"
)
FUNCTION_TOKENS = 50
"""
Of one function of this corpus, by SmolLM2's vocabulary. A text fills four fifths of its
context.
"""

AS_IF = ((200, 15), (2_000, 100))
"""Speeds of reading and writing, in tokens per second, for which cells are computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """
    A cell whose right lines were scored one way.

    Attributes:
        cell_s: From the launch of its server or tool to its end, in seconds.
        core_s: Seconds of a core that the whole command used, planning included.
        read: Tokens that were read in batches.
        right: Right tokens.
        written: Of these, one after the other.
    """

    cell_s: float
    core_s: float
    read: int
    right: int
    written: int

    def computed_s(self, read_per_s: float, write_per_s: float) -> float:
        """What it would take at these speeds, starts aside."""
        return self.read / read_per_s + self.written / write_per_s


def reading(bench: Bench) -> Section:
    """Seconds per cell of SmolLM2 by reading, beside writing."""
    if bench.model is None or not bench.model.is_file():
        raise MachineError(
            f"the weights of {READ_MODEL} are not there",
            hint=f"Fetch them with 'codeneedle fetch {READ_MODEL}'.",
        )
    found: dict[int, dict[str, list[Scored]]] = {}
    for context in bench.contexts:
        found[context] = {"force": [], "read": []}
        for at in range(1, bench.repetitions + 1):
            for way, cells_of in found[context].items():
                bench.say(f"repetition {at}: {context:,} tokens by {way}")
                cells_of.append(_scored(bench, context, way))
    return Section(
        title="reading: seconds per cell of right lines, read and written",
        headings=(
            *("context", "read", "right", "writing", "reading", "ratio", "of cores"),
            *_AS_IF,
        ),
        rows=tuple(_reading_row(*each) for each in found.items()),
        notes=(
            _served_by(f"{READ_MODEL}, {READ_PAIR}"),
            "read: tokens of a cell by writing, and by reading with its questions",
            "of cores: seconds of a core of the whole command, which others that run",
            "change less than seconds of the clock",
            "last columns: seconds by writing, and by reading, computed of these,",
            "for a machine that reads, and writes, so many tokens/s",
        ),
        raw={
            str(context): {by: [asdict(each) for each in of] for by, of in ways.items()}
            for context, ways in found.items()
        },
    )


_AS_IF = tuple(f"{read:,} and {write:,}" for read, write in AS_IF)


def _reading_row(context: int, ways: Mapping[str, Sequence[Scored]]) -> tuple[str, ...]:
    by_writing, by_reading = ways["force"], ways["read"]
    one, other = by_writing[0], by_reading[0]
    ratios = (a.cell_s / b.cell_s for a, b in zip(by_writing, by_reading, strict=True))
    return (
        f"{context:,}",
        f"{one.read:,}, {other.read:,}",
        f"{one.right:,}, {other.right:,}",
        spread(each.cell_s for each in by_writing),
        spread(each.cell_s for each in by_reading),
        spread(ratios),
        ", ".join(spread(each.core_s for each in way) for way in ways.values()),
        *(f"{one.computed_s(*at):.1f}, {other.computed_s(*at):.1f}" for at in AS_IF),
    )


def _scored(bench: Bench, context: int, way: str) -> Scored:
    path = bench.folder / f"reading-{context}.toml"
    functions = context * 4 // 5 // FUNCTION_TOKENS
    path.write_text(READ_CORPUS.format(functions), encoding="utf-8")
    out = bench.fresh("reading")
    whole = codeneedle(
        *("sweep", "--model", str(bench.model), "--corpus", str(path), "--fit"),
        *("--context", str(context), "--pairs", str(READ_PAIR)),
        *("--functions", "12", "--lines", "3", "--way", way, "--out", str(out)),
        log=out.with_suffix(".log"),
    )
    (setup_path,) = out.rglob("setup.json")
    store = Store(setup_path.parent)
    (record,), setup = store.read_records(), store.read_setup()
    assert setup is not None  # noqa: S101 - it has just been written
    chunks, right = {}, 0
    for answer in recall_of(record).scored_answers:
        if scores := answer.scores:
            right += len(scores.logprobs)
            # The last function of each chunk ends what is read of it.
            end = scores.prompt_tokens + len(scores.logprobs)
            chunks[answer.prompt_sha256] = end
    is_read = way == "read"
    return Scored(
        cell_s=record.phases.total_from_launch_s,
        core_s=whole.core_s,
        read=sum(chunks.values()) if is_read else setup.corpus.tokens,
        right=right,
        written=0 if is_read else right,
    )


# --- commands that start no server


def commands(
    bench: Bench,
    title: str,
    wanted: Sequence[tuple[str, ...]],
    *,
    pairs: int,
    times: int,
) -> Section:
    """Each of the *wanted* commands so many *times*, in turn, on a run of *pairs*."""
    out = bench.fresh("made")
    log = out.with_suffix(".log")
    bench.say(f"making {pairs:,} records")
    # In a child: programs that we start begin as large as we are.
    timed([sys.executable, str(MADE_RUNS), str(out), "--cells", str(pairs)], log=log)
    found: dict[str, list[Timed]] = {" ".join(command): [] for command in wanted}
    for at in range(1, times + 1):
        bench.say(f"repetition {at} of {times}")
        for command in wanted:
            where = ("--out", str(out)) if MADE in command else ()
            found[" ".join(command)].append(codeneedle(*command, *where, log=log))
    return Section(
        title=f"{title}: seconds, with {pairs:,} records in the run folder",
        headings=("command", "best", "median (range)", "peak MiB"),
        rows=tuple(
            (
                name.replace(f" {MADE}", ""),
                f"{min(call.wall_s for call in calls):.3f}",
                spread((call.wall_s for call in calls), 3),
                spread((mib_of_bytes(call.peak_bytes) for call in calls), 0),
            )
            for name, calls in found.items()
        ),
        notes=(machine_line(), f"calls of each: {times}"),
        raw={name: [asdict(call) for call in calls] for name, calls in found.items()},
    )


# --- several workers, several processes


CELL_S = 0.5
"""Duration of a cell that only waits."""

WORKERS = (1, 2, 4, 8)
CELLS_OF_A_WORKER = 8
MANY_CELLS = 100_000


class Sleeper(Probe):
    """A probe that waits in place of measuring."""

    @override
    def measure(self, _context: ProbeContext) -> Json:
        """Wait for `CELL_S`."""
        time.sleep(CELL_S)
        return {}


def _waiting(made: Store, cells: int) -> tuple[Runner, Probe, list[Pair]]:
    """A runner of *cells* that wait for `CELL_S` each, in the folder of a store."""
    types = [f"t{at}" for at in range(cells)]
    setup = RECORDS.made_setup(needles=1, types_k=types, types_v=["f16"])
    context = RunContext(
        engine=ENGINES.FakeEngine(),
        weights=ENGINES.made_weights(),
        is_built_in=True,
        setup=made.check_and_store_setup(setup),
        text="",
        settings={},
        folder=made.folder,
    )

    probe = Sleeper(name="recall", purpose="sleeping", metrics=())
    return Runner(run=context, store=made), probe, [Pair(k, "f16") for k in types]


def workers(bench: Bench) -> Section:
    """N workers against one, and a large merge."""
    times: dict[int, list[float]] = {number: [] for number in WORKERS}
    for _ in range(bench.repetitions):
        for number, found in times.items():
            bench.say(f"cells that only wait, by {number} at a time")
            found.append(_seconds_by(bench, number))
    speed_up = {
        number: [number * one / many for one, many in zip(times[1], found, strict=True)]
        for number, found in times.items()
    }
    rows = [
        (
            f"{number} at a time",
            spread(found, 2),
            spread(speed_up[number], 2),
            spread((1000 * (s / CELLS_OF_A_WORKER - CELL_S) for s in found), 1),
        )
        for number, found in times.items()
    ]
    bench.say(f"merging {bench.merged:,} records")
    merge_s = _merge_s(bench)
    return Section(
        title=f"workers: seconds for {CELLS_OF_A_WORKER} cells of {CELL_S} s for each",
        headings=("cells", "seconds", "times one", "overhead of a cell, ms"),
        rows=tuple(rows),
        notes=(
            machine_line(),
            (
                f"{merge_s:,.1f} s to merge {bench.merged:,} records of two folders, "
                f"{1000 * merge_s / bench.merged:.2f} ms each"
            ),
            (
                f"estimate for {MANY_CELLS:,} cells: "
                f"{merge_s / bench.merged * MANY_CELLS / 60:,.1f} min to merge"
            ),
        ),
        raw={
            "seconds": {str(number): found for number, found in times.items()},
            "merge_s": merge_s,
        },
    )


def _seconds_by(bench: Bench, number: int) -> float:
    cells = CELLS_OF_A_WORKER * number
    runner, probe, pairs = _waiting(Store(bench.fresh("waiting")), cells)
    several = [Worker(engine=runner.run.engine) for _ in range(number)]
    runner = replace(runner, workers=several)
    began = time.perf_counter()
    with runner.store.make_and_lock_folder():
        runner.measure_pairs(probe, pairs)
    return time.perf_counter() - began


def _merge_s(bench: Bench) -> float:
    """Two halves of a run of records as large as real ones; both have the reference."""
    made = bench.fresh("halves")
    one = [sys.executable, str(MADE_RUNS), str(made / "one"), "--cells", "1"]
    timed(one, log=made / "made.log")
    template = Store(made / "one" / MADE / "made-model")
    (record,), setup = template.read_records(), template.read_setup()
    assert setup is not None  # noqa: S101 - it has just been written
    types = [record.pair.k, *(f"t{at}" for at in range(bench.merged - 1))]
    for at, name in enumerate("ab"):
        half = Store(made / name / MADE / "made-model")
        half.check_and_store_setup(replace(setup, types_k=tuple(types)))
        (half.folder / "cells").mkdir()
        for k in {types[0], *types[at::2]}:
            pair = Pair(k, record.pair.v)
            path = half.folder / "cells" / f"{pair.slug}.{record.probe}.json"
            path.write_bytes(encode_masked_and_sealed(replace(record, pair=pair)))
    began = time.perf_counter()
    ((_, found),) = merge([made / "a", made / "b"], made / "all")
    assert len(found.cells) == bench.merged  # noqa: S101 - none is lost
    return time.perf_counter() - began


SECTIONS: Mapping[str, Callable[[Bench], Section]] = {
    "cells": cells,
    "start-up": lambda bench: commands(
        bench,
        "start-up",
        START_UP,
        pairs=min(START_UP_CELLS, bench.records),
        times=bench.calls,
    ),
    "reading": reading,
    "records": lambda bench: commands(
        bench, "records", REPORTS, pairs=bench.records, times=bench.repetitions
    ),
    "workers": workers,
}


# --- where and when


@contextlib.contextmanager
def own_cache() -> Iterator[Path]:
    """
    A temporary folder, and a cache folder in it for the programs that are measured.

    The built-in model is copied there, and llama-server is named by the environment,
    so that nothing is written to the user's cache folder but a missing model.
    """
    with tempfile.TemporaryDirectory(prefix="codeneedle-bench-") as name:
        cache = Path(name) / "cache"
        cache.mkdir()
        shutil.copy(checked_built_in_path(), cache)
        ours = {files.CACHE_VARIABLE: str(cache)}
        with contextlib.suppress(CodeneedleError):  # told by the section that needs it
            ours[installation.VARIABLE] = str(installation.locate_tools().server.path)
        before = os.environ.copy()
        os.environ.update(ours)
        try:
            yield Path(name)
        finally:
            os.environ.clear()
            os.environ.update(before)


@functools.cache
def machine_line() -> str:
    """Processor, cores, memory, system, Python and date."""
    facts = machine.facts()
    return f"{facts.phrase()}, Python {facts.python}; {machine.now()[:10]}"


def busy_line(load: machine.Load) -> str:
    """A warning if more than half of the cores are in use; else empty."""
    return (
        f"this machine is busy (load {load}): numbers will be rough, ratios less so"
        if load.per_core > 1 / 2
        else ""
    )


# --- the command line


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=str(__doc__).strip().splitlines()[0],
        epilog=f"Sections: {', '.join(SECTIONS)}.",
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="default: all")
    parser.add_argument("--pairs", type=_pairs, metavar="K/V,...")
    parser.add_argument("--contexts", type=_counts, metavar="N,...")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keeps raw numbers")
    for name in (
        *("repetitions", "functions", "reply-tokens", "calls", "records", "merged"),
    ):
        parser.add_argument(f"--{name}", type=_count, metavar="N")
    given = parser.parse_args(arguments)
    for name in given.sections:
        if name not in SECTIONS:
            parser.error(f"no section '{name}': there are {', '.join(SECTIONS)}")
    return given


def _pairs(text: str) -> tuple[str, ...]:
    try:
        return tuple(str(Pair.parse(word)) for word in text.split(","))
    except CodeneedleError as error:
        raise argparse.ArgumentTypeError(f"{error}. {error.hint}") from error


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split(",")))


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 1")
    return int(text)


def _measured(bench: Bench, names: Sequence[str], stdout: Console) -> Json:
    """Measure and show the sections of those *names*; what ``--json`` keeps."""
    found: Json = {}
    for name in names:
        began = time.perf_counter()
        section = SECTIONS[name](bench)
        table = Table(title=section.title, title_justify="left", box=None)
        for at, heading in enumerate(section.headings):
            table.add_column(heading, justify="right" if at else "left", no_wrap=True)
        for row in section.rows:
            table.add_row(*row)
        stdout.print(table, crop=False)
        stdout.print(*section.notes, "", sep="\n", style="dim", markup=False)
        bench.say(f"{name}: {duration_text(time.perf_counter() - began)}")
        found[name] = section.raw
    return found


def main() -> int:
    """Measure what is asked for; the exit code."""
    given = vars(parsed())
    names, kept = given.pop("sections") or tuple(SECTIONS), given.pop("json")
    settings = {name: value for name, value in given.items() if value is not None}
    screen = Console(stderr=True, highlight=False, soft_wrap=True)
    stdout = Console(highlight=False)
    stdout.width = max(stdout.width, WIDTH)
    say = functools.partial(screen.print, markup=False)
    # The folder of models is another one from here on.
    settings["model"] = path_unless_built_in(READ_MODEL)
    try:
        with interrupting_on_end_signals(), own_cache() as folder:
            say(machine_line())
            if busy := busy_line(machine.present_load()):
                say(busy)
            found = _measured(Bench(folder=folder, say=say, **settings), names, stdout)
    except KeyboardInterrupt:
        say("interrupted: nothing is kept")
        return INTERRUPTED
    except CodeneedleError as error:
        say(f"error: {error}\n hint: {error.hint}")
        return 3
    if kept:
        where = {
            "started": machine.now(),
            "machine": machine_line(),
            "settings": settings,
        }
        kept.write_text(json.dumps({**where, "sections": found}, indent=2, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
