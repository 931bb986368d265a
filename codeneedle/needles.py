"""Needles: which functions of a corpus are asked for, and at what depth."""

from dataclasses import dataclass

ASKED_LINES = 20
"""Lines of a body that a round asks for, as in the published sweeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """
    A function as it stands in a text, verbatim.

    Attributes:
        name: Qualified by what encloses it: ``Server.handle``.
        signature: Its lines from the first to the one that opens the body,
            joined by newlines, with their indentation, without decorators.
        line: Number of the signature's first line in the text, from 1, as an
            editor counts.
        body: The lines after the signature up to the last one of the body,
            without line endings. Lines that hold only a closing brace of the
            function itself are not part of it.
    """

    name: str
    signature: str
    line: int
    body: tuple[str, ...]
