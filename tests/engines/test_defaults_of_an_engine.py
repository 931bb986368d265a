"""What an engine and a server are without what they override."""

import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
from fake_engine import made_weights

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import (
    Ability,
    CannotSave,
    CellSpec,
    Engine,
    ModelSpec,
    Served,
)
from codeneedle.errors import BadInput, ToolMissing
from codeneedle.records.record import Effective

MODEL = ModelSpec(weights=made_weights(), name="made")
PAIR = Pair("f16", "f16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Least(Engine):
    """The least that an engine has."""

    name = "least"
    model: ModelSpec

    def identity(self):
        raise NotImplementedError

    cache_types = tokenizing = serving = identity


def test_an_engine_answers_and_can_do_nothing_else(golden):
    engine = Least(model=MODEL)

    assert frozenset() == engine.abilities
    assert ((), "", False) == (
        engine.notes(),
        engine.thinking_off_option,
        engine.stretches_context,
    )
    for ability in Ability:
        with pytest.raises(ToolMissing) as caught:
            engine.require(ability)
        assert golden == str(caught.value)
    for tool in (engine.divergence_tool, engine.speed_tool):
        with pytest.raises(ToolMissing):
            tool()


@pytest.mark.parametrize(
    ("changes", "source"),
    [
        ({"arguments": ("-ngl", "9")}, "-- -ngl 9"),
        ({"rotation": False}, "--rotation off"),
    ],
    ids=["arguments", "rotation"],
)
def test_what_an_engine_would_ignore_is_refused(changes, source, golden):
    Least(model=MODEL).refuse_unusable_arguments()

    with pytest.raises(BadInput) as caught:
        Least(model=replace(MODEL, **changes)).refuse_unusable_arguments()
    assert golden == caught.value.reason
    assert source == caught.value.source


def test_a_server_that_is_not_ours_tells_nothing():
    served = Served(client=None, command=())

    assert Effective() == served.effective()
    assert () == served.differences_from_cell(CellSpec(PAIR, 512))
    assert (None, None) == (
        served.peak_rss_bytes(),
        served.device_bytes(),
    )
    assert served.tokenizer is None
    assert not served.wait_for_end(0.0)
    for use in (served.save_cache, served.restore_cache):
        with pytest.raises(CannotSave, match="this engine cannot"):
            use()


@pytest.mark.slow
def test_what_a_server_took_is_known_after_its_end():
    argv = [sys.executable, "-c", "input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as child:
        served = Served(client=None, command=tuple(argv), child=child)
        seen = served.peak_rss_bytes()
        child.communicate(b"\n")

    assert served.wait_for_end(0.0)
    assert 0 < seen == served.peak_rss_bytes()
