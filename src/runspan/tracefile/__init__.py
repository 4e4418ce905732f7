"""Trace files: reading them back as typed events, one class a kind."""

from __future__ import annotations

from runspan.tracefile._merge import read_run
from runspan.tracefile.events import (
    Artifact,
    Count,
    Dropped,
    Environment,
    Event,
    Meta,
    Metric,
    Metrics,
    Observe,
    Param,
    SegmentEnd,
    SpanEnd,
    SpanStart,
    Step,
    Tag,
    Terminal,
    Usage,
)
from runspan.tracefile.reader import read

__all__ = [
    "Artifact",
    "Count",
    "Dropped",
    "Environment",
    "Event",
    "Meta",
    "Metric",
    "Metrics",
    "Observe",
    "Param",
    "SegmentEnd",
    "SpanEnd",
    "SpanStart",
    "Step",
    "Tag",
    "Terminal",
    "Usage",
    "read",
    "read_run",
]
