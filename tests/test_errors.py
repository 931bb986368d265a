"""The tree of errors, and what each owes to a person."""

import re

from codeneedle import errors
from codeneedle.errors import CodeneedleError, UnknownName, did_you_mean


def test_the_tree_in_the_docstring_is_whole():
    """
    Every class of the module is drawn, and nothing else.
    """
    drawn = set(re.findall(r"^ +[-+] (\w+)", errors.__doc__ or "", re.MULTILINE))
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, CodeneedleError)
    }

    assert defined == drawn | {"CodeneedleError"}


def test_a_mistyped_name_is_answered_with_the_nearest():
    """
    One suggestion where something is near, else all there is.
    """
    assert "Did you mean 'matched'?" == did_you_mean("matchd", ["matched", "pass"])
    assert "Known: matched, pass." == did_you_mean("zzz", ["matched", "pass"])
    assert "None is known yet." == did_you_mean("zzz", [])


def test_an_error_tells_what_and_hints_what_next():
    """
    Sentence, hint and exit code come with the class.
    """
    error = UnknownName(kind="probe", name="recal", known=["recall"])

    assert ("unknown probe 'recal'", 2) == (str(error), error.exit_code)
    assert "recall" in error.hint
