"""Model files: found, whole, their headers read."""

import mmap
import re
from collections.abc import Sequence
from pathlib import Path

from codeneedle.errors import MachineError, did_you_mean
from codeneedle.files import expanded, identity
from codeneedle.gguf_header import BadHeader, EndsTooSoon, Header, looks_like, parse
from codeneedle.hyperparameters import Weights, weights_of
from codeneedle.keeping import why
from codeneedle.units import size as size_phrase

__all__ = ["Weights", "identity_of", "read_header", "short_name"]

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
"""Names of split models, as ``llama-gguf-split`` makes them and llama.cpp asks."""

_LONGEST_NAME = 100
_OFFERED = 5


class WeightsMissing(MachineError):  # noqa: N818 - named after the fact
    """There is no such file."""

    def __init__(self, *, path: Path, nearby: Sequence[str]) -> None:
        hint = (
            did_you_mean(path.name, nearby)
            if nearby
            else "Give the path of a GGUF file, or leave --model out."
        )
        super().__init__(f"there are no weights at {path}", hint=hint)


class WeightsAreFolder(MachineError):  # noqa: N818 - named after the fact
    """A folder, where a file was asked for."""

    def __init__(self, *, path: Path, inside: Sequence[str]) -> None:
        offered = ", ".join(str(path / name) for name in inside[:_OFFERED])
        super().__init__(
            f"{path} is a folder, not a GGUF file",
            hint=f"In it: {offered}." if inside else "There is no GGUF file in it.",
        )


class WeightsUnreadable(MachineError):  # noqa: N818 - named after the fact
    """The system does not let us read the file."""

    def __init__(self, *, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} cannot be read: {reason}",
            hint=f"Look at it with: ls -l {path}",
        )


class NotGguf(MachineError):  # noqa: N818 - named after the fact
    """Something else than a GGUF file."""

    def __init__(self, *, path: Path, looks_like: str) -> None:
        super().__init__(
            f"{path} is not a GGUF file but {looks_like}",
            hint="Download a .gguf of the model, or convert it with llama.cpp's "
            "convert_hf_to_gguf.py.",
        )


class WeightsTruncated(MachineError):  # noqa: N818 - named after the fact
    """The file ends before its contents do."""

    def __init__(self, *, path: Path, has_bytes: int, needs_bytes: int | None) -> None:
        has, of = size_phrase(has_bytes), ""
        if needs_bytes and has == size_phrase(needs_bytes):
            has, of = f"{has_bytes:,}", f" of {needs_bytes:,} bytes"
        elif needs_bytes:
            of = f" of {size_phrase(needs_bytes)}"
        super().__init__(
            f"{path} is cut short: it has {has}{of}",
            hint="The download did not finish; resume or repeat it.",
        )


class PartMissing(MachineError):  # noqa: N818 - named after the fact
    """A split model, and not all of it."""

    def __init__(self, *, missing: Sequence[Path], count: int) -> None:
        names = ", ".join(path.name for path in missing[:_OFFERED])
        super().__init__(
            f"{len(missing)} of the {count} parts of this model are missing: {names}",
            hint=f"Put all parts into {missing[0].parent}, under their own names.",
        )


class PartForeign(MachineError):  # noqa: N818 - named after the fact
    """A part of another model, or of another splitting of it."""

    def __init__(self, *, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} does not belong to the parts beside it: {reason}",
            hint="Download all parts of one model again, into a folder of their own.",
        )


class WeightsUnsupported(MachineError):  # noqa: N818 - named after the fact
    """A GGUF file, but none that a sweep can run."""

    def __init__(self, *, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} cannot be used: {reason}",
            hint="Give the GGUF file of a language model, made by a current llama.cpp.",
        )


def read_header(path: Path) -> Weights:
    """
    What the model at *path* says of itself, the file found to be whole.

    Args:
        path: A GGUF file, or any part of a split one.

    Raises:
        MachineError: If there is no usable model; each situation has its class.
    """
    files = _parts(_checked(expanded(path)))
    # Before they are read: what changes from here on is noticed.
    told_by = identity_of(files)
    headers = [_header(file) for file in files]
    _refuse_other_kinds(files, headers)
    _refuse_foreign_parts(files, headers)
    size_bytes = sum(map(_size, files))
    try:
        return weights_of(
            headers[0], files=files, size_bytes=size_bytes, identity=told_by
        )
    except BadHeader as error:
        raise WeightsUnsupported(path=files[0], reason=str(error)) from error


def identity_of(files: Sequence[Path]) -> str:
    """
    By what *files* are told from others that may take their place, as one line each.

    Raises:
        WeightsMissing: If one of them is gone.
        WeightsUnreadable: If the system does not let us look.
    """
    try:
        return "\n".join(map(identity, files))
    except FileNotFoundError as error:
        raise WeightsMissing(path=Path(error.filename), nearby=()) from error
    except OSError as error:
        raise WeightsUnreadable(path=files[0], reason=why(error)) from error


def short_name(path: Path) -> str:
    """
    A name for a folder, from the file's: ``qwen3-4b-q4_k_m``.

    Lower case, because some file systems do not tell the cases apart.
    """
    part = _PART.fullmatch(path.name)
    stem = part["stem"] if part else path.name.removesuffix(".gguf")
    slug = re.sub(r"[^a-z0-9._]+", "-", stem.lower()).strip("-._")
    return slug[:_LONGEST_NAME] or "model"


def _checked(path: Path) -> Path:
    try:
        if path.is_dir():
            raise WeightsAreFolder(path=path, inside=_models_in(path))
        if not path.exists():
            raise WeightsMissing(path=path, nearby=_models_in(path.parent))
    except OSError as error:
        raise WeightsUnreadable(path=path, reason=why(error)) from error
    if not path.is_file():
        raise NotGguf(path=path, looks_like="no regular file")
    return path


def _models_in(folder: Path) -> list[str]:
    """Names of the models in *folder*, a split one by its first part."""
    if not folder.is_dir():
        return []
    names = sorted(file.name for file in folder.glob("*.gguf"))
    parts = {name: _PART.fullmatch(name) for name in names}
    return [
        name
        for name, part in parts.items()
        if (part is None or int(part["number"]) == 1) and not name.startswith("mmproj")
    ]


def _parts(path: Path) -> tuple[Path, ...]:
    part = _PART.fullmatch(path.name)
    if part is None or not int(part["count"]):
        return (path,)
    count = int(part["count"])
    parts = tuple(
        path.with_name(f"{part['stem']}-{number:05}-of-{count:05}.gguf")
        for number in range(1, count + 1)
    )
    missing = [each for each in parts if not each.is_file()]
    if missing:
        raise PartMissing(missing=missing, count=count)
    return parts


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise WeightsUnreadable(path=path, reason=why(error)) from error


def _header(path: Path) -> Header:
    size = _size(path)
    if not size:
        raise NotGguf(path=path, looks_like="an empty file")
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            start = bytes(data[:64])
            header = parse(data)
    except OSError as error:
        raise WeightsUnreadable(path=path, reason=why(error)) from error
    except EndsTooSoon as error:
        if start[:4] == b"GGUF":
            raise WeightsTruncated(
                path=path, has_bytes=size, needs_bytes=None
            ) from error
        raise NotGguf(path=path, looks_like=looks_like(start)) from error
    except BadHeader as error:
        if start[:4] == b"GGUF":
            raise WeightsUnsupported(path=path, reason=str(error)) from error
        raise NotGguf(path=path, looks_like=looks_like(start)) from error
    if size < header.needed_bytes:
        raise WeightsTruncated(
            path=path, has_bytes=size, needs_bytes=header.needed_bytes
        )
    return header


def _refuse_other_kinds(files: Sequence[Path], headers: Sequence[Header]) -> None:
    values = headers[0].values
    kind = values.get("general.type", "model")
    if kind == "adapter":
        raise WeightsUnsupported(path=files[0], reason="it is a LoRA adapter")
    if kind == "mmproj" or values.get("general.architecture") == "clip":
        raise WeightsUnsupported(path=files[0], reason="it is a projector for images")
    if not sum(header.tensors for header in headers):
        raise WeightsUnsupported(path=files[0], reason="it holds a vocabulary alone")
    count = values.get("split.count", 0)
    if isinstance(count, int) and count > 1 and len(files) == 1:
        raise WeightsUnsupported(
            path=files[0],
            reason=f"it is one of {count} parts, but was renamed: llama.cpp finds the "
            "others by names such as model-00001-of-00002.gguf",
        )


def _refuse_foreign_parts(files: Sequence[Path], headers: Sequence[Header]) -> None:
    """Hold parts against what each says of its splitting, as far as it does."""
    if len(files) == 1:
        return
    for number, (file, header) in enumerate(zip(files, headers, strict=True)):
        said = header.values.get
        if said("split.no", number) != number:
            reason = f"it says that it is number {said('split.no')} from 0"
            raise PartForeign(path=file, reason=reason)
        if said("split.count", len(files)) != len(files):
            reason = f"it says that there are {said('split.count')} of them"
            raise PartForeign(path=file, reason=reason)
    found = sum(header.tensors for header in headers)
    told = headers[0].values.get("split.tensors.count", found)
    if told != found:
        reason = f"it tells of {told} tensors, together they have {found}"
        raise PartForeign(path=files[0], reason=reason)
