"""Verbatim recall: every needle asked once, the reply stored as it came."""

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from codeneedle.engine.llama_server import Served
from codeneedle.errors import CellError
from codeneedle.planning import Plan
from codeneedle.probe import Measurement, Probe, Step
from codeneedle.probes.recall_asking import Asker
from codeneedle.probes.recall_metrics import METRICS
from codeneedle.records import Json, NeedleFacts, Run, Trial
from codeneedle.rounds import Recall, Round, observation_of
from codeneedle.speculation import difference
from codeneedle.stage import Stage

NAME = "recall"

PRIMING_TOKENS = 8
"""Enough to make the server read the corpus; what it says is not scored."""

TRIAL_ROUNDS = 3
"""Needles that the first cell asks both ways: near the top, the middle and the end."""


class NoAnswers(CellError):  # noqa: N818 - named after the fact
    """Not one round of a cell had an answer to score."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(
            f"no round has an answer: {reason}",
            hint="Try --prompt-form completion, or --prefill-no-think for a model "
            "that thinks whatever it is told.",
        )


@dataclass(slots=True)
class _Said:
    """What one server said: its rounds, and the tokens of their replies."""

    priming: Round | None = None
    rounds: list[Round] = field(default_factory=list)
    tokens: list[tuple[int, ...]] = field(default_factory=list)


_Saying = Generator[Step, None, _Said]


def measure(stage: Stage) -> Measurement:
    """
    Ask every needle of the setup, after one unscored round.

    That round asks for the last needle, so that each scored one finds the corpus
    in the cache and nothing else: the same path for all.

    Where the text is to draft its own recall and nobody knows yet that this changes
    nothing, some needles are asked of a plain server first. If its replies differ,
    all are asked plainly, in this cell and in those to come.

    Raises:
        CellError: If the server fails, or no round has an answer.
    """
    needles = stage.setup.needles
    plain = None
    began = time.monotonic()
    if stage.needs_trial:
        plain = yield from _tried(stage, _spread(needles))
    trial_s = round(time.monotonic() - began, 4)
    said = yield from _asked(stage)
    if plain is not None:
        stage.trial = _compared(stage, plain, said)
        if stage.trial.difference:
            said = yield from _asked(stage)
        stage.phases = replace(stage.phases, trial_s=trial_s)
    if all(asked.error for asked in said.rounds):
        raise NoAnswers(reason=said.rounds[0].error)
    return observation_of(
        Recall(
            rounds=tuple(said.rounds),
            priming=said.priming,
            plain=tuple(plain.rounds) if plain else (),
        )
    )


def _tried(stage: Stage, needles: Sequence[NeedleFacts]) -> _Saying:
    """Ask *needles* of a server that drafts nothing."""
    total = len(stage.setup.needles)
    yield Step(0, total, "loading, to compare")
    with stage.serving_plainly(tag="plain") as served:
        asker = Asker(served, stage)
        yield Step(0, total, "reading the corpus, to compare")
        return (yield from _rounds(asker, needles, total=total, aside=True))


def _asked(stage: Stage) -> _Saying:
    """Ask all needles, the way that the stage speculates."""
    needles = stage.setup.needles
    yield Step(0, len(needles), "loading")
    with stage.serving() as served:
        asker = Asker(served, stage, speculates=stage.speculation is not None)
        yield Step(0, len(needles), "reading the corpus")
        said = yield from _rounds(asker, needles, total=len(needles))
        yield Step(len(needles), len(needles), "stopping")
    return said


def _rounds(
    asker: Asker, needles: Sequence[NeedleFacts], *, total: int, aside: bool = False
) -> _Saying:
    said = _Said()
    last = asker.stage.setup.needles[-1]
    said.priming, _ = asker.round(last, tokens=PRIMING_TOKENS, with_leads=False)
    _heed(asker.served, asker.stage)
    for needle in needles:
        done = 0 if aside else len(said.rounds)
        yield Step(done, total, f"{needle.name}{', to compare' if aside else ''}")
        asked, tokens = asker.round(needle, tokens=needle.budget)
        said.rounds.append(asked)
        said.tokens.append(tokens)
    asker.settle()
    return said


def _heed(served: Served, stage: Stage) -> None:
    """Some fallbacks are only told at the first token."""
    stage.heed(served.reread())


def _spread(needles: Sequence[NeedleFacts]) -> list[NeedleFacts]:
    """Some of *needles*, from the first to the last."""
    last = len(needles) - 1
    places = {at * last // (TRIAL_ROUNDS - 1) for at in range(TRIAL_ROUNDS)}
    return [needles[at] for at in sorted(places)]


def _compared(stage: Stage, plain: _Said, said: _Said) -> Trial:
    """Token by token; by the text, where a server does not tell its tokens."""
    with_draft = {
        asked.needle: (asked, tokens)
        for asked, tokens in zip(said.rounds, said.tokens, strict=True)
    }
    found = []
    for asked, tokens in zip(plain.rounds, plain.tokens, strict=True):
        other, other_tokens = with_draft[asked.needle]
        found.append(
            difference(tokens, other_tokens, of=asked.needle)
            or difference(asked.reply, other.reply, of=asked.needle, unit="character")
        )
    return Trial(
        pair=str(stage.pair),
        rounds=len(plain.rounds),
        tokens=sum(asked.predicted_tokens for asked in plain.rounds),
        difference=next(filter(None, found), ""),
    )


def settings(plan: Plan, _text: str) -> Json:
    """How the corpus drafts its own recall: it decides which kernels run."""
    return {"speculation": plan.speculation.phrase} if plan.speculation else {}


def remarks(run: Run) -> tuple[str, ...]:
    """That speculation was switched off, if it was."""
    trial = run.setup.trial
    return (f"speculation is {trial.phrase}",) if trial and trial.difference else ()


PROBE = Probe(
    name=NAME, metrics=METRICS, measure=measure, settings=settings, remarks=remarks
)
