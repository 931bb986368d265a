"""What a survey of kernels decides before the first cell."""

from dataclasses import replace

import pytest
from fake_engine import FakeEngine, bf16_alone, made_survey, same_types_alone
from made_plans import asking, made_world, measured, planned

from codeneedle.cache_types import Pair
from codeneedle.engines.attention_place import with_attention_place
from codeneedle.engines.engine import CacheTypes
from codeneedle.errors import BadInput
from codeneedle.records.record import Attention, Effective, KvBuffer
from codeneedle.sweep.plan import plan as make_plan
from codeneedle.sweep.plan_notes import notes_of_plan
from codeneedle.sweep.request import Execution


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch):
    made_world(tmp_path, monkeypatch)


GPU = ("Vulkan0 a GPU (8 GiB)",)
SAME, MIXED = Pair("q8_0", "q8_0"), Pair("q8_0", "q4_0")


def refusing_mixed(pair):
    """A backend that cannot write mixed caches."""
    return Attention.KERNEL if pair.k == pair.v else "cannot write it"


def plan_on(surveyed, **changes):
    """A plan of three types on an engine with such a survey."""
    engine = FakeEngine(surveyed=surveyed, devices=GPU)
    return planned(engine=engine, **{"types": ("f16", "q8_0", "q4_0"), **changes})


def test_pairs_without_a_kernel_are_measured_last(golden):
    plan = plan_on(same_types_alone)

    assert 9 == len(plan.pairs)
    assert {pair for pair in plan.pairs if pair.k != pair.v} == {
        *plan.pairs_without_kernel
    }
    assert golden == [note for note in notes_of_plan(plan) if "kernel" in note]


def test_only_pairs_with_a_kernel_are_left_where_these_alone_are_wanted():
    plan = plan_on(same_types_alone, kernels_only=True)

    assert {pair for pair in plan.pairs if pair.k == pair.v} == {*plan.pairs}
    assert 3 == len(plan.pairs)


def test_kernels_alone_are_refused_where_there_is_none(golden):
    with pytest.raises(BadInput) as caught:
        plan_on(lambda _pair: Attention.CPU, kernels_only=True)
    assert golden == str(caught.value)


def test_kernels_alone_are_refused_where_the_engine_cannot_say():
    with pytest.raises(BadInput, match="cannot say where"):
        plan_on(None, kernels_only=True)


@pytest.mark.parametrize(
    ("attention", "where"),
    [(Attention.CPU, "on the CPU"), (Attention.CONVERTED, "converted to f16")],
)
def test_a_machine_without_any_kernel_is_told_before_the_first_cell(attention, where):
    plan = plan_on(lambda _pair: attention)
    (told,) = [note for note in notes_of_plan(plan) if "no pair has a kernel" in note]

    assert () == plan.pairs_without_kernel
    assert where in told


def test_a_build_that_refuses_every_pair_is_refused():
    with pytest.raises(BadInput, match="cannot write it") as caught:
        plan_on(lambda _pair: "cannot write it")

    assert "codeneedle kernels --types f32,f16" in caught.value.hint


def test_a_build_that_refuses_every_pair_names_those_that_run():
    """As Hexagon does, which writes f16 and q8_0 alone."""

    def refusing(pair):
        can = {pair.k, pair.v} <= {"f16", "q8_0"}
        return Attention.KERNEL if can else "cannot write it"

    with pytest.raises(BadInput, match="cannot write it") as caught:
        plan_on(refusing, types=("bf16", "q4_0"))

    assert "these run: f16/f16, q8_0/q8_0." in caught.value.hint
    assert "--types f16,q8_0" in caught.value.hint


def test_refused_pairs_are_in_the_grid_and_are_not_counted():
    plan = plan_on(refusing_mixed)

    assert (9, 3) == (len(plan.pairs), len(plan.possible_pairs))
    assert "cannot write it" == plan.refusal(MIXED)


@pytest.mark.parametrize(
    ("surveyed", "first"),
    [(bf16_alone, "f16"), (same_types_alone, "bf16"), (None, "bf16")],
    ids=["Vulkan", "Metal", "no survey"],
)
def test_f16_takes_the_place_of_bf16_where_that_has_kernels(surveyed, first):
    engine = FakeEngine(surveyed=surveyed, devices=GPU, types=CacheTypes())
    plan = planned(engine=engine, types=())

    assert first == plan.request.grid_k_types[0]
    assert bool(plan.replaced) == (first == "f16")


def test_a_folder_that_was_begun_with_f16_goes_on_with_it(tmp_path):
    engine = FakeEngine(surveyed=bf16_alone, devices=GPU, types=CacheTypes())
    measured(planned(engine=engine, types=(), out=tmp_path))
    again = planned(engine=engine, types=(), out=tmp_path)

    assert "f16" == again.request.grid_k_types[0]


# Several devices


TWO_KINDS = ("Vulkan0 a fast GPU (8 GiB)", "Vulkan0 a slow GPU (2 GiB)")


def plan_on_devices(*names):
    """A plan on such devices, of which the first has a kernel for each pair."""

    def engine_for(spec):
        name = names[int(spec.device or 0)]
        attention = Attention.KERNEL if name == TWO_KINDS[0] else Attention.CPU
        return FakeEngine(model=spec, devices=(name,), surveyed=lambda _pair: attention)

    devices = tuple(map(str, range(len(names))))
    return make_plan(asking(), Execution(devices=devices), engine_for=engine_for)


def test_the_survey_is_asked_of_the_device_that_cells_run_on():
    plan = plan_on_devices(*TWO_KINDS[::-1])

    assert {Attention.CPU} == {
        plan.survey.expected_attention_place(pair) for pair in plan.pairs
    }


def test_a_plan_on_devices_of_two_kinds_says_which_one_was_surveyed():
    (told,) = [
        note
        for note in notes_of_plan(plan_on_devices(*TWO_KINDS))
        if "asked of" in note
    ]

    assert told.index("a fast GPU") < told.index("alone") < told.index("a slow GPU")
    assert not any(
        "asked of" in n for n in notes_of_plan(plan_on_devices(*TWO_KINDS[:1] * 2))
    )


# What the splits of a real cell say beside the survey


def cell(splits, layers=30):
    """What a server on an accelerator tells of its graph."""
    cache = KvBuffer(
        cells=4096, layers=layers, k_type="q8_0", v_type="q4_0", k_mib=1.0, v_mib=1.0
    )
    return Effective(
        graph_splits=splits,
        kv=(cache,),
        devices=("Vulkan0",),
        offloaded_layers=layers + 1,
    )


@pytest.mark.parametrize(
    ("splits", "attention"),
    [(2, Attention.KERNEL), (62, Attention.CPU), (5, None), (None, None)],
)
def test_splits_tell_without_another_cell(splits, attention):
    """SmolLM2 on Vulkan: 2 splits are whole, 62 are attention on the CPU."""
    found = with_attention_place(cell(splits), None, MIXED, is_split=False)

    assert attention is found.attention


def test_a_cache_that_the_user_keeps_on_the_host_has_the_kernels_of_the_cpu(golden):
    """--no-kv-offload: 62 splits, and the cache on the CPU."""
    asked = replace(cell(62), devices=("CPU",))
    found = with_attention_place(asked, None, MIXED, is_split=False)

    assert Attention.KERNEL is found.attention
    assert golden == found.attention_evidence


def test_a_graph_that_is_split_for_other_reasons_says_nothing_without_a_survey():
    found = with_attention_place(cell(62), None, MIXED, is_split=True)
    survey = replace(made_survey({MIXED: Attention.KERNEL}), whole_splits=62)
    surveyed = with_attention_place(cell(62), survey, MIXED, is_split=True)

    assert (None, Attention.KERNEL) == (found.attention, surveyed.attention)


def test_a_cell_that_contradicts_the_survey_says_so(golden):
    survey = made_survey({MIXED: Attention.KERNEL})
    found = with_attention_place(cell(62), survey, MIXED, is_split=False)

    assert Attention.CPU is found.attention
    assert golden == found.attention_evidence


def test_a_whole_graph_does_not_contradict_that_the_build_converts_the_pair():
    survey = made_survey({MIXED: Attention.CONVERTED})
    found = with_attention_place(cell(2), survey, MIXED, is_split=False)

    assert Attention.CONVERTED is found.attention
    assert "by the survey" == found.attention_evidence


def test_on_the_cpu_alone_every_pair_has_a_kernel():
    found = with_attention_place(
        Effective(graph_splits=1, devices=("CPU",)), None, SAME, is_split=False
    )

    assert Attention.KERNEL is found.attention
