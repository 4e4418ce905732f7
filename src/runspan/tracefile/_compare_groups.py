"""Compares two groups of runs: whether the candidates' totals differ from the baselines' by more than chance."""

from __future__ import annotations

import math
import random
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from runspan.errors import ConfigError
from runspan.tracefile._compare import collect_facts, incomparabilities

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from runspan.tracefile._compare import TraceFacts
    from runspan.tracefile.events import TraceEvent

__all__ = ["MIN_RUNS", "GroupComparison", "GroupVerdict", "SideStatistics", "compare_groups", "compare_totals"]

#: Runs that a side needs: a median of fewer says next to nothing about the next run.
MIN_RUNS = 5
_RESAMPLES = 5_000
_CONFIDENCE = 0.95
_P95 = 0.95
_PERCENT = 100.0


class GroupVerdict(StrEnum):
    """What two groups of runs say."""

    INELIGIBLE = "ineligible"
    INCONCLUSIVE = "inconclusive"
    CANDIDATE_FASTER = "candidate_faster"
    CANDIDATE_SLOWER = "candidate_slower"


class SideStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of one group.

    Attributes:
        run_ids: its runs, in the order given.
        totals_ns: their totals, in the same order, ns.
        median_ns: their median.
        p95_ns: their 95th percentile, interpolated linearly between the two nearest totals (Hyndman and Fan 1996,
            "Sample Quantiles in Statistical Packages", definition 7).
        mad_ns: their median absolute deviation from the median, not scaled to a standard deviation (Hampel 1974, "The
            Influence Curve and Its Role in Robust Estimation").
    """

    run_ids: list[str]
    totals_ns: list[int]
    median_ns: float
    p95_ns: float
    mad_ns: float


class GroupComparison(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What two groups of runs say about each other; each difference is candidate minus baseline.

    Attributes:
        verdict: faster or slower where the whole interval lies on one side of zero, else inconclusive; ineligible where
            the groups cannot be judged.
        reasons: why they are ineligible.
        baseline: the baselines' totals.
        candidate: the candidates' totals.
        median_delta_ns: difference of the medians, ns.
        median_delta_percent: the same in percent of the baselines' median; left out where that is zero.
        interval_ns: lower and upper end of the 95 % interval of that difference; left out where ineligible.
        seed: what the interval's random resamples were drawn with.
    """

    verdict: GroupVerdict
    reasons: list[str]
    baseline: SideStatistics
    candidate: SideStatistics
    median_delta_ns: float
    median_delta_percent: float | None = None
    interval_ns: tuple[float, float] | None = None
    seed: int


def compare_groups(
    baselines: Sequence[str | Path | Iterable[TraceEvent]],
    candidates: Sequence[str | Path | Iterable[TraceEvent]],
    *,
    seed: int = 0,
) -> GroupComparison:
    """Compare the totals of two groups of complete traces.

    All must be comparable with the first baseline, in the sense of :func:`runspan.tracefile.compare`, and no run may be
    among them twice: the same measurement again is not another one.

    Args:
        baselines: what to compare with, at least one; files or events as for ``compare``.
        candidates: what is compared, likewise.
        seed: draws the resamples; the same traces and seed give the same answer.

    Raises:
        ConfigError: a group is empty.
        TraceFormatError: a trace cannot be read, is not valid, or is not complete.
    """
    sides = ([collect_facts(trace) for trace in baselines], [collect_facts(trace) for trace in candidates])
    for name, side in zip(("baseline", "candidate"), sides, strict=True):
        if not side:
            raise ConfigError(f"there is no {name} to compare: give {MIN_RUNS} traces or more a side")
    return compare_totals(*(_statistics(side) for side in sides), reasons=_mismatches(*sides), seed=seed)


def compare_totals(
    baseline: SideStatistics, candidate: SideStatistics, *, reasons: Sequence[str] = (), seed: int = 0
) -> GroupComparison:
    """Judge two groups by their totals.

    The interval is the percentile bootstrap's (Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter
    13): both groups are drawn anew 5,000 times with replacement, and the middle 95 % of the differences of their
    medians is kept. With few runs it is somewhat narrower than its name says.

    Args:
        baseline: the baselines.
        candidate: the candidates.
        reasons: why the groups cannot be judged, beside their sizes.
        seed: draws the resamples.
    """
    sizes = [
        f"only {len(side.totals_ns)} in the {name} group: a verdict takes at least {MIN_RUNS} runs a side"
        for name, side in (("baseline", baseline), ("candidate", candidate))
        if len(side.totals_ns) < MIN_RUNS
    ]
    interval = None
    verdict = GroupVerdict.INELIGIBLE
    if not sizes and not reasons:
        interval = _interval(baseline.totals_ns, candidate.totals_ns, seed)
        verdict = _verdict(*interval)
    delta_ns = candidate.median_ns - baseline.median_ns
    return GroupComparison(
        verdict=verdict,
        reasons=[*sizes, *reasons],
        baseline=baseline,
        candidate=candidate,
        median_delta_ns=delta_ns,
        median_delta_percent=_PERCENT * delta_ns / baseline.median_ns if baseline.median_ns else None,
        interval_ns=interval,
        seed=seed,
    )


def statistics_of(totals_ns: Sequence[int], run_ids: Sequence[str]) -> SideStatistics:
    """Return the statistics of one group's totals, ns, at least one."""
    center = float(median(totals_ns))
    return SideStatistics(
        run_ids=list(run_ids),
        totals_ns=list(totals_ns),
        median_ns=center,
        p95_ns=_quantile(sorted(totals_ns), _P95),
        mad_ns=float(median(abs(total - center) for total in totals_ns)),
    )


def _statistics(side: Sequence[TraceFacts]) -> SideStatistics:
    return statistics_of([facts.total_ns for facts in side], [facts.meta.run_id for facts in side])


def _mismatches(baselines: Sequence[TraceFacts], candidates: Sequence[TraceFacts]) -> list[str]:
    reasons: list[str] = []
    seen: set[tuple[str, int, int, int]] = set()
    first = baselines[0].meta
    for facts in (*baselines, *candidates):
        meta = facts.meta
        measurement = (meta.run_id, meta.process.rank, meta.process.attempt, meta.time_unix_nano)
        if measurement in seen:
            reasons.append(f"run {meta.run_id!r} is there twice: a measurement counts once")
        seen.add(measurement)
        if not facts.spans:
            reasons.append(f"run {meta.run_id!r} has no spans: its total is unknown")
        reasons += (f"run {meta.run_id!r}: {reason}" for reason in incomparabilities(first, meta))
    return reasons


def _interval(baseline_ns: Sequence[int], candidate_ns: Sequence[int], seed: int) -> tuple[float, float]:
    # Sorted, so that the order in which the runs were named does not matter.
    sides = (sorted(baseline_ns), sorted(candidate_ns))
    # Only random() is promised to give the same numbers in every version of Python.
    draw = random.Random(seed).random  # noqa: S311 - statistics, no secret
    differences = []
    for _ in range(_RESAMPLES):
        before, after = ([side[int(draw() * len(side))] for _ in side] for side in sides)
        differences.append(median(after) - median(before))
    differences.sort()
    tail = (1 - _CONFIDENCE) / 2
    return _quantile(differences, tail), _quantile(differences, 1 - tail)


def _verdict(low_ns: float, high_ns: float) -> GroupVerdict:
    if high_ns < 0:
        return GroupVerdict.CANDIDATE_FASTER
    return GroupVerdict.CANDIDATE_SLOWER if low_ns > 0 else GroupVerdict.INCONCLUSIVE


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, see :attr:`SideStatistics.p95_ns`."""
    position = (len(ordered) - 1) * share
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
