from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import StatusCode

import runspan
from runspan import ids
from runspan.testing import FakeClock
from support.programs import events_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

    from support.live import LiveRuns


def _spans(live: LiveRuns, run: runspan.Run) -> dict[str, dict[str, Any]]:
    """Return the start lines of a run's spans by name."""
    return {line["name"]: line for line in events_of(live.lines(run), "span_start")}


def _ends(live: LiveRuns, run: runspan.Run) -> dict[str, dict[str, Any]]:
    """Return the end lines of a run's spans by name."""
    names = {line["id"]: line["name"] for line in events_of(live.lines(run), "span_start")}
    return {names[line["id"]]: line for line in events_of(live.lines(run), "span_end")}


def _rank_1() -> runspan.RankContext:
    return runspan.RankContext(1, 2)


def test_run_and_rank_stand_at_the_top(live: LiveRuns) -> None:
    """Rank 0 has a run span with the derived ids and a rank span under it; both say run, rank and attempt."""
    run = live.start(run_id="r", params={"lr": 0.1}, tags={"lesson": "3"}, device="cuda:1", phase="eval")
    spans = _spans(live, run)
    assert list(spans) == ["run", "rank"]
    assert spans["run"]["id"] == run.span_id == f"{ids.run_span_id('r'):016x}"
    assert spans["run"]["otel"] == {"trace_id": f"{ids.run_trace_id('r'):032x}"}
    assert run.trace_id == spans["run"]["otel"]["trace_id"]
    assert "parent_id" not in spans["run"]
    assert spans["rank"]["parent_id"] == spans["rank"]["otel"]["parent_span_id"] == run.span_id
    assert spans["rank"]["id"] == live.lines(run)[0]["span_id"]
    common = {"runspan.run.id": "r", "runspan.rank": 0, "runspan.attempt": 0}
    for span in spans.values():
        assert common.items() <= span["attributes"].items()
    run.finish()
    seen = {**spans["run"]["attributes"], **_ends(live, run)["run"]["attributes"]}
    assert seen["runspan.trace.run_id"] == seen["runspan.trace.correlation_id"] == "r"
    assert (seen["runspan.trace.phase"], seen["runspan.trace.device"]) == ("infer", "cuda:1")
    assert (seen["runspan.trace.capture_step"], seen["runspan.trace.warmup_steps"]) == (1, 0)
    assert (seen["runspan.tag.lesson"], seen["runspan.param.lr"]) == ("3", 0.1)
    assert seen["runspan.run.status"] == "success"
    assert not any(key.startswith("runspan.trace.tags") for key in seen)


def test_another_rank_has_a_rank_span_alone(live: LiveRuns) -> None:
    """A rank other than 0 starts no run span: its rank span names the run's, which stands in no line of its file."""
    run = live.start(run_id="r", rank_context=_rank_1())
    spans = _spans(live, run)
    assert list(spans) == ["rank"]
    assert "parent_id" not in spans["rank"]
    assert spans["rank"]["otel"]["parent_span_id"] == run.span_id == f"{ids.run_span_id('r'):016x}"
    assert spans["rank"]["attributes"]["runspan.world_size"] == 2
    run.finish()
    assert list(_ends(live, run)) == ["rank"]


def test_spans_nest_below_rank_entered_or_not(live: LiveRuns) -> None:
    """The parent is the current span if it is of this run, else the rank span."""
    run = live.start()
    with run.span("before"):
        pass
    with run, run.span("outer", size=3) as outer:
        assert trace.get_current_span() is outer
        with run.span("inner"):
            pass
        with run.span("second"):
            pass
    spans = _spans(live, run)
    rank = spans["rank"]["id"]
    assert spans["before"]["parent_id"] == spans["outer"]["parent_id"] == rank
    assert spans["inner"]["parent_id"] == spans["second"]["parent_id"] == spans["outer"]["id"]
    assert spans["outer"]["attributes"] == {"size": 3}


def test_the_constructor_attaches_nothing(live: LiveRuns) -> None:
    """Only entering the Run makes its rank span current; leaving puts back what was there."""
    before = trace.get_current_span()
    run = live.start()
    assert trace.get_current_span() is before
    with run:
        inside = trace.get_current_span().get_span_context()
        assert f"{inside.span_id:016x}" == _spans(live, run)["rank"]["id"]
    assert trace.get_current_span() is before


def test_attributes_of_any_make(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """Cases 9 and 10: numpy and huge values keep their type and digits; a longer array is kept with one warning."""
    run = live.start()
    values: dict[str, Any] = {
        "f": np.float32(1.5),
        "i": np.int64(3),
        "b": np.bool_(True),
        "scalar": np.array(2.5),
        "big": 2**64 - 1,
        "nan": float("nan"),
        "map": {"a": [1, None]},
        "none": None,
        "text": "x" * 50_000,
    }
    for _ in range(2):
        with run.span("s", **values, array=np.array([1, 2])) as span:
            late: dict[str, Any] = {"late": np.int64(4), "later": np.float32(0.5), "n": np.int64(5)}
            span.set_attribute("late", late["late"])
            span.set_attributes({"later": late["later"]})
            span.add_event("e", {"n": late["n"]})
    start, end = _spans(live, run)["s"], _ends(live, run)["s"]
    assert start["attributes"] == {
        "f": 1.5,
        "i": 3,
        "b": True,
        "scalar": 2.5,
        "big": 2**64 - 1,
        "nan": {"$float": "NaN"},
        "map": {"a": [1, None]},
        "none": None,
        "text": "x" * 50_000,
        "array": [1, 2],
    }
    assert end["attributes"] == {"late": 4, "later": 0.5}
    assert end["events"][0]["attributes"] == {"n": 5}
    assert len(caplog.records) == 1
    assert "'array'" in caplog.records[0].getMessage()


def test_an_exception_fails_the_span_and_goes_on(live: LiveRuns) -> None:
    """An exception that leaves a span is recorded on it, secrets hidden, and re-raised."""
    run = live.start()
    with pytest.raises(ValueError, match="bad"), run.span("s"):
        raise ValueError("bad, api_key=hunter2hunter2")
    end = _ends(live, run)["s"]
    assert end["status"] == {"code": "error", "message": "ValueError: bad, api_key=***"}
    (event,) = end["events"]
    assert event["name"] == "exception"
    assert event["attributes"]["exception.type"] == "ValueError"
    assert "Traceback" in event["attributes"]["exception.stacktrace"]


def test_a_closed_generator_is_no_failure(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """GeneratorExit leaves a span as it is, and closing in another context logs nothing."""
    run = live.start()

    def items() -> Generator[int, None, None]:
        with run.span("s"):
            yield 1
            yield 2

    with run:
        generator = items()
        next(generator)
        generator.close()
    assert "status" not in _ends(live, run)["s"]
    assert caplog.records == []


def test_inside_a_step_spans_stand_in_the_file_alone(live: LiveRuns) -> None:
    """A span or a phase that OpenTelemetry does not see is never an exported span's parent; the file has the tree."""
    run = live.start()
    with run, run.span("outer") as outer, run.step(), run.span("in step", n=1) as inner:
        assert trace.get_current_span() is outer
        late: Any = np.float32(2.5)
        inner.set_attribute("late", late)
        inner.add_event("seen", {"k": 1})
        with run.span("nested"):
            pass
    spans, ends = _spans(live, run), _ends(live, run)
    assert spans["in step"]["parent_id"] == spans["outer"]["id"]
    assert spans["in step"]["otel"]["flags"] == 0
    assert spans["in step"]["attributes"] == {"n": 1}
    assert spans["nested"]["parent_id"] == spans["in step"]["id"]
    assert spans["nested"]["otel"]["parent_span_id"] == spans["outer"]["id"]
    assert ends["in step"]["attributes"] == {"late": 2.5}
    assert ends["in step"]["events"][0]["name"] == "seen"


def test_a_failing_span_of_the_file_alone(live: LiveRuns) -> None:
    """Such a span has the status and the exception that any other has."""
    run = live.start()
    with pytest.raises(ValueError, match="bad"), run.phase("outside"):
        raise ValueError("bad")
    end = _ends(live, run)["outside"]
    assert end["status"] == {"code": "error", "message": "ValueError: bad"}
    assert end["events"][0]["attributes"]["exception.type"] == "ValueError"


def test_a_phase_outside_any_step_is_a_span_of_the_file(live: LiveRuns) -> None:
    """Phases outside a step nest among themselves, and a span inside has the phase as its parent in the file."""
    run = live.start()
    with run, run.phase("setup"):
        with run.phase("load"):
            pass
        with run.span("exported"):
            pass
    spans = _spans(live, run)
    assert spans["setup"]["parent_id"] == spans["rank"]["id"]
    assert spans["load"]["parent_id"] == spans["setup"]["id"]
    assert spans["exported"]["parent_id"] == spans["setup"]["id"]
    assert spans["exported"]["otel"]["parent_span_id"] == spans["rank"]["id"]
    assert "flags" not in spans["exported"]["otel"]


@pytest.mark.parametrize("rank", [0, 1])
def test_epochs_are_rank_0s_to_export(live: LiveRuns, rank: int, tmp_path: Any) -> None:
    """epoch, evaluate and checkpoint are spans of rank 0; elsewhere the file alone has them, with the same tree."""
    (tmp_path / "model").write_bytes(b"x" * 1234)
    run = live.start(rank_context=runspan.RankContext(rank, 2), run_id="r")
    with run, run.epoch(3), run.evaluate(), run.checkpoint(tmp_path / "model"):
        pass
    spans, ends = _spans(live, run), _ends(live, run)
    assert spans["epoch"]["attributes"] == {"runspan.epoch": 3}
    assert [spans[name].get("parent_id") for name in ("epoch", "evaluate", "checkpoint")] == [
        spans["rank"]["id"],
        spans["epoch"]["id"],
        spans["evaluate"]["id"],
    ]
    assert [spans[name]["otel"].get("flags") for name in ("epoch", "evaluate", "checkpoint")] == [
        None if rank == 0 else 0
    ] * 3
    assert {**spans["checkpoint"]["attributes"], **ends["checkpoint"]["attributes"]} == {
        "runspan.checkpoint.path": str(tmp_path / "model"),
        "runspan.checkpoint.bytes": 1234,
    }


def test_threads_of_a_pool_are_in_the_runs_trace(live: LiveRuns) -> None:
    """Case 12: a worker thread has no current span; its spans are of the run's trace all the same, under rank."""
    run = live.start()

    def work(index: int) -> int:
        with run.span(f"work {index}") as span:
            run.log_metric("loss", index)
            return span.get_span_context().trace_id

    with run, ThreadPoolExecutor(4) as pool:
        trace_ids = set(pool.map(work, range(8)))
    assert {f"{trace_id:032x}" for trace_id in trace_ids} == {run.trace_id}
    spans = _spans(live, run)
    assert {spans[f"work {index}"]["parent_id"] for index in range(8)} == {spans["rank"]["id"]}


def test_leaving_an_async_loop_logs_no_error(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """Case 16: a break out of an async generator inside a Run, closed in another task, leaves no ERROR in the log."""
    run = live.start()

    async def items() -> AsyncIterator[int]:
        with run.span("s"):
            for index in range(5):
                yield index

    async def train() -> None:
        with run:
            async for index in items():
                if index == 1:
                    break

    asyncio.run(train())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert run.status() == "success"
    assert "s" in _ends(live, run)


def test_a_cancelled_task_cancels_its_run(live: LiveRuns) -> None:
    """Cancellation by asyncio ends the run Cancelled, with its name as the reason, and goes on."""
    runs: list[runspan.Run] = []

    async def train() -> None:
        with live.start() as run:
            runs.append(run)
            await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(train())
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert (live.lines(runs[0])[-1]["status"], live.lines(runs[0])[-1]["reason"]) == ("cancelled", "CancelledError")


def test_tasks_have_their_own_current_spans(live: LiveRuns) -> None:
    """Concurrent tasks of one Run nest each below its own spans."""
    run = live.start()

    async def work(name: str) -> None:
        with run.span(f"outer {name}"):
            await asyncio.sleep(0)
            with run.span(f"inner {name}"):
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(work("a"), work("b"))

    with run:
        asyncio.run(main())
    spans = _spans(live, run)
    for name in ("a", "b"):
        assert spans[f"inner {name}"]["parent_id"] == spans[f"outer {name}"]["id"]
        assert spans[f"outer {name}"]["parent_id"] == spans["rank"]["id"]


def test_the_hosts_provider_stays_its_own(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 16: a Run neither sets nor uses the global provider, set before or after it."""
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    with live.start(run_id="a") as run:
        assert trace.get_tracer_provider() is provider
        with run.span("ours"):
            pass
        with trace.get_tracer("host").start_as_current_span("host's") as span:
            assert f"{span.get_span_context().trace_id:032x}" == run.trace_id
    assert "host's" not in _spans(live, run)


def test_the_span_processor_takes_a_hosts_spans_of_this_trace(live: LiveRuns) -> None:
    """On a host's provider it writes spans of this run alone; one that is open at the end is ended in the file."""
    provider = TracerProvider(shutdown_on_exit=False)
    tracer = provider.get_tracer("host", "2.0")
    run = live.start()
    provider.add_span_processor(run.span_processor)
    tracer.start_span("elsewhere").end()
    with run:
        with tracer.start_as_current_span("host's"), run.span("ours"):
            pass
        still_open = tracer.start_span("still open")
    spans, ends = _spans(live, run), _ends(live, run)
    assert "elsewhere" not in spans
    assert spans["host's"]["otel"]["scope"] == {"name": "host", "version": "2.0"}
    assert spans["ours"]["parent_id"] == spans["host's"]["id"]
    assert spans["host's"]["parent_id"] == spans["rank"]["id"]
    assert "still open" in ends
    assert still_open.is_recording()
    before = live.lines(run)
    still_open.end()
    tracer.start_span("late").end()
    assert live.lines(run) == before


def test_two_runs_are_independent(live: LiveRuns) -> None:
    """Case 16: Runs open at the same time have traces, files and current spans of their own."""
    with live.start(run_id="a") as first:
        with live.start(run_id="b") as second:
            assert runspan.current_run() is second
            with second.span("in b"), first.span("in a"):
                pass
        assert runspan.current_run() is first
        with first.span("later in a"):
            pass
    assert first.trace_id != second.trace_id
    assert list(_spans(live, first)) == ["run", "rank", "in a", "later in a"]
    assert list(_spans(live, second)) == ["run", "rank", "in b"]
    in_a = _spans(live, first)["in a"]
    assert in_a["parent_id"] == _spans(live, first)["rank"]["id"]


def test_spans_open_at_finish_are_ended_innermost_first(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """Finishing inside open spans ends them in the file; leaving them afterwards is no second end and no warning."""
    run = live.start()
    with run.span("outer") as outer, run.span("inner"), run.step(), run.span("file's"):
        run.finish()
        outer.set_attribute("late", 1)
    lines = live.lines(run)
    names = {line["id"]: line["name"] for line in events_of(lines, "span_start")}
    assert [names[line["id"]] for line in events_of(lines, "span_end")] == ["file's", "inner", "outer", "rank", "run"]
    assert lines[-1]["kind"] == "terminal"
    assert [record for record in caplog.records if record.name != "runspan"] == []


@pytest.mark.parametrize("lost", ["outer", "in step", "phase"])
def test_a_span_whose_start_the_disk_refused_has_no_end(
    live: LiveRuns, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Case 29: an end without its start would break the file for its readers; the loss is one line, counted."""
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if f'"name":"{lost}"'.encode() in data:
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr("runspan.tracefile.writer.os.write", full)
    with live.start(alert_rules=()) as run:
        with run.span("outer"), run.step(), run.span("in step"):
            pass
        with run.phase("phase"):
            pass
    kept = {"run", "rank", "outer", "in step", "phase"} - {lost}
    assert set(_spans(live, run)) == set(_ends(live, run)) == kept
    (dropped,) = events_of(live.lines(run), "dropped", signal="file")
    assert dropped["count"] == 1


def test_failed_and_cancelled_on_the_spans(live: LiveRuns) -> None:
    """Failed is an error on rank and run; Cancelled is unset, with the reason in an attribute."""
    failed, cancelled = live.start(), live.start()
    failed.finish("failed", "diverged")
    cancelled.finish(runspan.RunStatus.CANCELLED)
    assert [_ends(live, failed)[name]["status"]["code"] for name in ("rank", "run")] == ["error", "error"]
    assert _ends(live, failed)["run"]["attributes"]["runspan.run.end_reason"] == "diverged"
    assert "status" not in _ends(live, cancelled)["run"]
    assert _ends(live, cancelled)["run"]["attributes"]["runspan.run.end_reason"] == "finish(cancelled)"


def test_a_clock_that_steps_back_makes_no_negative_duration(live: LiveRuns) -> None:
    """Case 14: durations are the monotonic clock's; the step is an event, told once; the host is named."""
    clock = FakeClock()
    run = live.start(clock=clock)
    with run.span("s"):
        clock.advance(2)
        clock.step_wall(-3600)
        with run.phase("p"):
            clock.advance(1)
    run.finish()
    ends = _ends(live, run)
    assert ends["s"]["duration_ns"] == 3_000_000_000
    assert ends["p"]["duration_ns"] == 1_000_000_000
    assert ends["run"]["duration_ns"] == ends["rank"]["duration_ns"] == 3_000_000_000
    (skew,) = events_of(live.lines(run), "event", name="clock_skew")
    assert skew["attributes"] == {"step_ns": -3_600_000_000_000}
    assert live.lines(run)[0]["resource"]["host.id"]


def test_without_tracing_there_is_no_span_and_everything_else(live: LiveRuns) -> None:
    """tracing_enabled False: ids None, no span in file or context; metrics, steps, params and storage work."""
    with live.start(tracing_enabled=False, params={"a": 1}) as run:
        assert run.span_id is None
        assert run.trace_id is None
        assert not trace.get_current_span().get_span_context().is_valid
        with run.span("s") as span, run.epoch(1), run.step(), run.phase("p"):
            span.set_attribute("a", 1)
            span.set_status(StatusCode.ERROR)
            run.log_metric("loss", 1.0)
        run.alert("title")
    lines = live.lines(run)
    assert not {"span_start", "span_end"} & {line["kind"] for line in lines}
    assert {"metric", "step", "param", "environment", "terminal"} <= {line["kind"] for line in lines}
    assert "trace_id" not in lines[0]
    assert live.storage.get_run(run.id).span_id is None
    assert len(live.storage.get_metrics(run.id, "loss")) == 1


def test_a_traceparent_is_a_link(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 13: a valid TRACEPARENT links run and rank to the trace that the process was started in."""
    monkeypatch.setenv("TRACEPARENT", f"00-{5:032x}-{6:016x}-01")
    run = live.start()
    for span in _spans(live, run).values():
        assert span["links"] == [{"trace_id": f"{5:032x}", "span_id": f"{6:016x}"}]
    assert run.trace_id != f"{5:032x}"


def test_a_malformed_traceparent_is_a_warning(
    live: LiveRuns, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 13: a malformed TRACEPARENT is ignored with one warning, and the run has its own trace."""
    monkeypatch.setenv("TRACEPARENT", "00-nonsense")
    run = live.start()
    assert "links" not in _spans(live, run)["run"]
    (record,) = caplog.records
    assert "TRACEPARENT" in record.getMessage()


def test_an_unsampled_parent_stops_the_export_alone(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """DROP becomes RECORD_ONLY: the file has every span, flagged as not sampled."""
    monkeypatch.setenv("TRACEPARENT", f"00-{5:032x}-{6:016x}-00")
    run = live.start()
    with run.span("s"):
        pass
    assert [span["otel"]["flags"] for span in _spans(live, run).values()] == [0, 0, 0]


def test_span_ids_do_not_follow_the_programs_seed(live: LiveRuns) -> None:
    """Case 1: a program that seeds random alike on every rank does not get the same span ids."""
    import random  # noqa: PLC0415 - the module whose state must not matter

    found = set()
    for _ in range(2):
        random.seed(0)
        run = live.start()
        with run.span("s"):
            pass
        found.add(_spans(live, run)["s"]["id"])
    assert len(found) == 2
