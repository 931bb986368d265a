"""What a child may inherit."""

import pytest

from codeneedle.system.processes import clean


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "LC_ALL", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"]
)
def test_places_languages_and_devices_are_inherited(name):
    """
    A server finds its libraries, its devices and its threads as in a shell.
    """
    assert {name: "x"} == clean({name: "x"})


@pytest.mark.parametrize(
    "name",
    ["LLAMA_ARG_CTX_SIZE", "LLAMA_API_KEY", "HF_TOKEN", "HTTP_PROXY", "LD_PRELOAD"],
)
def test_everything_else_is_not(name):
    """
    Neither arguments that no cell chose, nor secrets, nor what nobody thought of.
    """
    assert {} == clean({name: "x"})


@pytest.mark.parametrize("name", ["VK_ACCESS_TOKEN", "CUDA_API_KEY", "MKL_SECRET"])
def test_a_secret_is_not_inherited_whatever_its_name_begins_with(name):
    """
    Prefixes are generous; words that name secrets are not.
    """
    assert {} == clean({name: "x"})


def test_a_child_may_need_one_more():
    """
    Compilers are told by their own variables, for example.
    """
    assert {"CC": "gcc"} == clean({"CC": "gcc", "CXX": "g++"}, also=["CC"])
