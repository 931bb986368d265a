"""How far the first token of each line of an answer leads, asked after the reply."""

import bisect
import itertools
from dataclasses import dataclass

from codeneedle.client import Client, Completion

SLACK_TOKENS = 256
"""What a server may read anew for one lead beyond the answer itself, in tokens."""


@dataclass(frozen=True, slots=True)
class Leads:
    """
    Probabilities at some places of an answer; parallel, ascending by place.

    Attributes:
        places: Where in the answer, in characters.
        logprobs: Natural logarithm of the probability of the token that is there.
        gaps: That minus the best other token's, in nats.
        is_dear: Whether the server had to read the prompt again for them, so that
            nobody should ask for more.
    """

    places: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    gaps: tuple[float, ...] = ()
    is_dear: bool = False


def leads(client: Client, prompt: str, answer: str, *, seed: int = 0) -> Leads:
    """
    Ask how sure the model was of the first word of each line of its *answer*.

    A server that speculates tells the probabilities of none of the tokens that it
    had guessed. Asked for a single token, it has nothing to guess: each lead is
    one request, that goes on with the answer up to there. From the last to the
    first, each finds all that it needs in the cache.

    Args:
        client: Of the server that gave the answer.
        prompt: What it was asked, as the template renders it.
        answer: The part of its reply that is scored.
        seed: Of sampling.

    Raises:
        CellError: If the server fails.
    """
    tokens = client.tokens(prompt + answer)
    places = _token_of_each(client, answer, tokens)
    found: list[tuple[int, float, float]] = []
    is_dear = False
    for place, at in reversed(places):
        question = Completion(prompt=tokens[:at], max_tokens=1, seed=seed)
        reply = client.complete(question)
        if reply.gaps:
            # Computed alone and not in a batch, a near tie may fall otherwise.
            is_same = reply.ids == tokens[at : at + 1]
            found.append((place, reply.logprobs[0], reply.gaps[0] if is_same else 0.0))
        read = reply.prompt_tokens - reply.cached_tokens
        is_dear = read > len(answer) + SLACK_TOKENS
        if is_dear:
            break
    found.reverse()
    return Leads(
        places=tuple(place for place, _, _ in found),
        logprobs=tuple(logprob for _, logprob, _ in found),
        gaps=tuple(gap for _, _, gap in found),
        is_dear=is_dear,
    )


def _token_of_each(
    client: Client, answer: str, tokens: tuple[int, ...]
) -> list[tuple[int, int]]:
    """
    The first word of each line, as places in *answer* and indices into *tokens*.

    Counted from the end: what a tokenizer makes of a beginning depends on what comes
    before it, so places are left out from where on the tokens are not the same.
    """
    pieces = client.pieces(answer)
    starts = list(itertools.accumulate((piece.size for piece in pieces), initial=0))
    found = []
    for place in first_words(answer):
        index = bisect.bisect_right(starts, len(answer[:place].encode())) - 1
        rest = pieces[index:]
        at = len(tokens) - len(rest)
        if rest and tokens[at:] == tuple(piece.id for piece in rest):
            found.append((place, at))
    return found


def first_words(answer: str) -> list[int]:
    """Where the first word of each line that has one stands, in characters."""
    found, start = [], 0
    for line in answer.split("\n"):
        if line.strip():
            found.append(start + len(line) - len(line.lstrip()))
        start += len(line) + 1
    return found
