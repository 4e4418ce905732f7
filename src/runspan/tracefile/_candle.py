"""Traces of candle-graph, schemas 6 to 10, read as this package's own events: one adapter a schema.

The names and defaults are those of the crate candle-graph: 0.7.0 writes schema 6, 0.9.0 and later schema 10. Such a
file is one captured step of one process. What it lacks is derived: wall times from the meta line's ``timestamp``, the
trace id from the run id. Ids, names and tags stay as they stand.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from runspan.errors import TraceFormatError
from runspan.ids import format_trace_id, run_trace_id
from runspan.tracefile._untyped import quoted
from runspan.tracefile.events import (
    DeviceMemory,
    Memory,
    Meta,
    Op,
    SpanEnd,
    SpanStart,
    Terminal,
    TraceEvent,
    decode_fields,
    event_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CANDLE_SCHEMAS", "CandleDecoder", "CandleSchema"]

_Fields = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: No heartbeat is written: a trace that has not ended is judged as if it were of the usual length.
_HEARTBEAT_S = 10.0


class CandleSchema(msgspec.Struct, frozen=True):
    """What tells a schema's lines from this package's own.

    Attributes:
        renames: by kind, the names of fields here and what they are called in this package.
        defaults: by kind, the values of fields that may be left out.
        has_terminal: whether a whole trace ends in a terminal event.
        has_storage_ids: whether memory events name storages; without, each tensor is taken as a storage of its own.
        has_edge_kinds: whether edges are tagged; without, each is a call.
    """

    renames: Mapping[str, Mapping[str, str]]
    defaults: Mapping[str, _Fields]
    has_terminal: bool = True
    has_storage_ids: bool = True
    has_edge_kinds: bool = True

    def meta_of(self, fields: _Fields) -> Meta:
        """Return the meta event of a meta line's fields, which are changed.

        Raises:
            TraceFormatError: a field is missing or of another type, or the timestamp is no ISO-8601 time.
        """
        run_id, timestamp = fields.get("run_id"), fields.get("timestamp")
        if isinstance(run_id, str):
            fields.setdefault("trace_id", format_trace_id(run_trace_id(run_id)))
        if isinstance(timestamp, str) and "time_unix_nano" not in fields:
            fields["time_unix_nano"] = _unix_nano(timestamp)
        process = {"rank": 0, "world_size": 1, "local_rank": 0, "attempt": 0, "host": "", "pid": 0}
        for name, value in (("process", process), ("heartbeat_s", _HEARTBEAT_S), ("resource", {})):
            fields.setdefault(name, value)
        event = event_of(fields)
        if not isinstance(event, Meta):
            raise TypeError("a meta line decodes to a Meta")
        return event

    def adapt(self, fields: _Fields, meta: Meta) -> None:
        """Turn the fields of any other line into this package's, in place; what is there already stays."""
        kind = fields["kind"]
        for theirs, ours in self.renames.get(kind, {}).items():
            if theirs in fields:
                fields.setdefault(ours, fields.pop(theirs))
        for name, value in self.defaults.get(kind, {}).items():
            fields.setdefault(name, value)
        if kind == "span_start":
            fields.setdefault("otel", {"trace_id": meta.trace_id})
            if isinstance(fields.get("start_ns"), int):
                fields.setdefault("time_unix_nano", meta.time_unix_nano + fields["start_ns"])
        elif kind == "terminal":
            fields.setdefault("status", "success" if fields.get("outcome") == "complete" else "failed")
        elif kind == "memory" and not self.has_storage_ids and "tensor_id" in fields:
            fields.setdefault("storage_id", fields["tensor_id"])
        elif kind == "edge" and not self.has_edge_kinds:
            fields.setdefault("edge_kind", "call")


class CandleDecoder:
    """Decodes the lines of one candle-graph trace.

    Args:
        schema: the trace's schema.
        meta: its meta event.
    """

    def __init__(self, schema: CandleSchema, meta: Meta) -> None:
        self._schema = schema
        self._meta = meta
        self._starts_ns: dict[str, int] = {}
        self._latest_ns = 0

    def decode(self, line: bytes) -> TraceEvent:
        """Decode one line, with or without its newline.

        Raises:
            TraceFormatError: it is no JSON object with a ``kind``, or a field of a known kind is missing or of another
                type.
        """
        fields = decode_fields(line)
        if fields["kind"] == "meta":
            return self._schema.meta_of(fields)
        self._schema.adapt(fields, self._meta)
        event = event_of(fields)
        if not self._schema.has_terminal:
            self._latest_ns = max(self._latest_ns, self._end_ns(event))
        return event

    def ending(self) -> Terminal | None:
        """Return the event that the end of a whole trace stands for, where the schema has no terminal event."""
        return None if self._schema.has_terminal else Terminal("complete", self._latest_ns, "success")

    def _end_ns(self, event: TraceEvent) -> int:
        """Return when what a line tells of was over, ns on the trace's clock; 0 when it does not tell."""
        match event:
            case SpanStart():
                self._starts_ns[event.id] = event.start_ns
                return event.start_ns
            case SpanEnd():
                start_ns = self._starts_ns.pop(event.id, None)
                return 0 if start_ns is None else start_ns + event.duration_ns
            case Op():
                return event.timestamp_ns + event.duration_ns
            case Memory() | DeviceMemory():
                return event.timestamp_ns
        return 0


def _unix_nano(timestamp: str) -> int:
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError as error:
        raise TraceFormatError(f"the meta event's timestamp {quoted(timestamp)} is no ISO-8601 time") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


_DEFAULTS: dict[str, _Fields] = {
    "span_end": {"duration_ns": 0},
    "op": {"inputs": [], "timestamp_ns": 0},
    "tensor": {"requires_grad": False, "category": "other"},
    "memory": {"shape": [], "category": "other"},
}
_OLDEST_DEFAULTS: dict[str, _Fields] = {
    **_DEFAULTS,
    "op": {**_DEFAULTS["op"], "shape": [], "input_dense_bytes": 0},
    "tensor": {**_DEFAULTS["tensor"], "shape": []},
}
_OLDEST_RENAMES = {
    "op": {"storage_bytes": "output_dense_bytes", "input_storage_bytes": "input_dense_bytes"},
    "tensor": {"storage_bytes": "dense_bytes"},
    "edge": {"duration_ns": "host_duration_ns"},
}

#: 8 adds ``comparison_identity`` to meta, which is not kept; 10 adds ``tensor_stats``, which is read as Unknown.
CANDLE_SCHEMAS: dict[str, CandleSchema] = {
    "candle-graph/trace/6": CandleSchema(
        _OLDEST_RENAMES, _OLDEST_DEFAULTS, has_terminal=False, has_storage_ids=False, has_edge_kinds=False
    ),
    "candle-graph/trace/7": CandleSchema({}, _DEFAULTS),
    "candle-graph/trace/8": CandleSchema({}, _DEFAULTS),
    "candle-graph/trace/9": CandleSchema({}, _DEFAULTS),
    "candle-graph/trace/10": CandleSchema({}, _DEFAULTS),
}
