"""
Makes text from elsewhere safe to show: nothing in it moves a cursor or a line.

Replies, file names and log lines may hold terminal escapes, control characters and
marks that reverse the direction of writing. Here they become visible escapes.
"""

import functools
import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""
Categories that show nothing, or do something: controls, formatting (zero-width
and direction marks among it), lone surrogates, code points of no known look, line
and paragraph separators.
"""


def visible(text: str) -> str:
    r"""
    Write every invisible character of *text* as Python would: ``\x1b``, ``\u202e``.

    Line ends and tabs are escaped, too: the result is one line. Spaces other than
    the plain one become visible, since a reply that differs by one is otherwise a
    riddle. A backslash stays one, so the result cannot always be read back.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def field(text: str) -> str:
    """
    *text* as a field of CSV: visible, and no formula.

    Spreadsheets compute what begins with one of ``=+-@``; with an apostrophe before
    it, they show it. Numbers are not written by this.
    """
    shown = visible(text)
    return f"'{shown}" if shown.startswith(_FORMULAS) else shown


_FORMULAS = ("=", "+", "-", "@")


@functools.lru_cache(maxsize=4096)
def _visible(character: str) -> str:
    category = unicodedata.category(character)
    is_odd_space = category == "Zs" and character != " "
    if category not in _HIDDEN and not is_odd_space:
        return character
    return character.encode("unicode_escape").decode("ascii")
