"""
Which metric tells a coarse cache from the reference, and how soon?

Run it on run folders: ``python scripts/sensitivity.py sweeps/NAME/MODEL ...``.

Of each metric that the verdict judges, and of each task: the loss of the coarsest type
of K beside the reference's V, and the other way round; in standard errors over units
(needles, chunks, texts); and these after one minute of measuring a pair, as they grow
with the root of the time. Metrics of one task count its own texts and questions alone.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from codeneedle.analysis.retrieval import retrieval_of
from codeneedle.corpora.task_kinds import TASKS
from codeneedle.grid import Pair
from codeneedle.probes import PROBES
from codeneedle.records.record import CellRecord
from codeneedle.records.store import Store
from codeneedle.report.table import PairTable, pair_table
from codeneedle.report.units import UnitScores
from codeneedle.scoring.rounds import Reading

OF_TASKS = {name for task in TASKS for name in (task, f"{task}-logp")}
COLUMNS = "loss, standard errors, after a minute"


def seconds(record: CellRecord, task: str) -> float:
    """What *record* took; of one *task* alone, its readings and questions."""
    found = retrieval_of(record)
    if not task or found is None:
        return record.phases.measure_s or math.nan
    texts = [text for text in found.texts if text.task == task]
    asked = [each for text in texts for each in text.asked]
    forced = math.fsum(each.scored.wall_s for each in asked if each.scored)
    return (
        math.fsum(text.prompt_ms for text in texts) / 1000
        + math.fsum(each.wall_s for each in asked)
        + forced
    )


def effect(scores: UnitScores, pair: Pair, minutes: float) -> str:
    """Loss of *pair*, standard errors, and standard errors after one minute."""
    ours, theirs = scores.of(pair), scores.of(scores.reference or pair)
    if ours is None or theirs is None:
        return "-"
    loss = theirs - ours
    error = float(loss.std(ddof=1)) / math.sqrt(len(loss))
    if not error:
        return f"{np.mean(loss):.3f}, -, -"
    errors = float(loss.mean()) / error
    return f"{np.mean(loss):.3f}, {errors:.1f}, {errors / math.sqrt(minutes):.1f}"


def rows(table: PairTable) -> Iterator[str]:
    """The table of one run, in Markdown."""
    first = table.reference
    if first is None:
        return
    pairs = Pair(table.pairs[-1].k, first.v), Pair(first.k, table.pairs[-1].v)
    heads = "".join(f" {pair}: {COLUMNS} |" for pair in pairs)
    yield f"| metric | units | s a pair |{heads}"
    yield "| --- | --: | --: | --: | --: |"
    for column in table.columns:
        name = column.metric.name
        if not column.has_values or not (column.metric.is_judged or name in OF_TASKS):
            continue
        scores = UnitScores(column, table)
        task = name.removesuffix("-logp") if name in OF_TASKS else ""
        took = [
            seconds(table.records[pair, column.probe], task)
            for pair in pairs
            if (pair, column.probe) in table.records
        ]
        mean = math.fsum(took) / max(len(took), 1)
        told = " | ".join(effect(scores, pair, mean / 60) for pair in pairs)
        yield f"| `{name}` | {scores.units} | {mean:.0f} | {told} |"


def main() -> None:
    """Print a table of each run folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    for folder in parser.parse_args().folders:
        run = Store(folder).read()
        if run is None:
            parser.error(f"{folder} is no run folder")
        table = pair_table(run, list(PROBES.values()), Reading())
        print(f"{folder}\n")
        print("\n".join(rows(table)))


if __name__ == "__main__":
    main()
