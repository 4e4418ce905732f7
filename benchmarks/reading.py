"""How fast recorded traces are read, and in how much memory, beside plain JSON decoders on the same lines.

Writes files of a million lines (unless told otherwise) and reads each in processes of their own, in turn with msgspec
and json.loads decoding the same lines to dicts without any check. Prints events a second of one core's CPU time, the
ratio to each of the two and the peak of the reading process's memory; ends with 1 when a limit is not kept:

    python benchmarks/reading.py [--events 1000000] [--rounds 3] [--json]

The mixes, in lines: a run trace is 63 % single metrics, 16 % steps with four phases, 16 % several metrics at once, 3 %
usage and 2 % spans with attributes, plain and gzipped; a capture is a third operations, a third allocations and
releases, a sixth tensors, and a sixth spans, gradients and edges.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from runspan.tracefile import read
from runspan.tracefile.events import (
    Edge,
    Gradient,
    Memory,
    Metrics,
    Op,
    OtelContext,
    SpanEnd,
    SpanStart,
    Step,
    Tensor,
    TraceEvent,
    Usage,
    encode,
)
from support.traces import START_UNIX_NANO, make_meta, make_metric, make_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LEAST_EVENTS_PER_S = 250_000
_MOST_BYTES = 200 * 10**6
_STEP_NS = 50_000_000
_NS_PER_S = 10**9
_SHAPE = [32, 128, 768]


@dataclass(frozen=True)
class Answer:
    """What one process measured: lines, CPU time, and the peak of its memory."""

    line_count: int
    cpu_ns: int
    peak_bytes: int

    @property
    def lines_per_s(self) -> float:
        """Lines a second of CPU time."""
        return self.line_count / self.cpu_ns * _NS_PER_S


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    mix: str
    line_count: int
    byte_count: int
    events_per_s: float
    msgspec_ratio: float
    json_ratio: float
    peak_bytes: int

    @property
    def keeps_limits(self) -> bool:
        """Whether it was fast enough, in little enough memory."""
        return self.events_per_s >= _LEAST_EVENTS_PER_S and self.peak_bytes <= _MOST_BYTES


def run_trace() -> Iterator[TraceEvent]:
    """Yield what a training loop records, step by step, without end."""
    rng = random.Random(0)  # noqa: S311 - values, no secrets
    number = 0
    while True:
        now = START_UNIX_NANO + number * _STEP_NS
        phases = {"data": 3_000_000, "forward": 15_000_000, "backward": 25_000_000, "optimizer": 5_000_000}
        yield Step(step=number, duration_ns=48_123_456, phases=phases, samples=64, tokens=131_072, time_unix_nano=now)
        for key in ("loss/train", "lr", "grad_norm", "throughput"):
            yield make_metric(number, key=key, value=rng.random(), time_unix_nano=now)
        values = {"loss/mlm": rng.random(), "loss/nsp": rng.random(), "accuracy": rng.random()}
        yield Metrics(values=values, steps=dict.fromkeys(values, number), time_unix_nano=now)
        if number % 5 == 0:
            usage: dict[str, Any] = {"gpu_util": rng.random(), "memory_used": 10**10, "memory_total": 10**11}
            yield Usage(**usage, timestamp_ns=number * _STEP_NS, time_unix_nano=now)
        if number % 13 == 0:
            yield from _span(rng, "eval/batch", number * _STEP_NS)
        number += 1


def capture() -> Iterator[TraceEvent]:
    """Yield what one captured step records, operation by operation, without end."""
    rng = random.Random(0)  # noqa: S311 - values, no secrets
    number = 0
    span_id = f"{rng.getrandbits(64):016x}"
    place: dict[str, Any] = {"span_id": span_id, "device": "cuda:0", "dtype": "bfloat16", "shape": _SHAPE}
    while True:
        at_ns = number * 10_000
        name, tensor_id, size = "aten::linear", 94_000_000_000_000 + number * 64, 6_291_456
        sizes: dict[str, Any] = {"output_dense_bytes": size, "input_dense_bytes": 2 * size}
        for offset in (0, 1):
            inputs: list[int | str] = [tensor_id - 64, tensor_id - 128]
            yield Op(**place, op_name=name, inputs=inputs, duration_ns=8_000, timestamp_ns=at_ns + offset, **sizes)
        yield Tensor(**place, tensor_id=tensor_id, requires_grad=True, dense_bytes=size, category="activation")
        storage: dict[str, Any] = {
            "storage_id": tensor_id,
            "tensor_id": tensor_id,
            "bytes": size,
            "category": "activation",
        }
        yield Memory(**place, **storage, timestamp_ns=at_ns, op_name=name, action="alloc")
        yield Memory(**place, **storage, timestamp_ns=at_ns + 5_000, action="free")
        if number % 4 == 0:
            yield from _span(rng, "block/attention", at_ns)
            yield Gradient(event_id=number, root="loss", key="block.weight", state="present", norm=rng.random())
            yield Edge.data(tensor_id - 64, tensor_id)
        number += 1


def _span(rng: random.Random, name: str, start_ns: int) -> Iterator[TraceEvent]:
    span_id = f"{rng.getrandbits(64):016x}"
    yield SpanStart(
        id=span_id,
        parent_id="00f067aa0ba902b7",
        name=name,
        start_ns=start_ns,
        time_unix_nano=START_UNIX_NANO + start_ns,
        span_kind="function",
        attributes={"batch": 3, "split": "val", "size": 64},
        otel=OtelContext(f"{rng.getrandbits(128):032x}"),
    )
    yield SpanEnd(id=span_id, duration_ns=1_234_567, attributes={"loss": rng.random()})


def write_file(path: Path, mix: Callable[[], Iterator[TraceEvent]], line_count: int) -> None:
    """Write a trace of so many lines, gzipped when its name says so."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as file:
        file.write(encode(make_meta()))
        for event in islice(mix(), line_count - 2):
            file.write(encode(event))
        file.write(encode(make_terminal()))


def count_lines(reader: str, path: Path) -> int:
    """Read a file with one of the three readers; return how many lines it has."""
    if reader == "runspan":
        return sum(1 for _ in read(path))
    decode = msgspec.json.Decoder().decode if reader == "msgspec" else json.loads
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        count = 0
        for line in file:
            decode(line)
            count += 1
    return count


def measured(reader: str, path: Path) -> Answer:
    """Read a file with one of the readers in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--reader", reader, "--file", str(path)], check=True, capture_output=True
    )
    return msgspec.json.decode(done.stdout, type=Answer)


def measure_here(reader: str, path: Path) -> Answer:
    """Read a file with one of the readers in this process."""
    began = time.process_time_ns()
    line_count = count_lines(reader, path)
    cpu_ns = time.process_time_ns() - began
    # Not getrusage(): its maximum includes the process that started this one.
    peak_kib = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    return Answer(line_count, cpu_ns, int(peak_kib) << 10)


def row(mix: str, path: Path, rounds: int) -> Row:
    """Time all three readers in turn, and return what came of it: medians, and the largest peak."""
    answers: dict[str, list[Answer]] = {"runspan": [], "msgspec": [], "json": []}
    for _ in range(rounds):
        for reader, timed in answers.items():
            timed.append(measured(reader, path))
    speeds = {reader: statistics.median(answer.lines_per_s for answer in timed) for reader, timed in answers.items()}
    return Row(
        mix,
        answers["runspan"][0].line_count,
        path.stat().st_size,
        speeds["runspan"],
        speeds["runspan"] / speeds["msgspec"],
        speeds["runspan"] / speeds["json"],
        max(answer.peak_bytes for answer in answers["runspan"]),
    )


def main() -> int:
    """Measure, print, and say whether every limit was kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000, metavar="N", help="lines a file (default: 1000000)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="timed readings a reader (default: 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--reader", choices=("runspan", "msgspec", "json"), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader:
        print(json.dumps(asdict(measure_here(arguments.reader, arguments.file))))
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for mix, events, filename in (
            ("run trace", run_trace, "run.jsonl"),
            ("run trace, gzipped", run_trace, "run.jsonl.gz"),
            ("capture", capture, "capture.jsonl"),
        ):
            path = Path(folder) / filename
            write_file(path, events, arguments.events)
            rows.append(row(mix, path, arguments.rounds))
            path.unlink()
    if arguments.json:
        print(json.dumps([{**asdict(line), "keeps_limits": line.keeps_limits} for line in rows]))
    else:
        for line in rows:
            print(
                f"{line.mix:<20} {line.line_count:,} lines, {line.byte_count / 1e6:.0f} MB:"
                f" {line.events_per_s:>9,.0f} events/s (at least {_LEAST_EVENTS_PER_S:,}),"
                f" {line.msgspec_ratio:.2f} of msgspec to dicts, {line.json_ratio:.2f} of json.loads,"
                f" {line.peak_bytes / 1e6:.0f} MB at most (limit {_MOST_BYTES / 1e6:.0f})"
                f" {'ok' if line.keeps_limits else 'OVER'}"
            )
    return int(not all(line.keeps_limits for line in rows))


if __name__ == "__main__":
    sys.exit(main())
