"""Runs whose verdicts are all that one can be, by what they show."""

from dataclasses import replace

from made_evaluations import REFERENCE as SCORED
from made_evaluations import evaluated, failing, with_scores
from made_losses import (
    BEYOND,
    OPEN,
    REFERENCE,
    WITHIN,
    diverging,
    losing_rounds,
    losing_run,
    losing_setup,
)
from made_records import made_record, made_run, made_setup, sized
from made_transcripts import made_conditions, transcript_run

from codeneedle.grid import Pair
from codeneedle.records.record import Run
from codeneedle.verdict.judge import Limits, Verdict, judge

GOOD, MIDDLE, COARSE = "q8_0/q8_0", "q8_0/q4_0", "q4_0/q4_0"

BELOW = tuple(0.005 + 0.008 * (-1) ** at for at in range(16))
"""Losses of a pair that is open, and that a few more functions decide."""

ABOVE = tuple(0.016 + 0.02 * (-1) ** at for at in range(16))
"""The same of one that is measured above the limit of 1 %."""

NEAR = tuple(0.0098 + 0.02 * (-1) ** at for at in range(16))
"""The same of one that no number of functions decides."""


def with_klds(run: Run, klds: dict[str, float], chunks: int = 16) -> Run:
    """*run*, and the divergence of its pairs."""
    made = [
        diverging(pair, [kld, 1.01 * kld] * (chunks // 2))
        for pair, kld in {REFERENCE: 1e-9, **klds}.items()
    ]
    return replace(run, records=(*run.records, *made))


def continuing(losses: dict[str, tuple[float, ...]]) -> Run:
    """A run of a text that has further functions."""
    return losing_run(losses, setup=losing_setup([REFERENCE, *losses], forced=96))


def whole(run: Run) -> Run:
    """*run* of a text that has all of its functions in the context."""
    functions = len(run.setup.forced)
    corpus = replace(
        run.setup.corpus,
        name="random-bodies-mini",
        functions=functions,
        functions_before=functions,
    )
    return replace(run, setup=replace(run.setup, corpus=corpus))


def scores(right: int, of: int) -> list[float]:
    """So many samples that are right, and the others wrong."""
    return [1.0] * right + [0.0] * (of - right)


def evaluation(of: int, rights: dict[str, int], *, unscored: int = 0) -> Run:
    """A run of an evaluation; of the last pair some samples have no score."""
    was = scores(of // 2, of)
    cells = [sized(evaluated(SCORED, was))]
    cells += [sized(evaluated(pair, scores(n, of))) for pair, n in rights.items()]
    if unscored:
        cells[-1] = failing(cells[-1], range(unscored), "judge: HTTP 503")
    types = ("f16", "q8_0", "q4_0")
    setup = replace(
        made_setup(types_k=types, types_v=types),
        pairs=(SCORED, *rights),
        probes={"eval": {"command": "x"}},
    )
    records = tuple(cells)
    return Run(name="eval/made-model", setup=with_scores(setup, was), records=records)


def beside_recall() -> Run:
    """Recall of f16 pairs, and an evaluation of the same."""
    recall = losing_run({GOOD: WITHIN, COARSE: BEYOND}, reference=SCORED)
    graded = evaluation(80, {GOOD: 41, COARSE: 30})
    setup = replace(
        recall.setup,
        probes={**recall.setup.probes, **graded.setup.probes},
        calibrated=graded.setup.calibrated,
    )
    return replace(recall, setup=setup, records=(*recall.records, *graded.records))


def written() -> Run:
    """Written recall alone: answers that are counted."""
    types = ("bf16", "q8_0")
    run = made_run(
        lambda pair, at: 9 if str(pair) == GOOD and at < 2 else 20,
        setup=replace(
            made_setup(needles=16, forced=0, types_k=types, types_v=types),
            probes={"recall": {"ask": "written"}},
        ),
    )
    return replace(run, records=tuple(map(sized, run.records)))


def turns(count: int) -> Run:
    """A transcript of so many turns."""
    probabilities = {
        "f16/f16": lambda _n, _at: 0.9,
        "q8_0/q8_0": lambda n, _at: 0.9 - 0.004 * (n % 3),
        "q4_0/q4_0": lambda n, _at: 0.8 - 0.01 * (n % 3),
    }
    return transcript_run(probabilities, made_conditions(count))


def fitting(share: float) -> Limits:
    """A limit of memory of that share of the cache of the reference."""
    run = losing_run({GOOD: OPEN})
    own = judge(run).standing(Pair.parse(REFERENCE))
    return Limits(max_memory_bytes=int(share * own.memory_bytes))


def read_run(forced: dict[str, tuple[float, ...]]) -> Run:
    """A run whose lines were read; those of some pairs were *forced*, too."""
    losses = {REFERENCE: (0.0,) * 16, GOOD: WITHIN, COARSE: BEYOND}
    setup = losing_setup(list(losses))
    setup = replace(
        setup, probes={"recall": setup.probes["recall"] | {"by": "reading"}}
    )
    records = [
        sized(
            made_record(
                pair,
                [],
                read=losing_rounds(setup, lost),
                forced=losing_rounds(setup, forced.get(pair, ())),
            )
        )
        for pair, lost in losses.items()
    ]
    return Run(name="random-bodies/made-model", setup=setup, records=tuple(records))


def made_verdicts() -> dict[str, Verdict]:
    """Verdicts by what they are about."""
    screened = with_klds(
        continuing({GOOD: WITHIN}), {GOOD: 0.004, MIDDLE: 0.01, COARSE: 0.2}
    )
    bare = replace(losing_run({}), records=())
    short = losing_run({GOOD: WITHIN, MIDDLE: BELOW, COARSE: BEYOND})
    three = {GOOD: WITHIN[:3], MIDDLE: BEYOND[:3]}
    more = continuing({GOOD: WITHIN, MIDDLE: BELOW, COARSE: BEYOND})
    memory = losing_run({GOOD: OPEN, COARSE: BEYOND})
    runs: dict[str, Run | tuple[Run, Limits]] = {
        "a smaller pair is open, and has further functions": more,
        "a smaller pair is open, and the context holds no more": short,
        "a smaller pair is open, and the text has no more": whole(short),
        "nothing is within, and further functions decide": continuing(
            {GOOD: BELOW, COARSE: BEYOND}
        ),
        "nothing is within, and the open pair is above the limit": losing_run(
            {GOOD: ABOVE, COARSE: BEYOND}
        ),
        "nothing is within, and the open pair is too near": losing_run({GOOD: NEAR}),
        "all are beyond": losing_run({GOOD: BEYOND}),
        "one is beyond, and the others were not measured": losing_run(
            {GOOD: BEYOND}, setup=losing_setup([REFERENCE, GOOD, MIDDLE, COARSE])
        ),
        "the pair to set was read": read_run({}),
        "the pair to set was read, and forcing agrees": read_run(
            {REFERENCE: (0.0,) * 6, GOOD: WITHIN[2:8]}
        ),
        "the pair to set was read, and forcing disagrees": read_run(
            {REFERENCE: (0.0,) * 6, GOOD: BEYOND[:6]}
        ),
        "three functions": losing_run(three),
        "pairs of several numbers of functions": losing_run(
            {GOOD: WITHIN * 4, COARSE: BEYOND},
            setup=losing_setup([REFERENCE, GOOD, COARSE], forced=96),
        ),
        "a pair without forced answers": losing_run(
            {GOOD: (None, *WITHIN[1:]), COARSE: BEYOND}
        ),
        "losses of a few pairs, divergence of all": screened,
        "beyond by divergence": with_klds(losing_run({GOOD: WITHIN}), {GOOD: 0.2}, 4),
        "divergence alone": with_klds(bare, {GOOD: 0.001, COARSE: 0.2}),
        "an evaluation": evaluation(900, {GOOD: 450, COARSE: 360}),
        "an evaluation that a pair wins": evaluation(30, {COARSE: 25}),
        "an evaluation of samples without a score": evaluation(
            900, {COARSE: 450}, unscored=40
        ),
        "an evaluation beside recall": beside_recall(),
        "written answers alone": written(),
        "a transcript": turns(16),
        "a transcript of two turns": turns(2),
        "a limit of memory, and nothing within it": (memory, fitting(0.6)),
        "a limit of memory that nothing meets": (memory, fitting(0.1)),
    }
    return {
        name: judge(*(run if isinstance(run, tuple) else (run,)))
        for name, run in runs.items()
    }
