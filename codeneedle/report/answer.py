"""
The answer of a verdict alone, in the forms of ``verdict --form``: command, env, preset,
json and badge; refused where no pair is set or kept.
"""

import math
import shlex
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from codeneedle.cache_types import Pair
from codeneedle.errors import NothingToShow
from codeneedle.probes.metrics import LossKind
from codeneedle.records.record import Run
from codeneedle.report import captions
from codeneedle.report.badge import badge_svg
from codeneedle.report.verdict import answer_phrase
from codeneedle.text import escape_invisible
from codeneedle.verdict.judge import Outcome, PairResult, Verdict
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.metric_phrases import (
    amount_phrase,
    losses_sentence,
    units_phrase,
)
from codeneedle.verdict.metric_results import MetricResult

FORMS = ("command", "env", "preset", "json", "badge")
"""What ``verdict --form`` takes."""

Number = float | None


class AnswerObject(msgspec.Struct, frozen=True, kw_only=True):
    """Which pair to set for a model, what it loses, and what that was measured on."""

    model: Annotated[str, Meta(description="As its run is called.")]
    sha256: Annotated[str, Meta(description="Of the weights; empty if unknown.")]
    architecture: str
    quantization: Annotated[str, Meta(description="Of the weights: Q4_K_M.")]
    k: str
    v: str
    reference: Annotated[str, Meta(description="The pair that it is held against.")]
    is_kept: Annotated[
        bool, Meta(description="Whether it is the reference: nothing smaller will do.")
    ]
    memory: Annotated[Number, Meta(description="KV cache by the reference's.")]
    metric: Annotated[str, Meta(description="Of the loss; empty of the reference.")]
    loss: Annotated[Number, Meta(description="The mean; a share, or nats.")]
    at_most: Annotated[Number, Meta(description="Upper end of its interval.")]
    limit: Annotated[Number, Meta(description="What was accepted.")]
    units: Annotated[int, Meta(description="What the interval is over.")]
    noun: Annotated[str, Meta(description="What the units are.")]
    sentence: Annotated[str, Meta(description="The same in words.")]
    arguments: Annotated[
        list[str], Meta(description="What starts its server; empty if unknown.")
    ]
    environment: Annotated[
        dict[str, str], Meta(description="Its variables; empty if unknown.")
    ]
    facts: Annotated[
        dict[str, str], Meta(description="What it was measured on, a phrase by word.")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWords:
    """How what starts a server is told an answer."""

    arguments: Callable[["Answer"], list[str]]  # of the server
    environment: Callable[["Answer"], dict[str, str]]  # its variables
    lines: Callable[["Answer", str], list[str]]
    """Of a form, ``command``, ``env`` or ``preset``."""

    forms: tuple[str, ...] = ("command", "env", "preset")  # those that it has


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict that names a pair."""

    verdict: Verdict
    pair: Pair

    @property
    def run(self) -> Run:
        """What was judged."""
        return self.verdict.run

    @property
    def result_unless_reference(self) -> PairResult | None:
        """The result of the pair; None of the reference."""
        is_reference = self.pair == self.verdict.reference
        return None if is_reference else self.verdict.result(self.pair)

    @property
    def loss_or_keep_sentence(self) -> str:
        """What *pair* loses, as a phrase behind its name, or why it is kept."""
        result = self.result_unless_reference
        if result is None or result.leading_result is None:
            return "nothing smaller is shown to be within the limits"
        return losses_sentence(self.verdict.limits, result)

    @property
    def model_as_named(self) -> str:
        """The one model of its sweep, as named there; else the name of the weights."""
        try:
            named = tomllib.loads(self.run.sweep).get("models")
        except tomllib.TOMLDecodeError:
            named = None
        is_one = isinstance(named, list) and len(named) == 1
        return str(named[0]) if named and is_one else self.run.setup.weights.name


def answer_or_refuse(verdict: Verdict) -> Answer:
    """
    The pair that *verdict* sets, or keeps.

    Raises:
        NothingToShow: If it does neither, or judges the built-in model.
    """
    is_kept = verdict.outcome is Outcome.KEEP and not verdict.is_of_built_in_model
    is_set = verdict.outcome is Outcome.SET and not verdict.is_of_built_in_model
    pair = verdict.reference if is_kept else verdict.chosen if is_set else None
    if pair is None:
        answer = (
            "is built in" if verdict.is_of_built_in_model else answer_phrase(verdict)
        )
        folder = shlex.quote(escape_invisible(str(verdict.run.folder)))
        raise NothingToShow(
            run=escape_invisible(verdict.run.name),
            what=f"a pair to set ({answer})",
            hint=f"See why: codeneedle verdict {folder}",
        )
    return Answer(verdict, pair)


def answer_object(answer: Answer, server_words: ServerWords | None) -> AnswerObject:
    """*answer* for JSON; *server_words* are None of an engine that has none."""
    setup, result = answer.run.setup, answer.result_unless_reference
    leading = result.leading_result if result else None
    return AnswerObject(
        model=setup.weights.name,
        sha256=setup.weights.sha256 if setup.weights.size_bytes else "",
        architecture=setup.architecture,
        quantization=setup.quant,
        k=answer.pair.k,
        v=answer.pair.v,
        reference=str(answer.verdict.reference),
        is_kept=result is None,
        memory=result.memory if result else 1.0,
        metric=leading.metric.name if leading else "",
        loss=_finite_or_none(leading.bounds.mean) if leading else 0.0,
        at_most=_finite_or_none(leading.bounds.high) if leading else 0.0,
        limit=leading.limit if leading else None,
        units=leading.bounds.units if leading else 0,
        noun=leading.metric.unit_noun if leading else "",
        sentence=answer.loss_or_keep_sentence,
        arguments=server_words.arguments(answer) if server_words else [],
        environment=server_words.environment(answer) if server_words else {},
        facts=dict(captions.run_facts(answer.run)),
    )


def answer_lines(
    answers: Sequence[Answer], form: str, words_of: Callable[[str], ServerWords | None]
) -> list[str]:
    """
    The *answers* as lines of a *form*, each behind what it was measured on.

    Raises:
        NothingToShow: If the engine of one has no such words.
    """
    lines: list[str] = []
    mark = ";" if form == "preset" else "#"
    for answer in answers:
        words = words_of(answer.run.setup.engine)
        if words is None or form not in words.forms:
            raise NothingToShow(
                run=escape_invisible(answer.run.name),
                what=f"words for {form}: the engine {answer.run.setup.engine} is asked "
                f"for {escape_invisible(str(answer.pair))}",
                hint="--form json and --form badge say it for every engine.",
            )
        told = f"{answer.pair} {answer.loss_or_keep_sentence}; "
        told += _measured_on_phrase(answer)
        between = [""] if lines else []
        lines += [*between, f"{mark} {told}", *words.lines(answer, form)]
    # A run folder may come from anywhere.
    return [escape_invisible(line) for line in lines]


def answer_badge_svg(answer: Answer) -> str:
    """An SVG for a model card: the pair and what it loses, or what to keep."""
    leading = (
        answer.result_unless_reference.leading_result
        if answer.result_unless_reference
        else None
    )
    value = f"keep {answer.pair}"
    if leading:
        value = f"{answer.pair} {_loss_on_badge(answer.verdict.limits, leading)}"
    title = f"KV cache {answer.pair}: {answer.loss_or_keep_sentence}; "
    title += _measured_on_phrase(answer)
    return badge_svg("KV cache", escape_invisible(value), title=escape_invisible(title))


_LOST = {
    LossKind.CHANGE: "",
    LossKind.ANSWERS: " of answers",
    LossKind.SCORE: " of the score",
}
"""What a badge says is lost, if not right tokens."""


def _loss_on_badge(limits: Limits, row: MetricResult) -> str:
    """``loses 0.1 %, at most 0.3 % of right tokens``; no number that is a gain."""
    mean, high = amount_phrase(limits, row, row.bounds.mean), row.bounds.high
    lost, is_bound = _LOST.get(row.kind, " of right tokens"), math.isfinite(high)
    gains = mean.startswith("-")
    if high < 0 or (gains and not is_bound):
        return f"shows no loss{lost}"
    most = f"at most {amount_phrase(limits, row, high)}"
    if gains:
        # Nobody is to read the most that is lost as the most that is won.
        return f"loses {most}{lost}"
    verb = "changes by" if row.kind is LossKind.CHANGE else "loses"
    return f"{verb} {', '.join([mean, most] if is_bound else [mean])}{lost}"


def _measured_on_phrase(answer: Answer) -> str:
    """``of 24 functions, Qwen3-4B-Q4_K_M at 16,384 tokens, llama.cpp, DATE``."""
    setup, result = answer.run.setup, answer.result_unless_reference
    leading = result.leading_result if result else None
    rows = result.right_token_results if result else []
    told = rows if leading in rows else [leading] if leading else []
    of = f"of {' and '.join(map(units_phrase, told))}, " if told else ""
    model = f"{setup.weights.name} at {setup.context:,} tokens"
    return f"{of}{model}, {setup.engine}, {captions.dates_phrase(answer.run)}"


def _finite_or_none(value: float | None) -> Number:
    """*value*; None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None
