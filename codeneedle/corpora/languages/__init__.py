"""
The languages of source files by suffix, each a module that finds the functions in a
text.

A module of this folder is a language, unless its name begins with an underscore. It
has:

* ``TITLE``: its name, as people write it.
* ``SUFFIXES``: suffixes of files, lower case, with the dot.
* ``COMMENT``: a comment line, ``{}`` for its words.
* ``functions(text)``: the functions of a text whose lines end with newlines, verbatim,
  in the order of their lines. It raises `Unparsable`. Parsers are imported when a text
  is read, since help texts name the languages.
* ``phrase_of_unconfirmed(text, functions)``, if a second parser can check them: those
  that it does not find, as a phrase; empty without any.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from codeneedle.corpora.needles import Function
from codeneedle.errors import BadInput, RequestError
from codeneedle.text import plural


class Unparsable(RequestError):  # noqa: N818 - named after the fact
    """
    A text that the parser of its language does not accept, with what it has of
    functions all the same.
    """

    def __init__(
        self,
        *,
        language: str,
        line: int | None,
        reason: str,
        kept: Sequence[Function] = (),
    ) -> None:
        where = "" if line is None else f" (line {line})"
        count = plural(len(kept), "function")
        super().__init__(
            f"what is around a {reason} to the grammar of {language}{where}; "
            f"{count} kept"
            if kept
            else f"not valid {language}: {reason}{where}",
            hint="Correct that place, or leave the file out of the corpus.",
        )
        self.line = line
        self.kept = (*kept,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """A language, as its module defines it."""

    name: str  # name of the module: ``cpp``
    title: str  # as people write it: ``C++``
    suffixes: tuple[str, ...]  # suffixes of files, lower case, with the dot
    comment: str  # a comment line, ``{}`` for its words
    functions: Callable[[str], list[Function]]  # returns the functions of a text
    unconfirmed: Callable[[str, Sequence[Function]], str] | None
    """
    Returns the objection of a second parser to the functions of a text, empty without
    one; None if there is no such parser.
    """


@functools.cache
def all_languages() -> Mapping[str, Language]:
    """All languages by name; their parsers are imported when a text is read."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return {name: _import_language(name) for name in sorted(names) if name[0] != "_"}


def language_names_phrase() -> str:
    """The names of all languages as a phrase: ``C, Go or PHP``."""
    *first, last = sorted(language.title for language in all_languages().values())
    return f"{', '.join(first)} or {last}"


def suffixes() -> list[str]:
    """All suffixes, in the order of the languages."""
    return [
        suffix for language in all_languages().values() for suffix in language.suffixes
    ]


def language_of_suffix(suffix: str, *, source: str) -> Language:
    """
    The language whose files end with *suffix*, in either case.

    Raises:
        BadInput: About *source*, if there is none.
    """
    for language in all_languages().values():
        if suffix.lower() in language.suffixes:
            return language
    raise BadInput(
        source=source,
        reason="its language is not known",
        hint=f"Files of {language_names_phrase()} end with {', '.join(suffixes())}. "
        "For another suffix of one of these write a corpus file, such as "
        "corpora/mine.toml: "
        'files = ["../PATH"], language = "php".',
    )


def _import_language(name: str) -> Language:
    """The language of the module *name*, which is imported."""
    module = importlib.import_module(f"{__name__}.{name}")
    return Language(
        name=name,
        title=module.TITLE,
        suffixes=module.SUFFIXES,
        comment=module.COMMENT,
        functions=module.functions,
        unconfirmed=getattr(module, "phrase_of_unconfirmed", None),
    )
