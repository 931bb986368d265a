"""Sections ``protocol`` and ``time``: published and swept cells, and their phases."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from bench_place import Place, measured_on, rounds_phrase
from bench_published import Published, Text, played
from bench_shown import Section, lines
from bench_sums import phrase, ratios, share, totals
from bench_sweeps import OurCell, Swept, swept

from codeneedle.corpora import corpus
from codeneedle.corpora.needles import ASKED_LINES, depth_of, needle_facts
from codeneedle.grid import Pair
from codeneedle.records.record import Json, Phases

Say = Callable[[str], None]

TEN_S = 10.0
"""A cell of which people would ask what it waited for."""

PHASES = ("between_s", "ready_s", "start_s", "measure_s", "stop_s", "trial_s")
"""As records name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """
    One repetition of one pair, its parts one after the other.

    Attributes:
        published: By the published protocol; None where nobody asked for it.
        plain: A sweep in which every token is computed alone.
        drafted: A sweep as it is.
    """

    published: Published | None
    plain: Swept
    drafted: Swept


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """
    All repetitions.

    Attributes:
        turns: By pair, in order.
        sittings: Sweeps of several cells: one, if it was asked for.
        same_needles: Whether both sides were asked the same.
    """

    turns: dict[str, list[Turn]]
    sittings: list[Swept]
    same_needles: bool

    @property
    def corpus_tokens(self) -> int:
        """By the server's tokenizer."""
        return self.swept()[0].corpus_tokens

    def swept(self) -> list[Swept]:
        """All sweeps of single cells."""
        turns = (turn for turns in self.turns.values() for turn in turns)
        return [each for turn in turns for each in (turn.plain, turn.drafted)]

    def raw(self) -> Json:
        """For ``--json``."""
        return asdict(self)


def compared(
    place: Place, say: Say, *, published: bool = True, sittings: bool = True
) -> Compared:
    """
    Play all parts of all repetitions, interleaved.

    Args:
        place: Where.
        say: Hears of progress.
        published: Whether the published protocol is among them.
        sittings: Whether a sweep of several cells is.
    """
    text = asked_text(place)
    pairs = [Pair.parse(pair) for pair in place.asked.pairs]
    turns: dict[str, list[Turn]] = {str(pair): [] for pair in pairs}
    sat: list[Swept] = []
    for at in range(1, place.asked.repetitions + 1):
        for pair in pairs:
            say(f"repetition {at}: {pair}")
            turns[str(pair)].append(
                _turn(place, say, pair, text if published else None)
            )
        if sittings and not sat:
            say(f"repetition {at}: one sitting of several cells")
            sat.append(_sitting(place, pairs))
    asked = tuple(needle.name for needle in text.needles)
    found = Compared(turns=turns, sittings=sat, same_needles=True)
    same = all(each.needles == asked for each in found.swept())
    return replace(found, same_needles=same)


def asked_text(place: Place) -> Text:
    """The corpus, and what a sweep asks of it."""
    loaded = corpus.load(str(place.corpus))
    count = loaded.line_count
    needles = (
        needle_facts(function, depth=depth_of(function, line_count=count))
        for function in loaded.chosen()
    )
    return Text(text=loaded.text, needles=tuple(needles))


def _turn(place: Place, say: Say, pair: Pair, text: Text | None) -> Turn:
    found = None
    if text is not None:
        say(f"{pair}: the published protocol")
        found = played(
            pair,
            text,
            model=place.model,
            reply_tokens=place.asked.reply_tokens,
            log=place.fresh("published") / "server.log",
        )
    sweep = functools.partial(swept, place, k_types=pair.k, v_types=pair.v)
    say(f"{pair}: a sweep without speculation")
    plain = sweep(speculates=False)
    say(f"{pair}: a sweep as it is")
    return Turn(published=found, plain=plain, drafted=sweep())


def _sitting(place: Place, pairs: Sequence[Pair]) -> Swept:
    """A sweep with a cell for each K type: in those after the first, one lay before."""
    k_types = ",".join(dict.fromkeys(pair.k for pair in pairs))
    return swept(place, k_types=k_types, v_types=pairs[-1].v)


# --- the protocol beside a sweep


def protocol_section(place: Place, found: Compared) -> Section:
    """How long a cell takes, both ways."""
    rows: list[tuple[str, ...]] = []
    for pair, turns in found.turns.items():
        rows += [*_protocol_rows(pair, turns), ()]
    if len(found.turns) > 1:
        rows += _total_rows(found)
    return Section(
        title="protocol: a cell as it was published, and as it is swept",
        headings=(
            *("pair", "how", "command s", "cell s"),
            *("published / command", "published / cell", "matched"),
        ),
        words=2,
        rows=tuple(rows),
        lines=lines(
            measured_on(place, rounds_phrase(place, tokens=found.corpus_tokens)),
            f"published: chat, one request per function, "
            f"{place.asked.reply_tokens:,} tokens at most, no early end, "
            "llama-server's own threads; from its start to its end",
            "command: all of 'codeneedle sweep' for this one pair, with counting and, "
            "once per run folder, the trial of speculation; cell: as its record says",
            _verdict(found),
        ),
        raw=found.raw(),
    )


def _protocol_rows(pair: str, turns: Sequence[Turn]) -> list[tuple[str, ...]]:
    published = [turn.published for turn in turns if turn.published]
    walls = [cell.wall_s for cell in published]
    theirs = ("", phrase(walls), "", "", _mean([cell.matched for cell in published]))
    return [
        (pair, "published", *theirs),
        ("", "--no-speculate", *_ours([turn.plain for turn in turns], walls)),
        ("", "as it is", *_ours([turn.drafted for turn in turns], walls)),
    ]


def _ours(sweeps: Sequence[Swept], published: Sequence[float]) -> tuple[str, ...]:
    cells = [each.cells[0] for each in sweeps]
    commands, walls = [s.command_s for s in sweeps], [cell.wall_s for cell in cells]
    return (
        *(phrase(commands), phrase(walls)),
        *(phrase(ratios(published, commands)), phrase(ratios(published, walls))),
        _mean([cell.matched for cell in cells]),
    )


def _total_rows(found: Compared) -> list[tuple[str, ...]]:
    """All pairs of a repetition together."""
    every = list(found.turns.values())
    published = totals(
        [[t.published.wall_s for t in turns if t.published] for turns in every]
    )
    rows: list[tuple[str, ...]] = []
    rows.append(("all pairs", "published", "", phrase(published), "", "", ""))
    plain = [[turn.plain for turn in turns] for turns in every]
    drafted = [[turn.drafted for turn in turns] for turns in every]
    for how, sweeps in (("--no-speculate", plain), ("as it is", drafted)):
        commands = totals([[s.command_s for s in of_pair] for of_pair in sweeps])
        cells = totals([[s.cells[0].wall_s for s in of_pair] for of_pair in sweeps])
        times = (phrase(commands), phrase(cells))
        gains = (phrase(ratios(published, commands)), phrase(ratios(published, cells)))
        rows.append(("", how, *times, *gains, ""))
    return rows


def _mean(matched: Sequence[tuple[int, ...]]) -> str:
    """Of all rounds of all cells, as grids show it."""
    found = [count for cell in matched for count in cell]
    return f"{sum(found) / len(found):.2f}"


def _verdict(found: Compared) -> str:
    """Whether both sides gave the same answers, so that times can be compared."""
    every = [turn for turns in found.turns.values() for turn in turns]
    given = [turn.published.matched for turn in every if turn.published]
    ours = [each.cells[0].matched for each in found.swept()]
    matched = [count for cell in (*given, *ours) for count in cell]
    perfect = sum(count == ASKED_LINES for count in matched)
    if perfect == len(matched) and found.same_needles:
        return (
            f"both sides gave the same answers: {ASKED_LINES}.00 of {ASKED_LINES} lines"
            f" in each of {len(matched):,} rounds"
        )
    return (
        f"NOT the same answers: {perfect:,} of {len(matched):,} rounds are perfect, "
        f"the needles are {'the same' if found.same_needles else 'others'}: "
        "do not compare these times"
    )


# --- where the time of our cells goes


def time_section(place: Place, found: Compared) -> Section:
    """Phases of our cells, what of them is waiting, and what the server did."""
    rows: list[tuple[str, ...]] = []
    for pair, turns in found.turns.items():
        plain = [turn.plain.cells[0] for turn in turns]
        drafted = [turn.drafted.cells[0] for turn in turns]
        rows.append((pair, "--no-speculate", *_times(plain)))
        rows += [("", "as it is", *_times(drafted)), ()]
    # Before the first cell of a sitting there was none.
    later = [cell for sitting in found.sittings for cell in sitting.cells[1:]]
    if later:
        rows.append(("in a sitting", "later cells", *_times(later)))
    return Section(
        title="time: where the time of our cells goes, in seconds: median, least..most",
        headings=(
            *("pair", "how", "between", "ready", "start", "measure", "stop", "trial"),
            *("waiting %", "% of 10 s", "wall / busy"),
        ),
        words=2,
        rows=tuple(rows),
        lines=lines(
            measured_on(place, rounds_phrase(place, tokens=found.corpus_tokens)),
            "waiting: all but measure and trial, of the cell, and as if the cell took "
            "ten seconds",
            "busy: what the server says that it read and wrote, priming and questions "
            "for leads included",
            f"in a sitting: cells of one sweep of {_told(found)}, but for the first",
        ),
        raw=found.raw(),
    )


def _told(found: Compared) -> str:
    """The pairs of the first sitting."""
    return ", ".join(cell.pair for sat in found.sittings[:1] for cell in sat.cells)


def _times(cells: Sequence[OurCell]) -> tuple[str, ...]:
    """In two lines each: there are many."""
    waits = [cell.phases.waiting_s for cell in cells]
    return tuple(
        told.replace(" (", "\n").replace(" to ", "..").rstrip(")")
        for told in (
            *(phrase(_spans(cells, name), 2) for name in PHASES),
            phrase([share(cell.phases.waiting_s, cell.wall_s) for cell in cells]),
            phrase([share(waiting, TEN_S) for waiting in waits]),
            phrase([_by_busy(cell) for cell in cells], 2),
        )
    )


def _by_busy(cell: OurCell) -> float | None:
    return cell.wall_s / cell.busy_s if cell.busy_s else None


def _spans(cells: Sequence[OurCell], name: str) -> list[float | None]:
    phases: list[Phases] = [cell.phases for cell in cells]
    return [getattr(each, name) for each in phases]
