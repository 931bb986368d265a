"""MLX as an engine: what it can do, and a child process that serves each cell."""

import contextlib
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from codeneedle.engines.engine import (
    Ability,
    CacheTypes,
    CellSpec,
    DivergenceTool,
    Engine,
    EngineIdentity,
    ModelSpec,
    Served,
    SpeedTool,
    Tokenizer,
)
from codeneedle.engines.http import SILENCE_S
from codeneedle.engines.llama_cpp.client import Client
from codeneedle.engines.messages import Readiness, ServerGone
from codeneedle.engines.mlx import log as logs
from codeneedle.engines.mlx.convert import converted, refuse_unconvertible
from codeneedle.engines.mlx.log import KEY_VARIABLE, Asked, Listening
from codeneedle.engines.mlx.settings import NAME, MlxSettings
from codeneedle.engines.mlx.tools import MlxDivergence, MlxSpeed
from codeneedle.errors import BadInput, CellError, ToolFailed, ToolMissing
from codeneedle.grid import Pair
from codeneedle.models.gguf import Weights
from codeneedle.models.weights import (
    FOLDER_FILE,
    is_folder_of_mlx,
    read_folder,
    read_header,
)
from codeneedle.records.record import Effective, Status
from codeneedle.system import processes
from codeneedle.system.orphans import noted
from codeneedle.system.processes import Child, ends_within

TYPES = ("f16", "bf16", "kv8", "kv6", "kv5", "kv4", "kv3", "kv2")
"""Those of K and of V: values as they are, or with so many bits."""

USUAL_TYPES = ("f16", "kv8", "kv4")

GROUP_SIZES = (32, 64, 128)
"""Values that share a scale and a bias; MLX has kernels for no others."""

PACKAGES = ("mlx", "mlx-lm")
INSTALL = "Install it: pip install 'codeneedle[mlx]'"

ON_CPU = (
    "MLX computes on the CPU here, which is slow: use short contexts; on Linux, "
    "OpenBLAS makes it ten times faster: LD_PRELOAD=libopenblas.so.0"
)
"""
For users. MLX 0.32.4's wheel for Linux brings the reference BLAS: SmolLM2 in float32
read 17 tokens/s on a core of an EPYC with it, and 165 with OpenBLAS 0.3.21.
"""

LOAD_TIMEOUT_S = 1800.0
"""How long the child may take until it answers: a large model from a slow disk."""

COUNT_TIMEOUT_S = 120.0
"""How long it may take to tokenize or to render, some megabytes at most."""

DEATH_S = 1.0
"""How long a process that broke its connection may take to be gone."""

POLL_S = 0.05

_HOST = "127.0.0.1"


def find() -> dict[str, str]:
    """
    The versions of MLX's packages, which are not imported here.

    Raises:
        ToolMissing: If one of them is not installed.
    """
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError as error:
            raise ToolMissing(
                tool=name, reason="is not installed", hint=INSTALL
            ) from error
    return found


def read_weights(path: Path) -> Weights:
    """
    The model at *path*: a folder of MLX, or a GGUF file.

    Raises:
        WeightsUnusable: If there is no usable model.
    """
    return read_folder(path) if is_folder_of_mlx(path) else read_header(path)


def devices() -> tuple[str, ...]:
    """What computes, if it is not the CPU."""
    if sys.platform == "darwin":
        return ("Metal",)
    with contextlib.suppress(metadata.PackageNotFoundError):
        metadata.version("mlx-cuda")
        return ("CUDA",)
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlx(Engine):
    """
    The engine that starts a child of ours per cell.

    Attributes:
        versions: Of the packages, by name.
        model: What is served.
        settings: What the user chose.
    """

    name: ClassVar[str] = NAME
    versions: dict[str, str]
    model: ModelSpec
    settings: MlxSettings = field(default_factory=MlxSettings)

    @property
    def abilities(self) -> frozenset[Ability]:
        """All of them: the child does everything."""
        return frozenset(Ability)

    def refuse_arguments(self) -> None:
        """As of `engine.Engine`; group sizes and weights, too."""
        # Without arguments, super() knows only the class before it got its slots.
        super(Mlx, self).refuse_arguments()
        if self.model.device:
            raise BadInput(
                source=f"--devices {self.model.device}",
                reason="the engine mlx has one device, and it uses it",
                hint="Leave --devices out.",
            )
        if self.model.weights.path.name != FOLDER_FILE:
            refuse_unconvertible(self.model.weights)
        if len(self.settings.group_size) not in {1, 2}:
            raise _bad_group_size(self.settings.group_size, "K and V are two")
        sizes = (self.model.weights.key_length, self.model.weights.value_length)
        for group, head_size in zip(self.group_size, sizes, strict=True):
            if group not in GROUP_SIZES or head_size % group:
                reason = f"heads have {head_size} values"
                raise _bad_group_size(self.settings.group_size, reason)

    @property
    def group_size(self) -> tuple[int, int]:
        """Of K and of V."""
        sizes = self.settings.group_size
        return sizes[0], sizes[-1]

    @property
    def compute(self) -> str:
        """``float32`` or ``model``."""
        if self.settings.compute != "auto":
            return self.settings.compute
        return "model" if devices() else "float32"

    def identity(self) -> EngineIdentity:
        """As of `engine.Engine`; what changes the arithmetic must be equal."""
        return EngineIdentity(
            name=self.name,
            version=", ".join(f"{name} {self.versions[name]}" for name in PACKAGES),
            program=sys.executable,
            devices=devices(),
            arguments=tuple(self._cache_arguments()),
        )

    def cache_types(self) -> CacheTypes:
        """As of `engine.Engine`."""
        return CacheTypes(k=TYPES, v=TYPES, usual=USUAL_TYPES)

    def notes(self) -> tuple[str, ...]:
        """As of `engine.Engine`."""
        return () if devices() else (ON_CPU,)

    @contextlib.contextmanager
    def tokenizing(self, *, log: Path) -> Iterator[Tokenizer]:
        """As of `engine.Engine`: a child that loads no weights."""
        launch = [*self.command("serve", context=512), "--counting"]
        try:
            with _serving(launch, log=log, silence_s=COUNT_TIMEOUT_S) as (client, _):
                yield client
        except CellError as error:
            raise ToolFailed(
                tool=NAME,
                reason=f"cannot count the corpus' tokens: {error}",
                log=log,
            ) from error

    @contextlib.contextmanager
    def serving(self, cell: CellSpec, *, log: Path) -> "Iterator[MlxServer]":
        """As of `engine.Engine`."""
        launch = self.command("serve", cell.pair, context=cell.context)
        with _serving(launch, log=log) as (client, child):
            served = MlxServer(
                client=client, command=tuple(launch), log=log, child=child, engine=self
            )
            try:
                yield served
            finally:
                served.peak_rss_bytes()

    def divergence_tool(self) -> DivergenceTool:
        """As of `engine.Engine`."""
        return MlxDivergence(engine=self)

    def speed_tool(self) -> SpeedTool:
        """As of `engine.Engine`."""
        return MlxSpeed(engine=self)

    def folder(self) -> Path:
        """The model for MLX; a GGUF file is converted the first time."""
        path = self.model.weights.path
        return (
            path.parent if path.name == FOLDER_FILE else converted(self.model.weights)
        )

    def command(
        self, mode: str, pair: Pair | None = None, *, context: int
    ) -> list[str]:
        """
        The argv of a child. No file of the user's folder is imported (``-P``).

        Raises:
            CellError: If nothing of *pair* would be quantized in that context.
        """
        start = self.settings.quantized_kv_start
        if pair and start >= context:
            raise CellError(
                f"no token of a context of {context:,} is behind the {start:,} that "
                "stay unquantized",
                hint="Give a smaller --quantized-kv-start.",
                status=Status.UNSUPPORTED,
            )
        types = ("--cache-type-k", pair.k, "--cache-type-v", pair.v) if pair else ()
        return [
            *(sys.executable, "-P", "-m", "codeneedle.engines.mlx.child", mode),
            *("--model", str(self.folder()), "--context", str(context)),
            *types,
            *(word for each in self._cache_arguments() for word in each.split()),
        ]

    def asked(self, cell: CellSpec) -> Asked:
        """What a child of *cell* is asked for."""
        return Asked(
            cell=cell,
            group_size=self.group_size,
            quantized_kv_start=self.settings.quantized_kv_start,
            max_kv_size=self.settings.max_kv_size,
        )

    def _cache_arguments(self) -> Iterator[str]:
        key, value = self.group_size
        size = self.settings.max_kv_size
        yield f"--kv-group-size {key}" + (f",{value}" if value != key else "")
        yield f"--quantized-kv-start {self.settings.quantized_kv_start}"
        if size is not None:
            yield f"--max-kv-size {size}"
        yield f"--compute {self.compute}"


@dataclass(slots=True, kw_only=True)
class MlxServer(Served):
    """
    A child that is ready to answer.

    Attributes:
        client: Sends requests to it.
        log: Its log.
        engine: What started it.
    """

    client: Client
    log: Path
    engine: Mlx

    @property
    def tokenizer(self) -> Tokenizer:
        """As of `engine.Served`."""
        return self.client

    def effective(self) -> Effective:
        """As of `engine.Served`, read from the arrays of its caches."""
        return logs.effective(logs.read_log(self.log))

    def verify(self, cell: CellSpec) -> tuple[str, ...]:
        """As of `engine.Served`."""
        return logs.mismatches(self.engine.asked(cell), logs.read_log(self.log))

    def device_bytes(self) -> int | None:
        """As of `engine.Served`: the most that MLX had allocated on a GPU."""
        if not devices():
            return None
        found = logs.last(logs.read_log(self.log), "memory", logs.Memory)
        return found.peak_bytes if found else None


@contextlib.contextmanager
def _serving(
    argv: Sequence[str], *, log: Path, silence_s: float = SILENCE_S
) -> Iterator[tuple[Client, Child]]:
    """
    A child that answers, for the length of a block.

    Raises:
        CellError: If it ends or takes too long; others of the block get the end of
            its log.
        MachineError: If it cannot be started or stopped.
    """
    alias, key = f"{NAME}.{secrets.token_hex(4)}", secrets.token_urlsafe(32)
    argv = [*argv, "--alias", alias]
    env = logs.environment() | {KEY_VARIABLE: key}
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(noted(argv, env=env, log=log))
        port = _port(child, log)
        client = stack.enter_context(
            Client(f"http://{_HOST}:{port}", api_key=key, silence_s=silence_s)
        )
        if client.readiness(alias) is not Readiness.READY:
            raise logs.died(child.poll(), log)
        try:
            yield client, child
        except CellError as error:
            if isinstance(error, ServerGone):
                # The connection breaks a moment before the process is gone.
                ends_within(child, DEATH_S)
            if child.poll() is not None:
                raise logs.died(child.returncode, log) from error
            found = logs.last_lines(logs.read_log(log))
            error.log_excerpt = error.log_excerpt or found
            raise


def _port(child: Child, log: Path) -> int:
    """Where the child listens, which it chooses itself, once it has loaded."""
    elapsed_s = processes.AwakeClock(longest_s=60.0)
    while child.poll() is None:
        found = logs.last(logs.read_log(log), "listening", Listening)
        if found is not None:
            return found.port
        if elapsed_s() > LOAD_TIMEOUT_S:
            raise CellError(
                f"mlx does not answer after {LOAD_TIMEOUT_S:g} s",
                hint=f"See {log}. Is the disk slow, or the memory full?",
                status=Status.TIMED_OUT,
                log_excerpt=logs.last_lines(logs.read_log(log)),
            )
        time.sleep(POLL_S)
    raise logs.died(child.returncode, log)


def _bad_group_size(sizes: Sequence[int], reason: str) -> BadInput:
    return BadInput(
        source=f"--kv-group-size {','.join(map(str, sizes))}",
        reason=reason,
        hint="Use 32, 64 or 128, of which the head size is a multiple.",
    )
