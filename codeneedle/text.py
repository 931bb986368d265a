"""
Formats numbers, durations and sizes; escapes foreign text for terminals and Markdown,
and leaves out the folders of paths.
"""

import functools
import math
import re
import shlex
import unicodedata

_KIB = 1024
MIB = _KIB**2
_SURROGATES = re.compile("[\ud800-\udfff]")


def duration_text(seconds: float) -> str:
    """``8.2 s``, ``3:07``, ``1:02:03``, or ``2 d 4 h`` from two days on."""
    if round(seconds, 1) < 60:  # noqa: PLR2004 - a minute, as it is printed
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:  # noqa: PLR2004 - two days
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size_text(count: float) -> str:
    """Bytes as ``512 B``, ``1.7 MiB`` or ``15.9 GiB``."""
    unit = "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        # Rounded as it is printed: 1024.0 KiB is 1.0 MiB.
        if round(count, 1) < _KIB or unit == "TiB":
            break
        count /= _KIB
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


def mib_of_bytes(count: float) -> float:
    """Bytes in MiB."""
    return count / MIB


def one_line(text: str) -> str:
    """*text* on one line, with single spaces."""
    return " ".join(text.split())


def plural(count: int, noun: str) -> str:
    """``1 cell``, ``36 cells``, ``1,024 tokens``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def replace_surrogates(text: str) -> str:
    """*text* with lone surrogates, which UTF-8 cannot encode, replaced by U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)


_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""
Unicode categories that are invisible or change the output: controls, formatting
(zero-width and direction marks), lone surrogates, private and unassigned code points,
line and paragraph separators.
"""


def escape_invisible(text: str) -> str:
    r"""
    Escape every invisible character of *text* as Python does: ``\x1b``, ``\u202e``.

    Line ends, tabs and all spaces but the plain one are escaped, too, so the result is
    one line. A backslash is not, so the result cannot always be decoded.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_escape_character, text))


def escape_invisible_in_lines(text: str) -> str:
    """*text* as `escape_invisible` writes it, with its line ends and tabs unchanged."""
    return re.sub(r"[^\n\t]+", lambda part: escape_invisible(part[0]), text)


@functools.lru_cache(maxsize=4096)
def _escape_character(character: str) -> str:
    """*character*, escaped if it is hidden or an odd space."""
    category = unicodedata.category(character)
    is_odd_space = category == "Zs" and character != " "
    if category not in _HIDDEN and not is_odd_space:
        return character
    return character.encode("unicode_escape").decode("ascii")


def sweep_command(folder: object, *options: str) -> str:
    """The command that resumes the run in *folder*, quoted for a shell."""
    return escape_invisible(shlex.join(["codeneedle", "sweep", str(folder), *options]))


_FOLDERS = re.compile(
    r"(?<=[\"'])~?/[^\"'\n]*/(?=[^\"'/\n]+[\"'])"  # in quotes, blanks included
    r"|(?<![\w.:/~])~?/(?:[^/\s\"'=,]+/)+(?=[^/\s])"
)


def without_folders(text: str) -> str:
    """
    *text* with the names of its absolute paths alone: of ``/home/me/a.gguf`` the file.

    Addresses stay.
    """
    return _FOLDERS.sub("", text)


_MARKDOWN = re.compile(
    r"[\\`*_|<>\[\]~$&]"
    r"|(?<![A-Za-z0-9_])@(?=\w)"  # a user, who is notified
    r"|#(?=\d)"  # an issue, of another repository with its name before it
    r"|(?<=\bGH)-(?=\d)"  # an issue, by its other form: GH-12
    r"|^[#+-](?=[ #])"  # a heading or a list in a list
    r"|:(?=//)|(?<=\bwww)\.",  # an address, which becomes a link
    re.IGNORECASE,
)
"""What has a meaning in GitHub's Markdown, in the middle of a line."""


def escape_markdown(text: str) -> str:
    """
    *text* on one line, escaped for Markdown and HTML.

    A backslash before ``@`` and ``#`` does not keep GitHub from linking; an empty
    comment does.
    """
    return _MARKDOWN.sub(_escape_match, escape_invisible(text))


def _escape_match(found: re.Match[str]) -> str:
    """What was *found*, with an empty comment behind it, or a backslash before it."""
    return f"{found[0]}<!-- -->" if _needs_comment_to_escape(found) else f"\\{found[0]}"


def _needs_comment_to_escape(found: re.Match[str]) -> bool:
    """Whether what was *found* by `_MARKDOWN` makes a link despite a backslash."""
    return found[0] in "@#:.-" and found.string[found.end() :][:1] not in " #"


NO_VALUE_WORD = "-"
"""Shown where there is no value."""


def number_text(value: float, *, digits: int, sign: bool = False) -> str:
    """*value* with *digits* decimals, never ``-0.00``; `NO_VALUE_WORD` for NaN."""
    if math.isnan(value):
        return NO_VALUE_WORD
    return f"{value:{'+' if sign and round(value, digits) else ''}z.{digits}f}"


def json_value_phrase(value: object) -> str:
    """
    A value of JSON as a phrase: ``on``, ``single, multikey``, ``4096``.

    ``none`` for None and what is empty.
    """
    if value is None or value in ("", [], ()):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(map(json_value_phrase, value))
    return str(value)
