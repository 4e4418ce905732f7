"""The methods of the dashboard service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import msgspec

from runspan.directory_frames import KEPT_POINTS
from runspan.errors import ConfigError
from runspan.records import Trend
from runspan.rpc._address import MAX_MESSAGE_BYTES
from runspan.rpc._convert import (
    from_frame,
    from_state,
    from_status,
    from_trend,
    from_usage,
    to_series_points,
)
from runspan.rpc._feed import DrainingError, LostPositionError, Subscriber, Taken, encoded, pause_s
from runspan.rpc._pb import dashboard_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from runspan.rpc._feed import Cursor, PointFeed
    from runspan.rpc._sources import Runs, ServedRun

__all__ = ["MAX_LISTED_RUNS", "SERVICE", "SUBSCRIBE", "Servicer"]

SERVICE = pb.DESCRIPTOR.services_by_name["DashboardService"].full_name
SUBSCRIBE = f"/{SERVICE}/Subscribe"
MAX_LISTED_RUNS = 1_000
_DEFAULT_LISTED_RUNS = 100
_MAX_RUN_ID_CHARACTERS = 4_096
#: An update is cut into messages of about so many bytes.
_PAGE_BYTES = 1 << 20
#: What a point takes beside its key, at most.
_POINT_BYTES = 56
#: Left for what is not measured.
_MARGIN_BYTES = 1 << 20


class _Token(msgspec.Struct, frozen=True):
    """What a resume token holds; opaque to clients.

    Attributes:
        run_id: whose positions these are.
        cursor: how far each source of the run was read.
    """

    run_id: str
    cursor: dict[str, Any]


_token_decoder = msgspec.json.Decoder(_Token)


class Servicer:
    """Answers the calls of the dashboard service.

    Args:
        runs: the runs that it shows.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._is_draining = False

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a grpc server takes."""
        methods: dict[str, grpc.RpcMethodHandler] = {}
        behaviors: dict[str, tuple[Callable[[Any], Any], type[Any]]] = {
            "GetStatus": (self.get_status, pb.GetStatusRequest),
            "GetRecentMetrics": (self.get_recent_metrics, pb.GetRecentMetricsRequest),
            "GetResourceUsage": (self.get_resource_usage, pb.GetResourceUsageRequest),
            "ListRuns": (self.list_runs, pb.ListRunsRequest),
            "GetFrame": (self.get_frame, pb.GetFrameRequest),
        }
        for name, (behavior, request) in behaviors.items():
            methods[name] = grpc.unary_unary_rpc_method_handler(
                lambda request, _context, behavior=behavior: behavior(request),
                request_deserializer=request.FromString,
                response_serializer=_serialize,
            )
        # Its answers are bytes already: what is the same for all subscribers is written once.
        methods["Subscribe"] = grpc.unary_stream_rpc_method_handler(
            self.subscribe, request_deserializer=pb.SubscribeRequest.FromString, response_serializer=None
        )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def drain(self) -> None:
        """Take no more subscribers, and let those that there are go after what was written until now."""
        self._is_draining = True
        self._runs.close()

    def get_status(self, request: pb.GetStatusRequest) -> pb.GetStatusResponse:
        """Return where a run stands."""
        return pb.GetStatusResponse(state=from_state(self._open(request.run_id).frame()))

    def get_recent_metrics(self, request: pb.GetRecentMetricsRequest) -> pb.GetRecentMetricsResponse:
        """Return the newest points of each metric of a rank."""
        if request.limit > KEPT_POINTS:
            raise ConfigError(f"limit={request.limit} cannot be used: it takes a number from 0 to {KEPT_POINTS}")
        found = self._open(request.run_id).recent_points(request.limit, request.rank)
        response, size = pb.GetRecentMetricsResponse(), 0
        for key, points in found.items():
            trend = from_trend(Trend.of([point.value for point in points]))
            series = pb.MetricSeries(key=key, points=to_series_points(points), trend=trend)
            size += series.ByteSize() + _POINT_BYTES
            if size > MAX_MESSAGE_BYTES - _MARGIN_BYTES:
                response.metrics_left_out = len(found) - len(response.metrics)
                break
            response.metrics.append(series)
        return response

    def get_resource_usage(self, request: pb.GetResourceUsageRequest) -> pb.GetResourceUsageResponse:
        """Return the newest resource sample of a rank."""
        return pb.GetResourceUsageResponse(usage=from_usage(self._open(request.run_id).usage(request.rank)))

    def list_runs(self, request: pb.ListRunsRequest) -> pb.ListRunsResponse:
        """Return where the newest runs stand."""
        limit = request.limit if request.HasField("limit") else _DEFAULT_LISTED_RUNS
        if not 1 <= limit <= MAX_LISTED_RUNS:
            raise ConfigError(f"limit={limit} cannot be used: it takes a number from 1 to {MAX_LISTED_RUNS}")
        states, left_out = self._runs.states(limit)
        return pb.ListRunsResponse(runs=map(from_state, states), runs_left_out=left_out)

    def get_frame(self, request: pb.GetFrameRequest) -> pb.GetFrameResponse:
        """Return a frame; metrics whose names would make it too large are left out."""
        frame = from_frame(self._open(request.run_id).frame())
        while frame.ByteSize() > MAX_MESSAGE_BYTES - _MARGIN_BYTES and frame.metrics:
            kept = len(frame.metrics) // 2
            frame.metrics_left_out += len(frame.metrics) - kept
            del frame.metrics[kept:]
        return pb.GetFrameResponse(frame=frame)

    def subscribe(self, request: pb.SubscribeRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yield updates until the run has ended, the client leaves or the server shuts down."""
        run = self._open(request.run_id)
        run_id = run.run_id
        subscriber = Subscriber(request.rank if request.HasField("rank") else None)
        context.add_callback(subscriber.leave)
        try:
            has_ended = yield from self._updates(run.feed, run_id, subscriber, _cursor(request, run_id))
        finally:
            run.feed.remove(subscriber)
        if not has_ended and run.feed.is_closed:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down: subscribe again later")

    def _updates(
        self, feed: PointFeed, run_id: str, subscriber: Subscriber, cursor: Cursor | None
    ) -> Generator[bytes, None, bool]:
        """Yield updates until the run has ended, which is returned, or nobody is there for more."""
        for points in feed.follow(subscriber, cursor=cursor):
            if points:
                cursor = dict(subscriber.cursor)
                yield from _update(run_id, Taken(encoded(points), 0, cursor, feed.status, is_last=False))
        status = ""
        while True:
            began_s = time.monotonic()
            has_ended = subscriber.ended.is_set()
            taken = feed.take(subscriber)
            if taken.pages or taken.dropped or taken.status != status:
                yield from _update(run_id, taken)
                status = taken.status
            if taken.is_last or has_ended:
                return taken.is_last
            subscriber.wait(pause_s(feed.interval_s, began_s))

    def _open(self, run_id: str) -> ServedRun:
        if self._is_draining:
            raise DrainingError("the server is shutting down: come again later")
        if len(run_id) > _MAX_RUN_ID_CHARACTERS:
            raise ConfigError(f"a run id of {len(run_id)} characters cannot be used")
        return self._runs.open(run_id)


def _cursor(request: pb.SubscribeRequest, run_id: str) -> Cursor | None:
    """Return where a subscription begins; None: at the present.

    Raises:
        LostPositionError: the token is none of this run's.
    """
    if not request.resume_token:
        return {} if request.from_start else None
    try:
        token = _token_decoder.decode(request.resume_token)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError("the resume token is none that this service has made: subscribe without one") from error
    if token.run_id != run_id:
        raise LostPositionError(f"the resume token is of run {token.run_id[:200]!r}, and this is run {run_id[:200]!r}")
    return token.cursor


def _update(run_id: str, taken: Taken) -> Iterator[bytes]:
    """Yield an update as messages of about a page, the last of which says where to go on.

    A message's bytes may be put together from those of several: repeated fields add up.
    """
    first = pb.SubscribeResponse(dropped=taken.dropped, status=from_status(taken.status)).SerializeToString()
    last = pb.SubscribeResponse(resume_token=msgspec.json.encode(_Token(run_id, taken.cursor))).SerializeToString()
    parts, size = [first], 0
    for page in taken.pages:
        if size and size + len(page) > _PAGE_BYTES:
            yield b"".join(parts)
            parts, size = [pb.SubscribeResponse(status=from_status(taken.status)).SerializeToString()], 0
        parts.append(page)
        size += len(page)
    yield b"".join((*parts, last))


def _serialize(message: Any) -> bytes:
    serialized: bytes = message.SerializeToString()
    return serialized
