"""
Models by the names that people know them by: what other programs keep on this machine,
the cache of Hugging Face, the folder of LM Studio, and the store of Ollama.

Nothing is fetched and nothing is written here, and no name becomes a path: what is
asked for is looked up among what there is.
"""

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from codeneedle.errors import BadInput, WeightsUnusable, did_you_mean
from codeneedle.models import pretrained
from codeneedle.models.kinds import has_non_model_name
from codeneedle.models.weights import PART_NAME, UNFINISHED
from codeneedle.system.files import exists, open_regular, reason_of
from codeneedle.text import size_text as size_phrase

HUGGING_FACE, LM_STUDIO, OLLAMA = "Hugging Face", "LM Studio", "Ollama"

MOST_MANIFEST_BYTES = 1 << 20
"""Of a manifest, a pointer or a list of settings; they have some kilobytes."""

MOST_DEPTH = 4
"""Folders below that of a model in which its files are searched."""

_TAG = re.compile(r"[-.]([A-Z0-9_]+)(?:-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
_NAME = re.compile(r"[\w. -]+(?:/[\w. -]+)*(?::[\w.-]+)?")
_REPO = re.compile(r"models--(?P<repo>[\w.-]+)")
_DIGEST = re.compile(r"sha256[:-](?P<digits>[0-9a-f]{64})")
_LAYER = "application/vnd.ollama.image."
_OLLAMAS_OWN = ("registry.ollama.ai", "library")
"""What Ollama leaves out of names; models of others begin with host or user."""

_OFFERED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A model in a store: a file, the first part of a split one, or a folder."""

    store: str  # who keeps it: `HUGGING_FACE`, `LM_STUDIO` or `OLLAMA`
    name: str  # ``org/repo``, or ``llama3.2:3b``
    file: str = ""  # path below *name*; empty where *name* says all
    path: Path  # where it lies
    size_bytes: int = 0  # of all its parts
    is_folder: bool = False  # whether it is a folder, which MLX reads
    problem: str = ""  # why it cannot be used, as a phrase; empty if it may

    @property
    def quantization_tag(self) -> str:
        """Its quantization by its name: ``Q4_K_M``; empty if that tells none."""
        match = _TAG.search(self.file)
        return match[1].upper() if match else ""

    def is_named_by(self, text: str) -> bool:
        """Whether *text* names it, alone or beside others: by name, file or tag."""
        if text in {self.name, f"{self.name}/{self.file}"}:
            return True
        name, _, tag = text.rpartition(":")
        if self.store == OLLAMA:
            return text == self.name.rpartition(":")[0]
        pattern = rf"(?:^|[-./]){re.escape(tag)}[.-]"
        is_tagged = bool(tag) and re.search(pattern, self.file, re.IGNORECASE)
        return name == self.name and bool(is_tagged)


# --- what there is


def stored_models() -> Iterator[StoredModel]:
    """
    Everything in all stores, and what was fetched by name; models that cannot be used
    included. No file is read but manifests.
    """
    for folder in hugging_face_folders():
        yield from _models_of_hugging_face(folder)
    for folder in lm_studio_folders():
        yield from _models_of_lm_studio(folder)
    for folder in ollama_folders():
        yield from _models_of_ollama(folder)
    for model in pretrained.MODELS.values():
        if model.is_fetched:
            kept = StoredModel(store="codeneedle", name=model.name, path=model.path)
            yield replace(kept, size_bytes=model.size_bytes)


def shortest_names(models: Sequence[StoredModel]) -> dict[StoredModel, str]:
    """The shortest word for each of *models* that ``--model`` takes for it alone."""
    by_name: dict[tuple[str, str], list[StoredModel]] = {}
    for model in models:
        by_name.setdefault((model.store, model.name), []).append(model)
    chosen = {}
    for group in by_name.values():
        for model in group:
            tries = (
                model.name,
                f"{model.name}:{model.quantization_tag}"
                if model.quantization_tag
                else "",
            )
            chosen[model] = next(
                (
                    word
                    for word in filter(None, tries)
                    if [model] == [named for named in group if named.is_named_by(word)]
                ),
                f"{model.name}/{model.file}".rstrip("/"),
            )
    return chosen


def hugging_face_folders() -> tuple[Path, ...]:
    """
    Caches in the layout of the hub.

    That of llama.cpp (``common/hf-cache.cpp``) and that of ``hf download``, which knows
    no ``LLAMA_CACHE``.
    """
    places = (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    )
    set_places = (Path(os.environ[v]) / p for v, p in places if os.environ.get(v))
    usual = next(set_places, _home_folder() / ".cache/huggingface/hub")
    own = os.environ.get("LLAMA_CACHE")
    return tuple(dict.fromkeys((*((Path(own),) if own else ()), usual)))


def lm_studio_folders() -> tuple[Path, ...]:
    """Where LM Studio keeps models: as its settings say, else below its home."""
    pointer = _read_small_text_or_empty(
        _home_folder() / ".lmstudio-home-pointer"
    ).strip()
    home = Path(pointer) if pointer else _home_folder() / ".lmstudio"
    settings = _parse_json_object_or_empty(
        _read_small_text_or_empty(home / "settings.json")
    )
    chosen = settings.get("downloadsFolder")
    usual = (home / "models", _home_folder() / ".cache/lm-studio/models")
    return (Path(chosen),) if isinstance(chosen, str) and chosen else usual


def ollama_folders() -> tuple[Path, ...]:
    """Where Ollama keeps models: of its service on Linux, too, which is a user."""
    chosen = os.environ.get("OLLAMA_MODELS")
    usual = (
        _home_folder() / ".ollama/models",
        Path("/usr/share/ollama/.ollama/models"),
    )
    return (Path(chosen),) if chosen else usual


def _home_folder() -> Path:
    """The home folder; ``~`` itself where there is none."""
    # Path.home would raise where there is none.
    return Path(os.path.expanduser("~"))  # noqa: PTH111


def _models_of_hugging_face(cache: Path) -> Iterator[StoredModel]:
    """
    Models in a *cache* of the hub, by repo.

    Files of the first snapshot that has any; folders for MLX of those before.
    """
    for folder in _folders_in(cache):
        match = _REPO.fullmatch(folder.name)
        if match is None:
            continue
        name = match["repo"].replace("--", "/")
        for snapshot in _snapshots_main_first(folder):
            found = [*_gguf_models_below(snapshot, HUGGING_FACE, name, within=cache)]
            yield from found or _mlx_model_in(snapshot, HUGGING_FACE, name)
            if found:
                break


def _snapshots_main_first(repo: Path) -> list[Path]:
    """The snapshots of a *repo*: that of ``main`` first, then the newest."""
    refs = [_read_small_text_or_empty(repo / "refs/main").strip()]
    others = sorted(
        _folders_in(repo / "snapshots"), key=_change_time_or_zero, reverse=True
    )
    return sorted(others, key=lambda snapshot: snapshot.name not in refs)


def _models_of_lm_studio(folder: Path) -> Iterator[StoredModel]:
    """Models below *folder*: files, or else a folder for MLX."""
    for publisher in _folders_in(folder):
        for model in _folders_in(publisher):
            name = f"{publisher.name}/{model.name}"
            found = [*_gguf_models_below(model, LM_STUDIO, name, within=folder)]
            yield from found or _mlx_model_in(model, LM_STUDIO, name)


def _models_of_ollama(folder: Path) -> Iterator[StoredModel]:
    """Models of the manifests below *folder*, named as Ollama names them."""
    manifests = folder / "manifests"
    for path in _files_in(manifests, depth=MOST_DEPTH):
        *place, tag = path.relative_to(manifests).parts
        own = next(n for n in (2, 1, 0) if tuple(place[:n]) == _OLLAMAS_OWN[:n])
        yield _ollama_model(f"{'/'.join(place[own:])}:{tag}", path, folder)


def _ollama_model(name: str, manifest: Path, folder: Path) -> StoredModel:
    """The model of a *manifest*, which names its file by its hash."""
    missing = StoredModel(store=OLLAMA, name=name, path=manifest)
    text = _read_small_text_or_empty(manifest)
    layers = _parse_json_object_or_empty(text).get("layers") if text else None
    if not isinstance(layers, list):
        return replace(missing, problem="its manifest is damaged")
    kinds: dict[str, list[str]] = {}
    for layer in layers:
        if isinstance(layer, dict):
            kind = str(layer.get("mediaType")).removeprefix(_LAYER)
            kinds.setdefault(kind, []).append(str(layer.get("digest")))
    digests = [_DIGEST.fullmatch(digest) for digest in kinds.get("model", [])]
    if len(digests) != 1:
        count = f"{len(digests)} files of weights" if digests else "no GGUF file"
        return replace(missing, problem=f"its manifest names {count}")
    if not digests[0]:
        return replace(missing, problem="its manifest names no file by a hash")
    if "adapter" in kinds:
        return replace(missing, problem="it is a model with an adapter (LoRA)")
    blob = folder / "blobs" / f"sha256-{digests[0]['digits']}"
    return _with_size_or_problem(replace(missing, path=blob), (blob,), within=folder)


def _gguf_models_below(
    folder: Path, store: str, name: str, *, within: Path
) -> Iterator[StoredModel]:
    """The GGUF files of models below *folder*, one for each model."""
    by_stem: dict[str, list[Path]] = {}
    for path in _files_in(folder, depth=MOST_DEPTH, ending=".gguf"):
        if has_non_model_name(path.name):
            continue
        part = PART_NAME.fullmatch(path.name)
        stem = str(path.with_name(part["stem"])) if part else str(path)
        by_stem.setdefault(stem, []).append(path)
    for parts in by_stem.values():
        first = min(parts)
        model = StoredModel(
            store=store,
            name=name,
            file=first.relative_to(folder).as_posix(),
            path=first,
        )
        yield _with_size_or_problem(model, parts, within=within)


def _mlx_model_in(folder: Path, store: str, name: str) -> Iterator[StoredModel]:
    """*folder*, if it is a model for MLX: its size is that of its tensors."""
    tensors = [*_files_in(folder, depth=1, ending=".safetensors")]
    if (folder / "config.json").is_file() and tensors:
        model = StoredModel(store=store, name=name, path=folder, is_folder=True)
        yield replace(model, size_bytes=sum(map(_file_size_or_zero, tensors)))


def _with_size_or_problem(
    model: StoredModel, parts: Iterable[Path], *, within: Path
) -> StoredModel:
    """*model* with the size of its *parts*, or what is wrong with one of them."""
    try:
        inside = within.resolve()
        for part in parts:
            if not part.resolve(strict=True).is_relative_to(inside):
                return replace(
                    model,
                    problem=f"it is a link out of its store, to {part.resolve()}: "
                    "name that file itself",
                )
        return replace(model, size_bytes=sum(part.stat().st_size for part in parts))
    except FileNotFoundError:
        return replace(model, problem=f"its file is missing. {UNFINISHED}")
    except (OSError, RuntimeError) as error:  # RuntimeError: a ring of links
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        return replace(model, problem=f"it cannot be read: {reason}")


def _folders_in(folder: Path) -> list[Path]:
    """The folders in *folder*, by name; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry) for entry in entries if entry.is_dir())
    except OSError:
        return []


def _files_in(folder: Path, *, depth: int, ending: str = "") -> Iterator[Path]:
    """Files and links below *folder*, no links to folders followed, sorted."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            if depth > 1:
                yield from _files_in(Path(entry), depth=depth - 1, ending=ending)
        elif entry.name.lower().endswith(ending):
            yield Path(entry)


def _file_size_or_zero(path: Path) -> int:
    """The size of a file; 0 if it cannot be looked at."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _change_time_or_zero(path: Path) -> float:
    """Time of the last change of *path*; 0 if it cannot be looked at."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read_small_text_or_empty(path: Path) -> str:
    """The text of a small file; empty if it is none, or cannot be read."""
    try:
        with open_regular(path) as file:
            data = file.read(MOST_MANIFEST_BYTES + 1)
    except OSError:
        return ""
    is_small = len(data) <= MOST_MANIFEST_BYTES
    return data.decode("utf-8", errors="replace") if is_small else ""


def _parse_json_object_or_empty(text: str) -> dict[str, Any]:
    """The JSON object that *text* is; empty if it is none."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


# --- what is asked for


def weights_path_unless_built_in(text: str, *, source: str = "--model") -> Path | None:
    """
    The weights that *text* stands for: a name of `pretrained.NAMES`, one of a model
    that other programs keep (`locate_model`), or else a path.

    Args:
        text: What the user gave. A file that is called like a model needs ``./``.
        source: Where, for the error.

    Returns:
        A path, at which nothing may lie yet, or that is a name which the engine looks
        up; None for the built-in model.

    Raises:
        BadInput: If it is no name, and neither is nor looks like a path.
    """
    path = pretrained.path_unless_built_in(text)
    is_path = path and (
        os.sep in text or path.suffix.lower() == ".gguf" or exists(path)
    )
    if text in pretrained.NAMES or is_path or (":" in text and is_model_name(text)):
        return path
    kept = [model.name.removesuffix(":latest") for model in stored_models()]
    if any(name.partition(":")[0] == text for name in kept):
        return path
    known = (*pretrained.NAMES, *kept)
    raise BadInput(
        source=f"{source} {text}",
        reason="is neither the name of a model nor a file",
        hint=f"{did_you_mean(text, known)} Or give the path of a GGUF file, or a name "
        "of one that is here: codeneedle weights",
    )


def is_model_name_without_file(path: Path) -> bool:
    """
    Whether *path* is the name of a model in a store: nothing lies there.

    A link that leads nowhere, or to itself, does.
    """
    return is_model_name(str(path)) and not os.path.lexists(path)


def is_model_name(text: str) -> bool:
    """Whether *text* may be the name of a model in a store, and is no path."""
    parts = text.partition(":")[0].split("/")
    is_file = text.lower().endswith(".gguf") and len(parts) < len(("org", "repo", "x"))
    is_safe = all(part.strip(". ") for part in parts)
    return bool(_NAME.fullmatch(text)) and is_safe and not is_file


def locate_model(text: str, *, folder: bool = False) -> Path:
    """
    Where the model lies that *text* names.

    A name in its own case wins, and of several stores the first.

    Args:
        text: A name; see `is_model_name`.
        folder: Whether a folder for MLX is wanted, not a GGUF file.

    Raises:
        WeightsUnusable: If there is none of that name, several are, or it is unusable.
    """
    named = [model for model in stored_models() if model.is_named_by(text)]
    if not named:
        lowered = text.lower()
        named = [m for m in stored_models() if _in_lower_case(m).is_named_by(lowered)]
    fitting = [model for model in named if model.is_folder == folder]
    # The same name in another store is the same model.
    first = [model for model in fitting if model.store == fitting[0].store]
    # Of Ollama, a name without a tag is that of the latest.
    first = [model for model in first if model.name == f"{text}:latest"] or first
    sound = [model for model in first if not model.problem]
    if len(sound) == 1:
        return sound[0].path
    if len(first) > 1 and sound:
        raise _ambiguous_name_error(text, sound)
    if first:
        raise WeightsUnusable(
            path=Path(text),
            reason=f"cannot be used: {first[0].problem}",
            hint=f"Look at {shlex.quote(str(first[0].path))}, or fetch it again.",
        )
    raise (
        _wrong_kind_error(text, named[0])
        if named
        else unknown_model_error(text, folder=folder)
    )


def _in_lower_case(model: StoredModel) -> StoredModel:
    return replace(model, name=model.name.lower(), file=model.file.lower())


def _ambiguous_name_error(text: str, models: Sequence[StoredModel]) -> WeightsUnusable:
    """The error for a name of several models, which offers a word for each."""
    chosen = shortest_names(models)
    offered = [
        f"{chosen[model]} ({size_phrase(model.size_bytes)})"
        for model in models[:_OFFERED]
    ]
    more = f", and {len(models) - _OFFERED} more" if len(models) > _OFFERED else ""
    return WeightsUnusable(
        path=Path(text),
        reason=f"names {len(models)} models in the store of {models[0].store}",
        hint=f"Name one: {', '.join(offered)}{more}.",
    )


def _wrong_kind_error(text: str, model: StoredModel) -> WeightsUnusable:
    """The error for a file where a folder is wanted, or the other way round."""
    if model.is_folder:
        return WeightsUnusable(
            path=Path(text),
            reason="has no GGUF file in its store, but a model as a folder",
            hint="Serve it with --engine mlx, or fetch a GGUF file of it: "
            "llama download -hf ORG/REPO-GGUF",
        )
    return WeightsUnusable(
        path=Path(text),
        reason="is a GGUF file in its store, and no folder",
        hint="Leave --engine out, or fetch the model as a folder: hf download ORG/REPO",
    )


def unknown_model_error(text: str, *, folder: bool = False) -> WeightsUnusable:
    """The error for a name that is in no store, with the command that fetches it."""
    org, _, rest = text.partition("/")
    repo, _, file = rest.partition("/")
    if folder:
        fetch = ["hf", "download", text.partition(":")[0]]
    elif not repo:
        fetch = ["ollama", "pull", text]
    elif file:
        fetch = ["llama", "download", "-hf", f"{org}/{repo}", "-hff", file]
    else:
        fetch = ["llama", "download", "-hf", text]
    return WeightsUnusable(
        path=Path(text),
        reason="is no file here, and in no store of Hugging Face, LM Studio or Ollama",
        hint=f"Fetch it: {shlex.join(fetch)}. What is here: codeneedle weights"
        f"{_unreadable_stores_phrase()}",
    )


def _unreadable_stores_phrase() -> str:
    """Stores that may not be read, in parentheses to end a hint with; or empty."""
    folders = (*hugging_face_folders(), *lm_studio_folders(), *ollama_folders())
    closed = [str(folder) for folder in folders if _is_reading_denied(folder)]
    return f" (not readable for you: {', '.join(closed)})" if closed else ""


def _is_reading_denied(folder: Path) -> bool:
    """Whether *folder* is there and may not be read."""
    try:
        with os.scandir(folder):
            return False
    except PermissionError:
        return True
    except OSError:
        return False
