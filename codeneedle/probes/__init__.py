"""Probes: each measures a served model in one way."""

from collections.abc import Iterable

from codeneedle.errors import UnknownName
from codeneedle.probes import copies, divergence, recall, retrieval, throughput
from codeneedle.probes.probe import Probe

PROBES: dict[str, Probe] = {
    probe.name: probe
    for probe in (
        recall.PROBE,
        divergence.PROBE,
        copies.PROBE,
        throughput.PROBE,
        retrieval.PROBE,
    )
}
"""All probes, by name. To add one is to add its module here."""


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
