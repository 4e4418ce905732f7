"""The names, types and labels that the real Prometheus gives each exported instrument."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from runspan._endpoints import endpoints
from runspan.config import TracingConfig
from runspan.records import RunStatus
from runspan.semconv import INSTRUMENTS, Instrument, InstrumentKind
from runspan.usage import GpuUsage, ProcessUsage, SystemUsage, UsageSampler
from support.exporting import ended_step, start_export
from support.stack_clients import eventually

if TYPE_CHECKING:
    from support.stack import Stack

pytestmark = pytest.mark.stack

#: The labels of every series: the promoted Resource attributes, and what identifies a target.
_COMMON = {"__name__", "job", "instance"}
_PROMOTED = {"runspan_run_id", "runspan_experiment_name", "runspan_rank", "runspan_attempt"}


class _Everything(UsageSampler):
    """A machine with a GPU, which the test's machine need not have."""

    def process_usage(self) -> ProcessUsage:
        return ProcessUsage(1000, 2.0, 1.0, 5, 9)

    def system_usage(self) -> SystemUsage:
        return SystemUsage(0.5, 100, 400)

    def gpu_usage(self) -> GpuUsage:
        return GpuUsage("GPU-1", "H200", 0.75, 30, 80, 60, 350.5)


@pytest.fixture(scope="module")
def labels_by_name(stack: Stack) -> dict[str, list[dict[str, str]]]:
    """Export every instrument once, and return the labels of the series that Prometheus made of it, by their name."""
    to = endpoints(TracingConfig().with_otlp_export(stack.otlp_url, "grpc"))
    export = start_export(None, to["metrics"], metric_interval_s=60)
    metrics, now = export.metrics, time.time_ns()
    metrics.latest, metrics.nonfinite = {"loss/train": 0.5}, {"loss/train": 1}
    metrics.counts[("images", "{image}")] = 3
    metrics.observations.append(("request", "s", 0.2))
    metrics.ended_steps.append(ended_step(20_000_000, forward=10_000_000))
    metrics.checkpoint_durations.append(1_000_000_000)
    metrics.steps, metrics.samples, metrics.tokens, metrics.last_step = 1, 8, 64, 0
    metrics.last_step_time_unix_nano = metrics.heartbeat_time_unix_nano = now
    metrics.start_time_unix_nano = metrics.checkpoint_last_time_unix_nano = now
    metrics.status = RunStatus.SUCCESS
    metrics.alerts[("warning", "loss_spike")] = 1
    metrics.gate_metrics[("decode", "latency")] = 1.5
    metrics.gate_passed["decode"] = True
    metrics.golden_score = 0.875
    metrics.dropped = lambda: {("traces", "budget"): 2}
    metrics.usage = _Everything()
    export.drain()
    prometheus = stack.prometheus.client
    found: dict[str, list[dict[str, str]]] = {}

    def arrived() -> None:
        found.clear()
        for labels in prometheus.series('{runspan_run_id="run-1"}'):
            found.setdefault(labels["__name__"], []).append(labels)
        assert found

    eventually(arrived)
    return found


def test_prometheus_has_these_names_and_no_others(labels_by_name: dict[str, list[dict[str, str]]]) -> None:
    """Each instrument becomes the series that `semconv.py` says; beside them a run has its target_info alone."""
    assert labels_by_name.keys() == {instrument.prometheus for instrument in INSTRUMENTS.values()} | {"target_info"}


@pytest.mark.parametrize("instrument", INSTRUMENTS.values(), ids=lambda instrument: instrument.name)
def test_an_instrument_has_its_labels_and_kind(
    stack: Stack, labels_by_name: dict[str, list[dict[str, str]]], instrument: Instrument
) -> None:
    """A series has the instrument's attributes, the run's promoted ones, job and instance, and no other label.

    Prometheus keeps no metadata of what is pushed: a counter shows by its suffix, a native histogram by its samples.
    """
    expected = _COMMON | _PROMOTED | {re.sub(r"\W", "_", name) for name in instrument.attributes}
    for labels in labels_by_name[instrument.prometheus]:
        assert labels.keys() == expected
    selector = f'{instrument.prometheus}{{runspan_run_id="run-1"}}[10m]'
    (sample, *_) = stack.prometheus.client.query(f"last_over_time({selector})")
    assert isinstance(sample.value, dict) == (instrument.kind is InstrumentKind.HISTOGRAM)
    assert instrument.prometheus.endswith("_total") == (instrument.kind is InstrumentKind.COUNTER)
