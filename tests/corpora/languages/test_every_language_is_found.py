"""The set of languages: each module of the folder is one."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from codeneedle.corpora import languages
from codeneedle.corpora.languages import Unparsable, language_of_suffix


def test_every_file_of_the_folder_is_a_language():
    folder = Path(languages.__file__).parent
    files = sorted(file.stem for file in folder.glob("*.py") if file.stem[0] != "_")
    of_language = {
        "c": (".c", ".h"),
        "cpp": (
            *(".cpp", ".cc", ".cxx", ".c++"),
            *(".hpp", ".hh", ".hxx", ".h++", ".ipp", ".tpp"),
            *(".cu", ".cuh"),
        ),
        "go": (".go",),
        "java": (".java",),
        "javascript": (".js", ".mjs", ".cjs", ".jsx"),
        "php": (".php",),
        "python": (".py", ".pyw"),
        "rust": (".rs",),
        "tsx": (".tsx",),
        "typescript": (".ts", ".mts", ".cts"),
    }

    assert files == list(of_language) == list(languages.all_languages())
    for name, suffixes in of_language.items():
        module = importlib.import_module(f"codeneedle.corpora.languages.{name}")
        assert suffixes == module.SUFFIXES
        assert "{}" in module.COMMENT
        for suffix in suffixes:
            assert name == language_of_suffix(suffix.upper(), source="x").name


@pytest.mark.parametrize(
    ("suffix", "text", "line"),
    [
        (".js", "function f( {\n}\n", 1),
        (".js", "let let = ;\n", 1),
        (".js", "opaque type A = 1\n", 1),
        (".php", "<?php\n\nfunction f( {\n", 3),
        (".c", "int f(int a\n", 1),
        (".cpp", "\nclass {{\n", 2),
        (".rs", "fn f(\n", 1),
        (".go", "package a\nfunc {\n", 2),
        (".java", "class A {\n  void f( {\n", 1),
        (".ts", "function f(a: {\n", 1),
        (".tsx", "<a>\n", 1),
        (".py", "def f(:\n    pass\n", 1),
        (".py", "x = 1\nprint 'python 2'\n", 2),
        (".py", "\n" * 4 + "  x = 1\n", 5),
        (".py", "x = '\0'\n", None),
        (".py", "(" * 10_000, None),
        (".py", f"x = {'-' * 50_000}1", None),
    ],
)
def test_what_is_in_no_language_is_unparsable(suffix, text, line):
    language = language_of_suffix(suffix, source="x")
    with pytest.raises(Unparsable) as caught:
        language.functions(text)

    assert str(caught.value).startswith("not valid ")
    assert language.title in str(caught.value)
    assert () == caught.value.kept
    assert line is None or line == caught.value.line


def test_the_languages_are_named_as_people_write_them():
    named = languages.language_names_phrase()

    assert "C, C++, Go, " in named
    assert named.endswith("TSX or TypeScript")
    assert len(languages.all_languages()) == named.count(", ") + 2


@pytest.mark.slow
def test_naming_the_languages_loads_no_parser():
    program = (
        "import sys\n"
        "from codeneedle.corpora import languages\n"
        "languages.language_names_phrase()\n"
        "print(*[name for name in sys.modules if name.startswith('tree_sitter')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert "" == done.stdout.strip()
