"""An export pipeline with its tracer, as a run puts them together."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runspan._clock import SystemClock
from runspan._otel_env import SpanLimitSettings
from runspan.telemetry.collector import MetricsCollector
from runspan.telemetry.exporter import ExportPipeline, SpanBudget
from runspan.telemetry.instruments import RunMetrics
from runspan.telemetry.providers import RunIdentity, build_resource, build_tracer_provider, get_tracer
from runspan.tracefile.events import Step

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from runspan._endpoints import OtlpEndpoint

__all__ = ["Exporting", "ended_step", "start_export"]


def ended_step(duration_ns: int, **phases_ns: int) -> Step:
    """Return the event of a step that took so long, with these phases."""
    return Step(step=0, duration_ns=duration_ns, phases=phases_ns or None, time_unix_nano=1)


@dataclass
class Exporting:
    """One process's export."""

    pipeline: ExportPipeline
    metrics: RunMetrics
    tracer: Tracer

    def end_spans(self, count: int, **attributes: Any) -> None:
        """Start and end this many spans, ``span-0``, ``span-1`` and so on."""
        for number in range(count):
            self.tracer.start_span(f"span-{number}", attributes=attributes).end()

    def drain(self, timeout_s: float = 10.0) -> float:
        """Drain, and return how long that took, s."""
        began = time.monotonic()
        self.pipeline.drain(SystemClock.monotonic_ns() + int(timeout_s * 1e9))
        return time.monotonic() - began


def start_export(
    traces: OtlpEndpoint | None,
    metrics: OtlpEndpoint | None = None,
    *,
    rank: int = 0,
    world_size: int = 1,
    max_exported_spans: int = 1_000_000,
    metric_interval_s: float = 60.0,
    queue_size: int = 100_000,
    label: str = "",
) -> Exporting:
    """Start an export to these endpoints."""
    identity = RunIdentity(
        run_id="run-1",
        experiment_id="exp-1",
        experiment_name="test",
        rank=rank,
        world_size=world_size,
        host="here",
        pid=os.getpid(),
    )
    resource = build_resource(identity)
    state = RunMetrics()
    pipeline = ExportPipeline(
        traces=traces,
        metrics=metrics,
        budget=SpanBudget(max_exported_spans, rank, world_size),
        limits=SpanLimitSettings(),
        collector=None if metrics is None else MetricsCollector(resource, state),
        metric_interval_s=metric_interval_s,
        queue_size=queue_size,
        label=label,
    )
    processors = [] if pipeline.span_processor is None else [pipeline.span_processor]
    provider = build_tracer_provider(resource, sampled=True, processors=processors)
    return Exporting(pipeline, state, get_tracer(provider))
