"""What MLX cannot do is refused before anything starts."""

from dataclasses import replace
from importlib import metadata

import pytest
from made_mlx import nano_weights

pytest.importorskip(
    "mlx.core", reason="MLX is not installed: pip install 'codeneedle[mlx]'"
)
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")


from codeneedle.cache_types import Pair
from codeneedle.engines.engine import Ability, CellSpec, ModelSpec
from codeneedle.engines.mlx import engine as engine_module
from codeneedle.engines.mlx.engine import Mlx, package_versions
from codeneedle.engines.mlx.settings import MlxSettings
from codeneedle.errors import BadInput, CellError, ToolMissing, WeightsUnusable

pytestmark = pytest.mark.slow

SPLIT = CellSpec(Pair("kv8", "kv4"), 512)


@pytest.fixture(scope="module")
def engine():
    model = ModelSpec(weights=nano_weights(), name="nano", is_tiny=True)
    return Mlx(versions=package_versions(), model=model)


def test_a_gguf_file_is_no_model_for_mlx(nano):
    with pytest.raises(WeightsUnusable) as caught:
        engine_module.read_weights(nano)

    assert nano == caught.value.path
    assert engine_module.FOLDERS in caught.value.hint


@pytest.mark.parametrize("sizes", [(), (64, 64, 64), (48,), (128,)])
def test_a_group_size_that_cannot_be_is_refused(engine, sizes):
    """Heads of the built-in model have 64 values."""
    with pytest.raises(BadInput, match="--kv-group-size"):
        replace(
            engine, settings=MlxSettings(group_size=sizes)
        ).refuse_unusable_arguments()


def test_a_start_that_no_context_reaches_is_refused(engine, golden):
    """Nothing would be quantized, and the record would say that it was."""
    late = replace(engine, settings=MlxSettings(quantized_kv_start=512))

    with pytest.raises(CellError) as caught:
        late.command("serve", SPLIT.pair, context=SPLIT.context)
    assert golden == str(caught.value)
    assert late.command("serve", SPLIT.pair, context=513)


@pytest.mark.parametrize(
    "ability",
    [Ability.ADDRESS, Ability.CONVERSATIONS, Ability.READING],
    ids=lambda ability: ability.name,
)
def test_what_the_child_cannot_do_is_refused(engine, ability, golden):
    """It is refused before a cell, instead of failing in each."""
    with pytest.raises(ToolMissing) as caught:
        engine.require(ability)
    assert golden == str(caught.value)
    with pytest.raises(ToolMissing):
        engine.templating()


def test_arguments_of_llama_server_are_refused(engine, golden):
    model = replace(engine.model, arguments=("-t", "1"))

    with pytest.raises(BadInput) as caught:
        replace(engine, model=model).refuse_unusable_arguments()
    assert golden == str(caught.value)


def test_a_choice_of_devices_is_refused(engine):
    model = replace(engine.model, device="1")

    with pytest.raises(BadInput, match="one device"):
        replace(engine, model=model).refuse_unusable_arguments()


def test_a_share_of_the_cores_is_refused(engine):
    model = replace(engine.model, threads=1)

    with pytest.raises(BadInput, match="does not divide"):
        replace(engine, model=model).refuse_unusable_arguments()


@pytest.mark.parametrize("missing", ["mlx", "mlx-lm"])
def test_a_package_that_is_not_installed_is_named(monkeypatch, missing):
    def version(name):
        if name == missing:
            raise metadata.PackageNotFoundError
        return "1.0"

    monkeypatch.setattr(engine_module.metadata, "version", version)
    with pytest.raises(ToolMissing, match=missing) as caught:
        package_versions()

    assert "pip install 'codeneedle[mlx]'" in caught.value.hint
