"""Waits until a server is ready, or never will be."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from codeneedle.answers import Readiness
from codeneedle.client import SHORT_S, Client
from codeneedle.engine.logfile import read_log
from codeneedle.process import Child

_WARM_UP = "warming up the model"
"""Says a server of the pinned and of older builds once the weights are loaded."""

LOAD_TIMEOUT_S = 1800.0
"""How long loading may take: a hundred gigabytes from a slow disk."""

WARMUP_TIMEOUT_S = 600.0
"""
How long a server may warm up, which takes seconds at most.

There are builds whose kernels for some pairs never come to an end; the weights are
in memory by then, so nothing of that depends on a disk.
"""

FIRST_NAP_S = 0.002
LONGEST_NAP_S = 0.25
NAP_SHARE = 0.04
"""
The built-in model is ready after 50 ms, a large one after minutes: each nap is a
share of the time so far, so that nobody is noticed much later than it is ready.
"""

LONGEST_LOOK_S = 60.0
"""Nobody looks at a server for longer, but who was suspended meanwhile."""


@dataclass(slots=True, kw_only=True)
class Patience:
    """
    How long a server is waited for: for loading, and from then on for warming up.

    Attributes:
        log: What the server says.
        load_until: When loading must be over, in monotonic seconds.
        warmup_s: How long warming up may take, in seconds.
        warmup_until: When it must be over, in monotonic seconds; None until it begins.
    """

    log: Path
    load_until: float
    warmup_s: float = WARMUP_TIMEOUT_S
    warmup_until: float | None = None

    def renewed(self) -> "Patience":
        """The same for another try at starting: nothing has warmed up in it yet."""
        return replace(self, warmup_until=None)

    def prolong(self, by_s: float) -> None:
        """Wait for *by_s* more seconds: we were suspended for so long."""
        self.load_until += by_s
        if self.warmup_until is not None:
            self.warmup_until += by_s

    def left_s(self) -> float:
        """What is left of it, in seconds; negative when it is at its end."""
        if self.warmup_until is None and _WARM_UP in read_log(self.log):
            self.warmup_until = time.monotonic() + self.warmup_s
        until = self.load_until if self.warmup_until is None else self.warmup_until
        return until - time.monotonic()


def nap_after(waited_s: float) -> float:
    """How long to nap before the next look, after *waited_s* seconds; in seconds."""
    return min(max(FIRST_NAP_S, NAP_SHARE * waited_s), LONGEST_NAP_S)


def wait(child: Child, client: Client, patience: Patience) -> Readiness:
    """
    How far the server is once it is ready, dead, or out of time.

    The child is looked at before the port: if ours is dead, whoever answers
    there is a stranger.
    """
    began = time.monotonic()
    looked = time.monotonic()
    seen = Readiness.SILENT
    while child.poll() is None:
        left_s = patience.left_s()
        if left_s <= 0:
            break
        limit_s = min(SHORT_S, left_s)
        now_seen = client.readiness(limit_s=limit_s)
        if now_seen is Readiness.READY and child.poll() is None:
            return now_seen
        # A last look in a hurry sees less than the ones before.
        if now_seen is not Readiness.SILENT or limit_s == SHORT_S:
            seen = now_seen
        time.sleep(min(nap_after(time.monotonic() - began), max(0.0, left_s)))
        looked, before = time.monotonic(), looked
        if looked - before > LONGEST_LOOK_S:
            patience.prolong(looked - before)
    return Readiness.SILENT if seen is Readiness.READY else seen
