"""
Tiny models of random weights, one for each kind of cache that llama.cpp has.

They are written in moments and always the same. Their numbers show arithmetic, never
quality: what a test asks of them is what a cache holds, where attention runs, and what
llama.cpp refuses. Names and shapes of tensors are those of ``src/models`` in its tree.
"""

import functools
import zlib
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from codeneedle.models.pretrained import checked_built_in_path

WIDTH = 256
"""Length of a token's vector, but for the models that say otherwise."""

HIDDEN = 512
"""Width of a dense feed-forward layer."""

HEAD = 64
"""Dimensions of a head, but for the models that say otherwise."""

HEADS = 4

QUERY_RANK = 96
"""Length of a compressed query of deepseek2."""

KV_RANK = 128
"""Length of what deepseek2 keeps of a token, without its position."""


def write(name: str, folder: Path) -> Path:
    """The file ``NAME.gguf`` in *folder*, written now; *name* is one of `NAMES`."""
    return _ZOO[name](folder / f"{name}.gguf")


class _File:
    """
    A GGUF file in the making: what its architecture wants, in a few words.

    Shapes are in the order of llama.cpp: the dimension that lies contiguously first.
    """

    def __init__(self, path, arch, *, layers=4, width=WIDTH, context=32768, **keys):
        self.path, self.arch = path, arch
        self.layers, self.width = layers, width
        self.file = gguf.GGUFWriter(str(path), arch)
        self.file.add_name(path.stem)
        self.file.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
        self.chance = np.random.default_rng(zlib.crc32(path.stem.encode()))
        self.keys(context_length=context, embedding_length=width, block_count=layers)
        self.keys(**{"attention.layer_norm_rms_epsilon": 1e-5}, **keys)

    def keys(self, **keys):
        """Values under keys that begin with the architecture's name."""
        for key, value in keys.items():
            add = {
                bool: self.file.add_bool,
                int: self.file.add_uint32,
                float: self.file.add_float32,
                list: self.file.add_array,
            }[type(value)]
            add(f"{self.arch}.{key}", value)

    def matrix(self, name, *shape, scale=None, dtype=np.float16):
        """Random numbers, by default such that a vector about keeps its length."""
        scale = 1.5 / shape[0] ** 0.5 if scale is None else scale
        numbers = self.chance.standard_normal(shape[::-1], dtype=np.float32)
        self.file.add_tensor(f"{name}.weight", (numbers * scale).astype(dtype))

    def noise(self, name, *shape, scale=1.0):
        """A vector of random numbers; *name* is the whole of it."""
        numbers = self.chance.standard_normal(shape[::-1], dtype=np.float32)
        self.file.add_tensor(name, numbers * np.float32(scale))

    def fill(self, name, *shape, value=1.0):
        """One number everywhere; *name* is the whole of it."""
        self.file.add_tensor(name, np.full(shape[::-1], value, np.float32))

    def tokens(self, *, template=True):
        """The bytes, as the built-in model has them."""
        for key, value_type, value in _tokenizer():
            if template or key != "tokenizer.chat_template":
                self.file.add_key_value(key, value, *value_type)

    def embeddings(self, *, norm="output_norm", output=True):
        """First and last layer; without *output* the first serves as both."""
        tokens = _token_count()
        first = 1.0 if output else 0.15
        self.matrix("token_embd", self.width, tokens, scale=first)
        self.fill(f"{norm}.weight", self.width)
        if output:
            self.matrix("output", self.width, tokens)

    def norms(self, at, *names):
        for name in names:
            self.fill(f"blk.{at}.{name}.weight", self.width)

    def attention(self, at, *, heads=HEADS, kv_heads=2, size=HEAD, queries=1):
        """Projections to and from heads, sharp enough that tokens differ."""
        block, sharp = f"blk.{at}.attn", 3 / self.width**0.5
        self.matrix(f"{block}_q", self.width, heads * size * queries, scale=sharp)
        self.matrix(f"{block}_k", self.width, kv_heads * size, scale=sharp)
        self.matrix(f"{block}_v", self.width, kv_heads * size)
        self.matrix(f"{block}_output", heads * size, self.width)

    def biases(self, at, *, key, kv_heads=2):
        """Biases of attention, all zero but for K's, which are as large as *key*."""
        block = f"blk.{at}.attn"
        self.fill(f"{block}_q.bias", HEADS * HEAD, value=0.0)
        self.noise(f"{block}_k.bias", kv_heads * HEAD, scale=key)
        self.fill(f"{block}_v.bias", kv_heads * HEAD, value=0.0)

    def head_norms(self, at):
        self.fill(f"blk.{at}.attn_q_norm.weight", HEAD, value=2.0)
        self.fill(f"blk.{at}.attn_k_norm.weight", HEAD, value=2.0)

    def feed_forward(self, at, *, hidden=HIDDEN, suffix=""):
        block = f"blk.{at}.ffn"
        self.matrix(f"{block}_gate{suffix}", self.width, hidden)
        self.matrix(f"{block}_up{suffix}", self.width, hidden)
        self.matrix(f"{block}_down{suffix}", hidden, self.width)

    def experts(self, at, *, count, hidden):
        block = f"blk.{at}.ffn"
        self.matrix(f"{block}_gate_inp", self.width, count, dtype=np.float32)
        self.matrix(f"{block}_gate_exps", self.width, hidden, count)
        self.matrix(f"{block}_up_exps", self.width, hidden, count)
        self.matrix(f"{block}_down_exps", hidden, self.width, count)

    def end(self):
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()
        return self.path


@functools.cache
def _tokenizer():
    """Keys of the built-in model's tokenizer, each with its type and value."""
    fields = gguf.GGUFReader(checked_built_in_path()).fields
    return [
        (key, field.types, field.contents())
        for key, field in fields.items()
        if key.startswith("tokenizer.")
    ]


def _token_count():
    return next(len(v) for k, _, v in _tokenizer() if k.endswith("ggml.tokens"))


def _heads(kv_heads, size=HEAD, heads=HEADS):
    """Keys of plain attention with rotated heads of *size*."""
    return {
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": size,
        "attention.value_length": size,
        "rope.dimension_count": size,
        "rope.freq_base": 500_000.0,
    }


def _llama(path, *, size=HEAD, heads=HEADS, kv_heads=2, template=True, **changes):
    """Plain attention; the width is that of all heads together."""
    hidden = changes.pop("hidden", HIDDEN)
    keys = {"feed_forward_length": hidden, **_heads(kv_heads, size, heads)}
    model = _File(path, "llama", width=size * heads, **changes, **keys)
    model.tokens(template=template)
    model.embeddings()
    for at in range(model.layers):
        model.norms(at, "attn_norm", "ffn_norm")
        model.attention(at, heads=heads, kv_heads=kv_heads, size=size)
        model.feed_forward(at, hidden=hidden)
    return model.end()


def _qwen2(path):
    """Biases of K: in the first and the last layer twenty times as large."""
    model = _File(path, "qwen2", feed_forward_length=HIDDEN, **_heads(2))
    model.tokens()
    model.embeddings()
    for at in range(model.layers):
        model.norms(at, "attn_norm", "ffn_norm")
        model.attention(at)
        model.biases(at, key=20.0 if at in (0, model.layers - 1) else 1.0)
        model.feed_forward(at)
    return model.end()


def _qwen3moe(path):
    """A mixture of experts."""
    experts = {"expert_count": 8, "expert_used_count": 2}
    experts["expert_feed_forward_length"] = 128
    model = _File(path, "qwen3moe", feed_forward_length=HIDDEN, **_heads(2), **experts)
    model.tokens()
    model.embeddings()
    for at in range(model.layers):
        model.norms(at, "attn_norm", "ffn_norm")
        model.attention(at)
        model.head_norms(at)
        model.experts(at, count=8, hidden=128)
    return model.end()


def _gemma3(path):
    """Five layers of six see a window of 512 tokens alone."""
    window = {"attention.sliding_window": 512}
    keys = {"feed_forward_length": HIDDEN, **_heads(1), **window}
    model = _File(path, "gemma3", layers=6, **keys)
    model.tokens()
    model.embeddings(output=False)
    for at in range(model.layers):
        model.norms(at, "attn_norm", "post_attention_norm", "ffn_norm")
        model.norms(at, "post_ffw_norm")
        model.attention(at, kv_heads=1)
        model.head_norms(at)
        model.feed_forward(at)
    return model.end()


def _gptoss(path):
    """A window in every other layer, attention sinks, a mixture of experts."""
    experts = {"expert_count": 4, "expert_used_count": 2}
    experts |= {"expert_feed_forward_length": 128, "attention.sliding_window": 128}
    keys = {"feed_forward_length": HIDDEN, **_heads(2), **experts}
    model = _File(path, "gpt-oss", **keys)
    model.tokens()
    model.embeddings()
    for at in range(model.layers):
        model.norms(at, "attn_norm", "post_attention_norm")
        model.attention(at)
        model.biases(at, key=0.5)
        model.fill(f"blk.{at}.attn_output.bias", model.width, value=0.0)
        model.noise(f"blk.{at}.attn_sinks.weight", HEADS)
        model.experts(at, count=4, hidden=128)
        block = f"blk.{at}.ffn"
        model.fill(f"{block}_gate_inp.bias", 4, value=0.0)
        model.fill(f"{block}_gate_exps.bias", 128, 4, value=0.0)
        model.fill(f"{block}_up_exps.bias", 128, 4, value=0.0)
        model.fill(f"{block}_down_exps.bias", model.width, 4, value=0.0)
    return model.end()


def _lfm2(path):
    """A hybrid: two layers of short convolutions, two of attention."""
    kv_heads = [0, 0, 2, 2]
    keys = {"feed_forward_length": HIDDEN, "shortconv.l_cache": 3}
    keys |= {"attention.head_count": HEADS, "attention.head_count_kv": kv_heads}
    keys |= {"rope.dimension_count": HEAD, "rope.freq_base": 500_000.0}
    model = _File(path, "lfm2", **keys)
    model.tokens()
    model.embeddings(output=False, norm="token_embd_norm")
    for at, heads in enumerate(kv_heads):
        model.norms(at, "attn_norm", "ffn_norm")
        model.feed_forward(at)
        if heads:
            model.attention(at, kv_heads=heads)
            model.head_norms(at)
        else:
            block = f"blk.{at}.shortconv"
            model.matrix(f"{block}.conv", 3, model.width, dtype=np.float32)
            model.matrix(f"{block}.in_proj", model.width, 3 * model.width)
            model.matrix(f"{block}.out_proj", model.width, model.width)
    return model.end()


def _qwen35(path):
    """A hybrid: three layers of gated delta nets, one of attention."""
    groups, values, kernel = 2, 4, 4
    inner = HEAD * values
    states = {"ssm.conv_kernel": kernel, "ssm.inner_size": inner}
    states |= {"ssm.state_size": HEAD, "ssm.time_step_rank": values}
    states |= {"ssm.group_count": groups, "full_attention_interval": 4}
    states |= {"rope.dimension_sections": [16, 8, 8, 0]}
    keys = {"feed_forward_length": HIDDEN, **_heads(2), **states}
    model = _File(path, "qwen35", **keys)
    model.tokens()
    model.embeddings()
    for at in range(model.layers):
        model.norms(at, "attn_norm", "post_attention_norm")
        model.feed_forward(at)
        if (at + 1) % 4 == 0:
            model.attention(at, queries=2)
            model.head_norms(at)
        else:
            _delta_net(model, at, HEAD * groups * 2 + inner, inner, values, kernel)
    return model.end()


def _delta_net(model, at, convolved, inner, values, kernel):
    """A layer that keeps a state of fixed size."""
    block, width = f"blk.{at}", model.width
    model.matrix(f"{block}.attn_qkv", width, convolved)
    model.matrix(f"{block}.attn_gate", width, inner)
    model.matrix(f"{block}.ssm_conv1d", kernel, convolved, dtype=np.float32)
    model.fill(f"{block}.ssm_dt.bias", values, value=0.1)
    model.fill(f"{block}.ssm_a", values, value=-0.5)
    model.matrix(f"{block}.ssm_beta", width, values)
    model.matrix(f"{block}.ssm_alpha", width, values)
    model.fill(f"{block}.ssm_norm.weight", HEAD)
    model.matrix(f"{block}.ssm_out", inner, width)


def _mamba2(path):
    """A state of fixed size in every layer, and no cache of K and V."""
    inner, state, ranks, kernel = 512, 64, 8, 4
    keys = {"ssm.conv_kernel": kernel, "ssm.inner_size": inner}
    keys |= {"ssm.state_size": state, "ssm.time_step_rank": ranks}
    keys |= {"ssm.group_count": 1, "attention.head_count": 0, "feed_forward_length": 0}
    model = _File(path, "mamba2", **keys)
    model.tokens()
    model.embeddings()
    convolved = inner + 2 * state
    for at in range(model.layers):
        block = f"blk.{at}"
        model.norms(at, "attn_norm")
        model.matrix(f"{block}.ssm_in", model.width, inner + convolved + ranks)
        model.matrix(f"{block}.ssm_conv1d", kernel, convolved, dtype=np.float32)
        model.fill(f"{block}.ssm_conv1d.bias", convolved, value=0.0)
        model.fill(f"{block}.ssm_dt.bias", ranks, value=0.1)
        model.fill(f"{block}.ssm_a", 1, ranks, value=-0.5)
        model.fill(f"{block}.ssm_d", 1, ranks)
        model.fill(f"{block}.ssm_norm.weight", inner, 1)
        model.matrix(f"{block}.ssm_out", inner, model.width)
    return model.end()


def _deepseek2(path, *, latent):
    """
    Attention by compressed K and V; *latent* (MLA) caches them as they are.

    Without it the cache holds K with heads of 192 and V with heads of 128.
    """
    turned, plain, value = (32, 64, 64) if latent else (32, 160, 128)
    lengths = {"attention.key_length": plain + turned, "attention.value_length": value}
    if latent:
        lengths |= {f"{key}_mla": length for key, length in lengths.items()}
        lengths["attention.key_length"] = KV_RANK + turned
        lengths["attention.value_length"] = KV_RANK
    keys = {**_heads(1 if latent else HEADS), **lengths}
    keys |= {"rope.dimension_count": turned, "vocab_size": _token_count()}
    keys |= {"attention.q_lora_rank": QUERY_RANK, "attention.kv_lora_rank": KV_RANK}
    keys |= {"feed_forward_length": HIDDEN, "leading_dense_block_count": 1}
    keys |= {"expert_count": 4, "expert_used_count": 2, "expert_shared_count": 1}
    keys |= {"expert_feed_forward_length": 128, "expert_weights_scale": 1.0}
    model = _File(path, "deepseek2", **keys)
    model.tokens()
    model.embeddings()
    for at in range(model.layers):
        _compressed(model, at, turned, plain, value, latent=latent)
        model.norms(at, "ffn_norm")
        if at < 1:
            model.feed_forward(at)
        else:
            model.experts(at, count=4, hidden=128)
            model.feed_forward(at, hidden=128, suffix="_shexp")
    return model.end()


def _compressed(model, at, turned, plain, value, *, latent):
    block, sharp = f"blk.{at}.attn", 3 / QUERY_RANK**0.5
    model.norms(at, "attn_norm")
    model.fill(f"{block}_q_a_norm.weight", QUERY_RANK)
    model.fill(f"{block}_kv_a_norm.weight", KV_RANK)
    model.matrix(f"{block}_q_a", model.width, QUERY_RANK)
    queries = HEADS * (plain + turned)
    model.matrix(f"{block}_q_b", QUERY_RANK, queries, scale=sharp)
    model.matrix(f"{block}_kv_a_mqa", model.width, KV_RANK + turned)
    if latent:
        model.matrix(f"{block}_k_b", plain, KV_RANK, HEADS)
        model.matrix(f"{block}_v_b", KV_RANK, value, HEADS)
    else:
        model.matrix(f"{block}_kv_b", KV_RANK, HEADS * (plain + value))
    model.matrix(f"{block}_output", HEADS * value, model.width)


def _bert(path):
    """An encoder: every token sees every other, and nothing is kept."""
    context = 2048
    keys = {"attention.head_count": HEADS, "attention.causal": False}
    keys |= {"attention.layer_norm_epsilon": 1e-5, "feed_forward_length": HIDDEN}
    keys |= {"pooling_type": int(gguf.PoolingType.MEAN)}
    model = _File(path, "bert", context=context, **keys)
    model.tokens(template=False)
    model.file.add_token_type_count(2)
    width = model.width
    model.matrix("token_embd", width, _token_count(), scale=1.0)
    model.matrix("token_types", width, 2, dtype=np.float32)
    model.matrix("position_embd", width, context, dtype=np.float32)
    model.fill("token_embd_norm.weight", width)
    model.fill("token_embd_norm.bias", width, value=0.0)
    for at in range(model.layers):
        block = f"blk.{at}"
        model.attention(at, kv_heads=HEADS)
        model.norms(at, "attn_output_norm", "layer_output_norm")
        model.fill(f"{block}.attn_output_norm.bias", width, value=0.0)
        model.fill(f"{block}.layer_output_norm.bias", width, value=0.0)
        model.matrix(f"{block}.ffn_up", width, HIDDEN)
        model.matrix(f"{block}.ffn_down", HIDDEN, width)
    return model.end()


_ZOO: dict[str, Callable[[Path], Path]] = {
    "llama": _llama,
    "micro": functools.partial(
        _llama, layers=2, heads=2, kv_heads=1, hidden=128, context=4096
    ),
    "notemplate": functools.partial(_llama, template=False),
    "llama80": functools.partial(_llama, size=80),
    "qwen2bias": _qwen2,
    "qwen3moe": _qwen3moe,
    "gemma3": _gemma3,
    "gptoss": _gptoss,
    "lfm2": _lfm2,
    "qwen35": _qwen35,
    "mamba2": _mamba2,
    "deepseek2": functools.partial(_deepseek2, latent=True),
    "deepseek2old": functools.partial(_deepseek2, latent=False),
    "bert": _bert,
}

NAMES = tuple(_ZOO)
