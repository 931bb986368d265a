"""
Everything codeneedle raises on purpose.

* CodeneedleError             exit 1   base; a person is meant to read it
  + RequestError              exit 2   the request is wrong; mend it and rerun
    - UnknownName                      a name that nothing has
  + MachineError              exit 3   this machine cannot run it
  + CellError                 exit 1   one cell failed; it becomes a record

Subclasses live where their facts are known to be needed and are drawn above.
This module imports nothing from the package, so any module may import it.
"""

import difflib
from collections.abc import Collection
from typing import ClassVar


class CodeneedleError(Exception):
    """
    Base of every error meant for a person rather than a programmer.

    Subclasses take facts and compose the sentence; callers never write prose.

    Attributes:
        hint: The next action, as a sentence.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class RequestError(CodeneedleError):
    """The request is wrong: usage, sweep file, corpus, incompatible run folder."""

    exit_code = 2


class MachineError(CodeneedleError):
    """This machine cannot run it: no llama.cpp, no weights, no memory, no disk."""

    exit_code = 3


class CellError(CodeneedleError):
    """One cell failed; the runner turns it into a record and goes on."""


class UnknownName(RequestError):  # noqa: N818 - named after the fact
    """A name that nothing has; the nearest known one is offered."""

    def __init__(self, *, kind: str, name: str, known: Collection[str]) -> None:
        super().__init__(f"unknown {kind} '{name}'", hint=did_you_mean(name, known))


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A hint that offers the nearest of the *known* names, or lists them."""
    close = difflib.get_close_matches(name, list(known), n=1)
    if close:
        return f"Did you mean '{close[0]}'?"
    return f"Known: {', '.join(known)}." if known else "None is known yet."
