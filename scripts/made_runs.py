"""
Make a finished run of any size, to measure reports by; no model is asked.

    python scripts/made_runs.py sweeps --cells 10000 --prices

Every pair gets a record of the recall probe, as large as a real one: 16 rounds of
450 tokens, with the leads of 20 lines, as a sweep stores them by default. With prices,
each gets one of the divergence and one of the throughput probe, too. The same seed
gives the same records, and most pairs give the same answers, as in a real grid.
"""

import argparse
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from codeneedle.analysis import divergence as divergence_metrics
from codeneedle.analysis import throughput as throughput_metrics
from codeneedle.analysis.divergence import Compared, Divergence
from codeneedle.analysis.throughput import DepthSpeeds, Throughput, ThroughputSetup
from codeneedle.engines.engine import Estimate, Statistics
from codeneedle.grid import BITS_PER_ELEMENT, Pair, by_precision
from codeneedle.records.record import (
    CellRecord,
    CorpusFacts,
    Effective,
    Json,
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
DEPTHS = (0, 4096)


def make_run(
    root: Path,
    cells: int,
    *,
    model: str = MODEL,
    prices: bool = False,
    seed: int = 42,
) -> Path:
    """
    Write a finished run of *cells* pairs into a run folder below *root*.

    Args:
        root: Folder of all run folders, as ``--out`` takes it.
        cells: Pairs with records, 1 or more. The grid is as square as can be; 36
            are the six default types and the next best. Beyond those of llama.cpp,
            types have made-up names.
        model: Name of the weights: one run folder each.
        prices: Whether each pair has been measured with all three probes.
        seed: Of all chance.

    Returns:
        The run folder: ``root/made-corpus/model``.
    """
    chance = np.random.default_rng(seed)
    types = _types(math.isqrt(cells - 1) + 1)
    setup = _setup(types, model, prices=prices, chance=chance)
    store = Store(run_folder(root, corpus=CORPUS, model=model))
    store.adopt(setup)
    pairs = itertools.starmap(Pair, itertools.product(types, types))
    for at, pair in enumerate(itertools.islice(pairs, cells)):
        for record in _records(setup, pair, at, prices=prices, chance=chance):
            store.add(record)
    return store.folder


def _types(count: int) -> list[str]:
    """Real types first, then ``made_010``, ``made_011``, ..."""
    made = (f"made_{at:03}" for at in itertools.count(len(BITS_PER_ELEMENT)))
    known = [name for name in BITS_PER_ELEMENT if name != "f32"]
    return by_precision(itertools.islice(itertools.chain(known, made), count))


def _setup(
    types: list[str], model: str, *, prices: bool, chance: np.random.Generator
) -> Setup:
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
        weights=WeightsFacts(name=model, sha256="ab" * 32, size_bytes=2_400_000),
        llama="b11434-0000000",
        machine="made up, 2 cores",
        context=CONTEXT,
        server_args=(),
        seed=42,
        types_k=tuple(types),
        types_v=tuple(types),
        created="2026-01-01T12:00:00+00:00",
        probes=_probe_settings() if prices else {},
    )


def _probe_settings() -> dict[str, Json]:
    speeds = ThroughputSetup(
        depths=DEPTHS,
        repetitions=3,
        prompt_tokens=512,
        generated_tokens=64,
        arguments={},
    )
    return {
        divergence_metrics.NAME: {"contexts": [512], "chunks": 4},
        throughput_metrics.NAME: as_json(speeds),
    }


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


def _records(
    setup: Setup, pair: Pair, at: int, *, prices: bool, chance: np.random.Generator
) -> Iterator[CellRecord]:
    lost = 32.0 - sum(BITS_PER_ELEMENT.get(each, 4.0) for each in (pair.k, pair.v))
    recalled = _record(pair, at, _recalled(setup, lost, chance))
    yield recalled
    if not prices:
        return
    bare = replace(recalled, effective=Effective())
    yield replace(
        bare, probe=divergence_metrics.NAME, observation=_compared(setup, lost, chance)
    )
    yield replace(bare, probe=throughput_metrics.NAME, observation=_timed(lost, chance))


def _record(pair: Pair, at: int, observation: Json) -> CellRecord:
    buffer = KvBuffer(
        cells=CONTEXT, layers=7, k_type=pair.k, v_type=pair.v, k_mib=8.0, v_mib=7.5
    )
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
        observation=observation,
    )


def _recalled(setup: Setup, lost: float, chance: np.random.Generator) -> Json:
    rounds = tuple(_round(needle, lost, chance) for needle in setup.needles)
    priming = Round(
        needle=setup.needles[-1].name,
        prompt_sha256="d0" * 32,
        reply="  v",
        finish="length",
        prompt_tokens=9000,
        prompt_ms=3000.0 + lost,
        predicted_tokens=8,
        predicted_ms=16.0,
    )
    return as_json(Recall(rounds=rounds, priming=priming))


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
        logprobs=_rounded(-chance.exponential(0.001, LINES)),
        gaps=_rounded(abs(chance.normal(15 - lost / 20, 2, LINES))),
        drafted=len(reply),
        accepted=len(reply) - int(lost),
        places=tuple(range(0, len(reply), len(reply) // LINES))[:LINES],
    )


def _rounded(numbers: npt.NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(numbers.round(4).tolist())


def _compared(setup: Setup, lost: float, chance: np.random.Generator) -> Json:
    kld = 0.001 + lost / 100 + chance.random() / 1000
    reference = Pair(setup.types_k[0], setup.types_v[0])
    compared = Compared(
        context=512,
        chunks=4,
        tokens=1024,
        seconds=1.0,
        base_seconds=1.0,
        reference_ppl=12.0,
        statistics=_statistics(kld),
    )
    divergence = Divergence(reference=str(reference), contexts=(compared,))
    return as_json(divergence)


def _statistics(kld: float) -> Statistics:
    return Statistics(
        ppl=Estimate(12 + kld, 0.1),
        ppl_base=Estimate(12.0, 0.1),
        ppl_ratio=Estimate(1 + kld / 12, 0.01),
        kld=Estimate(kld, kld / 20),
        kld_max=kld * 50,
        kld_999=kld * 20,
        kld_99=kld * 8,
        kld_95=kld * 4,
        kld_90=kld * 3,
        kld_median=kld / 2,
        kld_min=0.0,
        dp_mean=Estimate(-kld, kld / 20),
        dp_rms=Estimate(kld * 3, kld / 20),
        same_top=Estimate(100 - kld * 20, 0.5),
    )


def _timed(lost: float, chance: np.random.Generator) -> Json:
    def speeds(middle: float) -> tuple[float, ...]:
        return tuple(round(middle + chance.random(), 3) for _ in range(3))

    measured = tuple(
        DepthSpeeds(
            depth=depth,
            pp=speeds(3000 - depth / 4 - lost),
            tg=speeds(400 - depth / 40 - lost),
            seconds=2.0,
        )
        for depth in DEPTHS
    )
    throughput = Throughput(
        speeds=measured,
        build="0000000 (11434)",
        cpu="made up",
        gpu="",
        backends="CPU",
        threads=2,
    )
    return as_json(throughput)


def main() -> None:
    """Write what the command line asks for, and tell where it is."""
    parser = argparse.ArgumentParser(description=str(__doc__).strip().splitlines()[0])
    parser.add_argument("root", type=Path, help="folder of all run folders")
    parser.add_argument("--cells", type=int, default=36, help="pairs (default: 36)")
    parser.add_argument("--runs", type=int, default=1, help="run folders (default: 1)")
    parser.add_argument("--prices", action="store_true", help="all three probes")
    wanted = parser.parse_args()
    for at in range(wanted.runs):
        model = MODEL if wanted.runs == 1 else f"{MODEL}-{at:03}"
        folder = make_run(
            wanted.root, wanted.cells, model=model, prices=wanted.prices, seed=42 + at
        )
        print(folder)


if __name__ == "__main__":
    main()
