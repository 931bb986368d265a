"""The environment of children."""

import pytest

from codeneedle.system.environment import inherited, secret_in


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        *((name, True) for name in ("PATH", "HOME", "LC_ALL")),
        *((name, True) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")),
        *((name, False) for name in ("LLAMA_ARG_CTX_SIZE", "LLAMA_API_KEY")),
        *((name, False) for name in ("HF_TOKEN", "HTTP_PROXY", "LD_PRELOAD")),
        *((name, False) for name in ("VK_ACCESS_TOKEN", "CUDA_API_KEY", "MKL_SECRET")),
    ],
)
def test_places_languages_and_devices_are_inherited_and_nothing_else(
    monkeypatch, name, is_kept
):
    monkeypatch.setenv(name, "x")

    assert is_kept is (name in inherited())


@pytest.mark.parametrize(
    "text",
    [
        "--password=autobahn",
        "--token nullbyte",
        "--password=-x",
        "--token=$ecret",
        "--token 12345678",
        "HF_TOKEN=12345678",
        "--api-key=none-of-yours",
        "--token=trueblue",
    ],
)
def test_a_secret_is_found_however_its_value_begins(text):
    assert secret_in(f"serve {text} --port 1") != ""


@pytest.mark.parametrize(
    "text",
    [
        "--max-tokens 8192",
        "--n-token=512",
        "--api-key $API_KEY",
        "--api-key=${key}",
        "--password --other",
        "--override-kv tokenizer.ggml.add_bos_token=bool:false",
        '{"add_token": null}',
    ],
)
def test_counts_variables_and_words_are_no_secrets(text):
    assert secret_in(f"serve {text} --port 1") == ""


@pytest.mark.parametrize("unit", ["a=", "a ", "a:", "-", "x://", " ", "token=none "])
def test_a_long_command_is_searched_in_linear_time(unit):
    """One in quadratic time would take an hour."""
    assert secret_in(unit * (1_000_000 // len(unit))) == ""
