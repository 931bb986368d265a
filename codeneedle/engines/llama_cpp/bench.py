"""Runs llama-bench and parses its JSON lines."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import msgspec

from codeneedle.engines.engine import ModelSpec, Speeds, SpeedTask, ToolRun, mismatched
from codeneedle.engines.llama_cpp.arguments import (
    ALL_LAYERS,
    BENCH_NEEDED,
    BENCH_OFFLOAD,
    ROTATION_VARIABLE,
    options_in,
    translated,
)
from codeneedle.engines.llama_cpp.installation import ServerFacts, Tools
from codeneedle.engines.llama_cpp.log import (
    Asked,
    evidence,
    exit_cause,
    exit_phrase,
    fallback,
    last_words,
    mismatches,
    printable,
    read,
    read_log,
    trouble,
)
from codeneedle.errors import BadInput, CellError, ToolMissing
from codeneedle.grid import Pair
from codeneedle.records.record import Effective, Status, Trouble
from codeneedle.system import processes
from codeneedle.system.orphans import noted
from codeneedle.system.processes import AwakeClock, ends_within

NANOSECONDS = 1_000_000_000
"""Of a second; what samples are counted in."""

_PROGRESS = re.compile(r"llama-bench: benchmark \d+/\d+: (\S.*)")
_UNKNOWN_TYPE = re.compile(
    r"invalid parameter for argument: (?:-ctk|-ctv|--cache-type-[kv])\b"
)


class NoResult(CellError):  # noqa: N818 - named after the fact
    """What llama-bench printed is not the result that was asked for."""

    def __init__(self, *, reason: str, found: Trouble | None = None) -> None:
        why = f"; its log: {found.reason}" if found else ""
        super().__init__(
            f"llama-bench gave no result: {reason}{why}",
            hint="Its whole output is in the logs folder of the run.",
        )
        self.reason = reason
        self.status = found.status.value if found else self.status


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """
    One test, as a JSON line of llama-bench; fields that are not here are left out.

    It repeats what it was asked for, as it understood it: what really ran, only
    the rest of its output tells.

    Attributes:
        build_commit: Of llama.cpp; ``unknown`` outside a repository.
        build_number: Of llama.cpp; 0 where it was not told.
        cpu_info: Names of the processors.
        gpu_info: Names of the accelerators; empty where there are none.
        backends: Names of the accelerating backends; ``CPU`` where there are none.
        n_threads: CPU threads.
        type_k: Element type of K.
        type_v: Element type of V.
        n_gpu_layers: Layers to offload; -1 is its own choice.
        flash_attn: 1 or true is on; -1 is its own choice.
        n_prompt: Tokens read per repetition; 0 in a test of writing.
        n_gen: Tokens written per repetition; 0 in a test of reading.
        n_depth: Tokens that were in the cache before.
        samples_ns: Duration of each repetition, in nanoseconds.
        samples_ts: Speed of each repetition, in tokens per second.
    """

    build_commit: str
    build_number: int
    cpu_info: str
    gpu_info: str
    backends: str
    n_threads: int
    type_k: str
    type_v: str
    n_gpu_layers: int
    flash_attn: int | bool
    n_prompt: int
    n_gen: int
    n_depth: int
    samples_ns: tuple[int, ...]
    samples_ts: tuple[float, ...]

    @property
    def speeds(self) -> tuple[float, ...]:
        """Tokens per second of each repetition, from its duration."""
        tokens = self.n_prompt + self.n_gen
        return tuple(round(tokens * NANOSECONDS / ns, 4) for ns in self.samples_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTests:
    """
    What llama-bench was asked for: one test of reading, one of writing.

    Attributes:
        pair: Cache types.
        depth: Tokens in the cache before each repetition.
        prompt_tokens: Tokens to read.
        generated_tokens: Tokens to write.
        repetitions: Of each test.
        offload: Value of ``--n-gpu-layers``; None if it was not given.
    """

    pair: Pair
    depth: int
    prompt_tokens: int
    generated_tokens: int
    repetitions: int
    offload: int | None = None


@dataclass(frozen=True, slots=True)
class BenchResult:
    """
    Both tests of one depth.

    Attributes:
        pp: Prompt processing: reading.
        tg: Text generation: writing.
    """

    pp: BenchRow
    tg: BenchRow


def read_result(output: str, asked: AskedTests) -> BenchResult:
    """
    Both tests from the output of llama-bench, stdout and stderr together.

    Raises:
        NoResult: If a line is truncated or of another shape, a test is missing, is
            there twice or is of another size, or a speed is not above zero.
    """
    rows = list(_rows(output))
    if len(rows) != 2:  # noqa: PLR2004 - reading and writing
        raise NoResult(reason=f"{len(rows)} result lines instead of 2")
    depth = asked.depth
    return BenchResult(
        pp=_test(rows, (asked.prompt_tokens, 0, depth), asked.repetitions),
        tg=_test(rows, (0, asked.generated_tokens, depth), asked.repetitions),
    )


def differences(result: BenchResult, asked: AskedTests) -> tuple[str, ...]:
    """In what the tests say they differ from what was asked, one phrase each."""
    found = [
        phrase for row in (result.pp, result.tg) for phrase in _differences(row, asked)
    ]
    return tuple(dict.fromkeys(found))


def last_phase(output: str) -> str | None:
    """What llama-bench does now: ``prompt run 2/3``; None if *output* tells not."""
    found = _PROGRESS.findall(output)
    return printable(found[-1]).strip() if found else None


def is_unknown_type(output: str) -> bool:
    """Whether llama-bench refused a cache type; it knows fewer than the server."""
    return bool(_UNKNOWN_TYPE.search(output))


def _rows(output: str) -> Iterator[BenchRow]:
    # Nothing else that it prints begins with a brace.
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        try:
            yield _printable(msgspec.json.decode(line, type=BenchRow))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise NoResult(reason=f"a line that cannot be read: {error}") from error


def _printable(row: BenchRow) -> BenchRow:
    """*row* with all words safe to show: they go into reasons and reports."""
    words = {
        field.name: printable(value)
        for field in fields(row)
        if isinstance(value := getattr(row, field.name), str)
    }
    return replace(row, **words)  # type: ignore[arg-type]


def _test(
    rows: list[BenchRow], size: tuple[int, int, int], repetitions: int
) -> BenchRow:
    matching = [row for row in rows if (row.n_prompt, row.n_gen, row.n_depth) == size]
    if len(matching) != 1:
        prompt, generated, depth = size
        raise NoResult(
            reason=f"{len(matching)} tests that read {prompt} and write {generated} "
            f"tokens at depth {depth}"
        )
    (row,) = matching
    for samples in (row.samples_ns, row.samples_ts):
        if len(samples) != repetitions:
            raise NoResult(reason=f"{len(samples)} samples, not {repetitions}")
        if min(samples) <= 0:
            raise NoResult(reason=f"a sample of {min(samples)}")
    if not min(row.speeds):
        raise NoResult(reason="a speed of next to nothing")
    return row


def _differences(row: BenchRow, asked: AskedTests) -> Iterator[str]:
    if row.type_k != asked.pair.k:
        yield f"K is {row.type_k}, not {asked.pair.k}"
    if row.type_v != asked.pair.v:
        yield f"V is {row.type_v}, not {asked.pair.v}"
    if row.flash_attn != 1:
        yield f"flash attention is {row.flash_attn}, not on"
    if asked.offload is not None and row.n_gpu_layers != asked.offload:
        yield f"{row.n_gpu_layers} layers are to be offloaded, not {asked.offload}"


NAP_S = 0.25
"""Between looks at the log: rare, because a look costs the measurement something."""

LONGEST_LOOK_S = 10.0
"""What is longer between two looks was not lived through: we were suspended."""

TAIL_BYTES = 8 << 10
"""Of the log, what is looked at for progress."""

PHASES = 4
"""Warm-up, depth, reading, writing: each may be silent for as long as is allowed."""


class BenchDied(CellError):  # noqa: N818 - named after the fact
    """llama-bench ended with an error."""

    def __init__(self, *, returncode: int, log: Path, log_text: str) -> None:
        found = _why(returncode, log_text)
        super().__init__(
            f"llama-bench ended with {exit_phrase(returncode)}: {found.reason}",
            hint=f"Its last words are in {log}.",
        )
        self.status = found.status
        self.log_excerpt = last_words(log_text)


class BenchHangs(CellError):  # noqa: N818 - named after the fact
    """llama-bench takes far longer than the depth before lets expect."""

    status = Status.TIMED_OUT.value

    def __init__(self, *, phase: str, seconds: float, log: Path) -> None:
        super().__init__(
            f"llama-bench is not done after {seconds:.0f} s: {phase}",
            hint=f"See {log}. Does the machine do something else at the same time?",
        )
        self.log_excerpt = last_words(read_log(log))


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    silence_s: float,
    progress: Callable[[str], None],
) -> str:
    """
    Run *argv* to its end.

    Args:
        argv: llama-bench, as an absolute path, and its arguments.
        env: Its whole environment.
        log: Receives its output. Overwritten.
        silence_s: How long it may say nothing, in seconds.
        progress: Called with what it does, as a phrase, whenever it says something.

    Returns:
        Its output, stdout and stderr together.

    Raises:
        BenchDied: If it ends with an error.
        BenchHangs: If it is silent for too long, or talks for ever.
        MachineError: If it cannot be started or stopped.
    """
    size, phase = 0, "loading"
    with noted(argv, env=env, log=log) as child:
        lived_s = AwakeClock(longest_s=LONGEST_LOOK_S)
        began = heard = lived_s()
        while not ends_within(child, NAP_S):
            now, grown = lived_s(), _size(log)
            if grown != size:
                size, heard = grown, now
                phase = last_phase(_tail(log)) or phase
                progress(phase)
            if now - heard > silence_s or now - began > PHASES * silence_s:
                raise BenchHangs(phase=phase, seconds=now - began, log=log)
    log_text = read_log(log)
    if child.returncode:
        raise BenchDied(returncode=child.returncode, log=log, log_text=log_text)
    return log_text


def _tail(log: Path) -> str:
    # Of a log that somebody took away, nothing is left to tell of progress.
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read(TAIL_BYTES).decode(errors="replace")
    return ""


def _size(log: Path) -> int:
    with contextlib.suppress(OSError):
        return log.stat().st_size
    return 0


def _why(returncode: int, log_text: str) -> Trouble:
    if is_unknown_type(log_text):
        return Trouble(Status.UNSUPPORTED, "it does not know this cache type")
    return trouble(log_text) or exit_cause(returncode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """
    llama-bench as a speed tool. Implements `engine.SpeedTool`.

    Attributes:
        tool: The program.
        facts: What the llama-server beside it says of itself.
        model: What is measured.
        arguments: Its arguments that are the same for every cell, by name.
        ignored: The user's arguments for llama-server that it does not have.
    """

    tool: Path
    facts: ServerFacts
    model: ModelSpec
    arguments: Mapping[str, str]
    ignored: tuple[str, ...]

    @classmethod
    def of(cls, tools: Tools, facts: ServerFacts, model: ModelSpec) -> "Bench":
        """
        The tool of an installation.

        Raises:
            BadInput: If the weights' path means several to llama-bench.
            MachineError: If the tool is missing, too old, or cannot be asked.
        """
        if tools.bench is None:
            raise ToolMissing(
                tool="llama-bench",
                reason=f"is not beside {tools.server}",
                hint="Build all three programs with 'codeneedle llama'.",
            )
        if "," in str(model.weights.path):
            raise BadInput(
                source=model.weights.path,
                reason="llama-bench cannot take weights with a comma in their path",
                hint="Rename the file or its folder, or use a symbolic link.",
            )
        options = asked_options(tools.bench)
        understood = translated(model.arguments, options)
        return cls(
            tool=tools.bench,
            facts=facts,
            model=model,
            arguments=_common(model, options) | understood.passed,
            ignored=understood.ignored,
        )

    def measure(
        self,
        task: SpeedTask,
        *,
        log: Path,
        silence_s: float,
        progress: Callable[[str], None],
    ) -> Speeds:
        """As of `engine.SpeedTool`."""
        argv = self.command(task)
        log_text = run(
            argv,
            env=processes.clean(os.environ) | self._variables(),
            log=log,
            silence_s=silence_s,
            progress=progress,
        )
        asked = self._asked(task)
        result = _told_result(log_text, asked)
        row = result.pp
        return Speeds(
            pp=row.speeds,
            tg=result.tg.speeds,
            run=ToolRun(
                command=tuple(argv),
                effective=self._verified(asked, result, log_text),
                fallback=fallback(log_text),
            ),
            build=_build(row),
            cpu=row.cpu_info,
            gpu=row.gpu_info,
            backends=row.backends,
            threads=row.n_threads,
        )

    def command(self, task: SpeedTask) -> list[str]:
        """The argv of *task*; a later value does not replace an earlier one."""
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
        # Verbose, because without it only errors are told: no types, no fallbacks.
        # Flags carry no value.
        words = [word for item in arguments.items() for word in item if word]
        return [str(self.tool), "--verbose", *words]

    def _variables(self) -> dict[str, str]:
        """As for the server: threads that wait for so small a model must not spin."""
        waiting = {"OMP_WAIT_POLICY": "passive"} if self.model.is_tiny else {}
        rotation = {} if self.model.rotation else {ROTATION_VARIABLE: "1"}
        return waiting | rotation

    def _asked(self, task: SpeedTask) -> AskedTests:
        layers = self.arguments.get(BENCH_OFFLOAD)
        return AskedTests(
            pair=task.pair,
            depth=task.depth,
            prompt_tokens=task.prompt_tokens,
            generated_tokens=task.generated_tokens,
            repetitions=task.repetitions,
            offload=int(layers) if layers and layers.lstrip("-").isdigit() else None,
        )

    def _verified(
        self, asked: AskedTests, result: BenchResult, log_text: str
    ) -> Effective:
        effective = read(log_text)
        wanted = Asked(
            pair=asked.pair,
            context=asked.depth + asked.prompt_tokens,
            rotation=self.model.rotation,
            all_layers=self.arguments.get(BENCH_OFFLOAD) == ALL_LAYERS,
        )
        found = (
            *differences(result, asked),
            *mismatches(wanted, effective),
            *_other_installation(self.facts, result.pp),
        )
        if found:
            distinct = tuple(dict.fromkeys(found))
            raise mismatched(distinct, log_excerpt=evidence(log_text))
        return replace(effective, build=_build(result.pp))


ASK_TIMEOUT_S = 60.0
"""Long: the first start on a GPU may compile its kernels."""


def asked_options(bench: Path) -> frozenset[str]:
    """
    The options of *bench*.

    Raises:
        ToolMissing: If one that is needed is missing.
        MachineError: If it cannot be asked.
    """
    answer = processes.output_of([str(bench), "--help"], timeout_s=ASK_TIMEOUT_S)
    help_text = answer.stdout + answer.stderr
    options = options_in(help_text)
    missing = [name for name in BENCH_NEEDED if name not in options]
    if "jsonl" not in help_text:
        missing.append("--output jsonl")
    if missing:
        raise ToolMissing(
            tool=str(bench),
            reason=f"has no option {missing[0]}",
            hint="Use a newer llama.cpp: 'codeneedle llama' builds one.",
        )
    return options


def _common(model: ModelSpec, options: frozenset[str]) -> dict[str, str]:
    """Arguments that are the same for every cell; the user's come last, and win."""
    common = {BENCH_OFFLOAD: ALL_LAYERS}
    if "--progress" in options:
        common["--progress"] = ""
    if model.is_tiny:
        # As for the server: a second thread waits more than it computes.
        common["--threads"] = "1"
        if "--poll" in options:
            common["--poll"] = "0"
    return common


def _told_result(log_text: str, asked: AskedTests) -> BenchResult:
    """`read_result`, with what the log tells of a failure."""
    try:
        return read_result(log_text, asked)
    except NoResult as error:
        told = NoResult(reason=error.reason, found=trouble(log_text))
        told.log_excerpt = last_words(log_text)
        raise told from error


def _other_installation(facts: ServerFacts, row: BenchRow) -> tuple[str, ...]:
    """In what llama-bench is not of the same make as the server."""
    found = []
    if facts.build and row.build_number and facts.build != row.build_number:
        found.append(f"llama-bench is build {row.build_number}, not {facts.build}")
    if facts.devices and row.backends == "CPU":
        found.append(f"llama-bench knows no accelerator, not {facts.devices[0]}")
    return tuple(found)


def _build(row: BenchRow) -> str:
    return f"{row.build_number} ({row.build_commit})"
