"""The benchmark: its arithmetic, what it compares, that it leaves nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_records import made_needle

from codeneedle.corpora import corpus
from codeneedle.engines.llama_cpp.installation import ServerFacts
from codeneedle.grid import Pair
from codeneedle.models.weights import read_header
from codeneedle.records.record import Phases, Recall, Round
from codeneedle.system.processes import OMISSION

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.append(str(SCRIPTS))
import bench_place  # noqa: E402 - found in the folder just added
import bench_protocol  # noqa: E402
import bench_published  # noqa: E402
import bench_sums  # noqa: E402
import bench_sweeps  # noqa: E402
import bench_tree  # noqa: E402

ASKED = bench_place.Asked(repetitions=2, pairs=("q8_0/q8_0",))


def bench(*arguments: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """The program, as a person without a terminal would run it."""
    env = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, str(SCRIPTS / "bench.py"), *arguments],
        env={name: value for name, value in env.items() if value is not None},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


# --- arithmetic


def test_a_spread_is_median_least_and_most():
    """
    In whatever order they came.
    """
    found = bench_sums.spread([4.0, 1.0, 3.0])

    assert (3.0, 1.0, 4.0, 3) == (found.median, found.least, found.most, found.count)
    assert "3.0 (1.0 to 4.0)" == found.phrase()


def test_a_number_without_a_spread_stands_alone():
    """
    One repetition has a median, and pretends to nothing else.
    """
    assert "1,234.50" == bench_sums.spread([1234.5]).phrase(2)
    assert "2.0" == bench_sums.spread([2.0, 2.0]).phrase()


def test_what_is_unknown_is_left_out_and_nothing_is_a_dash():
    """
    A gap, never a zero.
    """
    assert "3.0" == bench_sums.phrase([None, 3.0])
    assert "-" == bench_sums.phrase([None, None])
    with pytest.raises(ValueError, match="nothing was measured"):
        bench_sums.spread([])


def test_ratios_are_those_of_each_repetition():
    """
    A machine that slows down for a repetition changes no ratio.
    """
    ours, theirs = [1.0, 1.2, 9.0], [10.0, 12.0, 90.0]

    assert pytest.approx((10.0, 10.0, 10.0)) == bench_sums.ratios(theirs, ours)
    with pytest.raises(ValueError, match="zip"):
        bench_sums.ratios([1.0], [1.0, 2.0])


def test_totals_are_those_of_each_repetition():
    """
    Parts are added before anything is summarised.
    """
    assert (11.0, 22.0) == bench_sums.totals([[1.0, 2.0], [10.0, 20.0]])


def test_shares_are_in_per_cent_and_the_best_is_the_smallest():
    """
    What tables show.
    """
    assert 25.0 == bench_sums.share(1.0, 4.0)
    assert 0.2 == bench_sums.best([0.3, 0.2, 0.9])


@pytest.mark.parametrize(
    ("count", "wanted", "expected"),
    [(16, 6, [0, 3, 6, 9, 12, 15]), (2, 6, [0, 1]), (5, 1, [0]), (1, 3, [0])],
)
def test_chosen_places_are_spread_from_the_first_to_the_last(count, wanted, expected):
    """
    Each of them once.
    """
    assert expected == bench_sums.spaced(count, wanted)


# --- both sides of the protocol


def model(nano):
    """Something that serves, as the published side sees it."""
    facts = ServerFacts(
        version="b1", build=1, k_types=(), v_types=(), options=frozenset(), devices=()
    )
    return bench_place.Model(
        binary=Path("/llama-server"),
        server=facts,
        weights=read_header(nano),
        sha256="ab" * 32,
    )


def test_the_published_server_has_types_attention_and_context_and_nothing_else(nano):
    """
    Threads, slots and prompt cache are llama-server's own; nothing drafts.
    """
    argv = bench_published.command(Pair("q8_0", "q4_0"), model=model(nano), port=1)

    assert [
        "--model",
        *("--host", "--port", "--ctx-size", "--flash-attn"),
        *("--cache-type-k", "--cache-type-v"),
    ] == [word for word in argv if word.startswith("--")]
    assert ["q8_0", "--cache-type-v", "q4_0"] == argv[-3:]


def test_the_published_question_is_a_greedy_chat_that_nothing_ends_early():
    """
    Not streamed, no probabilities, the whole text first.
    """
    needle = made_needle()
    text = bench_published.Text(text="the corpus", needles=(needle,))
    body = bench_published.question(text, needle, 1500)

    assert {"messages", "chat_template_kwargs", "max_tokens", "temperature"} == set(
        body
    )
    assert (1500, 0) == (body["max_tokens"], body["temperature"])
    assert body["messages"][0]["content"].startswith("the corpus\n---\n")


def test_replies_of_both_sides_are_scored_alike():
    """
    By the lines that a sweep would count.
    """
    needle = made_needle()
    whole = "\n".join(needle.lines)

    assert (20, 0) == bench_published.matched((needle, needle), [whole, "no"])


def cell(matched):
    """A cell of a sweep."""
    return bench_sweeps.OurCell(
        pair="q8_0/q8_0",
        phases=Phases(between_s=0.5, ready_s=1.0, measure_s=8.0, stop_s=0.5),
        busy_s=5.0,
        matched=matched,
        tokens=900,
        drafted=0,
        accepted=0,
    )


def compared(matched, *, needles=("a", "b")):
    """A comparison of one turn, in which the published side recalled all."""
    published = bench_published.Published(
        pair="q8_0/q8_0",
        wall_s=90.0,
        ready_s=1.0,
        busy_s=80.0,
        tokens=1,
        read=1,
        matched=(20,),
    )
    sweep = bench_sweeps.Swept(
        command_s=15.0, cells=(cell(matched),), corpus_tokens=9, needles=needles
    )
    turn = bench_protocol.Turn(published=published, plain=sweep, drafted=sweep)
    return bench_protocol.Compared(
        turns={"q8_0/q8_0": [turn]}, sittings=[], same_needles=needles == ("a", "b")
    )


@pytest.fixture
def place(tmp_path, nano):
    """A place with a model that nobody starts."""
    return bench_place.Place(folder=tmp_path, asked=ASKED, _model=model(nano))


def test_the_protocol_is_told_in_times_of_ours(place):
    """
    Published 90 s; the command 15 s, the cell 10 s with what lay before it.
    """
    told = bench_protocol.protocol_section(place, compared((20,)))
    rows = [row for row in told.rows if row]

    assert ("q8_0/q8_0", "published", "", "90.0", "", "", "20.00") == rows[0]
    assert ("", "as it is", "15.0", "10.0", "6.0", "9.0", "20.00") == rows[2]
    assert "the same answers: 20.00 of 20 lines in each of 3 rounds" in told.lines[-1]


@pytest.mark.parametrize(
    "found", [compared((20, 19)), compared((20,), needles=("a", "c"))]
)
def test_times_of_other_answers_are_not_compared(place, found):
    """
    A lost line or another needle is said below the table.
    """
    told = bench_protocol.protocol_section(place, found)

    assert "NOT the same answers" in told.lines[-1]


def test_waiting_is_told_of_the_cell_and_of_ten_seconds(place):
    """
    Two of ten seconds, and twice what the server was busy.
    """
    told = bench_protocol.time_section(place, compared((20,)))

    assert ("20.0", "20.0", "2.00") == told.rows[0][-3:]
    assert ("-", "8.00") == (told.rows[0][4], told.rows[0][5])


def test_a_server_is_busy_with_what_its_log_ends_and_what_was_cut(tmp_path):
    """
    A cut round has no line there; a log without its middle tells nothing.
    """
    told = {"prompt_sha256": "", "predicted_ms": 400.0}
    cut = Round(needle="a", finish="cut", prompt_ms=100.0, **told)
    ended = Round(needle="b", finish="stop", prompt_ms=9e9, **told)
    recall = Recall(rounds=(cut, ended))
    log = tmp_path / "log"
    line = "0.1 I slot print_timing: id 0 | task {} |  total time =  {} ms / 9 tokens\n"
    log.write_text(line.format(0, "1000.00") + line.format(3, "500.50"))

    assert pytest.approx(2.0005) == bench_sweeps.busy_s(recall, log)
    log.write_bytes(log.read_bytes() + OMISSION)
    assert bench_sweeps.busy_s(recall, log) is None


# --- what is measured on


def test_the_corpus_is_one_of_nine_thousand_bytes(tmp_path):
    """
    16 functions, of which each byte is a token of the built-in model.
    """
    made = bench_place.Place(folder=tmp_path, asked=bench_place.Asked())
    loaded = corpus.load(str(made.corpus))

    assert (16, 9020) == (len(loaded.chosen()), loaded.size_bytes)


def test_a_source_tree_is_the_same_for_the_same_seed_and_all_of_it_is_read(tmp_path):
    """
    In three languages, about as large as asked, its largest file a twentieth of it.
    """
    sizes = [bench_tree.make_tree(tmp_path / name, size_bytes=400_000) for name in "ab"]
    files = [
        {path.relative_to(top): path.read_bytes() for path in top.rglob("*.*")}
        for top in (tmp_path / "a", tmp_path / "b")
    ]
    loaded = corpus.load(str(tmp_path / "a"))

    assert files[0] == files[1]
    assert {".py", ".js", ".php"} == {path.suffix for path in files[0]}
    assert 400_000 == pytest.approx(sum(map(len, files[0].values())), rel=0.05)
    assert 20_000 == pytest.approx(sizes[0], rel=0.2)
    assert () == loaded.skipped
    assert loaded.functions_in_all > 100


def test_a_busy_machine_is_told_and_a_quiet_one_is_not(monkeypatch):
    """
    Busy is when more than half of the cores are wanted.
    """
    monkeypatch.setattr(bench_place.machine, "usable_cores", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.1, 0.0, 0.0))
    busy = bench_place.busy_line()
    monkeypatch.setattr(os, "getloadavg", lambda: (0.9, 9.0, 9.0))

    assert "Numbers will be rough" in busy
    assert not bench_place.busy_line()


def test_a_place_goes_away_and_leaves_the_environment_as_it_was(nano, monkeypatch):
    """
    Inside, the cache folder is another one, with the same model.
    """
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    before = dict(os.environ)
    with bench_place.place(ASKED) as found:
        inside = Path(os.environ["CODENEEDLE_CACHE"])
        assert inside.is_relative_to(found.folder)
        assert nano.read_bytes() == (inside / nano.name).read_bytes()
        first, second = found.fresh("sweeps"), found.fresh("sweeps")

    assert first != second
    assert not found.folder.exists()
    assert before == dict(os.environ)


# --- the program


def test_a_section_that_does_not_exist_is_refused_before_anything_is_measured():
    """
    As are pairs that are none.
    """
    section, pair = bench("protocoll"), bench("time", "--pairs", "q8_0")

    assert (2, 2) == (section.returncode, pair.returncode)
    assert "there are protocol, time, speculation" in section.stderr
    assert "--pairs" in pair.stderr


def test_without_llama_cpp_it_says_what_to_run(tmp_path):
    """
    An error with the next action, and no traceback.
    """
    told = bench(
        "speculation",
        CODENEEDLE_CACHE=str(tmp_path),
        PATH="",
        LLAMA_SERVER=None,
    )

    assert 3 == told.returncode
    assert "hint: Run: make llama" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.real
def test_both_sides_recall_the_same_and_nothing_is_left(llama_server, nano, tmp_path):
    """
    One pair, two functions: a table, the raw numbers, no file but those asked for.
    """
    kept, scratch = tmp_path / "bench.json", tmp_path / "tmp"
    scratch.mkdir()
    mine = tmp_path / "cache"
    mine.mkdir()
    (mine / nano.name).write_bytes(nano.read_bytes())
    told = bench(
        *("protocol", "--pairs", "q8_0/q8_0", "--repetitions", "1"),
        *("--functions", "2", "--reply-tokens", "600", "--json", str(kept)),
        LLAMA_SERVER=str(llama_server),
        CODENEEDLE_CACHE=str(mine),
        TMPDIR=str(scratch),
        # Its threads would spin against everybody else's.
        OMP_WAIT_POLICY="passive",
    )

    assert 0 == told.returncode, told.stderr
    assert "the same answers: 20.00 of 20 lines in each of 6 rounds" in told.stdout
    assert llama_server.parent.name in told.stdout.replace("build 11434", "b11434")
    turn = json.loads(kept.read_text())["sections"]["protocol"]["turns"]["q8_0/q8_0"][0]
    assert 1200 == turn["published"]["tokens"]
    assert 1200 < turn["published"]["read"] < 1400  # the corpus once
    assert turn["plain"]["cells"][0]["drafted"] == 0
    assert turn["drafted"]["cells"][0]["accepted"] > 0
    assert [nano.name] == [path.name for path in mine.iterdir()]
    assert [] == list(scratch.iterdir())
