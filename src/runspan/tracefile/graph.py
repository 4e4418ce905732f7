"""The graph of a trace: its spans as a tree with the time that is each one's own, and the evidence that hangs on it."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runspan.errors import TraceFormatError
from runspan.tracefile._health import HealthCheck, Severity
from runspan.tracefile._memory_profile import MemoryProfile, MemoryProfiler
from runspan.tracefile._schemas import has_terminal
from runspan.tracefile.events import (
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
)
from runspan.tracefile.reader import TraceReader, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from runspan.tracefile.events import TraceEvent

__all__ = ["Graph", "GraphSpan", "build_graph", "self_time_ns"]

#: No program nests deeper, and a path of names grows with every level.
_MAX_DEPTH = 1_000


class GraphSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A span in its tree.

    Attributes:
        id: its id.
        parent_id: its parent's, None for a root.
        name: its name.
        path: the names from its root down to itself, joined by ``/``.
        depth: how many spans it is below its root.
        span_kind: function, op or module.
        step: forward, backward or optimizer; None for what is neither.
        measured: whether it is what the capture measures.
        start_ns: when it began, ns since the trace's start.
        duration_ns: how long it took.
        self_ns: how long of that none of its children ran.
    """

    id: str
    parent_id: str | None
    name: str
    path: str
    depth: int
    span_kind: str
    step: str | None
    measured: bool
    start_ns: int
    duration_ns: int
    self_ns: int


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A trace's spans and evidence; made by :func:`build_graph`.

    Attributes:
        meta: the trace's meta event.
        spans: depth first, roots and siblings in the order in which they began.
        total_ns: how long the measured span took; None where there is none, as in a run's own trace.
        memory: the logical memory; None when no allocation was recorded, which does not mean that there was none.
        operations: in the order of the file, as are the others.
        tensors: the tensors.
        gradients: the gradients.
        device_intervals: what devices did, on their own clocks.
        device_memory: what devices said of their memory.
        call_edges: which span called which.
        data_edges: which tensor was made of which.
    """

    meta: Meta
    spans: tuple[GraphSpan, ...]
    total_ns: int | None
    memory: MemoryProfile | None
    operations: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    gradients: tuple[Gradient, ...]
    device_intervals: tuple[DeviceInterval, ...]
    device_memory: tuple[DeviceMemory, ...]
    call_edges: tuple[Edge, ...]
    data_edges: tuple[Edge, ...]


def build_graph(trace: str | Path | Iterable[TraceEvent]) -> Graph:
    """Build the graph of a valid and complete trace.

    Args:
        trace: any file of the trace, or its events from the meta event on.

    Raises:
        TraceFormatError: the trace cannot be read, health finds errors in it, or it did not end in success.
    """
    if isinstance(trace, str | Path):
        with read(trace) as reader:
            return build_graph(reader)
    return _build(trace, str(trace.path) if isinstance(trace, TraceReader) else None)


def self_time_ns(start_ns: int, duration_ns: int, children: Iterable[tuple[int, int]]) -> int:
    """Return how long of a span none of its children ran: its duration minus the union of their intervals.

    Children that overlap, as those of several threads do, count once; what of a child lies outside counts nothing.

    Args:
        start_ns: when the span began.
        duration_ns: how long it took.
        children: beginning and end of each child, ns, in any order.
    """
    end_ns = start_ns + duration_ns
    covered_ns, covered_to = 0, start_ns
    for child_start, child_end in sorted(children):
        begun, ended = max(child_start, covered_to), min(child_end, end_ns)
        if ended > begun:
            covered_ns += ended - begun
            covered_to = ended
    return duration_ns - covered_ns


def _build(trace: Iterable[TraceEvent], path: str | None) -> Graph:
    check, terminal = HealthCheck(), None
    kept: dict[type, list[Any]] = {
        kind: [] for kind in (Meta, SpanStart, Op, Tensor, Gradient, DeviceInterval, DeviceMemory, Edge)
    }
    durations_ns: dict[str, int] = {}
    profiler = MemoryProfiler()
    for event in trace:
        check.add(event)
        if (of_kind := kept.get(type(event))) is not None:
            of_kind.append(event)
        elif isinstance(event, SpanEnd):
            durations_ns[event.id] = event.duration_ns
        elif isinstance(event, Memory):
            profiler.add(event)
        elif isinstance(event, Terminal):
            terminal = event
    errors = [finding for finding in check.findings() if finding.severity is Severity.ERROR]
    meta = kept[Meta][0]
    _require_complete(meta, terminal, path)
    if errors:
        found = "; ".join(f"{error.code}: {error.message}" for error in errors)
        raise TraceFormatError(f"a graph needs a valid trace, and this one is not ({found})", path=path)
    spans = _tree(kept[SpanStart], durations_ns, path)
    return Graph(
        meta=meta,
        spans=spans,
        total_ns=next((span.duration_ns for span in spans if span.measured), None),
        memory=profiler.profile(),
        operations=tuple(kept[Op]),
        tensors=tuple(kept[Tensor]),
        gradients=tuple(kept[Gradient]),
        device_intervals=tuple(kept[DeviceInterval]),
        device_memory=tuple(kept[DeviceMemory]),
        call_edges=tuple(edge for edge in kept[Edge] if edge.edge_kind == "call"),
        data_edges=tuple(edge for edge in kept[Edge] if edge.edge_kind == "data"),
    )


def _require_complete(meta: Meta, terminal: Terminal | None, path: str | None) -> None:
    if terminal is None and has_terminal(meta):
        raise TraceFormatError("a graph needs a complete trace, and this one has no terminal event", path=path)
    if terminal is not None and terminal.outcome != "complete":
        reason = f" ({terminal.reason})" if terminal.reason else ""
        raise TraceFormatError(f"a graph needs a complete trace, and this one {terminal.outcome}{reason}", path=path)


def _tree(starts: Sequence[SpanStart], durations_ns: dict[str, int], file: str | None) -> tuple[GraphSpan, ...]:
    children: dict[str | None, list[SpanStart]] = {}
    for start in sorted(starts, key=attrgetter("start_ns")):
        children.setdefault(start.parent_id, []).append(start)
    spans = []
    stack = [("", 0, root) for root in reversed(children.get(None, ()))]
    while stack:
        above, depth, start = stack.pop()
        if depth > _MAX_DEPTH:
            raise TraceFormatError(f"span {start.id!r} is more than {_MAX_DEPTH} spans below its root", path=file)
        path = f"{above}{start.name}"
        below = children.get(start.id, [])
        duration_ns = durations_ns[start.id]
        intervals = ((child.start_ns, child.start_ns + durations_ns[child.id]) for child in below)
        spans.append(
            GraphSpan(
                id=start.id,
                parent_id=start.parent_id,
                name=start.name,
                path=path,
                depth=depth,
                span_kind=start.span_kind,
                step=start.step,
                measured=start.measured,
                start_ns=start.start_ns,
                duration_ns=duration_ns,
                self_ns=self_time_ns(start.start_ns, duration_ns, intervals),
            )
        )
        stack += [(f"{path}/", depth + 1, child) for child in reversed(below)]
    return tuple(spans)
