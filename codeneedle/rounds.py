"""What a recall round stores: a reply as it came, with its tokens and timings."""

from dataclasses import dataclass
from typing import Literal

import msgspec

from codeneedle.records import BadRecord, Json

Finish = Literal["stop", "length", "cut"]
"""Why a reply ended: the model said so, the token limit, or we had enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """
    One needle asked of one cell.

    Attributes:
        needle: Name of the function.
        prompt_sha256: Of the prompt's text as sent, UTF-8.
        reply: What the model said, verbatim; empty on an error.
        error: Why there is no reply to score; empty if there is one.
        finish: Why the reply ended; None on an error.
        prompt_tokens: Length of the prompt, in tokens.
        cached_tokens: Of these, taken from the cache.
        prompt_ms: Time to read the others.
        predicted_tokens: Length of the reply, in tokens.
        predicted_ms: Time to write them.
        wall_s: From request to the end of the reply, seen from here.
        logprobs: Per token of the reply, natural logarithm of its probability.
        gaps: Per token, its log-probability minus the best other one's; how
            close the token was to being another. Never negative when greedy.
        lengths: Per token, the characters that it added to the reply.
        retries: Why earlier attempts failed on the way; quality is never re-rolled.
        drafted: Tokens that the server guessed from the text before computing them.
        accepted: Of these, the right ones.
        places: Where in the reply the gaps were asked for, in characters, ascending;
            empty where they are those of all its tokens. A server that speculates
            tells no probabilities of the tokens that it guessed.
    """

    needle: str
    prompt_sha256: str
    reply: str = ""
    error: str = ""
    finish: Finish | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_ms: float = 0.0
    predicted_tokens: int = 0
    predicted_ms: float = 0.0
    wall_s: float = 0.0
    logprobs: tuple[float, ...] = ()
    gaps: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()
    retries: tuple[str, ...] = ()
    drafted: int = 0
    accepted: int = 0
    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """
    The observation of the recall probe.

    Attributes:
        rounds: The scored rounds, in asking order.
        priming: The unscored round before them.
        plain: Rounds that a server without speculation was asked, to compare; those
            of the first cell only.
    """

    rounds: tuple[Round, ...]
    priming: Round | None = None
    plain: tuple[Round, ...] = ()


def read_recall(observation: Json, *, file: str) -> Recall:
    """
    Read what the recall probe stored.

    Raises:
        BadRecord: If it is something else.
    """
    try:
        return msgspec.convert(observation, type=Recall)
    except msgspec.ValidationError as error:
        raise BadRecord(file=file, reason=str(error)) from error


def observation_of(recall: Recall) -> Json:
    """*recall* as it will be read back from disk."""
    observation: Json = msgspec.json.decode(msgspec.json.encode(recall), type=Json)
    return observation
