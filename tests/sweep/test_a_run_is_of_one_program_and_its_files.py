"""A run goes on with the program, files and variables that it began with, or not."""

from dataclasses import replace

import pytest
from fake_engine import FakeEngine
from made_contexts import run_context
from made_records import made_record, made_setup
from programs import llama_like, script

from codeneedle.cache_types import Pair
from codeneedle.cli.engines import ENGINES
from codeneedle.engines.engine import Engine, ModelSpec
from codeneedle.engines.llama_cpp.arguments import files_in
from codeneedle.engines.llama_cpp.engine import LlamaCpp
from codeneedle.engines.llama_cpp.installation import (
    Program,
    Tools,
    program_hashes,
)
from codeneedle.engines.mlx.engine import Mlx
from codeneedle.engines.openai.engine import OpenAiEngine, command_engine_factory
from codeneedle.engines.openai.settings import CommandSettings
from codeneedle.errors import BadInput
from codeneedle.probes.cell import ProbeContext
from codeneedle.records.comparability import (
    OtherSetup,
    merge_compatible_setups,
    setup_differences,
)
from codeneedle.records.store import Store
from codeneedle.sweep.merge import merge
from codeneedle.sweep.runner import Runner
from codeneedle.system.contents import (
    cached_content_hash,
    existing_files_in_words,
    file_hashes,
)
from codeneedle.system.inherited_variables import setup_variables

F16 = Pair("f16", "f16")
SETUP = made_setup()


def differences(**changes):
    return [key for key, _, _ in setup_differences(SETUP, replace(SETUP, **changes))]


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"chat.jinja": "ab"}},
        {"variables": {"GGML_X": "1"}},
        {"programs": {"llama-server": "ab"}},
        {"refused": {"divergence": "it is"}},
    ],
    ids=["files", "variables", "programs", "refused"],
)
def test_setups_differ_by_what_arguments_name_and_variables_say(changes, golden):
    assert golden == differences(**changes)


def test_programs_are_compared_as_far_as_both_have_them():
    ours = replace(SETUP, programs={"llama-server": "ab"})
    more = replace(SETUP, programs={"llama-server": "ab", "llama-bench": "cd"})
    other = replace(more, programs={"llama-server": "xy"})

    assert [] == [*setup_differences(ours, more)]
    assert more.programs == merge_compatible_setups(ours, more).programs
    assert [("program llama-server", "ab", "xy")] == [*setup_differences(ours, other)]


def test_folders_of_other_files_are_not_merged(tmp_path, golden):
    for name, files in (("a", {}), ("b", {"chat.jinja": "ab"})):
        store = Store(tmp_path / name / "corpus" / "model")
        store.folder.mkdir(parents=True)
        store.check_and_store_setup(replace(SETUP, files=files))

    with pytest.raises(BadInput) as caught:
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert golden == str(caught.value)


# Files that words name


@pytest.mark.parametrize(
    "word", ["{}", "--template={}", "{}:0.5", "none,{}", "A={},other", "{},{}:1"]
)
def test_a_word_that_names_a_file_is_found_by_rule(word, tmp_path):
    file = tmp_path / "adapter.gguf"
    file.write_text("made")

    assert [file] == [
        *existing_files_in_words(["-x", word.replace("{}", str(file)), "512"])
    ]


def test_all_parts_of_weights_that_draft_are_files_of_an_argument(tmp_path):
    parts = [tmp_path / f"draft-0000{at}-of-00002.gguf" for at in (1, 2)]
    for part in (*parts, tmp_path / "other.gguf"):
        part.write_text("made")

    assert parts == [*files_in(["-md", str(parts[0])])]


def test_files_of_one_name_are_told_apart(tmp_path):
    files = [tmp_path / "a" / "x.gguf", tmp_path / "b" / "x.gguf"]
    for file in files:
        file.parent.mkdir()
        file.write_text(str(file))

    assert ["x.gguf", "x.gguf (2)"] == [*file_hashes(files)]


@pytest.mark.parametrize("size", [10, 3 << 20])
def test_a_file_that_is_written_anew_has_another_hash(size, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"a" * size)
    before = cached_content_hash(file)
    file.write_bytes(b"a" * (size - 1) + b"b")

    assert before != cached_content_hash(file)
    assert "" == cached_content_hash(tmp_path / "none")


# What engines say of theirs


def test_llama_cpp_tells_its_programs_with_their_libraries(tmp_path):
    server = llama_like(tmp_path / "bin" / "llama-server")
    tools = Tools(server=Program(server), perplexity=None, bench=None, source="PATH")
    plain = program_hashes(tools)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libggml-base.so.0").write_text("made")
    (tmp_path / "lib" / "libc.so.6").write_text("of the system")
    with_library = program_hashes(tools)
    (tmp_path / "lib" / "libc.so.6").write_text("another one")

    assert ["llama-server"] == [*plain]
    assert plain != with_library
    assert with_library == program_hashes(tools)


def test_llama_cpp_tells_the_files_of_its_arguments(tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text("made")
    model = ModelSpec(
        weights=FakeEngine().model.weights,
        name="made",
        arguments=("--chat-template-file", str(template)),
    )
    served = LlamaCpp(tools=None, facts=None, model=model)

    assert {"chat.jinja": cached_content_hash(template)} == served.hashes_by_file()


def test_a_command_tells_its_program_and_the_scripts_that_it_names(tmp_path):
    inner = script(tmp_path / "start.sh", "exit")
    settings = CommandSettings(command=f"sh {inner} ${{k}} ${{v}} ${{port}}")
    model = ModelSpec(weights=FakeEngine().model.weights, name="made")
    made = command_engine_factory(settings, types=("f16",), environment={})(model)

    assert ["start.sh"] == [*made.hashes_by_file()]
    assert 1 == len(made.hashes_by_program())


def test_variables_that_decide_how_a_backend_computes_are_told(tmp_path, monkeypatch):
    library = tmp_path / "libggml-made.so"
    library.write_text("made")
    monkeypatch.setenv("GGML_VK_DISABLE_F16", "1")
    monkeypatch.setenv("GGML_BACKEND_PATH", str(library))
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("GGML_SCHED_DEBUG", "2")

    assert {
        "GGML_BACKEND_PATH": f"sha256:{cached_content_hash(library)}",
        "GGML_VK_DISABLE_F16": "1",
    } == setup_variables()


STARTS_NOTHING = {"endpoint"}
"""Engines whose server is somebody else's."""


def test_every_engine_tells_its_programs_or_starts_none():
    """By rule: a new engine is held to it."""
    engines = {
        each.name: each for each in (LlamaCpp, Mlx, *OpenAiEngine.__subclasses__())
    }

    assert {*ENGINES} == {*engines}
    assert STARTS_NOTHING == {
        name
        for name, each in engines.items()
        if each.hashes_by_program is Engine.hashes_by_program
    }


# What serves the cells


def served(run, store, program):
    """Serve a cell of *run* by *program*, as the runner has it checked."""
    runner = Runner(run=run, store=store)
    engine = FakeEngine(program=program)
    cell = ProbeContext(
        run=replace(run, engine=engine),
        pair=F16,
        logs=store.folder,
        identify=runner._keep_or_refuse_program,
    )
    with cell.serving():
        pass
    return runner.run


def test_another_program_than_that_of_the_numbers_ends_a_sweep(tmp_path):
    """Whatever version it states: many builds share one."""
    store = Store(tmp_path)
    run = run_context(tmp_path)
    run = replace(run, setup=store.check_and_store_setup(run.setup))
    run = served(run, store, "one")
    run = served(run, store, "two")
    store.write_record(made_record("f16/f16", []))
    served(run, store, "two")

    assert {"sha256": "two"} == store.read_calibrations()["program"]
    with pytest.raises(OtherSetup) as refused:
        served(run, store, "three")
    assert "program that serves" == refused.value.key
