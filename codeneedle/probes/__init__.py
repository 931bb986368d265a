"""Probes: each measures a served model in one way."""

from collections.abc import Iterable, Sequence

from codeneedle.errors import UnknownName
from codeneedle.grid import Pair
from codeneedle.probes.answers import Answer
from codeneedle.probes.divergence.probe import PROBE as DIVERGENCE
from codeneedle.probes.evaluation.probe import PROBE as EVALUATION
from codeneedle.probes.probe import Probe
from codeneedle.probes.recall.probe import PROBE as RECALL
from codeneedle.probes.retrieval.probe import PROBE as RETRIEVAL
from codeneedle.probes.reuse.probe import PROBE as REUSE
from codeneedle.probes.throughput.probe import PROBE as THROUGHPUT
from codeneedle.probes.transcript.probe import PROBE as TRANSCRIPT
from codeneedle.records.record import BadRecord, BadSetup, Run, Setup, from_json

PROBES: dict[str, Probe] = {
    probe.name: probe
    for probe in (
        RECALL,
        DIVERGENCE,
        THROUGHPUT,
        RETRIEVAL,
        REUSE,
        TRANSCRIPT,
        EVALUATION,
    )
}
"""All probes, by name. To add one is to add it here."""


def refuse_impossible_settings(setup: Setup) -> None:
    """
    Stop at a setup with settings of probes that no option takes.

    Raises:
        BadSetup: Naming the first.
    """
    every = [*setup.probes.items()]
    every += [(name, old) for name, olds in setup.former.items() for old in olds]
    for name, stored in every:
        layout = PROBES[name].layout if name in PROBES else None
        if layout:
            try:
                from_json(stored, layout, file="")
            except BadRecord as error:
                reason = f"{name}: {error.reason}"
                raise BadSetup(file="setup.json", reason=reason) from error


def probes_named(names: Iterable[str]) -> list[Probe]:
    """
    The probes of these names, each once.

    Raises:
        UnknownName: If there is none of that name.
    """
    for name in names:
        if name not in PROBES:
            raise UnknownName(kind="probe", name=name, known=list(PROBES))
    return [PROBES[name] for name in dict.fromkeys(names)]


def answers_by_length(run: Run) -> dict[Pair, Sequence[Answer]]:
    """Answers of each pair of *run* about texts, of which there are several lengths."""
    by_pair: dict[Pair, list[Answer]] = {}
    for record in run.records:
        if record.has_numbers and record.probe in PROBES:
            answers = PROBES[record.probe].answers(run, record)
            about = [answer for answer in answers if answer.text]
            if about:
                by_pair.setdefault(record.pair, []).extend(about)
    return {**by_pair}
