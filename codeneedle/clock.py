"""The time of day, as records write it."""

import datetime as dt


def now() -> str:
    """ISO 8601 in UTC, to the second: ``2026-01-31T23:59:59+00:00``."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
