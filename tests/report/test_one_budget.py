"""What is said of several files of weights and their caches."""

from dataclasses import replace

import pytest
from made_weights import FULL, three_runs
from printing import printed

from codeneedle.cli.engines import engine_pair_flags
from codeneedle.records.record import ModelFacts
from codeneedle.report.budget import (
    budget_document_with_run_facts,
    budget_headline,
    budget_remarks,
    candidates_table_and_legend,
    weights_file_name,
)
from codeneedle.report.verdict_data import verdict_objects
from codeneedle.verdict.joint import join_runs
from codeneedle.verdict.judge import judge
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.remark_kinds import RemarkKind

AT = 32_768
FLAGS = engine_pair_flags("llama.cpp")


def judged(most=None, runs=None, at=AT):
    runs = three_runs() if runs is None else runs
    return judge(join_runs(runs, at), Limits(max_memory_bytes=most, at=at))


def size_of(text):
    found = (r.memory_bytes for r in judged().results if str(r.pair) == text)
    return int(next(found)) + 1


class TestFirstLines:
    def test_the_answer_is_a_file_and_a_pair(self, golden):
        first, beside, alone = budget_headline(judged(size_of("Q6_K q8_0/q8_0")), FLAGS)

        assert first.startswith("Set: -m made-q6_k -ctk q8_0 -ctv q8_0   (")
        assert "GiB at 32,768 tokens" in first or "MiB at 32,768 tokens" in first
        assert golden == (beside, alone)

    def test_a_reference_that_fits_is_kept_and_says_so(self):
        first, why = budget_headline(judged(1 << 40), FLAGS)

        assert first.startswith("Keep: -m made-q8_0 -ctk f16 -ctv f16")
        assert "reference, and fits" in why

    def test_where_nothing_fits_the_nearest_and_its_context_are_named(self):
        least = size_of("Q4_K_M q4_0/q4_0")

        first, way = budget_headline(judged(least - 1_000_000), FLAGS)

        assert "the nearest, Q4_K_M q4_0/q4_0 takes" in first
        assert "--at" in way

    def test_weights_that_are_too_large_alone_have_no_context(self):
        _, way = budget_headline(judged(1_000_000), FLAGS)

        assert "Without any cache" in way

    def test_without_a_budget_the_smallest_within_is_set(self):
        first, *_ = budget_headline(judged(), FLAGS)

        assert first.startswith("Set: -m made-q6_k -ctk q8_0 -ctv q8_0")

    def test_the_file_is_called_as_the_sweep_named_it(self):
        run = replace(three_runs()[0], sweep='models = ["/x/Made-Q8_0.gguf"]\n')

        assert "Made-Q8_0.gguf" == weights_file_name(run)
        assert "made-q8_0" == weights_file_name(replace(run, sweep="= broken"))


class TestTable:
    def test_there_is_a_row_for_each_candidate_by_weights(self):
        table, _ = candidates_table_and_legend(judged(size_of("Q6_K q8_0/q8_0")))

        weights = ["Q8_0"] * 3 + ["Q6_K"] * 3 + ["Q4_K_M"] * 3
        assert weights == [row[0] for row in table.rows]

    def test_a_row_says_what_is_set_and_what_does_not_fit(self, golden):
        table, _ = candidates_table_and_legend(judged(size_of("Q6_K q8_0/q8_0")))

        words = {f"{row[0]} {row[1]}": row[-1] for row in table.rows}
        assert golden == words[f"Q8_0 {FULL}"]
        assert words["Q6_K q8_0/q8_0"].startswith("* set")


class TestBesideTheAnswer:
    def test_a_run_that_stores_no_tokenizer_is_named(self):
        runs = [
            replace(run, setup=replace(run.setup, model=ModelFacts()))
            for run in three_runs()
        ]

        kinds = {each.kind for each in budget_remarks(judged(runs=runs))}

        assert RemarkKind.ONE_MODEL in kinds

    def test_models_of_two_names_are_asked_about(self):
        runs = three_runs()
        named = [
            replace(
                run,
                setup=replace(
                    run.setup, model=replace(run.setup.model, name=f"Model {at}")
                ),
            )
            for at, run in enumerate(runs)
        ]

        texts = [each.text for each in budget_remarks(judged(runs=named))]

        assert any("Model 0, Model 1, Model 2" in text for text in texts)

    def test_buffers_of_a_shorter_context_are_said_to_be_less(self):
        kinds = {each.kind for each in budget_remarks(judged(at=1 << 20))}

        assert RemarkKind.MEMORY in kinds


class TestForms:
    def test_all_of_it_is_printed(self):
        text = printed(
            budget_document_with_run_facts(judged(size_of("Q6_K q8_0/q8_0")), FLAGS)
        )

        assert "Set: -m made-q6_k" in text
        assert "bits per weight" in text

    def test_json_names_weights_of_each_pair(self):
        (found,) = verdict_objects(
            [judged(size_of("Q6_K q8_0/q8_0"))], engine_pair_flags
        )

        assert ["Q8_0", "Q6_K", "Q4_K_M"] == [each.name for each in found.weights]
        assert {"Q8_0", "Q6_K", "Q4_K_M"} == {each.weights for each in found.pairs}
        assert ("set", "Q6_K q8_0/q8_0") == (found.outcome, found.set)

    @pytest.mark.parametrize("at", [0, 1])
    def test_json_of_one_run_has_no_weights(self, at):
        (found,) = verdict_objects([judge(three_runs()[at])], engine_pair_flags)

        assert [] == found.weights
        assert {None} == {each.weights for each in found.pairs}
