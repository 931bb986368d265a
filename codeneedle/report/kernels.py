"""The survey of kernels, for people and programs: which pairs run where."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from codeneedle.cache_types import Pair, most_precise, named_pairs, pairs_by
from codeneedle.document import Block, Document, Facts, Grid, Heading, Lines
from codeneedle.engines.survey import Gain, PairSurvey, Survey
from codeneedle.records.record import Attention, DeviceMemory
from codeneedle.report import data
from codeneedle.text import duration, mib, plural, size, visible

WORDS = {
    Attention.KERNEL: "kernel",
    Attention.CPU: "cpu",
    Attention.CONVERTED: "f16",
    Attention.PLAIN: "plain",
}
"""What stands in the grid."""

REFUSED = "-"
"""Shown for a pair that the engine cannot run."""

UNKNOWN = "?"
"""Shown for a pair that nothing tells of."""

_STYLES = {
    "kernel": "green",
    "cpu": "yellow",
    "f16": "yellow",
    "plain": "green",
    REFUSED: "red",
}

_MEANINGS = {
    "cpu": "attention on the CPU: losses count, speeds are compared with none",
    "f16": "converted to f16 at each step: slower; losses count",
    "plain": "without flash attention, which this model does not have",
    UNKNOWN: "known after the first cell",
}


def kernels_document(
    survey: Survey, k_types: Sequence[str], v_types: Sequence[str]
) -> Document:
    """Where attention of each pair would run, and why."""
    yield Heading("where attention runs")
    yield Grid(
        k_types,
        v_types,
        [[_shown(survey, Pair(k, v)) for v in v_types] for k in k_types],
    )
    pairs = [Pair(k, v) for k in k_types for v in v_types]
    yield Facts(list(_entries(survey, pairs)))
    yield from _told(survey)


def memory_document(survey: Survey) -> Document:
    """Memory of each device with the most precise pair that can run."""
    known = {pair: each for pair, each in survey.pairs.items() if each.memory}
    if known:
        pair = most_precise(known)
        yield Heading(f"memory with {pair} at {survey.context:,} tokens")
        yield Facts([_device(each) for each in known[pair].memory])


def _device(memory: DeviceMemory) -> tuple[str, str]:
    """In whole MiB, as the engine tells them."""
    sizes = {
        "weights": memory.weights,
        "KV cache and state": memory.context,
        "compute buffers": memory.compute,
    }
    phrases = (f"{what} {mib(count):,.0f} MiB" for what, count in sizes.items())
    return visible(memory.device), ", ".join(phrases)


def _shown(survey: Survey, pair: Pair) -> Text:
    word = word_of(survey, pair)
    return Text(word, _STYLES.get(word, "dim"))


def word_of(survey: Survey, pair: Pair) -> str:
    """``kernel``, ``cpu``, ``f16``, `REFUSED` or `UNKNOWN`; empty if not asked."""
    if pair not in survey.pairs:
        return UNKNOWN if survey.unknown else ""
    attention = survey.attention(pair)
    if attention:
        return WORDS[attention]
    return REFUSED if survey.refusal(pair) else UNKNOWN


def _entries(survey: Survey, pairs: Sequence[Pair]) -> Iterator[tuple[str, str]]:
    by_word = pairs_by((word_of(survey, pair), pair) for pair in pairs)
    for word, meaning in _MEANINGS.items():
        if word in by_word:
            evidence = _evidence(survey.pairs.get(by_word[word][0]))
            yield word, f"{meaning}{evidence}"
    if survey.cure:
        yield "", f"a build with {survey.cure} has kernels for all pairs"
    refused = pairs_by(
        (reason, pair) for pair in pairs if (reason := survey.refusal(pair))
    )
    for reason, of_reason in refused.items():
        yield REFUSED, f"{named_pairs(of_reason)}: {visible(reason)}"


def _evidence(answer: PairSurvey | None) -> str:
    return f" ({visible(answer.evidence)})" if answer and answer.evidence else ""


def _told(survey: Survey) -> Iterator[Block]:
    if survey.unknown:
        yield Lines([f"not known: {visible(survey.unknown)}"], style="yellow")
    asked = [each for each in survey.pairs.values() if not each.refusal]
    if asked:
        took = "kept from an earlier survey"
        if not survey.is_kept:
            took = f"asked in {duration(survey.took_s)}, without loading the weights"
        of = f"{plural(len(survey.pairs), 'pair')} at {survey.context:,} tokens"
        yield Lines([f"{of}, {took}"], style="dim")


def gain_line(gain: Gain) -> str:
    """What a pair saves, as a sentence without its period."""
    state = ""
    if gain.recurrent:
        state = f", recurrent state {size(gain.recurrent)} as it is"
    buffers = f", compute buffers {size(gain.compute)}" if gain.compute else ""
    most = ""
    if buffers and gain.is_least:
        buffers, most = f"{buffers} or more", "at most "
    return (
        f"at {gain.context:,} tokens: weights {size(gain.weights)}, KV "
        f"{size(round(gain.reference))} -> {size(round(gain.kv))}{state}{buffers}: "
        f"{most}{percent_text(gain.share)} of the memory of this model, or "
        f"{gain.tokens:,} more tokens"
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
    ``converted`` or null, ``refusal``, ``evidence``, ``recurrent``, ``memory``: a list
    of ``device``, ``weights``, ``context``, ``compute``).
    """
    return {
        "context": survey.context,
        "unknown": survey.unknown,
        "cure": survey.cure,
        "whole_splits": survey.whole_splits,
        "pairs": [
            {
                **data.sides(pair),
                "attention": each.attention,
                "refusal": each.refusal,
                "evidence": each.evidence,
                "recurrent": each.recurrent_bytes,
                "memory": [
                    {
                        "device": memory.device,
                        "weights": memory.weights,
                        "context": memory.context,
                        "compute": memory.compute,
                    }
                    for memory in each.memory
                ],
            }
            for pair, each in survey.pairs.items()
        ],
    }
