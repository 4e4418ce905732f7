"""The dashboard over all runs: what runs, how fast, what needs somebody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grafana_foundation_sdk.builders import dashboard

from dashboards.panels import (
    RUN_STATES,
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
from dashboards.selectors import BY_RUN, EXPERIMENT, newest

if TYPE_CHECKING:
    from grafana_foundation_sdk.models.dashboard import Dashboard

__all__ = ["build"]

_RUN_LEGEND = "{{runspan_experiment_name}} {{runspan_run_id}}"
_RUN_PAGE = (
    "/d/runspan-run?var-experiment=${__data.fields.experiment:percentencode}&var-run=${__value.text:percentencode}"
)
_RUN_LABELS = {"runspan_experiment_name": "experiment", "runspan_run_id": "run"}


def _runs_in_state(code: int) -> str:
    return f"count(runspan:run_state:code{{{EXPERIMENT}}} == {code}) or vector(0)"


def build() -> Dashboard:
    """Return the dashboard."""
    board = dashboard_builder(
        "Fleet of runs",
        "runspan-fleet",
        "Which runs there are, how fast they go, and what needs somebody.",
        time_from="now-6h",
    ).with_variable(
        label_variable("experiment", "Experiment", "runspan_run_status", "runspan_experiment_name", multi=True)
    )
    board = (
        board.with_panel(number("Running", _runs_in_state(1), width=4))
        .with_panel(
            number(
                "Silent",
                _runs_in_state(5),
                width=4,
                warn_from=1,
                description="Open runs of which at least one rank sends no heartbeat.",
            )
        )
        .with_panel(
            number(
                "Failed today",
                _runs_in_state(4),
                width=4,
                warn_from=1,
                description="Runs whose newest attempt failed within the last day.",
            )
        )
        .with_panel(
            number(
                "Ranks at work",
                f"count(runspan:rank_live:heartbeat_time_seconds{{{EXPERIMENT}}}) or vector(0)",
                width=4,
            )
        )
        .with_panel(
            number(
                "Steps a second",
                f"sum(runspan:run_step_rate:rate5m{{{EXPERIMENT}}}) or vector(0)",
                width=4,
                description="Over all runs.",
            )
        )
        .with_panel(
            number(
                "Alerts",
                'count(ALERTS{alertstate="firing", alertname=~"Runspan.+"}) or vector(0)',
                width=4,
                warn_from=1,
                description="Alerts that fire now, over all experiments and the pipeline.",
            )
        )
    )
    board = board.with_panel(
        records(
            "Runs",
            [
                Column(
                    "state",
                    f"max by ({BY_RUN}) ({newest(f'runspan:run_state:code{{{EXPERIMENT}}}')})",
                    states=RUN_STATES,
                ),
                Column(
                    "started",
                    f"1000 * min by ({BY_RUN}) ({newest(f'runspan_run_start_time_seconds{{{EXPERIMENT}}}')})",
                    unit="dateTimeFromNow",
                ),
                Column(
                    "ranks",
                    f"count by ({BY_RUN}) "
                    f"(count by ({BY_RUN}, runspan_rank) ({newest(f'runspan_run_status{{{EXPERIMENT}}}')}))",
                ),
                Column("last step", f"max by ({BY_RUN}) ({newest(f'runspan_step_last{{{EXPERIMENT}}}')})"),
                Column(
                    "steps/s",
                    f"max by ({BY_RUN}) (runspan:run_step_rate:rate5m{{{EXPERIMENT}}})",
                    unit="short",
                    decimals=2,
                ),
                Column(
                    "lost to slowest rank",
                    f"max by ({BY_RUN}) (runspan:run_time_lost_to_slowest_rank:ratio5m{{{EXPERIMENT}}})",
                    unit="percentunit",
                    decimals=1,
                ),
            ],
            labels=_RUN_LABELS,
            height=10,
            description="Runs of the time range; the run's name opens its page.",
            link=("run", "Open the run", _RUN_PAGE),
        )
    ).with_panel(
        firing_alerts(
            "Firing alerts",
            'alertname=~"Runspan.+"',
            labels={
                "alertname": "alert",
                "severity": "severity",
                **_RUN_LABELS,
                "runspan_rank": "rank",
                "runspan_metric_key": "metric",
            },
        )
    )
    board = board.with_row(dashboard.Row("Over time")).with_panel(
        states(
            "States",
            Query(f"max by ({BY_RUN}) (runspan:run_state:code{{{EXPERIMENT}}})", _RUN_LEGEND),
            value_states=RUN_STATES,
            height=8,
            description="A run that has ended keeps its last state for a day.",
        )
    )
    return (
        board.with_panel(
            lines(
                "Step rate",
                [Query(f"runspan:run_step_rate:rate5m{{{EXPERIMENT}}}", _RUN_LEGEND)],
                unit="ops",
                width=12,
                description="Steps a second, mean of the ranks over five minutes.",
            )
        )
        .with_panel(
            lines(
                "Time lost to the slowest rank",
                [Query(f"runspan:run_time_lost_to_slowest_rank:ratio5m{{{EXPERIMENT}}}", _RUN_LEGEND)],
                unit="percentunit",
                width=12,
                description="The share of all ranks' time that goes into waiting for the slowest one.",
            )
        )
        .with_panel(
            lines(
                "Samples",
                [
                    Query(
                        f"sum by ({BY_RUN}) (rate(runspan_samples_total{{{EXPERIMENT}}}[$__rate_interval]))",
                        _RUN_LEGEND,
                    )
                ],
                unit="ops",
                width=12,
                description="Samples a second, over all ranks of a run.",
            )
        )
        .with_panel(
            lines(
                "Tokens",
                [
                    Query(
                        f"sum by ({BY_RUN}) (rate(runspan_tokens_total{{{EXPERIMENT}}}[$__rate_interval]))", _RUN_LEGEND
                    )
                ],
                unit="ops",
                width=12,
                description="Tokens a second, over all ranks of a run.",
            )
        )
        .build()
    )
