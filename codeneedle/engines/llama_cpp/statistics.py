"""What llama-perplexity prints, parsed: statistics, chunks, perplexity, errors."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from codeneedle.engines.llama_cpp.base_file import Lengths
from codeneedle.engines.llama_cpp.log import COUNT, lines
from codeneedle.engines.tools import ChunkValues, Estimate, Statistics

PPL_STEP = 1e-4
"""How exact a printed perplexity is, and so its logarithm, as it is at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What the tool announces to compute."""

    chunks: int  # pieces of text
    context: int  # length of each, in tokens


def statistics(log_text: str) -> Statistics | None:
    """
    The statistics of a comparison; None unless they are complete.

    The tool exits 0 whatever happened, prints running values before it fails,
    and logs two errors that it then ignores. So each line must be there once and in
    order, each value must be a number, and no line may state an error.
    """
    lines = list(_stripped_lines(log_text))
    found = _all_statistics(lines)
    if found is None or found.fault or failure(log_text) is not None:
        return None
    announced = announced_size(log_text)
    if announced is None or _rows(lines) != list(range(1, announced.chunks + 1)):
        return None
    return found


def impossible_statistics(log_text: str) -> str:
    """What of the statistics cannot be, as a phrase; empty if all can, or are cut."""
    found = _all_statistics(_stripped_lines(log_text))
    return found.fault if found else ""


def nan_from(log_text: str) -> int | None:
    """
    From which token of its text on the tool computes NaN; None if it does not.

    It is the first scored one of the first chunk that has NaN; 0 if no chunk tells.
    """
    chunks = [int(number) for number, told in _WRITTEN.findall(log_text) if _nan(told)]
    lines = [line for line in _stripped_lines(log_text) if _nan(line)]
    rows = filter(None, map(_ROW.fullmatch, lines))
    chunks += [int(row["chunk"]) for row in rows if _nan(row["ppl"] + row["kld"])]
    announced = announced_size(log_text)
    if chunks and announced is not None:
        at = announced.context
        return (min(chunks) - 1) * at + at // 2 + 1
    labelled = filter(None, map(_field_and_estimate, lines))
    is_nan = any(math.isnan(estimate.value) for _, estimate in labelled)
    final = filter(None, map(_FINAL.fullmatch, lines))
    is_final = any(_nan(match["value"]) for match in final)
    return 0 if chunks or is_nan or is_final else None


def by_chunk(log_text: str, *, tokens: int) -> tuple[ChunkValues, ...]:
    """
    Each chunk by itself, from the means so far that a complete comparison prints.

    Their last digits are rounded: to 4 decimals for perplexities, 5 for divergences.
    So of chunk i a log-probability is exact to i / 10,000 by the perplexity, in nats,
    and a divergence to i / 100,000. The share of first choices is exact.

    Args:
        log_text: Of the comparison.
        tokens: Scored tokens of each chunk.

    Returns:
        Empty where a value is none that can be.
    """
    sums = [(0.0, 0.0, 0)]
    for row in filter(None, map(_ROW.fullmatch, _stripped_lines(log_text))):
        chunks, ppl = int(row["chunk"]), float(row["ppl"])
        kld, top = float(row["kld"]), float(row["top"])
        if not all(map(math.isfinite, (ppl, kld, top))) or ppl <= 0:
            return ()
        same = round(top / 100 * tokens * chunks)
        sums.append((chunks * math.log(ppl), chunks * kld, same))
    pairs = list(itertools.pairwise(sums))
    logps = [before[0] - now[0] for before, now in pairs]
    if any(logp > at * PPL_STEP for at, logp in enumerate(logps, start=1)):
        return ()
    return tuple(
        ChunkValues(
            logp=round(min(0.0, logp), 6) + 0.0,
            kld=round(now[1] - before[1], 6) + 0.0,
            same_top=round(100 * (now[2] - before[2]) / tokens, 4),
        )
        for logp, (before, now) in zip(logps, pairs, strict=True)
    )


def final_perplexity(log_text: str) -> Estimate | None:
    """The perplexity of a run that wrote a base file; None unless it is complete."""
    match = _only(_FINAL.fullmatch(line) for line in _stripped_lines(log_text))
    if match is None or failure(log_text) is not None:
        return None
    estimate = _estimate(match["value"], match["error"])
    return estimate if math.isfinite(estimate.value) else None


def ends_early(log_text: str) -> bool:
    """
    Whether the log holds neither its last line nor NaN nor an error.

    A thread of the tool writes its log, and ends with the process, whatever it still
    had to write: llama.cpp #22142. Seen with b11434, a small model and a busy machine.
    A log whose last line is there was not cut, whatever it says.
    """
    lines = list(_stripped_lines(log_text))
    labelled = [name for name, _ in filter(None, map(_field_and_estimate, lines))]
    is_ended = _ORDER[-1] in labelled or any(map(_FINAL.fullmatch, lines))
    return not is_ended and nan_from(log_text) is None and failure(log_text) is None


def announced_size(log_text: str) -> Size | None:
    """What the tool announced to compute; None if it did not get so far."""
    match = _only(_SIZE.search(line) for line in _stripped_lines(log_text))
    if match is None:
        return None
    return Size(chunks=int(match["chunks"]), context=int(match["context"]))


def chunks_done(log_text: str) -> int:
    """How many chunks are done, in either of the tool's two modes."""
    written = [int(number) for number, _ in _WRITTEN.findall(log_text)]
    return max([*written, *_rows(_stripped_lines(log_text))], default=0)


def failure(log_text: str) -> str | None:
    """The first line that states an error, even one that the tool ignores; or None."""
    for line in lines(log_text):
        if _FAILURE.search(line):
            return " ".join(line.split())
    return None


def too_short(log_text: str) -> Lengths | None:
    """How many tokens the text lacks, if the tool says so; else None."""
    needed, present = _NEEDED.search(log_text), _PRESENT.search(log_text)
    if needed is None or present is None:
        return None
    return Lengths(needed=int(needed[1]), present=int(present[1]))


_NUMBER = r"[-+]?(?:\d+\.\d+|nan|inf)"

_FINAL = re.compile(
    rf"Final estimate: PPL = (?P<value>{_NUMBER}) \+/- (?P<error>{_NUMBER})"
)
_SIZE = re.compile(
    rf"(?:over|computing) (?P<chunks>{COUNT}) chunks, n_ctx=(?P<context>{COUNT})"
)
_WRITTEN = re.compile(rf"\[({COUNT})\]([-\d.naif]+),")
_ROW = re.compile(
    rf"\s*(?P<chunk>\d+)\s+(?P<ppl>{_NUMBER}) ± +{_NUMBER}\s+{_NUMBER} ± +{_NUMBER}"
    rf"\s+(?P<kld>{_NUMBER}) ± +{_NUMBER}\s+{_NUMBER} ± +{_NUMBER} %"
    rf"\s+(?P<top>{_NUMBER}) ± +{_NUMBER} %"
)
_NEEDED = re.compile(rf"you need at least ({COUNT}) tokens")
_PRESENT = re.compile(rf"tokenizes to only ({COUNT}) tokens")

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


def _stripped_lines(log_text: str) -> Iterator[str]:
    return (line.rstrip() for line in lines(log_text))


def _field_and_estimate(line: str) -> tuple[str, Estimate] | None:
    """A complete line of the statistics, by its field's name; None if it is none."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        return None
    name = _LABELS.get(" ".join(match["label"].split()))
    if name is None or (match["error"] is not None) != (name in _WITH_ERROR):
        return None
    if (match["percent"] is not None) != (name in {"dp_mean", "dp_rms", "same_top"}):
        return None
    return name, _estimate(match["value"], match["error"])


def _estimate(value: str, error: str | None) -> Estimate:
    # A tiny number is printed with a sign: -0.000000.
    number = float(value) + 0.0
    spread = math.nan if error is None else float(error)
    return Estimate(number, spread if math.isfinite(spread) else None)


def _rows(lines: Iterable[str]) -> list[int]:
    """The numbers of the chunks that have a line in a comparison, in order."""
    matches = map(_ROW.fullmatch, lines)
    return [int(match["chunk"]) for match in matches if match]


def _only(matches: Iterable[re.Match[str] | None]) -> re.Match[str] | None:
    """The one match there is; None if there are none or several."""
    present = [match for match in matches if match is not None]
    return present[0] if len(present) == 1 else None


def _nan(told: str) -> bool:
    return "nan" in told


def _all_statistics(lines: Iterable[str]) -> Statistics | None:
    """The statistics whose lines are all there, once and in order; else None."""
    labelled = list(filter(None, map(_field_and_estimate, lines)))
    names = [name for name, _ in labelled]
    is_whole = names in (_ORDER, _ORDER_WITHOUT_95)
    return _statistics(dict(labelled)) if is_whole else None


def _statistics(values: dict[str, Estimate]) -> Statistics:
    fields = {
        name: value if name in _WITH_ERROR else value.value
        for name, value in values.items()
    }
    return Statistics(**{"kld_95": None, **fields})  # type: ignore[arg-type]
