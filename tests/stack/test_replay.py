"""Recorded runs through the real collector: Jaeger and Prometheus have afterwards what they should, once."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import requests

from runspan import ids
from support.cli import Answer, run_program
from support.stack_clients import eventually
from support.stack_runs import Training

if TYPE_CHECKING:
    from pathlib import Path

    from support.stack import Stack

pytestmark = pytest.mark.stack

#: Every sort of span and content, on every rank.
_TRAIN = """
import math

def train(run):
    run.log_params({"lr": 0.1, "optimizer": {"name": "adam", "betas": [0.9, 0.999]}})
    run.set_tag("team", "vision")
    values = {"nan": math.nan, "huge": 2**63, "mixed": [1, 2.5], "long": "x" * 9000, "nested": {"a": None}}
    for epoch in range(2):
        with run.epoch(epoch):
            for number in range(6):
                with run.step(samples=8, tokens=64):
                    with run.phase("forward"), run.span("inside", number=number):
                        pass
                    run.log_metric("loss/train", 1 / (number + 1))
            with run.span("user", **values) as span:
                for index in range(150):
                    span.add_event(f"event {index}", {"index": index})
                    span.set_attribute(f"key {index}", index)
            try:
                with run.span("failing"):
                    raise ValueError("broken")
            except ValueError:
                pass
    child = os.fork()
    if child == 0:
        with run.span("in a child"):
            os._exit(0)
    os.waitpid(child, 0)
    run.alert("odd", "something is odd", "warning")
    with run.checkpoint(), run.evaluate():
        pass
"""
_CAPTURE = "wait=1,warmup=0,active=2,repeat=1"
#: Trains until it is killed.
_TRAIN_ON = """
def train(run):
    for number in range(10**9):
        with run.epoch(number), run.span("between", number=number):
            run.log_metric("loss", 0.5)
        time.sleep(0.01)
"""


def _spans(stack: Stack, trace_id: str) -> list[str]:
    """Return each span of a trace as Jaeger has it, resource and scope included, in a fixed spelling."""
    answer = requests.get(f"{stack.jaeger.url}/api/v3/traces/{trace_id}", timeout=30)
    if answer.status_code == 404:
        return []
    answer.raise_for_status()
    found = []
    for resource in answer.json()["result"].get("resourceSpans", []):
        for scope in resource.get("scopeSpans", []):
            for span in scope.get("spans", []):
                if not span["name"].endswith(" (started)"):
                    whole = [
                        resource["resource"],
                        resource.get("schemaUrl"),
                        scope["scope"],
                        scope.get("schemaUrl"),
                        span,
                    ]
                    found.append(json.dumps(_ordered(whole), sort_keys=True))
    return sorted(found)


def _ordered(value: Any) -> Any:
    """Order attributes by their keys, which is no part of what a span says."""
    if isinstance(value, dict):
        return {
            key: sorted(map(_ordered, item), key=json.dumps) if key == "attributes" else _ordered(item)
            for key, item in value.items()
        }
    return [_ordered(item) for item in value] if isinstance(value, list) else value


def _of_run(stack: Stack, training: Training) -> dict[str, list[str]]:
    """Return what Jaeger has of a run and of the steps that it captured, by trace."""
    steps = [f"{ids.step_trace_id(training.run_id, step):032x}" for step in range(12)]
    return {trace: _spans(stack, trace) for trace in (f"{ids.run_trace_id(training.run_id):032x}", *steps)}


def _command(training: Training, *arguments: str) -> Answer:
    return run_program(["trace", *arguments], training.workplace.environ(RUNSPAN_STORAGE="none"), timeout_s=120)


def _replay(training: Training, url: str) -> dict[str, Any]:
    directory = str(training.workplace.only_run)
    answer = _command(training, "export", directory, "--to", "otlp", "--endpoint", url, "--json")
    assert answer.code == 0, answer
    report: dict[str, Any] = answer.document
    assert (report["outcome"], report["lost"], report["warnings"]) == ("complete", {}, [])
    return report


def _sent_to_jaeger(stack: Stack) -> float:
    """Return how many spans the collector has handed over."""
    telemetry = stack.collector.telemetry()
    return sum(value for name, value in telemetry.items() if name.startswith("otelcol_exporter_sent_spans"))


@pytest.fixture
def shipped(stack: Stack, tmp_path: Path) -> tuple[Training, dict[str, list[str]]]:
    """Ship a run of two ranks, and return it with what Jaeger then has of it."""
    training = Training(tmp_path, stack, _TRAIN, ranks=2, RUNSPAN_CAPTURE=_CAPTURE)
    exported = sum(rank.exported or 0 for rank in training.run())
    found: dict[str, list[str]] = {}

    def arrived() -> None:
        found.update(_of_run(stack, training))
        assert sum(map(len, found.values())) == exported

    eventually(arrived)
    return training, found


def test_replaying_twice_changes_nothing_in_jaeger(
    stack: Stack, shipped: tuple[Training, dict[str, list[str]]]
) -> None:
    """A run that was shipped live and replayed twice has as many spans as before, each equal, and calls count once."""
    training, before = shipped
    count = sum(map(len, before.values()))
    assert sum(1 for spans in before.values() if spans) == 3  # the run's trace and two captured steps'

    def calls() -> dict[str, float]:
        query = f'runspan_spans_calls_total{{job="{training.experiment}"}}'
        return {sample.labels["span_name"]: sample.value for sample in stack.prometheus.client.query(query)}

    eventually(lambda: _assert_rank_calls(calls(), 2), timeout_s=60)
    sent = _sent_to_jaeger(stack)
    for replays in (1, 2):
        assert _replay(training, stack.collector.replay_url)["spans"] == count
        eventually(partial(_assert_sent, stack, sent + replays * count))
        eventually(lambda: _assert_equal(_of_run(stack, training), before))
    flushed_s = time.time() + 16  # span_metrics are sent every 15 s
    eventually(lambda: _assert_later(flushed_s), timeout_s=30, period_s=1)
    _assert_rank_calls(calls(), 2)
    # Metrics that were there already, or came late, were taken as well.
    assert "Dropping data" not in stack.collector.log
    assert stack.collector.telemetry().get("otelcol_exporter_send_failed_metric_points", 0) == 0


def _assert_rank_calls(calls: dict[str, float], expected: float) -> None:
    assert calls.get("rank") == expected


def _assert_sent(stack: Stack, count: float) -> None:
    assert _sent_to_jaeger(stack) >= count


def _assert_equal(found: dict[str, list[str]], expected: dict[str, list[str]]) -> None:
    assert found == expected


def _assert_later(time_s: float) -> None:
    assert time.time() > time_s


def test_a_run_that_was_never_shipped_arrives_whole(stack: Stack, tmp_path: Path) -> None:
    """What was recorded without an endpoint is in Jaeger and, as far back as it takes it, in Prometheus afterwards."""
    training = Training(tmp_path, stack, _TRAIN, ranks=2, RUNSPAN_CAPTURE=_CAPTURE, RUNSPAN_EXPORT_OTLP="0")
    training.run()
    reports = [_replay(training, stack.collector.replay_url) for _ in range(2)]
    assert reports[0] == reports[1]
    assert reports[0]["values_too_old"] == 0
    assert reports[0]["points"] > 0
    eventually(lambda: _assert_count(_of_run(stack, training), reports[0]["spans"]))
    client = stack.prometheus.client

    def measured() -> None:
        tokens = client.query(f"sum(last_over_time({training.select('runspan_tokens_total')}[1h]))")
        assert [sample.value for sample in tokens] == [2 * 12 * 64]
        losses = client.query(f"last_over_time({training.select('runspan_metric_value')}[1h])")
        assert {sample.labels["runspan_metric_key"] for sample in losses} == {"loss/train"}
        ended = client.query(
            f"last_over_time({training.select('runspan_run_status', runspan_run_status='success')}[1h])"
        )
        assert [sample.value for sample in ended] == [1, 1]

    eventually(measured)
    telemetry = stack.collector.telemetry()
    assert telemetry.get("otelcol_exporter_send_failed_metric_points", 0) == 0


def _assert_count(found: dict[str, list[str]], count: int) -> None:
    assert sum(map(len, found.values())) == count


def test_the_collector_takes_otlp_json(stack: Stack, tmp_path: Path) -> None:
    """Each line of `--to otlp-json`, posted as it is, is accepted, and Jaeger has every span."""
    training = Training(tmp_path, stack, _TRAIN, ranks=1, RUNSPAN_CAPTURE=_CAPTURE, RUNSPAN_EXPORT_OTLP="0")
    training.run()
    output = tmp_path / "otlp"
    answer = _command(training, "export", str(training.workplace.only_run), "--to", "otlp-json", "-o", str(output))
    assert answer.code == 0, answer
    count = 0
    for name in ("traces", "metrics"):
        for line in (output / f"{name}.jsonl").read_bytes().splitlines():
            url = f"{stack.collector.http_url}/v1/{name}"
            taken = requests.post(url, data=line, headers={"Content-Type": "application/json"}, timeout=30)
            assert (taken.status_code, taken.json()) == (200, {"partialSuccess": {}})
            count += line.count(b'"endTimeUnixNano"')
    assert count > 10
    eventually(lambda: _assert_count(_of_run(stack, training), count))


def test_a_killed_run_is_complete_after_its_recovery(stack: Stack, tmp_path: Path) -> None:
    """After SIGKILL and `recover` the run and its rank are in Jaeger as errors, under what it had shipped itself."""
    training = Training(tmp_path, stack, _TRAIN_ON, ranks=1, RUNSPAN_HEARTBEAT_S="0.2")
    trace_id = f"{ids.run_trace_id(training.run_id):032x}"
    with training.running():
        eventually(lambda: _assert_named(stack, trace_id, {"between"}))
        os.kill(training.processes[0].pid, signal.SIGKILL)
        training.processes[0].communicate()
    time.sleep(0.7)  # three heartbeats
    directory = str(training.workplace.only_run)
    answers = [_command(training, "recover", directory, "--endpoint", stack.collector.replay_url) for _ in range(2)]
    assert [answer.code for answer in answers] == [0, 0], answers
    eventually(lambda: _assert_named(stack, trace_id, {"between", "run", "rank", "epoch"}))
    spans = [span for span in stack.jaeger.client.trace(trace_id) if not span.is_pending]
    assert len({span.span_id for span in spans}) == len(spans)
    (run,) = [span for span in spans if span.name == "run"]
    (rank,) = [span for span in spans if span.name == "rank"]
    assert (run.status, rank.status) == (2, 2)
    assert run.attributes["runspan.run.end_reason"] == "interrupted"
    assert rank.parent_span_id == run.span_id

    def failed() -> None:
        selector = training.select("runspan_run_status", runspan_run_status="failed")
        assert [sample.value for sample in stack.prometheus.client.query(f"last_over_time({selector}[1h])")] == [1]

    eventually(failed)


def _assert_named(stack: Stack, trace_id: str, names: set[str]) -> None:
    assert names <= {span.name for span in stack.jaeger.client.trace(trace_id) if not span.is_pending}
