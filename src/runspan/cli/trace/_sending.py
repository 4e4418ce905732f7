"""Traces on their way to an OTLP endpoint: where to, and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runspan.cli._output import counted, note, say

if TYPE_CHECKING:
    from runspan.config import TracingConfig
    from runspan.replay import ReplayReport

__all__ = ["print_sent", "sending_config"]


def sending_config(endpoint: str | None) -> TracingConfig:
    """Return the environment's configuration, which sends to another endpoint where one is given.

    Raises:
        ConfigError: a setting or the endpoint cannot be used.
    """
    from runspan._endpoints import guess_protocol  # noqa: PLC0415 - a command loads what it needs
    from runspan.config import TracingConfig  # noqa: PLC0415

    config = TracingConfig.from_env()
    return config if endpoint is None else config.with_otlp_export(endpoint, guess_protocol(endpoint))


def print_sent(report: ReplayReport, lead: str) -> None:
    """Print what was sent and what was left out; tell on stderr what was not taken.

    Args:
        report: what became of the traces.
        lead: stands before the numbers, and tells the outcome.
    """
    sent = f"{counted(report.spans, 'span')} and {counted(report.points, 'point')} sent"
    say(f"{lead} {sent}, of {counted(report.traces, 'trace')}")
    if report.spans_over_budget:
        say(f"{counted(report.spans_over_budget, 'span')} beyond max_exported_spans left out, as in the live export")
    if report.values_too_old:
        say(f"{counted(report.values_too_old, 'value')} left out that a metrics store takes no more")
    for reason, count in report.lost.items():
        note(f"not taken: {count} ({reason})")
    for warning in report.warnings:
        note(warning)
