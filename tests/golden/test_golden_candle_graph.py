"""Traces of candle-graph, schemas 6 to 10, frozen: files that every later version must read as its own events.

``candle-graph-6.jsonl`` was written by the crate candle-graph 0.7.0 and ``candle-graph-10.jsonl`` by 0.10.1, with the
edges put in by hand so that their durations agree with their spans. No published crate writes schemas 7 to 9: their
files are the newest one without what those schemas lack, 9 as a failed capture.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runspan.errors import SchemaVersionError, TraceFormatError
from runspan.tracefile._health import health
from runspan.tracefile.events import (
    DeviceInterval,
    DeviceMemory,
    Edge,
    Gradient,
    Memory,
    Meta,
    Op,
    OtelContext,
    ProcessInfo,
    SpanEnd,
    SpanStart,
    Tensor,
    Terminal,
    TraceEvent,
    Unknown,
    encode,
)
from runspan.tracefile.graph import build_graph
from runspan.tracefile.meta import ExecutionPhase, TimingMode
from runspan.tracefile.reader import TraceStatus, peek, read
from support.traces import FixedClock

_FOLDER = Path(__file__).parent
_SCHEMAS = (6, 7, 8, 9, 10)
_MS_NS = 1_000_000


def _golden(schema: int) -> Path:
    return _FOLDER / f"candle-graph-{schema}.jsonl"


def _fields(schema: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _golden(schema).read_bytes().splitlines()]


def _changed(path: Path, number: int, kind: str, **changes: Any) -> Path:
    """Write a golden file with other values in each line of a kind; None leaves the field out."""
    lines = []
    for fields in _fields(number):
        if fields["kind"] == kind:
            fields.update(changes)
        lines.append(json.dumps({name: value for name, value in fields.items() if value is not None}))
    path.write_text("\n".join(lines) + "\n")
    return path


def _of(schema: int, *types: type[TraceEvent]) -> list[TraceEvent]:
    return [event for event in read(_golden(schema)) if isinstance(event, types)]


@pytest.mark.parametrize("schema", _SCHEMAS)
def test_every_line_is_a_typed_event_in_its_place(schema: int) -> None:
    """Each line of each schema is read, in order; only tensor_stats, a kind of schema 10, has no type."""
    kinds = [fields["kind"] for fields in _fields(schema)]
    expected = [*kinds, "terminal"] if schema == 6 else kinds
    read_kinds = [
        event.kind if isinstance(event, Unknown) else event.__struct_config__.tag for event in read(_golden(schema))
    ]
    assert read_kinds == expected
    assert {event.kind for event in _of(schema, Unknown) if isinstance(event, Unknown)} == (
        {"tensor_stats"} if schema == 10 else set()
    )


@pytest.mark.parametrize("schema", _SCHEMAS)
def test_meta_keeps_what_stands_there_and_has_defaults_for_the_rest(schema: int) -> None:
    """The run's fields stay as they are, the wall time is the timestamp's, and the process is a single one."""
    meta, fields = read(_golden(schema)).meta, _fields(schema)[0]
    assert (meta.schema, meta.run_id, meta.timestamp) == (fields["schema"], fields["run_id"], fields["timestamp"])
    assert (meta.correlation_id, meta.phase, meta.capture_step) == ("train::update/update-3", ExecutionPhase.TRAIN, 3)
    assert (meta.warmup_steps, meta.tags) == (2, {"batch": "32", "lesson": "4"})
    assert meta.timing_mode is (TimingMode.HOST if schema == 6 else TimingMode.DEVICE_SYNCHRONIZED)
    assert fields["timestamp"] == ("2026-12-01T09:10:04.582Z" if schema == 6 else "2026-12-01T09:10:04.583Z")
    assert meta.time_unix_nano == 1_796_116_204_582 * _MS_NS + (0 if schema == 6 else _MS_NS)
    assert meta.process == ProcessInfo(0, 1, 0, 0, "", 0)
    assert (meta.resource, meta.experiment_id, meta.part) == ({}, None, None)


@pytest.mark.parametrize("schema", _SCHEMAS)
def test_the_capture_contract_is_kept_as_it_stands(schema: int) -> None:
    """From schema 7 on the contract is there, untouched; schema 6 has none."""
    assert read(_golden(schema)).meta.capture_contract == _fields(schema)[0].get("capture_contract")
    assert (read(_golden(schema)).meta.capture_contract is None) == (schema == 6)


@pytest.mark.parametrize("schema", _SCHEMAS)
def test_spans_have_wall_times_and_one_trace_id(schema: int) -> None:
    """Spans keep their ids, parents and clocks; the wall time is derived from meta, the trace id from the run id."""
    meta = read(_golden(schema)).meta
    starts = [event for event in _of(schema, SpanStart) if isinstance(event, SpanStart)]
    assert [(start.id, start.parent_id) for start in starts] == [
        ("s1", None),
        ("s2", "s1"),
        ("s3", "s2"),
        ("s4", "s2"),
        ("s5", "s2"),
    ]
    assert [start.step for start in starts] == [None, None, "forward", "backward", "optimizer"]
    assert [start.measured for start in starts] == [False, True, False, False, False]
    assert meta.trace_id is not None
    assert all(start.otel == OtelContext(meta.trace_id) for start in starts)
    assert all(start.time_unix_nano == meta.time_unix_nano + start.start_ns for start in starts)


def test_schema_6_calls_fields_by_other_names() -> None:
    """storage_bytes become dense bytes, a tensor is its own storage, and an untagged edge is a call."""
    assert _of(6, Op, Tensor, Memory, Edge, DeviceMemory, DeviceInterval) == [
        Tensor(
            span_id="s3",
            tensor_id="w",
            shape=[64, 10],
            dtype="f32",
            device="cpu",
            requires_grad=True,
            dense_bytes=2560,
            category="parameter",
        ),
        Tensor(
            span_id="s3",
            tensor_id="logits",
            shape=[32, 10],
            dtype="f32",
            device="cpu",
            requires_grad=False,
            dense_bytes=1280,
            category="activation",
        ),
        _memory_6("alloc", 37446, "s3", "matmul"),
        Op(
            span_id="s3",
            op_name="matmul",
            inputs=["x", "w"],
            output="logits",
            shape=[32, 10],
            dtype="f32",
            device="cpu",
            duration_ns=900,
            timestamp_ns=45978,
            output_dense_bytes=1280,
            input_dense_bytes=10752,
        ),
        _memory_6("free", 80410, "s4", None),
        DeviceMemory(timestamp_ns=94631, device="cpu", used_bytes=4096, free_bytes=8192),
        Edge.call("s2", "s3", 46519),
    ]


def _memory_6(action: Any, timestamp_ns: int, span_id: str, op_name: str | None) -> Memory:
    return Memory(
        timestamp_ns=timestamp_ns,
        storage_id="logits",
        tensor_id="logits",
        span_id=span_id,
        op_name=op_name,
        device="cpu",
        bytes=1280,
        action=action,
        shape=[32, 10],
        dtype="f32",
        category="activation",
    )


@pytest.mark.parametrize("schema", [7, 8, 9, 10])
def test_later_schemas_are_read_as_they_stand(schema: int) -> None:
    """Edges are tagged, storages and intervals of devices are there, gradients as in every schema."""
    assert _of(schema, Edge) == [Edge.data("t2", "t3"), Edge.call("s2", "s5", 4677)]
    assert [event.storage_id for event in _of(schema, Memory) if isinstance(event, Memory)] == ["st3", "st3"]
    assert _of(schema, DeviceInterval) == [
        DeviceInterval(
            span_id="s3",
            device="cuda:0",
            stream_id="7",
            clock_id="gpu-0",
            backend="cuda",
            start_ns=100,
            duration_ns=800,
        )
    ]
    assert _of(schema, Gradient) == [
        Gradient(event_id="gradient-1", root="model", key="w", state="present", norm=0.125),
        Gradient(event_id="gradient-2", root="model", key="b", state="missing"),
    ]


def test_tensor_statistics_are_kept_as_they_stand() -> None:
    """The lines of schema 10's own kind keep every field."""
    expected = [fields for fields in _fields(10) if fields["kind"] == "tensor_stats"]
    kept = [event for event in _of(10, Unknown) if isinstance(event, Unknown)]
    assert [{"kind": event.kind, **event.fields} for event in kept] == expected
    assert len(expected) == 2


@pytest.mark.parametrize(
    ("schema", "terminal"),
    [
        (6, Terminal("complete", 99739, "success")),
        (7, Terminal("complete", 119919, "success")),
        (9, Terminal("failed", 119919, "failed", "CUDA out of memory")),
        (10, Terminal("complete", 119919, "success")),
    ],
)
def test_a_whole_trace_is_finished(schema: int, terminal: Terminal) -> None:
    """The terminal event gets the status of its outcome; schema 6 is complete without one, at its latest time."""
    reader = read(_golden(schema), clock=FixedClock(10**9))
    assert (reader.state.status, peek(_golden(schema)).state.status) == (TraceStatus.FINISHED,) * 2
    assert list(reader)[-1] == terminal
    assert (reader.terminal, reader.state.status, reader.torn) == (terminal, TraceStatus.FINISHED, ())


@pytest.mark.parametrize("schema", _SCHEMAS)
def test_a_cut_trace_is_not_finished(schema: int, tmp_path: Path) -> None:
    """A torn last line ends no trace, of schema 6 neither; what stands before it is read."""
    path = tmp_path / "cut.jsonl"
    path.write_bytes(_golden(schema).read_bytes()[:-9])
    reader = read(path, clock=FixedClock(10**9))
    assert peek(path, clock=FixedClock(10**9)).state.status is TraceStatus.INTERRUPTED
    assert len(list(reader)) == len(_fields(schema)) - 1
    assert (reader.terminal, len(reader.torn), reader.state.status) == (None, 1, TraceStatus.INTERRUPTED)


def test_schema_6_is_not_followed_beyond_its_end() -> None:
    """Nothing in such a trace tells that it is over, so following one ends where it does."""

    def never(_: float) -> None:
        raise AssertionError("waited for more")

    assert len(list(read(_golden(6), follow=True, sleep=never))) == 21


def test_what_may_be_left_out_has_its_default(tmp_path: Path) -> None:
    """The fields that a producer may leave out are read as the format's defaults."""
    path = tmp_path / "sparse.jsonl"
    _changed(path, 6, "op", inputs=None, output=None, shape=None, storage_bytes=None, input_storage_bytes=None)
    op = next(event for event in read(path) if isinstance(event, Op))
    assert (op.inputs, op.output, op.shape, op.output_dense_bytes, op.input_dense_bytes) == ([], None, [], None, 0)
    _changed(path, 10, "tensor", label=None, requires_grad=None, dense_bytes=None, category=None)
    tensor = next(event for event in read(path) if isinstance(event, Tensor))
    assert (tensor.requires_grad, tensor.category, tensor.dense_bytes) == (False, "other", None)
    _changed(path, 7, "span_end", duration_ns=None)
    assert {event.duration_ns for event in read(path) if isinstance(event, SpanEnd)} == {0}


@pytest.mark.parametrize(
    ("schema", "kind", "changes", "message"),
    [
        (6, "meta", {"tags": None}, ":1: .*missing required field `tags`"),
        (8, "meta", {"run_id": None}, ":1: .*missing required field `run_id`"),
        (10, "meta", {"timestamp": "yesterday"}, ":1: .*'yesterday' is no ISO-8601 time"),
        (7, "meta", {"capture_step": 0}, ":1: .*capture_step counts from 1"),
        (7, "memory", {"storage_id": None}, r":\d+: .*missing required field `storage_id`"),
        (9, "edge", {"edge_kind": None}, r":\d+: .*missing required field `edge_kind`"),
        (10, "span_start", {"start_ns": "0"}, r":2: .*missing required field `time_unix_nano`|:2: .*start_ns"),
        (10, "terminal", {"outcome": None}, r":\d+: .*missing required field `outcome`"),
    ],
)
def test_what_must_be_there_is_named(
    tmp_path: Path, schema: int, kind: str, changes: dict[str, Any], message: str
) -> None:
    """A field that a schema demands and a line lacks is an error with the file, the line and the field."""
    with pytest.raises(TraceFormatError, match=message):
        list(read(_changed(tmp_path / "bad.jsonl", schema, kind, **changes)))


@pytest.mark.parametrize("number", ["5", "11", "10.5", "x", "9" * 100_000])
def test_other_schemas_are_refused(tmp_path: Path, number: str) -> None:
    """Older, newer and garbled schemas are refused in a short message; a newer one with the way to an update."""
    path = _changed(tmp_path / "other.jsonl", 10, "meta", schema=f"candle-graph/trace/{number}")
    with pytest.raises(SchemaVersionError) as caught:
        read(path)
    text = str(caught.value)
    assert len(text) < 600
    assert ("pip install -U runspan" in text) == (number.isdecimal() and number != "5")


@pytest.mark.parametrize("schema", _SCHEMAS)
def test_its_events_can_be_written_and_read_again(schema: int, tmp_path: Path) -> None:
    """What was read, written as this package writes it, reads as the same events."""
    events = list(read(_golden(schema)))
    path = tmp_path / "copy.jsonl"
    path.write_bytes(b"".join(map(encode, events)))
    assert isinstance(events[0], Meta)
    assert list(read(path)) == events


@pytest.mark.parametrize("schema", _SCHEMAS)
def test_health_and_graph_take_the_trace(schema: int) -> None:
    """A whole capture has no error, only what it truly lacks; its total is the measured span."""
    assert [finding.code for finding in health(_golden(schema))] == (["device_timing_absent"] if schema == 6 else [])
    if schema == 9:
        with pytest.raises(TraceFormatError, match="CUDA out of memory"):
            build_graph(_golden(schema))
    else:
        graph = build_graph(_golden(schema))
        assert graph.total_ns == next(
            event.duration_ns for event in read(_golden(schema)) if isinstance(event, SpanEnd) and event.id == "s2"
        )
