"""Divergence in numbers; MLX need not be installed."""

import numpy as np
import pytest

from codeneedle.engines.distributions import (
    Sums,
    decoded_row,
    encoded_row,
    split_into_chunks,
)

VOCABULARY = 51


def rows(count, seed, spread=3.0):
    """Log-probabilities of *count* made-up distributions."""
    logits = np.random.default_rng(seed).normal(0, spread, (count, VOCABULARY))
    found = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return found.astype(np.float32)


def test_a_row_is_kept_to_five_digits():
    """16 bits over 16 nats, as llama-perplexity keeps it."""
    (row,) = rows(1, seed=1)

    found = decoded_row(encoded_row(row), VOCABULARY)

    assert 2 * ((VOCABULARY + 1) // 2) + 4 == len(encoded_row(row))
    assert np.abs(found - row).max() <= (row.max() - row.min()) / 65535


def test_what_is_far_below_the_first_choice_has_one_value():
    """Beyond 16 nats nothing is told apart."""
    (row,) = rows(1, seed=1)
    row[3] = row.max() - 30

    assert (
        pytest.approx(row.max() - 16, abs=1e-3)
        == decoded_row(encoded_row(row), VOCABULARY)[3]
    )


def test_statistics_are_those_of_the_definitions():
    base, found = rows(40, seed=1), rows(40, seed=2)
    right = np.random.default_rng(3).integers(0, VOCABULARY, 40)
    sums = Sums()
    for each, other, token in zip(found, base, right, strict=True):
        sums.add_token(each, other, int(token))
    told = sums.statistics()

    at = np.arange(40)
    kld = (np.exp(base) * (base - found)).sum(axis=1)
    change = 100 * (np.exp(found[at, right]) - np.exp(base[at, right]))
    same = (found.argmax(axis=1) == base.argmax(axis=1)).mean()
    expected = {
        "kld": kld.mean(),
        "dp_mean": change.mean(),
        "dp_rms": np.sqrt((change**2).mean()),
        "same_top": 100 * same,
        "ppl": np.exp(-found[at, right].mean()),
        "ppl_ratio": told.ppl.value / told.ppl_base.value,
    }
    assert {name: getattr(told, name).value for name in expected} == pytest.approx(
        expected, rel=1e-4
    )
    assert pytest.approx(kld.std(ddof=1) / np.sqrt(40), rel=1e-4) == told.kld.error
    assert pytest.approx(np.median(kld), rel=1e-4) == told.kld_median
    assert pytest.approx(kld[30:].mean(), rel=1e-4) == sums.means_from(30).kld


def test_of_few_tokens_no_errors_are_stated():
    sums = Sums()
    for row, base in zip(rows(10, seed=1), rows(10, seed=2), strict=True):
        sums.add_token(row, base, 3)

    assert 0 == sums.statistics().kld.error


def test_chunks_begin_as_prompts_do():
    """Where a token begins prompts, it takes the place of the first one."""
    assert [[9, 1], [9, 3]] == split_into_chunks(range(5), context=2, beginning=[9])
    assert [[0, 1], [2, 3]] == split_into_chunks(range(5), context=2, beginning=[])
