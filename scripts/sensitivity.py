"""
Which metric tells a coarse cache from the reference, and how soon?

Run it on run folders: ``python scripts/sensitivity.py sweeps/NAME/MODEL ...``.

Of each metric that enters the verdict, and of each task: the loss of the coarsest type
of K beside the reference's V, and the other way round, or of the pairs that ``--pairs``
names; in standard errors over units (needles, chunks, texts); and these after one
minute of measuring a pair, as they grow with the root of the time. Metrics of one task
count its own texts and questions alone.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from codeneedle.cache_types import Pair
from codeneedle.probes import PROBES
from codeneedle.probes.retrieval.record import retrieval_of
from codeneedle.probes.retrieval.task_kinds import TASKS
from codeneedle.records.record import CellRecord
from codeneedle.records.store import Store
from codeneedle.report.table import Column, PairTable, pair_table

OF_TASKS = {name for task in TASKS for name in (task, f"{task}-logp")}
COLUMNS = "loss, standard errors, after a minute"


def seconds(record: CellRecord, task: str) -> float:
    """What *record* took; of one *task* alone, its readings and questions."""
    found = retrieval_of(record)
    if not task or found is None:
        return record.phases.measure_s or math.nan
    texts = [text for text in found.texts if text.task == task]
    asked = [each for text in texts for each in text.answers]
    read_s = math.fsum(text.prompt_ms for text in texts) / 1000
    return read_s + math.fsum(each.answer.wall_s for each in asked)


def effect(units: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """Mean difference from the reference in standard errors; NaN without a spread."""
    losses = [reference[name] - units[name] for name in units if name in reference]
    if len(losses) < 2:  # noqa: PLR2004 - no spread
        return math.nan
    error = float(np.std(losses, ddof=1)) / math.sqrt(len(losses))
    return float(np.mean(losses)) / error if error else math.nan


def rows(table: PairTable, named: Sequence[Pair] = ()) -> Iterator[str]:
    """The table of one run, in Markdown, of the *named* pairs or the coarsest."""
    first = table.reference
    if first is None:
        return
    coarsest = Pair(table.pairs[-1].k, first.v), Pair(first.k, table.pairs[-1].v)
    pairs = named or coarsest
    heads = "".join(f" {pair}: {COLUMNS} |" for pair in pairs)
    yield f"| metric | units | s a pair |{heads}"
    yield f"| --- | --: | --: |{' --: |' * len(pairs)}"
    for column in table.columns:
        name, reference = column.metric.name, column.reference
        if reference is None or not (column.metric.loss or name in OF_TASKS):
            continue
        records = [table.records.get((pair, column.probe)) for pair in pairs]
        known = [record for record in records if record and record.has_numbers]
        task = name.removesuffix("-logp") if name in OF_TASKS else ""
        took = math.fsum(seconds(record, task) for record in known)
        minutes = took / max(len(known), 1) / 60
        own = units_of(column, table, table.records[reference, column.probe])
        told = [
            phrase(column, table, record, own, minutes)
            if record and record.has_numbers
            else "-"
            for record in records
        ]
        yield f"| `{name}` | {len(own)} | {60 * minutes:.0f} | {' | '.join(told)} |"


def units_of(
    column: Column, table: PairTable, record: CellRecord
) -> Mapping[str, float]:
    """The value of each unit, higher is better."""
    sign = -1 if column.metric.better == "lower" else 1
    units = column.metric.loss_values_by_unit(record, table.run.setup)
    return {name: sign * value for name, value in units.items()}


def phrase(
    column: Column,
    table: PairTable,
    record: CellRecord,
    reference: Mapping[str, float],
    minutes: float,
) -> str:
    """Loss of a pair, in standard errors, and in those after one minute."""
    units = units_of(column, table, record)
    mean = math.fsum(reference[n] - units[n] for n in units if n in reference)
    errors = effect(units, reference)
    later = errors / math.sqrt(minutes) if minutes else math.nan
    return f"{mean / max(len(units), 1):.3f}, {errors:.1f}, {later:.1f}"


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--pairs", nargs="*", type=Pair.parse, default=())
    return parser.parse_args(arguments)


def main() -> None:
    """Print a table of each run folder."""
    chosen = parsed()
    for folder in chosen.folders:
        run = Store(folder).read_run()
        if run is None:
            sys.exit(f"{folder} is no run folder")
        table = pair_table(run, list(PROBES.values()))
        print(f"{folder}\n")
        print("\n".join(rows(table, chosen.pairs)))


if __name__ == "__main__":
    main()
