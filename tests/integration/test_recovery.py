"""Training processes that are really killed, and what `recover` makes of what they leave."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

import runspan
from runspan import ids
from runspan._clock import SystemClock
from runspan.errors import InvalidStateError
from runspan.records import RunStatus
from runspan.recovery import recover
from runspan.replay import ReplayOutcome
from runspan.storage import InMemoryStorage, SqlStorage
from runspan.tracefile._findings import Severity
from runspan.tracefile._health import health
from runspan.tracefile.layout import RunDirectory
from runspan.tracefile.reader import TraceStatus, read
from support.cli import run_program
from support.otlp_receiver import OtlpReceiver, until
from support.programs import Workplace, wait_for

if TYPE_CHECKING:
    from pathlib import Path

#: Records spans, steps, captures and metrics until it is killed; says so once it has begun.
_TRAIN = """
    import itertools, os, sys
    import runspan

    with runspan.start_run("killed", run_id="victim", params={"lr": 0.1}) as run:
        for number in itertools.count():
            with run.epoch(number):
                for _ in range(20):
                    with run.step(tokens=10), run.phase("forward"), run.span("inside"):
                        run.log_metric("loss", 0.5)
                with run.span("between", number=number):
                    run.log_metrics({"a": 1.0, "b": float("nan")})
            if number == 2:
                print("going", flush=True)
"""
#: Waits in an open span, in an open captured step, with a forked child that is in one too.
_STUCK = """
    import os, time
    import runspan

    with runspan.start_run("killed", run_id="victim") as run, run.epoch(0):
        for _ in range(100):
            run.log_metric("loss", 0.5)
        with run.step(), run.phase("forward"):
            with run.span("stuck"):
                child = os.fork()
                if child == 0:
                    with run.span("in the child"):
                        run.log_metric("child", 1.0)
                        print(os.getpid(), flush=True)
                        time.sleep(600)
                time.sleep(600)
"""
_SETTINGS = {"RUNSPAN_HEARTBEAT_S": "0.2", "RUNSPAN_CAPTURE": "wait=0,warmup=0,active=3,repeat=1"}


class _Later:
    """The system's clocks, an hour ahead: what is dead has been dead for long."""

    def time_ns(self) -> int:
        """Return the wall time in an hour."""
        return SystemClock.time_ns() + 3600 * 10**9

    def monotonic_ns(self) -> int:
        """Return the monotonic clock."""
        return SystemClock.monotonic_ns()


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    """Name a folder for programs and what they leave."""
    return Workplace(tmp_path)


def _config(**variables: str) -> runspan.TracingConfig:
    return runspan.TracingConfig.from_env(variables)


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    assert wait_for(process).returncode == -signal.SIGKILL


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, process.stderr and process.stderr.read()
    return line


def _contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def _check_whole(directory: Path) -> None:
    """Read every trace strictly: each has its end, nothing torn, each span one start and one end, all healthy."""
    found = RunDirectory(directory)
    files = [*found.trace_files(), *(file for capture in found.capture_files().values() for file in capture)]
    for name, path in files:
        if name.part or not path.stat().st_size:  # killed before its first line
            continue
        with read(path) as reader:
            balance: Counter[str] = Counter()
            for event in reader:
                kind = type(event).__name__
                if kind in {"SpanStart", "SpanEnd"}:
                    balance[getattr(event, "id")] += 1 if kind == "SpanStart" else -1  # noqa: B009 - of either class
        assert reader.torn == ()
        assert set(balance.values()) <= {0}, path
        errors = {finding.code for finding in health(path) if finding.severity is Severity.ERROR}
        # A captured step may have been killed between the first line of its file and that of its span.
        assert errors == (set() if balance or path.parent == directory else {"root_count", "measurement_count"}), path
        if name.child is None:
            assert reader.state.status is TraceStatus.FINISHED


def test_processes_killed_at_random_moments_are_recovered(place: Workplace) -> None:
    """Cases 4, 36: whenever SIGKILL comes, all that was recorded stays, and one recovery ends files and storage."""
    moments = random.Random(4)  # noqa: S311 - moments, not secrets
    for index in range(6):
        # Every other one in small parts, of which closed ones are being packed.
        parts = {"RUNSPAN_MAX_FILE_BYTES": "16KiB"} if index % 2 else {}
        folder = str(place.folder / str(index))
        process = place.start(_TRAIN, pass_fds=(), **_SETTINGS, **parts, RUNSPAN_DIR=folder)
        assert _first_line(process) == "going"
        time.sleep(moments.uniform(0, 0.1))
        _kill(process)
        directory = place.folder / str(index) / "runs" / "victim"
        before = _contents(directory)
        assert any(".part-" in name for name in before) == bool(parts)
        with closing(SqlStorage(place.folder / str(index) / "experiments.db")) as storage:
            report = recover(directory, storage, _config(), clock=_Later())
            run = storage.get_run("victim")
        assert report.closed
        assert report.warnings == ()
        _check_whole(directory)
        after = _contents(directory)
        assert not list(directory.rglob("*.tmp"))
        for name, data in before.items():
            if name.endswith(".tmp"):
                continue  # half of a part that is still there
            kept = data[: data.rfind(b"\n") + 1]
            assert after[name].startswith(kept), name
        assert (run.status, run.reason) == (RunStatus.FAILED, "interrupted")
        assert recover(directory, InMemoryStorage(), _config(), clock=_Later()).closed == ()
        assert _contents(directory) == after


def test_what_was_open_when_the_kill_came_is_ended(place: Workplace) -> None:
    """Open spans of the rank, of a captured step and of a forked child end; the reader says finished."""
    process = place.start(_STUCK, pass_fds=(), **_SETTINGS)
    child = int(_first_line(process))
    with pytest.raises(InvalidStateError, match="may be running"):
        recover(place.only_run, None, _config())
    os.kill(child, signal.SIGKILL)
    _kill(process)
    with read(place.only_run / "rank-00000.jsonl", clock=_Later()) as reader:
        metrics = [event for event in reader if type(event).__name__ == "Metric"]
    assert len(metrics) == 100
    assert str(reader.state).startswith("interrupted, last seen ")
    report = recover(place.only_run, None, _config(), clock=_Later())
    _check_whole(place.only_run)
    ended = {closed.path.removeprefix(f"{place.only_run}/"): closed.spans_ended for closed in report.closed}
    (child_name,) = [name for name in ended if "child" in name]
    assert ended == {
        "rank-00000.jsonl": 3,  # run, rank, epoch
        "captures/update-000000001/rank-00000.jsonl": 3,  # step, forward, stuck
        child_name: 1,
    }


def test_one_killed_rank_fails_the_run(place: Workplace) -> None:
    """Where one of two ranks was killed, its trace alone is ended and exported, and the run has failed in storage."""
    ranks = [{"RUNSPAN_RANK": str(rank), "RUNSPAN_WORLD_SIZE": "2"} for rank in range(2)]
    source = _TRAIN.replace("itertools.count()", "range(10**9 if os.environ['RUNSPAN_RANK'] == '1' else 4)")
    processes = [
        place.start(source, name=f"rank_{rank['RUNSPAN_RANK']}", pass_fds=(), **_SETTINGS, **rank) for rank in ranks
    ]
    assert [_first_line(process) for process in processes] == ["going", "going"]
    assert wait_for(processes[0]).returncode == 0
    whole = (place.only_run / "rank-00000.jsonl").read_bytes()
    _kill(processes[1])
    with OtlpReceiver() as receiver, closing(SqlStorage(place.root / "experiments.db")) as storage:
        to = {"RUNSPAN_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}"}
        report = recover(place.only_run, storage, _config(**to), clock=_Later())
        run = storage.get_run("victim")
        assert {span.resource["runspan.rank"] for span in receiver.spans} == {1}
        assert "rank" in {span.name for span in receiver.spans}
    assert (run.status, run.reason) == (RunStatus.FAILED, "interrupted")
    assert [closed.path for closed in report.closed] == [str(place.only_run / "rank-00001.jsonl")]
    assert (place.only_run / "rank-00000.jsonl").read_bytes() == whole
    _check_whole(place.only_run)


def test_a_stopped_process_is_alive(place: Workplace) -> None:
    """A process that writes nothing because it is stopped is refused by its open file, until it is dead."""
    process = place.start(_STUCK, pass_fds=(), **_SETTINGS)
    child = int(_first_line(process))
    process.send_signal(signal.SIGSTOP)
    before = _contents(place.only_run)
    with pytest.raises(InvalidStateError, match=f"process {process.pid} of run 'victim' is alive"):
        recover(place.only_run, None, _config(), clock=_Later())
    assert _contents(place.only_run) == before
    process.kill()  # without waiting for its output, which its child holds open
    process.wait()
    report = recover(place.only_run, None, _config(), clock=_Later())
    assert len(report.closed) == 2
    assert any(f"process {child} is still writing it" in warning for warning in report.warnings)
    os.kill(child, signal.SIGKILL)
    wait_for(process)
    assert until(lambda: len(recover(place.only_run, None, _config(), clock=_Later()).closed) == 1)


def test_two_recoveries_at_once_end_everything_once(place: Workplace) -> None:
    """Processes that recover one run at the same time leave one end of each span and trace, and one failed run."""
    process = place.start(_TRAIN, pass_fds=(), **_SETTINGS)
    _first_line(process)
    _kill(process)
    time.sleep(0.7)  # three of the run's heartbeats
    command = [sys.executable, "-m", "runspan.cli", "trace", "recover", "victim", "--json"]
    recoveries = [
        subprocess.Popen(command, env=place.environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    ended = [wait_for(each) for each in recoveries]
    assert [each.returncode for each in ended] == [0] * 4, ended
    closed = [trace["path"] for each in ended for trace in json.loads(each.stdout)["closed"]]
    assert closed
    assert max(Counter(closed).values()) == 1
    _check_whole(place.only_run)
    with closing(SqlStorage(place.root / "experiments.db")) as storage:
        assert storage.get_run("victim").status is RunStatus.FAILED


def test_what_was_never_exported_is_sent(place: Workplace) -> None:
    """What the killed process had not shipped arrives, the rest arrives equal; run and rank are errors in one trace."""
    with OtlpReceiver() as at_run, OtlpReceiver() as at_recovery:
        shipped = {"RUNSPAN_OTLP_ENDPOINT": f"http://127.0.0.1:{at_run.port}", "RUNSPAN_OTLP_PROTOCOL": "grpc"}
        process = place.start(_TRAIN, pass_fds=(), **_SETTINGS, **shipped)
        _first_line(process)
        assert until(lambda: any(span.name == "between" for span in at_run.spans))
        _kill(process)
        to = {"RUNSPAN_OTLP_ENDPOINT": f"http://127.0.0.1:{at_recovery.port}", "RUNSPAN_OTLP_PROTOCOL": "grpc"}
        reports = [recover(place.only_run, None, _config(**to), clock=_Later()) for _ in range(2)]
        before = {(span.trace_id, span.span_id): span for span in at_run.spans if "(started)" not in span.name}
        spans = at_recovery.spans
        status = at_recovery.points_of("runspan.run.status", runspan_run_status="failed")
    after = {(span.trace_id, span.span_id): span for span in spans}
    assert len(spans) == 2 * len(after)
    assert before
    assert {key: after[key] for key in before} == before
    new = {span.name for key, span in after.items() if key not in before}
    assert {"run", "rank"} <= new
    run = after[f"{ids.run_trace_id('victim'):032x}", f"{ids.run_span_id('victim'):016x}"]
    assert run.status == 2
    assert run.attributes["runspan.run.end_reason"] == "interrupted"
    assert run.attributes["runspan.run.status"] == "failed"
    assert run.attributes["runspan.param.lr"] == 0.1
    assert run.attributes["runspan.metric.loss"] == 0.5
    assert run.attributes["runspan.metric.b"] == "NaN"
    for report in reports:
        assert report.exported is not None
        assert (report.exported.outcome, report.exported.spans) == (ReplayOutcome.COMPLETE, len(after))
    assert status == []  # an hour later no metrics store takes them


def test_the_last_metrics_of_a_killed_run_are_sent(place: Workplace) -> None:
    """Recovered at once, the run's last values and its status arrive, and its live series end."""
    process = place.start(_TRAIN, pass_fds=(), **_SETTINGS)
    _first_line(process)
    _kill(process)
    time.sleep(0.7)
    with OtlpReceiver() as receiver:
        url = f"http://127.0.0.1:{receiver.port}"
        options = {"RUNSPAN_DIR": str(place.root), "OTEL_EXPORTER_OTLP_ENDPOINT": url}
        environ = {**place.environ(), **options}
        answer = run_program(["trace", "recover", "victim"], environ)
        assert answer.code == 0, answer.err
        loss = receiver.points_of("runspan.metric.value", runspan_metric_key="loss")
        failed = receiver.points_of("runspan.run.status", runspan_run_status="failed")
    assert [point.value for point in loss][-2:] == [0.5, None]
    assert failed[-1].value == 1
    assert "interrupted, last seen" in answer.out
    assert "export: complete" in answer.out


def test_an_export_that_fails_does_not_undo_the_rest(place: Workplace) -> None:
    """Where the receiver refuses, the exit code is 1, while files and storage are ended; the reason is told."""
    process = place.start(_TRAIN, pass_fds=(), **_SETTINGS)
    _first_line(process)
    _kill(process)
    time.sleep(0.7)
    with OtlpReceiver() as receiver:
        receiver.faults.answers.extend(["PERMISSION_DENIED"] * 100)
        url = f"http://127.0.0.1:{receiver.port}"
        answer = run_program(["trace", "recover", "victim", "--endpoint", url], place.environ())
    assert answer.code == 1, answer
    assert "export: partial, 0 spans" in answer.out
    assert "traces/refused" in answer.err
    assert "PERMISSION_DENIED" in answer.err
    _check_whole(place.only_run)


def test_the_command_refuses_what_it_cannot_recover(place: Workplace) -> None:
    """A running run and an unknown one are one line on stderr and exit code 2."""
    process = place.start(_STUCK, RUNSPAN_CAPTURE="wait=0,warmup=0,active=3,repeat=1")
    child = int(_first_line(process))
    running = run_program(["trace", "recover", "victim"], place.environ())
    os.kill(child, signal.SIGKILL)
    _kill(process)
    assert (running.code, running.out) == (2, "")
    assert "may be running" in running.err
    unknown: Any = run_program(["trace", "recover", "nobody"], place.environ())
    assert (unknown.code, unknown.out) == (2, "")
    assert "nobody" in unknown.err
