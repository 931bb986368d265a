"""
How a command line becomes a request: options first, then sweep file and environment;
what follows ``--``, unknown options, options of unused probes, and help in groups.
"""

import dataclasses
import functools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command
from typing_extensions import override

from codeneedle.cli.options import (
    CORPUS,
    RUN_OPTIONS,
    SWEEP_OPTIONS,
    USAGE_ERROR,
    argument,
    limits_with_defaults,
    optional_text_option,
    parse_distinct_words,
    parse_word,
    parse_words,
)
from codeneedle.errors import BadInput, nearest_name

if TYPE_CHECKING:
    from codeneedle.sweep.request import Execution, Request

GROUPS = {
    "What to sweep": (
        *("models", "types", "pairs", "same", "corpus", "contexts", "k_types"),
        *("v_types", "engine", "rotation", "kernels_only", "fit"),
        *("seed", "out"),
    ),
    "What to measure": (*("probes", "decide", "prompt_form", "prefill_no_think"),),
    "llama.cpp": ("llama_server", "env"),
    "Several devices": ("devices", "workers", "shard"),
    "SLURM": ("tasks", "gpus", "cpus", "sbatch", "script", "send"),
    "When to stop, and limits of the verdict": (
        *("retry_failed", "more", "budget", "wait", "calibration", "max_loss"),
        *("max_lost", "max_eval_lost", "max_memory", "at", "pp", "tg", "json"),
        "help",
    ),
}
"""
Options in the order of help texts, the common ones first. Those of probes and engines,
a group for each, come after what to measure.
"""

TITLES = {
    "eval": "Evaluations",
    "mlx": "MLX",
    "command": "Other servers, started by a command",
    "endpoint": "Other servers that are running",
}
"""Titles of the groups of probes and engines that differ from their names."""


class SweepCommand(TyperCommand):
    """
    A command that has a `Request` and an `Execution` as its context's object.

    Its options are `SWEEP_OPTIONS`, the settings of all probes and engines, and its
    own; what follows ``--`` goes to llama-server.
    """

    usual: Collection[str] = ()
    """Names of the parameters that its help text lists; empty for all."""

    own: Mapping[str, Any] = {}
    """Further options that are not of the request: annotations by name."""

    @override
    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters; probes and languages are imported only for this."""
        from codeneedle.corpora import languages
        from codeneedle.probes import PROBES

        settings = {
            name: _option_of_settings([*owners.values()])
            for name, owners in _settings_metadata().items()
        }
        shared = _typer_parameters(SWEEP_OPTIONS | settings)
        known = (f"{probe.name} ({probe.purpose})" for probe in PROBES.values())
        words = {
            "probes": ", ".join(known),
            "languages": languages.language_names_phrase(),
        }
        for param in shared:
            if param.name in {"corpus", "probes"}:
                param.help = param.help.format(**words)
        return [*shared, *_typer_parameters(self.own), *super().get_params(ctx)]

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and make the request of all values that are not the command's own."""
        ours, theirs = split_server_args(args)
        if not ctx.resilient_parsing:
            refuse_deleted_working_folder()
        try:
            rest = super().parse_args(ctx, [*ours])  # it takes words out
        except USAGE_ERROR as error:
            if unknown := getattr(error, "option_name", ""):
                _refuse_unknown_option(
                    unknown, ours, long_option_names(self.get_params(ctx))
                )
            raise
        of_command = {"help", *(param.name for param in self.params)}
        given = {name: ctx.params.pop(name) for name in ctx.params.keys() - of_command}
        if not ctx.resilient_parsing:
            given["server_args"] = theirs or None
            given["models"] = tuple(given.get("models") or ()) or None
            known = {name: value for name, value in given.items() if value is not None}
            own = {name: known.pop(name) for name in self.own if name in known}
            ctx.obj = self.context_object(known, own)
        return rest

    def context_object(self, given: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        """
        The object of the context, by the values of options that were given.

        Args:
            given: Of `SWEEP_OPTIONS` and the settings, by name.
            own: Of `own`, by name.
        """
        return resolve_request(given, decide=own.get("decide"))

    @override
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Options in groups; rich would take longer to import than all the rest."""
        params = self.get_params(ctx)
        if self.usual:
            params = [param for param in params if param.name in self.usual]
        for title, rows in _help_rows_by_group(params, ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)

    @override
    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Examples as they are, and what goes to llama-server."""
        formatter.write(f"\n{self.epilog}\n" if self.epilog else "\n")
        if self.usual:
            formatter.write(
                "The options of sweep are taken, too: codeneedle sweep -h\n"
            )
        formatter.write("What follows -- goes to llama-server as it is: -- -ngl 99\n")

    @override
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What follows the name of the command in a usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGS]"]


class RunCommand(SweepCommand):
    """A command whose context's object has the `sweep.measure.Options`, too."""

    own = RUN_OPTIONS

    @override
    def context_object(self, given: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        """Request, execution and options."""
        from codeneedle.sweep.measure import Options

        names = ("max_loss", "max_lost", "max_eval_lost", "max_memory", "at")
        limits = limits_with_defaults(*map(own.get, names))
        renamed = {"budget": "budget_s"}
        others = {
            renamed.get(name, name): value
            for name, value in own.items()
            if name not in {*names, "decide"}
        }
        options = Options(limits=limits, **others)
        return (*super().context_object(given, own), options)


class SlurmCommand(SweepCommand):
    """A command that passes a sweep on to a scheduler."""

    usual = ("sweep", *GROUPS["SLURM"], "models", "corpus", "out", "help")


class ServeCommand(TyperCommand):
    """A command whose context's object is the words after ``--``, for llama-server."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what stands before ``--``."""
        ours, ctx.obj = split_server_args(args)
        return super().parse_args(ctx, ours)

    @override
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What follows the name of the command in a usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGS]"]


class TranscriptCommand(SweepCommand):
    """A command with a file of conversations in place of a sweep file."""

    usual = (
        *("transcript__file", "models", "engine", "contexts", "prompt_form"),
        *("prefill_no_think", "llama_server", "help"),
    )

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and keep the words of the sweep in `ctx.meta` at `SWEEP_WORDS`."""
        given = [*args]
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            file = ctx.obj[0].transcript.file
            ctx.meta[SWEEP_WORDS] = _add_transcript_option(given, file)
        return rest

    @override
    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, a required FILE in place of SWEEP and ``--transcript``."""
        name = "transcript__file"
        file = Annotated[str | None, argument("FILE", "Recorded conversations.")]
        (taken,) = _typer_parameters({name: file})
        taken.required = True
        others = super().get_params(ctx)
        return [taken, *(p for p in others if p.name not in {name, "sweep"})]


SWEEP_WORDS = "codeneedle.sweep_words"
"""Where a `TranscriptCommand` keeps the words of the sweep that measures the same."""


def _add_transcript_option(words: Sequence[str], file: Path) -> list[str]:
    """*words* of a `TranscriptCommand`, its *file* behind the option of a sweep."""
    from codeneedle.system.files import expand_home

    ours, _ = split_server_args([*words])
    at = next(
        at for at, word in enumerate(ours) if expand_home(word).absolute() == file
    )
    return [*words[:at], "--transcript", *words[at:]]


def _help_rows_by_group(
    params: Iterable[Any], ctx: Any
) -> dict[str, list[tuple[str, str]]]:
    """Names and texts of *params* for a help text, by the title of their group."""
    from codeneedle.sweep.request import TABLES

    what, measure, *others = GROUPS
    titles = ["Arguments", what, measure, *map(_group_title, TABLES), *others]
    groups: dict[str, list[tuple[str, str]]] = {title: [] for title in titles}
    known = {name: title for title, names in GROUPS.items() for name in names}
    order = [*known]
    by_name = {param.name: param for param in params}
    for name in sorted(by_name, key=lambda n: order.index(n) if n in known else -1):
        param = by_name[name]
        label, text = param.get_help_record(ctx) or ("", "")
        if param.param_type_name == "argument":
            groups["Arguments"].append((label, text))
        elif "__" in name:
            for owner, description in _help_texts_by_table(name, text).items():
                groups[_group_title(owner)].append((label, description))
        else:
            groups[known[name]].append((label, text))
    return {title: rows for title, rows in groups.items() if rows}


def _group_title(table: str) -> str:
    """The title of the group of a probe or an engine, with the option for it."""
    return f"{TITLES.get(table, table.capitalize())} ({_probe_or_engine_option(table)})"


def _probe_or_engine_option(table: str) -> str:
    """The option that chooses a probe or an engine: ``--probe recall``."""
    from codeneedle.probes import PROBES

    return f"--{'probe' if table in PROBES else 'engine'} {table}"


def _help_texts_by_table(name: str, text: str) -> dict[str, str]:
    """
    The help text of an option of `_settings_metadata`, by the table that it is for.

    Where several tables have it, each has its own description, with its default.

    Args:
        name: Of the option.
        text: Its help text where one table has it.
    """
    owners = _settings_metadata()[name]
    if len(owners) == 1:
        return {table: text for table, _ in owners}
    texts = {}
    for (table, _), described in owners.items():
        default = described.extra.get("default")
        shown = f"  [default: ({default})]" if default else ""
        texts[table] = f"{described.description}{shown}"
    return texts


def _typer_parameters(annotations: Mapping[str, Any]) -> list[Any]:
    """Typer's parameters for *annotations*, types by name; each is None by default."""
    fields = [(name, kind, None) for name, kind in annotations.items()]
    app = typer.Typer(add_completion=False)
    app.command()(dataclasses.make_dataclass("Given", fields))
    return list(get_command(app).params)


@functools.cache
def _settings_metadata() -> dict[str, dict[tuple[str, str], Any]]:
    """
    The metadata of the settings of probes and engines, by table and field.

    Settings with one option are together, under a name for the option that has all
    tables and fields: ``throughput__depths__retrieval__depths``.
    """
    from msgspec.structs import fields

    from codeneedle.sweep.request import TABLES

    by_flag: dict[str, dict[tuple[str, str], Any]] = {}
    for table, kind in TABLES.items():
        for field in fields(kind):
            (described,) = field.type.__metadata__
            owners = by_flag.setdefault(described.extra["option"], {})
            owners[table, field.name] = described
    return {"__".join(chain(*owners)): owners for owners in by_flag.values()}


def _option_of_settings(described: Sequence[Any]) -> Any:
    """
    The annotation of the option for one setting, or several, by their metadata.

    It is read as a text; `sweep.request.with_options` checks and converts that.
    """
    extra = described[0].extra
    flag, text = (
        extra["option"],
        _join_distinct(" ", (d.description for d in described)),
    )
    default = _join_distinct("; ", (d.extra.get("default") for d in described))
    if "/--no-" in flag:
        return Annotated[
            bool | None, typer.Option(flag, help=text, show_default=default)
        ]
    metavar = extra.get("metavar", "N")
    read = {"LIST": parse_distinct_words, "NUMBERS": parse_words}.get(
        metavar, parse_word
    )
    return optional_text_option(flag, metavar, read, text, default)


def _join_distinct(glue: str, texts: Iterable[str | None]) -> str:
    """The distinct *texts* that are not empty, in order, with *glue* between them."""
    return glue.join(dict.fromkeys(text for text in texts if text))


def long_option_names(params: Iterable[Any]) -> list[str]:
    """The long options of *params*."""
    options = chain.from_iterable(param.opts for param in params)
    return [option for option in options if option.startswith("--")]


def _refuse_unknown_option(
    unknown: str, given: Sequence[str], known: Collection[str]
) -> None:
    """
    Stop at an *unknown* option, if it is among *given*, with what to write instead.

    Raises:
        BadInput: With our own option for it, the nearest of those that are *known*, or
            the place of what is llama-server's.
    """
    from codeneedle.engines.llama_cpp.arguments import REFUSED

    at = next((at for at, word in enumerate(given) if word.startswith(unknown)), None)
    if at is None:
        return
    option, equals, _ = given[at].partition("=")
    hint = REFUSED.get(option) or REFUSED.get(f"-{option.lstrip('-')}")
    if not hint and option.startswith("--") and (near := near_option(option, known)):
        hint = f"Did you mean '{near}'?"
    if not hint:
        value = [text for text in given[at + 1 : at + 2] if text[:1] != "-"]
        words = " ".join([given[at], *([] if equals else value)])
        hint = (
            f"Arguments of llama-server come after --: codeneedle sweep ... -- {words}"
        )
    raise BadInput(source=option, reason="is no option of codeneedle", hint=hint)


def near_option(option: str, known: Iterable[str]) -> str:
    """The one of *known* that *option* is likely to mean; empty if none is."""
    by_word = {name.lstrip("-"): name for name in known}
    return by_word.get(nearest_name(option.lstrip("-"), by_word), "")


def refuse_deleted_working_folder() -> None:
    """
    Stop in a working folder that has been deleted.

    Raises:
        BadInput: If it has.
    """
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise BadInput(
            source="the working folder",
            reason="is gone",
            hint="Change to one that exists, and run the command there.",
        ) from error


def split_server_args(given: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """
    The words of a command line before ``--``, and those for llama-server after it.

    Raises:
        BadInput: If what follows ``--`` does not begin with a dash.
    """
    if "--" not in given:
        return list(given), ()
    at = list(given).index("--")
    ours, theirs = given[:at], tuple(given[at + 1 :])
    if theirs and not theirs[0].startswith("-"):
        raise BadInput(
            source=f"-- {theirs[0]}",
            reason="arguments for llama-server begin with a dash",
            hint="Name a sweep before --, one at a time.",
        )
    return list(ours), theirs


def resolve_request(
    given: Mapping[str, Any], *, decide: bool | None = None
) -> "tuple[Request, Execution]":
    """
    The request and the execution by the *given* values of options.

    Other values come from the sweep file or run folder, if one is named, then from the
    environment.

    Args:
        given: By name of an option of `SWEEP_OPTIONS` or `_settings_metadata`.
        decide: Whether outcomes choose the pairs; None for the value of the sweep file.

    Raises:
        RequestError: If the sweep file is unknown or wrong, or if an option belongs to
            a probe or an engine that is not used.
    """
    from msgspec.structs import replace

    from codeneedle.probes import PROBES, USUAL
    from codeneedle.sweep.request import (
        Execution,
        Request,
        find_run_folder,
        named_and_implied_probes,
        read_sweep,
        with_options,
    )

    of_command = {field.name for field in dataclasses.fields(Execution)}
    execution = Execution(**{k: v for k, v in given.items() if k in of_command})
    sweep = given.get("sweep")
    if sweep and "out" not in given:
        execution = dataclasses.replace(execution, folder=find_run_folder(sweep))
    stored = read_sweep(sweep) if sweep else Request()
    lasting = given.keys() - of_command - {"sweep"}
    options = {name: given[name] for name in lasting if "__" not in name}
    decides = stored.decide if decide is None else decide
    used = (
        *(options.get("probes", stored.probes) or USUAL),
        options.get("engine", stored.engine),
        *((_deciding_probe_name(),) if decides else ()),
        *(name for name, p in PROBES.items() if f"{name}__{p.asked_by}" in given),
    )
    for name in sorted(lasting - options.keys()):
        table, field = _table_and_field_of_option(name, used)
        options.setdefault(table, {})[field] = given[name]
    request = replace(with_options(stored, options), decide=decides)
    return replace(
        request,
        corpus=request.corpus or os.environ.get(CORPUS) or None,
        probes=named_and_implied_probes(request, is_named="probes" in options),
    ), execution


def resolve_cell_request(
    model: Any,
    context: int | None,
    engine: str,
    llama_server: Path | None,
    args: Any,
    *,
    env: tuple[str, ...] | None = None,
) -> "tuple[Request, Execution]":
    """
    The request and the execution of a command that serves single cells.

    *model* is a tuple of names, and *args* one of the words after ``--``.

    Raises:
        BadInput: If the engine is one whose address or command cannot be given here.
    """
    from codeneedle.engines.openai.settings import COMMAND, ENDPOINT

    if engine in {COMMAND, ENDPOINT}:
        raise BadInput(
            source=f"--engine {engine}",
            reason="is a server of your own, which answers you without codeneedle",
            hint=f"Measure it: codeneedle sweep --engine {engine} --help",
        )
    options = {
        "models": model,
        "contexts": (context,) if context else None,
        "engine": engine,
        "llama_server": llama_server,
        "env": env,
        "server_args": args,
    }
    return resolve_request({name: given for name, given in options.items() if given})


def _deciding_probe_name() -> str:
    """Name of the probe that a sweep that decides asks; imported when it is."""
    from codeneedle.verdict.next import (
        PROBE,
    )

    return PROBE.name


def _table_and_field_of_option(name: str, used: Sequence[str]) -> tuple[str, str]:
    """
    The probe or engine, and the field, that an option of `_settings_metadata` sets.

    Raises:
        BadInput: If none or several of those that have it are *used*.
    """
    owners = _settings_metadata()[name]
    chosen = [owner for owner in owners if owner[0] in used]
    if len(chosen) == 1:
        return chosen[0]
    described = next(iter(owners.values()))
    flag = described.extra["option"].partition("/")[0]
    if chosen:
        raise BadInput(
            source=flag,
            reason=f"{' and '.join(table for table, _ in chosen)} both take it",
            hint="Sweep one after the other, or write a sweep file with a table for "
            "each.",
        )
    ways = [_probe_or_engine_option(table) for table, _ in owners]
    raise BadInput(
        source=flag,
        reason=f"belongs to {' or '.join(ways)}",
        hint=f"Add {ways[0]}, or leave {flag} out.",
    )
