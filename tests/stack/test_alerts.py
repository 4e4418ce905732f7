"""Alerts about real runs in a real Prometheus, with the shipped rules and thresholds of seconds instead of minutes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from support.stack import running_stack
from support.stack_clients import eventually
from support.stack_runs import Training

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.stack import Stack

pytestmark = pytest.mark.stack

STALLED, SILENT = "RunspanRunStalled", "RunspanHeartbeatLost"
#: Texts of the shipped files, and what stands there instead.
IN_SECONDS = {
    "evaluation_interval: 15s": "evaluation_interval: 1s",
    "interval: 15s": "interval: 1s",
    "expr: vector(600)": "expr: vector(6)",
    "expr: vector(120)": "expr: vector(6)",
    "for: 1m": "for: 1s",
}

#: Steps together: each rank waits for all others' last step, as in all_reduce.
TRAINING = """
from pathlib import Path

def train(run):
    rank, ranks = run.rank_context.rank, run.rank_context.world_size
    for step in range(100_000):
        with run.step(step):
            Path(f"step-{rank}.tmp").write_text(str(step))
            os.replace(f"step-{rank}.tmp", f"step-{rank}")
            while any(int(Path(f"step-{peer}").read_text()) < step if Path(f"step-{peer}").exists() else True
                      for peer in range(ranks)):
                time.sleep(0.01)
                if Path("end").exists():
                    return
            time.sleep(0.02)
        if Path("end").exists():
            return
"""


@pytest.fixture(scope="module")
def quick_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Run a stack whose alerts fire within seconds."""
    with running_stack(tmp_path_factory.mktemp("stack"), edits=IN_SECONDS) as running:
        yield running


def firing(stack: Stack, training: Training) -> dict[str, str]:
    """Return the rank that each firing alert of a training names, by the alert's name."""
    alerts = [alert for alert in stack.prometheus.client.alerts() if alert["state"] == "firing"]
    of_run = [alert["labels"] for alert in alerts if alert["labels"].get("runspan_run_id") == training.run_id]
    assert len(of_run) == len({labels["alertname"] for labels in of_run}), "an alert fires twice"
    return {labels["alertname"]: labels.get("runspan_rank", "") for labels in of_run}


def kill(training: Training) -> None:
    """Kill the ranks that are still there, and close their pipes."""
    for process in training.processes:
        process.kill()
        process.communicate()


def test_rank_stopped_by_sigstop_is_told_until_sigcont(quick_stack: Stack, tmp_path: Path) -> None:
    """Case 48: a rank stopped by SIGSTOP stalls its run and is silent; SIGCONT resolves both, and the end is quiet."""
    training = Training(tmp_path, quick_stack, TRAINING, ranks=2)
    training.start()
    stepping = training.select("runspan:rank_step_time_seconds:last1d")
    present = training.select("runspan:rank_present:heartbeat_time_seconds")

    def is_well() -> None:
        assert len(quick_stack.prometheus.client.query(f"time() - {stepping} < 4")) == 2
        # A rank that was not heard of since the last one's start is missing, not silent.
        assert len(quick_stack.prometheus.client.query(present)) == 2
        assert firing(quick_stack, training) == {}

    def is_told() -> None:
        told = firing(quick_stack, training)
        assert set(told) == {STALLED, SILENT}
        # Which rank made its last step first is a matter of milliseconds; which one is silent is not.
        assert told[SILENT] == "1"

    try:
        eventually(is_well, timeout_s=60)
        training.processes[1].send_signal(signal.SIGSTOP)
        eventually(is_told, timeout_s=60)
        for alert in quick_stack.prometheus.client.alerts():
            assert "error" not in alert["annotations"]["description"]
        training.processes[1].send_signal(signal.SIGCONT)
        eventually(is_well, timeout_s=60)
        (tmp_path / "end").touch()
        assert [ended.returncode for ended in training.wait()] == [0, 0]
    finally:
        kill(training)
    quiet_for_s = 12
    began = quick_stack.prometheus.client.query("time()")[0].value

    def is_over() -> None:
        assert quick_stack.prometheus.client.query("time()")[0].value > began + quiet_for_s

    eventually(is_over, timeout_s=60)
    assert firing(quick_stack, training) == {}


def test_killed_job_is_told_and_its_resume_resolves_it(quick_stack: Stack, tmp_path: Path) -> None:
    """Case 48: a job killed by SIGKILL is told, over a restart of Prometheus too, until it is resumed."""
    training = Training(tmp_path, quick_stack, TRAINING, ranks=2)
    training.start()

    def has_stepped() -> None:
        assert len(quick_stack.prometheus.client.query(training.select("runspan_step_last"))) == 2

    def is_told() -> None:
        assert set(firing(quick_stack, training)) == {STALLED, SILENT}

    def is_resolved() -> None:
        assert firing(quick_stack, resumed) == {}

    eventually(has_stepped, timeout_s=60)
    kill(training)
    eventually(is_told, timeout_s=60)
    quick_stack.prometheus.stop()
    quick_stack.prometheus.start()
    eventually(is_told, timeout_s=60)
    for left in tmp_path.glob("step-*"):
        left.unlink()
    resumed = Training(tmp_path, quick_stack, TRAINING, ranks=2, experiment=training.experiment, run_id=training.run_id)
    resumed.start()
    try:
        eventually(is_resolved, timeout_s=60)
        (tmp_path / "end").touch()
        assert [ended.returncode for ended in resumed.wait()] == [0, 0]
    finally:
        kill(resumed)


def test_every_rule_evaluates(quick_stack: Stack) -> None:
    """Prometheus evaluates each shipped rule without an error."""

    def all_evaluated() -> None:
        rules = [rule for group in quick_stack.prometheus.client.rules() for rule in group["rules"]]
        assert len(rules) > 40
        assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []

    eventually(all_evaluated, timeout_s=60)
