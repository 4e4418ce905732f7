"""Series of trainings that never ran, for ``promtool test rules``: what happens when, and which alerts fire then."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Final

import yaml

from support.stack import CONFIG_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["MINUTE", "STALE", "RankAttempt", "Scenario"]

#: Seconds.
MINUTE: Final = 60
#: A point that ends a series.
STALE: Final = "stale"

_MISSING = "_"
_RULES = CONFIG_FOLDER / "prometheus" / "rules"
_STATUSES = ("pending", "running", "success", "failed", "cancelled")
_TIMEOUT_S = 60


class Scenario:
    """Series on a grid of 15 s, the rules' interval, that begins at Unix time 0, and expectations at points in time.

    Args:
        minutes: how long it lasts.
    """

    STEP_S: Final = 15

    def __init__(self, minutes: int) -> None:
        self._end_s = minutes * MINUTE
        self._series: list[dict[str, str]] = []
        self._expectations: list[dict[str, object]] = []

    def series(self, name: str, value_at: Callable[[int], float | str | None], **labels: str) -> None:
        """Add a series.

        Args:
            name: its name.
            value_at: gives its value at a time in s: None for no sample, :data:`STALE`, or text as promtool takes it.
            labels: its labels.
        """
        values = (value_at(time_s) for time_s in range(0, self._end_s + 1, self.STEP_S))
        text = " ".join(_MISSING if value is None else str(value) for value in values)
        self._series.append({"series": _selector(name, labels), "values": text})

    def fires(self, alert: str, at_s: int, *label_sets: dict[str, str]) -> None:
        """Expect that an alert fires then for exactly these sets of labels, which may name some of its labels only."""
        names = sorted({name for labels in label_sets for name in labels})
        samples = [{"labels": _selector("", labels), "value": 1} for labels in label_sets]
        expr = f'count by ({", ".join(names)}) (ALERTS{{alertname="{alert}", alertstate="firing"}})'
        self._expect(expr, at_s, samples)

    def is_quiet(self, alert: str, *at_s: int) -> None:
        """Expect that an alert does not fire at these times."""
        for time_s in at_s:
            self._expect(f'ALERTS{{alertname="{alert}", alertstate="firing"}}', time_s, [])

    def fired_times(self, alert: str, times: int) -> None:
        """Expect how often an alert began to fire, over the whole scenario and all its labels: how many are told."""
        firing = f'ALERTS{{alertname="{alert}", alertstate="firing"}}'
        onsets = (
            f"sum(count_over_time(({firing} unless {firing} offset {self.STEP_S}s)[{self._end_s}s:{self.STEP_S}s]))"
        )
        self._expect(onsets, self._end_s, [{"labels": "{}", "value": times}] if times else [])

    def value(self, expr: str, at_s: int, *samples: tuple[dict[str, str], float]) -> None:
        """Expect the samples that an expression has then, without their names."""
        self._expect(
            f"({expr}) + 0", at_s, [{"labels": _selector("", labels), "value": value} for labels, value in samples]
        )

    def check(self, promtool: Path, folder: Path) -> None:
        """Run it through the shipped rules.

        Raises:
            AssertionError: an expectation does not hold; with what promtool found.
        """
        done = self._run(promtool, folder, [{"promql_expr_test": self._expectations}])
        if done.returncode:
            raise AssertionError(f"{done.stdout}\n{done.stderr}")

    def rendered(self, alert: str, at_s: int, promtool: Path, folder: Path) -> str:
        """Return the alert with its labels and texts as promtool prints them: it is told to expect none."""
        expected_none = {"eval_time": f"{at_s}s", "alertname": alert, "exp_alerts": []}
        done = self._run(promtool, folder, [{"alert_rule_test": [expected_none]}])
        if not done.returncode:
            raise AssertionError(f"{alert} does not fire after {at_s} s")
        return done.stdout + done.stderr

    def _expect(self, expr: str, at_s: int, samples: list[dict[str, object]]) -> None:
        self._expectations.append({"expr": expr, "eval_time": f"{at_s}s", "exp_samples": samples})

    def _run(self, promtool: Path, folder: Path, checks: list[dict[str, object]]) -> subprocess.CompletedProcess[str]:
        document = {
            "rule_files": [str(_RULES / "*.yml")],
            "evaluation_interval": f"{self.STEP_S}s",
            # Prometheus evaluates groups side by side. Here what is read comes first.
            "group_eval_order": [
                "runspan-thresholds",
                "runspan-liveness",
                "runspan-speed",
                "runspan-loss",
                "runspan-gates",
                "runspan-liveness-alerts",
                "runspan-training-alerts",
                "runspan-pipeline-alerts",
            ],
            "tests": [{"interval": f"{self.STEP_S}s", "input_series": self._series, **each} for each in checks],
        }
        file = folder / "scenario.yml"
        file.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
        return subprocess.run(
            [str(promtool), "test", "rules", str(file)], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )


class RankAttempt:
    """One attempt of one rank, with the series that every run sends.

    Times are in s. The run makes a step every 15 s.

    Args:
        scenario: where its series go.
        start: when it starts.
        end: when it ends or is killed; None: it goes on beyond the scenario.
        status: its final status; None: it is killed or stopped, and its series just end.
        last_step: when it makes its last step, while it goes on to beat; None: it steps until its end.
        first_step: when it makes its first; None: at its start.
        steps: whether it makes any.
        rank: its rank.
        attempt: its attempt.
        world_size: of the run.
        run: the run's id.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        start: int = 0,
        end: int | None = None,
        status: str | None = None,
        last_step: int | None = None,
        first_step: int | None = None,
        steps: bool = True,
        rank: int = 0,
        attempt: int = 0,
        world_size: int = 1,
        run: str = "r",
    ) -> None:
        self._scenario = scenario
        self._start = start
        self._end = end
        self._status = status
        self.labels = {
            "job": "e",
            "instance": f"{run}/{rank}/{attempt}",
            "runspan_experiment_name": "e",
            "runspan_run_id": run,
            "runspan_rank": str(rank),
            "runspan_attempt": str(attempt),
        }
        self.live("runspan_run_heartbeat_time_seconds", float)
        self.kept("runspan_run_start_time_seconds", lambda _: 1.0)
        self.kept("target_info", lambda _: 1.0, runspan_world_size=str(world_size))
        for each in _STATUSES:
            self.kept("runspan_run_status", self._status_is(each), runspan_run_status=each)
        if steps:
            first = start if first_step is None else first_step
            last = self._scenario_end() if last_step is None else last_step
            self.kept(
                "runspan_step_last_time_seconds", lambda time_s: float(min(time_s, last)) if time_s >= first else None
            )
            self.kept(
                "runspan_steps_total",
                lambda time_s: float(max(0, min(time_s, last) - first)) / Scenario.STEP_S,
            )

    def live(self, name: str, value_at: Callable[[int], float | str | None], **labels: str) -> None:
        """Add a series that ends with the run, as live values do."""
        self._scenario.series(name, lambda time_s: self._sent(time_s, value_at, is_kept=False), **self.labels, **labels)

    def kept(self, name: str, value_at: Callable[[int], float | str | None], **labels: str) -> None:
        """Add a series whose last value is sent at the end, as counters and statuses are."""
        self._scenario.series(name, lambda time_s: self._sent(time_s, value_at, is_kept=True), **self.labels, **labels)

    def _sent(self, time_s: int, value_at: Callable[[int], float | str | None], *, is_kept: bool) -> float | str | None:
        if time_s < self._start or (self._end is not None and time_s > self._end):
            return None
        if time_s == self._end and self._status is None:
            return None
        if time_s == self._end and not is_kept:
            return STALE
        return value_at(time_s)

    def _status_is(self, status: str) -> Callable[[int], float]:
        return lambda time_s: float(status == (self._status if time_s == self._end else "running"))

    def _scenario_end(self) -> int:
        return 2**40 if self._end is None else self._end


def _selector(name: str, labels: dict[str, str]) -> str:
    matchers = (f"{label}={json.dumps(value, ensure_ascii=False)}" for label, value in labels.items())
    return f"{name}{{{', '.join(matchers)}}}"
