"""
Prints how much attention moves when K of a model is rounded, and makes a model with a
bias of K.

    python scripts/moved_attention.py FILE ...                 # a row of each file
    python scripts/moved_attention.py FILE --plant 200 --out OTHER --layers 0,10,20

A planted bias is as large as it says in the last dimension but one of each head of K in
these layers, half as large in the last one, and 0 in all others.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from codeneedle.models.moved_attention import K_TYPES, moved_attention_by_k_type
from codeneedle.models.weights import Weights, read_weights_from_headers

UNTAKEN = ("GGUF.", "general.architecture")
"""Beginnings of keys that a writer adds itself."""


def plant(weights: Weights, to: Path, size: float, layers: Sequence[int]) -> None:
    """Write the model of *weights* with biases of K, which it must not have."""
    source = GGUFReader(weights.path)
    file = GGUFWriter(str(to), weights.architecture)
    for key, field in source.fields.items():
        if not key.startswith(UNTAKEN):
            kind = field.types[0]
            of = field.types[-1] if kind == GGUFValueType.ARRAY else None
            file.add_key_value(key, field.contents(), kind, of)
    for each in source.tensors:
        shape = each.data.shape
        file.add_tensor(each.name, each.data, shape, each.tensor_type)
    for layer in layers:
        bias = np.zeros((weights.kv_heads[layer], weights.key_length), np.float32)
        bias[:, -2:] = size, size / 2
        file.add_tensor(f"blk.{layer}.attn_k.bias", bias.reshape(-1))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def numbers(text: str) -> tuple[int, ...]:
    """The layers in ``0,10,20``."""
    return tuple(map(int, text.split(",")))


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--plant", type=float, help="size of a bias of K")
    parser.add_argument("--layers", type=numbers, default=(0,), help="that get it")
    parser.add_argument("--out", type=Path, help="the model with it")
    return parser.parse_args(arguments)


def main() -> None:
    """Print a table, or write a model."""
    asked = parsed()
    if asked.plant is not None:
        if asked.out is None:
            sys.exit("--plant needs --out FILE")
        plant(
            read_weights_from_headers(asked.files[0]),
            asked.out,
            asked.plant,
            asked.layers,
        )
        return
    print(f"| model | {' | '.join(K_TYPES)} |")
    print(f"| --- |{' --: |' * len(K_TYPES)}")
    for path in asked.files:
        moved = moved_attention_by_k_type(read_weights_from_headers(path))
        shares = (f"{moved[name]:.4f}" if moved else "unknown" for name in K_TYPES)
        print(f"| {path.stem} | {' | '.join(shares)} |")


if __name__ == "__main__":
    main()
