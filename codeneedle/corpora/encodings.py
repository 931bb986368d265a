"""The encoding of a source file: by its byte order mark, what it declares, or UTF-8."""

import codecs
import re

MARKS = (
    # Those of UTF-32 first: one begins as that of UTF-16 does.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks, with the codecs that drop them."""

_HEAD_BYTES = 4096
"""Of a file, where a declaration may stand; licences stand above ``<?php declare``."""

_COMMENT = re.compile(
    rb"^[ \t\f]*(?:<\?php\s*)?(?:#|//|/\*|\*).*?coding[:=][ \t]*([-\w.]+)", re.MULTILINE
)
"""
As PEP 263 has it, in comments of any language: ``# -*- coding: gbk -*-``, ``// vim:
fileencoding=cp1251``.
"""

_STATEMENTS = (
    re.compile(
        rb"""\bdeclare\s*\(\s*encoding\s*=\s*['"]([-\w.]+)['"]""", re.IGNORECASE
    ),
    re.compile(rb"""@charset\s+['"]([-\w.]+)['"]"""),
)
"""Of PHP, and of style sheets."""

_ENDS = re.compile(r"-(?:unix|dos|mac)$")
"""What Emacs writes behind an encoding, of the ends of lines."""


HINT = "Convert it: iconv -f ENCODING -t UTF-8 FILE > NEW_FILE"


class Undecodable(ValueError):  # noqa: N818 - named after the fact
    """Bytes that are no text in their encoding; the message says in which."""


def decode_bytes(data: bytes) -> str:
    """
    The text of *data*, without a byte order mark.

    Raises:
        Undecodable: If it is binary, is not what it declares to be, or is not UTF-8 and
            declares nothing: a guess would be measured as if it were the text.
    """
    encoding = next((name for mark, name in MARKS if data.startswith(mark)), "")
    declared = "" if encoding else _declared_encoding(data[:_HEAD_BYTES])
    if b"\0" in data and encoding not in {"utf-16", "utf-32"}:
        raise Undecodable("binary, or UTF-16 without a byte order mark")
    try:
        return _check_decoded_text(
            data.decode(encoding or _encoding_if_known(declared) or "utf-8"), declared
        )
    except UnicodeError as error:
        what = encoding.removesuffix("-sig").upper() or declared
        raise Undecodable(
            f"not {what}, which it says that it is"
            if what
            else f"not UTF-8 (line {_line_of_error(data, error)}), "
            "and declares no encoding"
        ) from error


def _declared_encoding(head: bytes) -> str:
    """
    The encoding that the *head* of a file declares; empty if there is none.

    A comment in its first two lines wins over a statement anywhere.
    """
    two = b"\n".join(
        head.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:2]
    )
    found = _COMMENT.search(two)
    for statement in _STATEMENTS:
        found = found or statement.search(head)
    return _ENDS.sub("", found[1].decode().lower()) if found else ""


def _encoding_if_known(declared: str) -> str:
    """*declared* if Python has such an encoding of texts, else empty."""
    try:
        # Only encodings of texts can do this; rot13 and base64 are known, too.
        return declared if "".encode(declared) is not None else ""
    except (LookupError, ValueError):
        return ""


def _check_decoded_text(text: str, declared: str) -> str:
    """
    *text*, if it can be sent and still has what declared its encoding.

    Raises:
        UnicodeError: Otherwise: UTF-16 reads ASCII as Chinese.
    """
    text.encode()
    head = text[:_HEAD_BYTES].lower()
    if "\0" in text or declared not in head.replace("\r", ""):
        raise UnicodeError(declared)
    return text


def _line_of_error(data: bytes, error: UnicodeError) -> int:
    """The line, from 1, of what cannot be decoded."""
    return data.count(b"\n", 0, getattr(error, "start", 0)) + 1
