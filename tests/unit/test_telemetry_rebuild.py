from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags, TraceState

from runspan._otel_env import SpanLimitSettings
from runspan.telemetry.limits import trim_span
from runspan.telemetry.rebuild import rebuild_spans
from runspan.tracefile.reader import read
from support.live import LiveRuns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    import runspan

_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.text(st.characters(), max_size=4),
    st.binary(max_size=6),
)
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    max_leaves=6,
)
_attributes = st.dictionaries(st.text(max_size=6), _values, max_size=5)
#: Of events and links the file does not keep how many attributes the SDK refused, as it refuses a key without a name.
_named = st.dictionaries(st.text(min_size=1, max_size=6), _values, max_size=5)


class _Kept(SpanProcessor):
    """Keeps what an exporter was given last."""

    def __init__(self) -> None:
        self.newest: ReadableSpan | None = None

    def on_end(self, span: ReadableSpan) -> None:
        """Keep an ended span."""
        self.newest = span


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[runspan.Run]:
    """Start a run in a folder of its own."""
    runs = LiveRuns(tmp_path, monkeypatch)
    yield runs.start(heartbeat_s=3600.0)
    runs.close()


def _exported_by(run: runspan.Run) -> _Kept:
    """Have a run export its spans to what is returned, and to nothing else."""
    otel = run._session.otel
    otel._exports_spans = True
    tracer: Any = otel.spans and otel.spans.tracer
    kept = _Kept()
    tracer.span_processor._span_processors = (otel.processor, kept)
    return kept


def _copy(span: ReadableSpan | None) -> bytes:
    """Return the bytes that a span is exported as."""
    assert span is not None
    return encode_spans([trim_span(span, SpanLimitSettings())]).SerializeToString(deterministic=True)


@given(attributes=st.tuples(_attributes, _attributes, _named, _named), name=st.text(max_size=6))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_span_is_read_back_as_it_is_exported(
    run: runspan.Run, attributes: tuple[dict[str, Any], ...], name: str
) -> None:
    """Whatever a span holds, its copy from the file has the same bytes as the copy that the live export sends."""
    at_start, later, of_event, of_link = attributes
    kept = _exported_by(run)
    context = SpanContext(7, 8, is_remote=False, trace_flags=TraceFlags(0), trace_state=TraceState([("a", "b")]))
    with run.span("user", **{f"k{key}": value for key, value in at_start.items()}) as span:
        span.set_attributes(at_start)
        span.set_attributes(later)
        span.add_event(name, of_event)
        span.add_link(context, of_link)
        span.set_status(Status(StatusCode.ERROR, name))
        span.update_name(name)
    path = run._session.writer.path
    assert path is not None
    with read(path) as reader:
        *_, rebuilt = rebuild_spans(reader)
    assert _copy(rebuilt) == _copy(kept.newest)
