"""What a survey says of a grid: what there is to gain, and whether there is a cache."""

from codeneedle.cache_types import Pair
from codeneedle.engines.memory_gain import gain_by_survey
from codeneedle.engines.survey import PairSurvey, Survey
from codeneedle.records.record import DeviceMemory, KvBuffer

MIB = 1 << 20
BF16, Q8_0 = Pair("bf16", "bf16"), Pair("q8_0", "q8_0")


def cache(pair, mib, cells=1024, layers=4):
    return KvBuffer(
        cells=cells, layers=layers, k_type=pair.k, v_type=pair.v, k_mib=mib, v_mib=mib
    )


def surveyed(*caches, recurrent=0):
    """A survey of bf16 and q8_0 with the *caches* of each."""
    host = DeviceMemory(device="Host", weights=0, context=0, compute=10 * MIB)
    return Survey(
        context=1024,
        pairs={
            pair: PairSurvey(
                pair=pair, kv=tuple(kv), recurrent_bytes=recurrent, memory=(host,)
            )
            for pair, *kv in caches
        },
    )


def test_a_gain_is_told_in_exact_bytes_although_the_log_rounds_them():
    """4 layers of 64 values at 1,024 cells: 0.53125 MiB of q8_0, in the log 0.53."""
    survey = surveyed((BF16, cache(BF16, 0.5)), (Q8_0, cache(Q8_0, 0.27)))
    found = gain_by_survey(survey, Q8_0, reference=BF16, weights=89 * MIB)

    assert (1.0 * MIB, 0.53125 * MIB) == (found.reference, found.kv)
    assert (0.46875 / 100) == found.saved_share
    assert int(1024 * 0.46875 / 0.53125) == found.further_tokens_in_saved_memory


def test_a_gain_names_the_state_that_stays_and_windows_hold_no_further_tokens():
    window = cache(Q8_0, 0.27, cells=256)
    survey = surveyed(
        (BF16, cache(BF16, 0.5), cache(BF16, 0.5, cells=256)),
        (Q8_0, cache(Q8_0, 0.27), window),
        recurrent=7 * MIB,
    )
    found = gain_by_survey(survey, Q8_0, reference=BF16, weights=0)

    assert 7 * MIB == found.recurrent
    assert 0.53125 * MIB / 1024 == found.per_token


def test_a_gain_is_unknown_where_the_engine_tells_no_cache():
    survey = surveyed((BF16, cache(BF16, 0.5)), (Q8_0,))

    assert gain_by_survey(survey, Q8_0, reference=BF16, weights=1) is None
    assert (
        gain_by_survey(survey, Pair("q4_0", "q4_0"), reference=BF16, weights=1) is None
    )


def test_a_model_without_a_cache_for_any_pair_is_known():
    assert surveyed((BF16,), (Q8_0,)).has_no_cache
    assert not surveyed((BF16, cache(BF16, 0.5)), (Q8_0,)).has_no_cache
    assert not surveyed().has_no_cache
