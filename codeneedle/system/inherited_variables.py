"""
Variables of the environment: which of ours programs inherit, and which of these decide
how a backend computes.

A list of what is allowed, so that variables which programs read as arguments
(``LLAMA_ARG_*``), proxies and tokens are not passed on.
"""

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from codeneedle.errors import BadInput
from codeneedle.system.contents import cached_content_hash
from codeneedle.system.secrets import is_secret, secret_name_in

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
    *("CUDA_", "CUBLAS_", "CUBLASLT_", "NVIDIA_", "NCCL_"),
    *("HIP_", "HIPBLASLT_", "HSA_", "ROCR_", "ROCM_", "ROCBLAS_", "TENSILE_", "AMD_"),
    *("GPU_", "MUSA_", "MUBLAS_", "ASCEND_", "ACL_"),
    *("VK_", "MESA_", "RADV_", "ANV_", "INTEL_", "LP_", "METAL_", "MTL_"),
    *("ONEAPI_", "SYCL_", "UR_", "ZE_", "ZES_", "IGC_", "NEO_", "ONEDNN_", "DNNL_"),
    *("OPENCL_", "OCL_", "POCL_", "RUSTICL_", "OPENVINO_", "DAWN_", "ZENDNN_"),
    *("OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "VECLIB_", "TBB_"),
)
"""
Variables that a child inherits, by how they start: devices and threads.

Those that backends of llama.cpp b11434, their runtimes and drivers read.
"""

_DECIDING = ("GGML_",)
"""Begin the names of variables by which llama.cpp itself chooses how it computes."""

_NOT_DECIDING = ("VISIBLE_DEVICES", "DEBUG", "LOGGER", "BACKTRACE", "PROFILE")
"""In the names of those that say where it computes, or what it tells."""


OURS = frozenset({"LLAMA_SERVER", "LLAMA_API_KEY"})
"""Variables of that prefix which we read, or set, ourselves."""

ROTATION = "LLAMA_ATTN_ROT_DISABLE"
"""Set to 1, llama.cpp leaves out the Hadamard rotation of quantized K and V."""

UNROTATED = {ROTATION: "1"}
"""Set for a program of llama.cpp whose cache is not to be rotated."""

REPLACED = {
    ROTATION: "Use --rotation off.",
    "LLAMA_KV_CACHE_LAZY_QUANT": "It would keep f16 until a cache is half full.",
}
"""Variables that no program gets, and what takes their place."""

ARGUMENTS = "LLAMA_ARG_"
"""Begins the names of variables that llama.cpp reads as arguments."""

_SUSPECTS = ("LLAMA_", "LD_PRELOAD", "DYLD_INSERT_LIBRARIES")
"""Begin the names of variables that change what a program computes."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_passed_on: set[str] = set()


def shell_assignment(variable: tuple[str, str]) -> str:
    """A name with its value, as a shell sets it."""
    name, value = variable
    return f"{name}={shlex.quote(value)}"


def command_line_with_variables(
    variables: Mapping[str, str], command: Iterable[str]
) -> str:
    """*command* for a shell, behind the *variables* that it needs."""
    return " ".join((*map(shell_assignment, variables.items()), shlex.join(command)))


def set_passed_on_variables(names: Iterable[str]) -> None:
    """
    Have children inherit the variables of these *names*, too, and no others.

    Raises:
        BadInput: If one is no name, is not set, looks like a secret, or is set by an
            option.
    """
    for name in names:
        reason, hint = _why_not_passed_on(name)
        if reason:
            raise BadInput(source=f"--env {name}", reason=reason, hint=hint)
    _passed_on.clear()
    _passed_on.update(names)


def _why_not_passed_on(name: str) -> tuple[str, str]:
    """Why *name* is not passed on, the first reason, and a hint; else both empty."""
    value = os.environ.get(name, "")
    is_hidden = is_secret(name) or secret_name_in(f"{name}={value}")
    reasons = (
        (
            not _NAME.fullmatch(name),
            ("is no name of a variable", "Give names alone: --env LLAMA_SET_ROWS"),
        ),
        (
            name.startswith(ARGUMENTS),
            ("is an argument of llama-server", "Pass the argument on behind '--'."),
        ),
        (
            name in REPLACED,
            ("would change what cache types are", REPLACED.get(name, "")),
        ),
        (name in OURS, ("is set by codeneedle itself", "Leave it out.")),
        (
            is_hidden,
            ("looks like a secret, which no server of ours needs", "Leave it out."),
        ),
        (name not in os.environ, ("is not set", f"Set it: export {name}=...")),
    )
    return next((reason for is_so, reason in reasons if is_so), ("", ""))


def withheld_variables() -> tuple[str, ...]:
    """Variables of a backend, or of a loader, that are set and not passed on."""
    return tuple(
        name
        for name in sorted(os.environ)
        if name.startswith((*_SUSPECTS, *KEPT_PREFIXES))
        if name not in OURS and name not in REPLACED and not _is_inherited(name)
    )


def inherited_variables() -> dict[str, str]:
    """The variables that a child may inherit, with those that are passed on."""
    return {name: value for name, value in os.environ.items() if _is_inherited(name)}


def _is_inherited(name: str) -> bool:
    """Whether a child inherits the variable *name*."""
    if name in KEPT | _passed_on:
        return True
    return name.startswith(KEPT_PREFIXES) and not is_secret(name)


def setup_variables() -> dict[str, str]:
    """
    What programs inherit that decides how they compute, for the setup of a run.

    Those that the user passes on are among them. Of one that names a file, such as a
    backend, the hash of its content.
    """
    return {
        name: _value_or_hash(value)
        for name, value in sorted(inherited_variables().items())
        if name in _passed_on
        or (name.startswith(_DECIDING) and not any(w in name for w in _NOT_DECIDING))
    }


def _value_or_hash(value: str) -> str:
    """*value*; of the path of a file, the hash of that."""
    is_file = os.sep in value and Path(value).is_file()
    return f"sha256:{cached_content_hash(Path(value))}" if is_file else value
