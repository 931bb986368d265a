"""What llama-perplexity prints, parsed: chunks, perplexity, errors."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from codeneedle.engines.llama_cpp.base_file import Lengths
from codeneedle.engines.llama_cpp.log import COUNT, cleaned_lines
from codeneedle.engines.tools import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What the tool announces to compute."""

    chunks: int  # pieces of text
    context: int  # length of each, in tokens


def first_nan_token_in_log(log_text: str) -> int | None:
    """
    From which token of its text on the tool computes NaN; None if it does not.

    It is the first scored one of the first chunk that has NaN, counted from 1; 0 if no
    chunk tells.
    """
    chunks = [
        int(number) for number, told in _WRITTEN.findall(log_text) if _is_nan(told)
    ]
    announced = announced_chunks_and_context(log_text)
    if chunks and announced is not None:
        at = announced.context
        return (min(chunks) - 1) * at + at // 2 + 2
    final = filter(None, map(_FINAL.fullmatch, _right_stripped_lines(log_text)))
    is_final = any(_is_nan(match["value"]) for match in final)
    return 0 if chunks or is_final else None


def final_perplexity(log_text: str) -> Estimate | None:
    """The perplexity of a run that wrote a base file; None unless it is complete."""
    match = _only_match(
        _FINAL.fullmatch(line) for line in _right_stripped_lines(log_text)
    )
    if match is None or find_error_line(log_text) is not None:
        return None
    estimate = _parse_estimate(match["value"], match["error"])
    return estimate if math.isfinite(estimate.value) else None


def is_log_cut_off(log_text: str) -> bool:
    """
    Whether the log holds neither its last line nor NaN nor an error.

    A thread of the tool writes its log, and ends with the process, whatever it still
    had to write: llama.cpp #22142. Seen with b11434, a small model and a busy machine.
    A log whose last line is there was not cut, whatever it says.
    """
    is_ended = any(map(_FINAL.fullmatch, _right_stripped_lines(log_text)))
    return (
        not is_ended
        and first_nan_token_in_log(log_text) is None
        and find_error_line(log_text) is None
    )


def announced_chunks_and_context(log_text: str) -> Size | None:
    """What the tool announced to compute; None if it did not get so far."""
    match = _only_match(_SIZE.search(line) for line in _right_stripped_lines(log_text))
    if match is None:
        return None
    return Size(chunks=int(match["chunks"]), context=int(match["context"]))


def chunks_done(log_text: str) -> int:
    """How many chunks are done; 0 if the log does not say."""
    return max((int(number) for number, _ in _WRITTEN.findall(log_text)), default=0)


def find_error_line(log_text: str) -> str | None:
    """The first line that states an error, even one that the tool ignores; or None."""
    for line in cleaned_lines(log_text):
        if _FAILURE.search(line):
            return " ".join(line.split())
    return None


def lengths_if_text_too_short(log_text: str) -> Lengths | None:
    """Tokens that the text has and needs, if the tool says it is too short; or None."""
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
_NEEDED = re.compile(rf"you need at least ({COUNT}) tokens")
_PRESENT = re.compile(rf"tokenizes to only ({COUNT}) tokens")

_FAILURE = re.compile(
    r"failed to decode"
    r"|you need at least \d+ tokens"
    r"|failed to open"
    r"|Unexpected negative standard deviation"
)


def _right_stripped_lines(log_text: str) -> Iterator[str]:
    """The lines without white space at their ends."""
    return (line.rstrip() for line in cleaned_lines(log_text))


def _parse_estimate(value: str, error: str | None) -> Estimate:
    """A number, maybe NaN, with its error: None if that is untold or not finite."""
    # A tiny number is printed with a sign: -0.000000.
    number = float(value) + 0.0
    spread = math.nan if error is None else float(error)
    return Estimate(number, spread if math.isfinite(spread) else None)


def _only_match(matches: Iterable[re.Match[str] | None]) -> re.Match[str] | None:
    """The one match there is; None if there are none or several."""
    present = [match for match in matches if match is not None]
    return present[0] if len(present) == 1 else None


def _is_nan(told: str) -> bool:
    return "nan" in told
