"""
The arguments of all commands: one definition each, and how their text is read.

The parser is argparse: importing it takes a tenth of the time that larger command line
libraries take, and `codeneedle --help` is little but imports.
"""

import argparse
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from codeneedle.errors import BadInput, UnknownName, did_you_mean
from codeneedle.grid import DEFAULT_TYPES, by_precision

if TYPE_CHECKING:
    import msgspec

    from codeneedle.sweep.request import Request

CORPUS = "CORPUS"
"""Environment variable that names the corpus where no option or sweep file does."""

RUNS = Path("sweeps")
"""
Default of ``--out``. The same as `sweep.request.DEFAULT_OUT`, whose module takes too
long to import for a help text.
"""

Reader = Callable[[str, str], Any]
"""Takes the name of an argument and its text; returns the value, or raises BadInput."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """
    One argument of a command.

    Attributes:
        name: Parameter of the command, or field of a `Request`, that takes the value.
        flag: Such as ``--metric``; empty for a positional argument.
        help: One sentence for the help text.
        read: Turns its text into its value; None for a flag that has no text.
        metavar: What stands for the text in help texts.
        default: What is used if it is not given, for the help text; may be empty.
        has_negative: Whether a flag ``--x`` has a ``--no-x``. Every flag that a
            sweep file can set needs one, to be overruled.
        is_required: Whether a positional argument must be given.
    """

    name: str
    flag: str = ""
    help: str
    read: Reader | None = None
    metavar: str = ""
    default: str = ""
    has_negative: bool = False
    is_required: bool = True

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Make *parser* accept it; it leaves no trace there if it is not given."""
        default = f" (default: {self.default})" if self.default else ""
        keywords: dict[str, Any] = {
            "help": f"{self.help}{default}".replace("%", "%%"),
            "default": argparse.SUPPRESS,
        }
        if self.read is None:
            negative = argparse.BooleanOptionalAction
            action = negative if self.has_negative else "store_true"
            parser.add_argument(self.flag, dest=self.name, action=action, **keywords)
            return
        keywords |= {
            "metavar": self.metavar,
            "type": functools.partial(self.read, self.flag or self.metavar),
        }
        if self.flag:
            parser.add_argument(self.flag, dest=self.name, **keywords)
        else:
            nargs = None if self.is_required else "?"
            parser.add_argument(self.name, nargs=nargs, **keywords)


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises what is wrong instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """
        Refuse the command line.

        Raises:
            BadInput: Always.
        """
        raise BadInput(source=self.prog, reason=message, hint=f"See {self.prog} --help")


def parsed(
    words: Sequence[str],
    arguments: Iterable[Argument],
    *,
    prog: str,
    description: str,
    after: str = "",
) -> dict[str, Any]:
    """
    The values of those *arguments* that *words* give, by name.

    Options may stand before, between and after positional arguments.

    Raises:
        BadInput: If a word is no argument, a required one is missing, or its text
            cannot be read.
        SystemExit: If the help text was asked for; it has been printed.
    """
    known = list(arguments)
    places = (
        each.metavar if each.is_required else f"[{each.metavar}]"
        for each in known
        if not each.flag
    )
    parser = Parser(
        prog=prog,
        usage=" ".join([prog, "[OPTIONS]", *places, after]).rstrip(),
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for argument in known:
        argument.add_to(parser)
    found, unknown = parser.parse_known_intermixed_args(list(words))
    if unknown:
        flags = [flag for action in parser._actions for flag in action.option_strings]  # noqa: SLF001 - argparse keeps no public list
        first = unknown[0].partition("=")[0]
        is_option = first.startswith("-")
        raise BadInput(
            source=prog,
            reason=f"unknown option '{first}'"
            if is_option
            else f"'{first}': one word too many",
            hint=did_you_mean(first, flags) if is_option else f"See {prog} --help",
        )
    return vars(found)


# --- how texts are read


def word(name: str, text: str) -> str:
    """*text*, unless it is empty: that is an unset shell variable, not a wish."""
    if not text:
        raise BadInput(source=name, reason="'' is empty", hint="Give it a value.")
    return text


def path(name: str, text: str) -> Path:
    """*text* as a path, ``~`` expanded."""
    from codeneedle.system.files import expanded

    return expanded(word(name, text))


def words(name: str, text: str) -> tuple[str, ...]:
    """The distinct words of a list that is separated by commas."""
    found = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    if not found:
        raise BadInput(
            source=name,
            reason=f"'{text}' is an empty list",
            hint="Separate values by commas, or leave the option out.",
        )
    return found


def types(name: str, text: str) -> tuple[str, ...]:
    """Cache types, most precise first."""
    return tuple(by_precision(words(name, text)))


def number(name: str, text: str, *, least: int | None = None) -> int:
    """A whole number, not below *least*."""
    at_least = "" if least is None else f", {least} or more"
    try:
        value = int(text)
    except ValueError:
        value = None
    if value is None or (least is not None and value < least):
        raise BadInput(
            source=name,
            reason=f"'{text}' is not a whole number{at_least}",
            hint=f"Give a whole number{at_least}.",
        )
    return value


def _list_of(read: Reader, name: str, text: str) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(read(name, each) for each in words(name, text)))


def _one_path(name: str, text: str) -> tuple[Path, ...]:
    return (path(name, text),)


def _rotations(name: str, text: str) -> tuple[bool, ...]:
    import codeneedle.probes  # noqa: F401 - probes and requests import each other
    from codeneedle.sweep import request

    return request.rotations(words(name, text))


def _prompt_form(name: str, text: str) -> str:
    from codeneedle.probes.prompts import PromptForm

    known = [form.value for form in PromptForm]
    if text not in known:
        raise UnknownName(kind=f"value of {name}", name=text, known=known)
    return PromptForm(text)


# --- what several commands take


def option(
    flag: str,
    metavar: str,
    read: Reader,
    help: str,  # noqa: A002 - as argparse calls it
    default: str = "",
    *,
    name: str = "",
) -> Argument:
    """An option with a value; its name is that of the flag unless *name* is given."""
    return Argument(
        name=name or flag.lstrip("-").replace("-", "_"),
        flag=flag,
        metavar=metavar,
        read=read,
        help=help,
        default=default,
    )


def switch(flag: str, help: str, *, negated: str = "") -> Argument:  # noqa: A002 - as argparse calls it
    """A flag; it has a ``--no-`` form if *negated* says what is used without it."""
    name = flag.lstrip("-").replace("-", "_")
    return Argument(
        name=name, flag=flag, help=help, default=negated, has_negative=bool(negated)
    )


def place(name: str, metavar: str, help: str, *, is_required: bool = True) -> Argument:  # noqa: A002 - as argparse calls it
    """A positional argument, a non-empty text."""
    return Argument(
        name=name, metavar=metavar, read=word, help=help, is_required=is_required
    )


NAME = place("name", "NAME", "A corpus, corpus/model, or the beginning of its name.")
CORPUS_NAME = place("name", "NAME|PATH", "A corpus by name, or a path.")
SWEEP_NAME = place(
    "sweep",
    "SWEEP",
    "A sweep file by name; arguments for llama-server after --.",
    is_required=False,
)
METRIC = option(
    "--metric", "METRIC", word, "What to show; an unknown one lists all.", "matched"
)
STRICT_INDENT = switch("--strict-indent", "Compare leading white space, too.")
JSON = switch("--json", "Print JSON.")
FORMS = (
    switch("--csv", "Print CSV: one row per pair."),
    JSON,
    switch("--markdown", "Print Markdown."),
)
MODEL = option("--model", "GGUF", path, "Weights of the model.", "the built-in model")
LLAMA_SERVER = option(
    "--llama-server",
    "PATH",
    path,
    "The llama-server to use.",
    "LLAMA_SERVER, PATH, or the one that 'codeneedle llama' built",
)
OUT = option("--out", "FOLDER", path, "Folder of all run folders.", str(RUNS))

_context = functools.partial(number, least=256)

SWEEP_OPTIONS = (
    option(
        "--corpus",
        "NAME|PATH",
        word,
        "A corpus by name, a file, or a folder; see 'codeneedle corpus list'.",
        f"the environment's {CORPUS}, or what suits the model",
    ),
    dataclasses.replace(MODEL, name="models", read=_one_path),
    option(
        "--types",
        "LIST",
        types,
        "Cache types of K and V, separated by commas.",
        ",".join(DEFAULT_TYPES),
    ),
    option("--k-types", "LIST", types, "Cache types of K alone."),
    option("--v-types", "LIST", types, "Cache types of V alone."),
    option(
        "--probe",
        "LIST",
        words,
        "What to measure: recall, divergence, throughput.",
        "recall",
        name="probes",
    ),
    option(
        "--context",
        "LIST",
        functools.partial(_list_of, _context),
        "Context sizes in tokens, each a grid of its own.",
        "16384, or what the weights were trained for",
        name="contexts",
    ),
    option(
        "--rotation",
        "LIST",
        _rotations,
        "Hadamard rotation of quantized values: on, off, or both.",
        "on",
        name="rotations",
    ),
    option(
        "--prompt-form",
        "FORM",
        _prompt_form,
        "How a function is asked for: chat or completion.",
        "chat where the weights have a template",
    ),
    switch(
        "--prefill-no-think",
        "Begin answers with an empty thought, for models that think anyway.",
        negated="no",
    ),
    switch(
        "--fit",
        "Trim a corpus that is longer than the context, or refuse it.",
        negated="fit",
    ),
    switch(
        "--skip-fallback",
        "End a cell before it is measured if attention leaves the GPU.",
        negated="no",
    ),
    switch(
        "--speculate",
        "Let llama-server draft answers from the corpus: faster, but without margins.",
        negated="no",
    ),
    option(
        "--seed", "N", number, "Of the running order and of the server's sampler.", "42"
    ),
    LLAMA_SERVER,
    OUT,
)
"""
What every command takes that plans a sweep; each but ``--types`` is a field of a
`Request`. The settings of probes are not among them: see `sweep_options`.
"""


def sweep_options() -> tuple[Argument, ...]:
    """What every command takes that plans a sweep, settings of all probes included."""
    from codeneedle.probes import PROBES

    of_probes = (
        argument
        for probe in PROBES.values()
        for argument in _settings_options(probe.name, probe.settings)
    )
    return (*SWEEP_OPTIONS, *of_probes)


def _settings_options(
    probe: str, settings: "type[msgspec.Struct]"
) -> Iterator[Argument]:
    """An option for each field of a probe's *settings*; its name is ``probe.field``."""
    import msgspec

    for field in msgspec.structs.fields(settings):
        described = field.type.__metadata__[0]
        extra = described.extra
        reader, metavar = _reader(msgspec.inspect.type_info(field.type))
        yield option(
            extra["option"],
            extra.get("metavar", metavar),
            reader,
            described.description,
            extra.get("default", ""),
            name=f"{probe}.{field.name}",
        )


def _reader(kind: "msgspec.inspect.Type") -> tuple[Reader, str]:
    """
    What reads the text of a field of this *kind*, and what stands for it in help texts.

    The limits of numbers are checked with the rest of the settings.
    """
    from msgspec import inspect

    match kind:
        case inspect.Metadata():
            return _reader(kind.type)
        case inspect.UnionType():
            (only,) = (
                each for each in kind.types if not isinstance(each, inspect.NoneType)
            )
            return _reader(only)
        case inspect.VarTupleType():
            return functools.partial(_list_of, _reader(kind.item_type)[0]), "LIST"
        case inspect.IntType():
            return number, "N"
        case inspect.CustomType():
            return path, "PATH"
    return word, "WORD"


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


def request_of(given: Mapping[str, Any]) -> "Request":
    """
    The request that *given* values of `SWEEP_NAME` and `sweep_options` make.

    What is not given is taken from the sweep file that is named, if one is; what
    neither says, from the environment.

    Raises:
        RequestError: If the sweep file is unknown or wrong.
    """
    import codeneedle.probes  # noqa: F401 - probes and requests import each other
    from codeneedle.sweep.request import (
        Request,
        asked_for,
        overruled,
        read_sweep_file,
    )

    chosen = {name: value for name, value in given.items() if "." not in name}
    of_probes: dict[str, dict[str, Any]] = {}
    for name in given.keys() - chosen.keys():
        probe, _, field = name.partition(".")
        of_probes.setdefault(probe, {})[field] = given[name]
    sweep = chosen.pop("sweep", None)
    both = chosen.pop("types", None)
    if both:
        chosen = {"k_types": both, "v_types": both} | chosen
    stored = asked_for(read_sweep_file(sweep)) if sweep else {}
    corpus = os.environ.get(CORPUS)
    named = {"corpus": corpus} if corpus else {}
    settings = overruled(stored.pop("settings", {}), of_probes)
    return Request(**{**named, **stored, **chosen, "settings": settings})


def one_form(**asked: bool) -> None:
    """
    Refuse two forms of one report: only one can be printed.

    Raises:
        BadInput: If more than one is asked for.
    """
    chosen = [f"--{name}" for name, is_asked in asked.items() if is_asked]
    if len(chosen) > 1:
        raise BadInput(
            source=" and ".join(chosen), reason="choose one", hint="Leave one out."
        )
