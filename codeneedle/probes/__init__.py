"""
All probes by name; which of them are asked where none is named; and which parts of a
run have no numbers, and why.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from codeneedle.cache_types import Pair, most_precise_first, pairs_by, pairs_phrase
from codeneedle.engines.engine import Engine
from codeneedle.errors import CodeneedleError, UnknownName
from codeneedle.probes.answers import ScoredAnswer
from codeneedle.probes.divergence.probe import PROBE as DIVERGENCE
from codeneedle.probes.evaluation.probe import PROBE as EVALUATION
from codeneedle.probes.generation.probe import PROBE as GENERATION
from codeneedle.probes.probe import Probe
from codeneedle.probes.recall.probe import PROBE as RECALL
from codeneedle.probes.retrieval.probe import PROBE as RETRIEVAL
from codeneedle.probes.reuse.probe import PROBE as REUSE
from codeneedle.probes.throughput.probe import PROBE as THROUGHPUT
from codeneedle.probes.transcript.probe import PROBE as TRANSCRIPT
from codeneedle.records.record import (
    BadRecord,
    BadSetup,
    CellRecord,
    Run,
    Setup,
    from_json,
)
from codeneedle.text import escape_invisible, plural

NAMES = re.compile(r"[a-z]+")
"""
What a probe may be called: its name is a key of sweep files and a part of file names,
where ``-`` begins what tells a repetition: ``recall-again``.
"""


def checked_probes_by_name(*probes: Probe) -> dict[str, Probe]:
    """
    *probes* by their names.

    Raises:
        ValueError: If one has a name that no probe may have, or that of another.
    """
    found: dict[str, Probe] = {}
    for probe in probes:
        if not NAMES.fullmatch(probe.name):
            raise ValueError(f"probe '{probe.name}': a name is one word, a to z")
        if probe.name in found:
            raise ValueError(f"probe '{probe.name}': there are two of that name")
        found[probe.name] = probe
    return found


PROBES = checked_probes_by_name(
    RECALL,
    DIVERGENCE,
    THROUGHPUT,
    RETRIEVAL,
    REUSE,
    TRANSCRIPT,
    EVALUATION,
    GENERATION,
)
"""All probes, by name. To add one is to add it here."""


def refuse_impossible_settings(setup: Setup) -> None:
    """
    Stop at a setup with settings of probes that no option takes.

    Raises:
        BadSetup: Naming the first.
    """
    for name, stored in setup.probes.items():
        layout = PROBES[name].layout if name in PROBES else None
        if layout:
            try:
                from_json(stored, layout, file="")
            except BadRecord as error:
                reason = f"{name}: {error.reason}"
                raise BadSetup(file="setup.json", reason=reason) from error


USUAL = (DIVERGENCE.name, RECALL.name)
"""What is asked where no probe is named: the quicker one first."""


def usual_probes_and_why_fewer(
    engine: Engine, *, is_built_in: bool, is_set: bool
) -> tuple[tuple[str, ...], str]:
    """
    What is asked where no probe is named, and why it is not both.

    A pair may be within by verbatim recall and lose much of ordinary text, and the
    other way round, so that both are asked, the quicker one first. The built-in model
    is no language model, and no text is ordinary to it.

    Args:
        engine: Serves the model.
        is_built_in: Whether that is the built-in one.
        is_set: Whether a setting of ordinary text was chosen, which asks for it.

    Returns:
        Names, and a phrase, which is empty where it is both and for the built-in model.
    """
    if is_set:
        return USUAL, ""
    if is_built_in:
        return (RECALL.name,), ""
    try:
        for ability in DIVERGENCE.needs_of(engine):
            engine.require(ability)
    except CodeneedleError as error:
        return (RECALL.name,), str(error)
    return USUAL, ""


def room_measuring_probe(probes: Iterable[Probe]) -> Probe:
    """
    The first of *probes* that says what a text leaves room for.

    Recall if none does: it may be measured later.
    """
    return next((probe for probe in probes if probe.rooms), RECALL)


def probes_named(names: Iterable[str]) -> list[Probe]:
    """
    The probes of these names, each once, in the order of *names*.

    Raises:
        UnknownName: If there is none of that name.
    """
    for name in names:
        if name not in PROBES:
            raise UnknownName(kind="probe", name=name, known=list(PROBES))
    return [PROBES[name] for name in dict.fromkeys(names)]


def length_probe_answers_by_pair(run: Run) -> dict[Pair, Sequence[ScoredAnswer]]:
    """Answers of *run* to all probes that ask by length of text, together, by pair."""
    by_pair: dict[Pair, list[ScoredAnswer]] = {}
    for record in run.records:
        probe = PROBES.get(record.probe)
        if record.has_numbers and probe and probe.asks_by_length:
            for answer in probe.answers(run, record):
                by_pair.setdefault(record.pair, []).append(answer)
    return {**by_pair}


def gap_phrases_with_pairs(run: Run) -> list[tuple[str, list[Pair]]]:
    """
    Parts of probes that *run* was asked for and has nothing of, with the reason.

    Each is a phrase, safe to show, with the pairs of which it is true. Wherever a
    metric may be looked for, it says why there is none.
    """
    found: list[tuple[str, Pair]] = []
    for record in run.records:
        probe = PROBES.get(record.probe)
        if record.has_numbers and probe:
            phrases = (
                *probe.gap_phrases(record, run.setup),
                *_unscored_phrases(record),
            )
            found += [(escape_invisible(phrase), record.pair) for phrase in phrases]
    by_phrase = pairs_by(found)
    return [(phrase, most_precise_first(pairs)) for phrase, pairs in by_phrase.items()]


def _unscored_phrases(record: CellRecord) -> Iterator[str]:
    """A phrase on how many tokens of *record* are no scores; none without any."""
    if tokens := sum(_numbers_under_key("untold", record.observation)):
        text = "character" if tokens == 1 else "characters"
        yield (
            f"{record.probe}: {plural(tokens, 'token')} left out, "
            f"part of {text} that the server does not tell"
        )


def _numbers_under_key(name: str, stored: object) -> Iterator[int]:
    """The whole numbers of that *name*, wherever they are in what is *stored*."""
    if isinstance(stored, dict):
        for key, value in stored.items():
            if key == name and isinstance(value, int):
                yield value
            else:
                yield from _numbers_under_key(name, value)
    elif isinstance(stored, list):
        for value in stored:
            yield from _numbers_under_key(name, value)


def gap_lines(run: Run) -> list[str]:
    """A line of each of `gap_phrases_with_pairs`, with its pairs if not all have it."""
    lines = []
    for phrase, pairs in gap_phrases_with_pairs(run):
        measured = {record.pair for record in run.records if record.has_numbers}
        of = "" if measured <= {*pairs} else f" ({pairs_phrase(pairs)})"
        lines.append(f"{phrase}{of}")
    return lines
