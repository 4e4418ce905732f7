"""Prometheus' rules over scenarios of trainings, evaluated by the real promtool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.rule_scenarios import MINUTE, RankAttempt, Scenario

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.stack

RUN = {"runspan_run_id": "r"}
STALLED, SILENT, MISSING = "RunspanRunStalled", "RunspanHeartbeatLost", "RunspanRankMissing"
#: Every alert about a run's progress, none of which may speak of a run that is well.
ALL_ALERTS = (
    STALLED,
    SILENT,
    MISSING,
    "RunspanCollectorDown",
    "RunspanNonFiniteMetric",
    "RunspanLossSpike",
    "RunspanThroughputDrop",
    "RunspanStragglingRank",
    "RunspanCheckpointTooOld",
    "RunspanGpuMemoryNearlyFull",
    "RunspanGateFailed",
    "RunspanTelemetryDropped",
    "RunspanCollectorQueueNearlyFull",
    "RunspanCollectorLosesData",
)
#: What rule evaluation may add to a stated time: two intervals.
SLACK = 30


@pytest.fixture
def check(promtool: Path, tmp_path: Path) -> Callable[[Scenario], None]:
    """Return what runs a scenario through the rules."""
    return lambda scenario: scenario.check(promtool, tmp_path)


def _since(begin_s: int, value: float, before: float | None = None) -> Callable[[int], float | None]:
    """Return what has a value from a time on."""
    return lambda time_s: value if time_s >= begin_s else before


# All alerts


def test_healthy_run_fires_nothing_from_start_to_end(check: Callable[[Scenario], None]) -> None:
    """Case 48: a run of two ranks that starts, trains for an hour and finishes makes no alert, then or later."""
    scenario = Scenario(90)
    for rank in range(2):
        job = RankAttempt(scenario, start=MINUTE, end=60 * MINUTE, status="success", rank=rank, world_size=2)
        job.live("runspan_metric_value", lambda s: 2 / (1 + s / 600), runspan_metric_key="loss/train")
        job.kept("runspan_checkpoint_last_time_seconds", lambda s: float(s - s % 1800))
        job.live("hw_gpu_memory_usage_bytes", lambda _: 0.9, hw_id="GPU-1")
        job.live("hw_gpu_memory_limit_bytes", lambda _: 1.0, hw_id="GPU-1")
    scenario.series("up", lambda _: 1.0, job="otelcol", instance="collector:8888")
    for alert in ALL_ALERTS:
        scenario.fired_times(alert, 0)
    check(scenario)


def test_run_of_a_second_fires_nothing(check: Callable[[Scenario], None]) -> None:
    """Case 48: a run whose only export is its last leaves a final status and makes no alert."""
    scenario = Scenario(45)
    job = RankAttempt(scenario, start=MINUTE, end=MINUTE, status="failed")
    job.kept("runspan_metric_nonfinite_total", lambda _: 1.0, runspan_metric_key="loss")
    for alert in ALL_ALERTS:
        scenario.fired_times(alert, 0)
    check(scenario)


def test_alert_texts_have_no_errors(promtool: Path, tmp_path: Path) -> None:
    """Summary, description and runbook of an alert are complete when it fires, thresholds included."""
    scenario = Scenario(60)
    RankAttempt(scenario, end=5 * MINUTE, rank=3)
    text = scenario.rendered(SILENT, 20 * MINUTE, promtool, tmp_path)
    assert "Rank 3 (attempt 0) has sent no heartbeat for 15m 15s" in text
    assert "The limit is 2m 0s." in text
    assert "error" not in text.lower().replace("errors", "")


# Stalled and silent


@pytest.mark.parametrize("what", ["killed", "stopped"])
def test_killed_or_stopped_job_fires_stalled_and_silent(check: Callable[[Scenario], None], what: str) -> None:
    """Case 48: a job killed by SIGKILL or stopped by SIGSTOP ends its series, and both alerts fire long after that."""
    scenario = Scenario(75)
    RankAttempt(scenario, end=10 * MINUTE)
    if what == "stopped":
        # The collector answers for the host, and goes on.
        scenario.series("up", lambda _: 1.0, job="otelcol", instance="collector:8888")
    # A heartbeat is 2 min old, for 1 min; a step 10 min, for 1 min.
    scenario.is_quiet(SILENT, 12 * MINUTE)
    scenario.is_quiet(STALLED, 20 * MINUTE)
    for at_s in (13 * MINUTE + SLACK, 24 * MINUTE, 75 * MINUTE):
        scenario.fires(SILENT, at_s, {**RUN, "runspan_rank": "0", "severity": "critical"})
    for at_s in (21 * MINUTE + SLACK, 24 * MINUTE, 75 * MINUTE):
        scenario.fires(STALLED, at_s, {**RUN, "runspan_rank": "0", "severity": "critical"})
    scenario.fired_times(SILENT, 1)
    scenario.fired_times(STALLED, 1)
    check(scenario)


def test_hanging_job_that_still_beats_fires_stalled_only(check: Callable[[Scenario], None]) -> None:
    """A job whose steps are flat while it beats is stalled and not silent; when it steps again, the alert ends."""
    scenario = Scenario(70)
    job = RankAttempt(scenario, steps=False)

    # Hangs from minute 20 to 60.
    def last_step(time_s: int) -> float:
        return float(20 * MINUTE if 20 * MINUTE < time_s < 60 * MINUTE else time_s)

    job.kept("runspan_step_last_time_seconds", last_step)
    scenario.is_quiet(STALLED, 15 * MINUTE, 30 * MINUTE, 62 * MINUTE, 70 * MINUTE)
    scenario.fires(STALLED, 31 * MINUTE + SLACK, RUN)
    scenario.fired_times(STALLED, 1)
    scenario.fired_times(SILENT, 0)
    check(scenario)


@pytest.mark.parametrize("status", ["success", "failed", "cancelled"])
def test_finished_run_is_neither_stalled_nor_silent(check: Callable[[Scenario], None], status: str) -> None:
    """Case 48: a finished run of any status is silent for good reason."""
    scenario = Scenario(60)
    RankAttempt(scenario, end=10 * MINUTE, status=status)
    for alert in (STALLED, SILENT, MISSING):
        scenario.fired_times(alert, 0)
    check(scenario)


def test_run_that_has_just_started_is_not_stalled(check: Callable[[Scenario], None]) -> None:
    """A run has half an hour for its first step: compiling and loading are no stall."""
    scenario = Scenario(60)
    RankAttempt(scenario, first_step=28 * MINUTE)
    scenario.fired_times(STALLED, 0)
    check(scenario)


def test_run_that_never_makes_its_first_step_is_stalled(check: Callable[[Scenario], None]) -> None:
    """A run that beats, but has made no step and logged no metric after half an hour, hangs in its start."""
    scenario = Scenario(60)
    RankAttempt(scenario, steps=False)
    scenario.is_quiet(STALLED, 30 * MINUTE)
    scenario.fires(STALLED, 31 * MINUTE + SLACK, RUN)
    scenario.fired_times(STALLED, 1)
    check(scenario)


def test_run_without_steps_that_logs_metrics_is_not_stalled(check: Callable[[Scenario], None]) -> None:
    """A run that only evaluates makes no steps by design, which its metrics tell."""
    scenario = Scenario(50)
    job = RankAttempt(scenario, steps=False)
    job.live("runspan_metric_value", lambda s: 1.0 if s > 10 * MINUTE else None, runspan_metric_key="accuracy")
    scenario.fired_times(STALLED, 0)
    check(scenario)


def test_resumed_run_ends_the_alerts_and_fires_once_more(check: Callable[[Scenario], None]) -> None:
    """A killed run that is resumed is well again; killed once more, each alert fires once more."""
    scenario = Scenario(80)
    RankAttempt(scenario, end=15 * MINUTE)
    RankAttempt(scenario, start=35 * MINUTE, end=55 * MINUTE, attempt=1)
    for alert in (STALLED, SILENT):
        scenario.fires(alert, 30 * MINUTE, {**RUN, "runspan_attempt": "0"})
        scenario.is_quiet(alert, 36 * MINUTE, 50 * MINUTE, 57 * MINUTE)
        scenario.fires(alert, 75 * MINUTE, {**RUN, "runspan_attempt": "1"})
        scenario.fired_times(alert, 2)
    check(scenario)


def test_resumed_run_that_finishes_is_quiet(check: Callable[[Scenario], None]) -> None:
    """The attempt that was killed stays Running for good; the newest one's final status counts."""
    scenario = Scenario(80)
    RankAttempt(scenario, end=20 * MINUTE)
    RankAttempt(scenario, start=21 * MINUTE, end=40 * MINUTE, status="success", attempt=1)
    scenario.fired_times(SILENT, 0)
    scenario.fired_times(STALLED, 0)
    check(scenario)


def test_job_of_many_ranks_is_one_alert_that_names_the_first(check: Callable[[Scenario], None]) -> None:
    """One rank is killed, the others hang and are killed later: one alert, which names the first rank, all along."""
    scenario = Scenario(70)
    for rank in range(4):
        first = rank == 2
        RankAttempt(
            scenario,
            rank=rank,
            world_size=4,
            end=30 * MINUTE if first else 40 * MINUTE,
            last_step=30 * MINUTE if first else 30 * MINUTE + 15,
        )
    for at_s in (45 * MINUTE, 70 * MINUTE):
        scenario.fires(STALLED, at_s, {**RUN, "runspan_rank": "2"})
        scenario.fires(SILENT, at_s, {**RUN, "runspan_rank": "2"})
    scenario.fired_times(STALLED, 1)
    scenario.fired_times(SILENT, 1)
    check(scenario)


def test_liveness_alerts_keep_quiet_while_the_collector_is_down(check: Callable[[Scenario], None]) -> None:
    """Nothing arrives while the collector is down: that alone is told, and no run is called dead."""
    scenario = Scenario(60)

    def arrives(time_s: int) -> bool:
        return not 20 * MINUTE <= time_s < 45 * MINUTE

    labels = RankAttempt(scenario, start=10**6).labels
    for name in ("runspan_run_heartbeat_time_seconds", "runspan_step_last_time_seconds"):
        scenario.series(name, lambda s: float(s) if arrives(s) else None, **labels)
    scenario.series("up", lambda s: float(arrives(s)), job="otelcol", instance="collector:8888")
    scenario.is_quiet("RunspanCollectorDown", 20 * MINUTE + SLACK)
    scenario.fires("RunspanCollectorDown", 21 * MINUTE + SLACK, {"instance": "collector:8888", "severity": "critical"})
    scenario.fired_times("RunspanCollectorDown", 1)
    scenario.fired_times(SILENT, 0)
    scenario.fired_times(STALLED, 0)
    check(scenario)


# Ranks


def test_rank_that_never_came_fires_missing(check: Callable[[Scenario], None]) -> None:
    """A run of 12 ranks of which 11 are heard of lacks one, five minutes after the last one's start; not before."""
    scenario = Scenario(60)
    for rank in range(11):
        RankAttempt(scenario, start=rank * 15, rank=rank, world_size=12, end=40 * MINUTE, status="cancelled")
    scenario.is_quiet(MISSING, 5 * MINUTE)
    scenario.fires(MISSING, 9 * MINUTE, {**RUN, "runspan_world_size": "12", "severity": "warning"})
    scenario.is_quiet(MISSING, 41 * MINUTE)
    scenario.fired_times(MISSING, 1)
    check(scenario)


def test_rank_that_does_not_come_back_fires_missing_once_more(check: Callable[[Scenario], None]) -> None:
    """A resume without one of the ranks lacks it; that rank is missing then, and no longer silent."""
    scenario = Scenario(60)
    for rank in range(2):
        RankAttempt(scenario, rank=rank, world_size=2, end=30 * MINUTE)
    RankAttempt(scenario, rank=0, attempt=1, world_size=2, start=40 * MINUTE)
    scenario.is_quiet(MISSING, 35 * MINUTE, 44 * MINUTE)
    scenario.fires(MISSING, 50 * MINUTE, RUN)
    scenario.fired_times(MISSING, 1)
    scenario.is_quiet(SILENT, 50 * MINUTE, 60 * MINUTE)
    check(scenario)


def test_run_that_goes_on_with_fewer_ranks_is_whole(check: Callable[[Scenario], None]) -> None:
    """An elastic job that restarts with two of its four ranks lacks none, and none is silent."""
    scenario = Scenario(60)
    for rank in range(4):
        RankAttempt(scenario, rank=rank, world_size=4, end=30 * MINUTE)
    for rank in range(2):
        RankAttempt(scenario, rank=rank, attempt=1, world_size=2, start=32 * MINUTE)
    scenario.is_quiet(SILENT, 40 * MINUTE, 60 * MINUTE)
    scenario.fired_times(MISSING, 0)
    check(scenario)


def _histogram(sum_s: float, steps: float) -> str:
    """Return a native histogram of so many steps that took so long together."""
    return f"{{{{schema:0 sum:{sum_s} count:{steps} buckets:[{steps}]}}}}"


def _durations(seconds_at: Callable[[int], float]) -> Callable[[int], str]:
    """Return a histogram's value at each time of an hour, for a run that makes a step every 15 s from time 0 on."""
    sums = [0.0]
    for time_s in range(0, 60 * MINUTE, Scenario.STEP_S):
        sums.append(sums[-1] + seconds_at(time_s))
    return lambda time_s: _histogram(sums[time_s // Scenario.STEP_S], time_s // Scenario.STEP_S)


def _steady_durations(start: int, step_s: float) -> Callable[[int], str]:
    """Return a histogram's value at each time, for steps every 15 s since a start that all take so long."""

    def value_at(time_s: int) -> str:
        steps = (time_s - start) / Scenario.STEP_S
        return _histogram(step_s * steps, steps)

    return value_at


def test_slow_rank_among_ranks_that_wait_for_it_fires_straggling(check: Callable[[Scenario], None]) -> None:
    """The rank that works twice as long is named after five minutes, though all ranks' steps take equally long."""
    scenario = Scenario(60)

    def slowest(time_s: int) -> float:
        return 2.0 if 20 * MINUTE <= time_s < 45 * MINUTE else 1.0

    for rank in range(4):
        job = RankAttempt(scenario, rank=rank, world_size=4)
        waits = _durations((lambda _: 0.0) if rank == 3 else lambda s: slowest(s) - 1)
        job.kept("runspan_step_duration_seconds", _durations(slowest))
        job.kept("runspan_phase_duration_seconds", waits, runspan_phase="all_reduce")
    alert = "RunspanStragglingRank"
    scenario.is_quiet(alert, 20 * MINUTE, 25 * MINUTE)
    scenario.fires(alert, 32 * MINUTE, {**RUN, "runspan_rank": "3", "severity": "warning"})
    scenario.is_quiet(alert, 51 * MINUTE)
    scenario.fired_times(alert, 1)
    scenario.value(
        "runspan:rank_skew:ratio5m",
        40 * MINUTE,
        *[
            (
                {"runspan_experiment_name": "e", "runspan_run_id": "r", "runspan_rank": str(rank)},
                2.0 if rank == 3 else 1.0,
            )
            for rank in range(4)
        ],
    )
    # Three of four ranks wait for one of every two seconds.
    scenario.value(
        "runspan:run_time_lost_to_slowest_rank:ratio5m",
        40 * MINUTE,
        ({"runspan_experiment_name": "e", "runspan_run_id": "r"}, (2 - 1.25) / 2),
    )
    check(scenario)


def test_straggling_rank_of_a_finished_run_is_quiet_and_fires_after_a_resume(check: Callable[[Scenario], None]) -> None:
    """The alert ends with the run and comes back with the next attempt's slow rank."""
    scenario = Scenario(70)
    alert = "RunspanStragglingRank"
    for attempt, (start, end) in enumerate([(0, 20 * MINUTE), (40 * MINUTE, 60 * MINUTE)]):
        for rank in range(3):
            job = RankAttempt(
                scenario, rank=rank, world_size=3, attempt=attempt, start=start, end=end, status="success"
            )
            work_s = 3.0 if rank == 1 else 1.0
            job.kept(
                "runspan_step_duration_seconds",
                _steady_durations(start, work_s),
            )
    scenario.fires(alert, 15 * MINUTE, {**RUN, "runspan_rank": "1"})
    scenario.is_quiet(alert, 21 * MINUTE, 39 * MINUTE, 41 * MINUTE, 61 * MINUTE)
    scenario.fires(alert, 55 * MINUTE, {**RUN, "runspan_rank": "1"})
    scenario.fired_times(alert, 2)
    check(scenario)


# Metrics


def test_nan_fires_once_a_key_and_once_more_after_a_resume(check: Callable[[Scenario], None]) -> None:
    """A key whose first NaN makes its counter is told at once, over all ranks as one, and again in the next attempt."""
    scenario = Scenario(60)
    alert = "RunspanNonFiniteMetric"
    for attempt, (start, end) in enumerate([(0, 20 * MINUTE), (30 * MINUTE, 50 * MINUTE)]):
        for rank in range(2):
            job = RankAttempt(scenario, rank=rank, world_size=2, attempt=attempt, start=start, end=end, status="failed")
            job.kept(
                "runspan_metric_nonfinite_total",
                _since(start + 10 * MINUTE, 3.0),
                runspan_metric_key='loss "x"\\é',
            )
    told = {**RUN, "runspan_metric_key": 'loss "x"\\é', "severity": "warning"}
    scenario.is_quiet(alert, 9 * MINUTE, 21 * MINUTE, 31 * MINUTE, 39 * MINUTE, 51 * MINUTE)
    scenario.fires(alert, 10 * MINUTE + SLACK, told)
    scenario.fires(alert, 40 * MINUTE + SLACK, told)
    scenario.fired_times(alert, 2)
    check(scenario)


def _loss_with_spikes(time_s: int) -> float:
    spiking = any(from_min * MINUTE <= time_s < (from_min + 6) * MINUTE for from_min in (5, 30, 62))
    return 5.0 if spiking else 1.0


def test_loss_spike_fires_after_a_minute_and_not_in_the_beginning(check: Callable[[Scenario], None]) -> None:
    """A loss at five times its median for over a minute is told, within the first ten minutes it is not."""
    scenario = Scenario(70)
    alert = "RunspanLossSpike"
    for attempt, (start, end) in enumerate([(0, 45 * MINUTE), (50 * MINUTE, 64 * MINUTE)]):
        for rank in range(2):
            job = RankAttempt(
                scenario, rank=rank, world_size=2, attempt=attempt, start=start, end=end, status="success"
            )
            job.live("runspan_metric_value", _loss_with_spikes, runspan_metric_key="train/Loss")
            job.live("runspan_metric_value", _loss_with_spikes, runspan_metric_key="loss_scale")
            job.live("runspan_metric_value", _loss_with_spikes, runspan_metric_key="lr")
    told = {**RUN, "runspan_metric_key": "train/Loss", "severity": "warning"}
    # The first spike is within the first ten minutes; at minute 64 the run finishes amid its third.
    scenario.is_quiet(alert, 8 * MINUTE, 30 * MINUTE + SLACK, 38 * MINUTE, 62 * MINUTE + SLACK, 65 * MINUTE)
    scenario.fires(alert, 32 * MINUTE, told)
    scenario.fires(alert, 63 * MINUTE + SLACK, told)
    scenario.fired_times(alert, 2)
    check(scenario)


def _steps_made(start: int, slow: list[tuple[int, int]]) -> Callable[[int], float]:
    """Return the steps made since a start at one a second, and one every four seconds between pairs of minutes."""

    def since_zero(time_s: int) -> float:
        slow_s = sum(max(0, min(time_s, end * MINUTE) - begin * MINUTE) for begin, end in slow)
        return time_s - slow_s * 0.75

    return lambda time_s: since_zero(time_s) - since_zero(start)


def test_slower_steps_fire_throughput_drop_in_each_attempt(check: Callable[[Scenario], None]) -> None:
    """A run at a quarter of its speed is told after five minutes, once; in its first twenty minutes it is not."""
    scenario = Scenario(120)
    alert = "RunspanThroughputDrop"
    slow = [(5, 12), (40, 52), (100, 115)]
    for attempt, (start, end) in enumerate([(0, 60 * MINUTE), (65 * MINUTE, 110 * MINUTE)]):
        job = RankAttempt(scenario, attempt=attempt, start=start, end=end, status="success", steps=False)
        job.kept("runspan_steps_total", _steps_made(start, slow))
        job.kept("runspan_step_last_time_seconds", float)
    scenario.is_quiet(alert, 12 * MINUTE, 43 * MINUTE, 55 * MINUTE, 80 * MINUTE, 103 * MINUTE, 111 * MINUTE)
    scenario.fires(alert, 51 * MINUTE, {**RUN, "severity": "warning"})
    scenario.fires(alert, 109 * MINUTE + SLACK, RUN)
    scenario.fired_times(alert, 2)
    check(scenario)


def test_stalled_or_killed_run_is_not_called_slow(check: Callable[[Scenario], None]) -> None:
    """A run that stops stepping is one alert, not also a throughput drop."""
    scenario = Scenario(70)
    RankAttempt(scenario, run="hangs", last_step=40 * MINUTE)
    RankAttempt(scenario, run="killed", end=40 * MINUTE)
    scenario.fires(STALLED, 60 * MINUTE, {"runspan_run_id": "hangs"}, {"runspan_run_id": "killed"})
    scenario.fired_times("RunspanThroughputDrop", 0)
    check(scenario)


def test_old_checkpoint_fires_and_a_new_start_gets_its_time(check: Callable[[Scenario], None]) -> None:
    """A checkpoint two hours old is told; a resume with an old one has two hours for its next; none is none."""
    scenario = Scenario(300)
    alert = "RunspanCheckpointTooOld"
    RankAttempt(scenario, end=160 * MINUTE, status="failed").kept(
        "runspan_checkpoint_last_time_seconds", lambda s: float(min(s, 30 * MINUTE))
    )
    RankAttempt(scenario, attempt=1, start=165 * MINUTE, end=295 * MINUTE, status="success")
    RankAttempt(scenario, run="without")
    scenario.is_quiet(alert, 150 * MINUTE, 161 * MINUTE, 166 * MINUTE, 284 * MINUTE, 296 * MINUTE)
    scenario.fires(alert, 151 * MINUTE + SLACK, {**RUN, "severity": "warning"})
    scenario.fires(alert, 286 * MINUTE + SLACK, RUN)
    scenario.fired_times(alert, 2)
    check(scenario)


def test_old_checkpoint_of_a_killed_run_is_not_told(check: Callable[[Scenario], None]) -> None:
    """A killed run is silent, which is another alert."""
    scenario = Scenario(150)
    RankAttempt(scenario, end=15 * MINUTE).kept("runspan_checkpoint_last_time_seconds", lambda _: 10.0 * MINUTE)
    scenario.fired_times("RunspanCheckpointTooOld", 0)
    check(scenario)


def test_full_gpu_fires_once_a_run_and_in_each_attempt(check: Callable[[Scenario], None]) -> None:
    """Two GPUs at 97 % for five minutes are one alert, which ends with the run and comes back with a resume."""
    scenario = Scenario(65)
    alert = "RunspanGpuMemoryNearlyFull"
    for attempt, (start, end) in enumerate([(0, 25 * MINUTE), (35 * MINUTE, 60 * MINUTE)]):
        for rank in range(2):
            job = RankAttempt(
                scenario, rank=rank, world_size=2, attempt=attempt, start=start, end=end, status="success"
            )
            job.live("hw_gpu_memory_usage_bytes", _since(start + 10 * MINUTE, 97.0, 90.0), hw_id=f"GPU-{rank}")
            job.live("hw_gpu_memory_limit_bytes", lambda _: 100.0, hw_id=f"GPU-{rank}")
    scenario.is_quiet(alert, 9 * MINUTE, 15 * MINUTE - 15, 26 * MINUTE, 36 * MINUTE, 61 * MINUTE)
    scenario.fires(alert, 15 * MINUTE + SLACK, {**RUN, "severity": "warning"})
    scenario.fires(alert, 55 * MINUTE, RUN)
    scenario.fired_times(alert, 2)
    check(scenario)


def test_failed_gate_fires_until_a_later_run_passes(check: Callable[[Scenario], None]) -> None:
    """A gate that failed in a run which ended at once is told until the benchmark passes; the next one again."""
    scenario = Scenario(90)
    alert = "RunspanGateFailed"
    for run, minute, benchmarks in [
        ("r1", 10, {"fit": 0.0, "load": 1.0}),
        ("r2", 30, {"fit": 1.0, "load": 1.0}),
        ("r3", 60, {"fit": 0.0, "load": 1.0}),
    ]:
        job = RankAttempt(scenario, run=run, start=minute * MINUTE, end=(minute + 1) * MINUTE, status="success")
        for benchmark, passed in benchmarks.items():
            job.kept("runspan_gate_passed", _since(0, passed), runspan_gate_benchmark=benchmark)
    scenario.is_quiet(alert, 9 * MINUTE, 32 * MINUTE, 59 * MINUTE)
    for run, at_s in (("r1", 10 * MINUTE + SLACK), ("r1", 29 * MINUTE), ("r3", 61 * MINUTE), ("r3", 90 * MINUTE)):
        scenario.fires(alert, at_s, {"runspan_run_id": run, "runspan_gate_benchmark": "fit", "severity": "warning"})
    scenario.fired_times(alert, 2)
    check(scenario)


def test_gate_that_passes_in_a_later_attempt_is_quiet(check: Callable[[Scenario], None]) -> None:
    """The newest attempt's result of a resumed gate run counts."""
    scenario = Scenario(60)
    for attempt, (minute, passed) in enumerate([(10, 0.0), (40, 1.0)]):
        job = RankAttempt(scenario, attempt=attempt, start=minute * MINUTE, end=(minute + 1) * MINUTE, status="failed")
        job.kept("runspan_gate_passed", _since(0, passed), runspan_gate_benchmark="fit")
    scenario.fires("RunspanGateFailed", 30 * MINUTE, RUN)
    scenario.is_quiet("RunspanGateFailed", 42 * MINUTE, 60 * MINUTE)
    scenario.fired_times("RunspanGateFailed", 1)
    check(scenario)


# Pipeline


def test_dropped_telemetry_fires_but_for_the_bounds_of_the_copy(check: Callable[[Scenario], None]) -> None:
    """Case 46: lost events are told once a signal and reason; keys and spans beyond their bounds are as configured."""
    scenario = Scenario(65)
    alert = "RunspanTelemetryDropped"
    for attempt, (start, end) in enumerate([(0, 25 * MINUTE), (35 * MINUTE, 60 * MINUTE)]):
        for rank in range(2):
            job = RankAttempt(
                scenario, rank=rank, world_size=2, attempt=attempt, start=start, end=end, status="success"
            )
            for signal, reason in (("traces", "queue_full"), ("traces", "budget"), ("metrics", "max_metric_keys")):
                job.kept(
                    "runspan_events_dropped_total",
                    _since(start + 10 * MINUTE, 8000.0),
                    runspan_signal=signal,
                    runspan_reason=reason,
                )
    told = {**RUN, "runspan_signal": "traces", "runspan_reason": "queue_full", "severity": "warning"}
    scenario.is_quiet(alert, 11 * MINUTE - 15, 26 * MINUTE, 36 * MINUTE, 61 * MINUTE)
    scenario.fires(alert, 11 * MINUTE + SLACK, told)
    scenario.fires(alert, 55 * MINUTE, told)
    scenario.fired_times(alert, 2)
    check(scenario)


def test_filling_queue_of_the_collector_fires_each_time(check: Callable[[Scenario], None]) -> None:
    """A queue at 90 % for a minute is told, once; drained and full again, once more."""
    scenario = Scenario(60)
    alert = "RunspanCollectorQueueNearlyFull"
    labels = {"job": "otelcol", "exporter": "otlp_grpc/jaeger", "data_type": "traces"}
    full = [(10, 20), (40, 50)]
    scenario.series(
        "otelcol_exporter_queue_size",
        lambda s: 900.0 if any(begin * MINUTE <= s < end * MINUTE for begin, end in full) else 0.0,
        **labels,
    )
    scenario.series("otelcol_exporter_queue_capacity", lambda _: 1000.0, **labels)
    scenario.is_quiet(alert, 10 * MINUTE + SLACK, 21 * MINUTE, 51 * MINUTE)
    scenario.fires(alert, 11 * MINUTE + SLACK, {"exporter": "otlp_grpc/jaeger", "severity": "warning"})
    scenario.fires(alert, 45 * MINUTE, {"exporter": "otlp_grpc/jaeger"})
    scenario.fired_times(alert, 2)
    check(scenario)


def test_collector_that_loses_data_fires_and_ends_by_itself(check: Callable[[Scenario], None]) -> None:
    """The first loss makes its counter and is told; a quarter of an hour without more ends the alert."""
    scenario = Scenario(90)
    alert = "RunspanCollectorLosesData"
    scenario.series(
        "otelcol_exporter_enqueue_failed_spans",
        lambda s: None if s < 10 * MINUTE else 7.0 if s < 60 * MINUTE else 9.0,
        job="otelcol",
        exporter="otlp_grpc/jaeger",
    )
    scenario.series("otelcol_receiver_refused_spans", lambda _: 0.0, job="otelcol", receiver="otlp")
    told = {"exporter": "otlp_grpc/jaeger", "severity": "warning"}
    scenario.is_quiet(alert, 9 * MINUTE, 26 * MINUTE, 59 * MINUTE, 80 * MINUTE)
    scenario.fires(alert, 11 * MINUTE, told)
    scenario.fires(alert, 61 * MINUTE, told)
    scenario.fired_times(alert, 2)
    check(scenario)


def test_run_states_are_told_apart(check: Callable[[Scenario], None]) -> None:
    """A run is running, silent, or has the worst final status of its ranks' newest attempts."""
    scenario = Scenario(60)
    RankAttempt(scenario, run="runs")
    RankAttempt(scenario, run="silent", end=10 * MINUTE)
    RankAttempt(scenario, run="fine", end=10 * MINUTE, status="success")
    for rank, status in enumerate(["success", "failed", "cancelled"]):
        RankAttempt(scenario, run="worst", rank=rank, world_size=3, end=10 * MINUTE, status=status)
    RankAttempt(scenario, run="resumed", end=10 * MINUTE, status="failed")
    RankAttempt(scenario, run="resumed", attempt=1, start=11 * MINUTE, end=20 * MINUTE, status="cancelled")
    scenario.value(
        "runspan:run_state:code",
        30 * MINUTE,
        *[
            ({"runspan_experiment_name": "e", "runspan_run_id": run}, code)
            for run, code in {"runs": 1, "silent": 5, "fine": 2, "worst": 4, "resumed": 3}.items()
        ],
    )
    check(scenario)
