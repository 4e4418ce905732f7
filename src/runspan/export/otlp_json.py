"""OTLP/JSON: spans and metrics as the requests that a live run would send, one signal a file, one request a line.

Protobuf's JSON mapping as OTLP has it: ids are hex, other bytes base64, 64-bit integers decimal strings, enumerations
numbers, names in lowerCamelCase (OpenTelemetry Protocol 1.x, "JSON Protobuf Encoding"; its file exporter's "one signal
a file, one request a line"). The collector takes each line as the body of an OTLP/HTTP request.
"""

from __future__ import annotations

import base64
import itertools
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict

from runspan._otel_env import SpanLimitSettings
from runspan._output_file import whole_file
from runspan.errors import ConfigError, TraceFormatError
from runspan.export._sources import find_sources
from runspan.telemetry._parcels import SpanParcel
from runspan.telemetry.rebuild import RecordedSpans, open_trace
from runspan.telemetry.remeasure import RecordedMetrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from google.protobuf.message import Message

    from runspan.export._sources import Source

__all__ = ["METRICS_FILE", "TRACES_FILE", "export_otlp_json"]

TRACES_FILE, METRICS_FILE = "traces.jsonl", "metrics.jsonl"
#: Spans a line.
_BATCH = 512
#: The recorded time between two lines of one trace's metrics, s.
_METRIC_INTERVAL_S = 10.0
#: Keys of one trace's metrics: a file has no store behind it whose series must be few.
_MAX_METRIC_KEYS = 1_000_000
#: The fields that OTLP writes as hex, where protobuf's own mapping has base64.
_IDS = frozenset({"traceId", "spanId", "parentSpanId"})


def export_otlp_json(traces: Sequence[Path], output: Path) -> None:
    """Write ``traces.jsonl`` and ``metrics.jsonl`` into a folder; memory does not grow with the traces.

    Spans are as the live export sends them: trimmed alike, and without those that it leaves out. Metrics are what it
    would have collected from the recorded events every ten seconds.

    Args:
        traces: the first part of each trace file.
        output: the folder; each file in it takes its name when all of it is written.

    Raises:
        TraceFormatError: no trace can be opened, or one breaks the format.
        ConfigError: the output cannot be written.
    """
    sources = find_sources(traces)
    damage: dict[str, None] = {}
    try:
        output.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written ({error.strerror or error}): give another path") from error
    try:
        for filename, requests in (
            (TRACES_FILE, _span_requests(sources.traces, damage)),
            (METRICS_FILE, _metric_requests(sources.traces, damage)),
        ):
            with whole_file(output / filename) as file:
                for request in requests:
                    file.write(encode_request(request))
                if damage:
                    raise TraceFormatError(f"{'; '.join(damage)}: `runspan trace health` with the file says where")
    finally:
        with suppress(OSError):
            output.rmdir()  # where an error has left it empty


def encode_request(request: Message) -> bytes:
    """Encode an OTLP export request as one line of OTLP/JSON, newline included."""
    document = MessageToDict(request, use_integers_for_enums=True)
    for resource in itertools.chain(document.get("resourceSpans", ()), document.get("resourceMetrics", ())):
        for scope in itertools.chain(resource.get("scopeSpans", ()), resource.get("scopeMetrics", ())):
            for span in scope.get("spans", ()):
                _write_ids_as_hex(span)
                for link in span.get("links", ()):
                    _write_ids_as_hex(link)
            for metric in scope.get("metrics", ()):
                for exemplar in _exemplars_of(metric):
                    _write_ids_as_hex(exemplar)
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _exemplars_of(metric: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for data in metric.values():
        if isinstance(data, dict):
            for point in data.get("dataPoints", ()):
                yield from point.get("exemplars", ())


def _write_ids_as_hex(fields: dict[str, Any]) -> None:
    for name in _IDS & fields.keys():
        fields[name] = base64.b64decode(fields[name]).hex()


def _span_requests(sources: Sequence[Source], damage: dict[str, None]) -> Iterator[Message]:
    recorded = RecordedSpans([source.path for source in sources], damage.setdefault, lambda _: None)
    spans = (span for _, span in recorded)
    while batch := list(itertools.islice(spans, _BATCH)):
        yield SpanParcel(batch, SpanLimitSettings()).request()


def _metric_requests(sources: Sequence[Source], damage: dict[str, None]) -> Iterator[Message]:
    for source in sources:
        opened = open_trace(source.path, damage.setdefault) if source.has_metrics else None
        if opened is None:
            continue
        reader, events = opened
        recorded = RecordedMetrics(reader.meta, interval_s=_METRIC_INTERVAL_S, max_metric_keys=_MAX_METRIC_KEYS)
        yield from recorded.requests(events)
