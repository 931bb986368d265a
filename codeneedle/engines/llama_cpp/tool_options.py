"""
Which of the user's options for llama-server the programs beside it get, by their help;
a program that lacks one which would change what it tells is not used.
"""

import contextlib
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from codeneedle.engines.exit_causes import exit_phrase
from codeneedle.engines.llama_cpp.arguments import (
    ADAPTERS,
    ALL_LAYERS,
    LOADING,
    Argument,
    last_value,
    parse,
)
from codeneedle.engines.llama_cpp.installation import (
    ASK_TIMEOUT_S,
    BENCH,
    FIT_PARAMS,
    PERPLEXITY,
    Program,
    option_names,
)
from codeneedle.errors import MachineError, ToolFailed
from codeneedle.system import processes
from codeneedle.system.files import file_state_text


def _names(*lines: str) -> frozenset[str]:
    return frozenset(name for line in lines for name in line.split())


_SAMPLING = _names(
    "-s --seed --temp --temperature --top-k --top-p --min-p --top-nsigma",
    "--top-n-sigma --xtc-probability --xtc-threshold --typical --typical-p",
    "--repeat-last-n --repeat-penalty --presence-penalty --frequency-penalty",
    "--dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n",
    "--dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-range",
    "--dynatemp-exp --mirostat --mirostat-lr --mirostat-ent",
    "-n --predict --n-predict --keep -e --escape --no-escape --spm-infill",
)
_HTTP = _names(
    "--tags --path --cors-origins --cors-methods --cors-headers --cors-credentials",
    "--no-cors-credentials --ui-config --webui-config --ui-config-file",
    "--webui-config-file --no-ui-mcp-proxy --no-webui-mcp-proxy --ui --webui --no-ui",
    "--no-webui -no-ag --no-agent -to --timeout --sse-ping-interval --threads-http",
    "--metrics --props --media-path --embd-normalize",
)
_SLOTS = _names(
    "--slots --no-slots -sps --slot-prompt-similarity -ctxcp --ctx-checkpoints",
    "--swa-checkpoints -cms --checkpoint-min-step --cache-idle-slots",
    "--no-cache-idle-slots -cb --cont-batching -nocb --no-cont-batching",
    "--cache-prompt --no-cache-prompt --no-context-shift",
    # Of one sequence both are the same.
    "-kvu --kv-unified -no-kvu --no-kv-unified",
)
_TEMPLATES = _names(
    "--chat-template --chat-template-file --chat-template-kwargs --jinja",
    "--reasoning-format --reasoning-effort --reasoning-budget-message",
    "--reasoning-preserve --no-reasoning-preserve --skip-chat-parsing",
    "--no-skip-chat-parsing --prefill-assistant",
)
_PICTURES = _names(
    "-mm --mmproj -mmu --mmproj-url --mmproj-auto --no-mmproj --no-mmproj-auto",
    "--mmproj-offload --no-mmproj-offload -mmdev --mmproj-device --image-min-tokens",
    "--image-max-tokens --mtmd-batch-max-tokens --video-fps",
    "--video-timestamp-interval --video-ffmpeg-dir",
)
_STARTING = _names(
    "--warmup --no-warmup --check-tensors --perf --no-perf --offline --log-colors",
    "--log-prefix --log-timestamps --no-log-timestamps --no-log-jsonl",
    # Without effect where nothing is fitted, and in newer builds.
    "-fitt --fit-target -fitc --fit-ctx -dt --defrag-thold",
)

HARMLESS = _SAMPLING | _HTTP | _SLOTS | _TEMPLATES | _PICTURES | _STARTING
"""
Options of llama-server b11434 that no program beside it is given.

They decide how a reply is chosen, sent or worded, or how a server starts: neither the
cache, nor what is computed of a text that is given.
"""

_SPECULATION = _names(
    "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
    "-hfd -hfrd --hf-repo-draft -td --threads-draft -tbd --threads-batch-draft",
    "-Cd --cpu-mask-draft -Crd --cpu-range-draft --cpu-strict-draft --prio-draft",
    "--poll-draft -Cbd --cpu-mask-batch-draft --cpu-strict-batch-draft",
    "--prio-batch-draft --poll-batch-draft -ctkd --cache-type-k-draft -ctvd",
    "--cache-type-v-draft -otd --override-tensor-draft -cmoed --cpu-moe-draft -ncmoed",
    "--n-cpu-moe-draft --draft-p-split --draft-p-min -devd --device-draft -ngld",
    "--gpu-layers-draft --n-gpu-layers-draft -md --model-draft --draft --draft-n",
    "--draft-max --draft-min --draft-n-min",
)
"""Without those that begin with `_DRAFTS`: what drafts has a cache of its own."""

_DRAFTS = ("--spec-", "--no-spec-")

_ROPE = _names(
    "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx",
    "--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast",
)
"""Other constants of the same kernels: as fast with any of them."""

_HARMLESS_TO: Mapping[str, frozenset[str]] = {
    PERPLEXITY: _SPECULATION,
    # Adapters need weights, which it does not load; they have no cache.
    FIT_PARAMS: _SPECULATION | ADAPTERS,
    BENCH: _ROPE | LOADING | _names("--mlock --mmap"),
}
"""What changes nothing of what one program tells, where it does not take it."""


def is_harmless_option(name: str, tool: str) -> bool:
    """Whether the option *name* of a server changes nothing of what *tool* tells."""
    is_speculation = name.startswith(_DRAFTS) and tool != BENCH
    return name in HARMLESS | _HARMLESS_TO[tool] or is_speculation


HELP_TRIES = 3
"""Calls until a program is one that has no help."""


def list_tool_options(tool: Program) -> frozenset[str]:
    """Option names, short and long, in the help of *tool*; none if it has no help."""
    return option_names(help_text_or_empty(tool))


def help_text_or_empty(tool: Program) -> str:
    """
    What *tool* prints for ``--help``, asked once; empty if it cannot be asked.

    A call that fails is repeated: a busy machine says nothing of a program.
    """
    for _ in range(HELP_TRIES):
        with contextlib.suppress(OSError, MachineError):
            return _cached_help_text(tool, file_state_text(tool.path))
    return ""


@functools.lru_cache(maxsize=16)
def _cached_help_text(tool: Program, _identity: str) -> str:
    """
    What *tool* prints for ``--help``, asked once for each `_identity` of its file.

    Raises:
        MachineError: If it cannot be asked, or prints nothing.
    """
    answer = processes.run_for_output(
        (*tool.command_words, "--help"), timeout_s=ASK_TIMEOUT_S
    )
    told = answer.stdout + answer.stderr
    if answer.returncode < 0 or not told.strip():
        reason = f"--help ended with {exit_phrase(answer.returncode)}"
        raise ToolFailed(tool=tool.name, reason=reason, hint="Build it again.")
    return told


def shared_and_lacking_arguments(
    server_args: Sequence[str], tool: str, options: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """
    What *tool* is given of the arguments for llama-server, and what it lacks.

    Args:
        server_args: As the user gave them.
        tool: Name of a program that reads its command line as llama-server does.
        options: Names of its own options.

    Returns:
        The words for its command line. And the names of options that it would have to
        know, so that it measures what the server runs; empty if it does.
    """
    shared: list[str] = []
    lacking: list[str] = []
    for argument in parse(server_args):
        if argument.name in HARMLESS:
            continue
        # Adapters are left out of what loads no weights even where it knows them.
        is_left_out = tool == FIT_PARAMS and argument.name in ADAPTERS
        if argument.name in options and not is_left_out:
            shared += argument.words
        elif not is_harmless_option(argument.name, tool):
            lacking.append(argument.name or argument.words[0])
    return tuple(shared), tuple(dict.fromkeys(lacking))


def why_not_used(tool: Program, lacking: Collection[str]) -> str:
    """Why *tool* is not used without the options that it is *lacking*; or empty."""
    if not lacking:
        return ""
    if not help_text_or_empty(tool):
        return f"{tool.name} does not say what it takes: its --help fails"
    return (
        f"{tool.name} does not take {' '.join(lacking)}, which the server is given: it "
        "would measure something else"
    )


# --- llama-bench, whose command line is one of its own


BENCH_NEEDED = (
    *("--output", "--verbose", "--repetitions", "--n-prompt", "--n-gen", "--n-depth"),
    *("--cache-type-k", "--cache-type-v", "--flash-attn", "--n-gpu-layers"),
)
"""Options of llama-bench without which nothing can be measured."""

BENCH_OFFLOAD, BENCH_THREADS = "--n-gpu-layers", "--threads"


@dataclass(frozen=True, slots=True)
class _BenchOption:
    """What a server's argument is to llama-bench."""

    name: str  # its long name there
    comma: str = ","
    """
    What stands between the items of a list; llama-bench takes a comma as several tests.
    """

    flag: str | None = None
    """Its value where the server takes none; None for one that always has a value."""


_BENCH_OPTIONS: dict[str, _BenchOption] = {
    name: option
    for names, option in (
        ("-ngl --gpu-layers --n-gpu-layers", _BenchOption(BENCH_OFFLOAD)),
        ("-t --threads", _BenchOption(BENCH_THREADS)),
        ("-C --cpu-mask", _BenchOption("--cpu-mask")),
        ("--cpu-strict", _BenchOption("--cpu-strict")),
        ("--prio", _BenchOption("--prio")),
        ("-sm --split-mode", _BenchOption("--split-mode")),
        ("-mg --main-gpu", _BenchOption("--main-gpu")),
        ("-b --batch-size", _BenchOption("--batch-size")),
        ("-ub --ubatch-size", _BenchOption("--ubatch-size")),
        ("-ncmoe --n-cpu-moe", _BenchOption("--n-cpu-moe")),
        ("-dev --device", _BenchOption("--device", comma="/")),
        ("-ts --tensor-split", _BenchOption("--tensor-split", comma="/")),
        ("-ot --override-tensor", _BenchOption("--override-tensor", comma=";")),
        ("-nkvo --no-kv-offload", _BenchOption("--no-kv-offload", flag="1")),
        ("-kvo --kv-offload", _BenchOption("--no-kv-offload", flag="0")),
        ("--no-op-offload", _BenchOption("--no-op-offload", flag="1")),
        ("--op-offload", _BenchOption("--no-op-offload", flag="0")),
        ("-nr --no-repack", _BenchOption("--repack", flag="0")),
        ("--repack", _BenchOption("--repack", flag="1")),
        ("--no-host", _BenchOption("--no-host", flag="1")),
        ("--rpc", _BenchOption("--rpc")),
        ("--poll", _BenchOption("--poll")),
        ("--numa", _BenchOption("--numa")),
        ("-lm --load-mode", _BenchOption("--load-mode")),
        ("-lzm --lazy-mode", _BenchOption("--lazy-mode")),
    )
    for name in names.split()
}
"""The server's arguments that llama-bench has, maybe in another form."""

_BATCH_THREADS = frozenset(("-tb", "--threads-batch"))

_LAYERS = {"all": ALL_LAYERS, "auto": "-1"}
"""Values that only the server knows."""

_NAMES = re.compile(r"\s{0,8}(-{1,2}[A-Za-z][\w-]*(?:,? -{1,2}[A-Za-z][\w-]*)*)(.*)")
_OPTION = re.compile(r"--[a-z][\w-]*")


def parse_bench_option_names(help_text: str) -> frozenset[str]:
    """Long names of the options in what ``llama-bench --help`` prints."""
    lines = (line for line in help_text.splitlines() if line.lstrip().startswith("-"))
    return frozenset(name for line in lines for name in _OPTION.findall(line))


def parse_bench_help(help_text: str) -> dict[str, _BenchOption]:
    """
    What llama-bench takes by the names in its *help_text*, as a server takes it.

    Of an option that a server takes as a flag, the value is 1 where llama-bench wants
    one.
    """
    forms: dict[str, _BenchOption] = {}
    for line in help_text.splitlines():
        if found := _NAMES.fullmatch(line):
            names = re.split(r",? ", found[1])
            # Empty: it has no value there, either.
            flag = "1" if found[2].lstrip().startswith("<") else ""
            forms |= dict.fromkeys(names, _BenchOption(names[-1], flag=flag))
    return forms


def bench_and_lacking_arguments(
    server_args: Sequence[str], help_text: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """
    What *server_args* are to a llama-bench with this *help_text*, and what it lacks.

    Args:
        server_args: As the user gave them: ``-ngl 20 --device CUDA0,CUDA1``.
        help_text: What its ``--help`` prints.

    Returns:
        Arguments of llama-bench, by long name; the last of a name counts. And those of
        the server that it lacks and that may change a speed, by name, each once.
    """
    passed: dict[str, str] = {}
    lacking: list[str] = []
    forms = _options_by_server_name(help_text)
    for argument in parse(server_args):
        name = argument.name
        if name in HARMLESS | _BATCH_THREADS:
            continue
        option = forms.get(name)
        value = _bench_value(option, argument) if option else None
        if option and value is not None:
            passed[option.name] = value
        elif not is_harmless_option(name, BENCH):
            lacking.append(name or argument.words[0])
    # It has one number of threads, for reading and for writing.
    batch_threads = last_value(server_args, _BATCH_THREADS)
    if batch_threads and passed.get(BENCH_THREADS) != batch_threads:
        lacking.append("--threads-batch")
    return passed, tuple(dict.fromkeys(lacking))


def _options_by_server_name(help_text: str) -> dict[str, _BenchOption]:
    """What a llama-bench has, by the names of the server's arguments."""
    there = parse_bench_option_names(help_text)
    others = {
        k: v for k, v in parse_bench_help(help_text).items() if k not in _BENCH_OPTIONS
    }
    known = {k: v for k, v in _BENCH_OPTIONS.items() if v.name in there}
    return others | known


def _bench_value(option: _BenchOption, argument: Argument) -> str | None:
    """
    The value of *option* that *argument* asks for; None if it has none for it.

    A list has the separator of llama-bench.
    """
    if not argument.values:
        return option.flag
    value, *others = argument.values
    is_list = "," in value and option.comma == "," and option.name not in _LISTS
    if others or is_list or option.name in _FLAGS:
        return None
    if option.name == BENCH_OFFLOAD:
        return _LAYERS.get(value, value)
    return value.replace(",", option.comma)


_FLAGS = frozenset(option.name for option in _BENCH_OPTIONS.values() if option.flag)
_LISTS = frozenset(("--rpc",))
"""Options whose commas llama-bench takes as they are."""
