"""From a plan to a setup, with a tokenizer that counts bytes."""

import contextlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from gguf_files import SHAPE, write_gguf
from made_metrics import made_probe
from made_plans import CORPUS, SERVER, made_world, planned

from codeneedle.errors import RequestError
from codeneedle.probes.prompts import PromptForm
from codeneedle.records.comparability import OtherSetup
from codeneedle.sweep import plan as planning
from codeneedle.sweep import prepare
from codeneedle.sweep.prepare import CorpusTooLong, settled, thinking_phrase

RECALL = made_probe("recall")


class Bytes:
    """A client of a server whose tokens are bytes."""

    def count_tokens(self, text):
        return len(text.encode())

    def counts(self, texts):
        return [len(text.encode()) for text in texts]

    def render(self, messages, _template_args):
        return "".join(f"<{each.role}>{each.content}" for each in messages)


@pytest.fixture(autouse=True)
def launches(tmp_path, monkeypatch):
    """What was started in order to count; the made-up world is around it."""
    made_world(tmp_path, monkeypatch)
    started = []

    @contextlib.contextmanager
    def serving(launch, **_where):
        started.append(launch)
        yield SimpleNamespace(client=Bytes())

    monkeypatch.setattr(prepare, "serving", serving)
    return started


def refused(**changes):
    """Why such a plan cannot go on in the folder that is there."""
    with pytest.raises(OtherSetup) as caught:
        settled(planned(**changes), [RECALL])
    return str(caught.value)


def test_a_corpus_that_fits_is_sent_whole():
    """
    Each needle may take half as many tokens again as its truth, and a preamble.
    """
    plan = planned()

    ready = settled(plan, [RECALL])

    facts = ready.setup.corpus
    assert plan.corpus.text == ready.text
    assert (6, 6, False) == (facts.functions, facts.functions_before, facts.is_trimmed)
    assert len(ready.text) == facts.tokens == facts.characters
    truth = "\n".join(ready.setup.needles[0].lines)
    assert -(-len(truth) * 3 // 2) + 64 == ready.setup.needles[0].budget


def test_the_setup_is_on_disk_before_a_cell_starts():
    """
    With what was asked for, and what it follows from.
    """
    plan = planned(rotations=(False,), server_args=("-t", "1"), seed=7)

    ready = settled(plan, [RECALL])

    assert ready.setup == plan.store.setup()
    assert (False, ("-t", "1"), 7) == (
        ready.setup.rotation,
        ready.setup.server_args,
        ready.setup.seed,
    )
    assert (SERVER.version, 8192) == (ready.setup.llama, ready.setup.context)


def test_a_long_corpus_is_trimmed_to_whole_functions():
    """
    What is left fits with question and longest answer, and says what it was.
    """
    plan = planned(contexts=(3000,))

    ready = settled(plan, [RECALL])

    facts = ready.setup.corpus
    assert facts.is_trimmed
    assert 1 <= facts.functions < 6 == facts.functions_before
    assert plan.corpus.text.startswith(ready.text)
    assert plan.corpus.sha256 == facts.source_sha256 != facts.sha256
    assert {needle.name for needle in ready.setup.needles} <= {
        function.name for function in plan.corpus.functions
    }


def test_a_long_corpus_is_refused_where_it_must_stay_whole():
    """
    The hint names a context that would do; nothing is left of the try but logs.
    """
    plan = planned(contexts=(3000,), fit=False)

    with pytest.raises(CorpusTooLong) as caught:
        settled(plan, [RECALL])

    context = int(caught.value.hint.split("--context ")[1].split(",")[0])
    assert 0 == context % 256
    assert None is plan.store.setup()
    assert not settled(
        planned(contexts=(context,), fit=False), [RECALL]
    ).setup.corpus.is_trimmed


def test_a_context_that_holds_no_function_is_refused():
    """
    There is nothing to ask for.
    """
    with pytest.raises(RequestError):
        settled(planned(contexts=(256,)), [RECALL])


def test_what_counts_is_the_smallest_server(launches):
    """
    No cache types, and nothing on an accelerator.
    """
    settled(planned(server_args=("-ngl", "99", "-t", "1")), [RECALL])

    (launch,) = launches
    assert None is launch.pair
    assert 512 == launch.context
    assert "-ngl" not in launch.extra
    assert ("-t", "1") == launch.extra[-2:]


def test_a_sweep_that_goes_on_starts_no_server_to_count(launches):
    """
    The setup is what it was, text and needles included, also of a trimmed corpus.
    """
    for contexts in ((8192,), (3000,)):
        first = settled(planned(contexts=contexts, out=Path(str(contexts))), [RECALL])
        again = settled(planned(contexts=contexts, out=Path(str(contexts))), [RECALL])
        assert first == again

    assert 2 == len(launches)


def test_more_types_widen_a_run():
    """
    The setup grows, and its records stay.
    """
    settled(planned(), [RECALL])

    wider = settled(planned(k_types=("f16",)), [RECALL]).setup

    assert ("f16", "q8_0", "q4_0") == wider.types_k
    assert ("q8_0", "q4_0") == wider.types_v


def test_each_probe_adds_its_settings_to_the_folder():
    """
    It is asked with the setup on disk; those of others stay.
    """
    seen = []

    def settings(plan, text):
        seen.append((plan.store.setup() is not None, len(text)))
        return {"depths": [0]}

    first = settled(planned(), [RECALL])
    both = settled(planned(), [made_probe("throughput", conditions=settings)]).setup

    assert [(True, len(first.text))] == seen
    assert {"recall": {}, "throughput": {"depths": [0]}} == both.probes


def test_other_settings_of_a_probe_are_refused():
    """
    Speeds at other depths are no rows of the same table.
    """

    def probe(*depths):
        return made_probe("throughput", conditions=lambda *_: {"depths": list(depths)})

    settled(planned(), [probe(0, 256)])
    with pytest.raises(OtherSetup) as caught:
        settled(planned(), [probe(0, 512)])

    assert "throughput depths: [0, 256], now [0, 512]" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"contexts": (4096,)}, "another context: 8192, now 4096"),
        ({"seed": 7}, "another seed: 42, now 7"),
        ({"server_args": ("-t", "1")}, "another number of server_args: 0, now 2"),
        ({"prompt_form": PromptForm.CHAT}, "another prompt_form"),
    ],
)
def test_another_request_is_refused_in_the_same_folder(changes, words):
    """
    The key and both values are named.
    """
    settled(planned(), [RECALL])

    assert words in refused(**changes)


def test_a_page_without_rotation_never_mixes_with_one_that_rotates():
    """
    Not even where both are forced into one folder.
    """
    settled(planned(), [RECALL])

    assert "another rotation: True, now False" in refused(rotations=(False,))


def test_another_text_by_the_same_name_is_refused(tmp_path):
    """
    It need not differ in length, nor in what was sent of it.
    """
    settled(planned(), [RECALL])
    (tmp_path / "corpora" / "tiny.toml").write_text(CORPUS.replace("7", "8"))

    assert "another corpus" in refused()


def test_other_weights_by_the_same_name_are_refused(tmp_path):
    """
    They are known by their contents.
    """
    settled(planned(), [RECALL])
    write_gguf(tmp_path / "model.gguf", SHAPE, tensors=2)

    assert "another weights sha256" in refused()


def test_another_build_of_llama_cpp_is_refused(monkeypatch):
    """
    Kernels change from build to build.
    """
    settled(planned(), [RECALL])
    newer = replace(SERVER, version="0.7.0 (build 11500)")
    monkeypatch.setattr(planning.installation, "ask", lambda _: newer)

    assert (
        "another llama: '0.6.0 (build 11434)', now '0.7.0 (build 11500)'" in refused()
    )


def test_how_thinking_is_switched_off_is_told():
    """
    A completion has nothing to switch off; chats by every means there is.
    """
    chat = planned(prompt_form=PromptForm.CHAT, prefill_no_think=True)
    options = replace(SERVER, options=frozenset({"--reasoning-budget"}))

    assert "none: completion form" == thinking_phrase(planned())
    assert thinking_phrase(replace(chat, server=options)).endswith(
        "--reasoning-budget 0, an empty thought prefilled"
    )
    assert "budget" not in thinking_phrase(chat)
