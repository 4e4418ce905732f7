"""How much logical memory was live, when, and who allocated it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runspan.tracefile._logical_memory import LogicalMemory

if TYPE_CHECKING:
    from runspan.tracefile.events import Memory

__all__ = ["DeviceMemoryProfile", "MemoryPoint", "MemoryProfile", "MemoryProfiler"]


class MemoryPoint(msgspec.Struct, frozen=True):
    """What was live on a device after an allocation or a release.

    Attributes:
        timestamp_ns: when, ns since the trace's start.
        device: where.
        live_bytes: the bytes of its live storages.
    """

    timestamp_ns: int
    device: str
    live_bytes: int


class DeviceMemoryProfile(msgspec.Struct, frozen=True):
    """The logical memory of one device: its most, and what was live at the end; bytes."""

    device: str
    peak_bytes: int
    retained_bytes: int


class MemoryProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The logical memory of a trace: each storage counts once, however many tensors share it.

    Attributes:
        peak_bytes: the most that was live at once, over all devices.
        peak_at_ns: when that was first reached, ns since the trace's start.
        retained_bytes: what was live at the end.
        peak_categories: the categories that the peak consisted of, bytes each.
        devices: the same by device, sorted by name.
        allocated_by_span: by span id, how much it allocated, freed or not; bytes.
        allocated_by_op: by operation name, the same of the allocations that name one.
        timeline: what was live after each change, in the order of the file.
    """

    peak_bytes: int
    peak_at_ns: int
    retained_bytes: int
    peak_categories: dict[str, int]
    devices: tuple[DeviceMemoryProfile, ...]
    allocated_by_span: dict[str, int]
    allocated_by_op: dict[str, int]
    timeline: tuple[MemoryPoint, ...]


class MemoryProfiler:
    """Adds up the ``memory`` events of a trace."""

    def __init__(self) -> None:
        self._memory = LogicalMemory()
        self._timeline: list[MemoryPoint] = []
        self._total_bytes = 0
        self._peak_bytes, self._peak_at_ns = -1, 0
        self._device_peaks: dict[str, int] = {}
        self._by_span: dict[str, int] = {}
        self._by_op: dict[str, int] = {}
        #: The category of each live storage is its first tensor's.
        self._categories: dict[tuple[str, int | str], str] = {}
        self._category_bytes: dict[str, int] = {}
        self._peak_categories: dict[str, int] = {}

    def add(self, event: Memory) -> None:
        """Take the next allocation or release."""
        change_bytes, fault = self._memory.apply(event)
        if fault is not None:
            return  # a finding of health, without which no profile is asked for
        self._categorize(event, change_bytes)
        self._total_bytes += change_bytes
        live_bytes = self._memory.live_bytes[event.device]
        self._device_peaks[event.device] = max(live_bytes, self._device_peaks.get(event.device, 0))
        if self._total_bytes > self._peak_bytes:
            self._peak_bytes, self._peak_at_ns = self._total_bytes, event.timestamp_ns
            self._peak_categories = {name: size for name, size in self._category_bytes.items() if size}
        self._timeline.append(MemoryPoint(event.timestamp_ns, event.device, live_bytes))
        if event.action == "alloc":
            self._by_span[event.span_id] = self._by_span.get(event.span_id, 0) + change_bytes
            if event.op_name is not None:
                self._by_op[event.op_name] = self._by_op.get(event.op_name, 0) + change_bytes

    def _categorize(self, event: Memory, change_bytes: int) -> None:
        key = (event.device, event.storage_id)
        category = self._categories.setdefault(key, event.category)
        if event.action == "free":
            del self._categories[key]
        self._category_bytes[category] = self._category_bytes.get(category, 0) + change_bytes

    def profile(self) -> MemoryProfile | None:
        """Return the profile; None when there was no event."""
        if not self._timeline:
            return None
        live_bytes = self._memory.live_bytes
        return MemoryProfile(
            peak_bytes=self._peak_bytes,
            peak_at_ns=self._peak_at_ns,
            retained_bytes=self._total_bytes,
            peak_categories=dict(sorted(self._peak_categories.items())),
            devices=tuple(
                DeviceMemoryProfile(device, self._device_peaks[device], live_bytes[device])
                for device in sorted(live_bytes)
            ),
            allocated_by_span=self._by_span,
            allocated_by_op=self._by_op,
            timeline=tuple(self._timeline),
        )
