"""What a captured step holds beside its spans: operations, tensors, memory, gradients, and how they hang together."""

from __future__ import annotations

from typing import Literal

from runspan.tracefile._kinds import Kind

__all__ = [
    "Action",
    "Category",
    "DeviceInterval",
    "DeviceMemory",
    "Edge",
    "Gradient",
    "GradientState",
    "Memory",
    "Op",
    "Tensor",
]

#: Tensors, storages and events are known by what the framework calls them: a number (an address, a counter) or a text.
Identifier = int | str
Category = Literal["parameter", "activation", "gradient", "optimizer", "other"]
Action = Literal["alloc", "free"]
_EDGE_FIELDS = {"call": ("from_span", "to_span", "host_duration_ns"), "data": ("from_tensor", "to_tensor")}
GradientState = Literal["present", "missing", "zero", "non_finite"]


class Op(Kind, frozen=True, tag="op", kw_only=True):
    """One operation that a span ran; ``inputs`` and ``output`` are tensor ids, ``shape`` and ``dtype`` the output's."""

    span_id: str
    op_name: str
    inputs: list[Identifier]
    output: Identifier | None = None
    shape: list[int]
    dtype: str
    device: str
    duration_ns: int
    timestamp_ns: int
    output_dense_bytes: int | None = None
    input_dense_bytes: int


class Tensor(Kind, frozen=True, tag="tensor", kw_only=True):
    """A tensor; ``dense_bytes`` is its element count times the element size, whatever its storage shares."""

    span_id: str
    tensor_id: Identifier
    label: str | None = None
    shape: list[int]
    dtype: str
    device: str
    requires_grad: bool
    dense_bytes: int | None = None
    category: Category


class Memory(Kind, frozen=True, tag="memory", kw_only=True):
    """A storage of so many bytes was allocated or freed; tensors that share a storage are one allocation."""

    timestamp_ns: int
    storage_id: Identifier
    tensor_id: Identifier
    span_id: str
    op_name: str | None = None
    device: str
    bytes: int
    action: Action
    shape: list[int]
    dtype: str
    category: Category


class DeviceMemory(Kind, frozen=True, tag="device_memory", kw_only=True):
    """What a device's own allocator or driver reports, bytes."""

    timestamp_ns: int
    device: str
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    capacity_bytes: int | None = None


class Gradient(Kind, frozen=True, tag="gradient", kw_only=True):
    """A parameter's gradient after a backward pass from ``root``; a present one has its norm."""

    event_id: Identifier
    root: Identifier
    key: str
    state: GradientState
    norm: float | None = None


class Edge(Kind, frozen=True, tag="edge", kw_only=True):
    """An edge of the graph; ``edge_kind`` tells which fields it has.

    ``call`` is a span that called another: ``from_span``, ``to_span``, ``host_duration_ns``. ``data`` is a tensor that
    another one was made of: ``from_tensor``, ``to_tensor``.
    """

    edge_kind: Literal["call", "data"]
    from_span: str | None = None
    to_span: str | None = None
    host_duration_ns: int | None = None
    from_tensor: Identifier | None = None
    to_tensor: Identifier | None = None

    def __post_init__(self) -> None:
        present = tuple(name for name in self.__struct_fields__[1:] if getattr(self, name) is not None)
        if present != (names := _EDGE_FIELDS[self.edge_kind]):
            found = ", ".join(present) or "none of them"
            raise ValueError(f"a {self.edge_kind} edge has {', '.join(names)}, found {found}")

    @classmethod
    def call(cls, from_span: str, to_span: str, host_duration_ns: int) -> Edge:
        """Return the edge of a call, which took the caller so long, ns."""
        return cls(edge_kind="call", from_span=from_span, to_span=to_span, host_duration_ns=host_duration_ns)

    @classmethod
    def data(cls, from_tensor: Identifier, to_tensor: Identifier) -> Edge:
        """Return the edge between a tensor and one that was made of it."""
        return cls(edge_kind="data", from_tensor=from_tensor, to_tensor=to_tensor)


class DeviceInterval(Kind, frozen=True, tag="device_interval", kw_only=True):
    """What a device did for a span, on the device's own clock ``clock_id``, which is never merged with the host's."""

    span_id: str
    device: str
    stream_id: Identifier
    clock_id: str
    backend: str
    start_ns: int
    duration_ns: int
