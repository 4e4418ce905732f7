"""Small clients that ask a real Jaeger and a real Prometheus what they have."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import requests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["JaegerClient", "JaegerSpan", "PrometheusClient", "Sample", "eventually"]

_TIMEOUT_S = 30
_NOT_FOUND = 404
_UNAVAILABLE = 503


def eventually(check: Callable[[], object], *, timeout_s: float = 30, period_s: float = 0.2) -> None:
    """Repeat a check, which asserts, until it passes.

    Raises:
        AssertionError: it still failed when the time was up; the last failure.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            check()
        except AssertionError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(period_s)
        else:
            return


@dataclass(frozen=True, slots=True)
class JaegerSpan:
    """A span as Jaeger tells it.

    Attributes:
        name: its name.
        trace_id: lower-case hex.
        span_id: lower-case hex.
        parent_span_id: lower-case hex; empty for a root.
        attributes: its attributes.
        resource: its Resource's attributes.
        start_unix_nano: when it started.
        end_unix_nano: when it ended.
        status: OTLP's code: 0 unset, 1 ok, 2 error.
        links: (trace id, span id) of each link.
    """

    name: str
    trace_id: str
    span_id: str
    parent_span_id: str
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    start_unix_nano: int
    end_unix_nano: int
    status: int
    links: tuple[tuple[str, str], ...]

    @property
    def is_pending(self) -> bool:
        """Whether it is a short span that shows an open one."""
        return self.attributes.get("runspan.pending") is True


class JaegerClient:
    """Asks Jaeger over HTTP.

    Args:
        url: the base URL of its query service.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def services(self) -> list[str]:
        """Return the names of the services that have spans."""
        answer = requests.get(f"{self.url}/api/v3/services", timeout=_TIMEOUT_S)
        answer.raise_for_status()
        return list(answer.json().get("services") or [])

    def trace(self, trace_id: str) -> list[JaegerSpan]:
        """Return all spans of a trace; none if Jaeger does not know it."""
        answer = requests.get(f"{self.url}/api/v3/traces/{trace_id}", timeout=_TIMEOUT_S)
        if answer.status_code == _NOT_FOUND:
            return []
        answer.raise_for_status()
        return [
            _span(span, _attributes(resource_spans["resource"].get("attributes", [])))
            for resource_spans in answer.json()["result"].get("resourceSpans", [])
            for scope_spans in resource_spans.get("scopeSpans", [])
            for span in scope_spans.get("spans", [])
        ]

    def find_trace_ids(self, service: str, tags: Mapping[str, str], *, lookback_s: float = 86_400) -> set[str]:
        """Return the ids of a service's traces that have a span, or a Resource, with all these tags."""
        now = time.time()
        parameters: dict[str, Any] = {
            "service": service,
            "tags": json.dumps(dict(tags)),
            "start": int((now - lookback_s) * 1e6),
            "end": int((now + 60) * 1e6),
            "limit": 100,
        }
        answer = requests.get(f"{self.url}/api/traces", params=parameters, timeout=_TIMEOUT_S)
        if answer.status_code == _NOT_FOUND:
            return set()
        answer.raise_for_status()
        return {trace["traceID"].rjust(32, "0") for trace in answer.json()["data"] or []}


def _span(span: Mapping[str, Any], resource: Mapping[str, Any]) -> JaegerSpan:
    return JaegerSpan(
        name=span["name"],
        trace_id=span["traceId"],
        span_id=span["spanId"],
        parent_span_id=span.get("parentSpanId", ""),
        attributes=_attributes(span.get("attributes", [])),
        resource=resource,
        start_unix_nano=int(span["startTimeUnixNano"]),
        end_unix_nano=int(span["endTimeUnixNano"]),
        status=int(span.get("status", {}).get("code", 0)),
        links=tuple((link["traceId"], link["spanId"]) for link in span.get("links", [])),
    )


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: _value(pair["value"]) for pair in pairs}


def _value(value: Mapping[str, Any]) -> Any:
    content: Any
    kind, content = next(iter(value.items()), ("stringValue", ""))
    if kind == "intValue":
        return int(content)
    if kind == "doubleValue":
        return float(content)
    if kind == "arrayValue":
        return [_value(each) for each in content.get("values", [])]
    return content


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of an answer.

    Attributes:
        labels: its labels, the name as ``__name__``.
        values: (Unix time in s, value) of each point; a native histogram's value is its JSON document.
    """

    labels: Mapping[str, str]
    values: tuple[tuple[float, Any], ...]

    @property
    def value(self) -> Any:
        """The newest value."""
        return self.values[-1][1]


class PrometheusClient:
    """Asks Prometheus over HTTP; an error it answers with is raised with its text.

    Args:
        url: its base URL.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str, *, time_s: float | None = None) -> list[Sample]:
        """Evaluate an expression at an instant, now if none is given."""
        parameters: dict[str, Any] = {"query": expression}
        if time_s is not None:
            parameters["time"] = time_s
        data = self._get("query", parameters)
        if data["resultType"] in ("scalar", "string"):
            return [Sample({}, (_point(data["result"]),))]
        return [_sample(series) for series in data["result"]]

    def query_range(self, expression: str, start_s: float, end_s: float, step_s: float = 1.0) -> list[Sample]:
        """Evaluate an expression over a time range."""
        parameters = {"query": expression, "start": start_s, "end": end_s, "step": step_s}
        return [_sample(series) for series in self._get("query_range", parameters)["result"]]

    def series(self, match: str, *, lookback_s: float = 3600) -> list[dict[str, str]]:
        """Return the labels of all series that match, ended ones too."""
        now = time.time()
        parameters = {"match[]": match, "start": now - lookback_s, "end": now + 60}
        return list(self._get("series", parameters))

    def exemplars(self, expression: str, *, lookback_s: float = 3600) -> list[dict[str, Any]]:
        """Return the exemplars of an expression's series: ``labels``, ``value``, ``timestamp``."""
        now = time.time()
        answer = self._get("query_exemplars", {"query": expression, "start": now - lookback_s, "end": now + 60})
        return [exemplar for series in answer for exemplar in series["exemplars"]]

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that are pending or firing."""
        return list(self._get("alerts", {})["alerts"])

    def rules(self) -> list[dict[str, Any]]:
        """Return the rule groups that are loaded."""
        return list(self._get("rules", {})["groups"])

    def _get(self, path: str, parameters: Mapping[str, Any]) -> Any:
        # POST takes expressions of any length, but not every path has it.
        answer = requests.get(f"{self.url}/api/v1/{path}", params=dict(parameters), timeout=_TIMEOUT_S)
        # While it starts it answers in plain words that it is not ready.
        assert answer.status_code != _UNAVAILABLE, f"Prometheus is not ready: {answer.text}"
        document = answer.json()
        if document["status"] != "success":
            raise ValueError(f"Prometheus refuses {path} {dict(parameters)}: {document.get('error')}")
        return document["data"]


def _sample(series: Mapping[str, Any]) -> Sample:
    if "metric" not in series:
        raise ValueError(f"not a series: {series}")
    points = [series[name] for name in ("value", "histogram") if name in series]
    points += [point for name in ("values", "histograms") for point in series.get(name, [])]
    return Sample(series["metric"], tuple(_point(point) for point in points))


def _point(point: list[Any]) -> tuple[float, Any]:
    at_s, value = point
    return float(at_s), float(value) if isinstance(value, str) else value
