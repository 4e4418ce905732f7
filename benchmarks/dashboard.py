"""What being watched costs a training: its step time, served to crowded and hostile clients, against not served.

Two processes train alike, in turn: one serves its run, the other does not. The served one has 32 subscribers, one of
which never reads, two clients that subscribe and leave in a loop, each refused whenever the places are taken, and one
that asks for frames. A pair is one block of steps of each, with points all the time. Prints, for the time that a step
takes and for the CPU time of the training's process, the median of the pairs' ratios with its 95 % interval (by order
statistics, which assume no distribution), and ends with 1 when one is over the limit:

    python benchmarks/dashboard.py [--pairs 200] [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import grpc

import runspan
from runspan.rpc import RemoteDashboard, serve
from runspan.rpc._pb import dashboard_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMIT = 1.01
_MIN_PAIRS = 200
#: Trainings are started anew so often: where a process's memory lies makes a difference, too.
_ROUNDS = 5
_STEPS_A_BLOCK = 25
_ITERATIONS_A_STEP = 400_000
_SUBSCRIBE = "/runspan.v1.DashboardService/Subscribe"
_READERS = 30
_WHAT = ("step time", "CPU time of the training's process")
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


@dataclass(frozen=True)
class Row:
    """What was timed, and how the pairs' ratio came out."""

    what: str
    pairs: int
    ratio: float
    low: float
    high: float
    served_ns: float
    alone_ns: float


def train(*, is_served: bool) -> None:
    """Train a block of steps for each line of stdin, and print what a step took, ns: of time, and of CPU time."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as open_ones:
        environ = {**os.environ, "RUNSPAN_DIR": folder}
        config, storage = runspan.TracingConfig.from_env(environ), runspan.InMemoryStorage()
        run = open_ones.enter_context(runspan.start_run("benchmark", storage=storage, config=config))
        if is_served:
            server = serve(run, "127.0.0.1:0")
            open_ones.callback(server.close)
        print(server.address if is_served else "", flush=True)
        for _ in sys.stdin:
            began, cpu_began = time.perf_counter_ns(), time.process_time_ns()
            for _ in range(_STEPS_A_BLOCK):
                step(run)
            times = (time.perf_counter_ns() - began, time.process_time_ns() - cpu_began)
            print(json.dumps([each / _STEPS_A_BLOCK for each in times]), flush=True)


def step(run: runspan.Run) -> None:
    """Do a step's work, in Python alone: it never lets another thread in by itself."""
    with run.step():
        with run.phase("forward"):
            total = 0
            for number in range(_ITERATIONS_A_STEP):
                total += number
        run.log_metric("loss/train", total * 0.5)
        run.log_metrics({"learning_rate": 0.1, "gradient_norm": 2.0})


def watch(address: str) -> None:
    """Be all the clients, until stdin ends; print how often a subscription was refused."""
    refused = itertools.count()
    stop = threading.Event()
    asleep = grpc.insecure_channel(address, options=_OPTIONS)
    stream = asleep.unary_stream(_SUBSCRIBE)(b"")
    next(stream)
    for _ in range(_READERS):
        threading.Thread(target=_read, args=(address,), daemon=True).start()
    for _ in range(2):
        threading.Thread(target=_come_and_go, args=(address, refused, stop), daemon=True).start()
    threading.Thread(target=_ask_for_frames, args=(address, stop), daemon=True).start()
    print("watching", flush=True)
    sys.stdin.read()
    stop.set()
    print(next(refused), flush=True)
    os._exit(0)  # without waiting for the streams


def _read(address: str) -> None:
    channel = grpc.insecure_channel(address, options=_OPTIONS)
    for _ in channel.unary_stream(_SUBSCRIBE)(b""):  # bytes: what reading them costs is not the training's
        pass


def _come_and_go(address: str, refused: itertools.count[int], stop: threading.Event) -> None:
    request = pb.SubscribeRequest(from_start=True).SerializeToString()
    while not stop.is_set():
        with grpc.insecure_channel(address, options=_OPTIONS) as channel:
            try:
                next(channel.unary_stream(_SUBSCRIBE)(request))
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    next(refused)


def _ask_for_frames(address: str, stop: threading.Event) -> None:
    with RemoteDashboard(address) as remote:
        while not stop.wait(1.0):
            remote.frame()


@contextmanager
def process(*arguments: str, nice: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Start this program in one of its other roles.

    Args:
        arguments: the role.
        nice: how far it stands back: clients are on other machines.
    """
    command = ["nice", "-n", str(nice), sys.executable, __file__, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def say(to: subprocess.Popen[str], line: str = "") -> str:
    """Send a line to a process and return the line that it answers."""
    if to.stdin is None or to.stdout is None:
        raise AssertionError("both are pipes")
    to.stdin.write(f"{line}\n")
    to.stdin.flush()
    return to.stdout.readline()


def hear(from_: subprocess.Popen[str]) -> str:
    """Return the next line of a process."""
    if from_.stdout is None:
        raise AssertionError("stdout is a pipe")
    return from_.stdout.readline().strip()


def measure(pairs: int) -> tuple[list[Row], int]:
    """Time the pairs over rounds of new processes; return the rows, and how often a subscription was refused."""
    timed: list[tuple[list[float], list[float]]] = []
    refused = 0
    for _ in range(_ROUNDS):
        with process("--train", "served") as served, process("--train", "alone") as alone:
            address, _ = hear(served), hear(alone)
            with process("--watch", address, nice=10) as watchers:
                hear(watchers)
                say(served), say(alone)
                for index in range(math.ceil(pairs / _ROUNDS)):
                    # The order alternates, so that a drift of the machine favours neither side.
                    first, second = (alone, served) if index % 2 else (served, alone)
                    times = {first.pid: json.loads(say(first)), second.pid: json.loads(say(second))}
                    timed.append((times[served.pid], times[alone.pid]))
                refused += int(watchers.communicate()[0])
    return [row(what, [(ours[at], theirs[at]) for ours, theirs in timed]) for at, what in enumerate(_WHAT)], refused


def row(what: str, timed: list[tuple[float, float]]) -> Row:
    """Return the row of what was timed, served and alone, ns."""
    ratios = sorted(served_ns / alone_ns for served_ns, alone_ns in timed)
    # The ranks between which the median lies in 95 of 100 samples: those of a fair coin's tosses.
    spread = 1.96 * math.sqrt(len(ratios)) / 2
    return Row(
        what,
        len(ratios),
        statistics.median(ratios),
        ratios[max(0, math.floor(len(ratios) / 2 - spread))],
        ratios[min(len(ratios) - 1, math.ceil(len(ratios) / 2 + spread))],
        statistics.median(served_ns for served_ns, _ in timed),
        statistics.median(alone_ns for _, alone_ns in timed),
    )


def main() -> int:
    """Measure, print, and say whether the ratio keeps its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=_MIN_PAIRS, metavar="N", help="timed pairs (default: 200)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--train", choices=("served", "alone"), help=argparse.SUPPRESS)
    parser.add_argument("--watch", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(is_served=arguments.train == "served")
        return 0
    if arguments.watch:
        watch(arguments.watch)
        return 0
    rows, refused = measure(max(arguments.pairs, _ROUNDS))
    if arguments.json:
        print(json.dumps({"rows": [asdict(each) for each in rows], "refused": refused, "limit": _LIMIT}))
    else:
        for each in rows:
            print(
                f"{each.what:<36} {each.ratio:.4f}, 95 % interval {each.low:.4f} to {each.high:.4f}, {each.pairs} pairs"
                f" (at most {_LIMIT}); {each.served_ns:,.0f} ns against {each.alone_ns:,.0f} ns"
            )
        print(f"{refused} subscriptions were refused")
    return int(any(each.ratio > _LIMIT for each in rows))


if __name__ == "__main__":
    sys.exit(main())
