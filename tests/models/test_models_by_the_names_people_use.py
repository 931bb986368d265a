"""Models that other programs keep: found by name, told apart, never fetched."""

import json
import os
from pathlib import Path

import pytest
from gguf_files import SHAPE, gguf_bytes, write_gguf
from made_stores import hugging_face, lm_studio, model_bytes, ollama

from codeneedle.errors import WeightsUnusable
from codeneedle.models import stores
from codeneedle.models.headers import facts_of, read_and_keep_facts
from codeneedle.models.stores import (
    is_model_name,
    is_model_name_without_file,
    locate_model,
    shortest_names,
    stored_models,
    weights_path_unless_built_in,
)
from codeneedle.models.weights import read_weights_from_headers, run_folder_name

LIBRARY = "registry.ollama.ai/library"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home with nothing in it, and no variable that leads elsewhere."""
    for name in (
        *("LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"),
        *("XDG_CACHE_HOME", "OLLAMA_MODELS"),
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "codeneedle"))
    return tmp_path


@pytest.fixture
def hub(home):
    return home / ".cache/huggingface/hub"


@pytest.fixture
def studio(home):
    return home / ".lmstudio/models"


@pytest.fixture
def blobs(home):
    return home / ".ollama/models"


def names():
    return list(shortest_names(list(stored_models())).values())


def refusal(text, **options):
    with pytest.raises(WeightsUnusable) as caught:
        locate_model(text, **options)
    return str(caught.value), caught.value.hint


# --- each store


@pytest.mark.parametrize(
    "text", ["org/repo", "org/repo:Q4_K_M", "org/repo:q4_k_m", "org/repo/m-Q4_K_M.gguf"]
)
def test_a_file_of_the_hubs_cache_is_found_by_repository_and_quantization(hub, text):
    snapshot = hugging_face(hub, "org/repo", "m-Q4_K_M.gguf")

    assert snapshot / "m-Q4_K_M.gguf" == locate_model(text)
    assert ["org/repo"] == names()


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"LLAMA_CACHE": "a"}, "a"),
        ({"HF_HUB_CACHE": "b"}, "b"),
        ({"HF_HOME": "c"}, "c/hub"),
        ({"XDG_CACHE_HOME": "d"}, "d/huggingface/hub"),
        ({"LLAMA_CACHE": "a", "HF_HOME": "c"}, "c/hub"),
        ({"HF_HUB_CACHE": "b", "HF_HOME": "c"}, "b"),
    ],
)
def test_the_cache_is_where_variables_say(home, monkeypatch, variables, place):
    for name, folder in variables.items():
        monkeypatch.setenv(name, str(home / folder))
    hugging_face(home / place, "org/repo", "m.gguf")

    assert ["org/repo"] == names()


def test_the_snapshot_of_main_is_used_and_older_ones_are_not_listed(hub):
    old = hugging_face(hub, "org/repo", "m-Q8_0.gguf", commit="a" * 40, ref="")
    main = hugging_face(hub, "org/repo", "m-Q8_0.gguf", commit="b" * 40)

    assert main / "m-Q8_0.gguf" == locate_model("org/repo:Q8_0")
    assert ["org/repo"] == names()

    (old.parents[1] / "refs" / "main").write_text("a" * 40)
    assert old / "m-Q8_0.gguf" == locate_model("org/repo:Q8_0")


def test_a_file_of_lm_studio_is_found_where_its_settings_say(home, studio):
    folder = lm_studio(studio, "publisher/My Model", "m Q8_0.gguf")
    assert folder / "m Q8_0.gguf" == locate_model("publisher/My Model")

    (home / ".lmstudio/settings.json").write_text(
        json.dumps({"downloadsFolder": str(home / "disk")})
    )
    moved = lm_studio(home / "disk", "publisher/Other", "m.gguf")
    assert moved / "m.gguf" == locate_model("publisher/Other")
    assert ["publisher/Other"] == names()


def test_the_home_of_lm_studio_may_be_elsewhere(home):
    (home / ".lmstudio-home-pointer").write_text(f"{home / 'else'}\n")
    folder = lm_studio(home / "else/models", "a/b", "m.gguf")

    assert folder / "m.gguf" == locate_model("a/b")


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (f"{LIBRARY}/llama3.2/3b", "llama3.2:3b"),
        (f"{LIBRARY}/llama3.2/latest", "llama3.2"),
        (f"{LIBRARY}/llama3.2/latest", "llama3.2:latest"),
        (f"{LIBRARY}/llama3.2/3b", "llama3.2"),
        ("registry.ollama.ai/me/mine/v1", "me/mine:v1"),
        ("hf.co/org/repo/Q4_K_M", "hf.co/org/repo:Q4_K_M"),
    ],
)
def test_a_model_of_ollama_is_the_file_that_its_manifest_names(blobs, place, text):
    ollama(blobs, place)
    (blob,) = (blobs / "blobs").iterdir()

    assert blob == locate_model(text)


def test_of_several_tags_the_latest_is_meant(blobs):
    ollama(blobs, f"{LIBRARY}/m/3b")
    ollama(blobs, f"{LIBRARY}/m/latest")

    assert "latest" in read_weights_from_headers(locate_model("m")).name


def test_a_run_of_ollamas_file_is_called_as_its_author_calls_the_model(blobs):
    ollama(blobs, f"{LIBRARY}/m/3b", model_bytes("Some Model 3B"))

    assert "some-model-3b-q4_k_m" == run_folder_name(
        read_weights_from_headers(locate_model("m:3b"))
    )


def test_mlx_gets_the_folder_of_the_same_cache(hub):
    snapshot = hugging_face(hub, "org/model-4bit")
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(b"12345678")

    assert snapshot == locate_model("org/model-4bit", folder=True)
    assert "--engine mlx" in refusal("org/model-4bit")[1]
    assert "hf download org/other" in refusal("org/other", folder=True)[1]

    hugging_face(hub, "org/only-gguf", "m.gguf")
    assert "no folder" in refusal("org/only-gguf", folder=True)[0]


# --- what fits several, or nothing


def test_a_name_of_several_files_lists_them_with_their_sizes(hub):
    files = ("m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-UD-Q8_0.gguf")
    hugging_face(hub, "org/repo", *files)

    told, hint = refusal("org/repo")
    assert "names 3 models" in told
    assert "org/repo:Q4_K_M (" in hint
    assert "org/repo/m-Q8_0.gguf (" in hint
    assert "names 2 models" in refusal("org/repo:Q8_0")[0]
    for name in names():
        assert locate_model(name).exists()


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("org/repo:Q4_K_M", "llama download -hf org/repo:Q4_K_M"),
        ("org/repo/sub/m.gguf", "llama download -hf org/repo -hff sub/m.gguf"),
        ("llama3.2:3b", "ollama pull llama3.2:3b"),
    ],
)
def test_what_is_missing_is_answered_with_the_command_that_fetches_it(text, command):
    assert command in refusal(text)[1]


@pytest.mark.parametrize(
    "text",
    [
        *("../models/x", "a/../b", "a/..", "./a/b", "/a/b", "~/a/b", "a//b", "a/b/"),
        *("a\0b", "a/b:c:d", "models/x.gguf", "x.gguf", "", "$(a)/b", "a;b/c"),
    ],
)
def test_a_path_is_no_name(text):
    assert not is_model_name(text)


@pytest.mark.parametrize("target", ["link", "nowhere", None])
def test_a_link_that_leads_nowhere_and_what_is_written_as_a_path_are_no_names(
    tmp_path, monkeypatch, target
):
    monkeypatch.chdir(tmp_path)
    if target:
        Path("link").symlink_to(target)

    path = weights_path_unless_built_in("./link")

    assert path is not None
    assert not is_model_name_without_file(path)
    assert is_model_name_without_file(Path("other"))


@pytest.mark.parametrize("text", ["org/repo", "Org/Repo", "ORG/REPO:Q8_0"])
def test_capitals_do_not_matter_where_only_one_is_meant(hub, text):
    hugging_face(hub, "Org/Repo", "m-Q8_0.gguf")

    assert "m-Q8_0.gguf" == locate_model(text).name


def test_the_same_name_in_three_stores_is_the_first_and_each_path_is_listed(
    hub, studio, blobs
):
    snapshot = hugging_face(hub, "org/repo", "m.gguf")
    lm_studio(studio, "org/repo", "m.gguf")
    ollama(blobs, "registry.ollama.ai/org/repo/latest")

    assert snapshot / "m.gguf" == locate_model("org/repo")
    stored = [model.store for model in stored_models()]
    assert [stores.HUGGING_FACE, stores.LM_STUDIO, stores.OLLAMA] == stored
    assert 3 == len({model.path for model in stored_models()})


# --- what cannot be used


def test_files_beside_a_model_are_none(hub):
    beside = ("mmproj-F16.gguf", "m-mmproj-f16.gguf", "imatrix.gguf", "mtp-m.gguf")
    snapshot = hugging_face(hub, "org/repo", "m-Q8_0.gguf", *beside)

    assert snapshot / "m-Q8_0.gguf" == locate_model("org/repo")


def test_a_split_model_is_one_with_the_size_of_its_parts(studio, golden):
    parts = [f"m-Q8_0-{n:05}-of-00002.gguf" for n in (1, 2)]
    folder = lm_studio(studio, "a/b", *parts)
    (model,) = stored_models()

    assert sum((folder / part).stat().st_size for part in parts) == model.size_bytes
    assert folder / parts[0] == locate_model("a/b:Q8_0")

    (folder / parts[0]).unlink()
    assert golden == refused_header(locate_model("a/b"))


def refused_header(path):
    with pytest.raises(WeightsUnusable) as caught:
        read_weights_from_headers(path)
    return str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"layers": 3}',
        b"[" * 100_000,
        b'{"layers": []}',
        b'{"layers": [{"mediaType": 7}, 3]}',
    ],
    ids=["empty", "half", "a list", "a number", "deep", "no layers", "odd layers"],
)
def test_a_damaged_manifest_is_told(blobs, content, golden):
    ollama(blobs, f"{LIBRARY}/m/1b").write_bytes(content)

    assert golden == refusal("m:1b")[0]


@pytest.mark.parametrize(
    "layers",
    [
        {"model": "sha256:../../../etc/passwd"},
        {"model": "sha256:" + "a" * 64},
        {"tensor": "sha256:" + "a" * 64},
        {"model": "sha256:" + "a" * 64, "adapter": "sha256:0"},
    ],
    ids=["a path", "a missing file", "tensors", "an adapter"],
)
def test_a_manifest_that_names_no_one_file_is_told(blobs, layers, golden):
    ollama(blobs, f"{LIBRARY}/m/1b", layers=layers)

    assert golden == refusal("m:1b")[0]


def test_a_manifest_of_a_gigabyte_is_not_read(blobs):
    with ollama(blobs, f"{LIBRARY}/m/1b").open("wb") as file:
        file.truncate(1 << 30)

    assert "manifest is damaged" in refusal("m:1b")[0]


def test_a_link_that_leads_out_of_its_store_is_told_with_its_end(
    studio, tmp_path, golden
):
    outside = write_gguf(tmp_path / "outside.gguf")
    folder = lm_studio(studio, "a/b")
    (folder / "m.gguf").symlink_to(outside)

    assert golden == refusal("a/b")[0]


def test_a_store_may_lie_on_another_disk(hub, tmp_path):
    hugging_face(tmp_path / "disk", "org/repo", "m.gguf")
    hub.parent.mkdir(parents=True)
    hub.symlink_to(tmp_path / "disk")

    assert "m.gguf" == locate_model("org/repo").name


def test_links_in_a_ring_and_to_nothing_are_told(studio, golden):
    folder = lm_studio(studio, "a/b")
    (folder / "m.gguf").symlink_to("m.gguf")
    assert "cannot be used" in refusal("a/b")[0]

    (folder / "m.gguf").unlink()
    (folder / "m.gguf").symlink_to("nothing")
    assert golden == refusal("a/b")[0]


def test_a_store_of_somebody_else_is_named_where_nothing_is_found(
    monkeypatch, blobs, golden
):
    real = os.scandir

    def scandir(path):
        if Path(path) == blobs:
            raise PermissionError
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert golden == refusal("m:1b")[1]


# --- what is told of all


def told(progress=lambda _: None):
    return read_and_keep_facts(
        stored_models(),
        lambda _: pytest.fail("no folder"),
        progress,
    )


def test_what_a_quantized_cache_saves_is_told_by_the_header(studio):
    folder = lm_studio(studio, "a/b", "m.gguf")
    (facts,) = told().values()

    assert facts_of(read_weights_from_headers(folder / "m.gguf")) == facts
    # 4 layers, 2 heads of 64 values, K and V: 2 bytes each, and 34 bytes for 32.
    values = 4 * 2 * 64 * 2 * 8192
    assert (8192, values * 2) == (facts.at, facts.cache_bytes)
    assert values * 2 - values * 34 // 32 == facts.saved_bytes
    assert "Q4_K_M" == facts.file_type


def test_a_model_with_caches_of_other_kinds_has_no_number(studio):
    folder = lm_studio(studio, "a/b")
    keys = {**SHAPE, "llama.attention.sliding_window": 512}
    write_gguf(folder / "m.gguf", keys)

    assert [None] == [facts.cache_bytes for facts in told().values()]


def test_what_is_no_model_is_listed_with_the_reason(studio, blobs):
    folder = lm_studio(studio, "a/b", "m.gguf")
    (folder / "vocabulary.gguf").write_bytes(gguf_bytes(tensors=0))
    (folder / "page.gguf").write_text("<html>")
    ollama(blobs, f"{LIBRARY}/m/1b").write_bytes(b"{")

    problems = {model.file or model.name: f.problem for model, f in told().items()}
    assert "" == problems["m.gguf"]
    assert "vocabulary" in problems["vocabulary.gguf"]
    assert "web page" in problems["page.gguf"]
    assert "manifest" in problems["m:1b"]


def test_a_thousand_models_are_read_once(studio, monkeypatch):
    for number in range(50):
        lm_studio(studio, f"p{number}/m", *(f"m-{n}.gguf" for n in range(20)))
    first = told()
    assert 1000 == len(first)
    assert 1000 == len(set(names()))

    with monkeypatch.context() as patch:
        patch.setattr(
            "codeneedle.models.headers.read_weights_from_headers", pytest.fail
        )
        assert first == told()

    changed = next(iter(first))
    changed.path.write_bytes(model_bytes("another, longer name"))
    assert "another" in read_weights_from_headers(changed.path).name
    assert not told()[changed].problem
