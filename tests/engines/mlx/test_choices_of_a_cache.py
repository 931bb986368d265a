"""What a user may choose of the engine, without MLX."""

import sys
from importlib import metadata

import pytest
from msgspec import ValidationError, convert

from codeneedle.engines.mlx.engine import devices
from codeneedle.engines.mlx.settings import MlxSettings, has_predictable_cache_size


@pytest.mark.parametrize(
    ("chosen", "groups"), [((64,), (64, 64)), ((64, 32), (64, 32))]
)
def test_one_group_size_stands_for_k_and_v(chosen, groups):
    assert groups == MlxSettings(group_size=chosen).group_sizes


def test_a_bound_has_room_for_what_is_kept_and_for_some_that_rotate():
    assert 8 == convert({"max_kv_size": 8}, type=MlxSettings).max_kv_size
    with pytest.raises(ValidationError):
        convert({"max_kv_size": 7}, type=MlxSettings)


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (("--kv-group-size 64", "--quantized-kv-start 0"), True),
        ((), True),
        (("--kv-group-size 32",), False),
        (("--kv-group-size 64,32",), False),
        (("--max-kv-size 128",), False),
    ],
)
def test_memory_is_predicted_for_usual_groups_without_a_bound(arguments, known):
    assert known is has_predictable_cache_size(arguments)


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ({"mlx-cuda-12"}, ("CUDA",)),
        ({"mlx-cuda-13"}, ("CUDA",)),
        ({"mlx-cpu"}, ()),
        (set(), ()),
    ],
)
@pytest.mark.skipif(sys.platform == "darwin", reason="there it is Metal")
def test_cuda_is_known_by_either_of_its_packages(installed, expected, monkeypatch):
    def version(package):
        if package not in installed:
            raise metadata.PackageNotFoundError
        return "0.32.4"

    monkeypatch.setattr(metadata, "version", version)

    assert expected == devices()
