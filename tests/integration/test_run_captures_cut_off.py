from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from runspan.tracefile.reader import TraceStatus, read
from support.otlp_receiver import OtlpReceiver, ReceivedSpan
from support.programs import Workplace, events_of, kinds_of, lines_of, wait_for
from support.traces import FixedClock

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

_PROGRAM = """
    import os, signal, sys, time, runspan

    how = sys.argv[1]
    config = runspan.TracingConfig.from_env()
    with runspan.start_run("exp", run_id="job", storage=runspan.InMemoryStorage(), config=config) as run:
        step = run.step()
        recorder = step.__enter__().recorder
        with run.phase("forward"), run.span("attention"):
            for number in range(100):
                recorder.tensor(number, shape=[2], dtype="float32", device="cpu")
            print("inside", flush=True)
            if how == "wait":
                time.sleep(60)
            if how == "finish":
                run.finish("failed", "diverged")
        if how == "error":
            raise ValueError("boom")
        if how == "exit":
            sys.exit(3)
"""


@pytest.fixture
def work(tmp_path: Path) -> Workplace:
    """Run programs in a folder of their own."""
    return Workplace(tmp_path)


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """Run a receiver over gRPC."""
    with OtlpReceiver() as running:
        yield running


def _variables(receiver: OtlpReceiver) -> dict[str, str]:
    return {
        "RUNSPAN_CAPTURE": "wait=0,warmup=0,active=1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
    }


def _when_inside(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "inside\n"


def _capture_path(work: Workplace) -> Path:
    return work.only_run / "captures" / "update-000000001" / "rank-00000.jsonl"


def _check_cut_off(work: Workplace, receiver: OtlpReceiver, reason: str) -> None:
    """Check that the cut-off capture is closed, and exported as its file has it, with the way from the run to it."""
    lines = lines_of(_capture_path(work))
    starts = {line["id"]: line for line in events_of(lines, "span_start")}
    ends = {line["id"]: line for line in events_of(lines, "span_end")}
    assert [line["name"] for line in starts.values()] == ["step", "forward", "attention"]
    assert starts.keys() == ends.keys()
    assert len(events_of(lines, "tensor")) == 100
    assert (lines[-1]["kind"], lines[-1]["outcome"], lines[-1]["reason"]) == ("terminal", "failed", reason)
    received = {span.span_id: span for span in receiver.spans if span.trace_id == lines[0]["trace_id"]}
    assert received.keys() == starts.keys()
    for span_id, span in received.items():
        assert (span.name, span.start_time_unix_nano) == (starts[span_id]["name"], starts[span_id]["time_unix_nano"])
        assert span.end_time_unix_nano - span.start_time_unix_nano == ends[span_id]["duration_ns"]
        assert span.status == (2 if span.name == "step" else 0)
    root = next(span for span in received.values() if span.name == "step")
    shown: list[ReceivedSpan] = [span for span in receiver.spans if span.name == "step captured"]
    assert [span.links for span in shown] == [[(root.trace_id, root.span_id)]]


@pytest.mark.parametrize(
    ("how", "code", "reason"),
    [("finish", 0, "diverged"), ("error", 1, "ValueError: boom"), ("exit", 3, "SystemExit: 3")],
)
def test_a_capture_that_the_runs_end_cuts_off_is_closed_and_exported(
    work: Workplace, receiver: OtlpReceiver, how: str, code: int, reason: str
) -> None:
    """A finish inside the step, an exception and an exit beside it: spans, status and the way back are all exported."""
    done = work.run(_PROGRAM, how, **_variables(receiver))
    assert done.returncode == code, done.stderr
    _check_cut_off(work, receiver, reason)


def test_sigterm_inside_a_captured_step_closes_and_exports_it(work: Workplace, receiver: OtlpReceiver) -> None:
    """The signal ends the process as it would have, and the capture ends with its reason."""
    process = work.start(_PROGRAM, "wait", pass_fds=(), **_variables(receiver))
    _when_inside(process)
    process.terminate()
    assert wait_for(process).returncode == -signal.SIGTERM
    _check_cut_off(work, receiver, "SIGTERM")


def test_sigkill_leaves_what_the_capture_had_accepted(work: Workplace, receiver: OtlpReceiver) -> None:
    """Case 4: meta, the starts of the open spans and all evidence are on disk, and the reader says interrupted."""
    process = work.start(_PROGRAM, "wait", pass_fds=(), **_variables(receiver))
    _when_inside(process)
    os.kill(process.pid, signal.SIGKILL)
    assert wait_for(process).returncode == -signal.SIGKILL
    lines = lines_of(_capture_path(work))
    assert kinds_of(lines) == ["meta", "span_start", "span_start", "span_start", *["tensor"] * 100]
    with read(_capture_path(work), clock=FixedClock(1e9)) as reader:  # decades later
        assert len(list(reader)) == len(lines)
        assert (reader.torn, reader.terminal) == ((), None)
        assert reader.state.status is TraceStatus.INTERRUPTED
