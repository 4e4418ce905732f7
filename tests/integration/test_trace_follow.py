from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from runspan._clock import SystemClock
from runspan.tracefile.events import Metric
from runspan.tracefile.reader import TraceReader, TraceStatus, peek, read

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMEOUT_S = 30
_TESTS = Path(__file__).parents[1]


class StartWriter(Protocol):
    """A way to start a process that writes a trace."""

    def __call__(self, folder: Path, metric_count: int, max_file_bytes: int = ...) -> subprocess.Popen[str]:
        """Start it, and return when its first lines are there."""


@pytest.fixture
def start_writer() -> Iterator[StartWriter]:
    """Start writing processes, and end those that are left."""
    processes: list[subprocess.Popen[str]] = []

    def start(folder: Path, metric_count: int, max_file_bytes: int = 1 << 30) -> subprocess.Popen[str]:
        arguments = [str(folder), str(metric_count), str(max_file_bytes)]
        command = [sys.executable, "-m", "support.trace_process", *arguments]
        process = subprocess.Popen(command, cwd=_TESTS, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


class _LaterClock(SystemClock):
    """The system's clock, a minute on."""

    @staticmethod
    def time_ns() -> int:
        return time.time_ns() + 60_000_000_000


def _follow(path: Path) -> TraceReader:
    deadline = time.monotonic() + _TIMEOUT_S

    def sleep(seconds: float) -> None:
        assert time.monotonic() < deadline, "the followed trace does not end"
        time.sleep(seconds)

    return read(path, follow=True, poll_s=0.01, sleep=sleep)


def _steps(reader: TraceReader) -> list[int]:
    return [event.step for event in reader if isinstance(event, Metric)]


def test_a_live_trace_is_followed_over_its_parts_to_its_end(tmp_path: Path, start_writer: StartWriter) -> None:
    """Case 36: while another process writes, rotates and gzips parts, a follower gets every line once, in order."""
    process = start_writer(tmp_path, 5_000, 20_000)
    path = tmp_path / "rank-00000.jsonl"
    reader = _follow(path)
    assert _steps(reader) == list(range(5_000))
    assert reader.state.status is TraceStatus.FINISHED
    assert process.wait(_TIMEOUT_S) == 0
    assert len({name.name.partition(".jsonl")[0] for name in tmp_path.glob("rank-*")}) > 10
    assert _steps(read(path)) == list(range(5_000))


def test_a_killed_writers_trace_reads_as_interrupted(tmp_path: Path, start_writer: StartWriter) -> None:
    """Case 4: a trace is running while it is written; after SIGKILL its lines are there, and it ages to interrupted."""
    process = start_writer(tmp_path, -1)
    path = tmp_path / "rank-00000.jsonl"
    assert peek(path).state.status is TraceStatus.RUNNING
    process.kill()
    process.wait(_TIMEOUT_S)
    reader = read(path, clock=_LaterClock())
    steps = _steps(reader)
    assert len(steps) > 100
    assert steps == list(range(len(steps)))
    assert reader.terminal is None
    assert reader.state.status is TraceStatus.INTERRUPTED
    assert reader.state == peek(path, clock=_LaterClock()).state
