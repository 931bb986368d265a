"""Sweeps that speculate, and those that find that they must not."""

import json
from pathlib import Path

import pytest
from programs import script

pytestmark = pytest.mark.real

CORPUS = """\
[generate]
functions = 4
value_length = 6
name_length = 5
seed = 7
"""
SMALL = ("--corpus", "tiny", "--types", "q8_0,q4_0", "--context", "4096")
ONE = (*SMALL, "--k-types", "q8_0", "--v-types", "q4_0")
RUN = Path("sweeps/tiny/needle-nano")


@pytest.fixture(autouse=True)
def tiny(tmp_path, llama_server, nano):
    """A corpus by the name of tiny."""
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "tiny.toml").write_text(CORPUS, encoding="utf-8")


def setup_of(folder):
    return json.loads((folder / RUN / "setup.json").read_text())


def records(folder):
    """By pair, without the checksum."""
    files = sorted((folder / RUN / "cells").glob("*.recall.json"))
    return {
        f"{record['pair']['k']}/{record['pair']['v']}": record
        for record in (json.loads(file.read_text()) for file in files)
    }


def replies(record):
    return [asked["reply"] for asked in record["observation"]["rounds"]]


def test_the_corpus_drafts_and_nothing_changes(codeneedle, tmp_path):
    """
    Drafts are counted, the first cell is asked both ways, and each reply is the one
    that a server without speculation gives.
    """
    done = codeneedle("sweep", *SMALL)
    plain = codeneedle("sweep", *SMALL, "--no-speculate", "--out", "plain")
    fast = records(tmp_path)
    slow = {
        pair: json.loads((tmp_path / "plain/tiny/needle-nano/cells" / name).read_text())
        for pair, name in (
            (pair, f"{pair.replace('/', '-')}.recall.json") for pair in fast
        )
    }

    assert (0, 0) == (done.returncode, plain.returncode), done.stderr + plain.stderr
    assert len(fast) == 4
    for pair, record in fast.items():
        assert replies(slow[pair]) == replies(record)
        assert "--spec-type" in record["command"]
        assert "--spec-type" not in slow[pair]["command"]
        rounds = record["observation"]["rounds"]
        assert all(0 < asked["accepted"] <= asked["drafted"] for asked in rounds)
    assert [3] == [
        len(record["observation"]["plain"])
        for record in fast.values()
        if record["observation"]["plain"]
    ]
    trial = setup_of(tmp_path)["trial"]
    assert (3, "") == (trial["rounds"], trial["difference"])


def test_margins_are_those_of_the_first_words(codeneedle, tmp_path):
    """
    A server tells no probabilities of what it had guessed, so each line's first
    word is asked for: a lead for each, near the one that the plain server tells.
    """
    codeneedle("sweep", *ONE)
    codeneedle("sweep", *ONE, "--no-speculate", "--out", "plain")
    fast = records(tmp_path)["q8_0/q4_0"]["observation"]["rounds"]
    file = tmp_path / "plain/tiny/needle-nano/cells/q8_0-q4_0.recall.json"
    slow = json.loads(file.read_text())["observation"]["rounds"]

    for drafted, plain in zip(fast, slow, strict=True):
        assert len(drafted["places"]) == len(drafted["gaps"]) == 20
        assert all(not drafted["reply"][place].isspace() for place in drafted["places"])
        # The built-in model has a token for each byte, and its corpus is ASCII.
        at_places = [plain["gaps"][place] for place in drafted["places"]]
        assert pytest.approx(at_places, abs=0.3) == drafted["gaps"]


def test_a_difference_switches_it_off_and_says_so(codeneedle, llama_server, tmp_path):
    """
    A server that says Z for ever when it speculates is asked plainly, in the first
    cell and in all to come; screen, setup and table tell why.
    """
    odd = script(
        tmp_path / "odd-server",
        f"""\
case " $* " in
*" --spec-type "*) exec {llama_server} "$@" \\
  --logit-bias 90+100;;
esac
exec {llama_server} "$@\"""",
    )
    done = codeneedle("sweep", *SMALL, "--llama-server", str(odd))
    table = codeneedle("table", "tiny")

    assert done.returncode == 0, done.stderr
    assert "note: speculation is off:" in done.stderr
    assert "from token" in setup_of(tmp_path)["trial"]["difference"]
    assert "speculation is off" in table.stdout
    for record in records(tmp_path).values():
        assert "--spec-type" not in record["command"]
        assert all(not asked["drafted"] for asked in record["observation"]["rounds"])
    assert "20.00" in codeneedle("grid", "tiny").stdout


def test_a_resumed_sweep_tries_once(codeneedle, tmp_path):
    """
    What the first cell found holds for the run folder.
    """
    codeneedle("sweep", *ONE)
    first = setup_of(tmp_path)["trial"]
    done = codeneedle("sweep", *SMALL)

    assert done.returncode == 0, done.stderr
    assert first == setup_of(tmp_path)["trial"]
    tried = [bool(r["observation"]["plain"]) for r in records(tmp_path).values()]
    assert sum(tried) == 1


def test_speculated_and_plain_records_do_not_mix(codeneedle, tmp_path):
    """
    It decides which kernels run: a run folder is of one kind.
    """
    codeneedle("sweep", *ONE)
    other = codeneedle("sweep", *ONE, "--no-speculate")

    assert other.returncode == 2
    assert "another recall speculation" in other.stderr
    assert "Go on with --speculate" in other.stderr
