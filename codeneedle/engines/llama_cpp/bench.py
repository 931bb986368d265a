"""Runs llama-bench and parses its JSON lines."""

import contextlib
import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import msgspec

from codeneedle.engines.llama_cpp.log import (
    last_words,
    printable,
    read_log,
    trouble,
)
from codeneedle.engines.llama_cpp.server import how, without_words
from codeneedle.errors import CellError
from codeneedle.grid import Pair
from codeneedle.records.record import Status, Trouble
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
            f"llama-bench ended with {how(returncode)}: {found.reason}",
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


def followed(
    argv: Sequence[str], *, env: Mapping[str, str], log: Path, silence_s: float
) -> Generator[str, None, str]:
    """
    Run *argv* to its end.

    Args:
        argv: llama-bench, as an absolute path, and its arguments.
        env: Its whole environment.
        log: Receives its output. Overwritten.
        silence_s: How long it may say nothing, in seconds.

    Yields:
        What it does, as a phrase, whenever it says something.

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
                yield phase
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
    return trouble(log_text) or without_words(returncode)
