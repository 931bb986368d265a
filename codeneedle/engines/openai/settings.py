"""
The options of the engines ``command`` and ``endpoint``: what commands, variables and
addresses may be, that they hold no secret, and the template of a command.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from codeneedle.cache_types import Pair
from codeneedle.errors import BadInput
from codeneedle.system.commands import (
    fill_placeholders,
    parse_command_words,
    placeholders,
    refuse_unknown_placeholder,
    refuse_unset_variable,
)
from codeneedle.system.secrets import is_secret, secret_name_in

COMMAND = "command"
ENDPOINT = "endpoint"

WITHOUT_ECHO = "llama-server"
"""Its OpenAI API cannot echo prompts, so it cannot score given text."""

PLACEHOLDERS = ("k", "v", "port", "context", "model")
"""What a command may hold, as ``${k}``."""

_PATH = re.compile(r"/[!-~]*")

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


_ServedName = Annotated[
    str,
    Meta(
        description="What the server calls the model.",
        extra={
            "option": "--served-name",
            "metavar": "NAME",
            "default": "the first that it lists",
        },
    ),
]
_KeyVariable = Annotated[
    str,
    Meta(
        description="Environment variable that holds the key for the server.",
        extra={"option": "--api-key-env", "metavar": "NAME"},
    ),
]


class CommandSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How a server is started, and how it is reached."""

    command: Annotated[
        str,
        Meta(
            description="Starts a server with OpenAI's API, for --engine command: "
            "'vllm serve ${model} --port ${port} --kv-cache-dtype ${k}'. No shell.",
            extra={"option": "--command", "metavar": "TEXT"},
        ),
    ] = ""
    env: Annotated[
        tuple[str, ...],
        Meta(
            description="Variables for it: NAME=VALUE, or NAME for the value it has "
            "here.",
            extra={"option": "--command-env", "metavar": "LIST"},
        ),
    ] = ()
    health: Annotated[
        str,
        Meta(
            description="Path that says that it is ready.",
            extra={
                "option": "--health",
                "metavar": "PATH",
                "default": "/v1/models alone",
            },
        ),
    ] = ""
    served_name: _ServedName = ""
    api_key_env: _KeyVariable = ""
    evidence_by_memory: Annotated[
        bool,
        Meta(
            description="Start each server at half the context, too, to see how much "
            "memory a token takes.",
            extra={
                "option": "--evidence-by-memory/--no-evidence-by-memory",
                "default": "where the command has ${context}",
            },
        ),
    ] = True


class EndpointSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """A server that is running, and what its user says of it."""

    url: Annotated[
        str,
        Meta(
            description="A running server with OpenAI's API, for --engine endpoint: "
            "http://host:port/v1.",
            extra={"option": "--url", "metavar": "URL"},
        ),
    ] = ""
    served_name: _ServedName = ""
    pair: Annotated[
        str,
        Meta(
            description="Cache types that it runs with, as its user knows: q8_0/q4_0.",
            extra={"option": "--as", "metavar": "K/V"},
        ),
    ] = ""
    api_key_env: _KeyVariable = ""


@dataclass(frozen=True, slots=True)
class CommandTemplate:
    """A command and variables with placeholders."""

    words: tuple[str, ...]  # program and arguments
    env: Mapping[str, str | None]
    """Values of variables by name; None for the one that it has here."""

    @property
    def placeholders(self) -> frozenset[str]:
        """Names of those that occur, such as ``port``."""
        values = (value for value in self.env.values() if value)
        return frozenset(placeholders((*self.words, *values)))

    @property
    def is_diagonal(self) -> bool:
        """Whether it sets one type for K and V."""
        return not {"k", "v"} <= self.placeholders

    @property
    def is_llama_server(self) -> bool:
        """Whether a word of it is the path or the name of llama.cpp's server."""
        # A shell may get all of it as one word.
        words = (part for word in self.words for part in word.split())
        return any(Path(word).stem == WITHOUT_ECHO for word in words)

    def fill(
        self, values: Mapping[str, object], environment: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """
        Program and arguments, and the variables that are set.

        Args:
            values: Of all placeholders.
            environment: Where values of variables that are passed on come from.
        """
        env = {
            name: environment.get(name, "")
            if text is None
            else fill_placeholders(text, values)
            for name, text in self.env.items()
        }
        return [fill_placeholders(word, values) for word in self.words], env


def command_template(settings: CommandSettings) -> CommandTemplate:
    """
    The command of *settings*, split as a shell would, without one.

    Raises:
        BadInput: If there is none, it cannot be split, has an unknown placeholder, or
            lacks the port or a cache type; if it holds a secret; if the path of its
            health is none.
    """
    if not settings.command.strip():
        raise BadInput(
            source="--engine command",
            reason="needs the command that starts the server",
            hint="For example: --command 'vllm serve ${model} --port ${port} "
            "--kv-cache-dtype ${k}' --types auto,fp8",
        )
    words = parse_command_words(
        settings.command,
        option="--command",
        known=PLACEHOLDERS,
        hint="Export it as the variable that the server reads, and pass that on by its "
        "name: --command-env NAME",
    )
    if settings.health and not _PATH.fullmatch(settings.health):
        raise BadInput(
            source=f"--health {settings.health}",
            reason="is no path",
            hint="Write it from the root of the server: --health /health",
        )
    template = CommandTemplate(words, dict(map(_parse_variable, settings.env)))
    _check_placeholders(template)
    return template


def checked_url(url: str) -> str:
    """
    *url* without a slash at its end.

    Raises:
        BadInput: If it is none of a server, or holds what must not be stored.
    """
    try:
        parts = urlsplit(url)
        is_server = parts.scheme in {"http", "https"} and bool(parts.hostname)
        is_server = is_server and parts.port != 0 and _has_valid_host(url)
    except ValueError:
        parts, is_server = urlsplit(""), False
    if not is_server:
        raise BadInput(
            source=f"--url {url}" if url else "--engine endpoint",
            reason="is no address of a server" if url else "needs --url",
            hint="Write it up to /v1: --url http://127.0.0.1:8000/v1",
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadInput(
            source="--url",
            reason="holds a user, a password or a query, which records must not store",
            hint="Give the key by its environment variable: --api-key-env NAME",
        )
    return url.rstrip("/")


def _has_valid_host(url: str) -> bool:
    from codeneedle.engines.http import has_valid_host  # takes long to import

    return has_valid_host(url)


def checked_pair(text: str) -> Pair:
    """
    The pair that the user names.

    Raises:
        BadInput: If there is none.
    """
    if not text:
        raise BadInput(
            source="--engine endpoint",
            reason="cannot see the cache types of a server that is running",
            hint="Name them: --as q8_0/q4_0",
        )
    return Pair.parse(text)


def read_api_key(variable: str, environment: Mapping[str, str]) -> str:
    """
    The key in the environment variable *variable*; empty if none is named.

    Raises:
        BadInput: If it is not set, or is no key.
    """
    if not variable:
        return ""
    key = environment.get(variable, "").strip()
    if not key or not (key.isascii() and key.isprintable()):
        raise BadInput(
            source=f"--api-key-env {variable}",
            reason="is not set" if not key else "holds characters that no key has",
            hint=f"Set it where codeneedle runs: export {variable}=...",
        )
    return key


def _parse_variable(text: str) -> tuple[str, str | None]:
    """
    Name and value of a ``--command-env``; None for the value it has here.

    Raises:
        BadInput: If it is no variable, has a value that looks like a secret, or is
            named without a value and not set here.
    """
    name, equals, value = text.partition("=")
    if not _VARIABLE.fullmatch(name):
        raise BadInput(
            source=f"--command-env {text}",
            reason="is no variable",
            hint="Write NAME=VALUE, or NAME to pass its value on.",
        )
    if equals and (is_secret(name) or secret_name_in(text)):
        raise BadInput(
            source=f"--command-env {name}",
            reason="looks like a secret, which records must not store",
            hint=f"Export it, and pass it on by its name alone: --command-env {name}",
        )
    if not equals:
        refuse_unset_variable(name, option="--command-env")
    return name, value if equals else None


def _check_placeholders(template: CommandTemplate) -> None:
    """Stop at an unknown placeholder in a variable, and at no port or cache type."""
    values = (value for value in template.env.values() if value)
    refuse_unknown_placeholder(values, option="--command-env", known=PLACEHOLDERS)
    if "port" not in template.placeholders:
        raise BadInput(
            source="--command",
            reason="does not say where the port goes",
            hint="Put ${port} into it, or into --command-env.",
        )
    if not template.placeholders & {"k", "v"}:
        raise BadInput(
            source="--command",
            reason="does not say where the cache type goes",
            hint="Put ${k}, ${v} or both into it, or into --command-env.",
        )
