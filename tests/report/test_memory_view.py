"""The memory of a planned sweep."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from gguf_files import SHAPE, gguf_bytes
from rich.console import Console

from codeneedle.grid import Pair
from codeneedle.models.gguf import parse
from codeneedle.models.weights import weights_of
from codeneedle.report.plan import memory_view, planned_memory


def planned(*devices):
    """As much of a plan as its memory depends on."""
    weights = weights_of(
        parse(gguf_bytes(SHAPE)), files=[Path("m.gguf")], size_bytes=1 << 20
    )
    return SimpleNamespace(
        weights=weights,
        pairs=(Pair("q4_0", "q4_0"), Pair("f16", "f16")),
        server=SimpleNamespace(devices=devices),
    )


@pytest.mark.parametrize(
    ("devices", "where"), [((), "of this machine"), (("CUDA0 L4 (64 MiB)",), "of CUDA")]
)
def test_a_plan_fills_its_devices_or_else_the_machine(devices, where):
    """
    Where there are accelerators, all layers go there.
    """
    assert where == planned_memory(planned(*devices)).room.where


def test_a_device_that_is_too_small_allows_nothing():
    """
    Each pair has its row all the same, the largest first.
    """
    console = Console(file=io.StringIO(), width=80)

    console.print(memory_view(planned("CUDA0 tiny (64 MiB)")))

    lines = console.file.getvalue().splitlines()
    assert ["f16/f16", "q4_0/q4_0"] == [line.split()[0] for line in lines[3:5]]
    assert ["0", "0"] == [line.split()[-1] for line in lines[3:5]]
