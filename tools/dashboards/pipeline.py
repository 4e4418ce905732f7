"""The dashboard of the stack itself: what comes in, what goes out, what waits, what is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grafana_foundation_sdk.builders import dashboard

from dashboards.panels import Query, dashboard_builder, firing_alerts, lines, number

if TYPE_CHECKING:
    from grafana_foundation_sdk.models.dashboard import Dashboard

__all__ = ["build"]

_RATE = "[$__rate_interval]"


def build() -> Dashboard:
    """Return the dashboard."""
    board = dashboard_builder(
        "Pipeline health",
        "runspan-pipeline",
        "Whether everything that runs send arrives: collector, queues, Jaeger, Prometheus.",
        time_from="now-3h",
    )
    board = (
        board.with_panel(
            number(
                "Collector",
                'min(up{job="otelcol"})',
                width=4,
                value_states={"0": ("down", "red"), "1": ("up", "green")},
            )
        )
        .with_panel(
            number(
                "Jaeger", 'min(up{job="jaeger"})', width=4, value_states={"0": ("down", "red"), "1": ("up", "green")}
            )
        )
        .with_panel(
            number(
                "Fullest queue",
                "max(otelcol_exporter_queue_size / otelcol_exporter_queue_capacity)",
                width=4,
                unit="percentunit",
                decimals=1,
            )
        )
        .with_panel(
            number(
                "Lost by runs in the time range",
                "sum(last_over_time(runspan_events_dropped_total[$__range])) or vector(0)",
                width=4,
                description="Items that runs could not record or export; the trace files of the runs say which.",
            )
        )
        .with_panel(
            number(
                "Lost by the collector",
                'sum({__name__=~"otelcol_exporter_(enqueue|send)_failed_(spans|metric_points)"}) or vector(0)',
                width=4,
                warn_from=1,
                description="Since the collector's start.",
            )
        )
        .with_panel(number("Series now", "prometheus_tsdb_head_series", width=4, description="In Prometheus' head."))
    )
    board = board.with_panel(
        firing_alerts(
            "Firing alerts of the pipeline",
            'alertname=~"Runspan(Collector.+|TelemetryDropped)"',
            labels={
                "alertname": "alert",
                "severity": "severity",
                "exporter": "exporter",
                "receiver": "receiver",
                "runspan_run_id": "run",
                "runspan_signal": "signal",
                "runspan_reason": "reason",
            },
            height=6,
        )
    )
    board = (
        board.with_row(dashboard.Row("Collector"))
        .with_panel(
            lines(
                "Taken",
                [
                    Query(f"sum by (transport) (rate(otelcol_receiver_accepted_spans{_RATE}))", "spans {{transport}}"),
                    Query(
                        f"sum by (transport) (rate(otelcol_receiver_accepted_metric_points{_RATE}))",
                        "points {{transport}}",
                    ),
                ],
                unit="cps",
                width=8,
            )
        )
        .with_panel(
            lines(
                "Delivered",
                [
                    Query(f"sum by (exporter) (rate(otelcol_exporter_sent_spans{_RATE}))", "spans {{exporter}}"),
                    Query(
                        f"sum by (exporter) (rate(otelcol_exporter_sent_metric_points{_RATE}))", "points {{exporter}}"
                    ),
                ],
                unit="cps",
                width=8,
            )
        )
        .with_panel(
            lines(
                "Refused and failed",
                [
                    Query(
                        "sum by (__name__, receiver, exporter) "
                        '({__name__=~"otelcol_(exporter_(enqueue|send)_failed|receiver_refused)_(spans|metric_points)"})',
                        "{{__name__}} {{receiver}}{{exporter}}",
                    )
                ],
                unit="short",
                width=8,
                description="Since the collector's start.",
            )
        )
        .with_panel(
            lines(
                "Queues",
                [
                    Query(
                        "max by (exporter, data_type) (otelcol_exporter_queue_size / otelcol_exporter_queue_capacity)",
                        "{{exporter}} {{data_type}}",
                    ),
                    Query("runspan:threshold:collector_queue_ratio", "alert"),
                ],
                unit="percentunit",
                width=8,
                description="What waits to be delivered, of what can. It is kept in files.",
            )
        )
        .with_panel(lines("Memory", [Query("otelcol_process_memory_rss", "{{job}}")], unit="bytes", width=8))
        .with_panel(
            lines("CPU", [Query(f"rate(otelcol_process_cpu_seconds{_RATE})", "{{job}}")], unit="percentunit", width=8)
        )
    )
    board = (
        board.with_row(dashboard.Row("Runs"))
        .with_panel(
            lines(
                "Lost by runs",
                [
                    Query(
                        "sum by (runspan_signal, runspan_reason) (runspan_events_dropped_total)",
                        "{{runspan_signal}} {{runspan_reason}}",
                    )
                ],
                unit="short",
                width=8,
                description="Of the runs that are live. Budget and max_metric_keys are bounds of the exported copy.",
            )
        )
        .with_panel(
            lines(
                "Spans by name",
                [Query(f"sum by (span_name) (rate(runspan_spans_calls_total{_RATE}))", "{{span_name}}")],
                unit="cps",
                width=8,
                description="Spans that ended, over all runs.",
            )
        )
        .with_panel(
            lines(
                "Span duration, 95 %",
                [
                    Query(
                        f"histogram_quantile(0.95, sum by (span_name) (rate(runspan_spans_duration_seconds{_RATE})))",
                        "{{span_name}}",
                    )
                ],
                unit="s",
                width=8,
            )
        )
    )
    return (
        board.with_row(dashboard.Row("Prometheus"))
        .with_panel(lines("Series", [Query("prometheus_tsdb_head_series", "series")], unit="short", width=8))
        .with_panel(
            lines(
                "Samples taken",
                [Query(f"sum(rate(prometheus_tsdb_head_samples_appended_total{_RATE}))", "samples")],
                unit="cps",
                width=8,
            )
        )
        .with_panel(
            lines(
                "Rule evaluation",
                [
                    Query(
                        "max by (rule_group) "
                        '(label_replace(prometheus_rule_group_last_duration_seconds, "rule_group", "$1", '
                        '"rule_group", ".*;(.*)"))',
                        "{{rule_group}}",
                    )
                ],
                unit="s",
                width=8,
                description="Each group is evaluated every 15 seconds and must take far less.",
            )
        )
        .build()
    )
