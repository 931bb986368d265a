"""Right answers of tasks that are read in batches behind their text, and their cost."""

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from asked_retrieval import OTHER, REFERENCE, looked_up, measured
from fake_engine import forced_to
from made_contexts import real_context, stored_by
from made_reading import made_engine
from made_records import made_setup

from codeneedle.engines.pace import Pace
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.retrieval.metrics import METRICS
from codeneedle.probes.retrieval.outcomes import outcomes
from codeneedle.probes.retrieval.probe import PROBE
from codeneedle.probes.retrieval.prompts import right_answer_text
from codeneedle.probes.retrieval.record import NAME
from codeneedle.probes.retrieval.scoring import Mode
from codeneedle.probes.retrieval.settings import RetrievalSettings
from codeneedle.records.record import CellRecord, Status


def reading_engine(**tool):
    """One that reads, and whose servers know the answers."""
    engine = made_engine(**tool)
    engine.reply, engine.force = looked_up, forced_to
    return engine


def read_by(folder, pair=REFERENCE, calibration=None):
    engine = reading_engine()
    return engine, measured(folder, engine, pair, calibration, reads=True)


def test_a_server_sets_the_dial_of_the_reference_and_reads_no_text(tmp_path):
    engine, cell = read_by(tmp_path)
    other, again = read_by(tmp_path, OTHER, cell.calibration)

    assert (1, 0) == (len(engine.served), len(other.served))
    assert len(cell.texts) == len(engine.tool.tasks) == len(other.tool.tasks) == 2
    assert [text.sha256 for text in cell.texts] == [t.sha256 for t in again.texts]
    assert [task.ids for task in engine.tool.tasks] == [t.ids for t in other.tool.tasks]


def test_read_answers_are_those_that_are_forced_token_by_token(tmp_path):
    _, read = read_by(tmp_path / "read")
    forced = measured(tmp_path / "forced", reading_engine())

    names = [[each.name for each in text.answers] for text in forced.texts]
    assert names == [[each.name for each in text.answers] for text in read.texts]
    for one, two in zip(forced.texts, read.texts, strict=True):
        assert (one.sha256, one.decoys) == (two.sha256, two.decoys)
        for asked, other in zip(one.answers, two.answers, strict=True):
            length = len(right_answer_text(asked.question(one.number, one.decoys)))
            assert (
                length == asked.answer.scores.ends[-1] == other.answer.scores.ends[-1]
            )
            assert other.answer.reply is None


def test_the_gate_holds_for_a_reference_that_has_nothing_right(tmp_path):
    engine = reading_engine(logprob=-2.0, lead=-1.0)

    cell = measured(tmp_path, engine, reads=True, lengths=(500, 1000, 2000))

    left_out = [(each.task, each.length) for each in cell.calibration.left_out]
    assert [500] == sorted({text.length for text in cell.texts})
    assert [("multikey", 1000), ("multikey", 2000)] == left_out


def test_an_answer_that_was_read_is_right_where_greedy_writing_would_give_it(tmp_path):
    _, cell = read_by(tmp_path)
    (first, *others) = cell.texts
    asked = first.answers[0]
    leads = (-0.1, *asked.answer.scores.leads[1:])
    scores = replace(asked.answer.scores, leads=leads, bounds=(0,))
    broken = replace(asked, answer=replace(asked.answer, scores=scores))
    observation = {
        **cell.record.observation,
        "answers": {
            text.key.name: text
            for text in (replace(first, answers=(broken, *first.answers[1:])), *others)
        },
    }
    stored = msgspec.json.decode(msgspec.json.encode(observation))

    found = outcomes(replace(cell.record, observation=stored))

    assert [Mode.DEPARTS, *[Mode.CORRECT] * 3] == [each.score.mode for each in found]
    share, logp = METRICS[:2]
    assert [0.0, 1.0, 1.0, 1.0] == share.values(
        replace(cell.record, observation=stored), made_setup()
    )
    assert [-0.5] * 4 == logp.values(cell.record, made_setup())
    kinds = [m for m in METRICS if m.name in {"intrusion", "empty", "reading"}]
    assert [[], [], []] == [m.values(cell.record, made_setup()) for m in kinds]


def test_reading_takes_less_than_half_where_a_token_is_read_forty_times_as_fast():
    """Of a text of 1,024 tokens with its questions, as it takes an accelerator."""
    estimates = SimpleNamespace(engine=SimpleNamespace(scores_prompts=True))
    asked = {"tasks": ("multikey",), "lengths": (1024,)}
    forced, read = (
        PROBE.bill(RetrievalSettings(**asked, reads=reads), estimates).price
        for reads in (False, True)
    )

    pace = Pace(read_s=1.0, write_s=40.0)

    assert pace.seconds_for(read) < pace.seconds_for(forced) / 2


@pytest.mark.real
def test_the_built_in_model_reads_what_it_would_write(tmp_path):
    settings = RetrievalSettings(
        tasks=("multikey",),
        lengths=(1500,),
        depths=(0.2, 0.8),
        questions=2,
        dial=(0,),
        reads=True,
    )
    setup = replace(made_setup(), context=4096)
    run = real_context(tmp_path, setup=setup, settings={NAME: settings})
    run = replace(run, setup=replace(setup, probes={NAME: stored_by(PROBE, run)}))
    context = ProbeContext(run=run, pair=REFERENCE, logs=tmp_path)

    record = CellRecord(
        pair=REFERENCE,
        probe=NAME,
        status=Status.FINISHED,
        started="",
        observation=PROBE.measure(context),
    )

    found = outcomes(record)
    assert [1.0] * 4 == [each.score.share for each in found]
    assert all(each.scores.mean_logprob > -0.1 for each in found)
