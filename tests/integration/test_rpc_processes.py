"""Dashboards between real processes: a training that is watched from elsewhere, servers that come and go."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

import runspan
from runspan.errors import RemoteError
from runspan.frames import frame_of
from runspan.records import RunStatus
from runspan.rpc import ClientTls, ServerProcess, ServerTls, serve
from runspan.rpc._pb import dashboard_pb2 as pb
from runspan.tracefile.events import Metric, Metrics
from runspan.tracefile.layout import RunDirectory
from runspan.tracefile.reader import read
from support.certificates import self_signed
from support.cli import clean_environ, make_run, run_program, store
from support.dashboards_served import SLEEPY, WAIT_S, Collected, Served, call, eventually
from support.otlp_receiver import BlackHole, OtlpReceiver
from support.programs import Workplace, wait_for
from support.serving import ServeProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "-".join(["secret"] * 3)


@pytest.fixture
def served() -> Iterator[Served]:
    """Return what starts servers and clients, which are closed afterwards."""
    served = Served()
    yield served
    served.close()


def points_in(directory: Path) -> list[tuple[int, str, int, float]]:
    """Return rank, key, step and value of every point that the files of a run have, each rank's in its order."""
    found: list[tuple[int, str, int, float]] = []
    for name, path in RunDirectory(directory).trace_files():
        for event in read(path):
            if isinstance(event, Metric):
                found.append((name.rank, event.key, event.step, event.value))
            elif isinstance(event, Metrics):
                found += [(name.rank, key, event.step or 0, value) for key, value in event.values.items()]
    return found


def test_the_demo_is_watched_from_another_process(served: Served, tmp_path: Path) -> None:
    """Every point of the demo's four ranks arrives over gRPC, and so does the frame that the directory gives."""
    command = [sys.executable, "-m", "runspan.cli", "demo", "--epochs", "4"]
    environ = clean_environ(tmp_path)
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as training:
        try:
            assert eventually(lambda: any(path.stat().st_size for path in tmp_path.glob("runs/*/rank-*.jsonl")), 100)
            (directory,) = tmp_path.glob("runs/*")
            with ServeProcess(tmp_path, str(directory)) as server:
                remote, collected = served.watch(server.address), Collected()
                subscription = remote.subscribe(collected, from_start=True, all_ranks=True)
                assert training.communicate(timeout=200)[1] == ""
                assert subscription.wait_closed(WAIT_S)
                frame = remote.frame()
        finally:
            training.kill()
    assert frame == frame_of(directory)
    assert (frame.status, len(frame.ranks), frame.slow_rank) == ("success", 4, 2)
    written = points_in(directory)
    arrived = [(point.rank, point.key, point.step, point.value) for point in collected.points]
    assert len(arrived) + subscription.dropped == len(written)
    assert subscription.dropped == 0
    for rank in range(4):
        assert [point for point in arrived if point[0] == rank] == [point for point in written if point[0] == rank]


SERVED_TRAINING = """
    import sys
    import runspan
    from runspan.rpc import serve

    with runspan.start_run("exp", storage=runspan.InMemoryStorage()) as run:
        server = serve(run, "127.0.0.1:0", interval_s=0.05)
        print(server.address, flush=True)
        sys.stdin.readline()
        for step in range(20_000):
            run.log_metric("k" * 300, 0.5)
"""


def test_a_subscriber_that_sleeps_does_not_keep_a_training(tmp_path: Path) -> None:
    """A training that serves itself ends when it has ended, with its exit code, though a subscriber never reads."""
    place = Workplace(tmp_path)
    training = place.start(SERVED_TRAINING + "\n    raise SystemExit(3)\n")
    assert training.stdout is not None
    assert training.stdin is not None
    channel = grpc.insecure_channel(training.stdout.readline().strip(), options=SLEEPY)
    asleep = call(channel, "Subscribe", pb.SubscribeRequest())
    next(asleep)
    training.stdin.write("\n")
    ended = wait_for(training)
    assert (ended.returncode, ended.stderr) == (3, "")
    channel.close()


def test_a_training_with_many_open_files_may_be_served(served: Served, tmp_path: Path) -> None:
    """Files beyond the 1,024 that select() knows keep a server from nothing."""
    config = runspan.TracingConfig(trace_dir=tmp_path, alert_rules=())
    with ExitStack() as opened, runspan.start_run("exp", storage=runspan.InMemoryStorage(), config=config) as run:
        for _ in range(1_100):
            opened.enter_context(Path(os.devnull).open("rb"))
        assert served.watch(served.serve(run)).status() is RunStatus.RUNNING


def test_leaving_the_block_of_a_served_run_is_bounded(served: Served, tmp_path: Path) -> None:
    """A subscriber that never reads, or a server process that is stopped, takes shutdown_timeout_s at most."""
    config = runspan.TracingConfig(trace_dir=tmp_path, shutdown_timeout_s=0.5, alert_rules=())
    with runspan.start_run("exp", storage=runspan.InMemoryStorage(), config=config) as run:
        for number in (None, signal.SIGSTOP):
            server = serve(run, "127.0.0.1:0", interval_s=0.05)
            assert isinstance(server, ServerProcess)
            with server:
                channel = served.channel(server, *SLEEPY)
                asleep = call(channel, "Subscribe", pb.SubscribeRequest(from_start=True))
                next(asleep)
                for _ in range(20_000):
                    run.log_metric("k" * 300, 0.5)
                if number is not None:
                    os.kill(server._process.pid, number)
                began_s = time.monotonic()
            assert time.monotonic() - began_s < 0.5 + 0.2
            assert server.wait(0.0)


def test_the_server_of_a_killed_training_goes_with_it(served: Served, tmp_path: Path) -> None:
    """SIGKILL of a training that serves itself ends its server too, after its subscribers had the rest."""
    training = Workplace(tmp_path).start(SERVED_TRAINING + "        sys.stdin.readline()\n")
    assert training.stdout is not None
    assert training.stdin is not None
    address = training.stdout.readline().strip()
    collected = Collected()
    subscription = served.watch(address).subscribe(collected)
    training.stdin.write("\n")
    training.stdin.flush()
    assert eventually(lambda: len(collected.points) > 0)
    training.kill()
    training.communicate()
    (directory,) = (tmp_path / "runspan" / "runs").iterdir()
    written = len(points_in(directory))
    assert eventually(lambda: len(collected.points) + subscription.dropped == written)

    def is_gone() -> bool:
        host, _, port = address.rpartition(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) != 0

    assert eventually(is_gone)


def test_a_served_run_may_fork(served: Served, tmp_path: Path) -> None:
    """Forked workers change nothing of the server: it goes on answering, and the program ends as it would have."""
    source = """
        import os
        import sys
        import runspan
        from runspan.rpc import serve

        with runspan.start_run("exp", storage=runspan.InMemoryStorage()) as run:
            server = serve(run, "127.0.0.1:0", interval_s=0.05)
            print(server.address, flush=True)
            for worker in range(4):
                pid = os.fork()
                if pid == 0:
                    run.log_metric("in the child", worker)
                    server.close()
                    os._exit(0)
                run.log_metric("loss", 0.5)
                os.waitpid(pid, 0)
            print("forked", flush=True)
            sys.stdin.readline()
            run.log_metric("loss", 0.25)
    """
    training = Workplace(tmp_path).start(source)
    assert training.stdout is not None
    assert training.stdin is not None
    remote = served.watch(training.stdout.readline().strip())
    collected = Collected()
    subscription = remote.subscribe(collected, from_start=True)
    assert training.stdout.readline() == "forked\n"
    assert eventually(lambda: collected.steps() == list(range(4)))
    assert remote.status() is RunStatus.RUNNING
    training.stdin.write("\n")
    training.stdin.flush()
    ended = wait_for(training)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert eventually(lambda: collected.steps() == list(range(5)))
    subscription.close()


def test_a_killed_server_is_replaced_without_a_gap(served: Served, tmp_path: Path) -> None:
    """SIGKILL of the server process and another one on its port: each point of the run comes once."""
    source = """
        import sys
        import runspan

        with runspan.start_run("exp", run_id="r", storage=runspan.InMemoryStorage()) as run:
            for line in sys.stdin:
                for step in range(500):
                    run.log_metric("loss", 0.5)
                print("logged", flush=True)
    """
    place = Workplace(tmp_path)
    training = place.start(source)
    assert training.stdout is not None
    assert training.stdin is not None

    def log() -> None:
        assert training.stdout is not None
        assert training.stdin is not None
        training.stdin.write("go\n")
        training.stdin.flush()
        assert training.stdout.readline() == "logged\n"

    log()
    server = ServeProcess(place.root, str(place.only_run))
    collected = Collected()
    subscription = served.watch(server.address).subscribe(collected, from_start=True)
    assert eventually(lambda: len(collected.points) == 500)
    log()
    server.end(signal.SIGKILL)
    log()
    with ServeProcess(place.root, str(place.only_run), "--address", server.address):
        log()
        training.stdin.close()
        training.stdin = None
        assert wait_for(training).returncode == 0
        assert subscription.wait_closed(2 * WAIT_S)
    assert (collected.steps(), subscription.dropped) == (list(range(2_000)), 0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_command_ends_cleanly(served: Served, tmp_path: Path, number: signal.Signals, code: int) -> None:
    """SIGTERM is the end of the work, Ctrl-C is Ctrl-C; neither prints a word, nor waits for a subscriber."""
    server = ServeProcess(tmp_path, str(make_run(tmp_path, "r")))
    assert served.watch(server.address).status() is RunStatus.SUCCESS
    answer = server.end(number)
    assert (answer.code, answer.out, answer.err) == (code, "", "")


def test_the_command_serves_a_root_folder_and_a_database(served: Served, tmp_path: Path) -> None:
    """A root folder's runs are shown from database and files, a database alone by what it has, the default is found."""
    store(tmp_path, make_run(tmp_path, "r", world_size=2))
    for arguments in ((), (str(tmp_path),), (str(tmp_path / "experiments.db"),)):
        with ServeProcess(tmp_path, *arguments) as server:
            remote = served.watch(server.address)
            assert [each.run.run_id for each in remote.list_runs()] == ["r"]
            assert [rank.rank for rank in remote.frame().ranks] == [0, 1]


def test_bad_input_of_the_command_is_one_line(tmp_path: Path) -> None:
    """Addresses, folders, limits and files that cannot be used end it with 2 and one line that says why."""
    run = str(make_run(tmp_path, "r"))
    environ = clean_environ(tmp_path)
    with ServeProcess(tmp_path, run) as taken:
        cases = {
            (run, "--address", taken.address): "in use",
            (run, "--address", "name.invalid:1"): "does not resolve",
            (run, "--address", "0.0.0.0:0"): "TLS certificate and key, or a token",
            (run, "--max-subscribers", "0"): "1 to 1000",
            (run, "--max-subscribers", "1000000000"): "1 to 1000",
            (run, "--tls-cert", "/no/file"): "go together",
            (run, "--token-file", "/no/file"): "cannot be read",
            (str(tmp_path / "artifacts.db"),): "give a run directory, a root folder or an experiment database",
        }
        for arguments, said in cases.items():
            answer = run_program(["serve", *arguments], environ)
            assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1), arguments
            assert said in answer.err


def failure_of(served: Served, address: str, **options: object) -> str:
    """Return the error of a client's first call, and see that subscribing gives the same kind of error."""
    remote = served.watch(address, **{"timeout_s": 5.0, **options})
    with pytest.raises(RemoteError) as raised:
        remote.frame()
    with pytest.raises(RemoteError):
        remote.subscribe(print)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_what_is_no_dashboard_is_named(served: Served) -> None:
    """Nobody there, a name that does not resolve, another gRPC service, and one that never answers: a line for each."""
    assert "refused" in failure_of(served, "127.0.0.1:1")
    assert "cannot reach a dashboard at name.invalid:1" in failure_of(served, "name.invalid:1")
    # These are names of hosts here, and not the schemes that grpc knows by them.
    for host in ("dns", "unix", "ipv4"):
        message = failure_of(served, f"{host}:1")
        assert f"cannot reach a dashboard at {host}:1" in message
        assert "resol" in message
    with OtlpReceiver("grpc") as other:
        assert "shows no runspan dashboard" in failure_of(served, f"127.0.0.1:{other.port}")
    with BlackHole() as silent:
        assert "127.0.0.1" in failure_of(served, f"127.0.0.1:{silent.port}", timeout_s=1.0)


def test_the_wrong_token_is_named(served: Served, tmp_path: Path) -> None:
    """Without the token or with another one the client says that the server refuses it; with it all is well."""
    with ServeProcess(tmp_path, str(make_run(tmp_path, "r")), RUNSPAN_RPC_TOKEN=TOKEN) as server:
        for token in (None, f"{TOKEN}-not"):
            message = failure_of(served, server.address, token=token)
            assert "refuses (unauthenticated)" in message
            assert TOKEN not in message
        assert served.watch(server.address, token=TOKEN).status() is RunStatus.SUCCESS


def test_tls_on_one_side_alone_is_named(served: Served, tmp_path: Path) -> None:
    """TLS meets plain text in either direction, or another authority: the message says what to look at."""
    certificate, key = self_signed(tmp_path, alternatives="DNS:localhost,IP:127.0.0.1")
    other, _ = self_signed(tmp_path, "other", alternatives="DNS:localhost,IP:127.0.0.1")
    directory = make_run(tmp_path, "r")
    secure = served.serve(directory, tls=ServerTls(certificate, key)).address
    plain = served.serve(directory).address
    assert served.watch(secure, tls=ClientTls(certificate)).status() is RunStatus.SUCCESS
    assert "does it speak TLS?" in failure_of(served, secure)
    assert "asked with TLS" in failure_of(served, plain, tls=ClientTls(certificate))
    assert "do the certificates fit" in failure_of(served, secure, tls=ClientTls(other))


def test_mutual_tls_takes_a_certificate(served: Served, tmp_path: Path) -> None:
    """With client authorities nobody comes in without a certificate of theirs."""
    certificate, key = self_signed(tmp_path, alternatives="DNS:localhost,IP:127.0.0.1")
    own, own_key = self_signed(tmp_path, "client")
    directory = make_run(tmp_path, "r")
    address = served.serve(directory, tls=ServerTls(certificate, key, client_ca=own)).address
    failure_of(served, address, tls=ClientTls(certificate))
    assert served.watch(address, tls=ClientTls(certificate, own, own_key)).status() is RunStatus.SUCCESS
