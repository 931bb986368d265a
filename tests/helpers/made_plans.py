"""Plans on made-up weights and a llama.cpp that is never started."""

from dataclasses import replace
from pathlib import Path

from gguf_files import SHAPE, write_gguf

from codeneedle.engines.llama_cpp import installation
from codeneedle.engines.llama_cpp.installation import ServerFacts, Tools
from codeneedle.models.nano import model
from codeneedle.sweep import plan
from codeneedle.sweep.request import Request

CORPUS = """\
[generate]
functions = 6
value_length = 6
name_length = 5
seed = 7
"""
"""Six functions of twenty lines, some 3,000 bytes."""

TYPES = ("f16", "bf16", "q8_0", "q4_0")
SERVER = ServerFacts(
    version="0.6.0 (build 11434)",
    build=11434,
    k_types=TYPES,
    v_types=TYPES,
    options=frozenset({"--fit"}),
    devices=(),
)
TWO = ("q8_0", "q4_0")


def made_world(folder, monkeypatch, *, server=SERVER, keys=SHAPE):
    """
    A working folder with a corpus called tiny and weights called model.gguf.

    Nothing of llama.cpp is there to be started; what it would say is *server*.
    """
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CODENEEDLE_CACHE", str(folder / "cache"))
    monkeypatch.delenv("LLAMA_ATTN_ROT_DISABLE", raising=False)
    (folder / "corpora").mkdir()
    (folder / "corpora" / "tiny.toml").write_text(CORPUS, encoding="utf-8")
    write_gguf(folder / "model.gguf", keys)
    tools = Tools(
        server=Path("/nowhere/llama-server"), perplexity=None, bench=None, source="PATH"
    )
    monkeypatch.setattr(installation, "find", lambda **_: tools)
    monkeypatch.setattr(installation, "ask", lambda _: server)
    monkeypatch.setattr(model, "built_in_model", lambda: folder / "model.gguf")


def asking(**changes):
    """A request for two types of the corpus tiny on the weights model.gguf."""
    asked = Request(
        corpus="tiny", models=(Path("model.gguf"),), k_types=TWO, v_types=TWO
    )
    return replace(asked, **changes)


def planned(**changes):
    """The plan of such a request."""
    return plan.plan(asking(**changes))
