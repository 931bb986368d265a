"""
What child processes inherit of our environment; recognizes secrets in variables and
command lines, which are neither inherited nor stored.
"""

import os
import re

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


def inherited() -> dict[str, str]:
    """
    The variables of ours that a child may inherit.

    A list of what is allowed, so that variables which programs read as arguments
    (``LLAMA_ARG_*``), proxies and tokens are not passed on.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or (name.startswith(KEPT_PREFIXES) and not is_secret(name))
    }


def is_secret(name: str) -> bool:
    """Whether a variable of that *name* most likely holds a secret."""
    return any(word in name.upper() for word in SECRET_WORDS)


_SETTING = re.compile(
    r"""(?<![\w./~-])(?=(?P<name>-{0,2}[A-Za-z_][\w.-]*)["']?"""
    r"""(?P<sign>\s*[=:]\s*|\s+)["']?"""
    r"""(?P<value>[^\s"',;}]{1,256}))"""
)
"""
A name with what may be its value, also inside of a value: ``--env=NAME=VALUE``,
``--name value``, ``export NAME=VALUE;``, ``{"name": "value"}``, ``Name: value``.
The value ends after 256 characters, so that a long text takes no quadratic time.
"""

_SECRET_NAME = re.compile(
    r"(key|token|secret|credential)s?$|passw(or)?d$|passphrase$|pass$|pwd$"
    r"|auth(orization)?$|bearer$|[-_]pat$|^-+hft$",
    re.IGNORECASE,
)
"""Names of secrets; ``--ssl-keyfile`` and ``--tokenizer`` are none."""

_TOKEN_OF_TEXT = re.compile(
    r"(bos|eos|pad|unk|sep|cls|mask|stop|start|end|image|video|audio|special|think)"
    r"[-_]?tokens?$",
    re.IGNORECASE,
)
_COUNT = re.compile(r"\d[\d.]{0,8}[kKmM]?")
_COUNTED = re.compile(r"tokens$|(^|[-_.])(max|min|num|n|new)[-_.]", re.IGNORECASE)
"""Names of numbers of tokens; that of ``--token`` and ``HF_TOKEN`` is a secret."""

_NO_SECRET = re.compile(
    r"\$(\{\w+\}?|[A-Z_][A-Z0-9_]*)|true|false|null|none|auto|bool:(true|false)|int:\d+"
)
"""Values that are none: variables of a shell, words of JSON and of GGUF."""

_OPTION = re.compile(r"--?[A-Za-z][\w-]*(=.*)?|-\d+")
"""Behind a blank, the next option, or a number below 0."""

_USER_IN_URL = re.compile(r"\w://[^\s/@]*@")


def secret_in(text: str) -> str:
    """The name of what looks like a secret in *text*; empty if nothing does."""
    if _USER_IN_URL.search(text):
        return "http://...@"
    settings = (setting.groupdict() for setting in _SETTING.finditer(text))
    return next((each["name"] for each in settings if _holds_secret(**each)), "")


def _holds_secret(*, name: str, sign: str, value: str) -> bool:
    is_variable = "=" in sign and name.isupper() and is_secret(name)
    if not (is_variable or _SECRET_NAME.search(name)) or _NO_SECRET.fullmatch(value):
        return False
    if sign.isspace() and _OPTION.fullmatch(value):
        return False
    if name.lower().rstrip("s").endswith("token"):
        is_count = _COUNT.fullmatch(value) and _COUNTED.search(name)
        return not (is_count or _TOKEN_OF_TEXT.search(name))
    if sign.isspace():  # words of a text, but for an option and a header's scheme
        return name.startswith("-") or name.lower() == "bearer"
    return ":" not in sign or not value.startswith("/")  # a volume of a container
