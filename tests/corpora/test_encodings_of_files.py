"""Text is read in the encoding that its file declares, and never in a guessed one."""

import pytest
from source_files import put, python

from codeneedle.corpora.encodings import Undecodable, decode_bytes
from codeneedle.corpora.registry import load

CHINESE = "x = '模型缓存'\n"
RUSSIAN = "x = 'кэш'\n"


@pytest.mark.parametrize(
    ("declaration", "encoding", "text"),
    [
        ("# -*- coding: gbk -*-\n", "gbk", CHINESE),
        ("#!/usr/bin/python\n# vim: set fileencoding=cp1251 :\n", "cp1251", RUSSIAN),
        ("\x0c# coding=Latin-1\r\n", "latin-1", "x = 'é'\n"),
        ("// -*- coding: euc-jp-unix -*-\n", "euc-jp", "x = '日本'\n"),
        ("/* coding: shift_jis */\r", "shift_jis", "x = '日本'\n"),
        ("<?php # coding: koi8-r\n", "koi8-r", RUSSIAN),
        ("<?php\n/* ... */\ndeclare(encoding='gb18030');\n", "gb18030", CHINESE),
        ('<?php DECLARE( encoding = "Big5" ) ;\n', "big5", "x = '模型'\n"),
        ('@charset "windows-1251";\n', "cp1251", RUSSIAN),
        ("# coding: utf-8\n", "utf-8", CHINESE),
        ("# coding: klingon\n", "utf-8", CHINESE),
        ("\n\n# coding: gbk\n", "utf-8", CHINESE),
        ("encoding: gbk = 1\n", "utf-8", CHINESE),
        ("# coding: rot13\n", "utf-8", CHINESE),
    ],
)
def test_a_declaration_is_obeyed(declaration, encoding, text):
    data = f"{declaration}{text}".encode(encoding)

    assert f"{declaration}{text}" == decode_bytes(data)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_is_obeyed_and_dropped(encoding):
    text = f"# coding: gbk\n{CHINESE}"

    assert text == decode_bytes(text.encode(encoding))


def test_a_mark_of_another_byte_order_is_obeyed():
    assert CHINESE == decode_bytes(f"\ufeff{CHINESE}".encode("utf-16-be"))
    assert CHINESE == decode_bytes(f"\ufeff{CHINESE}".encode("utf-32-be"))


@pytest.mark.parametrize(
    "data",
    [
        CHINESE.encode("gbk"),
        b"# coding: ascii\n" + CHINESE.encode(),
        b"# coding: klingon\n" + CHINESE.encode("gbk"),
        b"# coding: utf-16\nx = 1\n",
        b"# coding: utf-7\nx = '+2AA-'\n",
        b"\xff\xfe\0\xd8x\0",
        b"x = '\0'\n",
        f"x = 1\n{CHINESE}".encode("utf-16-le"),
    ],
)
def test_what_is_no_text_in_its_encoding_is_refused_not_guessed(data):
    with pytest.raises(Undecodable):
        decode_bytes(data)


def test_declared_text_is_what_is_asked_for(here, golden):
    text = f"# coding: cp1251\n{RUSSIAN}{python('mine')}"
    put(here / "src/a.py", text.encode("cp1251"))
    put(here / "src/b.py", python("other") + "# \xe9\n")
    put(here / "src/c.py", python("lost").encode() + b"# \xe9\n")
    corpus = load("./src")

    assert RUSSIAN in corpus.text
    assert ["mine", "other"] == [function.name for function in corpus.functions]
    assert golden == corpus.skipped
