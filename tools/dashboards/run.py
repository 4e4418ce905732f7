"""The dashboard of one run: is it alive, what does it learn, where does the time go, which rank is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grafana_foundation_sdk.builders import dashboard, prometheus
from grafana_foundation_sdk.models import dashboard as models

from dashboards.panels import (
    PROMETHEUS,
    RUN_STATES,
    Column,
    Query,
    dashboard_builder,
    firing_alerts,
    label_variable,
    lines,
    number,
    rank_heat_map,
    records,
)
from dashboards.selectors import KEY, RANKS, RUN, in_rank_order, newest
from dashboards.traces import trace_list

if TYPE_CHECKING:
    from grafana_foundation_sdk.models.dashboard import Dashboard

__all__ = ["build"]

_RATE = "[$__rate_interval]"
_RANK = "rank {{runspan_rank}}"
_GPU = "rank {{runspan_rank}} {{hw_id}}"


def build() -> Dashboard:
    """Return the dashboard."""
    board = dashboard_builder(
        "One run",
        "runspan-run",
        "One run: its state, metrics, speed, phases, ranks, resources and traces.",
        time_from="now-3h",
    ).annotation(
        dashboard.AnnotationQuery()
        .name("Alerts")
        .datasource(PROMETHEUS)
        .enable(enable=True)
        .icon_color("red")
        .target(
            prometheus.Dataquery()
            .ref_id("Anno")
            .expr(f'ALERTS{{alertstate="firing", alertname=~"Runspan.+", {RUN}}}')
            .interval("15s")
        )
        .title_format("{{alertname}}")
        .text_format("{{severity}} rank {{runspan_rank}} {{runspan_metric_key}}")
    )
    board = _with_variables(board)
    board = _with_state(board)
    board = _with_metrics(board)
    board = _with_speed(board)
    board = _with_ranks(board)
    board = _with_resources(board)
    return _with_records(board).build()


def _with_variables(board: dashboard.Dashboard) -> dashboard.Dashboard:
    of_experiment = "runspan_run_status{runspan_experiment_name=~`${experiment:regex}`}"
    # Jaeger searches by service, which is the experiment unless OTEL_SERVICE_NAME says otherwise.
    service = label_variable("service", "Service", f"runspan_run_status{{{RUN}}}", "job", multi=False)
    return (
        board.with_variable(
            label_variable("experiment", "Experiment", "runspan_run_status", "runspan_experiment_name", multi=False)
        )
        .with_variable(label_variable("run", "Run", of_experiment, "runspan_run_id", multi=False, newest_first=True))
        .with_variable(label_variable("rank", "Rank", f"runspan_run_status{{{RUN}}}", "runspan_rank", multi=True))
        .with_variable(
            label_variable("key", "Metric", f"runspan_metric_value{{{RUN}}}", "runspan_metric_key", multi=True)
        )
        .with_variable(service.hide(models.VariableHide.HIDE_VARIABLE))
    )


def _with_state(board: dashboard.Dashboard) -> dashboard.Dashboard:
    heartbeat = f"runspan_run_heartbeat_time_seconds{{{RUN}}}"
    started = f"runspan_run_start_time_seconds{{{RUN}}}"
    return (
        board.with_panel(
            number("State", f"max({newest(f'runspan:run_state:code{{{RUN}}}')})", width=4, value_states=RUN_STATES)
        )
        .with_panel(
            number(
                "Duration",
                f"max({newest(heartbeat)}) - min({newest(started)})",
                width=4,
                unit="s",
                decimals=0,
                description="From the start of the first attempt to the last heartbeat.",
            )
        )
        .with_panel(
            number(
                "Ranks at work",
                f"count(runspan:rank_live:heartbeat_time_seconds{{{RUN}}}) or vector(0)",
                width=3,
                description="Ranks that have not ended and whose metrics still arrive.",
            )
        )
        .with_panel(
            number(
                "Attempts",
                f"count(count by (runspan_attempt) ({newest(f'runspan_run_status{{{RUN}}}')}))",
                width=3,
                description="More than one: the run was resumed.",
            )
        )
        .with_panel(number("Last step", f"max({newest(f'runspan_step_last{{{RUN}}}')})", width=4))
        .with_panel(
            number(
                "Since the last step",
                f"time() - max({newest(f'runspan_step_last_time_seconds{{{RUN}}}')})",
                width=3,
                unit="s",
                decimals=0,
            )
        )
        .with_panel(
            number(
                "Since the last checkpoint",
                f"time() - max({newest(f'runspan_checkpoint_last_time_seconds{{{RUN}}}')})",
                width=3,
                unit="s",
                decimals=0,
            )
        )
        .with_panel(
            firing_alerts(
                "Firing alerts",
                f'alertname=~"Runspan.+", {RUN}',
                labels={
                    "alertname": "alert",
                    "severity": "severity",
                    "runspan_rank": "rank",
                    "runspan_metric_key": "metric",
                    "runspan_signal": "signal",
                    "runspan_reason": "reason",
                },
                height=5,
            )
        )
    )


def _with_metrics(board: dashboard.Dashboard) -> dashboard.Dashboard:
    value = f"runspan_metric_value{{{RANKS}, {KEY}}}"
    newest_value = newest(f"runspan_metric_value{{{RANKS}}}")
    return (
        board.with_row(dashboard.Row("Metrics"))
        # Without the variable: whatever characters a key has, its newest value stands here.
        .with_panel(
            records(
                "Newest values",
                [
                    Column(title, f"{over} by (runspan_metric_key) ({newest_value})", unit="none")
                    for title, over in (("mean", "avg"), ("lowest rank", "min"), ("highest rank", "max"))
                ],
                labels={"runspan_metric_key": "metric"},
                height=8,
                description="The last value of every metric in the time range, over the chosen ranks.",
            )
        )
        .with_panel(
            lines(
                "$key",
                [
                    Query(f"avg({value})", "mean"),
                    Query(f"min({value})", "lowest rank"),
                    Query(f"max({value})", "highest rank"),
                ],
                unit="none",
                width=8,
                minimum=None,
                repeat="key",
                description="Over the chosen ranks, as of each export. The trace file has every step's value.",
            )
        )
        .with_panel(
            lines(
                "Counters",
                [
                    Query(
                        "sum by (runspan_metric_key, runspan_metric_unit) "
                        f"(rate(runspan_metric_count_total{{{RANKS}}}{_RATE}))",
                        "{{runspan_metric_key}} {{runspan_metric_unit}}",
                    )
                ],
                unit="cps",
                width=8,
                description="What the run counts (run.count), a second, over the chosen ranks.",
            )
        )
        .with_panel(
            lines(
                "Observations",
                [
                    Query(
                        f"histogram_quantile({quantile}, sum by (runspan_metric_key, runspan_metric_unit) "
                        f"(rate(runspan_metric_observation{{{RANKS}}}{_RATE})))",
                        f"{{{{runspan_metric_key}}}} {percent} {{{{runspan_metric_unit}}}}",
                    )
                    for quantile, percent in ((0.5, "median"), (0.95, "95 %"))
                ],
                unit="none",
                width=8,
                minimum=None,
                description="What the run observes (run.observe), over the chosen ranks.",
            )
        )
        .with_panel(
            lines(
                "NaN and infinite values",
                [
                    Query(
                        f"sum by (runspan_metric_key) (runspan_metric_nonfinite_total{{{RANKS}}})",
                        "{{runspan_metric_key}}",
                    )
                ],
                unit="none",
                width=8,
                description="Since the attempt's start. Nothing is good.",
            )
        )
    )


def _with_speed(board: dashboard.Dashboard) -> dashboard.Dashboard:
    steps = f"runspan_step_duration_seconds{{{RANKS}}}"
    phases = f"runspan_phase_duration_seconds{{{RANKS}}}"
    return (
        board.with_row(dashboard.Row("Speed"))
        .with_panel(
            lines(
                "Step rate",
                [
                    Query(f"avg(rate(runspan_steps_total{{{RANKS}}}{_RATE}))", "steps"),
                    Query(
                        f"scalar(runspan:threshold:throughput_drop_ratio) * runspan:run_step_rate:median1h{{{RUN}}}",
                        "alert",
                    ),
                ],
                unit="ops",
                width=8,
                description="Steps a second, mean of the chosen ranks. The alert's line is known after 20 minutes.",
            )
        )
        .with_panel(
            lines(
                "Step duration",
                [
                    Query(f"histogram_quantile(0.5, sum(rate({steps}{_RATE})))", "median"),
                    Query(f"histogram_quantile(0.95, sum(rate({steps}{_RATE})))", "95 %"),
                    Query(f"histogram_quantile(0.99, sum(rate({steps}{_RATE})))", "99 %", exemplars=True),
                ],
                unit="s",
                width=8,
                description="Over the chosen ranks. A diamond is a captured step: it opens its trace.",
            )
        )
        .with_panel(
            lines(
                "Phases of a step",
                [
                    Query(
                        f"sum by (runspan_phase) (histogram_sum(rate({phases}{_RATE}))) "
                        f"/ ignoring (runspan_phase) group_left () sum(histogram_count(rate({steps}{_RATE})))",
                        "{{runspan_phase}}",
                    )
                ],
                unit="s",
                width=8,
                stacked=True,
                description="Seconds of a mean step that each phase takes, over the chosen ranks.",
            )
        )
        .with_panel(
            lines(
                "Samples and tokens",
                [
                    Query(f"sum(rate(runspan_samples_total{{{RANKS}}}{_RATE}))", "samples"),
                    Query(f"sum(rate(runspan_tokens_total{{{RANKS}}}{_RATE}))", "tokens"),
                ],
                unit="ops",
                width=8,
                description="A second, over the chosen ranks.",
            )
        )
        .with_panel(
            lines(
                "Time lost to the slowest rank",
                [Query(f"runspan:run_time_lost_to_slowest_rank:ratio5m{{{RUN}}}", "lost")],
                unit="percentunit",
                width=8,
                description="The share of all ranks' time that goes into waiting for the slowest one.",
            )
        )
        .with_panel(
            lines(
                "Checkpoints",
                [
                    Query(
                        f"histogram_avg(sum(rate(runspan_checkpoint_duration_seconds{{{RUN}}}[1h])))",
                        "mean of the hour",
                    ),
                    Query(f"time() - max(runspan_checkpoint_last_time_seconds{{{RUN}}})", "age of the newest"),
                ],
                unit="s",
                width=8,
            )
        )
    )


def _with_ranks(board: dashboard.Dashboard) -> dashboard.Dashboard:
    by_rank = "by (runspan_rank)"
    return (
        board.with_row(dashboard.Row("Ranks"))
        .with_panel(
            rank_heat_map(
                "Work a step, by rank",
                in_rank_order(f"runspan:rank_busy_seconds:mean5m{{{RANKS}}}"),
                unit="s",
                width=12,
                height=12,
                description="Seconds of work in a step: without waiting in all_reduce. A dark row is a slow rank.",
            )
        )
        .with_panel(
            rank_heat_map(
                "Duration of a step, by rank",
                in_rank_order(f"histogram_avg(sum {by_rank} (rate(runspan_step_duration_seconds{{{RANKS}}}{_RATE})))"),
                unit="s",
                width=12,
                height=12,
                description="Seconds from a step's start to its end. Ranks that wait for each other look alike.",
            )
        )
        .with_panel(
            lines(
                "Skew by rank",
                [
                    Query(f"runspan:rank_skew:ratio5m{{{RANKS}}}", _RANK),
                    Query("runspan:threshold:straggler_ratio", "alert"),
                ],
                unit="none",
                width=12,
                minimum=None,
                description="How many times as long as the median rank it works for a step.",
            )
        )
        .with_panel(
            lines(
                "Last step by rank",
                [Query(f"max {by_rank} (runspan_step_last{{{RANKS}}})", _RANK)],
                unit="none",
                width=12,
                minimum=None,
                description="A rank whose line is flat while others rise has stopped.",
            )
        )
        .with_panel(
            records(
                "Ranks",
                [
                    Column("attempts", f"count {by_rank} ({newest(f'runspan_run_start_time_seconds{{{RANKS}}}')})"),
                    Column("last step", f"max {by_rank} ({newest(f'runspan_step_last{{{RANKS}}}')})"),
                    Column(
                        "heartbeat",
                        f"1000 * max {by_rank} ({newest(f'runspan_run_heartbeat_time_seconds{{{RANKS}}}')})",
                        unit="dateTimeFromNow",
                    ),
                    Column("work a step", f"max {by_rank} (runspan:rank_busy_seconds:mean5m{{{RANKS}}})", unit="s"),
                    Column("skew", f"max {by_rank} (runspan:rank_skew:ratio5m{{{RANKS}}})", decimals=2),
                    Column("memory", f"max {by_rank} (process_memory_usage_bytes{{{RANKS}}})", unit="bytes"),
                ],
                labels={"runspan_rank": "rank"},
                height=9,
                sort_by="skew",
            )
        )
        .with_panel(
            records(
                "Processes",
                [
                    Column(
                        "seen",
                        "max by (runspan_rank, runspan_attempt, host_name, process_pid, runspan_device) "
                        f"({newest(f'target_info{{{RANKS}}}')})",
                    )
                ],
                labels={
                    "runspan_rank": "rank",
                    "runspan_attempt": "attempt",
                    "host_name": "host",
                    "process_pid": "pid",
                    "runspan_device": "device",
                },
                height=7,
                description="Where each attempt of each rank ran.",
            )
        )
    )


def _with_resources(board: dashboard.Dashboard) -> dashboard.Dashboard:
    panels = (
        ("CPU", f"sum by (runspan_rank) (rate(process_cpu_time_seconds_total{{{RANKS}}}{_RATE}))", _RANK, "none",
         "Cores that each rank keeps busy."),
        ("Memory", f"max by (runspan_rank) (process_memory_usage_bytes{{{RANKS}}})", _RANK, "bytes",
         "Resident memory of each rank."),
        ("Threads", f"max by (runspan_rank) (process_thread_count{{{RANKS}}})", _RANK, "none", ""),
        ("Open files", f"max by (runspan_rank) (process_unix_file_descriptor_count{{{RANKS}}})", _RANK, "none", ""),
        ("Host CPU", f"max by (runspan_rank) (system_cpu_utilization_ratio{{{RUN}}})", "host of rank {{runspan_rank}}",
         "percentunit", "Busy share of each host, measured by its first rank."),
        ("GPU", f"max by (runspan_rank, hw_id) (hw_gpu_utilization_ratio{{{RANKS}}})", _GPU, "percentunit",
         "Busy share of each rank's device."),
        ("GPU temperature", f"max by (runspan_rank, hw_id) (hw_temperature_celsius{{{RANKS}}})", _GPU, "celsius", ""),
        ("GPU power", f"max by (runspan_rank, hw_id) (hw_power_watts{{{RANKS}}})", _GPU, "watt", ""),
    )  # fmt: skip
    board = board.with_row(dashboard.Row("Resources"))
    for title, expr, legend, unit, description in panels[:5]:
        board = board.with_panel(lines(title, [Query(expr, legend)], unit=unit, width=8, description=description))
    board = board.with_panel(
        lines(
            "Host memory",
            [
                Query(
                    f"sum by (runspan_rank) (system_memory_usage_bytes{{{RUN}}}) "
                    f"/ sum by (runspan_rank) (system_memory_limit_bytes{{{RUN}}})",
                    "host of rank {{runspan_rank}}",
                )
            ],
            unit="percentunit",
            width=8,
            description="Of the container's limit if it has one, else of the host's memory.",
        )
    )
    board = board.with_panel(
        lines(
            "GPU memory",
            [
                Query(
                    "max by (runspan_rank, hw_id) "
                    f"(hw_gpu_memory_usage_bytes{{{RANKS}}} / hw_gpu_memory_limit_bytes{{{RANKS}}})",
                    _GPU,
                ),
                Query("runspan:threshold:gpu_memory_ratio", "alert"),
            ],
            unit="percentunit",
            width=6,
        )
    )
    for title, expr, legend, unit, description in panels[5:]:
        board = board.with_panel(lines(title, [Query(expr, legend)], unit=unit, width=6, description=description))
    return board


def _with_records(board: dashboard.Dashboard) -> dashboard.Dashboard:
    return (
        board.with_row(dashboard.Row("Traces and alerts"))
        .with_panel(
            trace_list(
                "Traces",
                service="$service",
                tags="runspan.run.id=${run:doublequote}",
                width=12,
                height=9,
                description="The run's trace, and one for each captured step.",
            )
        )
        .with_panel(
            records(
                "Alerts in the time range",
                [
                    Column(
                        "for",
                        "15 * sum by (alertname, severity, runspan_rank, runspan_metric_key) "
                        f'(count_over_time(ALERTS{{alertstate="firing", alertname=~"Runspan.+", {RUN}}}[$__range]))',
                        unit="s",
                    )
                ],
                labels={
                    "alertname": "alert",
                    "severity": "severity",
                    "runspan_rank": "rank",
                    "runspan_metric_key": "metric",
                },
                width=12,
                height=9,
                description="Alerts of Prometheus that have fired, and how long.",
            )
        )
        .with_panel(
            lines(
                "Alerts raised by the run",
                [
                    Query(
                        f"sum by (runspan_level, runspan_rule) (runspan_alerts_total{{{RANKS}}})",
                        "{{runspan_level}} {{runspan_rule}}",
                    )
                ],
                unit="none",
                width=12,
                description="By its own rules, or by run.alert. Their text is in the trace: spans named alert.",
            )
        )
        .with_panel(
            lines(
                "Telemetry dropped",
                [
                    Query(
                        f"sum by (runspan_signal, runspan_reason) (runspan_events_dropped_total{{{RANKS}}})",
                        "{{runspan_signal}} {{runspan_reason}}",
                    )
                ],
                unit="none",
                width=12,
                description="What the exported copy lacks; the trace file has it, but for the signal file.",
            )
        )
    )
