"""The text of a divergence: which it is, and what is refused before anything starts."""

import hashlib
from dataclasses import replace

import msgspec
import pytest
from fake_engine import made_weights
from fake_tools import FakeDivergence, ToolEngine
from made_contexts import made_outlook, stored_by
from made_divergences import TEXT

from codeneedle.corpora.registry import load
from codeneedle.engines.engine import ModelSpec
from codeneedle.errors import BadInput, FolderUnusable
from codeneedle.probes.divergence import comparison, texts
from codeneedle.probes.divergence.probe import PROBE, DivergenceSettings

SHA256 = "326cc5e1e3102cf43e309a411ca022b51be876568a5d8b3dbef7c17e6b781796"


@pytest.mark.parametrize(("present", "notes"), [(0, 1), (1 << 30, 0)])
def test_the_file_of_the_reference_is_told_before_a_sweep(tmp_path, present, notes):
    """192 MiB of a --decide were once in no plan."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    tool = FakeDivergence()
    tool.bytes_to_write = lambda _folder, **_sizes: max(0, (192 << 20) - present)
    engine = ToolEngine(divergence=tool)
    settings = DivergenceSettings(file=text)

    estimates = made_outlook(engine=engine, folder=tmp_path)
    told = PROBE.notes(settings, estimates)

    assert notes == len(told)
    assert all("192.0 MiB" in each for each in told)


# Conditions


def test_the_text_is_the_corpus_as_sent(made_run):
    chosen = stored_by(PROBE, made_run(chunks=(4,)))

    assert {
        "contexts": [512],
        "chunks": [4],
        "text": "random-bodies",
        "text_sha256": hashlib.sha256(TEXT.encode()).hexdigest(),
        "llama": "1.2 (fake)",
        "arguments": ["-t", "1"],
    } == chosen


def test_a_file_takes_the_place_of_the_corpus(made_run, tmp_path):
    file = tmp_path / "wiki.txt"
    file.write_text("x" * 5000)
    chosen = stored_by(PROBE, made_run(file=file))

    assert ("wiki.txt", hashlib.sha256(b"x" * 5000).hexdigest()) == (
        chosen["text"],
        chosen["text_sha256"],
    )


def test_a_file_is_checked_before_anything_starts(tmp_path):
    file = tmp_path / "wiki.txt"
    file.write_text("x" * 5000)
    tool = FakeDivergence()
    estimates = made_outlook(engine=ToolEngine(divergence=tool))

    PROBE.adapt(DivergenceSettings(file=file), estimates)

    assert 5000 == tool.checked[0]["text_bytes"]


def test_each_context_is_checked_by_the_tool(made_run):
    tool = FakeDivergence()
    unasked = stored_by(PROBE, made_run(tool, contexts=()))
    tool.checked.clear()
    chosen = stored_by(PROBE, made_run(tool, contexts=(4096, 512, 4096)))

    assert ([4096, 512], [2, 8]) == (chosen["contexts"], chosen["chunks"])
    assert ([64], [16]) == (unasked["contexts"], unasked["chunks"])
    assert [(4096, 2), (512, 8)] == [
        (each["context"], each["chunks"]) for each in tool.checked
    ]
    assert {("random-bodies", len(TEXT))} == {
        (each["text_name"], each["text_bytes"]) for each in tool.checked
    }


@pytest.mark.parametrize(
    ("size", "changes", "expected"),
    [
        (5000, {}, 64),
        (70_000, {}, 256),
        (70_000, {"weights": made_weights(training_context=128)}, 128),
        (500, {}, 64),
        (9000, {}, 128),
        (9000, {"is_built_in": True}, 256),
    ],
)
def test_the_default_context_suits_text_and_weights(made_run, size, changes, expected):
    run = made_run(corpus="x" * size, contexts=(), changes=changes)

    assert [expected] == stored_by(PROBE, run)["contexts"]


def test_a_context_beyond_the_training_is_refused(made_run):
    changes = {"weights": made_weights(training_context=256)}

    with pytest.raises(BadInput, match=r"--divergence-context 512: .* 256 tokens"):
        stored_by(PROBE, made_run(changes=changes))
    run = made_run(changes=changes, stretched=True)
    assert [512] == stored_by(PROBE, run)["contexts"]


def test_a_disk_that_is_too_small_is_refused_before_anything_starts(
    made_run, leave_free
):
    tool = FakeDivergence()
    run = made_run(tool, contexts=(512, 1024), chunks=(4,))
    needed = 2 * 4000 + comparison.SPARE_BYTES
    leave_free(needed - 1)
    with pytest.raises(FolderUnusable, match=r"take 7\.8 KiB"):
        stored_by(PROBE, run)

    leave_free(needed)
    assert stored_by(PROBE, run)
    assert [] == tool.calls


# Settings, before anything is loaded


@pytest.mark.parametrize("name", ["", "nowhere.txt", "n" * 300])
def test_a_text_that_is_no_file_is_refused_in_planning(tmp_path, name):
    with pytest.raises(BadInput, match="--text"):
        PROBE.adapt(DivergenceSettings(file=tmp_path / name), made_outlook())


def test_a_text_that_is_too_large_is_refused_in_planning(tmp_path, monkeypatch, golden):
    monkeypatch.setattr(comparison, "MAX_TEXT_BYTES", 10)
    file = tmp_path / "wiki.txt"
    file.write_text("x" * 10)
    estimates = made_outlook(engine=ToolEngine(divergence=FakeDivergence()))
    PROBE.adapt(DivergenceSettings(file=file), estimates)
    file.write_text("x" * 11)

    with pytest.raises(BadInput) as caught:
        PROBE.adapt(DivergenceSettings(file=file), estimates)
    assert golden == str(caught.value)


def test_a_text_is_handed_on_in_utf_8_or_refused(tmp_path):
    """A tool that is given other bytes ends, or measures what is no text."""
    file = tmp_path / "wiki.txt"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        file.write_bytes("Ein Satz über Größe.\n".encode(encoding))
        assert "Ein Satz über Größe.\n".encode() == comparison.read_text_as_utf8(file)
    file.write_bytes("\nGröße".encode("latin-1"))

    with pytest.raises(BadInput, match=r"not UTF-8 \(line 2\)") as caught:
        comparison.read_text_as_utf8(file)
    assert "iconv" in caught.value.hint


def test_more_chunks_than_a_text_can_have_are_refused_in_planning(tmp_path, golden):
    file = tmp_path / "wiki.txt"
    file.write_text("x" * 5000)
    in_file = DivergenceSettings(file=file, contexts=(400, 500), chunks=(10,))
    estimates = made_outlook(engine=ToolEngine(divergence=FakeDivergence()))
    PROBE.adapt(in_file, estimates)
    engine = ToolEngine(model=replace(estimates.engine.model, is_tiny=True))
    of_corpus, corpus = replace(estimates, engine=engine), estimates.corpus
    fitting = corpus.size_bytes // 500
    PROBE.adapt(DivergenceSettings(contexts=(500,), chunks=(fitting,)), of_corpus)

    with pytest.raises(BadInput) as caught:
        PROBE.adapt(msgspec.structs.replace(in_file, chunks=(11,)), estimates)
    assert golden == caught.value.hint
    with pytest.raises(BadInput) as caught:
        PROBE.adapt(
            DivergenceSettings(contexts=(500,), chunks=(fitting + 1,)), of_corpus
        )
    assert f"--chunks {fitting} " in caught.value.hint
    assert golden == (str(caught.value), caught.value.hint)


def test_contexts_have_one_number_of_chunks_or_one_each(made_run, golden):
    sizes = {"contexts": (512, 1024, 256)}
    stored = stored_by(PROBE, made_run(**sizes, chunks=(4, 2, 4)))
    uneven = DivergenceSettings(contexts=(512, 1024, 256), chunks=(4, 2))

    assert [4, 2, 4] == stored["chunks"]
    assert [2, 2, 2] == stored_by(PROBE, made_run(**sizes, chunks=(2,)))["chunks"]
    with pytest.raises(BadInput) as caught:
        PROBE.adapt(uneven, made_outlook())
    assert golden == str(caught.value)


def test_prose_takes_the_place_of_the_corpus_but_with_the_built_in_model(made_run):
    plain, engine = DivergenceSettings(), made_run().engine
    engine.model = ModelSpec(weights=made_weights(), name="some")
    tiny = ToolEngine(model=replace(engine.model, is_tiny=True))

    def adapted(settings, engine):
        return PROBE.adapt(settings, made_outlook(engine=engine))

    prose = adapted(plain, engine)

    assert texts.ORDINARY == prose.file
    assert SHA256 == hashlib.sha256(texts.PROSE.read_bytes()).hexdigest()
    assert (plain, prose) == (adapted(plain, tiny), adapted(prose, engine))
    assert [None, ""] == [PROBE.own_text_name(plain, each) for each in (tiny, engine)]


def test_what_a_text_too_short_for_two_chunks_has_is_offered():
    """As the row for the table of models asks of the built-in model."""
    corpus = load("random-bodies-short")
    outlook = made_outlook(engine=ToolEngine(divergence=FakeDivergence()))
    engine = ToolEngine(model=replace(outlook.engine.model, is_tiny=True))
    of_corpus = replace(outlook, corpus=corpus, engine=engine, is_built_in=True)
    with pytest.raises(BadInput) as caught:
        PROBE.adapt(DivergenceSettings(contexts=(1024,), chunks=(8,)), of_corpus)

    assert caught.value.hint.startswith("Use --divergence-context 64 --chunks 16, ")
    PROBE.adapt(DivergenceSettings(contexts=(256,), chunks=(4,)), of_corpus)
