"""From a plan to a run, with a tokenizer that counts bytes."""

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from fake_engine import ByteTokenizer, FakeEngine, made_weights
from gguf_files import SHAPE, write_gguf
from made_losses import diverging
from made_metrics import made_probe
from made_plans import CORPUS, made_world, measured
from made_plans import planned as plan_of
from made_records import failed_record, forced_of, made_record, written_of
from source_files import put, python

from codeneedle.corpora.fitting import TooLong
from codeneedle.engines.engine import ModelSpec
from codeneedle.errors import BadInput, RequestError
from codeneedle.probes import PROBES
from codeneedle.probes.divergence.probe import DivergenceSettings
from codeneedle.probes.evaluation.probe import EvaluationSettings
from codeneedle.probes.probe import Calibrating
from codeneedle.probes.prompts import PromptForm
from codeneedle.probes.recall.settings import (
    RecallSettings,
    Way,
    settings_of,
)
from codeneedle.probes.retrieval.settings import RetrievalSettings
from codeneedle.probes.throughput.probe import ThroughputSettings
from codeneedle.records.comparability import (
    OtherSetup,
    setup_differences,
    setup_identity,
)
from codeneedle.records.store import Store
from codeneedle.sweep.pairs import checked_grid_and_attention_survey
from codeneedle.sweep.prepare import (
    count_and_refuse_long_corpus,
    hardware_phrase,
    prepare_run_and_store_setup,
    refuse_or_void_unfit_folder,
    refuse_shared_folders,
    thinking_off_phrase,
)
from codeneedle.sweep.request import (
    Execution,
    Request,
    read_sweep,
    with_or_without_option_phrase,
)
from codeneedle.system.files import cache_folder

RECALL = PROBES["recall"]


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
        prepare_run_and_store_setup(planned(**changes))
    return str(caught.value)


def test_a_corpus_that_fits_is_sent_whole_and_the_setup_stored():
    """Each needle may take half as many tokens again as its truth, and a preamble."""
    plan = planned(rotation=("off",), server_args=("-t", "1"), seed=7)

    ready = prepare_run_and_store_setup(plan)

    setup, facts = ready.setup, ready.setup.corpus
    assert plan.corpus.text == ready.text
    assert (6, 6, False) == (facts.functions, facts.functions_before, facts.is_trimmed)
    assert len(ready.text) == facts.tokens == facts.characters
    truth = "\n".join(written_of(setup)[0].lines)
    assert -(-len(truth) * 3 // 2) + 64 == written_of(setup)[0].budget
    assert setup == plan.store.read_setup()
    assert (False, ("-t", "1"), 7) == (setup.rotation, setup.server_args, setup.seed)
    assert (FakeEngine.version, 8192) == (setup.llama, setup.context)


def test_a_long_corpus_is_trimmed_to_whole_functions():
    plan = planned(contexts=(3000,))

    ready = prepare_run_and_store_setup(plan)

    facts = ready.setup.corpus
    assert facts.is_trimmed
    assert 1 <= facts.functions < 6 == facts.functions_before
    assert plan.corpus.text.startswith(ready.text)
    assert plan.corpus.sha256 == facts.source_sha256 != facts.sha256
    assert {needle.name for needle in written_of(ready.setup)} <= {
        function.name for function in plan.corpus.functions
    }


def test_a_long_corpus_is_refused_where_it_must_stay_whole():
    plan = planned(contexts=(3000,), fit=False)

    with pytest.raises(TooLong) as caught:
        prepare_run_and_store_setup(plan)

    context = caught.value.larger
    assert 0 == context % 256
    assert None is plan.store.read_setup()
    ready = prepare_run_and_store_setup(planned(contexts=(context,), fit=False))
    assert not ready.setup.corpus.is_trimmed


@pytest.mark.parametrize("context", [3000, 8192])
def test_a_plan_refuses_by_the_tokens_of_the_model_what_a_sweep_refuses(context):
    """It once promised days by an estimate, and the sweep then refused."""
    plan = planned(contexts=(context,), fit=False)
    refused = pytest.raises(TooLong)

    with refused if context == 3000 else contextlib.nullcontext():
        count_and_refuse_long_corpus(plan)

    assert not plan.store.folder.exists()
    assert not [*cache_folder().glob("private/*/*")]


def test_an_estimate_of_a_text_that_stays_whole_is_of_all_of_it():
    cut, whole = (planned(contexts=(1000,), fit=fit).estimates for fit in (True, False))

    assert 1000 > cut.sent_corpus_tokens
    assert whole.tokens(len(whole.corpus.text)) == whole.sent_corpus_tokens > 1000


def test_where_no_context_would_do_a_long_corpus_may_only_be_trimmed():
    """These weights were trained for 8,192 tokens."""
    put_corpus("many", functions=60)

    with pytest.raises(TooLong) as caught:
        prepare_run_and_store_setup(planned(corpus="many", fit=False))

    assert None is caught.value.larger
    assert "--fit" in caught.value.ways[0]


def test_a_trimmed_run_is_not_continued_where_trimming_is_forbidden(golden):
    asked = {"contexts": (3000,)}
    refuse_or_void_unfit_folder(planned(**asked))
    measured(planned(**asked))
    refuse_or_void_unfit_folder(planned(**asked))

    for changes in ({"fit": False}, {"seed": 7}):
        with pytest.raises(OtherSetup) as caught:
            refuse_or_void_unfit_folder(planned(**asked, **changes))
        assert golden == str(caught.value)


def test_a_grid_without_a_pair_that_the_weights_bear_is_refused(golden):
    """Also where no engine has surveyed it."""
    latent = replace(made_weights(), is_mla=True)
    engine = FakeEngine(model=ModelSpec(weights=latent, name="latent"))
    request = Request(pairs=("f16/q8_0", "q8_0/f16"))

    with pytest.raises(BadInput) as caught:
        checked_grid_and_attention_survey(request, Execution(), engine, 4096)

    assert golden == f"{caught.value}\n{caught.value.hint}"


def test_two_models_of_one_name_are_refused(tmp_path):
    (tmp_path / "b").mkdir()
    shutil.copy("model.gguf", "b")
    first, other = planned(), planned(models=("b/model.gguf",))
    refuse_shared_folders([first, planned(out=Path("other"), page="p")])

    with pytest.raises(BadInput, match="both write to tiny/model"):
        refuse_shared_folders([first, other])


def test_what_was_counted_is_not_counted_again():
    engine = FakeEngine()
    for contexts in ((8192,), (3000,)):
        asked = {"contexts": contexts, "out": Path(str(contexts)), "engine": engine}
        first = prepare_run_and_store_setup(planned(**asked))
        again = prepare_run_and_store_setup(planned(**asked))
        assert (first.setup, first.text) == (again.setup, again.text)
    assert 2 == engine.counted


def test_a_corpus_that_no_probe_reads_is_neither_counted_nor_fitted():
    engine, blind = FakeEngine(), made_probe("other", own_text_name=lambda *_: "")
    few = planned(blind, engine=engine, contexts=(256,))

    ready = prepare_run_and_store_setup(few)

    assert ("", ()) == (ready.text, written_of(ready.setup))
    assert (0, False) == (engine.counted, ready.setup.corpus.is_counted)
    assert ready.setup == prepare_run_and_store_setup(few).setup
    with pytest.raises(RequestError):
        prepare_run_and_store_setup(planned(contexts=(256,)))
    alone = prepare_run_and_store_setup(planned(blind, out=Path("both"))).setup
    both = prepare_run_and_store_setup(planned(out=Path("both")))
    plain = prepare_run_and_store_setup(planned(out=Path("plain")))
    assert plain.setup.corpus == both.setup.corpus
    assert (plain.text, written_of(plain.setup)) == (both.text, written_of(both.setup))
    assert alone.identity == both.setup.identity
    assert (
        both.setup
        == prepare_run_and_store_setup(planned(blind, out=Path("both"))).setup
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"divergence": DivergenceSettings(file=Path("t"))},
        {"throughput": ThroughputSettings(depths=(0,))},
    ],
)
def test_probes_that_read_a_text_of_their_own_need_no_corpus(settings):
    engine = FakeEngine()
    usual = {
        p.name for p in PROBES.values() if p.own_text_name(p.settings(), engine) is None
    }
    found = {name for name in PROBES if planned(PROBES[name], **settings).reads_corpus}

    assert usual - settings.keys() == found
    assert "recall" in found


def test_each_probe_adds_its_conditions_to_the_folder():
    seen = []

    def conditions(_settings, run):
        seen.append((run.setup.corpus.tokens, len(run.text)))
        return {"depths": [0]}

    def refusing(_settings, _run):
        raise BadInput(source="x", reason="y", hint="z")

    failing = planned(made_probe("throughput", as_stored=refusing))
    with pytest.raises(BadInput):
        prepare_run_and_store_setup(failing)
    assert None is failing.store.read_setup()
    first = prepare_run_and_store_setup(planned())
    speed = made_probe("throughput", as_stored=conditions)
    both = prepare_run_and_store_setup(planned(speed, k_types=("f16",))).setup

    assert [(first.setup.corpus.tokens, len(first.text))] == seen
    assert first.setup.probes | {"throughput": {"depths": [0]}} == both.probes
    assert (("f16", "q8_0", "q4_0"), ("q8_0", "q4_0")) == (both.types_k, both.types_v)


def asking(corpus="tiny", *, engine=None, contexts=(8192,), out="sweeps", **chosen):
    """A plan in which recall is asked so."""
    settings = msgspec.convert(chosen, type=RecallSettings)
    return plan_of(
        engine=engine or FakeEngine(stretches_context=True),
        corpus=corpus,
        contexts=contexts,
        recall=settings,
        out=Path(out),
    )


def put_corpus(name, **knobs):
    """A generated corpus called *name*."""
    lines = [
        f"{knob} = {value}" for knob, value in {"value_length": 6, **knobs}.items()
    ]
    text = "\n".join(["[generate]", "name_length = 5", *lines])
    Path("corpora", f"{name}.toml").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("before", "now", "option"),
    [
        ({"way": ["write"]}, {"way": ["write", "force"]}, "--way write"),
        ({"way": ["write"]}, {"way": ["force"]}, "--way write"),
        ({"way": ["write", "force"]}, {"way": ["write"]}, "--way write,force"),
        ({}, {"way": ["force"]}, "--way write,force"),
        ({"way": ["force"]}, {"way": ["write", "force"]}, "--way force"),
        ({"functions": 4}, {"functions": 5}, "--functions 4"),
        ({"functions": 4}, {"functions": 90}, "--functions 4"),
        ({}, {"functions": 4}, "--functions 6"),
        ({"lines": 3}, {"lines": 5}, "--lines 3"),
        ({"way": ["force"]}, {"lines": 20}, "--lines 5"),
    ],
)
def test_a_folder_goes_on_with_what_it_was_asked_and_with_nothing_else(
    before, now, option, golden
):
    first = measured(asking(**before)).setup

    with pytest.raises(OtherSetup) as caught:
        prepare_run_and_store_setup(asking(**now))

    assert golden == (str(caught.value), caught.value.hint)
    name, value = option.removeprefix("--").split()
    works = {name: value.split(",") if name == "way" else int(value)}
    for again in ({}, before, works, {**before, **works}):
        assert first == prepare_run_and_store_setup(asking(**again)).setup


@pytest.mark.parametrize(
    ("settings", "name", "value", "way"),
    [
        (RetrievalSettings, "gate", True, "with --gate"),
        (RetrievalSettings, "gate", False, "with --no-gate"),
        (RetrievalSettings, "tasks", ["single", "nth"], "with --tasks single,nth"),
        (RetrievalSettings, "dial", [], "without --dial"),
        (RecallSettings, "way", ["read"], "with --way read"),
        (RecallSettings, "lines", 3, "with --lines 3"),
        (EvaluationSettings, "command", "run ${out}", "with --eval 'run ${out}'"),
    ],
)
def test_the_option_that_gives_a_stored_setting_is_named(settings, name, value, way):
    assert way == with_or_without_option_phrase(settings, name, value)


def test_a_text_with_fewer_functions_than_wanted_is_resumed_with_the_same_words():
    first = prepare_run_and_store_setup(asking(functions=50)).setup

    assert 6 == settings_of(first).functions
    assert (
        first
        == prepare_run_and_store_setup(asking(functions=50)).setup
        == prepare_run_and_store_setup(asking()).setup
    )


def test_32_functions_are_forced_and_16_written_where_nothing_else_is_said():
    put_corpus("many", functions=120)

    ready = prepare_run_and_store_setup(asking("many", contexts=(65536,)))

    assert RecallSettings().with_defaults == settings_of(ready.setup)
    assert (16, 96) == (len(written_of(ready.setup)), len(forced_of(ready.setup)))
    assert () == ready.notes
    assert {5} == {len(needle.lines) for needle in forced_of(ready.setup)}
    assert {0} == {needle.budget for needle in forced_of(ready.setup)}
    assert all(needle.budget for needle in written_of(ready.setup))


@pytest.mark.parametrize(
    ("way", "written", "forced"),
    [((), 6, 6), (("force", "write"), 6, 6), (("write",), 6, 0), (("force",), 0, 6)],
)
def test_functions_are_chosen_for_what_is_asked_alone(way, written, forced):
    setup = prepare_run_and_store_setup(asking(way=way)).setup

    assert (written, forced) == (len(written_of(setup)), len(forced_of(setup)))


# --- texts that have too little, contexts that hold too little


def test_a_text_without_long_functions_is_forced_alone_and_says_so(golden):
    put_corpus("short", functions=9, lines=7)

    ready = prepare_run_and_store_setup(asking("short", functions=9))

    assert (Way.FORCE,) == settings_of(ready.setup).way
    assert ((), 9) == (written_of(ready.setup), len(forced_of(ready.setup)))
    assert golden == ready.notes
    assert (
        ready.setup
        == prepare_run_and_store_setup(asking("short", way=("force",))).setup
    )
    for way in (("write",), ("write", "force")):
        with pytest.raises(BadInput) as caught:
            asking("short", way=way)
        assert golden == (str(caught.value), caught.value.hint)


def test_more_lines_than_a_function_has_are_refused_with_the_most(golden):
    put_corpus("short", functions=9, lines=7)

    with pytest.raises(BadInput) as caught:
        asking("short", lines=8)

    assert golden == (str(caught.value), caught.value.hint)
    setup = prepare_run_and_store_setup(asking("short", lines=7)).setup
    assert {7} == {len(needle.lines) for needle in forced_of(setup)}


@pytest.mark.parametrize("name", ["functions", "lines"])
def test_options_of_forced_lines_are_refused_where_none_are_forced(name, golden):
    with pytest.raises(BadInput) as caught:
        asking(way=("write",), **{name: 3})

    assert golden == str(caught.value)


def named_context(hint):
    """The context that *hint* names."""
    return int(hint.split("--context ")[1].split()[0].rstrip(",."))


def put_mixed():
    """A corpus of 40 functions of five lines, the 30th of 20 lines; called mixed."""
    lengths = {at: 20 if at == 30 else 5 for at in range(40)}
    text = "".join(python(f"f{at:02}", lines=nr) for at, nr in lengths.items())
    put(Path("corpora", "mixed.py"), text)


def test_a_context_that_holds_no_long_function_forces_lines_alone(golden):
    put_mixed()
    small = {"contexts": (1536,)}

    ready = prepare_run_and_store_setup(asking("mixed", functions=4, **small))

    assert (Way.FORCE,) == settings_of(ready.setup).way
    assert golden == ready.notes
    longer = {"contexts": (4096,), "out": "b"}
    assert 1 == len(
        written_of(prepare_run_and_store_setup(asking("mixed", **longer)).setup)
    )


@pytest.mark.parametrize(("wanted", "held"), [(None, 32), (20, 20), (96, 60)])
def test_a_context_that_holds_fewer_functions_than_wanted_says_which_holds_them(
    wanted, held, golden
):
    put_corpus("many", functions=60, lines=8)

    few = prepare_run_and_store_setup(
        asking("many", way=("force",), functions=wanted, contexts=(2048,))
    )

    functions = len(forced_of(few.setup))
    assert 1 < functions < held
    (note,) = few.notes
    assert note.startswith(f"{functions} functions")
    assert note.endswith(f" holds {held}")
    assert golden == note
    larger = named_context(note)
    for context, is_enough in ((larger, True), (larger - 256, False)):
        found = prepare_run_and_store_setup(
            asking(
                "many",
                way=("force",),
                functions=wanted,
                contexts=(context,),
                out=f"at {context}",
            )
        )
        assert is_enough == (len(forced_of(found.setup)) >= held)


def test_a_context_beyond_the_training_is_not_named(golden):
    put_corpus("many", functions=60)

    ready = prepare_run_and_store_setup(asking("many", engine=FakeEngine()))

    (note,) = ready.notes
    assert golden == note


def test_a_text_that_has_fewer_functions_than_wanted_says_so_once(golden):
    assert golden == prepare_run_and_store_setup(asking()).notes
    assert () == prepare_run_and_store_setup(asking()).notes
    assert () == prepare_run_and_store_setup(asking(functions=6, out="b")).notes
    assert () == prepare_run_and_store_setup(asking(way=("write",), out="c")).notes


@pytest.mark.parametrize("way", [(), ("write",), ("force",)])
def test_a_context_that_holds_no_function_names_the_smallest_that_does(way):
    with pytest.raises(TooLong) as caught:
        prepare_run_and_store_setup(asking(way=way, contexts=(256,)))

    larger = caught.value.larger
    assert 0 == larger % 256
    ready = prepare_run_and_store_setup(asking(way=way, contexts=(larger,)))
    assert 1 <= len((*written_of(ready.setup), *forced_of(ready.setup))) <= 2
    with pytest.raises(BadInput):
        prepare_run_and_store_setup(asking(way=way, contexts=(larger - 256,), out="b"))


@pytest.mark.parametrize(
    ("chosen", "context", "named"),
    [
        ({}, 7168, "random-bodies-mini"),
        ({}, 2048, "random-bodies-short"),
        ({"way": ["write"]}, 2048, None),
        ({"way": ["force"], "lines": 10}, 2048, None),
        ({}, 1024, None),
    ],
)
def test_where_a_text_does_not_fit_one_that_does_is_named(chosen, context, named):
    put_corpus("large", functions=9, value_length=900)

    with pytest.raises(TooLong) as caught:
        prepare_run_and_store_setup(asking("large", contexts=(context,), **chosen))

    assert caught.value.larger > context
    assert ((f"--corpus {named}",) if named else ()) == caught.value.ways
    if named:
        ready = prepare_run_and_store_setup(
            asking(named, contexts=(context,), **chosen)
        )
        assert not ready.setup.corpus.is_trimmed


# --- folders that were begun without recall


DIVERGENCE = made_probe("divergence")


def test_a_folder_that_was_begun_by_divergence_gets_functions_later():
    put_corpus("many", functions=60)
    small = {"contexts": (4096,)}

    alone = replace(asking("many", **small), probes=(DIVERGENCE,))
    before = prepare_run_and_store_setup(alone)
    both = prepare_run_and_store_setup(asking("many", **small))
    first = prepare_run_and_store_setup(asking("many", **small, out="other"))

    assert ((), (), ()) == (
        written_of(before.setup),
        forced_of(before.setup),
        before.notes,
    )
    assert first.text == both.text == before.text
    assert written_of(first.setup) == written_of(both.setup)
    assert forced_of(first.setup) == forced_of(both.setup)
    assert first.notes == both.notes
    assert first.setup.probes["recall"] == both.setup.probes["recall"]
    assert both.setup.identity == before.setup.identity
    assert (
        both.setup
        == prepare_run_and_store_setup(alone).setup
        == prepare_run_and_store_setup(asking("many", **small)).setup
    )


def test_what_is_asked_later_is_chosen_from_the_text_of_the_folder():
    put_corpus("many", functions=60)
    before = prepare_run_and_store_setup(
        replace(asking("many", contexts=(4096,)), probes=(DIVERGENCE,))
    )

    forced = prepare_run_and_store_setup(
        asking("many", way=("force",), lines=20, contexts=(4096,))
    )

    assert before.text == forced.text
    assert before.setup.corpus.functions == len(forced_of(forced.setup))
    for needle in forced_of(forced.setup):
        assert "\n".join(needle.lines) in forced.text


def test_a_text_that_was_cut_too_short_for_what_is_asked_later_says_so(golden):
    put_mixed()
    chosen = {"lines": 6}
    small = {"contexts": (1536,)}
    prepare_run_and_store_setup(replace(asking("mixed", **small), probes=(DIVERGENCE,)))

    with pytest.raises(BadInput) as caught:
        prepare_run_and_store_setup(asking("mixed", **chosen, **small))

    assert golden == (str(caught.value), caught.value.hint)
    assert forced_of(
        prepare_run_and_store_setup(asking("mixed", way=("force",), **small)).setup
    )
    context = int(caught.value.hint.partition("--context ")[2].split()[0])
    assert forced_of(
        prepare_run_and_store_setup(
            asking("mixed", **chosen, contexts=(context,), out="larger")
        ).setup
    )
    smaller = asking("mixed", **chosen, contexts=(context - 256,), out="smaller")
    with pytest.raises(TooLong):
        prepare_run_and_store_setup(smaller)


def test_the_run_folder_keeps_the_request_and_grows_with_it(tmp_path):
    built_in = prepare_run_and_store_setup(planned(models=(), corpus=None))
    assert ("random-bodies-mini", ("needle-nano",)) == (
        kept(built_in).corpus,
        kept(built_in).models,
    )
    first = measured(planned())
    request = kept(first)

    assert (str(tmp_path / "model.gguf"),) == request.models
    assert ((8192,), PromptForm.COMPLETION) == (request.contexts, request.prompt_form)
    speed = made_probe("throughput", as_stored=lambda *_: {})
    prepare_run_and_store_setup(planned(speed, probes=("throughput",), types=("f16",)))
    refused(seed=7)
    assert (("f16", "q8_0", "q4_0"), ("recall", "throughput"), 42) == (
        kept(first).types,
        kept(first).probes,
        kept(first).seed,
    )


def kept(ready):
    """The request in the folder of a run."""
    return read_sweep(str(ready.folder.absolute()))


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 7},
        {"server_args": ("-t", "1")},
        {"prompt_form": PromptForm.CHAT},
        {"rotation": ("off",)},
        {"engine": FakeEngine(version="0.7.0")},
    ],
    ids="".join,
)
def test_another_request_or_engine_is_refused_in_the_same_folder(changes, golden):
    measured(planned())

    assert golden == refused(**changes)


def test_another_processor_is_refused_in_the_same_folder(golden):
    measured(planned(engine=FakeEngine(cpu_features="AVX")))

    assert golden == refused(engine=FakeEngine(cpu_features="AVX2"))


def test_a_try_without_a_single_number_makes_room_for_another():
    first = planned()
    prepare_run_and_store_setup(first)
    first.store.write_record(failed_record("f16/f16"))
    other = planned(seed=7)

    refuse_or_void_unfit_folder(other)

    assert (None, []) == (other.store.read_setup(), list(other.store.read_records()))
    with other.store.make_and_lock_folder():
        assert [] == other.store.set_damaged_setup_aside()
        assert 7 == prepare_run_and_store_setup(other).setup.seed
    assert [] == list(Store(other.store.folder).read_records())
    former = Store(other.store.folder / "former").read_run()
    assert (42, 1) == (former.setup.seed, len(former.records))
    assert 7 == kept(prepare_run_and_store_setup(planned(seed=7))).seed
    refuse_or_void_unfit_folder(back := planned())
    measured(planned(seed=7))
    with pytest.raises(OtherSetup), back.store.make_and_lock_folder():
        prepare_run_and_store_setup(back)


def test_another_text_and_other_weights_by_the_same_name_are_refused(tmp_path):
    measured(planned())
    text = tmp_path / "corpora" / "tiny.toml"
    text.write_text(CORPUS.replace("7", "8"))

    assert "(corpus " in refused()
    text.write_text(CORPUS)
    write_gguf(tmp_path / "model.gguf", SHAPE, tensors=2)
    assert "(weights sha256" in refused()


def test_how_thinking_is_switched_off_is_told(golden):
    chat = planned(prompt_form=PromptForm.CHAT, prefill_no_think=True)
    means = FakeEngine(thinking_off_option="--reasoning-budget 0")

    assert golden == {
        "completion": thinking_off_phrase(planned()),
        "budget": thinking_off_phrase(replace(chat, engine=means)),
        "chat": thinking_off_phrase(chat),
    }


def test_devices_are_part_of_the_machine():
    gpu = FakeEngine(devices=("CUDA0 NVIDIA L4 (22563 MiB)",))

    assert hardware_phrase(gpu).endswith("; CUDA0 NVIDIA L4 (22563 MiB)")
    assert not hardware_phrase(FakeEngine()).endswith(";")


@pytest.mark.parametrize(
    "template",
    [
        lambda _said: "hi",
        lambda said: "x" * len(said.content),
        lambda said: said.content.replace("    ", " "),
        lambda said: said.content.replace("=", "&equals;"),
    ],
    ids=["dropped", "replaced", "squeezed", "escaped"],
)
def test_a_template_that_drops_the_text_is_refused(template, golden):
    """Before the first cell, which would recall nothing and look finished."""
    engine = FakeEngine(tokenizer=ByteTokenizer(template))
    plan = planned(engine=engine, prompt_form=PromptForm.CHAT)

    with pytest.raises(BadInput) as caught:
        prepare_run_and_store_setup(plan)
    assert golden == (str(caught.value), caught.value.hint)
    assert None is plan.store.read_setup()


def test_a_prompt_that_is_counted_shorter_than_its_text_is_refused(golden):
    class Odd(ByteTokenizer):
        def count_tokens(self, text):
            return 10**6 // len(text)

    with pytest.raises(BadInput) as caught:
        prepare_run_and_store_setup(planned(engine=FakeEngine(tokenizer=Odd())))
    assert golden == str(caught.value)


def test_records_go_with_the_setup_that_held_what_they_were_measured_by():
    probe = replace(made_probe("divergence"), calibrating=Calibrating())
    plan = planned(RECALL, probe)
    prepare_run_and_store_setup(plan)
    plan.store.store_calibration("divergence", {"reference": "f16/f16"})
    for name in ("recall", "divergence"):
        plan.store.write_record(replace(made_record("f16/f16", []), probe=name))

    def left_without(name):
        (plan.store.folder / name).unlink()
        prepare_run_and_store_setup(planned(RECALL, probe))
        return sorted(record.probe for record in plan.store.read_records())

    assert ["divergence", "recall"] == left_without("setup.json")
    assert ["recall"] == left_without("settled.json")


def test_records_that_name_their_reference_stay_without_what_was_settled():
    """Else the next pair would be the reference, compared with itself."""
    probe = replace(
        made_probe("divergence"), calibrating=PROBES["divergence"].calibrating
    )
    plan = planned(RECALL, probe)
    prepare_run_and_store_setup(plan)
    for pair in ("f16/f16", "q8_0/q8_0"):
        plan.store.write_record(diverging(pair, [0.01] * 4, reference="f16/f16"))

    run = prepare_run_and_store_setup(planned(RECALL, probe))

    assert 2 == len([*plan.store.read_records()])
    known = {"reference": "f16/f16", "unread": {}}
    assert known == run.setup.calibrated["divergence"]
    assert known == plan.store.read_calibrations()["divergence"]


def test_records_of_several_references_are_moved_aside_and_said_to_be():
    probe = replace(
        made_probe("divergence"), calibrating=PROBES["divergence"].calibrating
    )
    plan = planned(RECALL, probe)
    prepare_run_and_store_setup(plan)
    for pair in ("f16/f16", "q8_0/q8_0"):
        plan.store.write_record(diverging(pair, [0.01] * 4, reference=pair))

    run = prepare_run_and_store_setup(planned(RECALL, probe))

    assert () == tuple(plan.store.read_records())
    assert any("2 cells moved aside" in note for note in run.notes)


def test_a_setup_is_compared_once_and_all_of_it_with_the_stored_one(monkeypatch):
    measured(planned())
    compared = []
    compare = Store.check_against_stored_setup

    def counted(store, setup):
        compared.append(setup)
        return compare(store, setup)

    monkeypatch.setattr(Store, "check_against_stored_setup", counted)
    prepare_run_and_store_setup(planned())

    assert 1 == len(compared)
    for changes in ({"seed": 7}, {"recall": RecallSettings(lines=9)}):
        refused(**changes)


def test_the_setup_says_what_the_header_of_the_weights_says():
    plan = planned()
    header = replace(plan.weights, architecture="qwen3", file_type="Q4_K_M")
    prepared = prepare_run_and_store_setup(replace(plan, weights=header))

    assert ("qwen3", "Q4_K_M") == (prepared.setup.architecture, prepared.setup.quant)
    former = replace(prepared.setup, architecture="", quant="")
    assert [] == list(setup_differences(former, prepared.setup))
    assert setup_identity(former) == setup_identity(prepared.setup)
