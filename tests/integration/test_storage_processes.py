"""SqlStorage under real processes: concurrent first start, forks, kills, large histories."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runspan.errors import RunNotFoundError, StorageError
from runspan.records import MetricPoint, RunStatus
from runspan.storage import InMemoryStorage, SqlStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runspan.storage import ExperimentStorage
    from support.postgres import PostgresServer

TESTS = Path(__file__).parents[1]
PROCESSES, WRITES = 8, 1000


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Name a database that does not exist yet (SQLite), or is empty (PostgreSQL)."""
    if request.param == "sqlite":
        return str(tmp_path / "new" / "experiments.db")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.new_database()


def spawn(*arguments: str) -> subprocess.Popen[str]:
    """Start a process of ``support.storage_processes``."""
    return subprocess.Popen(
        [sys.executable, "-m", "support.storage_processes", *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_eight_processes_open_a_new_database_together(url: str) -> None:
    """Case 24: eight processes create the database at once and write 1,000 points each under a polling reader."""
    start_at = time.time() + 2.0
    writers = [spawn("write", url, str(rank), str(WRITES), str(start_at)) for rank in range(PROCESSES)]
    try:
        time.sleep(max(0.0, start_at - time.time()))
        reader, seen = SqlStorage(url), [0]
        while any(writer.poll() is None for writer in writers):
            try:
                seen.append(len(reader.get_metrics("shared", "loss")))
            except RunNotFoundError:
                continue  # the writers have not come so far
            time.sleep(0.05)
        outcomes = [(writer.wait(), writer.communicate()[1]) for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
    assert outcomes == [(0, "")] * PROCESSES
    found = sorted((point.rank, point.step) for point in reader.get_metrics("shared", "loss"))
    assert found == [(rank, step) for rank in range(PROCESSES) for step in range(WRITES)]
    assert seen == sorted(seen)
    reader.close()


def in_child(work: Callable[[], None]) -> int:
    """Run a function in a forked child that leaves by ``os._exit``, and return its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - a child of the test must not go on as the test
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_forked_child_uses_connections_of_its_own(url: str) -> None:
    """After a fork parent and child both write and read without disturbing each other."""
    storage = SqlStorage(url)
    run = storage.create_run(storage.create_experiment("fork"), "fork")
    storage.log_metrics(run, [MetricPoint("m", 0, 0.0, 0)])

    def child() -> None:
        for step in range(1, 50):
            storage.log_metrics(run, [MetricPoint("m", step, 1.0, 0)])
        storage.close()

    assert in_child(child) == 0
    storage.log_metrics(run, [MetricPoint("m", 50, 0.0, 0)])
    assert [point.step for point in storage.get_metrics(run, "m")] == list(range(51))
    storage.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_fork_while_another_thread_is_inside(kind: str, tmp_path: Path) -> None:
    """A child forked while another thread holds the storage's lock can use the storage: it does not wait for ever."""
    storage: ExperimentStorage = InMemoryStorage() if kind == "memory" else SqlStorage(tmp_path / "x.db")
    run = storage.create_run(storage.create_experiment("fork"), "fork")
    stop = threading.Event()

    def write() -> None:
        step = 0
        while not stop.is_set():
            storage.log_metrics(run, [MetricPoint(f"k{n}", step, 1.0, 0) for n in range(100)])
            step += 1
            time.sleep(0.0005)

    writer = threading.Thread(target=write)
    writer.start()

    def child() -> None:
        signal.alarm(20)
        storage.log_metrics(run, [MetricPoint("child", 0, 1.0, 0)])
        assert storage.latest_metrics(run)["child"].value == 1.0

    try:
        codes = [in_child(child) for _ in range(10)]
    finally:
        stop.set()
        writer.join()
    assert codes == [0] * 10
    steps = [point.step for point in storage.get_metrics(run, "k0")]
    assert steps == list(range(len(steps)))
    storage.close()


def test_killed_writer_leaves_a_readable_database(tmp_path: Path) -> None:
    """A process killed while it writes loses no batch that was stored, and blocks nobody after it."""
    url = str(tmp_path / "experiments.db")
    writer = spawn("write", url, "0", "1000000", "0")
    storage = SqlStorage(url)
    stored = 0
    deadline_s = time.monotonic() + 30
    while stored < 50 and time.monotonic() < deadline_s:
        try:
            stored = len(storage.get_metrics("shared", "loss"))
        except RunNotFoundError:
            time.sleep(0.01)
    writer.kill()
    writer.communicate()
    steps = [point.step for point in storage.get_metrics("shared", "loss")]
    assert len(steps) >= stored >= 50
    assert steps == list(range(len(steps)))
    assert storage.get_run_status("shared") is RunStatus.RUNNING
    storage.log_metrics("shared", [MetricPoint("loss", len(steps), 0.0, 0)])
    storage.close()


def test_sample_of_a_million_points_in_bounded_memory(tmp_path: Path) -> None:
    """Case 31: 320 of a million points come with the first and the last, and the peak memory grows by little."""
    url = str(tmp_path / "experiments.db")
    storage = SqlStorage(url)
    run = storage.create_run(storage.create_experiment("big"), "big")
    for start in range(0, 1_000_000, 50_000):
        storage.log_metrics(run, [MetricPoint("loss", step, 1.0, step) for step in range(start, start + 50_000)])
    storage.close()
    output, errors = spawn("sample", url, run, "loss", "320").communicate(timeout=60)
    assert errors == ""
    count, first, last, grown_mib = map(int, output.split())
    assert (count, first, last) == (320, 0, 999_999)
    assert grown_mib < 40  # the points themselves would take some 200


def test_fork_inside_a_transaction_is_refused_in_the_child(tmp_path: Path) -> None:
    """A child forked by the very thread that is in a transaction gets an error at once; the parent goes on."""
    storage = SqlStorage(tmp_path / "x.db")
    run = storage.create_run(storage.create_experiment("fork"), "fork")

    def child() -> None:
        signal.alarm(20)
        with pytest.raises(StorageError, match="forked in the middle of a transaction"):
            storage.log_metrics(run, [MetricPoint("child", 0, 1.0, 0)])

    codes = []

    def forking_points() -> Iterator[MetricPoint]:
        codes.append(in_child(child))
        yield MetricPoint("m", 0, 1.0, 0)

    class Points(list[MetricPoint]):
        def __iter__(self) -> Iterator[MetricPoint]:
            return iter(list(super().__iter__())) if codes else forking_points()

    storage.log_metrics(run, Points([MetricPoint("m", 0, 1.0, 0)]))
    assert codes == [0]
    assert len(storage.get_metrics(run, "m")) == 1
    storage.close()
