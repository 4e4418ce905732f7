"""Trace files: reading them back as typed events, one class a kind."""

from __future__ import annotations

from runspan.tracefile._compare import Comparison, compare
from runspan.tracefile._health import Finding, health
from runspan.tracefile._merge import read_run
from runspan.tracefile.events import (
    Artifact,
    Count,
    DeviceInterval,
    DeviceMemory,
    Dropped,
    Edge,
    Environment,
    Event,
    Gradient,
    Memory,
    Meta,
    Metric,
    Metrics,
    Observe,
    Op,
    Param,
    SegmentEnd,
    SpanEnd,
    SpanStart,
    Step,
    Tag,
    Tensor,
    Terminal,
    Usage,
)
from runspan.tracefile.graph import build_graph
from runspan.tracefile.reader import read

__all__ = [
    "Artifact",
    "Comparison",
    "Count",
    "DeviceInterval",
    "DeviceMemory",
    "Dropped",
    "Edge",
    "Environment",
    "Event",
    "Finding",
    "Gradient",
    "Memory",
    "Meta",
    "Metric",
    "Metrics",
    "Observe",
    "Op",
    "Param",
    "SegmentEnd",
    "SpanEnd",
    "SpanStart",
    "Step",
    "Tag",
    "Tensor",
    "Terminal",
    "Usage",
    "build_graph",
    "compare",
    "health",
    "read",
    "read_run",
]
