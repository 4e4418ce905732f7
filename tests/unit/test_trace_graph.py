from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runspan.errors import TraceFormatError
from runspan.tracefile.events import Terminal, TraceEvent
from runspan.tracefile.graph import build_graph, self_time_ns
from support.captures import capture_meta, complete_capture, memory_event, span_events, tensor_event
from support.traces import make_meta, make_terminal, write_lines

if TYPE_CHECKING:
    from pathlib import Path


def _capture(*inside: TraceEvent) -> list[TraceEvent]:
    step = span_events("step", None, 0, 100, inside, measured=True)
    return [capture_meta(), *step, Terminal("complete", 100, "success")]


def test_self_time_is_what_no_child_covers() -> None:
    """Children that overlap, as those of several threads do, count once."""
    children = [*span_events("a", "step", 10, 50), *span_events("b", "step", 30, 60), *span_events("c", "step", 70, 80)]
    graph = build_graph(_capture(*children))
    assert {span.id: span.self_ns for span in graph.spans} == {"step": 40, "a": 40, "b": 30, "c": 10}
    assert graph.total_ns == 100


@given(st.integers(0, 60), st.integers(0, 60), st.lists(st.tuples(st.integers(-20, 90), st.integers(-20, 90))))
def test_self_time_equals_counting_each_nanosecond(start: int, duration: int, children: list[tuple[int, int]]) -> None:
    """The union of any intervals is what counting the uncovered nanoseconds one by one gives."""
    uncovered = [at for at in range(start, start + duration) if not any(begin <= at < end for begin, end in children)]
    assert self_time_ns(start, duration, children) == len(uncovered)


def test_spans_stand_depth_first_with_their_paths() -> None:
    """A path has the names from the root down; siblings stand in the order in which they began."""
    late = span_events("late", "step", 50, 60)
    early = span_events("early", "step", 10, 40, span_events("below", "early", 20, 30, name="a/b"))
    graph = build_graph(_capture(*late, *early))
    assert [(span.path, span.depth, span.parent_id) for span in graph.spans] == [
        ("step", 0, None),
        ("step/early", 1, "step"),
        ("step/early/a/b", 2, "early"),
        ("step/late", 1, "step"),
    ]


def test_tensors_that_share_a_storage_count_once() -> None:
    """An alias adds no bytes; a storage of the same id on another device is another one."""
    graph = build_graph(
        _capture(
            memory_event("alloc", 1, 100, timestamp_ns=1, tensor_id="a", category="parameter"),
            memory_event("alloc", 1, 100, timestamp_ns=2, tensor_id="a view of a", op_name="view"),
            memory_event("alloc", 1, 50, timestamp_ns=3, device="cuda:0", op_name="matmul"),
            memory_event("free", 1, 100, timestamp_ns=4, tensor_id="a view of a"),
            memory_event("alloc", 2, 20, timestamp_ns=5),
        )
    )
    memory = graph.memory
    assert memory is not None
    assert (memory.peak_bytes, memory.peak_at_ns, memory.retained_bytes) == (150, 3, 70)
    assert memory.peak_categories == {"activation": 50, "parameter": 100}
    assert [(each.device, each.peak_bytes, each.retained_bytes) for each in memory.devices] == [
        ("cpu", 100, 20),
        ("cuda:0", 50, 50),
    ]
    assert [(point.timestamp_ns, point.device, point.live_bytes) for point in memory.timeline] == [
        (1, "cpu", 100),
        (2, "cpu", 100),
        (3, "cuda:0", 50),
        (4, "cpu", 0),
        (5, "cpu", 20),
    ]
    assert memory.allocated_by_span == {"step": 170}
    assert memory.allocated_by_op == {"view": 0, "matmul": 50}


def test_memory_that_was_not_recorded_is_unknown() -> None:
    """None, not zero bytes."""
    assert build_graph(_capture(tensor_event("t"))).memory is None


def test_the_evidence_hangs_on_the_graph(tmp_path: Path) -> None:
    """Operations, tensors, gradients, intervals, samples and both sorts of edges are there, read from a file."""
    path = tmp_path / "rank-00000.jsonl"
    write_lines(path, complete_capture())
    graph = build_graph(path)
    assert [op.op_name for op in graph.operations] == ["matmul"]
    assert [tensor.tensor_id for tensor in graph.tensors] == ["t0", "t1"]
    assert [gradient.key for gradient in graph.gradients] == ["layer.weight"]
    assert [interval.span_id for interval in graph.device_intervals] == ["forward"]
    assert [sample.used_bytes for sample in graph.device_memory] == [1]
    assert [(edge.from_span, edge.to_span) for edge in graph.call_edges] == [("step", "forward")]
    assert [(edge.from_tensor, edge.to_tensor) for edge in graph.data_edges] == [("t0", "t1")]
    assert graph.meta.capture_step == 101


def test_a_run_trace_has_no_total() -> None:
    """A run's own trace has spans but no measured one."""
    graph = build_graph([make_meta(), *span_events("run", None, 0, 10), make_terminal()])
    assert graph.total_ns is None
    assert [span.name for span in graph.spans] == ["run"]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (_capture()[:-1], "no terminal event"),
        ([*_capture()[:-1], Terminal("failed", 100, "failed", "SIGTERM")], r"failed \(SIGTERM\)"),
        (_capture(*span_events("child", "gone", 0, 1)), "unknown_parent: span 'child' names the parent 'gone'"),
    ],
)
def test_a_graph_needs_a_valid_and_complete_trace(tmp_path: Path, events: list[TraceEvent], message: str) -> None:
    """Anything else is an error that says what is wrong, and in which file."""
    path = tmp_path / "rank-00000.jsonl"
    write_lines(path, events)
    with pytest.raises(TraceFormatError, match=message) as caught:
        build_graph(path)
    assert caught.value.path == str(path)


def test_the_oldest_schema_ends_without_a_terminal_event() -> None:
    """A candle-graph/trace/6 file is complete as it is."""
    meta = capture_meta(schema="candle-graph/trace/6")
    assert build_graph([meta, *_capture()[1:-1]]).total_ns == 100


def test_spans_nested_without_end_are_refused() -> None:
    """A chain of spans that no program makes does not fill the memory with its paths."""
    starts: list[TraceEvent] = []
    ends: list[TraceEvent] = []
    for depth in range(1_100):
        start, end = span_events(f"s{depth}", f"s{depth - 1}" if depth else None, 0, 100, measured=depth == 0)
        starts.append(start)
        ends.insert(0, end)
    with pytest.raises(TraceFormatError, match="more than 1000 spans below its root"):
        build_graph([capture_meta(), *starts, *ends, Terminal("complete", 100, "success")])
