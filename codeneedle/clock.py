"""The time of day, as records write it, and time as we live through it."""

import datetime as dt
import threading
import time


def now() -> str:
    """ISO 8601 in UTC, to the second: ``2026-01-31T23:59:59+00:00``."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


class Lived:
    """
    Seconds since it was made, without those in which we were suspended.

    Ctrl-Z, a frozen container: others were suspended with us, or went on without
    us, and had no chance to be heard in time.

    Args:
        longest_s: It is asked more often than that, so whatever is longer between
            two questions was not lived through.
    """

    def __init__(self, *, longest_s: float) -> None:
        self._longest_s = longest_s
        self._lived_s = 0.0
        self._asked = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """How many there are by now; any thread may ask."""
        with self._lock:
            asked, self._asked = self._asked, time.monotonic()
            self._lived_s += min(self._asked - asked, self._longest_s)
            return self._lived_s
