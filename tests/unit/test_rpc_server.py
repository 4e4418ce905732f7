"""The dashboard service over real connections on this machine: what it answers, refuses and survives."""

from __future__ import annotations

import math
import sys
import threading
import time
from concurrent import futures
from typing import TYPE_CHECKING, Any

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from runspan.dashboard import DashboardSource
from runspan.errors import ConfigError, MissingExtraError, RemoteError, RunNotFoundError, TraceFormatError
from runspan.frames import FrameSource, frame_of
from runspan.records import MetricPoint, RunStatus
from runspan.rpc import ClientTls, DashboardServer, RemoteDashboard, ServerTls, serve
from runspan.rpc._pb import dashboard_pb2 as pb
from runspan.storage.memory import InMemoryStorage
from runspan.tracefile.events import Metrics
from support.cli import cut_end, make_run, make_step
from support.dashboards_served import SLEEPY, WAIT_S, Collected, Served, call, eventually
from support.live import LiveRuns
from support.traces import make_meta, make_metric, write_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from runspan.tracefile.events import TraceEvent


TOKEN = "-".join(["secret"] * 3)


@pytest.fixture
def served() -> Iterator[Served]:
    """Return what starts servers and clients, which are closed afterwards."""
    served = Served()
    yield served
    served.close()


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveRuns]:
    """Return what starts runs, which are ended afterwards."""
    runs = LiveRuns(tmp_path, monkeypatch)
    yield runs
    runs.close()


def refusal(of: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    """Return the status and message with which a call is refused."""
    with pytest.raises(grpc.RpcError) as raised:
        of()
    return raised.value.code(), raised.value.details()


def stored(points: int = 5, *, run_id: str = "r", world_size: int = 1, ended: bool = False) -> InMemoryStorage:
    """Return a storage with one run, each of whose ranks logged so many points."""
    storage = InMemoryStorage()
    storage.create_run(storage.create_experiment("e"), run_id, world_size)
    for rank in range(world_size):
        storage.start_run(run_id, rank)
        storage.log_metrics(run_id, [stored_point(step, rank=rank) for step in range(points)])
        if ended:
            storage.complete_run(run_id, RunStatus.SUCCESS, rank)
    return storage


def stored_point(step: int, *, rank: int = 0) -> MetricPoint:
    """Return a point of ``loss``."""
    return MetricPoint("loss", step, step / 8, 1_700_000_000_000_000_000 + step * 1_000_000, rank)


def test_a_live_run_shows_the_same_over_grpc_as_its_directory(served: Served, live: LiveRuns) -> None:
    """Frame, status, newest points and usage of a live run arrive as its own process and its files have them."""
    run = live.start("exp", name="a run", group="g")
    server = served.serve(run)
    with server, served.watch(server) as remote:
        for _ in run.steps(range(20), total=40):
            run.log_metric("loss/träin", 0.5)
            run.log_metrics({"a": math.inf, "b": -0.0})
        run.alert("the loss jumped", "by much", "error")
        assert run.directory is not None
        assert remote.frame() == frame_of(run.directory)
        assert remote.frame().alerts[0].title == "the loss jumped"
        assert remote.frame().lead is not None
        assert remote.status() is RunStatus.RUNNING
        shown = remote.recent_metrics(7)
        assert {key: len(snapshot) for key, snapshot in shown.items()} == {"loss/träin": 7, "a": 7, "b": 7}
        assert shown["a"].latest == math.inf
        assert {key: snapshot.values for key, snapshot in remote.recent_metrics(0).items()} == {
            key: [] for key in shown
        }
        assert remote.resource_usage().memory_total == run.resource_usage().memory_total


def test_a_directory_shows_all_ranks(served: Served, tmp_path: Path) -> None:
    """An ended run's directory is served too, with the metrics and subscriptions of whichever rank is asked for."""
    directory = make_run(tmp_path, "r", world_size=3, events=[make_step(0, forward=5.0)])
    server = served.serve(directory)
    remote = served.watch(server, rank=2)
    assert [rank.rank for rank in remote.frame().ranks] == [0, 1, 2]
    assert remote.recent_metrics(2)["loss"].latest == 0.5
    everyone, one = Collected(), Collected()
    for_all = remote.subscribe(everyone, from_start=True, all_ranks=True)
    for_one = remote.subscribe(one, from_start=True)
    assert for_all.wait_closed(WAIT_S)
    assert for_one.wait_closed(WAIT_S)
    assert sorted((point.rank, point.step) for point in everyone.points) == [(r, s) for r in range(3) for s in range(3)]
    assert [(point.rank, point.step) for point in one.points] == [(2, 0), (2, 1), (2, 2)]


def test_a_storage_shows_each_of_its_runs(served: Served) -> None:
    """Runs are listed newest first, each can be asked for, and without a name the one that started last is shown."""
    storage = stored(ended=True)
    storage.create_run(storage.create_experiment("e"), "later")
    storage.start_run("later")
    server = served.serve(storage)
    remote = served.watch(server)
    assert [(each.run.run_id, each.status) for each in remote.list_runs()] == [("later", "running"), ("r", "success")]
    assert [each.run.run_id for each in remote.list_runs(1)] == ["later"]
    assert remote.frame().run.run_id == "later"
    older = served.watch(server, run_id="r")
    assert older.status() is RunStatus.SUCCESS
    assert [point.step for point in older.frame().metrics[0].points] == [0, 1, 2, 3, 4]
    assert older.recent_metrics(2)["loss"].latest == 0.5
    with pytest.raises(RunNotFoundError, match="no run 'x'"):
        served.watch(server, run_id="x").status()


def test_a_stored_run_with_its_files_here_is_shown_from_them(served: Served, tmp_path: Path) -> None:
    """Given the folder of run directories, a stored run shows its ranks; so does one that storage does not have."""
    make_run(tmp_path, "r", world_size=2)
    make_run(tmp_path, "unstored")
    server = served.serve(stored(ended=True), trace_dir=tmp_path / "runs")
    assert [rank.rank for rank in served.watch(server, run_id="r").frame().ranks] == [0, 1]
    assert served.watch(server, run_id="unstored").frame().status == "success"


def test_a_run_without_a_file_is_shown_by_what_it_logs(served: Served, live: LiveRuns) -> None:
    """A Run that keeps no trace file shows status, metrics and points from when it is served."""
    run = live.start("exp", trace_dir=None)
    remote = served.watch(served.serve(run))
    collected = Collected()
    subscription = remote.subscribe(collected)
    for _ in range(50):
        run.log_metric("loss", 0.25)
    run.finish()
    assert subscription.wait_closed(WAIT_S)
    assert collected.steps() == list(range(50))
    frame = remote.frame()
    assert (frame.run.run_id, frame.status, frame.metrics[0].count) == (run.id, "success", 50)
    assert remote.recent_metrics(3)["loss"].latest == 0.25


def test_every_point_of_the_file_arrives_in_order(served: Served, live: LiveRuns) -> None:
    """A subscriber gets every point that is written behind its call, each once, and the end of the run ends it."""
    run = live.start("exp")
    run.log_metric("loss", 1.0)
    remote = served.watch(served.serve(run))
    late, whole = Collected(), Collected()
    from_now = remote.subscribe(late)
    from_start = remote.subscribe(whole, from_start=True)
    for _ in range(300):
        run.log_metric("loss", 0.5)
    run.finish()
    assert from_now.wait_closed(WAIT_S)
    assert from_start.wait_closed(WAIT_S)
    assert (late.steps(), from_now.dropped) == (list(range(1, 301)), 0)
    assert (whole.steps(), from_start.dropped) == (list(range(301)), 0)


def test_updates_come_at_most_once_an_interval(served: Served, live: LiveRuns) -> None:
    """Points of one interval come in one update, and nothing comes while nothing is new."""
    run = live.start("exp")
    server = served.serve(run, interval_s=0.3)
    stream = call(served.channel(server), "Subscribe", pb.SubscribeRequest())
    assert list(next(stream).points) == []
    for _ in range(100):
        run.log_metric("loss", 0.5)
    assert [point.step for point in next(stream).points] == list(range(100))
    run.log_metric("loss", 0.5)
    run.finish()
    rest = list(stream)
    assert [point.step for update in rest for point in update.points] == [100]
    assert rest[-1].status == pb.RUN_STATUS_SUCCESS
    assert len(rest) <= 2


def test_a_slow_client_loses_points_and_is_told_how_many(served: Served, live: LiveRuns) -> None:
    """A client that does not read loses the oldest points that wait; received and dropped come to all of them."""
    run = live.start("exp")
    server = served.serve(run)
    stream = call(served.channel(server, *SLEEPY), "Subscribe", pb.SubscribeRequest())
    assert list(next(stream).points) == []
    key, total = "k" * 300, 40_000
    for _ in range(total):
        run.log_metric(key, 0.5)
    run.finish()
    remote = served.watch(server)
    assert eventually(lambda: remote.frame().metrics[0].count == total)
    threading.Event().wait(0.5)  # the client sleeps while the server has news
    received = dropped = 0
    for update in stream:
        received += len(update.points)
        dropped += update.dropped
    assert received + dropped == total
    assert dropped > 0


def test_a_subscription_goes_on_after_a_restart(served: Served, live: LiveRuns) -> None:
    """When the server is replaced by another one on the port, no point is missed and none comes twice."""
    run = live.start("exp")
    first = served.serve(run)
    collected = Collected()
    subscription = served.watch(first).subscribe(collected)
    for _ in range(100):
        run.log_metric("loss", 0.5)
    assert eventually(lambda: len(collected.points) == 100)
    first.close()
    for _ in range(100):
        run.log_metric("loss", 0.5)
    assert not subscription.is_closed
    served.serve(run, first.address)
    for _ in range(100):
        run.log_metric("loss", 0.5)
    run.finish()
    assert subscription.wait_closed(WAIT_S)
    assert (collected.steps(), subscription.dropped) == (list(range(300)), 0)


def test_a_stored_run_goes_on_after_a_restart(served: Served) -> None:
    """So does a subscription to a run in storage, with several ranks, values that repeat and NaN."""
    storage = stored(points=3, world_size=2)
    storage.log_metrics("r", [MetricPoint("n", 0, math.nan, 1, rank) for rank in range(2)])
    first = served.serve(storage)
    collected = Collected()
    subscription = served.watch(first).subscribe(collected, from_start=True, all_ranks=True)
    assert eventually(lambda: len(collected.points) == 8)
    first.close()
    storage.log_metrics("r", [stored_point(step, rank=step % 2) for step in range(3, 9)])
    served.serve(storage, first.address)
    assert eventually(lambda: len(collected.points) == 14)
    for rank in range(2):
        storage.complete_run("r", RunStatus.SUCCESS, rank)
    assert subscription.wait_closed(WAIT_S)
    found = sorted((point.rank, point.step) for point in collected.points if point.key == "loss")
    expected = [(r, s) for r in range(2) for s in range(3)] + [(step % 2, step) for step in range(3, 9)]
    assert found == sorted(expected)
    assert len(collected.points) == 14


def test_a_resume_token_names_its_place_exactly(served: Served, tmp_path: Path) -> None:
    """With the token of any update the points behind it come again, and only these, over parts and attempts."""
    meta = make_meta(run_id="r")
    for attempt in range(2):
        name = "rank-00000.jsonl" if attempt == 0 else "rank-00000.attempt-1.jsonl"
        steps = range(attempt * 6_000, attempt * 6_000 + 6_000)
        process = msgspec.structs.replace(meta.process, world_size=1, attempt=attempt)
        lines: list[TraceEvent] = [
            msgspec.structs.replace(meta, process=process),
            *(make_metric(step) for step in steps),
        ]
        write_lines(tmp_path / name, lines)
    server = served.serve(tmp_path)
    channel = served.channel(server)
    stream = call(channel, "Subscribe", pb.SubscribeRequest(from_start=True))
    updates, steps_seen = [], 0
    while steps_seen < 12_000:
        updates.append(next(stream))
        steps_seen += len(updates[-1].points)
    stream.cancel()
    assert len(updates) > 2
    before = 0
    for number, update in enumerate(updates):
        before += len(update.points)
        if number % 5 and update is not updates[-1]:
            continue
        again = call(channel, "Subscribe", pb.SubscribeRequest(resume_token=update.resume_token))
        expected, got = 12_000 - before, list[int]()
        while len(got) < expected:
            got += [point.step for point in next(again).points]
        again.cancel()
        assert got == list(range(before, 12_000))


@pytest.mark.parametrize(
    ("token", "code"),
    [
        (b"\xff\x00", grpc.StatusCode.INVALID_ARGUMENT),
        (b"[" * 100_000, grpc.StatusCode.INVALID_ARGUMENT),
        (b'{"run_id":"x","cursor":{}}', grpc.StatusCode.OUT_OF_RANGE),
        (b'{"run_id":"r","cursor":{"0.0":[0,99]}}', grpc.StatusCode.OUT_OF_RANGE),
        (b'{"run_id":"r","cursor":{"0.0":[0,-1]}}', grpc.StatusCode.OUT_OF_RANGE),
        (b'{"run_id":"r","cursor":{"0.0":"a"}}', grpc.StatusCode.OUT_OF_RANGE),
        (b'{"run_id":"r","cursor":{"../../etc":[0,1]}}', grpc.StatusCode.OUT_OF_RANGE),
        (b'{"run_id":"r","cursor":{"7.0":[0,1]}}', grpc.StatusCode.OUT_OF_RANGE),
    ],
)
def test_a_foreign_resume_token_is_refused(served: Served, tmp_path: Path, token: bytes, code: grpc.StatusCode) -> None:
    """A token that is damaged, of another run, or points behind the file's end is refused with what to do."""
    server = served.serve(make_run(tmp_path, "r"))
    request = pb.SubscribeRequest(resume_token=token)
    found, said = refusal(lambda: list(call(served.channel(server), "Subscribe", request)))
    assert found is code
    assert "token" in said


@pytest.mark.parametrize(
    "source", ["9" * 5_000 + "/loss", "\u0663/loss", "0/", "loss", "-1/loss"], ids=lambda source: source[-8:]
)
def test_a_foreign_resume_token_of_a_stored_run_is_refused(served: Served, source: str) -> None:
    """A position that names no rank and key, or a rank of thousands of digits, is the client's fault."""
    server = served.serve(stored(points=3))
    token = msgspec.json.encode({"run_id": "r", "cursor": {source: [0, 1, 1, "1.0"]}})
    request = pb.SubscribeRequest(run_id="r", resume_token=token)
    found, said = refusal(lambda: list(call(served.channel(server), "Subscribe", request)))
    assert found is grpc.StatusCode.OUT_OF_RANGE
    assert "no" in said
    assert "resume token" in said


@pytest.mark.parametrize(
    ("name", "asked", "code", "said"),
    [
        ("GetRecentMetrics", pb.GetRecentMetricsRequest(limit=10**9), grpc.StatusCode.INVALID_ARGUMENT, "0 to 1000"),
        ("ListRuns", pb.ListRunsRequest(limit=0), grpc.StatusCode.INVALID_ARGUMENT, "1 to 1000"),
        ("ListRuns", pb.ListRunsRequest(limit=10**9), grpc.StatusCode.INVALID_ARGUMENT, "1 to 1000"),
        ("GetStatus", pb.GetStatusRequest(run_id="x"), grpc.StatusCode.NOT_FOUND, "shows the run 'r'"),
        ("GetFrame", pb.GetFrameRequest(run_id="x" * 5_000), grpc.StatusCode.INVALID_ARGUMENT, "5000 characters"),
    ],
)
def test_bad_requests_have_a_clear_status(
    served: Served, tmp_path: Path, *, name: str, asked: Any, code: grpc.StatusCode, said: str
) -> None:
    """A value out of its range and an unknown run are answered with a status code and a line that says what is."""
    server = served.serve(make_run(tmp_path, "r"))
    found, details = refusal(lambda: call(served.channel(server), name, asked))
    assert found is code
    assert said in details


def test_one_subscriber_too_many_is_refused_and_the_rest_go_on(served: Served, tmp_path: Path) -> None:
    """Beyond the limit a client is told so; when another leaves there is room; and other calls are answered."""
    directory = make_run(tmp_path, "r")
    cut_end(directory)
    server = served.serve(directory, max_subscribers=3)
    streams = [call(served.channel(server, ("grpc.use_local_subchannel_pool", 1)), "Subscribe", pb.SubscribeRequest())
               for _ in range(3)]  # fmt: skip
    for stream in streams:
        next(stream)
    code, said = refusal(lambda: list(call(served.channel(server), "Subscribe", pb.SubscribeRequest())))
    assert (code, "3 clients subscribe" in said) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
    assert served.watch(server).status() is RunStatus.RUNNING
    streams.pop().cancel()
    assert isinstance(server, DashboardServer)
    assert eventually(lambda: server.subscriber_count == 2)
    assert list(next(call(served.channel(server), "Subscribe", pb.SubscribeRequest())).points) == []


def test_reflection_lists_the_service(served: Served, tmp_path: Path) -> None:
    """A plain client learns by reflection which services there are, and what their messages are."""
    channel = served.channel(served.serve(make_run(tmp_path, "r")))
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="runspan.v1.DashboardService"),
    ]
    listed, described = stub.ServerReflectionInfo(iter(asked), timeout=WAIT_S)
    names = {service.name for service in listed.list_services_response.service}
    assert names == {"runspan.v1.DashboardService", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert described.file_descriptor_response.file_descriptor_proto == [pb.DESCRIPTOR.serialized_pb]


def test_health_is_serving_and_while_draining_not(served: Served, live: LiveRuns) -> None:
    """Health says SERVING; while the server waits for its subscribers to end, NOT_SERVING; and takes no more calls."""
    run = live.start("exp")
    server = served.serve(run, token=TOKEN)
    channel = served.channel(server)
    health = health_pb2_grpc.HealthStub(channel)
    ask = health_pb2.HealthCheckRequest(service="runspan.v1.DashboardService")
    assert health.Check(ask, timeout=WAIT_S).status == health_pb2.HealthCheckResponse.SERVING
    watched = health.Watch(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
    assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
    metadata = (("authorization", f"Bearer {TOKEN}"),)
    small = served.channel(server, *SLEEPY)
    asleep = call(small, "Subscribe", pb.SubscribeRequest(), metadata=metadata)
    next(asleep)
    for _ in range(9_000):  # more than the connection takes while nobody reads
        run.log_metric("k" * 300, 0.5)
    eventually(lambda: served.watch(server, token=TOKEN).frame().metrics[0].count == 9_000)
    closing = threading.Thread(target=server.close, args=(3.0,))
    closing.start()
    assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert health.Check(ask, timeout=WAIT_S).status == health_pb2.HealthCheckResponse.NOT_SERVING
    code, said = refusal(lambda: call(channel, "GetStatus", pb.GetStatusRequest(), metadata=metadata))
    assert (code, "shutting down" in said) == (grpc.StatusCode.UNAVAILABLE, True)
    asleep.cancel()
    closing.join(WAIT_S)
    assert server.wait(0)


def test_the_token_is_asked_for(served: Served, tmp_path: Path) -> None:
    """Without the token, or with another, every call but a health check is UNAUTHENTICATED."""
    server = served.serve(make_run(tmp_path, "r"), token=TOKEN)
    channel = served.channel(server)
    for metadata in ((), (("authorization", f"Bearer {TOKEN}s"),), (("authorization", "x"),)):
        code, said = refusal(lambda m=metadata: call(channel, "GetStatus", pb.GetStatusRequest(), metadata=m))  # type: ignore[misc]
        assert (code, "Bearer TOKEN" in said) == (grpc.StatusCode.UNAUTHENTICATED, True)
        stream = call(channel, "Subscribe", pb.SubscribeRequest(), metadata=metadata)
        assert refusal(lambda s=stream: list(s))[0] is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[misc]
    assert served.watch(server, token=TOKEN).status() is RunStatus.SUCCESS
    health = health_pb2_grpc.HealthStub(channel)
    assert health.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S).status == 1


def refuse(options: dict[str, Any], target: Any = None, address: str = "127.0.0.1:0") -> str:
    """Return why a server does not start."""
    with pytest.raises(ConfigError) as raised:
        serve(stored() if target is None else target, address, **options)
    return str(raised.value)


def test_what_cannot_be_served_is_refused_before_anything_starts(served: Served, tmp_path: Path) -> None:
    """Limits, intervals, tokens, files and targets that cannot be used are named, with what to do."""
    assert "1 to 1000" in refuse({"max_subscribers": 0})
    assert "1 to 1000" in refuse({"max_subscribers": 10**9})
    assert "seconds above 0" in refuse({"interval_s": math.nan})
    assert "at most 3,600" in refuse({"interval_s": math.inf})
    assert "16 or more" in refuse({"token": "short"})
    assert "16 or more" in refuse({"token": "with a space in between"})
    assert "int cannot be served" in refuse({}, target=3)
    with pytest.raises(TraceFormatError, match="no run directory"):
        serve(tmp_path)
    taken = served.serve(stored())
    assert "in use" in refuse({}, address=taken.address)


@pytest.mark.parametrize(
    "address", ["", "x", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", "::1:7776", "a b:1", "u@h:1", "h:-1", "h:1.5"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    """What is no HOST:PORT is refused by server and client with the form that an address has."""
    assert "HOST:PORT" in refuse({}, address=address)
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Served().watch(address)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_beyond_this_machine_it_takes_tls_or_a_token(address: str) -> None:
    """An address that others reach is refused without TLS and token."""
    assert "TLS certificate and key, or a token" in refuse({}, address=address)


def test_a_closed_server_lets_its_port_go_and_closing_again_is_nothing(served: Served, tmp_path: Path) -> None:
    """After close the port can be served again at once, and a second close does nothing."""
    server = served.serve(make_run(tmp_path, "r"))
    server.close()
    server.close()
    assert served.serve(tmp_path / "runs" / "r", server.address).address == server.address


def test_a_live_run_on_a_taken_address_is_refused(served: Served, live: LiveRuns) -> None:
    """What keeps the run's own server process from serving is told to the program that asked for it."""
    taken = served.serve(stored())
    run = live.start("exp")
    assert "in use" in refuse({}, target=run, address=taken.address)
    assert "TLS key" in refuse({"tls": ServerTls("/no/certificate", "/no/key")}, target=run)


def test_a_client_is_a_source_of_dashboards_and_frames(served: Served) -> None:
    """A client stands wherever a Run or a storage's dashboard does."""
    remote = served.watch("127.0.0.1:1")
    assert isinstance(remote, DashboardSource)
    assert isinstance(remote, FrameSource)


def test_bad_arguments_of_a_client_are_refused(served: Served, tmp_path: Path) -> None:
    """Ranks, limits, timeouts, tokens and files that cannot be used are named before anything is asked."""
    for options, said in (
        ({"rank": -1}, "ranks count from 0"),
        ({"timeout_s": 0.0}, "seconds above 0"),
        ({"timeout_s": math.inf}, "at most 86,400"),
        ({"token": "short"}, "16 or more"),
        ({"tls": ClientTls(ca=tmp_path / "none")}, "cannot be read"),
        ({"tls": ClientTls(certificate=tmp_path / "none")}, "go together"),
    ):
        with pytest.raises(ConfigError, match=said):
            served.watch("127.0.0.1:1", **options)
    remote = served.watch("127.0.0.1:1")
    for limit in (-1, 2**32):
        with pytest.raises(ValueError, match="from 0 to 1000"):
            remote.recent_metrics(limit)
    with pytest.raises(ConfigError, match="function of a MetricPoint"):
        remote.subscribe(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("module", ["grpc_health", "grpc_reflection"])
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Without the packages of the extra the error has the command that installs it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'runspan\[rpc\]'"):
        serve(stored())


def test_numbers_beyond_what_the_wire_has_are_shown_at_its_limits(served: Served, tmp_path: Path) -> None:
    """Steps and times of 64 bits without a sign, and more ranks than there can be, break no answer."""
    most = 2**64 - 1
    meta = make_meta()
    meta = msgspec.structs.replace(meta, process=msgspec.structs.replace(meta.process, world_size=most))
    line = Metrics(values={"loss": 1.0}, steps={"loss": most}, time_unix_nano=most)
    write_lines(tmp_path / "rank-00000.jsonl", [meta, line])
    dashboard = served.watch(served.serve(tmp_path))
    frame = dashboard.frame()
    assert frame.run.world_size == 2**32 - 1
    assert [(point.step, point.time_unix_nano) for point in frame.metrics[0].points] == [(2**63 - 1, 2**63 - 1)]
    assert len(dashboard.recent_metrics(10)["loss"].values) == 1
    collected = Collected()
    dashboard.subscribe(collected, from_start=True)
    assert eventually(lambda: [point.step for point in collected.points] == [2**63 - 1])


def test_a_closed_client_says_so_at_once(served: Served, tmp_path: Path) -> None:
    """Asking or subscribing after close is an error that says what to do, without waiting for an answer."""
    dashboard = served.watch(served.serve(make_run(tmp_path, "r")))
    dashboard.close()
    began_s = time.monotonic()
    with pytest.raises(RemoteError, match="closed"):
        dashboard.frame()
    with pytest.raises(RemoteError, match="closed: make another one"):
        dashboard.subscribe(print)
    assert time.monotonic() - began_s < 5


def test_a_server_that_ends_a_subscription_without_a_word_is_told() -> None:
    """A foreign server's empty stream is an error of its own, at once."""

    class Silent(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types
        def service(self, _details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_stream_rpc_method_handler(lambda _request, _context: iter(()), None, None)

    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=(Silent(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with RemoteDashboard(f"127.0.0.1:{port}") as dashboard, pytest.raises(RemoteError, match="without a word"):
        dashboard.subscribe(print)
    server.stop(None)
