"""Tokenizer and chat template of a model folder, for the child process."""

import datetime as dt
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codeneedle.models.weights import (
    FOLDER_FILE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    read_json,
    template_of,
)

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""A byte, in tokenizers that fall back to bytes."""

_BLANK = "\u2581"
"""Stands for a blank in tokenizers that began as SentencePiece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModel:
    """
    Tokenizer and chat template.

    Attributes:
        encoder: A ``tokenizers.Tokenizer``.
        special: Texts of the special tokens, by name: ``bos_token``.
        template: The chat template; None if there is none.
        ends: Tokens that end a reply.
        spelling: ``bytes`` if a token spells bytes as GPT-2 does, else ``pieces``.
    """

    encoder: Any
    special: Mapping[str, str]
    template: str | None
    ends: frozenset[int]
    spelling: str

    def ids(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """
        The tokens of *text*.

        Args:
            text: Any text.
            add_special: Whether the tokens that begin a prompt come first.
            parse_special: Whether words that look like special tokens are those.
        """
        self.encoder.encode_special_tokens = not parse_special
        found = list(self.encoder.encode(text, add_special_tokens=False).ids)
        return [*self._beginning(), *found] if add_special else found

    def piece(self, token: int) -> bytes:
        """The bytes that *token* adds to a text; none if there is no such token."""
        spelled = self.encoder.id_to_token(token)
        if spelled is None:
            return b""
        if spelled in self.special.values():
            return str(spelled).encode()
        if self.spelling == "bytes":
            known = _bytes_of_letters()
            if all(letter in known for letter in spelled):
                return bytes(known[letter] for letter in spelled)
            return str(spelled).encode()  # an added token is spelled as it is
        byte = _BYTE.fullmatch(spelled)
        if byte:
            return bytes([int(byte[1], 16)])
        return str(spelled).replace(_BLANK, " ").encode()

    def render(self, messages: Sequence[Mapping[str, str]], extra: Any) -> str:
        """
        The prompt that the template makes of *messages*.

        A last message of the assistant is continued. The tokens that begin a prompt
        are left out, as they are added when it is read.

        Raises:
            ValueError: If there is no template, or it refuses.
        """
        if self.template is None:
            raise ValueError("the model has no chat template")
        asked, begun = list(messages), ""
        if asked and asked[-1].get("role") == "assistant":
            begun = asked.pop()["content"]
        text = _compiled(self.template).render(
            messages=asked,
            add_generation_prompt=True,
            **self.special,
            **(extra if isinstance(extra, dict) else {}),
        )
        first = self.special.get("bos_token", "")
        if first and self._beginning():
            text = text.removeprefix(first)
        return f"{text}{begun}"

    def _beginning(self) -> list[int]:
        """The tokens before a text, without those behind it."""
        both = self.encoder.encode("a", add_special_tokens=True).ids
        own = self.encoder.encode("a", add_special_tokens=False).ids
        return list(both[: both.index(own[0])]) if own and own[0] in both else []


def read_text_model(folder: Path) -> TextModel:
    """Tokenizer and template of the model in *folder*."""
    from tokenizers import Tokenizer

    settings = (
        read_json(folder / TOKENIZER_CONFIG)
        if (folder / TOKENIZER_CONFIG).is_file()
        else {}
    )
    encoder = Tokenizer.from_file(str(folder / TOKENIZER))
    spec = json.loads((folder / TOKENIZER).read_text(encoding="utf-8"))
    special = {
        name: text
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (text := _text(settings.get(name)))
    }
    ends = set(_stated_ends(folder))
    last = encoder.token_to_id(special.get("eos_token", ""))
    return TextModel(
        encoder=encoder,
        special=special,
        template=template_of(folder),
        ends=frozenset(ends if last is None else {*ends, last}),
        spelling="bytes"
        if "ByteLevel" in json.dumps(spec.get("decoder"))
        else "pieces",
    )


def joined(pieces: Iterable[bytes]) -> str:
    """The text that *pieces* make; bytes that are no UTF-8 become U+FFFD."""
    return b"".join(pieces).decode(errors="replace")


def _text(value: Any) -> str:
    """A special token, which a configuration states as text or as an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _stated_ends(folder: Path) -> list[int]:
    found: list[int] = []
    for name in (FOLDER_FILE, "generation_config.json"):
        if (folder / name).is_file():
            value = read_json(folder / name).get("eos_token_id")
            values = value if isinstance(value, list) else [value]
            found += [each for each in values if isinstance(each, int)]
    return found


@functools.cache
def _bytes_of_letters() -> dict[str, int]:
    """The byte that each letter of GPT-2's spelling stands for."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {
        chr(byte if byte in printable else 256 + others.index(byte)): byte
        for byte in range(256)
    }


@functools.cache
def _compiled(template: str) -> Any:
    """The template, as transformers compiles it: no code of the model's runs."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: dt.datetime.now(
        tz=dt.UTC
    ).strftime(form)
    return environment.from_string(template)


def _refuse(message: str) -> None:
    raise ValueError(message)
