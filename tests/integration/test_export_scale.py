from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runspan.tracefile.events import encode
from runspan.tracefile.layout import RunDirectory, TraceName
from support.cli import clean_environ, make_step, run_program
from support.export_traces import span_events
from support.traces import make_meta, make_metric, make_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

_RANKS, _STEPS, _SLOW_RANK = 256, 4_000, 77
_SPANS = 60_000
_POINTS = 1_000_000
#: DuckDB's buffers have a limit of 1 GB; a million points need a part of it.
_MAX_QUERY_KIB = 600_000
#: What a process may need more for ten times the trace, in KiB: DuckDB fills its buffers up to its limit.
_GROWTH_KIB = {"perfetto": 16_000, "speedscope": 16_000, "folded": 16_000, "parquet": 250_000}
_EXPORT = """
import resource, sys
from importlib import import_module
from pathlib import Path
name, trace, output = sys.argv[1:]
export = getattr(import_module(f"runspan.export.{name}"), f"export_{name}")
export([Path(trace)], Path(output))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""

_QUERY = """
import resource, sys
from runspan.cli import main
code = main(sys.argv[1:])
sys.stderr.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
sys.exit(code)
"""


def test_stragglers_over_256_ranks_takes_seconds() -> None:
    """The slow rank of 256 with 4,000 steps each is named in seconds, not minutes, out of 1,024,000 step lines."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        directory = RunDirectory.of_run(root / "runs", "run-a").path
        directory.mkdir(parents=True)
        fast = b"".join(encode(make_step(step, forward=2, backward=3, all_reduce=5)) for step in range(_STEPS))
        slow = b"".join(encode(make_step(step, forward=6, backward=3, all_reduce=1)) for step in range(_STEPS))
        for rank in range(_RANKS):
            steps = slow if rank == _SLOW_RANK else fast
            lines = encode(make_meta(rank)) + steps + encode(make_terminal())
            (directory / TraceName(rank).filename).write_bytes(lines)
        began_s = time.monotonic()
        answer = run_program(["query", "run-a", "stragglers", "--json"], clean_environ(root), timeout_s=300)
        took_s = time.monotonic() - began_s
    assert (answer.code, answer.err) == (0, "")
    rows = answer.document["rows"]
    assert rows[0] == [_SLOW_RANK, _STEPS, 10.0, 9.0, 1.8, _STEPS, "forward"]
    assert len(rows) == _RANKS
    assert sum(row[1] for row in rows) == _RANKS * _STEPS
    assert took_s < 60


def test_a_curve_of_a_million_points_is_thinned_evenly(tmp_path: Path) -> None:
    """Case 31: of a million points 320 are read, the first and the last among them, in bounded memory."""
    directory = RunDirectory.of_run(tmp_path / "runs", "run-a").path
    directory.mkdir(parents=True)
    with (directory / "rank-00000.jsonl").open("wb") as file:
        file.write(encode(make_meta()))
        file.writelines(encode(make_metric(step)) for step in range(_POINTS))
        file.write(encode(make_terminal()))
    sql = "SELECT step, value FROM metrics WHERE (step * 319) % 999999 < 319 ORDER BY step"
    command = [sys.executable, "-c", _QUERY, "query", "run-a", sql, "--json"]
    done = subprocess.run(command, env=clean_environ(tmp_path), capture_output=True, text=True, check=True, timeout=300)
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 320
    assert (rows[0], rows[-1]) == ([0, 0.0], [_POINTS - 1, (_POINTS - 1) / 4])
    assert int(done.stderr) < _MAX_QUERY_KIB


def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    """Case 51: ten times the spans, steps and metrics need about as much memory, in each format."""
    small = _write_trace(tmp_path / "small.jsonl", _SPANS // 10)
    large = _write_trace(tmp_path / "large.jsonl", _SPANS)
    for name, growth_kib in _GROWTH_KIB.items():
        needed = [_peak_kib(name, trace, tmp_path / f"{name}-{trace.stem}") for trace in (small, large)]
        assert needed[1] - needed[0] < growth_kib, (name, needed)
    events = json.loads((tmp_path / "perfetto-large").read_bytes())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 2 * _SPANS + 1


def _write_trace(path: Path, count: int) -> Path:
    with path.open("wb") as file:
        file.writelines(_lines(count))
    return path


def _lines(count: int) -> Iterator[bytes]:
    yield encode(make_meta())
    outer, outer_end = span_events("f" * 16, "run", 0, count * 1_000)
    yield encode(outer)
    for number in range(count):
        start, end = span_events(f"{number:016x}", "step", number * 1_000, number * 1_000 + 900, "f" * 16)
        yield encode(start) + encode(end)
        step = make_step(number, forward=1)
        yield encode(msgspec.structs.replace(step, time_unix_nano=step.time_unix_nano + number * 2_000_000))
        yield encode(make_metric(number))
    yield encode(outer_end) + encode(make_terminal())


def _peak_kib(name: str, trace: Path, output: Path) -> int:
    command = [sys.executable, "-c", _EXPORT, name, str(trace), str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return int(done.stdout)
