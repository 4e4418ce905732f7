"""What the processes of the storage tests do; run as ``python -m support.storage_processes <command> …``."""

from __future__ import annotations

import resource
import sys
import time

from runspan.records import MetricPoint
from runspan.storage import SqlStorage

__all__ = ["main"]


def write(url: str, rank: int, count: int, start_at_unix_s: float) -> None:
    """Open the database together with the others and log ``count`` points one by one."""
    time.sleep(max(0.0, start_at_unix_s - time.time()))
    storage = SqlStorage(url)
    run = storage.create_run(storage.create_experiment("shared"), "shared", 8)
    storage.start_run(run, rank)
    for step in range(count):
        storage.log_metrics(run, [MetricPoint("loss", step, float(step), time.time_ns(), rank)])
    storage.close()


def sample_peak(url: str, run: str, key: str, limit: int) -> None:
    """Sample a metric and print the points' count, first and last step, and by how many MiB the memory peak grew."""
    storage = SqlStorage(url)
    storage.get_run(run)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    points = storage.sample_metrics(run, key, limit)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(len(points), points[0].step, points[-1].step, grown)  # noqa: T201 - the parent reads it
    storage.close()


def main(arguments: list[str]) -> None:
    """Run one command."""
    command, url, *rest = arguments
    if command == "write":
        write(url, int(rest[0]), int(rest[1]), float(rest[2]))
    else:
        sample_peak(url, rest[0], rest[1], int(rest[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
