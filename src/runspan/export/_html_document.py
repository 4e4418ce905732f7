"""What the HTML page of a run shows, read from its trace files in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from runspan.errors import TraceFormatError
from runspan.export._html_curves import CurveStore
from runspan.export._html_facts import PageFacts
from runspan.export._html_findings import PageFindings, reading_findings
from runspan.export._html_spans import LongestSpans, TraceSpans, page_mapping, page_name, page_value, step_bar
from runspan.export._html_steps import PageSteps
from runspan.export._sources import find_sources
from runspan.export._spans import OpenSpans
from runspan.records import ResourceSnapshot, RunStatus
from runspan.redaction import Redactor
from runspan.tracefile import events as kinds
from runspan.tracefile._health import Finding, HealthCheck, Severity
from runspan.tracefile.reader import TraceStatus, peek, read
from runspan.tracefile.steptimes import find_slow_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from runspan.export._sources import Source
    from runspan.tracefile.events import TraceEvent
    from runspan.tracefile.reader import TracePeek

__all__ = ["build_document"]

#: What is on a page at most: with all that is beside it, in the worst of names, it stays below its limit.
_MAX_RANKS = 1_024
_MAX_TRACES = 4_096
_MAX_SPAN_BYTES = 4 << 20
_MAX_STEP_BYTES = 1 << 20
_MAX_METRIC_POINTS = 120_000
_MAX_USAGE_POINTS = 30_000
_MAX_CURVES = 4_096
_NS_PER_S = 1_000_000_000


def build_document(traces: Sequence[Path]) -> dict[str, Any]:
    """Read the traces of one run, with the captured steps beside them, and return what the page shows.

    A file that cannot be read, or lines in it, are among the findings.

    Args:
        traces: the first part of each trace.

    Raises:
        TraceFormatError: there is no trace, or none can be read.
        SchemaVersionError: none can be read, the first of them because of its schema.
    """
    return _Page(traces).document()


class _Page:
    def __init__(self, traces: Sequence[Path]) -> None:
        sources = find_sources(traces)
        self._findings = PageFindings()
        for problem in sources.problems:
            self._findings.add(Finding("unreadable_file", Severity.ERROR, problem))
        ranks = sorted({source.rank for source in sources.traces})
        self._ranks, self._ranks_left_out = ranks[:_MAX_RANKS], len(ranks[_MAX_RANKS:])
        kept = set(self._ranks)
        of_ranks = [source for source in sources.traces if source.rank in kept]
        of_ranks.sort(key=lambda source: source.capture is not None)  # run traces first: they go without captures
        self._sources, self._traces_left_out = of_ranks[:_MAX_TRACES], len(of_ranks[_MAX_TRACES:])
        self._peeks = [peek(source.path) for source in self._sources]
        self._first = self._sources[0].meta
        self._origin = sources.start_unix_nano
        self._captured = {
            (source.rank, source.attempt, source.meta.capture_step - 1)
            for source in self._sources
            if source.capture is not None
        }
        self._spans = {rank: LongestSpans(_MAX_SPAN_BYTES // len(self._ranks)) for rank in self._ranks}
        self._bars = {rank: LongestSpans(_MAX_STEP_BYTES // len(self._ranks)) for rank in self._ranks}
        self._metrics = CurveStore(_MAX_METRIC_POINTS, _MAX_CURVES)
        self._usage = CurveStore(_MAX_USAGE_POINTS, _MAX_CURVES)
        self._steps = PageSteps()
        self._facts = PageFacts(self._first.tags, self._origin)
        self._takers: dict[type, Callable[[int, Any], None]] = {
            kinds.Metric: self._take_metric,
            kinds.Metrics: self._take_metrics,
            kinds.Step: self._take_step,
            kinds.Usage: self._take_usage,
        }
        self._captures: dict[str, list[dict[str, Any]]] = {}
        self._last_seen: dict[int, int] = {}

    def document(self) -> dict[str, Any]:
        for position, source in enumerate(self._sources):
            try:
                self._read(position, source)
            except TraceFormatError as error:
                self._findings.add(Finding("unreadable_file", Severity.ERROR, str(error)), source)
        slow = find_slow_rank(self._steps.times)
        return {
            "run": self._run(),
            "meta": page_mapping(msgspec.to_builtins(self._first.run_meta)),
            "resource": page_mapping(Redactor().redact_mapping(self._first.resource)),
            "ranks": self._ranks,
            "ranks_left_out": self._ranks_left_out,
            "traces_left_out": self._traces_left_out,
            "traces": [_trace_row(source, looked) for source, looked in zip(self._sources, self._peeks, strict=True)],
            "spans": [
                span for kept in (self._spans, self._bars) for of_rank in kept.values() for span in of_rank.finish()
            ],
            "spans_left_out": sum(of_rank.left_out for of_rank in self._spans.values()),
            "steps_left_out": sum(of_rank.left_out for of_rank in self._bars.values()),
            "metrics": self._metrics.finish(),
            "metric_points_left_out": self._metrics.points_left_out,
            "usage": self._usage.finish(),
            "usage_points_left_out": self._usage.points_left_out,
            "steps": self._steps.document(),
            "slow_rank": None if slow is None else msgspec.to_builtins(slow),
            "findings": self._findings.rows(),
            "captures": [{"name": name, "ranks": ranks} for name, ranks in sorted(self._captures.items())],
            **self._facts.document(),
        }

    def _read(self, position: int, source: Source) -> None:
        meta, looked = source.meta, self._peeks[position]
        spans = TraceSpans(position, meta.time_unix_nano - self._origin, self._spans[source.rank])
        open_spans, check = OpenSpans(), HealthCheck()
        with read(source.path, lenient=True) as reader:
            for event in reader:
                check.add(event)
                if isinstance(event, kinds.SpanStart):
                    open_spans.begin(event)
                elif isinstance(event, kinds.SpanEnd):
                    if (span := open_spans.finish(event)) is not None:
                        spans.add(span)
                elif source.capture is None:
                    self._take(position, event)
            last_seen = reader.last_seen_unix_nano
            for span in open_spans.left_open(last_seen - meta.time_unix_nano):
                spans.add(span)
            self._last_seen[source.rank] = max(self._last_seen.get(source.rank, 0), last_seen)
            is_running = looked.state.status is TraceStatus.RUNNING
            for finding in check.findings(is_running=is_running):
                self._findings.add(finding, source)
            for finding in reading_findings(looked, reader):
                self._findings.add(finding, source)
        if source.capture is not None:
            self._captures.setdefault(source.capture, []).append(
                {
                    "rank": source.rank,
                    "attempt": source.attempt,
                    "trace": position,
                    "spans": spans.count,
                    "measured_ns": spans.measured_ns,
                    "start_ns": meta.time_unix_nano - self._origin,
                    "end_ns": last_seen - self._origin,
                }
            )

    def _take(self, position: int, event: TraceEvent) -> None:
        taker = self._takers.get(type(event))
        if taker is not None:
            taker(position, event)
        else:
            self._facts.add(self._sources[position].rank, event)

    def _take_metric(self, position: int, event: kinds.Metric) -> None:
        self._add_point(self._metrics, position, event.key, event.step, event.value)

    def _take_metrics(self, position: int, event: kinds.Metrics) -> None:
        for key, value in event.values.items():
            step = event.step_of(key)
            if step is not None:
                self._add_point(self._metrics, position, key, step, value)

    def _take_step(self, position: int, event: kinds.Step) -> None:
        source = self._sources[position]
        self._steps.add(source.rank, source.attempt, event)
        if (source.rank, source.attempt, event.step) not in self._captured:
            self._bars[source.rank].add(step_bar(position, event, self._origin))

    def _take_usage(self, position: int, event: kinds.Usage) -> None:
        at_s = (event.time_unix_nano - self._origin) / _NS_PER_S
        for name in ResourceSnapshot.__struct_fields__:
            value = getattr(event, name)
            if value is not None:
                self._add_point(self._usage, position, name, at_s, value)

    def _add_point(self, curves: CurveStore, position: int, key: str, x: float, value: float) -> None:
        source = self._sources[position]
        curves.add(key, source.rank, source.attempt, x, value)

    def _run(self) -> dict[str, Any]:
        meta = self._first
        newest: dict[int, TracePeek] = {}
        for source, looked in zip(self._sources, self._peeks, strict=True):
            is_own = source.child is None and source.capture is None
            if is_own or source.rank not in newest:  # attempts come in their order, and the last one counts
                newest[source.rank] = looked
        statuses = {rank: _status(looked) for rank, looked in newest.items()}
        status = _worst(set(statuses.values()))
        reasons = (
            looked.terminal.reason
            for rank, looked in newest.items()
            if looked.terminal is not None and statuses[rank] == status
        )
        return {
            "id": meta.run_id,
            "name": meta.run_name,
            "group": meta.run_group,
            "experiment": meta.experiment_name,
            "status": status,
            "reason": page_value(next((reason for reason in reasons if reason), None)),
            "started_unix_ms": self._origin // 1_000_000,
            "duration_ns": max(self._last_seen.values(), default=self._origin) - self._origin,
            "world_size": max(source.meta.process.world_size for source in self._sources),
            "rank_statuses": [{"rank": rank, "status": each} for rank, each in sorted(statuses.items())],
        }


def _trace_row(source: Source, looked: TracePeek) -> dict[str, Any]:
    process = source.meta.process
    return {
        "file": page_name(source.path.name),
        "rank": process.rank,
        "attempt": process.attempt,
        "child": source.child,
        "capture": source.capture,
        "host": page_name(process.host),
        "pid": process.pid,
        "status": _status(looked),
    }


def _status(looked: TracePeek) -> str:
    return str(looked.state.status if looked.terminal is None else looked.terminal.final_status)


def _worst(statuses: set[str]) -> str:
    for status in (TraceStatus.RUNNING, TraceStatus.INTERRUPTED):
        if str(status) in statuses:
            return str(status)
    return str(RunStatus.worst([RunStatus(status) for status in statuses]))
