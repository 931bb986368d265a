"""Where an answer first differs from the reference's, how sure the reference was there,
and which prompts are out because it loops or writes nothing.
"""

from dataclasses import dataclass

from codeneedle.probes.generation.loops import Loop, first_loop_in
from codeneedle.probes.generation.record import (
    Written,
    reference_answers,
    written_answers_by_prompt,
)
from codeneedle.probes.observations import keep_results
from codeneedle.records.record import (
    CellRecord,
    Setup,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """Where an answer leaves that of the reference."""

    character: int  # number of the first other character, from 0
    tokens: int
    """
    Tokens of the reference's answer before it; an estimate where the server told fewer
    pieces than tokens.
    """

    lead: float | None
    """
    How sure the reference was of its own next token, in nats; None if the server did
    not tell. A difference at 0.01 nats is noise, one at 3 is damage.
    """


def first_difference(reference: Written, other: Written) -> FirstDifference | None:
    """
    Where *other* leaves the answer of the *reference*; None if it never does.

    To end otherwise is a difference, too, behind the last character.
    """
    if other.text == reference.text and other.finish == reference.finish:
        return None
    both = enumerate(zip(reference.text, other.text, strict=False))
    shortest = min(len(reference.text), len(other.text))
    at = next((at for at, (one, two) in both if one != two), shortest)
    tokens, start, pieces = 0, 0, reference.token_or_word_texts
    for piece in pieces:
        if start + len(piece) > at:
            break
        start += len(piece)
        tokens += 1
    lead = reference.leads[tokens] if tokens < len(reference.leads) else None
    if pieces and len(pieces) != reference.tokens:
        # Words, or characters that take several tokens and come as one.
        tokens = round(tokens * reference.tokens / len(pieces))
    return FirstDifference(character=at, tokens=tokens, lead=lead)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComparison:
    """An answer beside that of the reference."""

    prompt: str  # name of the prompt
    ours: Written  # the answer
    theirs: Written  # the reference's
    difference: FirstDifference | None
    """Where the first leaves the second; None if it never does."""

    loop: Loop | None
    """The stretch of the answer that one n-gram fills; None without one."""

    reference_loop: Loop | None
    """That stretch of the reference's answer; None without one."""

    @property
    def is_out(self) -> bool:
        """Whether the reference loops, or writes nothing: nothing could be lost."""
        return self.reference_loop is not None or self.theirs.is_empty


@keep_results()
def compared_answers(record: CellRecord, setup: Setup) -> tuple[AnswerComparison, ...]:
    """
    The answers of *record* beside those of the reference, in asking order.

    Those that the reference lacks are left out; empty before there is a reference.

    Raises:
        BadRecord: See `written_answers_by_prompt` and `reference_answers`.
    """
    first = reference_answers(setup)
    if first is None:
        return ()
    return tuple(
        AnswerComparison(
            prompt=name,
            ours=ours,
            theirs=first.answers[name],
            difference=first_difference(first.answers[name], ours),
            loop=first_loop_in(ours.token_or_word_texts),
            reference_loop=first_loop_in(first.answers[name].token_or_word_texts),
        )
        for name, ours in written_answers_by_prompt(record).items()
        if name in first.answers
    )
