"""The run trace's format, frozen: files that every later version must read, and that this one writes byte for byte.

``run-trace.jsonl`` is what this version writes; ``later-run-trace.jsonl`` is what a later writer of the same schema may
write, with kinds and fields that this version does not know. A change of either file is a change of the format.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NoReturn

import pytest

from runspan.tracefile.events import (
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
    TraceEvent,
    Unknown,
    Usage,
    encode,
    jsonable,
)
from runspan.tracefile.layout import TraceName
from runspan.tracefile.meta import ExecutionPhase, TimingMode
from runspan.tracefile.reader import TraceStatus, read

_FOLDER = Path(__file__).parent
_GOLDEN = _FOLDER / "run-trace.jsonl"
_LATER = _FOLDER / "later-run-trace.jsonl"
_START = 1_700_000_000_123_456_789
_TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
_RUN_SPAN, _RANK_SPAN = "b7ad6b7169203331", "00f067aa0ba902b7"

_META = Meta(
    schema="runspan/trace/1",
    run_id="01890a5d-ac96-774b-bcce-b302099a8057",
    correlation_id="nightly/42",
    entrypoint="train:__main__",
    phase=ExecutionPhase.TRAIN,
    timestamp="2023-11-14T22:13:20.123Z",
    capture_step=1,
    warmup_steps=0,
    device="cuda:0",
    timing_mode=TimingMode.HOST,
    tags={"batch": "32", "lesson": "4"},
    candle_version="0.9.1",
    time_unix_nano=_START,
    experiment_id="exp-0123456789abcdef",
    trace_id=_TRACE_ID,
    run_span_id=_RUN_SPAN,
    span_id=_RANK_SPAN,
    process=ProcessInfo(0, 4, 0, 1, "node-1", 4242),
    heartbeat_s=10.0,
    resource={"service.name": "digits", "runspan.rank": 0},
)

#: Every kind of a run trace, with and without its optional fields, and every value that JSON has no number or text for.
_WRITTEN: list[TraceEvent] = [
    _META,
    Environment(
        ["train.py", "--token", "***"], "/work", "3.11.7", {"numpy": "2.1"}, GitInfo("c0ffee", "main", "+a\n-b\n")
    ),
    Environment([], "", "3.12.0", {}),
    SpanStart(
        id=_RUN_SPAN,
        name="run",
        start_ns=0,
        time_unix_nano=_START,
        span_kind="function",
        attributes={"runspan.rank": 0, "seed": jsonable(2**64 - 1), "huge": jsonable(2**64), "lr": jsonable(math.inf)},
        otel=OtelContext(_TRACE_ID),
    ),
    SpanStart(
        id=_RANK_SPAN,
        parent_id=_RUN_SPAN,
        name="rank",
        start_ns=1_000,
        time_unix_nano=_START + 1_000,
        span_kind="function",
        measured=True,
        step="forward",
        otel=OtelContext(_TRACE_ID, _RUN_SPAN, "client", Scope("host", "1.0", "https://example.org/1"), "a=b", 0),
        links=[SpanLink("ab" * 16, "cd" * 8, {"why": "resumed"}, "c=d", 0)],
    ),
    Param("lr", 0.001),
    Param("config", jsonable({"layers": [64, math.nan], "$float": "NaN"})),
    Param("looks_like_a_float", jsonable({"$float": "NaN"})),
    Tag("owner", "Zoë \U0001f600"),
    Metric("loss/train", 0, 0.5, _START + 2_000),
    Metric("val/AR@100", 8073, math.nan, _START + 3_000, explicit=True),
    Metric("tokens", 1, 2**64 - 1, _START + 4_000),
    Metrics(
        values={"a": math.inf, "b": -math.inf, "c": 1}, steps={"a": 0, "b": 0, "c": 7}, time_unix_nano=_START + 5_000
    ),
    Metrics(step=3, values={"a": 1.0}, time_unix_nano=_START + 5_500),
    Count(key="batches", value=1, time_unix_nano=_START + 6_000),
    Count(key="bytes", value=4096, unit="By", time_unix_nano=_START + 6_000),
    Observe(key="latency", value=math.nan, unit="s", time_unix_nano=_START + 7_000),
    Step(step=0, duration_ns=5_000_000, time_unix_nano=_START + 8_000),
    Step(
        step=1,
        duration_ns=5_000_000,
        data_ns=100,
        phases={"forward": 2_000_000, "backward": 3_000_000},
        samples=32,
        tokens=0,
        total=100,
        time_unix_nano=_START + 9_000,
    ),
    Artifact("model.pt", "sha256-" + "0" * 64, 1024),
    Artifact("data", "sha256-" + "f" * 64, 2**40, step=0, reference="/data/set"),
    Event(name="clock_skew", level="warning", message="-3600 s", time_unix_nano=_START + 10_000),
    Event(name="spike", level="error", message="", attributes={"loss": jsonable(-math.inf)}, time_unix_nano=_START),
    Usage(
        gpu_util=0.5,
        cpu_util=0.25,
        memory_used=1,
        memory_total=2,
        gpu_memory_used=3,
        gpu_memory_total=4,
        timestamp_ns=11_000,
        time_unix_nano=_START + 11_000,
    ),
    Usage(timestamp_ns=12_000, time_unix_nano=_START + 12_000),
    Dropped("file", "ENOSPC", 3),
    SpanEnd(
        id=_RANK_SPAN,
        duration_ns=20_000,
        status=SpanStatus("error", "ValueError: no data"),
        attributes={"empty": None},
        events=[SpanEvent("exception", _START + 13_000, {"exception.type": "ValueError"}), SpanEvent("bare", _START)],
        links=[SpanLink("ab" * 16, "cd" * 8)],
        dropped={"attributes": 1, "events": 2, "links": 3},
    ),
    SpanEnd(id=_RUN_SPAN, duration_ns=21_000),
    Terminal("failed", 22_000, "failed", "ValueError"),
]


def _refuse_constant(name: str) -> NoReturn:
    raise AssertionError(f"bare {name} in JSON")


def test_this_version_writes_the_golden_bytes() -> None:
    """Every kind is written as it has been since the schema's first version, byte for byte."""
    assert b"".join(map(encode, _WRITTEN)) == _GOLDEN.read_bytes()


def test_the_golden_trace_is_read_and_finished() -> None:
    """The golden trace is read as a whole, and what is read and made jsonable again is what was written."""
    reader = read(_GOLDEN)
    events = list(reader)
    assert len(events) == len(_WRITTEN)
    assert [event for event in events if isinstance(event, Param)] == [
        Param("lr", 0.001),
        events[6],
        Param("looks_like_a_float", {"$float": "NaN"}),
    ]
    config = events[6]
    assert isinstance(config, Param)
    assert math.isnan(config.value["layers"][1])
    assert reader.state.status is TraceStatus.FINISHED
    assert reader.last_seen_unix_nano == _START + 22_000
    assert (reader.torn, reader.skipped) == ((), 0)


@pytest.mark.parametrize("path", [_GOLDEN, _LATER], ids=lambda path: path.stem)
def test_a_strict_parser_takes_every_golden_line(path: Path) -> None:
    """Case 35: no line holds bare NaN or infinity, each is one JSON object with its kind first, meta first of all."""
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    objects = [json.loads(line.decode("utf-8"), parse_constant=_refuse_constant) for line in lines]
    assert all(next(iter(fields)) == "kind" for fields in objects)
    assert (objects[0]["kind"], objects[0]["schema"]) == ("meta", "runspan/trace/1")
    assert objects[-1]["kind"] == "terminal"


def test_a_later_writer_of_the_same_schema_is_read() -> None:
    """Unknown kinds are kept, unknown fields skipped, in meta too: only another schema number breaks a reader."""
    events = list(read(_LATER))
    assert events == [
        events[0],
        Unknown("summary", {"span_id": "a", "op_name": "matmul", "timestamp_ns": 5, "later": [1, {"$float": "NaN"}]}),
        Metric("loss", 0, 0.5, _START),
        Terminal("complete", 9, "success"),
    ]
    assert isinstance(events[0], Meta)
    assert events[0].run_meta.run_id == "run-later"


def test_a_parts_golden_lines() -> None:
    """The two lines between parts: what ends one and what begins the next."""
    following = TraceName(0, part=1)
    assert encode(SegmentEnd(following.filename)) == b'{"kind":"segment_end","next":"rank-00000.part-0001.jsonl"}\n'
