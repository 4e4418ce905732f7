"""Questions to the graphs of captured steps, each answered by rows that say what they are about."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from runspan.tracefile.graph import GraphSpan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runspan.tracefile._evidence import Category, GradientState, Identifier
    from runspan.tracefile.graph import Graph

__all__ = [
    "GradientRow",
    "HeavyRow",
    "MemoryRow",
    "OperationRow",
    "SlowRow",
    "SpanRow",
    "TensorRow",
    "find_efficiency",
    "find_gradients",
    "find_heaviest",
    "find_memory",
    "find_slowest",
    "find_spans",
    "find_tensors",
]


class SlowRow(msgspec.Struct, frozen=True):
    """Where time went: the spans of one path, or the operations of one name below it.

    Attributes:
        path: the path of the spans.
        op_name: the operations' name; None for the spans themselves.
        calls: how many there are.
        self_ns: how long none of the spans' children ran; of operations, how long they took.
        total_ns: how long they took, children included.
        share: ``self_ns`` of the total of all measured spans, 0..1; None where nothing was measured.
    """

    path: str
    op_name: str | None
    calls: int
    self_ns: int
    total_ns: int
    share: float | None


class HeavyRow(msgspec.Struct, frozen=True):
    """Who allocated memory: the spans of one path, or the operations of one name.

    Attributes:
        path: the path of the spans; None for operations.
        op_name: the operations' name; None for spans.
        allocated_bytes: the bytes of the storages they allocated, each once, freed or not.
        share: of everything that was allocated, 0..1; None where nothing was.
    """

    path: str | None
    op_name: str | None
    allocated_bytes: int
    share: float | None


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one device in one capture; None is unknown, not zero.

    Attributes:
        capture_step: the capture's step.
        rank: the capture's rank.
        device: the device.
        peak_bytes: the most that live storages held.
        retained_bytes: what they held at the end.
        device_used_bytes: the most that the device itself said was used.
        device_reserved_bytes: the most that its allocator had reserved.
        device_capacity_bytes: how much it has.
    """

    capture_step: int
    rank: int
    device: str
    peak_bytes: int | None
    retained_bytes: int | None
    device_used_bytes: int | None
    device_reserved_bytes: int | None
    device_capacity_bytes: int | None


class OperationRow(msgspec.Struct, frozen=True):
    """How well the operations of one name move their data.

    Attributes:
        op_name: the name.
        calls: how many took time and tell their bytes.
        duration_ns: how long they took.
        dense_bytes: the bytes of their inputs and outputs, as if dense.
        bytes_per_ns: the one by the other; as a number, GB/s.
    """

    op_name: str
    calls: int
    duration_ns: int
    dense_bytes: int
    bytes_per_ns: float


class SpanRow(GraphSpan, frozen=True, kw_only=True):
    """One span, and which capture it is of."""

    capture_step: int
    rank: int


class TensorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor, which capture it is of, and the path of the span that recorded it."""

    capture_step: int
    rank: int
    path: str
    tensor_id: Identifier
    label: str | None
    shape: list[int]
    dtype: str
    device: str
    requires_grad: bool
    dense_bytes: int | None
    category: Category


class GradientRow(msgspec.Struct, frozen=True, kw_only=True):
    """One gradient, and which capture it is of."""

    capture_step: int
    rank: int
    root: Identifier
    key: str
    state: GradientState
    norm: float | None


def find_slowest(graphs: Iterable[Graph]) -> list[SlowRow]:
    """Return spans by path, and operations by path and name, longest own time first."""
    measured_ns = 0
    sums: dict[tuple[str, str | None], list[int]] = defaultdict(lambda: [0, 0, 0])
    for graph in graphs:
        measured_ns += graph.total_ns or 0
        paths = _paths(graph)
        timed = chain(
            ((span.path, None, span.self_ns, span.duration_ns) for span in graph.spans),
            ((paths[op.span_id], op.op_name, op.duration_ns, op.duration_ns) for op in graph.operations),
        )
        for path, op_name, self_ns, duration_ns in timed:
            entry = sums[path, op_name]
            entry[0] += 1
            entry[1] += self_ns
            entry[2] += duration_ns
    rows = [
        SlowRow(path, op_name, calls, self_ns, total_ns, self_ns / measured_ns if measured_ns else None)
        for (path, op_name), (calls, self_ns, total_ns) in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row.self_ns, row.path, row.op_name or ""))


def find_heaviest(graphs: Iterable[Graph]) -> list[HeavyRow]:
    """Return who allocated memory, most first: the spans by path, the operations by name."""
    by_path: dict[str, int] = defaultdict(int)
    by_op: dict[str, int] = defaultdict(int)
    for graph in graphs:
        if graph.memory is None:
            continue
        paths = _paths(graph)
        for span_id, size_bytes in graph.memory.allocated_by_span.items():
            by_path[paths[span_id]] += size_bytes
        for op_name, size_bytes in graph.memory.allocated_by_op.items():
            by_op[op_name] += size_bytes
    whole = sum(by_path.values())
    rows = [HeavyRow(path, None, size, size / whole if whole else None) for path, size in by_path.items()]
    rows += [HeavyRow(None, op_name, size, size / whole if whole else None) for op_name, size in by_op.items()]
    return sorted(rows, key=lambda row: (-row.allocated_bytes, row.path or "", row.op_name or ""))


def find_memory(graphs: Iterable[Graph]) -> list[MemoryRow]:
    """Return logical and physical memory by capture and device."""
    rows = []
    for graph in graphs:
        logical = {} if graph.memory is None else {each.device: each for each in graph.memory.devices}
        physical: dict[str, dict[str, int | None]] = {}
        for sample in graph.device_memory:
            most = physical.setdefault(sample.device, {})
            for name in ("used_bytes", "reserved_bytes", "capacity_bytes"):
                known = [size for size in (most.get(name), getattr(sample, name)) if size is not None]
                most[name] = max(known, default=None)
        for device in sorted(logical.keys() | physical.keys()):
            profile, measured = logical.get(device), physical.get(device, {})
            rows.append(
                MemoryRow(
                    capture_step=graph.meta.capture_step,
                    rank=graph.meta.process.rank,
                    device=device,
                    peak_bytes=None if profile is None else profile.peak_bytes,
                    retained_bytes=None if profile is None else profile.retained_bytes,
                    device_used_bytes=measured.get("used_bytes"),
                    device_reserved_bytes=measured.get("reserved_bytes"),
                    device_capacity_bytes=measured.get("capacity_bytes"),
                )
            )
    return rows


def find_efficiency(graphs: Iterable[Graph]) -> list[OperationRow]:
    """Return operations by name, the most bytes a nanosecond first.

    An operation that does not tell its output's bytes counts with its inputs'; one without a duration or without any
    bytes says nothing of efficiency and is left out.
    """
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for op in chain.from_iterable(graph.operations for graph in graphs):
        dense_bytes = op.input_dense_bytes + (op.output_dense_bytes or 0)
        if op.duration_ns > 0 and dense_bytes > 0:
            entry = sums[op.op_name]
            entry[0] += 1
            entry[1] += op.duration_ns
            entry[2] += dense_bytes
    rows = [
        OperationRow(op_name, calls, duration_ns, dense_bytes, dense_bytes / duration_ns)
        for op_name, (calls, duration_ns, dense_bytes) in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row.bytes_per_ns, row.op_name))


def find_spans(graphs: Iterable[Graph]) -> list[SpanRow]:
    """Return every span, capture by capture, depth first."""
    return [_span_row(graph, span) for graph in graphs for span in graph.spans]


def find_tensors(graphs: Iterable[Graph]) -> list[TensorRow]:
    """Return every tensor, capture by capture, in the order of the file."""
    rows = []
    for graph in graphs:
        paths = _paths(graph)
        rows += [
            TensorRow(
                capture_step=graph.meta.capture_step,
                rank=graph.meta.process.rank,
                path=paths[tensor.span_id],
                tensor_id=tensor.tensor_id,
                label=tensor.label,
                shape=tensor.shape,
                dtype=tensor.dtype,
                device=tensor.device,
                requires_grad=tensor.requires_grad,
                dense_bytes=tensor.dense_bytes,
                category=tensor.category,
            )
            for tensor in graph.tensors
        ]
    return rows


def find_gradients(graphs: Iterable[Graph]) -> list[GradientRow]:
    """Return every gradient, capture by capture, in the order of the file."""
    return [
        GradientRow(
            capture_step=graph.meta.capture_step,
            rank=graph.meta.process.rank,
            root=gradient.root,
            key=gradient.key,
            state=gradient.state,
            norm=gradient.norm,
        )
        for graph in graphs
        for gradient in graph.gradients
    ]


def _paths(graph: Graph) -> dict[str, str]:
    return {span.id: span.path for span in graph.spans}


def _span_row(graph: Graph, span: GraphSpan) -> SpanRow:
    return SpanRow(capture_step=graph.meta.capture_step, rank=graph.meta.process.rank, **msgspec.structs.asdict(span))
