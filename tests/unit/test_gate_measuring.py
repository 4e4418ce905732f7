from __future__ import annotations

import math
from typing import Any

import pytest

from runspan.errors import GateError
from runspan.gate.baseline import Bound
from runspan.gate.frame import FrameStatus, Verdict, VerdictKind
from runspan.gate.measuring import Report, breaches, judge, parse_report, read_report


def _reports(*values: float) -> list[Report]:
    return [Report(metrics={"ratio": value}) for value in values]


def test_repeats_become_median_and_spread() -> None:
    """A metric is the median of its repeats, beside MAD, extremes and their number."""
    result = judge(_reports(1.0, 5.0, 2.0, 2.5), {})
    assert result.metrics == {
        "ratio": 2.25,
        "ratio.mad": 0.75,
        "ratio.min": 1.0,
        "ratio.max": 5.0,
        "ratio.n": 4.0,
    }
    assert result.status is FrameStatus.COMPLETED


def test_a_single_repeat_has_no_spread() -> None:
    """One measurement is the value, and nothing is said of a spread that was not measured."""
    assert judge(_reports(3.0), {}).metrics == {"ratio": 3.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_metric_fails_the_run(bad: float) -> None:
    """It is left out of the record and named in the reason; the others stay."""
    reports = [Report(metrics={"ratio": value, "other": 1.0}) for value in (1.0, bad)]
    result = judge(reports, {})
    assert (result.status, result.verdict.kind) == (FrameStatus.FAILED, VerdictKind.FAIL)
    assert result.verdict.reason == f"ratio is {bad}"
    assert "ratio" not in result.metrics
    assert result.metrics["other"] == 1.0


@pytest.mark.parametrize("reports", [[], [Report(metrics={})]])
def test_no_metrics_fail_the_run(reports: list[Report]) -> None:
    """A benchmark that measured nothing has failed."""
    result = judge(reports, {})
    assert (result.status, result.verdict) == (FrameStatus.FAILED, Verdict(VerdictKind.FAIL, "no metrics"))


def test_a_metric_that_a_repeat_lacks_fails_the_run() -> None:
    """The median of what is there is no measurement of all repeats: the metric is left out and named."""
    result = judge([Report(metrics={"a": 1.0, "b": 1.0}), Report(metrics={"a": 1.0})], {})
    assert result.status is FrameStatus.FAILED
    assert result.verdict == Verdict(VerdictKind.FAIL, "b was measured in 1 of 2 repeats")
    assert "b" not in result.metrics


def test_repeats_of_different_data_fail_the_run() -> None:
    """A median over different data sets means nothing."""
    reports = [Report(metrics={"f1": 0.9}, dataset_fingerprint=name) for name in ("a", "b")]
    result = judge(reports, {})
    assert (result.status, result.dataset_fingerprint) == (FrameStatus.FAILED, None)
    assert judge(reports[:1], {}).dataset_fingerprint == "a"


@pytest.mark.parametrize(
    ("stated", "value", "kind", "reason"),
    [
        ((), 0.5, VerdictKind.PASS, "1 of 1 bounds hold"),
        ((), 0.7, VerdictKind.FAIL, "ratio = 0.7 is not at most 0.6 (noise 0.03)"),
        ((), 0.63, VerdictKind.PASS, "1 of 1 bounds hold"),
        (("Pass",), 0.7, VerdictKind.FAIL, "ratio = 0.7 is not at most 0.6 (noise 0.03)"),
        (("Info",), 0.7, VerdictKind.FAIL, "ratio = 0.7 is not at most 0.6 (noise 0.03)"),
        (("Info",), 0.5, VerdictKind.INFO, "1 of 1 bounds hold"),
        (("Pass", "Fail"), 0.5, VerdictKind.FAIL, "the benchmark says so"),
        (("Pass", "Info"), 0.5, VerdictKind.INFO, "1 of 1 bounds hold"),
    ],
)
def test_the_verdict_is_the_worst_of_benchmark_and_bounds(
    stated: tuple[str, ...], value: float, kind: VerdictKind, reason: str
) -> None:
    """A breach fails whatever the benchmark said; else its own worst verdict stands."""
    verdicts: list[Verdict | None] = [Verdict(VerdictKind(name), "") for name in stated]
    reports = [Report(metrics={"ratio": value}, verdict=verdict) for verdict in verdicts or [None]]
    assert judge(reports, {"ratio": Bound(max=0.6, noise=0.03)}).verdict == Verdict(kind, reason)


def test_a_bounded_metric_that_is_missing_is_a_breach() -> None:
    """What was not measured does not hold."""
    assert breaches({}, {"speed": Bound(min=1.0)}) == ["speed is missing"]


@pytest.mark.parametrize(
    "value",
    [
        [1.0],
        {"m": "fast"},
        {"m": True},
        {"m": None},
        {"": 1.0},
        {1: 1.0},
        {"metrics": {"m": 1.0}, "verdicts": "Pass"},
        {"metrics": {"m": 1.0}, "verdict": "PASS"},
        {"metrics": {"m": 1.0}, "verdict": {"kind": "Pass"}},
        {"metrics": {"m": 1.0}, "dataset_fingerprint": 7},
    ],
)
def test_what_is_no_result_is_refused(value: Any) -> None:
    """A result of another shape is an error that says what was expected."""
    with pytest.raises(GateError, match="expected"):
        parse_report(value)


def test_a_result_may_be_metrics_alone_or_say_more() -> None:
    """A mapping of numbers is the metrics; numbers of other libraries and huge integers are floats."""
    assert parse_report({"m": 3, "big": 10**400}).metrics == {"m": 3.0, "big": math.inf}
    full = parse_report({"metrics": {"m": 1}, "verdict": {"kind": "Info", "reason": "r"}, "dataset_fingerprint": "d"})
    assert full == Report(metrics={"m": 1.0}, verdict=Verdict(VerdictKind.INFO, "r"), dataset_fingerprint="d")


def test_a_commands_json_is_read_strictly_but_for_nan() -> None:
    """NaN is read so that it can be named; a key that stands twice, no object and no JSON are refused."""
    assert math.isnan(read_report(b'{"metrics": {"m": NaN}}').metrics["m"])
    for data in (b"", b"[]", b'{"m": 1}', b'{"metrics": {"m": 1, "m": 2}}', b"[" * 100_000, b"\xff"):
        with pytest.raises(GateError, match="result is no JSON"):
            read_report(data)
