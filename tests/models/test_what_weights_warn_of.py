"""What the weights tell of how a model takes a quantized cache."""

import dataclasses
from types import SimpleNamespace

import pytest
import zoo
from fake_engine import made_weights
from made_tools import made_facts

from codeneedle.engines.llama_cpp.engine import LlamaCpp
from codeneedle.engines.mlx.engine import Mlx
from codeneedle.engines.openai.engine import Command, Endpoint
from codeneedle.models import sensitivity
from codeneedle.models.sensitivity import (
    attention_moved_by_k_type,
    cache_quantization_warnings,
    coarsest_safe_k_type,
    unsafe_k_types,
)
from codeneedle.models.weights import read_weights_from_headers
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.request import Request


def said(weights):
    """All warnings in one text."""
    return " ".join(cache_quantization_warnings(weights))


def test_a_spike_of_the_bias_of_k_is_named_with_its_layer(golden):
    norms = ((0, 605.0), (1, 22.0), (2, 21.0), (3, 23.0), (4, 921.0))
    weights = dataclasses.replace(made_weights(), k_bias_norms=norms)

    assert golden == said(weights)


@pytest.mark.parametrize(
    "norms", [(), ((0, 22.0), (1, 24.0)), ((0, 0.0),), ((0, float("nan")), (1, 3.0))]
)
def test_biases_without_a_spike_are_no_warning(norms):
    weights = dataclasses.replace(made_weights(), k_bias_norms=norms)

    assert "" == said(weights)


def large_enough(weights):
    """*weights* with the size of the smallest model of which something is foretold."""
    return dataclasses.replace(weights, parameters=sensitivity.LEAST_PARAMETERS)


def test_types_of_k_that_move_too_much_attention_are_predicted_in_place_of_the_rule(
    tmp_path,
):
    predicted = said(
        large_enough(read_weights_from_headers(zoo.write("qwen2bias", tmp_path)))
    )

    assert "K q5_1, q5_0, q4_1, q4_0: predicted" in predicted
    assert "biases" not in predicted


def test_nothing_is_predicted_of_a_cache_that_is_not_rotated(tmp_path):
    weights = large_enough(read_weights_from_headers(zoo.write("qwen2bias", tmp_path)))

    assert "predicted" not in " ".join(
        cache_quantization_warnings(weights, is_rotated=False)
    )


@pytest.mark.parametrize(
    ("engine", "is_predicted"),
    [
        (LlamaCpp(tools=None, facts=made_facts(), model=None), True),
        (LlamaCpp(tools=None, facts=made_facts(build=7000), model=None), False),
        (Command.__new__(Command), False),
        (Endpoint.__new__(Endpoint), False),
        (Mlx.__new__(Mlx), False),
    ],
)
def test_losses_are_predicted_for_engines_that_rotate_caches_alone(
    engine, is_predicted, tmp_path
):
    weights = large_enough(read_weights_from_headers(zoo.write("qwen2bias", tmp_path)))
    plan = SimpleNamespace(weights=weights, engine=engine, request=Request())
    plan.is_rotated = Plan.is_rotated.fget(plan)
    notes = Plan.notes_of_weights.fget(plan)

    assert is_predicted == ("predicted" in " ".join(notes))
    assert is_predicted == bool(Plan.unborne_types.fget(plan))


@pytest.mark.parametrize(("name", "is_near"), [("llama", True), ("qwen2bias", False)])
def test_a_prediction_where_nothing_was_measured_says_so(name, is_near, tmp_path):
    weights = large_enough(read_weights_from_headers(zoo.write(name, tmp_path)))
    least = min(e for e in attention_moved_by_k_type(weights).values() if e > 0.05)

    assert is_near == (least < sensitivity.LEAST_LOST)
    assert is_near == ("nothing was measured" in said(weights))
    assert f"moves {100 * least:.2g} to" in said(weights)


def test_types_that_move_all_attention_are_said_to_in_plain_digits(
    tmp_path, monkeypatch
):
    """It was once said as 1e+02 %."""
    moved = {"q8_0": 0.0544, "q4_0": 0.998}
    monkeypatch.setattr(
        sensitivity, "attention_moved_by_k_type", lambda _weights: moved
    )

    assert "5.4 to 100 %" in said(made_weights())


def test_types_of_k_that_move_little_are_no_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(sensitivity, "MOST_MOVED", 0.99)

    assert "" == said(
        large_enough(read_weights_from_headers(zoo.write("qwen2bias", tmp_path)))
    )


def test_nothing_is_predicted_of_a_model_smaller_than_any_measured(tmp_path):
    weights = read_weights_from_headers(zoo.write("qwen2bias", tmp_path))

    assert weights.parameters < sensitivity.LEAST_PARAMETERS
    assert "K has biases" in said(weights)


@pytest.mark.real
def test_the_cliff_of_smollm2_is_predicted_where_it_was_measured(smollm2):
    weights = read_weights_from_headers(smollm2)

    assert "K q4_1, q4_0: predicted" in said(weights)
    assert "q5_0" == coarsest_safe_k_type(attention_moved_by_k_type(weights))
    assert ("q4_1", "q4_0") == unsafe_k_types(weights)


@pytest.mark.parametrize(
    ("shares", "coarsest"),
    [((0.01, 0.02), "q5_1"), ((0.01, 0.06), "q8_0"), ((0.06, 0.01), "f16"), ((), "")],
)
def test_the_coarsest_type_of_k_is_the_last_before_one_that_moves_much(
    shares, coarsest
):
    assert coarsest == coarsest_safe_k_type(
        dict(zip(("q8_0", "q5_1"), shares, strict=False))
    )


def test_biases_are_read_from_the_file_layer_by_layer(tmp_path):
    weights = read_weights_from_headers(zoo.write("qwen2bias", tmp_path))

    assert weights.layers == len(weights.k_bias_norms)
    assert all(norm > 0 for _, norm in weights.k_bias_norms)


def test_sinks_and_heads_that_are_not_rotated_are_named(tmp_path, golden):
    for name in ("gptoss", "llama80"):
        assert golden == said(read_weights_from_headers(zoo.write(name, tmp_path)))
    assert "" == said(read_weights_from_headers(zoo.write("llama", tmp_path)))
