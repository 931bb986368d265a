"""The architecture, as a test: folders import downwards only."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import codeneedle

PACKAGE = Path(codeneedle.__file__).parent

FOLDERS = (
    "__main__",
    "cli",
    "api",
    "report",
    "sweep",
    "verdict",
    "probes",
    "engines",
    "corpora",
    "models",
    "records",
    "system",
    "document",
    "reference",
    "cache_types",
    "quantities",
    "scores",
    "text",
    "errors",
    "exit_codes",
    "__init__",
)
"""Folders and flat modules, from the top: each imports from those below it only."""

ONLY = {
    "httpx": {"engines/http.py"},
    "subprocess": {"system/processes.py"},
    "pandas": {"api", "report"},
    "seaborn": {"report"},
    "matplotlib": {"report"},
    "typer": {"cli"},
}
"""Libraries that belong to one place."""


@cache
def sources() -> tuple[Path, ...]:
    """The modules of the package, relative to its folder."""
    return (*(path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py"))),)


def folder(path: Path) -> str:
    """The folder of a module, or the name of a flat one."""
    return path.parts[0].removesuffix(".py")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the syntax tree of a module, walked once for all tests."""
    return (*ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))),)


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Dotted names that a module imports, at any depth of its code."""
    plain = [node for node in nodes(path) if isinstance(node, ast.Import)]
    some = [node for node in nodes(path) if isinstance(node, ast.ImportFrom)]
    return (
        *(name.name for node in plain for name in node.names),
        *(f"{node.module}.{name.name}" for node in some for name in node.names),
    )


def strings(path: Path) -> Iterator[str]:
    """Strings in the code of a module, without docstrings."""
    docs = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
    for node in nodes(path):
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and id(node) not in docs:
            yield value


def imported_folders(path: Path) -> Iterator[str]:
    """Folders of this package that a module imports from."""
    for dotted in imported(path):
        root, _, rest = dotted.partition(".")
        if root == "codeneedle":
            first = rest.split(".")[0]
            yield first if first in FOLDERS else "__init__"


def test_every_folder_has_a_place_in_the_order():
    """A new folder is added to the order before it is used."""
    assert set() == {folder(path) for path in sources()} - set(FOLDERS)


def test_folders_import_only_from_folders_below_them():
    upward = {
        (str(path), target)
        for path in sources()
        if path != Path("__init__.py")  # imports the public names on first use
        for target in imported_folders(path)
        if FOLDERS.index(target) < FOLDERS.index(folder(path))
    }

    assert set() == upward


def module_names() -> dict[str, Path]:
    """The modules of the package, by dotted name."""
    return {
        ".".join(("codeneedle", *path.with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in sources()
    }


def imported_modules() -> dict[str, set[str]]:
    """What each module imports of this package, at any depth of its code."""
    modules = module_names()
    return {
        name: {
            dotted if dotted in modules else dotted.rpartition(".")[0]
            for dotted in imported(path)
        }
        & modules.keys() - {name}
        for name, path in modules.items()
        # The package imports its public names on first use.
        if name != "codeneedle"
    }


def test_no_module_needs_one_that_needs_it():
    """Also not by an import within a function, which only hides a circle."""
    left = imported_modules()
    while free := {name for name, needed in left.items() if not needed & left.keys()}:
        left = {name: needed for name, needed in left.items() if name not in free}

    assert {} == left


def test_reports_know_nothing_of_a_sweep_but_its_plan():
    """What is measured next, and its time, is said by the verdict."""
    readers = {
        str(path)
        for path in sources()
        if folder(path) == "report" and "sweep" in imported_folders(path)
    }

    assert {"report/plan.py"} == readers
    assert {"plan", "plan_notes", "running_order"} == {
        dotted.split(".")[2]
        for dotted in imported(Path("report/plan.py"))
        if dotted.startswith("codeneedle.sweep")
    }


ENGINES = ("llama_cpp", "mlx", "openai")

SPOKEN_BY_MLX = ("llama_cpp.client", "llama_cpp.base_file")
"""Its child answers as llama-server does and keeps distributions as llama-perplexity
does, so that one client and one format serve both."""


def engine_of(path: Path) -> str:
    """The engine in whose folder a module is; empty for other places."""
    first, second = (*path.parts, "")[:2]
    return second if first == "engines" and second in ENGINES else ""


def test_only_the_command_line_knows_which_engines_there_are():
    """One other module knows the tables that engines have in a sweep file."""
    strangers = {
        f"{path}: {dotted}"
        for path in sources()
        for dotted in imported(path)
        for engine in ENGINES
        if f"{dotted}.".startswith(f"codeneedle.engines.{engine}.")
        if engine_of(path) != engine and path.parts[0] != "cli"
        if str(path) != "engines/__init__.py"
        if not (
            engine_of(path) == "mlx" and any(one in dotted for one in SPOKEN_BY_MLX)
        )
    }

    assert set() == strangers


NAME_PROBES = {
    "report/display.py": "labels and decimals of all metrics",
    "report/speeds.py": "throughput by depth",
    "report/llama_form.py": "divergence as llama.cpp's maintainers read it",
}
"""The table of what metrics look like, and reports on what one probe measures."""


def test_reports_and_verdicts_ask_probes_without_naming_them():
    """A new probe is one folder and one line, and labels in `report/display`."""
    probes = {path.parts[1] for path in sources() if path.parts[0] == "probes"}
    named = {
        str(path)
        for path in sources()
        if path.parts[0] in {"report", "verdict"}
        for dotted in imported(path)
        if dotted.startswith("codeneedle.probes.")
        if dotted.split(".")[2] in {each for each in probes if "." not in each}
    }

    assert NAME_PROBES.keys() == named


WORDS = {
    "llama_cpp": (
        r"(?<![\w-])-(ctk|ctv|ngl|nkvo|fa|np|lv|sm)\b"
        r"|--(ctx-size|cache-type-[kv]|flash-attn|n-gpu-layers|(no-)?context-shift|jinja"
        r"|parallel|verbosity|cache-ram|fit-target|spec-type|reasoning-budget|n-depth"
        r"|kl-divergence|chat-template|rope-(?!factor)\w+|yarn-\w+|override-kv)\b"
        r"|/(health|props|slots|completion|apply-template|tokenize)\b"
        r"|\b(n_predict|n_probs|logit_bias|cache_prompt|completion_probabilities)\b"
        r"|root ::=|exceed_context_size|_logits_"
        r"|print_timing|kv_cache:|llama_context|n_ctx_|system_info|SET_ROWS"
        r"|Final estimate|cleaning up before exit|LLAMA_AR?|GGML_|ggml_"
        r"|llama-(server|perplexity|bench)"
    ),
    "mlx": (
        r"\bkv[2-8]\b|\bmlx[-_ ]|\bMLX\b|\bMetal\b"
        r"|--(kv-group-size|max-kv-size|quantized-kv-start|rope-factor)\b"
    ),
    "openai": (
        r"text_offset|token_logprobs|stream_options|include_usage"
        r"|continue_final_message|kv-cache-dtype"
        r"|--(served-name|api-key-env|command-env|evidence-by-memory)\b"
    ),
}
"""Options, endpoints, fields and log lines of each engine, the usual ones."""

ALLOWED = {
    ("cli", "llama_cpp"): "help, and what the doctor looks for",
    ("cli", "mlx"): "likewise",
    ("cli", "openai"): "likewise",
    ("engines/llama_cpp/backends.py", "mlx"): "a backend of llama.cpp has that name",
    ("engines/mlx/child.py", "llama_cpp"): "it answers as llama-server does",
    ("engines/mlx/engine.py", "llama_cpp"): "options of that child",
    ("engines/openai/settings.py", "llama_cpp"): "a path of many servers",
    ("probes/transcript/choice.py", "llama_cpp"): "no other renders conversations",
    ("cache_types.py", "mlx"): "types of all engines, whichever may be here",
    ("sweep/slurm.py", "llama_cpp"): "an option of ours is called like it",
    (
        "system/inherited_variables.py",
        "llama_cpp",
    ): "variables of drivers, and of what uses them",
}
"""Where words of another engine may stand, with the reason."""


@cache
def words_elsewhere() -> tuple[tuple[Path, str, str], ...]:
    """Modules with words of an engine in whose folder they are not, and the first."""
    texts = {path: "\0".join(strings(path)) for path in sources()}
    return tuple(
        (path, engine, found[0])
        for path in sources()
        for engine, words in WORDS.items()
        if engine_of(path) != engine
        if (found := re.search(words, texts[path]))
    )


def test_only_its_own_folder_knows_the_words_of_an_engine():
    """Docstrings, which cite them, are no code."""
    strangers = {
        (str(path), engine): word
        for path, engine, word in words_elsewhere()
        if not {(str(path), engine), (path.parts[0], engine)} & ALLOWED.keys()
    }

    assert {} == strangers


def test_what_may_know_an_engine_still_does():
    """A place that has lost its words is no exception any more."""
    places = {(str(path), engine) for path, engine, _ in words_elsewhere()}
    folders = {(path.parts[0], engine) for path, engine, _ in words_elsewhere()}

    assert set() == ALLOWED.keys() - places - folders


def test_nobody_does_something_else_for_an_engine_by_its_name():
    strangers = {
        str(path)
        for path in sources()
        if path.parts[0] not in {"cli", "engines"}
        for node in nodes(path)
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Name) and side.id == "ENGINE"
    }

    assert set() == strangers


@pytest.mark.parametrize("library", sorted(ONLY))
def test_a_library_stays_in_its_place(library):
    strangers = {
        str(path)
        for path in sources()
        for dotted in imported(path)
        if dotted.split(".")[0] == library
        if not any(str(path).startswith(place) for place in ONLY[library])
    }

    assert set() == strangers
