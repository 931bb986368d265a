"""
Texts whose second half repeats the first, laid out as llama-perplexity reads a text.

A tool that compares distributions scores the second half of each chunk. So each chunk
is laid out as two halves of the same tokens: scored is the second copy, and nothing
else. No probe uses it; reading right tokens in batches will.
"""

from dataclasses import dataclass, field

from codeneedle.corpora.random_bodies import random_bytes
from codeneedle.engines.engine import Tokenizer
from codeneedle.errors import BadInput

SEPARATOR = "\n"
"""Stands before each passage; has to be one token."""

TRIES = 200
"""Places in a text at which a passage may begin, before the tokenizer is given up."""

START_CHARACTERS = 4
"""Characters of a made text per token that is needed, at first; doubled if too few."""

_WORDS = (
    "able acid army aunt baby bake ball band bank base bath bear beat bell belt bird "
    "blue boat body bone book born boss bowl brain bread brick brush cake call camp "
    "card care cart case cash cave chain chair chalk chest child city clay clean "
    "clock cloud coal coat cold cook corn cost cream crowd dance dark date desk dirt "
    "door draw dream dress drink drum dust earth east edge face fact farm field fire "
    "fish flag floor flour food foot fork fox frame fresh fruit game gate gift girl "
    "glass goat gold grass green group hair hall hand hat head heart hill home honey "
    "horse house ice iron jar judge juice key king knee lake lamp land lead leaf lip "
    "list lock log meal meat milk mind mine moon mouse mouth music nail neck news "
    "night north nose note oil oven page paint pan paper park path pen pipe plane "
    "plant plate pond pool queen rain river road rock roof room root rope rose salt "
    "sand school sea seat seed sheep ship shirt shoe shop silk silver sister skin sky "
    "smoke snow soap song soup south spoon spring star steam steel stone storm story "
    "sugar summer sun table tail tea tent thread tiger tooth town toy train tree truck "
    "uncle valley voice wall war watch water wave west wheel wind wine winter wire "
    "wood wool word work yard year"
)

WORDS = tuple(_WORDS.split())
"""Common English words: most vocabularies have each as one token."""


def made_words(seed: str, count: int) -> str:
    """At least *count* characters of lines ``word = "word word"``."""
    # Skipping the greatest bytes makes all words equally likely.
    fair = 256 - 256 % len(WORDS)
    words = (WORDS[n % len(WORDS)] for n in random_bytes(seed) if n < fair)
    made, characters = [], 0
    while characters < count:
        made.append(f' {next(words)} = "{next(words)} {next(words)}"\n')
        characters += len(made[-1])
    return "".join(made)


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that stands in a chunk twice, with the numbers of its tokens."""

    text: str
    ids: tuple[int, ...]


@dataclass(slots=True)
class Cutter:
    """
    Cuts passages of an exact number of tokens out of made words, one after the other.

    A passage is only taken if, between separators, it is tokenized as it was in the
    text, and both times alike.

    Attributes:
        tokenizer: Of the model.
        seed: Of the words.
        separator: The token of `SEPARATOR`, once words are read.
    """

    tokenizer: Tokenizer
    seed: str
    separator: tuple[int, ...] = field(default=(), init=False)
    _pool: list[tuple[int, str]] = field(default_factory=list)
    _at: int = 0

    def read(self, tokens: int) -> None:
        """Tokenize words: *tokens* tokens, and some to spare."""
        # Some tokenizers put a blank before everything.
        self.separator = self.ids(SEPARATOR)[-1:]
        needed, count = tokens + tokens // 2 + TRIES, tokens
        while len(self._pool) < needed:
            count *= START_CHARACTERS
            text = made_words(self.seed, count)[:count]
            read = self.tokenizer.tokens(text, add_special=False)
            self._pool = [(token.id, str(token.piece)) for token in read]

    def cut(self, tokens: int) -> Passage:
        """
        The next passage of *tokens* tokens.

        Raises:
            BadInput: If the tokenizer joins tokens across each boundary that was tried.
        """
        tried = 0
        begins_words = any(piece.startswith(" ") for _, piece in self._pool[:TRIES])
        for start in range(self._at, len(self._pool) - tokens + 1):
            if begins_words and not self._pool[start][1].startswith(" "):
                continue
            passage = self._passage(start, tokens)
            if passage is not None:
                self._at = start + tokens
                return passage
            tried += 1
            if tried >= TRIES:
                break
        raise _unsuitable()

    def ids(self, text: str, *, add_special: bool = False) -> tuple[int, ...]:
        """Numbers of the tokens of *text*."""
        tokens = self.tokenizer.tokens(text, add_special=add_special)
        return tuple(token.id for token in tokens)

    def _passage(self, start: int, tokens: int) -> Passage | None:
        chosen = self._pool[start : start + tokens]
        passage = Passage(
            "".join(piece for _, piece in chosen), tuple(number for number, _ in chosen)
        )
        expected = (*self.separator, *passage.ids) * 2 + self.separator
        twice = f"{SEPARATOR}{passage.text}" * 2 + SEPARATOR
        ids = self.ids(twice)[-len(expected) :]
        return passage if ids == expected else None


def _unsuitable() -> BadInput:
    """The error for a tokenizer with which copies would not be equal."""
    return BadInput(
        source="tokenizer of the weights",
        reason="it joins tokens across every boundary that was tried, so that two "
        "copies are not the same tokens",
        hint="Use other weights, or measure without copies.",
    )


def laid_out(cutter: Cutter, *, context: int, chunks: int) -> str:
    """
    *chunks* chunks of *context* tokens, an even number: a passage, and it again.

    Each stands after a separator. A tool scores what follows the first token of the
    second half. That is a separator here, so scored is the second copy. The first
    token of each chunk is a separator, too, or what begins a prompt: of later chunks,
    the tool overwrites it with that. Behind all stands a word, as the tool drops a last
    line break.

    Raises:
        BadInput: If passages cannot be cut, or their tokens are not as laid out.
    """
    cutter.read(chunks * context // 2)
    text = ""
    expected: list[int] = []
    for _ in range(chunks):
        passage = cutter.cut(context // 2 - 1)
        text += f"{SEPARATOR}{passage.text}" * 2
        expected += (*cutter.separator, *passage.ids) * 2
    text += f"{SEPARATOR}{WORDS[0]}"
    # Where a token begins a prompt, it takes the place of the first separator; a
    # blank that the tokenizer puts there itself takes that of the first blank.
    for begin in (0, len(SEPARATOR), len(SEPARATOR) + 1):
        ids = cutter.ids(text[begin:], add_special=True)
        if list(ids[1 : len(expected)]) == expected[1:]:
            return text[begin:]
    raise _unsuitable()
