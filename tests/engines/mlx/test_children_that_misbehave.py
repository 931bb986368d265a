"""A child that does not get ready, or a tool that fails, is told with the reason."""

import sys

import msgspec
import pytest
from made_mlx import nano_weights
from msgspec.structs import replace as altered

pytest.importorskip(
    "mlx.core", reason="MLX is not installed: pip install 'codeneedle[mlx]'"
)
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")


from codeneedle.cache_types import Pair
from codeneedle.engines.engine import CellSpec, ModelSpec
from codeneedle.engines.mlx import engine as engine_module
from codeneedle.engines.mlx.engine import Mlx, package_versions
from codeneedle.engines.mlx.log import MARK, LayerCache, Running, Speed
from codeneedle.engines.tools import SpeedTask
from codeneedle.errors import CellError
from codeneedle.records.record import Status
from codeneedle.system import orphans

pytestmark = pytest.mark.slow

SPLIT = CellSpec(Pair("kv8", "kv4"), 512)


def ignore(_):
    """A callback that nothing depends on."""


@pytest.fixture(scope="module")
def engine():
    model = ModelSpec(weights=nano_weights(), name="nano", is_tiny=True)
    return Mlx(versions=package_versions(), model=model)


def line_of(line):
    """A line that the parent reads."""
    return f"{MARK}{msgspec.json.encode(line).decode()}"


F16 = LayerCache(layer=0, class_name="KVCache", k="f16", v="f16")
RUNNING = Running(build="mlx cpu", context=512, layers=(F16,), quantized_kv_start=0)


@pytest.fixture
def child_that(engine, tmp_path, monkeypatch):
    """An engine whose child runs a script instead, after it has told some lines."""

    def make(script, *lines):
        monkeypatch.setattr(engine_module, "LOAD_TIMEOUT_S", 0.5)
        told = "".join(f"print({line_of(each)!r}, flush=True)\n" for each in lines)
        (tmp_path / "child.py").write_text(f"import time\n{told}{script}\n")
        argv = [sys.executable, str(tmp_path / "child.py")]
        monkeypatch.setattr(Mlx, "command", lambda *_, **__: [*argv])
        return engine

    return make


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("raise MemoryError('no room')", Status.OUT_OF_MEMORY),
        ("raise ValueError('x') ", Status.CRASHED),
        ("raise SystemExit(3)", Status.CRASHED),
        ("time.sleep(60)", Status.TIMED_OUT),
    ],
    ids=["no room", "error", "exit", "hangs"],
)
def test_a_child_that_does_not_get_ready_is_told_with_the_reason(
    child_that, tmp_path, golden, script, status
):
    with (
        pytest.raises(CellError) as caught,
        child_that(script).serving(SPLIT, log=tmp_path / "child.log"),
    ):
        raise AssertionError("entered")

    assert status == caught.value.status
    assert golden == str(caught.value)
    assert [] == orphans.orphans()


def speeds(engine, tmp_path, silence_s=600):
    """What the speed tool of *engine* measures of a pair without quantization."""
    asked = SpeedTask(
        pair=Pair("f16", "f16"),
        depth=500,
        prompt_tokens=12,
        generated_tokens=2,
        repetitions=2,
    )
    return engine.speed_tool().measure(
        asked,
        log=tmp_path / "speed.log",
        silence_s=silence_s,
        note=ignore,
        progress=ignore,
    )


ONE = Speed(pp=2.0, tg=1.0, peak_bytes=5)


@pytest.mark.parametrize(
    ("lines", "script", "status"),
    [
        ((RUNNING, ONE), "", Status.CRASHED),
        ((), "", Status.MISMATCHED),
        ((RUNNING, ONE, ONE), "raise SystemExit(1)", Status.CRASHED),
        ((RUNNING,), "time.sleep(60)", Status.TIMED_OUT),
        ((altered(RUNNING, context=256),), "time.sleep(60)", Status.MISMATCHED),
    ],
    ids=["too few", "nothing", "fails", "hangs", "another context"],
)
def test_a_tool_that_fails_is_told_with_the_reason(
    child_that, tmp_path, golden, lines, script, status
):
    with pytest.raises(CellError) as caught:
        speeds(child_that(script, *lines), tmp_path, silence_s=1)

    assert status == caught.value.status
    assert golden == str(caught.value)


def test_speeds_are_those_that_the_child_tells(child_that, tmp_path):
    found = speeds(child_that("", RUNNING, ONE, altered(ONE, pp=3.0)), tmp_path)

    assert ((2.0, 3.0), (1.0, 1.0), 5) == (found.pp, found.tg, found.peak_bytes)
