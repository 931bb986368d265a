"""An engine without a process: tokens are bytes, and answers are made up."""

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from codeneedle.engines.engine import (
    Ability,
    CacheTypes,
    CannotSave,
    Engine,
    EngineIdentity,
    ModelSpec,
)
from codeneedle.engines.messages import Completion, Forced, Reply, TokenPiece
from codeneedle.engines.survey import PairSurvey, Survey
from codeneedle.errors import BadInput
from codeneedle.models.weights import Weights
from codeneedle.records.record import Attention, Effective

TYPES = ("f16", "bf16", "q8_0", "q4_0")


class ByteTokenizer:
    """Tokens are bytes; a chat is rendered as ``<role>content``."""

    def __init__(self, template=lambda said: f"<{said.role}>{said.content}"):
        self.template = template
        self.template_args = []

    def count_tokens(self, text):
        return len(text.encode())

    def token_counts_without_special(self, texts):
        return [len(text.encode()) for text in texts]

    def tokens(self, text, *, add_special=True):
        return tuple(TokenPiece(ord(piece), piece) for piece in text)

    def render(self, messages, template_args=None):
        self.template_args.append(template_args)
        return "".join(map(self.template, messages))


def reply_to(_question, text="an answer\n", **changes):
    """A reply with probabilities."""
    said = {"finish": "stop", "logprobs": (-0.1,), "gaps": (2.0,), "lengths": (9,)}
    return Reply(text=text, **{**said, **changes})


def forced_to(_question, right, *, logprob=-0.1, length=1, **changes):
    """Each *length* characters of a line of *right*, a token, scored alike."""
    ends = [*_ends_of_tokens(right, length)]
    said = {
        "logprobs": (logprob,) * len(ends),
        "leads": (2.0,) * len(ends),
        "ends": tuple(ends),
    }
    return Forced(**{**said, **changes})


def _ends_of_tokens(right, length):
    """How many characters of *right* there are up to the end of each token."""
    at = 0
    for line in right.splitlines(keepends=True):
        yield from range(at + length, at + len(line), length)
        at += len(line)
        yield at


LONG = 8
"""Length of tokens in a sweep of many cells: what is read takes time by token."""


@dataclass
class FakeServer:
    """An `engine.Served` without a process; it keeps what it was asked, in order."""

    engine: "FakeEngine"
    questions: list = field(default_factory=list)
    forced: list = field(default_factory=list)
    is_dying: bool = False
    holds_bytes: int | None = None
    settled: int = 0

    command = ("llama-server", "--fake")
    child = None

    @property
    def client(self):
        return self

    @property
    def tokenizer(self):
        return self.engine.tokenizer

    def complete(self, question, *, enough=None):
        self.questions.append(question)
        found = self.engine.reply(question)
        if isinstance(found, BaseException):
            raise found
        return found

    chat = complete

    def force(self, question, right):
        self.forced.append(right)
        found = self.engine.force(question, right)
        if isinstance(found, BaseException):
            raise found
        return found

    def wait_idle(self):
        self.settled += 1

    def program_hash(self):
        return self.engine.program

    def save_cache(self):
        raise CannotSave("there is no file")

    def effective(self):
        # Some of it is only told at the first token.
        attention = self.engine.attention if self.questions else None
        return replace(self.engine.effective, attention=attention)

    def differences_from_cell(self, cell):
        return self.engine.differences

    def wait_for_end(self, _limit_s):
        return self.is_dying

    def peak_rss_bytes(self):
        return 7 << 20

    def device_peak_bytes(self):
        return self.holds_bytes

    def device_bytes(self):
        self.engine.alive_at_device_query.append(self in self.engine.alive)
        return self.holds_bytes


def made_weights(
    *, vocabulary=260, training_context=65536, path="made.gguf", identity=""
):
    """The header of a small llama that is no file."""
    return Weights(
        files=(Path(path),),
        size_bytes=1,
        architecture="llama",
        name="made",
        file_type="F16",
        layers=2,
        embedding=64,
        heads=(1, 1),
        kv_heads=(1, 1),
        key_length=64,
        value_length=64,
        key_length_swa=64,
        value_length_swa=64,
        has_plain_attention=True,
        training_context=training_context,
        vocabulary=vocabulary,
        identity=identity,
    )


def made_model():
    """What an engine serves where a test does not say."""
    return ModelSpec(weights=made_weights(), name="some")


@dataclass
class FakeEngine(Engine):
    """
    Answers as a test wishes, and keeps what it served and was asked, in order.

    Attributes:
        reply: Makes a reply, or an error, of a question.
        force: Likewise, scores of a question and its right answer.
        differences: In what its servers differ from what was asked.
        attention: Where their attention runs, told from the first token on.
        surveyed: What a survey says of a pair: `Attention`, or a refusal; None for an
            engine that cannot say.
        server: What it serves; made anew for each cell where None.
    """

    model: ModelSpec = field(default_factory=made_model)
    types: CacheTypes = CacheTypes(k=TYPES, v=TYPES)  # noqa: RUF009 - frozen
    devices: tuple = ()
    program: str = ""
    version: str = "0.6.0 (build 11434)"
    cpu_features: str = ""
    abilities: frozenset = frozenset(Ability) - {Ability.READING}
    reply: object = reply_to
    force: object = forced_to
    effective: Effective = field(default_factory=Effective)
    differences: tuple = ()
    attention: Attention | None = None
    surveyed: object = None
    stretches_context: bool = False
    thinking_off_option: str = ""
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    template: object = None
    server: FakeServer | None = None
    served: list = field(default_factory=list)
    counted: int = 0
    alive: list = field(default_factory=list)
    alive_at_device_query: list = field(default_factory=list)

    name = "fake"

    def divergence_tool(self):
        from fake_tools import FakeDivergence

        self.require(Ability.DIVERGENCE)
        return FakeDivergence()

    def speed_tool(self):
        from fake_tools import FakeSpeed

        self.require(Ability.SPEED)
        return FakeSpeed()

    def refuse_unusable_arguments(self):
        if "--port" in self.model.arguments:
            raise BadInput(source="--port", reason="refused", hint="Drop it.")

    def identity(self):
        return EngineIdentity(
            name=self.name,
            version=self.version,
            program="/nowhere/fake",
            devices=self.devices,
            cpu_features=self.cpu_features,
        )

    def cache_types(self):
        return self.types

    def survey_attention_and_memory(self, pairs, *, context, log):
        if self.surveyed is None:
            return None
        return made_survey({pair: self.surveyed(pair) for pair in pairs}, context)

    @contextlib.contextmanager
    def tokenizing(self, *, log):
        self.counted += 1
        yield self.tokenizer

    @contextlib.contextmanager
    def templating(self):
        self.counted += 1
        yield self.template or self.tokenizer

    @contextlib.contextmanager
    def serving(self, cell, *, log):
        self.served.append(cell)
        server = self.server or FakeServer(self)
        self.alive.append(server)
        try:
            yield server
        finally:
            self.alive.remove(server)


def made_survey(answers, context=4096):
    """A survey in which each pair has an `Attention`, or a refusal."""
    return Survey(
        context=context,
        pairs={
            pair: PairSurvey(
                pair=pair,
                attention=answer if isinstance(answer, Attention) else None,
                refusal="" if isinstance(answer, Attention) else answer,
            )
            for pair, answer in answers.items()
        },
        whole_splits=2,
    )


def same_types_alone(pair):
    """As Metal: a kernel where K and V are alike."""
    return Attention.KERNEL if pair.k == pair.v else Attention.CPU


def bf16_alone(pair):
    """As Vulkan: bf16 has a kernel with itself alone."""
    is_mixed = pair.k != pair.v and "bf16" in {pair.k, pair.v}
    return Attention.CPU if is_mixed else Attention.KERNEL


def is_for(needle, question):
    """Whether *question* is a completion that asks for *needle*."""
    return isinstance(question, Completion) and needle.signature in question.prompt
