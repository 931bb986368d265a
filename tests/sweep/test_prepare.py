"""From a plan to a run, with a tokenizer that counts bytes."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import ByteTokenizer, FakeEngine
from gguf_files import SHAPE, write_gguf
from made_metrics import made_probe
from made_plans import CORPUS, made_world
from made_plans import planned as plan_of
from made_records import made_needle

from codeneedle.analysis.recall import Ask, asked_of
from codeneedle.errors import BadInput, RequestError
from codeneedle.probes import PROBES, recall
from codeneedle.probes.divergence import DivergenceSettings
from codeneedle.probes.prompts import NO_THINK_ARGS, PromptForm
from codeneedle.probes.throughput import ThroughputSettings
from codeneedle.records.comparability import OtherSetup
from codeneedle.sweep.prepare import (
    PromptCounter,
    machine_phrase,
    prepare,
    refuse_other_setup,
    refuse_shared_folders,
    thinking_phrase,
    with_further,
)

RECALL = made_probe("recall")
NEEDLE = made_needle()


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch):
    """A working folder with a corpus and weights."""
    made_world(tmp_path, monkeypatch)


def planned(*probes, engine=None, **changes):
    """A plan of *probes*, recall by default."""
    plan = plan_of(engine=engine, **changes)
    return replace(plan, probes=probes or (RECALL,))


def refused(**changes):
    """Why such a plan cannot go on in the folder that is there."""
    with pytest.raises(OtherSetup) as caught:
        prepare(planned(**changes))
    return str(caught.value)


def test_a_corpus_that_fits_is_sent_whole_and_the_setup_stored():
    """
    Each needle may take half as many tokens again as its truth, and a preamble; the
    setup is on disk, with what was asked for, before a cell starts.
    """
    plan = planned(rotations=(False,), server_args=("-t", "1"), seed=7)

    ready = prepare(plan)

    setup, facts = ready.setup, ready.setup.corpus
    assert plan.corpus.text == ready.text
    assert (6, 6, False) == (facts.functions, facts.functions_before, facts.is_trimmed)
    assert len(ready.text) == facts.tokens == facts.characters
    truth = "\n".join(setup.needles[0].lines)
    assert -(-len(truth) * 3 // 2) + 64 == setup.needles[0].budget
    assert setup == plan.store.setup()
    assert (False, ("-t", "1"), 7) == (setup.rotation, setup.server_args, setup.seed)
    assert (FakeEngine.version, 8192) == (setup.llama, setup.context)


def test_a_long_corpus_is_trimmed_to_whole_functions():
    """
    What is left fits with question and longest answer, and says what it was.
    """
    plan = planned(contexts=(3000,))

    ready = prepare(plan)

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
    The hint names a context that would do; nothing is left of the try but logs. Where
    no function fits, there is nothing to ask for.
    """
    plan = planned(contexts=(3000,), fit=False)

    with pytest.raises(BadInput) as caught:
        prepare(plan)

    context = int(caught.value.hint.split("--context ")[1].split(",")[0])
    assert 0 == context % 256
    assert None is plan.store.setup()
    ready = prepare(planned(contexts=(context,), fit=False))
    assert not ready.setup.corpus.is_trimmed
    with pytest.raises(RequestError):
        prepare(planned(contexts=(256,), out=Path("other")))


def test_a_trimmed_run_is_not_continued_where_trimming_is_forbidden():
    """
    The flag holds for what is there already, too; so does another setup.
    """
    asked = {"contexts": (3000,)}
    refuse_other_setup(planned(**asked))
    prepare(planned(**asked))
    refuse_other_setup(planned(**asked))

    with pytest.raises(BadInput, match="was trimmed to the context"):
        refuse_other_setup(planned(**asked, fit=False))
    with pytest.raises(OtherSetup, match="another seed: 42, now 7"):
        refuse_other_setup(planned(**asked, seed=7))


def test_two_models_of_one_name_are_refused(tmp_path):
    """
    Their records would share a folder.
    """
    (tmp_path / "b").mkdir()
    shutil.copy("model.gguf", "b")
    first, other = planned(), planned(models=(Path("b/model.gguf"),))
    refuse_shared_folders([first, planned(out=Path("other"), page="p")])

    with pytest.raises(BadInput, match="both write to tiny/model"):
        refuse_shared_folders([first, other])


def test_what_was_counted_is_not_counted_again():
    """
    A sweep that goes on has the setup, text and needles that it had, also of a trimmed
    corpus; pages share what they count, unless another number of functions fits.
    """
    engine, other, counts = FakeEngine(), FakeEngine(), {}
    for contexts in ((8192,), (3000,)):
        asked = {"contexts": contexts, "out": Path(str(contexts)), "engine": engine}
        first = prepare(planned(**asked))
        again = prepare(planned(**asked))
        assert (first.setup, first.text) == (again.setup, again.text)
    for page, contexts in (("a", (8192,)), ("b", (8192,)), ("c", (3000,))):
        prepare(planned(engine=other, page=page, contexts=contexts), counts)

    assert (2, 2) == (engine.counted, other.counted)


def test_a_corpus_that_no_probe_reads_is_neither_counted_nor_fitted():
    """
    No function of it would fit this context. A probe that does read it counts it then,
    and the folder goes on with both, in either order.
    """
    engine, blind = FakeEngine(), made_probe("other", reads_corpus=lambda _: False)
    few = planned(blind, engine=engine, contexts=(256,))

    ready = prepare(few)

    assert ("", ()) == (ready.text, ready.setup.needles)
    assert (0, False) == (engine.counted, ready.setup.corpus.is_counted)
    assert ready.setup == prepare(few).setup
    with pytest.raises(RequestError):
        prepare(planned(contexts=(256,)))
    alone = prepare(planned(blind, out=Path("both"))).setup
    both = prepare(planned(out=Path("both")))
    plain = prepare(planned(out=Path("plain")))
    assert plain.setup.corpus == both.setup.corpus
    assert (plain.text, plain.setup.needles) == (both.text, both.setup.needles)
    assert alone.identity == both.setup.identity
    assert both.setup == prepare(planned(blind, out=Path("both"))).setup


@pytest.mark.parametrize(
    ("settings", "reads"),
    [
        ({}, ("recall", "divergence", "throughput")),
        ({"divergence": DivergenceSettings(text=Path("t"))}, ("recall", "throughput")),
        ({"throughput": ThroughputSettings(depths=(0,))}, ("recall", "divergence")),
    ],
)
def test_probes_that_read_a_text_of_their_own_need_no_corpus(settings, reads):
    """
    Retrieval and copies make theirs; the others can be given one, or other depths.
    """
    found = tuple(
        name for name in PROBES if planned(PROBES[name], settings=settings).reads_corpus
    )

    assert set(reads) == set(found)


def test_each_probe_adds_its_conditions_to_the_folder():
    """
    It sees setup and text as they will be; conditions of other probes stay. One that
    cannot run leaves no setup, and more types widen the one that is there.
    """
    seen = []

    def conditions(run):
        seen.append((run.setup.corpus.tokens, len(run.text)))
        return {"depths": [0]}

    def refusing(_run):
        raise BadInput(source="x", reason="y", hint="z")

    failing = planned(made_probe("throughput", conditions=refusing))
    with pytest.raises(BadInput):
        prepare(failing)
    assert None is failing.store.setup()
    first = prepare(planned())
    speed = made_probe("throughput", conditions=conditions)
    both = prepare(planned(speed, k_types=("f16",))).setup

    assert [(first.setup.corpus.tokens, len(first.text))] == seen
    assert {"recall": {}, "throughput": {"depths": [0]}} == both.probes
    assert (("f16", "q8_0", "q4_0"), ("q8_0", "q4_0")) == (both.types_k, both.types_v)


def test_other_conditions_of_a_probe_are_refused():
    """
    Speeds at other depths are no rows of the same table.
    """

    def probe(*depths):
        return made_probe("throughput", conditions=lambda _: {"depths": list(depths)})

    prepare(planned(probe(0, 256)))
    with pytest.raises(OtherSetup) as caught:
        prepare(planned(probe(0, 512)))

    assert "throughput depths: [0, 256], now [0, 512]" in str(caught.value)


@pytest.mark.parametrize(
    ("before", "now"), [("written", "both"), ("both", "written"), ("both", "forced")]
)
def test_what_was_asked_of_recall_stays_what_it_was(before, now):
    """
    Another question is refused, with the word that goes on; none at all goes on.
    """

    def asking(ask):
        settings = {"recall": recall.RecallSettings(ask=ask and Ask(ask))}
        return planned(recall.PROBE, settings=settings)

    first = prepare(asking(before)).setup
    with pytest.raises(OtherSetup, match="another recall ask") as caught:
        prepare(asking(now))

    assert f"Go on with --ask {before}," in caught.value.hint
    assert first == prepare(asking(None)).setup
    assert Ask(before) is asked_of(first)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"contexts": (4096,)}, "another context: 8192, now 4096"),
        ({"seed": 7}, "another seed: 42, now 7"),
        ({"server_args": ("-t", "1")}, "another number of server_args: 0, now 2"),
        (
            {"prompt_form": PromptForm.CHAT},
            "another prompt_form: 'completion', now 'chat'",
        ),
        ({"rotations": (False,)}, "another rotation: True, now False"),
        (
            {"engine": FakeEngine(version="0.7.0")},
            "another llama: '0.6.0 (build 11434)', now '0.7.0'",
        ),
        (
            {"engine": FakeEngine(cpu_features="AVX2")},
            "another cpu_features: '', now 'AVX2'",
        ),
    ],
)
def test_another_request_or_engine_is_refused_in_the_same_folder(changes, words):
    """
    The key and both values are named.
    """
    prepare(planned())

    assert words in refused(**changes)


def test_another_text_and_other_weights_by_the_same_name_are_refused(tmp_path):
    """
    They are known by their contents: a text need not differ in length, nor in what was
    sent of it.
    """
    prepare(planned())
    text = tmp_path / "corpora" / "tiny.toml"
    text.write_text(CORPUS.replace("7", "8"))

    assert "another corpus" in refused()
    text.write_text(CORPUS)
    write_gguf(tmp_path / "model.gguf", SHAPE, tensors=2)
    assert "another weights sha256" in refused()


def test_how_thinking_is_switched_off_is_told():
    """
    A completion has nothing to switch off; chats by every means there is.
    """
    chat = planned(prompt_form=PromptForm.CHAT, prefill_no_think=True)
    means = FakeEngine(thinking_off="--reasoning-budget 0")

    assert "none: completion form" == thinking_phrase(planned())
    assert thinking_phrase(replace(chat, engine=means)).endswith(
        "--reasoning-budget 0, an empty thought prefilled"
    )
    assert "budget" not in thinking_phrase(chat)


def test_devices_are_part_of_the_machine():
    """
    Numbers of another accelerator are others.
    """
    gpu = FakeEngine(devices=("CUDA0 NVIDIA L4 (22563 MiB)",))

    assert machine_phrase(gpu).endswith("; CUDA0 NVIDIA L4 (22563 MiB)")
    assert not machine_phrase(FakeEngine()).endswith(";")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (lambda _said: "hi", "it has 2 tokens, the corpus alone has 2,"),
        (lambda said: "x" * len(said.content), "is not in it"),
        (lambda said: said.content.replace("    ", " "), "alone has"),
        (lambda said: said.content.replace("=", "&equals;"), "is not in it"),
    ],
    ids=["dropped", "replaced", "squeezed", "escaped"],
)
def test_a_template_that_drops_the_text_is_refused(template, words):
    """
    Before the first cell, which would recall nothing and look finished.
    """
    engine = FakeEngine(tokenizer=ByteTokenizer(template))
    plan = planned(engine=engine, prompt_form=PromptForm.CHAT)

    with pytest.raises(BadInput, match=words) as caught:
        prepare(plan)
    assert "chat template" in str(caught.value)
    assert "--prompt-form completion" in caught.value.hint
    assert None is plan.store.setup()


def test_a_prompt_that_is_counted_shorter_than_its_text_is_refused():
    """
    Though all that is asked for is in it: a server may count badly.
    """

    class Odd(ByteTokenizer):
        def count_tokens(self, text, *, add_special=True):
            return 10**6 // len(text)

    with pytest.raises(BadInput, match="the corpus alone has"):
        prepare(planned(engine=FakeEngine(tokenizer=Odd())))


def test_a_chat_is_counted_as_the_template_renders_it():
    """
    With the empty thought that begins its answer, and thinking switched off.
    """
    tokenizer = ByteTokenizer()
    completion, plain, prefilled = (
        PromptCounter(tokenizer, planned(**changes)).prompt("text", NEEDLE)
        for changes in (
            {},
            {"prompt_form": PromptForm.CHAT},
            {"prompt_form": PromptForm.CHAT, "prefill_no_think": True},
        )
    )

    assert completion < plain < prefilled
    assert [NO_THINK_ARGS] * 2 == tokenizer.template_args


def test_further_functions_are_counted_once_and_spread_over_the_text():
    """
    They are others than the needles; each eight of them reach from top to end.
    """
    text = CORPUS.replace("functions = 6", "functions = 60")
    Path("corpora", "many.toml").write_text(text, encoding="utf-8")
    engine = FakeEngine(stretches_context=True)
    plan = planned(corpus="many", contexts=(65536,), engine=engine)
    run = prepare(plan)

    longer = with_further(plan, run, 40).setup
    again = with_further(plan, prepare(plan), 40).setup

    assert 24 == len(longer.further)
    assert longer == again == plan.store.setup()
    assert 2 == engine.counted
    assert 40 == len({needle.name for needle in longer.every_needle})
    assert all(needle.budget for needle in longer.further)
    for at in range(0, 24, 8):
        depths = [needle.depth for needle in longer.further[at : at + 8]]
        assert min(depths) < 0.3
        assert max(depths) > 0.7
    assert 60 - 16 == len(with_further(plan, run, 96).setup.further)
