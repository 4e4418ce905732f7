"""Measures what a rank costs the stack: the figures that docs/scale.md is computed from.

Run by hand, on a machine that does nothing else::

    PYTHONPATH=tests python -m stack.measure_scale

It ships one real run of 4 ranks, then lets one process speak for many ranks at once, and prints what each program used.
"""

from __future__ import annotations

import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import psutil
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from runspan.telemetry.collector import MetricsCollector
from runspan.telemetry.instruments import RunMetrics
from runspan.telemetry.providers import RunIdentity, build_resource
from runspan.usage import UsageSampler
from support.exporting import ended_step
from support.stack import running_stack
from support.stack_clients import eventually
from support.stack_runs import Training

if TYPE_CHECKING:
    from support.stack import Program, Stack

#: A run like many: 20 keys, 4 phases, about 12 steps a second.
_TRAIN = """
def train(run):
    ends = time.monotonic() + float(os.environ["SECONDS"])
    number = 0
    while time.monotonic() < ends:
        with run.step(samples=32, tokens=4096):
            for phase in ("data", "forward", "backward", "optimizer"):
                with run.phase(phase):
                    time.sleep(0.02)
            run.log_metrics({f"key/{index}": number + index / 10 for index in range(20)})
        number += 1
"""
_RANKS = 4
_SECONDS = 45
_MANY_RANKS = 512
_ROUNDS = 12
_KEYS = 20
_PHASES = ("data", "forward", "backward", "optimizer")
_SPANS = 100_000
_SPANS_A_REQUEST = 1_000
_MILLION = 1_000_000


class _Used:
    """What a program uses of the machine from here on."""

    def __init__(self, program: Program) -> None:
        self._process = psutil.Process(program.pid)
        self._cpu_s, self.memory = self._now()

    def since(self) -> tuple[float, int]:
        """Return processor seconds, and the growth of resident memory in bytes."""
        cpu_s, memory = self._now()
        return cpu_s - self._cpu_s, memory - self.memory

    def _now(self) -> tuple[float, int]:
        times = self._process.cpu_times()
        return times.user + times.system, self._process.memory_info().rss


def _tell(what: str, value: float, unit: str) -> None:
    sys.stdout.write(f"{what:58} {value:12,.2f} {unit}\n")
    sys.stdout.flush()


def _measure_run(stack: Stack, folder: Path) -> None:
    """Ship a real run with its defaults, and count what it made."""
    training = Training(folder, stack, _TRAIN, ranks=_RANKS, SECONDS=str(_SECONDS), RUNSPAN_METRIC_INTERVAL_S="10")
    ended = training.run()
    exported = sum(rank.exported or 0 for rank in ended)
    eventually(lambda: _check(len(training.spans()) == exported))
    prometheus = stack.prometheus.client
    # By its job, which what rules make of a run does not have.
    series = prometheus.series(f'{{job="{training.experiment}"}}')
    samples = sum(
        prometheus.query(f'sum(count_over_time({name}{{job="{training.experiment}"}}[10m]))')[0].value
        for name in {labels["__name__"] for labels in series}
    )
    for rank, kind in ((0, "rank 0 of a host"), (1, "another rank")):
        _tell(f"series of {kind}", sum(labels.get("runspan_rank") == str(rank) for labels in series), "series")
    _tell("samples a rank and second", samples / _RANKS / _SECONDS, "samples/s")
    _tell("spans of the run, all ranks", exported, "spans")
    files = sum(path.stat().st_size for path in training.workplace.only_run.iterdir())
    _tell("trace files a rank and step", files / _RANKS / (_SECONDS / 0.08), "bytes")


def _measure_metrics(stack: Stack) -> None:
    """Speak for many ranks, which send one after another, as often as a rank does in two minutes."""
    collectors = [_collector(rank) for rank in range(_MANY_RANKS)]
    used = {name: _Used(program) for name, program in _programs(stack).items()}
    points = size = 0
    with grpc.insecure_channel(stack.otlp_url.removeprefix("http://")) as channel:
        stub = MetricsServiceStub(channel)  # type: ignore[no-untyped-call]
        for _ in range(_ROUNDS):
            for collector, state in collectors:
                state.steps += 100
                phases = {phase: secrets.randbelow(10**9) for phase in _PHASES}
                state.ended_steps.append(ended_step(secrets.randbelow(10**9), **phases))
                request = collector.collect()
                size += request.ByteSize()
                points += sum(_points(metric) for metric in request.resource_metrics[0].scope_metrics[0].metrics)
                stub.Export(request)
    prometheus = stack.prometheus.client
    expected = float(_MANY_RANKS * _ROUNDS * 100)
    total = 'sum(runspan_steps_total{runspan_run_id="many"})'
    eventually(lambda: _check(prometheus.query(total)[0].value == expected), timeout_s=120)
    series = len(prometheus.series('{job="many"}'))
    _tell("a rank's metrics export", size / _MANY_RANKS / _ROUNDS, "bytes")
    _tell("points in it", points / _MANY_RANKS / _ROUNDS, "points")
    for name, before in used.items():
        cpu_s, memory = before.since()
        _tell(f"{name}: processor time a million points", cpu_s / points * _MILLION, "s")
        _tell(f"{name}: memory grown by", memory / _MILLION, "MB")
        if name == "prometheus":
            _tell("prometheus: memory a series", memory / series, "bytes")
    blocks = prometheus.query("prometheus_tsdb_wal_storage_size_bytes")
    if blocks:
        _tell("prometheus: write-ahead log", blocks[0].value / _MILLION, "MB")


def _measure_spans(stack: Stack, badger: Path) -> None:
    """Send many spans as a run's, and weigh what Jaeger makes of them."""
    used = {name: _Used(program) for name, program in _programs(stack).items()}
    before, size = _bytes_on_disk(badger), 0
    now = time.time_ns()
    with grpc.insecure_channel(stack.otlp_url.removeprefix("http://")) as channel:
        stub = TraceServiceStub(channel)  # type: ignore[no-untyped-call]
        for number in range(_SPANS // _SPANS_A_REQUEST):
            request = ExportTraceServiceRequest()
            resource_spans = request.resource_spans.add()
            for key in ("service.name", "runspan.run.id", "host.name", "service.instance.id"):
                resource_spans.resource.attributes.add(key=key).value.string_value = f"weighed-{key}"
            scope_spans = resource_spans.scope_spans.add()
            scope_spans.scope.name = "runspan"
            trace_id = secrets.token_bytes(16)
            for index in range(_SPANS_A_REQUEST):
                span = scope_spans.spans.add(
                    trace_id=trace_id,
                    span_id=secrets.token_bytes(8),
                    name=_PHASES[index % len(_PHASES)],
                    start_time_unix_nano=now + index,
                    end_time_unix_nano=now + index + 10**7,
                )
                span.attributes.add(key="runspan.run.id").value.string_value = "weighed"
                span.attributes.add(key="runspan.rank").value.int_value = index
                span.attributes.add(key="runspan.attempt").value.int_value = number
            size += request.ByteSize()
            stub.Export(request)
    sent = "otelcol_exporter_sent_spans"
    eventually(lambda: _check(stack.collector.telemetry().get(sent, 0) >= _SPANS), timeout_s=120)
    _tell("a span on the wire", size / _SPANS, "bytes")
    for name, each in used.items():
        cpu_s, memory = each.since()
        _tell(f"{name}: processor time a million spans", cpu_s / _SPANS * _MILLION, "s")
        _tell(f"{name}: memory grown by", memory / _MILLION, "MB")
    stack.jaeger.stop()
    _tell("jaeger: a span on disk", (_bytes_on_disk(badger) - before) / _SPANS, "bytes")


def _collector(rank: int) -> tuple[MetricsCollector, RunMetrics]:
    identity = RunIdentity(
        run_id="many",
        experiment_id="many",
        experiment_name="many",
        rank=rank,
        world_size=_MANY_RANKS,
        local_rank=rank % 8,
        host=f"host-{rank // 8}",
        pid=rank,
    )
    now = time.time_ns()
    state = RunMetrics(
        latest={f"key/{index}": index / 10 for index in range(_KEYS)},
        last_step=0,
        last_step_time_unix_nano=now,
        heartbeat_time_unix_nano=now,
        start_time_unix_nano=now,
        usage=UsageSampler(local_rank=rank % 8),
    )
    return MetricsCollector(build_resource(identity), state, local_rank=rank % 8), state


def _points(metric: object) -> int:
    kind = metric.WhichOneof("data")  # type: ignore[attr-defined]
    return len(getattr(metric, kind).data_points)


def _programs(stack: Stack) -> dict[str, Program]:
    return {"collector": stack.collector, "prometheus": stack.prometheus, "jaeger": stack.jaeger}


def _bytes_on_disk(folder: Path) -> int:
    # Badger makes its files larger than what is in them: blocks count, not lengths.
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _check(condition: bool) -> None:
    if not condition:
        raise AssertionError("not there yet")


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="runspan-scale-") as temporary:
        folder = Path(temporary)
        with running_stack(folder) as stack:
            _measure_run(stack, folder / "run")
            _measure_metrics(stack)
            _measure_spans(stack, folder / "jaeger" / "badger")


if __name__ == "__main__":
    main()
