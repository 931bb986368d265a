"""
llama.cpp as an engine: what it can do, its pace on a processor, from which build on it
rotates caches, notes on unused accelerators, and a llama-server for each cell.
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from codeneedle.cache_types import Pair, is_full_precision
from codeneedle.engines.engine import (
    Ability,
    CacheTypes,
    CellSpec,
    ChatTemplate,
    Engine,
    EngineIdentity,
    LostText,
    ModelSpec,
    Tokenizer,
    translating_counting_errors,
)
from codeneedle.engines.exit_causes import Died
from codeneedle.engines.llama_cpp import (
    arguments,
    backends,
    bench,
    perplexity,
    survey,
    tool_options,
)
from codeneedle.engines.llama_cpp.arguments import (
    LAZY_VARIABLE,
    VISIBLE_DEVICES,
    Launch,
)
from codeneedle.engines.llama_cpp.client import Client
from codeneedle.engines.llama_cpp.installation import (
    BENCH,
    PERPLEXITY,
    Program,
    ServerFacts,
    Tools,
    program_hashes,
)
from codeneedle.engines.llama_cpp.log import read_log
from codeneedle.engines.llama_cpp.server import (
    LOAD_TIMEOUT_S,
    LlamaServer,
    has_argument_error,
    serving_llama,
)
from codeneedle.engines.pace import Pace
from codeneedle.engines.survey import Survey
from codeneedle.engines.tools import DivergenceTool, ReadingTool, SpeedTool
from codeneedle.errors import BadInput, CellError, ToolMissing
from codeneedle.system.contents import file_hashes
from codeneedle.system.files import temporary_private_folder
from codeneedle.system.inherited_variables import ROTATION
from codeneedle.system.machine import present_load

READ_S, WRITE_S = 6.4e-11, 1e-10
"""Seconds of a core for each byte of the weights and token."""

READ_BACK_S, WRITE_BACK_S = 7e-10, 8e-10
"""Seconds of a core for each value of heads, token and token before it."""

TILED, TILED_BACK_S = Pair("f16", "f16"), 6e-11
"""
Read by a kernel of its own, which takes many tokens at once, and what it takes in place
of `READ_BACK_S`. With every other pair each token looks back alone.
"""

TOKEN_S = 3e-4
"""What a token that is written takes in any case, in seconds."""

MOST_CORES = 8
"""More do not make it faster: memory does not keep up."""

DISK_BYTES_PER_S = 1e9
"""
Of all these, measured with llama.cpp b11434 on two cores with AVX-512: SmolLM2 in q4_1
(98 MB) reads 1,000 tokens in 3.6 s (bf16) to 6.2 s (q4_1/q4_0) and forces 639 more in
8.5 to 11.7 s; on another such machine, beside other programs, in 6.5 s (f16), 9 s
(q8_0/q8_0) and 18 s (q8_0/q4_0), and behind 1,024 others in 7, 24 and 38 s. The
built-in model reads 2,098 in 0.15 to 0.64 s and writes 1,971 in 1.6 to 3.0 s.
"""

FIRST_ROTATING_BUILD = 9292
"""
The first build that is taken to rotate quantized values: one of 2026-05-23.

Rotation came on 2026-04-01 (llama.cpp #21038); builds between are taken to have none.
"""

COUNT_LOAD_TIMEOUT_S = 300.0
"""How long a server that only counts may take to start: it maps weights into memory."""

COUNT_TIMEOUT_S = 120.0
"""How long it may take to tokenize or to render, some megabytes at most."""

COUNT_MEMORY_BYTES = 4 << 30
"""
What it may take beside the weights.

A chat template is a program that comes with the weights: it may never end, or fill the
memory.
"""


def _attention_seconds_per_value(pairs: Collection[Pair]) -> float:
    """
    Seconds of a core for each value of heads, token and token before it.

    The mean over *pairs*, of which `TILED` is read in tiles.
    """
    tiled = sum(pair == TILED for pair in pairs) / max(len(pairs), 1)
    return tiled * TILED_BACK_S + (1 - tiled) * READ_BACK_S


def _devices_of_environment() -> list[str]:
    """The devices that the environment leaves us; empty if it does not say."""
    devices = next(filter(None, map(os.environ.get, VISIBLE_DEVICES)), None)
    return devices.split(",") if devices else []


NO_DEVICE = (
    "layers for an accelerator are asked for after --, and this llama-server has none: "
    "all runs on the CPU ('codeneedle llama --backend ...' builds for one)"
)
"""A note: otherwise a user finds out by the time that it takes."""

UNSEEN_GPU = (
    "there is an NVIDIA GPU, but this llama-server does not see it: install the CUDA "
    "toolkit (nvcc), then 'codeneedle llama' builds one that does"
)

WHOLE_ANSWERS = "--no-prefill-assistant"
"""Renders a last message of the assistant like any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp(Engine):
    """The engine that starts a llama-server per cell."""

    name: ClassVar[str] = "llama.cpp"
    tools: Tools  # the programs of the installation
    facts: ServerFacts  # what its llama-server says of itself
    model: ModelSpec  # what is served

    @property
    @override
    def abilities(self) -> frozenset[Ability]:
        """
        What its server can do, and the programs that are there and not refused.

        Comparing distributions and measuring speed take programs of their own.
        """
        has = (
            ability
            for ability, tool in self._programs_by_ability.items()
            if tool and not self.why_ability_missing(ability)
        )
        always = {
            Ability.LOG_PROBABILITIES,
            Ability.FORCED,
            Ability.ADDRESS,
            Ability.CHOSEN_ADDRESS,
        }
        if WHOLE_ANSWERS in self.facts.options:
            always.add(Ability.CONVERSATIONS)
        return frozenset({*always, *has})

    @property
    def _programs_by_ability(self) -> dict[Ability, Program | None]:
        """The programs behind abilities; None for one that is missing."""
        return {
            Ability.DIVERGENCE: self.tools.perplexity,
            Ability.READING: self.tools.perplexity,
            Ability.SPEED: self.tools.bench,
        }

    @override
    def why_ability_missing(self, ability: Ability) -> str:
        """
        Why its program is not used: it lacks an option which the server is given.

        Empty if it lacks none, or there is no such program.
        """
        tool = self._programs_by_ability.get(ability)
        if tool is None or not self.model.arguments:
            return ""
        if ability is Ability.SPEED:
            _, lacking = tool_options.bench_and_lacking_arguments(
                self.model.arguments, tool_options.help_text_or_empty(tool)
            )
        else:
            _, lacking = tool_options.shared_and_lacking_arguments(
                self.model.arguments, PERPLEXITY, tool_options.list_tool_options(tool)
            )
        return tool_options.why_not_used(tool, lacking)

    @override
    def require(self, ability: Ability) -> None:
        if ability in self.abilities:
            return
        if reason := self.why_ability_missing(ability):
            raise BadInput(
                source=f"-- {' '.join(self.model.arguments)}",
                reason=reason,
                hint=f"Leave out what needs {ability}, or the option; or use programs "
                "of one build, which know it.",
            )
        if ability is Ability.CONVERSATIONS:
            raise ToolMissing(
                tool=str(self.tools.server),
                reason=f"has no {WHOLE_ANSWERS}: it is too old to render "
                "conversations with their answers",
                hint="Build a newer one with 'codeneedle llama'.",
            )
        tools = {Ability.SPEED: BENCH}
        raise ToolMissing(
            tool=tools.get(ability, PERPLEXITY),
            reason=f"is not beside {self.tools.server}",
            hint="Build all programs with 'codeneedle llama', or point --llama-server "
            "at an installation that has it, or leave out the probe that needs it.",
        )

    @override
    def refuse_unusable_arguments(self) -> None:
        """Refuse what is reserved, and a device that is not there or not lent to us."""
        arguments.refuse_reserved(self.model.arguments)
        if self.model.device:
            self._refuse_unknown_device()

    def _refuse_unknown_device(self) -> None:
        """
        Stop at a device that is not there, or not lent to us by a scheduler.

        Nothing is refused where the server names no devices.

        Raises:
            BadInput: Naming those that there are.
        """
        if self._selected_devices() or not self.facts.devices:
            return
        lent = ",".join(_devices_of_environment())
        known = f"there are {', '.join(self.facts.devices)}"
        raise BadInput(
            source=f"--devices {self.model.device}",
            reason=f"the environment lends only {lent}" if lent else known,
            hint="Leave --devices out, or name some of these.",
        )

    def _selected_devices(self) -> tuple[str, ...]:
        """
        The devices that ``--devices`` leaves to this engine, one per backend at most.

        Empty if none is chosen, or it is not there or not lent; all if it is named by
        an identifier, which cannot be told from the others.
        """
        device, lent, known = (
            self.model.device,
            _devices_of_environment(),
            self.facts.devices,
        )
        number = str(lent.index(device)) if device in lent else device
        if not number.isdecimal() or (lent and device not in lent):
            return () if lent or not device else known
        return tuple(
            known_device
            for known_device in known
            if re.match(rf"\D*{number} ", known_device)
        )

    @override
    def identity(self) -> EngineIdentity:
        return EngineIdentity(
            name=self.name,
            version=self.facts.version,
            program=str(self.tools.server),
            devices=self._selected_devices()
            if self.model.device
            else self.facts.devices,
            cpu_features=self.facts.cpu_features,
        )

    @override
    def hashes_by_program(self) -> Mapping[str, str]:
        return program_hashes(self.tools)

    @override
    def hashes_by_file(self) -> Mapping[str, str]:
        return file_hashes(arguments.files_in(self.model.arguments))

    @override
    def pace(self, pairs: Collection[Pair], /) -> Pace | None:
        """The pace by weights and cores; None with devices, which differ too much."""
        weights = self.model.weights
        if self.identity().devices or not (weights.is_read and weights.heads):
            return None
        now = present_load()
        cores, busy = min(now.cores, MOST_CORES), max(1.0, now.per_core)
        heads = sum(weights.heads) * (weights.key_length + weights.value_length)
        # Of a mixture a token passes through some experts alone.
        size, second = weights.size_bytes - weights.unused_bytes, busy / cores
        return Pace(
            start_s=1.0 + weights.size_bytes / DISK_BYTES_PER_S,
            read_s=size * READ_S * second,
            write_s=(TOKEN_S * cores + size * WRITE_S) * second,
            read_back_s=heads * _attention_seconds_per_value(pairs) * second,
            write_back_s=heads * WRITE_BACK_S * second,
        )

    @override
    def cache_types(self) -> CacheTypes:
        return CacheTypes(k=self.facts.k_types, v=self.facts.v_types)

    @override
    def notes(self) -> tuple[str, ...]:
        advice = {ROTATION: "use --rotation off", LAZY_VARIABLE: "unset it"}
        ignored = tuple(
            f"{name} is not passed on; {what}"
            for name, what in advice.items()
            if name in os.environ
        )
        if not self.facts.devices and backends.has_nvidia_gpu():
            ignored = (*ignored, UNSEEN_GPU)
        is_on_host = arguments.keeps_cache_on_host(self.model.arguments)
        if not self.identity().devices:
            asks = arguments.has_argument(self.model.arguments, arguments.OFFLOAD)
            nothing = asks and not is_on_host
            return (*ignored, NO_DEVICE) if nothing else ignored
        if not is_on_host:
            return ignored
        told = "the arguments after -- keep the cache off the accelerator: attention "
        told += "runs on the CPU, where each pair has a kernel, or on copies of the "
        told += "cache; nothing is learned of kernels of the accelerator"
        return (*ignored, told)

    @property
    @override
    def stretches_context(self) -> bool:
        return arguments.stretches_context(self.model.arguments)

    @property
    @override
    def splits_graph(self) -> bool:
        return arguments.has_argument(self.model.arguments, arguments.SPLITTING)

    @property
    @override
    def renders_chats(self) -> bool:
        return True

    @property
    @override
    def thinking_off_option(self) -> str:
        has_budget = "--reasoning-budget" in self.facts.options
        return "" if self.model.thinking or not has_budget else "--reasoning-budget 0"

    @contextlib.contextmanager
    @override
    def templating(self) -> Iterator[ChatTemplate]:
        """
        A server that renders chats.

        Its log, which quotes what it cannot render, is deleted behind the block.
        """
        self.require(Ability.CONVERSATIONS)
        hint = "Pass another template: -- --chat-template chatml"
        with temporary_private_folder() as folder:
            log = folder / "rendering.log"
            with self._serving_for_counting(log, WHOLE_ANSWERS, hint=hint) as client:
                yield client

    @contextlib.contextmanager
    @override
    def tokenizing(self, *, log: Path) -> Iterator[Tokenizer]:
        """A server that counts: no cache types, smallest context, no warm-up."""
        hint = (
            f"See {log}. If the chat template of the weights never ends or fills the "
            "memory, pass another one: -- --chat-template chatml"
        )
        with self._serving_for_counting(log, hint=hint) as client:
            try:
                yield client
            except LostText as error:
                error.hint += " Or give it a template: -- --chat-template-file FILE"
                raise

    @contextlib.contextmanager
    def _serving_for_counting(
        self, log: Path, *options: str, hint: str
    ) -> Iterator[Client]:
        """
        A server that only tokenizes and renders, with further *options*.

        Its errors become those of counting; *hint* says what else to do.
        """
        launch = replace(
            self._launch_of_pair(None, context=512),
            alias=f"{self.model.name}.counting",
            extra=(*arguments.without_offload(self._extra_arguments()), *options),
        )
        reads_all = arguments.has_argument(self.model.arguments, arguments.LOADING)
        server = serving_llama(
            launch,
            log=log,
            load_timeout_s=LOAD_TIMEOUT_S if reads_all else COUNT_LOAD_TIMEOUT_S,
            silence_s=COUNT_TIMEOUT_S,
            memory_bytes=COUNT_MEMORY_BYTES + self.model.weights.size_bytes,
        )
        counted = translating_counting_errors("llama-server", hint=hint)
        with counted, self._translating_argument_errors(log), server as served:
            yield served.client

    @contextlib.contextmanager
    @override
    def serving(self, cell: CellSpec, *, log: Path) -> Iterator[LlamaServer]:
        launch = self._launch_of_pair(cell.pair, context=cell.context)
        launch = replace(launch, slots=cell.slots, port=cell.port, key=cell.key)
        if cell.thinks:
            launch = replace(launch, extra=self.model.arguments)
        with serving_llama(launch, log=log) as served:
            yield served

    @override
    def survey_attention_and_memory(
        self, pairs: Sequence[Pair], *, context: int, log: Path
    ) -> Survey:
        """What llama-fit-params answers, a call for each pair; unknown without it."""
        tool = self.tools.fit_params
        if tool is None:
            return survey.empty_survey_without_tool(self.tools, context)
        surveyor = survey.Surveyor.of_installed_tool(tool, self.facts, self.model)
        return surveyor.survey(pairs, context=context, log=log)

    @property
    @override
    def is_on_accelerator(self) -> bool:
        """Whether there are devices, and the user's arguments leave the cache there."""
        is_on_host = arguments.keeps_cache_on_host(self.model.arguments)
        return bool(self.identity().devices) and not is_on_host

    @property
    @override
    def rotates_caches(self) -> bool:
        """True of a build without a number, too: most are newer."""
        return not 0 < (self.facts.build or 0) < FIRST_ROTATING_BUILD

    @property
    @override
    def has_attention_on_cpu(self) -> bool:
        return self.model.attention_on_cpu

    @override
    def with_attention_on_cpu(self, pair: Pair) -> "LlamaCpp | None":
        """
        The engine without flash attention, so that attention is on the CPU.

        None for a quantized V, which needs that, and where all is on a CPU.
        """
        if not self.is_on_accelerator:
            return None
        if not is_full_precision(pair.v):
            return None
        return replace(self, model=replace(self.model, attention_on_cpu=True))

    @override
    def divergence_tool(self) -> DivergenceTool:
        self.require(Ability.DIVERGENCE)
        return perplexity.Perplexity.ask_installed_tool(
            self.tools, self.facts, self.model
        )

    @override
    def reading_tool(self) -> ReadingTool:
        self.require(Ability.READING)
        return perplexity.Perplexity.ask_installed_tool(
            self.tools, self.facts, self.model
        )

    @override
    def speed_tool(self) -> SpeedTool:
        self.require(Ability.SPEED)
        return bench.Bench.of_checked_installation(self.tools, self.facts, self.model)

    def _launch_of_pair(self, pair: Pair | None, *, context: int) -> Launch:
        """What a server of *pair* is started with; without one it only tokenizes."""
        slug = f"{pair.slug}." if pair else ""
        return Launch(
            binary=self.tools.server,
            model=self.model,
            alias=f"{self.model.name}.{slug}{context}",
            context=context,
            pair=pair,
            extra=self._extra_arguments(),
            options=self.facts.options,
        )

    def _extra_arguments(self) -> tuple[str, ...]:
        """Further arguments: ours, then those of the user, which win."""
        ours = (
            *self.thinking_off_option.split(),
            *arguments.attention_on_cpu_arguments(self.model),
        )
        return (*ours, *self.model.arguments)

    @contextlib.contextmanager
    def _translating_argument_errors(self, log: Path) -> Iterator[None]:
        """
        Blame the user's arguments, if any, for the end of a server in the block.

        Raises:
            BadInput: If its log names one, or it exits with 0.
        """
        try:
            yield
        except CellError as error:
            reason = str(error) if has_argument_error(read_log(log)) else ""
            if isinstance(error, Died) and error.returncode == 0:
                reason = "llama-server does what they say and exits, instead of serving"
            if reason and self.model.arguments:
                raise BadInput(
                    source="the arguments after '--'",
                    reason=reason,
                    hint=f"See '{self.tools.server.name} --help'.",
                ) from error
            raise
