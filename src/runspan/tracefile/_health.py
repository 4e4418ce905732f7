"""Is a trace what it says it is? Structural errors, and evidence that is missing, in one pass over its events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from runspan.errors import TraceFormatError
from runspan.tracefile._findings import Finding, Findings, Severity
from runspan.tracefile._logical_memory import AllocationFault, LogicalMemory
from runspan.tracefile._spantable import SpanTable
from runspan.tracefile.events import (
    SCHEMA,
    DeviceInterval,
    DeviceMemory,
    Edge,
    Gradient,
    Memory,
    Meta,
    Op,
    SpanEnd,
    SpanStart,
    Tensor,
    Terminal,
    TraceEvent,
)
from runspan.tracefile.meta import ExecutionPhase
from runspan.tracefile.reader import TraceReader, TraceStatus, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from runspan.tracefile._evidence import Identifier

__all__ = ["Finding", "HealthCheck", "Severity", "health", "is_capture"]

#: What a capture is expected to hold: the code of its absence, and what is unknown without it.
_EXPECTED_KINDS: dict[type, tuple[str, str]] = {
    Op: ("operations_absent", "no operation was recorded"),
    Tensor: ("tensors_absent", "no tensor was recorded"),
    Memory: ("logical_memory_absent", "no allocation was recorded"),
    DeviceMemory: ("physical_memory_absent", "no sample of a device's memory was recorded"),
    DeviceInterval: ("device_timing_absent", "no device interval was recorded"),
}
_STEPS = ("forward", "backward", "optimizer")
_FAULTS = {
    AllocationFault.UNPAIRED_FREE: "is freed on {device} while it is not live",
    AllocationFault.SIZE_MISMATCH: "has two sizes on {device}, {bytes} bytes is the second",
    AllocationFault.DUPLICATE: "is allocated twice on {device} for tensor {tensor_id!r}",
}


def health(trace: str | Path | Iterable[TraceEvent]) -> list[Finding]:
    """Check a trace; an empty list means that nothing is wrong and no evidence is missing.

    The file streams by: memory grows with the spans, the tensors and the live allocations of the trace, not with its
    metrics and steps. There is one finding a code, errors first. Run traces hold no evidence of a single step, so they
    are not asked for it, nor for one root; in them a span that outlasts its parent, as a thread's may, is a warning.
    Open spans are warnings in a failed trace, which explains them, and nothing at all in one that is still being
    written.

    Args:
        trace: any file of the trace, or its events from the meta event on, such as a reader's.

    Raises:
        TraceFormatError: the trace cannot be read, or does not begin with its meta event.
    """
    if isinstance(trace, str | Path):
        with read(trace) as reader:
            return health(reader)
    check = HealthCheck()
    for event in trace:
        check.add(event)
    is_running = isinstance(trace, TraceReader) and trace.state.status is TraceStatus.RUNNING
    return check.findings(is_running=is_running)


def is_capture(meta: Meta) -> bool:
    """Whether a trace is one captured step; every trace of another program's schema is.

    A run's own trace has the run's correlation id, a capture's adds ``/update-<n>`` or ``/inference-<n>`` to it.
    """
    suffix = f"-{meta.capture_step}"
    return meta.schema != SCHEMA or meta.correlation_id.endswith((f"/update{suffix}", f"/inference{suffix}"))


class HealthCheck:
    """Checks a trace whose events are handed to it one after the other, meta first."""

    def __init__(self) -> None:
        self._findings = Findings()
        self._meta: Meta | None = None
        self._terminal: Terminal | None = None
        self._spans = SpanTable()
        self._memory = LogicalMemory()
        self._measured: list[str] = []
        self._seen: set[type] = set()
        self._seen_steps: set[str | None] = set()
        self._tensors: set[Identifier] = set()
        self._latest_ns = 0
        #: What names something that has not come yet, until the end tells whether it does.
        self._unknown_spans: dict[str, str] = {}
        self._call_edges: list[Edge] = []
        self._data_edges: list[Edge] = []
        self._checks: dict[type, Callable[[Any], None]] = {
            Meta: self._add_meta,
            SpanStart: self._start_span,
            SpanEnd: self._end_span,
            Op: self._add_op,
            Tensor: self._add_tensor,
            Memory: self._add_memory,
            DeviceMemory: self._add_device_memory,
            DeviceInterval: self._add_device_interval,
            Gradient: self._add_gradient,
            Edge: self._add_edge,
            Terminal: self._end_trace,
        }

    def add(self, event: TraceEvent) -> None:
        """Take the next event.

        Raises:
            TraceFormatError: the first event is not the meta event, another one is, or a span ends that is not open.
        """
        if self._terminal is not None:
            self._findings.add("terminal_precedes_evidence", "an event stands behind the terminal event")
        check = self._checks.get(type(event))
        if check is not None:
            check(event)
        elif self._meta is None:
            raise _no_meta(event)

    def findings(self, *, is_running: bool = False) -> list[Finding]:
        """Return what was found; to be called once, when the last event was added.

        Args:
            is_running: the trace is still being written, so that its spans may be open.
        """
        meta = self._meta
        if meta is None:
            raise TraceFormatError("a trace begins with its meta event, found no event at all")
        found, spans, failed = self._findings, self._spans, self._terminal is not None and _has_failed(self._terminal)
        spans.settle()
        if is_capture(meta):
            self._check_counts()
        spans.check(
            found,
            open_severity=None if is_running else Severity.WARNING if failed else Severity.ERROR,
            outside_severity=Severity.ERROR if is_capture(meta) else Severity.WARNING,
        )
        for span_id, what in self._unknown_spans.items():
            if span_id not in spans:
                found.add("unknown_span", f"{what} names span {span_id!r}, which is not in the trace", [span_id])
        for edge in self._call_edges:
            self._check_call_edge(edge)
        for edge in self._data_edges:
            self._check_data_edge(edge)
        if self._terminal is not None and self._terminal.timestamp_ns < self._latest_ns:
            by_ns = self._latest_ns - self._terminal.timestamp_ns
            found.add("terminal_precedes_evidence", f"the terminal event is {by_ns} ns older than the last evidence")
        if is_capture(meta):
            self._check_evidence(meta.phase)
        return found.collected()

    def _add_meta(self, event: Meta) -> None:
        if self._meta is not None:
            raise TraceFormatError("a second meta event: a trace has one, as its first line")
        self._meta = event

    def _start_span(self, event: SpanStart) -> None:
        self._require_meta(event)
        if not self._spans.start(event):
            self._findings.add("duplicate_span", f"{self._spans.describe(event.id)} begins a second time", [event.id])
            return
        if event.measured:
            self._measured.append(event.id)
        self._seen_steps.add(event.step)
        self._latest_ns = max(self._latest_ns, event.start_ns)

    def _end_span(self, event: SpanEnd) -> None:
        ended_ns = self._spans.end(event)
        if ended_ns is None:
            raise TraceFormatError(f"the end of span {event.id!r}, which is not open")
        self._latest_ns = max(self._latest_ns, ended_ns)

    def _add_op(self, event: Op) -> None:
        self._evidence(event, event.span_id, "an operation")
        self._spans.add_op(event)
        self._tensors.update(event.inputs)
        if event.output is not None:
            self._tensors.add(event.output)
        self._latest_ns = max(self._latest_ns, event.timestamp_ns + event.duration_ns)

    def _add_tensor(self, event: Tensor) -> None:
        self._evidence(event, event.span_id, "a tensor")
        self._tensors.add(event.tensor_id)

    def _add_memory(self, event: Memory) -> None:
        self._evidence(event, event.span_id, "an allocation" if event.action == "alloc" else "a release")
        self._latest_ns = max(self._latest_ns, event.timestamp_ns)
        _, fault = self._memory.apply(event)
        if fault is not None:
            how = _FAULTS[fault].format(device=event.device, bytes=event.bytes, tensor_id=event.tensor_id)
            self._findings.add(fault, f"storage {event.storage_id!r} {how}", [event.storage_id])

    def _add_device_memory(self, event: DeviceMemory) -> None:
        self._evidence(event)
        self._latest_ns = max(self._latest_ns, event.timestamp_ns)
        if (event.used_bytes, event.free_bytes, event.reserved_bytes, event.capacity_bytes) == (None,) * 4:
            message = f"a memory sample of {event.device} measured nothing"
            self._findings.add("empty_device_memory_sample", message, [event.device])

    def _add_device_interval(self, event: DeviceInterval) -> None:
        self._evidence(event, event.span_id, "a device interval")
        if event.duration_ns <= 0:
            message = f"a device interval of {self._spans.describe(event.span_id)} takes {event.duration_ns} ns"
            self._findings.add("empty_device_interval", message, [event.span_id])

    def _add_gradient(self, event: Gradient) -> None:
        self._evidence(event)
        if not _norm_fits(event):
            message = f"the gradient of {event.key!r} is {event.state}, its norm {event.norm}"
            self._findings.add("gradient_state_norm_mismatch", message, [event.key])

    def _add_edge(self, event: Edge) -> None:
        self._require_meta(event)
        if event.edge_kind == "data":
            if not self._knows_tensors(event):
                self._data_edges.append(event)
        elif not self._knows_spans(event) or self._spans.duration_of(str(event.to_span)) is None:
            self._call_edges.append(event)
        else:
            self._check_call_edge(event)

    def _end_trace(self, event: Terminal) -> None:
        self._require_meta(event)
        self._terminal = event

    def _evidence(self, event: TraceEvent, span_id: str | None = None, what: str = "") -> None:
        self._require_meta(event)
        self._seen.add(type(event))
        if span_id is not None and span_id not in self._spans:
            self._unknown_spans.setdefault(span_id, what)

    def _require_meta(self, event: TraceEvent) -> None:
        if self._meta is None:
            raise _no_meta(event)

    def _knows_spans(self, edge: Edge) -> bool:
        return str(edge.from_span) in self._spans and str(edge.to_span) in self._spans

    def _knows_tensors(self, edge: Edge) -> bool:
        return edge.from_tensor in self._tensors and edge.to_tensor in self._tensors

    def _check_counts(self) -> None:
        if self._spans.root_count != 1:
            message = f"a capture has one span without a parent, this one has {self._spans.root_count}"
            self._findings.add("root_count", message, self._spans.root_ids)
        if len(self._measured) != 1:
            message = f"a capture has one measured span, this one has {len(self._measured)}"
            self._findings.add("measurement_count", message, self._measured)

    def _check_call_edge(self, edge: Edge) -> None:
        caller, called = str(edge.from_span), str(edge.to_span)
        found, describe = self._findings, self._spans.describe
        if not self._knows_spans(edge):
            unknown = [span_id for span_id in (caller, called) if span_id not in self._spans]
            message = f"a call edge names span {unknown[0]!r}, which is not in the trace"
            found.add("unknown_call_edge_span", message, unknown)
            return
        if not self._spans.is_parent(caller, called):
            message = f"a call edge leads from {describe(caller)} to {describe(called)}, which is no child of it"
            found.add("call_edge_hierarchy_mismatch", message, [called])
        duration_ns = self._spans.duration_of(called)
        if duration_ns is not None and duration_ns != edge.host_duration_ns:
            message = f"the call edge to {describe(called)} says {edge.host_duration_ns} ns, the span {duration_ns} ns"
            found.add("call_edge_duration_mismatch", message, [called])

    def _check_data_edge(self, edge: Edge) -> None:
        unknown = [each for each in (edge.from_tensor, edge.to_tensor) if each not in self._tensors]
        if unknown:
            message = f"a data edge names tensor {unknown[0]!r}, which no tensor or operation of the trace is about"
            self._findings.add("unknown_data_edge_tensor", message, unknown)

    def _check_evidence(self, phase: ExecutionPhase) -> None:
        for kind, (code, message) in _EXPECTED_KINDS.items():
            if kind not in self._seen:
                self._warn_unknown(code, message)
        if phase is ExecutionPhase.TRAIN:
            if Gradient not in self._seen:
                self._warn_unknown("gradients_absent", "no gradient was recorded")
            for step in _STEPS:
                if step not in self._seen_steps:
                    self._warn_unknown(f"{step}_absent", f"no span is the step's {step}")
        retained = self._memory.live_storages
        if retained:
            device, storage_id = retained[0]
            message = f"storage {storage_id!r} on {device} is live at the end"
            for each in retained:
                self._findings.add("retained_allocations", message, [each[1]], Severity.WARNING)

    def _warn_unknown(self, code: str, message: str) -> None:
        self._findings.add(code, f"{message}: unknown, not zero", severity=Severity.WARNING)


def _has_failed(terminal: Terminal) -> bool:
    return terminal.outcome != "complete"


def _norm_fits(gradient: Gradient) -> bool:
    match gradient.state:
        case "present":
            return gradient.norm is not None and gradient.norm > 0
        case "zero":
            return gradient.norm == 0
        case _:
            return gradient.norm is None


def _no_meta(event: TraceEvent) -> TraceFormatError:
    return TraceFormatError(f"a trace begins with its meta event, found {type(event).__name__}")
