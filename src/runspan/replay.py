"""A recorded trace into an OTLP endpoint: what the live export has lost, or what was never exported.

The spans are those that a live run exports, with the same ids, times and content, so that a store which folds equal
spans keeps one of each, however often they are replayed. Metrics go only as far back as a Prometheus takes points that
come late.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from runspan._clock import SystemClock
from runspan._endpoints import endpoints
from runspan.errors import ConfigError
from runspan.export._sources import find_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from runspan._clock import Clock
    from runspan._endpoints import OtlpEndpoint
    from runspan.config import TracingConfig
    from runspan.telemetry._ledger import Ledger
    from runspan.telemetry._parcels import Parcel
    from runspan.telemetry._senders import Sender
    from runspan.telemetry._worker import ExportWorker

__all__ = ["METRIC_WINDOW_S", "ReplayOutcome", "ReplayReport", "replay"]

#: How far back metrics go: ``out_of_order_time_window`` of ``collector-config/prometheus``, less what the way takes.
METRIC_WINDOW_S = 30 * 60 - 60
#: How long a receiver may take nothing before the replay is given up.
_PATIENCE_S = 20.0
_POLL_S = 0.05
#: Spans a request, at most: the workers divide what is too large for one.
_BATCH = 512
_NS_A_SECOND = 1_000_000_000
#: A replay's only deadline is its patience; the workers need one all the same.
_FOREVER_NS = 365 * 86_400 * _NS_A_SECOND


class ReplayOutcome(StrEnum):
    """How a replay ended."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    ABORTED = "aborted"


class ReplayReport(msgspec.Struct, frozen=True):
    """What a replay did.

    Attributes:
        outcome: ``complete``: the receiver has taken everything; ``partial``: it refused some of it; ``aborted``: it
            stopped answering, and the rest was not sent.
        traces: how many traces were read, those of captured steps and of child processes too.
        spans: spans that the receiver has taken.
        points: metric points that it has taken.
        lost: what was read and not taken, by ``<signal>/<reason>``.
        spans_over_budget: spans beyond ``max_exported_spans``, left out as the live export leaves them out.
        values_too_old: recorded values that lie before the window in which metrics are sent.
        warnings: what could not be read or sent.
    """

    outcome: ReplayOutcome
    traces: int
    spans: int
    points: int
    lost: dict[str, int]
    spans_over_budget: int
    values_too_old: int
    warnings: tuple[str, ...] = ()


def replay(
    traces: Sequence[Path],
    config: TracingConfig,
    *,
    clock: Clock | None = None,
    patience_s: float = _PATIENCE_S,
) -> ReplayReport:
    """Send recorded traces, and the steps that they captured, to the endpoint of a configuration.

    Memory does not grow with the traces: they are read as they are sent.

    Args:
        traces: the first part of each trace; of run traces also the captured steps are sent.
        config: says where to, to what limits spans are cut and how many of a trace are sent.
        clock: tells the present, for how old metrics may be; None: the system's.
        patience_s: how long the receiver may take nothing before the replay is given up.

    Raises:
        ConfigError: no endpoint is configured, or it cannot be used.
        TraceFormatError: none of the traces can be opened.
    """
    to = endpoints(config)
    if not to:
        raise ConfigError(
            "there is no OTLP endpoint to send to: name one with --endpoint, or set OTEL_EXPORTER_OTLP_ENDPOINT"
        )
    return _Replay(traces, config, clock or SystemClock()).run(to, patience_s)


class _Replay:
    """One replay: what it reads, and what became of it."""

    def __init__(self, traces: Sequence[Path], config: TracingConfig, clock: Clock) -> None:
        from runspan.telemetry._ledger import Ledger  # noqa: PLC0415 - a replay alone loads what exports

        sources = find_sources(traces)
        self._config = config
        self._sources = sources.traces
        self._since_unix_nano = clock.time_ns() - METRIC_WINDOW_S * _NS_A_SECOND
        self._ledger: Ledger = Ledger()
        self._warnings = dict.fromkeys(f"left out: {problem}" for problem in sources.problems)
        self._over_budget = self._too_old = 0

    def run(self, to: dict[str, OtlpEndpoint], patience_s: float) -> ReplayReport:
        """Send each signal on a worker of its own, and wait until both are through or nothing moves any more."""
        from runspan.telemetry._ledger import METRICS, TRACES  # noqa: PLC0415 - as above
        from runspan.telemetry._senders import open_sender  # noqa: PLC0415 - as above

        read = {TRACES: self._span_parcels, METRICS: self._metric_parcels}
        senders = {signal: open_sender(endpoint, signal) for signal, endpoint in to.items()}
        streams = [
            _Stream(signal, to[signal], sender, parcels=read[signal](), ledger=self._ledger, warn=self._warn)
            for signal, sender in senders.items()
        ]
        waiting = streams
        while waiting := [stream for stream in waiting if not stream.is_over(patience_s)]:
            time.sleep(_POLL_S)
        for stream in streams:
            stream.raise_defect()
        exported, dropped = self._ledger.exported, self._ledger.dropped
        if any(stream.was_given_up for stream in streams):
            outcome = ReplayOutcome.ABORTED
        else:
            outcome = ReplayOutcome.PARTIAL if dropped else ReplayOutcome.COMPLETE
        return ReplayReport(
            outcome=outcome,
            traces=len(self._sources),
            spans=exported[TRACES],
            points=exported[METRICS],
            lost={f"{signal}/{reason}": count for (signal, reason), count in sorted(dropped.items())},
            spans_over_budget=self._over_budget,
            values_too_old=self._too_old,
            warnings=tuple(self._warnings),
        )

    def _warn(self, message: str) -> None:
        self._warnings.setdefault(message)

    def _span_parcels(self) -> Iterator[Parcel]:
        from runspan.telemetry._budget import SpanBudget  # noqa: PLC0415 - as above
        from runspan.telemetry._parcels import SpanParcel  # noqa: PLC0415 - as above
        from runspan.telemetry.rebuild import RecordedSpans  # noqa: PLC0415 - as above

        limits, most = self._config.otel.limits, self._config.max_exported_spans
        budgets: dict[tuple[str, int, int], SpanBudget] = {}
        batch = []
        for meta, span in RecordedSpans([source.path for source in self._sources], self._warn, self._warn):
            process = meta.process
            key = meta.run_id, process.rank, process.attempt
            budget = budgets.get(key)
            if budget is None:
                budget = budgets[key] = SpanBudget(most, process.rank, process.world_size)
            if not budget.admit(span):
                self._over_budget += 1
                continue
            batch.append(span)
            if len(batch) == _BATCH:
                yield SpanParcel(batch, limits)
                batch = []
        if batch:
            yield SpanParcel(batch, limits)

    def _metric_parcels(self) -> Iterator[Parcel]:
        from runspan.telemetry._parcels import MetricParcel  # noqa: PLC0415 - as above
        from runspan.telemetry.rebuild import open_trace  # noqa: PLC0415 - as above
        from runspan.telemetry.remeasure import RecordedMetrics  # noqa: PLC0415 - as above

        config = self._config
        for source in self._sources:
            opened = open_trace(source.path, self._warn) if source.has_metrics else None
            if opened is None:
                continue
            reader, events = opened
            recorded = RecordedMetrics(
                reader.meta,
                interval_s=config.metric_interval_s,
                max_metric_keys=config.max_metric_keys,
                since_unix_nano=self._since_unix_nano,
            )
            for request in recorded.requests(events):
                parcel = MetricParcel(request)
                if parcel.count:
                    yield parcel
            self._too_old += recorded.too_old


class _Stream:
    """One signal on its way: an export worker that pulls from the files.

    Args:
        signal: ``traces`` or ``metrics``.
        endpoint: where to.
        sender: how.
        parcels: read when the worker asks for more.
        ledger: counts what became of them.
        warn: told what the worker would log.

    Attributes:
        was_given_up: whether the receiver stopped taking anything.
    """

    def __init__(
        self,
        signal: str,
        endpoint: OtlpEndpoint,
        sender: Sender,
        *,
        parcels: Iterator[Parcel],
        ledger: Ledger,
        warn: Callable[[str], None],
    ) -> None:
        from runspan.telemetry._worker import ExportWorker  # noqa: PLC0415 - as above
        from runspan.telemetry.exporter import place_of  # noqa: PLC0415 - as above

        self.was_given_up = False
        self._signal = signal
        self._ledger = ledger
        self._parcels = parcels
        self._is_reading = False
        self._defect: Exception | None = None
        self._settled_before, self._moved_s = -1, time.monotonic()
        self._worker: ExportWorker = ExportWorker(
            signal,
            sender,
            timeout_s=endpoint.timeout_s,
            period_s=_POLL_S,
            refill=self._refill,
            sweep=lambda: 0,
            tend=lambda: None,
            ledger=ledger,
            warn=lambda _, message: warn(message),
            place=place_of(endpoint.url),
        )
        self._worker.start_drain(SystemClock.monotonic_ns() + _FOREVER_NS)

    def is_over(self, patience_s: float) -> bool:
        """Whether it has ended; it is given up when the receiver has taken nothing for so long."""
        if self._worker.wait(0):
            return True
        settled = self._settled()
        if settled != self._settled_before or self._is_reading:
            self._settled_before, self._moved_s = settled, time.monotonic()
        elif time.monotonic() - self._moved_s > patience_s:
            self._worker.abandon()
            self.was_given_up = True
        return self.was_given_up

    def raise_defect(self) -> None:
        """Raise what reading has raised on the worker's thread."""
        if self._defect is not None:
            raise self._defect

    def _refill(self, draining: bool) -> Parcel | None:  # noqa: ARG002 - what a worker calls
        self._is_reading = True
        try:
            return next(self._parcels, None)
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits
            self._defect = error
            return None
        finally:
            self._is_reading = False

    def _settled(self) -> int:
        lost = sum(count for (signal, _), count in self._ledger.dropped.items() if signal == self._signal)
        return self._ledger.exported[self._signal] + lost
