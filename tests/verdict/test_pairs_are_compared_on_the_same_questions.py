"""Two pairs are compared on what was asked of both in the same way, of any probe."""

from dataclasses import replace

import pytest
from made_records import made_record, made_setup

from codeneedle.cache_types import Pair
from codeneedle.probes import PROBES
from codeneedle.records.comparability import first_observation_difference_path
from codeneedle.records.record import AGAIN, Run, Status
from codeneedle.verdict.remark_kinds import RemarkKind
from codeneedle.verdict.remarks import asked_otherwise_remarks
from codeneedle.verdict.trust import (
    question_difference_phrase,
    with_derived_statuses,
)

F16, Q8 = Pair("f16", "f16"), Pair("q8_0", "q8_0")
ANSWER = {
    "prompt_tokens": 1602,
    "prompt_sha256": "ab",
    "ends": [1, 4],
    "logprobs": [-0.1, -0.2],
    "wall_s": 1.0,
}


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"prompt_tokens": 1546}, "prompt_tokens 1,546, not 1,602"),
        ({"prompt_tokens": "1546"}, "another prompt"),
        ({"prompt_sha256": "cd"}, "another prompt"),
        ({"ends": [2, 4]}, "tokens end elsewhere"),
        ({"logprobs": [-9.0, -0.1], "wall_s": 3.0}, ""),
        ({"prompt_tokens": 0, "prompt_sha256": "", "ends": []}, ""),
    ],
)
@pytest.mark.parametrize(
    "nested",
    [
        lambda answer: answer,
        lambda answer: {"answers": [ANSWER, answer]},
        lambda answer: {"scores": answer},
        lambda answer: {"answers": [{"answer": {"scores": answer}}]},
    ],
    ids=["an answer", "turns of a conversation", "scores", "answers about a text"],
)
def test_answers_are_to_the_same_question_or_say_in_what_not(changes, phrase, nested):
    """What one of them does not tell is no difference."""
    assert phrase == question_difference_phrase(
        nested({**ANSWER, **changes}), nested(ANSWER)
    )


def record(pair, answers, probe="recall"):
    made = made_record(pair, ())
    return replace(made, probe=probe, observation={"answers": answers})


def asked(number, **changes):
    return {f"forced f{at}": {**ANSWER, **changes} for at in range(number)}


@pytest.mark.parametrize(
    "probe",
    [name for name, each in PROBES.items() if any(m.loss for m in each.metrics)],
)
def test_answers_to_other_questions_are_left_out_of_each_probe_with_a_loss(probe):
    """By rule: a new probe is held to it, if its answers tell what was asked."""
    cut = {**asked(3), "forced f1": {**ANSWER, "prompt_tokens": 256}}
    records = (record(F16, asked(3), probe), record(Q8, cut, probe))
    reference, pair = with_derived_statuses(records, made_setup())

    assert records[0] == reference
    assert ["forced f0", "forced f2"] == [*pair.observation["answers"]]
    assert Status.FINISHED is pair.status
    assert "1 of 3 answers (prompt_tokens 256, not 1,602)" in pair.reason


def test_a_pair_that_was_asked_nothing_alike_is_no_number():
    records = (record(F16, asked(3)), record(Q8, asked(3, prompt_sha256="cd")))
    _, pair = with_derived_statuses(records, made_setup())

    assert Status.MISMATCHED is pair.status
    assert "asked otherwise than f16/f16" in pair.reason


def test_a_repetition_is_compared_with_what_it_repeats():
    records = (
        record(F16, asked(3)),
        replace(record(F16, asked(3, ends=[3, 4])), variant=AGAIN),
    )

    assert Status.MISMATCHED is with_derived_statuses(records, made_setup())[1].status


def test_lengths_that_a_server_counts_without_its_cache_are_no_difference():
    setup = replace(made_setup(), lengths="estimated")
    records = (record(F16, asked(3)), record(Q8, asked(3, prompt_tokens=7)))

    assert records == with_derived_statuses(records, setup)


def test_a_verdict_says_what_was_asked_otherwise():
    (told,) = asked_otherwise_remarks(
        Run(
            name="a/b",
            setup=made_setup(),
            records=(replace(record(Q8, {}), reason="asked otherwise than f16/f16"),),
        )
    )

    assert RemarkKind.ASKED_OTHERWISE is told.kind
    assert (Q8,) == told.pairs


def test_folders_are_merged_only_if_prompts_are_as_long():
    ours = {"answers": {"a": {"prompt_tokens": 1546, "cached_tokens": 3}}}
    theirs = {"answers": {"a": {"prompt_tokens": 1602, "cached_tokens": 9}}}

    assert "answers a prompt_tokens" == first_observation_difference_path(ours, theirs)
