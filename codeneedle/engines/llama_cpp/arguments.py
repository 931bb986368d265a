"""
The command line of llama-server: which arguments behind ``--`` are refused, which are
ours (layers, threads, waiting), and the commands that repeat a comparison by hand. What
the user's further ones are to other programs, `tool_options` knows.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import HOST, ModelSpec
from codeneedle.engines.llama_cpp.installation import Program
from codeneedle.errors import BadInput
from codeneedle.models.weights import present_model_parts
from codeneedle.system.contents import existing_files_in_words
from codeneedle.system.inherited_variables import UNROTATED
from codeneedle.system.machine import measure_busy_cores, usable_cores

ALL_LAYERS = "999"
"""
More layers than any model has.

Always stated: llama.cpp fits an unset number to the free memory, which differs from
pair to pair.
"""

LAZY_VARIABLE = "LLAMA_KV_CACHE_LAZY_QUANT"
"""If set, llama.cpp #28267 keeps f16 until a cache of q8_0 is half full."""

OFFLOAD = frozenset({"-ngl", "--gpu-layers", "--n-gpu-layers"})
DEVICE = frozenset({"-dev", "--device"})
LOADING = frozenset({"-lm", "--load-mode", "--no-mmap"})
ADAPTERS = frozenset(
    (
        *("--lora", "--lora-scaled", "--lora-init-without-apply", "--control-vector"),
        *("--control-vector-scaled", "--control-vector-layer-range"),
    )
)
KV_ON_HOST = frozenset({"-nkvo", "--no-kv-offload"})
SPLITTING = frozenset(
    (
        *("-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"),
        *("-sm", "--split-mode", "-ts", "--tensor-split", *KV_ON_HOST),
    )
)
"""What splits the graph of every pair, whatever kernels there are."""
_STRETCHING = ("--rope-", "--yarn-", "--override-kv")
"""Prefixes of arguments that extend the context."""

_SIZED_NUMBER = re.compile(r"-\.?\d")


@dataclass(frozen=True, slots=True)
class Argument:
    """One of the user's further arguments."""

    name: str
    """
    As llama.cpp reads it: underscores in long names are dashes; empty for words in
    front of the first name.
    """

    values: tuple[str, ...]
    """The words after it, up to the next name; or what follows ``=``."""

    words: tuple[str, ...]  # name and values as the user wrote them


def cache_flags(pair: Pair) -> str:
    """What a user adds to a llama-server for *pair*: ``-ctk q8_0 -ctv q4_0``."""
    return f"-ctk {pair.k} -ctv {pair.v}"


def parse(words: Iterable[str]) -> list[Argument]:
    """
    *words* by argument. A word that begins with a dash and is no number is a name.

    Which arguments take a value differs from build to build, so all words up to the
    next name count as values.
    """
    groups: list[list[str]] = []
    for word in words:
        if groups and not _is_option_name(word):
            groups[-1].append(word)
        else:
            groups.append([word])
    return [_argument_from_words(group) for group in groups]


def _is_option_name(word: str) -> bool:
    return word.startswith("-") and not _SIZED_NUMBER.match(word)


def _argument_from_words(words: Sequence[str]) -> Argument:
    """One argument of *words*: an option with its values, or values without a name."""
    if not _is_option_name(words[0]):
        return Argument("", tuple(words), tuple(words))
    name, equals, value = words[0].partition("=")
    if name.startswith("--"):
        name = name.replace("_", "-")
    values = (*((value,) if equals else ()), *words[1:])
    return Argument(name, values, tuple(words))


def has_argument(words: Iterable[str], names: Collection[str]) -> bool:
    """Whether one of the arguments in *words* is called one of *names*."""
    return any(argument.name in names for argument in parse(words))


def keeps_cache_on_host(words: Iterable[str]) -> bool:
    """
    Whether *words* keep the cache on the CPU, with attention there or on copies.

    The last number of layers, and the last device, count.
    """
    words = tuple(words)
    layers = [
        argument.values[-1:] for argument in parse(words) if argument.name in OFFLOAD
    ]
    devices = [
        argument.values[-1:] for argument in parse(words) if argument.name in DEVICE
    ]
    is_off = layers[-1:] == [("0",)] or devices[-1:] == [("none",)]
    return is_off or has_argument(words, KV_ON_HOST)


def attention_on_cpu_arguments(model: ModelSpec) -> tuple[str, ...]:
    """
    What puts cache and attention of *model* on the CPU, if they are to be there.

    Flash attention runs on the accelerator all the same, on a copy of the cache: only
    without it does llama.cpp bind attention to the CPU (``src/llama-graph.cpp``). On
    Vulkan all numbers were the same to the last digit as with the cache on the device.
    """
    away = ("--no-kv-offload", "--flash-attn", "off")
    return away if model.attention_on_cpu else ()


def files_in(words: Iterable[str]) -> Iterator[Path]:
    """The files that *words* name; of weights in parts each part."""
    for path in existing_files_in_words(words):
        yield from present_model_parts(path) if path.suffix == ".gguf" else (path,)


def stretches_context(words: Iterable[str]) -> bool:
    """Whether *words* extend the context beyond what the weights were trained for."""
    return any(argument.name.startswith(_STRETCHING) for argument in parse(words))


def without_offload(words: Iterable[str]) -> tuple[str, ...]:
    """*words* without options for layers and device; for a server that only counts."""
    return without_arguments(words, OFFLOAD | DEVICE)


def without_arguments(words: Iterable[str], names: Collection[str]) -> tuple[str, ...]:
    """*words* without the arguments that are called one of *names*."""
    kept = (argument for argument in parse(words) if argument.name not in names)
    return tuple(word for argument in kept for word in argument.words)


def last_value(words: Iterable[str], names: Collection[str]) -> str:
    """The last value of the arguments that are called one of *names*; empty if none."""
    given = [
        argument.values[-1]
        for argument in parse(words)
        if argument.name in names
        if argument.values
    ]
    return given[-1] if given else ""


_CACHE_TYPES = "Choose cache types with --types, --k-types and --v-types."
_WEIGHTS = "Choose a downloaded file with --model before the '--'."
_CONTEXT = "Choose the context with --context before the '--'."
_LIFE = "codeneedle chooses it for each server; 'serve' takes --port before the '--'."
_LOG = "codeneedle reads the log, and therefore sets what is in it."
_ANSWERS = "It changes the answers, whatever the cache types are; leave it out."
_THINKING = "codeneedle switches thinking off; see --prefill-no-think."
_TASK = "codeneedle needs a server that completes text."
_CODE = "It lets the model run programs; leave it out."
_ENDS = "It makes llama-server print something and exit; run it without codeneedle."

_REFUSED: tuple[tuple[str, str], ...] = (
    ("-ctk --cache-type-k -ctv --cache-type-v", _CACHE_TYPES),
    ("-m --model -mu --model-url -dr --docker-repo -hf -hfr --hf-repo", _WEIGHTS),
    ("-hff --hf-file --models-dir --models-preset --models-max", _WEIGHTS),
    ("-hft --hf-token", "Records would hold it; fetch the file beforehand."),
    ("--models-autoload --no-models-autoload", _WEIGHTS),
    ("--embd-gemma-default --gpt-oss-20b-default --gpt-oss-120b-default", _WEIGHTS),
    ("--fim-qwen-1.5b-default --fim-qwen-3b-default", _WEIGHTS),
    ("--fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec", _WEIGHTS),
    ("--fim-qwen-30b-default", _WEIGHTS),
    ("--vision-gemma-4b-default --vision-gemma-12b-default", _WEIGHTS),
    ("-c --ctx-size --kv-unified-per-slot", _CONTEXT),
    ("-np --parallel", "One slot has the whole context; more would share it."),
    ("-fa --flash-attn", "It is always on: a quantized V cache needs it."),
    ("-fit --fit", "It would give each pair another number of layers."),
    ("--context-shift", "It would drop the corpus when the context is full."),
    ("--cache-reuse", "It would move cached values to other places of a prompt."),
    ("-cram --cache-ram", "It would keep old prompts in memory, beside the cache."),
    ("--slot-save-path", "--probe reuse saves the cache, in a folder of its own."),
    ("--host --port --reuse-port -a --alias --api-prefix", _LIFE),
    ("--api-key --api-key-file --ssl-key-file --ssl-cert-file", _LIFE),
    ("--sleep-idle-seconds", _LIFE),
    ("-lv --verbosity --log-verbosity -v --verbose --log-verbose", _LOG),
    ("--log-disable --log-file --log-jsonl --no-log-prefix", _LOG),
    ("--log-prompts-dir", "It would write down what is asked; leave it out."),
    ("--grammar --grammar-file -j --json-schema -jf --json-schema-file", _ANSWERS),
    ("-l --logit-bias --ignore-eos --samplers --sampler-seq", _ANSWERS),
    ("--sampling-seq -r --reverse-prompt -sp --special", _ANSWERS),
    ("-bs --backend-sampling --spec-synth-len --spec-synth-rates", _ANSWERS),
    ("--no-jinja", "codeneedle needs the model's own chat template."),
    ("--no-prefill-assistant", "--prefill-no-think needs it."),
    ("--reasoning-budget -rea --reasoning", _THINKING),
    ("--embedding --embeddings --rerank --reranking --pooling", _TASK),
    ("-ag --agent --tools --tools-runtime", _CODE),
    ("--mcp-servers-config --mcp-servers-json", _CODE),
    ("--ui-mcp-proxy --webui-mcp-proxy", _CODE),
    ("-h --help --usage --version -cl --cache-list --list-devices", _ENDS),
    ("--completion-bash --license", _ENDS),
)
"""
Arguments that would break the experiment, and what to do instead.

All arguments of llama-server b11434 were looked at. Those that are not listed are
allowed, and are part of the setup: they change where and how it computes (offload,
threads, batches, RoPE, SWA, drafts), which model it is (LoRA, overrides, templates), or
nothing (each request states how to sample).
"""

REFUSED: Mapping[str, str] = {
    name: hint for names, hint in _REFUSED for name in names.split()
}


def refuse_reserved(words: Iterable[str]) -> None:
    """
    Stop at an argument for llama-server that would break the experiment.

    Raises:
        BadInput: Naming it, and what to do instead.
    """
    for argument in parse(words):
        hint = REFUSED.get(argument.name)
        if hint is not None:
            raise BadInput(
                source=argument.words[0],
                reason="this argument cannot be passed to llama-server",
                hint=hint,
            )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a server is started with."""

    binary: Program  # llama-server
    model: ModelSpec  # what it serves, how, and on what
    alias: str  # what the server is called; `serving` makes it unique
    context: int  # size of the context of its one slot, in tokens
    pair: Pair | None  # cache types; None for a server that only tokenizes and renders
    extra: tuple[str, ...] = ()
    """The user's further arguments. They come last, and win."""

    options: frozenset[str] = frozenset()  # long options that the binary has
    slots: Path | None = None  # folder in which it may save its cache; None for none
    is_passive: bool = False  # whether its threads sleep while they wait for each other
    port: int | None = None  # port that it listens on; None for a free one
    key: str = field(default="", repr=False)
    """Key that it asks for; empty for a random one."""


def server_command(launch: Launch, *, port: int) -> list[str]:
    """The argv that serves *launch*. Pure, so that a test can read it; no secrets."""
    return [
        *launch.binary.command_words,
        *("--model", str(launch.model.weights.path)),
        *("--alias", launch.alias),
        *("--host", HOST),
        *("--port", str(port)),
        *("--ctx-size", str(launch.context)),
        *("--parallel", "1"),
        *_cache_arguments(launch),
        *_offload_arguments(launch),
        *thread_arguments(launch.model, launch.options),
        *_optional_arguments(launch),
        *_saving_arguments(launch),
        *launch.extra,
    ]


VISIBLE_DEVICES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GGML_VK_VISIBLE_DEVICES",
)
"""Variables by which CUDA, ROCm and llama.cpp's Vulkan backend leave out devices."""


WAIT_POLICY = "OMP_WAIT_POLICY"

BUSY_CORES = 0.5
"""Cores that other programs use from which threads sleep while they wait."""


def threads_should_sleep(model: ModelSpec) -> bool:
    """
    Whether threads that compute with *model* now had better sleep while they wait.

    It may measure for 0.2 s what other programs use.

    A thread that spins takes the core of the one that it waits for. SmolLM2 writing
    with two threads on two cores, q8_0/q4_0, in pairs, in tokens per second: spinning
    77 and asleep 29 on an idle machine; 18 to 22 and 36 beside one busy process; 0.8
    to 8.4 and 21 to 31 at loads of 5 to 7. Reading is the same either way (183 and
    182, idle). Where the user has chosen, that holds.
    """
    if WAIT_POLICY in os.environ:
        return os.environ[WAIT_POLICY].lower() == "passive"
    # Of a model this small, a thread waits more than it computes. Workers that share
    # the cores leave each other their own.
    return model.is_tiny or (
        model.threads is None and measure_busy_cores() >= BUSY_CORES
    )


def wait_policy_label(is_passive: bool) -> str:
    """How threads wait for each other, as records say it."""
    return "passive" if is_passive else "active"


def environment_for_model(model: ModelSpec, *, is_passive: bool) -> dict[str, str]:
    """Environment variables of each program of llama.cpp that computes with *model*."""
    # Builds without OpenMP have --poll.
    chosen = {WAIT_POLICY: "passive"} if is_passive else {}
    if not model.rotation:
        chosen |= UNROTATED
    device = model.device
    return chosen | (dict.fromkeys(VISIBLE_DEVICES, device) if device else {})


def thread_arguments(model: ModelSpec, options: Collection[str]) -> Iterator[str]:
    """The threads of a server, or of llama-perplexity, that has these *options*."""
    if model.is_tiny or model.threads:
        # Of a model this small, a second thread waits more than it computes.
        yield from ("--threads", str(1 if model.is_tiny else model.threads))
        yield from ("--threads-batch", str(model.threads or usable_cores()))
    if model.is_tiny and "--poll" in options:
        yield from ("--poll", "0")


def asks_for_all_layers(launch: Launch) -> bool:
    """Whether each layer is to be on the accelerator: the user chose no number."""
    return launch.pair is not None and not has_argument(launch.extra, OFFLOAD)


def _cache_arguments(launch: Launch) -> Iterator[str]:
    """Cache types, with flash attention; nothing for a server that only tokenizes."""
    pair = launch.pair
    if pair is not None:
        yield from ("--flash-attn", "on")
        yield from ("--cache-type-k", pair.k, "--cache-type-v", pair.v)


def _offload_arguments(launch: Launch) -> Iterator[str]:
    """Layers on the accelerator, unless the user chose them: all; 0 to tokenize."""
    if not has_argument(launch.extra, OFFLOAD):
        layers = "0" if launch.pair is None else ALL_LAYERS
        yield from ("--n-gpu-layers", layers)


SLOT_FOLDER = "--slot-save-path"


def can_save_cache(launch: Launch) -> bool:
    """Whether the server can save its cache: it was lent a folder and knows that."""
    return launch.slots is not None and SLOT_FOLDER in launch.options


def _saving_arguments(launch: Launch) -> Iterator[str]:
    """The folder in which it may save its cache, if it can."""
    if can_save_cache(launch):
        yield from (SLOT_FOLDER, str(launch.slots))


def _optional_arguments(launch: Launch) -> Iterator[str]:
    """Those of `OPTIONAL` that the binary has; to tokenize, `FOR_COUNTING`, too."""
    wanted = OPTIONAL if launch.pair else (*OPTIONAL, *FOR_COUNTING)
    for option in wanted:
        if option[0] in launch.options:
            yield from option


BASE, TEXT = "base.kld", "text.txt"
"""Files of the commands that repeat a comparison without codeneedle."""

_BASE, _COMPARES = "--kl-divergence-base", "--kl-divergence"


def base_file_command(command: Sequence[str], chunks: int) -> list[str]:
    """
    What writes the base file of a comparison.

    Args:
        command: What read the text with the reference, as a record has it.
        chunks: Chunks of text.
    """
    return [
        *_replace_base_and_drop_text(command),
        "--file",
        TEXT,
        "--chunks",
        str(chunks),
    ]


def text_file_in(command: Sequence[str]) -> str:
    """The file of the text that *command* reads; empty if it names none."""
    return last_value(command, {"--file"})


def comparison_command(command: Sequence[str]) -> list[str]:
    """
    What compares with the base file the pair that *command* of a record read.

    That of another engine, which has no base file of llama.cpp, as it is.
    """
    if _BASE not in command:
        return list(command)
    return [*_replace_base_and_drop_text(command), _COMPARES]


def _replace_base_and_drop_text(command: Sequence[str]) -> list[str]:
    """*command* without text, chunks and `_COMPARES`, its base file being `BASE`."""
    words = list(without_arguments(command, {"--file", "--chunks", _COMPARES}))
    if _BASE in words[:-1]:
        words[words.index(_BASE) + 1] = BASE
    return words


def cuda_kernels_option(pairs: Iterable[Pair]) -> str:
    """The option of a CUDA build that has kernels for *pairs*: llama.cpp #28079."""
    return f'-DGGML_CUDA_FA_QUANTS="{";".join(f"{p.k}-{p.v}" for p in pairs)}"'
