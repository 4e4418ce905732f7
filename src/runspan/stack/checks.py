"""Whether the whole stack does its part: each service, and a span and a metric through all of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runspan.stack import files
from runspan.stack.endpoint import SIGNALS, examine_endpoint, is_taken, send_once
from runspan.stack.findings import Check, CheckState, ProblemError
from runspan.stack.probe import Probe
from runspan.stack.services import Grafana, Jaeger, Prometheus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from runspan._endpoints import OtlpEndpoint
    from runspan.stack.endpoint import Request

__all__ = ["StackAddress", "check_stack"]

#: From the collector's acceptance to both stores takes about a second.
_ARRIVAL_S = 15.0
_POLL_S = 0.2
_SEND_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StackAddress:
    """Where a stack's services are.

    Attributes:
        collector: where runs send to, by ``traces`` and ``metrics``; a signal that is not exported is missing.
        jaeger: base URL of Jaeger's query service.
        prometheus: base URL.
        grafana: base URL.
    """

    collector: Mapping[str, OtlpEndpoint]
    jaeger: str
    prometheus: str
    grafana: str


def check_stack(address: StackAddress, *, arrival_s: float = _ARRIVAL_S) -> Iterator[Check]:
    """Look at every service, then send a span and a metric through the collector, and read them back.

    A check that finds a problem does not stop the others. What the probes leave behind is one trace a check, and one
    series a host.

    Args:
        address: where the services are.
        arrival_s: how long the probes may take to arrive, s.

    Raises:
        ConfigError: the stack's files, which say what must be there, are missing.
    """
    jaeger = Jaeger(address.jaeger)
    prometheus = Prometheus(address.prometheus, files.rule_groups())
    grafana = Grafana(address.grafana, files.dashboard_uids())
    try:
        usable = set()
        for signal in SIGNALS:
            check = _collector_check(address, signal)
            yield check
            usable |= {signal} if check.state is CheckState.OK else set()
        for service in (jaeger, prometheus, grafana):
            for check in service.checks():
                yield check
                usable |= {check.name} if check.state is CheckState.OK else set()
        yield from _probe(address, jaeger, prometheus, usable, arrival_s)
    finally:
        for service in (jaeger, prometheus, grafana):
            service.close()


def _collector_check(address: StackAddress, signal: str) -> Check:
    name = f"collector {signal}"
    if signal not in address.collector:
        advice = "OTEL_SDK_DISABLED, OTEL_*_EXPORTER or RUNSPAN_TRACING_ENABLED"
        return Check(name, CheckState.NOTE, "not exported: settings turn it off", advice)
    return examine_endpoint(name, address.collector[signal], signal)


@dataclass(frozen=True, slots=True)
class _Leg:
    """A probe's way through the collector into one store."""

    name: str
    signal: str
    request: Request
    store: Jaeger | Prometheus
    has_arrived: Callable[[], bool]

    @property
    def advice(self) -> str:
        title = self.store.title
        return (
            f"the collector cannot reach {title}, or ships to another one than --{self.store.name} names:"
            " `docker compose logs collector` says more; the clocks of the hosts must agree too"
        )


def _probe(
    address: StackAddress, jaeger: Jaeger, prometheus: Prometheus, usable: set[str], arrival_s: float
) -> Iterator[Check]:
    probe = Probe.new()
    legs = (
        _Leg("probe span", "traces", probe.span_request(), jaeger, lambda: jaeger.has_trace(probe.trace_id.hex())),
        _Leg(
            "probe metric",
            "metrics",
            probe.metric_request(),
            prometheus,
            # Another check of this host may have moved the gauge on.
            lambda: (prometheus.newest(probe.selector, probe.time_s + 1) or 0.0) >= probe.time_s,
        ),
    )
    sent = []
    began_s = time.monotonic()
    for leg in legs:
        check = _send(address, leg, usable)
        if check is None:
            sent.append(leg)
        else:
            yield check
    yield from _read_back(sent, began_s, arrival_s)


def _send(address: StackAddress, leg: _Leg, usable: set[str]) -> Check | None:
    """Send a probe; return what is in the way of that, or None."""
    if leg.signal not in usable:
        return Check(leg.name, CheckState.NOTE, f"not sent: the collector takes no {leg.signal}")
    if leg.store.name not in usable:
        return Check(leg.name, CheckState.NOTE, f"not sent: {leg.store.title} could not tell whether it arrives")
    answer = send_once(address.collector[leg.signal], leg.signal, leg.request, _SEND_TIMEOUT_S)
    if is_taken(answer):
        return None
    found = f"the collector does not take it: {answer.detail or 'it rejected what it was sent'}"
    return Check(leg.name, CheckState.PROBLEM, found, "look at the collector's log")


def _read_back(legs: list[_Leg], began_s: float, arrival_s: float) -> Iterator[Check]:
    """Wait until probes are in their stores, at most ``arrival_s`` after ``began_s`` of the monotonic clock."""
    awaited = list(legs)
    while awaited:
        for leg in list(awaited):
            check = _arrival(leg, time.monotonic() - began_s, arrival_s)
            if check is not None:
                awaited.remove(leg)
                yield check
        if awaited:
            time.sleep(_POLL_S)


def _arrival(leg: _Leg, waited_s: float, arrival_s: float) -> Check | None:
    """Look once for a probe in its store; None while it may still arrive."""
    try:
        has_arrived = leg.has_arrived()
    except ProblemError as problem:
        return Check(leg.name, CheckState.PROBLEM, f"{leg.store.title}: {problem.found}", problem.advice)
    if has_arrived:
        return Check(leg.name, CheckState.OK, f"sent, and read back from {leg.store.title} after {waited_s:.1f} s")
    if waited_s > arrival_s:
        found = f"the collector took it, and {leg.store.title} does not have it after {arrival_s:g} s"
        return Check(leg.name, CheckState.PROBLEM, found, leg.advice)
    return None
