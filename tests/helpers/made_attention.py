"""Models of one layer that consist of what makes K and Q, and fit into a few KB."""

from pathlib import Path

import gguf
import numpy as np

SIZE, HEADS, KV_HEADS = 64, 2, 1
WIDTH = SIZE * HEADS


def shapes():
    """The tensors of a plain model, each with its rows and columns."""
    return {
        "attn_norm.weight": (WIDTH,),
        "attn_q.weight": (HEADS * SIZE, WIDTH),
        "attn_k.weight": (KV_HEADS * SIZE, WIDTH),
    }


def write_attention(
    path: Path, *, bias=None, tensors=None, architecture="llama", dtype=None, **keys
) -> Path:
    """
    A model at *path*, always of the same random numbers.

    Args:
        path: Of the file.
        bias: The bias of each value of K; without one there is no tensor of it.
        tensors: Shapes other than those of `shapes`; None where one is left out.
        architecture: Of its keys.
        dtype: Of the numbers of Q and K.
        keys: Values of keys that begin with the architecture, other than usual ones.
    """
    file = gguf.GGUFWriter(str(path), architecture)
    usual = {"block_count": 1, "context_length": 4096, "embedding_length": WIDTH}
    usual |= {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS}
    for key, value in (usual | keys).items():
        add = file.add_float32 if isinstance(value, float) else file.add_uint32
        add(f"{architecture}.{key}", value)
    chance = np.random.default_rng(0)
    for name, shape in (shapes() | (tensors or {})).items():
        if shape is not None:
            numbers = chance.standard_normal(shape).astype(np.float32)
            is_matrix = len(shape) > 1
            scaled = (3 / WIDTH**0.5) * numbers if is_matrix else np.abs(numbers)
            kind = dtype if dtype and is_matrix else np.float32
            file.add_tensor(f"blk.0.{name}", scaled.astype(kind))
    if bias is not None:
        values = np.zeros(KV_HEADS * SIZE, np.float32)
        values[-1] = bias
        file.add_tensor("blk.0.attn_k.bias", values)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path
