from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runspan.records import MetricSnapshot, ResourceSnapshot, RunStatus, Trend

finite = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(
    ("values", "trend"),
    [
        ([], Trend.STABLE),
        ([5.0], Trend.STABLE),
        ([1.0, 2.0, 3.0], Trend.RISING),
        ([3.0, 2.0, 1.0], Trend.FALLING),
        ([-3.0, -2.0, -1.0], Trend.RISING),
        ([100.0, 101.0, 102.0], Trend.STABLE),
        ([-1.0, 0.0, 1.0], Trend.STABLE),
        ([1.0, math.nan, 3.0], Trend.RISING),
        ([1.0, math.inf], Trend.STABLE),
        ([0.0, 0.0, 0.0], Trend.STABLE),
    ],
)
def test_the_trend_is_the_slope_relative_to_the_mean(values: list[float], trend: Trend) -> None:
    """Beyond 5 % of the absolute mean a step it rises or falls; too few values or a mean of 0 are stable."""
    assert Trend.of(values) is trend


@pytest.mark.parametrize(("slope", "trend"), [(0.0501, Trend.RISING), (0.0499, Trend.STABLE), (-0.0501, Trend.FALLING)])
def test_the_trends_threshold_is_five_percent(slope: float, trend: Trend) -> None:
    """A line around 1 has the trend of its slope."""
    assert Trend.of([1 + slope * (index - 5) for index in range(11)]) is trend


@given(st.lists(finite, max_size=30))
def test_reversing_a_series_reverses_its_trend(values: list[float]) -> None:
    """Rising backwards is falling."""
    opposite = {Trend.RISING: Trend.FALLING, Trend.FALLING: Trend.RISING, Trend.STABLE: Trend.STABLE}
    assert Trend.of(values[::-1]) is opposite[Trend.of(values)]


def test_a_snapshots_statistics_leave_non_finite_values_out_and_count_them() -> None:
    """Minimum, maximum and mean are over the finite values; latest and length are over all."""
    snapshot = MetricSnapshot.from_points(
        "loss", [(1_999_999, 2.0), (2_000_000, math.inf), (3_500_000, 4.0), (4_000_000, math.nan)]
    )
    assert [time_ms for time_ms, _ in snapshot.values] == [1, 2, 3, 4]
    assert (snapshot.min, snapshot.max, snapshot.mean) == (2.0, 4.0, 3.0)
    assert (snapshot.nonfinite_count, len(snapshot), snapshot.is_empty) == (2, 4, False)
    assert snapshot.latest is not None
    assert math.isnan(snapshot.latest)


def test_the_largest_floats_do_not_overflow() -> None:
    """Values near the largest float have a trend and a mean like any others."""
    snapshot = MetricSnapshot.from_points("x", [(0, 1.5e308), (1, 1.5e308), (2, 1.5e308)])
    assert snapshot.trend is Trend.STABLE
    assert snapshot.mean == pytest.approx(1.5e308)
    assert Trend.of([1e308, 1.7e308]) is Trend.RISING
    assert Trend.of([-1.7e308, 1.7e308, 1.7e308]) is Trend.RISING


def test_an_empty_snapshot_has_no_statistics() -> None:
    """Without points everything is None."""
    empty = MetricSnapshot.from_points("loss", [])
    assert (empty.latest, empty.min, empty.max, empty.mean) == (None, None, None, None)
    assert (empty.is_empty, len(empty), empty.trend) == (True, 0, Trend.STABLE)


def test_absent_usage_is_unmeasured() -> None:
    """Memory use is 0 without a total, the GPU's is None when it was not measured."""
    assert ResourceSnapshot().memory_util() == 0.0
    assert ResourceSnapshot(memory_used=5, memory_total=0).memory_util() == 0.0
    assert ResourceSnapshot(memory_used=5, memory_total=10).memory_util() == 0.5
    assert ResourceSnapshot(gpu_memory_total=8).gpu_memory_util() is None
    assert ResourceSnapshot(gpu_memory_used=2).gpu_memory_util() is None
    assert ResourceSnapshot(gpu_memory_used=0, gpu_memory_total=8).gpu_memory_util() == 0.0


def test_the_worst_status_wins_in_any_order() -> None:
    """Failed comes before cancelled, cancelled before success."""
    for order in itertools.permutations([RunStatus.SUCCESS, RunStatus.CANCELLED, RunStatus.FAILED]):
        assert RunStatus.worst(list(order)) is RunStatus.FAILED
    assert RunStatus.worst([RunStatus.SUCCESS, RunStatus.CANCELLED]) is RunStatus.CANCELLED


@pytest.mark.parametrize("statuses", [[], [RunStatus.RUNNING], [RunStatus.SUCCESS, RunStatus.PENDING]])
def test_only_final_statuses_can_be_compared(statuses: list[RunStatus]) -> None:
    """An empty list, or a run that goes on, has no worst status."""
    with pytest.raises(ValueError, match="final"):
        RunStatus.worst(statuses)


def test_final_statuses_are_the_three_ends() -> None:
    """Pending and running are not final."""
    assert {status for status in RunStatus if status.is_final} == {
        RunStatus.SUCCESS,
        RunStatus.FAILED,
        RunStatus.CANCELLED,
    }
