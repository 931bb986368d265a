"""Section ``extraction``: a large source tree read as a corpus."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench_children import timed
from bench_place import Place, Stopped, measured_on
from bench_shown import Section, lines
from bench_sums import phrase, ratios
from bench_tree import make_tree

from codeneedle.records.record import Json
from codeneedle.text import mib

LOAD = Path(__file__).with_name("bench_load.py")

HOW = {"on all cores": (), "alone": ("--alone",)}
"""What each way is called, and how it is asked for."""


def measured(place: Place, say: Callable[[str], None]) -> Section:
    """Read a tree both ways in turn."""
    tree = place.fresh("tree")
    say("writing a source tree")
    largest = make_tree(tree, size_bytes=place.asked.tree_bytes)
    found: dict[str, list[Json]] = {how: [] for how in HOW}
    for at in range(1, place.asked.loads + 1):
        for how, arguments in HOW.items():
            say(f"repetition {at}: {how}")
            found[how].append(_loaded(tree, arguments))
    _refuse_differences([each for loads in found.values() for each in loads])
    first = found["alone"][0]
    parallel, alone = ([e["wall_s"] for e in loads] for loads in found.values())
    return Section(
        title="extraction: a source tree read as a corpus, its functions found",
        headings=("how", "wall s", "parent MiB", "workers MiB", "workers"),
        words=1,
        rows=tuple(_row(how, loads) for how, loads in found.items()),
        lines=lines(
            measured_on(
                place,
                f"{first['size_bytes'] / 1e6:.1f} MB of Python, JavaScript and PHP, "
                f"largest {largest / 1e6:.1f} MB, {first['functions']:,} functions "
                f"to ask for, repetitions: {place.asked.loads}",
                is_served=False,
            ),
            f"alone / on all cores: {phrase(ratios(alone, parallel), 2)}",
            "parent, workers: peak resident sizes, of all workers together",
            _skipped(first),
        ),
        raw={"largest_bytes": largest, **found},
    )


def _loaded(tree: Path, arguments: Sequence[str]) -> Json:
    log = tree.with_suffix(".log")
    done = timed([sys.executable, str(LOAD), str(tree), *arguments], log=log)
    told: Json = json.loads(done.output.splitlines()[-1])
    return told


def _refuse_differences(loads: Sequence[Json]) -> None:
    """Both ways must find the same, or one of the times means nothing."""
    if len({(each["sha256"], each["functions"]) for each in loads}) > 1:
        raise Stopped(
            "on all cores another text or other functions are found than alone",
            hint="Run the tests of gathering.",
        )


def _row(how: str, loads: Sequence[Json]) -> tuple[str, ...]:
    return (
        how,
        phrase([each["wall_s"] for each in loads]),
        phrase([mib(each["parent_bytes"]) for each in loads], 0),
        phrase([mib(each["worker_bytes"]) for each in loads], 0),
        phrase([each["workers"] for each in loads], 0),
    )


def _skipped(load: Json) -> str:
    return f"{load['skipped']:,} files were skipped" if load["skipped"] else ""
