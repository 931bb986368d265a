"""Which arguments for llama-server llama-perplexity takes too."""

from collections.abc import Iterator, Sequence

_VALUED = frozenset(
    {
        *("-ngl", "--gpu-layers", "--n-gpu-layers", "-t", "--threads"),
        *("-tb", "--threads-batch", "-ub", "--ubatch-size", "-dev", "--device"),
        *("-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"),
        *("-ot", "--override-tensor", "-ncmoe", "--n-cpu-moe", "--numa", "--poll"),
        *("--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale"),
        *("--yarn-orig-ctx", "--yarn-ext-factor", "--yarn-attn-factor"),
        *("--yarn-beta-slow", "--yarn-beta-fast", "--override-kv", "--lora"),
    }
)
_FLAGS = frozenset(
    {
        *("-cmoe", "--cpu-moe", "-nkvo", "--no-kv-offload", "-kvo", "--kv-offload"),
        *("--swa-full", "--mlock", "--no-mmap", "--no-repack", "-nr"),
        *("--no-host", "--no-op-offload"),
    }
)
"""Arguments that both programs take; they say where and how to compute."""


def shared_arguments(
    server_args: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arguments for llama-server that llama-perplexity takes too, and the rest."""
    shared: list[str] = []
    ignored: list[str] = []
    for option in _options(server_args):
        name, equals, _ = option[0].partition("=")
        values = len(option) - 1 + bool(equals)
        is_shared = (name in _VALUED and values == 1) or (
            name in _FLAGS and values == 0
        )
        (shared if is_shared else ignored).extend(option)
    return tuple(shared), tuple(ignored)


def _options(arguments: Sequence[str]) -> Iterator[list[str]]:
    """Each option with the values behind it."""
    option: list[str] = []
    for argument in arguments:
        if _is_name(argument) and option:
            yield option
            option = []
        option.append(argument)
    if option:
        yield option


def _is_name(argument: str) -> bool:
    return argument.startswith("-") and not argument[1:2].isdigit()
