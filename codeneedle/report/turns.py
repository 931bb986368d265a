"""Turns of recorded conversations: what would be measured, and what each token lost."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from codeneedle.probes.transcript.choice import CountedTurn
from codeneedle.probes.transcript.probe import (
    TranscriptSettings,
    dropped_phrases,
)
from codeneedle.probes.transcript.record import (
    NAME,
    conditions_of,
    scored_turns,
    transcript_of,
)
from codeneedle.probes.transcript.rendering import Kind
from codeneedle.probes.transcript.shown import (
    UNKNOWN,
    ShownToken,
    is_measured,
    shown_tokens,
)
from codeneedle.records.record import CellRecord, Run
from codeneedle.records.store import SWEEP
from codeneedle.report.captions import number, text_table
from codeneedle.sweep.request import read_sweep
from codeneedle.text import plural, visible, visible_lines

WORST = 10
"""Tokens that are listed with what they lost."""

STYLES = ((0.5, "bold red"), (0.1, "red"), (0.01, "yellow"))
"""Losses of probability from which on a token is coloured so."""


def transcript_view(
    file: str, counted: Sequence[CountedTurn], *, context: int
) -> Group:
    """What would be measured of *file*, turn by turn."""
    measured = [each for each in counted if not each.left_out]
    tokens = sum(each.facts.tokens for each in measured)
    conversations = len({each.facts.conversation for each in counted})
    title = (
        f"{file}: {plural(conversations, 'conversation')}, "
        f"{plural(len(counted), 'turn')} of the assistant"
    )
    said = (
        f"{plural(len(measured), 'turn')} to force, {plural(tokens, 'token')}; context "
        f"{context:,} tokens"
    )
    kinds = [kind for kind in Kind if any(kind in each.tokens for each in counted)]
    rows = [_row(each, kinds) for each in counted]
    sums = [str(sum(each.tokens.get(kind, 0) for each in measured)) for kind in kinds]
    rows.append(["forced", "", str(tokens), *sums, ""])
    headings = ("turn", "after", "tokens", *(str(kind) for kind in kinds), "left out")
    parts: list[RenderableType] = [
        Text(visible(title), style="bold"),
        Text(said),
        Text(),
        text_table(headings, rows, words={"turn": 0, "left out": 0}, gap=2),
    ]
    parts += [
        Text(f"the chat template drops {phrase}") for phrase in dropped_phrases(counted)
    ]
    return Group(*parts)


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


def turns_overview(run: Run, record: CellRecord) -> Group:
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
        right = sum(token.lead >= 0 for token in tokens) / len(tokens)
        logp = sum(token.logprob for token in tokens) / len(tokens)
        broken = (at for at, token in enumerate(tokens) if token.lead < 0)
        kinds = ", ".join(kind for kind in Kind if kind in {t.kind for t in tokens})
        breaks = str(next(broken, len(tokens)))
        rows.append(
            [
                *place,
                breaks,
                number(logp, digits=3),
                number(100 * right, digits=1),
                kinds,
            ]
        )
    headings = ("turn", "after", "tokens", "breaks at", "logp", "right %", "classes")
    return Group(
        Text(f"{plural(len(scored), 'turn')} forced token by token"),
        Text(),
        text_table(headings, rows, words={"turn": 0, "classes": 0}, gap=1),
    )


def turn_view(
    run: Run, record: CellRecord, name: str, file: Path | None, *, colour: bool
) -> Group:
    """
    The tokens of one turn, coloured by what they lost, and those that lost most.

    Args:
        run: Its run.
        record: The cell's.
        name: Of the turn.
        file: Where its text is; None for the file that was measured, if it is there.
        colour: Whether to colour.

    Raises:
        BadInput: If the file is another one than that which was measured.
    """
    file = file or _kept_file(run)
    tokens = shown_tokens(run, record, name, file)
    parts: list[RenderableType] = []
    if file:
        text = Text()
        for token in tokens:
            shown = UNKNOWN if not token.text.strip(UNKNOWN) else token.text
            text.append(visible_lines(shown), style=_style(token) if colour else "")
        parts += [text, Text()]
    else:
        hint = "its text is not stored; to see it: --transcript FILE"
        parts += [Text(hint), Text()]
    worst = sorted(range(len(tokens)), key=lambda at: -tokens[at].loss)[:WORST]
    rows = [
        [
            str(at + 1),
            visible(tokens[at].text),
            tokens[at].kind.value,
            _percent(tokens[at].reference),
            _percent(tokens[at].probability),
            f"{100 * tokens[at].loss:.1f} %",
        ]
        for at in worst
        if tokens[at].loss > 0
    ]
    headings = ("token", "text", "class", "reference", "pair", "loss")
    if rows:
        words = {"text": 0, "class": 0}
        parts.append(text_table(headings, rows, words=words, gap=2))
    else:
        parts.append(Text("no token lost anything against the reference"))
    return Group(*parts)


def _kept_file(run: Run) -> Path | None:
    """The file that *run* measured, if it is still where it was."""
    folder = run.root / run.name if run.root else None
    if folder is None or not (folder / SWEEP).is_file():
        return None
    file = read_sweep(str(folder)).chosen(NAME, TranscriptSettings).file
    return file if file and is_measured(run, file) else None


def _style(token: ShownToken) -> str:
    return next((style for least, style in STYLES if token.loss >= least), "")


def _percent(probability: float | None) -> str:
    return "-" if probability is None else f"{100 * probability:.1f} %"
