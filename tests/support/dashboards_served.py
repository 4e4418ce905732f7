"""Dashboards served from the test's own process, and who watches them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import grpc

from runspan.rpc import RemoteDashboard, serve
from runspan.rpc._pb import dashboard_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from runspan.dashboard import Subscription
    from runspan.records import MetricPoint
    from runspan.rpc import DashboardServer, ServerProcess

__all__ = ["INTERVAL_S", "SLEEPY", "WAIT_S", "Collected", "Served", "call", "eventually"]

#: The servers' interval between two updates: the tests do not wait a second for each.
INTERVAL_S = 0.05
WAIT_S = 20.0
#: The options of a connection that takes little while nobody reads from it.
SLEEPY = (("grpc.http2.lookahead_bytes", 4096), ("grpc.http2.bdp_probe", 0))


class Collected:
    """A callback that keeps the points it gets."""

    def __init__(self) -> None:
        self.points: list[MetricPoint] = []

    def __call__(self, point: MetricPoint) -> None:
        """Take a point."""
        self.points.append(point)

    def steps(self, key: str = "loss") -> list[int]:
        """Return the steps of the points of a key, as they came."""
        return [point.step for point in self.points if point.key == key]


class Served:
    """Starts servers and clients, and ends those that are left open."""

    def __init__(self) -> None:
        self._open: list[DashboardServer | ServerProcess | RemoteDashboard | Subscription | grpc.Channel] = []

    def serve(self, target: Any, address: str = "127.0.0.1:0", **options: Any) -> DashboardServer | ServerProcess:
        """Serve something, with updates that come fast."""
        server = serve(target, address, **{"interval_s": INTERVAL_S, **options})
        self._open.append(server)
        return server

    def watch(self, server: DashboardServer | ServerProcess | str, **options: Any) -> RemoteDashboard:
        """Return a client of a server."""
        address = server if isinstance(server, str) else server.address
        dashboard = RemoteDashboard(address, **options)
        self._open.append(dashboard)
        return dashboard

    def channel(self, server: DashboardServer | ServerProcess, *options: tuple[str, int]) -> grpc.Channel:
        """Return a plain grpc channel to a server."""
        channel = grpc.insecure_channel(server.address, options=options)
        self._open.append(channel)
        return channel

    def close(self) -> None:
        """Close what is open, clients first."""
        for each in reversed(self._open):
            if hasattr(each, "address"):
                each.close(0.0)
            else:
                each.close()


def call(channel: grpc.Channel, name: str, request: Any, **options: Any) -> Any:
    """Call a method of the dashboard service as any grpc client does; a stream is returned as it is."""
    method = pb.DESCRIPTOR.services_by_name["DashboardService"].methods_by_name[name]
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    parse = getattr(pb, method.output_type.name).FromString
    path = f"/runspan.v1.DashboardService/{name}"
    return make(path, lambda message: message.SerializeToString(), parse)(request, **{"timeout": WAIT_S, **options})


def eventually(holds: Callable[[], bool], timeout_s: float = WAIT_S) -> bool:
    """Wait until something holds, and return whether it came to."""
    deadline_s = time.monotonic() + timeout_s
    pause = threading.Event()
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        pause.wait(0.005)
    return True
