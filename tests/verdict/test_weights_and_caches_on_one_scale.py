"""Several files of weights are judged as one run of candidates."""

import math
from dataclasses import replace

import pytest
from made_losses import losing, text_read
from made_weights import (
    FULL,
    GOOD,
    MODEL,
    others,
    run_of,
    three_runs,
)

from codeneedle.cache_types import Candidate, Pair, finer_axes, most_precise
from codeneedle.errors import BadInput
from codeneedle.records.record import ModelFacts, Status
from codeneedle.verdict.asking_order import JointRun, is_strictly_finer
from codeneedle.verdict.joint import bits_per_weight, join_runs, memory_of, weight_names
from codeneedle.verdict.judge import Outcome, judge
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.next import next_step
from codeneedle.verdict.remark_kinds import RemarkKind
from codeneedle.verdict.remarks import joint_remarks

AT = 49_152
"""Tokens at which the sizes of caches are whole bytes."""


def judged(runs, most=None):
    limits = Limits(max_memory_bytes=most, at=AT)
    return judge(join_runs(runs, AT), limits)


def with_calibrated(run, calibrated):
    return replace(run, setup=replace(run.setup, calibrated=calibrated))


def name(pair):
    return str(pair) if pair else None


def result_of(verdict, text):
    return next(each for each in verdict.results if str(each.pair) == text)


def outcome_of(result):
    """What was decided of a candidate, and by which numbers."""
    row = result.leading_result
    return (str(result.pair), result.decision, row and row.bounds, result.lacking)


class TestCandidates:
    def test_the_finest_weights_are_more_precise_whatever_the_cache(self):
        fine = Candidate("q4_0", "q4_0", weights="Q8_0", weight_bits=8.5)
        coarse = Candidate("f16", "f16", weights="Q4_0", weight_bits=4.5)

        assert most_precise([coarse, fine]) == fine
        assert finer_axes(fine, coarse) == ["weights"]
        assert finer_axes(coarse, fine) == ["K", "V"]

    @pytest.mark.parametrize(
        ("finer", "coarser", "does"),
        [
            (("Q8_0", 8.5, "q8_0"), ("Q4_0", 4.5, "q8_0"), True),
            (("Q8_0", 8.5, "q8_0"), ("Q8_0", 8.5, "q4_0"), True),
            (("Q8_0", 8.5, "q4_0"), ("Q4_0", 4.5, "q8_0"), False),
            (("Q4_K_M", 4.5, "q8_0"), ("IQ4_XS", 4.5, "q4_0"), False),
        ],
    )
    def test_one_covers_another_by_weights_and_cache_alike(self, finer, coarser, does):
        fine, coarse = (
            Candidate(t, t, weights=w, weight_bits=b) for w, b, t in (finer, coarser)
        )

        assert is_strictly_finer(fine, coarse) is does

    def test_a_pair_alone_is_no_candidate(self):
        assert Candidate("f16", "f16") != Pair("f16", "f16")


def partly_measured():
    """Sweeps that decide, of one pair each; of the second file f16 was too large."""
    order = {"pairs": [GOOD], "looks": [16]}
    return [
        replace(run, setup=replace(run.setup, order=order)).with_every_record(
            each for each in run.records if str(each.pair) in measured
        )
        for run, measured in zip(three_runs(), ({FULL}, {GOOD}), strict=False)
    ]


class TestOrder:
    def test_too_large_is_what_is_larger_than_all_that_may_be_or_was_measured(self):
        found = join_runs(partly_measured(), AT).order.too_large

        assert ["Q6_K f16/f16"] == [str(each) for each in found]

    def test_without_a_limited_memory_a_pair_is_asked_as_of_one_file(self):
        first, second = partly_measured()
        joined = join_runs([first, second.with_every_record(())], AT)

        step = next_step(judge(joined), ["recall"])

        assert ["Q6_K q8_0/q8_0"] == [str(each) for each in step.asked.pairs]


class TestJudging:
    def test_the_reference_is_the_finest_weights_with_the_finest_pair(self):
        verdict = judged(three_runs()[::-1])

        assert "Q8_0 f16/f16" == name(verdict.reference)

    def test_a_loss_is_beside_that_reference(self):
        row = result_of(judged(three_runs()), "Q4_K_M q8_0/q8_0").leading_result

        assert 0.021 == pytest.approx(row.bounds.mean)

    def test_what_fits_and_loses_least_is_set(self):
        sizes = {str(r.pair): r.memory_bytes for r in judged(three_runs()).results}

        verdict = judged(three_runs(), int(sizes["Q6_K f16/f16"]) + 1)

        assert "Q6_K f16/f16" == name(verdict.chosen)
        assert verdict.outcome is Outcome.SET

    def test_what_fills_the_memory_to_the_last_byte_fits(self):
        sizes = {str(r.pair): r.memory_bytes for r in judged(three_runs()).results}
        full = judged(three_runs(), int(sizes["Q8_0 f16/f16"]))

        coarser = judged(three_runs(), int(sizes["Q6_K f16/f16"]))

        assert (None, True) == (full.chosen, full.has_fitting_reference)
        assert "Q6_K f16/f16" == name(coarser.chosen)
        assert coarser.chosen in coarser.fitting_candidates

    @pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
    def test_what_was_too_large_is_named_where_it_fits_now(self, spare, fits):
        joined = join_runs(partly_measured(), AT)
        (large,) = joined.order.too_large
        most = int(large.size_to_compare) + spare

        found = judge(joined, Limits(max_memory_bytes=most, at=AT))

        assert (large,) * fits == found.newly_fitting_candidates

    def test_a_smaller_cache_may_save_finer_weights(self):
        sizes = {str(r.pair): r.memory_bytes for r in judged(three_runs()).results}

        verdict = judged(three_runs(), int(sizes["Q6_K q8_0/q8_0"]) + 1)

        assert "Q6_K q8_0/q8_0" == name(verdict.chosen)

    def test_a_reference_that_fits_is_kept(self):
        verdict = judged(three_runs(), 1 << 40)

        assert (None, Outcome.KEEP) == (verdict.chosen, verdict.outcome)

    def test_a_budget_that_nothing_meets_sets_nothing(self):
        verdict = judged(three_runs(), 1000)

        assert (None, Outcome.NOTHING_FITS) == (verdict.chosen, verdict.outcome)

    def test_the_error_is_shared_among_all_candidates(self):
        alone = judge(three_runs()[0]).result(Pair.parse(GOOD)).leading_result.bounds
        among = result_of(judged(three_runs()), "Q8_0 q8_0/q8_0").leading_result.bounds

        assert among.high > alone.high

    def test_weights_that_gain_on_a_text_are_no_broken_reference(self):
        runs = [
            run_of("Q8_0", {FULL: 0.0, GOOD: 0.001}),
            run_of("Q6_K", {FULL: -0.03, GOOD: -0.03}),
        ]

        verdict = judged(runs)

        assert {} == verdict.reference_doubts_by_metric
        assert "within" == verdict.decision(result_of(verdict, f"Q6_K {FULL}").pair)

    @pytest.mark.parametrize(("gain", "is_doubted"), [(0.049, False), (0.051, True)])
    def test_coarser_weights_may_gain_five_of_a_hundred_tokens(self, gain, is_doubted):
        coarser = run_of("Q6_K", {FULL: -gain, GOOD: -gain})

        verdict = judged([run_of("Q8_0", {FULL: 0.0, GOOD: 0.001}), coarser])

        assert is_doubted == bool(verdict.reference_doubts_by_metric)

    @pytest.mark.parametrize("coarser", [("Q6_K",), ("Q6_K", "Q4_K_M")])
    def test_finest_weights_that_all_others_beat_by_far_are_in_doubt(self, coarser):
        """As of a damaged file: with it as the reference everything gains."""
        runs = [
            run_of("Q8_0", {FULL: 0.0, GOOD: 0.001}),
            *(run_of(each, {FULL: -0.3, GOOD: -0.3}) for each in coarser),
        ]

        verdict = judged(runs)

        assert (None, Outcome.NO_ANSWER) == (verdict.chosen, verdict.outcome)
        assert ["recall-logp"] == [*verdict.reference_doubts_by_metric]

    def test_weights_that_gain_on_what_they_answered_are_not_within(self):
        """The functions without an answer may be the hard ones."""
        runs = [run_of("Q8_0", {FULL: 0.0}), run_of("Q6_K", {FULL: -0.03})]
        record = losing(runs[1].setup, FULL, [-0.03] * 10 + [None] * 6)
        runs[1] = replace(runs[1], records=(record,))

        row = result_of(judged(runs), f"Q6_K {FULL}")

        assert ("open", 6) == (row.decision, row.leading_result.left_out)

    @pytest.mark.parametrize("files", [(0, 1), (0, 2), (1, 2), (0,)])
    @pytest.mark.parametrize("losses", [(0.0, 0.0), (0.0, 0.2), (0.2, 0.0)])
    def test_ordinary_text_that_some_files_alone_were_asked_changes_nothing(
        self, files, losses
    ):
        """The setup of a file that was not asked names no such probe."""
        runs = three_runs()
        plain = judged(runs)
        for at in files:
            read = [
                text_read(pair, [loss] * 8, reference=FULL)
                for pair, loss in zip((FULL, GOOD), losses, strict=True)
            ]
            asked = {**runs[at].setup.probes, "divergence": {"contexts": [512]}}
            setup = replace(runs[at].setup, probes=asked)
            runs[at] = replace(runs[at], setup=setup).with_every_record(
                (*runs[at].records, *read)
            )
        verdict = judged(runs)

        assert plain.reference == verdict.reference
        assert [outcome_of(each) for each in plain.results] == [
            outcome_of(each) for each in verdict.results
        ]
        assert (plain.chosen, plain.reference_doubts_by_metric) == (
            verdict.chosen,
            verdict.reference_doubts_by_metric,
        )

    def test_a_pair_that_has_no_numbers_is_never_set(self):
        runs = three_runs()
        broken = [
            replace(r, status=Status.CRASHED, observation=None)
            if str(r.pair) == FULL
            else r
            for r in runs[1].records
        ]
        runs[1] = replace(runs[1], records=tuple(broken))
        sizes = {str(r.pair): r.memory_bytes for r in judged(runs).results}

        verdict = judged(runs, int(sizes["Q6_K f16/f16"]) + 1)

        assert "Q6_K q8_0/q8_0" == name(verdict.chosen)

    def test_a_candidate_whose_loss_has_no_upper_end_is_never_set(self):
        """One unit tells no spread."""
        runs = [run_of("Q8_0", {FULL: 0.0}), run_of("Q6_K", {FULL: 0.004})]
        record = losing(runs[1].setup, FULL, [0.004] + [None] * 15)
        one = [runs[0], replace(runs[1], records=(record,))]
        most = int(result_of(judged(runs), f"Q6_K {FULL}").memory_bytes) + 1

        assert [f"Q6_K {FULL}", None] == [
            name(judged(each, most).chosen) for each in (runs, one)
        ]

    def test_questions_that_the_reference_was_not_asked_do_not_count(self):
        runs = three_runs()
        asked = [
            replace(
                record,
                observation={
                    **record.observation,
                    "answers": {
                        key: {**answer, "prompt_sha256": "e" * 64}
                        for key, answer in record.observation["answers"].items()
                    },
                },
            )
            for record in runs[2].records
        ]
        runs[2] = replace(runs[2], records=tuple(asked))

        verdict = judged(runs)

        assert "mismatched" in result_of(verdict, f"Q4_K_M {FULL}").trouble

    def test_what_each_reference_has_set_has_no_say(self, golden):
        """The levels of retrieval: others are on one scale all the same."""
        runs = [
            with_calibrated(run, {"retrieval": {"reference": FULL, "level": at}})
            for at, run in enumerate(three_runs())
        ]

        verdict = judged(runs)

        assert verdict.outcome is Outcome.SET
        (told,) = [e for e in joint_remarks(verdict) if e.kind is RemarkKind.SILENT]
        assert golden == told.text

    def test_what_a_file_is_compared_with_by_a_tool_is_no_other_question(self):
        runs = [
            with_calibrated(run, {"divergence": {"reference": pair}})
            for run, pair in zip(three_runs(), (FULL, GOOD, FULL), strict=True)
        ]

        assert () == join_runs(runs).incomparable_probes


class TestMemory:
    def test_weights_of_unknown_size_fit_into_nothing(self):
        runs = three_runs()
        weights = replace(runs[2].setup.weights, size_bytes=0)
        setup = replace(runs[2].setup, weights=weights)
        runs[2] = replace(runs[2], setup=setup)

        assert not judged(runs, 700_000_000).chosen

    def test_it_is_that_of_weights_and_cache(self):
        run = three_runs()[0]
        pair = Pair.parse(FULL)
        memory = memory_of(run, pair)

        whole = memory.total_bytes(AT, pair)

        assert whole == pytest.approx(
            memory.fixed_bytes + memory.caches.cache_bytes_at(AT, pair)
        )
        assert memory.fixed_bytes >= run.setup.weights.size_bytes

    @pytest.mark.parametrize("window", [None, 1024])
    def test_what_fits_is_the_longest_context_whose_cache_does(self, window):
        """A sliding window that is full no longer grows."""
        memory, pair = memory_of(three_runs()[0]), Pair.parse(FULL)
        (buffer,) = memory.caches.buffers
        buffers = (buffer, replace(buffer, cells=window)) if window else (buffer,)
        memory = replace(memory, caches=replace(memory.caches, buffers=buffers))

        for context in (256, 512, 2048, AT):
            most = math.ceil(memory.total_bytes(context, pair))
            longest = memory.longest_fitting_context(most, pair, at=AT)
            less = memory.longest_fitting_context(most - 2, pair, at=AT)
            assert (context, context - 256) == (longest, less)
        assert 0 == memory.longest_fitting_context(memory.fixed_bytes, pair, at=AT)

    def test_nothing_is_known_to_fit_without_the_size_of_a_cache(self):
        memory = replace(memory_of(three_runs()[0]), caches=None)

        assert 0 == memory.longest_fitting_context(10**12, Pair.parse(FULL), at=AT)


class TestWhatIsNoQuestion:
    @pytest.mark.parametrize(
        ("facts", "why"),
        [
            ({"model": replace(MODEL, tokenizer="other")}, "another tokenizer"),
            ({"model": replace(MODEL, shape="llama")}, "other models"),
            ({"context": 1234}, "context"),
            ({"llama": "b1"}, "llama"),
            ({"engine": "mlx"}, "engine"),
        ],
    )
    def test_it_is_refused_with_the_reason(self, facts, why):
        with pytest.raises(BadInput, match=why) as refused:
            join_runs(others(three_runs(), **facts))

        assert "codeneedle compare" in refused.value.hint

    def test_the_same_file_twice(self):
        runs = three_runs()

        with pytest.raises(BadInput, match="same file"):
            join_runs([runs[0], runs[0]])

    def test_one_run_alone(self):
        with pytest.raises(BadInput, match="alone"):
            join_runs(three_runs()[:1])

    def test_runs_that_different_programs_served(self):
        runs = [
            with_calibrated(run, {"program": {"sha256": str(at)}})
            for at, run in enumerate(three_runs())
        ]

        with pytest.raises(BadInput, match="different programs"):
            join_runs(runs)

    def test_runs_that_share_no_question_at_all(self, golden):
        runs = [
            with_calibrated(run, {"retrieval": {"reference": str(at)}})
            for at, run in enumerate(three_runs())
        ]
        runs = [
            replace(run, setup=replace(run.setup, probes={"retrieval": {}}))
            for run in runs
        ]

        with pytest.raises(BadInput) as refused:
            join_runs(runs)
        assert golden == str(refused.value)

    def test_runs_without_a_stored_tokenizer_are_taken_by_their_questions(self):
        runs = [
            replace(run, setup=replace(run.setup, model=ModelFacts()))
            for run in three_runs()
        ]

        assert isinstance(join_runs(runs), JointRun)


class TestNames:
    def test_weights_are_called_by_their_quantization(self):
        assert ["Q8_0", "Q6_K", "Q4_K_M"] == weight_names(three_runs())

    def test_two_of_one_quantization_are_called_by_their_files(self):
        runs = [run_of("Q8_0", {FULL: 0.0}), run_of("Q8_0", {FULL: 0.0})]

        other = replace(runs[1].setup.weights, name="other")
        runs[1] = replace(runs[1], setup=replace(runs[1].setup, weights=other))

        assert ["made-q8_0", "other"] == weight_names(runs)

    def test_files_of_one_name_are_called_by_their_runs(self):
        runs = [
            replace(run_of("Q8_0", {FULL: 0.0}), name=each) for each in ("a/m", "b/m")
        ]

        assert ["a/m", "b/m"] == weight_names(runs)

    def test_files_that_nothing_tells_apart_are_called_by_their_hash(self):
        """As of folders of one name at two places: neither may stand for the other."""
        runs = [run_of("Q8_0", {FULL: 0.0}), run_of("Q8_0", {FULL: 0.2})]
        other = replace(runs[1].setup.weights, sha256="f" * 64)
        setup = replace(runs[1].setup, weights=other)
        runs[1] = replace(runs[1], setup=setup)

        assert ["made-q8_0 Q8_0", "made-q8_0 ffffffff"] == weight_names(runs)
        assert 2 == len(judged(runs).results)

    def test_weights_without_a_count_are_not_the_finest_for_it(self):
        """Bits per weight of some, and bytes of others, are no order."""
        runs = three_runs()
        setup = replace(runs[2].setup, model=ModelFacts())
        runs[2] = replace(runs[2], setup=setup)

        assert f"Q8_0 {FULL}" == name(judged(runs).reference)

    def test_bits_per_weight_are_those_of_the_file(self):
        setup = run_of("Q8_0", {FULL: 0.0}, size_bytes=1_062_500_000).setup

        assert 8.5 == bits_per_weight(setup)
        assert bits_per_weight(replace(setup, model=ModelFacts())) is None

    @pytest.mark.parametrize(
        ("size_bytes", "expected"), [(125_000_000, 1.0), (124_999_999, None)]
    )
    def test_weights_of_less_than_a_bit_each_were_not_all_counted(
        self, size_bytes, expected
    ):
        setup = run_of("Q8_0", {FULL: 0.0}, size_bytes=size_bytes).setup

        assert expected == bits_per_weight(setup)
