"""
Requests and sweep files: their keys, what is refused, how options replace them, the
pages that several values make, and what is added to the file of a run folder.
"""

import itertools
import math
import os
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import msgspec.inspect
import tomli_w
from msgspec.structs import replace

from codeneedle.cache_types import (
    BITS_PER_ELEMENT,
    ENGINE,
    RUNS,
    Pair,
    distinct_most_precise_first,
    whole_grid,
)
from codeneedle.corpora import registry
from codeneedle.corpora.registry import NAME
from codeneedle.engines import SETTINGS
from codeneedle.errors import (
    BadInput,
    UnknownName,
    msgspec_reason_and_hint,
    refuse_unknown_keys,
)
from codeneedle.models import pretrained, stores
from codeneedle.probes import PROBES, probes_named
from codeneedle.probes.probe import Probe
from codeneedle.probes.prompts import PromptForm
from codeneedle.quantities import parse_token_count
from codeneedle.records.store import SWEEP, Store
from codeneedle.sweep.grid_shares import Share
from codeneedle.system.files import expand_home, read_regular, reason_of
from codeneedle.text import plural

_Value = TypeVar("_Value")
_Settings = TypeVar("_Settings", bound=msgspec.Struct)

TABLES: Mapping[str, type[msgspec.Struct]] = {
    **{name: probe.settings for name, probe in PROBES.items()},
    **SETTINGS,
}
"""Settings of each probe and engine: the tables of a sweep file, by their names."""

if TYPE_CHECKING:

    class _Tables(msgspec.Struct, frozen=True, kw_only=True):
        """A field for each of `TABLES`; None where the file has no such table."""

else:
    _Tables = msgspec.defstruct(
        "_Tables",
        [(name, kind | None, None) for name, kind in TABLES.items()],
        frozen=True,
        kw_only=True,
    )


class Request(_Tables, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    What a sweep file says; None or empty for what suits the model.

    Its fields are the keys of the file, in the words of the file; to them come the
    tables of probes and engines. The grid is K x V. Of what else has several values,
    each combination is a page of that grid with a run folder of its own; see `pages`.
    """

    corpus: str | None = None  # name or path of the text
    models: tuple[str, ...] = ()
    """Names or paths of weights; empty for the built-in model."""

    engine: str = ENGINE  # name of what serves the model
    types: tuple[str, ...] = ()  # cache types of both axes
    k_types: tuple[str, ...] = ()  # types of K alone
    v_types: tuple[str, ...] = ()  # types of V alone
    pairs: tuple[str, ...] = ()
    """The pairs to measure, ``q8_0/q4_0``; empty for every K with every V."""

    same: bool = False  # whether K and V have the same type in every pair
    probes: tuple[str, ...] = ()
    """Names of what measures; empty for the usual probes of engine and model."""

    decide: bool = False
    """Whether what was measured chooses the pair that is measured next."""

    contexts: tuple[Annotated[int, msgspec.Meta(ge=256)], ...] = ()
    """Context sizes, in tokens."""

    rotation: tuple[str, ...] = ("on",)
    """
    Whether quantized values are rotated, as llama.cpp does unless it is told not to:
    ``on``, ``off`` or both.
    """

    prompt_form: PromptForm | None = None  # form of the prompts
    prefill_no_think: bool = False  # whether to begin the answer with an empty thought
    kernels_only: bool = False
    """Whether pairs without a kernel on this machine are left out."""

    fit: bool = True
    """Whether a corpus that is too long is trimmed, rather than refused."""

    seed: int = 42  # of sampling and of the running order
    server_args: tuple[str, ...] = ()
    """Further arguments for llama-server; a page's own come last."""

    env: tuple[str, ...] = ()
    """Names of further variables that servers and tools inherit."""

    variants: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Arguments for llama-server that are tried against each other, by name."""

    receipt: bool = False  # whether each page of the sweep ends with its receipt

    @property
    def grid_k_types(self) -> tuple[str, ...]:
        """Types of K, most precise first; empty for what suits the engine."""
        chosen = (pair.k for pair in map(Pair.parse, self.pairs))
        return tuple(
            distinct_most_precise_first(
                chosen if self.pairs else self.k_types or self.types
            )
        )

    @property
    def grid_v_types(self) -> tuple[str, ...]:
        """Types of V, most precise first; empty for what suits the engine."""
        chosen = (pair.v for pair in map(Pair.parse, self.pairs))
        return tuple(
            distinct_most_precise_first(
                chosen if self.pairs else self.v_types or self.types
            )
        )

    @property
    def chosen_pairs(self) -> tuple[Pair, ...]:
        """The pairs of a grid with holes; empty for every K with every V."""
        if self.same:
            return tuple(Pair(name, name) for name in self.grid_k_types)
        return tuple(dict.fromkeys(map(Pair.parse, self.pairs)))

    @property
    def grid(self) -> list[Pair]:
        """Every pair to measure, in no particular order."""
        return list(self.chosen_pairs) or whole_grid(
            self.grid_k_types, self.grid_v_types
        )

    @property
    def model(self) -> Path | None:
        """The weights of this page; None for the built-in model."""
        return pretrained.path_unless_built_in(self.models[0]) if self.models else None

    @property
    def context(self) -> int | None:
        """The context of this page, in tokens; None for what suits the model."""
        return self.contexts[0] if self.contexts else None

    @property
    def rotates(self) -> bool:
        """Whether this page rotates quantized values."""
        return self.rotation[0] == "on"

    @property
    def settings(self) -> dict[str, msgspec.Struct]:
        """What was chosen for probes and engines, by name; without those left alone."""
        chosen = {name: getattr(self, name) for name in TABLES}
        return {name: table for name, table in chosen.items() if table is not None}

    def settings_by_name(self, name: str, kind: type[_Settings]) -> _Settings:
        """
        The settings of the probe or engine called *name*, which are of *kind*.

        The defaults of that kind where nothing was chosen.
        """
        table = getattr(self, name, None)
        if table is None:
            return kind()
        if not isinstance(table, kind):
            raise TypeError(f"settings of {name} are {type(table).__name__}")
        return table

    def settings_of(self, probe: Probe) -> msgspec.Struct:
        """The settings of *probe*."""
        return self.settings_by_name(probe.name, probe.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What one command uses to measure a request; no part of the run."""

    out: Path = RUNS  # folder of all run folders
    folder: Path | None = None
    """The run folder, where a user names it; None for one below `out`."""

    page: str = ""  # what a page is called; empty if it is the only one
    llama_server: Path | None = None  # path of the binary
    devices: tuple[str, ...] = ()
    """Accelerators that measure side by side; empty for the engine's own choice."""

    workers: int | None = None
    """Cells that are measured side by side on the CPU; None for one."""

    shard: Share | None = None
    """
    Share of the grid to measure, in a run folder of its own; None for all of it.
    """


MOST_PAGES = 64
"""Of a request: the engine is asked for the sizes of each, and each takes hours."""


def pages(request: Request) -> list[tuple[str, Request]]:
    """
    The pages of *request* by name, each with one value where it has several.

    A page is named after the values in which the pages differ. Weights are outermost,
    so that their file stays in memory from one page to the next; they have a folder
    of their own and are not part of the name.

    Raises:
        BadInput: If there are more than `MOST_PAGES`.
    """
    axes = {
        "model": len({*request.models}),
        "context": len({*request.contexts}),
        "rotation": len({*request.rotation}),
        "variant": len(request.variants),
    }
    number = math.prod(many or 1 for many in axes.values())
    if number > MOST_PAGES:
        several = (plural(many, name) for name, many in axes.items() if many > 1)
        raise BadInput(
            source=" x ".join(several),
            reason=f"{number:,} grids, and a sweep has at most {MOST_PAGES}",
            hint="Ask for fewer of them, or for some in each of several sweeps: the "
            "results of all lie side by side.",
        )
    return [
        (
            "+".join(_page_name_parts(request, contexts, rotation, variants)),
            replace(
                request,
                models=models,
                contexts=contexts,
                rotation=rotation,
                server_args=(
                    *request.server_args,
                    *(word for name in variants for word in request.variants[name]),
                ),
                variants={},
            ),
        )
        for models, contexts, rotation, variants in itertools.product(
            _one_tuple_per_value(request.models),
            _one_tuple_per_value(request.contexts),
            _one_tuple_per_value(request.rotation),
            _one_tuple_per_value(request.variants),
        )
    ]


def _one_tuple_per_value(values: Iterable[_Value]) -> list[tuple[_Value, ...]]:
    """Each of *values* by itself, once, in order; one empty tuple if there is none."""
    return [(value,) for value in dict.fromkeys(values)] or [()]


def _page_name_parts(
    request: Request,
    contexts: tuple[int, ...],
    rotation: tuple[str, ...],
    variants: tuple[str, ...],
) -> Iterator[str]:
    """What a page is called: the values in which pages differ, and rotation off."""
    if len({*request.contexts}) > 1:
        yield f"context-{contexts[0]}"
    # Off is named even where it is the only value: llama.cpp's default is on.
    if len({*request.rotation}) > 1 or rotation[0] == "off":
        yield f"rotation-{rotation[0]}"
    if len(request.variants) > 1:
        yield variants[0]


def join_requests(stored: Request, wanted: Request) -> Request:
    """
    *wanted*, with the types, probes and tables that *stored* has in addition.

    Of a table that both have, that of *wanted* is taken. Where one of them names pairs,
    the pairs of both grids are named.
    """
    if stored.chosen_pairs or wanted.chosen_pairs:
        pairs = dict.fromkeys(map(str, (*stored.grid, *wanted.grid)))
        changes = _ALONE | {"pairs": tuple(pairs)}
        return replace(_join_probes_and_tables(stored, wanted), **changes)
    rows = distinct_most_precise_first((*stored.grid_k_types, *wanted.grid_k_types))
    columns = distinct_most_precise_first((*stored.grid_v_types, *wanted.grid_v_types))
    is_square = rows == columns
    return replace(
        _join_probes_and_tables(stored, wanted),
        types=tuple(rows) if is_square else (),
        k_types=() if is_square else tuple(rows),
        v_types=() if is_square else tuple(columns),
    )


_ALONE: dict[str, Any] = {
    "types": (),
    "k_types": (),
    "v_types": (),
    "pairs": (),
    "same": False,
}
"""What says which pairs to measure; some of it overrules all the rest."""


def _join_probes_and_tables(stored: Request, wanted: Request) -> Request:
    """*wanted*, with the probes and tables that *stored* has in addition."""
    tables = {
        name: table
        for name, table in stored.settings.items()
        if getattr(wanted, name) is None
    }
    probes = tuple(dict.fromkeys((*stored.probes, *wanted.probes)))
    return replace(wanted, probes=probes, **tables)


def merge_into_sweep_file(request: Request, store: Store) -> None:
    """
    Join *request* to the sweep file of a run folder, whose other values it replaces.

    Raises:
        BadInput: If the sweep file that is there cannot be read.
        FolderUnusable: If it cannot be written.
    """
    if text := store.read_sweep_file_or_empty():
        stored = parse_request_toml(text, source=str(store.folder / SWEEP))
        request = join_requests(stored, request)
    store.store_sweep_file(request_toml_text(request))


# --- sweep files


def read_sweep(name: str, *, folder: Path = Path("sweeps")) -> Request:
    """
    What a sweep file says.

    Args:
        name: A file in *folder*, else one of the package; or the path of a file, or of
            a run folder, which holds the one that it was made by.
        folder: Where names are looked for first.

    Raises:
        UnknownName: If there is none of that name.
        BadInput: If it cannot be read, has an unknown key, or an impossible value.
    """
    source, text = _read_sweep_file(name, folder)
    return parse_request_toml(text, source=source)


def parse_request_toml(text: str, *, source: str) -> Request:
    """
    The request that the *text* of a sweep file holds.

    Raises:
        BadInput: See `read_sweep`; it names *source*.
        UnknownName: If a model or a rotation has an unknown name.
    """
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number without end, too
        raise BadInput(
            source=source, reason=f"is not TOML: {error}", hint="Mend that line."
        ) from error
    refuse_unknown_keys(table, Request.__struct_fields__, source=source)
    for name in TABLES.keys() & table.keys():
        if isinstance(table[name], dict):
            known = TABLES[name].__struct_fields__
            refuse_unknown_keys(table[name], known, source=source, key=name)
    _refuse_empty_values(table, source=source)
    try:
        read = _with_parsed_token_counts(
            table, lambda *keys: f"{source}, key '{'.'.join(keys)}'"
        )
        request = msgspec.convert(read, type=Request, dec_hook=_decode_path)
    except msgspec.ValidationError as error:
        reason, hint = msgspec_reason_and_hint(
            str(error), otherwise="Give that key another value."
        )
        raise BadInput(source=source, reason=reason, hint=hint) from error
    _refuse_unusable_names(request, source=source)
    return request


def named_and_implied_probes(request: Request, *, is_named: bool) -> tuple[str, ...]:
    """
    Names of the probes of *request*, with those whose `Probe.asked_by` is set.

    If it decides, those that measure losses come first, or recall: others measure the
    pairs that these have measured.

    Args:
        request: The request.
        is_named: Whether its probes were named; if not, those that are set suffice.
    """
    implied = (
        name
        for name, table in request.settings.items()
        if name in PROBES and getattr(table, PROBES[name].asked_by or "", None)
    )
    is_named = is_named or request.probes != Request().probes
    named = request.probes if is_named else ()
    asked = tuple(dict.fromkeys((*named, *implied))) or request.probes
    return _with_loss_probe_first(asked) if request.decide and asked else asked


def _with_loss_probe_first(names: tuple[str, ...]) -> tuple[str, ...]:
    """
    *names* with those first that measure losses, each once.

    If none does, the probe that a verdict asks for comes before all.
    """
    # Commands that read a sweep file do not wait for the verdict.
    from codeneedle.verdict.next import PROBE

    telling = [probe.name for probe in probes_named(names) if probe.has_loss_metric]
    return tuple(dict.fromkeys((*(telling or [PROBE.name]), *names)))


def refuse_decided_share(request: Request, execution: Execution) -> None:
    """
    Stop at a share of a grid whose pairs are to be chosen by what all have shown.

    Raises:
        BadInput: With both ways out.
    """
    if request.decide and execution.shard is not None:
        raise BadInput(
            source=f"--shard {execution.shard}",
            reason="a share of the grid cannot choose which pair is measured next",
            hint="Sweep shares with --no-decide, or use --decide without --shard.",
        )


def request_toml_text(request: Request) -> str:
    """*request* as the text of a sweep file: what differs from the defaults."""
    return tomli_w.dumps(_changed_fields(request))


def _changed_fields(struct: msgspec.Struct) -> dict[str, Any]:
    """The fields of *struct* that differ from their defaults, as TOML has them."""
    plain = type(struct)()
    values = {name: getattr(struct, name) for name in struct.__struct_fields__}
    return {
        name: _changed_fields(value)
        if isinstance(value, msgspec.Struct)
        else msgspec.to_builtins(value, enc_hook=str)
        for name, value in values.items()
        if value != getattr(plain, name)
    }


def with_options(request: Request, options: Mapping[str, Any]) -> Request:
    """
    *request* with the values of *options* in place of its own.

    Args:
        request: Of a sweep file, or the default.
        options: Values or their texts, by key of a sweep file; of a table, by its keys.

    Raises:
        BadInput: If a value is impossible; it names the option.
        UnknownName: If a rotation has an unknown name.
    """
    read = _with_parsed_token_counts(options, _option_of_key)
    try:
        given = msgspec.convert(read, type=Request, strict=False, dec_hook=_decode_path)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        reason, hint = msgspec_reason_and_hint(
            reason, otherwise="Give it another value."
        )
        raise BadInput(
            source=_option_at_error_path(place), reason=reason, hint=hint
        ) from error
    _refuse_unknown_rotations(given.rotation)
    changes: dict[str, Any] = {name: getattr(given, name) for name in options}
    for name in TABLES.keys() & options.keys():
        chosen = {key: getattr(changes[name], key) for key in options[name]}
        changes[name] = replace(request.settings_by_name(name, TABLES[name]), **chosen)
    _refuse_bad_or_conflicting_pairs(given)
    # What a file says of the grid gives way to what the options say, but --same
    # keeps the types of a file, and the types of one axis those of the other.
    if {"types", "pairs"} & options.keys():
        changes = _ALONE | changes
    elif {"k_types", "v_types"} & options.keys():
        changes = {"pairs": (), "same": False} | changes
    elif "same" in options:
        changes = {"pairs": ()} | changes
    return replace(request, **changes)


def _refuse_bad_or_conflicting_pairs(request: Request) -> None:
    """Stop at texts that are no pair, and at pairs beside types."""
    for text in request.pairs:
        Pair.parse(text)
    types = request.types or request.k_types or request.v_types
    if request.pairs and (types or request.same):
        raise BadInput(
            source="--pairs",
            reason="names the types of K and V already",
            hint="Give pairs, or types, or types and --same.",
        )
    if request.same and (request.k_types or request.v_types):
        raise BadInput(
            source="--same",
            reason="--k-types and --v-types name other types for K and V",
            hint="Give --types, or leave --same out.",
        )


def _option_at_error_path(place: str) -> str:
    """The option for the value at *place*: ``$.throughput.depths[0]`` is --depths."""
    _, *keys = place.strip("`").partition("[")[0].split(".")
    return _option_of_key(*keys)


def _option_of_key(name: str, *keys: str) -> str:
    """The option for key *name* of a sweep file, or for a key of the table *name*."""
    if keys:
        return option_of(TABLES[name], keys[0])
    return f"--{name.removesuffix('s') if name in _PLURALS else name}"


_PLURALS = ("contexts", "models", "probes")
"""Keys of a sweep file whose option has the name in the singular."""


def _with_parsed_token_counts(
    table: Mapping[str, Any], source: Callable[..., str]
) -> dict[str, Any]:
    """
    *table* with every number of tokens that is a text, ``"32K"``, as a number.

    Args:
        table: Of a sweep file, or of options.
        source: What to name in an error, by the keys that lead to a value.

    Raises:
        BadInput: If a text is no number of tokens.
    """

    def as_token_counts(value: Any, *keys: str) -> Any:
        """*value* with texts as numbers, also in a list; *keys* are for an error."""
        if isinstance(value, str):
            return parse_token_count(source(*keys), value)
        is_list = isinstance(value, list | tuple)
        return (
            [as_token_counts(element, *keys) for element in value] if is_list else value
        )

    read = dict(table)
    if "contexts" in read:
        read["contexts"] = as_token_counts(read["contexts"], "contexts")
    for name in TABLES.keys() & read.keys():
        if isinstance(read[name], Mapping):
            of_tokens = _token_fields(TABLES[name]) & read[name].keys()
            read[name] = dict(read[name]) | {
                key: as_token_counts(read[name][key], name, key) for key in of_tokens
            }
    return read


def _token_fields(settings: type[msgspec.Struct]) -> set[str]:
    """The fields of *settings* that count tokens."""
    return {
        field.name
        for field in msgspec.structs.fields(settings)
        if _option_metadata(field).get("unit") == "tokens"
    }


def option_of(settings: type[msgspec.Struct], name: str) -> str:
    """The option for the field *name*; of a flag both forms: ``--gate/--no-gate``."""
    (field,) = (f for f in msgspec.structs.fields(settings) if f.name == name)
    return str(_option_metadata(field).get("option", f"--{name}"))


def with_or_without_option_phrase(
    settings: type[msgspec.Struct], name: str, value: Any
) -> str:
    """
    How the option of the field *name* gives that *value*: ``with --tasks single,nth``,
    ``with --no-gate``, ``without --lines``.
    """
    words = option_words(settings, name, value)
    return (
        f"with {shlex.join(words)}" if words else f"without {option_of(settings, name)}"
    )


def option_words(
    settings: type[msgspec.Struct], name: str, value: Any
) -> tuple[str, ...]:
    """
    The words of a command that give the field *name* that *value*.

    There are none for what is left open, and for an empty list.
    """
    option = option_of(settings, name)
    if isinstance(value, bool):
        is_set, _, is_not_set = option.partition("/")
        return (is_set if value else is_not_set,)
    if value is None or value == []:
        return ()
    return option, ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _option_metadata(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    """What the type of a *field* of settings says of its option."""
    described = msgspec.inspect.type_info(field.type)
    return getattr(described, "extra", None) or {}


def _decode_path(kind: type, value: object) -> object:
    """*value* as an absolute path, where a field is one; for msgspec."""
    if kind is Path and isinstance(value, str | Path):
        return expand_home(value).absolute()
    raise TypeError(f"Expected `str`, got `{type(value).__name__}`")


def known_sweeps(folder: Path = Path("sweeps")) -> list[str]:
    """Names of sweeps that can be run, those in *folder* first, each part sorted."""
    here = sorted(
        path.stem
        for path in folder.glob("*.toml")
        if path.is_file() and NAME.fullmatch(path.stem)
    )
    return list(
        dict.fromkeys(
            [*here, *sorted(name for name, _ in _shipped_sweep_names_and_texts())]
        )
    )


def is_path(name: str) -> bool:
    """Whether *name* is a path by its form, of a sweep file or a run folder."""
    return name.endswith(".toml") or not NAME.fullmatch(name)


def find_run_folder(name: str) -> Path | None:
    """
    The run folder that *name* is: its path, or ``corpus/model``; None if it is none.

    Relative where it is below the working folder, so that commands are short.
    """
    if not is_path(name):
        return None
    places = (expand_home(name), RUNS / name)
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        return None
    folder = Path(os.path.abspath(found))  # noqa: PTH100 - keeps links' names
    here = Path.cwd()
    return folder.relative_to(here) if here in folder.parents[2:] else folder


def _read_sweep_file(name: str, folder: Path) -> tuple[str, str]:
    """
    The sweep file called *name*: where it is, for errors, and its text.

    Raises:
        BadInput: If it cannot be read, or there is none at a path.
        UnknownName: If there is none of that name.
    """
    path = folder / f"{name}.toml"
    if is_path(name):
        run = find_run_folder(name)
        path = run / SWEEP if run else expand_home(name)
    try:
        data = read_regular(path)
        if data is not None:
            return str(path), data.decode("utf-8-sig")  # a mark of editors
    except (OSError, ValueError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else error
        raise BadInput(
            source=path, reason=f"cannot be read: {reason}", hint="Look at the file."
        ) from error
    shipped = dict(_shipped_sweep_names_and_texts())
    if name in shipped:
        return path.name, shipped[name]
    _refuse_name_for_other_option(name)
    if os.sep in name:
        raise BadInput(
            source=path,
            reason="there is no such sweep file",
            hint="Name a sweep, a sweep file, or a run folder: sweeps/CORPUS/MODEL.",
        )
    raise UnknownName(kind="sweep", name=name, known=known_sweeps(folder))


def _refuse_name_for_other_option(name: str) -> None:
    """Stop at the name of a model, corpus or type with the option that takes it."""
    if name in BITS_PER_ELEMENT:
        raise BadInput(
            source=f"sweep {name}",
            reason=f"'{name}' is a cache type, and no sweep file has that name",
            hint="A list has commas and no blanks: codeneedle sweep --types q8_0,q4_0",
        )
    kind = ""
    if name in pretrained.NAMES or name.lower().endswith(".gguf"):
        kind = "model"
    elif registry.is_known_name(name):
        kind = "corpus"
    if kind:
        raise BadInput(
            source=f"sweep {name}",
            reason=f"'{name}' is a {kind}, and no sweep file has that name",
            hint=f"Name it by its option: codeneedle sweep --{kind} {name}",
        )


def _shipped_sweep_names_and_texts() -> Iterator[tuple[str, str]]:
    """Name and text of each sweep file that comes with the package."""
    for file in resources.files("codeneedle").joinpath("sweep", "files").iterdir():
        if file.name.endswith(".toml"):
            yield file.name.removesuffix(".toml"), file.read_text(encoding="utf-8")


def _refuse_unusable_names(request: Request, *, source: str) -> None:
    """Stop at impossible names of models, rotations, pairs and variants."""
    _refuse_unknown_rotations(request.rotation)
    _refuse_bad_or_conflicting_pairs(request)
    for word in request.models:
        stores.weights_path_unless_built_in(word, source=f"{source}, key 'models':")
    for name in request.variants:
        if not NAME.fullmatch(name):
            raise BadInput(
                source=source,
                reason=f"'{name}' in [variants] cannot name a folder",
                hint="Use letters, digits, dots, dashes and underscores.",
            )


def _refuse_unknown_rotations(words: Iterable[str]) -> None:
    """Stop at a rotation that is neither ``on`` nor ``off``."""
    known = ("on", "off")
    for word in words:
        if word not in known:
            raise UnknownName(kind="rotation", name=word, known=known)


def _refuse_empty_values(table: Mapping[str, object], *, source: str) -> None:
    """Stop at an empty list or text: it must not quietly run a default."""
    for key, value in table.items():
        if value in ([], ""):
            raise BadInput(
                source=source,
                reason=f"'{key}' is empty",
                hint="Give it a value, or leave the key out.",
            )
        # A variant without arguments is one: what the others are compared with.
        if isinstance(value, dict) and key != "variants":
            _refuse_empty_values(value, source=source)
