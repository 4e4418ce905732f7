from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from runspan.gate.frame import FrameStatus
from runspan.gate.record import GateRecord
from support.cli import clean_environ
from support.gate_repository import GateRepository
from support.otlp_receiver import OtlpReceiver, until

if TYPE_CHECKING:
    from pathlib import Path

_WAITS = """\
import os, pathlib, sys, time
pathlib.Path(os.environ["STARTED"]).write_text(str(os.getpid()))
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def repository(tmp_path: Path) -> GateRepository:
    """Make a repository whose benchmark waits until it is ended."""
    made = GateRepository(tmp_path / "gate")
    made.write("speed.py", f"def bench(run, **params):\n{_indented(_WAITS)}")
    made.write("src/wait.py", _WAITS)
    return made


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def _interrupt(repository: GateRepository, tmp_path: Path, number: signal.Signals, **variables: str) -> int:
    """Start a gate run, send it a signal when its benchmark runs, and return its exit code."""
    started = tmp_path / "started"
    environ = clean_environ(tmp_path / "root", STARTED=str(started), PYTHONDONTWRITEBYTECODE="1", **variables)
    process = subprocess.Popen(
        [sys.executable, "-m", "runspan.cli", "bench", "run", "speed", "--gate"],
        cwd=repository.top,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert until(lambda: started.exists() and started.read_text() != "")
        process.send_signal(number)
        return process.wait(30)
    finally:
        process.kill()
        process.wait()


def _records(repository: GateRepository) -> list[GateRecord]:
    return [GateRecord.load(path) for path in (repository.top / ".benchmarks/speed").glob("*.json")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("declaration", ['callable = "speed:bench"', f'command = ["{sys.executable}", "src/wait.py"]'])
def test_a_cancelled_gate_run_leaves_a_failed_record(
    declaration: str, number: signal.Signals, repository: GateRepository, tmp_path: Path
) -> None:
    """SIGTERM and Ctrl-C end the run and its command, and the record says so."""
    repository.declare(declaration)
    repository.commit()
    by_default = number is signal.SIGTERM  # Ctrl-C is an exception, which the command answers
    assert _interrupt(repository, tmp_path, number) == (-number if by_default else 3)
    records = _records(repository)
    assert [(record.frame_status, record.verdict) for record in records] == [(FrameStatus.FAILED, "FAIL")]
    assert records[0].verdict_reason == f"cancelled: {'SIGTERM' if by_default else 'KeyboardInterrupt'}"
    if declaration.startswith("command"):
        pid = int((tmp_path / "started").read_text())
        assert until(lambda: not psutil.pid_exists(pid))


def test_a_killed_gate_run_leaves_a_failed_record(repository: GateRepository, tmp_path: Path) -> None:
    """SIGKILL leaves no time to write: the record of a failed run stands since the start, and no older pass for it."""
    repository.declare('callable = "speed:bench"')
    repository.commit()
    assert _interrupt(repository, tmp_path, signal.SIGKILL) == -signal.SIGKILL
    records = _records(repository)
    assert [(record.frame_status, record.verdict) for record in records] == [(FrameStatus.FAILED, "FAIL")]
    assert records[0].verdict_reason == "the run started, and was killed before it ended"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_cancelled_gate_run_is_a_gate_span_too(
    number: signal.Signals, repository: GateRepository, tmp_path: Path
) -> None:
    """The trace and the collector have the result of a gate run that a signal ended."""
    repository.declare('callable = "speed:bench"')
    repository.commit()
    with OtlpReceiver() as receiver:
        endpoint = f"http://127.0.0.1:{receiver.port}"
        _interrupt(repository, tmp_path, number, RUNSPAN_EXPORT_OTLP="1", RUNSPAN_OTLP_ENDPOINT=endpoint)
        assert until(lambda: [span for span in receiver.spans if span.name == "gate"])
        (span,) = [span for span in receiver.spans if span.name == "gate"]
        assert span.attributes["runspan.gate.verdict"] == "Fail"
        assert receiver.points_of("runspan.gate.passed")[-1].value == 0
