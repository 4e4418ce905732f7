"""The dashboard over gRPC: a server that shows runs, and a client that watches them from elsewhere.

``serve(run, storage or run directory)`` and ``RemoteDashboard("host:port")``; the messages are in
``proto/runspan/v1/dashboard.proto``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runspan.errors import MissingExtraError
from runspan.rpc._address import DEFAULT_ADDRESS, ClientTls, ServerTls

if TYPE_CHECKING:
    from runspan.rpc._process import ServerProcess
    from runspan.rpc.client import RemoteDashboard
    from runspan.rpc.server import DashboardServer, serve

__all__ = ["DEFAULT_ADDRESS", "ClientTls", "DashboardServer", "RemoteDashboard", "ServerProcess", "ServerTls", "serve"]

#: What loads grpc and protobuf, by the module that has it.
_LAZY = {
    "DashboardServer": "runspan.rpc.server",
    "RemoteDashboard": "runspan.rpc.client",
    "ServerProcess": "runspan.rpc._process",
    "serve": "runspan.rpc.server",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    try:
        return getattr(import_module(module), name)
    except ImportError as error:  # protobuf is missing, or older than the compiler that wrote the messages
        raise MissingExtraError("the dashboard over gRPC", "rpc") from error


def __dir__() -> list[str]:
    return sorted(__all__)
