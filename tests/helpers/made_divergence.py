"""Plans and stages for the divergence probe, on the stand-in of llama-perplexity."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

from made_records import made_setup
from programs import script

from codeneedle.corpora.corpus import Corpus
from codeneedle.engines.llama_cpp.installation import ServerFacts, Tools
from codeneedle.grid import Pair
from codeneedle.models.weights import Weights
from codeneedle.probes.divergence import NAME, PROBE
from codeneedle.probes.prompts import PromptForm
from codeneedle.records.store import Store
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.request import Request
from codeneedle.sweep.runner import CellEnded, Player, run

TEXT = "".join(f"line {at}: {at * 7919:x}\n" for at in range(400))
FAKE = Path(__file__).parent / "fake_perplexity.py"


def made_weights(*, vocabulary=260, training_context=65536):
    """A small llama."""
    return Weights(
        files=(Path("made.gguf"),),
        size_bytes=1,
        architecture="llama",
        name="made",
        size_label="",
        file_type="F16",
        layers=2,
        embedding=64,
        heads=(1, 1),
        kv_heads=(1, 1),
        key_length=64,
        value_length=64,
        key_length_swa=64,
        value_length_swa=64,
        is_mla=False,
        shared_kv_layers=0,
        sliding_window=None,
        window_pattern=None,
        recurrent_layers=(),
        full_attention_interval=None,
        has_state=False,
        has_indexer=False,
        training_context=training_context,
        vocabulary=vocabulary,
        chat_template=None,
    )


def fake_tool(folder, fault="none"):
    """A llama-perplexity with a *fault*."""
    body = f'HOME={folder}; export HOME\nexec {sys.executable} -S {FAKE} "{fault}" "$@"'
    return script(folder / "llama-perplexity", body)


def made_plan(folder, *, pairs="f16/f16 q8_0/q8_0 q4_0/q4_0", **changes):
    """
    A plan on the stand-in, its run in *folder*.

    Of *changes*, ``build``, ``tool`` and ``weights`` are the plan's, the others the
    request's.
    """
    build = changes.pop("build", 11434)
    tool = changes.pop("tool", None) or fake_tool(folder)
    weights = changes.pop("weights", None) or made_weights()
    wanted = {"divergence_contexts": (512,), "chunks": 4, "text": None, **changes}
    chosen = PROBE.settings(
        contexts=wanted.pop("divergence_contexts"),
        chunks=wanted.pop("chunks"),
        text=wanted.pop("text"),
    )
    wanted["settings"] = {NAME: chosen}
    return Plan(
        request=Request(models=(Path("made.gguf"),), **wanted),
        tools=Tools(
            server=folder / "llama-server", perplexity=tool, bench=None, source="PATH"
        ),
        server=ServerFacts(
            version="0.6.0",
            build=build,
            k_types=(),
            v_types=(),
            options=frozenset({"--verbosity", "--fit", "--poll"}),
            devices=(),
        ),
        weights=weights,
        model="made",
        corpus=Corpus(
            name="made-corpus",
            text=TEXT,
            origin="made",
            kind="incompressible",
            functions=(),
            cuts=(),
        ),
        context=16384,
        prompt_form=PromptForm.COMPLETION,
        pairs=tuple(map(Pair.parse, pairs.split())),
        store=Store(folder / "run"),
    )


def without_tool(plan):
    """The same plan, where there is no llama-perplexity."""
    return replace(plan, tools=replace(plan.tools, perplexity=None))


def swept(plan, *, text=TEXT, setup=None, retry_failed=False):
    """Settle and play *plan* to its end; the records by pair, as written."""
    setup = replace(setup or made_setup(), probes={NAME: PROBE.conditions(plan, text)})
    plan.store.adopt(setup)
    player = Player(plan=plan, setup=setup, text=text, probe=PROBE)
    events = run(
        PROBE.order(plan.pairs),
        store=plan.store,
        probe=NAME,
        play=player.play,
        retry_failed=retry_failed,
    )
    ended = [event.record for event in events if isinstance(event, CellEnded)]
    return {str(record.pair): record for record in ended}


def asked(folder):
    """What the stand-in was started for, in order."""
    path = folder / "asked"
    return path.read_text().splitlines() if path.exists() else []


def sha256(text):
    """Of *text* in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()
