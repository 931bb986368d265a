"""
Reads the results of evaluations, our own lines or files of lm-eval, inspect_ai and
promptfoo: which samples have no score, as their grader failed, and which are repeats.
"""

import functools
import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from codeneedle.errors import CellError
from codeneedle.probes.evaluation.record import Sample
from codeneedle.scores import NoScore, checked_sample_score
from codeneedle.system import files
from codeneedle.system.secrets import mask_text
from codeneedle.text import escape_invisible, one_line, replace_surrogates, size_text

AUTO = "auto"
"""The first of `READERS` that has a file."""

LINES_NAME = "lines"
LINES = "results.jsonl"

FILE_LIMIT_BYTES = 1 << 28
"""Largest file of results; that of a long evaluation with traces has 50 MiB."""

MOST_SAMPLES = 100_000

MOST_FILES = 10_000
"""Most files that are searched for results."""

ID_LENGTH = 200
"""Stored characters of an id or an error."""

_Layout = TypeVar("_Layout")


class Unreadable(CellError):  # noqa: N818 - named after the fact
    """Results that are missing, damaged or of another kind."""

    def __init__(self, *, reason: str, hint: str = "") -> None:
        super().__init__(
            f"the evaluation's results cannot be read: {reason}",
            hint=hint or "Look at what it wrote, or name what wrote it: --eval-read",
        )


@dataclass(frozen=True, slots=True)
class Result:
    """A sample, as a tool states it."""

    sample: Sample
    asked: str = ""
    """
    What all samples have in common that were asked the same; empty where the tool does
    not tell. Of one tool only.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads the results of one tool."""

    files: str  # pattern of the names of its files, at any depth of a folder
    results: Callable[[Path], Iterator[Result] | None]
    """Returns the results in a file; None if it is another kind of file."""


def read_samples_of_known_tool(
    folder: Path, reader: str = AUTO
) -> tuple[str, tuple[Sample, ...]]:
    """
    The name of the reader that found results in *folder*, and their samples.

    Args:
        folder: Working folder of the evaluation.
        reader: A name in `READERS`, or `AUTO`.

    Raises:
        Unreadable: If there are none, one of them has no valid score, or what was left
            behind cannot be used in any other way: the sweep goes on.
    """
    try:
        return _first_reader_and_samples(folder, reader)
    except (OSError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        raise Unreadable(
            reason=_mask_and_cut(str(error)) or type(error).__name__
        ) from error


def _first_reader_and_samples(
    folder: Path, reader: str
) -> tuple[str, tuple[Sample, ...]]:
    """The first of the readers that finds results, and their samples, checked."""
    names = [reader] if reader != AUTO else list(READERS)
    for name in names:
        results = _read_result_files(folder, READERS[name])
        if results is not None:
            return name, _check_samples(list(group_repeated_samples(results)))
    written = sorted(path.name for path in _matching_files(folder, "*"))
    present = (
        f"only {escape_invisible(', '.join(written[:3]))}" if written else "nothing"
    )
    is_binary = any(name.endswith(".eval") for name in written)
    wanted = " or ".join(dict.fromkeys(READERS[name].files for name in names))
    raise Unreadable(
        reason=f"it wrote no {wanted}, {present}",
        hint="inspect_ai writes JSON with --log-format json" if is_binary else "",
    )


def _read_result_files(folder: Path, reader: Reader) -> list[Result] | None:
    """Results of all files of *reader*, sorted by path; None if none is of its kind."""
    parts = [
        part
        for path in _matching_files(folder, reader.files)
        if (part := reader.results(path)) is not None
    ]
    if not parts:
        return None
    return list(itertools.islice(itertools.chain(*parts), MOST_SAMPLES + 1))


def group_repeated_samples(results: Sequence[Result]) -> Iterator[Sample]:
    """
    The samples of *results*; those that were asked the same are a group.

    Repeats and copies tell nothing of other questions, whatever they are called.
    """
    same_as: dict[str, str] = {}
    asked_by: dict[str, str] = {}

    def root_unit_of(unit: str) -> str:
        while unit in same_as:
            unit = same_as[unit]
        return unit

    for result in results:
        own = result.sample.unit
        other = asked_by.setdefault(result.asked, own) if result.asked else own
        own, other = root_unit_of(own), root_unit_of(other)
        if own != other:
            same_as[own] = other
    for result in results:
        unit = root_unit_of(result.sample.unit)
        is_same = unit in {result.sample.unit, result.sample.id}
        yield result.sample if is_same else replace(result.sample, group=unit)


def _matching_files(folder: Path, pattern: str) -> list[Path]:
    """Files below *folder* that fit *pattern*, sorted; at most `MOST_FILES`."""
    paths = (path for path in folder.rglob(pattern) if path.is_file())
    return sorted(itertools.islice(paths, MOST_FILES))


def _check_samples(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """*samples*; stops at none, too many, or two results of one attempt."""
    if not samples:
        raise Unreadable(reason="there is no sample in them")
    if len(samples) > MOST_SAMPLES:
        raise Unreadable(reason=f"there are more than {MOST_SAMPLES:,} samples")
    seen: set[tuple[str, int]] = set()
    for sample in samples:
        if sample.attempt_key in seen:
            tries = f", try {sample.seed}" if sample.seed else ""
            raise Unreadable(
                reason=f"two results of '{escape_invisible(sample.id)}'{tries}"
            )
        seen.add(sample.attempt_key)
    return tuple(samples)


def _storable_sample(identity: object, score: object, **facts: Any) -> Sample:
    """
    A sample whose texts can be stored; without a score it has an error.

    *facts* are its further fields.

    Raises:
        Unreadable: If its score is something else than a number from 0 to 1: that is
            another scale, or another kind of score, for all samples. NaN, infinity and
            null are no score of this one.
    """
    facts = {
        key: _mask_and_cut(value) if isinstance(value, str) else value
        for key, value in facts.items()
    }
    name, number = _mask_and_cut(str(identity)), 0.0
    if not facts.get("error"):
        number, facts["error"] = _score_and_fault(name, score)
    return Sample(id=name, score=number, **facts)


def _score_and_fault(name: str, score: object) -> tuple[float, str]:
    """
    The *score* of the sample *name* and an empty text; or 0, and why it has none.

    Stops at what is no number from 0 to 1, but for None, NaN and infinity.
    """
    if score is None:
        return 0.0, "no score"
    if not isinstance(score, int | float):
        told = escape_invisible(_mask_and_cut(repr(score))[:40])
        raise Unreadable(
            reason=f"the score of '{escape_invisible(name)}' is {told}, no number",
            hint="Use a scorer with a number, or a task with a score for each sample: "
            "exact_match, acc.",
        )
    try:
        return checked_sample_score(score), ""
    except NoScore as error:
        if math.isfinite(score):
            what = str(error).removeprefix("its score is ")
            reason = f"the score of '{escape_invisible(name)}' is {what}"
            raise Unreadable(reason=reason) from error
        return 0.0, str(error)


_NO_GRADE = re.compile(
    r"""
    (\w*error: \s*)?(
        no \s output \s* $
        | grade \s not \s found \s in \s model \s output
        | (could \s not \s extract | invalid) \s json \s from \s
        | [\w-]+ \s produced \s malformed \s response
        | (?! (an? | it | its | that | the | this | answer | output | response) \b )
          (\w+ \s){0,2} (api | http | provider | network | request | embedding | grader
          | judge | fetch) (\s \w+){0,2} \s (error | failed | failure | timed \s out)
          \b (?! \s \w)
        | (\w+ \s)? api \s key (\s is)? \s (not \s set | missing | invalid | required)
        | (error \s code: \s | http \s | status \s)? (408 | 429 | 5\d\d) \s
          (request \s time-?out | too \s many \s requests | internal \s server \s error
          | bad \s gateway | service \s unavailable | gateway \s time-?out)
        | (error \s code: \s | http \s | status \s) (408 | 429 | 5\d\d) \b
        | (fetch \s failed | request \s (was \s)? (aborted | timed \s out)
          | rate \s limit(ed | \s exceeded) | connection \s (error | refused | reset
          | timed \s out) | service \s unavailable | too \s many \s requests
          | (read \s | connect \s)? e(connrefused | connreset | timedout | notfound)
          ) \b (?! \s (?! (after | because | while) \b) \w)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
"""
Beginnings of reasons of a service that failed while it graded, which say nothing of
the answer.

Source: what matchers and providers of promptfoo, and scorers of inspect_ai, write in
such a case, as of 2026-11; their score is then 0.
"""


def is_grader_failure(reason: str) -> bool:
    """Whether *reason* is that of what graded a sample, and of none of its answers."""
    return _NO_GRADE.match(reason.strip()) is not None


def _sha256_or_empty(asked: object) -> str:
    """Hash of what was *asked*, whatever the order of keys; empty of nothing."""
    if not asked:
        return ""
    text = json.dumps(asked, sort_keys=True)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _mask_and_cut(text: str) -> str:
    """*text* as it is stored: masked before it is cut."""
    return mask_text(one_line(replace_surrogates(text)))[:ID_LENGTH]


def _read_bytes(path: Path) -> bytes:
    """The content of a file; stops at one beyond `FILE_LIMIT_BYTES`."""
    length = path.stat().st_size
    if length > FILE_LIMIT_BYTES:
        raise Unreadable(reason=f"{path.name} has {size_text(length)}")
    return files.read_regular(path) or b""


def _parse_json(data: bytes, *, place: str) -> Any:
    """
    What JSON says, with NaN and Infinity as Python and others write them.

    Raises:
        Unreadable: If it is none.
    """
    try:
        return json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        reason = f"{place}: no JSON from character {error.pos + 1} on: {error.msg}"
        raise Unreadable(reason=one_line(reason)) from error
    except (ValueError, RecursionError) as error:
        raise Unreadable(reason=f"{place}: {one_line(str(error))}") from error


def _convert_to_layout(value: Any, layout: type[_Layout], *, place: str) -> _Layout:
    """*value* as a *layout*; stops where it does not fit, naming the *place*."""
    try:
        return msgspec.convert(value, type=layout)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Unreadable(reason=f"{place}: {one_line(str(error))}") from error


def _read_json_lines(
    path: Path, layout: type[_Layout]
) -> Iterator[tuple[str, _Layout]]:
    """Place and contents of each line that is not blank."""
    for number, line in enumerate(_read_bytes(path).split(b"\n"), start=1):
        if line.strip():
            place = f"{path.name}, line {number}"
            yield (
                place,
                _convert_to_layout(_parse_json(line, place=place), layout, place=place),
            )


def _read_json_or_none(path: Path) -> Any:
    """The JSON in a file; None if it holds none, or cannot be read."""
    try:
        return _parse_json(_read_bytes(path), place=path.name)
    except Unreadable:
        return None


def _read_json_member(path: Path, layout: type[_Layout], *keys: str) -> _Layout | None:
    """
    The value below *keys*, each within the one before, of a JSON object in a file.

    None if the file is not a JSON object with these keys.

    Raises:
        Unreadable: If the value is no *layout*.
    """
    value = _read_json_or_none(path)
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return _convert_to_layout(value, layout, place=".".join((f"{path.name}, ", *keys)))


# --- our own lines


class _SampleLine(Struct, forbid_unknown_fields=True):
    id: str | int
    score: float | bool | None = None
    group: str = ""
    seed: int = 0
    prompt_sha: str = ""
    tokens: int = 0
    error: str = ""


def _results_of_lines(path: Path) -> Iterator[Result]:
    """Lines: ``{"id", "score": 0..1, "group"?, "seed"?, "prompt_sha"?, "error"?}``."""
    for _, line in _read_json_lines(path, _SampleLine):
        sample = _storable_sample(
            line.id,
            line.score,
            group=line.group,
            seed=line.seed,
            prompt=line.prompt_sha,
            error=line.error,
        )
        yield Result(sample, line.prompt_sha)


# --- lm-eval


_TIME = re.compile(r"_\d{4}-\d\d-\d\dT.*")
"""What follows the task in the name of a file."""


LOWER_IS_BETTER = frozenset(
    {
        "brier_score",
        "bits_per_byte",
        "byte_perplexity",
        "perplexity",
        "ter",
        "wer",
        "word_perplexity",
    }
)
"""
Metrics of lm-eval that are errors, where its results do not say so.

Source: all that ``lm_eval/api/metrics.py`` registers with ``higher_is_better=False``
(0.4.13); wer is one of a task, ``wmt-ro-en-t5-prompt``.
"""


def _is_lower_better(path: Path, task: str, metric: str) -> bool:
    """
    Whether less of a *metric* is better, by the first results beside *path* to say so.

    Where none does, by `LOWER_IS_BETTER`.
    """
    layout = dict[str, dict[str, bool | None]]
    for results in sorted(path.parent.glob("results_*.json")):
        stated = (_read_json_member(results, layout, "higher_is_better") or {}).get(
            task, {}
        )
        if (is_higher := stated.get(metric)) is not None:
            return not is_higher
    return metric in LOWER_IS_BETTER


class _LmEvalRow(Struct):
    doc_id: int
    doc_hash: str = ""
    prompt_hash: str = ""
    filter: str = "none"
    metrics: tuple[str, ...] = ()
    arguments: Any = None
    target: Any = None


def _results_of_lm_eval(path: Path) -> Iterator[Result]:
    """
    Results of rows of lm-eval, one for each sample and filter, by the first metric.

    Where less of it is better, 1 minus it. Filters of one sample are a group: they
    grade the same reply.
    """
    task = _TIME.sub("", path.stem.removeprefix("samples_"))
    is_error = functools.cache(functools.partial(_is_lower_better, path, task))
    for place, raw in _read_json_lines(path, dict[str, Any]):
        row = _convert_to_layout(raw, _LmEvalRow, place=place)
        named = row.metrics[0] if row.metrics else "none"
        score = raw.get(named, "none")
        if not isinstance(score, int | float | None):
            raise Unreadable(
                reason=f"{place}: its metric ({escape_invisible(named)}) is no number",
                hint="Use a task with a score for each sample: exact_match, acc.",
            )
        if score is not None and is_error(named):
            score = 1 - score
        document = f"{task}:{row.doc_id}:{row.doc_hash[:12]}"
        name, prompt = f"{document}:{row.filter}", row.prompt_hash
        asked = _sha256_or_empty(row.arguments and [task, row.arguments, row.target])
        yield Result(
            _storable_sample(name, score, group=document, prompt=prompt), asked
        )


# --- inspect_ai


class _InspectScore(Struct):
    value: Any
    explanation: str | None = None


class _InspectError(Struct):
    message: str = "failed"


class _InspectLimit(Struct):
    type: str = ""


class _InspectSample(Struct):
    id: str | int
    epoch: int = 1
    input: Any = None
    target: Any = None
    scores: dict[str, _InspectScore] | None = None
    error: _InspectError | None = None
    limit: _InspectLimit | None = None


class _InspectScorer(Struct):
    name: str


class _InspectEval(Struct):
    task: str
    scorers: tuple[_InspectScorer, ...] | None = None


class _InspectLog(Struct):
    eval: _InspectEval
    status: str = "success"
    samples: tuple[_InspectSample, ...] | None = None


_INSPECT_VALUES: Mapping[Any, float] = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Correct, partial, incorrect, no answer."""

_INSPECT_ENDS = frozenset({"cost", "operator", "time", "working"})
"""Limits of a sample that say nothing of its answer: others are of the model's text."""


def _results_of_inspect(path: Path) -> Iterator[Result] | None:
    """
    Results by the first scorer of a JSON log of inspect_ai, whose epochs are attempts.

    None if *path* is another file.

    Raises:
        Unreadable: If it is the log of an evaluation that is not done.
    """
    if _read_json_member(path, str, "eval", "task") is None:
        return None
    log = _convert_to_layout(_read_json_or_none(path), _InspectLog, place=path.name)
    if log.status != "success":  # some samples are missing, in the first cell for all
        reason = f"{path.name} says that it is not done: {escape_invisible(log.status)}"
        raise Unreadable(reason=reason, hint="See its log.")
    return (_result_of_inspect_sample(log.eval, sample) for sample in log.samples or ())


def _result_of_inspect_sample(task: _InspectEval, sample: _InspectSample) -> Result:
    """The result of *sample* by the first scorer of *task* that has one."""
    scores = sample.scores or {}
    names = (*(scorer.name for scorer in task.scorers or ()), *scores)
    chosen = next((scores[name] for name in names if name in scores), None)
    value = chosen.value if chosen else None
    read = _storable_sample(
        f"{task.task}:{sample.id}",
        _INSPECT_VALUES.get(value, value) if isinstance(value, str) else value,
        seed=sample.epoch,
        error=_inspect_unscored_reason(sample, chosen),
    )
    asked = [task.task, sample.input, sample.target]
    return Result(read, _sha256_or_empty(sample.input and asked))


def _inspect_unscored_reason(
    sample: _InspectSample, score: _InspectScore | None
) -> str:
    """
    Why a sample has no score though one may be stated; empty if it has.

    Its own error first, then a limit of time, then what its grader explains.
    """
    if sample.error:
        return sample.error.message or "failed"
    if sample.limit and sample.limit.type in _INSPECT_ENDS:
        return f"ended by a limit of {sample.limit.type}"
    explanation = (score and score.explanation) or ""
    return explanation if is_grader_failure(explanation) else ""


# --- promptfoo


class _PromptfooGrade(Struct, rename="camel"):
    reason: str | None = None
    component_results: "tuple[_PromptfooGrade | None, ...] | None" = None

    @property
    def grader_failure_reason(self) -> str:
        """The first reason, of its own or its parts, that a grader failed; or empty."""
        parts = filter(None, self.component_results or ())
        reasons = (self.reason or "", *(part.grader_failure_reason for part in parts))
        return next(filter(is_grader_failure, reasons), "")


class _PromptfooPrompt(Struct):
    raw: Any = None


class _PromptfooCase(Struct):
    vars: Any = None


class _PromptfooResult(Struct, rename="camel"):
    test_idx: int
    prompt_idx: int = 0
    score: float | None = None
    error: str | None = None
    failure_reason: int = 0
    grading_result: _PromptfooGrade | None = None
    prompt: _PromptfooPrompt | None = None
    vars: Any = None
    test_case: _PromptfooCase | None = None

    @property
    def question_hash(self) -> str:
        """Hash of the variables, else of the prompt: the same of repeats."""
        variables = self.vars or (self.test_case and self.test_case.vars)
        return _sha256_or_empty(variables) or _sha256_or_empty(
            self.prompt and self.prompt.raw
        )

    def unscored_reason(self, *, is_graded: bool) -> str:
        """
        Why it has no score though one is stated; empty if it has.

        The error of an assertion that failed is the reason of its grade.

        Args:
            is_graded: Whether the file has grades, which may be left out of all.
        """
        grade, error = self.grading_result, self.error or ""
        if self.failure_reason == _PROMPTFOO_FAILED:
            return error or "failed"
        if grade is None:
            is_failed = is_graded or is_grader_failure(error)
            is_other = bool(error) and not self.failure_reason
            return error or "no grade" if is_failed or is_other else ""
        is_other = bool(error) and error != grade.reason
        return grade.grader_failure_reason or (
            error if is_grader_failure(error) or is_other else ""
        )


_PROMPTFOO_FAILED = 2
"""Value of failureReason if the provider failed; 1 is an assertion that failed."""


def _results_of_promptfoo(path: Path) -> Iterator[Result] | None:
    """
    Results of promptfoo's JSON; prompts and repeats of one test are a group.

    None if *path* is another file.

    An assertion that fails ends the program with an error, unless its environment has
    ``PROMPTFOO_FAILED_TEST_EXIT_CODE=0``.
    """
    results = _read_json_member(
        path, tuple[_PromptfooResult, ...], "results", "results"
    )
    if results is None:
        return None
    is_graded = any(result.grading_result for result in results)
    return (
        Result(
            _storable_sample(
                f"test {result.test_idx} prompt {result.prompt_idx}",
                result.score,
                group=f"test {result.test_idx}",
                error=result.unscored_reason(is_graded=is_graded),
            ),
            result.question_hash,
        )
        for result in results
    )


READERS: Mapping[str, Reader] = {
    LINES_NAME: Reader(files=LINES, results=_results_of_lines),
    "lm-eval": Reader(files="samples_*.jsonl", results=_results_of_lm_eval),
    "inspect": Reader(files="*.json", results=_results_of_inspect),
    "promptfoo": Reader(files="*.json", results=_results_of_promptfoo),
}
"""Readers by the name that ``--eval-read`` takes."""
