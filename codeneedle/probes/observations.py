"""
The stored layout of all probes that ask a server: answers by question, with scores,
errors and retries; reads it and settings from records and setups, and caches results.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from msgspec import Struct, structs
from typing_extensions import override

from codeneedle.engines.messages import Forced, Reply
from codeneedle.records.record import (
    Amount,
    CellRecord,
    Count,
    Json,
    Setup,
    from_json,
    refuse_unless_possible,
)
from codeneedle.records.store import SETUP

_Layout = TypeVar("_Layout")
_Settings = TypeVar("_Settings", bound=Struct)
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


@dataclass(slots=True)
class Observed:
    """What a probe that asks a server stores of a cell."""

    answers: dict[str, Json]  # as observed, by the key of the question, in asking order
    skipped: dict[str, str] = field(default_factory=dict)
    """Why questions were not asked, which an answer made pointless."""

    starts: Count = 0  # servers that it took
    facts: Json = field(default_factory=dict)
    """What holds for all answers, in the layout of the probe."""

    def needs_asking(self, key: str) -> bool:
        """Whether it has no answer to the question of that *key*, and no reason."""
        return key not in self.answers and key not in self.skipped

    @property
    def error_of_each_answer(self) -> list[str]:
        """
        Why each answer has nothing to score, those of a group included.

        Empty texts for those that have.
        """
        stored = (
            one
            for answer in self.answers.values()
            for one in answer.get("answers", (answer,))
        )
        return [one.get("error", "") for one in stored]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a question that a server was asked, in whichever way."""

    name: str  # what was asked for: of a function, a turn, a question
    prompt_sha256: str = ""
    """
    Of the prompt's text as sent, UTF-8; of what was read, of the whole text. Empty
    where the setup has it, or a layout beside this one.
    """

    reply: Reply | None = None  # what was written; None if nothing was
    scores: Forced | None = None  # of the right answer, token by token; None without
    error: str = ""  # why there is nothing to score; empty if there is
    retries: tuple[str, ...] = ()  # why earlier attempts failed before this one

    @property
    def text(self) -> str:
        """The text that was written, verbatim; empty without any."""
        return self.reply.text if self.reply else ""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt of what was written; 0 without any."""
        return self.reply.prompt_tokens if self.reply else 0

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt from the cache; the least of two requests, 0 without."""
        parts = (self.reply, self.scores)
        return min((part.cached_tokens for part in parts if part), default=0)

    @property
    def fault(self) -> str:
        """Why its scores are none; empty if they can be, or there are none."""
        if self.error and self.scores:
            return "beside an error"
        parts = (part.fault for part in (self.reply, self.scores) if part)
        return next(filter(None, parts), "")

    @property
    def wall_s(self) -> float:
        """Seconds of its requests, written and scored together."""
        return sum(part.wall_s for part in (self.reply, self.scores) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGroup:
    """What became of all that is asked behind one text, in one go: they are one key."""

    answers: tuple[Answer, ...]  # in asking order
    text_s: Amount = 0.0
    """
    Seconds of the text without its questions, where right answers were read in batches.
    """


@dataclass(frozen=True, slots=True, eq=False)
class _ByIdentity:
    """A key of a cache: records and setups hold dicts, which have no hash."""

    value: object

    @override
    def __hash__(self) -> int:
        return id(self.value)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.value is other.value


def keep_results(
    most: int = 16,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """
    Decorate a function of records and setups: results for the last *most* are kept.

    16 suffice where all metrics of a record are computed before the next record: an
    entry may hold tens of thousands of numbers.
    """

    def decorate(
        function: Callable[_Arguments, _Result],
    ) -> Callable[_Arguments, _Result]:
        @functools.lru_cache(maxsize=most)
        def result_of(*keys: _ByIdentity) -> _Result:
            return function(*(key.value for key in keys))  # type: ignore[call-arg, arg-type]

        @functools.wraps(function)
        def cached_by_identity(
            *values: _Arguments.args, **_none: _Arguments.kwargs
        ) -> _Result:
            return result_of(*map(_ByIdentity, values))

        return cached_by_identity

    return decorate


def file_name_of(record: CellRecord) -> str:
    """Name of the file of *record*, for errors."""
    what = "-".join(filter(None, (record.probe, record.variant)))
    return f"{record.pair.slug}.{what}.json"


def observation_of(record: CellRecord, layout: type[_Layout]) -> _Layout:
    """
    The observation of *record*.

    Raises:
        BadRecord: If it has another layout.
    """
    return from_json(record.observation or {}, layout, file=file_name_of(record))


def refuse_impossible_scores(answers: Iterable[Answer], *, file: str) -> None:
    """
    Stop at stored *answers* whose scores are none; errors name the *file*.

    Raises:
        BadRecord: On the first of them.
    """
    for answer in answers:
        what = f"the scores of {answer.name} are none: {answer.fault}"
        refuse_unless_possible(not answer.fault, what, file=file)


@keep_results()
def answers_of(record: CellRecord) -> dict[str, AnswerGroup]:
    """
    The answers of *record* by the key of their question, in asking order.

    Raises:
        BadRecord: See `parse_answer_groups`.
    """
    return parse_answer_groups(
        observation_of(record, Observed), file=file_name_of(record)
    )


def parse_answer_groups(stored: Observed, *, file: str) -> dict[str, AnswerGroup]:
    """
    The answers that are *stored* of a cell by key; errors name the *file*.

    One that is asked alone is a group of its own.

    Raises:
        BadRecord: If one has another layout, or scores that are none.
    """
    found = {
        key: from_json(answer, AnswerGroup, file=file)
        if "answers" in answer
        else AnswerGroup(answers=(from_json(answer, Answer, file=file),))
        for key, answer in stored.answers.items()
    }
    for group in found.values():
        refuse_impossible_scores(group.answers, file=file)
    return found


def settings_in(setup: Setup, probe: str, layout: type[_Layout]) -> _Layout:
    """
    The settings of *probe* in *setup*; if it has none, the defaults of *layout*.

    Raises:
        BadRecord: If they have another layout.
    """
    return from_json(setup.probes.get(probe, {}), layout, file=SETUP)


def merge_chosen_settings(known: _Settings, chosen: _Settings) -> _Settings:
    """The *known* settings of a run folder; what was *chosen*, not None or (), wins."""
    given = {
        name: value
        for name, value in structs.asdict(chosen).items()
        if value is not None and value != ()
    }
    return structs.replace(known, **given)


def calibration_in(setup: Setup, probe: str, layout: type[_Layout]) -> _Layout | None:
    """
    What the reference has set for all cells of *probe*; None before it has.

    Raises:
        BadRecord: If what the setup keeps has another layout.
    """
    stored = setup.calibrated.get(probe)
    return None if stored is None else from_json(stored, layout, file=SETUP)
