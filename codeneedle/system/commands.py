"""
Commands that a user gives as one text, with ``${placeholders}``, run without a shell.

Users of llama-swap write placeholders so.
"""

import os
import re
import shlex
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from codeneedle.errors import BadInput, ToolMissing, did_you_mean
from codeneedle.system.secrets import secret_name_in

_PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}")


def parse_command_words(
    command: str, *, option: str, known: Collection[str], hint: str
) -> tuple[str, ...]:
    """
    The program and the arguments of *command*, with placeholders.

    Args:
        command: Split into words by the rules of a shell.
        option: Name of its option, for errors.
        known: Names of the placeholders that it may use.
        hint: Where a secret belongs.

    Raises:
        BadInput: If it cannot be split, is empty, has an unknown placeholder, or holds
            a secret.
    """
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise BadInput(
            source=option,
            reason=f"cannot be split into words: {error}".lower(),
            hint="Close the quotation mark.",
        ) from error
    if not words:
        raise BadInput(source=option, reason="is empty", hint="Give it a command.")
    if name := secret_name_in(" ".join(words)):
        raise BadInput(
            source=f"{option} ... {name}",
            reason="takes a secret, which records must not store",
            hint=hint,
        )
    refuse_unknown_placeholder(words, option=option, known=known)
    return words


def refuse_unknown_placeholder(
    texts: Iterable[str], *, option: str, known: Collection[str]
) -> None:
    """
    Stop at a placeholder in *texts* that is not *known*.

    Raises:
        BadInput: With the nearest one that is.
    """
    for name in placeholders(texts):
        if name not in known:
            raise BadInput(
                source=option,
                reason=f"unknown placeholder '${{{name}}}'",
                hint=did_you_mean(name, known),
            )


def placeholders(texts: Iterable[str]) -> list[str]:
    """Names of the placeholders in *texts*, as they come, repeated ones too."""
    return [name for text in texts for name in _PLACEHOLDER.findall(text)]


def fill_placeholders(text: str, values: Mapping[str, object]) -> str:
    """*text* with placeholders replaced; those without a value stay."""
    return _PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), text)


def require_program(name: str, *, option: str) -> str:
    """
    The absolute path of the program *name*.

    Raises:
        ToolMissing: If it does not exist.
    """
    path = shutil.which(name)
    if path is None:
        raise ToolMissing(
            tool=f"{option}: {name or 'an empty name'}",
            reason="is no program here",
            hint="Install it, or write its whole path.",
        )
    return str(Path(path).absolute())


def refuse_unset_variable(name: str, *, option: str) -> None:
    """
    Stop at an environment variable that is to be passed on, and is not set.

    Raises:
        BadInput: If it is not.
    """
    if name not in os.environ:
        raise BadInput(
            source=f"{option} {name}",
            reason="is not set here",
            hint=f"Export it, and give its name alone: {option} NAME",
        )
