"""Spans read back from a trace file, as the SDK's own: what a child process recorded, a parent can export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from runspan import semconv
from runspan._version import __version__
from runspan.errors import TraceFormatError
from runspan.ids import foreign_span_id
from runspan.semconv import Attr, SpanName
from runspan.telemetry.limits import with_dropped
from runspan.tracefile._state import read_head
from runspan.tracefile.events import SCHEMA, Meta, SpanEnd, SpanStart
from runspan.tracefile.layout import RunDirectory, TraceName
from runspan.tracefile.reader import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from runspan.tracefile.events import SpanLink, TraceEvent
    from runspan.tracefile.reader import TraceReader

__all__ = ["RecordedSpans", "open_trace", "rebuild_spans"]

_SAMPLED = 0x01
#: Spans whose own links lead out of the run: to the trace that the process was started in.
_LONG_SPANS = frozenset({SpanName.RUN, SpanName.RANK})


def rebuild_spans(
    events: Iterable[TraceEvent], refused: Callable[[str], None] = lambda _: None
) -> Iterator[ReadableSpan]:
    """Yield each span that ended, in the order of the ends; one that was never exported is not sampled.

    Args:
        events: one trace's, its meta first.
        refused: told of a span whose lines say what no span can be, as another program's may.
    """
    rebuilder: _Rebuilder | None = None
    started: dict[str, SpanStart] = {}
    for event in events:
        if isinstance(event, Meta):
            rebuilder = _Rebuilder(event) if event.schema == SCHEMA else _ForeignRebuilder(event)
        elif isinstance(event, SpanStart):
            started[event.id] = event
        elif isinstance(event, SpanEnd) and event.id in started and rebuilder is not None:
            start = started.pop(event.id)
            try:
                span = rebuilder.span(start, event)
            except (KeyError, ValueError) as error:
                refused(f"span {event.id!r}: {error}")
                continue
            yield span


def open_trace(path: Path, warn: Callable[[str], object]) -> tuple[TraceReader, Iterator[TraceEvent]] | None:
    """Open a trace that may be damaged: its events end where it cannot be read on.

    Args:
        path: any part of it.
        warn: told of what is missing; each message names the file.

    Returns:
        The reader and its events; None where not even the first line can be read.
    """
    try:
        reader = read(path, lenient=True)
    except TraceFormatError as error:
        warn(f"left out: {error}")
        return None
    return reader, _readable(reader, warn)


def _readable(reader: TraceReader, warn: Callable[[str], object]) -> Iterator[TraceEvent]:
    with reader:
        try:
            yield from reader
        except TraceFormatError as error:
            warn(f"read up to here: {error}")
    if reader.skipped:
        warn(f"{reader.path}: {reader.skipped} unreadable lines left out")


class RecordedSpans:
    """The spans of several traces as a live run would have exported them, but for the bound of their number.

    A resumed run has a ``run`` span of each attempt, all with one id: only that of the newest attempt in the run
    directory is among them, whose content holds.

    Args:
        traces: the first part of each trace.
        warn: told of what cannot be read; each message names the file.
        unended: told of traces without an end, whose open spans are left out, likewise.
    """

    def __init__(self, traces: Sequence[Path], warn: Callable[[str], object], unended: Callable[[str], object]) -> None:
        self._traces = traces
        self._warn = warn
        self._unended = unended

    def __iter__(self) -> Iterator[tuple[Meta, ReadableSpan]]:
        """Yield each sampled span with the meta of its trace; open are one file and its open spans."""
        for path in self._traces:
            opened = open_trace(path, self._warn)
            if opened is None:
                continue
            reader, events = opened
            meta = reader.meta
            refused: list[str] = []
            for span in rebuild_spans(events, refused.append):
                context = span.context
                if context is None or not context.trace_flags.sampled:
                    continue
                if f"{context.span_id:016x}" != meta.run_span_id or not _is_superseded(path, meta):
                    yield meta, span
            if refused:
                self._warn(f"{path}: {len(refused)} spans left out that none of OpenTelemetry can be: {refused[0]}")
            name = TraceName.parse(path.name)
            if reader.terminal is None and (name is None or name.child is None):
                self._unended(f"{path}: {reader.state}: spans that have not ended are left out")


def _is_superseded(path: Path, meta: Meta) -> bool:
    """Whether a later attempt of the same rank has a trace that can be read."""
    name = TraceName.parse(path.name)
    if name is None:
        return False
    directory, _ = RunDirectory.of_trace(path)
    return any(
        attempt > meta.process.attempt and _has_head(path.with_name(TraceName(name.rank, attempt).filename))
        for attempt in directory.attempts_of(name.rank)
    )


def _has_head(path: Path) -> bool:
    try:
        read_head(path)
    except TraceFormatError:
        return False
    return True


class _Rebuilder:
    """Makes spans of one trace's events, as its process had them.

    Args:
        meta: the trace's meta.
    """

    def __init__(self, meta: Meta) -> None:
        self._meta = meta
        self._resource = Resource(self._resource_attributes(), semconv.SCHEMA_URL)
        self._own_scope = self._recorder()

    def span(self, start: SpanStart, end: SpanEnd) -> ReadableSpan:
        otel = start.otel
        scope = self._own_scope
        if otel.scope is not None:
            scope = InstrumentationScope(otel.scope.name, otel.scope.version, otel.scope.schema_url)
        dropped = end.dropped or {}
        links = [self._link(link, start) for link in (*(start.links or ()), *(end.links or ()))]
        events = [Event(item.name, item.attributes, item.time_unix_nano) for item in end.events or ()]
        return ReadableSpan(
            name=start.name if end.name is None else end.name,
            context=_context(otel.trace_id, self._id_of(start.id), otel.flags, otel.trace_state),
            parent=self._parent(start),
            resource=self._resource,
            attributes=_attributes(start, end, dropped.get("attributes", 0)),
            events=with_dropped(events, dropped.get("events", 0)),
            links=with_dropped(links, dropped.get("links", 0)),
            kind=SpanKind.INTERNAL if otel.kind is None else SpanKind[otel.kind.upper()],
            status=Status() if end.status is None else Status(StatusCode[end.status.code.upper()], end.status.message),
            start_time=start.time_unix_nano,
            end_time=start.time_unix_nano + end.duration_ns,
            instrumentation_scope=scope,
        )

    def _resource_attributes(self) -> Mapping[str, Any]:
        return self._meta.resource

    def _recorder(self) -> InstrumentationScope:
        """Return the scope of spans that name none; its version is that which recorded, which need not be this one."""
        version = str(self._meta.resource.get(Attr.DISTRO_VERSION, __version__))
        return InstrumentationScope(semconv.SCOPE_NAME, version, semconv.SCHEMA_URL)

    def _parent(self, start: SpanStart) -> SpanContext | None:
        otel = start.otel
        if otel.parent_span_id is None:
            return None
        # The file names a parent as its own span's only where it stands in this file.
        return _context(otel.trace_id, int(otel.parent_span_id, 16), is_remote=start.parent_id is None)

    def _id_of(self, name: str) -> int:
        return int(name, 16)

    def _link(self, link: SpanLink, start: SpanStart) -> Link:
        """Return a link; those to the ``run`` span, and those of the long spans, lead to another process's span."""
        is_long = start.name in _LONG_SPANS and start.otel.scope is None
        is_remote = is_long or link.span_id == self._meta.run_span_id
        attributes: Any = link.attributes
        return Link(
            _context(link.trace_id, int(link.span_id, 16), link.flags, link.trace_state, is_remote=is_remote),
            attributes,
        )


class _ForeignRebuilder(_Rebuilder):
    """Makes spans of another program's trace, which knows nothing of OpenTelemetry: what they need is derived.

    Ids come from the names that spans have in the file, the same at every export; the service is the entry point.
    """

    def _resource_attributes(self) -> Mapping[str, Any]:
        meta = self._meta
        derived = {Attr.SERVICE_NAME: meta.entrypoint, Attr.RUN_ID: meta.run_id, Attr.DEVICE: meta.device}
        return derived | dict(meta.resource)

    def _recorder(self) -> InstrumentationScope:
        return InstrumentationScope(self._meta.schema.partition("/")[0])

    def _parent(self, start: SpanStart) -> SpanContext | None:
        return None if start.parent_id is None else _context(start.otel.trace_id, self._id_of(start.parent_id))

    def _id_of(self, name: str) -> int:
        return foreign_span_id(self._meta.run_id, self._meta.correlation_id, name)


def _attributes(start: SpanStart, end: SpanEnd, dropped: int) -> BoundedAttributes:
    """Return a span's attributes in the SDK's order, where one that is set anew moves to the end."""
    later = end.attributes or {}
    attributes = {key: value for key, value in (start.attributes or {}).items() if key not in later} | dict(later)
    nameless = attributes.pop("", None) is not None  # the SDK takes none of these
    bounded = BoundedAttributes(attributes=attributes, immutable=True)
    bounded.dropped = max(dropped, int(nameless))
    return bounded


def _context(
    trace_id: str, span_id: int, flags: int | None = None, state: str | None = None, *, is_remote: bool = False
) -> SpanContext:
    return SpanContext(
        int(trace_id, 16),
        span_id,
        is_remote=is_remote,
        trace_flags=TraceFlags(_SAMPLED if flags is None else flags),
        trace_state=TraceState.from_header([state]) if state else None,
    )
