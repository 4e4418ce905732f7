"""Strategies for the events of a trace, every kind of them, and what is needed to compare and to check their lines."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn, get_args

from hypothesis import strategies as st

from runspan.tracefile._evidence import Action, Category, GradientState
from runspan.tracefile.events import (
    Artifact,
    Count,
    DeviceInterval,
    DeviceMemory,
    Dropped,
    Edge,
    Environment,
    Event,
    GitInfo,
    Gradient,
    Memory,
    Metric,
    Metrics,
    Observe,
    Op,
    OtelContext,
    Param,
    Scope,
    SegmentEnd,
    SpanEnd,
    SpanEvent,
    SpanLink,
    SpanStart,
    SpanStatus,
    Step,
    Tag,
    Tensor,
    Terminal,
    TraceEvent,
    Unknown,
    Usage,
    jsonable,
)
from support.traces import make_meta

__all__ = ["ATTRIBUTES", "EVENTS", "TEXT", "UNTYPED", "same", "strict_json", "with_jsonable_values"]

_UINT = st.integers(0, 2**64 - 1)
TEXT = st.text(max_size=20)
_NUMBER = st.integers(-(2**63), 2**64 - 1) | st.floats()
#: Anything that JSON can hold, floats that it cannot included, and maps that look like the format's own.
UNTYPED = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXT | st.just("$float"), inner, max_size=4)
        | st.fixed_dictionaries({"$float": inner})
    ),
    max_leaves=12,
)
ATTRIBUTES = st.dictionaries(TEXT | st.just("$float"), UNTYPED, max_size=4)


_IDENTIFIER = _UINT | TEXT
_SHAPE = st.lists(_UINT, max_size=4)
_CATEGORY = st.sampled_from(get_args(Category))


def _optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


_OTEL = st.builds(
    OtelContext,
    trace_id=TEXT,
    parent_span_id=_optional(TEXT),
    kind=_optional(TEXT),
    scope=_optional(st.builds(Scope, TEXT, _optional(TEXT))),
    trace_state=_optional(TEXT),
    flags=_optional(st.integers(0, 255)),
)
_LINKS = st.lists(st.builds(SpanLink, TEXT, TEXT, _optional(ATTRIBUTES)), min_size=1, max_size=2)
_SPAN_EVENTS = st.lists(st.builds(SpanEvent, TEXT, _UINT, _optional(ATTRIBUTES)), min_size=1, max_size=2)
EVENTS: st.SearchStrategy[TraceEvent] = st.one_of(
    st.builds(make_meta, resource=ATTRIBUTES, tags=st.dictionaries(TEXT, TEXT), part=_optional(_UINT)),
    st.builds(
        Environment,
        st.lists(TEXT),
        TEXT,
        TEXT,
        st.dictionaries(TEXT, TEXT),
        _optional(st.builds(GitInfo, TEXT, _optional(TEXT), _optional(TEXT))),
    ),
    st.builds(
        SpanStart,
        id=TEXT,
        parent_id=_optional(TEXT),
        name=TEXT,
        start_ns=_UINT,
        time_unix_nano=_UINT,
        span_kind=TEXT,
        measured=st.booleans(),
        step=_optional(TEXT),
        attributes=_optional(ATTRIBUTES),
        otel=_OTEL,
        links=_optional(_LINKS),
    ),
    st.builds(
        SpanEnd,
        id=TEXT,
        duration_ns=_UINT,
        status=_optional(st.builds(SpanStatus, TEXT, _optional(TEXT))),
        attributes=_optional(ATTRIBUTES),
        events=_optional(_SPAN_EVENTS),
        links=_optional(_LINKS),
        dropped=_optional(st.dictionaries(TEXT, _UINT)),
    ),
    st.builds(Metric, TEXT, _UINT, _NUMBER, _UINT, st.booleans()),
    st.builds(
        Metrics,
        step=_optional(_UINT),
        values=st.dictionaries(TEXT, _NUMBER),
        steps=_optional(st.dictionaries(TEXT, _UINT)),
        time_unix_nano=_UINT,
    ),
    st.builds(Count, key=TEXT, value=_NUMBER, unit=_optional(TEXT), time_unix_nano=_UINT),
    st.builds(Observe, key=TEXT, value=_NUMBER, unit=_optional(TEXT), time_unix_nano=_UINT),
    st.builds(Param, TEXT, UNTYPED),
    st.builds(Tag, TEXT, TEXT),
    st.builds(Artifact, TEXT, TEXT, _UINT, _optional(_UINT), _optional(TEXT)),
    st.builds(
        Step,
        step=_UINT,
        duration_ns=_UINT,
        data_ns=_optional(_UINT),
        phases=_optional(st.dictionaries(TEXT, _UINT)),
        samples=_optional(_UINT),
        tokens=_optional(_UINT),
        total=_optional(_UINT),
        time_unix_nano=_UINT,
    ),
    st.builds(Event, name=TEXT, level=TEXT, message=TEXT, attributes=_optional(ATTRIBUTES), time_unix_nano=_UINT),
    st.builds(
        Usage,
        gpu_util=_optional(st.floats()),
        cpu_util=_optional(st.floats()),
        memory_used=_optional(_UINT),
        timestamp_ns=_UINT,
        time_unix_nano=_UINT,
    ),
    st.builds(Dropped, TEXT, TEXT, _UINT),
    st.builds(SegmentEnd, TEXT),
    st.builds(Terminal, TEXT, _UINT, TEXT, _optional(TEXT)),
    st.builds(
        Op,
        span_id=TEXT,
        op_name=TEXT,
        inputs=st.lists(_IDENTIFIER, max_size=3),
        output=_optional(_IDENTIFIER),
        shape=_SHAPE,
        dtype=TEXT,
        device=TEXT,
        duration_ns=_UINT,
        timestamp_ns=_UINT,
        output_dense_bytes=_optional(_UINT),
        input_dense_bytes=_UINT,
    ),
    st.builds(
        Tensor,
        span_id=TEXT,
        tensor_id=_IDENTIFIER,
        label=_optional(TEXT),
        shape=_SHAPE,
        dtype=TEXT,
        device=TEXT,
        requires_grad=st.booleans(),
        dense_bytes=_optional(_UINT),
        category=_CATEGORY,
    ),
    st.builds(
        Memory,
        timestamp_ns=_UINT,
        storage_id=_IDENTIFIER,
        tensor_id=_IDENTIFIER,
        span_id=TEXT,
        op_name=_optional(TEXT),
        device=TEXT,
        bytes=_UINT,
        action=st.sampled_from(get_args(Action)),
        shape=_SHAPE,
        dtype=TEXT,
        category=_CATEGORY,
    ),
    st.builds(
        DeviceMemory,
        timestamp_ns=_UINT,
        device=TEXT,
        used_bytes=_optional(_UINT),
        free_bytes=_optional(_UINT),
        reserved_bytes=_optional(_UINT),
        capacity_bytes=_optional(_UINT),
    ),
    st.builds(
        Gradient,
        event_id=_IDENTIFIER,
        root=TEXT,
        key=TEXT,
        state=st.sampled_from(get_args(GradientState)),
        norm=_optional(st.floats()),
    ),
    st.builds(Edge.call, TEXT, TEXT, _UINT),
    st.builds(Edge.data, _IDENTIFIER, _IDENTIFIER),
    st.builds(
        DeviceInterval,
        span_id=TEXT,
        device=TEXT,
        stream_id=_IDENTIFIER,
        clock_id=TEXT,
        backend=TEXT,
        start_ns=_UINT,
        duration_ns=_UINT,
    ),
    st.builds(Unknown, TEXT.map("x-{}".format), st.dictionaries(TEXT.filter("kind".__ne__), UNTYPED.map(jsonable))),
)


def _refuse_constant(name: str) -> NoReturn:
    raise AssertionError(f"bare {name} in JSON")


def strict_json(line: bytes) -> dict[str, Any]:
    """Parse a line as the strictest of readers would."""
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    fields = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    assert isinstance(fields, dict)
    return fields


def with_jsonable_values(event: TraceEvent) -> TraceEvent:
    """Return the event as recording code hands it to encode: untyped values made jsonable."""
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    for name in ("attributes", "resource", *(("value",) if isinstance(event, Param) else ())):
        if fields.get(name) is not None:
            untyped = fields[name]
            fields[name] = (
                {key: jsonable(value) for key, value in untyped.items()} if name != "value" else jsonable(untyped)
            )
    for name in ("events", "links"):
        if fields.get(name) is not None:
            fields[name] = [with_jsonable_values(item) for item in fields[name]]
    return type(event)(**fields)


def same(one: Any, other: Any) -> bool:
    """Compare by value and type, NaN equal to itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__struct_fields__"):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__)
    return bool(one == other)
