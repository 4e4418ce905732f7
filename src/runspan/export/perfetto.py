"""Perfetto and Chrome: a trace as Chrome trace event JSON, which both viewers open.

Each rank is a process of the viewer (``pid`` is the rank + 1: 0 means the idle process there), with threads for its
spans, steps, operations and events, and its metrics, counters, usage and memory as counter tracks. A captured step has
threads of its own, and arrows join it over the ranks. Times are µs with three decimals, so that every ns stays; they
count from the first trace's start, which ``otherData`` tells. What a device measured on its own clock is left out: the
format has one clock.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import math
from typing import IO, TYPE_CHECKING, Any

import msgspec

from runspan._output_file import whole_file
from runspan._plain import scrub_text
from runspan._version import __version__
from runspan.export._counters import counters_of
from runspan.export._lanes import FlatLanes, NestedLanes
from runspan.export._sources import Source, find_sources
from runspan.export._spans import JoinedSpan, OpenSpans
from runspan.export._values import readable
from runspan.tracefile._logical_memory import LogicalMemory
from runspan.tracefile.events import Count, Event, Memory, Op, SpanEnd, SpanStart, Step, Terminal
from runspan.tracefile.reader import read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from runspan.tracefile.events import TraceEvent

__all__ = ["export_perfetto"]

#: The threads of a trace, from the top of its process down.
_THREADS = ("spans", "overlapping spans", "steps", "ops", "events")
_encode = msgspec.json.Encoder().encode


def export_perfetto(traces: Sequence[Path], output: Path) -> None:
    """Write traces as one Chrome trace event JSON file.

    Memory grows with the spans that are open at a time, the storages that are allocated and the captured steps, not
    with the traces.

    Args:
        traces: the first part of each trace file.
        output: the file, replaced when all is written.

    Raises:
        TraceFormatError: no trace can be opened, or one breaks the format.
        ConfigError: the output cannot be written.
    """
    sources = find_sources(traces)
    with whole_file(output) as file:
        document = _Document(file, sources.start_unix_nano)
        for position, source in enumerate(sources.traces):
            _SourceExport(document, source, position).write()
        document.close(sources.run_id)


class _Flow(msgspec.Struct, frozen=True):
    """Where a captured step begins on one rank."""

    start_ns: int
    pid: int
    tid: int


class _Document:
    """The JSON file, its processes and their threads.

    Args:
        file: where to.
        start_unix_nano: what the times count from, unix ns.
    """

    def __init__(self, file: IO[bytes], start_unix_nano: int) -> None:
        self._file = file
        self._separator = b"\n"
        self._threads: dict[int, int] = {}
        self.start_unix_nano = start_unix_nano
        #: By captured step, for the arrows between the ranks.
        self.flows: dict[str, list[_Flow]] = {}
        file.write(b'{"displayTimeUnit":"ns","traceEvents":[')

    def add(self, event: dict[str, Any]) -> None:
        """Write one trace event."""
        self._file.write(self._separator)
        self._file.write(_encode(event))
        self._separator = b",\n"

    def open_process(self, source: Source) -> int:
        """Return the process of a trace's rank, described when it is met first."""
        process = source.meta.process
        pid = process.rank + 1
        if pid not in self._threads:
            self._threads[pid] = 0
            self._describe(pid, 0, "process_name", name=f"rank {process.rank}")
            if process.host:  # other writers do not tell
                self._describe(pid, 0, "process_labels", labels=scrub_text(f"{process.host}, pid {process.pid}"))
            self._describe(pid, 0, "process_sort_index", sort_index=process.rank)
        return pid

    def open_thread(self, pid: int, name: str, order: int) -> int:
        """Return a new thread of a process, which is shown in this order among the others."""
        self._threads[pid] += 1
        tid = self._threads[pid]
        self._describe(pid, tid, "thread_name", name=scrub_text(name))
        self._describe(pid, tid, "thread_sort_index", sort_index=order)
        return tid

    def close(self, run_id: str) -> None:
        """Write the arrows and what ends the file."""
        for number, (capture, flows) in enumerate(self.flows.items(), start=1):
            ordered = sorted(flows, key=lambda flow: flow.start_ns)
            for position, flow in enumerate(ordered):
                if len(ordered) > 1:
                    phase = "s" if position == 0 else "f" if position == len(ordered) - 1 else "t"
                    self._add_flow(phase, number, capture, flow)
        other = {
            "run_id": scrub_text(run_id),
            "start_time_unix_nano": str(self.start_unix_nano),
            "exporter": f"runspan {__version__}",
        }
        self._file.write(b'\n],"otherData":' + _encode(other) + b"}\n")

    def _describe(self, pid: int, tid: int, what: str, **arguments: object) -> None:
        self.add({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments})

    def _add_flow(self, phase: str, number: int, capture: str, flow: _Flow) -> None:
        event = {"ph": phase, "name": capture, "cat": "capture", "id": number, "pid": flow.pid, "tid": flow.tid}
        self.add({**event, "ts": _micros(flow.start_ns), "bp": "e"})


class _SourceExport:
    """The export of one trace: takes its events one after the other.

    Args:
        document: where to.
        source: the trace.
        position: its place among the others.
    """

    def __init__(self, document: _Document, source: Source, position: int) -> None:
        self._document = document
        self._source = source
        self._position = position
        self._pid = document.open_process(source)
        #: The trace's start on the document's clock.
        self._offset_ns = source.meta.time_unix_nano - document.start_unix_nano
        self._threads: dict[str, int] = {}
        self._open_spans = OpenSpans()
        self._lanes = NestedLanes()
        self._ops = FlatLanes()
        self._steps = FlatLanes()
        self._step_end_ns = 0
        self._counts: dict[str, float] = {}
        self._memory = LogicalMemory()
        self._handlers: dict[type, Callable[[Any], None]] = {
            SpanStart: self._add_span_start,
            SpanEnd: self._add_span_end,
            Op: self._add_op,
            Step: self._add_step,
            Event: self._add_event,
            Terminal: self._add_terminal,
            Count: self._add_count,
            Memory: self._add_memory,
        }

    def write(self) -> None:
        """Read the trace and write what there is of it."""
        with read(self._source.path) as reader:
            for event in reader:
                handler = self._handlers.get(type(event))
                if handler is None:
                    self._add_counters(event)
                else:
                    handler(event)
            last_seen_ns = reader.last_seen_unix_nano - self._source.meta.time_unix_nano
        for span in self._open_spans.left_open(last_seen_ns):
            self._add_span(span)

    def _add_span_start(self, start: SpanStart) -> None:
        self._open_spans.begin(start)
        self._lanes.begin(start.id, start.parent_id, start.start_ns)

    def _add_span_end(self, end: SpanEnd) -> None:
        span = self._open_spans.finish(end)
        if span is not None:
            self._add_span(span)

    def _add_span(self, span: JoinedSpan) -> None:
        start, end = span.start, span.end
        lane, _ = self._lanes.finish(start.id, span.end_ns)
        tid = self._thread("spans" if lane < NestedLanes.FLAT else "overlapping spans", lane)
        arguments = readable(span.attributes)
        arguments["span_id"] = start.id
        if end is None:
            arguments["open"] = True
        elif end.status is not None:
            arguments["status"] = readable(f"{end.status.code}: {end.status.message or ''}".rstrip(": "))
        start_ns = self._offset_ns + start.start_ns
        self._add_slice(
            tid, span.name, start.span_kind, start_ns=start_ns, duration_ns=span.duration_ns, arguments=arguments
        )
        for event in (end.events if end is not None else None) or ():
            at_ns = start_ns + event.time_unix_nano - start.time_unix_nano
            self._add_instant(tid, event.name, at_ns, readable(dict(event.attributes or {})))
        if self._source.capture is not None and start.parent_id is None and self._source.child is None:
            flows = self._document.flows.setdefault(self._source.capture, [])
            if not any(flow.pid == self._pid for flow in flows):
                flows.append(_Flow(start_ns, self._pid, tid))

    def _add_op(self, op: Op) -> None:
        duration_ns = max(0, op.duration_ns)
        tid = self._thread("ops", self._ops.place(op.timestamp_ns, op.timestamp_ns + duration_ns))
        arguments = {"span_id": op.span_id, "shape": op.shape, "dtype": op.dtype, "device": op.device}
        start_ns = self._offset_ns + op.timestamp_ns
        arguments = readable(arguments)
        self._add_slice(tid, op.op_name, "op", start_ns=start_ns, duration_ns=duration_ns, arguments=arguments)

    def _add_step(self, step: Step) -> None:
        end_ns = step.time_unix_nano - self._document.start_unix_nano
        start_ns = end_ns - max(0, step.duration_ns)
        # The wall clock is read a little after the duration: a step does not reach back into the one before it.
        if start_ns < self._step_end_ns <= end_ns:
            start_ns = self._step_end_ns
        self._step_end_ns = end_ns
        fields = msgspec.structs.asdict(step)
        arguments = readable({name: value for name, value in fields.items() if value is not None})
        tid = self._thread("steps", self._steps.place(start_ns, end_ns))
        name = f"step {step.step}"
        self._add_slice(tid, name, "step", start_ns=start_ns, duration_ns=end_ns - start_ns, arguments=arguments)

    def _add_event(self, event: Event) -> None:
        arguments = {"level": event.level, "message": event.message, **(event.attributes or {})}
        at_ns = event.time_unix_nano - self._document.start_unix_nano
        self._add_instant(self._thread("events"), event.name, at_ns, readable(arguments))

    def _add_terminal(self, terminal: Terminal) -> None:
        arguments = {"outcome": terminal.outcome, "status": terminal.status, "reason": terminal.reason}
        at_ns = self._offset_ns + terminal.timestamp_ns
        self._add_instant(self._thread("events"), "end of the trace", at_ns, readable(arguments))

    def _add_count(self, count: Count) -> None:
        total = self._counts[count.key] = self._counts.get(count.key, 0) + count.value
        self._add_counter(f"{count.key} total", total, count.time_unix_nano - self._document.start_unix_nano)

    def _add_memory(self, memory: Memory) -> None:
        self._memory.apply(memory)
        live_bytes = self._memory.live_bytes.get(memory.device, 0)
        self._add_counter(f"{memory.device} allocated bytes", live_bytes, self._offset_ns + memory.timestamp_ns)

    def _add_counters(self, event: TraceEvent) -> None:
        for point in counters_of(event, self._source.meta):
            self._add_counter(point.name, point.value, point.time_unix_nano - self._document.start_unix_nano)

    def _add_counter(self, name: str, value: float, at_ns: int) -> None:
        """Add a point to a counter track; a value that a track cannot show is an event."""
        child = self._source.child
        name = scrub_text(name if child is None else f"{name} (child {child})")
        if math.isfinite(value):
            event = {"ph": "C", "name": name, "pid": self._pid, "ts": _micros(at_ns), "args": {"value": value}}
            self._document.add(event)
        else:
            shown = readable(value)
            self._add_instant(self._thread("events"), f"{name} is {shown}", at_ns, {"value": shown})

    def _add_slice(
        self, tid: int, name: str, category: str, *, start_ns: int, duration_ns: int, arguments: dict[str, Any]
    ) -> None:
        event = {"ph": "X", "name": scrub_text(name), "cat": scrub_text(category), "pid": self._pid, "tid": tid}
        self._document.add({**event, "ts": _micros(start_ns), "dur": _micros(duration_ns), "args": arguments})

    def _add_instant(self, tid: int, name: str, at_ns: int, arguments: dict[str, Any]) -> None:
        event = {"ph": "i", "s": "t", "name": scrub_text(name), "cat": "event", "pid": self._pid, "tid": tid}
        self._document.add({**event, "ts": _micros(at_ns), "args": arguments})

    def _thread(self, name: str, lane: int = 0) -> int:
        """Return the thread of a lane of this trace, opened when it is met first."""
        key = f"{name} {lane}"
        if key not in self._threads:
            number = lane % NestedLanes.FLAT
            title = f"{name} {number + 1}" if number else name
            label = self._source.label
            order = self._position * len(_THREADS) + _THREADS.index(name)
            self._threads[key] = self._document.open_thread(self._pid, f"{title} · {label}" if label else title, order)
        return self._threads[key]


def _micros(duration_ns: int) -> msgspec.Raw:
    """Return ns as a JSON number of µs, every digit of it: a float would round."""
    sign, magnitude = ("-", -duration_ns) if duration_ns < 0 else ("", duration_ns)
    return msgspec.Raw(f"{sign}{magnitude // 1000}.{magnitude % 1000:03d}".encode())
