"""A dashboard that another process serves, on this machine or elsewhere."""

from __future__ import annotations

import logging
import random
import threading
from typing import TYPE_CHECKING, Any, Self

import grpc
from google.protobuf.message import DecodeError

from runspan.dashboard import Subscription
from runspan.errors import ConfigError, RemoteError, RunNotFoundError, RunspanError
from runspan.frames import INTERRUPTED
from runspan.records import MetricSnapshot, RunStatus
from runspan.rpc._address import MAX_MESSAGE_BYTES, Address, checked_token
from runspan.rpc._convert import to_frame, to_points, to_state, to_usage
from runspan.rpc._pb import dashboard_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runspan.frames import Frame
    from runspan.records import MetricPoint, ResourceSnapshot
    from runspan.rpc._address import ClientTls

__all__ = ["RemoteDashboard"]

_LOGGER = logging.getLogger("runspan")
_SERVICE = pb.DESCRIPTOR.services_by_name["DashboardService"]
_MAX_RANK = 2**32 - 1
_MAX_LIMIT = 2**32 - 1
_LONGEST_TIMEOUT_S = 86_400
#: Pauses between two attempts to come back: doubled each time, each up to half longer by chance.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
#: What a subscription does not get over by coming back.
_FATAL = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
#: Failures to connect that have nothing to do with TLS.
_PLAIN_FAILURES = ("refused", "resol", "unreachable", "No route")
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # A server that vanished without a word is noticed while a subscription is open.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.enable_http_proxy", 0),
)


class RemoteDashboard:
    """A :class:`runspan.DashboardSource` and :class:`runspan.frames.FrameSource` over gRPC.

    Nothing is connected before the first call. A call that fails says why; the next one connects again.

    Args:
        address: the server's ``HOST:PORT``.
        run_id: the run; empty: the server's only one, or the one that started last.
        rank: whose metrics and usage are shown.
        token: the server's token.
        tls: given, the server must speak TLS.
        timeout_s: bound on one call.

    Raises:
        ConfigError: an argument cannot be used.
    """

    def __init__(
        self,
        address: str,
        *,
        run_id: str = "",
        rank: int = 0,
        token: str | None = None,
        tls: ClientTls | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        if not 0 <= rank <= _MAX_RANK:
            raise ConfigError(f"rank={rank} cannot be used: ranks count from 0")
        if not 0 < timeout_s <= _LONGEST_TIMEOUT_S:
            raise ConfigError(
                f"timeout_s={timeout_s} cannot be used: it takes seconds above 0, at most {_LONGEST_TIMEOUT_S:,}"
            )
        self._address = str(Address.parse(address))
        self._tls_hint = (
            "it was asked in plain text: does it speak TLS?"
            if tls is None
            else "it was asked with TLS: does it speak it, and do the certificates fit?"
        )
        self._run_id = run_id
        self._rank = rank
        self._timeout_s = timeout_s
        token = checked_token(token)
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        # Written out, since grpc takes a host named `dns` or `unix` for a scheme of its own.
        where = f"dns:///{self._address}"
        if tls is None:
            self._channel = grpc.insecure_channel(where, options=_OPTIONS)
        else:
            self._channel = grpc.secure_channel(where, tls.credentials(), options=_OPTIONS)
        self._methods = {name: self._method(name) for name in _SERVICE.methods_by_name}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, and with it every subscription."""
        self._channel.close()

    def status(self) -> RunStatus:
        """Return the run's status over all ranks; one that was interrupted counts as running, as storage has it.

        Raises:
            RemoteError: the server cannot be reached, or refuses; as for all methods.
            RunNotFoundError: it does not have the run; likewise.
        """
        status = to_state(self._call("GetStatus", pb.GetStatusRequest(run_id=self._run_id)).state).status
        return RunStatus.RUNNING if status == INTERRUPTED else RunStatus(status)

    def recent_metrics(self, limit: int) -> dict[str, MetricSnapshot]:
        """Return the last ``limit`` points of each key of the rank, at most 1,000.

        Raises:
            ValueError: the limit is negative, or more than the server gives.
        """
        if not 0 <= limit <= _MAX_LIMIT:
            raise ConfigError(f"limit={limit} cannot be used: it takes a number from 0 to 1000")
        request = pb.GetRecentMetricsRequest(run_id=self._run_id, rank=self._rank, limit=limit)
        return {
            series.key: MetricSnapshot.from_points(
                series.key, [(point.time_unix_nano, point.value) for point in series.points]
            )
            for series in self._call("GetRecentMetrics", request).metrics
        }

    def resource_usage(self) -> ResourceSnapshot:
        """Return the newest resource sample of the rank."""
        request = pb.GetResourceUsageRequest(run_id=self._run_id, rank=self._rank)
        return to_usage(self._call("GetResourceUsage", request).usage)

    def frame(self) -> Frame:
        """Return how the run stands now."""
        return to_frame(self._call("GetFrame", pb.GetFrameRequest(run_id=self._run_id)).frame)

    def list_runs(self, limit: int = 100) -> list[Frame]:
        """Return where the newest runs stand: frames with identity, status and times alone.

        Raises:
            ConfigError: the limit is not from 1 to 1,000.
        """
        if not 0 <= limit <= _MAX_LIMIT:
            raise ConfigError(f"limit={limit} cannot be used: it takes a number from 1 to 1000")
        return [to_state(state) for state in self._call("ListRuns", pb.ListRunsRequest(limit=limit)).runs]

    def subscribe(
        self, callback: Callable[[MetricPoint], object], *, from_start: bool = False, all_ranks: bool = False
    ) -> Subscription:
        """Call ``callback`` with each point written from now on, in order, on a thread of its own.

        When the connection is lost it is made again, and the points from then on follow where the server still has
        them. ``Subscription.dropped`` counts what this client was too slow for, on either side. The subscription closes
        itself when the run has ended, and when the server refuses it for good; the log then says why.

        Args:
            callback: called with a point at a time.
            from_start: begin with the points that the run has already.
            all_ranks: the points of all ranks, instead of those of the rank.
        """
        if not callable(callback):
            raise ConfigError(f"callback={callback!r} cannot be used: it takes a function of a MetricPoint")
        request = pb.SubscribeRequest(
            run_id=self._run_id, rank=None if all_ranks else self._rank, from_start=from_start
        )
        subscription = _RemoteSubscription(callback, lambda: self._updates(request), request, self._explain)
        subscription.begin(self._timeout_s)
        return subscription

    def _updates(self, request: pb.SubscribeRequest) -> Any:
        return self._methods["Subscribe"](request, metadata=self._metadata)

    def _method(self, name: str) -> Any:
        method = _SERVICE.methods_by_name[name]
        make = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
        parse = getattr(pb, method.output_type.name).FromString
        return make(
            f"/{_SERVICE.full_name}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=parse,
        )

    def _call(self, name: str, request: Any) -> Any:
        try:
            return self._methods[name](request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._explain(error) from error
        except (ValueError, DecodeError) as error:
            raise RemoteError(f"cannot ask {self._address}: {error}") from error

    def _explain(self, error: grpc.RpcError) -> RunspanError:
        """Return the error that a status of the wire stands for, in one line."""
        code, said = error.code(), " ".join((error.details() or "").split())
        where = self._address
        match code:
            case grpc.StatusCode.NOT_FOUND:
                return RunNotFoundError(f"{where}: {said}")
            case grpc.StatusCode.INVALID_ARGUMENT:
                return ConfigError(f"{where}: {said}")
            case grpc.StatusCode.UNIMPLEMENTED:
                return RemoteError(f"{where} is a gRPC server, but shows no runspan dashboard")
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return RemoteError(f"{where} did not answer in {self._timeout_s:g} s")
            case grpc.StatusCode.UNAVAILABLE if "shutting down" not in said:
                hint = "" if any(sign in said for sign in _PLAIN_FAILURES) else f"; {self._tls_hint}"
                return RemoteError(f"cannot reach a dashboard at {where} ({said}){hint}")
        return RemoteError(f"{where} refuses ({code.name.lower()}): {said}")


class _RemoteSubscription(Subscription):
    """A subscription whose points come over a connection that may be lost and made again.

    Args:
        callback: called with a point at a time.
        call: begins the call.
        request: what it asks for; changed when the call is made again.
        explain: turns the error of a call into one of runspan's.
    """

    def __init__(
        self,
        callback: Callable[[MetricPoint], object],
        call: Callable[[], Any],
        request: pb.SubscribeRequest,
        explain: Callable[[grpc.RpcError], RunspanError],
    ) -> None:
        super().__init__(callback)
        self._begin_call = call
        self._request = request
        self._explain = explain
        self._call: Any = None
        self._began = threading.Event()
        self._refusal: RunspanError | None = None
        self._held: list[MetricPoint] = []
        self._held_dropped = 0

    def begin(self, timeout_s: float) -> None:
        """Subscribe, and return when the server has begun to send.

        Raises:
            RunspanError: it cannot be reached, or refuses.
        """
        threading.Thread(target=self._follow, name="runspan-remote", daemon=True).start()
        if not self._began.wait(timeout_s):
            self._refusal = RemoteError(f"no dashboard has answered a subscription in {timeout_s:g} s")
        if self._refusal is not None:
            self.close()
            raise self._refusal

    def close(self) -> None:
        """Drop what is waiting, and end the call."""
        super().close()
        call = self._call
        if call is not None:
            call.cancel()

    def _follow(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self.is_closed:
            try:
                for update in self._answers():
                    pause_s = _FIRST_PAUSE_S
                    self._take(update)
            except grpc.RpcError as error:
                if self.is_closed or self._is_over(error):
                    return
            except ValueError:  # the channel was closed
                self._refuse("this RemoteDashboard is closed: make another one")
                self.close()
                return
            else:
                self._refuse("the server has ended a subscription without a word")
                self._pending.put(None)  # the run has ended: closed behind the points that wait
                return
            if self.wait_closed(pause_s * random.uniform(1.0, 1.5)):  # noqa: S311 - no secret
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _answers(self) -> Iterator[pb.SubscribeResponse]:
        self._forget_held()
        self._call = self._begin_call()
        if self.is_closed:  # while the call began
            self._call.cancel()
        yield from self._call

    def _take(self, update: pb.SubscribeResponse) -> None:
        self._held += to_points(update.points)
        self._held_dropped += update.dropped
        if not update.resume_token:
            return  # goes on in the next message: should it not come, all of it comes again
        self.offer(self._held)
        self.lose(self._held_dropped)
        self._forget_held()
        self._request.resume_token = update.resume_token
        self._began.set()

    def _forget_held(self) -> None:
        self._held.clear()
        self._held_dropped = 0

    def _refuse(self, said: str) -> None:
        """Tell who waits for the beginning that it does not come; nothing after that."""
        if not self._began.is_set():
            self._refusal = RemoteError(said)
            self._began.set()

    def _is_over(self, error: grpc.RpcError) -> bool:
        """Whether coming back is no use; what can be told the caller is."""
        if not self._began.is_set():
            self._refusal = self._explain(error)
            self._began.set()
            return True
        if error.code() in _FATAL:
            _LOGGER.warning("a subscription has ended: %s", self._explain(error))
            self.close()
            return True
        if error.code() is grpc.StatusCode.OUT_OF_RANGE:
            _LOGGER.warning("a subscription goes on with a gap: %s", self._explain(error))
            self._request.resume_token = b""
            self._request.from_start = False
        return False
