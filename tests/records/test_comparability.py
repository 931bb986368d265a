"""Which facts must be equal, and how a difference is named."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_records import made_record, made_round, made_setup

from codeneedle.grid import Pair
from codeneedle.records.comparability import (
    OtherSetup,
    identity,
    refuse_difference,
    refuse_foreign,
    stamp,
    widened,
)
from codeneedle.records.record import ForeignRecord

SETUP = replace(
    made_setup(needles=3),
    server_args=("--threads", "2"),
    probes={"throughput": {"depths": [0], "repetitions": 3}},
)
FIRST, SECOND, THIRD = SETUP.needles


FEWER = {"throughput": {"depths": [0]}}
OFTENER = {"throughput": {"depths": [0], "repetitions": 5}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"context": 4096}, "context: 12288, now 4096"),
        ({"needles": (FIRST, SECOND)}, "number of needles: 3, now 2"),
        (
            {"needles": (FIRST, replace(SECOND, line=7), THIRD)},
            "needles 2 line: 25, now 7",
        ),
        ({"server_args": ("--threads", "4")}, "server_args 2: '2', now '4'"),
        ({"corpus": replace(SETUP.corpus, tokens=1)}, "corpus tokens: 8912, now 1"),
        ({"probes": OFTENER}, "throughput repetitions: 3, now 5"),
        ({"probes": FEWER}, "throughput repetitions: 3, now None"),
    ],
)
def test_the_first_difference_is_named_with_both_values(changes, said):
    """
    Of nested facts one value is named, with its place from 1.
    """
    with pytest.raises(OtherSetup, match=f"another {said}"):
        refuse_difference(SETUP, replace(SETUP, **changes), folder=Path("runs"))


@pytest.mark.parametrize(
    "changes",
    [
        {"types_k": ("f16",)},
        {"types_v": ()},
        {"created": "later"},
        {"probes": {}},
        {"probes": {"divergence": {"chunks": 4}}},
        {"finalists": ("q8_0/q8_0",), "further": SETUP.needles[:1], "words": ("x",)},
    ],
)
def test_types_dates_and_further_probes_do_not_differ(changes):
    """
    Records of a wider grid, or of another probe, stand in the same folder.
    """
    wanted = replace(SETUP, **changes)

    refuse_difference(SETUP, wanted, folder=Path("runs"))
    both = widened(SETUP, wanted)
    assert {*SETUP.types_k, *wanted.types_k} == set(both.types_k)
    assert {*SETUP.types_v, *wanted.types_v} == set(both.types_v)
    assert {**SETUP.probes, **wanted.probes} == both.probes
    grown = (both.further, both.finalists, both.words)
    assert (wanted.further, wanted.finalists, wanted.words) == grown
    assert grown[:2] == (widened(both, SETUP).further, widened(both, SETUP).finalists)


PAIR = Pair("q8_0", "q4_0")


def stored(**changes):
    """The setup as it is first stored."""
    setup = replace(SETUP, **changes)
    return replace(setup, identity=identity(setup))


RECORD = replace(
    made_record(PAIR, [made_round(FIRST)]), setup=stamp(stored(), "recall")
)


@pytest.mark.parametrize("setup", [stored(), stored(types_k=("f16",)), None])
@pytest.mark.parametrize("stamped", [RECORD, replace(RECORD, setup="")])
def test_a_record_belongs_to_its_setup_or_names_none(setup, stamped):
    """
    A grid may grow, records of the first schema name no setup, and where the setup is
    not known any of the pair and probe will do.
    """
    refuse_foreign(stamped, PAIR, "recall", setup=setup, file="x")


@pytest.mark.parametrize(
    ("pair", "probe", "setup", "of"),
    [
        (PAIR, "recall", stored(seed=7), "another setup"),
        (Pair("q4_0", "q8_0"), "recall", stored(), "q8_0/q4_0, recall"),
        (PAIR, "throughput", None, "q8_0/q4_0, recall"),
    ],
)
def test_a_record_of_something_else_is_foreign(pair, probe, setup, of):
    """
    What it is one of is named.
    """
    with pytest.raises(ForeignRecord, match=of):
        refuse_foreign(RECORD, pair, probe, setup=setup, file="x")
