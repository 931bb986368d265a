"""The environment of children."""

import pytest

from codeneedle.system.environment import inherited


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
