"""Sends the requests of a cell; what its server answered is not asked for again."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from codeneedle.engines.engine import Served
from codeneedle.engines.messages import ServerGone
from codeneedle.probes.probe import ProbeContext
from codeneedle.text import one_line

BACK_OFF_S = (0.1, 0.5, 2.0)
"""How long to wait before each further attempt, in seconds."""

_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class Asker:
    """
    Sends requests; retries broken connections, never a completed reply.

    Attributes:
        served: The server.
        context: The cell.
    """

    served: Served
    context: ProbeContext
    _retries: list[str] = field(default_factory=list)

    def settle(self) -> None:
        """Wait until the server is idle, before it is stopped."""
        self._retried(self.served.client.wait_idle)

    def _retried(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask again if the connection breaks, as long as the server lives."""
        for wait_s in BACK_OFF_S:
            try:
                return ask()
            except ServerGone as error:
                # A connection also breaks when a server dies, before it is gone.
                if self.served.ends_within(wait_s):
                    raise
                self._retries.append(one_line(str(error)))
        return ask()
