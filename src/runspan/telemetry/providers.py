"""The only place that builds OpenTelemetry providers: a run's own, which never touch the host program's global ones."""

from __future__ import annotations

import os
import random
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.propagators.textmap import DefaultGetter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.sdk.version import __version__ as _sdk_version
from opentelemetry.trace import NonRecordingSpan, SpanContext, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from runspan import ids
from runspan._version import __version__
from runspan.semconv import SCHEMA_URL, SCOPE_NAME, Attr, SpanName
from runspan.telemetry.limits import cut_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Link, SpanKind, Tracer, TraceState
    from opentelemetry.util.types import Attributes

    from runspan._otel_env import OtelSettings

__all__ = [
    "RunIdGenerator",
    "RunIdentity",
    "build_meter_provider",
    "build_resource",
    "build_tracer_provider",
    "decide_sampling",
    "forced_ids",
    "get_tracer",
    "host_id",
    "parse_traceparent",
]

#: The ids (trace, span) that the next span of this context takes; None for a random one.
_forced_ids: ContextVar[tuple[int | None, int | None]] = ContextVar("runspan_forced_ids", default=(None, None))

_TRACE_ID_BITS, _SPAN_ID_BITS = 128, 64
_SEED_BYTES = 32
_HOST_ID_FILES = (
    Path("/etc/machine-id"),
    Path("/var/lib/dbus/machine-id"),
    Path("/proc/sys/kernel/random/boot_id"),  # in a container without the others: good until the host restarts
)


@contextmanager
def forced_ids(*, trace_id: int | None = None, span_id: int | None = None) -> Iterator[None]:
    """Give spans started inside a derived id instead of a random one.

    A span with a parent takes the parent's trace id whatever stands here.
    """
    token = _forced_ids.set((trace_id, span_id))
    try:
        yield
    finally:
        _forced_ids.reset(token)


class RunIdGenerator(IdGenerator):
    """Random ids that a training program cannot repeat, except where :func:`forced_ids` says which.

    A program calls ``random.seed(0)`` on every rank, and forked children share the generator's state: so this one is
    its own, seeded by the operating system, and seeded again in a child.
    """

    def __init__(self) -> None:
        self._random = random.Random()  # noqa: S311 - ids must be unique, not secret
        self.reseed()

    def reseed(self) -> None:
        """Start a new sequence, as a forked child must."""
        self._pid = os.getpid()
        self._random.seed(os.urandom(_SEED_BYTES))

    def generate_trace_id(self) -> int:
        """Return a 128-bit id, never 0."""
        return _forced_ids.get()[0] or self._next(_TRACE_ID_BITS)

    def generate_span_id(self) -> int:
        """Return a 64-bit id, never 0."""
        return _forced_ids.get()[1] or self._next(_SPAN_ID_BITS)

    def _next(self, bits: int) -> int:
        if self._pid != os.getpid():
            self.reseed()
        return self._random.getrandbits(bits) or 1


class _FixedSampler(Sampler):
    """One decision for all spans of a run; spans that are not exported are still recorded, for the file."""

    def __init__(self, *, sampled: bool) -> None:
        self._decision = Decision.RECORD_AND_SAMPLE if sampled else Decision.RECORD_ONLY

    def should_sample(  # noqa: PLR0917 - Sampler's signature
        self,
        parent_context: Context | None,  # noqa: ARG002 - as above
        trace_id: int,  # noqa: ARG002 - as above
        name: str,  # noqa: ARG002 - as above
        kind: SpanKind | None = None,  # noqa: ARG002 - as above
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,  # noqa: ARG002 - as above
        trace_state: TraceState | None = None,  # noqa: ARG002 - as above
    ) -> SamplingResult:
        # A run's spans carry no trace state: TRACEPARENT's span is linked to, and is no parent.
        return SamplingResult(self._decision, attributes)

    def get_description(self) -> str:
        return f"RunspanFixed{{{self._decision.name}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """Which process of which run the telemetry comes from.

    Attributes:
        run_id: the run.
        experiment_id: its experiment.
        experiment_name: the experiment's name.
        run_name: the run's display name, if it has one.
        run_group: the name that it shares with other runs, if it does.
        rank: the rank.
        world_size: how many ranks there are.
        local_rank: the rank's number on its node.
        attempt: the rank's attempt.
        device: the device, as the caller named it.
        host: the host's name.
        pid: the process.
        vcs_revision: the git revision, if known.
        vcs_url: the git remote, redacted, if known.
    """

    run_id: str
    experiment_id: str
    experiment_name: str
    run_name: str | None = None
    run_group: str | None = None
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    attempt: int = 0
    device: str = "cpu"
    host: str
    pid: int
    vcs_revision: str | None = None
    vcs_url: str | None = None


def build_resource(
    identity: RunIdentity,
    *,
    service_name: str | None = None,
    resource_attributes: Mapping[str, str] | None = None,
    host_id_files: Iterable[Path] = _HOST_ID_FILES,
) -> Resource:
    """Return the Resource of one process's spans and metrics.

    The ``runspan.*`` identity always holds; other attributes give way to ``resource_attributes``, and the service's
    name to ``service_name``.

    Args:
        identity: which process it is.
        service_name: ``OTEL_SERVICE_NAME``.
        resource_attributes: ``OTEL_RESOURCE_ATTRIBUTES``.
        host_id_files: where the host's id is looked for, in this order.
    """
    defaults = {
        Attr.SDK_LANGUAGE: "python",
        Attr.SDK_NAME: "opentelemetry",
        Attr.SDK_VERSION: _sdk_version,
        Attr.DISTRO_NAME: "runspan",
        Attr.DISTRO_VERSION: __version__,
        Attr.SERVICE_NAME: identity.experiment_name,
        Attr.SERVICE_INSTANCE_ID: ids.service_instance_id(identity.run_id, identity.rank, identity.attempt),
        Attr.HOST_NAME: identity.host,
        Attr.HOST_ID: host_id(host_id_files),
        Attr.PROCESS_PID: identity.pid,
        Attr.VCS_REVISION: identity.vcs_revision,
        Attr.VCS_URL: identity.vcs_url,
    }
    own: dict[str, str | int | None] = {
        Attr.RUN_ID: identity.run_id,
        Attr.RUN_NAME: identity.run_name,
        Attr.RUN_GROUP: identity.run_group,
        Attr.EXPERIMENT_ID: identity.experiment_id,
        Attr.EXPERIMENT_NAME: identity.experiment_name,
        Attr.RANK: identity.rank,
        Attr.WORLD_SIZE: identity.world_size,
        Attr.LOCAL_RANK: identity.local_rank,
        Attr.ATTEMPT: identity.attempt,
        Attr.DEVICE: identity.device,
    }
    merged: dict[str, str | int | None] = {**defaults, **(resource_attributes or {})}
    if service_name:
        merged[Attr.SERVICE_NAME] = service_name
    merged |= own
    return Resource(
        {
            key: cut_text(value) if isinstance(value, str) else value
            for key, value in merged.items()
            if value is not None
        },
        SCHEMA_URL,
    )


def host_id(files: Iterable[Path] = _HOST_ID_FILES) -> str | None:
    """Return the host's id, the same for all of its processes; None where no file tells."""
    for path in files:
        try:
            found = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if found:
            return found
    return None


def build_tracer_provider(
    resource: Resource, *, sampled: bool, processors: Iterable[SpanProcessor], id_generator: IdGenerator | None = None
) -> TracerProvider:
    """Return a run's own tracer provider: no limits, no exit hook, one sampling decision.

    Args:
        resource: the process's Resource.
        sampled: whether the run's spans are exported; recorded they are in any case.
        processors: in the order in which they are told of spans.
        id_generator: makes the ids; None: a :class:`RunIdGenerator`.
    """
    provider = TracerProvider(
        sampler=_FixedSampler(sampled=sampled),
        resource=resource,
        shutdown_on_exit=False,
        id_generator=RunIdGenerator() if id_generator is None else id_generator,
        # The SDK would drop the oldest attributes, which say what a span is: copies are trimmed at the export.
        span_limits=SpanLimits(
            max_attributes=SpanLimits.UNSET,
            max_events=SpanLimits.UNSET,
            max_links=SpanLimits.UNSET,
            max_span_attributes=SpanLimits.UNSET,
            max_event_attributes=SpanLimits.UNSET,
            max_link_attributes=SpanLimits.UNSET,
            max_attribute_length=SpanLimits.UNSET,
            max_span_attribute_length=SpanLimits.UNSET,
        ),
        meter_provider=NoOpMeterProvider(),
    )
    # Whether the run traces was decided from the configuration; the SDK looks at the process's OTEL_SDK_DISABLED.
    provider._disabled = False  # noqa: SLF001 - no argument says so
    for processor in processors:
        provider.add_span_processor(processor)
    return provider


def get_tracer(provider: TracerProvider) -> Tracer:
    """Return the tracer of runspan's own scope."""
    return provider.get_tracer(SCOPE_NAME, __version__, SCHEMA_URL)


def build_meter_provider(resource: Resource, reader: MetricReader) -> MeterProvider:
    """Return a run's own meter provider, read on demand: no exit hook, no exemplars of its own.

    Args:
        resource: the process's Resource.
        reader: what collects.
    """
    from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider  # noqa: PLC0415 - heavy, export only

    provider = MeterProvider(
        metric_readers=[reader],
        resource=resource,
        exemplar_filter=AlwaysOffExemplarFilter(),
        shutdown_on_exit=False,
    )
    provider._disabled = False  # noqa: SLF001 - see build_tracer_provider
    return provider


def decide_sampling(settings: OtelSettings, trace_id: int, parent: SpanContext | None) -> bool:
    """Return whether a run is exported, by the standard's samplers.

    Every rank decides alike, because the run's trace id is the same on all.

    Args:
        settings: name and ratio of the sampler.
        trace_id: the run's trace.
        parent: the span that ``TRACEPARENT`` names, None without one.
    """
    name = settings.sampler
    if name.endswith("traceidratio"):
        sampler: Sampler = TraceIdRatioBased(settings.sampler_ratio)
    else:
        sampler = ALWAYS_OFF if name.endswith("always_off") else ALWAYS_ON
    if name.startswith("parentbased_"):
        sampler = ParentBased(sampler)
    context = None if parent is None else set_span_in_context(NonRecordingSpan(parent))
    return sampler.should_sample(context, trace_id, SpanName.RUN).decision is Decision.RECORD_AND_SAMPLE


def parse_traceparent(traceparent: str | None, tracestate: str | None = None) -> SpanContext | None:
    """Return the span that a W3C ``traceparent`` names, None when there is none or it is malformed.

    Args:
        traceparent: the header's text.
        tracestate: the accompanying one; what is malformed in it is left out.
    """
    if not traceparent:
        return None
    carrier = {"traceparent": traceparent, **({"tracestate": tracestate} if tracestate else {})}
    context = TraceContextTextMapPropagator().extract(
        carrier, context=set_span_in_context(_no_span()), getter=DefaultGetter()
    )
    found = get_current_span(context).get_span_context()
    return found if found.is_valid else None


def _no_span() -> NonRecordingSpan:
    """Return a span that hides the current one, which a malformed header would otherwise leave in place."""
    return NonRecordingSpan(SpanContext(0, 0, is_remote=False))
