from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

import runspan
from runspan.errors import InvalidStateError, StorageError
from runspan.importer import import_run_directory
from runspan.storage import InMemoryStorage, SqlStorage
from support.programs import events_of, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from runspan.records import MetricPoint
    from support.live import LiveRuns


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
    run = live.start(storage=storage, alert_rules=())
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
