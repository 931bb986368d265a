"""Which turns of a file are forced: those that fit, and of these as many as asked."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from codeneedle.engines.engine import Template
from codeneedle.probes.transcript.conversations import Conversation
from codeneedle.probes.transcript.record import TurnFacts
from codeneedle.probes.transcript.rendering import (
    Kind,
    RenderedTurn,
    rendered_turns,
)

NOT_RENDERED = "the chat template renders nothing of it"
NOT_FITTING = "it does not fit the context"
OVER_LIMIT = "beyond --transcript-tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTurn:
    """
    A turn with its tokens.

    Attributes:
        turn: The turn.
        facts: What is stored of it.
        tokens: Tokens of each class.
        left_out: Why it is not measured; empty if it is.
    """

    turn: RenderedTurn
    facts: TurnFacts
    tokens: dict[Kind, int]
    left_out: str = ""


def counted_turns(
    conversations: Sequence[Conversation],
    template: Template,
    *,
    context: int,
    limit: int | None,
) -> list[CountedTurn]:
    """
    All turns of the assistant, with those that are left out.

    Args:
        conversations: As they were recorded.
        template: Of the model.
        context: In tokens.
        limit: Most tokens to force; None for all.

    Raises:
        BadInput: If the template does not take a conversation.
        CellError: If the server fails.
    """
    found = [
        _counted(turn, template, context)
        for number, each in enumerate(conversations, start=1)
        for turn in rendered_turns(each, number, template)
    ]
    if limit is None:
        return found
    measured = [at for at, each in enumerate(found) if not each.left_out]
    kept = spread([found[at].facts.tokens for at in measured], limit)
    chosen = {measured[at] for at in kept}
    return [
        each if each.left_out or at in chosen else replace(each, left_out=OVER_LIMIT)
        for at, each in enumerate(found)
    ]


def spread(sizes: Sequence[int], limit: int) -> list[int]:
    """
    Numbers of as many turns as *limit* tokens allow, evenly spread, the last included.

    Args:
        sizes: Tokens of each turn.
        limit: Most tokens in all.
    """
    last = len(sizes) - 1
    for count in range(len(sizes), 1, -1):
        chosen = [round(at * last / (count - 1)) for at in range(count)]
        if sum(sizes[at] for at in chosen) <= limit:
            return chosen
    alone = (at for at in range(last, -1, -1) if sizes[at] <= limit)
    return [at for at, _ in zip(alone, range(1), strict=False)]


def _counted(turn: RenderedTurn, template: Template, context: int) -> CountedTurn:
    prompt_tokens = template.count_tokens(turn.prompt)
    tokens = template.count_tokens(turn.prompt + turn.text) - prompt_tokens
    facts = TurnFacts(
        name=turn.name,
        prompt_tokens=prompt_tokens,
        tokens=max(tokens, 0),
        prompt_sha256=_sha256(turn.prompt),
        text_sha256=_sha256(turn.text),
        parts=turn.parts,
    )
    # One token more than the text, as servers want room for a reply.
    is_fitting = prompt_tokens + tokens < context
    return CountedTurn(
        turn=turn,
        facts=facts,
        tokens=dict(_by_kind(turn, facts, template)),
        left_out=""
        if turn.text and is_fitting
        else (NOT_FITTING if turn.text else NOT_RENDERED),
    )


def _by_kind(
    turn: RenderedTurn, facts: TurnFacts, template: Template
) -> Iterator[tuple[Kind, int]]:
    """The tokens of each class that begin in its parts."""
    if not turn.text:
        return
    starts, at = [], 0
    encoded = turn.text.encode()
    for token in template.tokens(turn.text, add_special=False):
        starts.append(len(encoded[:at].decode(errors="ignore")))
        at += token.size
    kinds = [facts.kind_at(start) for start in starts]
    for kind in Kind:
        if kind in kinds:
            yield kind, kinds.count(kind)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
