"""
Requests that are sent again while a server is busy, and when; what to do about other
refusals: a key, a wrong URL, a redirect.
"""

import contextlib
import datetime as dt
import math
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from typing import TypeVar

from codeneedle.engines.messages import Refused

_Answer = TypeVar("_Answer")

BUSY = frozenset({429, 500, 502, 503, 504, 529})
"""Status codes after which the same request is sent again."""

WANTS_KEY = frozenset({401, 403})
NOT_FOUND = frozenset({404, 405})

KEY_HINT = "Name the variable with the key: --api-key-env NAME"

WAITS_S = (0.5, 2.0, 8.0, 30.0)
"""How long to wait before each further attempt, unless the server says how long."""

LONGEST_WAIT_S = 600.0
"""A server that wants a longer pause is not waited for."""


def ask_patiently(
    ask: Callable[[], _Answer],
    *,
    sleep: Callable[[float], None],
    waits_s: Sequence[float] = WAITS_S,
) -> _Answer:
    """
    What *ask* returns; it is called again while the server is busy.

    Args:
        ask: Sends one request.
        sleep: Waits so many seconds.
        waits_s: Seconds before each further attempt, unless the server says how long.

    Raises:
        Refused: As *ask* does, with a hint, once the server is not busy, wants a longer
            pause than `LONGEST_WAIT_S`, or all attempts are over.
    """
    for wait_s in (*waits_s, None):
        try:
            return ask()
        except Refused as error:
            stated_s = parse_retry_after(error.retry_after)
            pause_s = wait_s if stated_s is None else stated_s
            is_busy = error.code in BUSY and wait_s is not None
            if not is_busy or pause_s is None or pause_s > LONGEST_WAIT_S:
                raise add_advice_to_error(error) from error
            sleep(pause_s)
    raise AssertionError


def add_advice_to_error(error: Refused) -> Refused:
    """The same *error*, its hint changed to what to do about it."""
    hints = {
        **dict.fromkeys(WANTS_KEY, KEY_HINT),
        **dict.fromkeys(
            NOT_FOUND,
            "Is the URL right, up to /v1? A server without /completions needs "
            "--prompt-form chat.",
        ),
        **dict.fromkeys(BUSY, "It is busy or broken: look at its log, sweep again."),
    }
    error.hint = hints.get(error.code, error.hint)
    if error.kind == "redirect":
        error.hint = "Redirects are not followed: give the URL that it leads to."
    return error


def parse_retry_after(retry_after: str) -> float | None:
    """
    How long to wait, by the header ``Retry-After``; None if it says nothing.

    Seconds, or a date (RFC 9110, 10.2.3).
    """
    text = retry_after.strip()
    with contextlib.suppress(ValueError):
        seconds = float(text)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    # A year may have any number of digits.
    with contextlib.suppress(ValueError, OverflowError):
        when = parsedate_to_datetime(text)
        aware = when if when.tzinfo else when.replace(tzinfo=dt.UTC)
        return max(0.0, (aware - dt.datetime.now(dt.UTC)).total_seconds())
    return None
