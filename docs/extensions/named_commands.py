"""
Commands and options that a document names are ones that the program takes.

As an extension of Sphinx it warns of each that the program refuses, which fails a
strict build, and links each command to its section.
"""

import contextlib
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from every_command import commands
from sphinx.application import Sphinx
from sphinx.util import logging
from typer.main import get_command

from codeneedle.cli.app import app as program
from codeneedle.models.pretrained import checked_built_in_path

ROOT = Path(__file__).parents[2]

PLACES = {
    "sweeps/CORPUS/MODEL": "published",
    "SWEEP": "published",
    "FOLDER": "published",
    "NAME": "random-bodies",
    "FILE": "some.gguf",
    "K/V": "q8_0/q4_0",
    "PAIR": "q8_0/q4_0",
    "M": "some.gguf",
    "PATH": "some.gguf",
    "~/models/some.gguf": "some.gguf",
}
"""What stands in documents for something of the user's."""

OF_OTHERS = frozenset(
    {
        *(
            "--hf-token",
            "--host",
            "--lora",
            "--rpc",
            "--offline",
            "--swa-full",
        ),  # llama-server
        *("--env", "--lock", "--proxy-user"),  # examples of SECURITY.md
    }
)
"""Options that documents name alone and that are other programs'."""


GENERAL = {f"codeneedle --{option}" for option in ("help", "install-completion")}
"""Options of the program itself."""


def accepted(words: Sequence[str]) -> str:
    """
    The command that *words* name, if it accepts the rest as its arguments.

    Raises:
        click.UsageError: If it does not.
    """
    command, name, rest = _program(), "codeneedle", list(words)
    with command.make_context(name, [], resilient_parsing=True) as context:
        while hasattr(command, "resolve_command"):
            named, command, rest = command.resolve_command(context, rest)
            name = f"{name} {named}"
        command.make_context(name, rest, parent=context)
    return name


def named(text: str) -> Iterator[str]:
    """Each command in *text* of Markdown: in code, and lines of shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    for words in (*lines, *re.findall(r"`([^`\n]+)`", text)):
        if command := command_in(words):
            yield command


def command_in(words: str) -> str:
    """The command of the program that *words* are, without variables; else empty."""
    command = re.sub(r"^(\w+=\S+ )+", "", words)
    return command if command.startswith("codeneedle ") and "|" not in command else ""


@cache
def wrong_command(command: str) -> str:
    """Why the program refuses *command* of a document; empty if it does not."""
    words = [PLACES.get(word, word) for word in shlex.split(command, comments=True)]
    if command == "codeneedle sweep NAME":
        words[-1] = "published"
    known = {path for path, *_ in _commands()} | GENERAL
    # A name alone, or an abridged one: what is left out may be needed.
    if len(words) == 2 or "..." in words:  # noqa: PLR2004
        return "" if " ".join(words[:2]) in known else f"{words[1]} is no command"
    if " ".join(words) in known:
        return ""
    with _folder():
        try:
            accepted(words[1:])
        except Exception as error:  # noqa: BLE001 - whatever refuses it is the answer
            return str(getattr(error, "message", error)) or repr(error)
    return ""


def wrong_option(words: str) -> str:
    """Why *words*, which begin with an option, name none; empty if they do."""
    option = re.split(r"[ =]", words)[0]
    if option in OF_OTHERS or option in _options():
        return ""
    return f"{option} is an option of no command"


def wrong_target(words: str) -> str:
    """Why *words*, a call of make, name no target; empty if they do."""
    rules = re.findall(
        r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
    )
    unknown = [word for word in words.split()[1:] if re.fullmatch("[a-z]+", word)]
    return ", ".join(f"{word} is no target" for word in unknown if word not in rules)


@cache
def _program() -> Any:
    return get_command(program)


@cache
def _commands() -> list[tuple[str, Any]]:
    return [
        (path, [*command.get_params(context)])
        for path, command, context in commands(_program())
    ]


@cache
def _options() -> frozenset[str]:
    params = [param for _, params in _commands() for param in params]
    every = {name for param in params for name in (*param.opts, *param.secondary_opts)}
    return frozenset({*every, "--install-completion"})


@contextlib.contextmanager
def _folder() -> Iterator[None]:
    """The working folder of somebody who has what documents name."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("some.gguf").symlink_to(checked_built_in_path())
        Path("chat.jsonl").write_text("[]", encoding="utf-8")
        yield


def wrong(words: str) -> str:
    """What is wrong with *words* of code in a document; empty for what is not ours."""
    if command := command_in(words):
        return wrong_command(command)
    if words.startswith("make "):
        return wrong_target(words)
    return wrong_option(words) if re.match(r"--[a-z]", words) else ""


def _check(_app: Sphinx, tree: nodes.document) -> None:
    log = logging.getLogger(__name__)
    for literal in tree.findall(nodes.literal):
        if why := wrong(literal.astext()):
            log.warning("%s: %s", literal.astext(), why, location=literal)
    for block in tree.findall(nodes.literal_block):
        is_shell = block.get("language") == "sh"
        lines = block.astext().replace("\\\n", " ").splitlines() if is_shell else []
        for line in lines:
            if why := wrong(line.partition(" #")[0].strip()):
                log.warning("%s: %s", line, why, location=block)


def _link(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Make each command in the text a link to its section."""
    labels = app.env.domains.standard_domain.anonlabels
    for literal in [*tree.findall(nodes.literal)]:
        command = command_in(literal.astext())
        if not command or any(isinstance(e, nodes.title) for e in _above(literal)):
            continue
        known = [
            path for path, _ in _commands() if f"{command} ".startswith(f"{path} ")
        ]
        there, label = labels.get(max(known, key=len).replace(" ", "-"), ("", ""))
        if there:
            uri = f"{app.builder.get_relative_uri(page, there)}#{label}"
            link = nodes.reference("", "", internal=True, refuri=uri)
            literal.replace_self(link)
            link += literal


def _above(node: nodes.Node) -> Iterator[nodes.Node]:
    while node.parent is not None:
        node = node.parent
        yield node


def setup(app: Sphinx) -> dict[str, bool]:
    """Check each page once it is read, and link it once all are."""
    app.connect("doctree-read", _check)
    app.connect("doctree-resolved", _link)
    return {"parallel_read_safe": False}
