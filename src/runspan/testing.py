"""Fakes for tests: a clock that is moved by hand, and ids that can be predicted."""

from __future__ import annotations

import itertools

from opentelemetry.sdk.trace.id_generator import IdGenerator

__all__ = ["FakeClock", "SequentialIds"]


class FakeClock:
    """A :class:`runspan._clock.Clock` that stands still until it is moved.

    Args:
        time_unix_nano: the wall clock to start from, ns since the epoch.
    """

    def __init__(self, time_unix_nano: int = 1_700_000_000_000_000_000) -> None:
        self._time_unix_nano = time_unix_nano
        self._monotonic_ns = 0

    def time_ns(self) -> int:
        """Return the wall clock, ns since the epoch."""
        return self._time_unix_nano

    def monotonic_ns(self) -> int:
        """Return the time that has passed since the start, ns."""
        return self._monotonic_ns

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks.

        Raises:
            ValueError: the time is negative.
        """
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds} s; step_wall() moves the wall clock alone")
        elapsed_ns = round(seconds * 1e9)
        self._time_unix_nano += elapsed_ns
        self._monotonic_ns += elapsed_ns

    def step_wall(self, seconds: float) -> None:
        """Move the wall clock alone, back or forth, as a time server does."""
        self._time_unix_nano += round(seconds * 1e9)


class SequentialIds(IdGenerator):
    """An id generator that counts from 1, spans and traces apart."""

    def __init__(self) -> None:
        self._span_ids = itertools.count(1)
        self._trace_ids = itertools.count(1)

    def generate_span_id(self) -> int:
        """Return the next span id."""
        return next(self._span_ids)

    def generate_trace_id(self) -> int:
        """Return the next trace id."""
        return next(self._trace_ids)
