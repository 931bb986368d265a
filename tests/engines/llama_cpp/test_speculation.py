"""What the text may draft, and what a trial of it says."""

from codeneedle.engines.llama_cpp.arguments import (
    CHOSEN,
    Speculation,
    difference,
    speculation_for,
)
from codeneedle.records.record import Trial

OPTIONS = frozenset(
    {"--spec-type", "--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m"}
)


def test_a_binary_that_offers_it_speculates():
    """
    All three options must be there.
    """
    assert speculation_for(OPTIONS, ()) == CHOSEN
    assert all(speculation_for(OPTIONS - {one}, ()) is None for one in OPTIONS)


def test_a_draft_that_a_person_chooses_is_left_to_them():
    """
    Whatever they call it.
    """
    theirs = ("--spec-type", "-md", "--draft-max", "--model-draft", "-hfd")

    assert all(speculation_for(OPTIONS, (word, "x")) is None for word in theirs)
    assert speculation_for(OPTIONS, ("-ngl", "20", "-t", "2")) == CHOSEN


def test_lengths_are_stated_to_the_server():
    """
    Its defaults differ from build to build.
    """
    lengths = Speculation(pattern=8, draft=64)

    assert (
        *("--spec-type", "ngram-simple"),
        *("--spec-ngram-simple-size-n", "8"),
        *("--spec-ngram-simple-size-m", "64"),
    ) == lengths.arguments
    assert lengths.phrase == "ngram-simple, n 8, m 64"


def test_the_first_token_that_differs_is_named():
    """
    Counted from 1; a reply that ends early differs where it ends.
    """
    assert not difference((1, 2, 3), (1, 2, 3), of="f")
    assert difference((1, 2, 3), (1, 9, 3), of="f") == (
        "f is another reply from token 2 on"
    )
    assert difference((1, 2), (1, 2, 3), of="f") == (
        "f is another reply from token 3 on"
    )
    assert difference("ab", "ac", of="f", unit="character") == (
        "f is another reply from character 2 on"
    )


def test_a_trial_says_what_it_compared():
    """
    Or why speculation is off.
    """
    same = Trial(pair="q8_0/q4_0", rounds=3, tokens=900)
    other = Trial(pair="q8_0/q4_0", rounds=3, tokens=900, difference="f differs")

    assert same.phrase == "same 900 tokens both ways in 3 rounds"
    assert other.phrase == "off: f differs"
