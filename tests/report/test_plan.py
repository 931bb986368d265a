"""The plan of a sweep, and KV memory as predicted and as measured."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from gguf_files import SHAPE, write_gguf
from made_plans import made_world, planned
from made_records import failed_record, made_record, made_setup
from rich.console import Console

from codeneedle.engines.engine import CacheTypes
from codeneedle.records.record import Phases, Status
from codeneedle.report.plan import plan_view

SETUP = made_setup(needles=2)


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch):
    """A folder with a corpus and weights; nothing that could be started."""
    made_world(tmp_path, monkeypatch)


def shown(plan, *, probes=("recall",), width=100):
    """The screen of *plan*, as one text."""
    console = Console(file=io.StringIO(), width=width)
    console.print(plan_view(plan, probes=probes), crop=False)
    return console.file.getvalue()


def grid_of(text):
    """The rows of the predicted grid, by K type."""
    lines = text.split("tokens, MiB\n")[1].split("\n\n")[0].splitlines()
    return {words[0]: words[1:] for words in map(str.split, lines) if words}


def facts_of(text):
    """The first word of each fact with its phrase."""
    lines = text.split("\n\n")[0].splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if not line.startswith(" ")]
    return {pair[0]: pair[1].strip() for pair in pairs}


def test_a_new_sweep_tells_what_it_would_do():
    """
    What is not known yet is said to be known later.
    """
    facts = facts_of(shown(planned()))

    assert "8,192 tokens, completion prompt" == facts["context"]
    assert "sweeps/tiny/model" == facts["records"]
    assert "0 of 4 finished" == facts["cells"]
    assert "known after the first cell" == facts["time"]
    assert "when the sweep starts" in shown(planned(), width=500)


def test_the_grid_predicts_memory():
    """
    4 layers with 2 KV heads of 64: f16 takes 8 MiB of K at 8,192 tokens.
    """
    found = grid_of(shown(planned(k_types=("f16", "q8_0"), v_types=("f16", "q4_0"))))

    assert ["16.0", "10.2"] == found["f16"]
    assert ["12.2", "6.5"] == found["q8_0"]


def test_speculation_is_told_with_what_it_costs():
    """
    Where the recall probe runs, and the engine can.
    """
    drafting = planned(engine=FakeEngine(speculation="ngram-simple"))

    assert (
        "speculation ngram-simple, so no margins"
        == (facts_of(shown(drafting))["recall"])
    )
    assert "recall" not in facts_of(shown(planned()))


def test_the_running_order_is_told():
    """
    Its first three pairs, or all if there are no more.
    """
    four, one = planned(), planned(k_types=("q8_0",), v_types=("q4_0",))

    expected = ", ".join(map(str, four.pairs[:3]))
    assert f"{expected}, ..." == facts_of(shown(four))["order"]
    assert "q8_0/q4_0" == facts_of(shown(one))["order"]


def test_what_is_done_is_marked_and_tells_what_is_left():
    """
    Finished cells have a mark, the others a word; their mean time is each of the
    rest's.
    """
    plan = planned()
    plan.store.adopt(SETUP)
    slow = Phases(ready_s=1.0, measure_s=9.0)
    plan.store.add(replace(made_record("q8_0/q8_0", []), phases=slow))
    plan.store.add(failed_record("q4_0/q4_0", Status.OUT_OF_MEMORY, "no room"))

    text = shown(plan)
    facts, grid = facts_of(text), grid_of(text)

    assert "1 of 4 finished, 1 without numbers" == facts["cells"]
    assert "about 20.0 s left, 10.0 s a cell" == facts["time"]
    assert "8.5+" == grid["q8_0"][0]
    assert "oom" in grid["q4_0"][1].lower()
    assert "q4_0/q4_0 out-of-memory: no room" in text
    assert "+ finished" in text


def test_an_interrupted_cell_is_still_to_be_played():
    """
    It has no numbers, and costs its time once more.
    """
    plan = planned()
    plan.store.adopt(SETUP)
    slow = Phases(ready_s=1.0, measure_s=9.0)
    plan.store.add(replace(made_record("q8_0/q8_0", []), phases=slow))
    plan.store.add(failed_record("q4_0/q4_0", Status.INTERRUPTED, "stopped"))

    assert "about 30.0 s left, 10.0 s a cell" == facts_of(shown(plan))["time"]


def test_a_sweep_that_is_done_has_nothing_left():
    """
    Only the mean time of its cells.
    """
    plan = planned(k_types=("q8_0",), v_types=("q8_0",))
    plan.store.adopt(SETUP)
    plan.store.add(made_record("q8_0/q8_0", []))

    assert "nothing left, 10.7 s a cell" == facts_of(shown(plan))["time"]


def test_what_is_done_is_told_of_the_first_probe():
    """
    Records of another one are not its.
    """
    plan = planned()
    plan.store.adopt(SETUP)
    plan.store.add(made_record("q8_0/q8_0", []))

    assert "0 of 4" in facts_of(shown(plan, probes=("throughput", "recall")))["cells"]


def test_a_corpus_that_was_counted_is_told_with_its_tokens():
    """
    What was trimmed away, too.
    """
    plan = planned()
    plan.store.adopt(SETUP)

    assert "8,912 tokens; trimmed to 16 of 200 functions" in shown(plan, width=200)


def test_a_pair_that_the_weights_cannot_take_says_why(tmp_path):
    """
    Once, below the grid.
    """
    odd = {**SHAPE, "llama.embedding_length": 320}
    write_gguf(tmp_path / "odd.gguf", odd)

    text = shown(planned(models=(Path("odd.gguf"),), v_types=("f16", "q4_0")))

    assert ["cannot", "cannot"] == grid_of(text)["q8_0"]
    assert "cannot: block of 32 does not divide head size 80" in text


def test_a_type_of_a_fork_has_no_predicted_size():
    """
    A question mark, and no sum.
    """
    fork = FakeEngine(types=CacheTypes())

    assert "?" in grid_of(shown(planned(engine=fork, k_types=("turbo3",))))["turbo3"]


def test_notes_come_last():
    """
    They are the first thing seen above the next prompt.
    """
    plan = replace(planned(), notes=("look here",))

    assert "note: look here" == shown(plan).splitlines()[-1]


def test_names_of_others_never_reach_the_terminal_raw(tmp_path):
    """
    A reason may hold what a model said.
    """
    plan = planned()
    plan.store.adopt(SETUP)
    plan.store.add(failed_record("q4_0/q4_0", Status.CRASHED, "bad \x1b[2J words"))

    assert "\x1b" not in shown(plan)
    assert r"note: weights in \x1b[2J" in shown(
        replace(plan, notes=("weights in \x1b[2J",))
    )


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_grid_keeps_its_columns_at_any_width(width):
    """
    The widest part never breaks a row in two.
    """
    assert {"K", "q8_0", "q4_0"} <= set(grid_of(shown(planned(), width=width)))
