"""
The ordinary text that is read where none is named, prose and code in turn, and where
its chunks end: by tokens, or at ends of lines where none are counted.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from codeneedle.engines.engine import Tokenizer

PROSE = Path(__file__).with_name("python-3.11-reference.txt")
"""
English prose with code, 60,000 tokens or so, and the same wherever this is installed.

Random text tells cache types apart sooner, and understates five times what natural text
loses. Source: RESULTS.md.
"""

CODE = PROSE.with_name("python-3.11-library.txt")
"""Modules of Python's library, 70,000 tokens or so."""

PARTS = ("prose", "code")
"""What the chunks are of, in turn."""

NAME = "prose and code"

ORDINARY = Path(__file__).with_name(NAME)
"""Stands for the file that a user may name; there is none of that name."""

BYTES_PER_TOKEN = 4
"""Of English and code, roughly, where tokens are not counted."""

LONGEST_TOKEN = 12
"""Bytes of text that are counted for each token: four are usual."""


def read_prose_and_code() -> tuple[bytes, bytes]:
    """Prose and code, whole."""
    return PROSE.read_bytes(), CODE.read_bytes()


def prose_and_code_sha256() -> str:
    """SHA-256 of both texts."""
    return hashlib.sha256(b"\0".join(read_prose_and_code())).hexdigest()


def interleaved_block_ends(
    tokenizer: Tokenizer, context: int, blocks: int
) -> tuple[int, ...]:
    """
    Where *blocks* of *context* tokens end in the built-in prose and code, in turn.

    Fewer where a text has not so many tokens. At the joints of blocks tokens may join,
    too, so that each chunk begins a few tokens before or behind its block. These are in
    its first half, which is not scored.

    Args:
        tokenizer: Of the weights.
        context: Length of a chunk.
        blocks: How many.

    Returns:
        Of each block, the place in its text, in bytes.
    """
    of_each = [
        [*_block_ends(tokenizer, text, context, blocks - blocks // 2)]
        for text in read_prose_and_code()
    ]
    return _interleave_ends(of_each, blocks)


def interleaved_block_ends_by_lines(context: int, blocks: int) -> tuple[int, ...]:
    """`interleaved_block_ends` without a tokenizer: at ends of lines, by estimate."""
    return _interleave_ends(
        [
            [*_block_ends_at_lines(text, BYTES_PER_TOKEN * context)]
            for text in read_prose_and_code()
        ],
        blocks,
    )


def _block_ends_at_lines(text: bytes, size: int) -> Iterator[int]:
    """Ends of lines, each the first at least *size* bytes behind the last."""
    end = 0
    while end := text.find(b"\n", end + size) + 1:
        yield end


def _interleave_ends(of_each: Sequence[Sequence[int]], blocks: int) -> tuple[int, ...]:
    """Ends of the two texts in turn: as many as *blocks*, or as both have."""
    fitting = min(blocks, 2 * min(map(len, of_each)))
    return tuple(of_each[at % 2][at // 2] for at in range(fitting))


def _block_ends(
    tokenizer: Tokenizer, text: bytes, context: int, blocks: int
) -> Iterator[int]:
    """Where the first *blocks* of *text* end, in bytes; fewer if it has not so many."""
    head = text[: LONGEST_TOKEN * context * blocks].decode(errors="ignore")
    pieces = tokenizer.tokens(head)
    sizes = [piece.utf8_size for piece in pieces]
    # A tokenizer may put a blank, or the token that begins a prompt, before all.
    before = sum(sizes) - len(head.encode())
    ends = [end - before for end in accumulate(sizes)]
    for last in range(context, context * blocks + 1, context):
        if last > len(ends):
            return
        yield ends[last - 1]


def join_built_in_blocks(ends: Sequence[int]) -> bytes:
    """The built-in prose and code up to these *ends*, by `interleaved_block_ends`."""
    return b"".join(built_in_text_blocks(ends))


def built_in_text_blocks(ends: Sequence[int]) -> list[bytes]:
    """Blocks of the built-in prose and code in turn, with *ends* in bytes of each."""
    begins = [0, 0]
    blocks = list[bytes]()
    texts = read_prose_and_code()
    for at, end in enumerate(ends):
        blocks.append(texts[at % 2][begins[at % 2] : end])
        begins[at % 2] = end
    return blocks


def cut_into_chunks(text: str, context: int, chunks: int) -> list[str]:
    """
    At most so many *chunks* of *text*, one at least, of about *context* tokens.

    Each has as many characters; what is left behind them is not read.
    """
    size = BYTES_PER_TOKEN * context
    fitting = max(1, min(chunks, len(text) // size))
    return [text[at * size : (at + 1) * size] for at in range(fitting)]
