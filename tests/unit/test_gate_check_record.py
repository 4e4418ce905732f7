"""Records held against bounds: directions, zeros, edges, pins."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runspan.errors import GateError
from runspan.gate import Baseline, GateOutcome, Hardware, check_record
from runspan.gate._changes import bounds_changes
from runspan.gate._paths import is_under, normalized
from runspan.gate._results import GateReport, GateResult
from runspan.gate.baseline import parse_baseline
from support.gate import a_record
from support.gated import bounds_text


def _baseline(bounds: str = "", more: str = "") -> Baseline:
    return parse_baseline(bounds_text(bounds=bounds, more=more).encode())


def _problems(bounds: str, **metrics: float) -> tuple[str, ...]:
    return check_record(a_record(metrics=metrics), _baseline(bounds))


def test_the_bound_that_is_set_is_the_direction() -> None:
    """With 10 % of slack, latency 100 → 120 fails and throughput 100 → 120 passes; slower throughput fails."""
    bounds = "{ latency = { max = 110.0 }, throughput = { min = 90.0 } }"
    assert _problems(bounds, latency=120.0, throughput=120.0) == ("latency is 120, expected at most 110: 10 above",)
    assert _problems(bounds, latency=80.0, throughput=120.0) == ()
    assert _problems(bounds, latency=80.0, throughput=80.0) == ("throughput is 80, expected at least 90: 10 below",)


def test_a_bound_without_a_direction_is_an_error() -> None:
    """Which way is better is never guessed from a metric's name."""
    for bound in ("{}", "{ noise = 1.0 }"):
        with pytest.raises(GateError, match="neither min nor max"):
            _baseline(f"{{ latency = {bound} }}")


@pytest.mark.parametrize(
    ("bound", "value", "holds"),
    [
        ("max = 110.0", 110.0, True),
        ("max = 110.0", 110.00000001, False),
        ("max = 110.0, noise = 5.0", 115.0, True),
        ("max = 110.0, noise = 5.0", 115.1, False),
        ("min = 90.0", 90.0, True),
        ("min = 90.0", 89.99999999, False),
        ("min = 90.0, noise = 4.5", 85.5, True),
        ("min = 90.0, noise = 4.5", 85.4, False),
        ("min = 3.0, max = 3.0", 3.0, True),
        ("min = 3.0, max = 3.0", 3.0000001, False),
        ("max = 0.0", 0.0, True),
        ("max = 0.0", -0.0, True),
        ("max = 0.0", 5e-324, False),
        ("max = -5.0", -6.0, True),
        ("max = -5.0", -4.0, False),
        ("min = -5.0, max = -1.0, noise = 0.05", -1.0, True),
    ],
)
def test_a_value_exactly_at_its_bound_passes(bound: str, value: float, holds: bool) -> None:
    """The bound itself and the bound with its noise still pass; what is beyond, however little, fails."""
    assert (_problems(f"{{ x = {{ {bound} }} }}", x=value) == ()) is holds


def test_a_zero_bound_has_an_absolute_difference() -> None:
    """From 0 to 0 passes, from 0 to 5 fails with the difference, which no share of zero could tell."""
    assert _problems("{ errors = { max = 0.0 } }", errors=0.0) == ()
    assert _problems("{ errors = { max = 0.0 } }", errors=5.0) == ("errors is 5, expected at most 0: 5 above",)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_fails(value: float) -> None:
    """NaN and infinity keep no bound, also where they would compare as better."""
    for bound in ("max = 1.0", "min = 1.0", "min = 0.0, max = 1.0"):
        assert _problems(f"{{ x = {{ {bound} }} }}", x=value) != ()


def test_a_missing_metric_fails() -> None:
    """A bounded metric that was not measured fails; one without a bound does not matter."""
    assert _problems("{ x = { max = 1.0 } }", y=0.0) == ("x is missing or not finite, expected at most 1",)
    assert _problems("{ x = { max = 1.0 } }", x=0.5, y=1e300) == ()


@given(st.floats(), st.floats(allow_nan=False, allow_infinity=False), st.floats(0, 0.05))
def test_no_value_above_a_maximum_and_its_noise_passes(value: float, bound: float, share: float) -> None:
    """For any value, bound and noise that is allowed: only finite values up to the bound and its noise pass."""
    noise = share * abs(bound)
    try:
        baseline = _baseline(f"{{ x = {{ max = {bound!r}, noise = {noise!r} }} }}")
    except GateError:  # rounded up beyond 5 %
        return
    passes = check_record(a_record(metrics={"x": value}), baseline) == ()
    assert passes == (float("-inf") < value < float("inf") and value - noise <= bound)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"hardware": Hardware(gpu="NVIDIA H200", driver="", source="nvml")},
            "no entry for 'decode' on hardware 'h200'",
        ),
        ({"target_model": "big"}, "with model 'big'"),
        ({"benchmark_id": "other"}, "no entry for 'other'"),
        ({"params": {}}, "parameter 'batch' is missing, pinned: '8'"),
        ({"params": {"batch": "08"}}, "parameter 'batch' is '08', pinned: '8'"),
        ({"serve_overrides": {"depth": "3"}}, "serve_overrides are"),
        ({"serve_overrides": {}}, "serve_overrides are"),
        ({"serve_overrides": {"depth": "2", "x": "1"}}, "serve_overrides are"),
    ],
)
def test_a_record_of_other_settings_fails(changes: dict[str, Any], problem: str) -> None:
    """Hardware, model, benchmark, pinned parameters and recipe overrides must be the entry's."""
    baseline = _baseline(more='params = { batch = "8" }\nserve_overrides = { depth = "2" }')
    sound: dict[str, Any] = {"serve_overrides": {"depth": "2"}}
    assert check_record(a_record(**sound), baseline) == ()
    (found,) = check_record(a_record(**(sound | changes)), baseline)
    assert problem in found


def test_parameters_that_are_not_pinned_are_free() -> None:
    """A record may have parameters beyond the pinned ones."""
    assert check_record(a_record(params={"batch": "8", "seed": "1"}), _baseline(more='params = { batch = "8" }')) == ()


def test_a_record_that_names_no_model_is_its_hardwares_defaults() -> None:
    """An empty model means the default, which may be named by either way."""
    named = bounds_text().replace("h100.default.", "h100.small.") + "[hardware.h100.small]\ndefault = true\n"
    assert check_record(a_record(target_model=""), parse_baseline(named.encode())) == ()
    assert check_record(a_record(target_model="small"), parse_baseline(named.encode())) == ()


def test_every_difference_of_bounds_is_named() -> None:
    """Added, removed and changed values are each a line; equal bounds have none."""
    base = _baseline("{ x = { max = 1.0 } }", 'params = { a = "1" }')
    head = _baseline("{ x = { max = 2.0 }, y = { min = 0.0 } }", 'zero = ["x"]')
    assert bounds_changes(base, base) == ()
    assert bounds_changes(base, head) == (
        "decode (h100, default) bound on x: max=1.0 noise=0.0 → max=2.0 noise=0.0",
        "decode (h100, default) bound on y: none → min=0.0 noise=0.0",
        "decode (h100, default) params: a=1 → none",
        'decode (h100, default) zero: none → ["x"]',
    )
    assert bounds_changes(base, Baseline())[-1].endswith("status: measured → none")


@pytest.mark.parametrize(
    ("path", "roots", "is_inside"),
    [
        ("src", ["src"], True),
        ("src/a", ["src"], True),
        ("srcs/a", ["src"], False),
        ("lib/src/a", ["src"], False),
        ("src", ["src/a"], False),
        ("x", ["."], True),
        ("x", [], False),
    ],
)
def test_paths_match_per_component(path: str, roots: list[str], is_inside: bool) -> None:
    """A folder's name matches whole, from the top of the repository."""
    assert is_under(path, roots) is is_inside


def test_paths_are_read_as_git_prints_them() -> None:
    """Trailing slashes and `./` do not matter; what leads out of the repository is refused."""
    assert [normalized(path) for path in ("src/", "./src", "src//a", ".", "./")] == ["src", "src", "src/a", ".", "."]
    for path in ("", "/src", "../src", "src/../..", "a\0b"):
        with pytest.raises(GateError, match="below the repository's top"):
            normalized(path)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (["PASS"], 0),
        (["PASS", "FAIL", "MISSING", "NOT_COMPARABLE"], 1),
        (["PASS", "MISSING", "NOT_COMPARABLE"], 3),
        (["PASS", "NOT_COMPARABLE"], 4),
        (["UNKNOWN"], 3),
        (["NO_BASELINE"], 3),
        ([], 3),
    ],
)
def test_the_exit_code_is_that_of_the_worst_outcome(outcomes: list[str], code: int) -> None:
    """A failure comes first, then no verdict, then another machine; no result at all is no verdict."""
    results = [GateResult(benchmark_id=name, outcome=GateOutcome(name)) for name in outcomes]
    assert GateReport(results=tuple(results)).exit_code == code


def test_a_reason_is_no_verdict_beside_any_pass() -> None:
    """A report that says why there is no result never passes."""
    passed = GateResult(benchmark_id="a", outcome=GateOutcome.PASS)
    assert GateReport(results=(passed,), reason="git gives no answer").exit_code == 3
