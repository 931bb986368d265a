"""A probe of right tokens, as somebody writes a first one: ages that a text tells."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct
from typing_extensions import override

from codeneedle.engines.engine import Ability, Engine, Served
from codeneedle.engines.messages import Completion, Forced
from codeneedle.probes.answers import ScoredAnswer
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.cell_metrics import OF_CELL
from codeneedle.probes.forced import scored_answers
from codeneedle.probes.metrics import RightTokens, UnitKind
from codeneedle.probes.observations import Answer, Observed, answers_of, settings_in
from codeneedle.probes.probe import Asker, Probe, Question
from codeneedle.records.record import CellRecord, Run, Setup

NAME = "toy"

AGES = {"Ann": 31, "Ben": 47, "Cleo": 58, "Dan": 62, "Eve": 19, "Finn": 84}
TEXT = "".join(f"The age of {name} is {age}.\n" for name, age in AGES.items())


class ToySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose."""

    people: Annotated[
        int,
        Meta(
            ge=1,
            le=len(AGES),
            description="People whose age the probe toy asks for.",
            extra={"option": "--people", "default": str(len(AGES))},
        ),
    ] = len(AGES)


def _scores(
    record: CellRecord, _setup: Setup | None = None
) -> Iterator[tuple[str, Forced | None]]:
    """The scores of each right answer, by the name of the person."""
    for name, group in answers_of(record).items():
        for answer in group.answers:
            yield name, answer.scores


PEOPLE = UnitKind(noun="people", more="--people", others="other people")

_RIGHT = RightTokens(_scores)


class ToyProbe(Probe):
    """Scores ages behind the text that tells them."""

    @override
    def own_text_name(self, _settings: ToySettings, _engine: Engine) -> str:
        return "ages"

    @override
    def questions(self, setup: Setup, _goal: int | None = None) -> Iterator[Question]:
        people = settings_in(setup, NAME, ToySettings).people
        for name in [*AGES][:people]:
            yield Question(name, phrase=name, body=AGES[name])

    @override
    def asker(
        self, served: Served, context: ProbeContext, observed: Observed
    ) -> "_ToyAsker":
        return _ToyAsker(served, context)

    @override
    def answers(self, run: Run, record: CellRecord) -> Iterator[ScoredAnswer]:
        return scored_answers(
            run,
            record,
            lambda of: {name: scores for name, scores in _scores(of) if scores},
            lambda name: f" {AGES[name]}.\n",
        )


class _ToyAsker(Asker):
    @override
    def ask(self, question: Question) -> Answer:
        prompt = f"{TEXT}The age of {question.key} is"
        seed = self.context.run.setup.seed
        asked = Completion(prompt=prompt, max_tokens=1, seed=seed)
        return self.score_reply(question.key, asked, f" {question.body}.\n")


PROBE = ToyProbe(
    name=NAME,
    purpose="ages of people",
    metrics=(
        _RIGHT.log_probability_metric()(
            name="toy-logp",
            unit_kind=PEOPLE,
            loss=_RIGHT.loss(lambda record: (of for _, of in _scores(record))),
        ),
        *OF_CELL,
    ),
    settings=ToySettings,
    layout=ToySettings,
    needs=frozenset({Ability.FORCED}),
    repeats=True,
)
