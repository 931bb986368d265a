"""
Variables of the environment: which of ours programs inherit, and which of these decide
how a backend computes.

A list of what is allowed, so that variables which programs read as arguments
(``LLAMA_ARG_*``), proxies and tokens are not passed on.
"""

import os
from pathlib import Path

from codeneedle.system.contents import content_hash
from codeneedle.system.secrets import is_secret

KEPT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TZ", "LANG", "LANGUAGE"),
        *("TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH"),
        *("DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "DYLD_FRAMEWORK_PATH"),
    }
)
"""Variables that a child inherits, by name: where things are, and in what language."""

KEPT_PREFIXES = (
    *("LC_", "GGML_"),
    *("CUDA_", "NVIDIA_", "HIP_", "HSA_", "ROCR_", "ROCM_"),
    *("VK_", "MESA_", "METAL_", "MTL_", "ONEAPI_", "SYCL_", "ZE_"),
    *("OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_"),
)
"""Variables that a child inherits, by how they start: devices and threads."""

_DECIDING = ("GGML_",)
"""Begin the names of variables by which llama.cpp itself chooses how it computes."""

_NOT_DECIDING = ("VISIBLE_DEVICES", "DEBUG", "LOGGER", "BACKTRACE", "PROFILE")
"""In the names of those that say where it computes, or what it tells."""


def inherited() -> dict[str, str]:
    """The variables of ours that a child may inherit."""
    return {name: value for name, value in os.environ.items() if _is_kept(name)}


def _is_kept(name: str) -> bool:
    return name in KEPT or (name.startswith(KEPT_PREFIXES) and not is_secret(name))


def deciding_variables() -> dict[str, str]:
    """
    What programs inherit that decides how they compute, for the setup of a run.

    Of one that names a file, such as a backend, the hash of its content.
    """
    return {
        name: _content(value)
        for name, value in sorted(inherited().items())
        if name.startswith(_DECIDING)
        if not any(word in name for word in _NOT_DECIDING)
    }


def _content(value: str) -> str:
    """*value*; of the path of a file, the hash of that."""
    is_file = os.sep in value and Path(value).is_file()
    return f"sha256:{content_hash(Path(value))}" if is_file else value
