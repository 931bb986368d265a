"""Measures speed with llama-bench, and parses the JSON lines that it prints."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Self

import msgspec

from codeneedle.engines import mismatch
from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.exit_causes import Died
from codeneedle.engines.llama_cpp import log as logs
from codeneedle.engines.llama_cpp.arguments import ALL_LAYERS, environment_for_model
from codeneedle.engines.llama_cpp.installation import (
    ASK_TIMEOUT_S,
    BENCH,
    Program,
    ServerFacts,
    Tools,
)
from codeneedle.engines.llama_cpp.log import read_log
from codeneedle.engines.llama_cpp.tool_options import (
    BENCH_NEEDED,
    BENCH_OFFLOAD,
    bench_and_lacking_arguments,
    parse_bench_option_names,
)
from codeneedle.engines.reasons import printable_line_beginning
from codeneedle.engines.tools import Speeds, SpeedTask, ToolRun
from codeneedle.errors import BadInput, CellError, ToolMissing
from codeneedle.records.record import Effective, Status, Trouble
from codeneedle.system import processes
from codeneedle.system.files import masked_log_tail
from codeneedle.system.inherited_variables import inherited_variables
from codeneedle.system.watched import run_with_silence_limit

PHASES = 4
"""Warm-up, depth, reading, writing: each may be silent for as long as is allowed."""

NANOSECONDS = 1_000_000_000
"""Per second; samples are counted in them."""

_TAIL_BYTES = 8 << 10
_PROGRESS = re.compile(r"llama-bench: benchmark \d+/\d+: (\S.*)")
_UNKNOWN_TYPE = re.compile(
    r"invalid parameter for argument: (?:-ctk|-ctv|--cache-type-[kv])\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """llama-bench with one model. Implements `tools.SpeedTool`."""

    tool: Program  # how it is started
    help_text: str = field(repr=False)  # what its ``--help`` prints
    server: ServerFacts  # what the llama-server of the same installation says of itself
    model: ModelSpec  # what it computes with

    @classmethod
    def of_checked_installation(
        cls, tools: Tools, facts: ServerFacts, model: ModelSpec
    ) -> Self:
        """
        The llama-bench of an installation.

        Raises:
            BadInput: If it would take the path of the weights for several.
            ToolMissing: If it lacks an option that is needed.
            MachineError: If it cannot be started, or hangs.
        """
        if "," in str(model.weights.path):
            raise BadInput(
                source=model.weights.path,
                reason="llama-bench cannot take weights with a comma in their path",
                hint="Rename the file or its folder, or use a symbolic link without "
                "one.",
            )
        tool = tools.bench or Program(tools.server.path.with_name(BENCH))
        return cls(
            tool=tool, help_text=_ask_for_checked_help(tool), server=facts, model=model
        )

    @property
    def arguments(self) -> Mapping[str, str]:
        """Further arguments by name: ours, which those of the user replace."""
        ours = {BENCH_OFFLOAD: ALL_LAYERS}
        options = parse_bench_option_names(self.help_text)
        if "--progress" in options:
            ours["--progress"] = ""
        if self.model.is_tiny:
            # As for the server: a second thread waits more than it computes.
            ours["--threads"] = "1"
            if "--poll" in options:
                ours["--poll"] = "0"
        return (
            ours | bench_and_lacking_arguments(self.model.arguments, self.help_text)[0]
        )

    def measure(
        self,
        task: SpeedTask,
        *,
        log: Path,
        silence_s: float,
        note: Callable[[ToolRun], None],
        progress: Callable[[str], None],
    ) -> Speeds:
        """Run llama-bench once for *task*; see `tools.SpeedTool`."""
        command = self.command(task)
        note(ToolRun(command=command))
        output = self._run(command, log=log, silence_s=silence_s, progress=progress)
        result = read_result(output, task)
        effective = replace(
            logs.effective_settings(output), build=result.pp.build_label
        )
        note(ToolRun(command=command, effective=effective))
        self._verify(task, result, effective, output)
        row = result.pp
        return Speeds(
            pp=row.speeds,
            tg=result.tg.speeds,
            build=row.build_label,
            cpu=row.cpu_info,
            gpu=row.gpu_info,
            backends=row.backends,
            threads=row.n_threads,
        )

    def command(self, task: SpeedTask) -> tuple[str, ...]:
        """The argv that measures *task*: each name once, as repeated ones add tests."""
        arguments = {
            "--model": str(self.model.weights.path),
            "--output": "jsonl",
            **self.arguments,
            "--flash-attn": "1",
            "--cache-type-k": task.pair.k,
            "--cache-type-v": task.pair.v,
            "--repetitions": str(task.repetitions),
            "--n-prompt": str(task.prompt_tokens),
            "--n-gen": str(task.generated_tokens),
            "--n-depth": str(task.depth),
        }
        # A flag has no value. Verbose: else only errors are logged, neither cache
        # types nor conversions.
        words = [word for item in arguments.items() for word in item if word]
        return (*self.tool.command_words, "--verbose", *words)

    def _run(
        self,
        command: tuple[str, ...],
        *,
        log: Path,
        silence_s: float,
        progress: Callable[[str], None],
    ) -> str:
        """
        The output of *command*, stdout and stderr together.

        Raises:
            CellError: If it ends with an error, or is silent or busy for too long.
            MachineError: If it cannot be started or stopped.
        """
        # Times are taken while nobody else computes.
        env = inherited_variables()
        env |= environment_for_model(self.model, is_passive=self.model.is_tiny)

        began = time.monotonic()

        def report_phase_or_raise() -> None:
            progress(_current_phase(log))
            # One that says something again and again ends all the same.
            if time.monotonic() - began > PHASES * silence_s:
                raise _too_slow_error(
                    _current_phase(log), time.monotonic() - began, log
                )

        returncode = run_with_silence_limit(
            command,
            env=env,
            log=log,
            grown=report_phase_or_raise,
            silence_s=silence_s,
        )
        if returncode is None:
            raise _too_slow_error(_current_phase(log), time.monotonic() - began, log)
        output = read_log(log)
        if returncode:
            raise _exit_error(output, returncode=returncode, log=log)
        return output

    def _verify(
        self, task: SpeedTask, result: "BenchResult", effective: Effective, output: str
    ) -> None:
        """
        Stop if something else ran than *task* asks for.

        Raises:
            CellError: Naming each difference.
        """
        layers = self.arguments.get(BENCH_OFFLOAD, "")
        asked = mismatch.RequestedSettings(
            pair=task.pair,
            context=task.depth + task.prompt_tokens,
            rotation=self.model.rotation,
            all_layers=layers == ALL_LAYERS,
        )
        is_number = layers.lstrip("-").isdigit()
        unlike = (
            *differences(result, task, layers=int(layers) if is_number else None),
            *mismatch.differences(asked, effective),
            *self._installation_differences(result.pp),
        )
        if unlike:
            unique = tuple(dict.fromkeys(unlike))
            excerpt = logs.setting_lines(output)
            raise mismatch.mismatch_error(unique, log_excerpt=excerpt)

    def _installation_differences(self, row: "BenchRow") -> Iterator[str]:
        """In what llama-bench is not of the same make as the server."""
        build, devices = self.server.build, self.server.devices
        if build and row.build_number and build != row.build_number:
            yield f"llama-bench is build {row.build_number}, not {build}"
        if devices and row.backends == "CPU":
            yield f"llama-bench knows no accelerator, not {devices[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """
    One test, as a JSON line of llama-bench; other fields are ignored.

    It repeats the arguments of llama-bench, as it understood them; what really ran is
    in the rest of its output.
    """

    build_commit: str  # of llama.cpp; ``unknown`` outside a repository
    build_number: int  # of llama.cpp; 0 where it was not stated at the build
    cpu_info: str  # names of the processors
    gpu_info: str  # names of the accelerators; empty where there are none
    backends: str  # names of the accelerating backends; ``CPU`` where there are none
    n_threads: int  # CPU threads
    type_k: str  # element type of K
    type_v: str  # element type of V
    n_gpu_layers: int  # layers to offload; -1 is its own choice
    flash_attn: int | bool  # 1 or true is on; -1 is its own choice
    n_prompt: int  # tokens read per repetition; 0 in a test of writing
    n_gen: int  # tokens written per repetition; 0 in a test of reading
    n_depth: int  # tokens in the cache before each repetition
    samples_ns: tuple[int, ...]  # duration of each repetition, in nanoseconds
    samples_ts: tuple[float, ...]  # speed of each repetition, in tokens per second

    @property
    def build_label(self) -> str:
        """Number and commit: ``11434 (b0a2feb64)``."""
        return f"{self.build_number} ({self.build_commit})"

    @property
    def speeds(self) -> tuple[float, ...]:
        """Tokens per second of each repetition, from its duration."""
        tokens = self.n_prompt + self.n_gen
        return tuple(round(tokens * NANOSECONDS / ns, 4) for ns in self.samples_ns)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Both tests of one depth."""

    pp: BenchRow  # prompt processing: reading
    tg: BenchRow  # text generation: writing


def read_result(output: str, task: SpeedTask) -> BenchResult:
    """
    Both tests from the output of llama-bench, stdout and stderr together.

    Raises:
        CellError: If a line is truncated or of another shape, a test is missing, is
            there twice or is of another size, or a speed is not above zero.
    """
    try:
        return _parse_result(output, task)
    except ValueError as error:
        trouble = logs.find_trouble(output)
        raise CellError(
            f"llama-bench gave no result: {error}"
            f"{f'; its log: {trouble.reason}' if trouble else ''}",
            hint="Its whole output is in the logs folder of the run.",
            status=trouble.status if trouble else Status.CRASHED,
            log_excerpt=logs.last_lines(output),
        ) from error


def differences(
    result: BenchResult, task: SpeedTask, *, layers: int | None
) -> Iterator[str]:
    """
    In what the tests state to differ from *task*, a phrase for each of either.

    Args:
        result: Both tests.
        task: What was to be measured.
        layers: Layers that were to be offloaded; None for any number.
    """
    for row in (result.pp, result.tg):
        yield from mismatch.wrong_type_phrases(task.pair, row.type_k, row.type_v)
        if row.flash_attn != 1:
            is_off = row.flash_attn == 0
            yield f"flash attention is {'off' if is_off else 'its own choice'}, not on"
        if layers is not None and row.n_gpu_layers != layers:
            yield f"{row.n_gpu_layers} layers are to be offloaded, not {layers}"


def last_phase(output: str) -> str | None:
    """What llama-bench does now: ``prompt run 2/3``; None if it does not say."""
    phases = _PROGRESS.findall(output)
    return printable_line_beginning(phases[-1]).strip() if phases else None


def has_refused_cache_type(output: str) -> bool:
    """Whether llama-bench refused a cache type; it knows fewer than the server."""
    return bool(_UNKNOWN_TYPE.search(output))


def _ask_for_checked_help(bench: Program) -> str:
    """
    What *bench* prints for ``--help``.

    Raises:
        ToolMissing: If it lacks an option that is needed.
        MachineError: If it cannot be started, or hangs.
    """
    answer = processes.run_for_output(
        [*bench.command_words, "--help"], timeout_s=ASK_TIMEOUT_S
    )
    help_text = answer.stdout + answer.stderr
    options = parse_bench_option_names(help_text)
    missing = [name for name in BENCH_NEEDED if name not in options]
    if "jsonl" not in help_text:
        missing.append("--output jsonl")
    if missing:
        raise ToolMissing(
            tool=str(bench),
            reason=f"has no option {missing[0]}",
            hint="Use a newer llama.cpp: 'codeneedle llama' builds one.",
        )
    return help_text


def _parse_result(output: str, task: SpeedTask) -> BenchResult:
    """Both tests of *output*; a ValueError if one is missing or not as asked."""
    rows = list(_parse_rows(output))
    if len(rows) != 2:  # noqa: PLR2004 - reading and writing
        raise ValueError(f"{len(rows)} result lines instead of 2")
    return BenchResult(
        pp=_checked_row_of_test(
            rows, (task.prompt_tokens, 0, task.depth), task.repetitions
        ),
        tg=_checked_row_of_test(
            rows, (0, task.generated_tokens, task.depth), task.repetitions
        ),
    )


def _parse_rows(output: str) -> Iterator[BenchRow]:
    """The tests in *output*; a ValueError at a line that cannot be read."""
    # Nothing else that it prints begins with a brace.
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        try:
            yield _printable_row(msgspec.json.decode(line, type=BenchRow))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"a line that cannot be read: {error}") from error


def _printable_row(row: BenchRow) -> BenchRow:
    """*row* with all texts safe to show: they go into reasons and reports."""
    texts = {
        field.name: printable_line_beginning(value)
        for field in fields(row)
        if isinstance(value := getattr(row, field.name), str)
    }
    return replace(row, **texts)  # type: ignore[arg-type]


def _checked_row_of_test(
    rows: list[BenchRow], size: tuple[int, int, int], repetitions: int
) -> BenchRow:
    """
    The one of *rows* that reads, writes and has in its cache *size* tokens.

    Raises:
        ValueError: If there is none or several, or its samples cannot be.
    """
    matching = [row for row in rows if (row.n_prompt, row.n_gen, row.n_depth) == size]
    if len(matching) != 1:
        prompt, generated, depth = size
        raise ValueError(
            f"{len(matching)} tests that read {prompt} and write {generated} "
            f"tokens at depth {depth}"
        )
    (row,) = matching
    for samples in (row.samples_ns, row.samples_ts):
        if len(samples) != repetitions:
            raise ValueError(f"{len(samples)} samples, not {repetitions}")
        if min(samples) <= 0:
            raise ValueError(f"a sample of {min(samples)}")
    if not min(row.speeds):
        raise ValueError("a speed that rounds to zero")
    return row


def _exit_error(output: str, *, returncode: int, log: Path) -> CellError:
    """Why llama-bench failed; a type that it does not know is unsupported."""
    cause = logs.cause(output, returncode)
    if has_refused_cache_type(output):
        cause = Trouble(Status.UNSUPPORTED, "it does not know this cache type")
    excerpt = logs.last_lines(output)
    return Died(
        "llama-bench", returncode=returncode, log=log, cause=cause, excerpt=excerpt
    )


def _too_slow_error(phase: str, seconds: float, log: Path) -> CellError:
    return CellError(
        f"llama-bench is not done after {seconds:.0f} s: {phase}",
        hint=f"See {log}. Does the machine do something else at the same time?",
        status=Status.TIMED_OUT,
        log_excerpt=logs.last_lines(read_log(log)),
    )


def _current_phase(log: Path) -> str:
    """
    What llama-bench does now, by the end of its log.

    ``loading`` if it does not say.
    """
    return last_phase(masked_log_tail(log, _TAIL_BYTES)) or "loading"
