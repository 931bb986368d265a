"""Arguments of llama-bench: which it has, and what those of a server mean to it."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

ALL_LAYERS = "999"
"""More than any model has, as the server is told, too."""

NEEDED = (
    *("--output", "--verbose", "--repetitions", "--n-prompt", "--n-gen", "--n-depth"),
    *("--cache-type-k", "--cache-type-v", "--flash-attn", "--n-gpu-layers"),
)
"""Options without which nothing can be measured here."""

OFFLOAD = "--n-gpu-layers"


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


_OFFLOADED = _Meaning(OFFLOAD)
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

_LAYERS = {"all": ALL_LAYERS, "auto": "-1"}
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
    if meaning.name == OFFLOAD:
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
