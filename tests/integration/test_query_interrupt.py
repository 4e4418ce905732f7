from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil

from support.cli import clean_environ, make_run
from support.otlp_receiver import until

if TYPE_CHECKING:
    from pathlib import Path

#: Counts for minutes.
_ENDLESS = "SELECT count(*) FROM range(10_000_000_000) AS a(x), range(100) AS b(y) WHERE x * y % 7 = 3"
_BUSY_S = 2.0


def test_ctrl_c_ends_a_query_quietly_and_leaves_nothing(tmp_path: Path) -> None:
    """A query that takes too long ends with 130 as other commands do, without a traceback and without its files."""
    make_run(tmp_path / "root", "run-a")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "runspan.cli", "query", "run-a", _ENDLESS],
        env=clean_environ(tmp_path / "root", TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert until(lambda: psutil.Process(process.pid).cpu_times().user > _BUSY_S, timeout_s=60)
        assert list(temporary.iterdir()) != []
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (130, "", "")
    assert list(temporary.iterdir()) == []
