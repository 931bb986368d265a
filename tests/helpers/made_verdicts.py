"""Runs whose verdicts are all that one can be, by what they show."""

import functools
from dataclasses import replace

from made_evaluations import REFERENCE as SCORED
from made_evaluations import evaluated, failing, with_scores
from made_losses import (
    BEYOND,
    OPEN,
    REFERENCE,
    WITHIN,
    diverging,
    losing,
    losing_rounds,
    losing_run,
    losing_setup,
    repeated,
    text_read,
)
from made_records import (
    asking_recall,
    failed_record,
    forced_of,
    made_record,
    made_round,
    made_run,
    made_setup,
    sized,
    written_of,
)
from made_retrieval import made_texts, retrieval_record, right
from made_transcripts import made_conditions, transcript_run

from codeneedle.cache_types import Pair
from codeneedle.models.pretrained import BUILT_IN
from codeneedle.probes.recall.copied_lines import hash_lines
from codeneedle.records.record import (
    ON_CPU,
    Attention,
    CellRecord,
    Effective,
    Run,
    Status,
    as_json,
)
from codeneedle.verdict.judge import Verdict, judge
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.remarks import remarks

GOOD, MIDDLE, COARSE = "q8_0/q8_0", "q8_0/q4_0", "q4_0/q4_0"

BELOW = tuple(0.005 + 0.008 * (-1) ** at for at in range(16))
"""Losses of a pair that is open, and that a few more functions decide."""

ABOVE = tuple(0.016 + 0.02 * (-1) ** at for at in range(16))
"""The same of one that is measured above the limit of 1 %."""

BETTER = tuple(-0.15 + 0.002 * (-1) ** at for at in range(16))
"""The same of one that is better than the reference by more than the limit."""

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


def with_text(run: Run, losses: dict[str, float], chunks: int = 16) -> Run:
    """*run*, and what its pairs lose of ordinary text, by and large."""
    made = [
        text_read(pair, [loss + 0.002 * (-1) ** at for at in range(chunks)])
        for pair, loss in losses.items()
    ]
    none = text_read(REFERENCE, [0.0] * chunks)
    probes = {**run.setup.probes, "divergence": {"contexts": [512], "chunks": [chunks]}}
    setup = replace(run.setup, probes=probes)
    return replace(run, setup=setup, records=(*run.records, none, *made))


def whole(run: Run) -> Run:
    """*run* of a text that has all of its functions in the context."""
    functions = len(forced_of(run.setup))
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
        setup=asking_recall(
            made_setup(needles=16, forced=0, types_k=types, types_v=types),
            {"way": ["write"]},
        ),
    )
    return replace(run, records=tuple(map(sized, run.records)))


def misplacing() -> Run:
    """Written recall of one pair that copies from elsewhere, and one that invents."""
    run, (stray, invented) = written(), ("    stray = 1", "    invented = 1")
    asked = {**run.setup.probes["recall"], "text": as_json(hash_lines(stray, [1]))}
    setup = replace(run.setup, probes={"recall": asked})
    wrong = {"q8_0/bf16": stray, GOOD: invented}
    cells = [
        sized(
            made_record(
                pair,
                [
                    made_round(n, reply="\n".join([line] * 4 + list(n.lines[4:])))
                    for n in written_of(setup)
                ],
            )
        )
        for pair, line in wrong.items()
    ]
    others = [each for each in run.records if str(each.pair) not in wrong]
    return replace(run, setup=setup, records=(*others, *cells))


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
    own = judge(run).result(Pair.parse(REFERENCE))
    return Limits(max_memory_bytes=int(share * own.memory_bytes))


def read_run(forced: dict[str, tuple[float, ...]]) -> Run:
    """A run whose lines were read; those of some pairs were *forced*, too."""
    losses = {REFERENCE: (0.0,) * 16, GOOD: WITHIN, COARSE: BEYOND}
    setup = losing_setup(list(losses))
    setup = replace(
        setup, probes={"recall": setup.probes["recall"] | {"way": ["read"]}}
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


def without_kernel(run: Run, *pairs: str, attention: Attention = Attention.CPU) -> Run:
    """*run* with attention of *pairs* in no kernel."""
    ran = {"attention": attention, "attention_evidence": "62 graph splits"}
    return replace(
        run,
        records=tuple(
            replace(each, effective=replace(each.effective, **ran))
            if str(each.pair) in pairs
            else each
            for each in run.records
        ),
    )


def unsized(run: Run) -> Run:
    """*run* whose logs tell nothing."""
    return replace(
        run, records=tuple(replace(each, effective=Effective()) for each in run.records)
    )


def with_records(run: Run, *records: CellRecord) -> Run:
    """*run* and these *records*."""
    return run.with_every_record((*run.every_record, *records))


def ruled_out() -> Run:
    """A run in which a pair is beyond as a finer one is, which was measured."""
    run = losing_run({GOOD: WITHIN, MIDDLE: BEYOND})
    pairs = [GOOD, MIDDLE, COARSE]
    setup = replace(run.setup, order={"pairs": pairs})
    return replace(run, setup=setup)


def losing_long_texts() -> Run:
    """A run of retrieval in which a pair loses all answers to long texts."""

    def record(pair: str, least: int) -> CellRecord:
        texts = (
            text
            for length in (512, 2048)
            for text in made_texts(
                "single",
                dial=0,
                length=length,
                answer=lambda asked, n: "no" if n >= least else right(asked, n),
            )
        )
        return retrieval_record(pair, texts)

    setup = replace(made_setup(), probes={"retrieval": {"tasks": ["single"]}})
    records = (record("f16/f16", 9999), record("q4_0/f16", 2048))
    return Run(name="made", setup=setup, records=records)


def evaluated_twice() -> Run:
    """An evaluation whose reference was evaluated again: 14 lost, 5 won."""
    run = evaluation(200, {GOOD: 100})
    again = [0.0] * 14 + [1.0] * 91 + [0.0] * 95
    return with_records(run, evaluated(SCORED, again, again=True))


def unrotated(run: Run) -> Run:
    """*run*, asked for without rotation."""
    return replace(run, setup=replace(run.setup, rotation=False))


def remarkable() -> dict[str, Run]:
    """Runs whose verdicts have remarks that others lack."""
    of_types = losing_run({GOOD: WITHIN, "q8_0/bf16": WITHIN, MIDDLE: WITHIN})
    of_types = with_records(of_types, *losing_run({"q4_0/bf16": BEYOND}).records[1:])
    of_types = with_records(of_types, *losing_run({COARSE: BEYOND}).records[1:])
    small = losing_run({GOOD: WITHIN, MIDDLE: WITHIN, COARSE: BEYOND})
    steady = losing_run({GOOD: WITHIN})
    there = losing(steady.setup, REFERENCE, [0.003] * 16)
    on_cpu = replace(
        there, variant=ON_CPU, effective=Effective(attention=Attention.CPU)
    )
    stopped = failed_record(COARSE, Status.OUT_OF_MEMORY, "cannot allocate 9 GiB")
    crashed = replace(failed_record(GOOD), probe="divergence")
    poor = losing(
        losing_setup([REFERENCE, GOOD]), REFERENCE, [0.0] * 16, behind=range(5)
    )
    sides = [pair.partition("/")[0] for pair in (REFERENCE, GOOD, COARSE)]
    every = [f"{k}/{v}" for k in sides for v in sides][1:]
    return {
        "every type is within": losing_run(dict.fromkeys(every, WITHIN)),
        "types that are within and beyond": of_types,
        "a smaller pair has its attention on the CPU": without_kernel(small, MIDDLE),
        "a smaller pair is converted": without_kernel(
            small, MIDDLE, attention=Attention.CONVERTED
        ),
        "the model has no flash attention": without_kernel(
            steady, REFERENCE, GOOD, attention=Attention.PLAIN
        ),
        "no pair has a kernel": without_kernel(steady, REFERENCE, GOOD),
        "the reference has no kernel": without_kernel(small, REFERENCE),
        "the reference nearly repeats itself": with_records(steady, repeated(there)),
        "the reference does not repeat itself": with_records(
            steady, repeated(losing(steady.setup, REFERENCE, [0.02] * 16))
        ),
        "the reference on the CPU": with_records(steady, on_cpu),
        "of some tokens of a pair a bound is known": losing_run(
            {}, losing(losing_setup([REFERENCE, GOOD]), GOOD, WITHIN, bounds=1)
        ),
        "of some tokens of the reference a bound is known": losing_run(
            {GOOD: BEYOND},
            losing(losing_setup([REFERENCE, GOOD]), REFERENCE, [0.0] * 16, bounds=1),
            reference="",
        ),
        "a model that cannot recall": losing_run({GOOD: WITHIN}, poor, reference=""),
        "an evaluation of the reference again": evaluated_twice(),
        "a pair is ruled out": ruled_out(),
        "a pair is better than the reference": losing_run(
            {GOOD: WITHIN, "q8_0/q5_1": WITHIN, MIDDLE: WITHIN, COARSE: BETTER}
        ),
        "the reference is in doubt": losing_run({GOOD: BETTER, COARSE: BEYOND}),
        "answers to long texts are lost": losing_long_texts(),
        "a pair has no forced lines": losing_run({GOOD: WITHIN, MIDDLE: (None,) * 16}),
        "a pair has no numbers": losing_run({GOOD: WITHIN}, stopped),
        "another probe of a pair failed": losing_run(
            {GOOD: WITHIN, COARSE: BEYOND}, crashed
        ),
    }


def without_answer() -> dict[str, Run]:
    """Runs that nothing can be concluded from."""
    none = losing_run({}, failed_record(GOOD), reference="")
    timed = replace(none.records[0], probe="throughput", status=Status.FINISHED)
    setup = losing_setup(["bf16/q4_0", GOOD])
    unclear = {"bf16/q4_0": BEYOND, GOOD: (0.0,) * 16}
    fixture = losing_run({GOOD: WITHIN})
    weights = replace(fixture.setup.weights, name=BUILT_IN)
    return {
        "no cell has numbers": none,
        "nothing can show a loss": replace(none, records=(timed,)),
        "the reference alone": losing_run({}),
        "a quantized reference": losing_run({"q5_1/q5_1": WITHIN}, reference=GOOD),
        "a reference with a coarser axis": losing_run(
            unclear, setup=setup, reference=""
        ),
        "a finer reference failed": losing_run(
            unclear, failed_record("bf16/q8_0"), setup=setup, reference=""
        ),
        "a finer pair was measured after the reference": measured_late(),
        "the built-in model": replace(
            fixture, setup=replace(fixture.setup, weights=weights)
        ),
    }


def measured_late() -> Run:
    """Divergence from a quantized pair, as what is finer had failed at first."""
    first, then = (
        diverging(pair, [kld] * 16, reference=GOOD)
        for pair, kld in ((GOOD, 1e-9), ("bf16/bf16", 0.004))
    )
    return replace(losing_run({}), records=(first, then))


def refused(run: Run) -> Run:
    """*run*, whose divergence a program cannot measure."""
    why = "llama-perplexity does not take -khad, which the server is given: it would "
    why += "measure something else"
    return replace(run, setup=replace(run.setup, refused={"divergence": why}))


def asked_otherwise(run: Run) -> Run:
    """*run*, of which one pair read less than the reference in one answer."""
    records = tuple(
        replace(
            record,
            reason="asked otherwise than f16/f16, and left out: 1 of 8 answers "
            "(prompt_tokens 256, not 1,243)",
        )
        if str(record.pair) == GOOD
        else record
        for record in run.records
    )
    return replace(run, records=records)


@functools.cache
def made_verdicts() -> dict[str, Verdict]:
    """Verdicts by what they are about; they take a second, and none changes."""
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
        "five functions": losing_run({GOOD: OPEN[:5], COARSE: BEYOND[:5]}),
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
        "divergence alone, and no candidate": with_klds(bare, {COARSE: 0.2}),
        "an evaluation": evaluation(900, {GOOD: 450, COARSE: 360}),
        "an evaluation that a pair wins": evaluation(30, {COARSE: 25}),
        "an evaluation that a pair wins, perhaps by chance": evaluation(
            400, {GOOD: 212, MIDDLE: 201, COARSE: 199}
        ),
        "an evaluation of samples without a score": evaluation(
            900, {COARSE: 450}, unscored=40
        ),
        "an evaluation beside recall": beside_recall(),
        "written answers alone": written(),
        "written answers, misplaced and invented": misplacing(),
        "a transcript": turns(16),
        "a transcript of two turns": turns(2),
        "a limit of memory, and nothing within it": (memory, fitting(0.6)),
        "a limit of memory that nothing meets": (memory, fitting(0.1)),
        "a limit of memory that the reference meets": (memory, fitting(1.0)),
        "a limit of memory, and no log tells a size": (unsized(memory), fitting(0.6)),
        "a limit of memory that a pair above the loss meets": (memory, fitting(0.3)),
        "a probe is left out": refused(losing_run({GOOD: WITHIN})),
        "a pair was asked otherwise": asked_otherwise(losing_run({GOOD: WITHIN})),
        "caches that are not rotated": unrotated(losing_run({GOOD: WITHIN})),
        "a small limit": (losing_run({GOOD: WITHIN}), Limits(max_loss=0.0025)),
        "a limit of memory, and divergence alone": (
            with_klds(bare, {GOOD: 0.001, COARSE: 0.2}),
            fitting(0.6),
        ),
        "both kinds of text, and a pair to set": with_text(
            losing_run({GOOD: WITHIN, MIDDLE: WITHIN, COARSE: BEYOND}),
            {GOOD: 0.002, MIDDLE: 0.004, COARSE: 0.09},
        ),
        "a pair is beyond by ordinary text, which recall does not show": with_text(
            losing_run({GOOD: WITHIN, MIDDLE: WITHIN}), {GOOD: 0.001, MIDDLE: 0.09}
        ),
        "a pair was not asked recall, as it is beyond by ordinary text": with_text(
            losing_run({GOOD: WITHIN}), {GOOD: 0.001, COARSE: 0.09}
        ),
        "a pair is open by ordinary text": with_text(
            losing_run({GOOD: WITHIN}), {GOOD: 0.0093}, chunks=8
        ),
        "ordinary text alone": with_text(
            replace(losing_run({GOOD: WITHIN}), records=()), {GOOD: 0.001}
        ),
        **remarkable(),
        **without_answer(),
    }
    return {
        name: judge(*(run if isinstance(run, tuple) else (run,)))
        for name, run in runs.items()
    }


def texts(verdict: Verdict) -> list[str]:
    """What a verdict says beside the answer."""
    return [each.text for each in remarks(verdict)]
