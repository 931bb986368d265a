"""What a GGUF file holds that is no language model, by its header."""

from codeneedle.models.gguf import Header

_OF_PICTURES = frozenset(
    {
        *("aura", "chroma", "cosmos", "flux", "flux2", "hidream", "hunyuan_image"),
        *("hyvid", "ltxv", "lumina2", "mochi", "pig", "qwen_image", "sd1", "sd3"),
        *("sdxl", "wan", "z_image"),
    }
)
"""Architectures of models of pictures and videos, as ComfyUI-GGUF writes them."""

_DIFFUSING = frozenset({"dream", "llada", "llada-moe", "rnd1"})
"""``llm_arch_is_diffusion`` of llama.cpp, which makes no KV cache for them."""

_DRAFTING = frozenset({"eagle3", "dflash", "gemma4-assistant"})
"""Heads that draft tokens for another model (``--model-draft``)."""

_OF_TYPE = {
    "adapter": "a LoRA adapter, which is applied to a model (-- --lora FILE)",
    "imatrix": "an importance matrix, which quantizing uses",
    "mmproj": "a projector for images, beside a model (-- --mmproj FILE)",
}
"""By ``general.type``."""

_OF_ARCHITECTURE = {
    "clip": _OF_TYPE["mmproj"],
    "controlvector": "a control vector, which is added to a model "
    "(-- --control-vector FILE)",
    "imatrix": _OF_TYPE["imatrix"],
    "wavtokenizer-dec": "a decoder of sound",
    "whisper": "a model of speech",
    **dict.fromkeys(_OF_PICTURES, "a diffusion model of pictures or videos"),
    **dict.fromkeys(_DIFFUSING, "a diffusion model of text, which has no KV cache"),
    **dict.fromkeys(_DRAFTING, "a head that drafts tokens for another model"),
}
"""By ``general.architecture``."""


_NAMES = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""In names of files beside a model (``gguf_filename_is_model`` of llama.cpp)."""


def has_non_model_name(name: str) -> bool:
    """Whether a file is called like one that lies beside a language model."""
    return any(word in name.lower() for word in _NAMES)


def non_model_kind(*headers: Header) -> str:
    """
    What a file is, as a phrase; empty if it may be a language model.

    Of one in parts, all *headers*, the first of which has the keys.
    """
    values = headers[0].values
    known = _OF_TYPE.get(str(values.get("general.type")))
    known = known or _OF_ARCHITECTURE.get(str(values.get("general.architecture")))
    if known:
        return known
    for prefix, kind in (("adapter.", "adapter"), ("imatrix.", "imatrix")):
        # Older ones have no type.
        if any(name.startswith(prefix) for name in values.keys() | headers[0].lengths):
            return _OF_TYPE[kind]
    if not sum(header.tensors for header in headers):
        has_words = "tokenizer.ggml.tokens" in headers[0].lengths
        return "a vocabulary alone" if has_words else "a header without any weights"
    if "general.architecture" not in values:
        return "weights without an architecture, such as a diffusion model or a VAE"
    return ""
