"""One captured step: its spans' trace, the file that holds it, and what is recorded into it."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Link, SpanContext, StatusCode, format_span_id

from runspan import ids
from runspan._plain import text_of
from runspan._run.failures import describe_error
from runspan._run.recorder import EvidenceRecorder
from runspan._run.scopes import SpanScope, make_current, restore
from runspan.errors import ConfigError, InvalidStateError
from runspan.records import RunStatus
from runspan.semconv import Attr, SpanName
from runspan.telemetry.providers import forced_ids
from runspan.tracefile.events import Terminal
from runspan.tracefile.layout import TraceName
from runspan.tracefile.meta import ExecutionPhase, iso_timestamp
from runspan.tracefile.writer import FileWriter, NullWriter, TraceWriter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from runspan._run.captures import StepCaptures
    from runspan._run.evidence import Evidence
    from runspan._run.ranges import ThreadRanges
    from runspan._run.spans import RecordedSpan
    from runspan.telemetry.processor import TraceStart
    from runspan.tracefile.events import Meta, TraceEvent

__all__ = ["Capture"]

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
        ranges: opens NVTX ranges, for a step that is about to run; None: no ranges.

    Attributes:
        is_open: whether the file takes evidence.
        recorder: records what the step holds beside its spans.
    """

    def __init__(
        self, captures: StepCaptures, step: int, because: str, start: TraceStart, ranges: ThreadRanges | None
    ) -> None:
        self._captures = captures
        self._session = session = captures.session
        self._spans = spans = captures.spans
        self._step = step
        self._because = because
        self.start = start
        self.trace_id = ids.step_trace_id(session.spec.run_id, step)
        self._event_ids = count()
        self._kind = "update" if session.spec.phase is ExecutionPhase.TRAIN else "inference"
        #: The capture's key, shared with NVTX range labels and outside artifacts.
        self._correlation_id = f"{session.spec.correlation_id}/{self._kind}-{step + 1}"
        self._ranges = None if ranges is None else ranges.of_trace(self._correlation_id)
        self._writer = self._open_file()
        self.is_open = True
        self.recorder = EvidenceRecorder(self)
        session.otel.processor.add_capture(self.trace_id, self._writer, start, self._ranges)
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
        if self._ranges is not None:
            self._ranges.is_live = False
        span = self._spans.begin(name, {}, context=under_step, start_time=began)
        span.end(began + duration_ns)
        if self._ranges is not None:
            self._ranges.is_live = True

    def scope(self, name: str, attributes: Mapping[str, Any], span_kind: str = "function") -> SpanScope:
        """Return a span inside the step as a context manager; below the step's own where none of its spans is current.

        Args:
            name: its name.
            attributes: its first attributes.
            span_kind: function, op or module.
        """
        return SpanScope(self._spans, name, attributes, capture=self, span_kind=span_kind)

    def parent(self, current: otel_context.Context) -> otel_context.Context:
        """Return a context whose span is of the step: the current one, else one with the step's own."""
        if trace.get_current_span(current).get_span_context().trace_id == self.trace_id:
            return current
        return trace.set_span_in_context(self.span, current)

    def current_span_id(self) -> str:
        """Return the id of the step's span that is current and stands in the file, else of the step's own."""
        context = trace.get_current_span().get_span_context()
        if context.trace_id != self.trace_id or not self._session.otel.processor.is_open(context.span_id):
            context = self.context
        return format_span_id(context.span_id)

    def now_ns(self) -> int:
        """Return the time since the step's start, ns."""
        return self._session.clock.monotonic_ns() - self.start.monotonic_ns

    def next_event_id(self) -> int:
        """Return a number that no other event of the step has."""
        return next(self._event_ids)

    def write(self, kind: str, event: Evidence) -> None:
        """Write evidence; behind the step's end it is refused."""
        with self._session.writer.inside(), self._writer.lock:
            is_late = not self.is_open
            if not is_late:
                self._writer.write_plain(event)
        if is_late:
            self.refuse_late(kind)

    def refuse(self, kind: str, error: Exception) -> None:
        """Count evidence that cannot be recorded as it is, and tell why.

        Raises:
            ConfigError: the run is strict.
        """
        refused = ConfigError(f"{kind} of captured step {self._step}: {text_of(error)}")
        self._session.notices.refuse("evidence", "invalid_value", kind, refused)

    def refuse_late(self, kind: str) -> None:
        """Count evidence that comes behind the step's end, and tell of it.

        Raises:
            InvalidStateError: the run is strict.
        """
        error = InvalidStateError(f"{kind} of captured step {self._step}: the step has ended, its file is closed")
        self._session.notices.refuse("evidence", "after_step", "late", error)

    def close(self, duration_ns: int, error: BaseException | None) -> None:
        """End the step's span and file, and show the capture in the run's trace; nothing when the run's end has.

        A span of the step that is still open, as on another thread, ends with it: so must the file.
        """
        session = self._session
        with session.writer.inside(), self._captures.claim(self) as is_mine:
            if not is_mine:
                return
            if error is not None:
                self._spans.fail(self.span, error)
            self._end_spans(duration_ns)
            self._close_file(duration_ns, None if error is None else describe_error(error, session.spec.redactor))
            session.otel.show_capture(self._step, self._because, self.context)

    def cut_off(self, reason: str) -> None:
        """End what is open of a step that the run's end cuts off: its own span with an error, its file as failed."""
        duration_ns = self.now_ns()
        with self._captures.claim(self) as is_mine:
            if not is_mine:
                return
            self.span.set_status(StatusCode.ERROR, reason)
            self._end_spans(duration_ns)
            self._close_file(duration_ns, reason)
            self._session.otel.show_capture(self._step, self._because, self.context)

    def abandon(self) -> None:
        """Let go of the file in a forked child: it is the parent process's, as is who may hold its lock."""
        self.is_open = False
        self._writer.abandon()
        self._writer = NullWriter()

    def _end_spans(self, duration_ns: int) -> None:
        """End what is open of the step's spans, its own last."""
        processor = self._session.otel.processor
        for span in reversed(processor.open_spans):
            if span.get_span_context().trace_id == self.trace_id:
                processor.cut_off(span, self.start.time_unix_nano + duration_ns)

    def _close_file(self, duration_ns: int, failure: str | None) -> None:
        """Write the file's terminal event and close it; once.

        Args:
            duration_ns: how long the step has taken.
            failure: why it is incomplete; None: it is complete.
        """
        session = self._session
        session.otel.processor.remove_capture(self.trace_id)
        terminal = Terminal(
            outcome="complete" if failure is None else "failed",
            timestamp_ns=duration_ns,
            status=RunStatus.SUCCESS if failure is None else RunStatus.FAILED,
            reason=failure,
        )
        with self._writer.lock:  # nothing of another thread comes behind the terminal event
            if self.is_open:
                self.is_open = False
                self._writer.write(terminal)
            self._writer.close()
        for why, lines in self._writer.lost().items():
            session.notices.lose("capture", why, lines)

    def _open_file(self) -> TraceWriter:
        """Open the capture's file; a capture that cannot have one is exported all the same."""
        session = self._session
        spec, directory = session.spec, session.place.directory
        if directory is None:
            return NullWriter()
        capture_step = self._step + 1
        name, context = f"{self._kind}-{capture_step:09d}", spec.context
        folder = directory.capture_folder(name, context.rank, context.world_size)
        meta = msgspec.structs.replace(
            session.meta,
            correlation_id=self._correlation_id,
            timestamp=iso_timestamp(self.start.time_unix_nano),
            capture_step=capture_step,
            warmup_steps=session.state.steps,
            time_unix_nano=self.start.time_unix_nano,
            trace_id=f"{self.trace_id:032x}",
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _CaptureFile(session.writer, folder, TraceName(context.rank, session.attempt), meta)
        except OSError as error:
            session.notices.lose("capture", type(error).__name__, 1)
            session.notices.warn_once(
                "capture", f"the file of captured step {self._step} cannot be written: {error.strerror or error}"
            )
            return NullWriter()
