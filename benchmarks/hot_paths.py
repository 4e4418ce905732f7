"""What recording costs, as ratios against plain OpenTelemetry, both sides timed in turn in this run.

Prints a table with each ratio's median and spread beside its limit, and ends with 1 when one is over it:

    python benchmarks/hot_paths.py [--pairs 15] [--json]

The run that is measured writes its trace file, fills SQLite, and exports metrics to an OTLP receiver in a process of
its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import runspan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SUPPORT = Path(__file__).resolve().parent.parent / "tests"
_ATTRIBUTES = {f"attribute_{index}": index for index in range(8)}
_PHASES = ("data", "forward", "backward", "optimizer")


@dataclass(frozen=True)
class Row:
    """One line of the table: what was timed, against what, and how the ratio came out."""

    what: str
    against: str
    limit: float
    ratios: list[float]
    ours_ns: float
    reference_ns: float

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> float:
        """The median absolute deviation of the ratios."""
        return statistics.median(abs(ratio - self.ratio) for ratio in self.ratios)


def compare(
    what: str,
    against: str,
    ours: Callable[[], float],
    reference: Callable[[], float],
    *,
    limit: float,
    pairs: int,
) -> Row:
    """Time both sides in turn, each returning ns a call, after one warm-up of each."""
    ours(), reference()
    timed = []
    for index in range(pairs):
        # The order alternates, so that a drift of the machine favours neither side.
        if index % 2:
            reference_ns, ours_ns = reference(), ours()
        else:
            ours_ns, reference_ns = ours(), reference()
        timed.append((ours_ns, reference_ns))
    return Row(
        what,
        against,
        limit,
        [ours_ns / reference_ns for ours_ns, reference_ns in timed],
        statistics.median(ours_ns for ours_ns, _ in timed),
        statistics.median(reference_ns for _, reference_ns in timed),
    )


def per_call(call: Callable[[int], None], count: int) -> float:
    """Return the calling thread's own CPU time a call of ``call(count)``, ns; what other threads run does not count."""
    began = time.thread_time_ns()
    call(count)
    return (time.thread_time_ns() - began) / count


def gauge_set() -> Callable[[int], None]:
    """Return a loop over the SDK's Gauge.set, without attributes, with a reader."""
    provider = MeterProvider(metric_readers=[InMemoryMetricReader()], shutdown_on_exit=False)
    gauge = provider.get_meter("benchmark").create_gauge("value")

    def loop(count: int) -> None:
        for index in range(count):
            gauge.set(index * 0.5)

    return loop


def otel_span(*, batch: bool) -> Callable[[int], None]:
    """Return a loop over the SDK's spans with 8 attributes, with or without a batch processor."""
    provider = TracerProvider(shutdown_on_exit=False)
    if batch:
        provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    tracer = provider.get_tracer("benchmark")

    def loop(count: int) -> None:
        for _ in range(count):
            with tracer.start_as_current_span("work", attributes=_ATTRIBUTES):
                pass

    return loop


@contextmanager
def recorded_run(endpoint: str) -> Iterator[tuple[runspan.Run, runspan.SqlStorage]]:
    """Open a run with file, SQLite storage and exported metrics in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            "RUNSPAN_DIR": folder,
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc",
        }
        storage = runspan.open_storage(Path(folder) / "experiments.db")
        config = runspan.TracingConfig.from_env({**os.environ, **environ})
        with runspan.start_run("benchmark", storage=storage, config=config) as run:
            yield run, storage
        storage.close()


def log_metric(run: runspan.Run, count: int) -> float:
    """Return what log_metric costs its caller, ns a call."""

    def loop(count: int) -> None:
        log = run.log_metric
        for index in range(count):
            log("loss/train", index * 0.5)

    cost = per_call(loop, count)
    time.sleep(0.3)  # let the background threads catch up: the reference that follows must not pay for them
    return cost


def log_metric_cpu(endpoint: str, count: int) -> float:
    """Return the CPU time of the whole process a point, until storage holds every one, ns."""
    with recorded_run(endpoint) as (run, storage):
        began = time.process_time_ns()
        for index in range(count):
            run.log_metric("loss/train", index * 0.5)
        asked_from = time.thread_time_ns()
        while (newest := storage.latest_metrics(run.id).get("loss/train")) is None or newest.step < count - 1:
            time.sleep(0.02)
        asking_ns = time.thread_time_ns() - asked_from  # the questions are this benchmark's work, not the run's
        return (time.process_time_ns() - began - asking_ns) / count


def uncaptured_step(run: runspan.Run, count: int) -> float:
    """Return what a step with four phases costs, ns."""
    data, forward, backward, optimizer = _PHASES

    def loop(count: int) -> None:
        for _ in range(count):
            with run.step():
                with run.phase(data):
                    pass
                with run.phase(forward):
                    pass
                with run.phase(backward):
                    pass
                with run.phase(optimizer):
                    pass

    return per_call(loop, count)


def run_span(run: runspan.Run, count: int) -> float:
    """Return what a span of the run with 8 attributes costs, ns."""

    def loop(count: int) -> None:
        for _ in range(count):
            with run.span("work", **_ATTRIBUTES):
                pass

    return per_call(loop, count)


def import_time(module: str) -> float:
    """Return how long a fresh interpreter takes to import a module, ns."""
    program = f"import time; t = time.perf_counter_ns(); import {module}; print(time.perf_counter_ns() - t)"
    return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)


@contextmanager
def receiver() -> Iterator[str]:
    """Start an OTLP receiver in a process of its own and yield its gRPC endpoint."""
    command = [sys.executable, "-m", "support.otlp_receiver"]
    with subprocess.Popen(command, cwd=_SUPPORT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None:
            raise AssertionError("Popen was told to make a pipe")
        try:
            yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
        finally:
            process.kill()


def measure(pairs: int) -> list[Row]:
    """Time every row."""
    with receiver() as endpoint, recorded_run(endpoint) as (run, _):
        gauge, span, batched = gauge_set(), otel_span(batch=False), otel_span(batch=True)
        set_once = "one raw Gauge.set"
        return [
            compare(
                "log_metric, calling thread",
                set_once,
                lambda: log_metric(run, 20_000),
                lambda: per_call(gauge, 20_000),
                limit=0.6,
                pairs=pairs,
            ),
            compare(
                "log_metric, CPU of the process, storage written",
                set_once,
                lambda: log_metric_cpu(endpoint, 50_000),
                lambda: per_call(gauge, 50_000),
                limit=1.0,
                pairs=pairs,
            ),
            compare(
                "uncaptured step with 4 phases",
                "one start_as_current_span, 8 attributes, no processor",
                lambda: uncaptured_step(run, 1_000),
                lambda: per_call(span, 400),
                limit=0.35,
                pairs=3 * pairs,  # short blocks, more of them: this ratio is the closest to its limit
            ),
            compare(
                "run.span() with 8 attributes",
                "the same with a BatchSpanProcessor",
                lambda: run_span(run, 1_000),
                lambda: per_call(batched, 1_000),
                limit=1.3,
                pairs=pairs,
            ),
            compare(
                "import runspan",
                "import opentelemetry.sdk.trace",
                lambda: import_time("runspan"),
                lambda: import_time("opentelemetry.sdk.trace"),
                limit=1.2,
                pairs=pairs,
            ),
        ]


def pair_count(text: str) -> int:
    """Return the number of pairs that an argument names.

    Raises:
        argparse.ArgumentTypeError: it names none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used: it takes a number from 1 on")
    return int(text)


def main() -> int:
    """Measure, print, and say whether every ratio keeps its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=pair_count, default=15, metavar="N", help="timed pairs a row (default: 15)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    rows = measure(arguments.pairs)
    if arguments.json:
        print(
            json.dumps(
                [
                    {
                        "what": row.what,
                        "against": row.against,
                        "ratio": row.ratio,
                        "spread": row.spread,
                        "limit": row.limit,
                    }
                    for row in rows
                ]
            )
        )
    else:
        for row in rows:
            verdict = "ok" if row.ratio <= row.limit else "OVER"
            print(
                f"{row.what:<48} {row.ratio:6.3f} ± {row.spread:.3f}  (at most {row.limit:g}) {verdict:<5}"
                f" {row.ours_ns:>12,.0f} ns against {row.reference_ns:>12,.0f} ns: {row.against}"
            )
    return int(any(row.ratio > row.limit for row in rows))


if __name__ == "__main__":
    sys.exit(main())
