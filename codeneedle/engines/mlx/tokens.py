"""Tokenizer and chat template of a model folder, for the child process."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from codeneedle.engines.mlx.folder import CONFIG, read_json

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""A byte, in tokenizers that fall back to bytes."""

_BLANK = "\u2581"
"""Stands for a blank in tokenizers that began as SentencePiece."""


class TextModel:
    """Tokenizer and template, as transformers reads them; no code of theirs runs."""

    ends: set[int]  # tokens that end a reply

    def __init__(self, folder: Path) -> None:
        """Read both from the *folder* of a model."""
        from transformers import PreTrainedTokenizerFast
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self._encoder = self._tokenizer.backend_tokenizer
        added = self._encoder.get_added_tokens_decoder()
        self._added: dict[int, str] = {at: token.content for at, token in added.items()}
        is_spelled = "ByteLevel" in str(self._encoder.decoder)
        spelling = bytes_to_unicode() if is_spelled else {}
        self._byte_of = {letter: byte for byte, letter in spelling.items()}
        last = self._tokenizer.eos_token_id
        self.ends = {*_end_tokens(folder), *([] if last is None else [last])}

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
        self._encoder.encode_special_tokens = not parse_special
        tokens = list(self._encoder.encode(text, add_special_tokens=False).ids)
        return [*self._leading_tokens(), *tokens] if add_special else tokens

    def piece(self, token: int) -> bytes:
        """The bytes that *token* adds to a text; none if there is no such token."""
        spelled: str | None = self._encoder.id_to_token(token)
        if spelled is None:
            return b""
        if token in self._added:
            return self._added[token].encode()
        if set(spelled) <= self._byte_of.keys():
            return bytes(self._byte_of[letter] for letter in spelled)
        byte = _BYTE.fullmatch(spelled)
        if byte:
            return bytes([int(byte[1], 16)])
        return spelled.replace(_BLANK, " ").encode()

    def render(self, messages: Sequence[Mapping[str, str]], extra: Any) -> str:
        """
        The prompt that the template makes of *messages*.

        A last message of the assistant is continued. The tokens that begin a prompt
        are left out, as they are added when it is read. *extra* are variables of the
        template, and ignored if they are no dict.

        Raises:
            ValueError: If there is no template, or it refuses.
        """
        from jinja2 import TemplateError

        conversation, begun = list(messages), ""
        if conversation and conversation[-1].get("role") == "assistant":
            begun = conversation.pop()["content"]
        try:
            text: str = self._tokenizer.apply_chat_template(
                conversation,
                tokenize=False,
                add_generation_prompt=True,
                **(extra if isinstance(extra, dict) else {}),
            )
        except TemplateError as error:
            raise ValueError(str(error)) from error
        except MemoryError as error:
            raise ValueError("the chat template takes too much memory") from error
        if self._leading_tokens():
            text = text.removeprefix(self._tokenizer.bos_token or "")
        return f"{text}{begun}"

    def _leading_tokens(self) -> list[int]:
        """The special tokens that begin a prompt, if any."""
        both = self._encoder.encode("a", add_special_tokens=True).ids
        alone = self._encoder.encode("a", add_special_tokens=False).ids
        return list(both[: both.index(alone[0])]) if alone and alone[0] in both else []


def _end_tokens(folder: Path) -> Iterator[int]:
    """Tokens that end a reply, by configuration and generation settings."""
    for name in (CONFIG, "generation_config.json"):
        if (folder / name).is_file():
            value = read_json(folder / name).get("eos_token_id")
            values = value if isinstance(value, list) else [value]
            yield from (token for token in values if isinstance(token, int))
