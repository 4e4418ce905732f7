from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATUS_UNSPECIFIED: _ClassVar[RunStatus]
    RUN_STATUS_PENDING: _ClassVar[RunStatus]
    RUN_STATUS_RUNNING: _ClassVar[RunStatus]
    RUN_STATUS_SUCCESS: _ClassVar[RunStatus]
    RUN_STATUS_FAILED: _ClassVar[RunStatus]
    RUN_STATUS_CANCELLED: _ClassVar[RunStatus]
    RUN_STATUS_INTERRUPTED: _ClassVar[RunStatus]

class Trend(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TREND_UNSPECIFIED: _ClassVar[Trend]
    TREND_RISING: _ClassVar[Trend]
    TREND_FALLING: _ClassVar[Trend]
    TREND_STABLE: _ClassVar[Trend]

class AlertLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ALERT_LEVEL_UNSPECIFIED: _ClassVar[AlertLevel]
    ALERT_LEVEL_INFO: _ClassVar[AlertLevel]
    ALERT_LEVEL_WARNING: _ClassVar[AlertLevel]
    ALERT_LEVEL_ERROR: _ClassVar[AlertLevel]
    ALERT_LEVEL_CRITICAL: _ClassVar[AlertLevel]
RUN_STATUS_UNSPECIFIED: RunStatus
RUN_STATUS_PENDING: RunStatus
RUN_STATUS_RUNNING: RunStatus
RUN_STATUS_SUCCESS: RunStatus
RUN_STATUS_FAILED: RunStatus
RUN_STATUS_CANCELLED: RunStatus
RUN_STATUS_INTERRUPTED: RunStatus
TREND_UNSPECIFIED: Trend
TREND_RISING: Trend
TREND_FALLING: Trend
TREND_STABLE: Trend
ALERT_LEVEL_UNSPECIFIED: AlertLevel
ALERT_LEVEL_INFO: AlertLevel
ALERT_LEVEL_WARNING: AlertLevel
ALERT_LEVEL_ERROR: AlertLevel
ALERT_LEVEL_CRITICAL: AlertLevel

class RunIdentity(_message.Message):
    __slots__ = ("run_id", "experiment_id", "experiment", "name", "group", "trace_id", "world_size")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    experiment_id: str
    experiment: str
    name: str
    group: str
    trace_id: str
    world_size: int
    def __init__(self, run_id: _Optional[str] = ..., experiment_id: _Optional[str] = ..., experiment: _Optional[str] = ..., name: _Optional[str] = ..., group: _Optional[str] = ..., trace_id: _Optional[str] = ..., world_size: _Optional[int] = ...) -> None: ...

class RunState(_message.Message):
    __slots__ = ("run", "status", "reason", "start_unix_nano", "end_unix_nano", "last_seen_unix_nano")
    RUN_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    START_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    END_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    run: RunIdentity
    status: RunStatus
    reason: str
    start_unix_nano: int
    end_unix_nano: int
    last_seen_unix_nano: int
    def __init__(self, run: _Optional[_Union[RunIdentity, _Mapping]] = ..., status: _Optional[_Union[RunStatus, str]] = ..., reason: _Optional[str] = ..., start_unix_nano: _Optional[int] = ..., end_unix_nano: _Optional[int] = ..., last_seen_unix_nano: _Optional[int] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: RunState
    def __init__(self, state: _Optional[_Union[RunState, _Mapping]] = ...) -> None: ...

class MetricPoint(_message.Message):
    __slots__ = ("key", "step", "value", "time_unix_nano", "rank", "attempt")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    key: str
    step: int
    value: float
    time_unix_nano: int
    rank: int
    attempt: int
    def __init__(self, key: _Optional[str] = ..., step: _Optional[int] = ..., value: _Optional[float] = ..., time_unix_nano: _Optional[int] = ..., rank: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class GetRecentMetricsRequest(_message.Message):
    __slots__ = ("run_id", "rank", "limit")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    rank: int
    limit: int
    def __init__(self, run_id: _Optional[str] = ..., rank: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class MetricSeries(_message.Message):
    __slots__ = ("key", "points", "trend")
    KEY_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    TREND_FIELD_NUMBER: _ClassVar[int]
    key: str
    points: _containers.RepeatedCompositeFieldContainer[SeriesPoint]
    trend: Trend
    def __init__(self, key: _Optional[str] = ..., points: _Optional[_Iterable[_Union[SeriesPoint, _Mapping]]] = ..., trend: _Optional[_Union[Trend, str]] = ...) -> None: ...

class SeriesPoint(_message.Message):
    __slots__ = ("step", "time_unix_nano", "value")
    STEP_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    step: int
    time_unix_nano: int
    value: float
    def __init__(self, step: _Optional[int] = ..., time_unix_nano: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...

class GetRecentMetricsResponse(_message.Message):
    __slots__ = ("metrics", "metrics_left_out")
    METRICS_FIELD_NUMBER: _ClassVar[int]
    METRICS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    metrics: _containers.RepeatedCompositeFieldContainer[MetricSeries]
    metrics_left_out: int
    def __init__(self, metrics: _Optional[_Iterable[_Union[MetricSeries, _Mapping]]] = ..., metrics_left_out: _Optional[int] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("run_id", "rank", "resume_token", "from_start")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FROM_START_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    rank: int
    resume_token: bytes
    from_start: bool
    def __init__(self, run_id: _Optional[str] = ..., rank: _Optional[int] = ..., resume_token: _Optional[bytes] = ..., from_start: _Optional[bool] = ...) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("points", "dropped", "resume_token", "status")
    POINTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    points: _containers.RepeatedCompositeFieldContainer[MetricPoint]
    dropped: int
    resume_token: bytes
    status: RunStatus
    def __init__(self, points: _Optional[_Iterable[_Union[MetricPoint, _Mapping]]] = ..., dropped: _Optional[int] = ..., resume_token: _Optional[bytes] = ..., status: _Optional[_Union[RunStatus, str]] = ...) -> None: ...

class ResourceUsage(_message.Message):
    __slots__ = ("gpu_util", "cpu_util", "memory_used", "memory_total", "gpu_memory_used", "gpu_memory_total")
    GPU_UTIL_FIELD_NUMBER: _ClassVar[int]
    CPU_UTIL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_USED_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    gpu_util: float
    cpu_util: float
    memory_used: int
    memory_total: int
    gpu_memory_used: int
    gpu_memory_total: int
    def __init__(self, gpu_util: _Optional[float] = ..., cpu_util: _Optional[float] = ..., memory_used: _Optional[int] = ..., memory_total: _Optional[int] = ..., gpu_memory_used: _Optional[int] = ..., gpu_memory_total: _Optional[int] = ...) -> None: ...

class GetResourceUsageRequest(_message.Message):
    __slots__ = ("run_id", "rank")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    rank: int
    def __init__(self, run_id: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class GetResourceUsageResponse(_message.Message):
    __slots__ = ("usage",)
    USAGE_FIELD_NUMBER: _ClassVar[int]
    usage: ResourceUsage
    def __init__(self, usage: _Optional[_Union[ResourceUsage, _Mapping]] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs", "runs_left_out")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    RUNS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[RunState]
    runs_left_out: int
    def __init__(self, runs: _Optional[_Iterable[_Union[RunState, _Mapping]]] = ..., runs_left_out: _Optional[int] = ...) -> None: ...

class FrameRank(_message.Message):
    __slots__ = ("rank", "status", "reason", "attempt", "host", "last_seen_unix_nano", "steps", "last_step", "loop_done", "loop_total", "step_rate_hz", "step_ns", "own_step_ns", "usage")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    LOOP_DONE_FIELD_NUMBER: _ClassVar[int]
    LOOP_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STEP_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    STEP_NS_FIELD_NUMBER: _ClassVar[int]
    OWN_STEP_NS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    status: RunStatus
    reason: str
    attempt: int
    host: str
    last_seen_unix_nano: int
    steps: int
    last_step: int
    loop_done: int
    loop_total: int
    step_rate_hz: float
    step_ns: float
    own_step_ns: float
    usage: ResourceUsage
    def __init__(self, rank: _Optional[int] = ..., status: _Optional[_Union[RunStatus, str]] = ..., reason: _Optional[str] = ..., attempt: _Optional[int] = ..., host: _Optional[str] = ..., last_seen_unix_nano: _Optional[int] = ..., steps: _Optional[int] = ..., last_step: _Optional[int] = ..., loop_done: _Optional[int] = ..., loop_total: _Optional[int] = ..., step_rate_hz: _Optional[float] = ..., step_ns: _Optional[float] = ..., own_step_ns: _Optional[float] = ..., usage: _Optional[_Union[ResourceUsage, _Mapping]] = ...) -> None: ...

class FrameMetric(_message.Message):
    __slots__ = ("key", "rank", "count", "points", "trend")
    KEY_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    TREND_FIELD_NUMBER: _ClassVar[int]
    key: str
    rank: int
    count: int
    points: _containers.RepeatedCompositeFieldContainer[SeriesPoint]
    trend: Trend
    def __init__(self, key: _Optional[str] = ..., rank: _Optional[int] = ..., count: _Optional[int] = ..., points: _Optional[_Iterable[_Union[SeriesPoint, _Mapping]]] = ..., trend: _Optional[_Union[Trend, str]] = ...) -> None: ...

class FrameAlert(_message.Message):
    __slots__ = ("rank", "time_unix_nano", "level", "title", "text", "rule")
    RANK_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    time_unix_nano: int
    level: AlertLevel
    title: str
    text: str
    rule: str
    def __init__(self, rank: _Optional[int] = ..., time_unix_nano: _Optional[int] = ..., level: _Optional[_Union[AlertLevel, str]] = ..., title: _Optional[str] = ..., text: _Optional[str] = ..., rule: _Optional[str] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("state", "ranks", "slow_rank", "metrics", "metrics_left_out", "alerts", "problems")
    STATE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    SLOW_RANK_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    METRICS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    ALERTS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    state: RunState
    ranks: _containers.RepeatedCompositeFieldContainer[FrameRank]
    slow_rank: int
    metrics: _containers.RepeatedCompositeFieldContainer[FrameMetric]
    metrics_left_out: int
    alerts: _containers.RepeatedCompositeFieldContainer[FrameAlert]
    problems: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, state: _Optional[_Union[RunState, _Mapping]] = ..., ranks: _Optional[_Iterable[_Union[FrameRank, _Mapping]]] = ..., slow_rank: _Optional[int] = ..., metrics: _Optional[_Iterable[_Union[FrameMetric, _Mapping]]] = ..., metrics_left_out: _Optional[int] = ..., alerts: _Optional[_Iterable[_Union[FrameAlert, _Mapping]]] = ..., problems: _Optional[_Iterable[str]] = ...) -> None: ...

class GetFrameRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetFrameResponse(_message.Message):
    __slots__ = ("frame",)
    FRAME_FIELD_NUMBER: _ClassVar[int]
    frame: Frame
    def __init__(self, frame: _Optional[_Union[Frame, _Mapping]] = ...) -> None: ...
