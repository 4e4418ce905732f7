"""The typed events of a run trace, and their one-line JSON form.

Every class is one kind of the table in the trace format; ``kind`` is its tag and comes first in JSON. Optional fields
are left out when they are None. Floats that JSON cannot write are strings in typed fields and ``{"$float": ...}`` in
untyped ones, so that a strict parser takes every line; decoding restores them.
"""

from __future__ import annotations

import math
from typing import Any, get_args

import msgspec

from runspan._plain import float_name
from runspan.errors import TraceFormatError
from runspan.tracefile._evidence import DeviceInterval, DeviceMemory, Edge, Gradient, Memory, Op, Tensor
from runspan.tracefile._kinds import (
    Artifact,
    Count,
    Dropped,
    Environment,
    Event,
    GitInfo,
    Meta,
    Metric,
    Metrics,
    Observe,
    OtelContext,
    Param,
    ProcessInfo,
    Scope,
    SegmentEnd,
    SpanEnd,
    SpanEvent,
    SpanLink,
    SpanStart,
    SpanStatus,
    Step,
    Tag,
    Terminal,
    Unknown,
    Usage,
)
from runspan.tracefile._untyped import jsonable, named_float, scrub, shortened, unwrap

__all__ = [
    "SCHEMA",
    "Artifact",
    "Count",
    "DeviceInterval",
    "DeviceMemory",
    "Dropped",
    "Edge",
    "Environment",
    "Event",
    "GitInfo",
    "Gradient",
    "Memory",
    "Meta",
    "Metric",
    "Metrics",
    "Observe",
    "Op",
    "OtelContext",
    "Param",
    "ProcessInfo",
    "Scope",
    "SegmentEnd",
    "SpanEnd",
    "SpanEvent",
    "SpanLink",
    "SpanStart",
    "SpanStatus",
    "Step",
    "Tag",
    "Tensor",
    "Terminal",
    "TraceEvent",
    "Unknown",
    "Usage",
    "decode",
    "decode_fields",
    "encode",
    "encode_lines",
    "encode_plain",
    "event_of",
    "jsonable",
]

SCHEMA = "runspan/trace/1"

_Known = (
    Meta
    | Environment
    | SpanStart
    | SpanEnd
    | Op
    | Tensor
    | Memory
    | DeviceMemory
    | Gradient
    | Edge
    | DeviceInterval
    | Metric
    | Metrics
    | Count
    | Observe
    | Param
    | Tag
    | Artifact
    | Step
    | Event
    | Usage
    | Dropped
    | SegmentEnd
    | Terminal
)
TraceEvent = _Known | Unknown
_KIND_TYPES: tuple[type[_Known], ...] = get_args(_Known)
_KINDS = {str(event_type.__struct_config__.tag): event_type for event_type in _KIND_TYPES}

#: Fields typed as floats, or as maps to floats, by class.
_FLOAT_FIELDS: dict[type, tuple[str, ...]] = {
    Meta: ("heartbeat_s",),
    Metric: ("value",),
    Metrics: ("values",),
    Count: ("value",),
    Observe: ("value",),
    Usage: ("gpu_util", "cpu_util"),
    Gradient: ("norm",),
}
#: Fields that are maps to values without a type, by class.
_UNTYPED_MAPS: dict[type, str] = {Meta: "resource", SpanStart: "attributes", SpanEnd: "attributes", Event: "attributes"}
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[TraceEvent] = msgspec.json.Decoder(_Known)
_untyped_decoder = msgspec.json.Decoder()


def encode(event: TraceEvent) -> bytes:
    """Encode an event as one line, newline included.

    A parameter, and each value of attributes or a resource, must have been through :func:`jsonable`. Typed floats may
    be non-finite, and any string may hold a lone surrogate.
    """
    if isinstance(event, Unknown):
        return _encoder.encode(scrub({"kind": event.kind, **event.fields})) + b"\n"
    float_fields = _FLOAT_FIELDS.get(type(event), ())
    for field in float_fields:
        if not _is_finite(getattr(event, field)):
            break
    else:
        try:
            return _encoder.encode(event) + b"\n"
        except UnicodeEncodeError:
            pass  # a lone surrogate, replaced below
    builtins = msgspec.to_builtins(event)
    for field in float_fields:
        if field in builtins:
            builtins[field] = _named(builtins[field])
    return _encoder.encode(scrub(builtins)) + b"\n"


def encode_plain(event: TraceEvent) -> bytes:
    """Encode an event of a known kind whose floats are finite: :func:`encode` without its checks, for hot paths.

    Raises:
        UnicodeEncodeError: a string holds a lone surrogate.
    """
    return _encoder.encode(event) + b"\n"


#: Encodes events of known kinds whose floats are finite as a line each: :func:`encode_plain` for the hottest path.
encode_lines = _encoder.encode_lines


def decode(line: bytes) -> TraceEvent:
    """Decode one line, with or without its newline.

    Raises:
        TraceFormatError: it is no JSON object with a ``kind``, or a field of a known kind is missing or of another
            type.
    """
    try:
        if b'"$float"' not in line:
            return _decoder.decode(line)
    except msgspec.ValidationError:
        pass  # an unknown kind, or a non-finite float: looked at below
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceFormatError(f"not a JSON line: {shortened(error)}") from error
    return event_of(decode_fields(line))


def decode_fields(line: bytes) -> dict[str, Any]:
    """Decode one line into its fields as JSON has them, ``kind`` among them.

    Raises:
        TraceFormatError: it is no JSON object with a ``kind``.
    """
    try:
        fields = _untyped_decoder.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceFormatError(f"not a JSON line: {shortened(error)}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
        raise TraceFormatError("a line must be a JSON object with a string 'kind'")
    return fields


def event_of(fields: dict[str, Any]) -> TraceEvent:
    """Return the event of a line's fields, which are changed.

    Raises:
        TraceFormatError: a field of a known kind is missing or of another type.
    """
    kind = fields["kind"]
    event_type = _KINDS.get(kind)
    if event_type is None:
        del fields["kind"]
        return Unknown(kind, fields)
    for float_field in _FLOAT_FIELDS.get(event_type, ()):
        if float_field in fields:
            fields[float_field] = _restored(fields[float_field])
    try:
        _unwrap_untyped(event_type, fields)
        event: TraceEvent = msgspec.convert(fields, type=event_type)
    except (msgspec.ValidationError, TypeError, RecursionError) as error:
        raise TraceFormatError(f"not a valid {kind!r} event: {shortened(error)}") from error
    return event


def _unwrap_untyped(event_type: type, fields: dict[str, Any]) -> None:
    if event_type is Param and "value" in fields:
        fields["value"] = unwrap(fields["value"])
    untyped_map = _UNTYPED_MAPS.get(event_type)
    if untyped_map in fields:
        fields[untyped_map] = _unwrapped_values(fields[untyped_map])
    for nested in ("events", "links"):
        for item in fields.get(nested) or ():
            if "attributes" in item:
                item["attributes"] = _unwrapped_values(item["attributes"])


def _unwrapped_values(untyped_map: Any) -> Any:
    """Unwrap each value of a map; the map itself is the format's, and never stands for a float."""
    if not isinstance(untyped_map, dict):
        return untyped_map
    return {key: unwrap(value) for key, value in untyped_map.items()}


def _is_finite(value: float | dict[str, float] | None) -> bool:
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, float) or math.isfinite(value)


def _named(value: Any) -> Any:
    """Replace non-finite floats by their names, in a number or in a map of numbers."""
    if isinstance(value, dict):
        return {key: _named(item) for key, item in value.items()}
    return float_name(value) if isinstance(value, float) and not math.isfinite(value) else value


def _restored(value: Any) -> Any:
    """Undo :func:`_named`."""
    return {key: named_float(item) for key, item in value.items()} if isinstance(value, dict) else named_float(value)
