"""The answers of a pair, next to the expected lines; and the content of a corpus."""

import itertools
import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rapidfuzz.distance import Levenshtein
from rich import box
from rich.cells import cell_len, chop_cells
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from codeneedle.corpora.corpus import FUNCTIONS, Corpus
from codeneedle.corpora.needles import ASKED_LINES, FORCED_LINES, depth_of
from codeneedle.corpora.registry import Named
from codeneedle.errors import BadInput, CodeneedleError, UnknownName
from codeneedle.grid import Pair
from codeneedle.probes import frames
from codeneedle.probes.frames import cells_frame, of_probe
from codeneedle.probes.metrics import Metric
from codeneedle.probes.recall.alignment import Mark, Row, Score, score
from codeneedle.probes.recall.metrics import FORCED
from codeneedle.probes.recall.rounds import (
    ForcedAnswer,
    ScoredRound,
    forced_answers,
    scored_rounds,
)
from codeneedle.probes.retrieval.outcomes import Outcome, outcomes
from codeneedle.probes.retrieval.record import NAME as RETRIEVAL
from codeneedle.probes.retrieval.scoring import AnswerScore, Mode
from codeneedle.probes.reuse.record import NAME as REUSE
from codeneedle.probes.reuse.record import ReuseQuestion, reuse_of
from codeneedle.probes.transcript.record import NAME as TRANSCRIPT
from codeneedle.probes.transcript.record import scored_turns
from codeneedle.records.record import CellRecord, NeedleFacts, Run
from codeneedle.records.store import LOGS
from codeneedle.report.captions import entry_table, number, text_table
from codeneedle.report.grid import Scale, cell_style
from codeneedle.report.reuse import reuse_overview, reuse_view
from codeneedle.report.turns import turn_view, turns_overview
from codeneedle.text import one_line, plural, size, visible, visible_lines

RECALL = "recall"
"""Name of the probe whose answers stand line by line."""


def answers(
    runs: Sequence[Run],
    pair: Pair,
    function: str | None,
    *,
    width: int,
    colour: bool,
    transcript: Path | None = None,
) -> Iterator[RenderableType]:
    """
    An overview of all answers of *pair*, or the one to *function* in full.

    Args:
        runs: The runs to search; each that has the pair is shown.
        pair: The cell.
        function: Name of a needle, or its part after a dot, of a question of a task,
            or of a turn; None for all.
        width: Columns of the terminal.
        colour: Whether to colour; the marks have the same meaning.
        transcript: The file that turns are of, whose text no run holds.

    Raises:
        BadInput: If no run has a record of the pair.
        UnknownName: If none of its rounds and questions has that name.
    """
    found = [
        (run, record) for run in runs for record in run.records if record.pair == pair
    ]
    if not found:
        raise BadInput(
            source=pair,
            reason=f"no record in {', '.join(run.name for run in runs)}",
            hint=f"See which pairs it has: codeneedle grid {runs[0].name}",
        )
    if function is None:
        for run in runs:
            records = [each for of, each in found if of is run]
            yield from _cell_view(run, records)
        return
    named = [
        (run, name, asked) for run, record in found for name, asked in _all(run, record)
    ]
    chosen = [e for e in named if e[1] == function or e[1].endswith(f".{function}")]
    if not chosen:
        raise _unknown(function, pair, [name for _, name, _ in named])
    for run, name, asked in chosen:
        yield Text(visible(f"{run.name}  {pair}  {name}"), style="bold")
        if isinstance(asked, Outcome):
            yield question_view(asked)
        elif isinstance(asked, ReuseQuestion):
            yield reuse_view([asked])
        elif isinstance(asked, CellRecord):
            yield turn_view(run, asked, name, transcript, colour=colour)
        elif isinstance(asked, ForcedAnswer):
            yield forced_tokens(asked, _of_reference(run, asked), colour=colour)
        else:
            yield _round_view(asked, width=width, colour=colour)


def _cell_view(run: Run, records: Sequence[CellRecord]) -> Iterator[RenderableType]:
    """Programs that measured a pair, with what they proved; then its answers."""
    if not records:
        return
    yield Text(visible(f"{run.name}  {records[0].pair}"), style="bold")
    for command in dict.fromkeys(each.command for each in records):
        of_command = [each for each in records if each.command == command]
        probes = ", ".join(each.probe for each in of_command)
        shown = visible(f"{probes}: {shlex.join(command)}")
        # Unbroken, to be copied.
        yield Group(Text(shown, no_wrap=True, overflow="ignore"))
        yield entry_table(_proved(run, of_command[0]), style="dim")
    for record in records:
        if not record.has_numbers:
            yield Text(visible(f"{record.probe}: {record.status}: {record.reason}"))
        elif record.probe == RECALL:
            yield rounds_overview(run, record)
        elif record.probe == RETRIEVAL:
            yield questions_overview(record)
        elif record.probe == REUSE:
            yield reuse_overview(record)
        elif record.probe == TRANSCRIPT:
            yield turns_overview(run, record)


def _proved(run: Run, record: CellRecord) -> Iterator[tuple[str, str]]:
    """Where the log of *record* is, and the settings that it states."""
    log = run.root and run.root / run.name / LOGS / f"{record.pair.slug}.log"
    if log and log.is_file():
        yield "log", str(log)
    it = record.effective
    caches = [
        f"K {each.k_type} {each.k_mib:g} MiB, V {each.v_type} {each.v_mib:g} MiB of "
        f"{plural(each.cells, 'token')} in {plural(each.layers, 'layer')}"
        for each in it.kv
    ]
    facts = [
        *caches,
        f"flash attention {it.flash_attention}" if it.flash_attention else "",
        f"K rotated by {it.rotation_k}" if it.rotation_k else "",
        f"V rotated by {it.rotation_v}" if it.rotation_v else "",
        f"on {', '.join(it.devices)}" if it.devices else "",
        f"build {it.build}" if it.build else "",
    ]
    yield "proved", "; ".join(filter(None, facts)) or "nothing: the log states no cache"


def _unknown(function: str, pair: Pair, known: Sequence[str]) -> CodeneedleError:
    """The error for a *function* that *pair* was not asked for."""
    if known:
        return UnknownName(kind="function", name=function, known=known)
    return BadInput(
        source=pair,
        reason="has no answers",
        hint="Answers come from: codeneedle sweep --probe recall, retrieval, reuse or "
        "transcript",
    )


def _all(
    run: Run, record: CellRecord
) -> Iterator[
    tuple[str, ScoredRound | ForcedAnswer | Outcome | ReuseQuestion | CellRecord]
]:
    """Name and answer of all that *record* asked; of a turn, the record itself."""
    if not record.has_numbers:
        return
    if record.probe == TRANSCRIPT:
        yield from ((name, record) for name in scored_turns(record, run.setup))
        return
    if record.probe == RECALL:
        for asked in scored_rounds(record, run.setup):
            yield asked.needle.name, asked
        for forced in forced_answers(record, run.setup):
            yield forced.needle.name, forced
    if record.probe == REUSE:
        for question in reuse_of(record).questions:
            yield question.function, question
    for outcome in outcomes(record):
        yield outcome.question, outcome


def _of_reference(run: Run, answer: ForcedAnswer) -> ForcedAnswer | None:
    """The same lines, as the reference scored them; None if it did not."""
    recalled = of_probe(run, RECALL)
    reference = frames.reference(cells_frame(recalled, FORCED[0]))
    for record in recalled.records:
        if record.pair == reference and record.has_numbers:
            for each in forced_answers(record, run.setup):
                has_same_tokens = each.round.ends == answer.round.ends
                if has_same_tokens and each.needle == answer.needle:
                    return each
    return None


def _round_view(asked: ScoredRound, *, width: int, colour: bool) -> RenderableType:
    if asked.error:
        return Text(f"no answer: {visible(asked.error)}")
    scored = score(asked.needle, asked.round.reply)
    return side_by_side(asked.needle, scored, width=width, colour=colour)


def rounds_overview(run: Run, record: CellRecord) -> Group:
    """One line per round of a recall record, with its score or its error."""
    rounds = scored_rounds(record, run.setup)
    forced = forced_answers(record, run.setup)
    parts: list[RenderableType] = [Text()]
    if rounds:
        answered = sum(not asked.error for asked in rounds)
        said = f"{answered} of {plural(len(rounds), 'round')} answered"
        rows = [overview_row(asked) for asked in rounds]
        words = {"needle": 8, "ended": 6}
        parts += [Text(said), Text()]
        parts += [text_table(OVERVIEW_HEADINGS, rows, words=words, gap=1)]
    if rounds and forced:
        parts.append(Text())
    return Group(*parts, *([forced_view(forced)] if forced else []))


def forced_view(forced: Sequence[ForcedAnswer]) -> Group:
    """One line per needle whose right lines were scored."""
    rows = [
        [
            *_place(answer.needle),
            str(answer.breaks_at),
            number(answer.logp, digits=3),
            number(100 * answer.right, digits=1),
            number(answer.margins.least if answer.margins else math.nan, digits=2),
        ]
        for answer in forced
    ]
    bounds = sum(len(answer.round.bounds) for answer in forced)
    unlisted = f"; {plural(bounds, 'token')} of unlisted probability" if bounds else ""
    said = f"right lines of {plural(len(forced), 'needle')} scored token by token"
    table = text_table(FORCED_HEADINGS, rows, words={"needle": 8}, gap=1)
    return Group(Text(said + unlisted), Text(), table)


@dataclass(frozen=True, slots=True)
class Token:
    """
    A right token, as a pair and the reference scored it.

    Attributes:
        text: What it adds to the lines.
        chance: Its probability, from 0 to 1.
        lost: How much less likely it is than with the reference; NaN without one.
        is_bound: Whether its probability is only an upper bound.
        is_first: Whether it is the first choice.
    """

    text: str
    chance: float
    lost: float
    is_bound: bool
    is_first: bool


WORST_TOKENS = 3
"""Tokens that are named before the list of all."""


def forced_tokens(
    ours: ForcedAnswer, theirs: ForcedAnswer | None, *, colour: bool
) -> RenderableType:
    """
    The right lines of a function, token by token, with what each lost.

    Args:
        ours: As the pair scored them.
        theirs: As the reference did; None where nothing can be compared.
        colour: Whether to colour tokens by what they lost: dark is more.
    """
    tokens = _tokens(ours, theirs)
    text = Text()
    for token in tokens:
        shown = "\n".join(visible(line) for line in token.text.split("\n"))
        style = cell_style(LOST, 100 * token.lost, LOST_SCALE) if colour else ""
        text.append(shown, style=style if token.lost > 0 else "")
    words = {"token": 8, "first choice": 0}
    heading = ["token", "probability", "reference", "lost", "first choice"]
    rows = [_token_row(token) for token in tokens]
    return Group(
        text,
        Text(),
        Text(_worst(tokens)),
        Text(),
        text_table(heading, rows, words=words),
    )


LOST = Metric(
    name="lost",
    label="probability that a right token lost",
    unit="%",
    better="lower",
    bounds=(0, 100),
    digits=1,
    values=lambda *_: (),
)
LOST_SCALE = Scale(0, 100)
"""Of the colours of tokens."""


def _tokens(ours: ForcedAnswer, theirs: ForcedAnswer | None) -> list[Token]:
    lines, ends = "\n".join(ours.needle.lines), ours.round.ends
    places = itertools.pairwise((0, *ends))
    chances = [math.exp(each) for each in ours.round.logprobs]
    base = [math.exp(e) for e in theirs.round.logprobs] if theirs else []
    return [
        Token(
            text=lines[begin:end],
            chance=chances[at],
            lost=base[at] - chances[at] if base else math.nan,
            is_bound=at in ours.round.bounds,
            is_first=ours.round.leads[at] >= 0,
        )
        for at, (begin, end) in enumerate(places)
    ]


def _token_row(token: Token) -> list[str]:
    bound = "at most " if token.is_bound else ""
    return [
        f"'{visible(token.text)}'",
        f"{bound}{token.chance:.1%}",
        f"{token.chance + token.lost:.1%}" if math.isfinite(token.lost) else "-",
        number(100 * token.lost, digits=1),
        "yes" if token.is_first else "no",
    ]


def _worst(tokens: Sequence[Token]) -> str:
    """The tokens that lost most, by name."""
    if any(math.isnan(each.lost) for each in tokens):
        return "nothing to compare with: the reference has no scores of these tokens"
    lost = sorted((e for e in tokens if e.lost >= LEAST_LOST), key=lambda e: -e.lost)
    if not lost:
        return f"no token lost {LEAST_LOST:.0%} or more"
    named = ", ".join(
        f"'{visible(each.text)}' {each.lost:.0%}" for each in lost[:WORST_TOKENS]
    )
    mean = math.fsum(each.lost for each in tokens) / len(tokens)
    return f"lost most: {named}; mean of {plural(len(tokens), 'token')} {mean:.1%}"


LEAST_LOST = 0.01
"""What a token has lost at least to be named."""


PLACE = ("needle", "depth", "line")
"""Columns that tell needles apart."""

FORCED_HEADINGS = (*PLACE, "breaks at", "logp", "right %", "least lead")

OVERVIEW_HEADINGS = (
    *PLACE,
    "matched",
    "missing",
    "halluc.",
    "bonus",
    "overrun",
    "margin",
    "ended",
)


def _place(needle: NeedleFacts) -> list[str]:
    # Without its class, which would take several lines; the line number identifies it.
    name = visible(needle.name.rpartition(".")[2])
    return [name, f"{needle.depth:.0%}", str(needle.line)]


def overview_row(asked: ScoredRound) -> list[str]:
    """The cells of `rounds_overview` for one round."""
    where = _place(asked.needle)
    if asked.error:
        return [*where, *[""] * 6, f"error: {visible(asked.error)}"]
    counts = asked.counts
    lines = (
        counts.matched,
        counts.missing,
        counts.hallucinated,
        counts.bonus,
        counts.overrun,
    )
    margin = f"{asked.margins.least:.2f}" if asked.margins else "-"
    return [*where, *map(str, lines), margin, asked.round.finish or ""]


# --- questions of tasks


PAYLOAD_COLUMNS = 24
"""Of a payload and of an answer in a list; a question alone shows them whole."""


def questions_overview(record: CellRecord) -> Group:
    """How the answers of a retrieval record failed, and each that did."""
    found = outcomes(record)
    wrong = [each for each in found if each.score.mode is not Mode.CORRECT]
    said = f"{len(found) - len(wrong)} of {plural(len(found), 'question')} right"
    parts: list[RenderableType] = [Text(), Text(said)]
    parts += [Text(), _modes_table(found)]
    if wrong:
        words = {"question": 12, "expected": 0, "answered": 0, "mode": 10}
        rows = map(_wrong_row, wrong)
        parts += [Text(), text_table([*words], rows, words=words)]
    return Group(*parts)


def _modes_table(found: Sequence[Outcome]) -> Table:
    """A row for each task, a column for each mode that occurs."""
    modes = [mode for mode in Mode if any(o.score.mode is mode for o in found)]
    rows = []
    for task in dict.fromkeys(each.task for each in found):
        of_task = [each for each in found if each.task == task]
        counts = [sum(o.score.mode is mode for o in of_task) for mode in modes]
        logps = [each.logp for each in of_task if each.logp is not None]
        mean = f"{fmean(logps):.3f}" if logps else "-"
        rows.append([visible(task), *map(str, counts), mean])
    heading = ["task", *(mode.value for mode in modes), "nats/token"]
    return text_table(heading, rows, words={"task": 0})


def _wrong_row(each: Outcome) -> list[str]:
    texts = (
        each.question,
        _shortened(each.answer.payload),
        _shortened(each.answer.reply),
        failure_words(each.score),
    )
    return list(map(visible, texts))


def failure_words(judged: AnswerScore) -> str:
    """``intrusion of Oslo, 31 % later``, ``near-miss, 2 edits``, ``salad``."""
    if judged.decoy is not None:
        phrase = f"{judged.mode} of {judged.decoy}"
        if not judged.away:
            return phrase
        where = "later" if judged.away > 0 else "earlier"
        return f"{phrase}, {abs(judged.away):.0%} {where}"
    if judged.edits:
        return f"{judged.mode}, {plural(judged.edits, 'edit')}"
    return judged.mode.value


def _shortened(text: str) -> str:
    line = one_line(text)
    if len(line) <= PAYLOAD_COLUMNS:
        return line
    return f"{line[: PAYLOAD_COLUMNS - 3]}..."


def question_view(each: Outcome) -> Table:
    """One question of a task, verbatim, with what is known of its answer."""
    asked = each.answer
    place = f"{each.task}, {plural(each.length, 'token')}, depth {each.depth:g}"
    entries = [("place", place), ("asked", asked.prompt)]
    if asked.begin:
        entries.append(("begun", asked.begin))
    entries += [
        ("expected", asked.payload),
        ("answered", asked.reply),
        ("mode", failure_words(each.score)),
    ]
    if each.logp is not None:
        bound = "at most " if each.is_bound else ""
        first = f"the first {each.until} of {each.tokens} tokens are first choices"
        entries.append(("forced", f"{bound}{each.logp:.3f} nats per token; {first}"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for word, phrase in entries:
        table.add_row(word, Text(visible_lines(phrase)))
    return table


# --- lines beside each other


MARKS: dict[Mark, str] = {
    Mark.MATCHED: " ",
    Mark.MISSING: "-",
    Mark.HALLUCINATED: "+",
    Mark.BONUS: "*",
    Mark.OVERRUN: "~",
}
"""Shown left of a line, so that no colour is needed."""

STYLES: dict[Mark, str] = {
    Mark.MATCHED: "green",
    Mark.MISSING: "red",
    Mark.HALLUCINATED: "magenta",
    Mark.BONUS: "cyan",
    Mark.OVERRUN: "yellow",
}

DIFFERING = "bold underline"
"""Style of the characters in which a hallucinated line differs from a missing one."""

SIMILAR = 0.6
"""Similarity, from 0 to 1, from which the differing characters are highlighted."""

LEAST_WIDTH = 12
"""Least width of either side, in columns."""

TAB = "»   "
"""Shown for a tab, to distinguish it from spaces."""


@dataclass(frozen=True, slots=True)
class LinePair:
    """
    One line of the display.

    Attributes:
        number: Of the expected line in the corpus, as an editor counts.
        expected: An expected line; None next to a superfluous line.
        produced: A line of the reply; None next to a missing line.
    """

    number: int | None
    expected: Row | None
    produced: Row | None


def side_by_side(
    needle: NeedleFacts, score: Score, *, width: int, colour: bool
) -> Group:
    """
    Expected lines on the left, produced ones on the right, a mark before each.

    Args:
        needle: The function that was asked for.
        score: The reply, aligned with it.
        width: Columns of the terminal; longer lines continue in the next row.
        colour: Whether to colour; the marks have the same meaning.

    Returns:
        Lines for rich, with control characters of the reply escaped.
    """
    rows = line_pairs(needle, score)
    digits = max((len(str(row.number)) for row in rows if row.number), default=1)
    # Number, mark and blank on the left; bar, mark and blank between the halves.
    room = max((width - digits - 3 - 5) // 2, LEAST_WIDTH)
    lines = [_title(needle), _heading(digits, room)]
    for row in rows:
        lines += _lines(row, digits=digits, room=room)
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    shown = [*lines, Text(), _tally(score)]
    return Group(*(shown if colour else (Text(line.plain) for line in shown)))


def line_pairs(needle: NeedleFacts, score: Score) -> list[LinePair]:
    """The aligned lines; a missing line next to a superfluous one in its place."""
    numbers = iter(_numbered(needle))
    found: list[LinePair] = []
    for missing, extra, both in _stretches(score.rows):
        for at in range(max(len(missing), len(extra))):
            expected = missing[at] if at < len(missing) else None
            produced = extra[at] if at < len(extra) else None
            found.append(LinePair(_number(numbers, expected), expected, produced))
        if both:
            found.append(LinePair(_number(numbers, both), both, both))
    return found


def _stretches(
    rows: Iterable[Row],
) -> Iterator[tuple[list[Row], list[Row], Row | None]]:
    """The missing and the superfluous lines before each matching line, and that."""
    missing: list[Row] = []
    extra: list[Row] = []
    for row in rows:
        if row.expected is not None and row.produced is not None:
            yield missing, extra, row
            missing, extra = [], []
        elif row.expected is not None:
            missing.append(row)
        else:
            extra.append(row)
    yield missing, extra, None


def _numbered(needle: NeedleFacts) -> Iterator[tuple[int, str]]:
    first = needle.line + needle.signature.count("\n") + 1
    return iter(enumerate((*needle.lines, *needle.more), start=first))


def _number(numbers: Iterator[tuple[int, str]], row: Row | None) -> int | None:
    """The line number of *row*; rows are passed in ascending order."""
    if row is None:
        return None
    return next((at for at, line in numbers if line == row.expected), None)


def _title(needle: NeedleFacts) -> Text:
    where = f"line {needle.line:,}, depth {needle.depth:.0%}"
    text = Text(visible(needle.name), style="bold")
    return text.append(f"  {where}", style="not bold dim")


def _heading(digits: int, room: int) -> Text:
    return Text(f"{'':{digits}}   {'expected':{room}} |   produced", style="dim")


def _lines(row: LinePair, *, digits: int, room: int) -> Iterator[Text]:
    """One line of the display, or several where a side is too long."""
    left, right = _halves(row)
    left_parts, right_parts = _wrapped(left, room), _wrapped(right, room)
    for at in range(max(len(left_parts), len(right_parts), 1)):
        number = str(row.number) if row.number and not at else ""
        line = Text().append(number.rjust(digits), style="dim")
        is_both = row.expected is row.produced
        line.append_text(_mark(None if is_both or at else row.expected))
        line.append_text(_padded(left_parts, at, room))
        line.append(" |", style="dim")
        line.append_text(_mark(None if at else row.produced))
        line.append_text(right_parts[at] if at < len(right_parts) else Text())
        line.rstrip()
        yield line


def _halves(row: LinePair) -> tuple[Text, Text]:
    """Both sides, coloured; in similar lines, the difference is highlighted."""
    left = _half(row.expected, row.expected.expected if row.expected else None)
    right = _half(row.produced, row.produced.produced if row.produced else None)
    if row.expected is not row.produced and _are_similar(left.plain, right.plain):
        for edit in Levenshtein.opcodes(left.plain, right.plain):
            if edit.tag != "equal":
                left.stylize(DIFFERING, edit.src_start, edit.src_end)
                right.stylize(DIFFERING, edit.dest_start, edit.dest_end)
    return left, right


def _are_similar(left: str, right: str) -> bool:
    """Whether to highlight differences; else all of both would be highlighted."""
    return Levenshtein.normalized_similarity(left, right) >= SIMILAR


def _half(row: Row | None, line: str | None) -> Text:
    if row is None or line is None:
        return Text()
    return Text(_shown(line), style=STYLES[row.mark])


def _shown(line: str) -> str:
    return TAB.join(visible(part) for part in line.rstrip("\r").split("\t"))


def _wrapped(text: Text, room: int) -> list[Text]:
    """*text* in pieces of at most *room* columns; a wide character takes two."""
    if not text.plain:
        return []
    lengths = map(len, chop_cells(text.plain, room))
    return list(text.divide([*itertools.accumulate(lengths)][:-1]))


def _padded(parts: Sequence[Text], at: int, room: int) -> Text:
    part = parts[at].copy() if at < len(parts) else Text()
    part.pad_right(room - cell_len(part.plain))
    return part


def _mark(row: Row | None) -> Text:
    if row is None:
        return Text("   ")
    return Text(f" {MARKS[row.mark]} ", style=STYLES[row.mark])


def _tally(score: Score) -> Text:
    """The number of lines of each kind, with its mark."""
    text = Text()
    for mark, sign in MARKS.items():
        count = score.count(mark)
        legend = f"{sign} " if sign.strip() else ""
        text.append(f"{legend}{mark.value} {count}", style=STYLES[mark])
        text.append("   ")
    text.rstrip()
    return text


def listing(named: Iterable[Named]) -> Table:
    """One line per corpus: its name, kind and origin."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("corpus", style="bold", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("origin", overflow="fold")
    for entry in named:
        table.add_row(entry.name, entry.kind, visible(entry.origin))
    return table


def overview(corpus: Corpus) -> RenderableType:
    """Facts of the corpus, and the functions that would be asked for."""
    written = {each.line for each in corpus.written()}
    forced = {each.line for each in corpus.forced(FUNCTIONS, FORCED_LINES)[:FUNCTIONS]}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("depth", "line", "lines"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("recall", no_wrap=True)
    table.add_column("signature", overflow="fold")
    for function in corpus.functions:
        parts = [
            word
            for word, lines in (("written", written), ("forced", forced))
            if function.line in lines
        ]
        if parts:
            depth = depth_of(function, line_count=corpus.line_count)
            signature = visible(" ".join(function.signature.split()))
            table.add_row(
                f"{depth:.0%}",
                str(function.line),
                str(len(function.body)),
                " and ".join(parts),
                Text(signature),
            )
    return Group(
        Text(f"{corpus.name}: {visible(corpus.origin)}", style="bold"),
        Text(_facts(corpus, written=len(written), forced=len(forced))),
        *(
            Text(f"left out: {visible(line)}", style="yellow")
            for line in corpus.left_out()
        ),
        *(
            Text(f"in doubt: {visible(line)}", style="yellow")
            for line in corpus.doubts()
        ),
        Text(),
        table,
    )


def truth(corpus: Corpus, name: str) -> str:
    """
    The lines that a model should answer when asked for the function *name*, verbatim.

    Raises:
        UnknownName: If no function of that name can be asked for.
    """
    for function in corpus.functions:
        if function.name == name or function.name.endswith(f".{name}"):
            end = function.content[:ASKED_LINES][-1] + 1
            return "\n".join(function.body[:end])
    known = [function.name for function in corpus.functions]
    raise UnknownName(kind="function", name=name, known=known)


def _facts(corpus: Corpus, *, written: int, forced: int) -> str:
    functions = plural(len(corpus.functions), "function")
    length = f"{size(corpus.size_bytes)}, {plural(corpus.line_count, 'line')}"
    return (
        f"{corpus.kind}; {length}; {functions} of {FORCED_LINES} lines or more with a "
        f"signature of their own; of the whole text, {ASKED_LINES} lines of {written} "
        f"would be written and {FORCED_LINES} of {forced} forced"
    )
