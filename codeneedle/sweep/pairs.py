"""
The pairs of a page: usual types, f16 in the place of bf16, the grid, those with a
kernel alone; refuses unknown types, no KV cache, and grids of which no pair can run.
"""

from collections.abc import Collection, Sequence

from msgspec import structs

from codeneedle.cache_types import Pair, shuffle_pairs
from codeneedle.engines.engine import Engine
from codeneedle.engines.survey import Survey, survey_log, why_impossible
from codeneedle.errors import BadInput, nearest_name
from codeneedle.models.weights import Weights
from codeneedle.records.record import Attention, Setup
from codeneedle.sweep.request import Execution, Request
from codeneedle.text import plural


def with_usual_types(request: Request, engine: Engine) -> Request:
    """
    *request* with the usual types of *engine* where the user named none.

    Raises:
        BadInput: If the engine has no usual types.
    """
    if request.grid_k_types and request.grid_v_types:
        return request
    usual = engine.cache_types().usual
    if not usual:
        raise BadInput(
            source="--types",
            reason=f"the engine {engine.name} does not report its cache types",
            hint="Name them, the most precise one first: --types auto,fp8",
        )
    return structs.replace(request, types=usual)


def refuse_unknown_types(request: Request, engine: Engine) -> None:
    """
    Stop at types that *engine* does not have.

    Raises:
        BadInput: With the nearest one, and all that it has.
    """
    types = engine.cache_types()
    for axis, names, known in (
        ("K", request.grid_k_types, types.k),
        ("V", request.grid_v_types, types.v),
    ):
        for name in names:
            if known and name not in known:
                raise BadInput(
                    source=f"{axis} type {name}",
                    reason=f"{engine.name} has no {name} for the cache",
                    hint=_types_hint(name, known),
                )


def _shuffled_available_pairs(
    request: Request, execution: Execution, engine: Engine
) -> tuple[Pair, ...]:
    """
    The grid in running order, without pairs that the engine does not have.

    A share of it where one is asked for.
    """
    types = engine.cache_types()
    pairs = shuffle_pairs(request.grid, seed=request.seed)
    if types.pairs is not None:
        pairs = [pair for pair in pairs if pair in types.pairs]
    return (
        execution.shard.own_pairs_and_reference(pairs)
        if execution.shard
        else tuple(pairs)
    )


def _types_hint(name: str, known: Collection[str]) -> str:
    """The type that *name* is likely to mean, and all that there are."""
    near = nearest_name(name, known)
    mean = f"Did you mean '{near}'? " if near else ""
    return f"{mean}Known: {', '.join(known)}."


REPLACED = (
    "f16 takes the place of bf16, for which this machine has no kernel beside other "
    "types (--types chooses)"
)


def replace_bf16_if_kernelless(
    types: tuple[str, ...], engine: Engine, context: int, stored: Setup | None
) -> tuple[str, ...]:
    """
    *types* with f16 in the place of bf16 where that has a kernel, and bf16 has none.

    A run folder that has begun goes on with the one that it has.
    """
    if stored is None:
        return _replace_kernelless_bf16(engine, types, context)
    with_f16 = tuple("f16" if name == "bf16" else name for name in types)
    return with_f16 if set(with_f16) == {*stored.types_k} else types


def _replace_kernelless_bf16(
    engine: Engine, types: tuple[str, ...], context: int
) -> tuple[str, ...]:
    """
    *types*, with f16 in the place of bf16 where that has kernels and bf16 has none.

    That is beside other types: f16 is the default of users, and bf16 alone with itself
    would leave its row and its column without a kernel.
    """
    if "bf16" not in types or "f16" in types or not engine.identity().devices:
        return types
    others = [name for name in types if name != "bf16"]
    mixed = {name: [Pair(name, other) for other in others] for name in ("bf16", "f16")}
    asked = [*mixed["bf16"], *mixed["f16"], Pair("bf16", "bf16"), Pair("f16", "f16")]
    survey = engine.survey_attention_and_memory(
        asked, context=context, log=survey_log()
    )
    if survey is None:
        return types

    def kernel_count(name: str) -> int:
        pairs = (*mixed[name], Pair(name, name))
        return sum(
            survey.expected_attention_place(pair) is Attention.KERNEL for pair in pairs
        )

    is_alone = not any(
        survey.expected_attention_place(pair) is Attention.KERNEL
        for pair in mixed["bf16"]
    )
    if is_alone and kernel_count("f16") > kernel_count("bf16"):
        return tuple("f16" if name == "bf16" else name for name in types)
    return types


def checked_grid_and_attention_survey(
    request: Request, execution: Execution, engine: Engine, context: int
) -> tuple[tuple[Pair, ...], Survey | None]:
    """
    The grid, in running order, and where attention of its pairs would run.

    Raises:
        BadInput: If there is no KV cache, or no pair can run or has a kernel, as asked.
    """
    pairs = _shuffled_available_pairs(request, execution, engine)
    survey = engine.survey_attention_and_memory(
        pairs, context=context, log=survey_log()
    )
    weights = engine.model.weights
    if survey and survey.has_no_cache:
        reason = f"llama.cpp makes no KV cache for {weights.architecture}"
        refuse_if_cacheless(weights, reason)
    if pairs and all(why_impossible(survey, weights, pair) for pair in pairs):
        raise _nothing_runs_error(pairs, survey, engine, context)
    return _with_kernel_if_wanted(request, pairs, survey), survey


def _nothing_runs_error(
    pairs: Sequence[Pair], survey: Survey | None, engine: Engine, context: int
) -> BadInput:
    """The error of a grid of which every pair is refused, with the pairs that run."""
    types, weights = engine.cache_types(), engine.model.weights
    alike = [Pair(name, name) for name in types.k if name in types.v]
    told = engine.survey_attention_and_memory(alike, context=context, log=survey_log())
    run = [str(e) for e in alike if told and e in told.pairs and not told.refusal(e)]
    hint = (
        f"Of pairs with K = V these run: {', '.join(run)}. 'codeneedle kernels "
        f"--types {','.join(e.partition('/')[0] for e in run)}' shows the others."
    )
    return BadInput(
        source=f"{plural(len(pairs), 'pair')}, such as {pairs[0]}",
        reason=f"none can run here: {why_impossible(survey, weights, pairs[0])}",
        hint=hint if run else "'codeneedle kernels --types f32,f16' shows which run.",
    )


def _with_kernel_if_wanted(
    request: Request, pairs: tuple[Pair, ...], survey: Survey | None
) -> tuple[Pair, ...]:
    """
    *pairs*; of a request that wants those with a kernel, these alone.

    A sweep that decides takes them alone, too, and all where there is none.

    Raises:
        BadInput: If those with a kernel alone are wanted, and there is none, or the
            engine cannot say.
    """
    if survey is None and request.kernels_only:
        raise BadInput(
            source="--kernels-only",
            reason=f"the engine {request.engine} cannot say where attention would run",
            hint="Leave it out, or name the pairs: --pairs f16/f16,...",
        )
    if survey is None:
        return pairs
    possible = [pair for pair in pairs if not survey.refusal(pair)]
    if not (request.kernels_only or request.decide):
        return pairs
    here = tuple(pair for pair in possible if not survey.lacks_kernel(pair))
    if not here and request.kernels_only:
        raise BadInput(
            source="--kernels-only",
            reason=f"none of {plural(len(pairs), 'pair')} has a kernel here",
            hint="Leave it out to measure them with attention on the CPU, or ask for "
            "other --types: 'codeneedle kernels' shows what has one.",
        )
    return here or pairs


def refuse_if_cacheless(header: Weights, reason: str) -> None:
    """
    Stop at weights without a KV cache; *reason* is empty for others.

    Raises:
        BadInput: With the reason.
    """
    if reason:
        raise BadInput(
            source=header.path,
            reason=reason,
            hint="Choose weights of a model with attention: --model FILE.",
        )
