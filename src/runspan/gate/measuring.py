"""What a benchmark's repeats come to: median and spread of each metric, and the verdict on them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from runspan.errors import GateError
from runspan.gate.frame import FrameStatus, Verdict, VerdictKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runspan.gate.baseline import Bound

__all__ = ["Report", "Result", "breaches", "failed", "judge", "parse_report", "read_report"]

#: The keys of a result that is more than metrics.
_REPORT_KEYS = frozenset({"metrics", "verdict", "dataset_fingerprint"})
#: From worst to best: the verdict on several repeats is the worst of theirs.
_BY_SEVERITY = (VerdictKind.FAIL, VerdictKind.INFO, VerdictKind.PASS)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one repeat of a benchmark reported.

    Attributes:
        metrics: the values; one may be non-finite.
        verdict: what the benchmark says of them; None: nothing.
        dataset_fingerprint: identity of the content that was scored.
    """

    metrics: Mapping[str, float]
    verdict: Verdict | None = None
    dataset_fingerprint: str | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What all repeats come to.

    Attributes:
        status: Failed where there is no measurement that could be judged.
        verdict: on the metrics.
        metrics: the finite ones.
        dataset_fingerprint: identity of the content that was scored.
    """

    status: FrameStatus
    verdict: Verdict
    metrics: Mapping[str, float]
    dataset_fingerprint: str | None = None


def parse_report(value: Any) -> Report:
    """Read what a benchmark returned: metrics by name, or ``{metrics, verdict?, dataset_fingerprint?}``.

    A verdict is ``Pass``, ``Fail`` or ``Info``, or ``{kind, reason}`` with one of these as its kind.

    Raises:
        GateError: it is something else.
    """
    if not isinstance(value, Mapping):
        raise GateError(f"a benchmark returned {type(value).__name__}: expected a mapping of metrics, or None")
    if not isinstance(value.get("metrics"), Mapping):
        return Report(metrics=_metrics(value))
    if unknown := sorted(set(map(str, value)) - _REPORT_KEYS):
        raise GateError(f"a benchmark's result has the keys {', '.join(unknown)}: expected {_known_keys()}")
    fingerprint = value.get("dataset_fingerprint")
    if fingerprint is not None and not isinstance(fingerprint, str):
        raise GateError(f"dataset_fingerprint {fingerprint!r}: expected a string")
    return Report(
        metrics=_metrics(value["metrics"]), verdict=_verdict(value.get("verdict")), dataset_fingerprint=fingerprint
    )


def read_report(data: bytes) -> Report:
    """Read the JSON that a benchmark's command wrote; ``NaN`` and ``Infinity`` are read, to be named later.

    Raises:
        GateError: it is no JSON object ``{metrics, verdict?, dataset_fingerprint?}``, or has a key twice.
    """
    try:
        value = json.loads(data, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise GateError(f"the benchmark's result is no JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("metrics"), dict):
        raise GateError(f"the benchmark's result is no JSON object with {_known_keys()}")
    return parse_report(value)


def judge(reports: Sequence[Report], bounds: Mapping[str, Bound]) -> Result:
    """Summarise repeats and judge them.

    With several repeats metric ``m`` is their median, beside ``m.mad`` (the median of the absolute deviations from it),
    ``m.min``, ``m.max`` and ``m.n``. A non-finite value is left out and named, and is a failure, as are no metrics at
    all, a metric that some repeats lack, and repeats that scored different data. Else a verdict of the benchmark's own
    stands, unless a bound is missed.

    Args:
        reports: one a repeat.
        bounds: by metric; empty: there are none.
    """
    metrics, problems = _summarised(reports)
    fingerprints = {report.dataset_fingerprint for report in reports}
    if len(fingerprints) > 1:
        problems.append("the repeats scored different data")
    if not metrics and not problems:
        problems.append("no metrics")
    fingerprint = fingerprints.pop() if len(fingerprints) == 1 else None
    if problems:
        return failed("; ".join(problems), metrics, fingerprint)
    return Result(
        status=FrameStatus.COMPLETED,
        verdict=_judged(reports, metrics, bounds),
        metrics=metrics,
        dataset_fingerprint=fingerprint,
    )


def failed(reason: str, metrics: Mapping[str, float] | None = None, dataset_fingerprint: str | None = None) -> Result:
    """Return the result of a run that has no measurement that could be judged."""
    return Result(
        status=FrameStatus.FAILED,
        verdict=Verdict(VerdictKind.FAIL, reason),
        metrics=metrics or {},
        dataset_fingerprint=dataset_fingerprint,
    )


def breaches(metrics: Mapping[str, float], bounds: Mapping[str, Bound]) -> list[str]:
    """Say which bounds are missed, and by what; a bounded metric that is not there misses its own."""
    found = []
    for name, bound in sorted(bounds.items()):
        value = metrics.get(name)
        if value is None:
            found.append(f"{name} is missing")
        elif not bound.holds(value):
            found.append(f"{name} = {value:g} is not {_range(bound)}")
    return found


def _judged(reports: Sequence[Report], metrics: Mapping[str, float], bounds: Mapping[str, Bound]) -> Verdict:
    stated = [report.verdict for report in reports if report.verdict is not None]
    worst = min(stated, key=lambda verdict: _BY_SEVERITY.index(verdict.kind), default=None)
    missed = breaches(metrics, bounds)
    if worst is not None and worst.kind is VerdictKind.FAIL:
        return Verdict(VerdictKind.FAIL, "; ".join([worst.reason or "the benchmark says so", *missed]))
    if missed:
        return Verdict(VerdictKind.FAIL, "; ".join(missed))
    held = f"{len(bounds)} of {len(bounds)} bounds hold" if bounds else "no bounds"
    return Verdict(VerdictKind.PASS, held) if worst is None else Verdict(worst.kind, worst.reason or held)


def _summarised(reports: Sequence[Report]) -> tuple[dict[str, float], list[str]]:
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.metrics.items():
            values.setdefault(name, []).append(value)
    metrics: dict[str, float] = {}
    problems = []
    for name, measured in sorted(values.items()):
        bad = [value for value in measured if not math.isfinite(value)]
        if bad:
            problems.append(f"{name} is {bad[0]}")
        elif len(measured) < len(reports):
            problems.append(f"{name} was measured in {len(measured)} of {len(reports)} repeats")
        elif len(reports) == 1:
            metrics[name] = measured[0]
        else:
            metrics |= _spread(name, measured)
    return metrics, problems


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    median = statistics.median(values)
    return {
        name: median,
        f"{name}.mad": statistics.median(abs(value - median) for value in values),
        f"{name}.min": min(values),
        f"{name}.max": max(values),
        f"{name}.n": float(len(values)),
    }


def _metrics(values: Mapping[Any, Any]) -> dict[str, float]:
    metrics = {}
    for name, value in values.items():
        if not isinstance(name, str) or not name:
            raise GateError(f"metric {name!r}: expected a non-empty string as its name")
        try:
            number = None if isinstance(value, bool | str | bytes) else float(value)
        except OverflowError:
            number = math.inf if value > 0 else -math.inf
        except (TypeError, ValueError):
            number = None
        if number is None:
            raise GateError(f"metric {name!r} is {value!r}: expected a number")
        metrics[name] = number
    return metrics


def _verdict(value: Any) -> Verdict | None:
    if value is None or isinstance(value, Verdict):
        return value
    try:
        return msgspec.convert({"kind": value, "reason": ""} if isinstance(value, str) else value, Verdict)
    except msgspec.ValidationError:
        raise GateError(
            f"verdict {value!r}: expected Pass, Fail or Info, or an object with such a kind and a reason"
        ) from None


def _range(bound: Bound) -> str:
    ends = " and ".join(
        f"{name} {limit:g}" for name, limit in (("at least", bound.min), ("at most", bound.max)) if limit is not None
    )
    return f"{ends} (noise {bound.noise:g})" if bound.noise else ends


def _known_keys() -> str:
    return ", ".join(sorted(_REPORT_KEYS))


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found
