"""What a captured step holds beside its spans: recorded by integrations, in typed calls that never raise."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from runspan._plain import text_of
from runspan._run.evidence import evidence_fields
from runspan._run.values import InvalidValueError, describe
from runspan.tracefile.events import DeviceInterval, DeviceMemory, Edge, Gradient, Memory, Op, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from runspan._run.captured_step import Capture
    from runspan._run.evidence import Evidence

__all__ = ["EvidenceRecorder"]

#: What a span of a captured step may stand for.
_SPAN_KINDS = ("function", "op", "module")
_NO_SPAN = nullcontext(trace.INVALID_SPAN)


class EvidenceRecorder:
    """Records operations, tensors, memory, gradients and device work of one captured step into its file.

    Every step has one as ``step.recorder``, and ``run.recorder`` is that of the step that the caller is inside of. On a
    step that is not captured it does nothing, so that hooks may call it on every step; :attr:`is_recording` spares them
    the work of collecting what they would pass.

    Every method may be called from any thread until the step ends. A value that cannot be recorded is left out,
    counted, and told of once; it raises only in a strict run. What is called behind the step's end is refused alike.

    Names, devices and dtypes may be any objects: their text is kept. Sizes, shapes and times are whole numbers from 0
    up, of any integer type. Tensors and storages go by the caller's own identifiers, integers or texts. ``span_id`` is
    the span that the evidence belongs to, or its id in hex; None: the current one, or the step's own where none of the
    step's is current (as on another thread). ``timestamp_ns`` counts from the step's start, as :meth:`now_ns`
    does; None: now.

    Args:
        capture: the captured step; None: there is none.
    """

    __slots__ = ("_capture",)

    def __init__(self, capture: Capture | None = None) -> None:
        self._capture = capture

    @property
    def is_recording(self) -> bool:
        """Whether the step is captured and has not ended."""
        return self._capture is not None and self._capture.is_open

    @property
    def span_id(self) -> str | None:
        """The id of the step's current span, to be passed on with later evidence; None on an uncaptured step."""
        return None if self._capture is None else self._capture.current_span_id()

    def now_ns(self) -> int:
        """Return the time since the step's start, ns; 0 on an uncaptured step."""
        return 0 if self._capture is None else self._capture.now_ns()

    def span(self, name: str, kind: str = "function", **attributes: Any) -> AbstractContextManager[trace.Span]:
        """Time a block as a span of the captured step; on an uncaptured one nothing happens.

        Entering returns the span. Its parent is the current span of the step, or the step's own.

        Args:
            name: its name.
            kind: ``function``, ``op`` or ``module``; anything else is told of, and ``function``.
            attributes: its attributes, any Python values.
        """
        capture = self._capture
        if capture is None:
            return _NO_SPAN
        if not capture.is_open:
            capture.refuse_late("span")
            return _NO_SPAN
        known_kind = text_of(kind)
        if known_kind not in _SPAN_KINDS:
            known = ", ".join(_SPAN_KINDS)
            capture.refuse("span", InvalidValueError(f"kind: {describe(kind)} is none of {known}; function is used"))
            known_kind = "function"
        return capture.scope(name, attributes, known_kind)

    def op(
        self,
        op_name: str,
        *,
        shape: Iterable[int],
        dtype: Any,
        device: Any,
        duration_ns: int,
        input_dense_bytes: int,
        inputs: Iterable[int | str] = (),
        output: int | str | None = None,
        output_dense_bytes: int | None = None,
        timestamp_ns: int | None = None,
        span_id: trace.Span | str | None = None,
    ) -> None:
        """Record an operation that a span ran.

        Args:
            op_name: its name.
            shape: the output's shape.
            dtype: the output's type.
            device: where it ran.
            duration_ns: how long it took the host, ns.
            input_dense_bytes: elements times their size, over all inputs.
            inputs: the inputs' tensor ids.
            output: the output's tensor id.
            output_dense_bytes: elements times their size, of the output.
            timestamp_ns: when it began; None: it is over just now, and began so long ago as it took.
            span_id: the span that ran it.
        """
        if self._capture is not None:
            self._record(
                Op,
                span_id=span_id,
                op_name=op_name,
                inputs=inputs,
                output=output,
                shape=shape,
                dtype=dtype,
                device=device,
                duration_ns=duration_ns,
                timestamp_ns=timestamp_ns,
                output_dense_bytes=output_dense_bytes,
                input_dense_bytes=input_dense_bytes,
            )

    def tensor(
        self,
        tensor_id: int | str,
        *,
        shape: Iterable[int],
        dtype: Any,
        device: Any,
        category: str = "other",
        requires_grad: bool = False,
        label: str | None = None,
        dense_bytes: int | None = None,
        span_id: trace.Span | str | None = None,
    ) -> None:
        """Record a tensor.

        Args:
            tensor_id: its id.
            shape: its shape.
            dtype: its type.
            device: where it is.
            category: ``parameter``, ``activation``, ``gradient``, ``optimizer`` or ``other``.
            requires_grad: whether a gradient is wanted.
            label: a name for people, such as the parameter's.
            dense_bytes: elements times their size, whatever its storage shares.
            span_id: the span that made it.
        """
        if self._capture is not None:
            self._record(
                Tensor,
                span_id=span_id,
                tensor_id=tensor_id,
                label=label,
                shape=shape,
                dtype=dtype,
                device=device,
                requires_grad=requires_grad,
                dense_bytes=dense_bytes,
                category=category,
            )

    def memory(
        self,
        action: str,
        storage_id: int | str,
        *,
        tensor_id: int | str,
        bytes: int,  # noqa: A002 - the event's field
        device: Any,
        shape: Iterable[int],
        dtype: Any,
        category: str = "other",
        op_name: str | None = None,
        timestamp_ns: int | None = None,
        span_id: trace.Span | str | None = None,
    ) -> None:
        """Record that a storage was allocated or freed.

        Args:
            action: ``alloc`` or ``free``.
            storage_id: the storage's id; tensors that share it are one allocation.
            tensor_id: the tensor's id.
            bytes: the storage's size.
            device: where it is.
            shape: the tensor's shape.
            dtype: the tensor's type.
            category: see :meth:`tensor`.
            op_name: the operation that did it.
            timestamp_ns: when.
            span_id: the span in which it happened.
        """
        if self._capture is not None:
            self._record(
                Memory,
                timestamp_ns=timestamp_ns,
                storage_id=storage_id,
                tensor_id=tensor_id,
                span_id=span_id,
                op_name=op_name,
                device=device,
                bytes=bytes,
                action=action,
                shape=shape,
                dtype=dtype,
                category=category,
            )

    def device_memory(
        self,
        device: Any,
        *,
        used_bytes: int | None = None,
        free_bytes: int | None = None,
        reserved_bytes: int | None = None,
        capacity_bytes: int | None = None,
        timestamp_ns: int | None = None,
    ) -> None:
        """Record what a device's allocator or driver reports; at least one of the sizes.

        Args:
            device: the device.
            used_bytes: in use.
            free_bytes: free.
            reserved_bytes: held by the allocator.
            capacity_bytes: all there is.
            timestamp_ns: when.
        """
        if self._capture is not None:
            self._record(
                DeviceMemory,
                timestamp_ns=timestamp_ns,
                device=device,
                used_bytes=used_bytes,
                free_bytes=free_bytes,
                reserved_bytes=reserved_bytes,
                capacity_bytes=capacity_bytes,
            )

    def gradient(self, key: str, norm: Any, *, root: int | str, event_id: int | str | None = None) -> None:
        """Record a parameter's gradient after a backward pass; its state follows from its norm.

        Args:
            key: the parameter's name.
            norm: the gradient's norm: above 0 it is present, 0 zero, NaN or infinite non_finite (and the norm is left
                out), None missing.
            root: what the backward pass began at, a tensor's id or a name.
            event_id: the record's own id; None: the next number.
        """
        if self._capture is not None:
            self._record(
                Gradient,
                event_id=self._capture.next_event_id() if event_id is None else event_id,
                root=root,
                key=key,
                norm=norm,
            )

    def call_edge(self, from_span: trace.Span | str, to_span: trace.Span | str, host_duration_ns: int) -> None:
        """Record that a span called another.

        Args:
            from_span: the caller.
            to_span: the called one.
            host_duration_ns: how long the call took the host, ns.
        """
        if self._capture is not None:
            self._record(
                Edge, edge_kind="call", from_span=from_span, to_span=to_span, host_duration_ns=host_duration_ns
            )

    def data_edge(self, from_tensor: int | str, to_tensor: int | str) -> None:
        """Record that a tensor was made of another.

        Args:
            from_tensor: the id of what it was made of.
            to_tensor: its id.
        """
        if self._capture is not None:
            self._record(Edge, edge_kind="data", from_tensor=from_tensor, to_tensor=to_tensor)

    def device_interval(
        self,
        *,
        device: Any,
        stream_id: int | str,
        clock_id: str,
        backend: str,
        start_ns: int,
        duration_ns: int,
        span_id: trace.Span | str | None = None,
    ) -> None:
        """Record what a device did for a span, on the device's own clock.

        Args:
            device: the device.
            stream_id: the stream or queue.
            clock_id: which clock ``start_ns`` is of; it is never merged with the host's.
            backend: what measured it, such as ``cuda``.
            start_ns: when it began on that clock.
            duration_ns: how long it took, ns.
            span_id: the span that it was done for.
        """
        if self._capture is not None:
            self._record(
                DeviceInterval,
                span_id=span_id,
                device=device,
                stream_id=stream_id,
                clock_id=clock_id,
                backend=backend,
                start_ns=start_ns,
                duration_ns=duration_ns,
            )

    def _record(self, event_type: type[Evidence], **raw: Any) -> None:
        """Check the values and write the event, or tell why it is left out."""
        capture = self._capture
        if capture is None:
            return
        kind = str(event_type.__struct_config__.tag)
        try:
            event = event_type(**evidence_fields(event_type, raw, capture))
        except Exception as error:  # noqa: BLE001 - besides our own, a foreign object's methods may raise anything
            capture.refuse(kind, error)
            return
        capture.write(kind, event)
