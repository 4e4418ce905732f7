"""The dashboard of gate results over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.panels import (
    Column,
    Query,
    dashboard_builder,
    firing_alerts,
    label_variable,
    lines,
    number,
    records,
    states,
)
from dashboards.selectors import EXPERIMENT, KEY, newest

if TYPE_CHECKING:
    from grafana_foundation_sdk.models.dashboard import Dashboard

__all__ = ["build"]

_BENCHMARK = f"{EXPERIMENT}, runspan_gate_benchmark=~`${{benchmark:regex}}`"
_VERDICTS = {"0": ("failed", "red"), "1": ("passed", "green")}


def build() -> Dashboard:
    """Return the dashboard."""
    passed = f"runspan_gate_passed{{{_BENCHMARK}}}"
    metric = f"runspan_gate_metric{{{_BENCHMARK}, {KEY}}}"
    return (
        dashboard_builder(
            "Gate history",
            "runspan-gates",
            "Which benchmarks passed their gate, and how their metrics drift.",
            time_from="now-30d",
        )
        .with_variable(
            label_variable("experiment", "Experiment", "runspan_gate_passed", "runspan_experiment_name", multi=True)
        )
        .with_variable(
            label_variable(
                "benchmark", "Benchmark", f"runspan_gate_passed{{{EXPERIMENT}}}", "runspan_gate_benchmark", multi=True
            )
        )
        .with_variable(
            label_variable("key", "Metric", f"runspan_gate_metric{{{_BENCHMARK}}}", "runspan_metric_key", multi=True)
        )
        .with_panel(
            number(
                "Gate results",
                f"count({newest(passed)}) or vector(0)",
                width=8,
                description="Gate results in the time range.",
            )
        )
        .with_panel(
            number(
                "Passed", f"sum({newest(passed)}) / count({newest(passed)})", width=8, unit="percentunit", decimals=1
            )
        )
        .with_panel(number("Failed", f"count({newest(passed)} == 0) or vector(0)", width=8, warn_from=1))
        .with_panel(
            records(
                "Results",
                [
                    Column(
                        "verdict",
                        f"max by (runspan_gate_benchmark, runspan_run_id) ({newest(passed)})",
                        states=_VERDICTS,
                    ),
                    Column(
                        "started",
                        "1000 * max by (runspan_gate_benchmark, runspan_run_id) "
                        f"({newest(passed)} * 0 + on (runspan_run_id) group_left () "
                        "min by (runspan_run_id) "
                        f"({newest(f'runspan_run_start_time_seconds{{{EXPERIMENT}}}')}))",
                        unit="dateTimeAsIso",
                    ),
                ],
                labels={"runspan_gate_benchmark": "benchmark", "runspan_run_id": "run"},
                height=9,
                sort_by="started",
            )
        )
        .with_panel(
            states(
                "Verdicts",
                Query(
                    f"min by (runspan_gate_benchmark) (last_over_time({passed}[$__interval]))",
                    "{{runspan_gate_benchmark}}",
                ),
                value_states=_VERDICTS,
                height=8,
            )
        )
        .with_panel(
            lines(
                "$key",
                [
                    Query(
                        f"max by (runspan_gate_benchmark) (last_over_time({metric}[$__interval]))",
                        "{{runspan_gate_benchmark}}",
                    )
                ],
                unit="short",
                width=12,
                minimum=None,
                points_only=True,
                repeat="key",
                description="One point a gate run.",
            )
        )
        .with_panel(
            firing_alerts(
                "Failed gates",
                f'alertname="RunspanGateFailed", {EXPERIMENT}',
                labels={
                    "runspan_gate_benchmark": "benchmark",
                    "runspan_experiment_name": "experiment",
                    "runspan_run_id": "run",
                },
            )
        )
        .build()
    )
