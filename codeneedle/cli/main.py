"""Runs a command: the one place that prints an error, and makes an exit code of it."""

import os
import sys
from typing import Any

import typer
from typer.main import get_command

from codeneedle.cli.app import app
from codeneedle.cli.command_line import long_option_names, near_option
from codeneedle.cli.options import USAGE_ERROR
from codeneedle.cli.streams import refuse_closed_stdout, tolerate_stderr_flush_stdout
from codeneedle.errors import BadInput, CodeneedleError, system_refusal
from codeneedle.exit_codes import INTERRUPTED, UNFINISHED
from codeneedle.system.secrets import mask_error
from codeneedle.text import escape_invisible


def main() -> None:
    """Run the command of ``sys.argv``, and end the program with its exit code."""
    try:
        with tolerate_stderr_flush_stdout():
            if sys.argv[1:2] != ["sweep"]:  # it goes on without
                refuse_closed_stdout()
            command = get_command(app)
            code = command(prog_name="codeneedle", standalone_mode=False) or 0
    except CodeneedleError as error:
        mask_error(error)
        code = _show_error(error)
    except USAGE_ERROR as error:
        code = _show_error(_usage_error(error))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED  # as later versions of typer return by themselves
    except BrokenPipeError:
        # The reader of our output has gone, as in: codeneedle grid NAME | head
        code = UNFINISHED
    except Exception as error:
        refused = system_refusal(error)
        if refused is None:
            raise
        code = _show_error(refused)
    sys.exit(code)


ELSEWHERE = {
    "decide": "codeneedle sweep --decide",
    **dict.fromkeys(("run", "measure", "start"), "codeneedle sweep"),
    **dict.fromkeys(("resume", "continue"), "codeneedle sweep sweeps/CORPUS/MODEL"),
    **dict.fromkeys(("help", "list", "ls"), "codeneedle --help"),
}
"""What somebody means who types a word that is no command."""


def _usage_error(error: Any) -> BadInput:
    """The `BadInput` for an *error* of typer, with the nearest option or command."""
    command = error.ctx.command_path if error.ctx else "codeneedle"
    reason, hint = error.format_message().rstrip("."), f"See {command} --help"
    unknown = getattr(error, "option_name", "")
    if unknown and error.ctx and hasattr(error, "possibilities"):
        reason = f"No such option: {unknown}"
        near = near_option(unknown, long_option_names(error.ctx.command.params))
        hint = f"Did you mean '{near}'?" if near else hint
    word = reason.removeprefix("No such command '").rstrip("'")
    if meant := ELSEWHERE.get(word):
        hint = f"For that it is: {meant}"
    return BadInput(source=command, reason=reason, hint=hint)


def _show_error(error: CodeneedleError) -> int:
    """
    Print *error* and its hint; returns its exit code.

    Not by rich: there may be too little memory to import it.
    """
    is_plain = not (sys.stderr and sys.stderr.isatty()) or "NO_COLOR" in os.environ
    for label, text, colour in (
        ("error: ", str(error), 31),
        (" hint: ", error.hint, 36),
    ):
        styled = label if is_plain else f"\x1b[1;{colour}m{label}\x1b[0m"
        if sys.stderr:
            sys.stderr.write(f"{styled}{escape_invisible(text)}\n")
    return error.exit_code
