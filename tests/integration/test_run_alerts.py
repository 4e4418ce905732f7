from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.programs import Workplace, events_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Trains until an alert asks it to stop, or for half a minute, and says how it went.
_TRAINING = """
    import math, os, sys, time
    import runspan

    def user_rule(view):
        if view.steps >= 50:
            return runspan.Alert("fifty steps", f"{view.steps} steps", "info")

    def broken(view):
        raise RuntimeError("a rule of the user's that does not work")

    config = runspan.TracingConfig(
        alert_webhook=sys.argv[1], alert_rules=("nonfinite_metric", user_rule, broken), stop_on_error=True,
        shutdown_timeout_s=10.0,
    )
    with runspan.start_run("alerts", storage=runspan.InMemoryStorage(), config=config) as run:
        for number in range(3_000):
            with run.step():
                time.sleep(0.01)
            run.log_metric("loss", 1.0 if number < 60 else math.nan)
            if run.should_stop:
                break
    print(number, flush=True)
"""


@pytest.fixture
def work(tmp_path: Path) -> Workplace:
    """Return an empty workplace."""
    return Workplace(tmp_path)


@pytest.fixture
def receiver(work: Workplace) -> Iterator[subprocess.Popen[str]]:
    """Start a receiver of alerts as a process of its own."""
    command = [sys.executable, "-m", "support.webhook_receiver"]
    with subprocess.Popen(command, env=work.environ(), stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.terminate()


def test_a_training_is_stopped_by_its_nan_and_the_receiver_is_told(
    work: Workplace, receiver: subprocess.Popen[str]
) -> None:
    """Each condition fires once: in the file, on stderr and at the receiver; should_stop ends the loop."""
    assert receiver.stdout is not None
    url = receiver.stdout.readline().strip()
    done = work.run(_TRAINING, url)
    assert done.returncode == 0, done.stderr
    assert 60 <= int(done.stdout) < 2_999
    received = [json.loads(receiver.stdout.readline()) for _ in range(2)]
    assert {document["title"] for document in received} == {"fifty steps", "loss is NaN"}
    alerts = events_of(work.trace(), "event", name="alert")
    assert sorted((alert["message"], alert["attributes"]["rule"]) for alert in alerts) == [
        ("fifty steps", "user_rule"),
        ("loss is NaN", "nonfinite_metric"),
    ]
    assert done.stderr.count("loss is NaN") == 1
    assert done.stderr.count("alert rule broken failed") == 1
    assert "hunter2" not in done.stderr


def test_a_rule_and_a_receiver_that_hang_hold_up_neither_training_nor_exit(
    work: Workplace, receiver: subprocess.Popen[str]
) -> None:
    """A user's rule that never returns and a webhook that never answers cost the end of a run its bound, no more."""
    assert receiver.stdout is not None
    url = receiver.stdout.readline().strip()
    receiver.send_signal(signal.SIGSTOP)  # it accepts connections, and does not answer
    process = work.start(
        """
        import sys, time
        import runspan

        def hangs(view):
            time.sleep(3_600)

        config = runspan.TracingConfig(alert_webhook=sys.argv[1], alert_rules=(hangs,), shutdown_timeout_s=0.5)
        run = runspan.start_run("alerts", storage=runspan.InMemoryStorage(), config=config)
        run.alert("mine")
        time.sleep(1.5)
        began = time.monotonic()
        run.finish()
        print(time.monotonic() - began)
        """,
        url,
    )
    done = wait_for(process)
    receiver.send_signal(signal.SIGCONT)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.5 + 0.2
    assert done.stderr.count("alert rule hangs does not return") == 1
    (dropped,) = events_of(work.trace(), "dropped", signal="webhook")
    assert (dropped["reason"], dropped["count"]) == ("shutdown_timeout", 1)
    assert work.trace()[-1]["kind"] == "terminal"
