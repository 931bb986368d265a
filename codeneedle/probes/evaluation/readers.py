"""Reads the results of evaluations: our own lines, or the files of a known tool."""

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from codeneedle.errors import CellError
from codeneedle.probes.evaluation.record import Sample
from codeneedle.system import files
from codeneedle.system.secrets import masked
from codeneedle.text import harmless, one_line, size, visible

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
_Score = Annotated[float, Meta(ge=0, le=1)] | bool


class Unreadable(CellError):  # noqa: N818 - named after the fact
    """Results that are missing, damaged or of another kind."""

    def __init__(self, *, reason: str, hint: str = "") -> None:
        super().__init__(
            f"the evaluation's results cannot be read: {reason}",
            hint=hint or "Look at what it wrote, or name what wrote it: --eval-read",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads the results of one tool."""

    files: str  # pattern of the names of its files, at any depth of a folder
    samples: Callable[[Path], Iterator[Sample] | None]
    """Returns the samples of a file; None if it is another kind of file."""


def read(folder: Path, reader: str = AUTO) -> tuple[str, tuple[Sample, ...]]:
    """
    The reader that found results in *folder*, and their samples.

    Args:
        folder: Working folder of the evaluation.
        reader: A name in `READERS`, or `AUTO`.

    Raises:
        Unreadable: If there are none, one of them has no valid score, or what was left
            behind cannot be used in any other way: the sweep goes on.
    """
    try:
        return _read(folder, reader)
    except (OSError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        raise Unreadable(reason=_told(str(error)) or type(error).__name__) from error


def _read(folder: Path, reader: str) -> tuple[str, tuple[Sample, ...]]:
    names = [reader] if reader != AUTO else list(READERS)
    for name in names:
        samples = _samples(folder, READERS[name])
        if samples is not None:
            return name, _checked(samples)
    written = sorted(path.name for path in _files(folder, "*"))
    present = f"only {visible(', '.join(written[:3]))}" if written else "nothing"
    is_binary = any(name.endswith(".eval") for name in written)
    wanted = " or ".join(dict.fromkeys(READERS[name].files for name in names))
    raise Unreadable(
        reason=f"it wrote no {wanted}, {present}",
        hint="inspect_ai writes JSON with --log-format json" if is_binary else "",
    )


def _samples(folder: Path, reader: Reader) -> list[Sample] | None:
    parts = [
        part
        for path in _files(folder, reader.files)
        if (part := reader.samples(path)) is not None
    ]
    if not parts:
        return None
    return list(itertools.islice(itertools.chain(*parts), MOST_SAMPLES + 1))


def _files(folder: Path, pattern: str) -> list[Path]:
    paths = (path for path in folder.rglob(pattern) if path.is_file())
    return sorted(itertools.islice(paths, MOST_FILES))


def _checked(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    if not samples:
        raise Unreadable(reason="there is no sample in them")
    if len(samples) > MOST_SAMPLES:
        raise Unreadable(reason=f"there are more than {MOST_SAMPLES:,} samples")
    seen: set[tuple[str, int]] = set()
    for sample in samples:
        if sample.key in seen:
            tries = f", try {sample.seed}" if sample.seed else ""
            raise Unreadable(reason=f"two results of '{visible(sample.id)}'{tries}")
        seen.add(sample.key)
        if not 0 <= sample.score <= 1:
            raise Unreadable(
                reason=f"the score of '{visible(sample.id)}' is {sample.score:g}, not "
                "from 0 to 1"
            )
    return tuple(samples)


def _sample(identity: object, score: float | bool | None, **facts: Any) -> Sample:
    """A sample whose texts can be stored; without a score it has an error."""
    facts = {
        key: _told(value) if isinstance(value, str) else value
        for key, value in facts.items()
    }
    if score is None and not facts.get("error"):
        facts["error"] = "no score"
    if facts.get("error"):
        score = 0.0
    return Sample(id=_told(str(identity)), score=float(score or 0), **facts)


def _told(text: str) -> str:
    """*text* as it is stored: masked before it is cut."""
    return masked(one_line(harmless(text)))[:ID_LENGTH]


def _bytes(path: Path) -> bytes:
    length = path.stat().st_size
    if length > FILE_LIMIT_BYTES:
        raise Unreadable(reason=f"{path.name} has {size(length)}")
    return files.read_regular(path) or b""


def _decoded(data: bytes, layout: type[_Layout], *, place: str) -> _Layout:
    try:
        return msgspec.json.decode(data, type=layout)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise Unreadable(reason=f"{place}: {one_line(str(error))}") from error


def _lines(path: Path, layout: type[_Layout]) -> Iterator[tuple[str, _Layout]]:
    """Place and contents of each line that is not blank."""
    for number, line in enumerate(_bytes(path).split(b"\n"), start=1):
        if line.strip():
            place = f"{path.name}, line {number}"
            yield place, _decoded(line, layout, place=place)


def _member(path: Path, layout: type[_Layout], *keys: str) -> _Layout | None:
    """
    The value below *keys*, each within the one before, of a JSON object in a file.

    None if the file is not a JSON object with these keys.
    """
    try:
        value: Any = json.loads(_bytes(path))
    except (ValueError, RecursionError):
        return None
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    try:
        return msgspec.convert(value, type=layout)
    except (msgspec.ValidationError, RecursionError) as error:
        place = f"{path.name}, {'.'.join(keys)}"
        raise Unreadable(reason=f"{place}: {one_line(str(error))}") from error


# --- our own lines


class _SampleLine(Struct, forbid_unknown_fields=True):
    id: str | int
    score: _Score | None = None
    group: str = ""
    seed: int = 0
    prompt_sha: str = ""
    tokens: int = 0
    error: str = ""


def _of_lines(path: Path) -> Iterator[Sample]:
    """Lines: ``{"id", "score": 0..1, "group"?, "seed"?, "prompt_sha"?, "error"?}``."""
    for _, line in _lines(path, _SampleLine):
        yield _sample(
            line.id,
            line.score,
            group=line.group,
            seed=line.seed,
            prompt=line.prompt_sha,
            error=line.error,
        )


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


def _is_error(path: Path, task: str, metric: str) -> bool:
    """Whether less of a *metric* is better, by the results beside the samples."""
    layout = dict[str, dict[str, bool | None]]
    for results in sorted(path.parent.glob("results_*.json")):
        stated = (_member(results, layout, "higher_is_better") or {}).get(task, {})
        if (is_higher := stated.get(metric)) is not None:
            return not is_higher
    return metric in LOWER_IS_BETTER


class _LmEvalRow(Struct):
    doc_id: int
    doc_hash: str = ""
    prompt_hash: str = ""
    filter: str = "none"
    metrics: tuple[str, ...] = ()


def _of_lm_eval(path: Path) -> Iterator[Sample]:
    """
    A row of lm-eval for each sample and filter, with the first of its metrics; 1 less
    that metric if it is an error.

    Filters of one sample are a group: they grade the same reply.
    """
    task = _TIME.sub("", path.stem.removeprefix("samples_"))
    is_error = functools.cache(functools.partial(_is_error, path, task))
    for place, raw in _lines(path, dict[str, Any]):
        try:
            row = msgspec.convert(raw, type=_LmEvalRow)
        except msgspec.ValidationError as error:
            raise Unreadable(reason=f"{place}: {error}") from error
        score = raw.get(row.metrics[0]) if row.metrics else None
        if not isinstance(score, int | float):
            named = row.metrics[0] if row.metrics else "none"
            raise Unreadable(
                reason=f"{place}: its metric ({visible(named)}) is no number",
                hint="Use a task with a score for each sample: exact_match, acc.",
            )
        if is_error(row.metrics[0]):
            score = 1 - score
        document = f"{task}:{row.doc_id}:{row.doc_hash[:12]}"
        yield _sample(
            f"{document}:{row.filter}", score, group=document, prompt=row.prompt_hash
        )


# --- inspect_ai


class _InspectScore(Struct):
    value: Any


class _InspectError(Struct):
    message: str = "failed"


class _InspectSample(Struct):
    id: str | int
    epoch: int = 1
    scores: dict[str, _InspectScore] | None = None
    error: _InspectError | None = None


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


def _of_inspect(path: Path) -> Iterator[Sample] | None:
    """A JSON log of inspect_ai, by the first of its scorers; epochs are attempts."""
    if _member(path, str, "eval", "task") is None:
        return None
    log = _decoded(_bytes(path), _InspectLog, place=path.name)
    if log.status != "success":  # some samples are missing, in the first cell for all
        reason = f"{path.name} says that it is not done: {visible(log.status)}"
        raise Unreadable(reason=reason, hint="See its log.")
    return (_of_inspect_sample(log.eval, sample) for sample in log.samples or ())


def _of_inspect_sample(task: _InspectEval, sample: _InspectSample) -> Sample:
    scores = sample.scores or {}
    names = (*(scorer.name for scorer in task.scorers or ()), *scores)
    chosen = next((name for name in names if name in scores), None)
    score = None
    if chosen is not None:
        value = scores[chosen].value
        score = _INSPECT_VALUES.get(value) if isinstance(value, str) else value
        if not isinstance(score, int | float):
            raise Unreadable(
                reason=f"the score of '{visible(str(sample.id))}' by {chosen} is "
                f"{visible(_told(repr(value))[:40])}, no number",
            )
    return _sample(
        f"{task.task}:{sample.id}",
        score,
        seed=sample.epoch,
        error=sample.error.message if sample.error else "",
    )


# --- promptfoo


class _PromptfooResult(Struct, rename="camel"):
    test_idx: int
    prompt_idx: int = 0
    score: float | None = None
    success: bool | None = None
    error: str | None = None
    failure_reason: int = 0


_PROMPTFOO_FAILED = 2
"""Value of failureReason if the provider failed; 1 is an assertion that failed."""


def _of_promptfoo(path: Path) -> Iterator[Sample] | None:
    """
    The JSON output of promptfoo; prompts of one test are a group.

    An assertion that fails ends the program with an error, unless its environment has
    ``PROMPTFOO_FAILED_TEST_EXIT_CODE=0``.
    """
    results = _member(path, tuple[_PromptfooResult, ...], "results", "results")
    if results is None:
        return None
    return (
        _sample(
            f"test {result.test_idx} prompt {result.prompt_idx}",
            result.score,
            group=f"test {result.test_idx}",
            error=(result.error or "failed")
            if result.failure_reason == _PROMPTFOO_FAILED
            else "",
        )
        for result in results
    )


READERS: Mapping[str, Reader] = {
    LINES_NAME: Reader(files=LINES, samples=_of_lines),
    "lm-eval": Reader(files="samples_*.jsonl", samples=_of_lm_eval),
    "inspect": Reader(files="*.json", samples=_of_inspect),
    "promptfoo": Reader(files="*.json", samples=_of_promptfoo),
}
"""Readers by the name that ``--eval-read`` takes."""
