"""
Shows turns of recorded conversations: what would be measured of a file; what each token
lost, with its text if the file is unchanged.
"""

import functools
import itertools
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from codeneedle.document import Document, Heading, Lines, Table
from codeneedle.errors import BadInput
from codeneedle.probes import forced
from codeneedle.probes.answers import ScoredAnswer, View
from codeneedle.probes.forced import UNKNOWN
from codeneedle.probes.transcript.choice import (
    CountedTurn,
    dropped_field_lines,
    dropped_field_phrases,
)
from codeneedle.probes.transcript.conversations import Turn, read_hash_and_conversations
from codeneedle.probes.transcript.record import (
    NAME,
    TranscriptLayout,
    TurnFacts,
    scores_by_turn,
    transcript_layout,
    turn_answers,
)
from codeneedle.probes.transcript.rendering import Kind, field_text_or_none
from codeneedle.records.record import CellRecord, Run
from codeneedle.text import number_text, plural

WORST = 10
"""Tokens that are listed with what they lost."""


def turn_choice_document(
    file: str,
    counted: Sequence[CountedTurn],
    *,
    context: int,
    command: str,
    unread: Sequence[str] = (),
) -> Document:
    """
    What would be measured of *file*, turn by turn, and the *command* for that.

    Lines on what is *unread* of the file stand before what the template drops.
    """
    measured = [turn for turn in counted if not turn.left_out]
    tokens = sum(turn.facts.tokens for turn in measured)
    conversations = len({turn.facts.conversation_number for turn in counted})
    yield Heading(
        f"{file}: {plural(conversations, 'conversation')}, "
        f"{plural(len(counted), 'turn')} of the assistant"
    )
    turns, forced = plural(len(measured), "turn"), plural(tokens, "token")
    yield Lines([f"{turns} to force, {forced}; context {context:,} tokens"])
    kinds = [kind for kind in Kind if any(kind in turn.tokens for turn in counted)]
    sums = [str(sum(turn.tokens.get(kind, 0) for turn in measured)) for kind in kinds]
    rows = [_turn_row(turn, kinds) for turn in counted]
    rows.append(["forced", "", str(tokens), *sums, ""])
    heading = ["turn", "after", "tokens", *map(str, kinds), "left out"]
    yield Table(heading, rows, words={"turn", "left out"})
    yield Lines([*unread, *dropped_field_lines(dropped_field_phrases(counted))])
    if measured:
        yield Lines(["measure them:", f"  {command}"])


def _turn_row(turn: CountedTurn, kinds: Sequence[Kind]) -> list[str]:
    """Name, place and tokens of a turn, those of *kinds*, and why it is left out."""
    facts = turn.facts
    counts = [str(turn.tokens.get(kind, 0)) for kind in kinds]
    return [
        facts.name,
        f"{facts.prompt_tokens:,}",
        str(facts.tokens),
        *counts,
        turn.left_out,
    ]


def answers(run: Run, record: CellRecord) -> Iterator[ScoredAnswer]:
    """The turns of *record* that have scores."""
    for name in scores_by_turn(record, run.setup):
        show = functools.partial(_turn_document, run, record, name)
        yield ScoredAnswer(name=name, show=show)


def overview(run: Run, record: CellRecord) -> Document:
    """One line per turn of *record*, with its scores or its error."""
    chosen, scored = transcript_layout(run.setup), scores_by_turn(record, run.setup)
    errors = {turn.name: turn.error for turn in turn_answers(record)}
    rows = []
    for turn in chosen.turns:
        place = [turn.name, f"{turn.prompt_tokens:,}", str(turn.tokens)]
        scores = scored.get(turn.name)
        if scores is None:
            rows.append([*place, "", "", "", errors.get(turn.name, "not asked")])
            continue
        found = {turn.kind_at(start) for start in (0, *scores.ends[:-1])}
        kinds = ", ".join(kind for kind in Kind if kind in found)
        logp = number_text(scores.mean_logprob, digits=3)
        right = number_text(100 * scores.first_choice_share, digits=1)
        rows.append([*place, f"{scores.leading_first_choices}", logp, right, kinds])
    yield Lines([f"{plural(len(scored), 'turn')} forced token by token"])
    heading = ("turn", "after", "tokens", "breaks at", "logp", "right %", "classes")
    yield Table(heading, rows, words={"turn", "classes"})


def _turn_document(run: Run, record: CellRecord, name: str, view: View) -> Document:
    """
    The tokens of one turn, coloured by what they lost, and those that lost most.

    Raises:
        BadInput: If the file is another one than that which was measured.
    """
    file, chosen = (
        view.transcript or _unchanged_transcript(run),
        transcript_layout(run.setup),
    )
    turn = next(turn for turn in chosen.turns if turn.name == name)
    tokens = forced.tokens_beside_reference(
        run,
        record,
        name,
        lambda of: scores_by_turn(of, run.setup),
        text=_text_with_unknowns(turn, _read_recorded_turn(turn, chosen, file))
        if file
        else "",
        kind_at=turn.kind_at,
    )
    hint = "" if file else "its text is not stored; to see it: --transcript FILE"
    return forced.compared_tokens_document(tokens, hint=hint, most=WORST)


def _unchanged_transcript(run: Run) -> Path | None:
    """The file that *run* measured; None if it is gone or has changed."""
    file = tomllib.loads(run.sweep).get(NAME, {}).get("file")
    return Path(file) if file and _is_measured_file(run, Path(file)) else None


def _is_measured_file(run: Run, file: Path) -> bool:
    """True if *file* exists and is the one that *run* measured."""
    try:
        sha256, _ = read_hash_and_conversations(file)
    except BadInput:
        return False
    return sha256 == transcript_layout(run.setup).sha256


def _read_recorded_turn(turn: TurnFacts, chosen: TranscriptLayout, file: Path) -> Turn:
    """The recording of *turn* in *file*; a file that was not measured is refused."""
    sha256, conversations = read_hash_and_conversations(file)
    if sha256 != chosen.sha256:
        raise BadInput(
            source=f"--transcript {file}",
            reason="it is not the file that was measured, or has changed since",
            hint="Name the file as it was, or leave the option out.",
        )
    number, _, at = turn.name.partition(".")
    turns = conversations[int(number) - 1].turns
    return [turn for turn in turns if turn.role == "assistant"][int(at) - 1]


def _text_with_unknowns(turn: TurnFacts, recorded: Turn) -> str:
    """The text of *turn*, with `UNKNOWN` for each character that the template adds."""
    pieces = []
    # Blocks of code split the content into several parts of one field.
    for field, group in itertools.groupby(turn.parts, key=lambda part: part.field):
        parts = list(group)
        length = parts[-1].end - parts[0].start
        pieces.append(field_text_or_none(recorded, field, length) or UNKNOWN * length)
    return "".join(pieces)
