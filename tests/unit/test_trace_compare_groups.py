from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runspan.errors import ConfigError
from runspan.tracefile._compare_groups import (
    GroupComparison,
    GroupVerdict,
    compare_groups,
    compare_totals,
    statistics_of,
)
from runspan.tracefile.events import Terminal, TraceEvent
from support.captures import capture_meta, span_events

if TYPE_CHECKING:
    from collections.abc import Sequence


def _capture(run_id: str, took_ns: int, **meta: Any) -> list[TraceEvent]:
    step = span_events("step", None, 0, took_ns, measured=True)
    return [capture_meta(run_id=run_id, **meta), *step, Terminal("complete", took_ns, "success")]


def _group(prefix: str, totals_ns: Sequence[int], **meta: Any) -> list[list[TraceEvent]]:
    return [_capture(f"{prefix}{number}", total_ns, **meta) for number, total_ns in enumerate(totals_ns)]


def _compare(before_ns: Sequence[int], after_ns: Sequence[int], seed: int = 0) -> GroupComparison:
    return compare_groups(_group("a", before_ns), _group("b", after_ns), seed=seed)


def test_median_p95_and_mad_of_a_side() -> None:
    """The statistics are those of the formulas: p95 between the nearest totals, MAD from the median, unscaled."""
    side = statistics_of([10, 50, 20, 40, 30], ["a", "b", "c", "d", "e"])
    assert (side.median_ns, side.p95_ns, side.mad_ns) == (30.0, 48.0, 10.0)
    assert (side.run_ids, side.totals_ns) == (["a", "b", "c", "d", "e"], [10, 50, 20, 40, 30])
    assert statistics_of([7], ["a"]).p95_ns == 7


@pytest.mark.parametrize(
    ("after_ns", "verdict"),
    [
        ([200, 205, 198, 210, 202], GroupVerdict.CANDIDATE_SLOWER),
        ([50, 52, 49, 51, 48], GroupVerdict.CANDIDATE_FASTER),
        ([96, 108, 100, 103, 99], GroupVerdict.INCONCLUSIVE),
        ([100, 104, 98, 102, 99], GroupVerdict.INCONCLUSIVE),
    ],
)
def test_the_verdict_is_where_the_interval_lies(after_ns: list[int], verdict: GroupVerdict) -> None:
    """Wholly above zero the candidate is slower, wholly below it is faster, across it nothing can be said."""
    groups = _compare([100, 104, 98, 102, 99], after_ns)
    assert groups.verdict is verdict
    assert groups.reasons == []
    assert groups.interval_ns is not None
    low_ns, high_ns = groups.interval_ns
    assert low_ns <= groups.median_delta_ns <= high_ns
    assert groups.median_delta_percent == pytest.approx(groups.median_delta_ns)  # of a baseline median of 100


def test_four_runs_are_too_few() -> None:
    """With fewer than five runs a side the groups are ineligible, and the reason says which side."""
    groups = _compare([100] * 5, [50] * 4)
    assert (groups.verdict, groups.interval_ns) == (GroupVerdict.INELIGIBLE, None)
    assert groups.reasons == ["only 4 in the candidate group: a verdict takes at least 5 runs a side"]
    assert groups.median_delta_ns == -50


def test_runs_that_did_something_else_make_groups_ineligible() -> None:
    """A run on another device is named with both values; its total says nothing about the others'."""
    others = _group("b", [100] * 5, device="cuda:0")
    groups = compare_groups(_group("a", [100] * 5), others)
    assert groups.verdict is GroupVerdict.INELIGIBLE
    assert len(groups.reasons) == 5
    assert "'b0'" in groups.reasons[0]
    assert "device is 'cpu' in the baseline and 'cuda:0' in the candidate" in groups.reasons[0]


def test_one_measurement_counts_once() -> None:
    """Case 37: five times the same run is one run, not a group that cannot vary."""
    groups = compare_groups([_capture("a", 100)] * 5, _group("b", [90] * 5))
    assert groups.verdict is GroupVerdict.INELIGIBLE
    assert groups.reasons[0] == "run 'a' is there twice: a measurement counts once"


def test_an_empty_side_is_an_error() -> None:
    """Nothing to compare with is a mistake in the call."""
    with pytest.raises(ConfigError, match="there is no baseline to compare"):
        compare_groups([], _group("b", [1] * 5))


def test_the_seed_decides_and_the_order_does_not() -> None:
    """The same runs and seed give the same interval in whatever order they are named; another seed redraws."""
    before_ns, after_ns = [100, 130, 90, 111, 140, 95], [101, 122, 133, 97, 150, 88]
    first = _compare(before_ns, after_ns, seed=7)
    again = _compare(before_ns[::-1], sorted(after_ns), seed=7)
    assert first.interval_ns == again.interval_ns
    assert first.seed == 7
    known = {_compare(before_ns, after_ns, seed=seed).interval_ns for seed in range(8)}
    assert len(known) > 1


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Over many draws from known populations the 95 % interval holds the true difference in at least 85 %."""
    draw = random.Random(1)  # noqa: S311 - statistics
    rounds, covered = 60, 0
    for number in range(rounds):
        sides = (
            statistics_of([int(draw.gauss(center, 1_000)) for _ in range(12)], ["r"] * 12)
            for center in (100_000, 101_000)
        )
        interval = compare_totals(*sides, seed=number).interval_ns
        assert interval is not None
        covered += interval[0] <= 1_000 <= interval[1]
    assert covered / rounds >= 0.85


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 2**62), min_size=5, max_size=9), st.lists(st.integers(0, 2**62), min_size=5, max_size=9))
def test_swapping_the_sides_turns_the_verdict_around(before_ns: list[int], after_ns: list[int]) -> None:
    """No totals raise, and a side that is faster than the other is never also slower."""
    there, back = _compare(before_ns, after_ns), _compare(after_ns, before_ns)
    assert there.median_delta_ns == -back.median_delta_ns
    assert {there.verdict, back.verdict} not in (
        {GroupVerdict.CANDIDATE_FASTER},
        {GroupVerdict.CANDIDATE_SLOWER},
    )
