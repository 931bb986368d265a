"""Self-speculation: the text drafts the answer that it holds, and the model checks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

KIND = "ngram-simple"
"""
How llama.cpp calls it: where the last tokens stand in the text before, those that
follow there are the draft. No second model, no memory, and of greedy sampling the
same tokens, as each is checked.
"""

_PATTERN = "--spec-ngram-simple-size-n"
_DRAFT = "--spec-ngram-simple-size-m"
_NEEDED = frozenset({"--spec-type", _PATTERN, _DRAFT})

_THEIRS = ("--spec-", "--draft", "--model-draft", "-md", "-hfd", "--hf-repo-draft")
"""How arguments begin with which a person chooses a draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """
    Lengths of self-speculation, in tokens.

    Attributes:
        pattern: What must stand in the text already. Short ones draft sooner after a
            slip, and wrongly more often.
        draft: What is drafted and checked at once. Longer ones save more where
            writing is bound by memory, and cost more where an answer is cut: the
            server first ends the check that it is at.
    """

    pattern: int
    draft: int

    @property
    def phrase(self) -> str:
        """For setups and reports."""
        return f"{KIND}, n {self.pattern}, m {self.draft}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """What a server is started with."""
        return (
            *("--spec-type", KIND),
            *(_PATTERN, str(self.pattern)),
            *(_DRAFT, str(self.draft)),
        )


CHOSEN = Speculation(pattern=12, draft=64)
"""
The lengths that a sweep uses.

Of n 8, 12, 16 and m 16 to 128, these were the fastest: 0.66 of the time of a plain
round, the built-in model at q8_0/q8_0 behind 9,021 tokens, llama.cpp b11434, AMD EPYC,
two cores; 0.83 with n 8 and m 16, 0.75 with n 16 and m 128 (`make bench`).
"""


def speculation_for(
    options: frozenset[str], extra: Iterable[str]
) -> Speculation | None:
    """
    How a server with these *options* is to speculate; None if it cannot, or must not.

    Args:
        options: Long options that the binary has.
        extra: A person's arguments for the server; who chooses a draft there has it.
    """
    if not options >= _NEEDED or any(word.startswith(_THEIRS) for word in extra):
        return None
    return CHOSEN


def difference(
    plain: Sequence[object],
    speculated: Sequence[object],
    *,
    of: str,
    unit: str = "token",
) -> str:
    """
    Where two replies part, as a phrase; empty if they are the same.

    Args:
        plain: Tokens or characters as they come without speculation.
        speculated: The same with it.
        of: Name of the needle.
        unit: What they consist of.
    """
    if plain == speculated:
        return ""
    pairs = zip(plain, speculated, strict=False)
    shorter = min(len(plain), len(speculated))
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    return f"{of} is another reply from {unit} {at + 1} on"
