from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import runspan
from support.live import LiveRuns
from support.otlp_receiver import Faults, OtlpReceiver, ReceivedSpan, until
from support.programs import events_of, lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveRuns]:
    """Start runs in a folder of their own, with no variable of runspan's or OpenTelemetry's."""
    for name in os.environ:
        if name.startswith(("RUNSPAN_", "OTEL_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    runs = LiveRuns(tmp_path, monkeypatch)
    yield runs
    runs.close()


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """Run a receiver over gRPC."""
    with OtlpReceiver() as running:
        yield running


def _to(receiver: OtlpReceiver) -> dict[str, Any]:
    return {"export_otlp": True, "otlp_endpoint": f"http://127.0.0.1:{receiver.port}"}


def _ended(receiver: OtlpReceiver) -> list[ReceivedSpan]:
    return [span for span in receiver.spans if not span.attributes.get("runspan.pending")]


def _one(receiver: OtlpReceiver, name: str) -> ReceivedSpan:
    (span,) = [span for span in receiver.spans if span.name == name]
    return span


def test_long_spans_show_while_they_are_open(live: LiveRuns, receiver: OtlpReceiver) -> None:
    """Run, rank and rank 0's epoch, checkpoint and evaluate are shown by a pending child at once, outside the file."""
    run = live.start(**_to(receiver))
    with run, run.epoch(1), run.evaluate(), run.checkpoint():
        names = {"run", "rank", "epoch", "evaluate", "checkpoint"}
        pending = {f"{name} (started)" for name in names}
        assert until(lambda: {span.name for span in receiver.spans} == pending)
        for name in names:
            shown = _one(receiver, f"{name} (started)")
            assert shown.attributes["runspan.pending"] is True
            assert shown.trace_id == run.trace_id
    assert {span.name for span in _ended(receiver)} == names
    for name in names:
        assert _one(receiver, f"{name} (started)").parent_span_id == _one(receiver, name).span_id
    assert "(started)" not in (live.trace_dir / run.id / "rank-00000.jsonl").read_text()


def test_an_alert_is_exported_at_once(live: LiveRuns, receiver: OtlpReceiver) -> None:
    """An alert's short span under rank arrives while the run goes on, and its counter counts it."""
    run = live.start(**_to(receiver), metric_interval_s=60.0)
    run.alert("diverged", "loss is NaN", "error")
    assert until(lambda: any(span.name == "alert" for span in receiver.spans))
    alert = _one(receiver, "alert")
    assert alert.parent_span_id == live.lines(run)[0]["span_id"]
    assert alert.attributes["runspan.level"] == "error"
    run.finish()
    (point,) = receiver.points_of("runspan.alerts")
    assert (point.value, point.attributes["runspan.level"], point.attributes["runspan.rule"]) == (1, "error", "user")


def test_exported_spans_are_those_of_the_file(live: LiveRuns, receiver: OtlpReceiver) -> None:
    """What arrives has the file's ids, times, parents, attributes and resource; an uncaptured step's spans do not."""
    with live.start(**_to(receiver)) as run, run.span("outer", a=1) as span:
        late: Any = np.float32(1.5)
        span.set_attribute("b", late)
        with run.step(), run.span("in step"), run.phase("forward"):
            pass
        with run.phase("outside"):
            pass
    lines = live.lines(run)
    starts = {line["id"]: line for line in events_of(lines, "span_start") if "flags" not in line["otel"]}
    ends = {line["id"]: line for line in events_of(lines, "span_end")}
    assert {span.name for span in _ended(receiver)} == {"run", "rank", "outer"}
    for received in _ended(receiver):
        start, end = starts.pop(received.span_id), ends[received.span_id]
        assert received.name == start["name"]
        assert received.parent_span_id == start["otel"].get("parent_span_id", "")
        assert received.start_time_unix_nano == start["time_unix_nano"]
        assert received.end_time_unix_nano == start["time_unix_nano"] + end["duration_ns"]
        common = {"runspan.run.id": run.id, "runspan.rank": 0, "runspan.attempt": 0}
        assert received.attributes == {**common, **start["attributes"], **end.get("attributes", {})}
        assert received.resource == lines[0]["resource"]
        assert received.scope[0] == "runspan"
    assert starts == {}


def test_attributes_in_their_exported_form(live: LiveRuns, receiver: OtlpReceiver) -> None:
    """Cases 9, 10, 27 and 35: what OTLP has no form for is derived at the edge; one bad value costs no other span."""
    params = {"long": "x" * 50_000, "nested": {"a": [1]}, "seed": 2**64 - 1, "exact": 2**53 + 1, "nan": float("nan")}
    with live.start(**_to(receiver), params=params) as run, run.span("a\ud800", bad="\ud800", f=np.float32(1.5)):
        run.log_metric("loss", float("inf"))
    attributes = _one(receiver, "run").attributes
    long = attributes["runspan.param.long"]
    assert long.endswith("…[cut from 50000 bytes]")
    assert len(long.encode()) <= 4096
    assert attributes["runspan.param.nested"] == '{"a":[1]}' or attributes["runspan.param.nested"] == '{"a": [1]}'
    assert attributes["runspan.param.seed"] == str(2**64 - 1)
    assert attributes["runspan.param.exact"] == 2**53 + 1
    assert attributes["runspan.param.nan"] == "NaN"
    assert attributes["runspan.metric.loss"] == "Infinity"
    odd = _one(receiver, "a\ufffd").attributes
    assert (odd["bad"], odd["f"]) == ("\ufffd", 1.5)
    assert {line["key"]: line["value"] for line in events_of(live.lines(run), "param")}["long"] == "x" * 50_000


def test_large_batches_and_items(live: LiveRuns, receiver: OtlpReceiver) -> None:
    """Case 6: 400 spans of 8 attributes of 4 KiB arrive below the 4 MiB limit; 6 MB in one is cut, whole at home."""
    with live.start(**_to(receiver), shutdown_timeout_s=10.0) as run:
        for index in range(400):
            with run.span(f"s{index}", **{f"a{number}": "x" * 4096 for number in range(8)}):
                pass
        with run.span("huge", text="y" * 6_000_000):
            pass
    assert len([span for span in _ended(receiver) if span.name.startswith("s")]) == 400
    assert _one(receiver, "huge").attributes["text"].endswith("…[cut from 6000000 bytes]")
    assert max(receiver.request_sizes) < 4 * 1024 * 1024
    (huge,) = events_of(live.lines(run), "span_start", name="huge")
    assert len(huge["attributes"]["text"]) == 6_000_000


def test_a_slow_receiver_loses_what_is_counted(
    live: LiveRuns, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 7: of 10,000 spans the file has all, exported + dropped makes all, the loss is said, with few warnings."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1024")
    receiver.faults.delay_s = 2.0
    with live.start(**_to(receiver), max_exported_spans=100_000, shutdown_timeout_s=1.0, alert_rules=()) as run:
        for _ in range(10_000):
            with run.span("fast"):
                pass
    lines = live.lines(run)
    assert len(events_of(lines, "span_end")) == 10_002
    lost = {line["reason"]: line["count"] for line in events_of(lines, "dropped", signal="traces")}
    pipeline = run._session.otel._pipeline
    assert pipeline is not None
    exported = pipeline.exported["traces"]
    assert exported + sum(lost.values()) == 10_002
    assert lost["queue_full"] > 0
    (run_end,) = events_of(lines, "span_end", id=run.span_id)
    assert run_end["attributes"]["runspan.dropped.spans"] > 0
    assert len(caplog.records) <= 3


def test_divergence_shows_in_the_export(live: LiveRuns, receiver: OtlpReceiver) -> None:
    """Case 15: loss 0.5, NaN, NaN: three points at home; outside a counter of 2 and no healthy 0.5 that stays."""
    run = live.start(**_to(receiver), metric_interval_s=0.2)
    run.log_metric("loss", 0.5)
    assert until(lambda: receiver.points_of("runspan.metric.value"))
    run.log_metric("loss", float("nan"))
    run.log_metric("loss", float("nan"))
    assert until(lambda: any(point.value is None for point in receiver.points_of("runspan.metric.value")))
    run.finish()
    values = [point.value for point in receiver.points_of("runspan.metric.value", runspan_metric_key="loss")]
    assert (values[0], values[-1]) == (0.5, None)
    assert receiver.points_of("runspan.metric.nonfinite", runspan_metric_key="loss")[-1].value == 2
    assert len(events_of(live.lines(run), "metric")) == 3
    assert len(live.storage.get_metrics(run.id, "loss")) == 3


def test_a_long_run_exports_a_bounded_trace(live: LiveRuns, receiver: OtlpReceiver) -> None:
    """Cases 46 and 51: 100,000 steps make a complete file, a trace within its bound, and a constant set of series."""
    with live.start(**_to(receiver), max_exported_spans=200, metric_interval_s=0.5, shutdown_timeout_s=10.0) as run:
        for step in range(100_000):
            with run.step(samples=1), run.phase("forward"):
                if step % 100 == 0:
                    run.log_metric("loss", step)
        for _ in range(1_000):
            with run.span("outside"):
                pass
    in_trace = [span for span in _ended(receiver) if span.trace_id == run.trace_id]
    assert len(in_trace) <= 200
    root = _one(receiver, "run").attributes
    assert root["runspan.max_exported_spans"] == 200
    assert root["runspan.dropped.spans"] > 800
    lines = live.lines(run)
    assert len(events_of(lines, "step")) == 100_000
    assert len(events_of(lines, "span_start", name="outside")) == 1_000
    labels = {frozenset(point.attributes.items()) for point in receiver.points_of("runspan.metric.value")}
    assert len(labels) == 1
    assert not any("step" in key for point in receiver.points for key in point.attributes)
    assert receiver.points_of("runspan.steps")[-1].value == 100_000
    assert receiver.points_of("runspan.step.duration")[-1].count == 100_000
    assert receiver.points_of("runspan.phase.duration", runspan_phase="forward")[-1].count == 100_000


def test_too_many_keys_are_left_out_of_the_export(
    live: LiveRuns, receiver: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 46: of 10,000 keys max_metric_keys are exported, one warning, the rest counted; storage has all."""
    with live.start(**_to(receiver), max_metric_keys=500, shutdown_timeout_s=10.0) as run:
        run.log_metrics({f"key/{index}": index for index in range(10_000)})
    exported = {point.attributes["runspan.metric.key"] for point in receiver.points_of("runspan.metric.value")}
    assert len(exported) == 500
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    (dropped,) = events_of(live.lines(run), "dropped", signal="metrics")
    assert (dropped["reason"], dropped["count"]) == ("max_metric_keys", 9_500)
    assert len(live.storage.metric_keys(run.id)) == 10_000


def test_a_receiver_that_comes_back_gets_what_waited(live: LiveRuns) -> None:
    """An endpoint that is down for a while costs one warning and no span."""
    with OtlpReceiver(faults=Faults()) as first:
        port = first.port
    run = live.start(export_otlp=True, otlp_endpoint=f"http://127.0.0.1:{port}", shutdown_timeout_s=10.0)
    for index in range(20):
        with run.span(f"s{index}"):
            pass
    with OtlpReceiver(port=port) as receiver:
        run.finish()
        assert {span.name for span in _ended(receiver)} >= {f"s{index}" for index in range(20)}
    assert events_of(live.lines(run), "dropped") == []


def test_a_sampler_that_says_no_stops_the_export_alone(
    live: LiveRuns, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OTEL_TRACES_SAMPLER=always_off: no span leaves, all are in the file, metrics go on."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with live.start(**_to(receiver)) as run, run.span("s"):
        run.log_metric("loss", 1.0)
    assert receiver.spans == []
    assert receiver.points_of("runspan.metric.value") != []
    assert len(events_of(live.lines(run), "span_end")) == 3


def test_two_exporting_runs_are_independent(live: LiveRuns, receiver: OtlpReceiver) -> None:
    """Case 16: each Run ships to its own endpoint under its own resource."""
    with OtlpReceiver("http/protobuf") as other:
        to_other = {**_to(other), "otlp_protocol": "http/protobuf"}
        with live.start("one", **_to(receiver)) as first, live.start("two", **to_other) as second:
            first.log_metric("loss", 1.0)
            second.log_metric("loss", 2.0)
        assert {span.trace_id for span in other.spans} == {second.trace_id}
        assert {span.resource["service.name"] for span in other.spans} == {"two"}
    assert {span.trace_id for span in receiver.spans} == {first.trace_id}
    values = {point.value for point in receiver.points_of("runspan.metric.value")}
    assert values == {1.0, None}


def test_a_resumed_run_exports_run_again_with_its_first_start(live: LiveRuns, receiver: OtlpReceiver) -> None:
    """Case 53: a later attempt's run span has the first one's ids and start; its counters have a start of their own."""
    with live.start(**_to(receiver), run_id="r") as first:
        first.count("tokens", 1000)
    with live.start(**_to(receiver), run_id="r") as again:
        again.count("tokens", 500)
    runs = [span for span in _ended(receiver) if span.name == "run"]
    assert len({(span.trace_id, span.span_id, span.start_time_unix_nano) for span in runs}) == 1
    assert [span.attributes["runspan.attempt"] for span in runs] == [0, 1]
    ranks = [span for span in _ended(receiver) if span.name == "rank"]
    assert len({span.span_id for span in ranks}) == 2
    assert live.storage.get_run("r").counts["tokens"] == 1500
    # Each attempt's counter starts anew, at a time of its own: none continues or repeats another's.
    points = receiver.points_of("runspan.metric.count")
    starts = {point.resource["runspan.attempt"]: point.start_time_unix_nano for point in points}
    assert {(point.resource["runspan.attempt"], point.value) for point in points} == {(0, 1000), (1, 500)}
    assert starts[0] <= min(point.time_unix_nano for point in points) < starts[1]


def test_a_host_span_is_no_span_of_the_export(live: LiveRuns, receiver: OtlpReceiver) -> None:
    """Run.span_processor writes a host's spans to the file and exports nothing of them."""
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - the host program's

    provider = TracerProvider(shutdown_on_exit=False)
    with live.start(**_to(receiver)) as run:
        provider.add_span_processor(run.span_processor)
        with provider.get_tracer("host").start_as_current_span("host's"):
            pass
    assert "host's" not in {span.name for span in receiver.spans}
    assert len(events_of(live.lines(run), "span_start", name="host's")) == 1
    assert run.status() == runspan.RunStatus.SUCCESS


def test_a_captured_step_of_many_spans_exports_a_bounded_trace(live: LiveRuns, receiver: OtlpReceiver) -> None:
    """Cases 35 and 51: its file has every span and all evidence as strict JSON, the export a bounded part, counted."""
    capture = runspan.CaptureSchedule(wait=0, warmup=0, active=1, repeat=1, slow_factor=0)
    with live.start(**_to(receiver), max_exported_spans=50, capture=capture) as run:
        for _ in range(2):
            with run.step() as step:
                assert step is not None
                for number in range(300):
                    with step.recorder.span(f"op {number}", "op", loss=float("nan")):
                        step.recorder.gradient("w", float("inf"), root="loss")
    assert run.directory is not None
    (path,) = run.directory.glob("captures/*/rank-00000.jsonl")
    lines = lines_of(path)
    spans, ends = events_of(lines, "span_start"), events_of(lines, "span_end")
    assert (len(spans), len(ends), len(events_of(lines, "gradient", state="non_finite"))) == (301, 301, 300)
    exported = [span for span in receiver.spans if span.trace_id == lines[0]["trace_id"]]
    assert 30 <= len(exported) <= 50
    assert {span.span_id for span in exported} <= {span["id"] for span in spans}
    (root,) = [span for span in exported if span.name == "step"]
    assert {span.attributes["loss"] for span in exported if span is not root} == {"NaN"}
    assert spans[1]["attributes"] == {"loss": {"$float": "NaN"}}
    assert _one(receiver, "run").attributes["runspan.dropped.spans"] <= 301 - len(exported)
