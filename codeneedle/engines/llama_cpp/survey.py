"""
Asks llama-fit-params where attention of each pair would run (in a kernel, on the CPU,
or converted to f16, by the build and the head sizes) and what memory it takes: it
reserves the real graph of the real model, without its weights.
"""

import hashlib
import platform
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from codeneedle.cache_types import FIRST, Pair, is_full_precision
from codeneedle.engines.attention_place import WHOLE_SPLITS
from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.exit_causes import exit_phrase
from codeneedle.engines.llama_cpp import log as logs
from codeneedle.engines.llama_cpp.arguments import (
    ALL_LAYERS,
    KV_ON_HOST,
    OFFLOAD,
    VISIBLE_DEVICES,
    environment_for_model,
    has_argument,
    parse,
)
from codeneedle.engines.llama_cpp.backends import ALL_KERNELS
from codeneedle.engines.llama_cpp.installation import (
    FIT_PARAMS,
    Program,
    ServerFacts,
    Tools,
    list_llama_libraries,
)
from codeneedle.engines.llama_cpp.tool_options import (
    list_tool_options,
    shared_and_lacking_arguments,
    why_not_used,
)
from codeneedle.engines.survey import (
    NO_BUILD,
    PairSurvey,
    Survey,
    report_survey_progress,
)
from codeneedle.errors import ToolFailed
from codeneedle.records.record import Attention, DeviceMemory, Status
from codeneedle.system import processes
from codeneedle.system.files import (
    cache_folder,
    file_state_text,
    read_json_or_none,
    write_json_if_possible,
)
from codeneedle.system.inherited_variables import inherited_variables
from codeneedle.text import MIB

TIMEOUT_S = 60.0
"""Limit of a call; the first one on a GPU may compile its kernels."""

TRIES = 60
"""
Calls until the log says why a pair is refused.

The program aborts right after that line, which its logger loses in half of the calls,
and in 6 of 7 on a machine that is busy.
"""

TRIES_OF_OTHERS = 12
"""Calls for each pair behind one that so many calls have told no reason for."""

UNTOLD_REFUSAL = "llama.cpp cannot make a context for it"
"""Why a pair is refused whose log never says it."""

MOST_FAILURES = 3
"""Calls that end without an answer, after which no further pair is asked."""

PLAIN = Pair("f16", "f16")
"""The pair that each backend has a kernel for, if it has any."""

HOST = "Host"
"""What the program calls the memory of the machine."""

CONVERTING = ("CUDA", "ROCm", "MUSA")
"""
Begin the names of devices that convert a cache to f16 where no kernel was compiled.

Their graphs are whole all the same: only the build tells, and a line at the first token
(``ggml-cuda/fattn.cu``).
"""

VECTOR_HEADS = frozenset({64, 128, 256})
"""
Head sizes of the vector kernels of CUDA and HIP, which alone read a quantized cache.

The others take f16, and K and V are converted to it at each step, without a line in the
log (``fattn.cu``: ``can_use_vector_kernel``, ``ggml_cuda_get_fattn_vec_case``).
"""

_LAST_WORDS = b"memory breakdown [MiB]"
"""Begins what is logged after the graph was reserved."""

_MEMORY = re.compile(r"^(\S+) (\d{1,12}) (\d{1,12}) (\d{1,12}) *$", re.MULTILINE)
"""Device, weights, context and compute buffers, in MiB."""

_NO_CONTEXT = re.compile(r"failed to create llama_context")
_TOO_OLD = re.compile(r"invalid argument: --fit-print")

_DRIVERS = (
    "/proc/driver/nvidia/version",
    "/sys/module/nvidia/version",
    "/sys/module/amdgpu/version",
    "/usr/share/vulkan/icd.d",
    "/etc/vulkan/icd.d",
)
"""Files and folders that change with a driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptCalls:
    """What is kept of the calls for one model, by `_call_key`."""

    pairs: Mapping[str, PairSurvey] = field(default_factory=dict)


class _NoAnswerError(Exception):
    """A call that told nothing; the message says why, as a phrase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyor:
    """llama-fit-params with one model."""

    tool: Program  # how it is started
    model: ModelSpec  # what would be served
    arguments: tuple[str, ...]  # those of the user's that the program takes
    facts: ServerFacts  # what the llama-server beside it says of itself
    key: str  # hash of all that its answers depend on, but for pair and context
    refusal: str = ""
    """Why it is not asked, as a phrase: the server has options that it lacks."""

    @classmethod
    def of_installed_tool(
        cls, tool: Program, facts: ServerFacts, model: ModelSpec
    ) -> Self:
        """The llama-fit-params that *tool* is."""
        options = list_tool_options(tool) if model.arguments else ()
        arguments, lacking = shared_and_lacking_arguments(
            model.arguments, FIT_PARAMS, options
        )
        return cls(
            tool=tool,
            model=model,
            arguments=arguments,
            facts=facts,
            key=_call_key(tool, facts, model, arguments),
            refusal=why_not_used(tool, lacking),
        )

    def command(
        self, pair: Pair, context: int, *extra: str, level: int = 5
    ) -> list[str]:
        """
        The argv that asks about *pair*. Pure, so that a test can read it.

        Args:
            pair: Cache types.
            context: In tokens.
            extra: Further arguments.
            level: How much is logged; graphs are from 5 on.
        """
        takes_all = not has_argument(self.arguments, OFFLOAD)
        return [
            *self.tool.command_words,
            *("--fit-print", "on"),
            *("--model", str(self.model.weights.path)),
            *("--ctx-size", str(context)),
            *("--parallel", "1"),
            *("--flash-attn", "on"),
            *("--cache-type-k", pair.k, "--cache-type-v", pair.v),
            *(("--n-gpu-layers", ALL_LAYERS) if takes_all else ()),
            *("--verbosity", str(level)),
            *self.arguments,
            *extra,
        ]

    def survey(self, pairs: Sequence[Pair], *, context: int, log: Path) -> Survey:
        """Ask about each of *pairs*; see `Engine.survey_attention_and_memory`."""
        if self.refusal:
            return Survey(context=context, pairs={}, unknown=self.refusal)
        started = time.monotonic()
        asked = _SurveyCalls(self, context, log)
        try:
            answers = asked.kept_or_asked_answers(list(dict.fromkeys(pairs)))
            known = {pair: answer for pair, answer in answers.items() if answer}
            whole = self._most_splits_in_kernel(
                known.values(), asked.kept_or_asked_answer
            )
        finally:
            asked.write_answers()  # also what was answered before Ctrl-C
        judged = {
            pair: self._with_attention_place(answer, whole)
            for pair, answer in known.items()
        }
        places = {answer.attention for answer in judged.values()}
        cure = ALL_KERNELS if Attention.CONVERTED in places else ""
        return Survey(
            context=context,
            pairs=judged,
            whole_splits=whole,
            unknown=asked.failure,
            cure="" if self._head_sizes_without_kernel else cure,
            took_s=time.monotonic() - started,
            is_kept=not asked.is_grown,
        )

    def _most_splits_in_kernel(
        self, answers: Collection[PairSurvey], ask: "_Ask"
    ) -> int | None:
        """
        Most parts of a graph whose attention runs in a kernel; None without a device.

        Two, or as many as f16/f16 has: weights that the user left on the host split
        the graph, too. f16/f16 itself has no kernel if it has as many parts as with
        its cache on the host, or two for each layer with a cache, and two more.
        """
        if not _attention_runs_on_device(answers, self.arguments):
            return None
        plain = ask(PLAIN)
        splits = plain.graph_splits if plain else None
        if plain is None or splits is None or splits <= WHOLE_SPLITS:
            return WHOLE_SPLITS
        on_host = ask(PLAIN, "--no-kv-offload")
        most = on_host.graph_splits if on_host else None
        layers = sum(buffer.layers for buffer in plain.kv)
        # A recurrent state would go to the host, too, and split the graph further.
        if most is None or layers < self.model.weights.layers:
            most = 2 * layers + WHOLE_SPLITS
        return WHOLE_SPLITS if splits >= most else splits

    def _with_attention_place(
        self, answer: PairSurvey, whole: int | None
    ) -> PairSurvey:
        """
        *answer* with where attention runs, by the parts of its graph.

        Args:
            answer: What the program tells.
            whole: Most parts with attention on a device; None without one, where each
                pair has a kernel.
        """
        is_plain = answer.attention is Attention.PLAIN
        if answer.refusal or not answer.kv or is_plain:
            return answer
        if whole is not None and (answer.graph_splits or 0) > whole:
            return replace(answer, attention=Attention.CPU)
        if whole is not None and _can_convert_cache(answer):
            return self._with_kernel_or_conversion(answer)
        return replace(answer, attention=Attention.KERNEL)

    @property
    def _head_sizes_without_kernel(self) -> list[int]:
        """Known head sizes of the model that have no vector kernel on CUDA or HIP."""
        weights = self.model.weights
        sizes = {weights.key_length, weights.key_length_swa}
        return sorted(sizes - VECTOR_HEADS - {0})

    def _with_kernel_or_conversion(self, answer: PairSurvey) -> PairSurvey:
        """
        *answer* of a whole graph, whose device may convert K and V to f16 in it.

        Attention is left as it is where the build does not tell.
        """
        if self._head_sizes_without_kernel and answer.pair != PLAIN:
            of = " and ".join(map(str, self._head_sizes_without_kernel))
            evidence = f"a kernel for heads of {of} values takes f16 alone: {NO_BUILD}"
            return replace(answer, attention=Attention.CONVERTED, evidence=evidence)
        match self.facts.has_compiled(answer.pair):
            case None:
                return replace(answer, evidence="in a kernel, or converted to f16")
            case True:
                return replace(answer, attention=Attention.KERNEL)
            case False:
                evidence = f"this build has FA_QUANTS = {self.facts.fa_quants}"
                attention = Attention.CONVERTED
                return replace(answer, attention=attention, evidence=evidence)


def empty_survey_without_tool(tools: Tools, context: int) -> Survey:
    """The survey of an installation without the program."""
    return Survey(
        context=context,
        pairs={},
        unknown=f"{FIT_PARAMS} is not beside {tools.server.name}: "
        "'codeneedle llama' builds it",
    )


@dataclass(slots=True)
class _SurveyCalls:
    """The calls of one survey, and what is kept of earlier ones."""

    surveyor: Surveyor  # whose program is called
    context: int  # in tokens
    log: Path  # gets what calls say that tell nothing
    failure: str = ""
    """Why a call told nothing, as a phrase; empty if each told something."""

    failures: int = 0  # how many did not
    tries: int = field(default_factory=lambda: TRIES)
    """Calls until the log says why a pair is refused."""

    is_grown: bool = False  # whether calls were made now
    _kept: dict[str, PairSurvey] = field(init=False)

    def __post_init__(self) -> None:
        note = read_json_or_none(self._kept_answers_path, _KeptCalls)
        self._kept = dict(note.pairs) if note else {}

    @property
    def _kept_answers_path(self) -> Path:
        return cache_folder() / "surveys" / f"{self.surveyor.key}.json"

    def kept_or_asked_answers(
        self, pairs: Sequence[Pair]
    ) -> dict[Pair, PairSurvey | None]:
        """
        The answer about each of *pairs*; None if there is none.

        Those that a sweep begins with are asked about first. Reports progress.
        """
        first = {PLAIN, *FIRST}
        answers = {}
        for at, pair in enumerate(sorted(pairs, key=lambda pair: pair not in first)):
            report_survey_progress(at, len(pairs))
            answers[pair] = self.kept_or_asked_answer(pair)
        return {pair: answers[pair] for pair in pairs}

    def kept_or_asked_answer(self, pair: Pair, *extra: str) -> PairSurvey | None:
        """
        What is known of *pair* with *extra* arguments; None if nothing is.

        Kept answers first; after `MOST_FAILURES` no program is asked.
        """
        name = " ".join((str(pair), str(self.context), *extra))
        if name not in self._kept and self.failures < MOST_FAILURES:
            try:
                self._kept[name] = self._ask_program_repeatedly(pair, *extra)
                self.is_grown = True
            except _NoAnswerError as error:
                self.failure, self.failures = str(error), self.failures + 1
        return self._kept.get(name)

    def write_answers(self) -> None:
        """Write down new answers for later surveys, if the disk lets us."""
        # A refusal without its reason may be one of the moment.
        told = {n: p for n, p in self._kept.items() if p.evidence != UNTOLD_REFUSAL}
        if self.is_grown:
            write_json_if_possible(self._kept_answers_path, _KeptCalls(pairs=told))

    def _ask_program_repeatedly(self, pair: Pair, *extra: str) -> PairSurvey:
        """
        The answer of the program; `UNTOLD_REFUSAL` if it refuses and never says why.

        Raises:
            _NoAnswerError: If it tells nothing.
        """
        level = 5
        for at in range(self.tries):
            said = self._call_program(pair, *extra, level=level)
            answer = _parse_answer(pair, said)
            if answer:
                return answer
            if said.returncode:
                if _ran_out_of_memory(said) or not _NO_CONTEXT.search(said.stderr):
                    break
                # Its logger gets ahead only where there is little else to write.
                level = 1
            elif at + 1 >= TRIES_OF_OTHERS:
                break
        if (
            said.returncode
            and _NO_CONTEXT.search(said.stderr)
            and not _ran_out_of_memory(said)
        ):
            self.tries = min(self.tries, TRIES_OF_OTHERS)
            return _refused_pair_survey(pair, UNTOLD_REFUSAL)
        raise _NoAnswerError(self._log_and_phrase_failure(said))

    def _call_program(self, pair: Pair, *extra: str, level: int) -> processes.Output:
        """
        What a call says; after one that raises, no further pair is asked about.

        Raises:
            _NoAnswerError: If it hangs, or cannot be started.
        """
        surveyor = self.surveyor
        argv = surveyor.command(pair, self.context, *extra, level=level)
        env = inherited_variables() | environment_for_model(
            surveyor.model, is_passive=False
        )
        try:
            return processes.run_until_last_words(
                argv,
                timeout_s=TIMEOUT_S,
                # Where a debugger is installed, an abort would wait for it.
                env=env | {"GGML_NO_BACKTRACE": "1"},
                last_words=_LAST_WORDS,
            )
        except ToolFailed as error:
            # Further pairs would take as long.
            self.failures = MOST_FAILURES
            raise _NoAnswerError(str(error)) from error

    def _log_and_phrase_failure(self, said: processes.Output) -> str:
        """Why *said* tells nothing, as a phrase; its text is left in the log."""
        with suppress(OSError):
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.write_text(f"{said.stdout}\n{said.stderr}", encoding="utf-8")
        if _TOO_OLD.search(said.stdout + said.stderr):
            return f"this {FIT_PARAMS} is too old: it has no --fit-print"
        if said.returncode == 0:
            return f"{FIT_PARAMS} told neither graph nor memory; see {self.log}"
        trouble = logs.find_trouble(said.stderr)
        why = f": {trouble.reason}" if trouble else f"; see {self.log}"
        return f"{FIT_PARAMS} ended with {exit_phrase(said.returncode)}{why}"


def _ran_out_of_memory(said: processes.Output) -> bool:
    """Whether a call ended for lack of memory, which another one may not."""
    trouble = logs.find_trouble(said.stderr)
    return trouble is not None and trouble.status is Status.OUT_OF_MEMORY


def _parse_answer(pair: Pair, said: processes.Output) -> PairSurvey | None:
    """What *said* tells of *pair*; None if it is no whole answer."""
    if said.returncode:
        trouble = logs.find_trouble(said.stderr)
        is_refused = trouble and trouble.status is Status.UNSUPPORTED
        return (
            _refused_pair_survey(pair, trouble.reason)
            if trouble and is_refused
            else None
        )
    effective, memory = (
        logs.effective_settings(said.stderr),
        tuple(_memory_in_table(said.stdout)),
    )
    if effective.graph_splits is None or not memory:
        return None
    is_plain = effective.attention is Attention.PLAIN
    if is_plain and not is_full_precision(pair.v):
        return _refused_pair_survey(pair, effective.attention_evidence)
    return PairSurvey(
        pair=pair,
        attention=effective.attention if is_plain else None,
        evidence=effective.attention_evidence
        or f"graph splits = {effective.graph_splits}",
        graph_splits=effective.graph_splits,
        kv=effective.kv,
        recurrent_bytes=effective.recurrent_bytes,
        memory=memory,
    )


def _refused_pair_survey(pair: Pair, line: str) -> PairSurvey:
    """The refusal that *line* states, without what differs among pairs of a kind."""
    reason = line.partition(": ")[2] if line.startswith("llama_") else line
    # One reason for all pairs of the same kind.
    for cache_type in (pair.k, pair.v):
        reason = reason.replace(f" ({cache_type})", "")
    return PairSurvey(pair=pair, refusal=reason or line, evidence=line)


def _memory_in_table(said: str) -> Iterator[DeviceMemory]:
    """Memory of each device, in bytes, from a table in MiB."""
    for device, *sizes in _MEMORY.findall(said):
        weights, context, compute = (int(mib) * MIB for mib in sizes)
        yield DeviceMemory(
            device=device, weights=weights, context=context, compute=compute
        )


_Ask = Callable[..., PairSurvey | None]


def _can_convert_cache(answer: PairSurvey) -> bool:
    """Whether a device of *answer* is one that converts without a word."""
    return any(memory.device.startswith(CONVERTING) for memory in answer.memory)


def _attention_runs_on_device(
    answers: Collection[PairSurvey], arguments: Sequence[str]
) -> bool:
    """Whether attention is to run on a device: there is one, and it may be used."""
    if has_argument(arguments, KV_ON_HOST) or _chosen_device_layers(arguments) == 0:
        return False
    return any(memory.device != HOST for pair in answers for memory in pair.memory)


def _chosen_device_layers(arguments: Sequence[str]) -> int | None:
    """Layers that the user puts on devices; None for all, or an unknown number."""
    chosen = [argument for argument in parse(arguments) if argument.name in OFFLOAD]
    last = chosen[-1].values if chosen else ()
    return int(last[0]) if last and last[0].isdecimal() else None


def _call_key(
    tool: Program, facts: ServerFacts, model: ModelSpec, arguments: Sequence[str]
) -> str:
    """A hash of program, devices, drivers, weights, arguments and environment."""
    prefixes = ("GGML_", "LLAMA_", *VISIBLE_DEVICES)
    env = inherited_variables() | environment_for_model(model, is_passive=False)
    chosen = sorted(item for item in env.items() if item[0].startswith(prefixes))
    parts = (
        facts.version,
        *facts.devices,
        *map(
            _file_identity,
            (tool.path, *list_llama_libraries(tool.path), *map(Path, _DRIVERS)),
        ),
        platform.platform(),
        model.weights.identity,
        *arguments,
        *(f"{name}={value}" for name, value in chosen),
    )
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:32]


def _file_identity(path: Path) -> str:
    """A text that changes when the file at *path* does; empty if it is not there."""
    try:
        return file_state_text(path)
    except OSError:
        return ""
