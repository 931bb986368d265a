"""Sweep files: what a person may write into ``sweeps/NAME.toml``."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec

from codeneedle.errors import RequestError, UnknownName, did_you_mean
from codeneedle.files import expanded
from codeneedle.grid import by_precision
from codeneedle.prompts import PromptForm
from codeneedle.request import Variant
from codeneedle.shelf import NAME

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Context = Annotated[int, msgspec.Meta(ge=256)]
_Types = tuple[str, ...]


class BadSweepFile(RequestError):  # noqa: N818 - named after the fact
    """The sweep file can be mended, and the command be run again."""

    def __init__(self, *, file: str, reason: str, hint: str) -> None:
        super().__init__(f"{file}: {reason}", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The table ``[divergence]``: see `request.Request`."""

    contexts: tuple[_Context, ...] = ()
    chunks: _Positive | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The table ``[throughput]``: see `request.Request`."""

    depths: tuple[_Natural, ...] = ()
    repetitions: _Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFile:
    """
    A sweep file, checked for its form. Every key may be left out.

    Attributes:
        corpus: Name or path of the text.
        models: Paths of weights, relative to where the command is run.
        types: Cache types of both axes.
        k_types: Types of K alone.
        v_types: Types of V alone.
        probes: What measures.
        contexts: Context sizes, in tokens.
        rotation: ``["on", "off"]`` tries both.
        server_args: Arguments of all pages.
        variants: Arguments by name, each a page.
        prompt_form: How needles are asked for.
        prefill_no_think: Whether to begin answers with an empty thought.
        skip_fallback: Whether a cell that falls back ends before it is measured.
        speculate: Whether the text may draft its own recall.
        fit: Whether a corpus that is too long is trimmed.
        seed: Of sampling and order.
        divergence: Settings of that probe.
        throughput: Settings of that probe.
    """

    corpus: str | None = None
    models: tuple[str, ...] = ()
    types: _Types = ()
    k_types: _Types = ()
    v_types: _Types = ()
    probes: tuple[str, ...] = ()
    contexts: tuple[_Context, ...] = ()
    rotation: tuple[str, ...] = ()
    server_args: tuple[str, ...] = ()
    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)
    prompt_form: PromptForm | None = None
    prefill_no_think: bool = False
    skip_fallback: bool = False
    speculate: bool = True
    fit: bool = True
    seed: int = 42
    divergence: Divergence = field(default_factory=Divergence)
    throughput: Throughput = field(default_factory=Throughput)


def read_sweep_file(name: str, *, folder: Path = Path("sweeps")) -> SweepFile:
    """
    The sweep file called *name*: one in *folder*, else one that comes with us.

    Raises:
        UnknownName: If there is none of that name.
        BadSweepFile: If it cannot be read, has a key that nobody knows, or a
            value that cannot be.
    """
    text = _text(name, folder)
    if text is None:
        raise UnknownName(kind="sweep", name=name, known=sweep_names(folder))
    file = f"{name}.toml"
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number without end, too
        raise BadSweepFile(
            file=file, reason=f"is no TOML: {error}", hint="Mend that line."
        ) from error
    _refuse_unknown(table, SweepFile, file=file)
    for key, layout in (("divergence", Divergence), ("throughput", Throughput)):
        if isinstance(table.get(key), dict):
            _refuse_unknown(table[key], layout, file=file, within=f" in [{key}]")
    _refuse_empty(table, file=file)
    try:
        read = msgspec.convert(table, type=SweepFile)
    except msgspec.ValidationError as error:
        raise BadSweepFile(
            file=file, reason=str(error), hint="Give that key another value."
        ) from error
    _refuse_unsafe(read.variants, file=file)
    return read


def sweep_names(folder: Path = Path("sweeps")) -> list[str]:
    """Sweeps that can be run by name, those in *folder* first."""
    here = sorted(
        path.stem
        for path in folder.glob("*.toml")
        if path.is_file() and NAME.fullmatch(path.stem)
    )
    return list(dict.fromkeys([*here, *sorted(name for name, _ in _shipped())]))


def asked_for(read: SweepFile) -> dict[str, Any]:
    """The fields of a `Request` that *read* gives; the others are left out."""
    given = {
        "corpus": read.corpus,
        "models": tuple(dict.fromkeys(map(_path, read.models))),
        "k_types": tuple(by_precision(read.k_types or read.types)),
        "v_types": tuple(by_precision(read.v_types or read.types)),
        "probes": read.probes,
        "contexts": tuple(dict.fromkeys(read.contexts)),
        "rotations": rotations(read.rotation),
        "server_args": read.server_args,
        "variants": tuple(Variant(*item) for item in read.variants.items()),
        "prompt_form": read.prompt_form,
        "prefill_no_think": read.prefill_no_think,
        "skip_fallback": read.skip_fallback,
        "speculate": read.speculate,
        "fit": read.fit,
        "seed": read.seed,
        "divergence_contexts": read.divergence.contexts,
        "chunks": read.divergence.chunks,
        "text": _path(read.divergence.text) if read.divergence.text else None,
        "depths": read.throughput.depths,
        "repetitions": read.throughput.repetitions,
    }
    return {name: value for name, value in given.items() if value not in (None, ())}


def rotations(words: tuple[str, ...]) -> tuple[bool, ...]:
    """
    ``on`` and ``off`` as whether quantized values are rotated.

    Raises:
        UnknownName: If a word is neither.
    """
    known = {"on": True, "off": False}
    for word in words:
        if word not in known:
            raise UnknownName(kind="rotation", name=word, known=list(known))
    return tuple(dict.fromkeys(known[word] for word in words))


def _path(text: str) -> Path:
    # No shell reads a sweep file, so its ~ is ours to read.
    return expanded(text)


def _text(name: str, folder: Path) -> str | None:
    if not NAME.fullmatch(name):
        return None
    path = folder / f"{name}.toml"
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8-sig")  # some editors leave a mark
    except (OSError, UnicodeDecodeError) as error:
        raise BadSweepFile(
            file=str(path), reason=f"cannot be read: {error}", hint="Look at the file."
        ) from error
    return dict(_shipped()).get(name)


def _shipped() -> Iterator[tuple[str, str]]:
    """Name and text of each sweep file that comes with the package."""
    for file in resources.files("codeneedle").joinpath("data", "sweeps").iterdir():
        if file.name.endswith(".toml"):
            yield file.name.removesuffix(".toml"), file.read_text(encoding="utf-8")


def _refuse_unknown(
    table: Mapping[str, object], layout: type, *, file: str, within: str = ""
) -> None:
    """Stop at a key that we would ignore: a typo must not quietly run a default."""
    known = [each.name for each in fields(layout)]
    for key in table:
        if key not in known:
            raise BadSweepFile(
                file=file,
                reason=f"unknown key '{key}'{within}",
                hint=did_you_mean(key, known),
            )


def _refuse_unsafe(variants: Iterable[str], *, file: str) -> None:
    """Stop at a variant that could not be part of a folder's name."""
    for name in variants:
        if not NAME.fullmatch(name):
            raise BadSweepFile(
                file=file,
                reason=f"'{name}' in [variants] cannot name a folder",
                hint="Use letters, digits, dots, dashes and underscores.",
            )


def _refuse_empty(table: Mapping[str, object], *, file: str) -> None:
    """Stop at an empty list or text: it must not quietly run a default."""
    for key, value in table.items():
        if value in ([], ""):
            raise BadSweepFile(
                file=file,
                reason=f"'{key}' is empty",
                hint="Give it a value, or leave the key out.",
            )
        # A variant without arguments is one: what the others are compared with.
        if isinstance(value, dict) and key != "variants":
            _refuse_empty(value, file=file)
