"""The two clocks, as one object that tests can replace."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Wall time and elapsed time, both in nanoseconds."""

    def time_ns(self) -> int:
        """Return the wall clock, ns since the unix epoch; it can step back."""

    def monotonic_ns(self) -> int:
        """Return a clock that never steps back, from an arbitrary start; only differences have a meaning."""


class SystemClock:
    """The operating system's clocks."""

    time_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.perf_counter_ns)
