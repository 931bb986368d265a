"""The set of languages: each module of the folder is one."""

import ast
import importlib
from pathlib import Path

import pytest

from codeneedle.corpora import languages
from codeneedle.corpora.languages import functions_in, of_suffix, suffixes
from codeneedle.errors import BadInput

FOLDER = Path(languages.__file__).parent


def test_every_file_of_the_folder_is_a_language():
    """
    Adding a language is adding a file.
    """
    files = sorted(file.stem for file in FOLDER.glob("*.py") if file.stem[0] != "_")

    assert ["javascript", "php", "python"] == files
    assert files == list(languages.known())


def test_no_suffix_belongs_to_two_languages():
    """
    A file's suffix says how it is read.
    """
    assert sorted(set(suffixes())) == sorted(suffixes())


@pytest.mark.parametrize("name", ["javascript", "php", "python"])
def test_a_language_says_what_the_set_asks(name):
    """
    Suffixes with their dot, a comment with a gap, and a docstring of its own.
    """
    module = importlib.import_module(f"codeneedle.corpora.languages.{name}")

    assert all(suffix[0] == "." and suffix.islower() for suffix in module.SUFFIXES)
    assert "{}" in module.COMMENT
    assert ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text("utf-8")))


def test_a_suffix_is_known_in_either_case():
    """
    ``MAIN.PY`` is Python.
    """
    python = of_suffix(".PY")

    assert python is not None
    assert "python" == python.name


def test_an_unknown_suffix_is_an_error_that_lists_the_known_ones():
    """
    A person sees what could be read instead.
    """
    with pytest.raises(BadInput) as caught:
        functions_in("x", ".cobol")

    assert ".cobol" in str(caught.value)
    assert ".php" in caught.value.hint
