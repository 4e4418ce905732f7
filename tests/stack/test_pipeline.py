"""Runs through the real collector into the real Jaeger and the real Prometheus, with the shipped configuration."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from runspan import ids
from runspan.semconv import SpanName
from runspan.tracefile.meta import TraceRunMeta
from support.cli import clean_environ, run_program
from support.programs import lines_of
from support.stack_clients import eventually
from support.stack_runs import Training

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from support.stack import Stack

pytestmark = pytest.mark.stack

#: The names that runspan gives spans itself.
_SPAN_NAMES = {value for name, value in vars(SpanName).items() if name.isupper()}
_TRAIN = """
def train(run):
    for epoch in range(2):
        with run.epoch(epoch):
            for number in range(20):
                with run.step(samples=8, tokens=64):
                    with run.phase("forward"):
                        time.sleep(0.001)
                    run.log_metric("loss/train", 1 / (number + 1))
            with run.span("shuffle", rank=run.rank_context.rank):
                pass
    if run.rank_context.rank == 0:
        with run.checkpoint(None):
            pass
"""
#: Trains until the file `stop` stands in its folder.
_TRAIN_ON = """
def train(run):
    number = 0
    slowest_s = 0.0
    while not os.path.exists("stop"):
        began_s = time.perf_counter()
        with run.step(tokens=10):
            run.log_metric("loss", 1.0 + number)
        with run.span("between steps", number=number):
            pass
        slowest_s = max(slowest_s, time.perf_counter() - began_s)
        number += 1
        time.sleep(0.05)
    with open(f"slowest-{run.rank_context.rank}", "w") as file:
        file.write(f"{slowest_s} {number}")
"""


@pytest.fixture(scope="module")
def demo(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ship the demo's training of 4 ranks to the stack, and return its directory; its trace has arrived."""
    folder = tmp_path_factory.mktemp("demo")
    options = ["--epochs", "1", "--slow-ms", "0", "--otlp", stack.otlp_url, "--otlp-protocol", "grpc"]
    answer = run_program(["demo", *options], clean_environ(folder), timeout_s=120)
    assert answer.code == 0, answer.err
    (directory,) = (folder / "runs").iterdir()
    meta = lines_of(directory / "rank-00000.jsonl")[0]

    def arrived() -> None:
        spans = stack.jaeger.client.trace(meta["trace_id"])
        assert {"run", "rank"} <= {span.name for span in spans if not span.is_pending}
        assert len([span for span in spans if span.name == "rank"]) == 4

    eventually(arrived)
    return directory


def test_the_demo_arrives_in_jaeger(stack: Stack, demo: Path) -> None:
    """The demo's 4 ranks are one trace in Jaeger, found by the run's id, with all of TraceRunMeta on the run span."""
    meta = lines_of(demo / "rank-00000.jsonl")[0]
    found = stack.jaeger.client.find_trace_ids("digits", {"runspan.run.id": meta["run_id"]})
    assert meta["trace_id"] in found
    spans = stack.jaeger.client.trace(meta["trace_id"])
    (run,) = [span for span in spans if span.name == "run"]
    ranks = [span for span in spans if span.name == "rank"]
    assert {span.parent_span_id for span in ranks} == {run.span_id}
    assert sorted(span.resource["runspan.rank"] for span in ranks) == [0, 1, 2, 3]
    for field in TraceRunMeta.__struct_fields__:
        if field == "tags":
            assert {
                f"runspan.tag.{key}": value for key, value in meta["tags"].items()
            }.items() <= run.attributes.items()
        elif field in meta:
            assert run.attributes[f"runspan.trace.{field}"] == meta[field], field
    assert run.attributes["runspan.run.status"] == "success"
    assert run.attributes["runspan.metric.accuracy/test"] > 0.5


def test_the_demo_s_captured_step_has_all_ranks(stack: Stack, demo: Path) -> None:
    """Step 11 is one trace of all 4 ranks' phases; it links to run and rank, and rank 0's trace links back to it."""
    meta = lines_of(demo / "rank-00000.jsonl")[0]
    client = stack.jaeger.client
    trace_id = f"{ids.step_trace_id(meta['run_id'], 11):032x}"

    def arrived() -> None:
        for name in ("step", "data", "forward", "backward", "all_reduce", "optimizer"):
            spans = [span for span in client.trace(trace_id) if span.name == name]
            assert sorted(span.resource["runspan.rank"] for span in spans) == [0, 1, 2, 3], name

    eventually(arrived)
    of_run = client.trace(meta["trace_id"])
    (run,) = [span for span in of_run if span.name == "run"]
    ranks = {span.resource["runspan.rank"]: span for span in of_run if span.name == "rank"}
    steps = {span.resource["runspan.rank"]: span for span in client.trace(trace_id) if span.name == "step"}
    for number, step in steps.items():
        assert step.parent_span_id == ""
        assert step.links == ((run.trace_id, run.span_id), (run.trace_id, ranks[number].span_id))
    (back,) = [
        span for span in of_run if span.name == "step captured" and span.links == ((trace_id, steps[0].span_id),)
    ]
    assert back.parent_span_id == ranks[0].span_id


def test_the_demo_s_exemplars_are_known_to_jaeger(stack: Stack, demo: Path) -> None:
    """Each exemplar of the demo's steps and phases names a trace and a ``step`` span that Jaeger has."""
    run_id = lines_of(demo / "rank-00000.jsonl")[0]["run_id"]
    names = ("runspan_step_duration_seconds", "runspan_phase_duration_seconds")

    def are_known() -> None:
        for name in names:
            labels = [
                exemplar["labels"]
                for exemplar in stack.prometheus.client.exemplars(f'{name}{{runspan_run_id="{run_id}"}}')
            ]
            assert labels, name
            for each in labels:
                steps = {span.span_id for span in stack.jaeger.client.trace(each["trace_id"]) if span.name == "step"}
                assert each["span_id"] in steps, name

    eventually(are_known)


def test_jaeger_has_the_demo_s_spans_and_no_others(stack: Stack, demo: Path) -> None:
    """Jaeger has the spans of the demo's files, each once, but for those of long stages, which only rank 0 exports."""
    meta = lines_of(demo / "rank-00000.jsonl")[0]
    expected = [
        (event["otel"]["trace_id"], event["id"])
        for file in sorted(demo.rglob("rank-*.jsonl"))
        for event in lines_of(file)
        if event["kind"] == "span_start"
        and (file.stem == "rank-00000" or event["name"] not in {"epoch", "evaluate", "checkpoint"})
    ]

    def all_arrived() -> None:
        client = stack.jaeger.client
        traces = client.find_trace_ids("digits", {"runspan.run.id": meta["run_id"]})
        spans = [span for trace_id in traces for span in client.trace(trace_id) if not span.is_pending]
        assert sorted((span.trace_id, span.span_id) for span in spans) == sorted(expected)

    eventually(all_arrived)


def test_jaeger_has_as_many_spans_as_were_exported(stack: Stack, tmp_path: Path) -> None:
    """What 4 ranks say they exported is what Jaeger has, span for span, and none twice."""
    training = Training(tmp_path, stack, _TRAIN)
    exported = sum(rank.exported or 0 for rank in training.run())
    eventually(lambda: _equal(len(training.spans()), exported))
    spans = training.spans()
    assert len({(span.trace_id, span.span_id) for span in spans}) == exported
    assert {"run", "rank", "epoch", "checkpoint", "shuffle"} <= {span.name for span in spans}


def test_an_open_run_is_visible_within_15_s(stack: Stack, tmp_path: Path) -> None:
    """15 s after its start a run that goes on is in Jaeger, as pending spans, and in Prometheus, as status running."""
    training = Training(tmp_path, stack, _TRAIN_ON, ranks=2, RUNSPAN_METRIC_INTERVAL_S="10")
    with training.running():
        client = stack.jaeger.client

        def visible() -> None:
            traces = client.find_trace_ids(training.experiment, {"runspan.run.id": training.run_id})
            names = {span.name for trace_id in traces for span in client.trace(trace_id) if span.is_pending}
            assert {"run (started)", "rank (started)"} <= names
            running = training.select("runspan_run_status", runspan_run_status="running")
            assert [sample.value for sample in stack.prometheus.client.query(running)] == [1.0, 1.0]

        eventually(visible, timeout_s=15)
        assert not [span for span in training.spans() if span.name in {"run", "rank"}]
        (tmp_path / "stop").touch()
        ended = training.wait()
    assert [rank.returncode for rank in ended] == [0, 0]


def test_the_last_values_of_a_short_run_arrive(stack: Stack, tmp_path: Path) -> None:
    """Case 52: a job of one second, with 60 s between exports and an exception at its end, leaves value and status."""
    source = """
def train(run):
    for number in range(10):
        with run.step(tokens=100):
            run.log_metric("loss", float(number))
        time.sleep(0.1)
    raise RuntimeError("out of luck")
"""
    training = Training(tmp_path, stack, source, ranks=1, RUNSPAN_METRIC_INTERVAL_S="60")
    with training.running():
        (ended,) = training.wait()
    assert ended.returncode == 1
    assert "out of luck" in ended.stderr
    # The second of training, at most the 2 s of the shutdown, and Python's start.
    assert ended.elapsed_s < 1 + 2 + 5
    prometheus = stack.prometheus.client

    def arrived() -> None:
        failed = training.select("runspan_run_status", runspan_run_status="failed")
        assert [sample.value for sample in prometheus.query(failed)] == [1.0]
        assert [sample.value for sample in prometheus.query(training.select("runspan_tokens_total"))] == [1000.0]
        loss = training.select("runspan_metric_value", runspan_metric_key="loss")
        assert [sample.value for sample in prometheus.query(f"last_over_time({loss}[5m])")] == [9.0]

    eventually(arrived)


def test_ended_values_leave_instant_queries(stack: Stack, tmp_path: Path) -> None:
    """A key that turned NaN, and at the end each live gauge, is gone from instant queries within one interval."""
    source = """
def train(run):
    with run.step():
        run.log_metrics({"loss": 0.5, "accuracy": 0.25})
    time.sleep(2.5)
    run.log_metric("loss", math.nan)
    while not os.path.exists("stop"):
        time.sleep(0.05)
"""
    training = Training(tmp_path, stack, source, ranks=1)
    prometheus = stack.prometheus.client

    def keys() -> set[str]:
        samples = prometheus.query(training.select("runspan_metric_value"))
        return {sample.labels["runspan_metric_key"] for sample in samples}

    with training.running():
        eventually(lambda: _equal(keys(), {"loss", "accuracy"}), period_s=0.1)
        eventually(lambda: _equal(keys(), {"accuracy"}), timeout_s=10)
        nonfinite = prometheus.query(training.select("runspan_metric_nonfinite_total"))
        assert [(sample.labels["runspan_metric_key"], sample.value) for sample in nonfinite] == [("loss", 1.0)]
        (tmp_path / "stop").touch()
        (ended,) = training.wait()
    assert ended.returncode == 0

    def gone() -> None:
        for metric in ("runspan_metric_value", "runspan_run_heartbeat_time_seconds", "process_memory_usage_bytes"):
            assert prometheus.query(training.select(metric)) == []
            assert prometheus.series(training.select(metric)), metric
        succeeded = training.select("runspan_run_status", runspan_run_status="success")
        assert [sample.value for sample in prometheus.query(succeeded)] == [1.0]

    eventually(gone, timeout_s=5)


def test_ranks_add_up(stack: Stack, tmp_path: Path) -> None:
    """Case 49: 4 ranks that each count 10 are 4 series with their rank, whose sum is 40, and nothing is rejected."""
    source = """
def train(run):
    for _ in range(10):
        run.count("images")
        time.sleep(0.25)
"""
    training = Training(tmp_path, stack, source)
    training.run()
    prometheus = stack.prometheus.client
    images = training.select("runspan_metric_count_total", runspan_metric_key="images")
    eventually(lambda: _equal([sample.value for sample in prometheus.query(f"sum({images})")], [40.0]))
    by_rank = {sample.labels["runspan_rank"]: sample.value for sample in prometheus.query(images)}
    assert by_rank == {"0": 10.0, "1": 10.0, "2": 10.0, "3": 10.0}
    telemetry = stack.collector.telemetry()
    assert telemetry.get("otelcol_exporter_send_failed_metric_points", 0) == 0
    assert telemetry.get("otelcol_receiver_refused_metric_points", 0) == 0


def test_durations_lie_in_buckets_of_their_own(stack: Stack, tmp_path: Path) -> None:
    """Case 50: 0.004, 0.08, 0.3, 2, 45 and 600 s are six buckets of one native histogram, and the unit is told."""
    source = """
def train(run):
    for seconds in (0.004, 0.08, 0.3, 2, 45, 600):
        run.observe("request", seconds, "s")
"""
    training = Training(tmp_path, stack, source, ranks=1)
    training.run()
    prometheus = stack.prometheus.client
    selector = training.select("runspan_metric_observation", runspan_metric_key="request")

    def arrived() -> None:
        samples = prometheus.query(selector)
        assert len(samples) == 1
        sample = samples[0]
        buckets = [bucket for bucket in sample.value["buckets"] if float(bucket[3]) > 0]
        assert len(buckets) == 6
        assert float(sample.value["sum"]) == pytest.approx(647.384)
        assert sample.labels["runspan_metric_unit"] == "s"

    eventually(arrived)
    quantile = prometheus.query(f"histogram_quantile(0.5, {selector})")[0].value
    assert 0.08 < quantile < 2


def test_series_do_not_grow_with_steps(stack: Stack, tmp_path: Path) -> None:
    """Cases 46 and 51: 100,000 steps of 4 ranks make the series of 100 steps, and a trace within the bound it names."""
    source = """
def train(run):
    for number in range(int(os.environ["STEPS"])):
        with run.step():
            run.log_metric("loss", 1 / (number + 1))
        if number < 90:
            for _ in range(2):
                with run.span("between steps"):
                    pass
"""
    experiment = "growth"
    short, long = (
        Training(tmp_path / steps, stack, source, experiment=experiment, STEPS=steps, RUNSPAN_MAX_EXPORTED_SPANS="200")
        for steps in ("100", "100000")
    )
    for training in (short, long):
        with training.running():
            assert [(rank.returncode, set(rank.dropped)) for rank in training.wait()] == [(0, {"traces/budget"})] * 4
    prometheus = stack.prometheus.client
    steps = f"sum({long.select('runspan_steps_total')})"
    eventually(lambda: _equal([sample.value for sample in prometheus.query(steps)], [400_000.0]))
    series = [
        sorted(
            (labels["__name__"], labels["runspan_rank"], *_keys(labels))
            for labels in prometheus.series(selector)
            # What the last spans' export drops may be counted behind the last metrics' export.
            if labels["__name__"] != "runspan_events_dropped_total"
        )
        # What rules make of a run has no job.
        for selector in (training.select("", job=experiment) for training in (short, long))
    ]
    assert series[0] == series[1]
    eventually(lambda: _equal({"run", "rank"} - {span.name for span in long.spans()}, set()))
    (run,) = [span for span in long.spans() if span.name == "run"]
    # A captured step's spans are a trace of their own.
    assert 100 < len([span for span in long.spans() if span.trace_id == run.trace_id]) <= 200
    assert run.attributes["runspan.max_exported_spans"] == 200
    assert run.attributes["runspan.dropped.spans"] > 0


def test_of_ten_thousand_keys_the_first_arrive(stack: Stack, tmp_path: Path) -> None:
    """Case 46: Prometheus gets the first 2,000 metric keys of a run; the rest are counted, the file has them all."""
    source = """
def train(run):
    run.log_metrics({f"key {number}": float(number) for number in range(10_000)})
"""
    training = Training(tmp_path, stack, source, ranks=1)
    with training.running():
        (rank,) = training.wait()
    assert (rank.returncode, rank.dropped) == (0, {"metrics/max_metric_keys": 8_000})
    prometheus = stack.prometheus.client
    selector = training.select("runspan_metric_value")
    eventually(lambda: _equal(len(prometheus.series(selector)), 2_000))


def test_no_series_carries_a_step_a_process_or_a_trace(stack: Stack, tmp_path: Path) -> None:
    """Of all series only target_info tells the process; no label is a step, a span's or a trace's id."""
    Training(tmp_path, stack, _TRAIN).run()
    prometheus = stack.prometheus.client
    eventually(lambda: _truthy(prometheus.series('{__name__=~"runspan_spans_.+"}')), timeout_s=40)
    forbidden = {"step", "runspan_step", "pid", "process_pid", "trace_id", "span_id"}
    all_labels = prometheus.series('{__name__=~".+"}')
    offenders = {labels["__name__"] for labels in all_labels if forbidden & labels.keys()}
    assert offenders == {"target_info"}


def test_span_metrics_are_one_series_a_span_name(stack: Stack, tmp_path: Path) -> None:
    """Two runs of 4 ranks make one series of calls a span name of ours, without pending spans, run or rank in it."""
    experiment = "spans-to-metrics"
    for number in range(2):
        Training(tmp_path / str(number), stack, _TRAIN, experiment=experiment).run()
    prometheus = stack.prometheus.client
    calls = f'runspan_spans_calls_total{{service_name="{experiment}"}}'
    ranks = f'runspan_spans_calls_total{{service_name="{experiment}",span_name="rank"}}'
    eventually(lambda: _equal([sample.value for sample in prometheus.query(f"sum({ranks})")], [8.0]), timeout_s=60)
    samples = prometheus.query(calls)
    names = [sample.labels["span_name"] for sample in samples]
    assert len(names) == len(set(names))
    assert {"run", "rank", "epoch", "checkpoint"} <= set(names) <= _SPAN_NAMES
    labels = set().union(*(sample.labels for sample in samples))
    assert labels == {"__name__", "job", "service_name", "span_name", "status_code"}
    (duration,) = prometheus.query(
        f'histogram_count(runspan_spans_duration_seconds{{service_name="{experiment}",span_name="rank"}})'
    )
    assert duration.value == 8


def test_an_exemplar_leads_to_the_captured_step(stack: Stack, tmp_path: Path) -> None:
    """Case 53: the step histogram's exemplar holds the trace of a captured step, in which all 4 ranks' spans meet."""
    training = Training(tmp_path, stack, _TRAIN, RUNSPAN_CAPTURE="wait=3,warmup=1,active=1,repeat=1,slow_factor=0")
    training.run()
    selector = training.select("runspan_step_duration_seconds")
    found: set[str] = set()

    def arrived() -> None:
        exemplars = stack.prometheus.client.exemplars(selector)
        found.update(exemplar["labels"]["trace_id"] for exemplar in exemplars)
        assert len(found) == 1
        (trace_id,) = found
        steps = [span for span in stack.jaeger.client.trace(trace_id) if span.name == "step"]
        assert {span.resource["runspan.rank"] for span in steps} == {0, 1, 2, 3}

    eventually(arrived)
    (trace_id,) = found
    spans = stack.jaeger.client.trace(trace_id)
    assert {"step", "forward"} <= {span.name for span in spans}
    (run,) = [span for span in training.spans() if span.name == "run"]
    assert run.trace_id != trace_id
    for step in [span for span in spans if span.name == "step"]:
        assert (run.trace_id, run.span_id) in step.links
        assert step.attributes["runspan.step.captured_because"] == "scheduled"


def test_large_spans_arrive(stack: Stack, tmp_path: Path) -> None:
    """Case 6: 400 spans of 8 x 4 KiB, 13 MB in all, arrive whole though no request may exceed 4 MiB."""
    source = """
def train(run):
    for number in range(400):
        with run.span("large", **{f"text_{index}": "x" * 4096 for index in range(8)}):
            pass
    with run.span("cut", text="y" * 6_000_000):
        pass
"""
    training = Training(tmp_path, stack, source, ranks=1, RUNSPAN_SHUTDOWN_TIMEOUT_S="20")
    training.run()
    eventually(lambda: _equal(len([span for span in training.spans() if span.name == "large"]), 400), timeout_s=60)
    large = [span for span in training.spans() if span.name == "large"]
    assert {len(span.attributes[f"text_{index}"]) for span in large for index in range(8)} == {4096}
    (cut,) = [span for span in training.spans() if span.name == "cut"]
    assert cut.attributes["text"].endswith("…[cut from 6000000 bytes]")


def test_nothing_is_lost_when_jaeger_stops_and_the_collector_is_killed(
    new_stack: Callable[[], AbstractContextManager[Stack]], tmp_path: Path
) -> None:
    """Jaeger is stopped, then the collector killed, while 4 ranks record: when both are back nothing is missing."""
    with ExitStack() as cleanup:
        stack = cleanup.enter_context(new_stack())
        training = Training(tmp_path / "training", stack, _TRAIN_ON, RUNSPAN_MAX_EXPORTED_SPANS="100000")
        cleanup.enter_context(training.running())
        eventually(lambda: _truthy(_pending_rank_count(stack, training) == 4))
        stack.jaeger.stop()
        time.sleep(3)
        stack.collector.kill()
        time.sleep(3)
        stack.collector.start()
        time.sleep(2)
        stack.jaeger.start()
        time.sleep(2)
        (tmp_path / "training" / "stop").touch()
        ended = training.wait()
        assert [(rank.returncode, rank.dropped) for rank in ended] == [(0, {})] * 4
        exported = sum(rank.exported or 0 for rank in ended)
        eventually(lambda: _equal(len(training.spans()), exported), timeout_s=60)
        numbers: dict[int, list[int]] = {}
        for span in training.spans():
            if span.name == "between steps":
                numbers.setdefault(span.resource["runspan.rank"], []).append(span.attributes["number"])
        slowest_s, counts = _told(training)
        assert {rank: sorted(seen) for rank, seen in numbers.items()} == {
            rank: list(range(count)) for rank, count in counts.items()
        }
        tokens = f"sum({training.select('runspan_tokens_total')})"
        expected = [10.0 * sum(counts.values())]
        eventually(lambda: _equal([sample.value for sample in stack.prometheus.client.query(tokens)], expected))
        # A step that waited for the network would have waited for seconds.
        assert slowest_s < 1


def test_nothing_is_lost_when_prometheus_restarts(
    new_stack: Callable[[], AbstractContextManager[Stack]], tmp_path: Path
) -> None:
    """What a run records while Prometheus is down stands in it afterwards, at its times; the collector restarts too."""
    with ExitStack() as cleanup:
        stack = cleanup.enter_context(new_stack())
        training = Training(tmp_path / "training", stack, _TRAIN_ON, ranks=2)
        cleanup.enter_context(training.running())
        prometheus = stack.prometheus.client
        eventually(lambda: _equal(len(prometheus.query(training.select("runspan_steps_total"))), 2))
        down_s = time.time()
        stack.prometheus.kill()
        time.sleep(3)
        stack.collector.stop()
        stack.collector.start()
        time.sleep(3)
        up_s = time.time()
        stack.prometheus.start()
        time.sleep(3)
        (tmp_path / "training" / "stop").touch()
        ended = training.wait()
        assert [(rank.returncode, rank.dropped) for rank in ended] == [(0, {})] * 2
        slowest_s, counts = _told(training)
        assert slowest_s < 1
        steps = training.select("runspan_steps_total")
        total = [float(sum(counts.values()))]
        eventually(lambda: _equal([sample.value for sample in prometheus.query(f"sum({steps})")], total))
        outage_s = int(up_s - down_s)
        recorded = prometheus.query(f"count_over_time({steps}[{outage_s}s])", time_s=up_s)
        assert [sample.value >= outage_s - 2 for sample in recorded] == [True, True], recorded


def test_a_resumed_run_goes_on(stack: Stack, tmp_path: Path) -> None:
    """Case 53: 1,000 tokens, SIGKILL, 500 more by a resumed run: 1,500 in all, in two series, and one run span."""
    source = """
def train(run):
    for _ in range(int(os.environ["STEPS"])):
        with run.step(tokens=100):
            pass
    if os.environ.get("HANG"):
        time.sleep(60)
"""
    first = Training(tmp_path, stack, source, ranks=1, STEPS="10", HANG="1")
    prometheus = stack.prometheus.client
    tokens = first.select("runspan_tokens_total")
    with first.running():
        eventually(lambda: _equal([sample.value for sample in prometheus.query(tokens)], [1000.0]))
        os.kill(first.processes[0].pid, signal.SIGKILL)
        first.processes[0].communicate()
    resumed_s = time.time()
    second = Training(tmp_path, stack, source, ranks=1, experiment=first.experiment, run_id=first.run_id, STEPS="5")
    second.run()
    total = f"sum(last_over_time({tokens}[1h]))"
    eventually(lambda: _equal([sample.value for sample in prometheus.query(total)], [1500.0]))
    by_attempt = {
        sample.labels["runspan_attempt"]: sample.value for sample in prometheus.query(f"last_over_time({tokens}[1h])")
    }
    assert by_attempt == {"0": 1000.0, "1": 500.0}
    # The first attempt's points were not sent again: its series is older than the resume.
    (old,) = prometheus.query(f"timestamp({first.select('runspan_tokens_total', runspan_attempt='0')})")
    assert old.value <= resumed_s
    eventually(lambda: _equal([span.name for span in second.spans() if span.name == "run"], ["run"]))
    (run,) = [span for span in second.spans() if span.name == "run"]
    assert run.attributes["runspan.attempt"] == 1


def _equal(actual: object, expected: object) -> None:
    assert actual == expected


def _truthy(actual: object) -> None:
    assert actual


def _keys(labels: dict[str, str]) -> tuple[str, ...]:
    """Return what tells series of one metric and rank apart."""
    apart = (
        "runspan_metric_key",
        "runspan_phase",
        "runspan_run_status",
        "runspan_signal",
        "runspan_reason",
        "cpu_mode",
    )
    return tuple(f"{name}={labels[name]}" for name in apart if name in labels)


def _pending_rank_count(stack: Stack, training: Training) -> int:
    client = stack.jaeger.client
    traces = client.find_trace_ids(training.experiment, {"runspan.run.id": training.run_id})
    spans = [span for trace_id in traces for span in client.trace(trace_id)]
    return len([span for span in spans if span.name == "rank (started)"])


def _told(training: Training) -> tuple[float, dict[int, int]]:
    """Return the slowest step of all ranks, s, and how many steps each rank made."""
    told = [
        (training.workplace.folder / f"slowest-{rank}").read_text("utf-8").split() for rank in range(training.ranks)
    ]
    return max(float(slowest) for slowest, _ in told), {rank: int(count) for rank, (_, count) in enumerate(told)}
