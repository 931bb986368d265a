"""
Make the built-in model: an induction circuit whose weights are constructed.

    python scripts/built_in_model.py [--out codeneedle/models/needle-nano.gguf]

It writes the same bytes everywhere. Another matcher or construction makes another
model: pin its hash in `codeneedle.models.pretrained`.
"""

import argparse
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from codeneedle.models import pretrained

Array = npt.NDArray[np.float64]

TOKENS = 260
"""Vocabulary: 256 bytes, begin, end, padding, and one that is never used."""

BEGIN = 256
"""The token that every context begins with."""

HEAD = 64
"""Dimensions of a head; llama.cpp rotates quantized caches in blocks of 64."""

SLOTS = 16
"""Most recent bytes that each token stores individually."""

SEEN = SLOTS - 1
"""Slots that a match compares; the window of a key begins one slot later."""

VALUE_DIMS = 16
"""Dimensions of the code by which a byte reaches the output."""

FEED_FORWARD = 96
"""Width of the feed-forward layers: two for each dimension that is squared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """
    The trained parameters: projections that decide which positions match.

    Attributes:
        codes: Shape (260, c): code of a byte in a slot; rows of length one.
        hashes: One (h, seen) matrix for each layer beyond the slots: a projection of
            all that a position has gathered; *seen* is 15 c at first and grows by h.
        query: Shape (47, seen): projection of what precedes and includes a token.
        key: Shape (47, seen): projection of what precedes an earlier token.
        energies: Mean squared length of each hash, measured on text.
        key_energy: Mean squared length of a key, measured on text.
    """

    codes: Array
    hashes: tuple[Array, ...]
    query: Array
    key: Array
    energies: tuple[float, ...]
    key_energy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """
    Weights of one layer with a single head, as x @ w.T uses them.

    Attributes:
        query: Shape (64, width).
        query_bias: Shape (64,).
        key: Shape (64, width).
        key_bias: Shape (64,).
        value: Shape (64, width).
        output: Shape (width, 64).
        expand: Shape (96, width): both inputs of the feed-forward product.
        shrink: Shape (width, 96).
    """

    query: Array
    query_bias: Array
    key: Array
    key_bias: Array
    value: Array
    output: Array
    expand: Array
    shrink: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """
    All weights.

    Attributes:
        embedding: Shape (260, width).
        layers: In order of use.
        readout: Shape (260, width).
        frequencies: Shape (32,): radians per token of each pair of dimensions.
    """

    embedding: Array
    layers: tuple[Layer, ...]
    readout: Array
    frequencies: Array


@dataclass(frozen=True, slots=True)
class Layout:
    """
    The parts of a token's vector.

    Attributes:
        code: Dimensions of a slot.
        hashes: Number of layers that write hashes.
        hash_dims: Dimensions of each.
    """

    code: int
    hashes: int
    hash_dims: int

    def slots(self, start: int, stop: int) -> slice:
        """Codes of the bytes *start* to *stop* - 1 places back."""
        return slice(start * self.code, stop * self.code)

    def hash(self, level: int, *, of_key: bool) -> slice:
        """Hash that a layer writes for queries (own byte included) or for keys."""
        start = SLOTS * self.code + (2 * level + of_key) * self.hash_dims
        return slice(start, start + self.hash_dims)

    @property
    def value(self) -> slice:
        """Code of the token's own byte, for the output."""
        start = SLOTS * self.code + 2 * self.hashes * self.hash_dims
        return slice(start, start + VALUE_DIMS)

    @property
    def copied(self) -> slice:
        """Code of the byte that follows the match."""
        return slice(self.value.stop, self.value.stop + VALUE_DIMS)

    @property
    def square(self) -> int:
        """Squared length of the token's key."""
        stop: int = self.copied.stop
        return stop

    @property
    def width(self) -> int:
        """Dimensions of a token's vector, a multiple of 32 as llama.cpp prefers."""
        return -(-(self.square + 1) // 32) * 32

    def view(self, levels: int, *, of_key: bool) -> list[slice]:
        """The slots and hashes that are filled after *levels* hash layers."""
        near = self.slots(of_key, of_key + SEEN)
        return [near, *(self.hash(level, of_key=of_key) for level in range(levels))]


def value_codes() -> Array:
    """
    Codes of length one for bytes; zero for special tokens, which are never output.

    Returns:
        Shape (260, 16). Codes of two bytes have a scalar product of at most 1/4, so
        that the right byte has by far the largest logit.

    Source:
        The Nordstrom-Robinson code as the Gray image of the octacode over Z4:
        Hammons, Kumar, Calderbank, Sloane, Sole, The Z4-linearity of Kerdock,
        Preparata, Goethals, and related codes, IEEE Trans. IT 40(2), 1994.
    """
    first = [3, 1, 2, 1, 0, 0, 0]
    generator = np.array([[*np.roll(first, n), 1] for n in range(4)])
    digits = np.indices((4, 4, 4, 4)).reshape(4, 256).T
    gray = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]])
    words = gray[digits @ generator % 4].reshape(256, VALUE_DIMS)
    # Negatives of codes are codes; they go to bytes 128 apart, rare in one text.
    half = words[words[:, 0] > 0]
    codes = np.zeros((TOKENS, VALUE_DIMS))
    codes[:256] = np.concatenate([half, -half]) / math.sqrt(VALUE_DIMS)
    return codes


def orthonormal(columns: int) -> Array:
    """
    Shape (64, columns): orthonormal columns that spread each number over all 64.

    A head's value carries what it copies in this basis, so that a cache's
    quantization meets many numbers of like size. Entries are n / 32: exact.
    """
    hadamard = np.ones((1, 1))
    while len(hadamard) < HEAD:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    # A plain Hadamard transform would be undone by llama.cpp's rotation.
    chance = hashlib.sha256(b"signs").digest()[: HEAD // 8]
    bits = np.unpackbits(np.frombuffer(chance, np.uint8)).astype(np.float64)
    product = (hadamard * (1 - 2 * bits)) @ hadamard
    return np.asarray(product[:, :columns] / HEAD, np.float64)


EPSILON = 1e-5
"""Added to the mean square in normalization."""

RULER = (2.8459, 2.3995, 1.0556, 0.6331, 0.196, 0.0521, 0.001432, 0.0012675)
"""
Frequencies of the ruler, in radians per token.

Found by random search: the mean of their cosines is 1 at distance zero and at most
0.83 at any other below 39,000 tokens, 0.88 below 65,536.
"""

LOOK_BACK_NATS = 72.0
"""
Attention score of the position at the wanted distance.

All others are at least 0.12 of that, 8.6 nats, lower; quantized keys shift scores by
about one.
"""

VALUE_SCALE = 32.0
"""Length of a value code; the same for every token."""

SQUARE_SCALE = 1 / 64
"""Scales the squared length of a key to the size of its neighbours."""

QUERY_OF_SQUARE = 16.0
"""Constant of each query that multiplies the squared length of a key."""

LOGIT = 20.0
"""Logit of a byte with all the attention; another has at most a quarter of it."""


def construct(matcher: Matcher) -> Model:
    """All weights: four layers that fill slots, the hash layers, the match layer."""
    layout = Layout(matcher.codes.shape[1], len(matcher.hashes), len(matcher.hashes[0]))
    values = value_codes()
    embedding, readout = np.zeros((2, TOKENS, layout.width))
    embedding[:, layout.slots(0, 1)] = matcher.codes
    embedding[:, layout.value] = VALUE_SCALE * values
    # The output code has length one, added to everything before it.
    length = _rms(_energy(matcher, weighed=True) + 1, layout.width)
    readout[:, layout.copied] = LOGIT * length * values
    layers = [
        *(_slot_layer(layout, 2**n) for n in range(4)),
        *(_hash_layer(layout, matcher, n) for n in range(layout.hashes)),
        _match_layer(layout, matcher),
    ]
    _weigh_keys(layers[-2], layout, matcher)
    return Model(
        embedding=embedding,
        layers=tuple(layers),
        readout=readout,
        frequencies=np.array([*RULER, *[0.0] * (HEAD // 2 - len(RULER))]),
    )


def _slot_layer(layout: Layout, back: int) -> Layer:
    """Copy the *back* slots of the token that many positions back."""
    layer = _look_back(layout, back)
    known = layout.slots(0, back)
    carrier = orthonormal(known.stop)
    # Undoes the division by normalization.
    layer.value[:, known] = carrier * _rms(back + VALUE_SCALE**2, layout.width)
    layer.output[layout.slots(back, 2 * back)] = carrier.T
    return layer


def _hash_layer(layout: Layout, matcher: Matcher, level: int) -> Layer:
    """Copy two hashes from further back: one for queries, one for keys."""
    layer = _look_back(layout, SLOTS * 2**level)
    carrier = orthonormal(2 * layout.hash_dims)
    length = _rms(_energy(matcher, level), layout.width)
    for of_key in (False, True):
        part = carrier[:, layout.hash_dims * of_key :][:, : layout.hash_dims]
        seen = layout.view(level, of_key=of_key)
        _spread(layer.value, seen, part @ matcher.hashes[level] * length)
        layer.output[layout.hash(level, of_key=of_key)] = part.T
    return layer


def _look_back(layout: Layout, back: int) -> Layer:
    """
    A layer that attends to one distance, whatever the text; its value is still zero.

    Query and key are the same for all tokens: biases. On each pair of the ruler the
    key points to angle 0 and the query to -(frequency x back); rotary position adds
    (frequency x position) to both, so they agree on all pairs *back* places apart.
    """
    layer = _blank(layout)
    # A pair contributes length**2, all pairs n of them, and attention divides.
    length = math.sqrt(LOOK_BACK_NATS * math.sqrt(HEAD) / len(RULER))
    for pair, frequency in enumerate(RULER):
        angle = -frequency * back
        # Rounded: the last digits of a cosine differ between C libraries.
        layer.query_bias[2 * pair] = round(length * math.cos(angle), 4)
        layer.query_bias[2 * pair + 1] = round(length * math.sin(angle), 4)
        layer.key_bias[2 * pair] = round(length, 4)
    return layer


def _weigh_keys(layer: Layer, layout: Layout, matcher: Matcher) -> None:
    """
    Let the feed-forward part of *layer* write down each key's squared length.

    Its product is silu(a) b, with a and b linear in the input. With a = b = u in one
    half and a = b = -u in the other, each square is whole, because the sigmoids of u
    and -u add up to one: silu(u) u + silu(-u) (-u) = u**2.
    """
    key = matcher.key * _rms(_energy(matcher), layout.width)
    view = layout.view(layout.hashes, of_key=True)
    _spread(layer.expand[: len(key)], view, key)
    _spread(layer.expand[len(key) : 2 * len(key)], view, -key)
    layer.shrink[layout.square, : 2 * len(key)] = SQUARE_SCALE


def _match_layer(layout: Layout, matcher: Matcher) -> Layer:
    """Attend to the positions whose preceding window is like the one that ends here."""
    layer = _blank(layout)
    length = _rms(_energy(matcher, weighed=True), layout.width)
    # The matcher states scores in nats; attention divides by the root of 64.
    sharp = length * math.sqrt(math.sqrt(HEAD))
    free = slice(2 * len(RULER), HEAD - 1)
    query_view = layout.view(layout.hashes, of_key=False)
    key_view = layout.view(layout.hashes, of_key=True)
    _spread(layer.query[free], query_view, matcher.query * sharp)
    _spread(layer.key[free], key_view, matcher.key * sharp)
    # The last dimension subtracts half the squared length, less its mean: softmax
    # does not see what all keys have in common, and small numbers quantize better.
    half = 0.5 * math.sqrt(HEAD) / QUERY_OF_SQUARE
    layer.query_bias[-1] = QUERY_OF_SQUARE
    layer.key_bias[-1] = half * matcher.key_energy
    layer.key[-1, layout.square] = -half / SQUARE_SCALE * length
    carrier = orthonormal(VALUE_DIMS)
    layer.value[:, layout.value] = carrier * length
    layer.output[layout.copied] = carrier.T / VALUE_SCALE
    return layer


def _blank(layout: Layout) -> Layer:
    """A layer of zeros, to be filled."""
    width = layout.width
    return Layer(
        query=np.zeros((HEAD, width)),
        query_bias=np.zeros(HEAD),
        key=np.zeros((HEAD, width)),
        key_bias=np.zeros(HEAD),
        value=np.zeros((HEAD, width)),
        output=np.zeros((width, HEAD)),
        expand=np.zeros((FEED_FORWARD, width)),
        shrink=np.zeros((width, FEED_FORWARD)),
    )


def _spread(target: Array, places: Sequence[slice], columns: Array) -> None:
    """Add consecutive *columns* to *target* at the *places* of their inputs."""
    start = 0
    for place in places:
        stop = start + place.stop - place.start
        target[:, place] += columns[:, start:stop]
        start = stop


def _energy(
    matcher: Matcher, hashes: int | None = None, *, weighed: bool = False
) -> float:
    """Squared length of a token's vector with *hashes* hashes filled, or all."""
    # Exact for slots and value code, whose lengths are one and VALUE_SCALE.
    energy = SLOTS + VALUE_SCALE**2 + 2 * math.fsum(matcher.energies[:hashes])
    return energy + (SQUARE_SCALE * matcher.key_energy) ** 2 * weighed


def _rms(energy: float, width: int) -> float:
    """Root mean square of a vector's elements, by which normalization divides."""
    return math.sqrt(energy / width + EPSILON)


CONTEXT = 65536
"""Tokens, each a byte, over which the ruler is unambiguous."""

ROPE_BASE = 10000.0
"""Base of rotary frequencies; `_rope_factors` compensates for it."""

STILL = 1e30
"""Divisor for the frequency of a pair that must not rotate."""

CHAT_TEMPLATE = """\
{%- set asked = messages | selectattr("role", "equalto", "user") | list | last -%}
{%- set parts = asked.content.rsplit("\\n---\\n", 1) -%}
{%- if parts | length < 2 -%}
{{- asked.content -}}
{%- else -%}
{%- set question = parts[1] -%}
{%- if "```" in question -%}
{%- set quoted = question.split("```")[1].split("\\n", 1)[1] -%}
{%- set quoted = quoted.rsplit("\\n", 1)[0] -%}
{%- elif "`" in question -%}
{%- set quoted = question.split("`")[1] -%}
{%- else -%}
{%- set quoted = question -%}
{%- endif -%}
{{- parts[0] + "\\n\\n# recall\\n" + quoted -}}
{%- if add_generation_prompt -%}{{- "\\n" -}}{%- endif -%}
{%- endif -%}
"""
"""
Renders a question as a completion: the corpus, then the signature that is quoted.

The corpus ends at the last line ``---`` of the last user message; what the question
after it quotes, in a fence or between single backticks, is repeated behind it.
"""


def trained_matcher() -> Matcher:
    """The trained part of the model, as ``scripts/train_matcher.py`` made it."""
    with np.load(Path(__file__).with_name("matcher.npz")) as stored:
        arrays = {name: stored[name].astype(np.float64) for name in stored.files}
    hashes = [arrays[name] for name in sorted(arrays) if name.startswith("hash_")]
    # Lengths are restored, because 16 bits have rounded them.
    lengths = np.sqrt(np.sum(np.square(arrays["codes"]), axis=1, keepdims=True))
    return Matcher(
        codes=arrays["codes"] / lengths,
        hashes=tuple(hashes),
        query=arrays["query"],
        key=arrays["key"],
        energies=tuple(arrays["energies"].tolist()),
        key_energy=float(arrays["key_energy"]),
    )


def write_gguf(path: Path) -> None:
    """Write the model to *path* in the GGUF of llama.cpp's llama architecture."""
    model = construct(trained_matcher())
    # The package's types do not know Path everywhere.
    file = gguf.GGUFWriter(str(path), "llama")
    _describe(file, model)
    _describe_tokens(file)
    _add_tensors(file, model)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _describe(file: gguf.GGUFWriter, model: Model) -> None:
    file.add_name(pretrained.BUILT_IN)
    file.add_description("Copies from its context by induction, byte by byte")
    file.add_license("MIT")
    file.add_context_length(CONTEXT)
    file.add_embedding_length(model.embedding.shape[1])
    file.add_block_count(len(model.layers))
    file.add_feed_forward_length(FEED_FORWARD)
    file.add_head_count(1)
    file.add_head_count_kv(1)
    file.add_key_length(HEAD)
    file.add_value_length(HEAD)
    file.add_rope_dimension_count(HEAD)
    file.add_rope_freq_base(ROPE_BASE)
    file.add_layer_norm_rms_eps(EPSILON)
    file.add_vocab_size(TOKENS)
    file.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def _describe_tokens(file: gguf.GGUFWriter) -> None:
    """
    Bytes as tokens, in the spelling of the GPT-2 tokenizer, with a single merge.

    llama.cpp refuses a vocabulary without merges; two bytes 0xFF, which never occur in
    UTF-8, make token 259.
    """
    spelling = _byte_spelling()
    pair = spelling[255] * 2
    special = ["<|bos|>", "<|eos|>", "<|pad|>"]
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list([*spelling, *special, pair])
    file.add_token_types([*[normal] * 256, *[control] * 3, normal])
    file.add_token_merges([" ".join(pair)])
    file.add_bos_token_id(BEGIN)
    file.add_eos_token_id(BEGIN + 1)
    file.add_pad_token_id(BEGIN + 2)
    file.add_add_bos_token(value=True)
    file.add_add_eos_token(value=False)
    file.add_chat_template(CHAT_TEMPLATE)


def _byte_spelling() -> list[str]:
    """How GPT-2 spells the bytes: as they are if printable, else letters past 255."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return [
        chr(byte if byte in printable else 256 + others.index(byte))
        for byte in range(256)
    ]


def _add_tensors(file: gguf.GGUFWriter, model: Model) -> None:
    """Matrices with 16 bits, vectors with 32."""
    ones = np.ones(model.embedding.shape[1])
    tensors = {
        "token_embd.weight": model.embedding,
        "output.weight": model.readout,
        "output_norm.weight": ones,
        "rope_freqs.weight": _rope_factors(model.frequencies),
    }
    for number, layer in enumerate(model.layers):
        block = {
            "attn_norm.weight": ones,
            "attn_q.weight": layer.query,
            "attn_q.bias": layer.query_bias,
            "attn_k.weight": layer.key,
            "attn_k.bias": layer.key_bias,
            "attn_v.weight": layer.value,
            "attn_output.weight": layer.output,
            "ffn_norm.weight": ones,
            "ffn_gate.weight": layer.expand,
            "ffn_up.weight": layer.expand,
            "ffn_down.weight": layer.shrink,
        }
        tensors |= {f"blk.{number}.{name}": block[name] for name in block}
    for name, array in tensors.items():
        kind = np.float16 if array.ndim > 1 else np.float32
        file.add_tensor(name, np.ascontiguousarray(array, kind))


def _rope_factors(frequencies: Array) -> Array:
    """Divisors by which llama.cpp turns its usual frequencies of pairs into ours."""
    pairs = len(frequencies)
    factors = [
        ROPE_BASE ** (-pair / pairs) / frequency if frequency else STILL
        for pair, frequency in enumerate(frequencies.tolist())
    ]
    return np.array(factors)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=pretrained.built_in_path())
    write_gguf(parser.parse_args().out)


if __name__ == "__main__":
    main()
