"""Records and setups as bytes: written, read back, and brought up to date."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from codeneedle.records import (
    SCHEMA,
    BadRecord,
    BadSetup,
    CellRecord,
    Json,
    RecordTooNew,
    Setup,
)

_Layout = TypeVar("_Layout")

_UPGRADES: dict[int, Callable[[Json], Json]] = {}
"""One step per version: ``{1: what_version_2_changed, ...}``."""


def encode(stored: CellRecord | Setup) -> bytes:
    """As indented JSON. NaN and infinity become null: they are no observations."""
    return msgspec.json.format(msgspec.json.encode(stored), indent=1)


def decode_record(data: bytes, *, file: str) -> CellRecord:
    """
    Read a record, upgraded to the current schema.

    Raises:
        RecordTooNew: If a later codeneedle wrote it.
        BadRecord: If it is anything else than a record.
    """
    return _decode(data, CellRecord, file=file)


def decode_setup(data: bytes, *, file: str) -> Setup:
    """
    Read a setup, upgraded to the current schema.

    Raises:
        RecordTooNew: If a later codeneedle wrote it.
        BadSetup: If it is anything else than a setup.
    """
    try:
        return _decode(data, Setup, file=file)
    except BadRecord as error:
        raise BadSetup(file=file, reason=error.reason) from error


def _decode(data: bytes, layout: type[_Layout], *, file: str) -> _Layout:
    try:
        raw = msgspec.json.decode(data, type=Json)
        return msgspec.convert(_upgraded(raw, file=file), type=layout)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(file=file, reason=str(error)) from error


def _upgraded(raw: Json, *, file: str) -> Json:
    """Bring *raw* to the current schema, one version at a time."""
    found = raw.get("schema")
    if not isinstance(found, int):
        raise BadRecord(file=file, reason="it has no schema number")
    if found > SCHEMA:
        raise RecordTooNew(found=found, file=file)
    for version in range(found, SCHEMA):
        raw = {**_UPGRADES[version](raw), "schema": version + 1}
    return raw
