"""What stands before every call: who may call, how many at once, how long, and what an error says on the wire."""

from __future__ import annotations

import heapq
import hmac
import logging
import threading
import time
from concurrent import futures
from contextlib import contextmanager
from itertools import count
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError

from runspan.errors import (
    ConfigError,
    InvalidStateError,
    RunNotFoundError,
    RunspanError,
    StorageError,
    TraceFormatError,
)
from runspan.rpc._feed import DrainingError, LostPositionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MAX_OTHER_CALLS", "DaemonExecutor", "Guard", "Reaper"]

_LOGGER = logging.getLogger("runspan")
_T = TypeVar("_T")

#: Calls other than subscriptions that may be served at once, and the watchers of the health among them.
MAX_OTHER_CALLS = 32
_MAX_WATCHERS = 8
#: How long a client may take to send its request, and how long any call but a stream of news may take.
_REQUEST_S = 10.0
_CALL_S = 30.0

#: So many come at once, and from then on so many a second.
_BURST_SUBSCRIBERS, _SUBSCRIBE_HZ = 16, 4.0
_BURST_CALLS, _CALLS_HZ = 200, 50.0

_HEALTH = "/grpc.health.v1.Health/"
_WATCH = f"{_HEALTH}Watch"

#: The most telling one first.
_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (RunNotFoundError, grpc.StatusCode.NOT_FOUND),
    (LostPositionError, grpc.StatusCode.OUT_OF_RANGE),
    (ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (InvalidStateError, grpc.StatusCode.FAILED_PRECONDITION),
    (TraceFormatError, grpc.StatusCode.DATA_LOSS),
    (StorageError, grpc.StatusCode.UNAVAILABLE),
    (DrainingError, grpc.StatusCode.UNAVAILABLE),
    (RunspanError, grpc.StatusCode.INTERNAL),
)


class DaemonExecutor(futures.Executor):
    """A thread pool that no interpreter waits for at its exit: a call that is served must not keep a training alive.

    Args:
        max_workers: how many threads there are at most; one is started when all others are busy.
    """

    def __init__(self, max_workers: int) -> None:
        self._max_workers = max_workers
        self._work: SimpleQueue[tuple[futures.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._workers = self._idle = 0

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> futures.Future[_T]:
        """Have a call done by a thread."""
        future: futures.Future[_T] = futures.Future()
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._workers < self._max_workers:
                self._workers += 1
                threading.Thread(target=self._run, name="runspan-rpc", daemon=True).start()
        self._work.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - waits for none
        """Let the threads end after their present work."""
        with self._lock:
            for _ in range(self._workers):
                self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, call = work
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - the future's owner is told
                future.set_exception(error)
            del work, future, call
            with self._lock:
                self._idle += 1


class Reaper:
    """Cancels calls whose time is up: a client that sends half a request would hold a thread for ever."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._numbers = count()
        self._due: list[tuple[float, int]] = []
        self._contexts: dict[int, grpc.ServicerContext] = {}
        self._is_closed = False
        threading.Thread(target=self._run, name="runspan-rpc-reaper", daemon=True).start()

    @contextmanager
    def limit(self, context: grpc.ServicerContext, seconds: float) -> Iterator[None]:
        """Cancel a call unless the block is left in time."""
        number = next(self._numbers)
        with self._condition:
            self._contexts[number] = context
            heapq.heappush(self._due, (time.monotonic() + seconds, number))
            if self._due[0][1] == number:
                self._condition.notify()
        try:
            yield
        finally:
            with self._condition:
                self._contexts.pop(number, None)

    def close(self) -> None:
        """End the thread."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()

    def _run(self) -> None:
        with self._condition:
            while not self._is_closed:
                while self._due and (self._due[0][1] not in self._contexts or self._due[0][0] <= time.monotonic()):
                    context = self._contexts.pop(heapq.heappop(self._due)[1], None)
                    if context is not None:
                        context.cancel()
                self._condition.wait(max(0.0, self._due[0][0] - time.monotonic()) if self._due else None)


class _Pace:
    """Lets calls through in a burst, and beyond it at a steady rate: a client in a loop waits, and costs nothing.

    Args:
        burst: how many calls may come at once.
        rate_hz: how many a second from then on.
    """

    def __init__(self, burst: int, rate_hz: float) -> None:
        self._ahead_s = burst / rate_hz
        self._each_s = 1 / rate_hz
        self._lock = threading.Lock()
        #: When all calls that were let through would have come at the steady rate.
        self._due_s = 0.0

    def delay_s(self) -> float | None:
        """Return how long a call waits for its turn; None when that is too long, and it gets none."""
        now_s = time.monotonic()
        with self._lock:
            due_s = max(self._due_s, now_s) + self._each_s
            delay_s = due_s - now_s - self._ahead_s
            if delay_s > _REQUEST_S:
                return None
            self._due_s = due_s
        return max(0.0, delay_s)


class Guard(grpc.ServerInterceptor):  # type: ignore[misc] # grpc has no types
    """Wraps every method of the server.

    Args:
        token: what callers must have, health checks aside; None: nothing.
        subscribe: the path of the method that subscribes.
        max_subscribers: how many calls of it may be open.
        reaper: cancels calls that take too long.
    """

    def __init__(self, token: str | None, subscribe: str, max_subscribers: int, reaper: Reaper) -> None:
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._subscribe = subscribe
        self._lock = threading.Lock()
        self._open: dict[str, int] = {}
        self._limits = {subscribe: max_subscribers, _WATCH: _MAX_WATCHERS}
        self._paces = {subscribe: _Pace(max_subscribers + _BURST_SUBSCRIBERS, _SUBSCRIBE_HZ)}
        self._pace = _Pace(_BURST_CALLS, _CALLS_HZ)
        self._reaper = reaper

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Return the wrapped handler of a call; it reads its request itself, so that this can be limited."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        is_allowed = self._is_allowed(method, handler_call_details.invocation_metadata)

        def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            self._take_turn(method, context)
            if not is_allowed:
                context.abort(
                    grpc.StatusCode.UNAUTHENTICATED,
                    "the token is missing or wrong: send `authorization: Bearer TOKEN` with the server's token",
                )
            kind = method if method in self._limits else ""
            with self._admitted(kind, context):
                yield from self._answers(handler, kind, requests, context)

        return grpc.stream_stream_rpc_method_handler(serve, None, handler.response_serializer)

    @property
    def subscriber_count(self) -> int:
        """How many subscriptions are open."""
        return self._open.get(self._subscribe, 0)

    def _is_allowed(self, method: str, metadata: Any) -> bool:
        if self._expected is None or method.startswith(_HEALTH):
            return True
        given = next((value for key, value in metadata or () if key == "authorization"), "")
        raw = given if isinstance(given, bytes) else given.encode("utf-8", "replace")
        return hmac.compare_digest(raw, self._expected)

    def _take_turn(self, method: str, context: grpc.ServicerContext) -> None:
        delay_s = self._paces.get(method, self._pace).delay_s()
        if delay_s is None:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls a second: come again later")
        elif delay_s > 0:
            has_left = threading.Event()
            context.add_callback(has_left.set)
            has_left.wait(delay_s)

    @contextmanager
    def _admitted(self, kind: str, context: grpc.ServicerContext) -> Iterator[None]:
        limit = self._limits.get(kind, MAX_OTHER_CALLS)
        with self._lock:
            is_full = self._open.get(kind, 0) >= limit
            if not is_full:
                self._open[kind] = self._open.get(kind, 0) + 1
        if is_full:
            what = "clients subscribe" if kind == self._subscribe else "calls are being served"
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{limit} {what}, which is the server's limit: come again later"
            )
        try:
            yield
        finally:
            with self._lock:
                self._open[kind] -= 1

    def _answers(
        self, handler: Any, kind: str, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[Any]:
        parsed = _parsed(requests, handler.request_deserializer, context)
        if handler.request_streaming:
            with self._reaper.limit(context, _CALL_S):
                yield from handler.stream_stream(parsed, context)
            return
        with self._reaper.limit(context, _REQUEST_S):
            request = next(parsed, None)
        if request is None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call came without a request")
        try:
            if handler.response_streaming:
                yield from handler.unary_stream(request, context)
            else:
                with self._reaper.limit(context, _CALL_S):
                    yield handler.unary_unary(request, context)
        except RunspanError as error:
            _abort(context, error)
        except (OSError, ValueError, LookupError, ArithmeticError, TypeError, AttributeError):
            _LOGGER.exception("a call of %s failed", kind or "the dashboard")
            context.abort(grpc.StatusCode.INTERNAL, "the server failed to answer: its log says why")


def _parsed(requests: Iterator[bytes], parse: Callable[[bytes], Any], context: grpc.ServicerContext) -> Iterator[Any]:
    for raw in requests:
        try:
            request = parse(raw)
        except (DecodeError, ValueError):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is no message of this method's type")
        yield request


def _abort(context: grpc.ServicerContext, error: RunspanError) -> NoReturn:
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    context.abort(code, " ".join(str(error).split()))
    raise AssertionError("abort raises") from error
