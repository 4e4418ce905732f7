"""How far apart two measurements of the same code may lie: bounds from past records, and interleaved comparisons.

Nothing here assumes how measurements are distributed, only that those of the same code are exchangeable: each order of
them is equally likely. A machine that drifts for a day breaks that; records of many days, and interleaving, keep it.
"""

from __future__ import annotations

import math
import statistics
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

import msgspec

from runspan.errors import GateError
from runspan.gate.baseline import Bound

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FALSE_ALARM_RATE", "Difference", "PairedComparison", "Proposal", "compare_pairs", "propose_bound"]

#: The most that an interleaved comparison of equal code may call different.
FALSE_ALARM_RATE = 0.05
#: What noise is proposed at most, as a share of the bound: a little less than `Bound.problem` allows, for rounding.
_MAX_NOISE = 0.0499
_BOUND_DIGITS = 6
_NOISE_DIGITS = 3


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A bound that past measurements suggest.

    Attributes:
        bound: the range.
        count: how many measurements it rests on.
        median: theirs.
        false_alarm_rate: how likely the next measurement of the same code misses it, at most.
    """

    bound: Bound
    count: int
    median: float
    false_alarm_rate: float


class Difference(StrEnum):
    """What an interleaved comparison says of one metric."""

    NONE = "no difference"
    HIGHER = "higher"
    LOWER = "lower"
    UNDECIDED = "too few rounds"


class PairedComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of two variants that were measured in turns.

    Attributes:
        baseline: median of the first variant.
        candidate: median of the second.
        change: median of the differences, candidate less baseline.
        low, high: the interval that holds the true median difference but for the false-alarm rate; None: too few.
        rounds: how many pairs there were.
        false_alarm_rate: how likely equal code is called different.
        difference: the answer.
    """

    baseline: float
    candidate: float
    change: float
    low: float | None
    high: float | None
    rounds: int
    false_alarm_rate: float
    difference: Difference


def propose_bound(values: Sequence[float], limit: Literal["min", "max"]) -> Proposal:
    """Propose a bound that the next measurement of the same code misses with probability 1/(n + 1) at most.

    Of n + 1 exchangeable values each is as likely as any other to be the largest, so that a new one exceeds the largest
    of n past ones with probability 1/(n + 1) at most (the one-sided distribution-free prediction bound: G. J. Hahn and
    W. Q. Meeker, Statistical Intervals, 1991, chapter 5). With m bounds on a record the rate is m/(n + 1) at most.

    The extreme value is split into the bound and its noise: the distance from the median, but no more noise than a
    bound may have, 5 % of it. Both are rounded so that the range only grows.

    Args:
        values: past measurements of the same code on the same hardware.
        limit: which end of the range is bounded.

    Raises:
        GateError: there is no value, or one is not finite.
    """
    if not values or not all(map(math.isfinite, values)):
        raise GateError(f"{len(values)} past values, all of which must be finite: expected at least one")
    sign = 1.0 if limit == "max" else -1.0
    extreme, median = max(sign * value for value in values), statistics.median(values)
    room = _MAX_NOISE / (1 + _MAX_NOISE) * abs(extreme)
    noise = _rounded(min(extreme - sign * median, room), _NOISE_DIGITS, ROUND_FLOOR)
    bound = sign * _rounded(extreme - noise, _BOUND_DIGITS, ROUND_CEILING)
    return Proposal(
        bound=Bound(max=bound, noise=noise) if limit == "max" else Bound(min=bound, noise=noise),
        count=len(values),
        median=median,
        false_alarm_rate=1 / (len(values) + 1),
    )


def compare_pairs(baseline: Sequence[float], candidate: Sequence[float]) -> PairedComparison:
    """Compare two variants that were measured in turns, pair by pair.

    The interval is the distribution-free one for the median of the differences: from the k-th smallest to the k-th
    largest of n, which misses it with probability 2 P(Binomial(n, ½) < k) (the sign test's: W. J. Conover, Practical
    Nonparametric Statistics, 1999, section 3.4). k is the largest for which that is 5 % at most; below six rounds there
    is none. The variants differ where zero lies outside.

    Args:
        baseline: one value a round.
        candidate: one value a round, of the same rounds.

    Raises:
        GateError: there is no round, the numbers of rounds differ, or a value is not finite.
    """
    if not baseline or len(baseline) != len(candidate) or not all(map(math.isfinite, (*baseline, *candidate))):
        raise GateError(
            f"{len(baseline)} and {len(candidate)} values, all of which must be finite: expected one a round of each"
        )
    differences = sorted(after - before for before, after in zip(baseline, candidate, strict=True))
    rank, rate = _rank(len(differences))
    low, high = (differences[rank - 1], differences[-rank]) if rank else (None, None)
    return PairedComparison(
        baseline=statistics.median(baseline),
        candidate=statistics.median(candidate),
        change=statistics.median(differences),
        low=low,
        high=high,
        rounds=len(differences),
        false_alarm_rate=rate,
        difference=_difference(low, high),
    )


def _difference(low: float | None, high: float | None) -> Difference:
    if low is None or high is None:
        return Difference.UNDECIDED
    if low > 0:
        return Difference.HIGHER
    return Difference.LOWER if high < 0 else Difference.NONE


def _rank(count: int) -> tuple[int, float]:
    """Return k of the interval, 0 where there is none, and its exact false-alarm rate."""
    rank, rate, below = 0, 0.0, 0
    while True:
        below += math.comb(count, rank)
        following = 2 * below / 2**count
        if following > FALSE_ALARM_RATE:
            return rank, rate
        rank, rate = rank + 1, following


def _rounded(value: float, digits: int, direction: str) -> float:
    """Round to significant digits towards one side."""
    if value == 0:
        return 0.0
    exact = Decimal(repr(value))  # the shortest digits: 1.01 stays 1.01
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), rounding=direction))
