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
from pathlib import Path

import numpy as np
import numpy.typing as npt

from codeneedle.grid import BITS_PER_ELEMENT, Pair, by_precision
from codeneedle.records.record import (
    CellRecord,
    CorpusFacts,
    Effective,
    KvBuffer,
    NeedleFacts,
    Phases,
    Recall,
    Round,
    Setup,
    Status,
    WeightsFacts,
    as_json,
)
from codeneedle.records.store import Store, run_folder

CORPUS, MODEL = "made-corpus", "made-model"

ROUNDS, LINES, MORE = 16, 20, 4
"""Needles of a run, lines that are asked for, and lines that follow them."""

TOKENS = 450
"""Of a reply; each is one character, as in the built-in model."""

SLIPS = 0.05
"""Share of rounds with a line that was changed."""

CONTEXT = 16_384


def make_run(root: Path, cells: int, *, seed: int = 42) -> Path:
    """
    Write a finished run of *cells* pairs into a run folder below *root*.

    Args:
        root: Folder of all run folders, as ``--out`` takes it.
        cells: Pairs with records, 1 or more. The grid is as square as can be; 36
            are the six default types and the next best. Beyond those of llama.cpp,
            types have made-up names.
        seed: Of the random numbers.

    Returns:
        The run folder: ``root/made-corpus/made-model``.
    """
    chance = np.random.default_rng(seed)
    types = _types(math.isqrt(cells - 1) + 1)
    setup = _setup(types, chance)
    store = Store(run_folder(root, corpus=CORPUS, model=MODEL))
    store.adopt(setup)
    pairs = itertools.starmap(Pair, itertools.product(types, types))
    for at, pair in enumerate(itertools.islice(pairs, cells)):
        store.add(_record(setup, pair, at, chance))
    return store.folder


def _types(count: int) -> list[str]:
    """Real types first, then ``made_010``, ``made_011``, ..."""
    made = (f"made_{at:03}" for at in itertools.count(len(BITS_PER_ELEMENT)))
    known = [name for name in BITS_PER_ELEMENT if name != "f32"]
    return by_precision(itertools.islice(itertools.chain(known, made), count))


def _setup(types: list[str], chance: np.random.Generator) -> Setup:
    characters = ROUNDS * (LINES + MORE) * (TOKENS // LINES)
    return Setup(
        prompt_version=1,
        prompt_form="completion",
        thinking="none",
        corpus=CorpusFacts(
            name=CORPUS,
            origin="made up",
            kind="incompressible",
            sha256="c0" * 32,
            characters=characters,
            source_sha256="c0" * 32,
            sample_k=ROUNDS,
            sample_seed=42,
            tokens=characters,
            functions=ROUNDS,
            functions_before=ROUNDS,
        ),
        needles=tuple(_needle(at, chance) for at in range(ROUNDS)),
        weights=WeightsFacts(name=MODEL, sha256="ab" * 32, size_bytes=2_400_000),
        llama="b11434-0000000",
        machine="made up, 2 cores",
        context=CONTEXT,
        server_args=(),
        seed=42,
        types_k=tuple(types),
        types_v=tuple(types),
        created="2026-01-01T12:00:00+00:00",
    )


def _needle(at: int, chance: np.random.Generator) -> NeedleFacts:
    lines = tuple(_line(chance) for _ in range(LINES + MORE))
    return NeedleFacts(
        name=f"made_{at:02}",
        signature=f"def made_{at:02}():",
        line=1 + at * (LINES + MORE + 2),
        depth=at / ROUNDS,
        lines=lines[:LINES],
        more=lines[LINES:],
        budget=2 * TOKENS,
    )


def _line(chance: np.random.Generator) -> str:
    """A statement, its line end included as long as a line of the reply has to be."""
    value = chance.bytes(5).hex()
    return f'  v{value[:3]} = "{value}"'


def _record(
    setup: Setup, pair: Pair, at: int, chance: np.random.Generator
) -> CellRecord:
    lost = 32.0 - sum(BITS_PER_ELEMENT.get(each, 4.0) for each in (pair.k, pair.v))
    buffer = KvBuffer(
        cells=CONTEXT, layers=7, k_type=pair.k, v_type=pair.v, k_mib=8.0, v_mib=7.5
    )
    rounds = tuple(_round(needle, lost, chance) for needle in setup.needles)
    return CellRecord(
        pair=pair,
        probe="recall",
        status=Status.FINISHED,
        started="2026-01-01T12:00:00+00:00",
        position=at + 1,
        command=("llama-server", "--ctx-size", str(CONTEXT)),
        effective=Effective(context=CONTEXT, kv=(buffer,), compute_mib=20.0),
        phases=Phases(ready_s=0.5, measure_s=12.0, stop_s=0.1),
        peak_rss_bytes=44_000_000,
        observation=as_json(Recall(rounds=rounds)),
    )


def _round(needle: NeedleFacts, lost: float, chance: np.random.Generator) -> Round:
    lines = list(needle.lines)
    if chance.random() < SLIPS:
        lines[chance.integers(LINES)] = _line(chance)
    reply = "\n".join([*lines, *needle.more])[:TOKENS]
    return Round(
        needle=needle.name,
        prompt_sha256="d0" * 32,
        reply=reply,
        finish="cut",
        prompt_tokens=9000,
        cached_tokens=8980,
        prompt_ms=10.0,
        predicted_tokens=len(reply),
        predicted_ms=900.0 + lost + chance.random(),
        wall_s=1.0,
        logprobs=_rounded(-chance.exponential(0.001, len(reply))),
        gaps=_rounded(abs(chance.normal(15 - lost / 20, 2, len(reply)))),
        lengths=(1,) * len(reply),
    )


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
