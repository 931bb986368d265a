"""What the throughput probe measures: depths, sizes, and how llama-bench is asked."""

from dataclasses import replace
from pathlib import Path

from codeneedle import benchargs, planning, process
from codeneedle.benchargs import Translated
from codeneedle.errors import MachineError, RequestError
from codeneedle.planning import ContextTooLong, Plan
from codeneedle.probes.throughput_metrics import Settings, json_of
from codeneedle.records import Json

DEPTHS = (0, 4096)
"""Tokens; the corpus' own depth comes on top."""

REPETITIONS = 3
PROMPT_TOKENS = 512
GENERATED_TOKENS = 128
"""llama-bench's own sizes, as in most published tables."""

BUILT_IN_DEPTHS = (0, 1024, 4096)
BUILT_IN_PROMPT_TOKENS = 128
BUILT_IN_GENERATED_TOKENS = 32
"""
Smaller for the built-in model: what it takes to see the probe at work, in seconds.

To fill the cache to the depth of its corpus takes three times as long.
"""

ASK_TIMEOUT_S = 60.0
"""Long: the first start on a GPU may compile its kernels."""


class BenchMissing(MachineError):  # noqa: N818 - named after the fact
    """No llama-bench beside llama-server."""

    def __init__(self, *, server: Path) -> None:
        super().__init__(
            f"llama-bench is not beside {server}",
            hint="Build all three programs with 'codeneedle llama', or leave out the "
            "probe throughput.",
        )


class BenchTooOld(MachineError):  # noqa: N818 - named after the fact
    """A llama-bench without an option that this probe needs."""

    def __init__(self, *, bench: Path, missing: str) -> None:
        super().__init__(
            f"{bench} has no option {missing}",
            hint="Use a newer llama.cpp: 'codeneedle llama' builds one.",
        )


class DepthTooDeep(RequestError):  # noqa: N818 - named after the fact
    """A depth that these weights were not trained for."""

    def __init__(self, *, depth: int, deepest: int) -> None:
        super().__init__(
            f"depth {depth:,} is too deep for these weights",
            hint=f"They take --depths up to {deepest}; or stretch the context on "
            "purpose with rope arguments after --.",
        )


class TooSmall(RequestError):  # noqa: N818 - named after the fact
    """A count below the least that makes sense."""

    def __init__(self, *, option: str, value: int, least: int) -> None:
        super().__init__(f"{option} {value} is too small", hint=f"Use {least} or more.")


class CommaInPath(RequestError):  # noqa: N818 - named after the fact
    """llama-bench would take the path for several."""

    def __init__(self, *, path: Path) -> None:
        super().__init__(
            f"llama-bench cannot take weights with a comma in their path: {path}",
            hint="Rename the file or its folder, or use a symbolic link without one.",
        )


def settings(plan: Plan, _text: str) -> Json:
    """
    What to measure, after everything that can be checked before a cell starts.

    Reads the corpus' depth from the run folder, so its setup must be there,
    unless the depths were asked for.

    Raises:
        BenchMissing: If there is no llama-bench.
        BenchTooOld: If it lacks an option that is needed.
        RequestError: If it was asked for something impossible.
    """
    if plan.tools.bench is None:
        raise BenchMissing(server=plan.tools.server)
    if "," in str(plan.weights.path):
        raise CommaInPath(path=plan.weights.path)
    options = asked_options(plan.tools.bench)
    repetitions = plan.request.repetitions
    if repetitions is not None and repetitions < 1:
        raise TooSmall(option="--repetitions", value=repetitions, least=1)
    small = plan.is_built_in
    understood = benchargs.translated(plan.request.server_args, options)
    return json_of(
        Settings(
            depths=chosen_depths(plan),
            repetitions=repetitions or REPETITIONS,
            prompt_tokens=BUILT_IN_PROMPT_TOKENS if small else PROMPT_TOKENS,
            generated_tokens=BUILT_IN_GENERATED_TOKENS if small else GENERATED_TOKENS,
            arguments=_arguments(plan, understood, options),
            ignored=understood.ignored,
        )
    )


def asked_options(bench: Path) -> frozenset[str]:
    """
    The options of *bench*.

    Raises:
        BenchTooOld: If one that is needed is missing.
        MachineError: If it cannot be asked.
    """
    answer = process.output_of([str(bench), "--help"], timeout_s=ASK_TIMEOUT_S)
    help_text = answer.stdout + answer.stderr
    options = benchargs.options_in(help_text)
    for name in benchargs.NEEDED:
        if name not in options:
            raise BenchTooOld(bench=bench, missing=name)
    if "jsonl" not in help_text:
        raise BenchTooOld(bench=bench, missing="--output jsonl")
    return options


def chosen_depths(plan: Plan) -> tuple[int, ...]:
    """
    Depths to measure at, in tokens, ascending.

    Those asked for, as they are; else those that suit the model, none of them
    deeper than what the weights were trained for.

    Raises:
        DepthTooDeep: If one that was asked for is deeper than that.
        TooSmall: If one is negative.
    """
    deepest = _deepest(plan)
    for depth in plan.request.depths:
        if depth < 0:
            raise TooSmall(option="--depths", value=depth, least=0)
        if deepest is not None and depth > deepest and not _is_stretched(plan, depth):
            raise DepthTooDeep(depth=depth, deepest=deepest)
    if plan.request.depths:
        return tuple(sorted(set(plan.request.depths)))
    if plan.is_built_in:
        return BUILT_IN_DEPTHS
    depths = {*DEPTHS, _corpus_depth(plan)}
    limit = max(depths) if deepest is None else deepest
    return tuple(sorted({min(depth, limit) for depth in depths}))


def _deepest(plan: Plan) -> int | None:
    """The depth that leaves room for both tests; None if nothing is known."""
    trained = plan.weights.training_context
    return max(0, trained - PROMPT_TOKENS) if trained else None


def _is_stretched(plan: Plan, depth: int) -> bool:
    """Whether the context is stretched on purpose, by the rule for the server."""
    request = replace(plan.request, contexts=(depth + PROMPT_TOKENS,))
    try:
        planning.chosen_context(request, plan.weights)
    except ContextTooLong:
        return False
    return True


def _corpus_depth(plan: Plan) -> int:
    setup = plan.store.setup()
    if setup is None:
        raise ValueError("depths are chosen after the corpus was counted")
    return setup.corpus.tokens


def _arguments(
    plan: Plan, understood: Translated, options: frozenset[str]
) -> dict[str, str]:
    """Arguments that are the same for every cell; a person's come last, and win."""
    ours = {benchargs.OFFLOAD: benchargs.ALL_LAYERS}
    if "--progress" in options:
        ours["--progress"] = ""
    if plan.is_built_in:
        # As for the server: a second thread waits more than it computes.
        ours["--threads"] = "1"
        if "--poll" in options:
            ours["--poll"] = "0"
    return ours | understood.passed
