"""Every name that runspan gives a span, an attribute or a metric, with units and the names Prometheus makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = [
    "INSTRUMENTS",
    "SCHEMA_URL",
    "SCOPE_NAME",
    "Attr",
    "Instrument",
    "InstrumentKind",
    "MetricName",
    "SpanName",
]

#: The instrumentation scope of tracer and meter.
SCOPE_NAME: Final = "runspan"
#: The version of OpenTelemetry's semantic conventions that names and Resource follow.
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"


class SpanName:
    """Names of the spans that runspan makes itself."""

    RUN: Final = "run"
    RANK: Final = "rank"
    EPOCH: Final = "epoch"
    CHECKPOINT: Final = "checkpoint"
    EVALUATE: Final = "evaluate"
    STEP: Final = "step"
    STEP_CAPTURED: Final = "step captured"
    DATA: Final = "data"
    FORWARD: Final = "forward"
    BACKWARD: Final = "backward"
    OPTIMIZER: Final = "optimizer"
    ALL_REDUCE: Final = "all_reduce"
    ALERT: Final = "alert"
    GATE: Final = "gate"

    @staticmethod
    def pending(name: str) -> str:
        """Return the name of the short span that shows an open span: ``<name> (started)``."""
        return f"{name} (started)"


class Attr:
    """Attribute names, of spans, of metric points and of the Resource; those ending in a dot are prefixes of a key."""

    # Resource, beside OpenTelemetry's own
    RUN_ID: Final = "runspan.run.id"
    RUN_NAME: Final = "runspan.run.name"
    RUN_GROUP: Final = "runspan.run.group"
    EXPERIMENT_ID: Final = "runspan.experiment.id"
    EXPERIMENT_NAME: Final = "runspan.experiment.name"
    RANK: Final = "runspan.rank"
    WORLD_SIZE: Final = "runspan.world_size"
    LOCAL_RANK: Final = "runspan.local_rank"
    ATTEMPT: Final = "runspan.attempt"
    DEVICE: Final = "runspan.device"
    SERVICE_NAME: Final = "service.name"
    SERVICE_INSTANCE_ID: Final = "service.instance.id"
    HOST_NAME: Final = "host.name"
    HOST_ID: Final = "host.id"
    PROCESS_PID: Final = "process.pid"
    VCS_REVISION: Final = "vcs.ref.head.revision"
    VCS_URL: Final = "vcs.repository.url.full"
    DISTRO_NAME: Final = "telemetry.distro.name"
    DISTRO_VERSION: Final = "telemetry.distro.version"
    SDK_NAME: Final = "telemetry.sdk.name"
    SDK_VERSION: Final = "telemetry.sdk.version"
    SDK_LANGUAGE: Final = "telemetry.sdk.language"

    # spans
    TRACE_PREFIX: Final = "runspan.trace."
    TAG_PREFIX: Final = "runspan.tag."
    PARAM_PREFIX: Final = "runspan.param."
    METRIC_PREFIX: Final = "runspan.metric."
    GATE_PREFIX: Final = "runspan.gate."
    GOLDEN_PREFIX: Final = "runspan.golden."
    RUN_STATUS: Final = "runspan.run.status"
    RUN_END_REASON: Final = "runspan.run.end_reason"
    MAX_EXPORTED_SPANS: Final = "runspan.max_exported_spans"
    DROPPED_SPANS: Final = "runspan.dropped.spans"
    DROPPED_ATTRIBUTES: Final = "runspan.dropped.attributes"
    DROPPED_EVENTS: Final = "runspan.dropped.events"
    DROPPED_LINKS: Final = "runspan.dropped.links"
    PENDING: Final = "runspan.pending"
    HOST: Final = "runspan.host"
    LAUNCHER: Final = "runspan.launcher"
    EPOCH: Final = "runspan.epoch"
    CHECKPOINT_PATH: Final = "runspan.checkpoint.path"
    CHECKPOINT_BYTES: Final = "runspan.checkpoint.bytes"
    STEP: Final = "runspan.step"
    STEP_CAPTURED_BECAUSE: Final = "runspan.step.captured_because"
    ALERT_TITLE: Final = "runspan.alert.title"
    ALERT_TEXT: Final = "runspan.alert.text"
    GATE_BENCHMARK: Final = "runspan.gate.benchmark"

    # metric points
    METRIC_KEY: Final = "runspan.metric.key"
    METRIC_UNIT: Final = "runspan.metric.unit"
    PHASE: Final = "runspan.phase"
    SIGNAL: Final = "runspan.signal"
    REASON: Final = "runspan.reason"
    LEVEL: Final = "runspan.level"
    RULE: Final = "runspan.rule"
    CPU_MODE: Final = "cpu.mode"
    MEMORY_STATE: Final = "system.memory.state"
    HW_ID: Final = "hw.id"
    HW_TYPE: Final = "hw.type"


class MetricName:
    """Names of the exported metrics."""

    VALUE: Final = "runspan.metric.value"
    NONFINITE: Final = "runspan.metric.nonfinite"
    COUNT: Final = "runspan.metric.count"
    OBSERVATION: Final = "runspan.metric.observation"
    STEP_DURATION: Final = "runspan.step.duration"
    PHASE_DURATION: Final = "runspan.phase.duration"
    STEPS: Final = "runspan.steps"
    SAMPLES: Final = "runspan.samples"
    TOKENS: Final = "runspan.tokens"
    STEP_LAST: Final = "runspan.step.last"
    STEP_LAST_TIME: Final = "runspan.step.last_time"
    HEARTBEAT_TIME: Final = "runspan.run.heartbeat_time"
    START_TIME: Final = "runspan.run.start_time"
    RUN_STATUS: Final = "runspan.run.status"
    CHECKPOINT_DURATION: Final = "runspan.checkpoint.duration"
    CHECKPOINT_LAST_TIME: Final = "runspan.checkpoint.last_time"
    EVENTS_DROPPED: Final = "runspan.events.dropped"
    ALERTS: Final = "runspan.alerts"
    GATE_METRIC: Final = "runspan.gate.metric"
    GATE_PASSED: Final = "runspan.gate.passed"
    GOLDEN_SCORE: Final = "runspan.golden.score"
    PROCESS_CPU_TIME: Final = "process.cpu.time"
    PROCESS_MEMORY_USAGE: Final = "process.memory.usage"
    PROCESS_THREAD_COUNT: Final = "process.thread.count"
    PROCESS_FILE_DESCRIPTORS: Final = "process.unix.file_descriptor.count"
    SYSTEM_CPU_UTILIZATION: Final = "system.cpu.utilization"
    SYSTEM_MEMORY_USAGE: Final = "system.memory.usage"
    SYSTEM_MEMORY_LIMIT: Final = "system.memory.limit"
    GPU_UTILIZATION: Final = "hw.gpu.utilization"
    GPU_MEMORY_USAGE: Final = "hw.gpu.memory.usage"
    GPU_MEMORY_LIMIT: Final = "hw.gpu.memory.limit"
    GPU_TEMPERATURE: Final = "hw.temperature"
    GPU_POWER: Final = "hw.power"


class InstrumentKind(StrEnum):
    """What a metric is to OpenTelemetry; all are cumulative, all histograms exponential."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    UP_DOWN_COUNTER = "updowncounter"


@dataclass(frozen=True, slots=True)
class Instrument:
    """One exported metric.

    Attributes:
        name: the OpenTelemetry name.
        kind: what it is.
        unit: UCUM unit, empty for none.
        attributes: names of its points' attributes.
        prometheus: its name under ``UnderscoreEscapingWithSuffixes``; a histogram is a native one of this name.
        ends_with_run: whether its series end at finish (live values) or stay (status, counters, times).
        description: one line for people.
    """

    name: str
    kind: InstrumentKind
    unit: str
    attributes: tuple[str, ...]
    prometheus: str
    ends_with_run: bool
    description: str


def _counter(name: str, unit: str, attributes: tuple[str, ...], prometheus: str, description: str) -> Instrument:
    kind = InstrumentKind.COUNTER
    return Instrument(name, kind, unit, attributes, prometheus, ends_with_run=False, description=description)


def _histogram(name: str, unit: str, attributes: tuple[str, ...], prometheus: str, description: str) -> Instrument:
    return Instrument(
        name, InstrumentKind.HISTOGRAM, unit, attributes, prometheus, ends_with_run=False, description=description
    )


def _gauge(
    name: str, unit: str, attributes: tuple[str, ...], prometheus: str, description: str, *, ends_with_run: bool = False
) -> Instrument:
    return Instrument(name, InstrumentKind.GAUGE, unit, attributes, prometheus, ends_with_run, description)


def _resource_gauge(name: str, unit: str, attributes: tuple[str, ...], prometheus: str, description: str) -> Instrument:
    return _gauge(name, unit, attributes, prometheus, description, ends_with_run=True)


def _resource_amount(
    name: str, unit: str, attributes: tuple[str, ...], prometheus: str, description: str
) -> Instrument:
    kind = InstrumentKind.UP_DOWN_COUNTER
    return Instrument(name, kind, unit, attributes, prometheus, ends_with_run=True, description=description)


_KEY = (Attr.METRIC_KEY,)
_KEY_UNIT = (Attr.METRIC_KEY, Attr.METRIC_UNIT)
_GPU = (Attr.HW_ID,)
_GPU_SENSOR = (Attr.HW_ID, Attr.HW_TYPE)

_TABLE: tuple[Instrument, ...] = (
    _gauge(MetricName.VALUE, "", _KEY, "runspan_metric_value", "Latest value of a logged metric.", ends_with_run=True),
    _counter(
        MetricName.NONFINITE, "{point}", _KEY, "runspan_metric_nonfinite_total", "NaN and infinite values logged."
    ),
    _counter(MetricName.COUNT, "", _KEY_UNIT, "runspan_metric_count_total", "User counters."),
    _histogram(MetricName.OBSERVATION, "", _KEY_UNIT, "runspan_metric_observation", "User observations."),
    _histogram(MetricName.STEP_DURATION, "s", (), "runspan_step_duration_seconds", "Duration of a step."),
    _histogram(
        MetricName.PHASE_DURATION, "s", (Attr.PHASE,), "runspan_phase_duration_seconds", "Duration of a step's phase."
    ),
    _counter(MetricName.STEPS, "{step}", (), "runspan_steps_total", "Steps ended."),
    _counter(MetricName.SAMPLES, "{sample}", (), "runspan_samples_total", "Samples processed."),
    _counter(MetricName.TOKENS, "{token}", (), "runspan_tokens_total", "Tokens processed."),
    _gauge(MetricName.STEP_LAST, "{step}", (), "runspan_step_last", "Number of the last step that ended."),
    _gauge(MetricName.STEP_LAST_TIME, "s", (), "runspan_step_last_time_seconds", "Unix time the last step ended."),
    _gauge(
        MetricName.HEARTBEAT_TIME,
        "s",
        (),
        "runspan_run_heartbeat_time_seconds",
        "Unix time of the last heartbeat.",
        ends_with_run=True,
    ),
    _gauge(MetricName.START_TIME, "s", (), "runspan_run_start_time_seconds", "Unix time the run started."),
    _gauge(
        MetricName.RUN_STATUS, "", (Attr.RUN_STATUS,), "runspan_run_status", "1 for the status the run has, else 0."
    ),
    _histogram(
        MetricName.CHECKPOINT_DURATION, "s", (), "runspan_checkpoint_duration_seconds", "Duration of a checkpoint."
    ),
    _gauge(
        MetricName.CHECKPOINT_LAST_TIME,
        "s",
        (),
        "runspan_checkpoint_last_time_seconds",
        "Unix time the last checkpoint ended.",
    ),
    _counter(
        MetricName.EVENTS_DROPPED,
        "{event}",
        (Attr.SIGNAL, Attr.REASON),
        "runspan_events_dropped_total",
        "What recording or export lost.",
    ),
    _counter(MetricName.ALERTS, "{alert}", (Attr.LEVEL, Attr.RULE), "runspan_alerts_total", "Alerts fired."),
    _gauge(
        MetricName.GATE_METRIC,
        "",
        (Attr.GATE_BENCHMARK, Attr.METRIC_KEY),
        "runspan_gate_metric",
        "A metric of a gate record.",
    ),
    _gauge(
        MetricName.GATE_PASSED, "", (Attr.GATE_BENCHMARK,), "runspan_gate_passed", "1 when the gate passed, else 0."
    ),
    _gauge(
        MetricName.GOLDEN_SCORE, "", (), "runspan_golden_score", "How alike the run is to its golden trace, 0 to 1."
    ),
    _counter(
        MetricName.PROCESS_CPU_TIME,
        "s",
        (Attr.CPU_MODE,),
        "process_cpu_time_seconds_total",
        "CPU time of this process, by mode.",
    ),
    _resource_amount(MetricName.PROCESS_MEMORY_USAGE, "By", (), "process_memory_usage_bytes", "Resident memory."),
    _resource_amount(
        MetricName.PROCESS_THREAD_COUNT, "{thread}", (), "process_thread_count", "Threads of this process."
    ),
    _resource_amount(
        MetricName.PROCESS_FILE_DESCRIPTORS,
        "{file_descriptor}",
        (),
        "process_unix_file_descriptor_count",
        "Open file descriptors.",
    ),
    _resource_gauge(
        MetricName.SYSTEM_CPU_UTILIZATION, "1", (), "system_cpu_utilization_ratio", "The host's busy CPU share."
    ),
    _resource_amount(
        MetricName.SYSTEM_MEMORY_USAGE,
        "By",
        (Attr.MEMORY_STATE,),
        "system_memory_usage_bytes",
        "The host's memory by state.",
    ),
    _resource_amount(MetricName.SYSTEM_MEMORY_LIMIT, "By", (), "system_memory_limit_bytes", "The host's memory."),
    _resource_gauge(MetricName.GPU_UTILIZATION, "1", _GPU, "hw_gpu_utilization_ratio", "The device's busy share."),
    _resource_amount(MetricName.GPU_MEMORY_USAGE, "By", _GPU, "hw_gpu_memory_usage_bytes", "Device memory in use."),
    _resource_amount(MetricName.GPU_MEMORY_LIMIT, "By", _GPU, "hw_gpu_memory_limit_bytes", "Device memory there is."),
    _resource_gauge(MetricName.GPU_TEMPERATURE, "Cel", _GPU_SENSOR, "hw_temperature_celsius", "Device temperature."),
    _resource_gauge(MetricName.GPU_POWER, "W", _GPU_SENSOR, "hw_power_watts", "Power the device draws."),
)

#: Every exported metric, by its OpenTelemetry name.
INSTRUMENTS: Final[dict[str, Instrument]] = {instrument.name: instrument for instrument in _TABLE}
