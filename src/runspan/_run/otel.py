"""The OpenTelemetry side of a session: its provider, its two long spans, its export."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Link, SpanContext, StatusCode, TraceFlags, format_span_id, format_trace_id

from runspan import ids
from runspan._clock import SystemClock
from runspan._endpoints import endpoints
from runspan._run.captures import StepCaptures
from runspan._run.identity import common_attributes, rank_attributes, run_attributes
from runspan._run.scopes import FileSpanScope, HiddenSpanScope, SpanScope, make_current, restore
from runspan._run.spans import Spans
from runspan.errors import TraceFormatError
from runspan.records import RunStatus
from runspan.semconv import Attr, SpanName
from runspan.telemetry._budget import SpanBudget
from runspan.telemetry._ledger import TRACES
from runspan.telemetry.pending import pending_span
from runspan.telemetry.processor import RunTraceProcessor
from runspan.telemetry.providers import (
    RunIdGenerator,
    build_tracer_provider,
    decide_sampling,
    forced_ids,
    get_tracer,
    parse_traceparent,
)
from runspan.telemetry.rebuild import rebuild_spans
from runspan.tracefile.reader import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from opentelemetry.sdk.trace import ReadableSpan

    from runspan._run.session import Session
    from runspan._run.spans import RecordedSpan
    from runspan.alerts import Alert
    from runspan.records import MetricSummary
    from runspan.telemetry.exporter import ExportPipeline

__all__ = ["OtelSide"]

#: Above this many ranks a rank's start is not shown by a pending span.
_MAX_PENDING_RANKS = 512


class OtelSide:
    """One session's spans and export.

    Args:
        session: the session.
        export: whether this process may export; a helper process's spans are exported by its rank.
        began_unix_nano: when the run began, in its first attempt.
    """

    def __init__(self, session: Session, *, export: bool, began_unix_nano: int) -> None:
        spec = session.spec
        self._session = session
        self._began_unix_nano = began_unix_nano
        trace_id = ids.run_trace_id(spec.run_id)
        self.processor = RunTraceProcessor(session.writer, session.clock, session.start, trace_id)
        self.spans: Spans | None = None
        self._run_span: RecordedSpan | None = None
        self._rank_span: RecordedSpan | None = None
        self._pipeline = self._build_pipeline() if export else None
        self._exports_spans = self._pipeline is not None and spec.config.export_traces
        #: Whether somebody takes durations and observations out of the session's state.
        self.exports_metrics = self._pipeline is not None and spec.config.export_metrics
        #: Says which steps are captured; None where none is.
        self.captures: StepCaptures | None = None
        if spec.config.tracing_enabled:
            self.spans = self._build_spans(trace_id)
            if spec.parent is None and spec.context.rank < spec.config.capture.ranks:
                self.captures = StepCaptures(session, self.spans)

    def begin(self) -> None:
        """Start ``run`` on rank 0, and ``rank``."""
        spans, session = self.spans, self._session
        if spans is None:
            return
        spec, context = session.spec, session.spec.context
        links = self._links()
        run_context = self.run_context()
        parent = trace.set_span_in_context(trace.NonRecordingSpan(run_context), otel_context.Context())
        if context.rank == 0:
            with forced_ids(trace_id=run_context.trace_id, span_id=run_context.span_id):
                self._run_span = spans.begin(
                    SpanName.RUN,
                    run_attributes(session),
                    context=otel_context.Context(),
                    links=links,
                    start_time=self._began_unix_nano,
                )
            parent = trace.set_span_in_context(self._run_span, otel_context.Context())
            self._show(self._run_span)
        with forced_ids(span_id=spans.rank_context.span_id):
            self._rank_span = spans.begin(
                SpanName.RANK,
                rank_attributes(session),
                context=parent,
                links=links,
            )
        if spec.context.world_size <= _MAX_PENDING_RANKS:
            self._show(self._rank_span)

    def enter_rank(self) -> Callable[[], None]:
        """Make ``rank`` the current span, and return what puts the earlier one back."""
        if self.spans is None:
            return lambda: None
        previous = otel_context.get_current()
        entered = make_current(self._rank_span or trace.NonRecordingSpan(self.spans.rank_context), previous)
        return lambda: restore(entered, previous)

    def scope(self, name: str, attributes: Mapping[str, Any]) -> AbstractContextManager[trace.Span]:
        """Return a span as a context manager; one that records nothing when tracing is off."""
        spans = self.spans
        if spans is None:
            return nullcontext(trace.INVALID_SPAN)
        return SpanScope(spans, name, attributes) if self._exports_spans else FileSpanScope(spans, name, attributes)

    def hidden_scope(self, name: str, attributes: Mapping[str, Any]) -> AbstractContextManager[trace.Span]:
        """Return a span of the file that the OpenTelemetry context does not show."""
        spans = self.spans
        return nullcontext(trace.INVALID_SPAN) if spans is None else HiddenSpanScope(spans, name, attributes)

    def show_capture(self, step: int, because: str, captured: SpanContext) -> None:
        """Show a captured step in the run's trace: a short span under rank 0's ``rank``, with a link to it."""
        if self.spans is None or self._session.spec.context.rank != 0:
            return
        attributes = {
            **common_attributes(self._session),
            Attr.STEP: step,
            Attr.STEP_CAPTURED_BECAUSE: because,
        }
        self._short_span(SpanName.STEP_CAPTURED, attributes, [Link(captured)])

    def long_scope(self, name: str, attributes: Mapping[str, Any]) -> AbstractContextManager[trace.Span]:
        """Return a span that rank 0 exports and shows while it is open, and that stands in the file alone elsewhere."""
        if self._session.spec.context.rank != 0:
            return self.hidden_scope(name, attributes)
        if self.spans is None or not self._exports_spans:
            return self.scope(name, attributes)
        return SpanScope(self.spans, name, attributes, self._show)

    def set_run_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of the ``run`` span, on rank 0."""
        if self._run_span is not None and self._run_span.is_recording():
            self._run_span.set_attributes(attributes)

    def alert(self, alert: Alert) -> None:
        """Export an alert at once, as a short span under ``rank``."""
        if self.spans is None:
            return
        attributes = {
            **common_attributes(self._session),
            Attr.ALERT_TITLE: alert.title,
            Attr.ALERT_TEXT: alert.text,
            Attr.LEVEL: str(alert.level),
            Attr.RULE: alert.rule,
        }
        self._short_span(SpanName.ALERT, attributes, [])

    def traceparent(self) -> str | None:
        """Return the current span of this run as a W3C ``traceparent``, None when tracing is off."""
        if self.spans is None:
            return None
        current = trace.get_current_span(self.spans.parent()).get_span_context()
        return f"00-{format_trace_id(current.trace_id)}-{format_span_id(current.span_id)}-{current.trace_flags:02x}"

    def flush_soon(self) -> None:
        """Have what is queued exported at once, without waiting."""
        if self._pipeline is not None:
            self._pipeline.flush_soon()

    def dropped(self) -> Mapping[tuple[str, str], int]:
        """Return what the export lost so far, by (signal, reason)."""
        return {} if self._pipeline is None else self._pipeline.dropped

    def exported(self) -> Mapping[str, int]:
        """Return how many spans and points a receiver has accepted, by signal."""
        return {} if self._pipeline is None else self._pipeline.exported

    def end(
        self,
        status: RunStatus,
        reason: str | None,
        error: BaseException | None,
        summary: Mapping[str, MetricSummary],
        dropped: Mapping[tuple[str, str], int],
    ) -> None:
        """End every open span, the long ones last, and queue what child processes recorded."""
        spans = self.spans
        if spans is None:
            return
        if self.captures is not None:
            self.captures.cut_off(f"finish({status})" if reason is None else reason)
        self._end_open_spans(spans)
        if self._pipeline is not None:
            for span in self._child_spans():
                self._pipeline.offer(span)
            dropped = {**dropped, **self._pipeline.dropped}
        if self._rank_span is not None:
            self._mark(self._rank_span, status, error)
            self._rank_span.end()
        if self._run_span is not None:
            config = self._session.spec.config
            last = list(summary.items())[: config.max_metric_keys]
            self._run_span.set_attributes(
                {
                    **{f"{Attr.METRIC_PREFIX}{key}": item.last for key, item in last},
                    Attr.RUN_STATUS: str(status),
                    Attr.MAX_EXPORTED_SPANS: config.max_exported_spans,
                    Attr.DROPPED_SPANS: sum(count for (signal, _), count in dropped.items() if signal == TRACES),
                    **({} if reason is None else {Attr.RUN_END_REASON: reason}),
                }
            )
            self._mark(self._run_span, status, error)
            self._run_span.end()

    def drain(self, timeout_s: float) -> None:
        """Export what is left, within so many seconds, and let go of the file."""
        self.processor.release()
        if self._pipeline is not None:
            timeout_ns = int(timeout_s * 1e9)
            self._pipeline.drain(SystemClock.monotonic_ns() + timeout_ns)

    def after_fork_in_child(self) -> None:
        """Go on in a child process's file, without export; the long spans stay the parent's."""
        session = self._session
        self.processor.move_to(session.writer, session.start)
        if self.spans is not None:
            self.spans.after_fork_in_child(session.writer, session.start)
        if self._pipeline is not None:
            self._pipeline.reinit_in_child()
        self._pipeline = None
        self._exports_spans = False
        if self.captures is not None:
            self.captures.abandon()
        self.captures = None
        self._run_span = self._rank_span = None

    def _build_pipeline(self) -> ExportPipeline | None:
        session = self._session
        spec, config = session.spec, session.spec.config
        to = endpoints(config)
        if not to:
            return None
        from runspan.telemetry.exporter import ExportPipeline  # noqa: PLC0415 - loads grpc, which not every run needs

        collector = None
        if "metrics" in to:
            from runspan.telemetry.collector import MetricsCollector  # noqa: PLC0415 - loads the SDK's metrics

            collector = MetricsCollector(
                session.resource,
                session.state,
                max_metric_keys=config.max_metric_keys,
                local_rank=spec.context.local_rank,
                clock=session.clock,
            )
        limit = {} if config.otel.max_queue_size is None else {"queue_size": config.otel.max_queue_size}
        return ExportPipeline(
            traces=to.get("traces"),
            metrics=to.get("metrics"),
            budget=SpanBudget(config.max_exported_spans, spec.context.rank, spec.context.world_size),
            limits=config.otel.limits,
            collector=collector,
            metric_interval_s=config.metric_interval_s,
            label=f"run {spec.run_id}, rank {spec.context.rank}",
            **limit,
        )

    def _build_spans(self, trace_id: int) -> Spans:
        session = self._session
        spec = session.spec
        exporting = None if self._pipeline is None else self._pipeline.span_processor
        sampled = decide_sampling(spec.config.otel, trace_id, self._started_in())
        id_generator = RunIdGenerator()
        provider = build_tracer_provider(
            session.resource,
            sampled=sampled,
            processors=[self.processor] if exporting is None else [self.processor, exporting],
            id_generator=id_generator,
        )
        rank_span_id = session.identity.rank_span_id
        if rank_span_id is None:
            raise AssertionError("tracing is on, so the run has ids")
        rank_context = SpanContext(
            trace_id,
            int(rank_span_id, 16),
            is_remote=spec.parent is not None,
            trace_flags=TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT),
        )
        return Spans(
            tracer=get_tracer(provider),
            processor=self.processor,
            writer=session.writer,
            clock=session.clock,
            start=session.start,
            rank_context=rank_context,
            new_span_id=id_generator.generate_span_id,
            notices=session.notices,
            redactor=spec.redactor,
        )

    def _links(self) -> list[Link]:
        """Return a link to the trace that the process was started in, if it was."""
        spec = self._session.spec
        if spec.traceparent is None:
            return []
        started_in = self._started_in()
        if started_in is None:
            self._session.notices.warn_once(
                "traceparent", f"TRACEPARENT={spec.traceparent[:80]!r} is no W3C traceparent; it is ignored"
            )
            return []
        return [Link(started_in)]

    def _started_in(self) -> SpanContext | None:
        spec = self._session.spec
        return parse_traceparent(spec.traceparent, spec.config.otel.tracestate)

    def _short_span(self, name: str, attributes: Mapping[str, Any], links: list[Link]) -> None:
        """Write a span without duration under ``rank``, and export it at once."""
        if self.spans is None:
            return
        under_rank = trace.set_span_in_context(trace.NonRecordingSpan(self.spans.rank_context), otel_context.Context())
        self.spans.begin(name, attributes, context=under_rank, links=links).end()
        self.flush_soon()

    def run_context(self) -> SpanContext:
        """Return the ``run`` span's context, as ranks other than 0 know it."""
        run_id = self._session.spec.run_id
        flags = self.spans.rank_context.trace_flags if self.spans is not None else TraceFlags(TraceFlags.DEFAULT)
        return SpanContext(ids.run_trace_id(run_id), ids.run_span_id(run_id), is_remote=True, trace_flags=flags)

    def _show(self, span: RecordedSpan) -> None:
        """Export a pending span, so that an open span can be seen."""
        if self._pipeline is not None:
            self._pipeline.offer(pending_span(span.sdk_span))
            self._pipeline.flush_soon()

    def _end_open_spans(self, spans: Spans) -> None:
        spans.end_open_in_file()
        long_ids = {span.get_span_context().span_id for span in (self._run_span, self._rank_span) if span is not None}
        for span in reversed(self.processor.open_spans):
            if span.get_span_context().span_id not in long_ids:
                self.processor.cut_off(span)

    def _child_spans(self) -> Iterator[ReadableSpan]:
        """Yield the spans that child processes of this attempt recorded."""
        session = self._session
        directory = session.place.directory
        if directory is None:
            return
        for name, path in directory.trace_files():
            is_child = name.child is not None and name.part == 0
            if is_child and (name.rank, name.attempt) == (session.spec.context.rank, session.attempt):
                try:
                    yield from rebuild_spans(read(path, lenient=True))
                except (OSError, TraceFormatError) as error:
                    session.notices.warn_once(f"child/{path}", f"spans of a child process are not exported: {error}")

    def _mark(self, span: RecordedSpan, status: RunStatus, error: BaseException | None) -> None:
        if status is not RunStatus.FAILED:
            return
        if error is not None and self.spans is not None:
            self.spans.fail(span, error)
        else:
            span.set_status(StatusCode.ERROR)
