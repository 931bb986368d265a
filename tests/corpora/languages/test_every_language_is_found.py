"""The set of languages: each module of the folder is one."""

import importlib
from pathlib import Path

import pytest

from codeneedle.corpora import languages
from codeneedle.corpora.languages import Unparsable, of_suffix


def test_every_file_of_the_folder_is_a_language():
    folder = Path(languages.__file__).parent
    files = sorted(file.stem for file in folder.glob("*.py") if file.stem[0] != "_")
    of_language = {
        "javascript": (".js", ".mjs", ".cjs"),
        "php": (".php",),
        "python": (".py", ".pyw"),
    }

    assert files == list(of_language) == list(languages.all_languages())
    for name, suffixes in of_language.items():
        module = importlib.import_module(f"codeneedle.corpora.languages.{name}")
        assert suffixes == module.SUFFIXES
        assert "{}" in module.COMMENT
        for suffix in suffixes:
            assert name == of_suffix(suffix.upper(), source="x").name


@pytest.mark.parametrize(
    ("suffix", "text", "line"),
    [
        (".js", "function f( {\n}\n", 1),
        (".js", "let let = ;\n", 1),
        (".js", "type A = 1\n", 1),
        (".php", "<?php\n\nfunction f( {\n}\n", 3),
        (".py", "def f(:\n    pass\n", 1),
        (".py", "x = 1\nprint 'python 2'\n", 2),
        (".py", "\n" * 4 + "  x = 1\n", 5),
        (".py", "x = '\0'\n", None),
        (".py", "(" * 10_000, None),
        (".py", f"x = {'-' * 50_000}1", None),
    ],
)
def test_what_is_in_no_language_is_unparsable(suffix, text, line):
    language = of_suffix(suffix, source="x")
    with pytest.raises(Unparsable) as caught:
        language.functions(text)

    assert f"not valid {language.name}:" in str(caught.value).lower()
    assert line is None or line == caught.value.line
