"""What a child may inherit of an environment: a white list, and never a secret."""

from collections.abc import Collection, Mapping

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

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH")
"""Words in a name for which it is dropped all the same: ``VK_ACCESS_TOKEN``."""


def clean(
    environment: Mapping[str, str], *, also: Collection[str] = ()
) -> dict[str, str]:
    """
    What a child may inherit of *environment*.

    ``LLAMA_ARG_*`` is not on the list: llama-server reads those as arguments
    that the cell never chose. Proxies and tokens are not on it either.

    Args:
        environment: Usually ``os.environ``.
        also: Further names that this one child needs.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in also or _is_kept(name)
    }


def is_secret(name: str) -> bool:
    """Whether a variable of that *name* most likely holds what nobody should see."""
    return any(word in name.upper() for word in SECRET_WORDS)


def _is_kept(name: str) -> bool:
    if name in KEPT:
        return True
    return name.startswith(KEPT_PREFIXES) and not is_secret(name)
