"""The built-in model as a file: assembled at first use, the same bytes everywhere."""

import contextlib
import hashlib
import tempfile
from pathlib import Path

from codeneedle.cache import VARIABLE, cache_folder
from codeneedle.errors import MachineError

NAME = "needle-nano"
"""As the file's metadata and its name say it."""

SHA256 = "3319a9a0bf681daf76087969b5243a45f66ccc85b576f5fe8a2ec9ed766896b6"
"""Of the assembled file. A test holds it to what is assembled here."""


class CacheNotWritable(MachineError):  # noqa: N818 - named after the fact
    """The folder for what can be made again does not take files."""

    def __init__(self, *, folder: Path, reason: str) -> None:
        super().__init__(
            f"cannot write to the cache folder {folder}: {reason}",
            hint=f"Make room or choose another folder: {VARIABLE}=/some/folder.",
        )


def built_in_model(cache: Path | None = None) -> Path:
    """
    The built-in model's GGUF, made now unless it is there already, whole.

    Args:
        cache: Folder to keep it in; the user's cache folder if None.

    Returns:
        Its path. The name carries the hash of its bytes, so that another version
        of this package never finds it in its place.

    Raises:
        CacheNotWritable: If it can be neither found nor written.
    """
    folder = cache or cache_folder()
    try:
        path = folder / _file_name(SHA256)
        return path if _sha256(path) == SHA256 else _make(folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CacheNotWritable(folder=folder, reason=reason) from error


def _make(folder: Path) -> Path:
    """Assemble the file in *folder*; it gets its name when it is complete."""
    # Only here: numpy takes time and memory that no other start needs.
    from codeneedle.nanogguf import write_gguf

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{NAME}-", dir=folder) as drafts:
        draft = Path(drafts) / "draft.gguf"
        write_gguf(draft)
        path = folder / _file_name(_sha256(draft))
        return draft.replace(path)


def _file_name(sha256: str) -> str:
    return f"{NAME}-{sha256[:12]}.gguf"


def _sha256(path: Path) -> str:
    """Hash of a file's bytes; empty if there is no file."""
    with contextlib.suppress(FileNotFoundError):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""
