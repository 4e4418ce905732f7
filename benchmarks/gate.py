"""This repository's own gate: what recording costs, as ratios that hold on any machine.

Declared in ``.benchmarks/bounds.toml``; run with ``runspan bench run log_metric`` and ``runspan bench run step``. The
limits are those of ``benchmarks/hot_paths.py``, which times the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.hot_paths import compare, gauge_set, otel_span, per_call, receiver, recorded_run, uncaptured_step
from benchmarks.hot_paths import log_metric as log_metric_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    import runspan

_POINTS, _STEPS, _SPANS = 20_000, 1_000, 400


def log_metric(_run: runspan.Run, *, pairs: str = "5") -> dict[str, float]:
    """Return what log_metric costs its caller, against one raw Gauge.set.

    Args:
        pairs: how often the two are timed in turn.
    """
    gauge = gauge_set()
    return _timed(lambda run: log_metric_ns(run, _POINTS), lambda: per_call(gauge, _POINTS), int(pairs))


def step(_run: runspan.Run, *, pairs: str = "15") -> dict[str, float]:
    """Return what an uncaptured step with four phases costs, against one OpenTelemetry span.

    Args:
        pairs: how often the two are timed in turn.
    """
    span = otel_span(batch=False)
    return _timed(lambda run: uncaptured_step(run, _STEPS), lambda: per_call(span, _SPANS), int(pairs))


def _timed(ours: Callable[[runspan.Run], float], reference: Callable[[], float], pairs: int) -> dict[str, float]:
    """Time both sides in turn on a run that is exported, and return the median ratio and times, ns."""
    with receiver() as endpoint, recorded_run(endpoint) as (run, _):
        row = compare("", "", lambda: ours(run), reference, limit=0.0, pairs=pairs)
    return {"ratio": row.ratio, "ours_ns": row.ours_ns, "reference_ns": row.reference_ns}
