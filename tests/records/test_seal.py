"""Seals: what was written can be told from what was not."""

import json

import pytest

from codeneedle.records.encoding import is_intact, sealed


@pytest.mark.parametrize("body", [b'{"a": 1}', b'{\n "a": 1\n}\n', b'{"a": {}}'])
def test_a_sealed_object_is_still_json(body):
    """
    The seal is one more key, and the last.
    """
    data = sealed(body)

    assert is_intact(data)
    assert [*json.loads(body), "crc32"] == list(json.loads(data))


def test_one_changed_bit_anywhere_breaks_the_seal():
    """
    In the seal itself, too: it is broken or gone, never intact.
    """
    data = sealed(b'{"number": 12345, "text": "abc"}')
    end = len(data.rstrip())

    for bit in range(8 * end):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not is_intact(bytes(damaged))


def test_what_bears_no_seal_is_neither_intact_nor_broken():
    """
    Files of the first schema had none.
    """
    for data in (b"", b"{}", b'{"a": 1}', b'{"crc32": "no"}', sealed(b'{"a": 1}')[:-6]):
        assert is_intact(data) is None
