"""Cells of the retrieval probe that are asked, by servers right as far as wished."""

from dataclasses import dataclass, replace

from fake_engine import FakeServer, reply_to
from made_retrieval import made_run, with_calibration

from codeneedle.cache_types import Pair
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.retrieval.probe import PROBE
from codeneedle.probes.retrieval.record import NAME, Calibration, retrieval_of
from codeneedle.records.record import CellRecord, Status, from_json

REFERENCE, OTHER = Pair("f16", "f16"), Pair("q4_0", "q4_0")


def looked_up(question):
    """The right answer: what stands in the text behind the last line of the prompt."""
    text, _, begin = question.prompt.rpartition("\n")
    line = next(line for line in text.split("\n") if line.startswith(begin))
    return reply_to(question, text=f"{line.removeprefix(begin)}\nmore\n")


def nine_in_ten(question):
    """Answers of which few are wrong, and always the same ones: within the aim."""
    key = question.prompt.rpartition("\n")[2]
    wrong = sum(key.encode()) % 4 == 0
    return reply_to(question, text="no\n") if wrong else looked_up(question)


def failing_from(characters):
    """Answers that are wrong in texts of at least so many characters."""

    def reply(question):
        short = len(question.prompt) < characters
        return looked_up(question) if short else reply_to(question, text="no\n")

    return reply


@dataclass
class Cell:
    """A record, and what the setup keeps of the reference behind this cell."""

    record: CellRecord
    calibration: Calibration

    @property
    def texts(self):
        return retrieval_of(self.record).texts

    @property
    def not_asked(self):
        return retrieval_of(self.record).skipped_lengths


def measured(
    folder,
    engine,
    pair=REFERENCE,
    calibration=None,
    *,
    previous_record=None,
    variant="",
    **asked,
):
    """A cell of such a run, whose reference has set *calibration* before."""
    engine.server = FakeServer(engine)
    run = made_run(folder, engine, **asked)
    setup = with_calibration(run.setup, calibration) if calibration else run.setup
    kept = [setup.calibrated.get(NAME)]
    context = ProbeContext(
        run=replace(run, setup=setup),
        pair=pair,
        logs=folder,
        previous_record=previous_record,
        variant=variant,
        calibrate=kept.append,
    )
    record = CellRecord(
        pair=pair,
        probe=NAME,
        status=Status.FINISHED,
        started="",
        observation=PROBE.measure(context),
    )
    return Cell(record, from_json(kept[-1], Calibration, file="x"))
