"""Runs of several probes with made-up metrics."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from made_records import failed_record, made_record, made_run, made_setup

from codeneedle.cache_types import BITS_PER_ELEMENT, Pair
from codeneedle.probes.metrics import Metric
from codeneedle.probes.probe import Probe
from codeneedle.probes.recall import probe as recall
from codeneedle.records.record import Attention, Effective, Status

TYPES = ("bf16", "q8_0", "q4_0")
NO_COMPARISON = {"reference": "bf16/bf16", "answers": {}}
"""What a record of divergence holds, whose metrics are made up, to be readable."""
SETUP = made_setup(needles=4, types_k=TYPES, types_v=TYPES)


def made_metric(name, **changes):
    """A metric that records hold under its own name."""
    known = {
        "name": name,
        "unit": "",
        "better": "lower",
        "values": lambda record, _setup: record.observation.get(name, ()),
    }
    return Metric(**{**known, **changes})


@dataclass(frozen=True, kw_only=True)
class MadeProbe(Probe):
    """A probe that measures what it is given; without an outcome it cannot measure."""

    outcome: Callable = None

    def measure(self, context):
        return self.outcome(context)


def made_probe(name, *metrics, outcome=None, **methods):
    """A probe of these metrics, with functions in place of its *methods*."""
    replaced = {method: staticmethod(made) for method, made in methods.items()}
    kind = type("Replaced", (MadeProbe,), replaced)
    return kind(name=name, purpose="", metrics=metrics, outcome=outcome)


KLD = made_metric(
    "kld",
    floor=True,
    unit="nats",
    reference=lambda record: record.observation.get("against"),
)
TOP1 = made_metric("top1", better="higher", unit="%")
PPL = made_metric("ppl", better="neither")
TG = made_metric("tg", better="higher", quantity="speed", unit="tokens/s")
LARGEST = made_metric("kld-max")
DIVERGENCE = made_probe("divergence", KLD, TOP1, PPL, LARGEST)
THROUGHPUT = made_probe("throughput", TG)
PROBES = (recall.PROBE, DIVERGENCE, THROUGHPUT)


def lost(pair):
    """Bits of bf16/bf16 less those of a pair."""
    return 32 - BITS_PER_ELEMENT[pair.k] - BITS_PER_ELEMENT[pair.v]


def run_of_all(*, floor=0.5, changes=(), against=None):
    """
    A run of three probes over a 3x3 grid.

    Args:
        floor: KLD of the reference; that of others is larger by the bits they lost.
        changes: Probe and pair, with the record in its place; None removes it.
        against: The pair that records name as the reference of their KLD.
    """
    run = made_run(setup=SETUP)
    records = {(record.probe, str(record.pair)): record for record in run.records}
    start = lost(Pair.parse(against)) if against else 0
    for record in run.records:
        bare = replace(record, effective=Effective())
        bits = lost(record.pair)
        divergence = {
            **NO_COMPARISON,
            "against": against,
            "kld": [floor + abs(bits - start)],
            "top1": [100 - bits],
            "ppl": [12.345],
            "kld-max": [bits],
        }
        speeds = {"tg": [200 - bits - 1, 200 - bits, 200 - bits + 1]}
        for probe, seen in (("divergence", divergence), ("throughput", speeds)):
            made = replace(bare, probe=probe, observation=seen)
            records[probe, str(record.pair)] = made
    records.update(dict(changes))
    kept = tuple(record for record in records.values() if record is not None)
    return replace(run, records=kept)


def failed(probe, pair):
    """A change for `run_of_all`: the cell failed."""
    record = failed_record(pair, Status.OUT_OF_MEMORY, "cannot allocate")
    return (probe, pair), replace(record, probe=probe)


def on_cpu(probe, pair, **observation):
    """A change for `run_of_all`: a cell with attention on the CPU."""
    effective = Effective(attention=Attention.CPU, attention_evidence="38 graph splits")
    record = made_record(pair, [])
    seen = {**(NO_COMPARISON if probe == "divergence" else {}), **observation}
    record = replace(record, effective=effective, probe=probe, observation=seen)
    return (probe, pair), record
