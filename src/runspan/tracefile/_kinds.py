"""The records of a trace file: one class per event kind, and what they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from runspan.records import ResourceSnapshot, RunStatus
from runspan.semconv import Attr
from runspan.tracefile.meta import ExecutionPhase, TimingMode, TraceRunMeta, check_run_meta

__all__ = [
    "Artifact",
    "Count",
    "Dropped",
    "Environment",
    "Event",
    "GitInfo",
    "Kind",
    "Meta",
    "Metric",
    "Metrics",
    "Observe",
    "OtelContext",
    "Param",
    "ProcessInfo",
    "Scope",
    "SegmentEnd",
    "SpanEnd",
    "SpanEvent",
    "SpanLink",
    "SpanStart",
    "SpanStatus",
    "Step",
    "Tag",
    "Terminal",
    "Unknown",
    "Usage",
]

Attributes = Mapping[str, Any]


class Kind(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", gc=False):
    """Common configuration of the kinds."""


class ProcessInfo(msgspec.Struct, frozen=True):
    """Which process wrote the file."""

    rank: int
    world_size: int
    local_rank: int
    attempt: int
    host: str
    pid: int


class Meta(Kind, frozen=True, tag="meta", kw_only=True):
    """The first line: identity, clocks and process of the trace.

    ``time_unix_nano`` is the wall time of the trace's start, from which ``start_ns`` and ``timestamp_ns`` count.
    ``capture_contract`` is what a candle-graph trace says that it covers, kept as it stands.
    """

    schema: str
    run_id: str
    correlation_id: str
    entrypoint: str
    phase: ExecutionPhase
    timestamp: str
    capture_step: int
    warmup_steps: int
    device: str
    timing_mode: TimingMode
    tags: dict[str, str]
    candle_version: str | None = None
    time_unix_nano: int
    experiment_id: str | None = None
    trace_id: str | None = None
    run_span_id: str | None = None
    span_id: str | None = None
    process: ProcessInfo
    heartbeat_s: float
    resource: dict[str, Any]
    part: int | None = None
    capture_contract: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_run_meta(self)

    @property
    def run_meta(self) -> TraceRunMeta:
        """The TraceRunMeta fields alone."""
        return TraceRunMeta(**{name: getattr(self, name) for name in TraceRunMeta.__struct_fields__})

    @property
    def experiment_name(self) -> str:
        """The experiment's name; where the resource does not tell it, the entrypoint's script."""
        return str(self.resource.get(Attr.EXPERIMENT_NAME) or self.entrypoint.partition(":")[0])

    @property
    def run_name(self) -> str | None:
        """The run's display name, None without one."""
        return self.resource.get(Attr.RUN_NAME)

    @property
    def run_group(self) -> str | None:
        """The name that the run shares with others, None without one."""
        return self.resource.get(Attr.RUN_GROUP)


class GitInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The working tree the run was started in."""

    sha: str
    branch: str | None = None
    diff: str | None = None


class Environment(Kind, frozen=True, tag="environment"):
    """What the run was started with, redacted."""

    argv: list[str]
    cwd: str
    python: str
    packages: dict[str, str]
    git: GitInfo | None = None


class Scope(msgspec.Struct, frozen=True, omit_defaults=True):
    """An instrumentation scope."""

    name: str
    version: str | None = None
    schema_url: str | None = None


class OtelContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """What OpenTelemetry knows of a span beside its own id.

    ``kind`` is left out for INTERNAL, ``scope`` for runspan's own, ``flags`` (the W3C trace flags) when sampled.
    """

    trace_id: str
    parent_span_id: str | None = None
    kind: str | None = None
    scope: Scope | None = None
    trace_state: str | None = None
    flags: int | None = None


class SpanLink(msgspec.Struct, frozen=True, omit_defaults=True):
    """A link to another span."""

    trace_id: str
    span_id: str
    attributes: Attributes | None = None
    trace_state: str | None = None
    flags: int | None = None


class SpanEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A timed event on a span."""

    name: str
    time_unix_nano: int
    attributes: Attributes | None = None


class SpanStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """A span's status: ``ok`` or ``error``; unset is no status."""

    code: str
    message: str | None = None


class SpanStart(Kind, frozen=True, tag="span_start", kw_only=True):
    """A span began."""

    id: str
    parent_id: str | None = None
    name: str
    start_ns: int
    time_unix_nano: int
    span_kind: str
    measured: bool = msgspec.field(default_factory=bool)  # a factory's value is written even when it is the default
    step: str | None = None
    attributes: Attributes | None = None
    otel: OtelContext
    links: list[SpanLink] | None = None


class SpanEnd(Kind, frozen=True, tag="span_end", kw_only=True):
    """A span ended; ``attributes`` are those set or changed since its start, ``name`` one that it was given since."""

    id: str
    duration_ns: int
    status: SpanStatus | None = None
    attributes: Attributes | None = None
    events: list[SpanEvent] | None = None
    links: list[SpanLink] | None = None
    dropped: dict[str, int] | None = None
    name: str | None = None


class Metric(Kind, frozen=True, tag="metric"):
    """One value of one metric; ``explicit`` marks a step that the caller gave, which moves no counter."""

    key: str
    step: int
    value: int | float
    time_unix_nano: int
    explicit: bool = False


class Metrics(Kind, frozen=True, tag="metrics", kw_only=True):
    """Several values logged at once: at one explicit ``step``, or each key at its own next one in ``steps``."""

    step: int | None = None
    values: dict[str, int | float]
    steps: dict[str, int] | None = None
    time_unix_nano: int

    def step_of(self, key: str) -> int | None:
        """Return the step of a key's value; None where the line, another writer's, does not tell."""
        return self.step if self.steps is None else self.steps.get(key, self.step)


class Count(Kind, frozen=True, tag="count", kw_only=True):
    """An increment of a counter."""

    key: str
    value: int | float
    unit: str | None = None
    time_unix_nano: int


class Observe(Kind, frozen=True, tag="observe", kw_only=True):
    """One observation of a distribution."""

    key: str
    value: int | float
    unit: str | None = None
    time_unix_nano: int


class Param(Kind, frozen=True, tag="param"):
    """A parameter; the last of a key holds."""

    key: str
    value: Any


class Tag(Kind, frozen=True, tag="tag"):
    """A tag; the last of a key holds."""

    key: str
    value: str


class Artifact(Kind, frozen=True, tag="artifact"):
    """An artifact: its bytes are in the run directory, or by ``reference`` where they were."""

    name: str
    hash: str
    bytes: int
    step: int | None = None
    reference: str | None = None


class Step(Kind, frozen=True, tag="step", kw_only=True):
    """A training step that ended."""

    step: int
    duration_ns: int
    data_ns: int | None = None
    phases: dict[str, int] | None = None
    samples: int | None = None
    tokens: int | None = None
    total: int | None = None
    time_unix_nano: int


class Event(Kind, frozen=True, tag="event", kw_only=True):
    """Something worth a line: a user's event, an alert, a clock that stepped."""

    name: str
    level: str
    message: str
    attributes: Attributes | None = None
    time_unix_nano: int


class Usage(Kind, frozen=True, tag="usage", kw_only=True):
    """A resource sample; also the heartbeat."""

    gpu_util: float | None = None
    cpu_util: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    gpu_memory_used: int | None = None
    gpu_memory_total: int | None = None
    timestamp_ns: int
    time_unix_nano: int

    @property
    def snapshot(self) -> ResourceSnapshot:
        """The sample without its times."""
        return ResourceSnapshot(**{name: getattr(self, name) for name in ResourceSnapshot.__struct_fields__})


class Dropped(Kind, frozen=True, tag="dropped"):
    """What was lost of a signal, and why."""

    signal: str
    reason: str
    count: int


class SegmentEnd(Kind, frozen=True, tag="segment_end"):
    """The last line of a part that another follows; ``next`` is that file's name."""

    next: str


class Terminal(Kind, frozen=True, tag="terminal"):
    """The last line of a trace: ``complete`` for a success, else ``failed`` with a reason."""

    outcome: str
    timestamp_ns: int
    status: str
    reason: str | None = None

    @property
    def final_status(self) -> RunStatus:
        """The status as a final one; what is none, from another writer, counts as failed."""
        try:
            status = RunStatus(self.status.lower())
        except ValueError:
            return RunStatus.FAILED
        return status if status.is_final else RunStatus.FAILED


class Unknown(msgspec.Struct, frozen=True):
    """A kind that this version does not know, kept as it stood."""

    kind: str
    fields: dict[str, Any]
