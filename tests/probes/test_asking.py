"""How often a request is sent."""

import pytest
from fake_engine import FakeEngine, FakeServer

from codeneedle.engines.messages import ServerGone
from codeneedle.probes import asking
from codeneedle.probes.asking import Asker


@pytest.mark.parametrize(("is_dying", "attempts"), [(False, 4), (True, 1)])
def test_a_connection_that_keeps_breaking_ends_the_cell(
    monkeypatch, is_dying, attempts
):
    """After three further attempts; that of a dead server is not tried again."""
    monkeypatch.setattr(asking, "BACK_OFF_S", (0.01, 0.02, 0.03))
    server, tries = FakeServer(FakeEngine()), []
    server.is_dying = is_dying

    def broken():
        tries.append("reset")
        raise ServerGone(reason="reset")

    with pytest.raises(ServerGone):
        Asker(server, None).retried(broken)
    assert attempts == len(tries)
