"""Runs of several files of weights of one model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from made_losses import losing_run

from codeneedle.records.record import ModelFacts, Run, WeightsFacts

FULL, GOOD, COARSE = "f16/f16", "q8_0/q8_0", "q4_0/q4_0"

MODEL = ModelFacts(
    tokenizer="t", shape="qwen2, 24 layers of 896", parameters=1_000_000_000
)

BYTES = {"Q8_0": 1_060_000_000, "Q6_K": 820_000_000, "Q4_K_M": 600_000_000}


def losses_of(mean: float) -> tuple[float, ...]:
    """Losses of 16 functions with that mean, which differ by a tenth of it."""
    return tuple(mean * (1 + 0.1 * (-1) ** at) for at in range(16))


def run_of(
    quant: str, losses: Mapping[str, float], *, size_bytes: int | None = None
) -> Run:
    """A run of weights with that *quant*, whose pairs have these mean losses."""
    run = losing_run(
        {pair: losses_of(mean) for pair, mean in losses.items()}, reference=""
    )
    size = BYTES[quant] if size_bytes is None else size_bytes
    weights = WeightsFacts(name=f"made-{quant.lower()}", sha256=quant, size_bytes=size)
    setup = replace(run.setup, weights=weights, quant=quant, model=MODEL)
    return replace(run, name=f"random-bodies/{weights.name}", setup=setup)


def three_runs() -> list[Run]:
    """Three files; the second with a coarse cache loses less than the third."""
    return [
        run_of("Q8_0", {FULL: 0.0, GOOD: 0.001, COARSE: 0.05}),
        run_of("Q6_K", {FULL: 0.004, GOOD: 0.006, COARSE: 0.06}),
        run_of("Q4_K_M", {FULL: 0.02, GOOD: 0.021, COARSE: 0.07}),
    ]


def others(runs: Sequence[Run], **facts: object) -> list[Run]:
    """*runs*, the setup of the last with other *facts*."""
    last = runs[-1]
    return [*runs[:-1], replace(last, setup=replace(last.setup, **facts))]
