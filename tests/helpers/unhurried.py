"""What laws have in common: a busy machine is no defect, and errors have hints."""

from hypothesis import settings

from codeneedle.errors import RequestError

unhurried = settings(deadline=None)


def outcome(read, *arguments, **more):
    """What was read, or the error of a wrong request; anything else fails the test."""
    try:
        return read(*arguments, **more)
    except RequestError as error:
        refused = error
    assert str(refused)
    assert refused.hint
    return refused
