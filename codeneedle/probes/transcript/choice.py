"""
Chooses the turns of a file that are forced: those that fit the context, no copies, and
evenly spread within ``--transcript-tokens``; refuses a template that takes too few.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from codeneedle.corpora.fitting import is_context_filled
from codeneedle.engines.engine import ChatTemplate
from codeneedle.errors import BadInput
from codeneedle.probes.transcript.conversations import (
    MOST_UNREAD,
    Conversation,
    unread_part_lines,
)
from codeneedle.probes.transcript.record import (
    COPY,
    TranscriptLayout,
    TurnFacts,
    copied_turn_names,
)
from codeneedle.probes.transcript.rendering import (
    Kind,
    RenderedTurn,
    render_assistant_turns,
)
from codeneedle.text import plural

NOT_RENDERED = "the chat template renders nothing of it"
NOT_FITTING = "it does not fit the context"
OVER_LIMIT = "beyond --transcript-tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTurn:
    """A turn with its tokens."""

    turn: RenderedTurn
    facts: TurnFacts  # what is stored of it
    tokens: dict[Kind, int]  # number of tokens of each class
    left_out: str = ""  # why it is not measured; empty if it is


def render_and_count_turns(
    conversations: Sequence[Conversation],
    template: ChatTemplate,
    *,
    context: int,
    limit: int | None,
) -> list[CountedTurn]:
    """
    All turns of the assistant, including those that are left out.

    Args:
        conversations: As they were recorded.
        template: The model's chat template.
        context: Its size in tokens.
        limit: Most tokens to force, of turns evenly spread; None for all.

    Raises:
        BadInput: If the template does not take more than `MOST_UNREAD` of the
            conversations.
        CellError: If the server fails.
    """
    counted = [
        _count_turn(turn, template, context)
        for number, conversation in enumerate(conversations, start=1)
        for turn in render_assistant_turns(conversation, number, template)
    ]
    _refuse_too_many_faults(counted, conversations)
    copies = copied_turn_names(turn.facts for turn in counted if not turn.left_out)
    counted = [
        replace(turn, left_out=COPY) if turn.facts.name in copies else turn
        for turn in counted
    ]
    if limit is None:
        return counted
    fitting = [at for at, turn in enumerate(counted) if not turn.left_out]
    kept = evenly_spread_turns([counted[at].facts.tokens for at in fitting], limit)
    chosen = {fitting[at] for at in kept}
    return [
        turn if turn.left_out or at in chosen else replace(turn, left_out=OVER_LIMIT)
        for at, turn in enumerate(counted)
    ]


def _refuse_too_many_faults(
    counted: Sequence[CountedTurn], conversations: Sequence[Conversation]
) -> None:
    """
    Stop where the template takes too few conversations; one may be left out at least.

    Raises:
        BadInput: Naming the first that it does not take.
    """
    faulty = [counted_turn for counted_turn in counted if counted_turn.turn.fault]
    numbers = list(
        dict.fromkeys(counted_turn.facts.conversation_number for counted_turn in faulty)
    )
    most = max(1, int(MOST_UNREAD * len(conversations)))
    if not faulty or (len(numbers) <= most and len(faulty) < len(counted)):
        return
    first = faulty[0]
    conversation, _, turn = first.facts.name.partition(".")
    line = conversations[int(conversation) - 1].line
    why = ": ".join(filter(None, (first.turn.fault, first.turn.detail)))
    of = f"; {len(numbers):,} of {len(conversations):,} conversations have such turns"
    raise BadInput(
        source=f"conversation {conversation}, from line {line}",
        reason=f"turn {turn} of the assistant: {why}{of}",
        hint="Leave the conversations out, or name another chat template in the "
        "arguments after '--'.",
    )


def evenly_spread_turns(sizes: Sequence[int], limit: int) -> list[int]:
    """
    Numbers of as many turns as *limit* allows, evenly spread, first and last included.

    If no two fit so, the last that fits; none if none does.

    Args:
        sizes: Tokens of each turn.
        limit: Most tokens in all.
    """
    last = len(sizes) - 1
    for count in range(len(sizes), 1, -1):
        chosen = [round(at * last / (count - 1)) for at in range(count)]
        if sum(sizes[at] for at in chosen) <= limit:
            return chosen
    fitting = (at for at in range(last, -1, -1) if sizes[at] <= limit)
    return list(itertools.islice(fitting, 1))


def _count_turn(
    turn: RenderedTurn, template: ChatTemplate, context: int
) -> CountedTurn:
    """*turn* with its tokens, and why it is left out: fault, no text, or no room."""
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
    left_out = turn.fault
    if not turn.text:
        left_out = left_out or NOT_RENDERED
    # One token more than the text, as servers need room for a reply.
    elif prompt_tokens + tokens >= context:
        left_out = NOT_FITTING
    by_kind = _tokens_by_kind(turn.text, facts, template) if turn.text else {}
    return CountedTurn(turn=turn, facts=facts, tokens=by_kind, left_out=left_out)


def _tokens_by_kind(
    text: str, facts: TurnFacts, template: ChatTemplate
) -> dict[Kind, int]:
    """Number of tokens of each class; a token has the class of its first character."""
    encoded = text.encode()
    sizes = [token.utf8_size for token in template.tokens(text, add_special=False)]
    starts = itertools.accumulate(sizes[:-1], initial=0)
    # In characters: a token may begin within one.
    counts = Counter(
        facts.kind_at(len(encoded[:start].decode(errors="ignore"))) for start in starts
    )
    return {kind: counts[kind] for kind in Kind if kind in counts}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def dropped_field_phrases(turns: Iterable[CountedTurn]) -> list[str]:
    """Fields that the chat template drops, each with the number of turns."""
    counts = Counter(what for turn in turns for what in turn.turn.dropped)
    return [f"{what} ({plural(count, 'time')})" for what, count in counts.items()]


def caveats(chosen: TranscriptLayout, context: int) -> Iterator[str]:
    """What the turns that are *chosen* say nothing about, a line each."""
    yield from unread_part_lines(chosen.aside)
    yield from dropped_field_lines(chosen.dropped)
    before = [turn.prompt_tokens for turn in chosen.turns]
    end = max((turn.prompt_tokens + turn.tokens for turn in chosen.turns), default=0)
    if not is_context_filled(end, context):
        least, most = (f"{tokens:,}" for tokens in (min(before), max(before)))
        after = f"{least} to {most}" if least != most else most
        yield (
            f"turns stand after {after} tokens: what a context of {context:,} tokens "
            "does beyond is not measured by them"
        )


def dropped_field_lines(phrases: Sequence[str]) -> Iterator[str]:
    """A line for each of `dropped_field_phrases`, and one if tool calls are dropped."""
    for phrase in phrases:
        yield f"the chat template drops {phrase}"
    if any(what in phrase for phrase in phrases for what in ("tool calls", "of tools")):
        yield (
            "tool calls are not measured with this model as the recording has them: "
            "its chat template lacks them (another one: -- --chat-template-file FILE)"
        )
