"""How much of a text fits, and how many of its functions are asked."""

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from source_files import names_of, put, python

from codeneedle.corpora.corpus import LIMIT, longest
from codeneedle.corpora.registry import load


def test_functions_of_five_lines_are_forced_and_those_of_twenty_written(here):
    lengths = {"long": 20, "longer": 25, "short": 5, "shorter": 4}
    put(here / "a.py", "".join(python(n, lines=nr) for n, nr in lengths.items()))

    corpus = load("a.py")

    assert ["long", "longer", "short"] == names_of(corpus.functions)
    assert ["long", "longer"] == names_of(corpus.written())
    assert ["long", "longer", "short"] == names_of(corpus.forced(32, 5))
    assert ["long", "longer"] == names_of(corpus.forced(32, 6))
    assert [] == corpus.forced(32, 26)


def test_a_pair_can_be_asked_for_more_functions_than_any_sweep_asks(here):
    corpus = load("random-bodies")

    chosen = corpus.forced(32, 5)

    assert LIMIT == len({function.name for function in chosen})
    for block in (chosen[:32], chosen[32:64], chosen[64:]):
        lines = [function.line for function in block]
        assert lines == sorted(lines)
        assert lines[0] < corpus.line_count * 0.1
        assert lines[-1] > corpus.line_count * 0.9


def test_fitting_asks_little(here):
    """Counting tokens of a whole corpus takes time, so it is halved, not walked."""
    asked = []

    def fits(text):
        asked.append(text)
        return len(text) < 100_000

    longest(load("random-bodies"), fits)

    assert len(asked) <= 9


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 30), max_size=12),
    last=st.integers(20, 30),
    gap=st.integers(0, 3),
    limit=st.integers(0, 8_000),
    wanted=st.integers(5, 20),
)
@example(lengths=[], last=20, gap=0, limit=30, wanted=5).via("nothing fits")
@example(lengths=[1], last=20, gap=0, limit=40, wanted=5).via("nothing to ask for fits")
def test_a_fitted_text_fits_ends_whole_and_could_not_be_longer(
    here, lengths, last, gap, limit, wanted
):
    functions = [python(f"f{at}", lines=nr) for at, nr in enumerate([*lengths, last])]
    put(here / "a.py", "".join(function + "# -\n" * gap for function in functions))
    corpus = load("a.py")
    lines = corpus.text.split("\n")
    beginnings = [
        "".join(f"{line}\n" for line in lines[:cut])
        for cut in corpus.cuts
        if any(each.end <= cut for each in corpus.of_length(wanted))
    ]
    fitting = [text for text in (*beginnings, corpus.text) if len(text) <= limit]

    shorter = longest(corpus, lambda text: len(text) <= limit, lines=wanted)

    assert beginnings[0] == corpus.shortest(wanted)
    if shorter is None:
        assert not fitting
        return
    assert max(fitting, key=len) == shorter.text
    put(here / "b.py", shorter.text)
    assert load("b.py").functions == shorter.functions
