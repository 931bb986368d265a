"""A cell of the recall probe that is asked, and what it has stored."""

from dataclasses import replace

from fake_engine import FakeServer
from made_contexts import run_context
from made_records import (
    asking_for,
    asking_recall,
    failed_record,
    made_setup,
    written_of,
)

from codeneedle.cache_types import Pair
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.prompts import PromptForm
from codeneedle.probes.recall.probe import PROBE
from codeneedle.probes.recall.record import recall_of


def made_context(
    folder, engine, *, form=PromptForm.COMPLETION, conditions=None, **changes
):
    """A cell of a run with three functions to be written and five to be forced."""
    setup = made_setup(needles=3, forced=5)
    needles = tuple(replace(each, budget=50) for each in written_of(setup))
    setup = asking_recall(
        asking_for(setup, written=needles), conditions or {"functions": 4}
    )
    setup = replace(setup, prompt_form=form)
    run = run_context(folder, engine, setup=setup, text="CORPUS", **changes)
    return ProbeContext(run=run, pair=Pair("q8_0", "q4_0"), logs=folder)


def seen(observation):
    """What a stored *observation* says."""
    return recall_of(replace(failed_record("q8_0/q4_0"), observation=observation))


def measured(folder, engine, **changes):
    """What the probe stores."""
    engine.server = engine.server or FakeServer(engine)
    return seen(PROBE.measure(made_context(folder, engine, **changes)))
