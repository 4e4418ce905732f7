"""What the values of a captured step's evidence may be."""

from __future__ import annotations

import math
import operator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from opentelemetry import trace
from opentelemetry.trace import format_span_id

from runspan._plain import INT_MAX, INT_MIN, text_of
from runspan._run.values import InvalidValueError, describe, metric_value
from runspan.tracefile._evidence import Action, Category
from runspan.tracefile.events import DeviceInterval, DeviceMemory, Edge, Gradient, Memory, Op, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runspan._run.captured_step import Capture

__all__ = ["Evidence", "evidence_fields"]

Evidence: TypeAlias = Op | Tensor | Memory | DeviceMemory | Gradient | Edge | DeviceInterval

#: More dimensions or inputs than anything has.
_MAX_ITEMS = 65_536
_CHOICES: dict[str, tuple[str, ...]] = {"category": get_args(Category), "action": get_args(Action)}


def evidence_fields(event_type: type[Evidence], raw: Mapping[str, Any], capture: Capture) -> dict[str, Any]:
    """Return an event's fields as plain values, without those that are None.

    Args:
        event_type: the event's class.
        raw: the fields as the caller gave them, those of the class by name; a gradient's state follows from its norm.
        capture: knows the current span and the time, for fields that are None.

    Raises:
        InvalidValueError: a value cannot be recorded; the message names its field.
    """
    fields: dict[str, Any] = {}
    for name, value in raw.items():
        if value is not None:
            check: Callable[[str, Any], Any] = _CHECKS.get(name, _text)
            fields[name] = check(name, value)
        elif name == "span_id":
            fields[name] = capture.current_span_id()
        elif name == "timestamp_ns":
            # What has a duration is recorded when it is over: it began so long ago.
            fields[name] = max(0, capture.now_ns() - _number("duration_ns", raw.get("duration_ns", 0)))
    if event_type is Gradient:
        fields.update(_gradient_state(fields.pop("norm", None)))
    if event_type is DeviceMemory and fields.keys() == {"timestamp_ns", "device"}:
        raise InvalidValueError("it tells no size: give used_bytes, free_bytes, reserved_bytes or capacity_bytes")
    return fields


def _gradient_state(norm: float | None) -> dict[str, Any]:
    if norm is None:
        return {"state": "missing"}
    if not math.isfinite(norm):
        return {"state": "non_finite"}
    if norm < 0:
        raise InvalidValueError(f"norm: {describe(norm)} is no norm: use a number from 0 up, or None")
    return {"state": "present" if norm > 0 else "zero", "norm": norm}


def _text(_name: str, value: Any) -> str:
    return text_of(value)


def _flag(_name: str, value: Any) -> bool:
    return bool(value)


def _span_id(name: str, value: Any) -> str:
    """Return a span's id in hex, of an id or a span."""
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, trace.Span):
        return format_span_id(value.get_span_context().span_id)
    raise InvalidValueError(f"{name}: {describe(value)} is no span: use a span, or its id in hex")


def _choice(name: str, value: Any) -> str:
    text = text_of(value)
    if text not in _CHOICES[name]:
        raise InvalidValueError(f"{name}: {describe(value)} is none of {', '.join(_CHOICES[name])}")
    return text


def _norm(name: str, value: Any) -> float:
    try:
        return float(metric_value(value))
    except InvalidValueError as error:
        raise InvalidValueError(f"{name}: {error}") from None


def _number(name: str, value: Any) -> int:
    """Return a size or a time, of any integer type.

    Raises:
        InvalidValueError: it is none, or below 0, or beyond 64 bits.
    """
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number <= INT_MAX:
        raise InvalidValueError(f"{name}: {describe(value)} cannot be used: use a whole number from 0 up, of 64 bits")
    return number


def _numbers(name: str, value: Any) -> list[int]:
    return [_number(name, item) for item in _items(name, value)]


def _identifier(name: str, value: Any) -> int | str:
    if isinstance(value, str):
        return text_of(value)
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not INT_MIN <= number <= INT_MAX:
        raise InvalidValueError(f"{name}: {describe(value)} is no identifier: use an integer of 64 bits or a text")
    return number


def _identifiers(name: str, value: Any) -> list[int | str]:
    return [_identifier(name, item) for item in _items(name, value)]


def _items(name: str, value: Any) -> list[Any]:
    """Return the items of a list, whose iterator may have no end.

    Raises:
        InvalidValueError: it is a text, whose characters nobody means, or has too many of them.
    """
    items = [] if isinstance(value, str | bytes) else list(islice(value, _MAX_ITEMS + 1))
    if isinstance(value, str | bytes) or len(items) > _MAX_ITEMS:
        raise InvalidValueError(f"{name}: {describe(value)} is no list of at most {_MAX_ITEMS} items")
    return items


#: How a field's value becomes a plain one; what is not here is text.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("timestamp_ns", "start_ns", "duration_ns", "host_duration_ns"), _number),
    **dict.fromkeys(("bytes", "dense_bytes", "input_dense_bytes", "output_dense_bytes"), _number),
    **dict.fromkeys(("used_bytes", "free_bytes", "reserved_bytes", "capacity_bytes"), _number),
    **dict.fromkeys(("tensor_id", "storage_id", "stream_id", "event_id", "root", "output"), _identifier),
    **dict.fromkeys(("from_tensor", "to_tensor"), _identifier),
    **dict.fromkeys(("span_id", "from_span", "to_span"), _span_id),
    **dict.fromkeys(_CHOICES, _choice),
    "shape": _numbers,
    "inputs": _identifiers,
    "requires_grad": _flag,
    "norm": _norm,
}
