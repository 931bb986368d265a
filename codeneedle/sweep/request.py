"""What a user asks of a sweep: options, sweep files and pages."""

import itertools
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import msgspec
import msgspec.inspect
import msgspec.structs

from codeneedle.corpora.registry import NAME
from codeneedle.errors import BadInput, UnknownName, refuse_unknown, value_hint
from codeneedle.grid import ENGINE, RUNS, by_precision
from codeneedle.models import pretrained
from codeneedle.probes import PROBES
from codeneedle.probes.prompts import PromptForm
from codeneedle.sweep.workers import Share
from codeneedle.system.files import expanded

_Value = TypeVar("_Value")
_Settings = TypeVar("_Settings", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Variant:
    """
    Arguments for llama-server that are tried against others.

    Attributes:
        name: What a page of the grid is called.
        args: The arguments.
    """

    name: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """
    What a user asked for; None or empty for what suits the model.

    The grid is K x V. Of what else has several values, each combination is a page
    of that grid with a run folder of its own; see `pages`.

    Attributes:
        corpus: Name or path of the text.
        models: Paths of weights, None or none at all for the built-in model.
        engine: Name of what serves the model.
        k_types: Types of the grid's rows.
        v_types: Types of its columns.
        probes: Names of what measures.
        contexts: Context sizes, in tokens; empty for what suits the model.
        rotations: Whether quantized values are rotated, as llama.cpp does unless
            it is told not to.
        variants: Arguments for llama-server that are tried against each other.
        prompt_form: How needles are asked for.
        prefill_no_think: Whether to begin the answer with an empty thought.
        fit: Whether a corpus that is too long is trimmed, rather than refused.
        seed: Of sampling and of the running order.
        server_args: Further arguments for llama-server; a page's own come last.
        llama_server: Path of the binary.
        out: Folder of all run folders.
        settings: What was chosen for each probe and for the engine, by its name; one
            that is not there has its defaults.
        skip_fallback: Whether a cell that falls back ends before it is measured.
        devices: Accelerators that measure side by side; empty for the engine's own
            choice.
        workers: Cells that are measured side by side on the CPU; None for one.
        shard: Share of the grid to measure; None for all of it, and the run folder
            to itself.
        page: What this page is called; empty if it is the only one.
        words: What was typed for it, to be told with other options; may be empty.
    """

    corpus: str | None = None
    models: tuple[Path | None, ...] = ()
    engine: str = ENGINE
    k_types: tuple[str, ...] = ()
    v_types: tuple[str, ...] = ()
    probes: tuple[str, ...] = ("recall",)
    contexts: tuple[int, ...] = ()
    rotations: tuple[bool, ...] = (True,)
    variants: tuple[Variant, ...] = ()
    prompt_form: PromptForm | None = None
    prefill_no_think: bool = False
    fit: bool = True
    seed: int = 42
    server_args: tuple[str, ...] = ()
    llama_server: Path | None = None
    out: Path = RUNS
    settings: Mapping[str, msgspec.Struct] = field(default_factory=dict)
    skip_fallback: bool = False
    devices: tuple[str, ...] = ()
    workers: int | None = None
    shard: Share | None = None
    page: str = ""
    words: tuple[str, ...] = field(default=(), compare=False)

    @property
    def model(self) -> Path | None:
        """The weights of this page; None for the built-in model."""
        return self.models[0] if self.models else None

    @property
    def context(self) -> int | None:
        """The context of this page, in tokens; None for what suits the model."""
        return self.contexts[0] if self.contexts else None

    @property
    def rotation(self) -> bool:
        """Whether this page rotates quantized values."""
        return self.rotations[0]

    def chosen(self, name: str, kind: type[_Settings]) -> _Settings:
        """The settings of the probe or engine called *name*, which are of *kind*."""
        found = self.settings.get(name, kind())
        if not isinstance(found, kind):
            raise TypeError(f"settings of {name} are {type(found).__name__}")
        return found


def pages(request: Request) -> list[Request]:
    """
    The pages of *request*, each with one value where it has several.

    A page is named after the values in which the pages differ. Weights are outermost,
    so that their file stays in memory from one page to the next; they have a folder
    of their own and are not part of the name.
    """
    return [
        replace(
            request,
            models=models,
            contexts=contexts,
            rotations=rotations,
            variants=variants,
            server_args=(
                *request.server_args,
                *(word for variant in variants for word in variant.args),
            ),
            page="+".join(_names(request, contexts, rotations, variants)),
        )
        for models, contexts, rotations, variants in itertools.product(
            _singles(request.models),
            _singles(request.contexts),
            _singles(request.rotations),
            _singles(request.variants),
        )
    ]


def _singles(values: Iterable[_Value]) -> list[tuple[_Value, ...]]:
    return [(value,) for value in values] or [()]


def _names(
    request: Request,
    contexts: tuple[int, ...],
    rotations: tuple[bool, ...],
    variants: tuple[Variant, ...],
) -> Iterator[str]:
    if len(request.contexts) > 1:
        yield f"context-{contexts[0]}"
    # Off is named even where it is the only value: llama.cpp's default is on.
    if len(request.rotations) > 1 or not rotations[0]:
        yield "rotation-on" if rotations[0] else "rotation-off"
    if len(request.variants) > 1:
        yield variants[0].name


_Names = tuple[str, ...]

KEYS: dict[str, Any] = {
    "engine": str,
    "corpus": str,
    "models": _Names,
    "types": _Names,
    "k_types": _Names,
    "v_types": _Names,
    "probes": _Names,
    "contexts": tuple[Annotated[int, msgspec.Meta(ge=256)], ...],
    "rotation": _Names,
    "server_args": _Names,
    "variants": dict[str, _Names],
    "prompt_form": PromptForm,
    "prefill_no_think": bool,
    "skip_fallback": bool,
    "fit": bool,
    "seed": int,
    **{name: probe.settings for name, probe in PROBES.items()},
}
"""
The keys of a sweep file, with their types; each may be left out.

They are fields of a `Request`, but for ``types``, which are those of both axes, for
``rotation`` (``["on", "off"]`` tries both), for ``variants``, which are arguments by
name, and for the table of each probe. The table of each engine comes to them.
"""

Kinds = Mapping[str, type[msgspec.Struct]]
"""Classes of settings, by the name of what they are for."""

NO_KINDS: Kinds = MappingProxyType({})

_PROBE_KINDS: Kinds = {name: probe.settings for name, probe in PROBES.items()}


def read_sweep_file(
    name: str, *, folder: Path = Path("sweeps"), engines: Kinds = NO_KINDS
) -> dict[str, Any]:
    """
    The fields of a `Request` that the sweep file called *name* gives.

    Args:
        name: A file in *folder*, else one of the package.
        folder: Where to look first.
        engines: The settings of engines: a table of each may be there.

    Raises:
        UnknownName: If there is none of that name.
        BadInput: If it cannot be read, has an unknown key, or an impossible value.
    """
    file, table = f"{name}.toml", _table(name, folder)
    keys, kinds = {**KEYS, **engines}, {**_PROBE_KINDS, **engines}
    refuse_unknown(table, keys, source=file)
    for part in kinds.keys() & table.keys():
        if isinstance(table[part], dict):
            known = kinds[part].__struct_fields__
            refuse_unknown(table[part], known, source=file, key=part)
    _refuse_empty(table, file=file)
    layout = msgspec.defstruct(
        "SweepFile", [(key, kind, msgspec.UNSET) for key, kind in keys.items()]
    )
    try:
        read = msgspec.convert(table, type=layout, dec_hook=_path_of)
    except msgspec.ValidationError as error:
        raise BadInput(
            source=file,
            reason=str(error),
            hint=value_hint(str(error), otherwise="Give that key another value."),
        ) from error
    given = {key: getattr(read, key) for key in keys if key in table}
    _refuse_unsafe(given.get("variants", ()), file=file)
    settings = {name: given.pop(name) for name in kinds if name in given}
    return _fields(given) | {"settings": settings}


def overruled(
    settings: Mapping[str, msgspec.Struct],
    given: Mapping[str, Mapping[str, object]],
    *,
    engines: Kinds = NO_KINDS,
) -> dict[str, msgspec.Struct]:
    """
    *settings* of probes and engines, with what options give in place of theirs.

    Args:
        settings: By name of the probe or engine.
        given: The values of fields or their texts, by name of the probe or engine and
            of the field.
        engines: The settings of engines.

    Raises:
        BadInput: If a value cannot be; it names the option.
    """
    found = dict(settings)
    for name, values in given.items():
        kind = {**_PROBE_KINDS, **engines}[name]
        try:
            checked = msgspec.convert(
                dict(values), type=kind, strict=False, dec_hook=_path_of
            )
        except msgspec.ValidationError as error:
            reason, _, place = str(error).partition(" - at ")
            option = _option_of(kind, place.strip("`$.").partition("[")[0])
            hint = value_hint(reason, otherwise="Give it another value.")
            raise BadInput(source=option, reason=reason, hint=hint) from error
        changes = {key: getattr(checked, key) for key in values}
        found[name] = msgspec.structs.replace(found.get(name) or kind(), **changes)
    return found


def _option_of(settings: type[msgspec.Struct], name: str) -> str:
    """The option that stands for the field *name* of a probe's *settings*."""
    (found,) = (f for f in msgspec.structs.fields(settings) if f.name == name)
    described = msgspec.inspect.type_info(found.type)
    extra = getattr(described, "extra", None) or {}
    return str(extra.get("option", f"--{name}"))


def _path_of(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str | Path):
        return expanded(str(value))
    raise TypeError(f"Expected `str`, got `{type(value).__name__}`")


def sweep_names(folder: Path = Path("sweeps")) -> list[str]:
    """Sweeps that can be run by name, those in *folder* first."""
    here = sorted(
        path.stem
        for path in folder.glob("*.toml")
        if path.is_file() and NAME.fullmatch(path.stem)
    )
    return list(dict.fromkeys([*here, *sorted(name for name, _ in _shipped())]))


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Request` for the keys of a sweep file."""
    both = given.pop("types", None)
    chosen = {"k_types": both, "v_types": both} | given if both else given
    if "rotation" in chosen:
        chosen["rotations"] = chosen.pop("rotation")
    readers: dict[str, Callable[[Any], Any]] = {
        "models": lambda words: models(words, source="models"),
        "k_types": lambda types: tuple(by_precision(types)),
        "v_types": lambda types: tuple(by_precision(types)),
        "contexts": lambda sizes: tuple(dict.fromkeys(sizes)),
        "rotations": rotations,
        "variants": lambda by_name: tuple(Variant(*item) for item in by_name.items()),
    }
    return {
        key: readers[key](value) if key in readers else value
        for key, value in chosen.items()
    }


def models(words: Iterable[str], *, source: str) -> tuple[Path | None, ...]:
    """
    The distinct weights that *words* stand for, as `pretrained.named` reads them.

    Raises:
        BadInput: If one is neither a name nor a path.
    """
    found = (pretrained.named(word, source=source) for word in words)
    return tuple(dict.fromkeys(found))


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


def _table(name: str, folder: Path) -> dict[str, Any]:
    text = _text(name, folder)
    if text is None:
        raise UnknownName(kind="sweep", name=name, known=sweep_names(folder))
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number without end, too
        raise BadInput(
            source=f"{name}.toml",
            reason=f"is not TOML: {error}",
            hint="Mend that line.",
        ) from error


def _text(name: str, folder: Path) -> str | None:
    if not NAME.fullmatch(name):
        return None
    path = folder / f"{name}.toml"
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8-sig")  # a mark of editors
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            source=path, reason=f"cannot be read: {error}", hint="Look at the file."
        ) from error
    return dict(_shipped()).get(name)


def _shipped() -> Iterator[tuple[str, str]]:
    """Name and text of each sweep file that comes with the package."""
    for file in resources.files("codeneedle").joinpath("sweep", "files").iterdir():
        if file.name.endswith(".toml"):
            yield file.name.removesuffix(".toml"), file.read_text(encoding="utf-8")


def _refuse_unsafe(variants: Iterable[str], *, file: str) -> None:
    """Stop at a variant that could not be part of a folder's name."""
    for name in variants:
        if not NAME.fullmatch(name):
            raise BadInput(
                source=file,
                reason=f"'{name}' in [variants] cannot name a folder",
                hint="Use letters, digits, dots, dashes and underscores.",
            )


def _refuse_empty(table: Mapping[str, object], *, file: str) -> None:
    """Stop at an empty list or text: it must not quietly run a default."""
    for key, value in table.items():
        if value in ([], ""):
            raise BadInput(
                source=file,
                reason=f"'{key}' is empty",
                hint="Give it a value, or leave the key out.",
            )
        # A variant without arguments is one: what the others are compared with.
        if isinstance(value, dict) and key != "variants":
            _refuse_empty(value, file=file)
