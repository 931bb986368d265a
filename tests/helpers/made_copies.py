"""Made-up records of the copy probe, alone and beside forced recall."""

from dataclasses import replace

from fake_tools import made_statistics
from made_records import failed_record, made_forced, made_record, made_setup

from codeneedle.engines.tools import ChunkValues
from codeneedle.probes.divergence.copies import NAME
from codeneedle.probes.divergence.record import Compared, Divergence
from codeneedle.records.record import Run, Status, as_json


def copied(pair, logps):
    """A record of the probe, of *pair* with a log-probability for each chunk."""
    values = [ChunkValues(logp=logp, kld=0.0, same_top=100.0) for logp in logps]
    compared = Compared(
        context=256,
        chunks=len(values),
        tokens=127 * len(values),
        seconds=1.0,
        base_seconds=1.0,
        reference_ppl=4.0,
        statistics=made_statistics(),
        by_chunk=tuple(values),
    )
    found = Divergence(reference="f16/f16", contexts=(compared,))
    return replace(
        failed_record(pair),
        probe=NAME,
        status=Status.FINISHED,
        reason="",
        observation=as_json(found),
    )


def run_of_copies(copy_loss, recall_loss):
    """A run in which K at q4_0 costs so many nats per token of copies and of recall."""
    setup = made_setup(needles=4, types_k=("f16", "q4_0"), types_v=("f16",))
    records = [
        record
        for pair, by in (("f16/f16", 0), ("q4_0/f16", 1))
        for record in (
            copied(pair, [-1 - 0.1 * at - by * copy_loss for at in range(8)]),
            made_record(
                pair,
                [],
                forced=[
                    made_forced(needle, logprob=-1 - 0.1 * at - by * recall_loss)
                    for at, needle in enumerate(setup.forced)
                ],
            ),
        )
    ]
    return Run(name="made", setup=setup, records=tuple(records))
