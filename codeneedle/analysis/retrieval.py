"""What the retrieval probe stores, what became of each question, and its metrics."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from codeneedle.analysis.metrics import Loss, LossKind, Metric
from codeneedle.corpora.task_kinds import TASKS
from codeneedle.corpora.tasks import Decoy, Posed, Question
from codeneedle.records.record import (
    BadRecord,
    CellRecord,
    Finish,
    Forced,
    Run,
    Setup,
    from_json,
    shared_with,
)
from codeneedle.scoring.rounds import ByIdentity, Reading
from codeneedle.scoring.tasks import Judgement, Mode, judge

NAME = "retrieval"
"""Of the probe."""

USABLE = (0.2, 1.0)
"""
Shares of right answers of the reference, the second excluded, between which a setting
tells something: below there is nothing left to lose, and at the ceiling a loss may
not show.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Posed):
    """
    One question of a text, as it was asked and answered.

    Attributes:
        decoys: Numbers of the decoys, from 0, among those of the text.
        reply: The model's text, verbatim.
        finish: Why it ended.
        prompt_tokens: Length of the prompt, in tokens.
        cached_tokens: Of these, taken from the cache.
        predicted_tokens: Length of the reply, in tokens.
        predicted_ms: Time to write it.
        wall_s: From request to the end of the reply, in seconds.
        retries: Why earlier attempts failed before a reply was complete.
        scored: The right answer, forced; None if the engine tells no probabilities.
    """

    decoys: tuple[int, ...]
    reply: str
    finish: Finish
    prompt_tokens: int = 0
    cached_tokens: int = 0
    predicted_tokens: int = 0
    predicted_ms: float = 0.0
    wall_s: float = 0.0
    retries: tuple[str, ...] = ()
    scored: Forced | None = None

    def question(self, text: int, decoys: Sequence[Decoy]) -> Question:
        """
        The question as its task made it.

        Args:
            text: Number of its text.
            decoys: Those of the text.
        """
        own = tuple(decoys[at] for at in self.decoys)
        return Question(text=text, decoys=own, **shared_with(self, Posed))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRead:
    """
    One text, read once, and all that was asked of it.

    Attributes:
        task: Name of the task.
        length: The length that was asked for, in tokens.
        number: Of the text among those of this task and length, from 0.
        characters: Its length.
        sha256: Of the text, UTF-8.
        decoys: Wrong answers, which questions name by number.
        prompt_tokens: Length of the first prompt that held it, in tokens.
        cached_tokens: Of these, taken from the cache.
        prompt_ms: Time to read the others.
        asked: Its questions; the unscored one before them is not among them.
    """

    task: str
    length: int
    number: int
    characters: int
    sha256: str
    decoys: tuple[Decoy, ...]
    prompt_tokens: int
    cached_tokens: int
    prompt_ms: float
    asked: tuple[Asked, ...]


@dataclass(frozen=True, slots=True)
class DialStep:
    """
    A setting that was tried on the reference.

    Attributes:
        setting: Number of the setting, from 0, the easiest.
        right: Share of right answers, from 0 to 1.
        questions: How many were asked.
    """

    setting: int
    right: float
    questions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialled:
    """
    The difficulty of a task for all pairs, found on the reference.

    Attributes:
        task: Name of the task.
        setting: Number of the setting, from 0, the easiest.
        is_fixed: Whether the user chose it.
        path: What was tried, in order; the setting is among it.
    """

    task: str
    setting: int
    is_fixed: bool
    path: tuple[DialStep, ...]

    @property
    def right(self) -> float:
        """Share of right answers of the reference at the setting, from 0 to 1."""
        return next(step.right for step in self.path if step.setting == self.setting)

    @property
    def is_informative(self) -> bool:
        """Whether the reference can lose something there, and has something to lose."""
        least, most = USABLE
        return least <= self.right < most


@dataclass(frozen=True, slots=True)
class Fitted:
    """How many characters make a text of a *task* as long as *length* tokens."""

    task: str
    length: int
    characters: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a *task* is not asked at a *length*, in tokens, of any pair."""

    task: str
    length: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """
    What the first cell of a run found out for all.

    Attributes:
        reference: Its pair: ``f16/f16``.
        dials: One for each task.
        sizes: One for each task and length.
        left_out: Tasks that are too hard for the reference from a length on.
    """

    reference: str
    dials: tuple[Dialled, ...]
    sizes: tuple[Fitted, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def settings(self) -> dict[str, int]:
        """The setting of each dial, by task."""
        return {dial.task: dial.setting for dial in self.dials}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """
    The observation of the retrieval probe.

    Attributes:
        frozen: The same in all records of a run.
        texts: In asking order.
    """

    frozen: Frozen
    texts: tuple[TextRead, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    What became of a question.

    Attributes:
        task: Name of the task.
        length: Of the text as it was asked for, in tokens.
        depth: The depth that was asked for, from 0 to 1.
        question: Its name; the same for every pair.
        text: Name of the text that it shares with other questions.
        judged: What the answer is.
        logp: Mean log-probability of the tokens of the right answer, in nats; None
            if they were not forced.
        is_bound: Whether that is only an upper bound.
        until: Tokens of the right answer before the first that is not the first
            choice: greedy writing is right until then. None if not forced.
        tokens: Tokens of the right answer; 0 if not forced.
        is_informative: Whether its task counts in what is about all tasks.
        asked: The question and its answer, verbatim.
    """

    task: str
    length: int
    depth: float
    question: str
    text: str
    judged: Judgement
    logp: float | None
    is_bound: bool
    until: int | None
    tokens: int
    is_informative: bool
    asked: Asked


def retrieval_of(record: CellRecord) -> Retrieval | None:
    """
    What *record* holds of this probe; None if it holds nothing of it.

    Raises:
        BadRecord: If what it holds cannot be read.
    """
    if record.probe != NAME or record.observation is None:
        return None
    file = f"{record.pair.slug}.{record.probe}.json"
    return from_json(record.observation, Retrieval, file=file)


def outcomes(record: CellRecord) -> tuple[Outcome, ...]:
    """
    What became of each question of *record*, in asking order; judged anew.

    Raises:
        BadRecord: If what it holds cannot be read.
    """
    return _outcomes(ByIdentity(record))


# All records of a large grid: a live one asks for all of them several times a second.
@functools.lru_cache(maxsize=256)
def _outcomes(key: ByIdentity[CellRecord]) -> tuple[Outcome, ...]:
    found = retrieval_of(key.value)
    if found is None:
        return ()
    told = {dial.task for dial in found.frozen.dials if dial.is_informative}
    try:
        return tuple(
            _outcome(text, asked, is_informative=text.task in told)
            for text in found.texts
            for asked in text.asked
        )
    except (IndexError, ValueError) as error:
        file = f"{key.value.pair.slug}.{NAME}.json"
        raise BadRecord(file=file, reason=f"a question is none: {error}") from error


def _outcome(text: TextRead, asked: Asked, *, is_informative: bool) -> Outcome:
    scored = asked.scored if asked.scored and asked.scored.logprobs else None
    return Outcome(
        task=text.task,
        length=text.length,
        depth=asked.depth,
        question=asked.name,
        text=f"{text.task}-{text.length}-{text.number}",
        judged=judge(asked.question(text.number, text.decoys), asked.reply),
        logp=_mean(scored.logprobs) if scored else None,
        is_bound=bool(scored and scored.bounds),
        until=_first_choices(scored.leads) if scored else None,
        tokens=len(scored.logprobs) if scored else 0,
        is_informative=is_informative,
        asked=asked,
    )


def _first_choices(leads: Sequence[float]) -> int:
    """How many tokens come before the first that another one leads."""
    return next((at for at, lead in enumerate(leads) if lead < 0), len(leads))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def survival(found: Iterable[Outcome], tokens: int) -> float:
    """
    Share of answers that greedy writing has right for *tokens* tokens, from 0 to 1.

    Answers that are not that long do not count; NaN if none is.
    """
    long = [each for each in found if each.until is not None and each.tokens >= tokens]
    right = sum(each.until is not None and each.until >= tokens for each in long)
    return right / len(long) if long else math.nan


# --- metrics


_Number = Callable[[Outcome], float | None]
_Chosen = Callable[[Outcome], bool]


def _numbers(number: _Number, chosen: _Chosen) -> Metric:
    """A metric with one value for each chosen question that has one; to be named."""

    def of(record: CellRecord) -> Iterator[tuple[Outcome, float]]:
        for each in outcomes(record):
            value = number(each) if chosen(each) else None
            if value is not None:
                yield each, value

    def values(record: CellRecord, _setup: Setup, _reading: Reading) -> list[float]:
        return [value for _, value in of(record)]

    def names(record: CellRecord, _setup: Setup) -> list[str]:
        return [each.text for each, _ in of(record)]

    return Metric(
        name="",
        label="",
        unit="",
        better="higher",
        bounds=(0, 1),
        least_span=0.1,
        digits=2,
        values=values,
        names=names,
        noun="texts",
    )


def _right(chosen: _Chosen) -> Metric:
    return _numbers(lambda each: each.judged.share, chosen)


def _logp(chosen: _Chosen) -> Metric:
    metric = _numbers(lambda each: each.logp, chosen)
    return replace(metric, unit="nats", bounds=(None, 0), digits=3, least_span=0.5)


def _until(chosen: _Chosen) -> Metric:
    metric = _numbers(lambda each: each.until, chosen)
    return replace(metric, unit="tokens", bounds=(0, None), digits=1, least_span=10)


def _mode(mode: Mode) -> Metric:
    metric = _numbers(lambda each: float(each.judged.mode is mode), lambda _: True)
    return replace(
        metric,
        name=mode.value,
        label=f"answers of the mode {mode.value}, all tasks",
        unit="answers",
        better="lower",
        digits=0,
        is_sum=True,
        in_table=mode is Mode.INTRUSION,
    )


def _is_informative(each: Outcome) -> bool:
    return each.is_informative


def _reading_speeds(
    record: CellRecord, _setup: Setup, _reading: Reading
) -> list[float]:
    found = retrieval_of(record)
    texts = found.texts if found else ()
    return [
        (text.prompt_tokens - text.cached_tokens) / text.prompt_ms * 1000
        for text in texts
        if text.prompt_ms > 0
    ]


def _bounded(record: CellRecord) -> float:
    """Share of the tokens of right answers of which a bound alone is known."""
    scored = [each.asked.scored for each in outcomes(record) if each.asked.scored]
    tokens = sum(len(each.logprobs) for each in scored)
    return sum(len(each.bounds) for each in scored) / tokens if tokens else 0.0


LEAST_LOSS = 1e-9
"""A text is lost that has fewer right answers, by however little."""

METRICS: tuple[Metric, ...] = (
    replace(
        _right(_is_informative),
        name=NAME,
        label="right answers, informative tasks",
        in_table=True,
        loss=Loss(kind=LossKind.ANSWERS, lost_from=LEAST_LOSS),
    ),
    replace(
        _logp(_is_informative),
        name=f"{NAME}-logp",
        label="log-probability of the right answer per token, informative tasks",
        in_table=True,
        loss=Loss(kind=LossKind.NATS, bounded=_bounded),
    ),
    _mode(Mode.INTRUSION),
    *(_mode(m) for m in Mode if m not in {Mode.CORRECT, Mode.INTRUSION}),
    Metric(
        name="reading",
        label="reading of texts, a by-product",
        unit="tokens/s",
        better="higher",
        bounds=(0, None),
        digits=0,
        values=_reading_speeds,
        group="speed",
    ),
)
"""Those of every run; the first is the headline."""


def more_metrics(setup: Setup) -> tuple[Metric, ...]:
    """
    Those of each task of a run, ``multikey`` and ``multikey-logp``; and at each length,
    where there are several: ``multikey@2048``.

    Raises:
        BadRecord: If the settings name none.
    """
    chosen = setup.probes.get(NAME, {})
    try:
        tasks = msgspec.convert(chosen.get("tasks", []), type=tuple[str, ...])
        lengths = msgspec.convert(chosen.get("lengths", []), type=tuple[int, ...])
    except msgspec.ValidationError as error:
        reason = f"the tasks or lengths of {NAME} are none: {error}"
        raise BadRecord(file="setup.json", reason=reason) from error
    several = lengths if len(lengths) > 1 else ()
    return tuple(
        metric
        for task in tasks
        for length in (None, *several)
        for metric in _of_task(task, length)
    )


def _of_task(task: str, length: int | None) -> Iterator[Metric]:
    def chosen(each: Outcome) -> bool:
        return each.task == task and length in {None, each.length}

    at = "" if length is None else f"@{length}"
    where = "" if length is None else f", texts of {length:,} tokens"
    about = f"{TASKS[task].about}{where}" if task in TASKS else f"{task}{where}"
    shown = length is None
    yield replace(
        _right(chosen), name=f"{task}{at}", label=f"right: {about}", in_table=shown
    )
    yield replace(
        _logp(chosen),
        name=f"{task}-logp{at}",
        label=f"log-probability of the right answer per token: {about}",
        in_table=shown,
    )
    yield replace(
        _until(chosen),
        name=f"{task}-until{at}",
        label=f"tokens before greedy writing would be wrong: {about}",
    )


# --- in words


SURVIVAL_TOKENS = (16, 32, 64, 128, 256, 512)
"""Lengths at which a remark says how many answers are still right."""


def remarks(run: Run) -> tuple[str, ...]:
    """The path of each dial, what was left out, and how long answers survive."""
    records = [r for r in run.records if r.probe == NAME and r.has_numbers]
    found = next(filter(None, map(retrieval_of, records)), None)
    if found is None:
        return ()
    return (
        *(_dial_phrase(dial, found.frozen.reference) for dial in found.frozen.dials),
        *(
            f"{each.task} at {each.length:,} tokens was asked of no pair: {each.reason}"
            for each in found.frozen.left_out
        ),
        *_survivals(records),
    )


def _dial_phrase(dial: Dialled, reference: str) -> str:
    settings = TASKS[dial.task].settings if dial.task in TASKS else ()
    says = settings[dial.setting].says if dial.setting < len(settings) else ""
    path = ", ".join(f"{step.setting}: {step.right:.0%}" for step in dial.path)
    how = "chosen by the user" if dial.is_fixed else f"found on {reference}"
    phrase = f"{dial.task}: setting {dial.setting}, {says}, {how} ({path} right)"
    if dial.is_informative:
        return phrase
    return f"{phrase}; uninformative, so in no average of tasks"


def _survivals(records: Sequence[CellRecord]) -> Iterator[str]:
    """Of the task whose answers are long, a line per pair."""
    for record in records:
        found = [each for each in outcomes(record) if each.task == "ledger"]
        shares = ((tokens, survival(found, tokens)) for tokens in SURVIVAL_TOKENS)
        known = [
            f"{tokens}: {share:.0%}"
            for tokens, share in shares
            if not math.isnan(share)
        ]
        if known:
            yield (
                f"ledger, {record.pair}: answers right for so many tokens: "
                f"{', '.join(known)}"
            )
