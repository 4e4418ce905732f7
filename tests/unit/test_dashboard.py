from __future__ import annotations

import logging
import math
import os
import queue
import threading
import time
from typing import TYPE_CHECKING

import pytest

from runspan.dashboard import DashboardSource, StorageDashboard, Subscription, SubscriptionHub
from runspan.errors import ConfigError, InvalidStateError, RunNotFoundError, StorageError
from runspan.records import MetricPoint, ResourceSnapshot, RunStatus, Trend
from runspan.storage.memory import InMemoryStorage

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 10.0
POLL_S = 0.005


def _point(step: int, value: float = 0.5, *, key: str = "loss", rank: int = 0, attempt: int = 0) -> MetricPoint:
    return MetricPoint(key, step, value, 1_700_000_000_000_000_000 + step * 1_000_000, rank, attempt)


@pytest.fixture
def hub() -> Iterator[SubscriptionHub]:
    """Return a hub with room for four waiting points, closed afterwards."""
    hub = SubscriptionHub(max_pending=4)
    yield hub
    hub.close()


@pytest.fixture
def storage() -> InMemoryStorage:
    """Return storage with one running run, ``r``."""
    storage = InMemoryStorage()
    storage.create_run(storage.create_experiment("e"), "r")
    storage.start_run("r")
    return storage


def test_a_subscriber_is_called_in_order_on_a_thread_of_its_own(hub: SubscriptionHub) -> None:
    """Each subscriber gets each point in order, none on the publisher's thread, no two on one thread."""
    calls: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
    for name in ("a", "b"):
        hub.subscribe(lambda point, name=name: calls.put((name, point.step, threading.get_ident())))  # type: ignore[misc]
    hub.publish([_point(0), _point(1)])
    hub.publish([_point(2)])
    got = [calls.get(timeout=WAIT_S) for _ in range(6)]
    for name in ("a", "b"):
        assert [step for who, step, _ in got if who == name] == [0, 1, 2]
    threads = {thread for *_, thread in got}
    assert len(threads) == 2
    assert threading.get_ident() not in threads


def test_a_slow_subscriber_loses_points_and_nobody_waits(hub: SubscriptionHub) -> None:
    """Publishing does not wait, the slow one's misses are counted, and another subscriber misses nothing."""
    release, entered = threading.Event(), threading.Event()
    seen: list[int] = []

    def slow(point: MetricPoint) -> None:
        entered.set()
        release.wait(WAIT_S)
        seen.append(point.step)

    fast: queue.SimpleQueue[int] = queue.SimpleQueue()
    slow_subscription = hub.subscribe(slow)
    hub.publish([_point(0)])
    assert entered.wait(WAIT_S)
    fast_subscription = hub.subscribe(lambda point: fast.put(point.step))
    for first in (1, 4, 7):
        hub.publish([_point(first), _point(first + 1), _point(first + 2)])
        assert [fast.get(timeout=WAIT_S) for _ in range(3)] == [first, first + 1, first + 2]
    assert (slow_subscription.dropped, fast_subscription.dropped) == (5, 0)
    release.set()
    hub.close(WAIT_S)
    assert seen == [0, 1, 2, 3, 4]


def test_an_exception_is_logged_once_and_removes_nothing(
    hub: SubscriptionHub, caplog: pytest.LogCaptureFixture
) -> None:
    """A subscriber that raises goes on being called, as do the others, with one log record."""
    healthy: list[int] = []
    failing: list[int] = []

    def fail(point: MetricPoint) -> None:
        failing.append(point.step)
        raise ValueError("broken widget")

    hub.subscribe(fail)
    hub.subscribe(lambda point: healthy.append(point.step))
    with caplog.at_level(logging.ERROR, "runspan"):
        hub.publish([_point(0), _point(1), _point(2)])
        hub.close(WAIT_S)
    assert (failing, healthy) == ([0, 1, 2], [0, 1, 2])
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "broken widget" in caplog.text


def test_close_ends_one_subscription_only(hub: SubscriptionHub) -> None:
    """After close no call begins; closing twice, or from the callback, is harmless; others go on."""
    first: list[int] = []
    second: queue.SimpleQueue[int] = queue.SimpleQueue()
    subscription: Subscription

    def close_itself(point: MetricPoint) -> None:
        first.append(point.step)
        subscription.close()

    subscription = hub.subscribe(close_itself)
    hub.publish([_point(0), _point(1)])
    assert subscription.wait_closed(WAIT_S)
    hub.subscribe(lambda point: second.put(point.step))
    hub.publish([_point(2)])
    assert second.get(timeout=WAIT_S) == 2
    subscription.close()
    subscription.drain(0.0)
    assert (first, subscription.is_closed, subscription.dropped) == ([0], True, 0)


def test_a_subscription_is_a_context_manager() -> None:
    """Leaving the block closes it."""
    with Subscription(lambda _: None) as subscription:
        assert not subscription.is_closed
    assert subscription.is_closed


def test_closing_the_hub_waits_no_longer_than_told(hub: SubscriptionHub) -> None:
    """A callback that hangs does not hold the hub's close."""
    release, entered = threading.Event(), threading.Event()

    def hang(_: MetricPoint) -> None:
        entered.set()
        release.wait(WAIT_S)

    hub.subscribe(hang)
    hub.publish([_point(0)])
    assert entered.wait(WAIT_S)
    start = time.monotonic()
    hub.close(0.05)
    assert time.monotonic() - start < WAIT_S / 2
    release.set()


def test_a_forked_childs_points_reach_nobody(hub: SubscriptionHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under another pid the hub hands out nothing, takes no subscriber and closes at once."""
    seen: list[int] = []
    subscription = hub.subscribe(lambda point: seen.append(point.step))
    pid = os.getpid()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: pid + 1)
        hub.publish([_point(0)])
        with pytest.raises(InvalidStateError, match="forked"):
            hub.subscribe(lambda _: None)
        hub.close(WAIT_S)
    assert not subscription.is_closed
    hub.publish([_point(1)])
    hub.close(WAIT_S)
    assert seen == [1]


def test_a_storage_dashboard_shows_status_and_recent_points(storage: InMemoryStorage) -> None:
    """It is a DashboardSource: status, the last points of each key of its rank, and no usage."""
    storage.log_metrics("r", [_point(step, step + 1.0) for step in range(5)])
    storage.log_metrics("r", [_point(0, math.nan, key="acc"), _point(0, 9.0, rank=1)])
    source: DashboardSource = StorageDashboard(storage, "r")
    assert isinstance(source, DashboardSource)
    assert source.status() is RunStatus.RUNNING
    recent = source.recent_metrics(3)
    assert list(recent) == ["loss", "acc"]
    assert [value for _, value in recent["loss"].values] == [3.0, 4.0, 5.0]
    assert recent["loss"].values[0][0] == 1_700_000_000_002
    assert recent["loss"].trend is Trend.RISING
    assert (recent["acc"].nonfinite_count, recent["acc"].mean) == (1, None)
    assert source.resource_usage() == ResourceSnapshot()
    assert [value for _, value in StorageDashboard(storage, "r", rank=1).recent_metrics(9)["loss"].values] == [9.0]


def test_the_limit_may_be_zero_but_not_negative(storage: InMemoryStorage) -> None:
    """0 gives every key without points, a negative limit is a ValueError."""
    storage.log_metrics("r", [_point(0)])
    source = StorageDashboard(storage, "r")
    empty = source.recent_metrics(0)["loss"]
    assert (empty.values, empty.is_empty, len(empty), empty.latest, empty.trend) == ([], True, 0, None, Trend.STABLE)
    with pytest.raises(ValueError, match="limit=-1"):
        source.recent_metrics(-1)


def test_wrong_arguments_are_refused(storage: InMemoryStorage) -> None:
    """An unknown run, a negative rank and an interval of 0 are refused at once."""
    with pytest.raises(RunNotFoundError):
        StorageDashboard(storage, "unknown")
    with pytest.raises(ConfigError, match="rank"):
        StorageDashboard(storage, "r", rank=-1)
    with pytest.raises(ConfigError, match="poll_interval_s"):
        StorageDashboard(storage, "r", poll_interval_s=0)


def test_a_storage_subscriber_gets_each_new_point_once(storage: InMemoryStorage) -> None:
    """Points from before are not repeated; batches, NaN, new keys and repeats at one step all come, once, by time."""
    storage.log_metrics("r", [_point(step) for step in range(3)])
    got: queue.SimpleQueue[MetricPoint] = queue.SimpleQueue()
    source = StorageDashboard(storage, "r", poll_interval_s=POLL_S)
    with source.subscribe(got.put):
        batch = [_point(step, math.nan if step % 2 else float(step)) for step in range(3, 103)]
        storage.log_metrics("r", batch)
        storage.log_metrics("r", [_point(1, rank=1)])
        received = [got.get(timeout=WAIT_S) for _ in batch]
        assert [point.step for point in received] == [point.step for point in batch]
        more = [_point(103, 1.0), _point(103, 2.0), _point(104, 3.0, key="new/key")]
        storage.log_metrics("r", more)
        assert [got.get(timeout=WAIT_S) for _ in more] == more
    assert got.empty()


def test_a_storage_subscriber_follows_a_resumed_run(storage: InMemoryStorage) -> None:
    """Case 19: an attempt that goes back and supersedes the last known point is new as a whole."""
    storage.log_metrics("r", [_point(step) for step in range(40)])
    got: queue.SimpleQueue[MetricPoint] = queue.SimpleQueue()
    with StorageDashboard(storage, "r", poll_interval_s=POLL_S).subscribe(got.put):
        storage.start_run("r", attempt=1)
        replayed = [_point(step, attempt=1) for step in range(20, 60)]
        storage.log_metrics("r", replayed)
        assert [got.get(timeout=WAIT_S) for _ in replayed] == replayed
    assert got.empty()


class _FlakyStorage(InMemoryStorage):
    """Storage whose reads fail as long as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.failed = threading.Event()

    def recent_metrics(self, run_id: str, limit: int, *, rank: int = 0) -> dict[str, list[MetricPoint]]:
        """Fail or read."""
        if self.failures:
            self.failures -= 1
            if not self.failures:
                self.failed.set()
            raise StorageError("disk on fire")
        return super().recent_metrics(run_id, limit, rank=rank)


def test_a_storage_that_fails_is_logged_once_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """An outage costs one warning, and what was written meanwhile is delivered after it."""
    storage = _FlakyStorage()
    storage.create_run(storage.create_experiment("e"), "r")
    got: queue.SimpleQueue[MetricPoint] = queue.SimpleQueue()
    with (
        caplog.at_level(logging.WARNING, "runspan"),
        StorageDashboard(storage, "r", poll_interval_s=POLL_S).subscribe(got.put),
    ):
        storage.failures = 3
        assert storage.failed.wait(WAIT_S)
        storage.log_metrics("r", [_point(0)])
        assert got.get(timeout=WAIT_S) == _point(0)
    assert [record.message for record in caplog.records if "disk on fire" in record.message] == [
        "cannot read new points of run r, will go on trying: disk on fire"
    ]
