"""What one wants to know first of a trace, in one pass over it and in memory that does not grow with it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runspan.semconv import Attr
from runspan.tracefile._health import HealthCheck, is_capture
from runspan.tracefile._tallies import DurationTally, MetricTally
from runspan.tracefile.events import Dropped, Metric, Metrics, SpanEnd, SpanStart, Step, Unknown
from runspan.tracefile.layout import TraceName
from runspan.tracefile.reader import TraceStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from runspan.tracefile._findings import Finding, Severity
    from runspan.tracefile._tallies import Durations, MetricStats
    from runspan.tracefile.meta import TraceRunMeta
    from runspan.tracefile.reader import TornTail, TraceReader

__all__ = ["CapturedStep", "SpanStats", "Summarizer", "Summary", "TraceReport"]

#: Span names that are told apart; a program that puts numbers into its names must not fill the memory.
_MAX_NAMES = 1_000
_OTHER_NAMES = "(other names)"


class SpanStats(msgspec.Struct, frozen=True):
    """The ended spans of one name: how many, and how long together."""

    name: str
    count: int
    total_ns: int


class CapturedStep(msgspec.Struct, frozen=True):
    """One rank's capture of a step.

    Attributes:
        capture_step: which one, from 1.
        rank: the rank's number.
        attempt: the rank's attempt.
        because: scheduled, slow or failed; None where the trace does not say.
        duration_ns: how long the measured span took; None where it has not ended.
    """

    capture_step: int
    rank: int
    attempt: int
    because: str | None
    duration_ns: int | None


class TraceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One trace.

    Attributes:
        path: its file's path.
        rank: whose it is.
        attempt: the rank's attempt.
        child: ``<pid>`` of a child process; None for the rank itself.
        capture_step: the step that it is the capture of; None for a run's own trace.
        status: running or interrupted; finished, then ``outcome`` says how.
        outcome: complete or failed; None without a terminal event.
        reason: why it ended as it did.
        start_unix_nano: when it began.
        last_seen_unix_nano: when its last line that tells a time was written.
        event_count: how many events it has.
        skipped: how many lines a lenient reading skipped.
        torn: what a crash cut off.
        findings: what health finds.
    """

    path: str
    rank: int
    attempt: int
    child: str | None
    capture_step: int | None
    status: TraceStatus
    outcome: str | None
    reason: str | None
    start_unix_nano: int
    last_seen_unix_nano: int
    event_count: int
    skipped: int
    torn: tuple[TornTail, ...]
    findings: tuple[Finding, ...]

    def count(self, severity: Severity) -> int:
        """Return how many findings of a severity there are."""
        return sum(finding.severity is severity for finding in self.findings)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What several traces of one run come to.

    Attributes:
        meta: the identity of the first.
        events: how many events of each kind there are, most first.
        spans: the ended spans by name, longest total first.
        steps: how long steps take, over all ranks; None without steps.
        metrics: by key; of the first trace that has the key.
        losses: what was lost, by ``<signal> (<reason>)``.
        captures: the captured steps.
        traces: each trace.
    """

    meta: TraceRunMeta
    events: dict[str, int]
    spans: tuple[SpanStats, ...]
    steps: Durations | None
    metrics: tuple[MetricStats, ...]
    losses: dict[str, int]
    captures: tuple[CapturedStep, ...]
    traces: tuple[TraceReport, ...]


class Summarizer:
    """Adds up the traces of a run."""

    def __init__(self) -> None:
        self._meta: TraceRunMeta | None = None
        self._events: Counter[str] = Counter()
        self._spans: dict[str, tuple[int, int]] = {}
        self._steps = DurationTally()
        self._metrics: dict[str, MetricStats] = {}
        self._losses: Counter[str] = Counter()
        self._captures: list[CapturedStep] = []
        self._traces: list[TraceReport] = []

    def add(self, reader: TraceReader) -> None:
        """Read a trace and add it.

        Raises:
            TraceFormatError: it breaks the format; what came before stays added, but there is no report of the trace.
        """
        meta = reader.meta
        self._meta = self._meta or meta.run_meta
        check, metrics, spans = HealthCheck(), MetricTally(), _SpanNames(self._spans)
        handlers: dict[type, Callable[[Any], None]] = {
            Metric: metrics.add,
            Metrics: metrics.add_several,
            Step: self._steps.add,
            SpanStart: spans.start,
            SpanEnd: spans.end,
            Dropped: self._add_loss,
            Unknown: self._add_unknown,
        }
        counts: dict[type, int] = {}
        try:
            for event in reader:
                kind = type(event)
                counts[kind] = counts.get(kind, 0) + 1
                check.add(event)
                handler = handlers.get(kind)
                if handler is not None:
                    handler(event)
        finally:
            self._events.update({_tag(kind): count for kind, count in counts.items() if kind is not Unknown})
            for stats in metrics.stats():
                self._metrics.setdefault(stats.key, stats)
        captured = is_capture(meta)
        if captured:
            process = meta.process
            self._captures.append(
                CapturedStep(meta.capture_step, process.rank, process.attempt, spans.because, spans.measured_ns)
            )
        self._traces.append(_report(reader, check, sum(counts.values()), captured=captured))

    def summary(self) -> Summary:
        """Return what the traces come to, at least one of which was added."""
        if self._meta is None:
            raise ValueError("a summary needs a trace")
        spans = (SpanStats(name, count, total_ns) for name, (count, total_ns) in self._spans.items())
        return Summary(
            meta=self._meta,
            events=dict(self._events.most_common()),
            spans=tuple(sorted(spans, key=lambda each: -each.total_ns)),
            steps=self._steps.durations(),
            metrics=tuple(self._metrics.values()),
            losses=dict(self._losses),
            captures=tuple(self._captures),
            traces=tuple(self._traces),
        )

    def _add_unknown(self, event: Unknown) -> None:
        self._events[event.kind] += 1

    def _add_loss(self, event: Dropped) -> None:
        self._losses[f"{event.signal} ({event.reason})"] += event.count


class _SpanNames:
    """Adds a trace's spans up by name; holds the open ones.

    Args:
        totals: takes count and total duration by name.
    """

    def __init__(self, totals: dict[str, tuple[int, int]]) -> None:
        self._totals = totals
        self._open: dict[str, str] = {}
        self._measured_id: str | None = None
        self.measured_ns: int | None = None
        self.because: str | None = None

    def start(self, event: SpanStart) -> None:
        name = event.name if event.name in self._totals or len(self._totals) < _MAX_NAMES else _OTHER_NAMES
        self._totals.setdefault(name, (0, 0))
        self._open[event.id] = name
        if event.measured:
            self._measured_id = event.id
            because = (event.attributes or {}).get(Attr.STEP_CAPTURED_BECAUSE)
            self.because = because if isinstance(because, str) else None

    def end(self, event: SpanEnd) -> None:
        name = self._open.pop(event.id, _OTHER_NAMES)
        count, total_ns = self._totals.get(name, (0, 0))
        self._totals[name] = (count + 1, total_ns + event.duration_ns)
        if event.id == self._measured_id:
            self.measured_ns = event.duration_ns


def _tag(kind: type) -> str:
    config: msgspec.structs.StructConfig = kind.__struct_config__  # type: ignore[attr-defined] # every kind is a Struct
    return str(config.tag)


def _report(reader: TraceReader, check: HealthCheck, event_count: int, *, captured: bool) -> TraceReport:
    meta, state, terminal = reader.meta, reader.state, reader.terminal
    name = TraceName.parse(Path(reader.path).name)
    return TraceReport(
        path=str(reader.path),
        rank=meta.process.rank,
        attempt=meta.process.attempt,
        child=None if name is None else name.child,
        capture_step=meta.capture_step if captured else None,
        status=state.status,
        outcome=None if terminal is None else terminal.outcome,
        reason=None if terminal is None else terminal.reason,
        start_unix_nano=meta.time_unix_nano,
        last_seen_unix_nano=state.last_seen_unix_nano,
        event_count=event_count,
        skipped=reader.skipped,
        torn=reader.torn,
        findings=tuple(check.findings(is_running=state.status is TraceStatus.RUNNING)),
    )
