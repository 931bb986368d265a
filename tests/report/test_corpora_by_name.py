"""Corpora by name, and the content of one."""

import pytest
from printing import printed

from codeneedle.corpora import registry
from codeneedle.errors import UnknownName
from codeneedle.report.corpus import corpora_table, corpus_overview, right_answer_lines

CORPUS = "[generate]\nfunctions = 6\nvalue_length = 6\nname_length = 5\nseed = 7\n"


@pytest.fixture
def tiny(tmp_path):
    """A generated corpus of six functions."""
    (tmp_path / "tiny.toml").write_text(CORPUS, encoding="utf-8")
    return registry.load("tiny", folder=tmp_path)


def test_each_corpus_has_a_line(tmp_path):
    (tmp_path / "tiny.toml").write_text(CORPUS, encoding="utf-8")
    (tmp_path / "odd.toml").write_text("seed = 1", encoding="utf-8")

    text = printed([corpora_table(registry.named_corpora(tmp_path))], width=200)

    lines = [line.split(maxsplit=2) for line in text.splitlines()]
    rows = {line[0]: line[1] for line in lines if len(line) > 1}
    assert "incompressible" == rows["tiny"] == rows["random-bodies"]
    assert "memorised" == rows["http_server"]
    assert "-" == rows["odd"]
    assert "unknown key 'seed'" in text


def test_an_overview_has_the_functions_that_would_be_asked_for(tiny, golden):
    text = printed(corpus_overview(tiny), width=400)

    [facts] = [line for line in text.splitlines() if "6 functions" in line]
    assert golden == facts
    for function in tiny.functions:
        assert f" {function.line} " in text
        assert function.signature in text


def test_files_that_were_left_out_are_listed(tmp_path):
    body = "".join(f"    name_{n} = {n}\n" for n in range(24))
    (tmp_path / "good.py").write_text(f"def first():\n{body}")
    (tmp_path / "bad\x1b[2J.py").write_text("def (:\n")

    text = printed(corpus_overview(registry.load(str(tmp_path))))

    assert "left out: bad" in text
    assert "\x1b" not in text


def test_the_truth_of_a_function_is_what_a_model_should_answer(tiny):
    function = tiny.functions[2]

    assert "\n".join(function.body[:20]) == right_answer_lines(tiny, function.name)
    with pytest.raises(UnknownName) as caught:
        right_answer_lines(tiny, f"{function.name}x")
    assert f"'{function.name}'" in caught.value.hint


def test_files_that_a_second_parser_does_not_see_alike_are_listed(tmp_path, golden):
    body = "".join(f"  const name_{n} = {n};\n" for n in range(24))
    for name, last in (("good", ""), ("newer", "a ??= 1;\n")):
        (tmp_path / f"{name}.js").write_text(f"function {name}() {{\n{body}}}\n{last}")

    text = printed(corpus_overview(registry.load(str(tmp_path))))

    [doubt] = [line for line in text.splitlines() if "in doubt" in line]
    assert golden == doubt.split(": ")[:3]
