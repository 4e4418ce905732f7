from __future__ import annotations

import math
import random
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runspan.errors import GateError
from runspan.gate.measuring import Report, judge
from runspan.gate.noise import FALSE_ALARM_RATE, Difference, compare_pairs, propose_bound

_COMPARISONS = 200
#: A rate is about many comparisons: one draw of 200 lies above it about a third of the time.
_DRAWS = 40
_PAST_RECORDS = 39
_values = st.floats(min_value=-1e9, max_value=1e9).filter(lambda value: value == 0 or abs(value) > 1e-6)


def _seeded(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - noise that is the same in each run of the tests


def _job_s(random_: random.Random, *, slowdown: float = 1.0) -> float:
    """Return what a record of one job says: ±13 % between jobs, 0.3 % inside one, the median of seven repeats."""
    of_the_job = random_.uniform(0.87, 1.13) * slowdown
    repeats = [Report(metrics={"step": of_the_job * random_.gauss(1.0, 0.003)}) for _ in range(7)]
    return judge(repeats, {}).metrics["step"]


def _false_alarms(seed: int) -> int:
    random_ = _seeded(seed)
    alarms = 0
    for _ in range(_COMPARISONS):
        past = [_job_s(random_) for _ in range(_PAST_RECORDS)]
        alarms += not propose_bound(past, "max").bound.holds(_job_s(random_))
    return alarms


def test_equal_code_raises_no_more_false_alarms_than_stated() -> None:
    """Over 40 draws of 200 comparisons under ±13 % noise, breaches of the proposed bound keep to the stated rate."""
    stated = propose_bound([1.0] * _PAST_RECORDS, "max").false_alarm_rate
    assert stated == 1 / (_PAST_RECORDS + 1)
    assert sum(map(_false_alarms, range(_DRAWS))) <= stated * _COMPARISONS * _DRAWS


def test_the_stated_rate_is_the_rate() -> None:
    """Over many seeds the false alarms are as frequent as stated: the statement is no luck of one seed."""
    random_, trials, past_records = _seeded(1), 4_000, 9
    alarms = sum(
        not propose_bound([random_.gauss(1, 0.1) for _ in range(past_records)], "max").bound.holds(
            random_.gauss(1, 0.1)
        )
        for _ in range(trials)
    )
    expected = trials / (past_records + 1)
    assert abs(alarms - expected) < 4 * math.sqrt(expected)


def test_a_true_slowdown_is_caught() -> None:
    """A step that takes 30 % longer breaches the bound proposed under ±13 % noise, in each of 200 comparisons."""
    random_ = _seeded(11)
    for _ in range(_COMPARISONS):
        past = [_job_s(random_) for _ in range(_PAST_RECORDS)]
        assert not propose_bound(past, "max").bound.holds(_job_s(random_, slowdown=1.3))


@given(st.lists(_values, min_size=1, max_size=30), st.sampled_from(["min", "max"]))
@example([0.1, 0.3675], "max")
def test_a_proposed_bound_is_a_bound_that_the_past_holds(values: list[float], limit: Literal["min", "max"]) -> None:
    """Every past value lies in the range, and its noise is one that bounds.toml takes."""
    bound = propose_bound(values, limit).bound
    assert bound.problem() is None
    assert all(map(bound.holds, values))
    assert (bound.min is None) == (limit == "max")


def test_a_bound_and_its_noise_are_short_numbers() -> None:
    """The extreme is split into a bound and at most 5 % noise, both written in a few digits."""
    tight = propose_bound([1.0, 1.01, 1.02], "max").bound
    wide = propose_bound([1.0, 1.1, 2.1], "max").bound
    low = propose_bound([100.0, 90.0, 98.0], "min").bound
    assert (tight.max, tight.noise) == (1.01, 0.01)
    assert (wide.max, wide.noise) == (2.0002, 0.0998)
    assert (low.min, low.noise) == (94.27, 4.27)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_no_bound_without_finite_values(values: list[float]) -> None:
    """Nothing can be proposed from nothing, or from what is no number."""
    with pytest.raises(GateError, match="must be finite"):
        propose_bound(values, "max")


def _rounds(random_: random.Random, rounds: int, *, slowdown: float = 1.0) -> tuple[list[float], list[float]]:
    baseline = [random_.uniform(0.87, 1.13) for _ in range(rounds)]
    candidate = [random_.uniform(0.87, 1.13) * slowdown for _ in range(rounds)]
    return baseline, candidate


@pytest.mark.parametrize("rounds", [6, 10, 25])
def test_interleaved_comparisons_of_equal_code_rarely_differ(rounds: int) -> None:
    """Over 40 draws of 200 comparisons at most the stated 5 % are called different; each tells its exact rate."""
    random_ = _seeded(rounds)
    compared = [compare_pairs(*_rounds(random_, rounds)) for _ in range(_COMPARISONS * _DRAWS)]
    assert 0 < compared[0].false_alarm_rate <= FALSE_ALARM_RATE
    assert sum(item.difference is not Difference.NONE for item in compared) <= FALSE_ALARM_RATE * len(compared)


def test_interleaved_comparisons_catch_a_true_slowdown() -> None:
    """30 % more is seen in ten rounds under ±13 % noise, and with the right sign."""
    random_ = _seeded(5)
    compared = [compare_pairs(*_rounds(random_, 10, slowdown=1.3)) for _ in range(_COMPARISONS)]
    assert {item.difference for item in compared} == {Difference.HIGHER}
    assert {compare_pairs(*reversed(_rounds(random_, 10, slowdown=1.3))).difference} == {Difference.LOWER}


def test_too_few_rounds_decide_nothing() -> None:
    """Five rounds cannot be wrong less often than 1 in 16: they give medians, and no interval."""
    compared = compare_pairs([1.0] * 5, [2.0] * 5)
    assert (compared.difference, compared.low, compared.high) == (Difference.UNDECIDED, None, None)
    assert (compared.baseline, compared.candidate, compared.change) == (1.0, 2.0, 1.0)


def test_equal_values_do_not_differ() -> None:
    """Zero and exact equality are values like any other."""
    compared = compare_pairs([0.0] * 8, [0.0] * 8)
    assert (compared.difference, compared.low, compared.high) == (Difference.NONE, 0.0, 0.0)


@pytest.mark.parametrize(("baseline", "candidate"), [([], []), ([1.0], [1.0, 2.0]), ([math.nan], [1.0])])
def test_pairs_must_be_pairs_of_numbers(baseline: list[float], candidate: list[float]) -> None:
    """A missing partner or a value that is not finite is an error, never a difference."""
    with pytest.raises(GateError, match="must be finite"):
        compare_pairs(baseline, candidate)
