from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import runspan
from runspan import ids
from runspan._run.lifecycle import open_runs
from runspan.distributed import Launcher
from runspan.errors import ConfigError, ExperimentNotFoundError, InvalidStateError
from runspan.records import RunStatus
from support.otlp_receiver import until
from support.programs import events_of, kinds_of, lines_of

if TYPE_CHECKING:
    from support.live import LiveRuns


def test_the_first_line_is_meta_as_specified(live: LiveRuns) -> None:
    """TraceRunMeta's fields stand in their order behind schema, then what the run trace adds."""
    run = live.start(
        run_id="r",
        entrypoint="train:main",
        phase="training",
        device="cuda:0",
        correlation_id="build-7",
        timing_mode="device_synchronized",
        candle_version="0.9",
        tags={"b": "2", "a": "1"},
    )
    meta = live.lines(run)[0]
    assert list(meta)[:14] == [
        "kind",
        "schema",
        "run_id",
        "correlation_id",
        "entrypoint",
        "phase",
        "timestamp",
        "capture_step",
        "warmup_steps",
        "device",
        "timing_mode",
        "tags",
        "candle_version",
        "time_unix_nano",
    ]
    assert (meta["kind"], meta["schema"], meta["run_id"]) == ("meta", "runspan/trace/1", "r")
    assert (meta["correlation_id"], meta["entrypoint"], meta["phase"]) == ("build-7", "train:main", "train")
    assert (meta["capture_step"], meta["warmup_steps"]) == (1, 0)
    assert (meta["timing_mode"], meta["candle_version"]) == ("device_synchronized", "0.9")
    assert meta["tags"] == {"a": "1", "b": "2"}
    assert meta["experiment_id"] == run.experiment_id == ids.experiment_id("exp")
    assert (meta["trace_id"], meta["run_span_id"]) == (run.trace_id, run.span_id)
    assert {"rank": 0, "world_size": 1, "local_rank": 0, "attempt": 0}.items() <= meta["process"].items()
    assert meta["heartbeat_s"] == 10.0
    assert meta["resource"]["service.name"] == "exp"
    assert "candle_version" not in live.lines(live.start())[0]


def test_defaults_of_a_run(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without arguments: an id of its own, the experiment of the variable, the entrypoint of the program."""
    monkeypatch.setenv("RUNSPAN_EXPERIMENT", "from the variable")
    run = runspan.start_run(storage=live.storage, config=live.config())
    meta = live.lines(run)[0]
    run.finish()
    assert run.id == run.run_id == meta["run_id"] == meta["correlation_id"]
    assert len(run.id) == 36
    assert run.experiment_id == ids.experiment_id("from the variable")
    assert meta["entrypoint"].endswith(":__main__")
    assert run.name is None
    assert run.rank_context.launcher == Launcher.SINGLE
    assert run.tracing_config == live.config()


def test_repr_and_pickle(live: LiveRuns) -> None:
    """Case 12: the repr says id, experiment, span and end; pickling is refused with what to do instead."""
    run = live.start(run_id="r")
    assert repr(run) == f"<Run 'r' experiment={run.experiment_id!r} span=yes open>"
    with pytest.raises(TypeError, match=r"child_environ.*current_run"):
        pickle.dumps(run)
    run.finish()
    assert repr(run).endswith("finished>")
    assert "span=no" in repr(live.start(tracing_enabled=False))


def test_finish_is_once(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """Case 30: a second finish with the same status is nothing, with another a warning; neither changes the file."""
    run = live.start()
    assert not run.is_finished()
    run.finish("failed", "diverged")
    assert run.is_finished()
    before = live.lines(run)
    run.finish(RunStatus.FAILED)
    assert caplog.records == []
    run.finish()
    (record,) = caplog.records
    assert "already finished as failed" in record.getMessage()
    assert live.lines(run) == before
    assert before[-1] | {"timestamp_ns": 0} == {
        "kind": "terminal",
        "outcome": "failed",
        "timestamp_ns": 0,
        "status": "failed",
        "reason": "diverged",
    }
    info = live.storage.get_run(run.id)
    assert (info.status, info.reason) == ("failed", "diverged")


@pytest.mark.parametrize("status", ["pending", RunStatus.RUNNING, "done", None])
def test_finish_takes_final_statuses_alone(live: LiveRuns, status: Any) -> None:
    """PENDING, RUNNING and what is no status raise InvalidStateError, and the run goes on."""
    run = live.start()
    with pytest.raises(InvalidStateError, match="success, failed or cancelled"):
        run.finish(status)
    assert not run.is_finished()


def test_default_reasons(live: LiveRuns) -> None:
    """A success needs no reason; a failure without one says how it was finished."""
    success, failed = live.start(), live.start()
    success.finish()
    failed.finish("failed")
    assert "reason" not in live.lines(success)[-1]
    assert live.lines(failed)[-1]["reason"] == "finish(failed)"


def test_threads_that_finish_together_agree(live: LiveRuns) -> None:
    """Of several finishes at the same moment one ends the run, and the others wait for its end."""
    run = live.start()
    closed: list[bool] = []
    barrier = threading.Barrier(4)

    def finish() -> None:
        barrier.wait()
        run.finish()
        closed.append(live.lines(run)[-1]["kind"] == "terminal")

    threads = [threading.Thread(target=finish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert closed == [True] * 4
    assert kinds_of(live.lines(run)).count("terminal") == 1


def test_explicit_finish_inside_the_block_holds(live: LiveRuns) -> None:
    """What the program said stays, whatever leaves the block afterwards."""
    run = live.start()

    def train() -> None:
        with run:
            run.finish("cancelled", "enough")
            raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        train()
    assert (live.lines(run)[-1]["status"], live.lines(run)[-1]["reason"]) == ("cancelled", "enough")


def test_current_run(live: LiveRuns) -> None:
    """The context's Run, else the innermost open one of the process, else None; threads see the open one."""
    assert runspan.current_run() is None
    opened = live.start()
    assert runspan.current_run() is opened
    with live.start() as entered:
        assert runspan.current_run() is entered
        with live.start() as inner:
            assert runspan.current_run() is inner
            seen: list[runspan.Run | None] = []
            thread = threading.Thread(target=lambda: seen.append(runspan.current_run()))
            thread.start()
            thread.join()
            assert seen == [inner]
            inner.finish()
            assert runspan.current_run() is entered
        assert runspan.current_run() is entered
    assert runspan.current_run() is opened
    opened.finish()
    assert runspan.current_run() is None


def test_nothing_holds_a_finished_run(live: LiveRuns) -> None:
    """Case 2: after finish neither hooks, threads, providers nor the host's span processor keep the Run alive."""
    with runspan.start_run("exp", storage=live.storage, config=live.config()) as run:
        run.subscribe(print)
        run.log_metric("loss", 1.0)
        with run.span("s"), run.step():
            pass
    processor = run.span_processor
    reference = weakref.ref(run._session)
    del run
    for thread in threading.enumerate():
        if thread.name.startswith("runspan-"):  # one may be in the middle of its last work
            thread.join(5)
    gc.collect()
    assert reference() is None
    assert processor.open_spans == []


def test_the_nth_run_of_a_process_has_a_number(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment gives the id, the second Run takes <id>.2; an id by hand is taken as it is."""
    monkeypatch.setattr(open_runs, "_unnamed", 0)
    monkeypatch.setenv("RUNSPAN_RUN_ID", "job-7")
    assert [live.start().id for _ in range(3)] == ["job-7", "job-7.2", "job-7.3"]
    assert live.start(run_id="mine").id == "mine"


@pytest.mark.parametrize("run_id", ["../../x", "a/b", "..", ".", "é" * 200, "a b", "x" * 300, "\x00"])
def test_no_run_id_leaves_the_folder(live: LiveRuns, run_id: str) -> None:
    """Case 26: a run id is kept exactly in the file and storage, and its folder is one below the runs'."""
    run = live.start(run_id=run_id)
    assert run.id == run_id
    assert run.directory is not None
    assert run.directory.parent == live.trace_dir
    assert live.lines(run)[0]["run_id"] == run_id
    run.finish()
    assert [path.name for path in live.trace_dir.parent.iterdir() if path.name != ".gitignore"] == ["runs"]
    assert live.storage.get_run_status(run_id) == "success"


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("experiment", ""),
        ("experiment", 3),
        ("run_id", ""),
        ("run_id", 7),
        ("resume", "maybe"),
        ("phase", "sleep"),
        ("timing_mode", "sundial"),
        ("name", ""),
        ("group", 3),
        ("device", ""),
        ("entrypoint", b"x"),
        ("correlation_id", ""),
        ("candle_version", 1),
        ("tags", ["a"]),
        ("params", "lr=3"),
        ("rank_context", (0, 1)),
        ("config", {"strict": True}),
    ],
)
def test_a_bad_argument_is_one_clear_error(live: LiveRuns, argument: str, value: Any) -> None:
    """Every argument is checked before anything is created; the error names it and the value."""
    options: dict[str, Any] = {"storage": live.storage, "config": live.config(), argument: value}
    with pytest.raises(ConfigError, match=argument) as raised:
        runspan.start_run(**options)
    assert repr(value) in str(raised.value) or argument == "params"
    assert not live.trace_dir.exists()
    assert live.storage.list_runs() == []


def test_an_unknown_experiment_id_fails_the_run(live: LiveRuns) -> None:
    """Run() with an id that storage does not know raises; what was begun is marked Failed, and no handler is left."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ExperimentNotFoundError, match="exp-unknown"):
        runspan.Run("exp-unknown", live.storage, live.config(), run_id="r")
    lines = lines_of(live.trace_dir / "r" / "rank-00000.jsonl")
    assert (lines[-1]["kind"], lines[-1]["status"]) == ("terminal", "failed")
    assert "exp-unknown" in lines[-1]["reason"]
    assert signal.getsignal(signal.SIGTERM) == before
    assert runspan.current_run() is None


def test_the_explicit_form(live: LiveRuns) -> None:
    """Run() takes an experiment id that storage has, and no storage writes the file alone."""
    experiment_id = live.storage.create_experiment("by hand")
    with runspan.Run(experiment_id, live.storage, live.config(), run_id="r", name="first", group="g") as run:
        run.log_metric("loss", 1.0)
    info = live.storage.get_run("r")
    assert (info.experiment_id, info.name, info.group, info.status) == (experiment_id, "first", "g", "success")
    assert (info.trace_id, info.span_id) == (run.trace_id, run.span_id)
    with runspan.Run("exp-anything", None, live.config()) as alone:
        alone.log_metric("loss", 1.0)
    assert live.lines(alone)[-1]["status"] == "success"


def test_a_start_that_fails_late_ends_what_it_began(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error after the run was created marks it Failed in file and storage, ends its spans, and is raised."""

    def broken(*_: object) -> None:
        raise RuntimeError("no environment")

    monkeypatch.setattr("runspan._run.session.collect_environment", broken)
    with pytest.raises(RuntimeError, match="no environment"):
        live.start(run_id="r")
    lines = lines_of(live.trace_dir / "r" / "rank-00000.jsonl")
    assert (lines[-1]["status"], lines[-1]["reason"]) == ("failed", "RuntimeError: no environment")
    ends = events_of(lines, "span_end")
    assert [end["status"]["code"] for end in ends] == ["error", "error"]
    info = live.storage.get_run("r")
    assert (info.status, info.reason) == ("failed", "RuntimeError: no environment")


def test_counters_resume_from_storage_where_no_file_is_written(live: LiveRuns) -> None:
    """Without a trace directory, too, the attempt and the counters of a second start come from storage."""
    first = live.start(run_id="r", trace_dir=None)
    first.log_metrics({"loss": 1.0})
    first.log_metric("loss", 2.0)
    first.finish()
    again = live.start(run_id="r", trace_dir=None)
    assert again.rank_context.attempt == 1
    assert again.current_step("loss") == 2


def test_a_heartbeat_survives_what_it_measures(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that raises costs the measurement, not the heartbeat by which the run is known to live."""

    def broken(_: object) -> None:
        raise RuntimeError("driver")

    monkeypatch.setattr("runspan.usage.UsageSampler.sample", broken)
    run = live.start(heartbeat_s=0.05)
    assert until(lambda: len(events_of(live.lines(run), "usage")) > 2)
    assert set(events_of(live.lines(run), "usage")[0]) == {"kind", "timestamp_ns", "time_unix_nano"}


def test_the_file_is_synced_at_its_ends_and_as_often_as_asked(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meta and terminal are synced to the disk, and what is in between only with fsync_interval_s."""
    synced: list[int] = []
    monkeypatch.setattr("runspan.tracefile.writer.os.fsync", synced.append)
    never = live.start()
    for _ in range(100):
        never.log_metric("loss", 1.0)
    assert len(synced) == 1
    never.finish()
    assert len(synced) == 2
    live.start(fsync_interval_s=0.02)
    assert until(lambda: len(synced) > 5)


def test_a_log_handler_may_record_into_the_run(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that turns log records into events, on many threads and a failing disk, makes no deadlock."""
    run = live.start()

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            run.event("log", text=record.getMessage())
            run.log_metric("not a number", "x")

    write = os.write

    def failing(descriptor: int, data: bytes) -> int:
        if b'"loss"' in data:
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    handler = Recorder()
    logging.getLogger("runspan").addHandler(handler)
    monkeypatch.setattr("runspan.tracefile.writer.os.write", failing)
    try:

        def log(number: int) -> None:
            for index in range(50):
                run.log_metric("loss", 1.0)
                run.log_metric(f"bad {number} {index}", "x")
            with run.span("s") as span:
                pass
            span.set_attribute("late", 1)

        threads = [threading.Thread(target=log, args=(number,), daemon=True) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
        run.finish()
        run.log_metric("late", 1.0)
    finally:
        logging.getLogger("runspan").removeHandler(handler)
    texts = [event["attributes"]["text"] for event in events_of(live.lines(run), "event", name="log")]
    assert len(texts) > 300
    assert len([text for text in texts if "cannot be written" in text]) == 1


def test_heartbeats_are_usage_lines(live: LiveRuns) -> None:
    """A run shows that it lives: a usage line at once and then each heartbeat, with its two times."""
    run = live.start(heartbeat_s=0.05)
    assert until(lambda: len(events_of(live.lines(run), "usage")) > 2)
    for line in events_of(live.lines(run), "usage"):
        assert line["memory_total"] > 0
        assert {"timestamp_ns", "time_unix_nano"} <= line.keys()
