"""From a request to a plan: what is chosen, what is refused, what is said."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_engine import TYPES, FakeEngine
from made_conversations import FakeTemplate, made_conversation
from made_plans import TWO, asking, made_world, planned
from made_records import made_setup
from msgspec import structs

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import Ability, CacheTypes
from codeneedle.engines.pace import Pace
from codeneedle.errors import (
    BadInput,
    CodeneedleError,
    FolderUnusable,
    ToolMissing,
)
from codeneedle.probes.evaluation.probe import EvaluationSettings
from codeneedle.probes.prompts import PromptForm
from codeneedle.probes.recall.settings import RecallSettings, Way
from codeneedle.probes.retrieval.settings import RetrievalSettings
from codeneedle.probes.transcript.record import TranscriptSettings
from codeneedle.records.store import Store, checked_run_folder
from codeneedle.sweep import plan, prompt_form
from codeneedle.sweep.folder_names import _plain_or_context_folder
from codeneedle.sweep.plan_notes import notes_of_plan
from codeneedle.sweep.request import Execution, Request, pages
from codeneedle.sweep.running_order import measures_reference_first, running_order


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch):
    """A folder with a corpus and weights; nothing that could be started."""
    made_world(tmp_path, monkeypatch)


def planned_page(name, page):
    """The plan of one page."""
    execution = Execution(page=name)
    engine = FakeEngine(template=FakeTemplate())
    return plan.plan(
        page, execution, engine_for=lambda spec: replace(engine, model=spec)
    )


def test_a_plan_starts_nothing_and_makes_no_folder(tmp_path):
    found = planned()

    assert {Pair(k, v) for k in TYPES[2:] for v in TYPES[2:]} == set(found.pairs)
    assert found.pairs == planned(types=("q4_0", "q8_0")).pairs
    assert Path("sweeps/tiny/model") == found.store.folder
    assert ("model", 8192, False) == (found.model, found.context, found.is_built_in)
    assert not (tmp_path / "sweeps").exists()


def test_each_page_has_a_folder_of_its_own():
    asked = asking(rotation=("on", "off"), contexts=(1024, 2048))
    folders = [planned_page(*page).store.folder.name for page in pages(asked)]

    assert [
        "model+context-1024+rotation-on",
        "model+context-1024+rotation-off",
        "model+context-2048+rotation-on",
        "model+context-2048+rotation-off",
    ] == folders


@pytest.mark.parametrize(
    ("probes", "corpus", "name"),
    [
        (("eval",), None, "grade"),
        (("transcript", "eval"), None, "said"),
        (("eval", "recall"), None, "random-bodies"),
        (("eval",), "tiny", "tiny"),
        (("retrieval",), None, "random-bodies"),
    ],
)
def test_a_run_that_reads_no_corpus_is_called_after_what_it_measures(
    tmp_path, probes, corpus, name
):
    """Transcripts and evaluations were once filed under the default corpus."""
    file = tmp_path / "Said.json"
    file.write_text(json.dumps(made_conversation(2)))
    chosen = {
        "eval": EvaluationSettings(command=f"{sys.executable} grade.py"),
        "transcript": TranscriptSettings(file=file),
    }
    asked = asking(probes=probes, corpus=corpus)
    settings = {each: chosen[each] for each in probes if each in chosen}

    found = planned_page("", structs.replace(asked, **settings))

    assert Path("sweeps") / name / "model" == found.store.folder


@pytest.mark.parametrize(
    ("model", "asked", "trained", "expected"),
    [
        (True, (), 8192, 8192),
        (True, (), 131072, 16384),
        (True, (), 0, 16384),
        (True, (4096,), 8192, 4096),
        (True, (8192,), 8192, 8192),
        (True, (99999,), 0, 99999),
        (False, (), 65536, 2560),
        (False, (), 2048, 2048),
    ],
)
def test_the_context_is_the_one_asked_for_or_one_that_suits(
    model, asked, trained, expected
):
    request = Request(models=("model.gguf",) * model, contexts=asked)
    header = SimpleNamespace(training_context=trained)

    assert expected == plan.checked_or_default_context(request, header, stretched=False)


def test_the_built_in_model_gets_more_of_a_text_of_longer_functions():
    header = SimpleNamespace(training_context=65536)
    request = Request(corpus="random-bodies")

    assert 4096 == plan.checked_or_default_context(request, header, stretched=False)


def test_a_context_beyond_the_training_is_refused_with_the_longest():
    with pytest.raises(BadInput) as caught:
        planned(contexts=(8193,))

    assert "8,193" in str(caught.value)
    assert "--context 8192" in caught.value.hint
    stretching = FakeEngine(stretches_context=True)
    assert 16000 == planned(engine=stretching, contexts=(16000,)).context


@pytest.mark.parametrize(
    ("template", "built_in", "expected"),
    [
        ("{{ messages }}", False, PromptForm.CHAT),
        ("", False, PromptForm.COMPLETION),
        (None, False, PromptForm.COMPLETION),
        ("{{ messages }}", True, PromptForm.COMPLETION),
    ],
)
def test_a_template_makes_a_chat_but_for_the_built_in_model(
    template, built_in, expected
):
    request = Request(models=() if built_in else ("model.gguf",))
    header = SimpleNamespace(chat_template=template, is_read=True)

    assert expected == prompt_form.default_prompt_form(request, header)
    assert PromptForm.CHAT == planned(prompt_form=PromptForm.CHAT).prompt_form


@pytest.mark.parametrize("axis", ["k_types", "v_types"])
def test_a_type_that_the_binary_lacks_is_refused_with_those_that_it_has(axis, golden):
    with pytest.raises(BadInput) as caught:
        planned(**{axis: ("q8_0", "q4_K")})

    assert golden == (str(caught.value), caught.value.hint)


def test_an_engine_says_which_types_and_pairs_it_has():
    same = frozenset({Pair("q8_0", "q8_0"), Pair("q4_0", "q4_0")})
    silent = FakeEngine(types=CacheTypes())
    paired = FakeEngine(types=CacheTypes(k=TYPES, v=TYPES, pairs=same))

    assert ("q6_0",) == planned(engine=silent, k_types=("q6_0",)).request.grid_k_types
    assert same == set(planned(engine=paired).pairs)


def test_types_that_nobody_names_are_those_that_the_engine_usually_has(golden):
    usual = FakeEngine(types=CacheTypes(usual=("f16", "kv8")))
    silent = FakeEngine(types=CacheTypes(usual=()))

    assert ("f16", "kv8") == planned(engine=usual, types=()).request.grid_k_types
    assert TWO == planned(engine=silent).request.grid_k_types
    with pytest.raises(BadInput) as caught:
        planned(engine=silent, types=())
    assert golden == str(caught.value)


@pytest.mark.parametrize(
    ("probe", "ability"),
    [("divergence", Ability.DIVERGENCE), ("throughput", Ability.SPEED)],
)
def test_a_probe_that_needs_what_the_engine_lacks_is_refused(probe, ability):
    engine = FakeEngine(abilities=frozenset(Ability) - {ability, Ability.READING})

    with pytest.raises(ToolMissing, match=ability):
        planned(engine=engine, probes=("recall", probe))
    assert planned(engine=engine, probes=("recall",))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"probes": ("throughput",)}, ToolMissing),
        ({"contexts": (1 << 20,)}, BadInput),
    ],
    ids=["ability", "context"],
)
def test_the_corpus_is_read_once_engine_and_context_are_checked(changes, error):
    engine = FakeEngine(abilities=frozenset())

    def read(_name):
        raise AssertionError("read")

    with pytest.raises(error):
        plan.plan(
            asking(**changes),
            Execution(),
            engine_for=lambda spec: replace(engine, model=spec),
            read=read,
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_form": PromptForm.COMPLETION}, "completion form"),
        ({"models": ()}, "built-in model"),
        ({"models": (), "prompt_form": PromptForm.CHAT}, "built-in model"),
    ],
)
def test_an_empty_thought_is_refused_where_nothing_thinks(changes, words):
    with pytest.raises(BadInput, match=words) as caught:
        planned(prefill_no_think=True, **changes)

    assert "--model" in caught.value.hint
    assert planned(prefill_no_think=True, prompt_form=PromptForm.CHAT)


def test_arguments_of_every_page_are_checked():
    asked = asking(variants={"plain": (), "p": ("--port", "1")})
    plain, other = pages(asked)

    assert planned_page(*plain)
    with pytest.raises(BadInput, match="--port"):
        planned_page(*other)


def test_a_full_disk_is_noticed_before_the_start(leave_free):
    leave_free(1 << 20)

    with pytest.raises(FolderUnusable, match=r"only 1\.0 MiB is") as caught:
        planned()

    assert "--out" in caught.value.hint


def test_a_folder_below_one_that_is_closed_is_noticed_before_the_start(
    tmp_path, monkeypatch
):
    closed = tmp_path / "closed"
    closed.mkdir()
    stat, access = os.stat, os.access

    def refusing(path, *args, **kwargs):
        if closed in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refusing)
    monkeypatch.setattr(os, "access", lambda p, m: p != closed and access(p, m))

    with pytest.raises(FolderUnusable) as caught:
        planned(out=closed / "runs")
    assert closed == caught.value.folder


@pytest.mark.parametrize(
    "asked", [{"corpus": "./nowhere"}, {"models": ("./nowhere.gguf",)}]
)
def test_what_is_not_there_is_told_before_the_engine_is_asked(asked):
    def engine_for(_spec):
        raise AssertionError

    ((name, page),) = pages(asking(**asked))
    with pytest.raises(CodeneedleError, match="nowhere"):
        plan.plan(page, Execution(page=name), engine_for=engine_for)


def test_a_user_is_told_of_the_built_in_model_and_of_what_is_left_out(tmp_path, golden):
    body = "".join(f"    name_{n} = {n}\n" for n in range(24))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "good.py").write_text(f"def first():\n{body}")
    (tmp_path / "src" / "bad.py").write_text("def (:\n")
    mini = planned(models=(), corpus=None, contexts=(8192,))
    (chosen,) = notes_of_plan(mini)
    memorised = notes_of_plan(planned(models=(), corpus="http_server"))

    named = planned(models=("needle-nano",), corpus=mini.corpus.name, contexts=(8192,))
    assert () == notes_of_plan(named)
    assert golden == (chosen, memorised[-1])
    assert "random-bodies" == plan.chosen_or_default_corpus(Request(models=("m.gguf",)))
    assert "bad.py" in notes_of_plan(planned(corpus="./src"))[0]


@pytest.mark.parametrize(
    ("corpus", "is_short"), [("tiny", True), ("random-bodies", False)]
)
def test_a_text_that_ends_before_its_context_is_told_before_it_is_read(
    corpus, is_short, golden
):
    notes = notes_of_plan(planned(corpus=corpus, contexts=(8192,)))

    assert is_short == bool(notes)
    assert golden == notes


def test_a_task_whose_answer_fills_the_context_is_named_and_no_length():
    """The longest ledger alone takes more than 1,024 tokens."""
    settings = RetrievalSettings(tasks=("ledger",), lengths=(512,))

    with pytest.raises(BadInput) as stopped:
        planned(probes=("retrieval",), retrieval=settings, contexts=(1024,))
    assert "fewer --tasks" in stopped.value.hint


@pytest.mark.parametrize(
    ("types", "probes", "tries"),
    [
        (("f16", "q8_0", "q4_0"), ("recall",), True),
        (("f16", "q8_0", "q4_0"), ("recall", "throughput"), True),
        (("f16", "q8_0"), ("recall",), False),
    ],
)
def test_the_reference_of_a_long_grid_is_tried_first(types, probes, tries):
    plan = planned(types=types, probes=probes)

    assert tries == measures_reference_first(plan)
    for probe in plan.probes:
        order, without = (
            running_order(plan, probe),
            running_order(plan, probe, tries_reference=False),
        )
        assert tries == (order != without)
        assert {*plan.pairs} == {*order}
        if tries:
            assert Pair("f16", "f16") == order[0]


@pytest.mark.parametrize("types", [("f16", "q8_0"), ("f16", "q8_0", "q4_0")])
def test_a_probe_that_calibrates_begins_with_the_reference_and_shuffles_the_rest(types):
    """So that heat and drift do not align with precision."""
    plan = planned(types=types, probes=("divergence",))
    (probe,) = plan.probes

    first, *rest = running_order(plan, probe, tries_reference=False)

    assert Pair("f16", "f16") == first
    assert [pair for pair in plan.pairs if pair != first] == rest


def test_a_second_context_has_a_folder_of_its_own_and_the_first_keeps_its_own(
    tmp_path,
):
    """Also where two contexts were asked for at once before."""
    root = tmp_path / "sweeps"
    plain = checked_run_folder(root, corpus="c", model="m")
    execution = Execution(out=root)
    assert plain == _plain_or_context_folder(execution, "c", "m", 4096)

    Store(plain).check_and_store_setup(replace(made_setup(), context=4096))

    second = checked_run_folder(root, corpus="c", model="m+context-8192")
    both = replace(execution, page="context-4096")
    assert plain == _plain_or_context_folder(execution, "c", "m", 4096)
    assert plain == _plain_or_context_folder(both, "c", "m", 4096)
    assert second == _plain_or_context_folder(execution, "c", "m", 8192)


def test_memory_for_reading_is_that_of_the_context_that_decides():
    """It is shorter than the default where reading takes long."""

    class Engine(FakeEngine):
        def pace(self, _pairs):
            back = {"read_back_s": 0, "write_back_s": 0}
            return Pace(start_s=0, read_s=0.05, write_s=1, **back)

        def why_it_cannot_read(self, context, *, workers=1):
            return "no memory" if context > 4_096 else ""

    plan = planned(
        corpus="random-bodies-many",
        recall=RecallSettings(way=(Way.READ,)),
        decide=True,
        engine=Engine(abilities=frozenset(Ability), stretches_context=True),
    )

    assert (True, "") == (plan.context <= 4_096, plan.unread)
