"""
Command-line arguments of llama-server, llama-bench and llama-perplexity, and which ones
users may pass.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from codeneedle.errors import RequestError
from codeneedle.grid import Pair

KIND = "ngram-simple"
"""
How llama.cpp calls it: where the last tokens stand in the text before, those that
follow there are the draft. No second model, no memory, and of greedy sampling the
same tokens, as each is checked.
"""

_PATTERN = "--spec-ngram-simple-size-n"
_DRAFT = "--spec-ngram-simple-size-m"
_NEEDED = frozenset({"--spec-type", _PATTERN, _DRAFT})

_THEIRS = ("--spec-", "--draft", "--model-draft", "-md", "-hfd", "--hf-repo-draft")
"""How arguments begin with which a person chooses a draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """
    Lengths of self-speculation, in tokens.

    Attributes:
        pattern: What must stand in the text already. Short ones draft sooner after a
            slip, and wrongly more often.
        draft: What is drafted and checked at once. Longer ones save more where
            writing is bound by memory, and cost more where an answer is cut: the
            server first ends the check that it is at.
    """

    pattern: int
    draft: int

    @property
    def phrase(self) -> str:
        """For setups and reports."""
        return f"{KIND}, n {self.pattern}, m {self.draft}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """What a server is started with."""
        return (
            *("--spec-type", KIND),
            *(_PATTERN, str(self.pattern)),
            *(_DRAFT, str(self.draft)),
        )


CHOSEN = Speculation(pattern=12, draft=64)
"""
The lengths that a sweep uses.

Of n 8, 12, 16 and m 16 to 128, these were the fastest: 0.66 of the time of a plain
round, the built-in model at q8_0/q8_0 behind 9,021 tokens, llama.cpp b11434, AMD EPYC,
two cores; 0.83 with n 8 and m 16, 0.75 with n 16 and m 128 (`make bench`).
"""


def speculation_for(
    options: frozenset[str], extra: Iterable[str]
) -> Speculation | None:
    """
    How a server with these *options* is to speculate; None if it cannot, or must not.

    Args:
        options: Long options that the binary has.
        extra: A person's arguments for the server; who chooses a draft there has it.
    """
    if not options >= _NEEDED or any(word.startswith(_THEIRS) for word in extra):
        return None
    return CHOSEN


def difference(
    plain: Sequence[object],
    speculated: Sequence[object],
    *,
    of: str,
    unit: str = "token",
) -> str:
    """
    Where two replies part, as a phrase; empty if they are the same.

    Args:
        plain: Tokens or characters as they come without speculation.
        speculated: The same with it.
        of: Name of the needle.
        unit: What they consist of.
    """
    if plain == speculated:
        return ""
    pairs = zip(plain, speculated, strict=False)
    shorter = min(len(plain), len(speculated))
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    return f"{of} is another reply from {unit} {at + 1} on"


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


BENCH_ALL_LAYERS = "999"
"""More than any model has, as the server is told, too."""

NEEDED = (
    *("--output", "--verbose", "--repetitions", "--n-prompt", "--n-gen", "--n-depth"),
    *("--cache-type-k", "--cache-type-v", "--flash-attn", "--n-gpu-layers"),
)
"""Options without which nothing can be measured here."""

BENCH_OFFLOAD = "--n-gpu-layers"


@dataclass(frozen=True, slots=True)
class _Meaning:
    """
    What a server's argument is to llama-bench.

    Attributes:
        name: Its long name there.
        comma: What stands between the items of a list; llama-bench takes a comma
            as several tests.
        is_flag: Whether the server takes no value; llama-bench takes 0 or 1.
    """

    name: str
    comma: str = ","
    is_flag: bool = False


_OFFLOADED = _Meaning(BENCH_OFFLOAD)
_MEANINGS: dict[str, _Meaning] = {
    "-ngl": _OFFLOADED,
    "--gpu-layers": _OFFLOADED,
    "--n-gpu-layers": _OFFLOADED,
    "-t": _Meaning("--threads"),
    "--threads": _Meaning("--threads"),
    "-sm": _Meaning("--split-mode"),
    "--split-mode": _Meaning("--split-mode"),
    "-mg": _Meaning("--main-gpu"),
    "--main-gpu": _Meaning("--main-gpu"),
    "-b": _Meaning("--batch-size"),
    "--batch-size": _Meaning("--batch-size"),
    "-ub": _Meaning("--ubatch-size"),
    "--ubatch-size": _Meaning("--ubatch-size"),
    "-ncmoe": _Meaning("--n-cpu-moe"),
    "--n-cpu-moe": _Meaning("--n-cpu-moe"),
    "-dev": _Meaning("--device", comma="/"),
    "--device": _Meaning("--device", comma="/"),
    "-ts": _Meaning("--tensor-split", comma="/"),
    "--tensor-split": _Meaning("--tensor-split", comma="/"),
    "-ot": _Meaning("--override-tensor", comma=";"),
    "--override-tensor": _Meaning("--override-tensor", comma=";"),
    "-nkvo": _Meaning("--no-kv-offload", is_flag=True),
    "--no-kv-offload": _Meaning("--no-kv-offload", is_flag=True),
    "--poll": _Meaning("--poll"),
    "--numa": _Meaning("--numa"),
}
"""The server's arguments that matter for speed, long and short."""

_LAYERS = {"all": BENCH_ALL_LAYERS, "auto": "-1"}
"""Words that only the server knows."""

_OPTION = re.compile(r"--[a-z][\w-]*")
_NUMBER = re.compile(r"-\d[\d.]*")


@dataclass(frozen=True, slots=True)
class Translated:
    """
    A server's arguments, for llama-bench.

    Attributes:
        passed: Arguments of llama-bench, by long name; the last of a name counts.
        ignored: The server's arguments that it has no like of, with their values.
    """

    passed: dict[str, str]
    ignored: tuple[str, ...]


def options_in(help_text: str) -> frozenset[str]:
    """Long names of the options in what ``llama-bench --help`` prints."""
    lines = (line for line in help_text.splitlines() if line.lstrip().startswith("-"))
    return frozenset(name for line in lines for name in _OPTION.findall(line))


def translated(server_args: Sequence[str], options: Collection[str]) -> Translated:
    """
    What *server_args* mean to a llama-bench that has *options*.

    Args:
        server_args: As a person gave them: ``-ngl 20``, ``--device=CUDA0,CUDA1``.
        options: Long names of its options.
    """
    passed: dict[str, str] = {}
    ignored: list[str] = []
    for name, values in _arguments(server_args):
        meaning = _MEANINGS.get(name)
        is_complete = meaning and meaning.is_flag == (not values)
        if meaning is None or meaning.name not in options or not is_complete:
            ignored += (name, *values)
        elif meaning.is_flag:
            passed[meaning.name] = "1"
        else:
            passed[meaning.name] = _value(meaning, values[0])
            ignored += values[1:]
    return Translated(passed, tuple(filter(None, ignored)))


def _value(meaning: _Meaning, value: str) -> str:
    if meaning.name == BENCH_OFFLOAD:
        return _LAYERS.get(value, value)
    return value.replace(",", meaning.comma)


def _arguments(server_args: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each argument with the values that follow it; names as llama.cpp reads them."""
    name, values = "", list[str]()
    for argument in server_args:
        if not argument.startswith("-") or _NUMBER.fullmatch(argument):
            values.append(argument)
            continue
        if name or values:
            yield name, values
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        values = [value] if equals else []
    if name or values:
        yield name, values


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
