"""What keeps clients from costing too much: pace, threads that no exit waits for, and bounded queues."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from runspan.errors import ConfigError
from runspan.records import MetricPoint
from runspan.rpc import ServerTls, _guard, serve
from runspan.rpc._feed import Batch, Subscriber, encoded
from runspan.rpc._pb import dashboard_pb2 as pb
from runspan.storage.memory import InMemoryStorage
from support.dashboards_served import WAIT_S

if TYPE_CHECKING:
    from pathlib import Path


def points(steps: range, rank: int = 0) -> tuple[MetricPoint, ...]:
    """Return points of ``loss`` at these steps."""
    return tuple(MetricPoint("loss", step, 0.5, step, rank) for step in steps)


def batch(steps: range, rank: int = 0) -> Batch:
    """Return a batch of points that ends where its steps do."""
    return Batch({"0.0": steps.start}, {"0.0": steps.stop}, points(steps, rank))


def test_calls_beyond_the_burst_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst goes through at once, then calls are spaced, up to a longest wait; a pause makes room for a burst."""
    now = [100.0]
    monkeypatch.setattr(_guard, "time", SimpleNamespace(monotonic=lambda: now[0]))
    pace = _guard._Pace(burst=3, rate_hz=2.0)
    assert [pace.delay_s() for _ in range(3)] == [0.0, 0.0, 0.0]
    delays = [pace.delay_s() for _ in range(21)]
    assert delays == [*(number / 2 for number in range(1, 21)), None]
    now[0] += 60.0
    assert [pace.delay_s() for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_threads_that_are_busy_keep_no_process() -> None:
    """A process whose server threads still work ends when its program does."""
    program = """
import threading
from runspan.rpc._guard import DaemonExecutor
pool = DaemonExecutor(2)
assert pool.submit(lambda: 3).result(10) == 3
for _ in range(5):
    pool.submit(threading.Event().wait)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_pool_does_as_much_at_once_as_it_may() -> None:
    """Work is done by as many threads as it takes, up to the limit; errors reach who asked."""
    pool, meeting = _guard.DaemonExecutor(3), threading.Barrier(3)
    futures = [pool.submit(meeting.wait, WAIT_S) for _ in range(3)]
    assert sorted(future.result(WAIT_S) for future in futures) == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(WAIT_S)
    pool.shutdown()


def test_a_queue_loses_its_oldest_batches() -> None:
    """Beyond 10,000 waiting points the oldest batches go, are counted, and the cursor moves behind them."""
    subscriber = Subscriber(None)
    for start in range(0, 13_000, 1_000):
        subscriber.offer(batch(range(start, start + 1_000)))
    assert subscriber.cursor == {"0.0": 3_000}
    batches, dropped = subscriber.take()
    assert (dropped, batches[0].points[0].step, subscriber.cursor) == (3_000, 3_000, {"0.0": 13_000})
    assert subscriber.take() == ([], 0)


def test_a_batch_of_others_ranks_moves_the_cursor_alone() -> None:
    """A subscriber of one rank is not sent, and does not lose, the points of another; however many batches come."""
    subscriber = Subscriber(1)
    for start in range(5_000):
        subscriber.offer(batch(range(start, start + 1)))
    assert not subscriber.is_waiting
    batches, dropped = subscriber.take()
    assert (dropped, sum(each.count(1) for each in batches), subscriber.cursor) == (0, 0, {"0.0": 5_000})


def test_a_batch_is_written_once_for_all() -> None:
    """The bytes for the wire are made once, and are the points of the rank that was asked for."""
    both = Batch({}, {}, (*points(range(3)), *points(range(2), rank=1)))
    assert both.pages(None) is both.pages(None)
    (page,) = both.pages(1)
    assert [(point.rank, point.step) for point in pb.SubscribeResponse.FromString(page).points] == [(1, 0), (1, 1)]


def test_pages_are_bounded() -> None:
    """Many points, and long names, are cut into messages that every client takes."""
    long = [MetricPoint("k" * 10_000, step, 0.5, step) for step in range(500)]
    pages = encoded(long)
    assert len(pages) > 5
    assert max(map(len, pages)) < 1 << 20
    found = [point.step for page in pages for point in pb.SubscribeResponse.FromString(page).points]
    assert found == list(range(500))
    assert encoded([]) == []


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    """A key and certificate that are no PEM do not start a server that nobody could use."""
    file = tmp_path / "file.pem"
    file.write_text("no certificate")
    with pytest.raises(ConfigError, match="TLS files are no PEM"):
        serve(InMemoryStorage(), "127.0.0.1:0", tls=ServerTls(file, file))
