"""Captured steps: which ones, and the small trace and file of its own that each of them has."""

from __future__ import annotations

import statistics
from collections import deque
from typing import TYPE_CHECKING

import msgspec
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Link, SpanContext

from runspan import ids
from runspan._run.failures import describe_error
from runspan._run.scopes import make_current, restore
from runspan.records import RunStatus
from runspan.semconv import Attr, SpanName
from runspan.telemetry.processor import TraceStart
from runspan.telemetry.providers import forced_ids
from runspan.tracefile.events import Terminal
from runspan.tracefile.layout import TraceName
from runspan.tracefile.meta import ExecutionPhase, iso_timestamp
from runspan.tracefile.writer import FileWriter, NullWriter, TraceWriter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runspan._run.session import Session
    from runspan._run.spans import RecordedSpan, Spans
    from runspan.tracefile.events import Meta, TraceEvent

__all__ = ["Capture", "StepCaptures"]

#: Durations that the median of "slow" is taken over, and after how many more it is taken anew.
_SAMPLES = 32
_SAMPLES_A_MEDIAN = 8
#: What a slow step takes more than the median, at least: below it is the operating system's noise.
_SLOW_BY_NS = 1_000_000
#: Above every step number and duration.
_NEVER = 2**63
#: Steps captured afterwards, a reason and attempt: a training that is slow throughout must not fill the disk.
_MAX_AFTERWARDS = 16
#: A captured step's file has one part.
_MAX_CAPTURE_BYTES = 2**62


class _CaptureFile(FileWriter):
    """The file of one captured step; writing to it counts as being inside a recording call of the run."""

    def __init__(self, run_writer: TraceWriter, folder: Path, name: TraceName, meta: Meta) -> None:
        super().__init__(folder, name, meta, max_file_bytes=_MAX_CAPTURE_BYTES, durable=False)
        self._run_writer = run_writer

    def write(self, event: TraceEvent) -> bool:
        """Encode and append one event; return whether it was accepted."""
        with self._run_writer.inside():
            return super().write(event)

    write_plain = write


class Capture:
    """One captured step of this rank: its ``step`` span is a root in the step's trace, its file holds that trace alone.

    Args:
        captures: who opens it.
        step: the step's number.
        because: ``scheduled``, ``slow`` or ``failed``.
        start: when the step began.
    """

    def __init__(self, captures: StepCaptures, step: int, because: str, start: TraceStart) -> None:
        self._captures = captures
        self._session = session = captures.session
        self._spans = spans = captures.spans
        self._step = step
        self._because = because
        self.start = start
        self.trace_id = ids.step_trace_id(session.spec.run_id, step)
        self._writer = self._open_file()
        session.otel.processor.add_capture(self.trace_id, self._writer, start)
        with forced_ids(trace_id=self.trace_id):
            self.span: RecordedSpan = spans.begin(
                SpanName.STEP,
                {
                    Attr.RUN_ID: session.spec.run_id,
                    Attr.RANK: session.spec.context.rank,
                    Attr.ATTEMPT: session.attempt,
                    Attr.STEP: step,
                    Attr.STEP_CAPTURED_BECAUSE: because,
                },
                context=otel_context.Context(),
                links=[Link(session.otel.run_context()), Link(spans.rank_context)],
                start_time=start.time_unix_nano,
            )
        self._outer: otel_context.Context | None = None
        self._entered: otel_context.Context | None = None

    @property
    def context(self) -> SpanContext:
        """The ``step`` span's context."""
        return self.span.get_span_context()

    def enter(self) -> None:
        """Make the ``step`` span the current one."""
        self._outer = otel_context.get_current()
        self._entered = make_current(self.span, self._outer)

    def leave(self) -> None:
        """Put the span back that was current before."""
        if self._entered is not None and self._outer is not None:
            restore(self._entered, self._outer)

    def add_phase(self, name: str, began_ns: int, duration_ns: int) -> None:
        """Add a phase that is over as a span; its beginning on the monotonic clock, ns."""
        began = self.start.time_unix_nano + began_ns - self.start.monotonic_ns
        under_step = trace.set_span_in_context(self.span, otel_context.Context())
        span = self._spans.begin(name, {}, context=under_step, start_time=began)
        span.end(began + duration_ns)

    def close(self, duration_ns: int, error: BaseException | None) -> None:
        """End the step's span and file, and show the capture in the run's trace."""
        session = self._session
        if error is not None:
            self._spans.fail(self.span, error)
        self.span.end(self.start.time_unix_nano + duration_ns)
        self.close_file(duration_ns, None if error is None else describe_error(error, session.spec.redactor))
        session.otel.show_capture(self._step, self._because, self.context)

    def close_file(self, duration_ns: int, failure: str | None) -> None:
        """Write the file's terminal event and close it.

        Args:
            duration_ns: how long the step has taken.
            failure: why it is incomplete; None: it is complete.
        """
        self._captures.closed(self)
        self._session.otel.processor.remove_capture(self.trace_id)
        self._writer.write(
            Terminal(
                outcome="complete" if failure is None else "failed",
                timestamp_ns=duration_ns,
                status=RunStatus.SUCCESS if failure is None else RunStatus.FAILED,
                reason=failure,
            )
        )
        self._writer.close()

    def _open_file(self) -> TraceWriter:
        """Open the capture's file; a capture that cannot have one is exported all the same."""
        session = self._session
        spec, directory = session.spec, session.place.directory
        if directory is None:
            return NullWriter()
        capture_step = self._step + 1
        kind = "update" if spec.phase is ExecutionPhase.TRAIN else "inference"
        folder = directory.capture_folder(f"{kind}-{capture_step:09d}", spec.context.rank, spec.context.world_size)
        meta = msgspec.structs.replace(
            session.meta,
            correlation_id=f"{spec.correlation_id}/{kind}-{capture_step}",
            timestamp=iso_timestamp(self.start.time_unix_nano),
            capture_step=capture_step,
            warmup_steps=session.state.steps,
            time_unix_nano=self.start.time_unix_nano,
            trace_id=f"{self.trace_id:032x}",
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            name = TraceName(spec.context.rank, session.attempt)
            return _CaptureFile(session.writer, folder, name, meta)
        except OSError as error:
            session.notices.lose("capture", type(error).__name__, 1)
            session.notices.warn_once(
                "capture", f"the file of captured step {self._step} cannot be written: {error.strerror or error}"
            )
            return NullWriter()


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

    def scheduled(self, step: int, began_ns: int) -> Capture | None:
        """Return the capture of a step, None when it is not the schedule's.

        Args:
            step: its number.
            began_ns: when it begins, monotonic.
        """
        schedule = self._schedule
        if self._first_step is None:
            self._first_step = step
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
        return self._capture(step, "scheduled", began_ns)

    def sample(self, duration_ns: int) -> None:
        """Take a step's duration into account for what counts as slow."""
        self._recent_ns.append(duration_ns)
        self._sampled += 1
        if self._schedule.slow_factor and self._sampled % _SAMPLES_A_MEDIAN == 0:
            median_ns = statistics.median(self._recent_ns)
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

    def closed(self, capture: Capture) -> None:
        """Forget a capture whose file is closed."""
        if capture in self._open:
            self._open.remove(capture)

    def close_open(self, reason: str) -> None:
        """Close the files of captures that the end of the run cuts off."""
        for capture in list(self._open):
            capture.close_file(self.session.clock.monotonic_ns() - capture.start.monotonic_ns, reason)

    def _capture(self, step: int, because: str, began_ns: int) -> Capture:
        clock = self.session.clock
        began_unix_nano = clock.time_ns() - (clock.monotonic_ns() - began_ns)
        capture = Capture(self, step, because, TraceStart(began_unix_nano, began_ns))
        self._open.append(capture)
        self._captured.add(step)
        return capture
