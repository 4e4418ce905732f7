from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import duckdb

from support.cli import clean_environ, make_run, read_terminal
from support.traces import make_metric

if TYPE_CHECKING:
    from pathlib import Path


def test_merging_shows_its_progress_on_a_terminal(tmp_path: Path) -> None:
    """On a terminal's stderr the events are counted while they are written; stdout has the answer alone."""
    directory = make_run(tmp_path, "run-a", events=[make_metric(step) for step in range(20_000)])
    output = tmp_path / "merged.jsonl.gz"
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "runspan.cli", "trace", "merge", str(directory), "-o", str(output)],
        env={**clean_environ(tmp_path), "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=follower,
        text=True,
    ) as process:
        os.close(follower)
        shown = read_terminal(leader)
        assert process.stdout is not None
        assert process.stdout.read() == f"{output}: 20007 events of 1 trace\n"
    assert process.returncode == 0
    assert b" events" in shown
    assert [path.name for path in tmp_path.iterdir() if "merged" in path.name] == [output.name]


def test_other_programs_read_a_merged_file(tmp_path: Path) -> None:
    """A merged file is JSON lines: DuckDB reads it as it is, gzipped, and groups its values by rank."""
    directory = make_run(tmp_path, "run-a", world_size=3)
    output = tmp_path / "merged.jsonl.gz"
    command = [sys.executable, "-m", "runspan.cli", "trace", "merge", str(directory), "-o", str(output)]
    subprocess.run(command, env=clean_environ(tmp_path), check=True, capture_output=True)
    rows = duckdb.execute(
        "select source.rank, sum(value) from read_json(?, format = 'newline_delimited')"
        " where kind = 'metric' group by all order by all",
        [str(output)],
    ).fetchall()
    assert rows == [(0, 0.75), (1, 0.75), (2, 0.75)]
