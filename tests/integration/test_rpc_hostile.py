"""Hostile clients: what they send costs them their connection, and the server nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runspan.records import RunStatus
from runspan.rpc import RemoteDashboard
from runspan.rpc._pb import dashboard_pb2 as pb
from support.cli import make_run
from support.dashboards_served import SLEEPY, WAIT_S, call, eventually
from support.serving import ServeProcess
from support.traces import make_meta, make_metric, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runspan.tracefile.events import TraceEvent

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
#: What a server may take more in hand than after its first clients.
_GROWTH_BYTES = 48 << 20
_CLIENTS_FAULT = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.OUT_OF_RANGE,
}
_METHODS = [f"/runspan.v1.DashboardService/{name}" for name in pb.DESCRIPTOR.services_by_name["DashboardService"].methods_by_name]  # fmt: skip  # noqa: E501


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """Return a server process of a run, which must be well at the end."""
    folder = tmp_path_factory.mktemp("hostile")
    with ServeProcess(folder, str(make_run(folder, "r"))) as server:
        yield server
        assert_well(server)


def assert_well(server: ServeProcess) -> None:
    """See that the server answers as ever."""
    with RemoteDashboard(server.address) as remote:
        assert remote.status() is RunStatus.SUCCESS
        assert len(remote.recent_metrics(10)["loss"]) == 3


def send(server: ServeProcess, data: bytes) -> None:
    """Send bytes on a connection of their own, and hang up when the server has said something, or soon."""
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        connection.settimeout(0.02)
        with contextlib.suppress(OSError):
            connection.sendall(data)
            connection.recv(65_536)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return an HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


frames = st.builds(frame, st.integers(0, 12), st.integers(0, 255), st.integers(0, 2**31 - 1), st.binary(max_size=200))


@given(st.one_of(st.binary(max_size=2_000), st.lists(frames, max_size=8).map(b"".join)), st.booleans())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_on_the_connection_is_survived(server: ServeProcess, data: bytes, is_http2: bool) -> None:
    """Random bytes and random HTTP/2 frames, with or without a proper beginning, end their connection alone."""
    send(server, (_PREFACE + _SETTINGS if is_http2 else b"") + data)
    assert server.process.poll() is None


@given(st.sampled_from(_METHODS), st.binary(max_size=500))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_instead_of_a_message_is_refused(server: ServeProcess, method: str, data: bytes) -> None:
    """Any bytes as a request are answered, or refused with a status that is the client's fault."""
    with grpc.insecure_channel(server.address) as channel:
        stream = channel.unary_stream(method)(data, timeout=WAIT_S)
        with contextlib.suppress(grpc.RpcError):
            for _ in stream:
                pass
        assert stream.code() in _CLIENTS_FAULT, stream.details()


@pytest.mark.parametrize("size", [2 << 20, 32 << 20])
def test_an_oversized_message_is_refused(server: ServeProcess, size: int) -> None:
    """A request beyond a megabyte is RESOURCE_EXHAUSTED, and is not kept."""
    before = server.memory_bytes
    with grpc.insecure_channel(server.address) as channel:
        for _ in range(5):
            with pytest.raises(grpc.RpcError) as raised:
                call(channel, "GetFrame", pb.GetFrameRequest(run_id="x" * size))
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert server.memory_bytes < before + _GROWTH_BYTES
    assert_well(server)


def test_half_open_calls_do_not_keep_others_out(server: ServeProcess) -> None:
    """Calls that never send their request are ended in time, and others are answered again."""
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait()
        yield b""

    with grpc.insecure_channel(server.address) as channel:
        calls: list[Any] = [channel.stream_stream(_METHODS[0])(nothing(), timeout=60) for _ in range(60)]
        codes = [_code_of(each) for each in calls]
        assert set(codes) <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED}
        never.set()
    assert_well(server)


def _code_of(stream: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError):
        list(stream)
    code: grpc.StatusCode = stream.code()
    return code


def test_hanging_connections_cost_no_memory_for_long(server: ServeProcess) -> None:
    """Connections that say nothing, or half a beginning, are let go; meanwhile others are served."""
    host, _, port = server.address.rpartition(":")
    before = server.memory_bytes
    with contextlib.ExitStack() as open_ones:
        for number in range(150):
            connection = open_ones.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_S))
            connection.sendall(_PREFACE[: number % len(_PREFACE)])
        assert_well(server)
    assert server.memory_bytes < before + _GROWTH_BYTES


def test_a_client_that_comes_and_goes_leaves_nothing(server: ServeProcess) -> None:
    """Subscriptions that are begun and dropped in a loop take no place and no memory, and wait for their turn."""
    for _ in range(10):
        _subscribe_and_leave(server)
    before = server.memory_bytes
    for _ in range(60):
        _subscribe_and_leave(server)
    assert server.memory_bytes < before + _GROWTH_BYTES
    assert_well(server)


def _subscribe_and_leave(server: ServeProcess) -> None:
    with grpc.insecure_channel(server.address, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        next(call(channel, "Subscribe", pb.SubscribeRequest(from_start=True)))


def test_sleeping_subscribers_cost_bounded_memory(tmp_path: Path) -> None:
    """32 subscribers that ask for a long history and never read it do not make the server hold it."""
    lines: list[TraceEvent] = [make_meta(), *(make_metric(step, key="k" * 200) for step in range(100_000))]
    write_lines(tmp_path / "run" / "rank-00000.jsonl", lines)
    with ServeProcess(tmp_path, str(tmp_path / "run")) as server, contextlib.ExitStack() as channels:
        before = server.memory_bytes
        streams: list[Any] = []
        for _ in range(32):
            options = (*SLEEPY, ("grpc.use_local_subchannel_pool", 1))
            channel = channels.enter_context(grpc.insecure_channel(server.address, options=options))
            streams.append(call(channel, "Subscribe", pb.SubscribeRequest(from_start=True), timeout=None))
            next(streams[-1])
        with RemoteDashboard(server.address) as remote:
            assert remote.frame().metrics[0].count == 100_000
        with pytest.raises(grpc.RpcError, match="32 clients subscribe"):
            next(call(grpc.insecure_channel(server.address), "Subscribe", pb.SubscribeRequest()))
        assert eventually(lambda: server.memory_bytes < before + 2 * _GROWTH_BYTES)
