"""How long a server is waited for."""

import pytest

from codeneedle.engines.llama_cpp import server
from codeneedle.engines.llama_cpp.server import Patience
from codeneedle.engines.responses import Readiness

LINE = (
    "0.00.017.067 I cmn  common_init_: warming up the model with an empty run - "
    "please wait ... (--no-warmup to disable)\n"
)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still at 100 s until it is set."""
    now = [100.0]
    monkeypatch.setattr(server.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def log(tmp_path):
    """A log that says that the model is being loaded."""
    path = tmp_path / "server.log"
    path.write_text("loading model tensors\n")
    return path


def test_loading_has_its_own_time(log, clock):
    """
    Until the log speaks of warming up, only the first deadline counts.
    """
    patience = Patience(log=log, load_until=130.0, warmup_s=5.0)
    clock[0] = 120.0

    assert 10.0 == patience.left_s()
    assert None is patience.warmup_until


def test_warming_up_has_its_own_time(log, clock):
    """
    From the moment that the log speaks of it, the time for loading is over.
    """
    patience = Patience(log=log, load_until=101.0, warmup_s=50.0)
    log.write_text(LINE)

    assert 50.0 == patience.left_s()
    clock[0] = 151.0
    assert -1.0 == patience.left_s()


def test_another_try_begins_with_loading(log, clock):
    """
    A server that lost its port had warmed up for nothing.
    """
    patience = Patience(log=log, load_until=130.0, warmup_s=5.0)
    log.write_text(LINE)
    patience.left_s()
    log.write_text("")

    assert 30.0 == patience.renewed().left_s()


def test_a_log_that_is_not_there_yet_says_nothing(tmp_path, clock):
    """
    The server may not have begun to write.
    """
    patience = Patience(log=tmp_path / "none", load_until=130.0)

    assert 30.0 == patience.left_s()


class Sleeper:
    """A client and its child; at the third question a night passes for both."""

    def __init__(self, clock):
        self.clock = clock
        self.asked = 0

    def poll(self):
        return None

    def readiness(self, *, limit_s):
        self.asked += 1
        self.clock[0] += 30000.0 if self.asked == 3 else 1.0
        return Readiness.READY if self.asked == 5 else Readiness.LOADING


def test_a_night_in_suspension_is_no_time_to_load(log, clock, monkeypatch):
    """
    Who slept with the server waits for it as long as before.
    """
    monkeypatch.setattr(server.time, "sleep", lambda _: None)
    sleeper = Sleeper(clock)
    patience = Patience(log=log, load_until=110.0, warmup_s=5.0)

    assert Readiness.READY == server.wait(sleeper, sleeper, patience)
    assert 30005.0 > patience.left_s() > 0
