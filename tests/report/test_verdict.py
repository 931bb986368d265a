"""The words of the verdict: what to set, what was shown, JSON with stable keys."""

import json
from dataclasses import replace

from made_copies import run_of_copies
from made_records import made_run, made_setup
from rich.console import Console

from codeneedle.analysis.verdict import OddCell
from codeneedle.grid import RUNS
from codeneedle.report.judgement import judge
from codeneedle.report.verdict import (
    front_rows,
    headline,
    judged_lines,
    statements,
    verdict_json,
    verdict_markdown,
    verdict_view,
)
from codeneedle.scoring.rounds import Reading

TYPES = ("bf16", "q4_0")


def spell(pair):
    return f"-ctk {pair.k} -ctv {pair.v}"


def asks_for(_engine):
    return spell


def judged(
    matched=lambda _pair, _at: 20, *, name="made-model", untried=(), with_power=False
):
    setup = made_setup(needles=16, types_k=TYPES, types_v=TYPES)
    setup = replace(setup, weights=replace(setup.weights, name=name))
    run = made_run(matched, setup=setup, untried=untried)
    return judge(run, Reading(), with_power=with_power)


def costly(pair, at):
    return 20 - 3 * (pair.v == "q4_0") - at % 2


def test_it_says_what_costs_and_what_was_not_found_with_the_least_effect():
    """
    V at q4_0 costs 3.00 lines; of K it says what would have been found.
    """
    entries = statements(judged(costly, with_power=True), spell)
    said = dict(entries[::-1])
    both = [line for word, line in entries if word == "matched"]

    assert "bf16/bf16" == said["reference"]
    assert any(line.startswith("K: nothing found; ") for line in both)
    assert any("V matters: q4_0 costs 3.00 lines (n 16, p " in line for line in both)


def test_an_odd_divergence_is_more_than_its_types_explain():
    """
    Of what is better the lower it is, an odd cell has more.
    """
    first = judged().judged[0]
    odd = OddCell(k=1, v=1, shortfall=0.5, p=0.001)

    def said(better):
        metric = replace(first.metric, better=better)
        return [*judged_lines(replace(first, metric=metric, odd=odd))][-1]

    assert "q4_0/q4_0 is odd: 0.50 lines more than" in said("lower")
    assert "0.50 lines less than" in said("higher")


def test_the_command_that_settles_a_pair_asks_for_no_other_probe_and_no_share():
    """
    These do not go with --settle; what stands behind -- is the server's.
    """
    setup = made_setup(needles=16, types_k=TYPES, types_v=("bf16",))
    corpus = replace(setup.corpus, functions=200)
    typed = ("--probe", "divergence,recall", "--shard=1/2", "--corpus", "x")
    words = (*typed, "--", "--probe", "y")
    run = made_run(setup=replace(setup, corpus=corpus, words=words))

    said = dict(statements(judge(run, Reading(), with_power=False), spell))

    assert said["to decide"].startswith(
        "codeneedle sweep --corpus x --settle q4_0/bf16 -- --probe y   (about"
    )


def test_the_command_that_settles_a_pair_goes_to_the_folder_that_was_read(tmp_path):
    """
    Also where the run was moved, copied or merged since it was swept.
    """
    setup = made_setup(needles=16, types_k=TYPES, types_v=("bf16",))
    corpus = replace(setup.corpus, functions=200)
    setup = replace(setup, corpus=corpus, words=("--out", "/elsewhere", "--seed=3"))

    def told(root):
        run = replace(made_run(setup=setup), root=root)
        found = judge(run, Reading(), with_power=False)
        return dict(statements(found, spell))["to decide"]

    assert told(tmp_path).startswith(f"codeneedle sweep --out {tmp_path} --seed=3 ")
    assert told(RUNS).startswith("codeneedle sweep --seed=3 ")


def test_a_cost_too_small_for_its_decimals_has_two_digits():
    """
    It was shown, so it is not printed as 0.00.
    """
    found = judged(lambda pair, at: 20 - (pair.v == "q4_0") - at % 2)
    each = found.judged[0]
    tiny = [
        replace(axis, costs=tuple(replace(c, loss=1.2e-5) for c in axis.costs))
        for axis in each.axes
    ]
    found = replace(found, judged=(replace(each, axes=tuple(tiny)),))

    assert any("costs 1.2e-05 lines" in line for _, line in statements(found, spell))


def test_copies_and_recall_that_disagree_are_a_finding():
    """
    Kernels for prompts and those for single tokens may treat a pair differently.
    """
    found = judge(run_of_copies(0.2, 0.0), Reading())
    alike = judge(run_of_copies(0.2, 0.2), Reading())

    said = dict(statements(found, spell))["finding"]
    assert "reading and writing disagree on q4_0/f16" in said
    assert "finding" not in dict(statements(alike, spell))
    told, silent = json.loads(verdict_json([found, alike], asks_for))
    (finding,) = told["findings"]
    assert ["q4_0", "f16"] == [finding["k"], finding["v"]]
    assert {"k", "v", "copy_logp", "recall_logp"} == set(finding)
    assert -0.2 == round(finding["copy_logp"], 3)
    assert [] == silent["findings"]


def test_without_numbers_it_says_so():
    """
    A run whose cells all failed has no reference, and no recommendation.
    """
    every = [f"{k}/{v}" for k in TYPES for v in TYPES]

    assert "Nothing can be said" in headline(judged(untried=every), spell)
    assert "null" in verdict_json([judged(untried=every)], asks_for)


def test_the_built_in_model_is_called_an_instrument():
    """
    What it loses is no advice for a language model.
    """
    words = [word for word, _ in statements(judged(name="needle-nano"), spell)]

    assert "instrument" in words
    assert "Nothing to set" in headline(judged(name="needle-nano"), spell)
    assert "instrument" not in dict(statements(judged(), spell))


def test_the_json_keeps_its_keys():
    """
    Keys that scripts may rely on; shares and differences are numbers.
    """
    [found] = json.loads(verdict_json([judged(costly)], asks_for))

    assert ["bf16/bf16", False, "matched"] == [
        found["reference"],
        found["is_instrument"],
        found["certified"],
    ]
    assert {"goal", "k", "v", "reason", "is_shown"} == set(found["advice"][0])
    assert headline(judged(costly), spell) == found["headline"]
    assert found["to_decide"] == dict(statements(judged(costly), spell))["to decide"]
    assert "machine" in found["facts"]
    assert [] == found["findings"]
    metric = found["metrics"][0]
    assert metric["axes"]["V"]["matters"]
    assert {"q4_0": 3.0} == metric["axes"]["V"]["costs"]
    pair = found["pairs"][-1]
    assert 3.0 == pair["losses"]["matched"]["mean"]
    assert {"verdict", "lost", "of", "upper", "more"} == set(pair["certificate"])


def test_what_is_not_shown_to_be_safe_is_not_what_to_set():
    """
    Sixteen clean functions certify nothing: the headline keeps the reference.
    """
    assert headline(judged(), spell).startswith("Keep: -ctk bf16 -ctv bf16. No smaller")


def test_the_reference_alone_has_a_verdict_too():
    """
    After the first cell of a sweep nothing is compared yet, so no loss has a column.
    """
    rest = ("bf16/q4_0", "q4_0/bf16", "q4_0/q4_0")
    found = judged(lambda _pair, at: 20 - at % 2, untried=rest)

    assert [["K/V", "memory", "verdict"], ["bf16/bf16", "100%", "reference"]] == (
        front_rows(found)
    )


def test_hostile_names_stay_text():
    """
    Control characters and markup of a run's name reach neither terminal nor Markdown.
    """
    found = judged()
    found = replace(found, run=replace(found.run, name="\x1b[31m[red]<b>"))
    console = Console(record=True, width=120, force_terminal=False)
    console.print(verdict_view(found, spell))

    assert "\\x1b[31m[red]<b>: verdict" in console.export_text()
    assert "<b>" not in verdict_markdown(found, spell)
