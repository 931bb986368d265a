"""The tree of errors, their messages, hints and exit codes."""

import errno
import os
import re

import pytest

from codeneedle import errors
from codeneedle.errors import (
    HINTS,
    CodeneedleError,
    UnknownName,
    did_you_mean,
    hint_of_system_error,
    nearest_name,
    system_refusal,
)


def test_the_tree_in_the_docstring_is_whole():
    drawn = set(re.findall(r"^ +[-+] (\w+)", errors.__doc__ or "", re.MULTILINE))
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, CodeneedleError)
    }

    assert defined == drawn | {"CodeneedleError"}


def test_a_mistyped_name_is_answered_with_the_nearest(golden):
    assert golden == {
        "near": did_you_mean("matchd", ["matched", "pass"]),
        "far": did_you_mean("zzz", ["matched", "pass"]),
        "none": did_you_mean("zzz", []),
    }


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Q8_0", "q8_0"),
        ("q8", "q8_0"),
        ("qwen", "text/qwen2.5-0.5b"),
        ("TEXT/QWEN2.5-0.5B", "text/qwen2.5-0.5b"),
        ("mlx", ""),
        ("0", ""),
    ],
)
def test_a_name_of_another_case_or_a_part_of_one_is_meant(name, meant):
    assert meant == nearest_name(name, ["q8_0", "q4_0", "text/qwen2.5-0.5b"])


def test_an_error_tells_what_and_hints_what_next():
    error = UnknownName(kind="probe", name="recal", known=["recall"])

    assert ("unknown probe 'recal'", 2) == (str(error), error.exit_code)
    assert "recall" in error.hint


@pytest.mark.parametrize("number", sorted(HINTS))
def test_each_refusal_has_a_sentence_and_a_hint(number):
    refused = system_refusal(OSError(number, "words", "records/file"))

    assert refused is not None
    assert str(refused).startswith("the system refuses: ")
    assert str(refused).endswith(": records/file")
    assert 3 == refused.exit_code
    assert refused.hint == hint_of_system_error(OSError(number, "words"))


def test_who_has_no_right_is_sent_to_the_owner():
    assert "ask its owner" in hint_of_system_error(
        PermissionError(errno.EACCES, "words")
    )


def wrapped(cause):
    """What a library raises from *cause*."""
    outer = ImportError("please read this")
    outer.__cause__ = cause
    return outer


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (MemoryError(), errno.ENOMEM),
        (ImportError("x.so: failed to map segment from shared object"), errno.ENOMEM),
        (RuntimeError("can't start new thread"), errno.EAGAIN),
        (wrapped(OSError(errno.EMFILE, "words")), errno.EMFILE),
    ],
)
def test_errors_of_other_classes_are_known_too(error, number):
    assert os.strerror(number) in str(system_refusal(error))


@pytest.mark.parametrize("error", [KeyError("x"), FileNotFoundError(2, "x"), OSError()])
def test_mistakes_of_ours_keep_their_traceback(error):
    assert system_refusal(error) is None
    assert "" == hint_of_system_error(error)
