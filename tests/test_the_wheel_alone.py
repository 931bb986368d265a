"""The wheel alone, in an environment and a folder of its own; shell completion."""

import io
import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import typer
from typer.main import get_command

import codeneedle
from codeneedle.cli.app import app

pytestmark = pytest.mark.slow

ROOT = Path(codeneedle.__file__).parents[1]
SHIPPED = ROOT / "codeneedle" / "sweep" / "files"
ROWS = ROOT / "docs" / "models"


def built(kind, source, into):
    """Builds a *kind* of distribution of the folder *source*; returns its path."""
    subprocess.run(
        (sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)),
        cwd=source,
        check=True,
        capture_output=True,
    )
    (file,) = into.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return file


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel of this checkout."""
    return built("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory):
    """Calls the program of the wheel, in an environment of its own."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home / "venv", with_pip=False, symlinks=True)
    python = home / "venv" / "bin" / "python"
    (packages,) = (home / "venv" / "lib").glob("python*/site-packages")
    shutil.unpack_archive(wheel, packages, "zip")
    # What it depends on lies where the tests run; its own files do not.
    where = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    extra = [entry for entry in sys.path if "site-packages" in entry]
    (packages / "dependencies.pth").write_text("\n".join([*where, *extra]))
    folder = home / "elsewhere"
    folder.mkdir()

    def run(*words):
        return subprocess.run(
            (python, "-P", "-m", "codeneedle", *words),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())

    assert {name.split("/")[0] for name in names} == {
        "codeneedle",
        f"codeneedle-{codeneedle.__version__}.dist-info",
    }
    ours = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "codeneedle").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    rows = {f"codeneedle/report/rows/{each.name}" for each in ROWS.iterdir()}
    assert ours | rows == {name for name in names if name.startswith("codeneedle/")}


def test_sweep_files_are_files_of_the_package():
    assert not [path for path in SHIPPED.iterdir() if path.is_symlink()]
    hidden = {path.name for path in (ROOT / "sweeps").glob("*.toml")}
    assert not hidden & {path.name for path in SHIPPED.iterdir()}


def test_the_source_distribution_builds_the_same_wheel(wheel, tmp_path):
    source = built("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(source) as file:
        # Python 3.11.2, which Debian 12 has, knows no filter.
        known = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        file.extractall(tmp_path, **known)  # noqa: S202 - it was built above
    (folder,) = (path for path in tmp_path.glob("codeneedle-*") if path.is_dir())

    again = built("wheel", folder, tmp_path / "wheel")

    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert {i.filename: i.CRC for i in one.infolist()} == {
            i.filename: i.CRC for i in other.infolist()
        }


@pytest.mark.real
def test_the_wheel_alone_sweeps_and_reports(installed):
    chosen = ("--types", "f16,q8_0", "--same", "--corpus", "random-bodies-mini")
    chosen += ("--context", "4096", "--way", "force", "--functions", "6")

    for words, said in (
        (("--version",), codeneedle.__version__),
        (("llama",), "llama-server"),
        (("doctor",), "Nothing is missing."),
        (("plan", *chosen), "2 finished"),
        (("sweep", *chosen), "No recommendation"),
        (("grid",), "K"),
        (("table",), "q8_0/q8_0"),
        (("verdict",), "q8_0/q8_0"),
        (("heatmap",), ".png"),
        (("page",), "page.html"),
        (("models",), "right tokens lost"),
        (("gen-corpus", "--seed", "42"), "random-bodies"),
    ):
        told = installed(*words)
        assert 0 == told.returncode, (words, told.stderr)
        assert said in told.stdout + told.stderr, words


def test_sweep_files_are_named_without_a_path(installed):
    names = {path.stem for path in SHIPPED.iterdir()}

    told = installed("sweep", "no-such-sweep")

    assert 2 == told.returncode
    assert not [name for name in names if name not in told.stderr]
    told = installed("plan", "corners", "--json", "--context", "4096")
    assert "bf16/bf16" in json.loads(told.stdout)[0]["order"]


def commands_of(group, words=()):
    """Each command below *group*, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, (*words, name))
        else:
            yield (*words, name), command


@pytest.mark.parametrize(
    ("words", "command"),
    list(commands_of(get_command(app))),
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_shells_complete_every_option_of_every_command(monkeypatch, words, command):
    context = typer.Context(command, info_name="x")
    options = {
        flag
        for param in command.get_params(context)
        for flag in (*param.opts, *param.secondary_opts)
        if flag.startswith("--") and not param.hidden
    }

    assert options == completed(monkeypatch, (*words, "--")) - {""}


def completed(monkeypatch, words):
    """What a shell is offered behind ``codeneedle WORDS``."""
    monkeypatch.setenv("_CODENEEDLE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(("codeneedle", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    with pytest.raises(SystemExit):
        get_command(app)(args=[], prog_name="codeneedle")
    return {*out.getvalue().split("\n")}
