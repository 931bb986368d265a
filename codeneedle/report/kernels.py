"""
Shows the survey of kernels as a grid and as JSON: where attention of each pair runs,
the memory of devices, and what a pair saves.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from codeneedle.cache_types import Pair, most_precise
from codeneedle.document import Block, Document, Facts, Grid, Heading, Lines
from codeneedle.engines.memory_gain import Gain
from codeneedle.engines.survey import Survey
from codeneedle.records.record import DeviceMemory
from codeneedle.report import data
from codeneedle.report.shown import (
    REFUSED_SIGN,
    UNKNOWN_KERNEL,
    Shown,
    attention_place_mark,
    legend,
    refusal_mark,
    split_into_rows,
)
from codeneedle.text import (
    duration_text,
    escape_invisible,
    mib_of_bytes,
    plural,
    size_text,
)

_STYLES = {
    "kernel": "green",
    "cpu": "yellow",
    "f16": "yellow",
    "plain": "green",
    REFUSED_SIGN: "red",
}


def kernels_document(
    survey: Survey, k_types: Sequence[str], v_types: Sequence[str]
) -> Document:
    """Where attention of each pair would run, and why."""
    yield Heading("where attention runs")
    shown = [
        _shown_attention_place(survey, Pair(k, v)) for k in k_types for v in v_types
    ]
    texts = [Text(cell.text, _STYLES.get(cell.text, "dim")) for cell in shown]
    yield Grid(k_types, v_types, split_into_rows(texts, len(v_types)))
    cure = f"a build with {survey.cure} has kernels for all pairs"
    yield Facts([*legend(shown), *([("", cure)] if survey.cure else [])])
    yield from _survey_coverage_blocks(survey)


def device_memory_document(survey: Survey) -> Document:
    """Memory of each device with the most precise pair that tells it; or nothing."""
    known = {pair: of_pair for pair, of_pair in survey.pairs.items() if of_pair.memory}
    if known:
        pair = most_precise(known)
        yield Heading(f"memory with {pair} at {survey.context:,} tokens")
        yield Facts([_device_facts(memory) for memory in known[pair].memory])


def _device_facts(memory: DeviceMemory) -> tuple[str, str]:
    """A device, and its weights, caches and buffers in whole MiB."""
    sizes = {
        "weights": memory.weights,
        "KV cache and state": memory.context,
        "compute buffers": memory.compute,
    }
    phrases = (
        f"{what} {mib_of_bytes(count):,.0f} MiB" for what, count in sizes.items()
    )
    return escape_invisible(memory.device), ", ".join(phrases)


def _shown_attention_place(survey: Survey, pair: Pair) -> Shown:
    """Where attention of *pair* runs; nothing if it was not asked."""
    mark, told = UNKNOWN_KERNEL, survey.pairs.get(pair)
    if told is None and not survey.unknown:
        return Shown(pair=pair, text="")
    if attention := survey.expected_attention_place(pair):
        mark = attention_place_mark(attention, told.evidence if told else "")
    elif reason := survey.refusal(pair):
        mark = refusal_mark(REFUSED_SIGN, reason)
    return Shown(pair=pair, text=mark.sign, marks=(mark,))


def _survey_coverage_blocks(survey: Survey) -> Iterator[Block]:
    """What the survey does not know, how many pairs were asked, and how long."""
    if survey.unknown:
        yield Lines([f"not known: {escape_invisible(survey.unknown)}"], style="yellow")
    asked = [of_pair for of_pair in survey.pairs.values() if not of_pair.refusal]
    if asked:
        took = "kept from an earlier survey"
        if not survey.is_kept:
            took = (
                f"asked in {duration_text(survey.took_s)}, without loading the weights"
            )
        of = f"{plural(len(survey.pairs), 'pair')} at {survey.context:,} tokens"
        yield Lines([f"{of}, {took}"], style="dim")


def memory_gain_line(gain: Gain) -> str:
    """What a pair saves, as a sentence without its period."""
    state = ""
    if gain.recurrent:
        state = f", recurrent state {size_text(gain.recurrent)} as it is"
    buffers = f", compute buffers {size_text(gain.compute)}" if gain.compute else ""
    most = ""
    if buffers and gain.is_least:
        buffers, most = f"{buffers} or more", "at most "
    return (
        f"at {gain.context:,} tokens: weights {size_text(gain.weights)}, KV "
        f"{size_text(round(gain.reference))} -> "
        f"{size_text(round(gain.kv))}{state}{buffers}: "
        f"{most}{percent_text(gain.saved_share)} of the memory of this model, or "
        f"{gain.further_tokens_in_saved_memory:,} more tokens"
    )


def percent_text(share: float) -> str:
    """``53 %``, or ``1.7 %`` where a decimal matters."""
    return f"{100 * share:.{0 if share >= _WHOLE_PERCENT else 1}f} %"


_WHOLE_PERCENT = 0.1
"""From here on, decimals of a percentage tell nothing."""


# --- as data


def kernels_object(survey: Survey) -> dict[str, Any]:
    """
    The survey; sizes in bytes.

    Keys: ``context``, ``unknown`` (why there is no answer for some pairs, or empty),
    ``cure`` (option of a build that converts no pair, or empty),
    ``whole_splits``, ``pairs`` (``k``, ``v``, ``attention``: ``kernel``, ``cpu``,
    ``converted``, ``plain`` or null, ``refusal``, ``evidence``, ``recurrent``,
    ``memory``: a list of ``device``, ``weights``, ``context``, ``compute``).
    """
    return {
        "context": survey.context,
        "unknown": survey.unknown,
        "cure": survey.cure,
        "whole_splits": survey.whole_splits,
        "pairs": [
            {
                **data.types_by_axis(pair),
                "attention": of_pair.attention,
                "refusal": of_pair.refusal,
                "evidence": of_pair.evidence,
                "recurrent": of_pair.recurrent_bytes,
                "memory": [
                    {
                        "device": memory.device,
                        "weights": memory.weights,
                        "context": memory.context,
                        "compute": memory.compute,
                    }
                    for memory in of_pair.memory
                ],
            }
            for pair, of_pair in survey.pairs.items()
        ],
    }
