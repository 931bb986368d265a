"""Corpora for a person."""

import io

import pytest
from made_plans import CORPUS
from rich.console import Console

from codeneedle.corpora import corpus
from codeneedle.errors import UnknownName
from codeneedle.report.answers import listing, overview, truth


@pytest.fixture
def tiny(tmp_path):
    """Six functions that are generated."""
    (tmp_path / "tiny.toml").write_text(CORPUS, encoding="utf-8")
    return corpus.load("tiny", folder=tmp_path)


def shown(view, width=100):
    """What a terminal gets."""
    console = Console(file=io.StringIO(), width=width)
    console.print(view)
    return console.file.getvalue()


def test_each_corpus_has_a_line(tmp_path):
    """
    Its name, what a model can know of it, where it comes from; broken files, too.
    """
    (tmp_path / "tiny.toml").write_text(CORPUS, encoding="utf-8")
    (tmp_path / "odd.toml").write_text("seed = 1", encoding="utf-8")

    text = shown(listing(corpus.names(tmp_path)), width=200)

    lines = [line.split(maxsplit=2) for line in text.splitlines()]
    rows = {line[0]: line[1] for line in lines if len(line) > 1}
    assert "incompressible" == rows["tiny"] == rows["random-bodies"]
    assert "memorised" == rows["http_server"]
    assert "-" == rows["odd"]
    assert "unknown key 'seed'" in text


def test_an_overview_tells_what_would_be_asked(tiny):
    """
    Facts of the text, and each function with its depth, line and length.
    """
    text = shown(overview(tiny), width=200)

    assert "6 functions of 20 lines or more" in text
    assert "6 would be asked for" in text
    for function in tiny.functions:
        assert f" {function.line} " in text
        assert function.signature in text


def test_files_that_were_left_out_are_told(tmp_path):
    """
    With the reason, and nothing of their names reaches the terminal raw.
    """
    body = "".join(f"    name_{n} = {n}\n" for n in range(24))
    (tmp_path / "good.py").write_text(f"def first():\n{body}")
    (tmp_path / "bad\x1b[2J.py").write_text("def (:\n")

    text = shown(overview(corpus.load(str(tmp_path))))

    assert "left out: bad" in text
    assert "\x1b" not in text


def test_the_truth_of_a_function_is_what_a_model_should_answer(tiny):
    """
    Its first twenty lines, verbatim; a typo is answered with the nearest name.
    """
    function = tiny.functions[2]

    assert "\n".join(function.body[:20]) == truth(tiny, function.name)
    with pytest.raises(UnknownName) as caught:
        truth(tiny, f"{function.name}x")
    assert f"'{function.name}'" in caught.value.hint
