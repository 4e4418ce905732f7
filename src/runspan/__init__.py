"""runspan: record training and benchmark runs as OpenTelemetry data; one Run is one span.

::

    import runspan

    with runspan.start_run("mnist", params={"lr": 1e-3}) as run:
        for batch in run.steps(loader):
            with run.phase("forward"):
                loss = train_step(batch)
            run.log_metric("loss/train", loss)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from runspan._version import __version__
from runspan.errors import (
    ConfigError,
    ExperimentNotFoundError,
    GateError,
    InvalidStateError,
    MissingExtraError,
    RunNotFoundError,
    RunspanError,
    SchemaVersionError,
    StorageError,
    TraceFormatError,
)

if TYPE_CHECKING:
    from runspan.alerts import Alert
    from runspan.capture import CaptureSchedule
    from runspan.config import TracingConfig
    from runspan.dashboard import DashboardSource, StorageDashboard, Subscription
    from runspan.distributed import RankContext
    from runspan.records import (
        AlertLevel,
        Filter,
        FilterOp,
        MetricPoint,
        MetricSnapshot,
        ResourceSnapshot,
        RunInfo,
        RunStatus,
        Trend,
    )
    from runspan.run import Run, current_run, start_run
    from runspan.storage import ExperimentStorage, InMemoryStorage, SqlStorage, open_storage, read_metrics
    from runspan.telemetry.processor import RunTraceProcessor
    from runspan.tracefile.meta import ExecutionPhase, TimingMode, TraceRunMeta

__all__ = [
    "Alert",
    "AlertLevel",
    "CaptureSchedule",
    "ConfigError",
    "DashboardSource",
    "ExecutionPhase",
    "ExperimentNotFoundError",
    "ExperimentStorage",
    "Filter",
    "FilterOp",
    "GateError",
    "InMemoryStorage",
    "InvalidStateError",
    "MetricPoint",
    "MetricSnapshot",
    "MissingExtraError",
    "RankContext",
    "ResourceSnapshot",
    "Run",
    "RunInfo",
    "RunNotFoundError",
    "RunStatus",
    "RunTraceProcessor",
    "RunspanError",
    "SchemaVersionError",
    "SqlStorage",
    "StorageDashboard",
    "StorageError",
    "Subscription",
    "TimingMode",
    "TraceFormatError",
    "TraceRunMeta",
    "TracingConfig",
    "Trend",
    "__version__",
    "current_run",
    "open_storage",
    "read_metrics",
    "start_run",
]

# What costs time to import is imported when it is first asked for.
_HOMES = {
    "runspan.alerts": ("Alert",),
    "runspan.capture": ("CaptureSchedule",),
    "runspan.config": ("TracingConfig",),
    "runspan.dashboard": ("DashboardSource", "StorageDashboard", "Subscription"),
    "runspan.distributed": ("RankContext",),
    "runspan.records": (
        "AlertLevel",
        "Filter",
        "FilterOp",
        "MetricPoint",
        "MetricSnapshot",
        "ResourceSnapshot",
        "RunInfo",
        "RunStatus",
        "Trend",
    ),
    "runspan.run": ("Run", "current_run", "start_run"),
    "runspan.storage": ("ExperimentStorage", "InMemoryStorage", "SqlStorage", "open_storage", "read_metrics"),
    "runspan.telemetry.processor": ("RunTraceProcessor",),
    "runspan.tracefile.meta": ("ExecutionPhase", "TimingMode", "TraceRunMeta"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'runspan' has no attribute {name!r}")
    try:
        module = import_module(home)
    except ValueError:
        # OpenTelemetry's SDK reads its limits as it is imported; say which variable it is.
        import_module("runspan.config").TracingConfig.from_env()
        raise
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
