# SPDX-License-Identifier: Apache-2.0
"""What a sample's numbers say, and where a mean would lie."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemonade_deploy.domain import bench_stats

NUMBERS = st.lists(st.floats(0.01, 1000), min_size=1, max_size=30)


@given(NUMBERS)
def test_the_numbers_are_those_of_the_sample(values: list[float]) -> None:
    told = bench_stats.describe(values)
    assert told is not None
    assert (told["count"], told["min"], told["max"]) == (len(values), min(values), max(values))
    assert told["mean"] == pytest.approx(statistics.fmean(values))
    assert (told["stddev"] is None) == (len(values) == 1)
    # Two peaks are both of two runs and more, hold every run once, and hide no outlier besides.
    if told["groups"]:
        low, high = told["groups"]
        assert sorted(low + high) == list(range(len(values)))
        assert max(values[i] for i in low) < min(values[i] for i in high)
        assert min(len(low), len(high)) >= 2 and told["outliers"] == []


def test_no_values_are_no_summary() -> None:
    assert bench_stats.describe([]) is None


def test_sample_deviation_not_population() -> None:
    told = bench_stats.describe([10.0, 12.0])
    assert told is not None and told["stddev"] == pytest.approx(2**0.5)


@pytest.mark.parametrize(
    ("values", "flags"),
    [
        ([83.8, 83.4, 83.7, 83.8, 83.7], []),  # lemonade pull request 1537
        ([2.5, 2.6, 47.0, 47.7, 2.5], ["bimodal"]),
        ([47.7, 2.5], ["unstable"]),  # two values: too few to speak of peaks
        ([20.0, 20.1, 20.2, 19.9, 5.0], ["outliers"]),
        ([20.0, 20.0, 20.0, 20.0, 20.4], []),  # 2 % off in a sample without any spread is noise
        ([20.0, 20.0, 20.4, 20.4, 20.4], []),  # two values, but nobody would notice
        ([10.0, 15.0, 20.0, 25.0, 30.0], ["unstable"]),
        ([0.0, 0.0, 0.0], []),
    ],
)
def test_flags(values: list[float], flags: list[str]) -> None:
    told = bench_stats.describe(values)
    assert told is not None and told["flags"] == flags


@pytest.mark.parametrize("values", [[2.5, 47.7], [10.0, 15.0, 20.0, 25.0, 30.0]])
def test_a_sample_that_swings_shows_no_mean(values: list[float]) -> None:
    told = bench_stats.describe(values)
    assert told is not None and bench_stats.shown(told, values) == "unstable, see runs"


def test_two_peaks_are_shown_as_two() -> None:
    values = [2.5, 47.0, 2.7, 47.6, 2.3]
    told = bench_stats.describe(values)
    assert told is not None
    assert bench_stats.shown(told, values) == "bimodal, see runs: 2.5 (3×), 47.3 (2×)"
    assert told["groups"] == [[0, 2, 4], [1, 3]]


@given(NUMBERS, st.floats(0, 100))
def test_a_percentile_is_one_of_the_values(values: list[float], percent: float) -> None:
    found = bench_stats.percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-9


def test_percentiles_by_nearest_rank() -> None:
    values = [float(number) for number in range(1, 21)]
    assert [bench_stats.percentile(values, p) for p in (0, 50, 95, 100)] == [1, 10, 19, 20]
    with pytest.raises(ValueError, match="no values"):
        bench_stats.percentile([], 50)
