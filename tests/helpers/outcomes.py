"""What laws have in common: errors of a request have hints."""

from codeneedle.errors import RequestError


def outcome(read, *arguments, **more):
    """What was read, or the error of a wrong request; anything else fails the test."""
    try:
        return read(*arguments, **more)
    except RequestError as error:
        refused = error
    assert str(refused)
    assert refused.hint
    return refused
