"""The numbers of a trace that are drawn over time: metrics, observations, usage, what a device's allocator says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runspan.tracefile.events import DeviceMemory, Metric, Metrics, Observe, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runspan.tracefile.events import Meta, TraceEvent

__all__ = ["CounterPoint", "counters_of"]

_USAGE_FIELDS = ("cpu_util", "gpu_util", "memory_used", "gpu_memory_used")
_DEVICE_MEMORY_FIELDS = ("used_bytes", "free_bytes", "reserved_bytes")


class CounterPoint(msgspec.Struct, frozen=True):
    """A point of a track.

    Attributes:
        name: the track's.
        value: the number; any float.
        time_unix_nano: when, unix ns.
    """

    name: str
    value: float
    time_unix_nano: int


def counters_of(event: TraceEvent, meta: Meta) -> Iterator[CounterPoint]:
    """Yield the points that an event of a trace adds; none for what is no number over time."""
    match event:
        case Metric() | Observe():
            yield CounterPoint(event.key, event.value, event.time_unix_nano)
        case Metrics():
            for key, value in event.values.items():
                yield CounterPoint(key, value, event.time_unix_nano)
        case Usage():
            for field in _USAGE_FIELDS:
                if (value := getattr(event, field)) is not None:
                    yield CounterPoint(f"usage {field}", value, event.time_unix_nano)
        case DeviceMemory():
            for field in _DEVICE_MEMORY_FIELDS:
                if (value := getattr(event, field)) is not None:
                    time_unix_nano = meta.time_unix_nano + event.timestamp_ns
                    yield CounterPoint(f"{event.device} {field}", value, time_unix_nano)
