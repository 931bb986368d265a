"""In what a server that runs differs from what was asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from codeneedle.effective import Effective, KvBuffer
from codeneedle.grid import Pair

CONTEXT_STEP = 256
"""llama.cpp rounds a context up to a multiple of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """
    What a server was asked for.

    Attributes:
        pair: Cache types; None where they do not matter.
        context: Size of the context, in tokens.
        rotation: Whether quantized values may be rotated.
        all_layers: Whether all of them are to be on the accelerator, if there is one.
    """

    pair: Pair | None
    context: int
    rotation: bool = True
    all_layers: bool = False


def mismatches(asked: Asked, effective: Effective) -> tuple[str, ...]:
    """
    In what *effective* differs from what was asked, one phrase each.

    What the log does not tell is no difference, except the cache types: without
    them nothing that is measured would mean anything. Where no types were asked
    for, nothing is measured.
    """
    if asked.pair is None:
        return ()
    found = list(_wrong_types(asked.pair, effective.kv))
    found += _wrong_context(asked.context, effective.context)
    if effective.flash_attention == "disabled":
        found.append("flash attention is off, not on")
    if not asked.rotation and (effective.rotation_k or effective.rotation_v):
        found.append("values are rotated, though they should not be")
    if asked.all_layers:
        found += _wrong_offload(effective)
    return tuple(found)


def _wrong_types(pair: Pair, buffers: Sequence[KvBuffer]) -> Iterator[str]:
    if not buffers:
        yield "the log names no KV cache, so its types cannot be verified"
    for buffer in buffers:
        if buffer.k_type != pair.k:
            yield f"K is {buffer.k_type}, not {pair.k}"
        # Models that keep K and V in one have no V of their own.
        if buffer.v_type != pair.v and buffer.v_mib > 0:
            yield f"V is {buffer.v_type}, not {pair.v}"


def _wrong_context(asked: int, effective: int | None) -> Iterator[str]:
    padded = -(-asked // CONTEXT_STEP) * CONTEXT_STEP
    if effective is not None and not asked <= effective <= padded:
        yield f"the context is {effective} tokens, not {asked}"


def _wrong_offload(effective: Effective) -> Iterator[str]:
    on_device, layers = effective.offloaded_layers, effective.total_layers
    # None of them: there is no accelerator.
    if on_device and layers and on_device < layers:
        yield f"{on_device} of {layers} layers are on the accelerator, not all"
