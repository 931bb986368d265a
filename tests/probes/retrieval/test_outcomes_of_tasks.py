"""Outcomes and metrics of the retrieval probe, on made records."""

import math
from dataclasses import replace

import msgspec
import pytest
from made_records import made_setup
from made_retrieval import (
    made_calibration,
    made_dial,
    made_scored,
    made_texts,
    retrieval_record,
    with_calibration,
)

from codeneedle.probes import gap_lines
from codeneedle.probes.observations import Answer
from codeneedle.probes.retrieval.metrics import (
    METRICS,
    dial_and_survival_remarks,
    metrics_of_tasks,
)
from codeneedle.probes.retrieval.outcomes import answer_survival_share, outcomes
from codeneedle.probes.retrieval.record import NAME, calibration_of
from codeneedle.probes.retrieval.scoring import Mode
from codeneedle.probes.retrieval.task_kinds import TASKS
from codeneedle.records.record import AGAIN, BadRecord, Run, Status

BY_NAME = {metric.name: metric for metric in METRICS}


def setup_of(tasks=("multikey",), lengths=(1024,)):
    """The setup of a run with these conditions."""
    chosen = {"tasks": list(tasks), "lengths": list(lengths)}
    return replace(made_setup(), probes={NAME: chosen})


def values(metric, record, setup=None):
    """The observations of *metric*."""
    return list(metric.values(record, setup or setup_of()))


def decoy_of(question, _length):
    """The answer that belongs to the first decoy."""
    return question.decoys[0].payload


def wrong_at(depth):
    """Answers that are right but for one depth."""
    return lambda asked, _length: "no idea" if asked.depth == depth else asked.payload


# Outcomes


def test_a_repetition_of_the_reference_is_read_as_the_reference_is():
    first = retrieval_record("f16/f16", made_texts())
    again = replace(first, variant=AGAIN)

    assert outcomes(first) == outcomes(again) != ()


def test_an_outcome_names_the_place_of_a_question_and_what_became_of_it():
    found = outcomes(retrieval_record("f16/f16", made_texts()))

    assert [0.1, 0.5, 0.9] * 2 == [each.depth for each in found]
    assert {("multikey", 1024, 1.0, -0.5, Mode.CORRECT)} == {
        (e.task, e.length, e.score.share, e.scores.mean_logprob, e.score.mode)
        for e in found
    }
    assert len(found) == len({each.question for each in found})


def test_an_intrusion_is_named_with_the_decoy_that_came():
    record = retrieval_record("q4_0/q4_0", made_texts(answer=decoy_of))

    found = outcomes(record)

    assert [Mode.INTRUSION] * 6 == [each.score.mode for each in found]
    for each in found:
        assert each.score.decoy not in {None, each.asked.key}


def test_without_probabilities_there_is_no_graded_endpoint():
    record = retrieval_record("f16/f16", made_texts(scored=None))

    assert [1.0] * 6 == values(BY_NAME["retrieval"], record)
    assert [] == values(BY_NAME["retrieval-logp"], record)
    assert {None} == {each.scores for each in outcomes(record)}


def test_an_answer_is_right_until_the_first_token_that_is_no_first_choice():
    """Of equals there is none: a right token as probable as another is not right."""

    def scored(payload):
        made, leads = made_scored(payload), (1.0, 0.0, -0.1)
        return replace(made, logprobs=(-1.0,) * 3, leads=leads, ends=(1, 2, 3))

    found = outcomes(retrieval_record("f16/f16", made_texts(scored=scored)))

    assert {1} == {each.scores.leading_first_choices for each in found}
    assert 1.0 == answer_survival_share(found, 1)
    assert 0.0 == answer_survival_share(found, 2)
    shortest, longest = (
        pick(len(each.scores.logprobs) for each in found) for pick in (min, max)
    )
    assert (
        0.0
        == answer_survival_share(found, shortest)
        == answer_survival_share(found, longest)
    )
    assert math.isnan(answer_survival_share(found, longest + 1))


def test_answers_without_probabilities_have_no_tokens_that_count():
    found = outcomes(retrieval_record("f16/f16", made_texts(scored=lambda _: None)))

    assert math.isnan(answer_survival_share(found, 1))


def test_an_observation_of_something_else_is_a_bad_record():
    good = retrieval_record("f16/f16", made_texts())
    broken = msgspec.json.decode(msgspec.json.encode(good.observation))
    broken["answers"]["multikey-1024-0"]["decoys"] = []

    with pytest.raises(BadRecord, match="question"):
        outcomes(replace(good, observation=broken))
    with pytest.raises(BadRecord):
        outcomes(replace(good, observation={"texts": 3}))


# Metrics


def test_a_task_that_the_reference_fails_is_shown_and_never_averaged():
    texts = [
        *made_texts(),
        *made_texts("single", dial=0, answer=lambda _asked, _length: "no"),
    ]
    calibration = made_calibration(made_dial(), made_dial("single", level=0, score=0.1))
    record = retrieval_record("f16/f16", texts)
    setup = with_calibration(setup_of(), calibration)

    own = {metric.name: metric for metric in metrics_of_tasks(setup_of(["single"]))}

    assert [1.0] * 6 == values(BY_NAME["retrieval"], record, setup)
    assert [0.0] * 6 == values(own["single"], record, setup)


@pytest.mark.parametrize(
    ("score", "is_informative"),
    [(0.19, False), (0.2, True), (0.99, True), (1.0, True)],
)
def test_the_dial_judges_lengths_that_the_reference_was_not_asked(
    score, is_informative
):
    """From 0.2 on, the ceiling included: a large loss shows there."""
    calibration = made_calibration(made_dial(score=score))

    assert is_informative == calibration.is_informative("multikey", 1024)


def test_a_task_is_informative_at_the_lengths_at_which_the_reference_answers():
    answered = [("multikey", 512, 0.19), ("multikey", 1024, 1.0)]
    calibration = made_calibration(made_dial(score=0.1), answered=answered)
    texts = [*made_texts(length=512), *made_texts(length=1024, answer=decoy_of)]
    record = retrieval_record("q4_0/f16", texts)
    setup = with_calibration(setup_of(lengths=(512, 1024)), calibration)

    assert [0.0] * 6 == values(BY_NAME["retrieval"], record, setup)


def test_a_question_without_an_answer_is_no_wrong_answer():
    """Nothing was written, and nothing scored: its text has no value."""
    texts = made_texts(questions=2)
    first, *rest = texts[0].answers
    lost = replace(first, answer=Answer(name=first.answer.name, error="no reply"))
    texts[0] = replace(texts[0], answers=(lost, *rest))
    record = retrieval_record("f16/f16", texts)
    setup = with_calibration(made_setup(), made_calibration(made_dial()))
    metric = METRICS[0]

    assert frozenset({texts[0].key.name}) == metric.units_without_value(record, setup)
    assert texts[0].key.name not in metric.loss_values_by_unit(record, setup)


def test_modes_are_counted_over_all_tasks():
    record = retrieval_record("q4_0/q4_0", made_texts(answer=decoy_of))

    assert 6 == sum(values(BY_NAME["intrusion"], record))
    assert 0 == sum(values(BY_NAME["empty"], record))
    assert "correct" not in BY_NAME


def test_each_task_is_a_metric_and_each_length_where_there_are_several():
    one = [metric.name for metric in metrics_of_tasks(setup_of())]
    two = [metric.name for metric in metrics_of_tasks(setup_of(lengths=(512, 1024)))]

    assert ["multikey", "multikey-logp", "multikey-until"] == one
    assert {*one, "multikey@512", "multikey-logp@1024"} < set(two)
    assert () == metrics_of_tasks(made_setup())


def test_tasks_that_are_none_are_a_bad_setup():
    with pytest.raises(BadRecord, match="tasks or lengths"):
        metrics_of_tasks(setup_of(lengths=("long",)))


def test_units_are_texts_whatever_they_are_asked():
    """Two texts that lose two of six answers each are two units, not twelve."""
    record = retrieval_record("q4_0/f16", made_texts(questions=4, answer=wrong_at(0.5)))

    units = BY_NAME["retrieval"].loss_values_by_unit(record, setup_of())

    assert [pytest.approx(2 / 3)] * 2 == list(units.values())


def test_reading_is_a_speed_without_the_tokens_that_were_kept():
    (text,) = made_texts()
    times = enumerate((500.0, 0.0))
    texts = [replace(text, number=at, prompt_ms=each) for at, each in times]
    record = retrieval_record("f16/f16", texts)

    reading = BY_NAME["reading"]
    assert [2048.0] == values(reading, record)
    assert reading.is_prompt_speed


def test_texts_that_a_pair_was_not_asked_are_missing_and_not_nothing():
    not_asked = [("multikey", 2048, "nothing is right")]
    record = retrieval_record("q4_0/f16", made_texts(), not_asked=not_asked)

    names = BY_NAME["retrieval"].loss.units(record, setup_of())

    assert "multikey-2048-0" in names
    assert "multikey-2048-0" not in BY_NAME["retrieval"].loss_values_by_unit(
        record, setup_of()
    )


def test_a_text_is_lost_that_has_fewer_right_answers_by_however_little():
    loss = BY_NAME["retrieval"].loss

    assert [0, 0, 1, 1] == [
        loss.unit_loss(right, 0.75) for right in (1.0, 0.75, 0.74, 0.0)
    ]


def test_a_dial_whose_setting_was_never_tried_is_a_bad_setup(golden):
    calibration = made_calibration(replace(made_dial(), level=7))

    with pytest.raises(BadRecord) as caught:
        calibration_of(with_calibration(setup_of(), calibration))
    assert golden == str(caught.value)


@pytest.mark.parametrize(("score", "able"), [(0.7, 1.0), (0.1, 0.5)])
def test_what_a_reference_could_lose_is_its_share_of_informative_tasks(score, able):
    single = made_texts("single", dial=0, answer=lambda _asked, _length: "no")
    dials = (made_dial(score=score), made_dial("single", level=0, score=0.1))
    setup = with_calibration(setup_of(["multikey", "single"]), made_calibration(*dials))
    record = retrieval_record("f16/f16", [*made_texts(), *single])

    assert able == BY_NAME["retrieval"].loss.able(record, setup)
    assert 0 == BY_NAME["retrieval"].loss.able(retrieval_record("f16/f16", []), setup)


# In words


def test_remarks_tell_the_path_of_the_dial_and_what_was_left_out(golden):
    reason = "f16/f16 has less than 20% right at 1,024 tokens at every depth"
    calibration = made_calibration(
        made_dial(),
        made_dial("single", level=0, score=1.0, is_fixed=True),
        left_out=[("multikey", 2048, reason)],
    )
    records = (
        retrieval_record("f16/f16", made_texts()),
        *(
            retrieval_record(pair, [], not_asked=[("multikey", 1024, "nothing left")])
            for pair in ("q8_0/f16", "q4_0/f16")
        ),
    )
    run = Run(
        name="x/y", setup=with_calibration(setup_of(), calibration), records=records
    )

    assert golden == dial_and_survival_remarks(run)
    assert golden == gap_lines(run)
    assert () == dial_and_survival_remarks(replace(run, records=()))


def test_a_dial_names_the_lengths_of_its_own_task_that_are_in_no_average(golden):
    """The reference has nothing right of multikey, and all of single."""
    calibration = made_calibration(
        made_dial(),
        made_dial("single", level=0),
        answered=[("multikey", 1024, 0.0), ("single", 1024, 1.0)],
    )
    setup = with_calibration(setup_of(), calibration)
    run = Run(
        name="x/y", setup=setup, records=(retrieval_record("f16/f16", made_texts()),)
    )

    assert golden == dial_and_survival_remarks(run)[:2]


def test_a_level_that_this_version_does_not_have_is_told_by_its_number(golden):
    """The run is of a later version."""
    dial = made_dial(level=len(TASKS["multikey"].levels))
    setup = with_calibration(setup_of(), made_calibration(dial))
    run = Run(
        name="x/y", setup=setup, records=(retrieval_record("f16/f16", made_texts()),)
    )

    assert golden == dial_and_survival_remarks(run)


def test_a_cell_that_did_not_finish_tells_nothing_of_how_long_answers_stay_right():
    texts = made_texts("ledger", dial=0, scored=lambda each: made_scored(each * 20))
    finished = retrieval_record("f16/f16", texts)
    stopped = replace(finished, status=Status.INTERRUPTED)

    remarks = [
        dial_and_survival_remarks(Run(name="x/y", setup=setup_of(), records=(record,)))
        for record in (finished, stopped)
    ]

    assert [1, 0] == [*map(len, remarks)]


def test_remarks_tell_for_how_many_tokens_a_ledger_stays_right(golden):
    def scored(payload):
        made = made_scored(payload * 20)
        numbers = (*made.logprobs[:100], -2.0, *made.logprobs[101:])
        leads = (*made.leads[:100], -1.0, *made.leads[101:])
        return replace(made, logprobs=numbers, leads=leads)

    texts = made_texts("ledger", dial=0, scored=scored)
    record = retrieval_record("f16/f16", texts)

    (phrase,) = dial_and_survival_remarks(
        Run(name="x/y", setup=setup_of(), records=(record,))
    )

    assert golden == phrase
