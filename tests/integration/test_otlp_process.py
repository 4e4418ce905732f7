from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from support.otlp_receiver import BlackHole, OtlpReceiver, refused_port

_PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
_TESTS = Path(__file__).parents[1]
_HEAD = """
import gc, os, sys, threading, time
from support.exporting import start_export
from support.otlp_receiver import endpoint_of

protocol, port = sys.argv[1], int(sys.argv[2])
export = start_export(endpoint_of(protocol, port), endpoint_of(protocol, port, "metrics"))
"""


def _run(program: str, protocol: str, port: int) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(_TESTS), "GRPC_VERBOSITY": "NONE"}
    return subprocess.run(
        [sys.executable, "-c", _HEAD + textwrap.dedent(program), protocol, str(port)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environ,
    )


@_PROTOCOLS
def test_the_last_spans_leave_while_the_interpreter_exits(protocol: str) -> None:
    """A drain in an exit hook, when no thread can be started, delivers what is queued, and keeps the exit code."""
    program = """
        import atexit
        atexit.register(lambda: export.drain(5.0))
        export.end_spans(50)
        export.metrics.steps = 7
        raise SystemExit(3)
    """
    with OtlpReceiver(protocol) as receiver:
        done = _run(program, protocol, receiver.port)
        assert (done.returncode, done.stderr) == (3, "")
        assert len(receiver.spans) == 50
        assert [point.value for point in receiver.points_of("runspan.steps")] == [7]


@_PROTOCOLS
@pytest.mark.parametrize("kind", ["refused", "black hole"])
def test_a_dead_receiver_delays_the_exit_within_bounds(protocol: str, kind: str) -> None:
    """Case 5: with nobody answering, the process ends within the timeout after its drain began, with its own code."""
    program = """
        import atexit, time
        export.end_spans(50)
        def end():
            took = export.drain(0.5)
            print(took, time.time(), flush=True)
        atexit.register(end)
        raise SystemExit(3)
    """
    with BlackHole() as hole:
        done = _run(program, protocol, hole.port if kind == "black hole" else refused_port())
        ended = time.time()
    assert done.returncode == 3
    took, drained = map(float, done.stdout.split())
    assert took < 0.5 + 0.2
    assert ended - drained < 2.0


@_PROTOCOLS
def test_a_forked_child_exports_nothing_and_ends(protocol: str) -> None:
    """Case 2: children forked amid an export end soon, by a normal exit too, and the parent's export stays whole."""
    program = """
        os.register_at_fork(after_in_child=lambda: export is not None and export.pipeline.reinit_in_child())
        statuses = []
        for number in range(8):
            export.end_spans(30)
            export.pipeline.flush_soon()
            time.sleep(0.002 * (number % 4))
            pid = os.fork()
            if pid == 0:
                export.tracer.start_span("child").end()
                assert export.drain(5.0) < 0.2
                export = None
                gc.collect()
                sys.exit(0)
            statuses.append(os.waitpid(pid, 0)[1])
        export.drain(5.0)
        print(statuses, export.pipeline.exported["traces"], dict(export.pipeline.dropped))
    """
    with OtlpReceiver(protocol) as receiver:
        done = _run(program, protocol, receiver.port)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{[0] * 8} 240 {{}}\n"
        assert {span.name for span in receiver.spans} == {f"span-{number}" for number in range(30)}
        assert len({span.span_id for span in receiver.spans}) == 240


@_PROTOCOLS
def test_a_signal_handler_may_drain_on_another_thread(protocol: str) -> None:
    """A handler that interrupted a span's end lets a helper thread drain, and neither waits for the other."""
    program = """
        import signal
        took = []
        def handler(number, frame):
            helper = threading.Thread(target=lambda: took.append(export.drain(5.0)))
            helper.start()
            helper.join(10)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        while not took:
            export.tracer.start_span("busy").end()
        assert took[0] < 5.0, took
        exported, dropped = export.pipeline.exported, export.pipeline.dropped
        print(exported["traces"] > 0, ("traces", "shutdown_timeout") in dropped)
    """
    with OtlpReceiver(protocol) as receiver:
        done = _run(program, protocol, receiver.port)
        assert (done.stdout, done.stderr, done.returncode) == ("True False\n", "", 0)


def test_the_receiver_is_a_process_of_its_own(tmp_path: Path) -> None:
    """The test receiver runs as a program, for tests whose own process must not hold a gRPC server."""
    environ = {**os.environ, "PYTHONPATH": str(_TESTS)}
    command = [sys.executable, "-m", "support.otlp_receiver", "--protocol", "grpc"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, cwd=tmp_path
    ) as receiver:
        assert receiver.stdout is not None
        port = json.loads(receiver.stdout.readline())["port"]
        done = _run("export.end_spans(2); export.drain(5.0)", "grpc", port)
        assert done.returncode == 0, done.stderr
        out, _ = receiver.communicate("")
    received: dict[str, Any] = json.loads(out)
    assert [span["name"] for span in received["spans"]] == ["span-0", "span-1"]
    assert received["points"]
