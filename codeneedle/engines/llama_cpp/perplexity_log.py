"""The parser of llama-perplexity's output: statistics, progress, failures."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from codeneedle.engines.engine import Estimate, Statistics
from codeneedle.engines.llama_cpp import log as logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """
    What the tool announces to compute.

    Attributes:
        chunks: Pieces of text.
        context: Length of each, in tokens.
    """

    chunks: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TooShort:
    """
    What the tool says of a text that is too short, in tokens.

    Attributes:
        needed: What it takes at least.
        found: What the text has.
    """

    needed: int
    found: int


def statistics(log_text: str) -> Statistics | None:
    """
    The statistics of a comparison; None unless they are complete.

    The tool exits 0 whatever happened, prints running values before it fails,
    and logs two errors that it then ignores. So each line must be there once and in
    order, each value must be a number, and no line may state an error.
    """
    lines = list(_stripped(log_text))
    found = [read for read in map(_labelled, lines) if read is not None]
    names = [name for name, _ in found]
    if names not in (_ORDER, _ORDER_WITHOUT_95) or failure(log_text) is not None:
        return None
    asked = size(log_text)
    if asked is None or _rows(lines) != list(range(1, asked.chunks + 1)):
        return None
    values = dict(found)
    if not all(math.isfinite(estimate.value) for estimate in values.values()):
        return None
    return _statistics(values)


def final_perplexity(log_text: str) -> Estimate | None:
    """The perplexity of a run that wrote a base file; None unless it is complete."""
    found = _only(_FINAL.fullmatch(line) for line in _stripped(log_text))
    if found is None or failure(log_text) is not None:
        return None
    estimate = _estimate(found["value"], found["error"])
    return estimate if math.isfinite(estimate.value) else None


def ends_early(log_text: str) -> bool:
    """
    Whether the log holds neither a result nor an error.

    A thread of the tool writes its log, and ends with the process, whatever it still
    had to write: llama.cpp #22142. Seen with b11434, a small model and a busy machine.
    """
    result = statistics(log_text) or final_perplexity(log_text)
    return result is None and failure(log_text) is None


def size(log_text: str) -> Size | None:
    """What the tool announced to compute; None if it did not get so far."""
    found = _only(_SIZE.search(line) for line in _stripped(log_text))
    if found is None:
        return None
    return Size(chunks=int(found["chunks"]), context=int(found["context"]))


def chunks_done(log_text: str) -> int:
    """How many chunks are done, in either of the tool's two modes."""
    written = [int(number) for number in _WRITTEN.findall(log_text)]
    return max([*written, *_rows(_stripped(log_text))], default=0)


def failure(log_text: str) -> str | None:
    """The first line that states an error, even one that the tool ignores; or None."""
    for line in logs.lines(log_text):
        if _FAILURE.search(line):
            return " ".join(line.split())
    return None


def too_short(log_text: str) -> TooShort | None:
    """How many tokens the text lacks, if the tool says so; else None."""
    needed, found = _NEEDED.search(log_text), _FOUND.search(log_text)
    if needed is None or found is None:
        return None
    return TooShort(needed=int(needed[1]), found=int(found[1]))


_NUMBER = r"[-+]?(?:\d+\.\d+|nan|inf)"

_FINAL = re.compile(
    rf"Final estimate: PPL = (?P<value>{_NUMBER}) \+/- (?P<error>{_NUMBER})"
)
_COUNT = r"\d{1,15}(?!\d)"
"""Python refuses to read numbers of thousands of digits."""

_SIZE = re.compile(
    rf"(?:over|computing) (?P<chunks>{_COUNT}) chunks, n_ctx=(?P<context>{_COUNT})"
)
_WRITTEN = re.compile(rf"\[({_COUNT})\][-\d.naif]+,")
_ROW = re.compile(
    rf"\s*(?P<chunk>\d+)\s+{_NUMBER} ± +{_NUMBER}\s+{_NUMBER} ± +{_NUMBER}"
    rf"\s+{_NUMBER} ± +{_NUMBER}(?:\s+{_NUMBER} ± +{_NUMBER} %){{2}}"
)
_NEEDED = re.compile(rf"you need at least ({_COUNT}) tokens")
_FOUND = re.compile(rf"tokenizes to only ({_COUNT}) tokens")

_FAILURE = re.compile(
    r"failed to decode"
    r"|failed reading"
    r"|does not look like a file containing log-probabilities"
    r"|you need at least \d+ tokens"
    r"|failed to open"
    r"|Unexpected negative standard deviation"
    # The tool prints these two and goes on.
    r"|has been computed with \d+, while the current context is"
    r"|inconsistent vocabulary"
)

_LABELS: dict[str, str] = {
    "Mean PPL(Q)": "ppl",
    "Mean PPL(base)": "ppl_base",
    "Mean PPL(Q)/PPL(base)": "ppl_ratio",
    "Mean KLD": "kld",
    "Maximum KLD": "kld_max",
    "99.9% KLD": "kld_999",
    "99.0% KLD": "kld_99",
    "95.0% KLD": "kld_95",
    "90.0% KLD": "kld_90",
    "Median KLD": "kld_median",
    "Minimum KLD": "kld_min",
    "Mean Δp": "dp_mean",
    "RMS Δp": "dp_rms",
    "Same top p": "same_top",
}
"""The lines that are kept, white space aside, in the order they are printed."""

_ORDER = list(_LABELS.values())
_ORDER_WITHOUT_95 = [name for name in _ORDER if name != "kld_95"]
_WITH_ERROR = frozenset(
    {"ppl", "ppl_base", "ppl_ratio", "kld", "dp_mean", "dp_rms", "same_top"}
)
_LINE = re.compile(
    rf"(?P<label>[^\s:]+(?:\s+[^\s:]+)*)\s*: +(?P<value>{_NUMBER})"
    rf"(?: ± +(?P<error>{_NUMBER}))?(?P<percent> ?%)?"
)


def _stripped(log_text: str) -> Iterator[str]:
    return (line.rstrip() for line in logs.lines(log_text))


def _labelled(line: str) -> tuple[str, Estimate] | None:
    """A complete line of the statistics, by its field's name; None if it is none."""
    found = _LINE.fullmatch(line.strip())
    if found is None:
        return None
    name = _LABELS.get(" ".join(found["label"].split()))
    if name is None or (found["error"] is not None) != (name in _WITH_ERROR):
        return None
    if (found["percent"] is not None) != (name in {"dp_mean", "dp_rms", "same_top"}):
        return None
    return name, _estimate(found["value"], found["error"])


def _estimate(value: str, error: str | None) -> Estimate:
    # A tiny number is printed with a sign: -0.000000.
    number = float(value) + 0.0
    spread = math.nan if error is None else float(error)
    return Estimate(number, spread if math.isfinite(spread) else None)


def _rows(lines: Iterable[str]) -> list[int]:
    """The numbers of the chunks that have a line in a comparison, in order."""
    matches = map(_ROW.fullmatch, lines)
    return [int(found["chunk"]) for found in matches if found]


def _only(matches: Iterable[re.Match[str] | None]) -> re.Match[str] | None:
    """The one match there is; None if there are none or several."""
    found = [match for match in matches if match is not None]
    return found[0] if len(found) == 1 else None


def _statistics(values: dict[str, Estimate]) -> Statistics:
    pairs = {name: values[name] for name in values if name in _WITH_ERROR}
    plain = {
        name: values[name].value
        for name in values
        if name not in _WITH_ERROR and name != "kld_95"
    }
    kld_95 = values["kld_95"].value if "kld_95" in values else None
    return Statistics(**pairs, **plain, kld_95=kld_95)  # type: ignore[arg-type]
