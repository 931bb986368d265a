"""
MLX as an engine: its cache types, which group sizes, devices and arguments are refused,
notes before a sweep, and a child process for each cell or tool.
"""

import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from codeneedle.cache_types import Pair
from codeneedle.engines import started_servers
from codeneedle.engines.engine import (
    HOST,
    Ability,
    CacheTypes,
    CellSpec,
    Engine,
    EngineIdentity,
    ModelSpec,
    Tokenizer,
    translating_counting_errors,
)
from codeneedle.engines.exit_causes import silence_error
from codeneedle.engines.http import SILENCE_S
from codeneedle.engines.llama_cpp.base_file import (
    BaseFileStatistics,
    BaseFileTool,
    Job,
    Notify,
    Progress,
    scored_token_count,
)
from codeneedle.engines.llama_cpp.client import Client
from codeneedle.engines.messages import (
    BadReply,
    Completion,
    Forced,
    Readiness,
    passage_token_ranges_and_costs,
)
from codeneedle.engines.mismatch import mismatch_error
from codeneedle.engines.mlx import log as logs
from codeneedle.engines.mlx.folder import is_mlx_folder_or_config, read_folder
from codeneedle.engines.mlx.log import KEY_VARIABLE
from codeneedle.engines.mlx.settings import (
    NAME,
    MlxSettings,
    has_predictable_cache_size,
    missing_package_error,
)
from codeneedle.engines.started_servers import StartedServer
from codeneedle.engines.tools import (
    Comparison,
    DivergenceTask,
    DivergenceTool,
    Reference,
    Speeds,
    SpeedTask,
    SpeedTool,
    ToolRun,
)
from codeneedle.errors import BadInput, CellError, WeightsUnusable
from codeneedle.models.weights import Weights
from codeneedle.records.record import Effective, Status
from codeneedle.scores import ComputesNan
from codeneedle.system import machine
from codeneedle.system.contents import joint_hash
from codeneedle.system.files import file_size_or_zero
from codeneedle.system.orphans import running_with_note
from codeneedle.system.processes import FILE_LIMIT_BYTES, Child
from codeneedle.system.watched import run_with_silence_limit

TYPES = ("f16", "bf16", "kv8", "kv6", "kv5", "kv4", "kv3", "kv2")
"""Those of K and of V: values as they are, or with so many bits."""

USUAL_TYPES = ("f16", "kv8", "kv4")

GROUP_SIZES = (32, 64, 128)
"""Values that share a scale and a bias; MLX has kernels for no others."""

PACKAGES = ("mlx", "mlx-lm")

QUANTIZED_AT_ONCE = (
    "caches are quantized from the first token on; mlx-lm's own programs begin at "
    "5,000 tokens, and convert what is before at once: --quantized-kv-start 5000 "
    "measures that"
)
QUANTIZED_LATER = (
    "caches are quantized once they hold {:,} tokens, all of them at once, as mlx-lm's "
    "own programs do; up to there nothing is"
)
"""Notes: what users run may be another thing than what is measured."""

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

TOOL_SILENCE_S = 3600.0
"""How long a tool may write nothing: a chunk of a large model may take as long."""


def package_versions() -> dict[str, str]:
    """
    The versions of MLX's packages, which are not imported here.

    Raises:
        ToolMissing: If one of them is not installed.
    """
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError as error:
            raise missing_package_error(name) from error
    return versions


FOLDERS = (
    "Give --model a folder as mlx_lm.convert makes it, or the name of one in the cache "
    "of Hugging Face (what is there: codeneedle weights)."
)
"""What is served, as a hint."""


CODE = frozenset({".py", ".so", ".dylib", ".metallib"})
"""Endings of the files of a package that decide what it computes."""


def package_code_files(name: str) -> list[Path]:
    """The files with code of the installed package *name*; none if it tells none."""
    found = metadata.files(name) or []
    return [Path(str(file.locate())) for file in found if file.suffix in CODE]


def read_weights(path: Path) -> Weights:
    """
    The model in the folder at *path*, or beside the ``config.json`` there.

    Raises:
        WeightsUnusable: If there is none that MLX can use.
    """
    if path.is_file() and not is_mlx_folder_or_config(path):
        raise WeightsUnusable(
            path=path,
            reason="is a file, and MLX takes a folder",
            hint=f"{FOLDERS} Or leave --engine out: llama.cpp takes GGUF files.",
        )
    return read_folder(path)


CUDA = ("mlx-cuda-12", "mlx-cuda-13")
"""Packages of which MLX takes one to compute with CUDA."""

BACKENDS = ("mlx-metal", "mlx-cpu", *CUDA)
"""Packages that have what MLX computes with."""


def devices() -> tuple[str, ...]:
    """What computes: Metal on macOS, CUDA by its package; empty for the CPU."""
    if sys.platform == "darwin":
        return ("Metal",)
    return ("CUDA",) if any(map(_is_installed, CUDA)) else ()


def _is_installed(package: str) -> bool:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return bool(metadata.version(package))
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlx(Engine):
    """The engine that starts a child of ours per cell."""

    name: ClassVar[str] = NAME
    versions: dict[str, str]  # of the packages, by name
    model: ModelSpec  # what is served
    settings: MlxSettings = field(default_factory=MlxSettings)  # what the user chose

    @override
    def hashes_by_program(self) -> Mapping[str, str]:
        """Hashes of packages: a version may be of a copy that somebody works on."""
        packages = (*PACKAGES, *filter(_is_installed, BACKENDS))
        return {name: joint_hash(package_code_files(name)) for name in packages}

    @property
    @override
    def renders_chats(self) -> bool:
        return True

    @property
    @override
    def abilities(self) -> frozenset[Ability]:
        """All but whole conversations, the whole of OpenAI's API, and reading."""
        lacking = {Ability.ADDRESS, Ability.CONVERSATIONS, Ability.READING}
        return frozenset(Ability) - lacking

    @override
    def refuse_unusable_arguments(self) -> None:
        """Stop at a device, threads, and group sizes that do not fit heads, too."""
        # Without arguments, super() knows only the class before it got its slots.
        super(Mlx, self).refuse_unusable_arguments()
        if self.model.device:
            raise BadInput(
                source=f"--devices {self.model.device}",
                reason="the engine mlx has one device, and it uses it",
                hint="Leave --devices out.",
            )
        if self.model.threads is not None:
            raise BadInput(
                source="--workers",
                reason="the engine mlx does not divide what it computes with",
                hint="Leave --workers out.",
            )
        if len(self.settings.group_size) not in {1, 2}:
            raise _group_size_error(self.settings.group_size, "K and V are two")
        sizes = (self.model.weights.key_length, self.model.weights.value_length)
        for group, head_size in zip(self.settings.group_sizes, sizes, strict=True):
            if group not in GROUP_SIZES or head_size % group:
                reason = f"heads have {head_size} values"
                raise _group_size_error(self.settings.group_size, reason)

    @property
    def compute_precision(self) -> str:
        """``float32`` or ``model``; by itself the former on a CPU."""
        if self.settings.compute != "auto":
            return self.settings.compute
        return "model" if devices() else "float32"

    @override
    def identity(self) -> EngineIdentity:
        """Versions, devices, arguments: what changes the arithmetic must be equal."""
        return EngineIdentity(
            name=self.name,
            version=", ".join(f"{name} {self.versions[name]}" for name in PACKAGES),
            program=sys.executable,
            devices=devices(),
            arguments=tuple(self._computation_arguments()),
        )

    @property
    @override
    def stretches_context(self) -> bool:
        return self.settings.rope_factor is not None

    @property
    @override
    def has_usual_cache_sizes(self) -> bool:
        return has_predictable_cache_size(self.identity().arguments)

    @property
    @override
    def scores_prompts(self) -> bool:
        return True

    @override
    def cache_types(self) -> CacheTypes:
        return CacheTypes(k=TYPES, v=TYPES, usual=USUAL_TYPES)

    @override
    def notes(self) -> tuple[str, ...]:
        start = self.settings.quantized_kv_start
        told = QUANTIZED_LATER.format(start) if start else QUANTIZED_AT_ONCE
        return (told,) if devices() else (ON_CPU, told)

    @contextlib.contextmanager
    @override
    def tokenizing(self, *, log: Path) -> Iterator[Tokenizer]:
        """A child that loads no weights."""
        launch = [*self.command("serve", context=512), "--counting"]
        child = self._serving(launch, log=log, silence_s=COUNT_TIMEOUT_S)
        with translating_counting_errors(NAME), child as served:
            yield served.client

    @override
    def serving(
        self, cell: CellSpec, *, log: Path
    ) -> "AbstractContextManager[MlxServer]":
        launch = self.command("serve", cell.pair, context=cell.context)
        return self._serving(launch, log=log)

    def _serving(
        self, argv: Sequence[str], *, log: Path, silence_s: float = SILENCE_S
    ) -> "AbstractContextManager[MlxServer]":
        """A child that *argv* starts, with a name and a key of its own."""
        alias, key = f"{NAME}.{secrets.token_hex(4)}", secrets.token_urlsafe(32)
        env = logs.child_environment() | {KEY_VARIABLE: key}

        def start(port: int, stack: ExitStack) -> MlxServer:
            more = ("--alias", alias, "--port", str(port))
            child = stack.enter_context(
                running_with_note([*argv, *more], env=env, log=log)
            )
            client = MlxClient(
                f"http://{HOST}:{port}", api_key=key, silence_s=silence_s
            )
            return MlxServer(
                client=stack.enter_context(client),
                command=tuple(argv),
                log=log,
                child=child,
                engine=self,
                alias=alias,
            )

        return started_servers.serving(start)

    @override
    def divergence_tool(self) -> DivergenceTool:
        facts = self.identity()
        return MlxDivergence(
            engine=self,
            model=self.model,
            version=facts.version,
            arguments=facts.arguments,
        )

    @override
    def speed_tool(self) -> SpeedTool:
        words = (argument.partition(" ") for argument in self.identity().arguments)
        return MlxSpeed(
            engine=self, arguments={name: value for name, _, value in words}
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
            *("--model", str(self.model.weights.folder), "--context", str(context)),
            *types,
            *(
                word
                for argument in self._computation_arguments()
                for word in argument.split()
            ),
        ]

    def _computation_arguments(self) -> Iterator[str]:
        """Arguments that change what is computed, each with its value."""
        key, value = self.settings.group_sizes
        size = self.settings.max_kv_size
        yield f"--kv-group-size {key}" + (f",{value}" if value != key else "")
        yield f"--quantized-kv-start {self.settings.quantized_kv_start}"
        if size is not None:
            yield f"--max-kv-size {size}"
        if self.settings.rope_factor is not None:
            yield f"--rope-factor {self.settings.rope_factor:g}"
        yield f"--compute {self.compute_precision}"


class MlxClient(Client):
    """
    Talks to a child of ours, which scores in batches what is made to come.

    Implements `engine.PromptScorer`, too.
    """

    def force_each(
        self, question: Completion, passages: Sequence[tuple[int, int]]
    ) -> list[Forced]:
        """
        The scores of *passages*, by forcing all from the first to the end of the last.

        Raises:
            BadReply: If a passage has no token of its own.
        """
        began, (begin, end) = time.perf_counter(), (passages[0][0], passages[-1][1])
        before = replace(question, prompt=question.prompt[:begin])
        whole = self.force(before, question.prompt[begin:end])
        read = whole.prompt_tokens + len(whole.logprobs)
        token_s = (time.perf_counter() - began) / read
        within = [(a - begin, b - begin) for a, b in passages]
        found = passage_token_ranges_and_costs(whole.ends, within)
        if not all(at for at, _ in found):
            raise BadReply(expected="tokens of each passage", answer="other tokens")
        return [
            Forced(
                logprobs=whole.logprobs[at.start : at.stop],
                bounds=tuple(bound - at.start for bound in whole.bounds if bound in at),
                leads=whole.leads[at.start : at.stop],
                ends=tuple(whole.ends[place] - first for place in at),
                prompt_tokens=whole.prompt_tokens + at.start,
                wall_s=round(token_s * taken, 6),
            )
            for (at, taken), (first, _) in zip(found, within, strict=True)
        ]


@dataclass(slots=True, kw_only=True)
class MlxServer(StartedServer):
    """A child that answers."""

    client: MlxClient  # sends requests to it
    log: Path
    child: Child  # its process
    engine: Mlx  # what started it
    alias: str  # the name under which it answers

    @property
    @override
    def tokenizer(self) -> Tokenizer:
        return self.client

    @override
    def effective(self) -> Effective:
        """What runs, read from the arrays of its caches."""
        return logs.running_settings(logs.read_log(self.log))

    @override
    def differences_from_cell(self, cell: CellSpec) -> tuple[str, ...]:
        return logs.differences(cell, self.engine.settings, logs.read_log(self.log))

    @override
    def device_bytes(self) -> int | None:
        """What MLX had in use on a GPU after the last reply; None on a CPU."""
        memory = self._memory_by_log()
        return memory.active_bytes if memory else None

    @override
    def device_peak_bytes(self) -> int | None:
        memory = self._memory_by_log()
        return memory.peak_bytes if memory else None

    def _memory_by_log(self) -> logs.Memory | None:
        """Memory on a GPU, as its log tells last; None on a CPU, or if untold."""
        log_text = logs.read_log(self.log) if devices() else ""
        return logs.last_event(log_text, logs.Memory)

    @override
    def readiness(self, limit_s: float) -> Readiness:
        return self.client.readiness(self.alias, limit_s=limit_s)

    @override
    def left_s(self, waited_s: float) -> float:
        return LOAD_TIMEOUT_S - waited_s

    @override
    def delay_error(self, _readiness: Readiness) -> CellError:
        return CellError(
            f"mlx does not answer after {LOAD_TIMEOUT_S:g} s",
            hint=f"See {self.log}. Is the disk slow, or the memory full?",
            status=Status.TIMED_OUT,
            log_excerpt=logs.last_lines(logs.read_log(self.log)),
        )

    @override
    def death_error(self) -> CellError:
        return logs.error_of_end(self.child.returncode, self.log)

    @override
    def excerpt(self, _error: CellError) -> tuple[str, ...]:
        return logs.last_lines(logs.read_log(self.log))


def _group_size_error(sizes: Sequence[int], reason: str) -> BadInput:
    return BadInput(
        source=f"--kv-group-size {','.join(map(str, sizes))}",
        reason=reason,
        hint="Use 32, 64 or 128, of which the head size is a multiple.",
    )


# --- the child as a tool


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChildRun:
    """One run of a child."""

    engine: Mlx  # what starts it
    cell: CellSpec  # pair, and the context that is verified
    argv: Sequence[str]  # its arguments
    log: Path  # receives what it says
    file: Path | None = None  # what it writes beside the log, if anything
    file_bytes: int = 0  # size that this file may have
    silence_s: float = TOOL_SILENCE_S  # how long both may stay as they are

    def run_and_read_log(self, note: Notify, grown: Callable[[str], None]) -> str:
        """
        Run it to its end.

        Args:
            note: Called when it is started, and when it has ended.
            grown: Called with the log so far, after something has come.

        Returns:
            Its log.

        Raises:
            CellError: If it fails, is silent, computes NaN, or runs something else than
                asked for.
        """
        note(ToolRun(command=tuple(self.argv)))

        def check_and_report_log() -> None:
            log_text = logs.read_log(self.log)
            self._refuse_mismatch(log_text, is_over=False)
            grown(log_text)

        returncode = run_with_silence_limit(
            self.argv,
            env=logs.child_environment(),
            log=self.log,
            grown=check_and_report_log,
            silence_s=self.silence_s,
            file_limit_bytes=FILE_LIMIT_BYTES + self.file_bytes,
            written=lambda: file_size_or_zero(self.file) if self.file else 0,
        )
        log_text = logs.read_log(self.log)
        if returncode is None:
            excerpt = logs.last_lines(log_text)
            raise silence_error("mlx", self.silence_s, log=self.log, excerpt=excerpt)
        effective = logs.running_settings(log_text)
        note(ToolRun(command=tuple(self.argv), effective=effective))
        if returncode:
            raise logs.error_of_end(returncode, self.log)
        self._refuse_mismatch(log_text, is_over=True)
        if nan := logs.last_event(log_text, logs.NanComputed):
            raise ComputesNan(token=nan.token, log_excerpt=logs.last_lines(log_text))
        return log_text

    def _refuse_mismatch(self, log_text: str, *, is_over: bool) -> None:
        """Stop at a difference, once the child says what runs, or *is_over*."""
        if is_over or logs.last_event(log_text, logs.Running):
            unlike = logs.differences(self.cell, self.engine.settings, log_text)
            if unlike:
                raise mismatch_error(unlike, log_excerpt=logs.last_lines(log_text))


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxDivergence(BaseFileTool):
    """Compares pairs in a child. Implements `tools.DivergenceTool`."""

    engine: Mlx

    @override
    def write_base(
        self, job: Job, note: Notify, progress: Progress
    ) -> BaseFileStatistics:
        log_text = self._run_and_read_log(job, note, progress)
        wrote = logs.last_event(log_text, logs.Wrote)
        if wrote is not None:
            return wrote.base
        short = logs.last_event(log_text, logs.Short)
        raise (
            job.too_short_error(short.lengths) if short else _incomplete_error(log_text)
        )

    def compare(
        self,
        task: DivergenceTask,
        reference: Reference,
        *,
        log: Path,
        note: Notify,
        progress: Progress,
    ) -> Comparison:
        """Run the child on *task*; see `tools.DivergenceTool`."""
        log_text = self._run_and_read_log(
            Job(task=task, text=None, log=log), note, progress
        )
        compared = logs.last_event(log_text, logs.TextCompared)
        scored = scored_token_count(chunks=reference.chunks, context=task.context)
        if compared is None or compared.comparison.tokens != scored:
            raise _incomplete_error(log_text)
        if fault := compared.comparison.statistics.fault:
            raise _incomplete_error(log_text, fault)
        return compared.comparison

    def _run_and_read_log(self, job: Job, note: Notify, progress: Progress) -> str:
        """Run *job*; returns the text of its log."""
        task, text = job.task, job.text
        argv = self.engine.command("divergence", job.pair, context=task.context)
        argv += ["--base", str(job.base)]
        if text is not None:
            argv += ["--text", str(text), "--chunks", str(task.chunks)]
        run = _ChildRun(
            engine=self.engine,
            cell=CellSpec(job.pair, task.context),
            argv=argv,
            log=job.log,
            file=job.base if text else None,
            file_bytes=self.base_bytes(chunks=task.chunks, context=task.context),
        )
        return run.run_and_read_log(
            note,
            lambda log_text: progress(
                len(logs.events_of_kind(log_text, logs.ChunkRead))
            ),
        )


def _incomplete_error(log_text: str, fault: str = "") -> CellError:
    """The error for a child without all statistics, or with a *fault* in them."""
    why = f": {fault}" if fault else ""
    return CellError(
        f"mlx ended without complete statistics{why}",
        hint="See the end of its log.",
        status=Status.CRASHED,
        log_excerpt=logs.last_lines(log_text),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MlxSpeed:
    """Measures speed in a child. Implements `tools.SpeedTool`."""

    engine: Mlx
    arguments: Mapping[str, str]

    def measure(
        self,
        task: SpeedTask,
        *,
        log: Path,
        silence_s: float,
        note: Notify,
        progress: Callable[[str], None],
    ) -> Speeds:
        """Run the child once for *task*; see `tools.SpeedTool`."""
        context = task.depth + max(task.prompt_tokens, task.generated_tokens)
        run = _ChildRun(
            engine=self.engine,
            cell=CellSpec(task.pair, context),
            argv=[
                *self.engine.command("speed", task.pair, context=context),
                *("--depth", str(task.depth)),
                *("--prompt-tokens", str(task.prompt_tokens)),
                *("--generated-tokens", str(task.generated_tokens)),
                *("--repetitions", str(task.repetitions)),
            ],
            log=log,
            silence_s=silence_s,
        )

        def report_repetition(log_text: str) -> None:
            done = len(logs.events_of_kind(log_text, logs.Speed))
            number = min(done + 1, task.repetitions)
            progress(f"repetition {number} of {task.repetitions}")

        speeds = logs.events_of_kind(
            run.run_and_read_log(note, report_repetition), logs.Speed
        )
        if len(speeds) != task.repetitions:
            raise _incomplete_error(logs.read_log(log))
        gpu = ", ".join(self.engine.identity().devices)
        return Speeds(
            pp=tuple(speed.pp for speed in speeds),
            tg=tuple(speed.tg for speed in speeds),
            build=self.engine.identity().version,
            cpu=machine.facts().processor,
            gpu=gpu,
            backends=gpu,
            threads=machine.usable_cores(),
            peak_bytes=max(speed.peak_bytes for speed in speeds),
        )
