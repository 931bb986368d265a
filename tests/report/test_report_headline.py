"""What a run was measured on, in words."""

from dataclasses import replace

from made_records import made_run, made_setup

from codeneedle.models.nano import model
from codeneedle.report import captions

SETUP = made_setup()


def test_the_setup_is_one_line() -> None:
    """
    Model, corpus, context, rounds and prompt.
    """
    assert (
        "made-model on random-bodies: context 12,288 tokens, 16 rounds, "
        "completion prompt"
    ) == captions.setup_line(SETUP)


def test_trimming_is_said() -> None:
    """
    A corpus that was too long says how much of it was sent.
    """
    whole = replace(SETUP, corpus=replace(SETUP.corpus, functions_before=16))

    assert "trimmed to 16 of 200 functions" in captions.corpus_line(SETUP)
    assert "; 16 functions" in captions.corpus_line(whole)


def test_a_run_of_several_days_says_so() -> None:
    """
    The first and the last day; without records, the day of its folder.
    """
    run = made_run()
    first, second, *rest = run.records
    late = replace(second, started="2025-11-22T01:00:00+00:00")
    long = replace(run, records=(first, late, *rest))

    assert "2025-11-20" == captions.dates(run)
    assert "2025-11-20 to 2025-11-22" == captions.dates(long)
    assert "2025-11-20" == captions.dates(replace(run, records=()))


def test_the_built_in_model_is_known_by_its_name() -> None:
    """
    The name is written down twice, so that reports need not load what assembles it.
    """
    assert model.NAME == captions.BUILT_IN_MODEL


def test_names_cannot_write_on_the_terminal() -> None:
    """
    An escape in the name of a corpus is shown, not obeyed.
    """
    evil = replace(SETUP, corpus=replace(SETUP.corpus, name="a\x1b[2J"))

    assert r"a\x1b[2J" in captions.setup_line(evil)


def test_a_rotation_that_is_off_is_said() -> None:
    """
    It is on in most runs, and then goes without saying.
    """
    run = made_run()
    off = replace(run, setup=replace(SETUP, rotation=False))

    assert (
        "12,288 tokens, 16 rounds, completion prompt, rotation off"
        == dict(captions.facts(off))["context"]
    )
    assert "rotation" not in dict(captions.facts(run))["context"]
