"""The records of runspan as protobuf messages, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor

from runspan.errors import RemoteError
from runspan.frames import INTERRUPTED, Frame, FrameAlert, FrameMetric, FramePoint, FrameRank, RunIdentity
from runspan.records import AlertLevel, MetricPoint, ResourceSnapshot, RunStatus, Trend
from runspan.rpc._pb import dashboard_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import msgspec
    from google.protobuf.message import Message

__all__ = [
    "from_frame",
    "from_point",
    "from_state",
    "from_status",
    "from_trend",
    "from_usage",
    "record_of",
    "to_frame",
    "to_points",
    "to_series_points",
    "to_state",
    "to_status",
    "to_trend",
    "to_usage",
]

_INT64_MAX = 2**63 - 1
_UINT32_MAX = 2**32 - 1
_STATUSES = {
    str(RunStatus.PENDING): pb.RUN_STATUS_PENDING,
    str(RunStatus.RUNNING): pb.RUN_STATUS_RUNNING,
    str(RunStatus.SUCCESS): pb.RUN_STATUS_SUCCESS,
    str(RunStatus.FAILED): pb.RUN_STATUS_FAILED,
    str(RunStatus.CANCELLED): pb.RUN_STATUS_CANCELLED,
    INTERRUPTED: pb.RUN_STATUS_INTERRUPTED,
}
_TRENDS = {Trend.RISING: pb.TREND_RISING, Trend.FALLING: pb.TREND_FALLING, Trend.STABLE: pb.TREND_STABLE}
_LEVELS = {
    AlertLevel.INFO: pb.ALERT_LEVEL_INFO,
    AlertLevel.WARNING: pb.ALERT_LEVEL_WARNING,
    AlertLevel.ERROR: pb.ALERT_LEVEL_ERROR,
    AlertLevel.CRITICAL: pb.ALERT_LEVEL_CRITICAL,
}
_STATUS_NAMES: dict[int, str] = {number: name for name, number in _STATUSES.items()}
_TREND_NAMES: dict[int, Trend] = {number: name for name, number in _TRENDS.items()}
_LEVEL_NAMES: dict[int, AlertLevel] = {number: name for name, number in _LEVELS.items()}

_M = TypeVar("_M", bound="Message")
_Named = TypeVar("_Named", bound=str)


def from_status(status: str) -> pb.RunStatus:
    """Return the enum value of a status."""
    return _STATUSES[status]


def to_status(number: int) -> str:
    """Return the status of an enum value.

    Raises:
        RemoteError: a newer server has one that this version does not know.
    """
    return _named(_STATUS_NAMES, number, "run status")


def from_trend(trend: Trend) -> pb.Trend:
    """Return the enum value of a trend."""
    return _TRENDS[trend]


def to_trend(number: int) -> Trend:
    """Return the trend of an enum value, as :func:`to_status` does a status."""
    return _named(_TREND_NAMES, number, "trend")


def from_point(point: MetricPoint) -> pb.MetricPoint:
    """Return the message of a metric point."""
    return pb.MetricPoint(
        key=_text(point.key),
        step=_int64(point.step),
        value=point.value,
        time_unix_nano=_int64(point.time_unix_nano),
        rank=point.rank,
        attempt=point.attempt,
    )


def to_points(messages: Iterable[pb.MetricPoint]) -> list[MetricPoint]:
    """Return the metric points of messages."""
    return [
        MetricPoint(each.key, each.step, each.value, each.time_unix_nano, each.rank, each.attempt) for each in messages
    ]


def to_series_points(points: Iterable[MetricPoint | FramePoint]) -> list[pb.SeriesPoint]:
    """Return the messages of the points of one series."""
    return [
        pb.SeriesPoint(step=_int64(point.step), time_unix_nano=_int64(point.time_unix_nano), value=point.value)
        for point in points
    ]


def from_usage(usage: ResourceSnapshot) -> pb.ResourceUsage:
    """Return the message of a resource sample; what is unmeasured is absent."""
    return _message(pb.ResourceUsage(), usage, usage.__struct_fields__)


def to_usage(message: pb.ResourceUsage) -> ResourceSnapshot:
    """Return the resource sample of a message."""
    return ResourceSnapshot(**{name: record_of(message, name) for name in ResourceSnapshot.__struct_fields__})


def from_state(frame: Frame) -> pb.RunState:
    """Return the message of where a run stands."""
    state = _message(pb.RunState(), frame, ("reason", "start_unix_nano", "end_unix_nano", "last_seen_unix_nano"))
    state.status = from_status(frame.status)
    _message(state.run, frame.run, RunIdentity.__struct_fields__)
    return state


def to_state(message: pb.RunState) -> Frame:
    """Return a frame that has what the message has, and nothing else."""
    run = message.run
    return Frame(
        run=RunIdentity(**{name: record_of(run, name) for name in RunIdentity.__struct_fields__}),
        status=to_status(message.status),
        reason=record_of(message, "reason"),
        start_unix_nano=record_of(message, "start_unix_nano"),
        end_unix_nano=record_of(message, "end_unix_nano"),
        last_seen_unix_nano=record_of(message, "last_seen_unix_nano"),
    )


_RANK_FIELDS = tuple(name for name in FrameRank.__struct_fields__ if name not in {"status", "usage"})
_ALERT_FIELDS = tuple(name for name in FrameAlert.__struct_fields__ if name != "level")


def from_frame(frame: Frame) -> pb.Frame:
    """Return the message of a frame."""
    message = pb.Frame(
        state=from_state(frame),
        slow_rank=frame.slow_rank,
        metrics_left_out=frame.metrics_left_out,
        problems=map(_text, frame.problems),
    )
    for rank in frame.ranks:
        added = _message(message.ranks.add(), rank, _RANK_FIELDS)
        added.status = from_status(rank.status)
        added.usage.CopyFrom(from_usage(rank.usage))
    for metric in frame.metrics:
        message.metrics.add(
            key=_text(metric.key),
            rank=metric.rank,
            count=metric.count,
            points=to_series_points(metric.points),
            trend=from_trend(metric.trend),
        )
    for alert in frame.alerts:
        _message(message.alerts.add(), alert, _ALERT_FIELDS).level = _LEVELS[alert.level]
    return message


def to_frame(message: pb.Frame) -> Frame:
    """Return the frame of a message."""
    state = to_state(message.state)
    return Frame(
        run=state.run,
        status=state.status,
        reason=state.reason,
        start_unix_nano=state.start_unix_nano,
        end_unix_nano=state.end_unix_nano,
        last_seen_unix_nano=state.last_seen_unix_nano,
        ranks=tuple(_to_rank(rank) for rank in message.ranks),
        slow_rank=record_of(message, "slow_rank"),
        metrics=tuple(_to_metric(metric) for metric in message.metrics),
        metrics_left_out=message.metrics_left_out,
        alerts=tuple(_to_alert(alert) for alert in message.alerts),
        problems=tuple(message.problems),
    )


def _to_rank(message: pb.FrameRank) -> FrameRank:
    fields = {name: record_of(message, name) for name in _RANK_FIELDS}
    return FrameRank(status=to_status(message.status), usage=to_usage(message.usage), **fields)


def _to_metric(message: pb.FrameMetric) -> FrameMetric:
    points = tuple(FramePoint(each.step, each.time_unix_nano, each.value) for each in message.points)
    return FrameMetric(message.key, message.rank, message.count, points, to_trend(message.trend))


def _to_alert(message: pb.FrameAlert) -> FrameAlert:
    fields = {name: record_of(message, name) for name in _ALERT_FIELDS}
    return FrameAlert(level=_named(_LEVEL_NAMES, message.level, "alert level"), **fields)


def record_of(message: Message, field: str) -> Any:
    """Return the value of a field; None for an optional one that is absent."""
    has_presence = message.DESCRIPTOR.fields_by_name[field].has_presence
    return None if has_presence and not message.HasField(field) else getattr(message, field)


def _message(message: _M, record: msgspec.Struct, fields: Sequence[str]) -> _M:
    """Set the fields that a record has too, and does not leave at None."""
    for name in fields:
        value = getattr(record, name)
        if value is not None:
            setattr(message, name, _plain(value, message.DESCRIPTOR.fields_by_name[name].type))
    return message


def _plain(value: Any, field_type: int) -> Any:
    """Return a value that a field of a protobuf type takes."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return max(0, min(value, _UINT32_MAX)) if field_type == FieldDescriptor.TYPE_UINT32 else _int64(value)
    return value


def _text(text: str) -> str:
    """Return a text that protobuf takes: a lone surrogate becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _int64(number: int) -> int:
    """Return an integer that protobuf takes: another program's file may have one of 64 bits without a sign."""
    return min(number, _INT64_MAX)


def _named(names: dict[int, _Named], number: int, what: str) -> _Named:
    try:
        return names[number]
    except KeyError:
        raise RemoteError(
            f"the server has a {what} {number} that this version of runspan does not know: update it with"
            " pip install -U runspan"
        ) from None
