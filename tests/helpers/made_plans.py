"""Plans on made-up weights and an engine without a process."""

from dataclasses import fields

from fake_engine import FakeEngine
from gguf_files import SHAPE, write_gguf
from made_records import made_record
from msgspec.structs import replace

from codeneedle.models import pretrained
from codeneedle.sweep import plan
from codeneedle.sweep.prepare import prepare_run_and_store_setup
from codeneedle.sweep.request import Execution, Request

CORPUS = """\
[generate]
functions = 6
value_length = 6
name_length = 5
seed = 7
"""
"""Six functions of twenty lines, some 3,000 bytes."""

EVERY_KEY = """\
corpus = "http_server"
models = ["a.gguf", "~/b.gguf", "smollm2", "needle-nano"]
types = ["q4_0", "q8_0"]
v_types = ["f16"]
probes = ["throughput", "recall"]
contexts = [4096, 8192, 4096]
rotation = ["on", "off"]
server_args = ["-t", "1"]
prompt_form = "chat"
prefill_no_think = true
fit = false
seed = 7

[variants]
plain = []
swa = ["--swa-full"]

[divergence]
contexts = [512, 1024]
chunks = [3]
file = "~/wiki.txt"

[throughput]
depths = [0, 256]
repetitions = 2
"""
"""A sweep file that says everything."""

TWO = ("q8_0", "q4_0")


def made_world(folder, monkeypatch):
    """A working folder with a corpus called tiny and weights called model.gguf."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CODENEEDLE_CACHE", str(folder / "cache"))
    monkeypatch.delenv("LLAMA_ATTN_ROT_DISABLE", raising=False)
    (folder / "corpora").mkdir()
    (folder / "corpora" / "tiny.toml").write_text(CORPUS, encoding="utf-8")
    write_gguf(folder / "model.gguf", SHAPE)
    monkeypatch.setattr(
        pretrained, "checked_built_in_path", lambda: folder / "model.gguf"
    )


def asking(**changes):
    """A request for two types of the corpus tiny on the weights model.gguf."""
    named = {"probes": ("recall",), **changes}
    asked = Request(corpus="tiny", models=("model.gguf",), types=TWO)
    return replace(asked, **named)


def planned(*, engine=None, **changes):
    """
    The plan of such a request, on *engine*, a new one by default.

    Changes are fields of the request, or of what the command uses.
    """
    chosen = engine or FakeEngine()
    names = {each.name for each in fields(Execution)} & changes.keys()
    execution = Execution(**{name: changes.pop(name) for name in names})

    def engine_for(spec):
        chosen.model = spec
        return chosen

    return plan.plan(asking(**changes), execution, engine_for=engine_for)


def measured(plan):
    """The run of *plan*, with a finished record in its folder."""
    ready = prepare_run_and_store_setup(plan)
    plan.store.write_record(made_record("f16/f16", []))
    return ready
