from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import threading
import weakref
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

import runspan
from runspan import ids
from runspan._run.lifecycle import open_runs
from runspan.distributed import Launcher
from runspan.errors import ConfigError, ExperimentNotFoundError, InvalidStateError, StorageError
from runspan.importer import import_run_directory
from runspan.records import RunStatus
from runspan.storage import InMemoryStorage, SqlStorage
from runspan.tracefile.layout import RunDirectory
from support.otlp_receiver import until
from support.programs import events_of, kinds_of, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from runspan.records import MetricPoint
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


def test_a_row_that_another_process_runs_is_left_alone(live: LiveRuns, tmp_path: Path) -> None:
    """Case 22: two processes that take the same rank and attempt: the second fails, the first's row stays Running."""
    first = live.start(run_id="r")

    class Blind(InMemoryStorage):
        """A storage whose attempts another machine cannot see yet."""

        def attempts(self, run_id: str, rank: int) -> list[int]:  # noqa: ARG002 - the protocol's signature
            """Return none."""
            return []

    blind = Blind()
    blind.__dict__.update(live.storage.__dict__)
    with pytest.raises(InvalidStateError, match="started"):
        live.start(run_id="r", trace_dir=tmp_path / "elsewhere", storage=blind)
    assert live.storage.get_run_status("r") == "running"
    first.finish()
    assert live.storage.get_run_status("r") == "success"


class _Failing:
    """A storage that fails from a call on, or at one call alone."""

    def __init__(self, fails: Callable[[int], bool], error: Exception) -> None:
        self.inner = InMemoryStorage()
        self.calls = 0
        self._fails = fails
        self._error = error

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.inner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self._fails(self.calls):
                raise self._error
            return member(*arguments, **options)

        return call if callable(member) else member


@pytest.mark.parametrize("error", [StorageError("database is locked"), OSError(5, "EIO"), OSError(116, "ESTALE")])
def test_a_storage_that_fails_costs_one_warning(
    live: LiveRuns, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 25: training goes on, the file is complete, one warning, and importing the directory fills a storage."""
    storage = _Failing(lambda call: call > 8, error)
    run = live.start(storage=storage)
    for step in range(300):
        run.log_metric("loss", step / 2)
        run.log_param(f"p{step}", step)
    run.finish()
    assert [record.name for record in caplog.records] == ["runspan"]
    assert "runspan import" in caplog.records[0].getMessage()
    assert len(events_of(live.lines(run), "metric")) == 300
    assert live.lines(run)[-1]["status"] == "success"
    assert run.directory is not None
    rebuilt = InMemoryStorage()
    import_run_directory(run.directory, rebuilt)
    assert len(rebuilt.get_metrics(run.id, "loss")) == 300
    assert rebuilt.get_run_status(run.id) == "success"


def test_a_storage_that_fails_once_loses_nothing(live: LiveRuns) -> None:
    """A write that failed is made again: storage is complete in the end."""
    storage = _Failing(lambda call: call in {9, 11}, StorageError("busy"))
    run = live.start(storage=storage)
    for step in range(50):
        run.log_metric("loss", step)
        run.log_param(f"p{step}", step)
    run.finish()
    assert storage.calls > 11
    assert [point.step for point in storage.inner.get_metrics(run.id, "loss")] == list(range(50))
    assert len(storage.inner.get_params(run.id)) == 50
    assert storage.inner.get_run_status(run.id) == "success"


def test_a_write_that_storage_refuses_for_good_holds_up_no_other(live: LiveRuns) -> None:
    """Case 27: one value that a storage cannot hold costs itself, counted, and not what comes after it."""

    class Picky(InMemoryStorage):
        """A storage that cannot hold one parameter."""

        def log_params(self, run_id: str, params: Any, *, rank: int = 0) -> None:
            """Refuse it."""
            if "odd" in params:
                raise StorageError("a value that cannot be stored")
            super().log_params(run_id, params, rank=rank)

    storage = Picky()
    run = live.start(storage=storage)
    run.log_params({"odd": 1})
    run.log_params({"good": 2})
    run.log_metric("loss", 1.0)
    run.finish()
    assert storage.get_params(run.id) == {"good": 2}
    assert storage.get_run_status(run.id) == "success"
    assert len(storage.get_metrics(run.id, "loss")) == 1


def test_a_storage_that_cannot_be_reached_does_not_stop_a_training(
    live: LiveRuns, caplog: pytest.LogCaptureFixture
) -> None:
    """An unusable storage is one warning, and the file goes on; strict raises, the run Failed."""
    storage: Any = _Failing(lambda _: True, StorageError("unreachable"))
    with live.start(storage=storage) as run:
        run.log_metric("loss", 1.0)
    assert len(caplog.records) == 1
    assert live.lines(run)[-1]["status"] == "success"
    with pytest.raises(StorageError, match="unreachable"):
        live.start(storage=storage, strict=True, run_id="strict")
    assert lines_of(live.trace_dir / "strict" / "rank-00000.jsonl")[-1]["status"] == "failed"


def test_a_storage_that_hangs_delays_the_end_by_a_bounded_time(live: LiveRuns) -> None:
    """Finish gives a storage without progress up after shutdown_timeout_s; the file is complete before that."""
    released = threading.Event()

    class Hanging(InMemoryStorage):
        """A storage whose writes of points wait."""

        def log_metrics(self, run_id: str, points: Sequence[MetricPoint]) -> None:  # noqa: ARG002 - as above
            """Wait."""
            released.wait(30)

    run = live.start(storage=Hanging(), shutdown_timeout_s=0.2)
    run.log_metric("loss", 1.0)
    try:
        run.finish()
        assert live.lines(run)[-1]["status"] == "success"
    finally:
        released.set()


def test_the_default_storage_is_opened_and_closed_by_the_run(
    live: LiveRuns, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """storage=None: SQLite below the root, or what RUNSPAN_STORAGE names; `none` is none at all."""
    monkeypatch.setenv("RUNSPAN_DIR", str(tmp_path / "root"))
    with runspan.start_run("exp", run_id="r") as run:
        run.log_metric("loss", 1.0)
    with closing(SqlStorage(tmp_path / "root" / "experiments.db")) as storage:
        assert storage.get_run_status("r") == "success"
    monkeypatch.setenv("RUNSPAN_STORAGE", str(tmp_path / "other.db"))
    runspan.start_run("exp", run_id="s").finish()
    assert (tmp_path / "other.db").exists()
    monkeypatch.setenv("RUNSPAN_STORAGE", "none")
    with runspan.start_run("exp", run_id="t"):
        pass
    assert live.storage.list_runs() == []
    assert (tmp_path / "root" / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize("has_storage", [True, False])
def test_a_resumed_run_is_a_new_attempt_of_the_same_run(live: LiveRuns, has_storage: bool) -> None:
    """Case 19: same id and trace, a file of its own, counters that go on; the first attempt's points stay readable."""
    storage = live.storage if has_storage else None
    first = live.start(run_id="r", storage=storage, trace_dir=live.trace_dir)
    for step in range(213):
        first.log_metric("loss", step)
    first.log_metric_at("explicit", 900, 1.0)
    first.finish("failed", "crash")
    again = live.start(run_id="r", storage=storage)
    assert again.rank_context.attempt == 1
    assert (again.trace_id, again.span_id) == (first.trace_id, first.span_id)
    assert again.current_step("loss") == 213
    assert again.current_step("explicit") == 0
    assert again.metric_keys() == []
    for step in range(200, 301):
        again.log_metric_at("loss", step, -step)
    assert again.status() == "running"
    if has_storage:
        assert live.storage.get_run_status("r") == "running"
    again.finish()
    assert again.directory is not None
    assert [name.attempt for name, _ in RunDirectory(again.directory).trace_files()] == [0, 1]
    if has_storage:
        points = live.storage.get_metrics("r", "loss")
        assert [point.step for point in points] == list(range(301))
        assert {point.step for point in points if point.attempt == 1} == set(range(200, 301))
        assert len(live.storage.get_metrics("r", "loss", attempt=0)) == 213
        assert live.storage.get_run("r").status == "success"


def test_a_resumed_run_keeps_the_first_attempts_start(live: LiveRuns) -> None:
    """The run span of a later attempt has the same ids and the start of the first; the rank span is its own."""
    first = live.start(run_id="r")
    first.finish("cancelled")
    again = live.start(run_id="r")
    run_span, rank_span = events_of(live.lines(again), "span_start")
    assert run_span["id"] == first.span_id
    assert run_span["time_unix_nano"] == live.lines(first)[0]["time_unix_nano"]
    assert run_span["start_ns"] == 0
    assert rank_span["time_unix_nano"] > run_span["time_unix_nano"]
    again.finish()
    (run_end,) = events_of(live.lines(again), "span_end", id=again.span_id)
    assert run_span["time_unix_nano"] + run_end["duration_ns"] > rank_span["time_unix_nano"]


def test_resume_modes(live: LiveRuns) -> None:
    """Never refuses an earlier attempt, must refuses its absence, and neither leaves anything behind."""
    with pytest.raises(InvalidStateError, match=r"'must'"):
        live.start(run_id="r", resume="must")
    assert not live.trace_dir.exists()
    live.start(run_id="r", resume="never").finish()
    with pytest.raises(InvalidStateError, match=r"'never'"):
        live.start(run_id="r", resume="never")
    again = live.start(run_id="r", resume="must")
    assert again.rank_context.attempt == 1
    other = live.start(run_id="r", resume="never", rank_context=runspan.RankContext(1, 2))
    assert other.rank_context.attempt == 0


def test_the_launchers_count_of_restarts_is_a_lower_bound(live: LiveRuns) -> None:
    """The attempt is the larger of the launcher's count and one more than the highest of the rank's files."""
    assert live.start(run_id="r", rank_context=runspan.RankContext(0, 1, attempt=4)).rank_context.attempt == 4
    assert live.start(run_id="r", rank_context=runspan.RankContext(0, 1, attempt=2)).rank_context.attempt == 5


def test_counters_resume_from_storage_where_the_files_are_gone(
    live: LiveRuns, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On another machine the attempt and the counters come from storage."""
    first = live.start(run_id="r")
    for _ in range(5):
        first.log_metric("loss", 1.0)
    first.finish("failed")
    again = live.start(run_id="r", trace_dir=tmp_path / "other machine")
    assert again.rank_context.attempt == 1
    assert again.current_step("loss") == 5
    assert caplog.records == []


def test_counters_resume_from_storage_where_no_file_is_written(live: LiveRuns) -> None:
    """Without a trace directory, too, the attempt and the counters of a second start come from storage."""
    first = live.start(run_id="r", trace_dir=None)
    first.log_metrics({"loss": 1.0})
    first.log_metric("loss", 2.0)
    first.finish()
    again = live.start(run_id="r", trace_dir=None)
    assert again.rank_context.attempt == 1
    assert again.current_step("loss") == 2


def test_counters_begin_at_0_where_nothing_can_be_read(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """An unreadable older file and no storage: 0 and a warning."""
    first = live.start(run_id="r", storage=InMemoryStorage())
    first.log_metric("loss", 1.0)
    first.finish()
    assert first.directory is not None
    (first.directory / "rank-00000.jsonl").write_bytes(b'{"kind":"meta","schema":"other/9"}\n')
    again = live.start(run_id="r", storage=InMemoryStorage())
    assert again.rank_context.attempt == 1
    assert again.current_step("loss") == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_killed_runs_torn_file_resumes(live: LiveRuns) -> None:
    """Counters go on from the last whole line of an attempt that was killed in the middle of a line."""
    first = live.start(run_id="r")
    for _ in range(10):
        first.log_metric("loss", 1.0)
    first.finish()
    assert first.directory is not None
    path = first.directory / "rank-00000.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith((b'{"kind":"terminal', b'{"kind":"span_end'))]
    last = max(index for index, line in enumerate(kept) if b'"metric"' in line)
    path.write_bytes(b"".join(kept[:last]) + kept[last][:20])
    assert live.start(run_id="r").current_step("loss") == 9


def test_several_ranks_make_one_run_in_storage(live: LiveRuns) -> None:
    """Case 22: ranks add to one run; it ends with the worst of their statuses when the last has ended."""
    ranks = [live.start(run_id="r", rank_context=runspan.RankContext(rank, 3)) for rank in range(3)]
    for run in ranks:
        run.log_metric("loss", run.rank_context.rank)
        run.count("images", 2)
    ranks[0].finish()
    ranks[2].finish("cancelled")
    assert live.storage.get_run_status("r") == "running"
    ranks[1].finish()
    info = live.storage.get_run("r")
    assert (info.status, info.world_size, info.counts["images"]) == ("cancelled", 3, 6)
    assert sorted(point.rank for point in live.storage.get_metrics("r", "loss")) == [0, 1, 2]


def test_many_ranks_leave_sqlite_to_rank_0(live: LiveRuns, tmp_path: Path) -> None:
    """Above 16 ranks only rank 0 writes a SQLite file; a server takes them all."""
    with closing(SqlStorage(tmp_path / "x.db")) as storage:
        for rank in (0, 3):
            run = live.start(run_id="r", rank_context=runspan.RankContext(rank, 17), storage=storage)
            run.log_metric("loss", rank)
            run.finish()
        assert [point.rank for point in storage.get_metrics("r", "loss")] == [0]
    run = live.start(run_id="m", rank_context=runspan.RankContext(3, 17))
    run.log_metric("loss", 3)
    run.finish()
    assert [point.rank for point in live.storage.get_metrics("m", "loss")] == [3]


def test_a_child_environment_adds_what_a_child_needs(live: LiveRuns) -> None:
    """Case 13: a copy of the given environment with the run, its folder, its rank and TRACEPARENT, nothing else."""
    with live.start(run_id="r", rank_context=runspan.RankContext(1, 2)) as run, run.span("launch"):
        base = {"PATH": "/bin", "SECRET": "x"}
        environ = run.child_environ(base)
        (launch,) = events_of(live.lines(run), "span_start", name="launch")
    assert base == {"PATH": "/bin", "SECRET": "x"}
    assert environ == {
        "PATH": "/bin",
        "SECRET": "x",
        "RUNSPAN_RUN_ID": "r",
        "RUNSPAN_TRACE_DIR": str(live.trace_dir),
        "RUNSPAN_PARENT": "1/2/0",
        "TRACEPARENT": f"00-{run.trace_id}-{launch['id']}-01",
    }
    off = live.start(trace_dir=None, tracing_enabled=False).child_environ({})
    assert off["RUNSPAN_TRACE_DIR"] == "none"
    assert "TRACEPARENT" not in off


def test_a_helper_joins_its_rank_by_a_child_file(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process started with child_environ opens a child file of that rank: no attempt, no run or rank span, no row."""
    with live.start(run_id="r") as run:
        run.log_metric("loss", 1.0)
        for name, value in run.child_environ({}).items():
            monkeypatch.setenv(name, value)
        helper = runspan.start_run("ignored", storage=live.storage)
        assert helper.run_id == "r"
        assert helper.current_step("loss") == 0
        with helper, helper.span("prepare"):
            helper.log_metric("loss", 2.0)
        assert live.storage.get_run_status("r") == "running"
    assert run.directory is not None
    (child,) = [path for name, path in RunDirectory(run.directory).trace_files() if name.child is not None]
    lines = lines_of(child)
    assert kinds_of(lines)[0] == "meta"
    (span,) = events_of(lines, "span_start")
    assert "parent_id" not in span
    assert span["otel"]["parent_span_id"] == live.lines(run)[0]["span_id"]
    assert lines[-1]["kind"] == "terminal"
    assert len(live.storage.get_metrics("r", "loss")) == 1


def test_a_helper_that_records_nothing_leaves_no_file(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child file is opened with its first line."""
    with live.start(run_id="r") as run:
        for name, value in run.child_environ({}).items():
            monkeypatch.setenv(name, value)
        runspan.start_run("ignored").finish()
    assert run.directory is not None
    assert [path.name for path in run.directory.iterdir()] == ["rank-00000.jsonl"]


def test_a_child_with_a_rank_of_its_own_is_a_rank(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 13: a launcher that is a run's child makes ranks of the same run, in the same trace."""
    with live.start(run_id="r", rank_context=runspan.RankContext(0, 2)) as run:
        for name, value in run.child_environ({"RUNSPAN_RANK": "1", "RUNSPAN_WORLD_SIZE": "2"}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(open_runs, "_unnamed", 0)  # as in a process of its own
        rank = runspan.start_run("exp", storage=live.storage)
        assert (rank.run_id, rank.rank_context.rank, rank.trace_id) == ("r", 1, run.trace_id)
        rank.finish()
    assert run.directory is not None
    assert sorted(path.name for path in run.directory.iterdir()) == ["rank-00000.jsonl", "rank-00001.jsonl"]


def test_a_heartbeat_survives_what_it_measures(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that raises costs the measurement, not the heartbeat by which the run is known to live."""

    def broken(_: object) -> None:
        raise RuntimeError("driver")

    monkeypatch.setattr("runspan.usage.UsageSampler.sample", broken)
    run = live.start(heartbeat_s=0.05)
    assert until(lambda: len(events_of(live.lines(run), "usage")) > 2)
    assert set(events_of(live.lines(run), "usage")[0]) == {"kind", "timestamp_ns", "time_unix_nano"}


def test_the_file_is_synced_at_its_ends_and_as_often_as_asked(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsync at meta and terminal; in between only with fsync_interval_s."""
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
    """A handler that turns log records into events, on many threads and a failing disk, neither deadlocks nor recurses."""
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
