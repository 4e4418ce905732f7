from __future__ import annotations

import itertools
import json
import math
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import trace

import runspan
from runspan.testing import FakeClock
from runspan.tracefile import health, read
from runspan.tracefile.events import DeviceInterval, DeviceMemory, Edge, Gradient, Memory, Op, SpanStart, Tensor
from support.programs import events_of, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runspan._run.recorder import EvidenceRecorder
    from support.live import LiveRuns

_EVERY_STEP = runspan.CaptureSchedule(wait=0, warmup=0, active=1, repeat=0, slow_factor=0)
_OP: dict[str, Any] = {"shape": [2, 3], "dtype": "float32", "device": "cpu", "duration_ns": 5, "input_dense_bytes": 24}
_MEMORY: dict[str, Any] = {"tensor_id": 1, "bytes": 64, "device": "cpu", "shape": [4], "dtype": "float32"}
_INTERVAL: dict[str, Any] = {
    "device": "cuda:0",
    "stream_id": 7,
    "clock_id": "cuda:0/device",
    "backend": "cuda",
    "start_ns": 10,
    "duration_ns": 20,
}
#: One call of each method that records.
_CALLS: dict[str, Callable[[EvidenceRecorder], None]] = {
    "op": lambda recorder: recorder.op("aten::mm", **_OP),
    "tensor": lambda recorder: recorder.tensor(1, shape=[2], dtype="float32", device="cpu"),
    "memory": lambda recorder: recorder.memory("alloc", 9, **_MEMORY),
    "device_memory": lambda recorder: recorder.device_memory("cuda:0", used_bytes=1),
    "gradient": lambda recorder: recorder.gradient("layer.weight", 0.5, root="loss"),
    "call_edge": lambda recorder: recorder.call_edge("a" * 16, "b" * 16, 3),
    "data_edge": lambda recorder: recorder.data_edge(1, 2),
    "device_interval": lambda recorder: recorder.device_interval(**_INTERVAL),
}


class _Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("no items")


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _NoIndex:
    def __index__(self) -> int:
        raise _UnprintableError


def _capture_path(run: runspan.Run, step: int = 0) -> Path:
    assert run.directory is not None
    return run.directory / "captures" / f"update-{step + 1:09d}" / "rank-00000.jsonl"


def _evidence(run: runspan.Run, step: int = 0) -> list[Any]:
    """Return the events of a capture that are evidence, decoded."""
    kinds = (Op, Tensor, Memory, DeviceMemory, Gradient, Edge, DeviceInterval)
    with read(_capture_path(run, step)) as reader:
        return [event for event in reader if isinstance(event, kinds)]


def test_every_kind_of_evidence_is_written_as_it_was_given(live: LiveRuns) -> None:
    """Each method makes one typed event, in the order of the calls, between the step's start and the file's end."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_EVERY_STEP)
    with run.step() as step:
        assert step is not None
        recorder = step.recorder
        span_id = recorder.span_id
        assert span_id is not None
        clock.advance(0.5)
        recorder.op("aten::mm", inputs=[1, "w"], output=3, output_dense_bytes=24, **_OP)
        recorder.tensor(
            3,
            shape=(2, 3),
            dtype="float32",
            device="cpu",
            category="activation",
            requires_grad=True,
            label="h",
            dense_bytes=24,
        )
        recorder.memory("alloc", 9, category="activation", op_name="aten::mm", timestamp_ns=7, **_MEMORY)
        recorder.memory("free", 9, **_MEMORY)
        recorder.device_memory("cuda:0", used_bytes=1, free_bytes=2, reserved_bytes=3, capacity_bytes=4)
        recorder.gradient("layer.weight", 0.5, root="loss", event_id="g")
        recorder.call_edge(span_id, "b" * 16, 3)
        recorder.data_edge(1, 3)
        recorder.device_interval(**_INTERVAL)
    memory: dict[str, Any] = {
        "device": "cpu",
        "bytes": 64,
        "shape": [4],
        "dtype": "float32",
        "storage_id": 9,
        "tensor_id": 1,
    }
    assert _evidence(run) == [
        Op(
            span_id=span_id,
            op_name="aten::mm",
            inputs=[1, "w"],
            output=3,
            output_dense_bytes=24,
            timestamp_ns=500_000_000 - _OP["duration_ns"],
            **_OP,
        ),
        Tensor(
            span_id=span_id,
            tensor_id=3,
            label="h",
            shape=[2, 3],
            dtype="float32",
            device="cpu",
            requires_grad=True,
            dense_bytes=24,
            category="activation",
        ),
        Memory(timestamp_ns=7, span_id=span_id, op_name="aten::mm", action="alloc", category="activation", **memory),
        Memory(timestamp_ns=500_000_000, span_id=span_id, action="free", category="other", **memory),
        DeviceMemory(
            timestamp_ns=500_000_000,
            device="cuda:0",
            used_bytes=1,
            free_bytes=2,
            reserved_bytes=3,
            capacity_bytes=4,
        ),
        Gradient(event_id="g", root="loss", key="layer.weight", state="present", norm=0.5),
        Edge.call(span_id, "b" * 16, 3),
        Edge.data(1, 3),
        DeviceInterval(span_id=span_id, **_INTERVAL),
    ]
    kinds = [line["kind"] for line in lines_of(_capture_path(run))]
    assert kinds[:2] == ["meta", "span_start"]
    assert kinds[-2:] == ["span_end", "terminal"]


def test_a_capture_with_all_its_evidence_is_healthy(live: LiveRuns) -> None:
    """What an integration records of a whole update leaves a trace without any finding."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_EVERY_STEP, device="cuda:0")
    with run.step() as step:
        assert step is not None
        recorder = step.recorder
        root = recorder.span_id
        for phase in ("forward", "backward", "optimizer"):
            with run.phase(phase):
                began_ns, phase_id = recorder.now_ns(), recorder.span_id
                assert root is not None
                assert phase_id is not None
                recorder.memory("alloc", phase, **{**_MEMORY, "tensor_id": phase})
                recorder.tensor(phase, shape=[4], dtype="float32", device="cuda:0")
                clock.advance(0.25)
                recorder.op(phase, output=phase, timestamp_ns=began_ns, **{**_OP, "duration_ns": 250_000_000})
                recorder.device_interval(**_INTERVAL)
                recorder.memory("free", phase, **{**_MEMORY, "tensor_id": phase})
            recorder.call_edge(root, phase_id, 250_000_000)
        recorder.data_edge("forward", "backward")
        recorder.device_memory("cuda:0", used_bytes=1 << 20, capacity_bytes=1 << 30)
        recorder.gradient("layer.weight", 0.5, root="forward")
    assert health(_capture_path(run)) == []


@pytest.mark.parametrize("method", _CALLS)
def test_an_uncaptured_step_records_nothing(live: LiveRuns, method: str) -> None:
    """The same calls are taken on every step, and outside any: there they leave no file and tell of nothing."""
    run = live.start(capture=runspan.CaptureSchedule(active=0, slow_factor=0))
    with run.step() as step:
        assert step is not None
        for recorder in (step.recorder, run.recorder):
            _CALLS[method](recorder)
            assert not recorder.is_recording
            assert (recorder.span_id, recorder.now_ns()) == (None, 0)
            with recorder.span("block", "op", size=1) as span:
                assert not span.is_recording()
    _CALLS[method](run.recorder)
    assert run.directory is not None
    assert not (run.directory / "captures").exists()
    assert events_of(live.lines(run), "span_start", name="block") == []
    assert run._session.dropped() == {}


def test_the_runs_recorder_is_that_of_the_current_step(live: LiveRuns) -> None:
    """Hooks that get no step, as in a loop over run.steps(), find the recorder at the run."""
    run = live.start(capture=_EVERY_STEP)
    for number in run.steps(range(2)):
        assert run.recorder.is_recording
        run.recorder.tensor(number, shape=[], dtype="int64", device="cpu")
    assert not run.recorder.is_recording
    assert [[event.tensor_id for event in _evidence(run, step)] for step in range(2)] == [[0], [1]]


def test_evidence_belongs_to_the_current_span(live: LiveRuns) -> None:
    """Without a span of its own it is the innermost one of the step; one may be given as a span or by its id."""
    run = live.start(capture=_EVERY_STEP)
    with run.step() as step:
        assert step is not None
        recorder = step.recorder
        with run.phase("forward"), recorder.span("linear") as linear:
            recorder.op("current", **_OP)
            linear_id = recorder.span_id
        recorder.op("by id", span_id=linear_id, **_OP)
        recorder.op("by span", span_id=linear, **_OP)
        recorder.op("the step's", **_OP)
        with trace.use_span(trace.INVALID_SPAN):
            recorder.op("of no span", **_OP)
        with run.span("outer") as outer:
            outer.end()
            recorder.op("of one that has ended", **_OP)
    spans = {line["name"]: line["id"] for line in events_of(lines_of(_capture_path(run)), "span_start")}
    assert [(event.op_name, event.span_id) for event in _evidence(run)] == [
        ("current", spans["linear"]),
        ("by id", spans["linear"]),
        ("by span", spans["linear"]),
        ("the step's", spans["step"]),
        ("of no span", spans["step"]),
        ("of one that has ended", spans["step"]),
    ]


def test_spans_say_what_they_stand_for(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """A span of the recorder is a function, an op or a module; anything else is told of, and a function."""
    run = live.start(capture=_EVERY_STEP)
    kind: Any
    with run.step() as step:
        assert step is not None
        for kind in ("function", "op", "module", "kernel", np.zeros(2)):
            with step.recorder.span(f"a {kind}", kind, size=3):
                pass
    starts = events_of(lines_of(_capture_path(run)), "span_start")
    assert [(start["name"], start["span_kind"]) for start in starts] == [
        ("step", "function"),
        ("a function", "function"),
        ("a op", "op"),
        ("a module", "module"),
        ("a kernel", "function"),
        ("a [0. 0.]", "function"),
    ]
    assert starts[2]["attributes"] == {"size": 3}
    assert {start.get("parent_id") for start in starts[1:]} == {starts[0]["id"]}
    assert "kind: 'kernel' (str) is none of function, op, module" in caplog.text


def test_gradients_tell_their_state_by_their_norm(live: LiveRuns) -> None:
    """Case 35: above zero present, zero zero, none missing; NaN and infinities are non_finite and leave no bare NaN."""
    run = live.start(capture=_EVERY_STEP)
    with run.step() as step:
        assert step is not None
        for norm in (0.5, np.float32(2), 0, -0.0, None, math.nan, math.inf, -math.inf):
            step.recorder.gradient("w", norm, root=1)
    assert [(event.event_id, event.state, event.norm) for event in _evidence(run)] == [
        (0, "present", 0.5),
        (1, "present", 2.0),
        (2, "zero", 0.0),
        (3, "zero", 0.0),
        (4, "missing", None),
        (5, "non_finite", None),
        (6, "non_finite", None),
        (7, "non_finite", None),
    ]
    assert len(events_of(lines_of(_capture_path(run)), "gradient")) == 8  # by a parser that takes no bare NaN


def test_values_of_other_libraries_are_kept_as_plain_ones(live: LiveRuns) -> None:
    """Sizes of any integer type, names and devices of any object; 64 bits stay exact, surrogates are replaced."""
    run = live.start(capture=_EVERY_STEP)
    shape: Any = np.array([2, 3])
    count: Any = np.int64(24)
    with run.step() as step:
        assert step is not None
        step.recorder.op(
            "bad \ud800 name",
            inputs=(2**64 - 1, -1),
            shape=shape,
            dtype=np.dtype("float32"),
            device=Path("cuda:0"),
            duration_ns=2**64 - 1,
            input_dense_bytes=count,
        )
    (op,) = _evidence(run)
    assert (op.op_name, op.inputs, op.shape) == ("bad \ufffd name", [2**64 - 1, -1], [2, 3])
    assert (op.dtype, op.device, op.duration_ns, op.input_dense_bytes) == ("float32", "cuda:0", 2**64 - 1, 24)


_BAD: dict[str, tuple[Callable[[Any], None], str]] = {
    "negative size": (lambda recorder: recorder.memory("alloc", 9, **{**_MEMORY, "bytes": -1}), "bytes: -1 (int)"),
    "no number": (lambda recorder: recorder.op("mm", **{**_OP, "duration_ns": "soon"}), "duration_ns: 'soon'"),
    "a fraction": (lambda recorder: recorder.op("mm", **{**_OP, "duration_ns": 0.5}), "duration_ns: 0.5 (float)"),
    "a bool": (lambda recorder: recorder.device_memory("cpu", used_bytes=True), "used_bytes: True (bool)"),
    "too large": (lambda recorder: recorder.device_memory("cpu", used_bytes=2**64), "used_bytes: 18446744073709551616"),
    "no size": (lambda recorder: recorder.device_memory("cpu"), "it tells no size"),
    "no shape": (lambda recorder: recorder.op("mm", **{**_OP, "shape": 3}), "not iterable"),
    "missing": (lambda recorder: recorder.op("mm", **{**_OP, "device": None}), "device"),
    "category": (
        lambda recorder: recorder.tensor(1, shape=[], dtype="f", device="c", category="big"),
        "category: 'big'",
    ),
    "action": (lambda recorder: recorder.memory("move", 9, **_MEMORY), "action: 'move' (str) is none of alloc, free"),
    "identifier": (lambda recorder: recorder.data_edge(1.5, 2), "from_tensor: 1.5 (float) is no identifier"),
    "span": (lambda recorder: recorder.call_edge(5, "b" * 16, 1), "from_span: 5 (int) is no span"),
    "negative norm": (lambda recorder: recorder.gradient("w", -0.5, root=1), "norm: -0.5"),
    "no norm": (lambda recorder: recorder.gradient("w", "big", root=1), "norm: 'big'"),
    "an error without a text": (
        lambda recorder: recorder.op("mm", **{**_OP, "duration_ns": _NoIndex()}),
        "<unprintable _UnprintableError>",
    ),
    "no end": (
        lambda recorder: recorder.op("mm", inputs=itertools.count(), **_OP),
        "inputs: count(65537) (count) is no list of at most 65536 items",
    ),
    "a text": (lambda recorder: recorder.op("mm", inputs="abc", **_OP), "inputs: 'abc' (str) is no list"),
    "foreign code": (lambda recorder: recorder.op("mm", **{**_OP, "shape": _Unprintable()}), "no items"),
}


@pytest.mark.parametrize("what", _BAD)
def test_bad_values_are_left_out_counted_and_told_of_once(
    live: LiveRuns, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """Nothing raises into the training: the event is left out, what comes behind it is there."""
    call, told = _BAD[what]
    run = live.start(capture=_EVERY_STEP)
    with run.step() as step:
        assert step is not None
        for _ in range(3):
            call(step.recorder)
        step.recorder.data_edge(1, 2)
    assert _evidence(run) == [Edge.data(1, 2)]
    assert run._session.dropped() == {("evidence", "invalid_value"): 3}
    (record,) = caplog.records
    assert told in record.getMessage()
    assert "captured step 0" in record.getMessage()


@pytest.mark.parametrize("what", _BAD)
def test_bad_values_raise_in_a_strict_run(live: LiveRuns, what: str) -> None:
    """Strict asks for errors: the first bad value is one."""
    call, _ = _BAD[what]
    run = live.start(capture=_EVERY_STEP, strict=True)
    with run.step() as step:
        assert step is not None
        with pytest.raises(runspan.ConfigError, match="of captured step 0"):
            call(step.recorder)


def test_nothing_comes_behind_the_steps_end(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """Hooks that are late find the file closed: counted, told of once, and the terminal event stays the last."""
    run = live.start(capture=_EVERY_STEP)
    with run.step() as step:
        assert step is not None
        recorder = step.recorder
    for call in _CALLS.values():
        call(recorder)
    with recorder.span("late") as span:
        assert not span.is_recording()
    assert not recorder.is_recording
    assert _evidence(run) == []
    assert lines_of(_capture_path(run))[-1]["kind"] == "terminal"
    assert run._session.dropped() == {("evidence", "after_step"): len(_CALLS) + 1}
    assert [record.getMessage() for record in caplog.records] == [
        f"run {run.id}: op of captured step 0: the step has ended, its file is closed"
    ]


def test_every_thread_may_record_until_the_end(live: LiveRuns) -> None:
    """Threads that race with the step's end lose nothing that they were not told of, and tear no line."""
    run = live.start(capture=_EVERY_STEP)
    counts: list[int] = []

    def work(recorder: EvidenceRecorder, number: int, began: threading.Barrier) -> None:
        began.wait()
        done = 0
        while recorder.is_recording and done < 20_000:
            recorder.tensor(f"{number}/{done}", shape=[1], dtype="f", device="cpu", label="x" * 200)
            done += 1
        counts.append(done)

    with run.step() as step:
        assert step is not None
        began = threading.Barrier(5)
        threads = [threading.Thread(target=work, args=(step.recorder, number, began)) for number in range(4)]
        for thread in threads:
            thread.start()
        began.wait()
        while _capture_path(run).stat().st_size < 100_000:
            pass
    for thread in threads:
        thread.join()
    tensors = _evidence(run)
    late = run._session.dropped().get(("evidence", "after_step"), 0)
    assert len(tensors) + late == sum(counts)
    for number in range(4):
        mine = [event.tensor_id for event in tensors if event.tensor_id.startswith(f"{number}/")]
        assert mine == [f"{number}/{done}" for done in range(len(mine))]
    root = events_of(lines_of(_capture_path(run)), "span_start")[0]["id"]
    assert {event.span_id for event in tensors} == {root}


def test_a_span_of_another_thread_hangs_below_the_step(live: LiveRuns) -> None:
    """A thread without the step's context records into the step all the same, its spans below the step's own."""
    run = live.start(capture=_EVERY_STEP)
    with run.step() as step:
        assert step is not None

        def work(recorder: EvidenceRecorder) -> None:
            with recorder.span("backward hook", "op"):
                recorder.op("mm", **_OP)

        thread = threading.Thread(target=work, args=(step.recorder,))
        thread.start()
        thread.join()
    starts = events_of(lines_of(_capture_path(run)), "span_start")
    assert [start["name"] for start in starts] == ["step", "backward hook"]
    assert starts[1]["parent_id"] == starts[0]["id"]
    assert _evidence(run)[0].span_id == starts[1]["id"]


def test_a_clock_that_steps_back_makes_no_time_negative(live: LiveRuns) -> None:
    """Case 14: with the wall clock an hour back, spans and evidence of a capture count on by the monotonic clock."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_EVERY_STEP)
    with run.step() as step:
        assert step is not None
        clock.advance(0.25)
        with run.phase("forward"):
            clock.advance(0.25)
            clock.step_wall(-3600.0)
            step.recorder.device_memory("cpu", used_bytes=1)
            clock.advance(0.25)
        with run.phase("backward"):
            clock.advance(0.25)
            run.finish("cancelled", "enough")
    lines = lines_of(_capture_path(run))
    starts = {line["name"]: line["start_ns"] for line in events_of(lines, "span_start")}
    assert starts == {"step": 0, "forward": 250_000_000, "backward": 750_000_000}
    assert [line["duration_ns"] for line in events_of(lines, "span_end")] == [500_000_000, 250_000_000, 1_000_000_000]
    assert events_of(lines, "device_memory")[0]["timestamp_ns"] == 500_000_000
    assert lines[-1]["timestamp_ns"] == 1_000_000_000


def test_a_full_disk_costs_lines_of_the_capture_and_is_counted(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the capture's file lost is among the run's losses, and nothing raises."""
    run = live.start(capture=_EVERY_STEP)
    real_write = os.write
    with run.step() as step:
        assert step is not None

        def full(descriptor: int, data: bytes) -> int:
            if b'"kind":"tensor"' in data:
                raise OSError(28, "No space left on device")
            return real_write(descriptor, data)

        monkeypatch.setattr("runspan.tracefile.writer.os.write", full)
        step.recorder.tensor(1, shape=[], dtype="f", device="cpu")
        monkeypatch.undo()
        step.recorder.data_edge(1, 2)
    lines = lines_of(_capture_path(run))
    assert [(line["reason"], line["count"]) for line in events_of(lines, "dropped")] == [("ENOSPC", 1)]
    assert _evidence(run) == [Edge.data(1, 2)]
    assert run._session.dropped() == {("capture", "ENOSPC"): 1}


def test_without_a_file_evidence_goes_nowhere(live: LiveRuns) -> None:
    """A run without a trace directory takes the same calls and raises nothing."""
    run = live.start(capture=_EVERY_STEP, trace_dir=None)
    with run.step() as step:
        assert step is not None
        for call in _CALLS.values():
            call(step.recorder)
    assert run._session.dropped() == {}


def test_a_forked_child_writes_nothing_into_the_parents_capture(live: LiveRuns) -> None:
    """A child that is forked inside a captured step and leaves it there changes neither the file nor its end."""
    run = live.start(capture=_EVERY_STEP)
    with run.step() as step:
        assert step is not None
        pid = os.fork()
        if pid == 0:
            try:
                step.recorder.data_edge(1, 2)
                step.__exit__(None, None, None)
            finally:
                os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        step.recorder.data_edge(3, 4)
    assert _evidence(run) == [Edge.data(3, 4)]
    assert [line["kind"] for line in lines_of(_capture_path(run))].count("terminal") == 1


_ANY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(st.characters(), max_size=5),
    st.lists(st.one_of(st.integers(-5, 2**65), st.text(max_size=3), st.none()), max_size=4),
    st.binary(max_size=4),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(sorted(_CALLS)), st.lists(_ANY, min_size=12, max_size=12)), max_size=8))
def test_whatever_is_passed_leaves_a_file_that_reads(live: LiveRuns, calls: list[tuple[str, list[Any]]]) -> None:
    """Values of any type never raise; each event is written or counted, and every line is read back."""
    run = live.start(capture=_EVERY_STEP)
    fields: dict[str, list[str]] = {
        "op": [*_OP, "inputs", "output", "output_dense_bytes", "timestamp_ns", "span_id"],
        "tensor": ["shape", "dtype", "device", "category", "requires_grad", "label", "dense_bytes", "span_id"],
        "memory": [*_MEMORY, "category", "op_name", "timestamp_ns", "span_id"],
        "device_memory": ["used_bytes", "free_bytes", "reserved_bytes", "capacity_bytes", "timestamp_ns"],
        "gradient": ["root", "event_id"],
        "call_edge": [],
        "data_edge": [],
        "device_interval": [*_INTERVAL, "span_id"],
    }
    positional = {"op": 1, "tensor": 1, "memory": 2, "device_memory": 1, "gradient": 2, "call_edge": 3, "data_edge": 2}
    with run.step() as step:
        assert step is not None
        for method, values in calls:
            first = positional.get(method, 0)
            named = dict(zip(fields[method], values[first:], strict=False))
            getattr(step.recorder, method)(*values[:first], **named)
    run.finish()
    refused = run._session.dropped().get(("evidence", "invalid_value"), 0)
    assert len(_evidence(run)) + refused == len(calls)
    with read(_capture_path(run)) as reader:
        events = list(reader)
    assert sum(isinstance(event, SpanStart) for event in events) == 1
    for line in _capture_path(run).read_bytes().splitlines():
        json.loads(line)
