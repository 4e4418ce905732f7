from __future__ import annotations

import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given

from runspan.errors import ConfigError, TraceFormatError
from runspan.export.perfetto import export_perfetto
from runspan.tracefile.events import (
    Count,
    DeviceMemory,
    Memory,
    Metrics,
    Op,
    SpanEvent,
    SpanStatus,
    Step,
    TraceEvent,
    Usage,
    encode,
)
from support.chrome_trace import counters, instants, load_chrome_trace, slices, thread_names
from support.export_traces import CAPTURE, any_spans, make_exported_run, span_events, spans_of, write_trace
from support.traces import START_UNIX_NANO, make_meta, make_metric, write_lines


def _export(traces: list[Path], folder: Path) -> list[dict[str, Any]]:
    output = folder / "trace.json"
    export_perfetto(traces, output)
    return load_chrome_trace(output)


def test_each_rank_is_a_process_with_named_threads(tmp_path: Path) -> None:
    """The viewer shows a track a rank, and on it the spans, the steps, the events and the captured step apart."""
    events = _export(make_exported_run(tmp_path / "run"), tmp_path)
    processes = {event["pid"]: event["args"] for event in events if event["name"] == "process_name"}
    assert processes == {1: {"name": "rank 0"}, 2: {"name": "rank 1"}}
    assert sorted(thread_names(events, 2)) == ["events", f"events · {CAPTURE}", "spans", f"spans · {CAPTURE}", "steps"]


def test_threads_stand_in_one_order_whatever_was_written_first(tmp_path: Path) -> None:
    """Of each trace its spans come first, then steps and events; a captured step's threads come after the run's."""
    events = _export(make_exported_run(tmp_path / "run", ranks=1), tmp_path)
    order = {event["tid"]: event["args"]["sort_index"] for event in events if event["name"] == "thread_sort_index"}
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert [names[tid] for tid in sorted(order, key=order.__getitem__)] == [
        "spans",
        "steps",
        "events",
        f"spans · {CAPTURE}",
        f"events · {CAPTURE}",
    ]


def test_every_nanosecond_stays(tmp_path: Path) -> None:
    """Times are µs with three decimals, from the start of the first trace."""
    events = _export(make_exported_run(tmp_path / "run", ranks=1), tmp_path)
    (inner,) = slices(events, "evaluate")
    assert (inner["ts"], inner["dur"]) == (Decimal("1.500"), Decimal("0.501"))
    (outer,) = slices(events, "rank")
    assert outer["dur"] == Decimal("1000000.007")


def test_a_value_that_is_no_number_is_an_event_and_not_bare(tmp_path: Path) -> None:
    """Case 35: a NaN is no point of its counter, but an instant that names it; attributes hold it as text."""
    events = _export(make_exported_run(tmp_path / "run", ranks=1), tmp_path)
    assert counters(events, "loss") == [0]
    assert len(instants(events, "loss is NaN")) == 1
    (note,) = instants(events, "note")
    assert note["args"] == {"level": "info", "message": "hello", "ratio": "Infinity"}


def test_arrows_join_a_captured_step_over_the_ranks(tmp_path: Path) -> None:
    """The captured step's roots are one flow, in the order of time."""
    events = _export(make_exported_run(tmp_path / "run", ranks=3), tmp_path)
    flow = [(event["ph"], event["pid"]) for event in events if str(event["ph"]) in "stf"]
    assert flow == [("s", 1), ("t", 2), ("f", 3)]


def test_steps_are_slices_that_do_not_reach_back(tmp_path: Path) -> None:
    """A step whose duration reaches some ns into the one before it begins where that ended, its own duration beside."""
    steps = [Step(step=n, duration_ns=1_005, time_unix_nano=START_UNIX_NANO + 1_000 * (n + 2)) for n in range(3)]
    events = _export([write_trace(tmp_path, *steps)], tmp_path)
    second = slices(events, "step 1")[0]
    assert (second["ts"], second["dur"]) == (Decimal("2.000"), Decimal("1.000"))
    assert second["args"] == {"step": 1, "duration_ns": 1_005, "time_unix_nano": str(START_UNIX_NANO + 3_000)}
    assert len({event["tid"] for event in slices(events)}) == 1


def test_a_clock_that_stepped_back_gets_a_lane_of_its_own(tmp_path: Path) -> None:
    """Case 14: steps that end before their predecessors break no rule of the format."""
    ends_ns = (10_000, 20_000, 12_000, 14_000)
    steps = [
        Step(step=number, duration_ns=5_000, time_unix_nano=START_UNIX_NANO + end_ns)
        for number, end_ns in enumerate(ends_ns)
    ]
    events = _export([write_trace(tmp_path, *steps)], tmp_path)
    assert len(slices(events)) == 4
    assert "steps 2" in thread_names(events, 1)


def test_counts_usage_and_memory_are_counters(tmp_path: Path) -> None:
    """Counters add up; storages that tensors share count once; what was not measured is not zero."""
    memory = Memory(
        timestamp_ns=1,
        storage_id=7,
        tensor_id=1,
        span_id="aa",
        device="cuda:0",
        bytes=100,
        action="alloc",
        shape=[1],
        dtype="f32",
        category="other",
    )
    alias = msgspec.structs.replace(memory, tensor_id=2)
    freed = msgspec.structs.replace(memory, action="free")
    lines: list[TraceEvent] = [
        Count(key="images", value=3, time_unix_nano=START_UNIX_NANO),
        Count(key="images", value=4, time_unix_nano=START_UNIX_NANO),
        Metrics(step=1, values={"a": 1, "b": 2.5}, time_unix_nano=START_UNIX_NANO),
        Usage(cpu_util=50.0, timestamp_ns=1, time_unix_nano=START_UNIX_NANO),
        memory,
        alias,
        freed,
        DeviceMemory(timestamp_ns=1, device="cuda:0", used_bytes=5),
    ]
    events = _export([write_trace(tmp_path, *lines)], tmp_path)
    assert counters(events, "images total") == [3, 7]
    assert (counters(events, "a"), counters(events, "b")) == ([1], [Decimal("2.5")])
    assert counters(events, "usage cpu_util") == [50]
    assert counters(events, "usage gpu_util") == []
    assert counters(events, "cuda:0 allocated bytes") == [100, 100, 0]
    assert counters(events, "cuda:0 used_bytes") == [5]


def test_operations_have_a_thread_of_their_own(tmp_path: Path) -> None:
    """An operation is a slice that begins at its timestamp."""
    op = Op(
        span_id="aa",
        op_name="matmul",
        inputs=[1],
        shape=[2],
        dtype="f32",
        device="cpu",
        duration_ns=20,
        timestamp_ns=1_000,
        input_dense_bytes=8,
    )
    events = _export([write_trace(tmp_path, op)], tmp_path)
    (drawn,) = slices(events, "matmul")
    assert (drawn["ts"], drawn["dur"]) == (Decimal("1.000"), Decimal("0.020"))
    assert thread_names(events, 1)[0] == "ops"


def test_a_spans_events_status_and_end_attributes_are_shown(tmp_path: Path) -> None:
    """What its end adds overrides what its start said; its events are instants on its thread."""
    start, end = span_events("aa", "train", 0, 100)
    start = msgspec.structs.replace(start, attributes={"lr": 1, "seed": 2**53 + 1})
    end = msgspec.structs.replace(
        end,
        attributes={"lr": 2},
        status=SpanStatus("error", "boom"),
        events=[SpanEvent("retry", START_UNIX_NANO + 40, {"n": 1})],
    )
    events = _export([write_trace(tmp_path, start, end)], tmp_path)
    (drawn,) = slices(events, "train")
    assert drawn["args"] == {"lr": 2, "seed": str(2**53 + 1), "span_id": "aa", "status": "error: boom"}
    (retry,) = instants(events, "retry")
    assert (retry["ts"], retry["tid"], retry["args"]) == (Decimal("0.040"), drawn["tid"], {"n": 1})


def test_attributes_that_are_nested_deeply_are_cut(tmp_path: Path) -> None:
    """A value hundreds of levels deep, as only a foreign writer makes it, is cut with its mark and breaks nothing."""
    start, end = span_events("aa", "train", 0, 100)
    deep = b'{"a":' * 400 + b"1" + b"}" * 400
    path = tmp_path / "rank-00000.jsonl"
    lines = [
        encode(make_meta()),
        encode(start),
        encode(end).replace(b'"duration_ns"', b'"attributes":' + deep + b',"duration_ns"'),
    ]
    path.write_bytes(b"".join(lines))
    (drawn,) = slices(_export([path], tmp_path), "train")
    depth, value = 0, drawn["args"]["a"]
    while isinstance(value, dict):
        depth, value = depth + 1, value["a"]
    assert (value, depth) == ("…", 64)


def test_a_killed_run_is_drawn_up_to_where_it_was_seen(tmp_path: Path) -> None:
    """Case 4: what was open when the process died is a slice that is marked as open."""
    start, _ = span_events("aa", "train", 0, 0)
    path = tmp_path / "rank-00000.jsonl"
    data = write_lines(path, [make_meta(), start, make_metric(0, at_s=1.5)])
    path.write_bytes(data + b'{"kind":"metr')
    (drawn,) = slices(_export([path], tmp_path), "train")
    assert drawn["dur"] == Decimal(1_500_000)
    assert drawn["args"]["open"] is True


@given(events=any_spans())
def test_any_spans_keep_the_rules_of_the_format(events: list[TraceEvent]) -> None:
    """Whatever order spans begin and end in, each is drawn once, and slices of a thread nest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        drawn = slices(_export([write_trace(folder, *events)], folder))
    assert len(drawn) == spans_of(events)


def test_a_broken_trace_leaves_an_older_output_as_it_was(tmp_path: Path) -> None:
    """An error in the middle names the line, and neither replaces the output nor leaves a temporary file."""
    path = write_trace(tmp_path / "run", make_metric(0))
    path.write_bytes(path.read_bytes().replace(b'"key":"loss"', b'"key":17'))
    output = tmp_path / "trace.json"
    output.write_text("older")
    with pytest.raises(TraceFormatError, match=r"rank-00000\.jsonl:2"):
        export_perfetto([path], output)
    assert output.read_text() == "older"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "run", output]


def test_an_output_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    """A folder that is not there is named, with what to do."""
    trace = write_trace(tmp_path, make_metric(0))
    with pytest.raises(ConfigError, match=r"absent/trace\.json cannot be written \(No such file or directory\): give"):
        export_perfetto([trace], tmp_path / "absent" / "trace.json")


def test_a_rank_without_a_first_line_does_not_stop_the_others(tmp_path: Path) -> None:
    """Case 34: an empty file beside a whole one is left out; alone it is an error that names it."""
    whole, empty = write_trace(tmp_path, make_metric(0)), tmp_path / "rank-00001.jsonl"
    empty.touch()
    assert {event["pid"] for event in _export([whole, empty], tmp_path)} == {1}
    with pytest.raises(TraceFormatError, match=r"rank-00001\.jsonl: empty"):
        export_perfetto([empty], tmp_path / "other.json")
