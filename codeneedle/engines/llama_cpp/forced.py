"""
Forces right tokens at llama-server, by one request with a grammar or one for each
token, and scores them; a token that is not listed gets a bound.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from codeneedle.engines.messages import (
    NO_ID,
    TOP_TOKENS,
    BadReply,
    NoScores,
    Refused,
    Reply,
    Token,
    TokenPiece,
    own_and_listed_logprobs,
    round_finite_score_or_zero,
)
from codeneedle.scores import LOWEST, NoScore

LISTED_TOKENS = 100
"""
Requested where the token that comes is not reported, as part of a character.

A hundred cost five hundredths of the time more than two.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTokens:
    """
    Tokens that are made to come next, so that the server tells how probable each was.

    Source:
        Bias and grammar decide what is chosen; probabilities are those before them,
        the same both ways to the last digit. Measured with llama.cpp b11434 and one
        thread. SmolLM2, 160 tokens after 1,600: one request with a grammar 10.5 s, one
        for each token 11.5 s; with 100 listed, 12 s, and 2 of them not among those,
        while the token that comes is always reported. Built-in model, 300 tokens after
        17,000: 4.5 s and 7.0 s. A grammar ends the server at a special token, is
        refused at a part of a character, and by builds that know none of tokens.
    """

    before: tuple[int, ...]  # the tokens before them, the first of the prompt included
    tokens: tuple[int, ...]
    """
    The tokens. One may be any; more must each end a character, and none may be a
    special one.
    """

    listed: int = TOP_TOKENS
    """How many of the most probable ones are reported beside each."""

    seed: int = 0  # of sampling; without effect


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScore:
    """Log-probability and lead of one right token; see `messages.Forced`."""

    logprob: float  # natural logarithm of its probability, or an upper bound
    is_bound: bool  # whether it is a bound
    lead: float  # log-probability minus that of the most probable other token


def score_of(right: int, came: Token) -> TokenScore:
    """
    Score of the token *right*, from the candidates listed with *came*, the sampled one.

    Raises:
        BadReply: If the server does not list tokens by number, or what cannot be.
    """
    ids = {came.id, *(top_logprob.id for top_logprob in came.top_logprobs)}
    if NO_ID in ids or not ids - {right}:
        raise BadReply(expected="probabilities by token", answer=str(came))
    try:
        listed = own_and_listed_logprobs(came)
    except NoScore as error:
        raise NoScores(str(error)) from error
    others = [logprob for token, logprob in listed.items() if token != right]
    logprob = listed.get(right, min(others))
    return TokenScore(
        logprob=round_finite_score_or_zero(logprob),
        is_bound=right not in listed or logprob <= LOWEST,
        lead=round_finite_score_or_zero(logprob - max(others)),
    )


Request = Callable[[NextTokens], tuple[Reply, Sequence[Token]]]
"""Gives the reply, and the tokens in it with what is listed beside each."""


def right_token_ends_by_place(
    prompt: Sequence[int], whole: Sequence[TokenPiece], right: str
) -> dict[int, int]:
    """
    Where the tokens of a right continuation are, and where each ends in it.

    Args:
        prompt: The tokens of the prompt alone. Its last ones may not be a beginning
            of *whole*: a line break and the indentation behind it are one token.
        whole: The tokens of the prompt and *right* as one text.
        right: The continuation.

    Returns:
        For each place in *whole*, from the first that differs and that is not of the
        prompt alone: the characters of *right* that are complete with this token.
    """
    ids = [piece.id for piece in whole]
    pairs = enumerate(zip(prompt, ids, strict=False))
    shared = next((at for at, (a, b) in pairs if a != b), min(len(prompt), len(ids)))
    encoded = right.encode(errors="replace")
    # Counted from the end: a tokenizer may add a blank before the first word.
    ends, end = {}, len(encoded)
    for place in range(len(ids) - 1, shared - 1, -1):
        if end > 0:
            ends[place] = len(encoded[:end].decode(errors="ignore"))
        end -= whole[place].utf8_size
    return dict(sorted(ends.items()))


def request_token_scores(
    wanted: NextTokens, request: Request, *, at_once: bool, other: Callable[[], int]
) -> tuple[Reply, list[TokenScore]]:
    """
    The first reply, and the score of each token.

    Args:
        wanted: The tokens, one or more.
        request: Makes them come.
        at_once: Whether one request may be tried for all of them.
        other: A token that ends a character; called where one of *wanted* does not.

    Raises:
        CellError: As of *request*; and if tokens were drafted, which have no
            probabilities.
    """
    with contextlib.suppress(Refused):  # no grammars of tokens
        if at_once:
            reply, came = request(wanted)
            # Drafted tokens are reported without probabilities.
            is_whole = wanted.tokens == tuple(token.id for token in came)
            if is_whole and not reply.drafted:
                return reply, [score_of(token.id, token) for token in came]
    every = (*wanted.before, *wanted.tokens)
    replies, scores = [], []
    for at, right in enumerate(wanted.tokens, start=len(wanted.before)):
        alone = replace(wanted, before=every[:at], tokens=(right,))
        reply, came = request(alone)
        if not came:
            # Parts of a character, and a token that ends the reply, are reported
            # without probabilities; both may be among those listed beside another.
            another = replace(alone, tokens=(other(),), listed=LISTED_TOKENS)
            reply, came = request(another)
        replies.append(reply)
        scores.append(score_of(right, came[0] if came else Token()))
    return replies[0], scores
