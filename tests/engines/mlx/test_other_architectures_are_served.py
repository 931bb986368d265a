"""Model folders of other architectures than llama: tiny ones with random weights."""

import importlib
import json
import shutil

import pytest
from made_mlx import nano_folder

mx = pytest.importorskip(
    "mlx.core", reason="MLX is not installed: pip install 'codeneedle[mlx]'"
)
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")

from mlx.utils import tree_flatten  # noqa: E402 - only where it is installed

from codeneedle.cache_types import Pair  # noqa: E402
from codeneedle.engines.engine import CellSpec, ModelSpec  # noqa: E402
from codeneedle.engines.messages import Completion  # noqa: E402
from codeneedle.engines.mlx.engine import Mlx, package_versions  # noqa: E402
from codeneedle.engines.mlx.folder import read_folder  # noqa: E402
from codeneedle.engines.mlx.model import Session  # noqa: E402
from codeneedle.engines.mlx.settings import MlxSettings  # noqa: E402
from codeneedle.errors import CellError  # noqa: E402

pytestmark = pytest.mark.slow

FACTS = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma")
PROMPT = [1 + at % 200 for at in range(300)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Makes the folder of a model, with the tokenizer of the built-in one."""
    source = nano_folder()
    vocabulary = json.loads((source / "config.json").read_text())["vocab_size"]

    def made(architecture, **changes):
        folder = tmp_path_factory.mktemp(architecture)
        facts = FACTS | {"model_type": architecture, "vocab_size": vocabulary}
        (folder / "config.json").write_text(json.dumps(facts | changes))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(source / name, folder / name)
        module = importlib.import_module(f"mlx_lm.models.{architecture}")
        mx.random.seed(7)
        network = module.Model(module.ModelArgs.from_dict(facts | changes))
        weights = dict(tree_flatten(network.parameters()))
        mx.save_safetensors(str(folder / "model.safetensors"), weights)
        return folder

    return made


def engine_of(folder, **settings):
    spec = ModelSpec(weights=read_folder(folder), name="tiny", is_tiny=True)
    return Mlx(
        versions=package_versions(), model=spec, settings=MlxSettings(**settings)
    )


def last_row(folder, **settings):
    """What a model in *folder* expects behind a prompt, in nats."""
    pair = Pair("f16", "f16")
    chosen = MlxSettings(compute="float32", **settings)
    return Session.load(folder, pair, chosen).read_and_score_prompt(PROMPT)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_of_another_architecture_is_served_with_split_caches(
    architecture, model, tmp_path
):
    cell = CellSpec(Pair("kv8", "kv4"), 512)
    question = Completion(prompt="def alpha(count):\n", max_tokens=4)
    engine = engine_of(model(architecture))
    engine.refuse_unusable_arguments()

    with engine.serving(cell, log=tmp_path / "log") as served:
        scores = served.client.force(question, "    return")
        differences = served.differences_from_cell(cell)
        (cache,) = served.effective().kv

    assert architecture == engine.model.weights.architecture
    assert () == differences
    assert ("kv8", "kv4", 2) == (cache.k_type, cache.v_type, cache.layers)
    assert scores.has_matching_lengths
    assert max(scores.logprobs) <= 0


@pytest.mark.parametrize(
    ("architecture", "own"),
    [("qwen2", None), ("qwen3", None), ("llama", None), ("llama", LLAMA3)],
)
def test_positions_are_stretched_by_the_factor_that_was_asked_for(
    architecture, own, model
):
    """YaRN where a model has no scaling of its own; the folder stays as it is."""
    yarn = {"rope_type": "yarn", "original_max_position_embeddings": 512}
    as_stated = (own or yarn) | {"factor": 12.0}
    folder, stated = (
        model(architecture, rope_scaling=scaling) for scaling in (own, as_stated)
    )
    before = (folder / "config.json").read_bytes()

    plain = last_row(folder).tolist()
    stretched = last_row(folder, rope_factor=12.0).tolist()

    assert last_row(stated).tolist() == stretched
    assert plain != stretched
    assert before == (folder / "config.json").read_bytes()


@pytest.mark.parametrize(
    ("architecture", "own"),
    [("gemma", None), ("llama", {"rope_type": "longrope", "factor": 2.0})],
)
def test_a_factor_that_would_do_nothing_is_refused(architecture, own, model, tmp_path):
    folder = model(architecture)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_scaling": own}))
    engine = engine_of(folder, rope_factor=4.0)

    with (
        pytest.raises(CellError) as caught,
        engine.serving(CellSpec(Pair("f16", "f16"), 512), log=tmp_path / "log"),
    ):
        pass

    assert "unsupported" == caught.value.status


def test_a_stretched_context_is_another_setup_and_may_be_longer(model):
    plain, stretched = (engine_of(model("qwen2"), rope_factor=at) for at in (None, 4))

    assert (False, True) == (plain.stretches_context, stretched.stretches_context)
    arguments = {*stretched.identity().arguments} - {*plain.identity().arguments}
    assert {"--rope-factor 4"} == arguments


def test_a_gpu_tells_what_is_in_use_and_the_most_that_was(model, tmp_path, monkeypatch):
    monkeypatch.setattr("codeneedle.engines.mlx.engine.devices", lambda: ("Metal",))
    engine = engine_of(model("qwen2"), compute="float32")
    cell = CellSpec(Pair("f16", "f16"), 512)

    with engine.serving(cell, log=tmp_path / "log") as served:
        served.client.complete(Completion(prompt="a" * 300, max_tokens=2))
        held, peak = served.device_bytes(), served.device_peak_bytes()

    weights = (model("qwen2") / "model.safetensors").stat().st_size
    assert weights <= held <= peak


def test_a_processor_s_memory_is_that_of_the_process(model, tmp_path):
    with engine_of(model("qwen2")).serving(
        CellSpec(Pair("f16", "f16"), 512), log=tmp_path / "log"
    ) as served:
        assert (None, None) == (served.device_bytes(), served.device_peak_bytes())

    assert served.peak_rss_bytes() > 0
