"""The seal of a file of ours: a checksum as its last key, so that damage shows."""

import re
import zlib

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
