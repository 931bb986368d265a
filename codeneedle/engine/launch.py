"""The arguments of a llama-server, and those that a person may not give it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from codeneedle.errors import RequestError
from codeneedle.grid import Pair
from codeneedle.speculation import Speculation

HOST = "127.0.0.1"

ALL_LAYERS = "999"
"""More than any model has. Stated, because what is left open is fitted to the memory
that is free, and that differs from pair to pair."""

ROTATION_VARIABLE = "LLAMA_ATTN_ROT_DISABLE"
"""Set to 1, llama.cpp leaves out the Hadamard rotation of quantized K and V."""

OPTIONAL: tuple[tuple[str, ...], ...] = (
    ("--verbosity", "4"),  # below, the log names no cache types
    ("--fit", "off"),  # fits unset arguments to free memory, pair by pair
    ("--cache-ram", "0"),  # keeps old prompts in gigabytes of memory
    ("--no-context-shift",),  # forgets the corpus when the context is full
    ("--jinja",),  # renders the model's own template
    ("--no-webui",),
    ("--offline",),
)
"""Arguments for those binaries that have them."""

FOR_COUNTING: tuple[tuple[str, ...], ...] = (
    ("--device", "none"),
    ("--no-warmup",),
    ("--no-repack",),
)
"""Further ones for a server that only tokenizes."""

_TYPES = "Choose cache types with --types, --k-types and --v-types."
_OURS = "codeneedle chooses it for each server."
_LOG = "codeneedle reads the log, and so decides what is in it."

RESERVED: dict[str, str] = {
    **dict.fromkeys(("-ctk", "--cache-type-k", "-ctv", "--cache-type-v"), _TYPES),
    **dict.fromkeys(("-m", "--model"), "Choose weights with --model before the '--'."),
    **dict.fromkeys(
        ("-mu", "--model-url", "-dr", "--docker-repo", "-hf", "-hfr", "--hf-repo"),
        "Download the weights, then name the file with --model before the '--'.",
    ),
    **dict.fromkeys(
        ("-c", "--ctx-size"), "Choose the context with --context before the '--'."
    ),
    **dict.fromkeys(
        ("-np", "--parallel"), "One slot has the whole context; more would share it."
    ),
    **dict.fromkeys(
        ("-fa", "--flash-attn"), "It is always on: a quantized V cache needs it."
    ),
    **dict.fromkeys(("-fit", "--fit"), "It would give each pair another offload."),
    **dict.fromkeys(
        ("--host", "--port", "--reuse-port", "-a", "--alias", "--api-prefix"), _OURS
    ),
    **dict.fromkeys(
        ("--api-key", "--api-key-file", "--ssl-key-file", "--ssl-cert-file"), _OURS
    ),
    **dict.fromkeys(
        ("-lv", "--verbosity", "--log-verbosity", "-v", "--verbose", "--log-verbose"),
        _LOG,
    ),
    **dict.fromkeys(
        ("--log-disable", "--log-file", "--log-jsonl", "--no-log-prefix"), _LOG
    ),
}
"""Arguments that would break the experiment, with what to do instead."""

OFFLOAD = frozenset({"-ngl", "--gpu-layers", "--n-gpu-layers"})
"""Names of the one argument that is ours unless a person gives it."""


class ReservedArgument(RequestError):  # noqa: N818 - named after the fact
    """An argument for llama-server that would break the experiment."""

    def __init__(self, *, argument: str, hint: str) -> None:
        super().__init__(f"{argument} cannot be handed to llama-server", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """
    What a server is started with.

    Attributes:
        binary: llama-server.
        weights: The model's file; the first one where it is split.
        alias: What the server is called; `serving` makes it unique.
        context: Size of the context of its one slot, in tokens.
        pair: Cache types; None for a server that only tokenizes and renders.
        extra: A person's further arguments. They come last, and win.
        options: Long options that the binary has.
        threads: Threads that write tokens; None for the binary's own choice. A
            model of a few MB is fastest with one.
        batch_threads: Threads that read prompts; None for as many as write.
        sleeps: Whether threads that wait sleep instead of spinning. Slower where
            all cores are free, and many times faster where they are not.
        rotation: Whether quantized values are rotated, where that is possible.
        flash_attention: ``on``; ``auto`` has the server say whether it could be.
        speculation: How the text drafts its own continuation; None for not at all.
    """

    binary: Path
    weights: Path
    alias: str
    context: int
    pair: Pair | None
    extra: tuple[str, ...] = ()
    options: frozenset[str] = frozenset()
    threads: int | None = None
    batch_threads: int | None = None
    sleeps: bool = False
    rotation: bool = True
    flash_attention: str = "on"
    speculation: Speculation | None = None


def command(launch: Launch, *, port: int) -> list[str]:
    """The argv that serves *launch*. Pure, so that a test can read it; no secrets."""
    return [
        str(launch.binary),
        *("--model", str(launch.weights)),
        *("--alias", launch.alias),
        *("--host", HOST),
        *("--port", str(port)),
        *("--ctx-size", str(launch.context)),
        *("--parallel", "1"),
        *_cache(launch),
        *_offload(launch),
        *_threads(launch),
        *_optional(launch),
        *(launch.speculation.arguments if launch.speculation else ()),
        *launch.extra,
    ]


def variables(launch: Launch, *, api_key: str) -> dict[str, str]:
    """Environment variables of the server, beside those that it may inherit."""
    # OpenMP's own word for it; builds without OpenMP have --poll.
    waiting = {"OMP_WAIT_POLICY": "passive"} if launch.sleeps else {}
    rotation = {} if launch.rotation else {ROTATION_VARIABLE: "1"}
    return {"LLAMA_API_KEY": api_key, **waiting, **rotation}


def refuse_reserved(extra: Sequence[str]) -> None:
    """
    Stop at an argument for llama-server that would break the experiment.

    Raises:
        ReservedArgument: Naming it, and what to do instead.
    """
    for argument in extra:
        name = _name(argument)
        if name in RESERVED:
            raise ReservedArgument(argument=argument, hint=RESERVED[name])


def without_offload(extra: Sequence[str]) -> tuple[str, ...]:
    """*extra* for a server that only tokenizes: nothing goes to the accelerator."""
    kept: list[str] = []
    skip = False
    for argument in extra:
        if _name(argument) in OFFLOAD:
            skip = "=" not in argument
        elif skip:
            skip = False
        else:
            kept.append(argument)
    return tuple(kept)


def _name(argument: str) -> str:
    """As llama.cpp reads it: underscores are dashes in long names."""
    name = argument.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def _cache(launch: Launch) -> Iterator[str]:
    pair = launch.pair
    if pair is not None:
        yield from ("--flash-attn", launch.flash_attention)
        yield from ("--cache-type-k", pair.k, "--cache-type-v", pair.v)


def asks_for_all_layers(launch: Launch) -> bool:
    """Whether each layer is to be on the accelerator: no person chose a number."""
    return launch.pair is not None and not _chooses_layers(launch)


def _chooses_layers(launch: Launch) -> bool:
    return bool(OFFLOAD & {_name(argument) for argument in launch.extra})


def _offload(launch: Launch) -> Iterator[str]:
    if not _chooses_layers(launch):
        layers = "0" if launch.pair is None else ALL_LAYERS
        yield from ("--n-gpu-layers", layers)


def _threads(launch: Launch) -> Iterator[str]:
    if launch.threads is not None:
        yield from ("--threads", str(launch.threads))
    if launch.batch_threads is not None:
        yield from ("--threads-batch", str(launch.batch_threads))
    if launch.sleeps and "--poll" in launch.options:
        yield from ("--poll", "0")


def _optional(launch: Launch) -> Iterator[str]:
    wanted = OPTIONAL if launch.pair else (*OPTIONAL, *FOR_COUNTING)
    for option in wanted:
        if option[0] in launch.options:
            yield from option
