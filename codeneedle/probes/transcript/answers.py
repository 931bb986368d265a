"""Turns of recorded conversations: what would be measured, and what each token lost."""

import functools
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from codeneedle.document import Document, Heading, Lines, Table
from codeneedle.probes.answers import Answer, View, loss_style
from codeneedle.probes.transcript.choice import (
    CountedTurn,
    dropped_lines,
    dropped_phrases,
)
from codeneedle.probes.transcript.metrics import breaks_at, logp, right
from codeneedle.probes.transcript.record import (
    NAME,
    conditions_of,
    scored_turns,
    transcript_of,
)
from codeneedle.probes.transcript.rendering import Kind
from codeneedle.probes.transcript.shown import UNKNOWN, is_measured, shown_tokens
from codeneedle.records.record import CellRecord, Run
from codeneedle.text import NO_VALUE_WORD, number, plural, visible_lines

WORST = 10
"""Tokens that are listed with what they lost."""


def choice(
    file: str, counted: Sequence[CountedTurn], *, context: int, command: str
) -> Document:
    """What would be measured of *file*, turn by turn, and the *command* for that."""
    measured = [each for each in counted if not each.left_out]
    tokens = sum(each.facts.tokens for each in measured)
    conversations = len({each.facts.conversation for each in counted})
    yield Heading(
        f"{file}: {plural(conversations, 'conversation')}, "
        f"{plural(len(counted), 'turn')} of the assistant"
    )
    turns, forced = plural(len(measured), "turn"), plural(tokens, "token")
    yield Lines([f"{turns} to force, {forced}; context {context:,} tokens"])
    kinds = [kind for kind in Kind if any(kind in each.tokens for each in counted)]
    sums = [str(sum(each.tokens.get(kind, 0) for each in measured)) for kind in kinds]
    rows = [_row(each, kinds) for each in counted]
    rows.append(["forced", "", str(tokens), *sums, ""])
    heading = ["turn", "after", "tokens", *map(str, kinds), "left out"]
    yield Table(heading, rows, words={"turn", "left out"})
    yield Lines([*dropped_lines(dropped_phrases(counted))])
    if measured:
        yield Lines(["measure them:", f"  {command}"])


def _row(each: CountedTurn, kinds: Sequence[Kind]) -> list[str]:
    facts = each.facts
    counts = [str(each.tokens.get(kind, 0)) for kind in kinds]
    return [
        facts.name,
        f"{facts.prompt_tokens:,}",
        str(facts.tokens),
        *counts,
        each.left_out,
    ]


def answers(run: Run, record: CellRecord) -> Iterator[Answer]:
    """The turns of *record*."""
    for name in scored_turns(record, run.setup):
        show = functools.partial(_turn, run, record, name)
        yield Answer(name=name, show=show)


def overview(run: Run, record: CellRecord) -> Document:
    """One line per turn of *record*, with its scores or its error."""
    chosen, scored = conditions_of(run.setup), scored_turns(record, run.setup)
    errors = {turn.turn: turn.error for turn in transcript_of(record).turns}
    rows = []
    for turn in chosen.turns:
        place = [turn.name, f"{turn.prompt_tokens:,}", str(turn.tokens)]
        tokens = scored.get(turn.name)
        if tokens is None:
            rows.append([*place, "", "", "", errors.get(turn.name, "not asked")])
            continue
        kinds = ", ".join(kind for kind in Kind if kind in {t.kind for t in tokens})
        shares = [number(logp(tokens), digits=3), number(right(tokens), digits=1)]
        rows.append([*place, f"{breaks_at(tokens):g}", *shares, kinds])
    yield Lines([f"{plural(len(scored), 'turn')} forced token by token"])
    heading = ("turn", "after", "tokens", "breaks at", "logp", "right %", "classes")
    yield Table(heading, rows, words={"turn", "classes"})


def _turn(run: Run, record: CellRecord, name: str, view: View) -> Document:
    """
    The tokens of one turn, coloured by what they lost, and those that lost most.

    Raises:
        BadInput: If the file is another one than that which was measured.
    """
    file = view.transcript or _kept_file(run)
    tokens = shown_tokens(run, record, name, file)
    text = Text()
    for token in tokens:
        shown = UNKNOWN if not token.text.strip(UNKNOWN) else token.text
        text.append(visible_lines(shown), style=loss_style(token.loss))
    hint = "its text is not stored; to see it: --transcript FILE"
    yield Lines([text if file else hint])
    worst = sorted(range(len(tokens)), key=lambda at: -tokens[at].loss)[:WORST]
    rows = [
        [
            str(at + 1),
            tokens[at].text,
            tokens[at].kind.value,
            _percent(tokens[at].reference),
            _percent(tokens[at].probability),
            f"{100 * tokens[at].loss:.1f} %",
        ]
        for at in worst
        if tokens[at].loss > 0
    ]
    heading = ("token", "text", "class", "reference", "pair", "loss")
    yield Table(heading, rows, words={"text", "class"})
    if not rows:
        yield Lines(["no token lost anything against the reference"])


def _kept_file(run: Run) -> Path | None:
    """The file that *run* measured, if it is still where it was."""
    file = tomllib.loads(run.sweep).get(NAME, {}).get("file")
    return Path(file) if file and is_measured(run, Path(file)) else None


def _percent(probability: float | None) -> str:
    return NO_VALUE_WORD if probability is None else f"{100 * probability:.1f} %"
