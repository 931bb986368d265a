"""Parses commands of codeneedle without running them."""

from collections.abc import Sequence
from typing import Any

from typer.main import get_command

from codeneedle.cli.app import app


def accepted(words: Sequence[str]) -> str:
    """
    The command that *words* name, if it accepts the rest as its arguments.

    Raises:
        click.UsageError: If it does not.
    """
    command: Any = get_command(app)
    name, rest = "codeneedle", list(words)
    with command.make_context(name, [], resilient_parsing=True) as context:
        while hasattr(command, "resolve_command"):
            named, command, rest = command.resolve_command(context, rest)
            name = f"{name} {named}"
        command.make_context(name, rest, parent=context)
    return name
