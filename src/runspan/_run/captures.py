"""Which steps are captured: those of the schedule before they run, slow and failed ones afterwards."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from runspan._run.captured_step import Capture
from runspan._run.ranges import load_nvtx
from runspan.telemetry.processor import TraceStart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.trace import SpanContext

    from runspan._run.ranges import ThreadRanges
    from runspan._run.session import Session
    from runspan._run.spans import Spans

__all__ = ["StepCaptures"]

#: Durations that the median of "slow" is taken over, and after how many more it is taken anew.
_SAMPLES = 32
_SAMPLES_A_MEDIAN = 8
#: What a slow step takes more than the median, at least: below it is the operating system's noise.
_SLOW_BY_NS = 1_000_000
#: Above every step number and duration.
_NEVER = 2**63
#: Steps captured afterwards, a reason and attempt: a training that is slow throughout must not fill the disk.
_MAX_AFTERWARDS = 16


class StepCaptures:
    """Says which steps are captured: those of the schedule before they run, slow and failed ones afterwards.

    The schedule counts from the first step of the attempt, so that all ranks that resume at one step capture alike. A
    number that comes again, as where each micro-batch is a step with its update's number, is captured once: a step has
    one trace and one file.

    Args:
        session: the session.
        spans: its spans.
    """

    def __init__(self, session: Session, spans: Spans) -> None:
        self.session = session
        self.spans = spans
        self._open: list[Capture] = []
        schedule = session.spec.config.capture
        self._schedule = schedule
        self._first_step: int | None = None
        #: The lowest step number that may have to be captured; checked on the hot path.
        self.next_step = 0
        #: A step that takes longer is slow, ns.
        self.slow_above_ns = _NEVER
        self._recent_ns: deque[int] = deque(maxlen=_SAMPLES)
        self._sampled = 0
        self._afterwards: dict[str, int] = {}
        self._captured: set[int] = set()
        self._ranges: ThreadRanges | None = None

    def scheduled(self, step: int, began_ns: int | None) -> Capture | None:
        """Return the capture of a step, None when it is not the schedule's.

        Args:
            step: its number.
            began_ns: when it began, monotonic; None: it begins now.
        """
        schedule = self._schedule
        if self._first_step is None:
            self._first_step = step
            if schedule.active:  # here, since it may take a while that is no part of a captured step
                self._ranges = load_nvtx(self.session.notices)
        cycle_steps = schedule.wait + schedule.warmup + schedule.active
        if schedule.active == 0 or cycle_steps == 0:
            self.next_step = _NEVER
            return None
        cycle, position = divmod(step - self._first_step, cycle_steps)
        active_from = schedule.wait + schedule.warmup
        if schedule.repeat and cycle >= schedule.repeat:
            self.next_step = _NEVER
            return None
        if cycle < 0 or step in self._captured:
            return None
        if position < active_from:
            self.next_step = step + active_from - position
            return None
        if began_ns is None:
            began_ns = self.session.clock.monotonic_ns()
        return self._capture(step, "scheduled", began_ns, self._ranges)

    def sample(self, duration_ns: int) -> None:
        """Take a step's duration into account for what counts as slow."""
        self._recent_ns.append(duration_ns)
        self._sampled += 1
        if self._schedule.slow_factor and self._sampled % _SAMPLES_A_MEDIAN == 0:
            median_ns = sorted(self._recent_ns)[len(self._recent_ns) // 2]
            self.slow_above_ns = int(max(self._schedule.slow_factor * median_ns, median_ns + _SLOW_BY_NS))

    def afterwards(
        self,
        step: int,
        began_ns: int,
        duration_ns: int,
        phases: Sequence[tuple[str, int, int]],
        error: BaseException | None,
    ) -> SpanContext | None:
        """Rebuild the trace of a step that turned out slow or failed; None when it has one, or enough steps have.

        Args:
            step: its number.
            began_ns: when it began, monotonic.
            duration_ns: how long it took.
            phases: name, beginning (monotonic) and duration of each phase, ns.
            error: the exception that left it.

        Returns:
            The context of its ``step`` span.
        """
        because = "slow" if error is None else "failed"
        count = self._afterwards.get(because, 0)
        if count >= _MAX_AFTERWARDS or step in self._captured:
            return None
        self._afterwards[because] = count + 1
        capture = self._capture(step, because, began_ns)
        for name, phase_began_ns, phase_ns in phases:
            capture.add_phase(name, phase_began_ns, phase_ns)
        capture.close(duration_ns, error)
        return capture.context

    @contextmanager
    def claim(self, capture: Capture) -> Iterator[bool]:
        """Take an open capture in order to close it; False for whoever comes later.

        What Ctrl-C interrupts leaves the capture open, for the run's end.
        """
        try:
            self._open.remove(capture)
        except ValueError:
            yield False
            return
        try:
            yield True
        except BaseException:
            self._open.append(capture)
            raise

    def cut_off(self, reason: str) -> None:
        """Close the captures of steps that the end of the run cuts off."""
        for capture in list(self._open):
            capture.cut_off(reason)

    def abandon(self) -> None:
        """Let go of the open captures in a forked child: they are the parent process's."""
        for capture in self._open:
            capture.abandon()
        self._open = []

    def _capture(self, step: int, because: str, began_ns: int, ranges: ThreadRanges | None = None) -> Capture:
        clock = self.session.clock
        began_unix_nano = clock.time_ns() - (clock.monotonic_ns() - began_ns)
        with self.session.writer.inside():
            capture = Capture(self, step, because, TraceStart(began_unix_nano, began_ns), ranges)
            self._open.append(capture)
        self._captured.add(step)
        return capture
