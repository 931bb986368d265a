"""What the values of options mean: lists, numbers, and what the environment adds."""

import os
from collections.abc import Sequence
from typing import Any

import typer

from codeneedle.grid import by_precision

CORPUS = "CORPUS"
"""Environment variable that names the corpus where nothing else does."""


def parted(arguments: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """A sweep's name, if one comes first, and what is meant for llama-server."""
    name = None
    if arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
    # llama-server takes no words of its own: this one was meant for us.
    if arguments and not arguments[0].startswith("-"):
        raise typer.BadParameter(
            f"'{arguments[0]}': one sweep at a time, here '{name}'; "
            "arguments for llama-server begin with a dash"
        )
    return name, tuple(arguments)


def from_environment() -> dict[str, Any]:
    """Fields of a request that the environment names."""
    corpus = os.environ.get(CORPUS)
    return {"corpus": corpus} if corpus else {}


def stated(text: str | None, option: str) -> str | None:
    """*text*, unless it is empty: an unset shell variable is no wish for a default."""
    if text == "":
        raise typer.BadParameter(f"'' for {option}: nothing")
    return text


def types_of(text: str | None, option: str) -> tuple[str, ...] | None:
    """Cache types, most precise first; None where the option was not given."""
    words = words_of(text, option)
    return tuple(by_precision(words)) if words else None


def rotations(text: str | None) -> tuple[bool, ...] | None:
    """Whether to rotate: on, off, or both; None where the option was not given."""
    words = words_of(text, "--rotation")
    if not words:
        return None
    # 20 ms of every --help otherwise.
    from codeneedle import sweepfile

    return sweepfile.rotations(words)


def words_of(text: str | None, option: str) -> tuple[str, ...] | None:
    """The distinct words of a list; None where the option was not given."""
    if text is None:
        return None
    words = (word.strip() for word in text.split(","))
    found = tuple(dict.fromkeys(word for word in words if word))
    # An empty list must not quietly run a default.
    if not found:
        raise typer.BadParameter(f"'{text}' for {option}: an empty list")
    return found


def numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    """
    The distinct numbers of a list; None where the option was not given.

    Raises:
        BadParameter: If it is empty, or one of them is no whole number.
    """
    words = words_of(text, option)
    if words is None:
        return None
    try:
        return tuple(dict.fromkeys(int(word) for word in words))
    except ValueError as error:
        raise typer.BadParameter(f"'{text}' for {option}: not whole numbers") from error


def one_form(**asked: bool) -> None:
    """Stop at two forms of one report: only one can stand on stdout."""
    chosen = [f"--{name}" for name, is_asked in asked.items() if is_asked]
    if len(chosen) > 1:
        raise typer.BadParameter(f"{' and '.join(chosen)}: choose one")
