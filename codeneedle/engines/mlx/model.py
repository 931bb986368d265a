"""
The model in the child process: caches that are quantized at once or later, what of a
prompt is read again, positions stretched by ``--rope-factor``, and speeds.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import numpy.typing as npt
from mlx import nn
from mlx_lm.models.cache import (
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    can_trim_prompt_cache,
    make_prompt_cache,
    trim_prompt_cache,
)
from mlx_lm.utils import load_model

from codeneedle.cache_types import Pair
from codeneedle.engines.mlx.cache import (
    PLAIN_BITS,
    WORD_BITS,
    Packing,
    SplitKVCache,
    quantize_plain_cache,
)
from codeneedle.engines.mlx.folder import CONFIG, read_json
from codeneedle.engines.mlx.log import LayerCache, Speed
from codeneedle.engines.mlx.settings import MlxSettings

Row = npt.NDArray[np.float32]
"""Log-probabilities of all tokens, natural logarithms."""

PREFILL_STEP = 512
"""Tokens of a prompt that are read at once."""

KEEP = 4
"""First tokens that a cache of bounded size keeps, as of mlx-lm."""

SCORED_STEP = 256
"""Positions whose logits are held at once."""

DTYPES = {"f16": mx.float16, "bf16": mx.bfloat16}
"""Cache types that are not quantized."""

KINDS = (KVCache, QuantizedKVCache, RotatingKVCache, SplitKVCache)
"""Caches of K and V that can be quantized, or are."""

_FACTORED = ("linear", "dynamic", "llama3", "yarn", "deepseek_yarn", "telechat3-yarn")
"""Kinds of rope scaling of mlx-lm that have a factor."""

_NAMES = {mx.float16: "f16", mx.bfloat16: "bf16", mx.float32: "f32"}


def packings(pair: Pair, settings: MlxSettings) -> tuple[Packing, Packing]:
    """How K and V are to be stored; scales take 16 bits on a CPU, too."""
    scales = mx.float16 if settings.compute == "float32" else None
    key, value = (
        Packing(PLAIN_BITS, group, DTYPES[kind])
        if kind in DTYPES
        else Packing(int(kind.removeprefix("kv")), group, scales)
        for kind, group in zip((pair.k, pair.v), settings.group_sizes, strict=True)
    )
    return key, value


@dataclass(slots=True)
class Session:
    """A model and the tokens in its caches."""

    model: Any  # of mlx-lm
    pair: Pair  # types of K and V: ``f16``, ``bf16``, or ``kv`` with the bits
    settings: MlxSettings  # the user's; ``compute`` is not ``auto`` here
    vocabulary: int  # tokens that it knows
    caches: list[Any] = field(default_factory=list)  # one for each layer
    tokens: list[int] = field(default_factory=list)  # what is in them
    reused: int = 0  # of the last prompt, tokens that were in them already
    _is_quantized: bool = field(default=False, init=False)

    @classmethod
    def load(cls, folder: Path, pair: Pair, settings: MlxSettings) -> "Session":
        """
        The model in *folder*, its weights in memory, with empty caches.

        Raises:
            NotImplementedError: If the model does not take the user's rope factor.
        """
        model, config = load_model(
            folder, model_config=_rope_config_changes(folder, settings)
        )
        if settings.rope_factor is not None:
            _refuse_unscaled_rope(model)
        if settings.compute == "float32":
            model.set_dtype(mx.float32)
        mx.eval(model.parameters())
        text = config.get("text_config", config)
        vocabulary = int(text["vocab_size"])
        made = cls(model=model, pair=pair, settings=settings, vocabulary=vocabulary)
        made.clear_caches()
        return made

    def clear_caches(self) -> None:
        """Empty the caches."""
        self.tokens, self._is_quantized = [], False
        self.caches = make_prompt_cache(self.model)
        size = self.settings.max_kv_size
        if size is not None:
            # Not an argument above: most models make their own, and ignore it.
            self.caches = [
                RotatingKVCache(max_size=size, keep=KEEP) if type(c) is KVCache else c
                for c in self.caches
            ]
        self._quantize_when_due()

    def read_and_score_prompt(
        self, prompt: Sequence[int], progress: Callable[[int], None] = lambda _: None
    ) -> Row:
        """
        Read *prompt*, of which a common beginning may be in the caches.

        *progress* is told how many tokens are in them.

        Returns:
            Log-probabilities of the token behind it, shape (vocabulary,).
        """
        self._prefill_caches(prompt[:-1], progress)
        return self.append_and_score_token(prompt[-1])

    def append_and_score_token(self, token: int) -> Row:
        """Append *token*; log-probabilities of all tokens behind it."""
        row: Row = self._append_and_score_tokens([token])[-1]
        return row

    def score(
        self,
        before: Sequence[int],
        tokens: Sequence[int],
        progress: Callable[[int], None] = lambda _: None,
    ) -> Iterator[Row]:
        """
        Log-probabilities at the place of each of *tokens*, behind *before*.

        All but the last of them are in the caches then.
        """
        self._prefill_caches(before[:-1], progress)
        every = [before[-1], *tokens[:-1]]
        for at in range(0, len(every), SCORED_STEP):
            yield from self._append_and_score_tokens(every[at : at + SCORED_STEP])

    def append_to_caches(self, tokens: Sequence[int]) -> None:
        """Read *tokens* behind what is in the caches."""
        for at in range(0, len(tokens), PREFILL_STEP):
            part = list(tokens[at : at + PREFILL_STEP])
            self.model(mx.array(part)[None], cache=self.caches)
            mx.eval([cache.state for cache in self.caches])
            self.tokens += part
            self._quantize_when_due()

    def trim(self, length: int) -> bool:
        """
        Drop all tokens behind the first *length*; False if that cannot be done.

        Nor can it where caches that are quantized would be left with tokens that are
        to stay as they are.
        """
        surplus = len(self.tokens) - length
        is_early = self._is_quantized and length < self.settings.quantized_kv_start
        if surplus and (is_early or not can_trim_prompt_cache(self.caches)):
            return False
        trim_prompt_cache(self.caches, surplus)
        self.tokens = self.tokens[:length]
        return True

    def _prefill_caches(
        self, prompt: Sequence[int], progress: Callable[[int], None]
    ) -> None:
        """
        Have the caches hold *prompt*; what they share with it is not read again.

        All is, if they cannot be trimmed to that. Counts what was `reused`.
        """
        pairs = enumerate(zip(self.tokens, prompt, strict=False))
        shortest = min(len(self.tokens), len(prompt))
        shared = next((at for at, (a, b) in pairs if a != b), shortest)
        if not self.trim(shared):
            self.clear_caches()
        self.reused = len(self.tokens)
        while len(self.tokens) < len(prompt):
            at = len(self.tokens)
            self.append_to_caches(prompt[at : at + PREFILL_STEP])
            progress(len(self.tokens))

    def _append_and_score_tokens(
        self, tokens: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        """
        Append *tokens*; log-probabilities behind each.

        Shape (tokens, vocabulary).
        """
        logits = self.model(mx.array(list(tokens))[None], cache=self.caches)[0]
        logits = logits.astype(mx.float32)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        mx.eval(logprobs, [cache.state for cache in self.caches])
        self.tokens += tokens
        self._quantize_when_due()
        rows: npt.NDArray[np.float32] = np.array(logprobs, copy=False)
        return rows

    def _quantize_when_due(self) -> None:
        """Quantize what is to be, from the beginning of a context or later."""
        if len(self.tokens) >= self.settings.quantized_kv_start:
            self._quantize_caches()

    def _quantize_caches(self) -> None:
        """Quantize the caches, once."""
        if not self._is_quantized:
            key, value = packings(self.pair, self.settings)
            self.caches = [
                quantize_plain_cache(cache, key, value) for cache in self.caches
            ]
            self._is_quantized = True

    def clear_and_inspect_caches(self) -> tuple[LayerCache, ...]:
        """
        What each layer's cache is, read from its arrays, after a token was stored.

        Whatever `quantized_kv_start` says, caches are quantized for this.
        """
        self.clear_caches()
        self.append_to_caches([0])
        self._quantize_caches()
        layers = tuple(_layer_cache(at, cache) for at, cache in enumerate(self.caches))
        self.clear_caches()
        return layers


def _rope_config_changes(folder: Path, settings: MlxSettings) -> dict[str, Any] | None:
    """
    What replaces keys of a ``config.json``: rope scaling by the user's factor, or None.

    YaRN where the model has none of its own, as models of Qwen advise.

    Raises:
        NotImplementedError: If its own kind of scaling has no factor.
    """
    factor, config = settings.rope_factor, read_json(folder / CONFIG)
    if factor is None:
        return None
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else config
    own = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kind = own.get("rope_type") or own.get("type") or "default"
    if kind == "default":
        trained = text.get("max_position_embeddings")
        own = {**own, "original_max_position_embeddings": trained}
        kind = "yarn"
    if kind not in _FACTORED:
        raise NotImplementedError(f"rope scaling of the kind {kind} takes no factor")
    scaling = {**own, "type": kind, "rope_type": kind, "factor": factor}
    changed = {"rope_scaling": scaling}
    return {"text_config": {**text, **changed}} if text is nested else changed


def _refuse_unscaled_rope(model: Any) -> None:
    """
    Stop at a model whose layers take no rope scaling.

    Raises:
        NotImplementedError: If positions of one are as they were.
    """
    ropes = [module for name, module in model.named_modules() if name.endswith("rope")]
    plain = [rope for rope in ropes if type(rope) is nn.RoPE and rope.scale == 1.0]
    if plain or not ropes:
        reason = f"mlx-lm does not support a rope factor for {type(model).__module__}"
        raise NotImplementedError(reason)


def _layer_cache(number: int, cache: Any) -> LayerCache:
    """What the arrays of *cache* show, which has stored a token."""
    name = type(cache).__name__
    if not isinstance(cache, KINDS):
        return LayerCache(layer=number, class_name=name)
    group = getattr(cache, "group_size", 0)
    groups = group if isinstance(group, tuple) else (group, group)
    # Values that are not quantized are no tuple in mlx-lm's own caches.
    k, v = (
        values if isinstance(values, (tuple, list)) else (values,)
        for values in cache.state[:2]
    )
    return LayerCache(
        layer=number,
        class_name=name,
        k=_cache_type_of_arrays(k, groups[0]),
        v=_cache_type_of_arrays(v, groups[1]),
        k_group_size=groups[0] if len(k) > 1 else 0,
        v_group_size=groups[1] if len(v) > 1 else 0,
        k_bytes_per_token=sum(array.nbytes / array.shape[2] for array in k),
        v_bytes_per_token=sum(array.nbytes / array.shape[2] for array in v),
        tokens=getattr(cache, "max_size", None),
    )


def _cache_type_of_arrays(arrays: Sequence[Any], group_size: int) -> str:
    """The type that the arrays show: of packed values, from their widths."""
    if len(arrays) == 1:
        return _NAMES.get(arrays[0].dtype, str(arrays[0].dtype))
    words, scales = arrays[0].shape[-1], arrays[1].shape[-1]
    return f"kv{WORD_BITS * words // (scales * group_size)}"


def measure_speeds(
    session: Session, *, depth: int, prompt: int, generated: int, repetitions: int
) -> Iterator[Speed]:
    """
    Reading and writing speed at *depth*, one repetition after the other.

    The caches hold *depth* tokens before each test, as of llama-bench; a first
    repetition, which is not reported, warms up.

    The peak of memory includes reading the first *depth* tokens.
    """
    text = [1 + at % (session.vocabulary - 1) for at in range(max(depth, prompt, 1))]
    mx.reset_peak_memory()
    for repetition in range(repetitions + 1):
        pp = _measure_tokens_per_second(
            session,
            text[:depth],
            lambda: session.append_to_caches(text[:prompt]),
            prompt,
        )

        def generate_greedily() -> None:
            token = 0
            for _ in range(generated):
                token = int(session.append_and_score_token(token).argmax())

        tg = _measure_tokens_per_second(
            session, text[:depth], generate_greedily, generated
        )
        if repetition:
            yield Speed(pp=pp, tg=tg, peak_bytes=peak_bytes())


def _measure_tokens_per_second(
    session: Session, before: Sequence[int], test: Callable[[], None], count: int
) -> float:
    """
    Speed of *test*, which takes *count* tokens, in tokens per second.

    The caches hold the tokens *before* when it begins; their reading is not timed.
    """
    if len(session.tokens) < len(before) or not session.trim(len(before)):
        session.clear_caches()
        session.append_to_caches(before)
    began = time.perf_counter()
    test()
    return count / (time.perf_counter() - began)


def versions() -> str:
    """Versions of MLX and mlx-lm, and what computes."""
    device = "gpu" if mx.default_device().type == mx.gpu else "cpu"
    return f"mlx {mx.__version__}, mlx-lm {mlx_lm.__version__}, {device}"


def peak_bytes() -> int:
    """The most that MLX has allocated so far."""
    return int(mx.get_peak_memory())


def active_bytes() -> int:
    """What MLX has in use now."""
    return int(mx.get_active_memory())
