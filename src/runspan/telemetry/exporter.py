"""The export of a run: bounded queues filled by the training's threads, emptied by one worker a signal.

Nothing here blocks or raises on the threads that record. What cannot be exported is counted by reason:

============================== =====================================================================================
``budget``                     beyond ``max_exported_spans``
``queue_full``                 the receiver is slower than the run, or away for too long
``too_large``, ``encode_error`` one item alone is larger than a request may be, or cannot be encoded
``refused``, ``rejected``      the receiver said no, to a request or to a part of it
``shutdown_timeout``           not exported when the time was up
``finished``                   offered after the end
``internal_error``             a defect of ours, with a warning
============================== =====================================================================================
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from opentelemetry.sdk.trace import SpanProcessor

from runspan._clock import SystemClock
from runspan.telemetry._budget import RESERVED_NAMES, SpanBudget
from runspan.telemetry._ledger import METRICS, TRACES, Ledger
from runspan.telemetry._parcels import MetricParcel, SpanParcel, is_pending
from runspan.telemetry._senders import open_sender
from runspan.telemetry._worker import ExportWorker, WarnOnce

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.sdk.trace import ReadableSpan

    from runspan._endpoints import OtlpEndpoint
    from runspan._otel_env import SpanLimitSettings
    from runspan.telemetry._senders import Sender
    from runspan.telemetry.collector import MetricsCollector

__all__ = ["DEFAULT_QUEUE_SIZE", "METRICS", "TRACES", "ExportPipeline", "SpanBudget", "SpanExportProcessor", "place_of"]

#: Spans that may wait for the worker, about 20 MB; ``OTEL_BSP_MAX_QUEUE_SIZE`` changes it.
DEFAULT_QUEUE_SIZE = 8192
#: Reserved and pending spans that may wait beside them.
_RESERVED_QUEUE_SIZE = 4096
#: The worker is woken early when this many wait.
_WAKE_AT = 512
#: Spans a request, at most; also bounded in bytes.
_BATCH = 2048
#: How long a span may wait before it is sent.
_SPAN_PERIOD_S = 1.0
#: How often buffered durations are folded into histograms.
_FOLD_PERIOD_S = 1.0
#: How long a worker whose call was cut may take to say so.
_GRACE_S = 0.05
_NS_A_SECOND = 1_000_000_000


class SpanExportProcessor(SpanProcessor):
    """Queues ended spans for the export; the tracer provider's side of an :class:`ExportPipeline`.

    Every method may be called from any thread and from a signal handler that interrupted one of them: there is no lock.

    Args:
        budget: bounds the spans of a trace.
        limits: the ``OTEL_*`` limits that the copies are trimmed to.
        queue_size: spans that may wait.
        ledger: counts the losses.
    """

    def __init__(self, budget: SpanBudget, limits: SpanLimitSettings, queue_size: int, ledger: Ledger) -> None:
        self._budget = budget
        self._limits = limits
        self._queue_size = queue_size
        self._ledger = ledger
        self._queue: deque[ReadableSpan] = deque()
        self._reserved: deque[ReadableSpan] = deque()
        self._wake: Callable[[], None] | None = None
        self._closed = self._in_child = False

    def on_end(self, span: ReadableSpan) -> None:
        """Queue an ended span if it is sampled."""
        self.offer(span)

    def offer(self, span: ReadableSpan) -> None:
        """Queue a span that was built elsewhere: a pending one, a child process's, a captured step's.

        Spans that are not sampled are no part of the export, and not counted.
        """
        context = span.context
        if context is None or not context.trace_flags.sampled or self._in_child:
            return
        name = span.name
        if self._closed:
            self._drop(span, "finished")
        elif name in RESERVED_NAMES or is_pending(span):
            self._enqueue(span, self._reserved, _RESERVED_QUEUE_SIZE)
        elif self._budget.is_spent(name, context.trace_id):
            self._ledger.drop(TRACES, "budget")
        else:
            self._enqueue(span, self._queue, self._queue_size)

    def shutdown(self) -> None:
        """Do nothing: a drain of the pipeline ends the export."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - SpanProcessor's signature
        """Export soon and do not wait: a dead receiver must not hold up whoever flushes."""
        if self._wake is not None:
            self._wake()
        return True

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Say how to wake the worker."""
        self._wake = wake

    def refill(self, draining: bool) -> SpanParcel | None:  # noqa: ARG002 - spans are taken alike at any time
        """Take the next spans from the queues, the reserved ones first; on the worker's thread only."""
        while True:
            taken = _take(self._reserved, _BATCH)
            taken += _take(self._queue, _BATCH - len(taken))
            if not taken:
                return None
            admitted = [span for span in taken if is_pending(span) or self._budget.admit(span)]
            self._ledger.drop(TRACES, "budget", len(taken) - len(admitted))
            if admitted:
                return SpanParcel(admitted, self._limits)

    def sweep(self) -> int:
        """Close and empty the queues, and return how many spans were lost with them."""
        self._closed = True
        left = _take(self._reserved, len(self._reserved)) + _take(self._queue, len(self._queue))
        return sum(not is_pending(span) for span in left)

    def reinit_in_child(self) -> None:
        """In a forked child: take nothing, count nothing."""
        self._in_child = True
        self._queue, self._reserved = deque(), deque()

    def _enqueue(self, span: ReadableSpan, queue: deque[ReadableSpan], size: int) -> None:
        if len(queue) >= size:
            self._drop(span, "queue_full")
            return
        queue.append(span)
        if len(queue) >= _WAKE_AT and self._wake is not None:
            self._wake()

    def _drop(self, span: ReadableSpan, reason: str) -> None:
        if not is_pending(span):
            self._ledger.drop(TRACES, reason)


def _take(queue: deque[ReadableSpan], most: int) -> list[ReadableSpan]:
    """Take up to ``most`` spans; another thread may be taking too."""
    taken: list[ReadableSpan] = []
    try:
        while len(taken) < most:
            taken.append(queue.popleft())
    except IndexError:
        pass
    return taken


class ExportPipeline:
    """Ships the spans and metrics of one run, and ends within a deadline.

    Its threads start here and none later. Pending spans are neither bounded nor counted.

    Args:
        traces: where spans go; None: nowhere, and there is no span processor.
        metrics: where metrics go; None: nowhere.
        budget: bounds the spans of a trace.
        limits: the ``OTEL_*`` limits that exported copies are trimmed to.
        collector: collects the metrics; needed with ``metrics``.
        metric_interval_s: how often metrics are exported.
        queue_size: spans that may wait.
        label: whose export it is, for warnings; empty: they do not say.

    Raises:
        ConfigError: a certificate or key cannot be read.
    """

    def __init__(
        self,
        *,
        traces: OtlpEndpoint | None,
        metrics: OtlpEndpoint | None,
        budget: SpanBudget,
        limits: SpanLimitSettings,
        collector: MetricsCollector | None = None,
        metric_interval_s: float = 10.0,
        queue_size: int = DEFAULT_QUEUE_SIZE,
        label: str = "",
    ) -> None:
        self._ledger = Ledger()
        self._collector = collector
        self._workers: dict[str, ExportWorker] = {}
        #: For the tracer provider; None without an export of traces.
        self.span_processor: SpanExportProcessor | None = None
        self._warn = WarnOnce(label)
        metrics = metrics if collector is not None else None
        to = {signal: endpoint for signal, endpoint in ((TRACES, traces), (METRICS, metrics)) if endpoint is not None}
        # All senders before the first thread: a certificate that cannot be read leaves nothing behind.
        senders = {signal: open_sender(endpoint, signal) for signal, endpoint in to.items()}
        if TRACES in senders:
            processor = SpanExportProcessor(budget, limits, queue_size, self._ledger)
            self.span_processor = processor
            worker = self._start(
                TRACES,
                senders[TRACES],
                to[TRACES],
                _SPAN_PERIOD_S,
                refill=processor.refill,
                sweep=processor.sweep,
                tend=lambda: None,
            )
            processor.wake_with(worker.wake)
        if collector is not None and METRICS in senders:
            schedule = _MetricSchedule(collector, metric_interval_s)
            period_s = min(_FOLD_PERIOD_S, metric_interval_s)
            self._start(
                METRICS,
                senders[METRICS],
                to[METRICS],
                period_s,
                refill=schedule.refill,
                sweep=lambda: 0,
                tend=collector.fold,
            )

    def _start(
        self,
        signal: str,
        sender: Sender,
        endpoint: OtlpEndpoint,
        period_s: float,
        *,
        refill: Callable[[bool], SpanParcel | MetricParcel | None],
        sweep: Callable[[], int],
        tend: Callable[[], None],
    ) -> ExportWorker:
        worker = ExportWorker(
            signal,
            sender,
            timeout_s=endpoint.timeout_s,
            period_s=period_s,
            refill=refill,
            sweep=sweep,
            tend=tend,
            ledger=self._ledger,
            warn=self._warn,
            place=place_of(endpoint.url),
        )
        self._workers[signal] = worker
        return worker

    @property
    def exported(self) -> dict[str, int]:
        """Spans (``traces``) and points (``metrics``) that a receiver accepted."""
        return self._ledger.exported

    @property
    def dropped(self) -> Mapping[tuple[str, str], int]:
        """What will never be exported, by (signal, reason); with the spans exported, it makes all that were offered."""
        dropped = self._ledger.dropped
        if self._collector is not None:
            for reason, count in self._collector.left_out.items():
                dropped[METRICS, reason] = dropped.get((METRICS, reason), 0) + count
        return dropped

    def offer(self, span: ReadableSpan) -> None:
        """Export a span that was built elsewhere; nothing without an export of traces."""
        if self.span_processor is not None:
            self.span_processor.offer(span)

    def flush_soon(self) -> None:
        """Have what is queued exported at once, without waiting for it."""
        worker = self._workers.get(TRACES)
        if worker is not None:
            worker.wake()

    def drain(self, deadline_monotonic_ns: int) -> None:
        """Export what is left, all signals at once, and end; what is not through by the deadline is lost and counted.

        Returns at the latest about 0.1 s after the deadline, whatever a receiver does. A later call returns at once.

        Args:
            deadline_monotonic_ns: on ``SystemClock.monotonic_ns``.
        """
        for worker in self._workers.values():
            worker.start_drain(deadline_monotonic_ns)
        late = [worker for worker in self._workers.values() if not worker.wait(_seconds_until(deadline_monotonic_ns))]
        for worker in late:
            worker.abandon()
        grace_until_ns = SystemClock.monotonic_ns() + int(_GRACE_S * _NS_A_SECOND)
        for worker in late:
            worker.wait(_seconds_until(grace_until_ns))

    def reinit_in_child(self) -> None:
        """In a forked child: export nothing, hold nothing, wait for nothing."""
        self._ledger = Ledger()
        if self.span_processor is not None:
            self.span_processor.reinit_in_child()
        for worker in self._workers.values():
            worker.reinit_in_child()


class _MetricSchedule:
    """Says when metrics are collected; on the worker's thread only."""

    def __init__(self, collector: MetricsCollector, interval_s: float) -> None:
        self._collector = collector
        self._interval_ns = int(interval_s * _NS_A_SECOND)
        self._next_ns = SystemClock.monotonic_ns() + self._interval_ns
        self._ended = False

    def refill(self, draining: bool) -> MetricParcel | None:
        now_ns = SystemClock.monotonic_ns()
        if self._ended or not (draining or now_ns >= self._next_ns):
            return None
        self._ended = draining
        self._next_ns = now_ns + self._interval_ns
        parcel = MetricParcel(self._collector.collect(final=draining))
        return parcel if parcel.count else None


def _seconds_until(monotonic_ns: int) -> float:
    return max(0.0, (monotonic_ns - SystemClock.monotonic_ns()) / _NS_A_SECOND)


def place_of(url: str) -> str:
    """Return host and port of an endpoint; user, path and query may hold credentials."""
    return urlsplit(url if "://" in url else f"//{url}").netloc.rpartition("@")[2]
