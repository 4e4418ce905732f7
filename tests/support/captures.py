"""Events of a captured step for tests, each with sensible defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from runspan.tracefile.events import (
    DeviceInterval,
    DeviceMemory,
    Edge,
    Gradient,
    Memory,
    Meta,
    Op,
    OtelContext,
    SpanEnd,
    SpanStart,
    Tensor,
    Terminal,
    TraceEvent,
)
from support.traces import START_UNIX_NANO, make_meta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runspan.tracefile._evidence import Identifier

__all__ = [
    "capture_meta",
    "capture_op",
    "complete_capture",
    "device_sample",
    "gradient_event",
    "memory_event",
    "span_events",
    "tensor_event",
]


def capture_meta(**changes: Any) -> Meta:
    """Return the meta event of the capture of update 101."""
    return make_meta(
        **{"run_id": "run-a", "correlation_id": "run-a/update-101", "capture_step": 101, "warmup_steps": 100, **changes}
    )


def span_events(
    span_id: str, parent_id: str | None, start_ns: int, end_ns: int, inside: Sequence[TraceEvent] = (), **changes: Any
) -> list[TraceEvent]:
    """Return a span's start, what happens inside it, and its end; its name is its id."""
    start = SpanStart(
        id=span_id,
        parent_id=parent_id,
        name=span_id,
        start_ns=start_ns,
        time_unix_nano=START_UNIX_NANO + start_ns,
        span_kind="function",
        otel=OtelContext("ab" * 16),
    )
    start = msgspec.structs.replace(start, **changes)
    return [start, *inside, SpanEnd(id=span_id, duration_ns=end_ns - start_ns)]


def capture_op(span_id: str, start_ns: int, end_ns: int, **changes: Any) -> Op:
    """Return an operation on no tensor."""
    op = Op(
        span_id=span_id,
        op_name="matmul",
        inputs=[],
        shape=[2, 2],
        dtype="float32",
        device="cpu",
        duration_ns=end_ns - start_ns,
        timestamp_ns=start_ns,
        input_dense_bytes=32,
    )
    return msgspec.structs.replace(op, **changes)


def tensor_event(tensor_id: Identifier, span_id: str = "step", **changes: Any) -> Tensor:
    """Return a tensor."""
    tensor = Tensor(
        span_id=span_id,
        tensor_id=tensor_id,
        shape=[2, 2],
        dtype="float32",
        device="cpu",
        requires_grad=False,
        dense_bytes=16,
        category="activation",
    )
    return msgspec.structs.replace(tensor, **changes)


def memory_event(action: str, storage_id: Identifier, size_bytes: int = 16, **changes: Any) -> Memory:
    """Return an allocation (``alloc``) or a release (``free``) of a storage for the tensor of the same id."""
    event = Memory(
        timestamp_ns=10,
        storage_id=storage_id,
        tensor_id=storage_id,
        span_id="step",
        device="cpu",
        bytes=size_bytes,
        action="free" if action == "free" else "alloc",
        shape=[2, 2],
        dtype="float32",
        category="activation",
    )
    return msgspec.structs.replace(event, **changes)


def device_sample(**changes: Any) -> DeviceMemory:
    """Return a sample of a device's memory."""
    return msgspec.structs.replace(DeviceMemory(timestamp_ns=10, device="cuda:0", used_bytes=1), **changes)


def gradient_event(state: str = "present", norm: float | None = 1.0, key: str = "layer.weight") -> Gradient:
    """Return a gradient."""
    return msgspec.structs.replace(Gradient(event_id=1, root="loss", key=key, state="present"), state=state, norm=norm)


def complete_capture() -> list[TraceEvent]:
    """Return a capture in which every kind of evidence is there and nothing is wrong; its step takes 100 ns."""
    forward: list[TraceEvent] = [
        capture_op("forward", 10, 20, output="t1"),
        tensor_event("t0", "forward"),
        tensor_event("t1", "forward"),
        memory_event("alloc", 1, timestamp_ns=20),
        Edge.data("t0", "t1"),
    ]
    inside: list[TraceEvent] = [
        *span_events("forward", "step", 10, 40, forward, step="forward"),
        *span_events("backward", "step", 40, 80, step="backward"),
        *span_events("optimizer", "step", 80, 90, step="optimizer"),
        Edge.call("step", "forward", 30),
        device_sample(),
        DeviceInterval(
            span_id="forward",
            device="cuda:0",
            stream_id=7,
            clock_id="cuda",
            backend="cuda",
            start_ns=0,
            duration_ns=5,
        ),
        gradient_event(),
        memory_event("free", 1, timestamp_ns=90),
    ]
    return [
        capture_meta(),
        *span_events("step", None, 0, 100, inside, measured=True),
        Terminal("complete", 100, "success"),
    ]
