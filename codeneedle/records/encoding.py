"""Records and setups as bytes: written, sealed with a checksum, read back, upgraded."""

import re
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from codeneedle.errors import BadInput
from codeneedle.records.record import (
    SCHEMA,
    BadRecord,
    BadSetup,
    CellRecord,
    Json,
    Setup,
)
from codeneedle.text import harmless

_SEAL = re.compile(rb'"crc32": "(?P<digits>[0-9a-f]{8})"[ \t\r\n]*\}[ \t\r\n]*')
_LONGEST_BYTES = 64
"""A seal is far shorter; the rest is room for the white space of an editor."""


def sealed(data: bytes) -> bytes:
    """
    The JSON object *data*, which is not empty, with a seal as its last key.

    CRC-32 finds every damage that spans up to 32 bits, and all but one in four
    billion of the others. It is no signature: who wants to forge a file, can.
    """
    start = data.rstrip().removesuffix(b"}").rstrip() + b",\n "
    return b'%b"crc32": "%08x"\n}\n' % (start, zlib.crc32(start))


def is_intact(data: bytes) -> bool | None:
    """Whether *data* is what was sealed; None if it bears no seal."""
    at = data.rfind(b'"crc32"', -_LONGEST_BYTES)
    seal = _SEAL.fullmatch(data, max(at, 0))
    if seal is None:
        return None
    return zlib.crc32(memoryview(data)[:at]) == int(seal["digits"], 16)


_FIRST_SEALED = 2
"""The first schema whose files bear a seal."""

_Layout = TypeVar("_Layout")

_UPGRADES: dict[int, Callable[[Json], Json]] = {
    1: lambda raw: raw,  # files of schema 1 bear no seal, and name no setup
}
"""One step per version: ``{1: what_version_2_changed, ...}``."""


def encode(stored: CellRecord | Setup) -> bytes:
    """
    As indented JSON, sealed; lists of numbers take one line.

    NaN and infinity become null: they are no observations. What no file can hold,
    such as the name of a folder that is no Unicode, becomes U+FFFD: better a reason
    with a hole than a record that is lost.
    """
    try:
        data = msgspec.json.encode(stored)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_harmless(msgspec.to_builtins(stored)))
    indented = msgspec.json.format(data, indent=1)
    return sealed(_NUMBERS.sub(_on_one_line, indented))


_NUMBERS = re.compile(rb"\[\n *-?\d[^][{}\"]*\]")
"""
A list that begins with a number on a line of its own, and holds no text.

Half of an indented record is white space around its numbers. Nothing inside of a
text is taken for such a list: its line ends are escaped.
"""


def _on_one_line(numbers: re.Match[bytes]) -> bytes:
    return b"".join(numbers[0].split())


def decode_record(data: bytes, *, file: str) -> CellRecord:
    """
    Read a record, upgraded to the current schema.

    Raises:
        BadInput: If a later codeneedle wrote it.
        BadRecord: If it is anything else than a record.
    """
    return _decode(data, CellRecord, file=file)


def decode_setup(data: bytes, *, file: str) -> Setup:
    """
    Read a setup, upgraded to the current schema.

    Raises:
        BadInput: If a later codeneedle wrote it.
        BadSetup: If it is anything else than a setup.
    """
    try:
        return _decode(data, Setup, file=file)
    except BadRecord as error:
        raise BadSetup(file=file, reason=error.reason) from error


def _harmless(value: Any) -> Any:
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, dict):
        return {_harmless(key): _harmless(inner) for key, inner in value.items()}
    is_list = isinstance(value, (list, tuple))
    return [_harmless(each) for each in value] if is_list else value


def _decode(data: bytes, layout: type[_Layout], *, file: str) -> _Layout:
    seal = is_intact(data)
    if seal is False:
        raise BadRecord(file=file, reason="it is not what was written (checksum)")
    try:
        raw = msgspec.json.decode(data, type=Json)
        found = _schema(raw, file=file)
        if seal is None and found >= _FIRST_SEALED:
            raise BadRecord(file=file, reason="its end is not what was written")
        return msgspec.convert(_upgraded(raw, found), type=layout)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(file=file, reason=str(error)) from error


def _schema(raw: Json, *, file: str) -> int:
    found = raw.get("schema")
    # Not isinstance: true would pass for 1.
    if type(found) is not int or found < 1:
        raise BadRecord(file=file, reason="it has no schema number")
    if found > SCHEMA:
        raise BadInput(
            source=file,
            reason=f"it has schema {found}, this codeneedle knows up to {SCHEMA}",
            hint="Update codeneedle, or choose another folder.",
        )
    return found


def _upgraded(raw: Json, found: int) -> Json:
    """Bring *raw* from schema *found* to the current one, a version at a time."""
    for version in range(found, SCHEMA):
        raw = {**_UPGRADES[version](raw), "schema": version + 1}
    return raw
