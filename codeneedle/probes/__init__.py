"""Probes: each measures a served model in one way."""

from codeneedle.probe import Probe
from codeneedle.probes import divergence, recall, throughput

PROBES: dict[str, Probe] = {
    probe.name: probe for probe in (recall.PROBE, divergence.PROBE, throughput.PROBE)
}
"""All probes, by name. To add one is to add its module here."""
