"""Recognises secrets in command lines, which records must not store."""

import re

from codeneedle.system.processes import is_secret

_SETTING = re.compile(
    r"""(?<![\w./~-])(?=(?P<name>-{0,2}[A-Za-z_][\w.-]*)["']?"""
    r"""(?P<sign>\s*[=:]\s*|\s+)["']?(?P<value>[^\s"',;}]+))"""
)
"""
A name with what may be its value, also within another one's: ``--env=NAME=VALUE``,
``--name value``, ``export NAME=VALUE;``, ``{"name": "value"}``, ``Name: value``.
"""

_SECRET_NAME = re.compile(
    r"(key|token|secret|credential)s?$|passw(or)?d$|passphrase$|pass$|pwd$"
    r"|auth(orization)?$|bearer$|[-_]pat$|^-+hft$",
    re.IGNORECASE,
)
"""Names of secrets, as ``--ssl-keyfile`` and ``--tokenizer`` are none."""

_TOKEN_OF_TEXT = re.compile(
    r"(bos|eos|pad|unk|sep|cls|mask|stop|start|end|image|video|audio|special|think)"
    r"[-_]?tokens?$",
    re.IGNORECASE,
)
_COUNT = re.compile(r"[\d.]+[kKmM]?$")
_NO_SECRET = re.compile(r"[$-]|(bool:|true|false|null|none|auto)")
"""Values that are none: variables, further options, words of JSON."""

_USER_IN_URL = re.compile(r"\w://[^\s/@]*@")


def secret_in(text: str) -> str:
    """The name of what looks like a secret in *text*; empty if nothing does."""
    if _USER_IN_URL.search(text):
        return "http://...@"
    found = (each for each in _SETTING.finditer(text) if _is_secret(**each.groupdict()))
    return next((each["name"] for each in found), "")


def _is_secret(*, name: str, sign: str, value: str) -> bool:
    is_variable = "=" in sign and name.isupper() and is_secret(name)
    if _NO_SECRET.match(value) or not (is_variable or _SECRET_NAME.search(name)):
        return False
    if name.lower().rstrip("s").endswith("token"):
        return not (_COUNT.match(value) or _TOKEN_OF_TEXT.search(name))
    if sign.isspace():  # words of a text, but for an option and a header's scheme
        return name.startswith("-") or name.lower() == "bearer"
    return ":" not in sign or not value.startswith("/")  # a volume of a container
