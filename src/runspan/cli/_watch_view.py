"""What one frame of ``runspan watch`` looks like: lines of text that fit a width and a height."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runspan.cli._output import (
    STATUS_STYLES,
    bar_means,
    clean,
    counted,
    format_age,
    format_bytes,
    format_duration,
    format_number,
    sparkline,
)
from runspan.frames import INTERRUPTED
from runspan.records import AlertLevel, RunStatus, Trend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from runspan.frames import Frame, FrameAlert, FrameMetric, FrameRank

__all__ = ["Page", "frame_lines", "status_line"]

_TREND_SIGNS = {Trend.RISING: "↗", Trend.FALLING: "↘", Trend.STABLE: "→"}
_LEVEL_STYLES = {
    AlertLevel.INFO: "cyan",
    AlertLevel.WARNING: "yellow",
    AlertLevel.ERROR: "red",
    AlertLevel.CRITICAL: "bold red",
}
#: What stands for a character where the terminal has ASCII alone.
_ASCII = str.maketrans("▁▂▃▄▅▆▇█·━─↗↘→µ…", "_.:-=+*#?#-/\\-u~")
_MAX_BARS = 32
_MIN_BARS = 8
_MAX_KEY = 28
_MIN_NAME, _BESIDE_NAME = 12, 40
_MAX_PROGRESS = 30
#: A rank that has not been heard of for so long is marked.
_SILENT_NS = 30_000_000_000
#: How many lines a part has at most where the height is not bounded.
_MAX_ROWS = 24
_MAX_SHOWN_ALERTS = 5


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What lines must fit.

    Attributes:
        width: columns.
        height: rows; None: as many as it takes.
        ascii_only: whether the terminal shows nothing but ASCII.
        is_cut: whether lines that are too long are cut; else the width only says how wide what is drawn may be.
    """

    width: int
    height: int | None = None
    ascii_only: bool = False
    is_cut: bool = True


def frame_lines(frame: Frame, page: Page, now_unix_nano: int, problem: str | None = None) -> list[Text]:
    """Return a frame as lines, none longer than the page is wide, and not more of them than it is high.

    Where the height does not do for all, alerts come first, then ranks in trouble, then metrics in first-logged order.

    Args:
        frame: what to show.
        page: where it must fit.
        now_unix_nano: the present, ns since the epoch.
        problem: why no newer frame can be had; None: this is the newest.
    """
    head = [_title(frame, page, now_unix_nano), _progress(frame, page)]
    problems = [*([] if problem is None else [problem]), *frame.problems]
    head += [_line((f"! {clean(text)}", "yellow")) for text in problems[:2]]
    usage = _usage(frame)
    if usage is not None:
        head.append(usage)
    room = None if page.height is None else page.height - len(head)
    alerts, ranks, metrics = _shares(frame, room)
    body = [
        *_section(_metric_lines(frame, page, metrics)),
        *_section(_rank_lines(frame, page, ranks, now_unix_nano)),
        *_section(_alert_lines(frame, alerts)),
    ]
    lines = [*head, *body][: page.height]
    for line in lines:
        if page.ascii_only:
            line.plain = line.plain.translate(_ASCII)
        if page.is_cut:
            line.truncate(page.width, overflow="crop" if page.ascii_only else "ellipsis")
    return lines


def status_line(frame: Frame) -> str:
    """Return a frame in one line, for terminals on which nothing can be drawn over, and for pipes."""
    lead = frame.lead
    parts = [frame.status if frame.reason is None else f"{frame.status} ({clean(frame.reason)})"]
    if lead is not None and lead.last_step is not None:
        parts.append(f"step {_steps_of(lead)}")
    if frame.step_rate_hz is not None and not frame.is_final:
        parts.append(f"{_rate(frame.step_rate_hz)}")
    if frame.eta_s is not None:
        parts.append(f"ETA {format_age(0, int(frame.eta_s * 1e9))}")
    shown = [metric for metric in frame.metrics if metric.latest is not None][:4]
    parts += [f"{clean(metric.key)} {format_number(metric.latest or 0.0)}" for metric in shown]
    if frame.slow_rank is not None:
        parts.append(f"rank {frame.slow_rank} is slow")
    if frame.alerts:
        newest = frame.alerts[-1]
        parts.append(f"{counted(len(frame.alerts), 'alert')}, the newest: {newest.level}: {clean(newest.title)}")
    return "  ".join(parts)


def _title(frame: Frame, page: Page, now_unix_nano: int) -> Text:
    run = frame.run
    status = frame.status if frame.reason is None else f"{frame.status} ({clean(frame.reason)})"
    ended = frame.end_unix_nano or (frame.last_seen_unix_nano if frame.status == INTERRUPTED else now_unix_nano)
    parts = [(status, f"bold {STATUS_STYLES.get(frame.status, '')}".strip())]
    if frame.start_unix_nano is not None and ended is not None:
        parts.append((f"  {format_age(frame.start_unix_nano, ended)}", ""))
    named = run.experiment if run.name is None else f"{run.experiment} / {run.name}"
    # The status must be seen, however long a name is.
    named = _cut(clean(named), max(_MIN_NAME, page.width - _BESIDE_NAME)) if page.is_cut else clean(named)
    return _line((named, "bold"), ("  ", ""), *parts, (f"  {clean(run.run_id)}", "dim"))


def _progress(frame: Frame, page: Page) -> Text:
    lead = frame.lead
    if lead is None or lead.last_step is None:
        return _line(("no step yet", "dim"))
    line = _line((f"step {_steps_of(lead)}", ""))
    rest = _line()
    if frame.step_rate_hz is not None:
        rest.append(f"  {_rate(frame.step_rate_hz)}")
    if frame.eta_s is not None:
        rest.append(f"  ETA {format_age(0, int(frame.eta_s * 1e9))}", style="bold")
    if lead.loop_total:
        share = min(1.0, lead.loop_done / lead.loop_total)
        percent = f" {int(share * 100)} %"
        width = min(_MAX_PROGRESS, page.width - len(line) - len(rest) - len(percent) - 2)
        if width >= _MIN_BARS:
            done = int(share * width)
            line.append("  ")
            line.append("━" * done, style="green")
            line.append("─" * (width - done), style="dim")
        line.append(percent)
    return line.append_text(rest)


def _steps_of(lead: FrameRank) -> str:
    if lead.loop_total is None:
        return f"{lead.last_step:,}"
    return f"{lead.last_step:,} ({lead.loop_done:,}/{lead.loop_total:,})"


def _rate(rate_hz: float) -> str:
    return f"{format_number(rate_hz)} steps/s" if rate_hz >= 1 else f"{format_duration(1e9 / rate_hz)}/step"


def _usage(frame: Frame) -> Text | None:
    usage = frame.usage
    parts = []
    if usage.cpu_util is not None:
        parts.append(f"CPU {usage.cpu_util:4.0%}")
    if usage.memory_used is not None and usage.memory_total:
        parts.append(_amount("memory", usage.memory_used, usage.memory_total))
    if usage.gpu_util is not None:
        parts.append(f"GPU {usage.gpu_util:4.0%}")
    if usage.gpu_memory_used is not None and usage.gpu_memory_total:
        parts.append(_amount("GPU memory", usage.gpu_memory_used, usage.gpu_memory_total))
    return _line(("  ".join(parts), "")) if parts else None


def _amount(name: str, used: int, total: int) -> str:
    return f"{name} {format_bytes(used)} of {format_bytes(total)} ({used / total:.0%})"


def _shares(frame: Frame, room: int | None) -> tuple[int, int, int]:
    """Return how many alerts, ranks and metrics are shown; each part also takes an empty line and a heading."""
    alerts, ranks, metrics = len(frame.alerts), len(frame.ranks), len(frame.metrics)
    if room is None:
        return min(alerts, 2 * _MAX_SHOWN_ALERTS), min(ranks, _MAX_ROWS), min(metrics, _MAX_ROWS)
    room -= 2 * sum(1 for count in (alerts, ranks, metrics) if count)
    alerts = min(alerts, _MAX_SHOWN_ALERTS, max(1, room // 4))
    room -= alerts
    # Metrics get at least half of the rest, and what the ranks do not need.
    shown_ranks = min(ranks, max(room // 2, room - metrics))
    shown_metrics = min(metrics, room - shown_ranks)
    return max(0, alerts), max(0, shown_ranks), max(0, shown_metrics)


def _section(lines: Sequence[Text]) -> list[Text]:
    return [_line(), *lines] if lines else []


def _metric_lines(frame: Frame, page: Page, limit: int) -> list[Text]:
    if limit == 0:
        return []
    left = len(frame.metrics) + frame.metrics_left_out - limit
    shown = frame.metrics[:limit]
    key_width = min(_MAX_KEY, max(6, *(len(_key(metric)) for metric in shown)))
    bars = max(_MIN_BARS, min(_MAX_BARS, page.width - key_width - 40))
    heading = f"{'METRIC':<{key_width}}  {'LAST':>10}  {'MIN':>10}  {'MAX':>10}  NEWEST"
    lines = [_line((heading, "bold"), (f"  +{left} more" if left else "", "dim"))]
    for metric in shown:
        values = [point.value for point in metric.points]
        finite = [value for value in values if value - value == 0]
        low, high = (format_number(min(finite)), format_number(max(finite))) if finite else ("-", "-")
        latest = "-" if metric.latest is None else format_number(metric.latest)
        is_bad = metric.latest is not None and metric.latest - metric.latest != 0
        trend = Trend.of([mean for mean in bar_means(values, bars) if mean is not None])
        lines.append(
            _line(
                (f"{_cut(_key(metric), key_width):<{key_width}}", ""),
                (f"  {latest:>10}", "bold red" if is_bad else "bold"),
                (f"  {low:>10}  {high:>10}  ", "dim"),
                (f"{sparkline(values, bars):<{min(bars, len(values))}}", "cyan"),
                (f" {_TREND_SIGNS[trend]}", ""),
            )
        )
    return lines


def _key(metric: FrameMetric) -> str:
    return clean(metric.key) if metric.rank == 0 else f"{clean(metric.key)} [rank {metric.rank}]"


def _rank_lines(frame: Frame, page: Page, limit: int, now_unix_nano: int) -> list[Text]:
    if limit == 0:
        return []
    shown = _chosen(frame, limit)
    left = max(len(frame.ranks), frame.run.world_size) - len(shown)
    longest = max((rank.own_step_ns or 0.0 for rank in frame.ranks), default=0.0)
    bars = max(4, min(_MAX_PROGRESS, page.width - 60))
    heading = f"RANK  {'STATUS':<11}  {'STEP':>9}  {'TIME':>8}  {'OWN':>8}"
    lines = [_line((heading, "bold"), (f"  +{left} more" if left > 0 else "", "dim"))]
    for rank in shown:
        is_slow = rank.rank == frame.slow_rank
        own = rank.own_step_ns
        length = round(bars * own / longest) if own and longest else 0
        seen_unix_nano = rank.last_seen_unix_nano or now_unix_nano
        line = _line(
            (f"{rank.rank:>4}  ", ""),
            (f"{rank.status:<11}", STATUS_STYLES.get(rank.status, "")),
            (f"  {'-' if rank.last_step is None else f'{rank.last_step:,}':>9}", ""),
            (f"  {'-' if rank.step_ns is None else format_duration(rank.step_ns):>8}", ""),
            (f"  {'-' if own is None else format_duration(own):>8}", "bold" if is_slow else ""),
        )
        if rank.status == RunStatus.RUNNING and now_unix_nano - seen_unix_nano > _SILENT_NS:
            line.append(f"  silent for {format_age(seen_unix_nano, now_unix_nano)}", style="yellow")
        else:
            line.append(f"  {'█' * length}", style="red" if is_slow else "green")
        if is_slow:
            line.append(" slow", style="bold red")
        lines.append(line)
    return lines


def _chosen(frame: Frame, limit: int) -> list[FrameRank]:
    """Return the ranks that are shown, by number: those in trouble and the slowest, where not all can be."""

    def matters(rank: FrameRank) -> tuple[bool, bool, float, int]:
        is_in_trouble = rank.status not in {RunStatus.RUNNING, RunStatus.SUCCESS, RunStatus.PENDING}
        return rank.rank != frame.slow_rank, not is_in_trouble, -(rank.own_step_ns or 0.0), rank.rank

    return sorted(sorted(frame.ranks, key=matters)[:limit], key=lambda rank: rank.rank)


def _alert_lines(frame: Frame, limit: int) -> list[Text]:
    if limit == 0:
        return []
    shown: Sequence[FrameAlert] = frame.alerts[-limit:]
    left = len(frame.alerts) - len(shown)
    lines = [_line(("ALERTS", "bold"), (f"  +{left} older" if left else "", "dim"))]
    for alert in reversed(shown):
        who = "" if frame.run.world_size == 1 else f"rank {alert.rank}: "
        said = f"{clean(alert.title)}: {clean(alert.text)}" if alert.text else clean(alert.title)
        lines.append(
            _line(
                (f"{_clock_time(alert.time_unix_nano)}  ", "dim"),
                (f"{alert.level:<8}", _LEVEL_STYLES.get(alert.level, "")),
                (f"  {who}{said}", ""),
            )
        )
    return lines


def _clock_time(time_unix_nano: int) -> str:
    from datetime import UTC, datetime  # noqa: PLC0415 - the formats of this module alone need none

    return f"{datetime.fromtimestamp(time_unix_nano // 1_000_000_000, UTC):%H:%M:%S}Z"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _line(*parts: tuple[str, str]) -> Text:
    from rich.text import Text  # noqa: PLC0415 - only who draws loads rich

    return Text.assemble(*parts, no_wrap=True, end="")
