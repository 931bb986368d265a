"""
Where attention of a cell ran, by the graph splits that its log tells and by the survey:
in a kernel, on the CPU, or in a kernel behind a conversion to f16.
"""

from dataclasses import replace

from codeneedle.cache_types import Pair
from codeneedle.engines.survey import Survey
from codeneedle.records.record import Attention, Effective

WHOLE_SPLITS = 2
"""Graph splits of a model that is on one device: its input, and everything else."""


def with_attention_place(
    effective: Effective, survey: Survey | None, pair: Pair, *, is_split: bool
) -> Effective:
    """
    *effective* with where attention ran: by its graph splits, else by the survey.

    A graph is whole with two splits, or with as many as f16/f16 has in the survey. With
    attention on the CPU it has two more for each layer that has a KV cache. What a log
    line has told stays, but for a kernel that the survey saw behind a conversion; where
    the survey says otherwise, the evidence tells it.

    Args:
        effective: Settings of a server or tool, as its log tells them.
        survey: Survey of the run; None without one.
        pair: The pair that was measured, to compare with the survey.
        is_split: Whether arguments of the user's split the graph of each pair.
    """
    splits = effective.graph_splits
    if effective.attention is None and splits is not None:
        surveyed = survey.whole_splits if survey else None
        whole = max(WHOLE_SPLITS, surveyed or 0)
        attention = _attention_by_splits(effective, splits, whole)
        if attention is Attention.CPU and is_split and surveyed is None:
            attention = None
        evidence = f"{splits} graph splits, {whole} with attention in a kernel"
        if not _has_cache_on_accelerator(effective):
            evidence = "the cache is on the CPU"
        if attention is not None:
            effective = replace(
                effective, attention=attention, attention_evidence=evidence
            )
    foretold = survey.expected_attention_place(pair) if survey else None
    if foretold is None or foretold is effective.attention:
        return effective
    # A graph with a conversion is as whole as one with a kernel.
    is_hidden = (effective.attention, foretold) == (
        Attention.KERNEL,
        Attention.CONVERTED,
    )
    if effective.attention is None or is_hidden:
        why = survey.pairs[pair].evidence if survey and is_hidden else ""
        evidence = f"by the survey: {why}" if why else "by the survey"
        return replace(effective, attention=foretold, attention_evidence=evidence)
    told = f"{effective.attention_evidence}; the survey said {foretold}"
    return replace(effective, attention_evidence=told)


def _attention_by_splits(
    effective: Effective, splits: int, whole: int
) -> Attention | None:
    """
    A kernel up to *whole* splits, the CPU with one or more beyond for each layer.

    None between the two; a cache on the CPU always has a kernel.
    """
    if not _has_cache_on_accelerator(effective) or splits <= whole:
        return Attention.KERNEL
    layers = sum(cache.layers for cache in effective.kv)
    return Attention.CPU if layers and splits - whole >= layers else None


def _has_cache_on_accelerator(effective: Effective) -> bool:
    """Whether any of the cache is: on the CPU alone each pair has a kernel."""
    if effective.devices:
        return bool({*effective.devices} - {"CPU"})
    return bool(effective.offloaded_layers)
