"""Stores of other programs, with small models in them."""

import hashlib
import json
from pathlib import Path

from gguf_files import SHAPE, gguf_bytes

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def hugging_face(cache: Path, repo: str, *files: str, commit=COMMIT, ref="main"):
    """A *repo* in the hub's layout; returns the folder of its snapshot."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True, exist_ok=True)
    (folder / "blobs").mkdir(exist_ok=True)
    for file in files:
        data = model_bytes(f"{repo} {file} {commit}")
        blob = folder / "blobs" / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        link = snapshot / file
        link.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (2 + file.count("/"))
        link.symlink_to(f"{up}blobs/{blob.name}")
    if ref:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / ref).write_text(commit)
    return snapshot


def lm_studio(models: Path, name: str, *files: str):
    """A model in LM Studio's folder; returns its folder."""
    folder = models / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file).write_bytes(model_bytes(f"{name} {file}"))
    return folder


def ollama(models: Path, place: str, data: bytes = b"", layers=None):
    """A model of Ollama, its manifest at *place*; returns that."""
    data = data or model_bytes(place)
    digest = hashlib.sha256(data).hexdigest()
    (models / "blobs").mkdir(parents=True, exist_ok=True)
    (models / "blobs" / f"sha256-{digest}").write_bytes(data)
    manifest = models / "manifests" / place
    manifest.parent.mkdir(parents=True, exist_ok=True)
    kinds = {"model": f"sha256:{digest}", "template": f"sha256:{'0' * 64}"}
    found = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest}
        for kind, digest in (kinds if layers is None else layers).items()
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": found}))
    return manifest


def model_bytes(name: str, **keys):
    """A small model of that *name*."""
    return gguf_bytes({**SHAPE, "general.name": name, "general.file_type": 15, **keys})
