"""Models that other programs keep, as commands take and show them."""

from pathlib import Path

import pytest
from made_stores import hugging_face, lm_studio, ollama
from typer.testing import CliRunner

from codeneedle.cache_types import ENGINE
from codeneedle.cli import options
from codeneedle.cli.app import app
from codeneedle.cli.doctor import diagnose, doctor_object
from codeneedle.cli.engines import ENGINES
from codeneedle.errors import BadInput, WeightsUnusable
from codeneedle.models.stores import weights_path_unless_built_in

LIBRARY = "registry.ollama.ai/library"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Three stores with a model each, and one of them twice."""
    for name in ("LLAMA_CACHE", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    hugging_face(tmp_path / "hub", "org/repo", "m-Q4_0.gguf", "m-Q8_0.gguf")
    lm_studio(tmp_path / ".lmstudio/models", "studio/model", "m.gguf")
    ollama(tmp_path / "ollama", f"{LIBRARY}/qwen/3b")
    return tmp_path


def shown(*words):
    return CliRunner().invoke(app, words, env={"COLUMNS": "1000"}).stdout


def test_all_models_are_shown_with_what_to_type_and_where_they_lie(home):
    told = shown("weights")

    for word in ("org/repo:Q4_0", "org/repo:Q8_0", "studio/model", "qwen:3b"):
        assert word in told
    assert str(home / ".lmstudio/models/studio/model/m.gguf") in told


def test_what_cannot_be_used_is_shown_with_the_reason(home, golden):
    (home / "hub/models--org--repo/snapshots").rename(home / "away")
    ollama(home / "ollama", f"{LIBRARY}/qwen/3b").write_bytes(b"{")

    [line] = [x for x in shown("weights").splitlines() if "damaged" in x]
    assert golden == " ".join(line.split())


def test_without_models_the_folders_that_were_searched_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "none"))

    assert str(tmp_path / "none") in shown("weights")


def test_shells_complete_the_names_of_models_that_are_here():
    model = options._model_names

    assert ["org/repo:Q4_0", "org/repo:Q8_0"] == model("org/")
    assert ["qwen:3b"] == model("qw")
    assert {"smollm2", "needle-nano"} <= set(model(""))


@pytest.mark.parametrize("name", ["org/repo:Q8_0", "studio/model", "qwen:3b", "qwen"])
def test_the_engine_reads_the_model_that_a_name_stands_for(name):
    assert ENGINES[ENGINE].weights(weights_path_unless_built_in(name)).is_read


def test_a_file_comes_before_a_name(home, monkeypatch):
    monkeypatch.chdir(home)
    (home / "studio").mkdir()
    (home / "studio" / "model").write_text("<html>")

    with pytest.raises(WeightsUnusable, match="web page"):
        ENGINES[ENGINE].weights(weights_path_unless_built_in("studio/model"))


def test_an_unknown_name_is_refused_with_those_that_are_like_it():
    with pytest.raises(BadInput) as caught:
        weights_path_unless_built_in("qwem")

    assert "qwen" in caught.value.hint


def test_servers_of_users_get_names_as_they_are(home):
    command = ENGINES["command"].weights(Path("org/repo"))

    assert (False, "org/repo") == (command.is_read, command.name)


@pytest.mark.slow
def test_the_doctor_says_how_many_there_are():
    found = diagnose(model=weights_path_unless_built_in("qwen:3b"))

    assert found.weights
    kept = doctor_object(found)["kept_models"]
    assert (2, 1, 1) == (kept["Hugging Face"], kept["LM Studio"], kept["Ollama"])
    [line] = [x for x in shown("doctor").splitlines() if "LM Studio" in x]
    stores = ("Hugging Face", "LM Studio", "Ollama")
    told = ", ".join(f"{kept[store]} of {store}" for store in stores)
    assert f" {told}" in line
