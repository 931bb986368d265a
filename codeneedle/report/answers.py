"""
What ``show`` and ``ask`` print: answers of a pair behind what its log proved, or one in
full; answers of several pairs to one prompt, from where they differ.
"""

import bisect
import itertools
from collections.abc import Iterator, Sequence

from codeneedle.cache_types import BITS_PER_ELEMENT, Pair
from codeneedle.document import Document, Facts, Heading, Lines
from codeneedle.engines.messages import Reply
from codeneedle.errors import BadInput, CodeneedleError, UnknownName
from codeneedle.probes import PROBES
from codeneedle.probes.answers import ScoredAnswer, View
from codeneedle.probes.probe import Probe
from codeneedle.records.record import CellRecord, Run
from codeneedle.records.store import LOGS
from codeneedle.report import captions
from codeneedle.text import escape_invisible, plural

MOST_WORDS = 3
"""Of what `parse_run_pair_function` reads: run, pair, function."""


def parse_run_pair_function(
    words: Sequence[str],
) -> tuple[str | None, Pair, str | None]:
    """
    The run, the pair and the function that *words* name; None for what they leave out.

    A function has no slash in its name, so that of two words the second tells.

    Raises:
        BadInput: If there is no pair, a type in its place, or too many words.
    """
    if len(words) > MOST_WORDS:
        raise BadInput(
            source=" ".join(words),
            reason="has more than a run, a pair and a function",
            hint="Quote what has blanks: codeneedle show NAME K/V 'FUNCTION'",
        )
    if words[-1] in BITS_PER_ELEMENT:
        pair = f"{words[-1]}/{words[-1]}"
        raise BadInput(
            source=words[-1],
            reason="is a cache type, not a pair",
            hint="Name K and V: " + " ".join(["codeneedle show", *words[:-1], pair]),
        )
    has_name = len(words) == MOST_WORDS or "/" in "".join(words[1:])
    name, rest = (words[0], words[1:]) if has_name else (None, words)
    return name, Pair.parse(rest[0]), rest[1] if rest[1:] else None


def answers_document(
    runs: Sequence[Run], pair: Pair, function: str | None, view: View
) -> Document:
    """
    An overview of all answers of *pair*, or those to *function* in full.

    Args:
        runs: The runs to search; each that has the pair is shown.
        pair: The cell.
        function: Name of what was asked for, or its part after a dot; None for all.
        view: How that is to be shown.

    Raises:
        BadInput: If no run has a record of the pair, or *function* is named and the
            pair has no answers.
        UnknownName: If it was asked for nothing of that name.
    """
    measured = [
        (run, record) for run in runs for record in run.records if record.pair == pair
    ]
    if not measured:
        raise BadInput(
            source=pair,
            reason=f"no record in {', '.join(run.name for run in runs)}",
            hint="See which pairs it has: "
            f"{captions.run_command_text('grid', runs[0])}",
        )
    if function is None:
        return _overviews_document(measured)
    named = [
        (run, answer)
        for run, record in measured
        for answer in scored_answers_of(run, record)
    ]
    chosen = [
        (run, answer)
        for run, answer in named
        if answer.name == function or answer.name.endswith(f".{function}")
    ]
    if not chosen:
        raise _unknown_question_error(
            function, pair, [answer.name for _, answer in named]
        )
    return [
        block
        for run, answer in chosen
        for block in (
            Heading(f"{run.name}  {pair}  {answer.name}"),
            *answer.show(view),
        )
    ]


def scored_answers_of(run: Run, record: CellRecord) -> Iterator[ScoredAnswer]:
    """The answers of *record*; none without numbers, or if its probe asks for none."""
    if record.has_numbers and record.probe in PROBES:
        yield from PROBES[record.probe].answers(run, record)


def replies_document(answers: Sequence[tuple[Pair, Reply | str]]) -> Document:
    """
    Answers to one prompt: the first in full, others from where they differ from it.

    Args:
        answers: Of each pair, or why there is none.
    """
    said = [(pair, reply) for pair, reply in answers if isinstance(reply, Reply)]
    for pair, reply in answers:
        yield Heading(str(pair))
        if not isinstance(reply, Reply):
            yield Lines([reply])
            continue
        first_pair, first = said[0]
        same = _common_prefix_length(first.text, reply.text)
        if reply is first:
            yield Lines([_reply_length_phrase(reply)], style="dim")
            yield Lines(reply.text.split("\n"))
        elif same == len(first.text) == len(reply.text):
            yield Lines([f"the same as {first_pair}"])
        else:
            lead = _lead_at_character(first, same)
            close = "" if lead is None else f", where its lead was {lead:.2f} nats"
            alike = plural(same, "character") if same else "no character"
            yield Lines([f"the same as {first_pair} for {alike}{close}"])
            yield Lines([_reply_length_phrase(reply)], style="dim")
            yield Lines(reply.text[reply.text.rfind("\n", 0, same) + 1 :].split("\n"))
    if len(said) > 1:
        yield Lines([ONE_PROMPT])


ONE_PROMPT = (
    "One prompt shows what a difference looks like, not how often it comes or which "
    "answer is better: codeneedle sweep measures that."
)


def _common_prefix_length(first: str, second: str) -> int:
    """How many characters two texts have in common from the beginning on."""
    pairs = enumerate(zip(first, second, strict=False))
    shortest = min(len(first), len(second))
    return next((at for at, (one, other) in pairs if one != other), shortest)


def _reply_length_phrase(reply: Reply) -> str:
    """How long *reply* is, and whether it came to an end."""
    cut = ", cut there" if reply.finish == "length" else ""
    return f"{plural(reply.predicted_tokens, 'token')}{cut}:"


def _lead_at_character(reply: Reply, at: int) -> float | None:
    """Lead of the token of *reply* at its character *at*; None if it is not known."""
    ends = list(itertools.accumulate(reply.lengths))
    token = bisect.bisect_right(ends, at)
    return reply.gaps[token] if token < len(reply.gaps) == len(ends) else None


def _overviews_document(measured: Sequence[tuple[Run, CellRecord]]) -> Document:
    """
    Programs that measured a pair, with what they proved; then its answers.

    Of a record without numbers, why; run by run.
    """
    for run in {id(run): run for run, _ in measured}.values():
        records = [record for of, record in measured if of is run]
        yield Heading(f"{run.name}  {records[0].pair}")
        for command in dict.fromkeys(record.command for record in records):
            of_command = [record for record in records if record.command == command]
            probes = ", ".join(record.probe for record in of_command)
            line = captions.command_line(run.setup, command)
            yield Lines([f"{probes}:", line], copied="command")
            yield Facts(list(_evidence_facts(run, of_command[0])), is_quiet=True)
        for record in records:
            if not record.has_numbers:
                yield Lines([f"{record.probe}: {record.status}: {record.reason}"])
            elif record.probe in PROBES:
                probe = PROBES[record.probe]
                yield from probe.overview(run, record)
                gaps = probe.gap_phrases(record, run.setup)
                yield Lines([escape_invisible(gap) for gap in gaps], style="bold")


def _evidence_facts(run: Run, record: CellRecord) -> Iterator[tuple[str, str]]:
    """Where the log of *record* is, and the settings that it states."""
    log = run.root and run.root / run.name / LOGS / f"{record.pair.slug}.log"
    if log and log.is_file():
        yield "log", str(log)
    it = record.effective
    caches = [
        f"K {kv.k_type} {kv.k_mib:g} MiB, V {kv.v_type} {kv.v_mib:g} MiB of "
        f"{plural(kv.cells, 'token')} in {plural(kv.layers, 'layer')}"
        for kv in it.kv
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


def _unknown_question_error(
    function: str, pair: Pair, known: Sequence[str]
) -> CodeneedleError:
    if known:
        return UnknownName(kind="function", name=function, known=known)
    asking = [p.name for p in PROBES.values() if type(p).answers is not Probe.answers]
    return BadInput(
        source=pair,
        reason="has no answers",
        hint=f"Answers come from: codeneedle sweep --probe {', '.join(asking)}",
    )
