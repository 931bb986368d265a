"""
When a cell is mismatched: its cache types, context, flash attention, rotation or layers
are not those asked for; and a quantized V without flash attention.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from codeneedle.cache_types import Pair, is_full_precision
from codeneedle.errors import CellError
from codeneedle.models.kv_cache import pad_context
from codeneedle.records.record import Attention, Effective, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedSettings:
    """What a program was started for."""

    pair: Pair | None  # cache types; None for a server that measures nothing
    context: int  # size of the context, in tokens
    rotation: bool = True  # whether quantized values may be rotated
    all_layers: bool = False
    """Whether all layers are to be on the accelerator, if there is one."""

    flash: bool = True  # whether flash attention is to be on


def differences(asked: RequestedSettings, effective: Effective) -> tuple[str, ...]:
    """
    In what *effective* differs from what was *asked* for, one phrase each.

    A setting that is not stated is no difference, except the cache types: without
    them, no measurement could be attributed to a pair. Nothing if no pair was asked.
    """
    if asked.pair is None:
        return ()
    return tuple(dict.fromkeys(_differences(asked, asked.pair, effective)))


def _differences(
    asked: RequestedSettings, pair: Pair, effective: Effective
) -> Iterator[str]:
    """The phrases of `differences`, of which some may repeat."""
    if not effective.kv:
        yield "the log names no KV cache, so its types cannot be verified"
    for buffer in effective.kv:
        # Models that keep K and V in one have no V of their own.
        yield from wrong_type_phrases(
            pair, buffer.k_type, buffer.v_type if buffer.v_mib > 0 else pair.v
        )
    context = effective.context
    if context is not None and not asked.context <= context <= pad_context(
        asked.context
    ):
        yield f"the context is {context} tokens, not {asked.context}"
    is_plain = effective.attention is Attention.PLAIN
    if asked.flash and effective.flash_attention == "disabled" and not is_plain:
        yield "flash attention is off, not on"
    if not asked.rotation and (effective.rotation_k or effective.rotation_v):
        yield "quantized values are rotated, although rotation is off"
    on_device, layers = effective.offloaded_layers, effective.total_layers
    # Zero or None: there is no accelerator.
    if asked.all_layers and on_device and layers and on_device < layers:
        yield f"{on_device} of {layers} layers are on the accelerator, not all"


def refuse_quantized_v_without_flash(pair: Pair | None, effective: Effective) -> None:
    """
    Stop at a quantized V of a model for which the engine has no flash attention.

    Raises:
        CellError: With the line of the log that says so.
    """
    is_plain = effective.attention is Attention.PLAIN
    if pair and is_plain and not is_full_precision(pair.v):
        raise CellError(
            f"a quantized V needs flash attention: {effective.attention_evidence}",
            hint="Sweep pairs whose V is f16, bf16 or f32.",
            status=Status.UNSUPPORTED,
        )


def wrong_type_phrases(pair: Pair, k: str, v: str) -> Iterator[str]:
    """In what the cache types *k* and *v* differ from *pair*."""
    if k != pair.k:
        yield f"K is {k}, not {pair.k}"
    if v != pair.v:
        yield f"V is {v}, not {pair.v}"


def mismatch_error(
    unlike: Sequence[str], *, log_excerpt: tuple[str, ...] = ()
) -> CellError:
    """The error for a server or tool that differs as the phrases *unlike* say."""
    return CellError(
        f"what runs is not what was asked for: {'; '.join(unlike)}",
        hint="Is it a fork, or does an argument after '--' change it?",
        status=Status.MISMATCHED,
        log_excerpt=log_excerpt,
    )
