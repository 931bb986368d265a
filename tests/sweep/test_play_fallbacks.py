"""Cells that fall back, played on a server that says so."""

import types
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from made_records import made_setup
from made_servers import FAKE

from codeneedle.engines.llama_cpp.installation import ServerFacts, Tools
from codeneedle.grid import Pair
from codeneedle.probes import probe, recall
from codeneedle.probes.prompts import PromptForm
from codeneedle.records.record import Status
from codeneedle.records.store import Store
from codeneedle.sweep.request import Request
from codeneedle.sweep.runner import CellEnded, CellStepped, Player

PAIR, PLAIN = Pair("q8_0", "f16"), Pair("q8_0", "q8_0")

AS_F16 = "no vector kernel for K/V types q8_0-q4_0, converting K and V to f16 instead"
ON_CPU = "Flash Attention is assigned to device CPU (usually due to missing support)"

AT_FIRST_TOKEN = f"say-in-round={AS_F16}"
AT_PREFLIGHT = f"say-if=auto={ON_CPU}"


@pytest.fixture
def play(tmp_path):
    """Plays a cell on the fake server; returns its record and its steps."""
    preflights = {}

    def played(*faults, pair=PAIR, devices=(), skip=False):
        extra = tuple(word for fault in faults for word in ("--fake", fault))
        plan = types.SimpleNamespace(
            request=Request(server_args=extra, skip_fallback=skip),
            tools=Tools(server=FAKE, perplexity=None, bench=None, source="PATH"),
            server=ServerFacts(
                version="v",
                build=1,
                k_types=(),
                v_types=(),
                options=frozenset(),
                devices=devices,
            ),
            weights=types.SimpleNamespace(path=Path("no.gguf"), identity=""),
            model="made-model",
            context=4096,
            prompt_form=PromptForm.COMPLETION,
            store=Store(tmp_path),
            is_built_in=False,
            preflights=preflights,
            speculation=None,
        )
        setup = made_setup(needles=2)
        needles = tuple(replace(each, budget=50) for each in setup.needles)
        player = Player(
            plan=plan,
            setup=replace(setup, needles=needles),
            text="a corpus",
            probe=recall.PROBE,
        )
        events = list(player.play(pair, 1))
        steps = [each.step.what for each in events if isinstance(each, CellStepped)]
        (record,) = (each.record for each in events if isinstance(each, CellEnded))
        return record, steps

    return played


def test_a_cell_that_falls_back_is_measured_and_marked(play):
    """
    All rounds are asked; the status and the server's own words say what they are of.
    """
    record, _ = play(AT_FIRST_TOKEN)

    assert Status.FALLBACK_F16 is record.status
    assert AS_F16 == record.reason
    assert 2 == len(record.observation["rounds"])


def test_a_cell_that_falls_back_ends_after_the_first_token_if_wished(play):
    """
    The round that reads the corpus is the last one; the log's line is kept.
    """
    record, steps = play(AT_FIRST_TOKEN, skip=True)

    assert Status.FALLBACK_F16 is record.status
    assert AS_F16 == record.reason
    assert (AS_F16,) == record.log_excerpt
    assert None is record.observation
    assert ["loading", "reading the corpus"] == steps


def test_a_cell_that_does_not_fall_back_is_not_skipped(play):
    """
    The wish is about fallbacks alone.
    """
    record, _ = play(skip=True)

    assert Status.FINISHED is record.status


def test_what_the_preflight_finds_marks_the_cell(play):
    """
    Though the server of the cell itself says nothing of it.
    """
    record, steps = play(AT_PREFLIGHT, devices=("CUDA0 NVIDIA L4",))

    assert Status.FALLBACK_CPU is record.status
    assert ON_CPU == record.reason
    assert 2 == len(record.observation["rounds"])
    assert "asking where attention runs" == steps[0]


def test_what_the_preflight_finds_ends_the_cell_if_wished(play, tmp_path):
    """
    Its own server is never started.
    """
    record, steps = play(AT_PREFLIGHT, devices=("CUDA0 NVIDIA L4",), skip=True)

    assert Status.FALLBACK_CPU is record.status
    assert ["asking where attention runs"] == steps
    assert [f"{PAIR.slug}.preflight.log"] == [
        path.name for path in (tmp_path / "logs").iterdir()
    ]


def test_a_pair_is_asked_once_in_a_sitting(play, tmp_path):
    """
    What was found counts for each cell of it, of whatever probe.
    """
    play(AT_PREFLIGHT, devices=("CUDA0 NVIDIA L4",))
    log = tmp_path / "logs" / f"{PAIR.slug}.preflight.log"
    log.unlink()

    record, _ = play(AT_PREFLIGHT, devices=("CUDA0 NVIDIA L4",))

    assert not log.exists()
    assert Status.FALLBACK_CPU is record.status


@pytest.mark.parametrize(
    ("pair", "devices"), [(PLAIN, ("CUDA0 NVIDIA L4",)), (PAIR, ())]
)
def test_a_pair_that_is_in_no_doubt_costs_no_preflight(play, tmp_path, pair, devices):
    """
    Those of which a server tells nothing, and machines without an accelerator.
    """
    record, _ = play(AT_PREFLIGHT, pair=pair, devices=devices)

    assert Status.FINISHED is record.status
    assert not list((tmp_path / "logs").glob("*.preflight.log"))


def test_what_a_server_holds_on_devices_is_asked_while_it_lives(play, monkeypatch):
    """
    Of its own process, when its rounds are through.
    """
    asked = []

    def used_bytes(pid):
        asked.append(psutil.pid_exists(pid))
        return 5 << 20

    monkeypatch.setattr(probe, "used_bytes", used_bytes)
    record, _ = play()

    assert 5 << 20 == record.device_bytes
    assert [True] == asked
