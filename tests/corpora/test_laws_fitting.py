"""Laws of sampling and fitting: spread, repeatable, whole, and as long as possible."""

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from unhurried import outcome, unhurried

from codeneedle.corpora import needles
from codeneedle.corpora.corpus import Corpus, NothingFits, fitted, load
from codeneedle.corpora.languages.python import functions as python_functions
from codeneedle.corpora.needles import ASKED_LINES, Function, choose, depth_of, eligible

LINE_COUNT = 3_000


def function(line, length=24):
    return Function(
        name=f"f{line}",
        signature=f"def f{line}():",
        line=line,
        body=tuple(f"    x = {at}" for at in range(length)),
    )


LINES = st.lists(st.integers(1, LINE_COUNT), unique=True, min_size=1, max_size=80)


@unhurried
@given(lines=LINES, k=st.integers(1, 32), seed=st.integers())
def test_needles_are_distinct_and_within_the_text(lines, k, seed):
    """
    Each chosen function is one that was offered, once, at a depth from 0 to 1.
    """
    offered = [function(line) for line in lines]
    chosen = choose(offered, k=k, seed=seed, line_count=LINE_COUNT)
    depths = [depth_of(each, line_count=LINE_COUNT) for each in chosen]

    assert len(chosen) == len({each.line for each in chosen}) == min(k, len(lines))
    assert all(each in offered for each in chosen)
    assert depths == sorted(depths)
    assert all(0 <= depth <= 1 for depth in depths)


@unhurried
@given(lines=LINES, k=st.integers(1, 32), seed=st.integers(), data=st.data())
def test_a_function_that_was_not_chosen_is_not_missed(lines, k, seed, data):
    """
    Taking away what was not asked for anyway changes no question.
    """
    offered = [function(line) for line in lines]
    chosen = choose(offered, k=k, seed=seed, line_count=LINE_COUNT)
    others = [each for each in offered if each not in chosen]
    kept = data.draw(st.lists(st.sampled_from(others), unique=True)) if others else []

    assert chosen == choose([*chosen, *kept], k=k, seed=seed, line_count=LINE_COUNT)


@unhurried
@given(k=st.integers(1, 16), seed=st.integers(), per_band=st.integers(1, 4))
def test_every_stratum_is_served_where_each_has_a_function(k, seed, per_band):
    """
    With a function in each of k bands of the text, each band is asked once.
    """
    height = LINE_COUNT // k
    offered = [
        function(band * LINE_COUNT // k + 2 + at * (height // 5))
        for band in range(k)
        for at in range(per_band)
    ]
    chosen = choose(offered, k=k, seed=seed, line_count=LINE_COUNT)

    assert list(range(k)) == [(each.line - 1) * k // LINE_COUNT for each in chosen]


LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=12)


def text_of(lengths, *, gap):
    """Python functions of so many lines, with *gap* other lines between them."""
    parts = [
        [f"def f{at}():", *(f"    x{at} = {n}" for n in range(length)), *["# -"] * gap]
        for at, length in enumerate(lengths)
    ]
    return "".join(f"{line}\n" for part in parts for line in part)


def corpus_of(text):
    found = python_functions(text)
    asked = eligible(text, found)
    assume(asked)
    return Corpus(
        name="a",
        text=text,
        origin="made",
        kind="unseen",
        functions=tuple(asked),
        cuts=tuple(needles.cut_points(found)),
    )


@unhurried
@given(lengths=LENGTHS, gap=st.integers(0, 3), limit=st.integers(0, 8_000))
def test_a_fitted_text_fits_ends_whole_and_could_not_be_longer(lengths, gap, limit):
    """
    It is the whole text, or its longest beginning that fits and ends with a function;
    nothing to ask for is left out of it, and where nothing is left, that is an error.
    """
    corpus = corpus_of(text_of(lengths, gap=gap))
    lines = corpus.text.split("\n")
    beginnings = [
        "".join(f"{line}\n" for line in lines[:cut])
        for cut in corpus.cuts
        if any(each.end <= cut for each in corpus.functions)
    ]
    fitting = [text for text in (*beginnings, corpus.text) if len(text) <= limit]
    shorter = outcome(fitted, corpus, fits=lambda text: len(text) <= limit)
    if isinstance(shorter, NothingFits):
        assert not fitting
        return

    assert max(fitting, key=len) == shorter.text
    here = eligible(shorter.text, python_functions(shorter.text))
    assert [each.line for each in here] == [each.line for each in shorter.functions]
    assert all(each.content_lines >= ASKED_LINES for each in shorter.functions)


@unhurried
@given(lengths=LENGTHS, limit=st.integers(0, 8_000), more=st.integers(0, 4_000))
def test_a_larger_context_never_holds_less(lengths, limit, more):
    """
    What is asked for at a context is there at every larger one.
    """
    corpus = corpus_of(text_of(lengths, gap=1))
    try:
        small = fitted(corpus, fits=lambda text: len(text) <= limit)
    except NothingFits:
        return
    large = fitted(corpus, fits=lambda text: len(text) <= limit + more)

    assert large.text.startswith(small.text)
    assert large.functions[: len(small.functions)] == small.functions


@settings(
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(lengths=st.lists(LENGTHS, min_size=2, max_size=4))
def test_joining_files_moves_their_functions_and_changes_nothing_else(
    tmp_path_factory, lengths
):
    """
    Each function stands in the joined text where it says, verbatim.
    """
    assume(max(map(max, lengths)) >= ASKED_LINES)
    folder = tmp_path_factory.mktemp("joined")
    for at, each in enumerate(lengths):
        text = text_of(each, gap=1).replace("def f", f"def f{at}_")
        (folder / f"{at}.py").write_text(text, encoding="utf-8")
    whole = load(str(folder))
    lines = whole.text.split("\n")

    assert len(whole.functions) == sum(
        length >= ASKED_LINES for each in lengths for length in each
    )
    for function in whole.functions:
        opens = function.line + function.signature.count("\n")
        assert lines[function.line - 1 : opens] == function.signature.split("\n")
        assert tuple(lines[opens : opens + len(function.body)]) == function.body
