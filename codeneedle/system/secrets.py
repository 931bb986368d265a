"""
Masks the secrets that programs and servers were handed, and tells what looks like one
in variables and command lines: such are neither inherited nor stored.

What such a program writes is masked before it is stored or shown: `mask_text` is the
one function for that. Known secrets are kept as long as the process runs, as the runner
of GitHub Actions keeps them (``::add-mask::``): an error is stored after its server
ended.
"""

import contextlib
import json
import re
import string
from collections.abc import Iterator, Mapping
from typing import Any

from codeneedle.errors import CodeneedleError

SHORTEST = 4
"""Characters of a secret that is masked in what a program tells."""

SHORTEST_IN_ANSWERS = 8
"""The same in what is measured, where a placeholder such as ``none`` may be a word."""

LEAST_PART = 4
"""Characters of the beginning of a secret that are masked where a text is cut."""

_known: dict[str, re.Pattern[str]] = {}
_PASSWORD = re.compile(r"://[^\s/@:]*:([^\s/@]+)@")


def register_secrets_to_mask(*secrets: str) -> None:
    """Mask *secrets* from now on; those below `SHORTEST` characters are words."""
    for secret in secrets:
        bare = "".join(secret.split())
        if len(bare) >= SHORTEST and bare not in _known:
            # A program may break it by line ends, which may be blanks by now.
            _known[bare] = re.compile(r"\s*".join(map(re.escape, bare)))


def forget_secrets() -> None:
    """Know none any more."""
    _known.clear()


def secrets_of(variables: Mapping[str, str]) -> list[str]:
    """Values of *variables* that are or hold secrets; passwords in URLs, too."""
    found = []
    for name, value in variables.items():
        if is_secret(name) or secret_name_in(f"{name}={value}"):
            found += [value, *_PASSWORD.findall(value)]
    return found


def mask_text(text: str, *, shortest: int = SHORTEST) -> str:
    """
    *text* with stars for the known secrets of *shortest* characters or more.

    Also for one that white space breaks, and for a part of one where the text begins,
    ends or is cut (``…``). It keeps its length: places in it stay valid.
    """
    for secret, pattern in list(_known.items()):
        if len(secret) >= shortest:
            text = pattern.sub(_stars_for, text)
            text = _mask_secret_parts(text, secret)
    return text


def _stars_for(found: re.Match[str]) -> str:
    """Stars for what was found; white space stays."""
    return re.sub(r"\S", "*", found[0])


def _mask_secret_parts(text: str, secret: str) -> str:
    """*text* with stars for parts of *secret* where it begins, ends or is cut."""
    for size in range(len(secret) - 1, LEAST_PART - 1, -1):
        start, stars = secret[:size], "*" * size
        if text.endswith(start):
            text = text[:-size] + stars
        if "…" in text:
            text = text.replace(f"{start}…", f"{stars}…")
        if size >= SHORTEST_IN_ANSWERS and text.startswith(secret[-size:]):
            text = stars + text[size:]
    return text


def masked_values(value: Any) -> Any:
    """
    The JSON *value* with all of its texts masked, the names in it included.

    Only secrets of `SHORTEST_IN_ANSWERS` characters or more.
    """
    if isinstance(value, str):
        return mask_text(value, shortest=SHORTEST_IN_ANSWERS)
    if isinstance(value, dict):
        return {
            masked_values(key): masked_values(member) for key, member in value.items()
        }
    is_list = isinstance(value, (list, tuple))
    return [masked_values(element) for element in value] if is_list else value


_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|.)")
_LETTERS = (string.ascii_letters + string.digits).encode()
_OTHERS = bytes(set(range(256)) - {*_LETTERS})


def has_known_secret(data: bytes) -> bool:
    """
    Whether a known secret may be in the JSON *data*: its letters and digits are.

    Those shorter than `SHORTEST_IN_ANSWERS` are not looked for.
    """
    if not _known:
        return False
    letters = _letters_and_digits(data)
    return any(
        _letters_and_digits(json.dumps(secret).encode()) in letters
        for secret in list(_known)
        if len(secret) >= SHORTEST_IN_ANSWERS
    )


def _letters_and_digits(data: bytes) -> bytes:
    """Letters and digits of the JSON *data*, without its escapes."""
    return _ESCAPE.sub(b"", data).translate(None, _OTHERS)


@contextlib.contextmanager
def masking_errors() -> Iterator[None]:
    """Mask known secrets in what an error of a block tells."""
    try:
        yield
    except CodeneedleError as error:
        mask_error(error)
        raise


def mask_error(error: CodeneedleError) -> None:
    """Mask known secrets in all that *error* tells."""
    error.args = tuple(
        mask_text(arg) if isinstance(arg, str) else arg for arg in error.args
    )
    for name in ("hint", "kind", "message"):
        if isinstance(text := getattr(error, name, None), str):
            setattr(error, name, mask_text(text))
    if excerpt := getattr(error, "log_excerpt", ()):
        error.log_excerpt = tuple(map(mask_text, excerpt))  # type: ignore[attr-defined]


# --- what looks like a secret


SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH")
"""Words in a name for which it is dropped all the same: ``VK_ACCESS_TOKEN``."""


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


def secret_name_in(text: str) -> str:
    """The name of what looks like a secret in *text*; empty if nothing does."""
    if _USER_IN_URL.search(text):
        return "http://...@"
    settings = (setting.groupdict() for setting in _SETTING.finditer(text))
    return next(
        (setting["name"] for setting in settings if _holds_secret(**setting)), ""
    )


def _holds_secret(*, name: str, sign: str, value: str) -> bool:
    """Whether a setting holds a secret: by its name, unless its value is none."""
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
