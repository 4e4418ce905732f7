from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from runspan.errors import ConfigError
from runspan.testing import FakeClock
from support.programs import events_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import runspan
    from support.live import LiveRuns


def _steps(live: LiveRuns, run: runspan.Run) -> list[dict[str, Any]]:
    return events_of(live.lines(run), "step")


def test_a_step_is_one_line_with_its_phases(live: LiveRuns) -> None:
    """An uncaptured step is one line: its number, duration, phases summed by name, samples and tokens, no span."""
    clock = FakeClock()
    run = live.start(clock=clock)
    with run.step(samples=32, tokens=4096):
        for _ in range(2):
            with run.phase("forward"):
                clock.advance(0.25)
        with run.phase("backward"):
            clock.advance(0.5)
        clock.advance(0.125)
    (line,) = _steps(live, run)
    assert line == {
        "kind": "step",
        "step": 0,
        "duration_ns": 1_125_000_000,
        "phases": {"forward": 500_000_000, "backward": 500_000_000},
        "samples": 32,
        "tokens": 4096,
        "time_unix_nano": clock.time_ns(),
    }
    assert [span["name"] for span in events_of(live.lines(run), "span_start")] == ["run", "rank"]


def test_steps_count_from_0_and_go_on_from_a_given_number(live: LiveRuns) -> None:
    """Without a number a step is the one after the last; a given number, numpy's too, is taken as it is."""
    run = live.start()
    for number in (None, None, 100, None, np.int64(7), 8.0, None):
        with run.step(number) as step:
            assert step is not None
    assert [line["step"] for line in _steps(live, run)] == [0, 1, 100, 101, 7, 8, 9]


@pytest.mark.parametrize("number", [True, -1, 1.5, "3", object()])
def test_what_is_no_step_number_is_replaced(live: LiveRuns, number: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A bad number costs a warning; the step is recorded as the next one. Strict raises."""
    run = live.start()
    for _ in range(2):
        with run.step(number, samples=number):
            pass
    assert [line["step"] for line in _steps(live, run)] == [0, 1]
    assert [line for line in _steps(live, run) if "samples" in line] == []
    assert len(caplog.records) == 2
    with pytest.raises(ConfigError, match="no step"):
        live.start(strict=True).step(number)


@pytest.mark.parametrize(
    ("given", "kept"), [(5, 5), (np.int64(5), 5), (5.0, 5), (5.5, None), ("x", None), (None, None)]
)
def test_counts_may_be_set_while_the_step_runs(live: LiveRuns, given: Any, kept: int | None) -> None:
    """Samples known late are set on the step; what is no count is left out, and the line stays readable."""
    run = live.start()
    with run.step() as step:
        assert step is not None
        step.samples = given
    (line,) = _steps(live, run)
    assert line.get("samples") == kept
    assert type(line.get("samples")) is type(kept)
    run.finish()
    assert live.storage.get_run(run.id).counts == {"steps": 1, "samples": kept or 0, "tokens": 0}


@pytest.mark.parametrize("name", ["", "a/b", "\ud800", 3, None, ("a", 1)])
def test_any_phase_name_is_kept_as_text(live: LiveRuns, name: Any) -> None:
    """A phase's odd name costs neither the step nor the phase."""
    run = live.start()
    with run.step(), run.phase(name):
        pass
    (line,) = _steps(live, run)
    assert list(line["phases"]) == [str(name).replace("\ud800", "\ufffd")]


def test_a_failing_step_and_phase_are_recorded(live: LiveRuns) -> None:
    """An exception that leaves a step leaves its line, and the next step goes on."""
    run = live.start()
    with pytest.raises(ValueError, match="bad"), run.step(), run.phase("forward"):
        raise ValueError("bad")
    with run.step():
        pass
    assert [(line["step"], list(line.get("phases", {}))) for line in _steps(live, run)] == [(0, ["forward"]), (1, [])]


def test_steps_wraps_a_loop_and_times_the_wait_for_data(live: LiveRuns) -> None:
    """One step an item: the wait for the item is data_ns and part of the step; the total is the iterable's length."""
    clock = FakeClock()
    run = live.start(clock=clock)

    class Loader:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[str]:
            for item in "abc":
                clock.advance(0.5)
                yield item

    seen = []
    for item in run.steps(Loader()):
        with run.phase("forward"):
            clock.advance(0.25)
        seen.append(item)
    assert seen == ["a", "b", "c"]
    assert [
        (line["step"], line["data_ns"], line["duration_ns"], line["phases"], line["total"])
        for line in _steps(live, run)
    ] == [(step, 500_000_000, 750_000_000, {"forward": 250_000_000}, 3) for step in range(3)]


def test_leaving_the_loop_ends_its_step(live: LiveRuns) -> None:
    """After a break the last step is recorded, and what follows is outside any step."""
    run = live.start()
    with run:
        for item in run.steps(range(10), total=99):
            if item == 2:
                break
        with run.span("after"):
            pass
        for _ in run.steps(iter([1])):
            pass
    steps = _steps(live, run)
    assert [(line["step"], line.get("total")) for line in steps] == [(0, 99), (1, 99), (2, 99), (3, None)]
    (after,) = events_of(live.lines(run), "span_start", name="after")
    assert "flags" not in after["otel"]


def test_an_exception_in_the_loops_body_or_its_loader(live: LiveRuns) -> None:
    """Errors pass through: of the body, and of the iterable, whose failed fetch is no step."""
    run = live.start()

    def broken() -> Iterator[int]:
        yield 1
        raise RuntimeError("loader")

    def train(iterable: Any) -> None:
        for item in run.steps(iterable):
            if item == 5:
                raise ValueError("body")

    with pytest.raises(RuntimeError, match="loader"):
        train(broken())
    with pytest.raises(ValueError, match="body"):
        train([4, 5, 6])
    assert [line["step"] for line in _steps(live, run)] == [0, 1, 2]


@pytest.mark.parametrize("total", [2.0, np.int64(2), "many", -1, 2.5])
def test_a_total_that_is_none_is_left_out(live: LiveRuns, total: Any) -> None:
    """A total is a count or nothing: the line stays readable."""
    run = live.start()
    list(run.steps([1], total=total))
    (line,) = _steps(live, run)
    assert line.get("total") in (2, None)
    assert type(line.get("total")) in (int, type(None))


def test_the_loop_goes_on_after_finish(live: LiveRuns) -> None:
    """Finishing inside the loop stops the recording of steps, not the loop."""
    run = live.start()
    seen = []
    for item in run.steps(range(4)):
        seen.append(item)
        if item == 1:
            run.finish()
    assert seen == [0, 1, 2, 3]
    assert [line["step"] for line in _steps(live, run)] == [0]


def test_a_progress_bar_is_shown_on_terminals_alone(live: LiveRuns, capsys: pytest.CaptureFixture[str]) -> None:
    """progress=True prints nothing where stderr is no terminal."""
    run = live.start()
    assert list(run.steps(range(3), progress=True)) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")


def test_a_step_belongs_to_its_thread_and_its_run(live: LiveRuns) -> None:
    """Inside a step of one run another thread's spans and another run's are outside of it."""
    run, other = live.start(run_id="a"), live.start(run_id="b")
    with run.step():
        with other.span("other's"):
            pass
        thread = threading.Thread(target=lambda: run.span("thread's").__enter__())
        thread.start()
        thread.join()
    for each, name in ((other, "other's"), (run, "thread's")):
        (span,) = events_of(live.lines(each), "span_start", name=name)
        assert "flags" not in span["otel"]


def test_counts_are_summed_in_storage(live: LiveRuns) -> None:
    """Steps, samples, tokens and user counters are totals of the attempt in storage."""
    run = live.start()
    for _ in range(3):
        with run.step(samples=2, tokens=10):
            run.count("images")
    run.count("images", 0.5)
    run.count("bad", -1)
    run.count("bad", float("nan"))
    run.finish()
    assert live.storage.get_run(run.id).counts == {"steps": 3, "samples": 6, "tokens": 30, "images": 3.5}
    lines = events_of(live.lines(run), "count")
    assert [(line["key"], line["value"]) for line in lines] == [("images", 1)] * 3 + [("images", 0.5)]
