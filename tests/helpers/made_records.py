"""Makes synthetic runs: sixteen functions, any grid, replies as broken as wished."""

import itertools
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from codeneedle.cache_types import BITS_PER_ELEMENT, DEFAULT_TYPES, ENGINE, Pair
from codeneedle.corpora.needles import NeedleFacts
from codeneedle.engines.messages import Forced, Reply
from codeneedle.probes.observations import Answer, AnswerGroup, Observed
from codeneedle.probes.recall.record import Recall
from codeneedle.probes.recall.settings import recall_layout
from codeneedle.records.record import (
    CellRecord,
    CorpusFacts,
    Effective,
    Json,
    KvBuffer,
    Phases,
    Run,
    Setup,
    Status,
    WeightsFacts,
    as_json,
)
from codeneedle.records.store import Store, checked_run_folder

LETTERS = string.ascii_letters


def made_needle(at: int = 0, *, of: int = 16) -> NeedleFacts:
    """A function of 20 distinct lines and two more."""
    lines = [f'    v{at}_{line:02} = "{at * 31 + line:08x}"' for line in range(22)]
    name = f"f_{LETTERS[at % 52] * (1 + at // 52)}"
    return NeedleFacts(
        name=name,
        signature=f"def {name}():",
        line=1 + at * 24,
        depth=at / of,
        lines=tuple(lines[:20]),
        more=tuple(lines[20:]),
    )


def made_forced_needle(at: int = 0, *, of: int = 16) -> NeedleFacts:
    """Five lines of the same function, those before them in the prompt."""
    whole = made_needle(at, of=of)
    begin = at % 16
    return replace(
        whole,
        lines=whole.lines[begin : begin + 5],
        before=whole.lines[:begin],
        more=(),
    )


def made_setup(
    *,
    needles: int = 16,
    forced: int | None = None,
    types_k: Sequence[str] = DEFAULT_TYPES,
    types_v: Sequence[str] = DEFAULT_TYPES,
) -> Setup:
    """A run that writes *needles* and forces *forced* functions, or as many."""
    forced = needles if forced is None else forced
    return Setup(
        prompt_form="completion",
        thinking="none",
        corpus=CorpusFacts(
            name="random-bodies",
            origin="generated, seed 42",
            kind="incompressible",
            sha256="c0" * 32,
            characters=8912,
            source_sha256="c1" * 32,
            sample_k=needles,
            sample_seed=42,
            tokens=8912,
            functions=16,
            functions_before=200,
        ),
        weights=WeightsFacts(name="made-model", sha256="ab" * 32, size_bytes=1_700_000),
        llama="b11434-abcdef0",
        machine="Xeon, 2 cores, 8 GiB, Linux",
        context=12288,
        server_args=(),
        seed=42,
        types_k=tuple(types_k),
        types_v=tuple(types_v),
        created="2025-11-20T12:00:00+00:00",
        rotation=True,
        engine=ENGINE,
        lengths="",
        cpu_features="",
        probes={
            "recall": {
                "written": [
                    as_json(made_needle(at, of=needles)) for at in range(needles)
                ],
                "forced": [
                    as_json(made_forced_needle(at, of=forced)) for at in range(forced)
                ],
            }
        },
    )


def asking_recall(setup: Setup, conditions: Json) -> Setup:
    """*setup*, which asks recall alone, for the same functions, under *conditions*."""
    stored = setup.probes.get("recall", {})
    functions = {key: stored[key] for key in stored if key in ("written", "forced")}
    return replace(setup, probes={"recall": functions | conditions})


def asking_for(setup: Setup, **functions: Iterable[NeedleFacts]) -> Setup:
    """*setup*, whose recall asks for other functions: ``written``, ``forced``."""
    stored = {key: [as_json(n) for n in needles] for key, needles in functions.items()}
    asked = {**setup.probes.get("recall", {}), **stored}
    return replace(setup, probes={**setup.probes, "recall": asked})


def written_of(setup: Setup) -> tuple[NeedleFacts, ...]:
    """The functions to be written under *setup*."""
    return recall_layout(setup).written


def forced_of(setup: Setup) -> tuple[NeedleFacts, ...]:
    """The functions whose lines are forced under *setup*."""
    return recall_layout(setup).forced


def made_reply(needle: NeedleFacts, *, matched: int = 20, junk: int = 0) -> str:
    """The first *matched* lines, then *junk* lines that stand nowhere."""
    return "\n".join(
        [*needle.lines[:matched], *(f"    junk_{line} = 0" for line in range(junk))]
    )


def made_round(
    needle: NeedleFacts,
    *,
    reply: str | None = None,
    gap: float = 4.0,
    error: str = "",
    **facts: Any,
) -> Answer:
    """
    An answered round; *gap* is the smallest of its tokens' gaps.

    Other *facts* are of its reply.
    """
    made = Reply(
        text=made_reply(needle) if reply is None else reply,
        finish="cut",
        prompt_tokens=9000,
        cached_tokens=8980,
        prompt_ms=10.0,
        predicted_tokens=400,
        predicted_ms=500.0,
        wall_s=0.6,
        logprobs=(-0.01, -0.02),
        gaps=(gap + 1, gap, gap + 2),
    )
    return Answer(
        name=needle.name,
        prompt_sha256="d0" * 32,
        reply=replace(made, **facts),
        error=error,
    )


def lost_round(needle: NeedleFacts, error: str) -> Answer:
    """A round without an answer, for this reason."""
    return Answer(name=needle.name, prompt_sha256="d0" * 32, error=error)


def with_reply(answer: Answer, **facts: Any) -> Answer:
    """*answer* with other *facts* of its reply."""
    return replace(answer, reply=replace(answer.reply, **facts))


def with_scores(answer: Answer, **facts: Any) -> Answer:
    """*answer* with other *facts* of its scores."""
    return replace(answer, scores=replace(answer.scores, **facts))


def made_forced(
    needle: NeedleFacts, *, logprob: float = -0.5, behind: Sequence[int] = ()
) -> Answer:
    """
    Right lines of which each is one token.

    In those *behind*, it is no first choice, and less likely.
    """
    lines = range(len(needle.lines))
    ends = itertools.accumulate(len(line) + 1 for line in needle.lines)
    scores = Forced(
        logprobs=tuple(min(logprob, -1.5) if at in behind else logprob for at in lines),
        leads=tuple(-1.0 if at in behind else 3.0 for at in lines),
        ends=tuple(end - 1 for end in ends),
        prompt_tokens=9000,
        cached_tokens=8980,
        wall_s=0.5,
    )
    return Answer(name=needle.name, prompt_sha256="d0" * 32, scores=scores)


def made_priming(needle: NeedleFacts) -> Answer:
    """The round that reads the whole corpus: 9,000 tokens in 3 seconds."""
    reply = Reply(
        text="x",
        finish="length",
        prompt_tokens=9000,
        prompt_ms=3000.0,
        predicted_tokens=8,
        predicted_ms=8.0,
    )
    return Answer(name=needle.name, prompt_sha256="d0" * 32, reply=reply)


def observed(recall: Recall) -> Json:
    """*recall*, as a record of the probe stores it."""
    answers = {
        f"{part} {each.name}": as_json(each)
        for part, of_part in (
            ("written", recall.rounds),
            ("forced", recall.forced),
        )
        for each in of_part
    }
    if recall.read:
        answers["read made"] = as_json(AnswerGroup(answers=recall.read))
    facts = {"priming": recall.priming} if recall.priming else {}
    return as_json(Observed(answers=answers, starts=recall.starts, facts=facts))


def made_record(
    pair: str | Pair,
    rounds: Iterable[Answer],
    *,
    forced: Iterable[Answer] = (),
    read: Iterable[Answer] = (),
    priming: Answer | None = None,
) -> CellRecord:
    """A finished record of the recall probe, as it comes from disk."""
    pair = Pair.parse(pair) if isinstance(pair, str) else pair
    recall = Recall(
        rounds=tuple(rounds), forced=tuple(forced), read=tuple(read), priming=priming
    )
    return CellRecord(
        pair=pair,
        probe="recall",
        status=Status.FINISHED,
        started="2025-11-20T12:00:00+00:00",
        effective=Effective(kv=(_kv(pair),)),
        phases=Phases(ready_s=0.5, measure_s=10.0, stop_s=0.2),
        observation=observed(recall),
    )


def failed_record(
    pair: str | Pair, status: Status = Status.CRASHED, reason: str = "it died"
) -> CellRecord:
    """A record of a cell that has no numbers."""
    return CellRecord(
        pair=Pair.parse(pair) if isinstance(pair, str) else pair,
        probe="recall",
        status=status,
        started="2025-11-20T12:00:00+00:00",
        reason=reason,
    )


def _kv(pair: Pair) -> KvBuffer:
    return KvBuffer(
        cells=12288, layers=6, k_type=pair.k, v_type=pair.v, k_mib=2.0, v_mib=1.5
    )


def sized(record: CellRecord) -> CellRecord:
    """The same record, with a cache as large as the bits of its types."""
    k, v = (BITS_PER_ELEMENT[name] / 8 for name in (record.pair.k, record.pair.v))
    buffer = replace(_kv(record.pair), k_mib=k, v_mib=v)
    return replace(record, effective=Effective(kv=(buffer,)))


def made_run(
    matched: Callable[[Pair, int], int] = lambda _pair, _at: 20,
    *,
    setup: Setup | None = None,
    failed: Sequence[CellRecord] = (),
    untried: Sequence[str] = (),
) -> Run:
    """
    A run over the whole grid of *setup*.

    Args:
        matched: Of a pair and a round, how many lines match.
        setup: The default one if None.
        failed: Records that stand in the place of finished ones.
        untried: Pairs without a record.
    """
    setup = setup or made_setup()
    absent = {record.pair for record in failed} | set(map(Pair.parse, untried))
    pairs = [Pair(k, v) for k in setup.types_k for v in setup.types_v]
    finished = [_recalled(setup, pair, matched) for pair in pairs if pair not in absent]
    return Run(
        name="random-bodies/made-model",
        setup=setup,
        records=(*finished, *failed),
    )


def _recalled(
    setup: Setup, pair: Pair, matched: Callable[[Pair, int], int]
) -> CellRecord:
    rounds = [
        made_round(needle, reply=made_reply(needle, matched=matched(pair, at), junk=1))
        for at, needle in enumerate(written_of(setup))
    ]
    return made_record(pair, rounds, priming=made_priming(written_of(setup)[-1]))


def renamed(run: Run, name: str) -> Run:
    """The same run under another name."""
    return replace(run, name=name)


def stored_run(root: Path, run: Run | None = None) -> Run:
    """*run*, or a `made_run`, stored below *root* as a sweep leaves it."""
    run = run or made_run()
    corpus, model = run.setup.corpus.name, run.setup.weights.name
    store = Store(checked_run_folder(root, corpus=corpus, model=model))
    store.check_and_store_setup(run.setup)
    for record in run.records:
        store.write_record(record)
    return run
