"""A gate's result as telemetry: one ``gate`` span, and values that can be alerted on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import context as otel_context
from opentelemetry import trace

from runspan._run.identity import common_attributes
from runspan.semconv import Attr, SpanName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runspan._run.recording import Recording

__all__ = ["export_gate_span", "set_gate_values"]


def export_gate_span(run: Recording, benchmark_id: str, *, verdict: str, reason: str, git_sha: str) -> None:
    """Export a gate's result at once, as a short span under ``rank``; nothing on ranks other than 0.

    Args:
        run: the gate run, still open.
        benchmark_id: what was measured.
        verdict: Pass, Fail or Info.
        reason: why.
        git_sha: the commit that was measured.
    """
    session = run._session  # noqa: SLF001 - the run's own package
    spans = session.otel.spans
    if spans is None or session.spec.context.rank != 0:
        return
    attributes = {
        **common_attributes(session),
        Attr.GATE_BENCHMARK: benchmark_id,
        f"{Attr.GATE_PREFIX}verdict": verdict,
        f"{Attr.GATE_PREFIX}reason": reason,
        f"{Attr.GATE_PREFIX}git_sha": git_sha,
    }
    under_rank = trace.set_span_in_context(trace.NonRecordingSpan(spans.rank_context), otel_context.Context())
    spans.begin(SpanName.GATE, attributes, context=under_rank).end()
    session.otel.flush_soon()


def set_gate_values(run: Recording, benchmark_id: str, metrics: Mapping[str, float], *, passed: bool) -> None:
    """Set what ``runspan.gate.metric`` and ``runspan.gate.passed`` show of a benchmark from the next export on."""
    state = run._session.state  # noqa: SLF001 - as above
    state.gate_metrics.update({(benchmark_id, key): value for key, value in metrics.items()})
    state.gate_passed[benchmark_id] = passed
