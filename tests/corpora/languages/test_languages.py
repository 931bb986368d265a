"""The set of languages: each module of the folder is one."""

import importlib
from pathlib import Path

import pytest

from codeneedle.corpora import languages
from codeneedle.corpora.languages import of_suffix
from codeneedle.errors import BadInput


def test_every_file_of_the_folder_is_a_language():
    """
    Adding a language is adding a file; a suffix belongs to one, in either case.
    """
    folder = Path(languages.__file__).parent
    files = sorted(file.stem for file in folder.glob("*.py") if file.stem[0] != "_")
    of_language = {
        "javascript": (".js", ".mjs", ".cjs"),
        "php": (".php",),
        "python": (".py", ".pyw"),
    }

    assert files == list(of_language) == list(languages.known())
    for name, suffixes in of_language.items():
        module = importlib.import_module(f"codeneedle.corpora.languages.{name}")
        assert suffixes == module.SUFFIXES
        assert "{}" in module.COMMENT
        for suffix in suffixes:
            assert name == of_suffix(suffix.upper(), source="x").name


def test_an_unknown_suffix_is_an_error_that_lists_the_known_ones():
    """
    A person sees what could be read instead.
    """
    with pytest.raises(BadInput, match="mine: its language") as caught:
        of_suffix(".cobol", source="mine")
    assert ".php" in caught.value.hint
