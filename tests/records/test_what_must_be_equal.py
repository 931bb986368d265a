"""Which facts must be equal, and how a difference is named."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_records import (
    forced_of,
    made_forced,
    made_record,
    made_round,
    made_setup,
    written_of,
)

from codeneedle.cache_types import Pair
from codeneedle.records.comparability import (
    OtherSetup,
    first_observation_difference_path,
    merge_compatible_setups,
    refuse_difference,
    refuse_foreign_record,
    setup_differences,
    setup_identity,
    setup_identity_for_probe,
)
from codeneedle.records.record import ForeignRecord, Key, ModelFacts, as_json

THROUGHPUT = {"depths": [0], "repetitions": 3}

SETUP = replace(
    made_setup(needles=3),
    server_args=("--threads", "2"),
    probes={**made_setup(needles=3).probes, "throughput": THROUGHPUT},
)
FIRST, SECOND, THIRD = written_of(SETUP)


FEWER = {"throughput": {"depths": [0]}}
OFTENER = {"throughput": {"depths": [0], "repetitions": 5}}


def asked(**changes):
    """The change of a setup in which recall has other settings or functions."""
    return {"probes": {"recall": as_json({**SETUP.probes["recall"], **changes})}}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"context": 4096}, id="context"),
        pytest.param(asked(way=("write",), written=[FIRST, SECOND]), id="way"),
        pytest.param(asked(written=[FIRST, SECOND]), id="fewer"),
        pytest.param(asked(written=[]), id="none"),
        pytest.param(asked(written=[FIRST, replace(SECOND, line=7), THIRD]), id="line"),
        pytest.param({"server_args": ("--threads", "4")}, id="arguments"),
        pytest.param({"corpus": replace(SETUP.corpus, tokens=1)}, id="tokens"),
        pytest.param({"probes": OFTENER}, id="more-repetitions"),
        pytest.param({"probes": FEWER}, id="no-repetitions"),
    ],
)
def test_the_first_difference_is_named_with_both_values(changes, golden):
    with pytest.raises(OtherSetup) as caught:
        refuse_difference(SETUP, replace(SETUP, **changes), folder=Path("runs"))

    assert golden == str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"types_k": ("f16",)},
        {"types_v": ()},
        {"created": "later"},
        {"probes": {}},
        {"probes": {"divergence": {"chunks": 4}}},
    ],
)
def test_types_dates_and_further_probes_do_not_differ(changes):
    wanted = replace(SETUP, **changes)

    refuse_difference(SETUP, wanted, folder=Path("runs"))
    both = merge_compatible_setups(SETUP, wanted)
    assert {*SETUP.types_k, *wanted.types_k} == set(both.types_k)
    assert {*SETUP.types_v, *wanted.types_v} == set(both.types_v)
    assert {**SETUP.probes, **wanted.probes} == both.probes


BARE = replace(SETUP, probes={})


def test_a_setup_gets_the_functions_of_a_setup_that_asks_for_some():
    refuse_difference(BARE, SETUP, folder=Path("runs"))
    refuse_difference(SETUP, BARE, folder=Path("runs"))

    assert (
        SETUP
        == merge_compatible_setups(BARE, SETUP)
        == merge_compatible_setups(SETUP, BARE)
    )
    assert (
        []
        == list(setup_differences(BARE, SETUP))
        == list(setup_differences(SETUP, BARE))
    )


def test_a_run_folder_keeps_what_it_knows_of_its_model_and_else_learns_it():
    known, renamed, unknown = (
        replace(SETUP, model=ModelFacts(name=name)) for name in ("a", "b", "")
    )

    assert ["a", "a", "a"] == [
        merge_compatible_setups(stored, wanted).model.name
        for stored, wanted in ((known, renamed), (known, unknown), (unknown, known))
    ]


def test_what_is_asked_of_a_text_is_no_part_of_its_identity():
    assert setup_identity(SETUP) == setup_identity(BARE)
    other = replace(SETUP, corpus=replace(SETUP.corpus, sample_seed=7))
    assert setup_identity(SETUP) != setup_identity(other)


ANSWERS = made_record(
    "q8_0/q4_0",
    [made_round(FIRST), made_round(SECOND)],
    forced=map(made_forced, forced_of(SETUP)),
)


WRITTEN, *_, FORCED = ANSWERS.observation["answers"]
ANSWER = ANSWERS.observation["answers"][WRITTEN]


def changed(**answers):
    """What the same record holds, with other answers."""
    return ANSWERS.observation | answers


@pytest.mark.parametrize(
    ("answers", "place"),
    [
        ({}, ""),
        ({"starts": 3}, ""),
        ({"answers": {}}, ""),
        ({"answers": {WRITTEN: {**ANSWER, "reply": "x"}}}, f"answers {WRITTEN} reply"),
        ({"answers": "xy"}, "answers"),
        ({"facts": {"priming": {"reply": "x"}}}, "facts priming"),
    ],
)
def test_two_records_of_one_cell_agree_as_far_as_both_were_asked(answers, place):
    ours, theirs = ANSWERS.observation, changed(**answers)
    assert place == first_observation_difference_path(ours, theirs)
    assert place == first_observation_difference_path(theirs, ours)


def test_answers_by_key_agree_as_far_as_both_were_asked():
    ours = {"answers": {"1": {"reply": "a"}, "2": {"reply": "b"}}}
    theirs = {"answers": {"2": {"reply": "b"}}, "skipped": {"1": "hopeless"}}

    assert (
        ""
        == first_observation_difference_path(ours, theirs)
        == first_observation_difference_path(theirs, ours)
    )
    other = {"answers": {"2": {"reply": "c"}}}
    assert "answers 2 reply" == first_observation_difference_path(ours, other)


@pytest.mark.parametrize(
    ("theirs", "place"), [(None, ""), (2.5, ""), (2.6, "answers 256x3 statistics ppl")]
)
def test_a_perplexity_that_one_log_has_lost_is_no_difference(theirs, place):
    """Hosts that compute alike may lose the ends of other logs."""
    answers = [
        {"answers": {"256x3": {"statistics": {"ppl": ppl}, "reference_ppl": ppl}}}
        for ppl in (2.5, theirs)
    ]

    assert place == first_observation_difference_path(*answers)
    assert place == first_observation_difference_path(*reversed(answers))


def test_a_function_that_is_called_as_a_count_is_compared_all_the_same():
    ours, theirs = (
        {"answers": {"written count_tokens": {"reply": each, "wall_s": seconds}}}
        for each, seconds in (("a", 1), ("b", 2))
    )

    assert "answers written count_tokens reply" == first_observation_difference_path(
        ours, theirs
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "place"),
    [
        ([], [0.5], "x length"),
        ([0.5], [], "x length"),
        ([], [{"reply": "a"}], ""),
        ([{"reply": "a"}], [{"reply": "a"}, 0.5], "x length"),
    ],
)
def test_only_lists_of_answers_may_differ_in_length(ours, theirs, place):
    assert place == first_observation_difference_path({"x": ours}, {"x": theirs})


def test_answers_that_begin_alike_differ_where_one_ends():
    """A list of numbers is one observation, and has one length."""
    scored = ANSWERS.observation["answers"][FORCED]
    fewer = {**scored["scores"], "logprobs": scored["scores"]["logprobs"][1:]}
    shorter = {**scored, "scores": fewer}

    told = first_observation_difference_path(
        ANSWERS.observation, changed(answers={FORCED: shorter})
    )

    assert f"answers {FORCED} scores logprobs length" == told


PAIR = Pair("q8_0", "q4_0")


def stored(**changes):
    """The setup as it is first stored."""
    setup = replace(SETUP, **changes)
    return replace(setup, identity=setup_identity(setup))


RECORD = replace(
    made_record(PAIR, [made_round(FIRST)]),
    setup=setup_identity_for_probe(stored(), "recall"),
)


@pytest.mark.parametrize("setup", [stored(), stored(types_k=("f16",)), None])
def test_a_record_belongs_to_its_setup(setup):
    refuse_foreign_record(RECORD, Key(PAIR, "recall"), setup=setup, file="x")


@pytest.mark.parametrize(
    ("pair", "probe", "setup", "of"),
    [
        (PAIR, "recall", stored(seed=7), "another setup"),
        (Pair("q4_0", "q8_0"), "recall", stored(), "q8_0/q4_0, recall"),
        (PAIR, "throughput", None, "q8_0/q4_0, recall"),
    ],
)
def test_a_record_of_something_else_is_foreign(pair, probe, setup, of):
    with pytest.raises(ForeignRecord, match=of):
        refuse_foreign_record(RECORD, Key(pair, probe), setup=setup, file="x")


def test_a_grid_with_holes_grows_by_the_pairs_of_both():
    chosen = replace(SETUP, types_k=("f16",), types_v=("f16",), pairs=("f16/f16",))
    other = replace(SETUP, types_k=("q8_0",), types_v=("q4_0",))

    assert ("f16/f16", "q8_0/q4_0") == merge_compatible_setups(chosen, other).pairs
    assert ("q8_0/q4_0", "f16/f16") == merge_compatible_setups(other, chosen).pairs


@pytest.mark.parametrize(("told", "count"), [("", 0), ("AVX", 0), ("AVX2", 1)])
def test_features_that_a_server_has_failed_to_tell_are_no_others(told, count):
    first, second = (replace(made_setup(), cpu_features=each) for each in ("AVX", told))

    assert count == len([*setup_differences(first, second)])
    assert count == len([*setup_differences(second, first)])
