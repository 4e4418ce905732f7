from __future__ import annotations

import json
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from support.otlp_receiver import BlackHole, OtlpReceiver, refused_port
from support.programs import Finished, Workplace, events_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TIMEOUT_S = 1.0
#: What the machine of the tests may take on top: it runs other things too.
_NOISE_S = 0.3

#: Records, says how long finish took and when the end began, and leaves with an exit code of its own.
_PROGRAM = """
    import json, runspan, sys, time
    with runspan.start_run("exit", run_id="r") as run:
        for step in range(50):
            with run.span("work"):
                run.log_metric("loss", step)
        if "finish" in sys.argv:
            began = time.monotonic()
            run.finish()
            print(json.dumps({"finish_s": time.monotonic() - began, "at": time.time()}), flush=True)
        else:
            print(json.dumps({"at": time.time()}), flush=True)
        raise SystemExit(3)
"""


@pytest.fixture
def work(tmp_path: Path) -> Workplace:
    """Return an empty workplace."""
    return Workplace(tmp_path)


@contextmanager
def _endpoint(kind: str, protocol: str) -> Iterator[dict[str, str]]:
    """Have an endpoint of a kind, and yield the variables that name it."""
    if kind == "refused":
        yield _variables(refused_port(), protocol)
    elif kind == "black hole":
        with BlackHole() as hole:
            yield _variables(hole.port, protocol)
    else:
        with OtlpReceiver(protocol) as receiver:
            yield _variables(receiver.port, protocol)


def _variables(port: int, protocol: str) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "RUNSPAN_SHUTDOWN_TIMEOUT_S": str(_TIMEOUT_S),
    }


def _run(work: Workplace, variables: dict[str, str], *arguments: str) -> tuple[Finished, dict[str, Any], float]:
    """Run the program; return its end, what it said, and how long the way out took from the last line on."""
    done = work.run(_PROGRAM, *arguments, name="train", **variables)
    ended_at = time.time()
    said: dict[str, Any] = json.loads(done.stdout)
    return done, said, ended_at - said["at"]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("kind", ["refused", "black hole"])
def test_an_endpoint_that_is_down_bounds_the_exit_and_keeps_its_code(work: Workplace, kind: str, protocol: str) -> None:
    """Case 5: exit code 3 is kept, finish ends in shutdown_timeout_s + 0.2 s, the file is complete, one warning."""
    with _endpoint(kind, protocol) as variables:
        done, said, _ = _run(work, variables, "finish")
    assert done.returncode == 3, done.stderr
    assert said["finish_s"] <= _TIMEOUT_S + 0.2 + _NOISE_S
    lines = work.trace()
    assert (lines[-1]["kind"], lines[-1]["status"]) == ("terminal", "success")
    assert len(events_of(lines, "metric")) == 50
    assert len(events_of(lines, "span_end")) == 52
    (dropped,) = events_of(lines, "dropped", signal="traces")
    assert (dropped["reason"], dropped["count"]) == ("shutdown_timeout", 52)
    assert len([line for line in done.stderr.splitlines() if "export" in line]) in {1, 2}  # one a signal
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["refused", "black hole"])
def test_the_way_out_of_the_interpreter_is_bounded_too(work: Workplace, kind: str) -> None:
    """Case 5: from the last line of the program to the end of the process it takes no more than the bound."""
    with _endpoint(kind, "grpc") as variables:
        done, _, exit_s = _run(work, variables)
    assert done.returncode == 3, done.stderr
    assert exit_s <= _TIMEOUT_S + 0.2 + 3 * _NOISE_S
    assert work.trace()[-1]["reason"] == "SystemExit: 3"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_live_collector_takes_at_most_half_a_second(work: Workplace, protocol: str) -> None:
    """Finish with a collector that answers ends within 0.5 s, with everything delivered."""
    with _endpoint("live", protocol) as variables:
        done, said, _ = _run(work, variables, "finish")
    assert done.returncode == 3, done.stderr
    assert said["finish_s"] <= 0.5
    assert events_of(work.trace(), "dropped") == []
    assert done.stderr == ""


def test_sigterm_with_a_dead_endpoint_is_bounded(work: Workplace) -> None:
    """A signal's end waits no longer for a black hole than any other, and the process dies of the signal."""
    program = """
        import runspan, time
        with runspan.start_run("exit", run_id="r") as run:
            with run.span("work"):
                pass
            print("ready", flush=True)
            while True:
                time.sleep(0.01)
    """
    with _endpoint("black hole", "grpc") as variables:
        process = work.start(program, pass_fds=(), **variables)
        assert process.stdout is not None
        process.stdout.readline()
        began_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        done = wait_for(process, began_s)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert done.elapsed_s <= _TIMEOUT_S + 0.2 + 3 * _NOISE_S
    assert work.trace()[-1]["reason"] == "SIGTERM"


def test_a_run_left_open_with_a_dead_endpoint_ends_at_exit(work: Workplace) -> None:
    """No thread can be started while the interpreter ends: the end needs none, and is bounded."""
    program = """
        import runspan, sys, time
        run = runspan.start_run("exit", run_id="r")
        run.log_metric("loss", 1.0)
        print(time.time(), flush=True)
        sys.exit(3)
    """
    with _endpoint("refused", "http/protobuf") as variables:
        done = work.run(program, name="train", **variables)
        exit_s = time.time() - float(done.stdout)
    assert done.returncode == 3, done.stderr
    assert exit_s <= _TIMEOUT_S + 0.2 + 3 * _NOISE_S
    assert "Traceback" not in done.stderr
    assert work.trace()[-1]["reason"] == "exit"


def test_a_short_job_delivers_its_last_values(work: Workplace) -> None:
    """Case 52: a job shorter than the export interval that ends in an exception: its last values and status arrive."""
    with OtlpReceiver() as receiver:
        variables = {**_variables(receiver.port, "grpc"), "RUNSPAN_METRIC_INTERVAL_S": "60"}
        done = work.run(
            """
            import runspan
            with runspan.start_run("short", run_id="r") as run:
                run.log_metric("loss", 0.5)
                run.log_metric("loss", 0.25)
                run.count("images", 7)
                raise ValueError("bad")
            """,
            name="train",
            **variables,
        )
        values = [point.value for point in receiver.points_of("runspan.metric.value", runspan_metric_key="loss")]
        counts = receiver.points_of("runspan.metric.count", runspan_metric_key="images")
        statuses = {
            point.attributes["runspan.run.status"]: point.value for point in receiver.points_of("runspan.run.status")
        }
        (run_span,) = [span for span in receiver.spans if span.name == "run"]
    assert done.returncode == 1
    assert values == [0.25, None]  # the last value, and the end of the series
    assert [point.value for point in counts] == [7]
    assert statuses == {"pending": 0, "running": 0, "success": 0, "failed": 1, "cancelled": 0}
    assert run_span.attributes["runspan.run.status"] == "failed"
    assert run_span.attributes["runspan.metric.loss"] == 0.25
    assert run_span.status == 2
