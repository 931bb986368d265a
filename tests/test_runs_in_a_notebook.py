"""The public API, on stored runs."""

import ast
import math
import re
from pathlib import Path

import pytest

import codeneedle
from codeneedle.errors import BadInput, UnknownName

RUNS = Path(__file__).parent / "golden" / "runs"
PAGE = Path(__file__).parents[1] / "docs/python.md"


@pytest.fixture
def run():
    return codeneedle.load(RUNS / "recall" / "golden" / "needle-nano")


def test_a_frame_has_rows_of_k_and_columns_of_v(run):
    frame = run.frame("matched")

    assert ["f16", "q4_0"] == list(frame.index) == list(frame.columns)
    assert ("k", "v") == (frame.index.name, frame.columns.name)
    assert 20.0 == frame.loc["f16", "q4_0"]


def test_without_a_name_the_frame_is_that_of_the_headline(run):
    assert run.frame().equals(run.frame("recall-logp"))


@pytest.mark.parametrize("name", ["recall", "divergence", "mlx", "retrieval"])
def test_units_average_to_the_cell_in_every_metric(name):
    """Units of recall-logp were once probabilities, the cell nats."""
    run = codeneedle.load(RUNS / name / "golden" / "needle-nano")
    apart = {}

    for metric in run.metrics:
        units = run.frame(metric, units=True)
        assert ["k", "v", "unit", "value", "answers"] == list(units.columns)
        frame = run.frame(metric)
        for (k, v), of_pair in units.groupby(["k", "v"]):
            total = math.fsum(of_pair["value"] * of_pair["answers"])
            value = total if metric == "pass" else total / of_pair["answers"].sum()
            # llama-perplexity prints its means rounded, to 3 decimals at least.
            rounding = 6e-4 if name == "divergence" else 1e-12
            if value != pytest.approx(frame.loc[k, v], abs=rounding):
                apart.setdefault(metric, []).append((k, v, value, frame.loc[k, v]))

    assert {} == apart


def test_units_of_the_loss_have_a_name_of_their_own(run):
    units = run.loss_units("recall-logp")["value"]

    assert units.between(0, 1).all()
    assert (run.frame("recall-logp", units=True)["value"] <= 0).all()
    assert run.loss_units("matched").shape[1] == 4
    assert run.loss_units("kv").empty


def test_a_pair_without_a_number_is_nan():
    run = codeneedle.load(RUNS / "divergence" / "golden" / "needle-nano")
    assert all(math.isnan(value) for value in run.frame("matched").to_numpy().flat)


def test_metrics_are_those_that_have_values(run):
    assert {"recall-logp", "matched", "kv"} <= set(run.metrics)
    assert "kld" not in run.metrics


def test_the_verdict_takes_limits(run):
    verdict = run.verdict(max_loss=0.03)

    assert 0.03 == verdict.limits.max_loss
    assert codeneedle.Pair.parse("f16/f16") == verdict.reference


@pytest.mark.parametrize("limit", [math.nan, 3, 0, -1, math.inf])
@pytest.mark.parametrize("name", ["max_loss", "max_lost"])
def test_limits_that_are_no_shares_are_refused_with_a_hint(run, name, limit, golden):
    with pytest.raises(BadInput) as caught:
        run.verdict(**{name: limit})

    assert golden == (str(caught.value), caught.value.hint)


def test_the_setup_says_what_was_measured(run):
    assert (3072, "golden") == (run.setup.context, run.setup.corpus.name)


def test_an_unknown_metric_is_named(run):
    with pytest.raises(UnknownName, match="recal-logp"):
        run.frame("recal-logp")


def test_a_folder_without_a_setup_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no run folder"):
        codeneedle.load(tmp_path)


def test_the_example_of_its_page_gives_what_it_says(tmp_path, monkeypatch):
    (tmp_path / "sweeps" / "random-bodies").mkdir(parents=True)
    (tmp_path / "sweeps" / "random-bodies" / "my-model").symlink_to(
        RUNS / "recall" / "golden" / "needle-nano"
    )
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(
        r"```python\n(import codeneedle.*?)```", PAGE.read_text("utf-8"), re.DOTALL
    )
    *start, frame, units, _, chosen = ast.parse(example).body
    world = {}
    exec(compile(ast.Module(start, []), "page", "exec"), world)  # noqa: S102 - ours

    def value(line):
        return eval(compile(ast.Expression(line.value), "page", "eval"), world)  # noqa: S307 - likewise

    found, by_unit = value(frame), value(units)
    assert (["f16", "q4_0"], "k", "v") == (
        [*found.index],
        found.index.name,
        found.columns.name,
    )
    assert found.loc["f16", "f16"] == 0.0 > found.loc["f16", "q4_0"] > -0.001
    pairs, functions = 4, 6
    assert pairs * functions == len(by_unit) == len(by_unit.drop_duplicates())
    assert functions == by_unit["unit"].nunique()
    assert value(chosen) is None  # the built-in model recommends nothing


def test_the_package_ships_its_types():
    assert (Path(codeneedle.__file__).parent / "py.typed").is_file()


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'loda'"):
        codeneedle.loda  # noqa: B018


def test_the_table_has_the_numbers_of_the_frames_and_the_losses_of_a_verdict(run):
    table = run.table(run.verdict(max_loss=0.03))
    matched = table[(table.metric == "matched") & (table.pair == "q4_0/f16")]

    assert [run.frame("matched").loc["q4_0", "f16"]] == [*matched.value]
    assert {0.03} == {*table[table.facet == "by=recall-logp"].limit}


def test_where_attention_ran_is_a_frame(run):
    frame = run.attention()

    assert frame.shape == run.frame().shape
    assert {""} == {*frame.to_numpy().ravel()}
