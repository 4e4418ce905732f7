"""Compares two traces: total, peak of logical memory, spans by their paths, gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runspan.tracefile._evidence import GradientState  # noqa: TC001 - msgspec reads the annotations
from runspan.tracefile._health import is_capture
from runspan.tracefile.graph import build_graph

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from runspan.tracefile.events import Gradient, Meta, TraceEvent

__all__ = ["Comparison", "GradientDelta", "SpanDelta", "TraceFacts", "collect_facts", "compare", "incomparabilities"]

#: What must be equal in two traces for their durations to say anything about each other.
_IDENTITY = ("entrypoint", "phase", "device", "timing_mode", "capture_step", "warmup_steps")
_PERCENT = 100.0


class SpanDelta(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All spans of one path, on both sides.

    Attributes:
        path: the names from the root span down, joined by ``/``.
        baseline_count: how many spans of the path the baseline has; 0 for none.
        candidate_count: the same of the candidate.
        baseline_ns: what they took together, ns.
        candidate_ns: the same of the candidate.
        delta_ns: candidate minus baseline.
        delta_percent: the delta in percent of the baseline; left out where that is zero.
    """

    path: str
    baseline_count: int
    candidate_count: int
    baseline_ns: int
    candidate_ns: int
    delta_ns: int
    delta_percent: float | None = None


class GradientDelta(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One parameter's gradient on both sides; a key that has several holds its last, which the optimizer saw.

    Attributes:
        key: the parameter.
        baseline_state: present, missing, zero or non_finite; left out where the trace has no event of the key.
        candidate_state: the same of the candidate.
        baseline_norm: the norm, of a present gradient.
        candidate_norm: the same of the candidate.
        norm_delta: candidate minus baseline, where both have a norm.
    """

    key: str
    baseline_state: GradientState | None = None
    candidate_state: GradientState | None = None
    baseline_norm: float | None = None
    candidate_norm: float | None = None
    norm_delta: float | None = None


class Comparison(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a candidate does differently from a baseline; each delta is candidate minus baseline.

    Attributes:
        baseline_run_id: the baseline's run.
        candidate_run_id: the candidate's run.
        comparable: whether both did the same thing in the same way; the deltas are given either way.
        warnings: why they are not comparable, and what evidence one of them lacks.
        total_delta_ns: difference of the totals, ns (see :class:`TraceFacts`).
        total_delta_percent: the same in percent of the baseline; left out where that is zero.
        baseline_peak_bytes: the largest logical memory at any time; None where no memory was recorded.
        candidate_peak_bytes: the same of the candidate.
        peak_delta_bytes: their difference; None where one is unknown.
        spans: each path of either side, in the order of first appearance, the baseline's first.
        gradients: each key of either side, in the same order.
    """

    baseline_run_id: str
    candidate_run_id: str
    comparable: bool
    warnings: list[str]
    total_delta_ns: int
    total_delta_percent: float | None = None
    baseline_peak_bytes: int | None
    candidate_peak_bytes: int | None
    peak_delta_bytes: int | None
    spans: list[SpanDelta]
    gradients: list[GradientDelta]


class SpanTotal(msgspec.Struct, frozen=True):
    """The spans of one path: how many, and what they took together, ns."""

    count: int = 0
    duration_ns: int = 0


class TraceFacts(msgspec.Struct, frozen=True):
    """What one side of a comparison is made of.

    Attributes:
        meta: the trace's meta event.
        total_ns: the duration of the ``measured`` span; a trace without one, such as a run trace, takes from the start
            of its first root span to the end of its last.
        peak_bytes: the largest logical memory at any time, over all devices; None without memory events.
        spans: the spans by path.
        gradients: the last gradient of each key.
    """

    meta: Meta
    total_ns: int
    peak_bytes: int | None
    spans: dict[str, SpanTotal]
    gradients: dict[str, Gradient]


def compare(baseline: str | Path | Iterable[TraceEvent], candidate: str | Path | Iterable[TraceEvent]) -> Comparison:
    """Compare two complete traces.

    Args:
        baseline: what to compare with: a file of the trace, or its events, the meta event first.
        candidate: what is compared, likewise.

    Raises:
        TraceFormatError: a trace cannot be read, is not valid, or is not complete: a total that a crash cut is no
            measurement.
    """
    before, after = collect_facts(baseline), collect_facts(candidate)
    reasons = incomparabilities(before.meta, after.meta)
    total_delta_ns = after.total_ns - before.total_ns
    peak_delta = None
    if before.peak_bytes is not None and after.peak_bytes is not None:
        peak_delta = after.peak_bytes - before.peak_bytes
    return Comparison(
        baseline_run_id=before.meta.run_id,
        candidate_run_id=after.meta.run_id,
        comparable=not reasons,
        warnings=[*reasons, *_tag_differences(before.meta, after.meta), *_missing_evidence(before, after)],
        total_delta_ns=total_delta_ns,
        total_delta_percent=_percent(total_delta_ns, before.total_ns),
        baseline_peak_bytes=before.peak_bytes,
        candidate_peak_bytes=after.peak_bytes,
        peak_delta_bytes=peak_delta,
        spans=[
            _span_delta(path, before.spans.get(path, SpanTotal()), after.spans.get(path, SpanTotal()))
            for path in {**before.spans, **after.spans}
        ],
        gradients=[
            _gradient_delta(key, before.gradients.get(key), after.gradients.get(key))
            for key in {**before.gradients, **after.gradients}
        ],
    )


def incomparabilities(baseline: Meta, candidate: Meta) -> list[str]:
    """Return why two traces are not comparable, one text a field with both values; empty when they are."""
    return [
        f"not comparable: {name} is {_shown(before)} in the baseline and {_shown(after)} in the candidate"
        for name in _IDENTITY
        if (before := getattr(baseline, name)) != (after := getattr(candidate, name))
    ]


def collect_facts(trace: str | Path | Iterable[TraceEvent]) -> TraceFacts:
    """Build a trace's graph, and keep of it what a comparison needs.

    Raises:
        TraceFormatError: the trace cannot be read, is not valid, or is not complete.
    """
    graph = build_graph(trace)
    total_ns = graph.total_ns
    if total_ns is None:
        roots = [span for span in graph.spans if span.depth == 0]
        ends_ns = (span.start_ns + span.duration_ns for span in roots)
        total_ns = max(ends_ns, default=0) - min((span.start_ns for span in roots), default=0)
    spans: dict[str, SpanTotal] = {}
    for span in graph.spans:
        total = spans.get(span.path, SpanTotal())
        spans[span.path] = SpanTotal(total.count + 1, total.duration_ns + span.duration_ns)
    return TraceFacts(
        meta=graph.meta,
        total_ns=total_ns,
        peak_bytes=None if graph.memory is None else graph.memory.peak_bytes,
        spans=spans,
        gradients={gradient.key: gradient for gradient in graph.gradients},
    )


def _span_delta(path: str, before: SpanTotal, after: SpanTotal) -> SpanDelta:
    delta_ns = after.duration_ns - before.duration_ns
    return SpanDelta(
        path=path,
        baseline_count=before.count,
        candidate_count=after.count,
        baseline_ns=before.duration_ns,
        candidate_ns=after.duration_ns,
        delta_ns=delta_ns,
        delta_percent=_percent(delta_ns, before.duration_ns),
    )


def _gradient_delta(key: str, before: Gradient | None, after: Gradient | None) -> GradientDelta:
    norm_before, norm_after = (None if side is None else side.norm for side in (before, after))
    return GradientDelta(
        key=key,
        baseline_state=None if before is None else before.state,
        candidate_state=None if after is None else after.state,
        baseline_norm=norm_before,
        candidate_norm=norm_after,
        norm_delta=None if norm_before is None or norm_after is None else norm_after - norm_before,
    )


def _percent(delta: float, baseline: float) -> float | None:
    return _PERCENT * delta / baseline if baseline else None


def _tag_differences(baseline: Meta, candidate: Meta) -> list[str]:
    before, after = baseline.tags, candidate.tags
    return [
        f"tag {key!r} is {_shown(before.get(key))} in the baseline and {_shown(after.get(key))} in the candidate"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]


def _missing_evidence(baseline: TraceFacts, candidate: TraceFacts) -> list[str]:
    return [
        warning
        for side, facts in (("baseline", baseline), ("candidate", candidate))
        for is_missing, warning in (
            (not facts.spans, f"the {side} has no spans: its total is unknown, not 0"),
            (
                facts.peak_bytes is None and is_capture(facts.meta),
                f"the {side} has no memory events: its peak is unknown",
            ),
        )
        if is_missing
    ]


def _shown(value: object) -> str:
    return "absent" if value is None else repr(str(value)) if isinstance(value, str) else str(value)
