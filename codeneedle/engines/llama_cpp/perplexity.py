"""
Runs llama-perplexity, to compare pairs or to read: its command, when it runs again as
its log or rows were cut (#22142), and contexts that old builds cannot hold.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGABRT
from typing import TYPE_CHECKING, Self

from typing_extensions import override

from codeneedle.engines.distributions import values_per_row
from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.exit_causes import Died, exit_cause, silence_error
from codeneedle.engines.llama_cpp import log as logs
from codeneedle.engines.llama_cpp.arguments import (
    ALL_LAYERS,
    OFFLOAD,
    attention_on_cpu_arguments,
    environment_for_model,
    has_argument,
    last_value,
    thread_arguments,
    threads_should_sleep,
    wait_policy_label,
    without_arguments,
)
from codeneedle.engines.llama_cpp.base_file import (
    BaseFileStatistics,
    BaseFileTool,
    Job,
    Notify,
    Progress,
)
from codeneedle.engines.llama_cpp.installation import (
    ASK_TIMEOUT_S,
    PERPLEXITY,
    Program,
    ServerFacts,
    Tools,
)
from codeneedle.engines.llama_cpp.log import read_log
from codeneedle.engines.llama_cpp.perplexity_log import (
    announced_chunks_and_context,
    chunks_done,
    final_perplexity,
    find_error_line,
    first_nan_token_in_log,
    is_log_cut_off,
    lengths_if_text_too_short,
)
from codeneedle.engines.llama_cpp.tool_options import (
    list_tool_options,
    shared_and_lacking_arguments,
)
from codeneedle.engines.mismatch import (
    RequestedSettings,
    differences,
    mismatch_error,
    refuse_quantized_v_without_flash,
)
from codeneedle.engines.tools import (
    Comparison,
    DivergenceTask,
    Estimate,
    ReadingTask,
    ReadTokens,
    Reference,
    ToolRun,
)
from codeneedle.errors import CellError, ToolMissing
from codeneedle.records.record import Status
from codeneedle.scores import ComputesNan
from codeneedle.system import processes
from codeneedle.system.inherited_variables import inherited_variables
from codeneedle.system.processes import FILE_LIMIT_BYTES
from codeneedle.system.watched import run_with_silence_limit

if TYPE_CHECKING:
    from codeneedle.engines.llama_cpp.reading import ReadJob, RowStream

SILENCE_S = 3600.0
"""How long the tool may write nothing: a chunk of a large model may take as long."""

RETRIES = 20
"""Further runs of the tool if its rows do not come whole, or its log names no cache."""

PERPLEXITY_RETRIES = 3
"""
Further runs if only the end of its log is missing: it tells the perplexity alone.

Measured with the built-in model on two busy cores: 3 runs of 30; at a load of 25, nine
of 36 cells, and one of them six times running. All else is computed from rows, which
have come. A large model takes longer to exit than its log to be written.
"""

FAILED_RETRIES = 8
"""
Further runs of a tool that fails, if its log does not say why.

What a model refuses is logged right before the end: of six runs, four lost that line.
"""

CUT_OFF = (
    f"the end of its log was missing in {RETRIES + 1} runs; on a busy machine it can "
    "exit before it has written it (llama.cpp #22142)"
)

BATCH = 2048
"""Tokens per batch, at most: the tool's own default. With more than a context, it
would compute several chunks side by side, in a cache of another shape."""

_BATCH_SIZE = frozenset(("-b", "--batch-size"))

FIRST_WIDE_BUILD = 9512
"""
A build of 2026-06-04, with 64-bit sizes of the base file.

They came on 2026-05-24 (llama.cpp #23496 and #23623); b9292 of the day before still
crashes. A build between the two may be refused without need.
"""

OPTIONAL: tuple[tuple[str, ...], ...] = (
    ("--verbosity", "4"),  # below, the log names no cache types
    ("--fit", "off"),  # fits unset arguments to free memory, pair by pair
    ("--offline",),
)
"""Arguments for those builds that have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity(BaseFileTool):
    """
    llama-perplexity with one model. Implements `tools.DivergenceTool` and
    `tools.ReadingTool`.
    """

    tool: Program  # how it is started
    build: int | None  # number of the llama.cpp build; None or 0 if unknown
    options: frozenset[str]  # long options that the build has

    @classmethod
    def ask_installed_tool(
        cls, tools: Tools, facts: ServerFacts, model: ModelSpec
    ) -> Self:
        """
        The llama-perplexity of an installation.

        Raises:
            MachineError: If it cannot be started, or hangs.
        """
        beside = tools.server.path.with_name(PERPLEXITY)
        tool = tools.perplexity or Program(beside)
        options = list_tool_options(tool) if model.arguments else ()
        shared, _ = shared_and_lacking_arguments(model.arguments, PERPLEXITY, options)
        return cls(
            tool=tool,
            version=_ask_version_or_unknown(tool),
            build=facts.build,
            options=facts.options,
            model=model,
            arguments=shared,
        )

    @override
    def check(
        self, *, text_name: str, text_bytes: int, context: int, chunks: int
    ) -> None:
        # Without arguments, super() knows only the class before it got its slots.
        super(Perplexity, self).check(
            text_name=text_name, text_bytes=text_bytes, context=context, chunks=chunks
        )
        self._refuse_overflow(context)

    @override
    def write_base(
        self, job: Job, note: Notify, progress: Progress
    ) -> BaseFileStatistics:
        log_text, _ = self._rerun_until_log_complete(job, note, progress)
        lengths = lengths_if_text_too_short(log_text)
        if lengths is not None:
            raise job.too_short_error(lengths)
        ppl, done = (
            _perplexity_unless_log_cut(job, log_text),
            announced_chunks_and_context(log_text),
        )
        if done is None:
            raise _incomplete_error(job, log_text)
        if ppl is None:
            self._check_base_file_rows(job, done.chunks, log_text)
        self.refuse_mismatch(job, log_text)
        return BaseFileStatistics(chunks=done.chunks, ppl=ppl.value if ppl else None)

    def _check_base_file_rows(self, job: Job, chunks: int, log_text: str) -> None:
        """
        Stop at rows of *job* that are missing or none: its log is cut, and tells less.

        Raises:
            CellError: If there is some.
        """
        from codeneedle.engines.llama_cpp import reading

        rows = reading.CheckedRows(
            vocabulary=self.model.weights.vocabulary,
            context=job.task.context,
            chunks=chunks,
        )
        with contextlib.suppress(OSError):  # a file that is missing has no rows
            rows.feed_file(job.base)
        if rows.nan_from is not None:
            raise _nan_error(rows.nan_from, log_text)
        _refuse_unusable_rows(job, rows, log_text)

    def compare(
        self,
        task: DivergenceTask,
        reference: Reference,
        *,
        log: Path,
        note: Notify,
        progress: Progress,
    ) -> Comparison:
        """
        The pair beside *reference*.

        Its rows come through a pipe, and take no disk.
        """
        from codeneedle.engines.llama_cpp import reading

        job, rows = reading.prepare_comparing(
            task,
            reference.chunks,
            log=log,
            vocabulary=self.model.weights.vocabulary,
        )
        with contextlib.closing(rows):
            log_text, retries = self._run_into_pipe_with_retries(
                job, note, progress, is_estimated=True
            )
        self.refuse_mismatch(job, log_text)
        return rows.comparison(
            ppl=_perplexity_unless_log_cut(job, log_text), retries=retries
        )

    def scorable_places(self, tokens: int) -> range:
        """Places of tokens that the tool scores: the second half but its first."""
        return range(tokens // 2 + 1, tokens)

    def bytes_needed_to_read(self, tokens: int) -> int:
        """Bytes to read so many *tokens*: half of a chunk twice over, and a batch."""
        values = values_per_row(self.model.weights.vocabulary)
        return 4 * values * (tokens + min(tokens, BATCH))

    def read_and_score(
        self, task: ReadingTask, *, log: Path, note: Notify
    ) -> ReadTokens:
        """The scores of *task*; the base file comes through a pipe."""
        from codeneedle.engines.llama_cpp import reading

        job, rows = reading.prepare_reading(
            task, log=log, vocabulary=self.model.weights.vocabulary
        )

        log_text, retries = self._run_into_pipe_with_retries(
            job, note, lambda _chunks: None
        )
        self.refuse_mismatch(job, log_text)
        return replace(rows.wanted_token_scores(), retries=retries)

    def _run_into_pipe_with_retries(
        self,
        job: "ReadJob",
        note: Notify,
        progress: Progress,
        *,
        is_estimated: bool = False,
    ) -> tuple[str, int]:
        """
        The log of *job*, whose rows have come whole, and how often it ran again.

        It runs again, too, if its log lacks the perplexity that *is_estimated*: that of
        rows is another one, where right tokens are beyond what they hold. It may be
        missing after all.

        Raises:
            CellError: If it fails, or its rows do not come whole.
        """
        from codeneedle.engines.llama_cpp import reading

        rows = job.rows

        def run() -> tuple[str, int]:
            rows.start_over()
            with reading.piping_into_rows(rows) as pipe:
                return self._run(replace(job, pipe=pipe), note, progress)

        def most_retries(log_text: str) -> int:
            if rows.fault:
                return 0
            return _allowed_reruns(log_text, rows.is_whole, is_estimated=is_estimated)

        log_text, returncode, retries = _run_with_retries(run, most_retries)
        if returncode != 0:
            raise _exit_error(job, log_text, returncode=returncode)
        _refuse_unusable_rows(job, rows, log_text)
        return log_text, retries

    def command(self, job: Job) -> list[str]:
        """The argv of *job*. Pure, so that a test can read it."""
        return [
            *self.tool.command_words,
            *("--model", str(self.model.weights.path)),
            *("--ctx-size", str(job.task.context)),
            *("--batch-size", str(self._batch_size(job.task.context))),
            *("--flash-attn", "on"),
            *("--cache-type-k", job.pair.k, "--cache-type-v", job.pair.v),
            *(("--n-gpu-layers", ALL_LAYERS) if self._takes_all_layers() else ()),
            *thread_arguments(self.model, self.options),
            *(word for words in OPTIONAL if words[0] in self.options for word in words),
            *("--kl-divergence-base", str(job.base)),
            *("--file", str(job.text), "--chunks", str(job.task.chunks)),
            *attention_on_cpu_arguments(self.model),
            *without_arguments(self.arguments, _BATCH_SIZE),
        ]

    def _batch_size(self, context: int) -> int:
        """Tokens per batch: the user's number, else `BATCH`; at most *context*."""
        chosen = last_value(self.arguments, _BATCH_SIZE)
        return min(context, int(chosen) if chosen.isdecimal() else BATCH)

    def refuse_mismatch(self, job: Job, log_text: str, *, is_over: bool = True) -> None:
        """
        Stop where cache types, or other settings, differ from what *job* asked for.

        Args:
            job: What was to run.
            log_text: Log of the tool.
            is_over: Whether it has ended; before, the log may name no cache yet.

        Raises:
            CellError: If they do, or if the log does not tell.
        """
        effective = logs.effective_settings(log_text)
        asked = RequestedSettings(
            pair=job.pair,
            context=job.task.context,
            rotation=self.model.rotation,
            all_layers=self._takes_all_layers(),
            flash=not self.model.attention_on_cpu,
        )
        refuse_quantized_v_without_flash(job.pair, effective)
        unlike = differences(asked, effective)
        if unlike and (is_over or effective.kv):
            raise mismatch_error(unlike, log_excerpt=logs.setting_lines(log_text))

    def _rerun_until_log_complete(
        self, job: Job, note: Notify, progress: Progress
    ) -> tuple[str, int]:
        """
        The log of *job*, and how often it ran again as the end of it was missing.

        It may be missing after all.

        Raises:
            CellError: If it fails.
        """

        def most_retries(log_text: str) -> int:
            has_begun = announced_chunks_and_context(log_text) is not None
            return (
                _allowed_reruns(log_text, has_begun) if is_log_cut_off(log_text) else 0
            )

        log_text, returncode, retries = _run_with_retries(
            lambda: self._run(job, note, progress), most_retries
        )
        if returncode != 0:
            raise _exit_error(job, log_text, returncode=returncode)
        return log_text, retries

    def _run(self, job: Job, note: Notify, progress: Progress) -> tuple[str, int]:
        """
        Run *job* to its end.

        Returns:
            Its log and exit code; 0 is no sign of success: look for the statistics.

        Raises:
            CellError: If it fails, writes nothing for `SILENCE_S`, computes NaN, or
                runs other cache types than asked for.
            MachineError: If it cannot be started or stopped.
        """
        argv = self.command(job)
        note(ToolRun(command=tuple(argv)))
        is_passive = threads_should_sleep(self.model)
        env = inherited_variables()
        env |= environment_for_model(self.model, is_passive=is_passive)

        silence_limit = job.task.silence_limit
        silence_s, known = silence_limit.limit_and_cause(SILENCE_S)

        def check_log_and_report_progress() -> None:
            silence_limit.note_event()
            log_text = read_log(job.log)
            self.refuse_mismatch(job, log_text, is_over=False)
            _refuse_nan(job, log_text)
            if fault := job.fault():
                raise _unreadable_rows_error(job, fault, log_text)
            progress(min(chunks_done(log_text), job.task.chunks))

        silence_limit.begin_silence()
        returncode = run_with_silence_limit(
            argv,
            env=env,
            log=job.log,
            grown=check_log_and_report_progress,
            written=job.written_bytes,
            silence_s=silence_s,
            # A base file is larger than any log.
            file_limit_bytes=FILE_LIMIT_BYTES
            + self.base_bytes(chunks=job.task.chunks, context=job.task.context),
        )
        if returncode is None:
            raise _silence_error(job, silence_s, known)
        log_text = read_log(job.log)
        note(
            ToolRun(
                command=tuple(argv),
                effective=replace(
                    logs.effective_settings(log_text),
                    waiting=wait_policy_label(is_passive),
                ),
            )
        )
        _refuse_nan(job, log_text)
        return log_text, returncode

    def _takes_all_layers(self) -> bool:
        """Whether each layer is to be on the accelerator: the user chose no number."""
        return not has_argument(self.arguments, OFFLOAD)

    def _refuse_overflow(self, context: int) -> None:
        """Stop at a *context* at which an old build computes sizes of 32 bits."""
        # Builds from an archive state number 0: their age is unknown.
        build = self.build or FIRST_WIDE_BUILD
        values = values_per_row(self.model.weights.vocabulary)
        most = (2**31 - 1) // values
        if context > most and build < FIRST_WIDE_BUILD:
            raise ToolMissing(
                tool=PERPLEXITY,
                reason=f"of build {build} crashes at a context of {context:,}: "
                f"{context:,} x {values:,} (vocabulary) = {context * values:,} is not "
                "below 2^31",
                hint=f"Use --divergence-context {most} or less, or a llama.cpp of "
                f"build {FIRST_WIDE_BUILD} or later: 'codeneedle llama'.",
            )


def _ask_version_or_unknown(tool: Program) -> str:
    """The version that *tool* states; ``unknown`` if it does not."""
    answer = processes.run_for_output(
        (*tool.command_words, "--version"), timeout_s=ASK_TIMEOUT_S
    )
    for line in f"{answer.stdout}\n{answer.stderr}".splitlines():
        if line.startswith("version:"):
            return line.removeprefix("version:").strip()
    return "unknown"


def _run_with_retries(
    run: Callable[[], tuple[str, int]], most_retries: Callable[[str], int]
) -> tuple[str, int, int]:
    """
    Run a tool until its log tells how it ended, or too often.

    Args:
        run: Runs it; returns its log and exit code.
        most_retries: How often it may run again after a run that exited with 0, from
            its log.

    Returns:
        The last log and exit code, and how often it ran again.
    """
    retries = 0
    while True:
        log_text, returncode = run()
        most = (
            _retries_of_failure(log_text, returncode)
            if returncode
            else most_retries(log_text)
        )
        if retries >= most:
            return log_text, returncode, retries
        retries += 1


def _allowed_reruns(
    log_text: str, has_results: bool, *, is_estimated: bool = True
) -> int:
    """
    How often a tool that exited with 0 runs again for what is missing.

    Args:
        log_text: Its log.
        has_results: Whether what it gives is there, the end of its log aside.
        is_estimated: Whether its perplexity is wanted.
    """
    if find_error_line(log_text) is not None:
        return 0
    # What the log says before the first chunk proves types, rotation and kernel.
    if (
        not has_results
        or not logs.effective_settings(log_text).kv
        or not chunks_done(log_text)
    ):
        return RETRIES
    return PERPLEXITY_RETRIES if is_estimated and is_log_cut_off(log_text) else 0


def _retries_of_failure(log_text: str, returncode: int) -> int:
    """How often a tool that failed runs again: not where its log names the cause."""
    # A signal from outside has no reason in the log.
    by_itself = returncode >= 0 or returncode == -SIGABRT
    is_told = (
        logs.find_trouble(log_text) is not None or find_error_line(log_text) is not None
    )
    return FAILED_RETRIES if by_itself and not is_told else 0


def _perplexity_unless_log_cut(job: Job, log_text: str) -> Estimate | None:
    """
    The perplexity of *job*; None if its log was cut before it.

    Raises:
        CellError: If the log has its end, and no perplexity that is a number; or it was
            cut before the first chunk, and proves nothing of the run.
    """
    found = final_perplexity(log_text)
    is_proof = is_log_cut_off(log_text) and chunks_done(log_text)
    if found is None and not is_proof:
        raise _incomplete_error(job, log_text)
    return found


def _exit_error(job: Job, log_text: str, *, returncode: int) -> CellError:
    """Why the tool failed: by its log, else by what it said, else by its exit."""
    cause, reason = logs.cause(log_text, returncode), find_error_line(log_text)
    if reason and cause == exit_cause(returncode):
        cause = replace(cause, reason=reason)
    excerpt = logs.last_lines(log_text)
    return Died(
        PERPLEXITY, returncode=returncode, log=job.log, cause=cause, excerpt=excerpt
    )


def _silence_error(job: Job, silence_s: float, known: str) -> CellError:
    """The error for a silence beyond a limit that follows from what is *known*."""
    return silence_error(
        PERPLEXITY,
        silence_s,
        log=job.log,
        excerpt=logs.last_lines(read_log(job.log)),
        why=known,
        hint="Does the pair lack a kernel on this device?",
    )


def _refuse_nan(job: Job, log_text: str) -> None:
    """
    Stop at NaN in what *job* has computed so far: all that follows is NaN, too.

    Raises:
        ComputesNan: If there is some.
    """
    of_job = job.first_nan_token()
    token = first_nan_token_in_log(log_text) if of_job is None else of_job
    if token is not None:
        raise _nan_error(token, log_text)


def _refuse_unusable_rows(job: Job, rows: "RowStream", log_text: str) -> None:
    """
    Stop at rows that are not those of *job*, or not all of them.

    Raises:
        CellError: If there are some.
    """
    if rows.fault:
        raise _unreadable_rows_error(job, rows.fault, log_text)
    if not rows.is_whole:
        raise _incomplete_error(job, log_text, lacking=rows.final_fault)


def _nan_error(token: int, log_text: str) -> CellError:
    return ComputesNan(token=token, log_excerpt=logs.last_lines(log_text))


def _unreadable_rows_error(job: Job, fault: str, log_text: str) -> CellError:
    """The error for rows that are not what was asked for."""
    message = f"wrote log-probabilities that cannot be read: {fault}"
    return _error_with_log_excerpt(job, message, log_text, status=Status.CRASHED)


def _incomplete_error(job: Job, log_text: str, *, lacking: str = "") -> CellError:
    """
    The error for a tool that exits with 0 without a complete result.

    Args:
        job: What it ran.
        log_text: Its log.
        lacking: What is wrong with its rows; empty if its statistics are missing.
    """
    trouble = logs.find_trouble(log_text)
    silent = CUT_OFF if is_log_cut_off(log_text) else "it does not say why"
    reason = find_error_line(log_text) or (
        trouble.reason if trouble else lacking or silent
    )
    what = "log-probabilities" if lacking else "statistics"
    message = f"ended without complete {what}: {reason}"
    status = trouble.status if trouble else Status.CRASHED
    return _error_with_log_excerpt(job, message, log_text, status=status)


def _error_with_log_excerpt(
    job: Job, message: str, log_text: str, *, status: Status, hint: str = ""
) -> CellError:
    """The error of *job* with the end of its log, and where the log is."""
    return CellError(
        f"{PERPLEXITY} {message}",
        hint=hint or f"The end of its log is in {job.log}.",
        status=status,
        log_excerpt=logs.last_lines(log_text),
    )
