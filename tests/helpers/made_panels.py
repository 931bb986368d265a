"""Makes small runs of the retrieval probe: two pairs, two lengths, three depths."""

from dataclasses import replace

from made_records import made_setup
from made_retrieval import (
    DEPTHS,
    made_calibration,
    made_texts,
    retrieval_record,
    with_calibration,
)

from codeneedle.probes.retrieval.metrics import METRICS, metrics_of_tasks
from codeneedle.probes.retrieval.record import NAME
from codeneedle.probes.retrieval.settings import RetrievalLayout
from codeneedle.records.record import Run, as_json

LENGTHS = (1024, 2048)
CONDITIONS = RetrievalLayout(
    tasks=("multikey",),
    lengths=LENGTHS,
    depths=DEPTHS,
    questions=2,
    dial=(),
    gate=True,
    graded="",
)
SETUP = replace(
    made_setup(types_k=("f16", "q4_0"), types_v=("f16",)),
    probes={NAME: as_json(CONDITIONS)},
)
BY_NAME = {metric.name: metric for metric in (*METRICS, *metrics_of_tasks(SETUP))}
RIGHT = BY_NAME["retrieval"]


def wrong(_question, _length):
    """An answer that is wrong."""
    return "nothing of that"


def unless(place):
    """Right answers, but for those of one length and depth."""

    def answer(asked, length):
        return "no" if (length, asked.depth) == place else asked.payload

    return answer


def record_of(pair, answer, *, lengths=LENGTHS):
    """A record with the same answers at all *lengths*."""
    texts = [
        text for length in lengths for text in made_texts(length=length, answer=answer)
    ]
    return retrieval_record(pair, texts)


def run_of(*records, setup=SETUP, **frozen):
    """A run of *records*; *frozen* is what the reference has set."""
    setup = with_calibration(setup, made_calibration(**frozen)) if frozen else setup
    return Run(name="random-bodies/made-model", setup=setup, records=records)


RUN = run_of(
    record_of("f16/f16", unless((2048, 0.9))),
    record_of("q4_0/f16", unless((1024, 0.1))),
)
