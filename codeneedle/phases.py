"""Where the time of a cell went."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """
    Where the time of a cell went, in seconds; None for phases not reached.

    Attributes:
        between_s: From the end of the last cell's server to this launch; None of
            the first cell of a sitting.
        ready_s: From launch to a verified server.
        start_s: From there to the first question.
        measure_s: Probing, the priming round included.
        stop_s: From the last answer to the end of the server's process group.
        trial_s: What the first cell took for asking rounds both ways, beside all
            this.
    """

    between_s: float | None = None
    ready_s: float | None = None
    start_s: float | None = None
    measure_s: float | None = None
    stop_s: float | None = None
    trial_s: float | None = None

    @property
    def total_s(self) -> float:
        """The cell itself, without what came before it and its trial, in seconds."""
        own = (self.ready_s, self.start_s, self.measure_s, self.stop_s)
        return sum(phase or 0.0 for phase in own)

    @property
    def waiting_s(self) -> float:
        """What was not probing, in seconds: the price of a fresh server."""
        waits = (self.between_s, self.ready_s, self.start_s, self.stop_s)
        return sum(phase or 0.0 for phase in waits)
