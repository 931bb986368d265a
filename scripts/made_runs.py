"""
Write a run folder of any size without asking a model, to measure reports by.

    python scripts/made_runs.py sweeps --cells 1000

Every pair gets a record of the recall probe, as large as a real one: 16 rounds of 450
tokens with their log-probabilities. The same seed gives the same records, and most
pairs give the same answers, as in a real grid.
"""

import argparse
import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from fuzz_seeds import made

from codeneedle.cache_types import BITS_PER_ELEMENT, Pair, distinct_most_precise_first
from codeneedle.corpora.needles import NeedleFacts
from codeneedle.probes.observations import Answer
from codeneedle.probes.recall.settings import recall_layout
from codeneedle.records.record import CellRecord, Setup
from codeneedle.records.store import Store, checked_run_folder

CORPUS, MODEL = "made-corpus", "made-model"

TOKENS = 450
"""Of a reply; each is one character, as in the built-in model."""

SLIPS = 0.05
"""Share of rounds with a line that was changed."""

RECORDS = made("made_records")


def make_run(root: Path, cells: int) -> Path:
    """
    Write a finished run of *cells* pairs into a run folder below *root*.

    Args:
        root: Folder of all run folders, as ``--out`` takes it.
        cells: Pairs with records, 1 or more. The grid is as square as can be; 36
            are the six default types and the next best. Beyond those of llama.cpp,
            types have made-up names.

    Returns:
        The run folder: ``root/made-corpus/made-model``.
    """
    chance = np.random.default_rng(42)
    types = _types(math.isqrt(cells - 1) + 1)
    setup = RECORDS.made_setup(types_k=types, types_v=types)
    setup = replace(setup, corpus=replace(setup.corpus, name=CORPUS))
    store = Store(checked_run_folder(root, corpus=CORPUS, model=MODEL))
    store.check_and_store_setup(setup)
    pairs = itertools.starmap(Pair, itertools.product(types, types))
    for pair in itertools.islice(pairs, cells):
        store.write_record(_record(setup, pair, chance))
    return store.folder


def _types(count: int) -> list[str]:
    """Real types first, then ``made_010``, ``made_011``, ..."""
    made = (f"made_{at:03}" for at in itertools.count(len(BITS_PER_ELEMENT)))
    known = [name for name in BITS_PER_ELEMENT if name != "f32"]
    return distinct_most_precise_first(
        itertools.islice(itertools.chain(known, made), count)
    )


def _record(setup: Setup, pair: Pair, chance: np.random.Generator) -> CellRecord:
    lost = 32.0 - sum(BITS_PER_ELEMENT.get(each, 4.0) for each in (pair.k, pair.v))
    rounds = [_round(needle, lost, chance) for needle in recall_layout(setup).written]
    record: CellRecord = RECORDS.made_record(pair, rounds)
    return record


def _round(needle: NeedleFacts, lost: float, chance: np.random.Generator) -> Answer:
    lines = [*needle.lines, *needle.more]
    if chance.random() < SLIPS:
        lines[chance.integers(len(needle.lines))] = f'    x = "{chance.bytes(5).hex()}"'
    reply = "\n".join(lines)[:TOKENS]
    asked: Answer = RECORDS.made_round(needle, reply=reply)
    assert asked.reply  # noqa: S101 - it was made with one
    told = replace(
        asked.reply,
        predicted_tokens=len(reply),
        predicted_ms=900.0 + lost + chance.random(),
        logprobs=_rounded(-chance.exponential(0.001, len(reply))),
        gaps=_rounded(abs(chance.normal(15 - lost / 20, 2, len(reply)))),
        lengths=(1,) * len(reply),
    )
    return replace(asked, reply=told)


def _rounded(numbers: npt.NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(numbers.round(4).tolist())


def main() -> None:
    """Write what the command line asks for, and print where it is."""
    parser = argparse.ArgumentParser(description=str(__doc__).strip().splitlines()[0])
    parser.add_argument("root", type=Path, help="folder of all run folders")
    parser.add_argument("--cells", type=int, default=36, help="pairs (default: 36)")
    given = parser.parse_args()
    print(make_run(given.root, given.cells))


if __name__ == "__main__":
    main()
