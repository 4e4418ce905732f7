from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics.export import AggregationTemporality

import runspan
from runspan.errors import ConfigError, TraceFormatError
from runspan.export.otlp_json import encode_request, export_otlp_json
from runspan.ids import foreign_span_id
from runspan.replay import replay
from runspan.tracefile._state import read_head
from runspan.tracefile.events import Count, Observe, Step
from runspan.tracefile.layout import TraceName
from support.cli import Cli
from support.export_traces import make_exported_run
from support.otlp_receiver import OtlpReceiver, points_in, spans_in
from support.traces import START_UNIX_NANO, FixedClock, make_meta, make_metric, make_span, make_terminal, write_lines

_HEX = {"traceId", "spanId", "parentSpanId"}
#: OTLP's 64-bit integers, which JSON has as decimal strings.
_WIDE = {"startTimeUnixNano", "endTimeUnixNano", "timeUnixNano", "intValue", "asInt", "count", "zeroCount"}
_NUMBERS = {"kind", "code", "aggregationTemporality", "flags", "droppedAttributesCount"}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=_refuse) for line in path.read_text("utf-8").splitlines()]


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def _check_encoding(value: Any, name: str = "") -> None:
    """Check what OTLP's mapping asks of each field, wherever it stands."""
    if isinstance(value, dict):
        for key, item in value.items():
            assert "_" not in key, key
            _check_encoding(item, key)
    elif isinstance(value, list):
        for item in value:
            _check_encoding(item, name)
    elif name in _HEX:
        assert len(bytes.fromhex(value)) == (16 if name == "traceId" else 8)
        assert value == value.lower()
    elif name in _WIDE:
        assert isinstance(value, str)
        assert str(int(value)) == value
    elif name in _NUMBERS:
        assert type(value) is int


def _as_protobuf(value: Any, name: str = "") -> Any:
    """Turn ids into what protobuf's own mapping has for bytes."""
    if isinstance(value, dict):
        return {key: _as_protobuf(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_protobuf(item, name) for item in value]
    return base64.b64encode(bytes.fromhex(value)).decode() if name in _HEX else value


def _measured(folder: Path) -> Path:
    """Write a trace with values, steps, counts and observations over a minute, and return its path."""
    path = folder / TraceName(0).filename
    events: list[Any] = [make_meta(), *make_span("ab" * 8, duration_s=60.0)]
    for index in range(6):
        at = START_UNIX_NANO + index * 10_000_000_000
        events += [
            make_metric(index, at_s=index * 10.0, value=float("nan") if index == 3 else 0.5),
            Step(step=index, duration_ns=5, tokens=2**40, time_unix_nano=at),
            Count(key="images", value=2**53 + 1, time_unix_nano=at),
            Observe(key="seconds", value=0.5, unit="s", time_unix_nano=at),
        ]
    write_lines(path, [*events, make_terminal(60.0)])
    return path


def test_each_signal_is_a_file_of_otlp_json(tmp_path: Path) -> None:
    """Every line is strict JSON in OTLP's mapping: hex ids, decimal strings, numbers for enumerations, camel case."""
    export_otlp_json([_measured(tmp_path)], tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["metrics.jsonl", "traces.jsonl"]
    traces, metrics = _lines(tmp_path / "out" / "traces.jsonl"), _lines(tmp_path / "out" / "metrics.jsonl")
    assert [list(line) for line in traces] == [["resourceSpans"]]
    assert {tuple(line) for line in metrics} == {("resourceMetrics",)}
    for line in (*traces, *metrics):
        _check_encoding(line)
    (span,) = traces[0]["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (span["traceId"], span["spanId"], span["kind"]) == ("ab" * 16, "ab" * 8, 1)
    assert span["startTimeUnixNano"] == str(START_UNIX_NANO)


def test_a_trace_of_candle_graph_has_derived_ids(tmp_path: Path) -> None:
    """Span names of another program's become 64-bit ids, its entry point the service, its schema's name the scope."""
    golden = Path(__file__).resolve().parents[1] / "golden" / "candle-graph-10.jsonl"
    export_otlp_json([golden], tmp_path / "out")
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == b""
    (line,) = _lines(tmp_path / "out" / "traces.jsonl")
    _check_encoding(line)
    (resource,) = line["resourceSpans"]
    assert {"key": "service.name", "value": {"stringValue": "train::update"}} in resource["resource"]["attributes"]
    (scope,) = resource["scopeSpans"]
    assert scope["scope"] == {"name": "candle-graph"}
    meta = read_head(golden)
    expected = f"{foreign_span_id(meta.run_id, meta.correlation_id, 's2'):016x}"
    (measured,) = (span for span in scope["spans"] if span["name"] == "digits/update-000000000003")
    assert (measured["traceId"], measured["spanId"]) == (meta.trace_id, expected)
    children = [span["name"] for span in scope["spans"] if span.get("parentSpanId") == expected]
    assert children == [f"digits/update-000000000003/{phase}" for phase in ("forward", "backward", "optimizer")]


def test_the_lines_are_the_requests_of_a_replay(tmp_path: Path) -> None:
    """Parsed back into protobuf, spans and points are those that a replay sends to an endpoint."""
    traces = make_exported_run(tmp_path / "run")
    export_otlp_json(traces, tmp_path / "out")
    with OtlpReceiver() as receiver:
        config = runspan.TracingConfig(export_otlp=True, otlp_endpoint=f"http://127.0.0.1:{receiver.port}")
        replay(traces, config, clock=FixedClock(60.0))
        spans, points = receiver.spans, receiver.points
    read_spans = [
        span
        for line in _lines(tmp_path / "out" / "traces.jsonl")
        for span in spans_in(ParseDict(_as_protobuf(line), ExportTraceServiceRequest()))
    ]
    read_points = [
        point
        for line in _lines(tmp_path / "out" / "metrics.jsonl")
        for point in points_in(ParseDict(_as_protobuf(line), ExportMetricsServiceRequest()))
    ]
    assert spans
    assert points
    assert sorted(map(repr, read_spans)) == sorted(map(repr, spans))
    assert sorted(map(repr, read_points)) == sorted(map(repr, points))


def test_metrics_have_the_recorded_times_and_totals(tmp_path: Path) -> None:
    """Counters are cumulative and exact beyond 2^53, a line every ten recorded seconds; the last one ends series."""
    export_otlp_json([_measured(tmp_path)], tmp_path / "out")
    requests = [
        ParseDict(_as_protobuf(line), ExportMetricsServiceRequest())
        for line in _lines(tmp_path / "out" / "metrics.jsonl")
    ]
    points = [point for request in requests for point in points_in(request)]
    tokens = [point for point in points if point.metric == "runspan.tokens"]
    assert [point.value for point in tokens] == [2**40 * count for count in (1, 2, 3, 4, 5, 6)]
    assert {point.temporality for point in tokens} == {AggregationTemporality.CUMULATIVE.value}
    assert tokens[-1].time_unix_nano == START_UNIX_NANO + 60_000_000_000
    counts = [point.value for point in points if point.metric == "runspan.metric.count"]
    assert counts[0] == 2**53 + 1
    assert [point.value for point in points if point.metric == "runspan.metric.value"][-2:] == [0.5, None]


def test_exemplar_and_link_ids_are_hex() -> None:
    """Ids inside exemplars and links are written like any other."""
    metrics = ExportMetricsServiceRequest()
    metric = metrics.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    exemplar = metric.exponential_histogram.data_points.add().exemplars.add()
    exemplar.trace_id, exemplar.span_id = b"\xab" * 16, b"\xcd" * 8
    spans = ExportTraceServiceRequest()
    link = spans.resource_spans.add().scope_spans.add().spans.add(name="s").links.add()
    link.trace_id, link.span_id = b"\xab" * 16, b"\xcd" * 8
    for request in (metrics, spans):
        line = encode_request(request)
        assert b'"traceId":"' + b"ab" * 16 + b'"' in line
        assert b'"spanId":"' + b"cd" * 8 + b'"' in line
        _check_encoding(json.loads(line))


def test_a_damaged_trace_leaves_no_output(tmp_path: Path) -> None:
    """A line that cannot be read is an error that names the file; an older export stays as it was."""
    path = _measured(tmp_path)
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    broken = tmp_path / TraceName(1).filename
    broken.write_bytes(b"".join([lines[0], b"no json\n", *lines[1:]]))
    with pytest.raises(TraceFormatError, match=r"rank-00001\.jsonl: 1 unreadable"):
        export_otlp_json([broken], tmp_path / "new")
    assert not (tmp_path / "new").exists()
    export_otlp_json([path], tmp_path / "out")
    older = (tmp_path / "out" / "traces.jsonl").read_bytes()
    with pytest.raises(TraceFormatError):
        export_otlp_json([broken], tmp_path / "out")
    assert (tmp_path / "out" / "traces.jsonl").read_bytes() == older


def test_an_output_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    """A file in the folder's place, or a missing parent, is told of by name."""
    (tmp_path / "taken").write_text("x")
    for output in (tmp_path / "taken", tmp_path / "missing" / "out"):
        with pytest.raises(ConfigError, match=output.name):
            export_otlp_json([_measured(tmp_path)], output)


def test_the_command_writes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`runspan trace export --to otlp-json` writes both files of a run and says how many traces are in them."""
    make_exported_run(tmp_path / "runs" / "run-a")
    answer = Cli(tmp_path, capsys)(
        "trace", "export", str(tmp_path / "runs" / "run-a"), "--to", "otlp-json", "-o", str(tmp_path / "out")
    )
    assert (answer.code, answer.out) == (0, f"{tmp_path / 'out'}: 4 traces\n")
    assert len(_lines(tmp_path / "out" / "traces.jsonl")) == 1
