from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

import runspan
from runspan import ids
from runspan.testing import FakeClock
from runspan.tracefile import read_run
from support.programs import events_of

if TYPE_CHECKING:
    from pathlib import Path

    from runspan._run.recorder import EvidenceRecorder
    from support.live import LiveRuns


def _captures(run: runspan.Run) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of each captured step's file of rank 0 or the run's own rank, by folder."""
    directory = run.directory
    assert directory is not None
    return {
        path.parent.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(directory.glob("captures/*/rank-*.jsonl"))
    }


def _schedule(**changes: Any) -> runspan.CaptureSchedule:
    return runspan.CaptureSchedule(**{"wait": 2, "warmup": 1, "active": 1, "repeat": 2, "slow_factor": 0, **changes})


def _train(run: runspan.Run, clock: FakeClock, steps: int, *, seconds: float = 0.01) -> None:
    for _ in range(steps):
        with run.step(), run.phase("forward"):
            clock.advance(seconds)


def test_the_schedule_says_which_steps_are_captured(live: LiveRuns) -> None:
    """Each cycle waits, warms up and captures; beyond the last cycle nothing is captured."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule())
    _train(run, clock, 20)
    assert list(_captures(run)) == ["update-000000004", "update-000000008"]


@pytest.mark.parametrize(("repeat", "expected"), [(0, 5), (1, 1)])
def test_repeat_bounds_the_cycles(live: LiveRuns, repeat: int, expected: int) -> None:
    """A repeat of 0 goes on as long as the run does."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(repeat=repeat))
    _train(run, clock, 20)
    assert len(_captures(run)) == expected


def test_a_schedule_counts_from_the_attempts_first_step(live: LiveRuns) -> None:
    """A training that goes on at step 200 captures as one that starts at 0 does."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(repeat=1))
    for number in range(200, 210):
        with run.step(number):
            clock.advance(0.01)
    assert list(_captures(run)) == ["update-000000204"]


def test_a_number_that_comes_again_is_captured_once(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """Micro-batches that share their update's number make one capture, of the first; slow and failed ones add none."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(repeat=1, slow_factor=3.0))
    for number in range(20):
        for seconds in (0.01, 0.01, 0.5 if number == 3 else 0.01):
            with run.step(number):
                clock.advance(seconds)
    with pytest.raises(ValueError, match="boom"), run.step(3):
        raise ValueError("boom")
    (capture,) = _captures(run).values()
    assert [line["name"] for line in capture if line["kind"] == "span_start"] == ["step"]
    assert [line["name"] for line in live.lines(run) if line.get("name") == "step captured"] == ["step captured"]
    assert not caplog.records


def test_steps_before_the_first_are_in_no_cycle(live: LiveRuns) -> None:
    """Numbers that go back, as of an evaluation that counts its own, use up no capture and add none."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(wait=0, warmup=0, active=2, repeat=1))
    for number in (100, 0, 1, 101, 2, 102):
        with run.step(number):
            clock.advance(0.01)
    assert list(_captures(run)) == ["update-000000101", "update-000000102"]


def test_a_capture_file_is_a_trace_of_its_own(live: LiveRuns) -> None:
    """Its meta names the update, its one root is the measured step, its phases and user spans hang below, it ends."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(repeat=1), run_id="r")
    for _ in range(4):
        with run.step(), run.phase("forward"), run.span("attention", heads=8):
            clock.advance(0.25)
    meta, *events, terminal = _captures(run)["update-000000004"]
    assert (meta["kind"], meta["capture_step"], meta["warmup_steps"]) == ("meta", 4, 3)
    assert meta["correlation_id"] == "r/update-4"
    assert meta["trace_id"] == f"{ids.step_trace_id('r', 3):032x}"
    starts = {event["name"]: event for event in events if event["kind"] == "span_start"}
    assert list(starts) == ["step", "forward", "attention"]
    assert {name: start.get("parent_id") for name, start in starts.items()} == {
        "step": None,
        "forward": starts["step"]["id"],
        "attention": starts["forward"]["id"],
    }
    assert [start["measured"] for start in starts.values()] == [True, False, False]
    assert starts["forward"]["step"] == "forward"
    assert starts["step"]["attributes"]["runspan.step.captured_because"] == "scheduled"
    durations = {event["id"]: event["duration_ns"] for event in events if event["kind"] == "span_end"}
    assert set(durations.values()) == {250_000_000}
    assert (terminal["kind"], terminal["outcome"]) == ("terminal", "complete")


def test_links_lead_from_the_step_to_the_run_and_back(live: LiveRuns) -> None:
    """The step links to run and rank; rank 0's trace has a short span with a link to the step."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(repeat=1))
    _train(run, clock, 4)
    step = next(event for event in _captures(run)["update-000000004"] if event["kind"] == "span_start")
    spans = {line["name"]: line for line in live.lines(run) if line["kind"] == "span_start"}
    assert [link["span_id"] for link in step["links"]] == [spans["run"]["id"], spans["rank"]["id"]]
    back = spans["step captured"]
    assert back["parent_id"] == spans["rank"]["id"]
    assert [(link["trace_id"], link["span_id"]) for link in back["links"]] == [(step["otel"]["trace_id"], step["id"])]


def test_the_step_line_stands_whether_captured_or_not(live: LiveRuns) -> None:
    """The run's own file has one line a step, with the phases of the captured one too."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(repeat=1))
    _train(run, clock, 5)
    lines = [line for line in live.lines(run) if line["kind"] == "step"]
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert all(line["phases"] == {"forward": 10_000_000} for line in lines)


def test_the_wait_for_data_is_a_span_of_the_captured_step(live: LiveRuns) -> None:
    """run.steps() captures from the moment the wait began."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(repeat=1))

    def loader() -> Any:
        for item in range(4):
            clock.advance(0.5)
            yield item

    for _ in run.steps(loader()):
        clock.advance(0.25)
    events = _captures(run)["update-000000004"]
    starts = {event["name"]: event for event in events if event["kind"] == "span_start"}
    durations = {event["id"]: event["duration_ns"] for event in events if event["kind"] == "span_end"}
    assert durations[starts["data"]["id"]] == 500_000_000
    assert durations[starts["step"]["id"]] == 750_000_000
    assert starts["data"]["start_ns"] == 0


def test_a_slow_step_is_captured_afterwards(live: LiveRuns) -> None:
    """A step beyond slow_factor times the median is rebuilt from its phase times, and says why."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(active=0, slow_factor=3.0))
    _train(run, clock, 40)
    with run.step():
        with run.phase("forward"):
            clock.advance(0.125)
        with run.phase("backward"):
            clock.advance(0.25)
    (capture,) = _captures(run).values()
    starts = {event["name"]: event for event in capture if event["kind"] == "span_start"}
    assert starts["step"]["attributes"]["runspan.step.captured_because"] == "slow"
    assert {name: start["start_ns"] for name, start in starts.items()} == {
        "step": 0,
        "forward": 0,
        "backward": 125_000_000,
    }


def test_a_step_that_was_slow_for_its_data_says_so(live: LiveRuns) -> None:
    """The wait of run.steps() is a span of the rebuilt step, before its phases."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(active=0, slow_factor=3.0))

    def loader() -> Any:
        for item in range(41):
            clock.advance(0.5 if item == 40 else 0.001)
            yield item

    for _ in run.steps(loader()):
        with run.phase("forward"):
            clock.advance(0.01)
    (capture,) = _captures(run).values()
    starts = {event["name"]: event for event in capture if event["kind"] == "span_start"}
    durations = {event["id"]: event["duration_ns"] for event in capture if event["kind"] == "span_end"}
    assert {name: (start["start_ns"], durations[start["id"]]) for name, start in starts.items()} == {
        "step": (0, 510_000_000),
        "data": (0, 500_000_000),
        "forward": (500_000_000, 10_000_000),
    }


def test_steps_that_are_slow_by_microseconds_are_noise(live: LiveRuns) -> None:
    """Below a millisecond more than the median no step is slow, whatever the factor."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(active=0, slow_factor=3.0))
    _train(run, clock, 40, seconds=0.00001)
    _train(run, clock, 1, seconds=0.0009)
    assert _captures(run) == {}


def test_slow_captures_are_bounded(live: LiveRuns) -> None:
    """A training that is slow again and again does not fill the disk."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(active=0, slow_factor=1.5))
    for _ in range(60):
        _train(run, clock, 20)
        _train(run, clock, 1, seconds=0.1)
    assert len(_captures(run)) == 16


def test_a_failed_step_is_captured_afterwards(live: LiveRuns) -> None:
    """The exception goes on; the step's trace has it, and ends as failed."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(active=0))
    with pytest.raises(ValueError, match="boom"), run.step(), run.phase("forward"):
        raise ValueError("boom")
    (capture,) = _captures(run).values()
    starts = {event["name"]: event for event in capture if event["kind"] == "span_start"}
    assert starts["step"]["attributes"]["runspan.step.captured_because"] == "failed"
    assert capture[-1]["outcome"] == "failed"
    assert capture[-1]["reason"] == "ValueError: boom"


def test_a_phase_that_is_entered_twice_is_two_spans_afterwards(live: LiveRuns) -> None:
    """The line of a failed step sums a phase up; its trace has each time that the phase was entered, in order."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(active=0))

    def train() -> None:
        with run.step():
            for name, seconds in (("forward", 0.1), ("backward", 0.2), ("forward", 0.4)):
                with run.phase(name):
                    clock.advance(seconds)
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        train()
    (line,) = events_of(live.lines(run), "step")
    assert line["phases"] == {"forward": 500_000_000, "backward": 200_000_000}
    (capture,) = _captures(run).values()
    names = {event["id"]: (event["name"], event["start_ns"]) for event in capture if event["kind"] == "span_start"}
    spans = [(*names[event["id"]], event["duration_ns"]) for event in capture if event["kind"] == "span_end"]
    assert spans == [
        ("forward", 0, 100_000_000),
        ("backward", 100_000_000, 200_000_000),
        ("forward", 300_000_000, 400_000_000),
        ("step", 0, 700_000_000),
    ]


def test_ranks_beyond_the_schedules_capture_nothing(live: LiveRuns) -> None:
    """Rank 16 of the default sixteen, and slow steps of it too."""
    clock = FakeClock()
    context = runspan.RankContext(16, 17)
    run = live.start(clock=clock, capture=_schedule(slow_factor=2.0), rank_context=context, run_id="r")
    _train(run, clock, 40)
    _train(run, clock, 1, seconds=5.0)
    assert _captures(run) == {}


def test_the_end_of_the_run_closes_an_open_capture(live: LiveRuns) -> None:
    """A run that finishes inside a captured step ends its spans there, and its file says that it failed and why."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(wait=0, warmup=0))
    with run.step(), run.phase("forward"), run.span("attention"):
        clock.advance(0.25)
        run.finish("cancelled", "enough")
        clock.advance(0.25)
    (capture,) = _captures(run).values()
    starts = {event["name"]: event["id"] for event in capture if event["kind"] == "span_start"}
    ends = {event["id"]: event for event in capture if event["kind"] == "span_end"}
    assert list(starts) == ["step", "forward", "attention"]
    assert list(ends) == [starts["attention"], starts["forward"], starts["step"]]
    assert {end["duration_ns"] for end in ends.values()} == {250_000_000}
    assert ends[starts["step"]]["status"] == {"code": "error", "message": "enough"}
    terminal = {"kind": "terminal", "outcome": "failed", "timestamp_ns": 250_000_000, "status": "failed"}
    assert capture[-1] == {**terminal, "reason": "enough"}
    assert [line["name"] for line in live.lines(run) if line.get("name") == "step captured"] == ["step captured"]


def test_a_host_programs_span_is_closed_with_the_file_alone(live: LiveRuns) -> None:
    """A span of the host's own tracer inside a captured step that the run cuts off ends in the file, and goes on."""
    provider = TracerProvider(shutdown_on_exit=False)
    run = live.start(capture=_schedule(wait=0, warmup=0))
    provider.add_span_processor(run.span_processor)
    with run.step(), provider.get_tracer("host").start_as_current_span("host's") as span:
        run.finish()
        assert span.is_recording()
    (capture,) = _captures(run).values()
    assert [event["name"] for event in capture if event["kind"] == "span_start"] == ["step", "host's"]
    assert [event["kind"] for event in capture[-3:]] == ["span_end", "span_end", "terminal"]
    assert capture[-1]["reason"] == "finish(success)"


def test_a_span_that_outlasts_its_step_ends_with_it(live: LiveRuns) -> None:
    """A span that another thread has not ended when the step ends has its end in the file all the same."""
    clock = FakeClock()
    run = live.start(clock=clock, capture=_schedule(wait=0, warmup=0))
    is_open, step_has_ended = threading.Event(), threading.Event()

    def work(recorder: EvidenceRecorder) -> None:
        with recorder.span("left open") as span:
            is_open.set()
            step_has_ended.wait()
            assert not span.is_recording()

    with run.step() as step:
        assert step is not None
        clock.advance(0.25)
        thread = threading.Thread(target=work, args=(step.recorder,))
        thread.start()
        is_open.wait()
        clock.advance(0.25)
    step_has_ended.set()
    thread.join()
    (capture,) = _captures(run).values()
    starts = {event["name"]: event["id"] for event in capture if event["kind"] == "span_start"}
    durations = [(event["id"], event["duration_ns"]) for event in capture if event["kind"] == "span_end"]
    assert durations == [(starts["left open"], 250_000_000), (starts["step"], 500_000_000)]
    assert capture[-1]["outcome"] == "complete"


def test_without_a_file_a_step_is_still_timed(live: LiveRuns) -> None:
    """Without a trace directory captures cost nothing and raise nothing."""
    run = live.start(capture=_schedule(wait=0, warmup=0), trace_dir=None)
    with run.step(), run.phase("forward"), run.span("inner"):
        pass
    assert run.directory is None


def test_a_capture_that_cannot_be_written_costs_a_warning(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """The training goes on, the loss is counted, the step's line is there."""
    run = live.start(capture=_schedule(wait=0, warmup=0))
    directory = run.directory
    assert directory is not None
    (directory / "captures").write_text("in the way")
    with run.step():
        pass
    assert [line["step"] for line in live.lines(run) if line["kind"] == "step"] == [0]
    assert "captured step 0 cannot be written" in caplog.text


def test_captures_of_all_ranks_meet_in_one_trace(live: LiveRuns) -> None:
    """Two ranks' files of one step have one trace id, and the reader finds them together."""
    directories: set[Path | None] = set()
    for rank in (1, 0):
        clock = FakeClock()
        context = runspan.RankContext(rank, 2)
        with live.start(clock=clock, capture=_schedule(repeat=1), rank_context=context, run_id="r") as run:
            _train(run, clock, 4)
        directories.add(run.directory)
    (directory,) = directories
    assert directory is not None
    captures = [entry for entry in read_run(directory).traces if entry.capture == "update-000000004"]
    assert [entry.name.rank for entry in captures] == [0, 1]
    assert len({entry.meta.trace_id for entry in captures}) == 1
