"""Attention on the CPU: told where arguments keep it there, and moved alone."""

import pytest
from made_servers import fake_llama_cpp

from codeneedle.cache_types import Pair
from codeneedle.engines.llama_cpp.arguments import attention_on_cpu_arguments

F16 = Pair("f16", "f16")


GPU = ("CUDA0 NVIDIA L4 (22563 MiB)",)


@pytest.mark.parametrize(
    "arguments",
    [("-ngl", "0"), ("--no-kv-offload",), ("--n-gpu-layers=0",), ("-dev", "none")],
    ids=" ".join,
)
def test_arguments_that_keep_attention_on_the_cpu_are_told(arguments, golden):
    asked = fake_llama_cpp(devices=GPU, arguments=arguments)

    assert golden == asked.notes()
    assert asked.with_attention_on_cpu(F16) is None


@pytest.mark.parametrize(
    ("devices", "arguments", "is_told"),
    [
        ((), "-ngl 99", True),
        (GPU, "-ngl 99", False),
        ((), "-ngl 0", False),
        ((), "", False),
    ],
    ids=["no accelerator", "one", "no layers", "nothing asked"],
)
def test_layers_for_an_accelerator_that_is_not_there_are_told(
    devices, arguments, is_told, golden
):
    asked = fake_llama_cpp(devices=devices, arguments=tuple(arguments.split()))

    assert is_told == bool(asked.notes())
    assert golden == asked.notes()


def test_attention_is_moved_to_the_cpu_and_nothing_else():
    engine = fake_llama_cpp(devices=GPU, arguments=("-ngl", "20"))
    moved = engine.with_attention_on_cpu(F16)

    assert () == engine.notes()
    assert moved.has_attention_on_cpu
    assert ("-ngl", "20") == moved.model.arguments
    assert fake_llama_cpp().with_attention_on_cpu(F16) is None


def test_attention_on_the_cpu_is_not_flash_attention_which_stays_on_the_device():
    """With flash attention and the cache on the CPU, Vulkan computes the same bits."""
    moved = fake_llama_cpp(devices=GPU).with_attention_on_cpu(F16)

    assert ("--no-kv-offload", "--flash-attn", "off") == attention_on_cpu_arguments(
        moved.model
    )
    assert () == attention_on_cpu_arguments(fake_llama_cpp(devices=GPU).model)


def test_a_quantized_v_cannot_do_without_flash_attention():
    assert (
        fake_llama_cpp(devices=GPU).with_attention_on_cpu(Pair("f16", "q8_0")) is None
    )
    assert fake_llama_cpp(devices=GPU).with_attention_on_cpu(Pair("q8_0", "f16"))
