from __future__ import annotations

import math
from typing import Any

import pytest
from opentelemetry.trace import set_span_in_context

from runspan.records import RunStatus
from runspan.semconv import SCHEMA_URL
from runspan.telemetry.exporter import METRICS, TRACES
from support.exporting import start_export
from support.otlp_receiver import Faults, OtlpReceiver, until

#: What every exported span says of where it is from.
_COMMON = {"runspan.run.id": "run-1", "runspan.rank": 0, "runspan.attempt": 0}
_PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])


@_PROTOCOLS
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_spans_and_metrics_arrive(protocol: str, compression: str) -> None:
    """What was recorded reaches a live receiver at the drain, quickly, with resource, scope, schema and headers."""
    with OtlpReceiver(protocol) as receiver:
        changes: dict[str, Any] = {"compression": compression, "headers": {"x-team": "vision"}}
        export = start_export(receiver.endpoint(**changes), receiver.endpoint("metrics", **changes))
        export.end_spans(10, answer=42)
        export.metrics.latest = {"loss/train": 0.5}
        assert export.drain() < 0.5
        spans, points = receiver.spans, receiver.points
        assert [span.name for span in spans] == [f"span-{number}" for number in range(10)]
        assert spans[0].attributes == {**_COMMON, "answer": 42}
        assert spans[0].resource["runspan.run.id"] == "run-1"
        assert spans[0].scope[0] == "runspan"
        assert spans[0].scope[2] == SCHEMA_URL
        assert [point.value for point in receiver.points_of("runspan.metric.value")] == [0.5, None]
        assert receiver.last_headers["x-team"] == "vision"
        assert export.pipeline.exported == {TRACES: 10, METRICS: len(points)}
        assert export.pipeline.dropped == {}


@_PROTOCOLS
def test_spans_leave_while_the_run_goes_on(protocol: str) -> None:
    """Without any drain spans arrive within the period, or at once when asked for."""
    with OtlpReceiver(protocol) as receiver:
        export = start_export(receiver.endpoint())
        export.end_spans(3)
        assert until(lambda: len(receiver.spans) == 3, timeout_s=5)
        export.end_spans(1)
        export.pipeline.flush_soon()
        assert until(lambda: len(receiver.spans) == 4, timeout_s=0.8)
        export.drain()


@_PROTOCOLS
def test_metrics_leave_at_their_interval(protocol: str) -> None:
    """Metrics are exported at the interval while the run goes on, each time as they are then."""
    with OtlpReceiver(protocol) as receiver:
        export = start_export(None, receiver.endpoint("metrics"), metric_interval_s=0.1)
        export.metrics.steps = 1
        assert until(lambda: [point.value for point in receiver.points_of("runspan.steps")][-1:] == [1])
        export.metrics.steps = 2
        assert until(lambda: [point.value for point in receiver.points_of("runspan.steps")][-1:] == [2])
        export.drain()


@_PROTOCOLS
def test_a_short_jobs_last_values_are_sent(protocol: str) -> None:
    """Case 52: a job much shorter than the export interval still delivers its final value and status."""
    with OtlpReceiver(protocol) as receiver:
        export = start_export(receiver.endpoint(), receiver.endpoint("metrics"), metric_interval_s=60)
        export.metrics.latest = {"loss": 0.125}
        export.metrics.status = RunStatus.FAILED
        export.drain(2.0)
        assert receiver.points_of("runspan.metric.value")[0].value == 0.125
        statuses = {
            point.attributes["runspan.run.status"]: point.value for point in receiver.points_of("runspan.run.status")
        }
        assert statuses["failed"] == 1
        assert sum(value or 0 for value in statuses.values()) == 1


@_PROTOCOLS
def test_a_large_batch_is_split(protocol: str) -> None:
    """Case 6: 400 spans of 32 KiB pass a receiver that takes 4 MiB, and none is lost."""
    with OtlpReceiver(protocol) as receiver:
        export = start_export(receiver.endpoint())
        export.end_spans(400, **{f"a{number}": "x" * 4096 for number in range(8)})
        export.drain()
        spans = receiver.spans
        assert {span.name for span in spans} == {f"span-{number}" for number in range(400)}
        assert len(spans) == 400
        assert all(len(span.attributes[f"a{number}"]) == 4096 for span in spans for number in range(8))
        assert max(receiver.request_sizes) < 4 * 1024 * 1024
        assert len(receiver.request_sizes) <= 8


@_PROTOCOLS
def test_a_receiver_that_takes_less_gets_less(protocol: str) -> None:
    """A refusal for size halves the batch until it fits; a span that alone is too large is lost, and only that one."""
    with OtlpReceiver(protocol, max_message_bytes=100_000) as receiver:
        export = start_export(receiver.endpoint())
        export.end_spans(40, **{f"a{number}": "x" * 4096 for number in range(8)})
        export.tracer.start_span("huge", attributes={f"a{number}": "x" * 4096 for number in range(30)}).end()
        export.drain()
        assert {span.name for span in receiver.spans} == {f"span-{number}" for number in range(40)}
        assert export.pipeline.exported[TRACES] == 40
        assert export.pipeline.dropped == {(TRACES, "too_large"): 1}


@_PROTOCOLS
def test_a_huge_attribute_is_cut_alone(protocol: str) -> None:
    """Case 6: a 6 MB attribute arrives cut and marked, and its neighbours as they were."""
    with OtlpReceiver(protocol) as receiver:
        export = start_export(receiver.endpoint())
        export.end_spans(2, fine="y" * 4096)
        export.tracer.start_span("big", attributes={"text": "x" * 6_000_000, "other": 1}).end()
        export.drain()
        (big,) = [span for span in receiver.spans if span.name == "big"]
        assert big.attributes["text"].endswith("…[cut from 6000000 bytes]")
        assert len(big.attributes["text"].encode()) <= 4096
        assert big.attributes["other"] == 1
        assert [span.attributes["fine"] for span in receiver.spans if span.name != "big"] == ["y" * 4096] * 2


@_PROTOCOLS
def test_many_long_keys_are_split(protocol: str) -> None:
    """Metrics larger than a request may be arrive in parts, each point once."""
    with OtlpReceiver(protocol) as receiver:
        export = start_export(None, receiver.endpoint("metrics"))
        keys = [f"{number:04}" + "k" * 3000 for number in range(1500)]
        export.metrics.latest = dict.fromkeys(keys, 1.0)
        export.drain()
        values = [point for point in receiver.points_of("runspan.metric.value") if point.value is not None]
        assert sorted(point.attributes["runspan.metric.key"] for point in values) == keys
        assert len(receiver.request_sizes) > 1
        assert export.pipeline.exported[METRICS] == len(receiver.points)


@_PROTOCOLS
def test_unusual_values_cost_nothing_else(protocol: str) -> None:
    """Cases 9, 10 and 35: NaN, huge integers and surrogates in one span leave it and its neighbours whole."""
    with OtlpReceiver(protocol) as receiver:
        export = start_export(receiver.endpoint())
        export.end_spans(1)
        attributes: dict[str, Any] = {
            "nan": math.nan,
            "seed": 2**64 - 1,
            "exact": 2**53 + 1,
            "text": "a\ud800",
            "map": {"a": [1, math.inf]},
        }
        export.tracer.start_span("odd\udfff", attributes=attributes).end()
        export.end_spans(1)
        export.drain()
        assert [span.name for span in receiver.spans] == ["span-0", "odd\ufffd", "span-0"]
        assert receiver.spans[1].attributes == {
            **_COMMON,
            "nan": "NaN",
            "seed": "18446744073709551615",
            "exact": 2**53 + 1,
            "text": "a\ufffd",
            "map": '{"a":[1,"Infinity"]}',
        }


@_PROTOCOLS
def test_an_unencodable_span_is_lost_alone(protocol: str) -> None:
    """A span that cannot be encoded at all is counted, and its batch arrives."""
    with OtlpReceiver(protocol) as receiver:
        export = start_export(receiver.endpoint())
        export.end_spans(5)
        export.tracer.start_span("before the epoch", start_time=-5).end(end_time=-1)
        export.end_spans(5)
        export.drain()
        assert len(receiver.spans) == 10
        assert export.pipeline.dropped == {(TRACES, "encode_error"): 1}


@_PROTOCOLS
def test_ranks_add_up(protocol: str) -> None:
    """Case 49: 4 ranks that count 10 each are 4 series with their rank, and 40 together."""
    with OtlpReceiver(protocol) as receiver:
        for rank in range(4):
            export = start_export(None, receiver.endpoint("metrics"), rank=rank, world_size=4)
            export.metrics.counts["images", ""] = 10
            export.drain()
        points = receiver.points_of("runspan.metric.count", runspan_metric_key="images")
        assert sorted(point.resource["runspan.rank"] for point in points) == [0, 1, 2, 3]
        assert sum(point.value or 0 for point in points) == 40
        assert len({point.resource["service.instance.id"] for point in points}) == 4
        assert all("runspan.rank" not in point.attributes for point in points)


@_PROTOCOLS
def test_a_long_run_exports_a_bounded_trace(protocol: str) -> None:
    """Case 51: of 20,000 spans at most max_exported_spans arrive, run and rank among them, the rest is counted."""
    with OtlpReceiver(protocol) as receiver:
        export = start_export(receiver.endpoint(), max_exported_spans=300)
        run = export.tracer.start_span("run")
        context = set_span_in_context(run)
        rank = export.tracer.start_span("rank", context=context)
        for _ in range(20_000):
            export.tracer.start_span("user", context=context).end()
        rank.end()
        run.end()
        export.drain()
        names = [span.name for span in receiver.spans]
        assert len(names) <= 300
        assert {"run", "rank"} <= set(names)
        assert export.pipeline.exported[TRACES] == len(names)
        assert export.pipeline.exported[TRACES] + sum(export.pipeline.dropped.values()) == 20_002


@_PROTOCOLS
def test_a_slow_receiver_costs_only_counted_spans(protocol: str) -> None:
    """Case 7: with 10,000 spans and a slow receiver, exported and dropped make 10,000."""
    with OtlpReceiver(protocol, faults=Faults(delay_s=0.3)) as receiver:
        export = start_export(receiver.endpoint(), queue_size=2048)
        export.end_spans(10_000)
        assert export.drain(1.0) < 1.2
        exported, dropped = export.pipeline.exported[TRACES], dict(export.pipeline.dropped)
        assert exported + sum(dropped.values()) == 10_000
        assert dropped[TRACES, "queue_full"] > 0
        assert exported > 0
