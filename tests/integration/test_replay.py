"""Recorded traces sent into a real OTLP receiver: what arrives is what the live export sends."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.trace import SpanContext, TraceFlags

import runspan
from runspan.errors import ConfigError
from runspan.replay import METRIC_WINDOW_S, ReplayOutcome, replay
from runspan.tracefile.events import Count, Observe, SpanEnd, SpanStart, Step
from runspan.tracefile.layout import RunDirectory, TraceName
from runspan.tracefile.reader import read
from support.live import LiveRuns
from support.otlp_receiver import BlackHole, Faults, OtlpReceiver, refused_port
from support.traces import START_UNIX_NANO, FixedClock, make_meta, make_metric, make_span, make_terminal, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runspan.tracefile.events import TraceEvent

_NO_VARIABLES: dict[str, str] = {}


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


def _config(receiver: OtlpReceiver, **changes: Any) -> runspan.TracingConfig:
    return _config_of(receiver.port, receiver.protocol, **changes)


def _config_of(port: int, protocol: str = "grpc", **changes: Any) -> runspan.TracingConfig:
    url = f"http://127.0.0.1:{port}"
    return runspan.TracingConfig(export_otlp=True, otlp_endpoint=url, otlp_protocol=protocol, **changes)


def _first_parts(directory: Path) -> list[Path]:
    return [path for name, path in RunDirectory(directory).trace_files() if name.part == 0]


def _encoded(receiver: OtlpReceiver) -> dict[tuple[bytes, bytes], list[bytes]]:
    """Return each span by its ids, resource and scope included, as the bytes that arrived; without pending ones."""
    found: dict[tuple[bytes, bytes], list[bytes]] = {}
    for request in receiver._traces:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    if not span.name.endswith(" (started)"):
                        around = resource.resource.SerializeToString(deterministic=True)
                        within = scope.scope.SerializeToString(deterministic=True)
                        schemas = f"{resource.schema_url} {scope.schema_url}".encode()
                        whole = b"|".join((around, schemas, within, span.SerializeToString(deterministic=True)))
                        found.setdefault((span.trace_id, span.span_id), []).append(whole)
    return found


def _record_everything(run: runspan.Run) -> None:
    """Record every sort of span, with every sort of content."""
    values: dict[str, Any] = {
        "nan": float("nan"),
        "huge": 2**63,
        "nested": {"a": [1, {"b": None}], "z": 1.5},
        "mixed": [1, 2.5],
        "words": ["a", "é"],
        "whole floats": [1.0, 2.0],
        "surrogate": "a\ud800b",
        "long": "x" * 10_000,
        "none": None,
        "bytes": b"abc",
    }
    run.log_params({"lr": 0.1, "layers": [1, 2], "optimizer": {"name": "adam"}})
    run.set_tag("team", "vision")
    with run.epoch(1), run.span("user", **values) as span:
        span.set_attribute("nan", 1)  # set anew: moves to the end
        span.set_attribute("added", True)
        span.update_name("renamed")
        span.add_event("seen", {"at": float("inf")})
        span.add_link(SpanContext(7, 8, is_remote=False, trace_flags=TraceFlags(1)), {"why": "because"})
    for index in range(140):
        span.set_attribute(f"late {index}", index)
    with run.span("crowded") as crowded:
        for index in range(200):
            crowded.set_attribute(f"key {index}", index)
            crowded.add_event(f"event {index}")
    with pytest.raises(ValueError, match="broken"), run.span("failing"):
        raise ValueError("broken")
    for _ in range(4):
        with run.step(samples=2, tokens=3):
            with run.phase("forward"), run.span("inside", text="x"):
                pass
            run.log_metric("loss/train", 0.5)
    with run.checkpoint(), run.evaluate():
        pass
    run.alert("odd", "something", "warning")


def _ship(live: LiveRuns, receiver: OtlpReceiver, **changes: Any) -> Path:
    """Record and ship a run, and return its directory."""
    capture = runspan.CaptureSchedule(wait=1, warmup=0, active=2, repeat=1)
    url = f"http://127.0.0.1:{receiver.port}"
    run = live.start(
        export_otlp=True,
        otlp_endpoint=url,
        otlp_protocol=receiver.protocol,
        capture=capture,
        shutdown_timeout_s=20.0,
        **changes,
    )
    with run:
        _record_everything(run)
    return live.trace_dir / run.id


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_replay_sends_what_the_live_export_sent(live: LiveRuns, protocol: str) -> None:
    """Every span that was shipped live is replayed byte for byte, captured steps' too, twice alike, and no other."""
    with OtlpReceiver(protocol) as at_run, OtlpReceiver(protocol) as at_replay:
        directory = _ship(live, at_run)
        sent = _encoded(at_run)
        assert {len(copies) for copies in sent.values()} == {1}
        reports = [replay(_first_parts(directory), _config(at_replay)) for _ in range(2)]
        again = _encoded(at_replay)
    assert again == {ids: copies * 2 for ids, copies in sent.items()}
    for report in reports:
        assert (report.outcome, report.spans, report.lost) == (ReplayOutcome.COMPLETE, len(sent), {})
        assert report.traces == 3
        assert report.warnings == ()


def test_spans_of_forked_children_are_replayed(live: LiveRuns) -> None:
    """A forked child's spans, which its parent ships, are replayed as they were shipped."""
    with OtlpReceiver() as at_run, OtlpReceiver() as at_replay:
        run = live.start(export_otlp=True, otlp_endpoint=f"http://127.0.0.1:{at_run.port}", shutdown_timeout_s=20.0)
        with run:
            child = os.fork()
            if child == 0:
                with run.span("in the child", pid=1):
                    pass
                os._exit(0)
            os.waitpid(child, 0)
        directory = live.trace_dir / run.id
        replay(_first_parts(directory), _config(at_replay))
        assert _encoded(at_replay) == _encoded(at_run)
        assert any(span.name == "in the child" for span in at_replay.spans)


def test_a_resumed_run_has_its_newest_run_span(live: LiveRuns) -> None:
    """Of a run with two attempts the `run` span of the second is replayed, and the rank spans of both."""
    with OtlpReceiver() as at_run, OtlpReceiver() as at_replay:
        url = f"http://127.0.0.1:{at_run.port}"
        for lr in (1, 2):
            with live.start(run_id="again", export_otlp=True, otlp_endpoint=url, shutdown_timeout_s=20.0) as run:
                run.log_param("lr", lr)
        replay(_first_parts(live.trace_dir / "again"), _config(at_replay))
        sent, again = _encoded(at_run), _encoded(at_replay)
    assert again == {ids: copies[-1:] for ids, copies in sent.items()}
    assert sorted(map(len, sent.values())) == [1, 1, 2]


def test_a_replay_keeps_the_bound_of_exported_spans(live: LiveRuns) -> None:
    """Spans beyond `max_exported_spans` stay out of the store, as live, and are counted; the frame is whole."""
    with OtlpReceiver() as receiver:
        with live.start() as run:
            for index in range(300):
                with run.span(f"span {index}"):
                    pass
        report = replay(_first_parts(live.trace_dir / run.id), _config(receiver, max_exported_spans=100))
        names = [span.name for span in receiver.spans]
    assert report.outcome is ReplayOutcome.COMPLETE
    assert (report.spans, report.spans_over_budget) == (len(names), 302 - len(names))
    assert len(names) <= 100
    assert {"run", "rank"} <= set(names)


def test_spans_that_were_never_exported_live_are_not_replayed(live: LiveRuns) -> None:
    """What the sampler kept out of the export, the replay keeps out too."""
    with OtlpReceiver() as receiver:
        with live.start(otel=runspan.TracingConfig.from_env({"OTEL_TRACES_SAMPLER": "always_off"}).otel) as run:
            pass
        report = replay(_first_parts(live.trace_dir / run.id), _config(receiver))
        assert receiver.spans == []
    assert (report.outcome, report.spans) == (ReplayOutcome.COMPLETE, 0)


def _old_trace(folder: Path) -> Path:
    """Write a trace of an hour with a value, a step and a count every ten seconds, and return its path."""
    path = folder / TraceName(0).filename
    events: list[Any] = [make_meta()]
    for index in range(360):
        at = START_UNIX_NANO + index * 10_000_000_000
        events += [
            make_metric(index, at_s=index * 10.0),
            Step(step=index, duration_ns=5, samples=2, tokens=4, time_unix_nano=at),
            Count(key="images", value=3, time_unix_nano=at),
            Observe(key="seconds", value=0.5, unit="s", time_unix_nano=at),
        ]
    write_lines(path, [*events, make_terminal(3600.0)])
    return path


def test_metrics_go_as_far_back_as_prometheus_takes_them(tmp_path: Path) -> None:
    """Points lie within the out-of-order window and count from the start; what lies before it is counted."""
    path, clock = _old_trace(tmp_path), FixedClock(3610.0)
    with OtlpReceiver() as receiver:
        report = replay([path], _config(receiver, metric_interval_s=30.0), clock=clock)
        oldest = min(point.time_unix_nano for point in receiver.points)
        tokens = receiver.points_of("runspan.tokens")
        seconds = receiver.points_of("runspan.metric.observation")
        status = receiver.points_of("runspan.run.status", runspan_run_status="success")
        points = len(receiver.points)
    assert clock.now_ns - METRIC_WINDOW_S * 10**9 <= oldest < clock.now_ns - (METRIC_WINDOW_S - 60) * 10**9
    assert [point.value for point in tokens] == sorted(point.value for point in tokens if point.value is not None)
    assert (tokens[0].value, tokens[-1].value) == (4 * 189, 4 * 360)
    assert {point.start_time_unix_nano for point in tokens} == {START_UNIX_NANO}
    assert (seconds[-1].count, seconds[-1].value) == (360, 180.0)
    assert (status[0].value, status[-1].value) == (0, 1)
    assert (report.points, report.values_too_old) == (points, 4 * 187)


def test_an_old_run_sends_no_metrics(tmp_path: Path) -> None:
    """Of a run that ended before the window no point is sent, and all of its values are counted as too old."""
    with OtlpReceiver() as receiver:
        report = replay([_old_trace(tmp_path)], _config(receiver), clock=FixedClock(86_400.0))
        assert receiver.points == []
    assert (report.outcome, report.points, report.values_too_old) == (ReplayOutcome.COMPLETE, 0, 4 * 360)


def _spans_of(folder: Path, count: int) -> Path:
    path = folder / TraceName(0).filename
    spans = [event for index in range(1, count + 1) for event in make_span(f"{index:016x}")]
    write_lines(path, [make_meta(), *spans, make_terminal()])
    return path


@pytest.mark.parametrize("endpoint", ["refused", "black hole"])
def test_a_replay_into_nothing_gives_up(tmp_path: Path, endpoint: str) -> None:
    """A receiver that is not there, or never answers, ends the replay within its patience, as aborted and counted."""
    path = _spans_of(tmp_path, 5)
    with BlackHole() as hole:
        port = hole.port if endpoint == "black hole" else refused_port()
        began_s = time.monotonic()
        report = replay([path], _config_of(port), patience_s=0.5)
    assert time.monotonic() - began_s < 10
    assert (report.outcome, report.spans) == (ReplayOutcome.ABORTED, 0)
    assert report.lost["traces/shutdown_timeout"] == 5
    assert report.warnings


def test_a_refusal_is_counted(tmp_path: Path) -> None:
    """What the receiver refuses is counted, and the outcome says that it is not all there."""
    with OtlpReceiver() as receiver:
        receiver.faults = Faults(rejected=2)
        report = replay([_spans_of(tmp_path, 5)], _config(receiver))
    assert report.outcome is ReplayOutcome.PARTIAL
    assert (report.spans, report.lost["traces/rejected"]) == (3, 2)


def test_a_receiver_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    """A retryable answer costs nothing: the spans arrive."""
    with OtlpReceiver() as receiver:
        receiver.faults.answers.extend(["UNAVAILABLE", "UNAVAILABLE"])
        report = replay([_spans_of(tmp_path, 5)], _config(receiver))
        assert len(receiver.spans) == 5
    assert (report.outcome, report.spans, report.lost) == (ReplayOutcome.COMPLETE, 5, {})


def test_damaged_traces_are_replayed_as_far_as_they_can_be_read(tmp_path: Path) -> None:
    """An unreadable trace, an unreadable line and an open span cost themselves alone; each is told of."""
    good = _spans_of(tmp_path, 3)
    broken = tmp_path / TraceName(1).filename
    broken.write_bytes(b"no json\n")
    cut = tmp_path / TraceName(2).filename
    start, end = make_span("ab" * 8)
    write_lines(cut, [make_meta(2), start, end, make_span("cd" * 8)[0]])
    with OtlpReceiver() as receiver:
        report = replay([good, broken, cut], _config(receiver))
        assert len(receiver.spans) == 4
    assert report.outcome is ReplayOutcome.COMPLETE
    text = "\n".join(report.warnings)
    assert "rank-00001.jsonl" in text
    assert "rank-00002.jsonl: interrupted" in text


def test_spans_that_are_none_of_opentelemetry_s_are_told_of(tmp_path: Path) -> None:
    """A span whose id is no span id is left out; the message says how many there are."""
    spans: list[TraceEvent] = [*make_span("no id"), *make_span("nor this"), *make_span("ab" * 8)]
    write_lines(tmp_path / TraceName(0).filename, [make_meta(), *spans, make_terminal()])
    with OtlpReceiver() as receiver:
        report = replay([tmp_path / TraceName(0).filename], _config(receiver))
        assert len(receiver.spans) == 1
    assert report.outcome is ReplayOutcome.COMPLETE
    (ids,) = (warning.partition(": ")[2] for warning in report.warnings)
    assert ids.startswith("2 spans left out that none of OpenTelemetry can be: span 'no id': ")


@pytest.mark.parametrize("schema", [6, 7, 8, 9, 10])
def test_a_trace_of_candle_graph_is_replayed(schema: int) -> None:
    """Its spans arrive as one tree under ids that are derived from their names: a second replay sends the same."""
    golden = Path(__file__).resolve().parents[1] / "golden" / f"candle-graph-{schema}.jsonl"
    events = list(read(golden))
    started = {event.id: event for event in events if isinstance(event, SpanStart)}
    ended = {event.id for event in events if isinstance(event, SpanEnd)}
    with OtlpReceiver() as receiver:
        report = replay([golden], _config(receiver))
        assert (report.outcome, report.points) == (ReplayOutcome.COMPLETE, 0)
        first = _encoded(receiver)
        replay([golden], _config(receiver))
        assert {ids: set(copies) for ids, copies in _encoded(receiver).items()} == {
            ids: set(copies) for ids, copies in first.items()
        }
        spans = receiver.spans[: report.spans]
    assert sorted(span.name for span in spans) == sorted(started[name].name for name in ended)
    names = {span.span_id: span.name for span in spans}
    assert len(names) == len(ended)
    parents = {name: started[start.parent_id or ""].name for name, start in started.items() if start.parent_id}
    for span in spans:
        (name,) = (name for name in ended if started[name].name == span.name)
        assert names.get(span.parent_span_id) == (parents.get(name) if started[name].parent_id in ended else None)


def test_a_replay_needs_an_endpoint(tmp_path: Path) -> None:
    """Without an endpoint there is one clear error, which says how to give one."""
    with pytest.raises(ConfigError, match="--endpoint"):
        replay([_spans_of(tmp_path, 1)], runspan.TracingConfig.from_env(_NO_VARIABLES))


def test_a_run_beyond_its_bound_is_replayed_within_it(live: LiveRuns) -> None:
    """Case 51: of a run with more spans than may be exported, the replay sends those that the live export sent."""
    with OtlpReceiver() as at_run, OtlpReceiver() as at_replay:
        url = f"http://127.0.0.1:{at_run.port}"
        run = live.start(export_otlp=True, otlp_endpoint=url, shutdown_timeout_s=20.0, max_exported_spans=12)
        with run:
            for index in range(40):
                with run.span(f"span {index}"):
                    pass
        report = replay(_first_parts(live.trace_dir / run.id), _config(at_replay, max_exported_spans=12))
        sent, again = _encoded(at_run), _encoded(at_replay)
    assert (report.spans, report.spans_over_budget) == (len(sent), 42 - len(sent))
    assert len(sent) <= 12
    assert again == sent
