"""Whether Jaeger, Prometheus and Grafana answer, are what they are taken for, and are set up as the files say."""

from __future__ import annotations

import ssl
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests

from runspan._env import hide_credentials
from runspan.stack._wire import Speaks, connection_problem, identify
from runspan.stack.endpoint import certificate_problem
from runspan.stack.findings import Check, CheckState, ProblemError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

__all__ = ["Grafana", "Jaeger", "Prometheus"]

_TIMEOUT_S = 3.0
_REFUSED = (401, 403)
_FAILED = 500
#: A host that cannot be one is a ValueError of the library's own.
_CLIENT_ERRORS = (requests.RequestException, ValueError)
_RECEIVER = "--web.enable-otlp-receiver"
_EXEMPLARS = "--enable-feature=exemplar-storage"


class _Service:
    """A service that answers in JSON over HTTP.

    Args:
        url: its base URL.
    """

    title = ""

    def __init__(self, url: str) -> None:
        self.shown = hide_credentials(url)
        self._url = url.rstrip("/")
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._is_tls = parts.scheme == "https"
        self._session = requests.Session()
        # What runs on this host is not asked for through a proxy.
        self._session.trust_env = not _is_loopback(self._host)

    @property
    def name(self) -> str:
        """The service's name in docker-compose.yml, and its check's."""
        return self.title.lower()

    def close(self) -> None:
        """Close its connections."""
        self._session.close()

    def _get(self, path: str, is_ours: Callable[[Any], bool], **parameters: str) -> Any:
        """Return a JSON document.

        Args:
            path: below the base URL.
            is_ours: whether a document is this service's.
            parameters: the query.

        Raises:
            ProblemError: no answer, or another program's.
        """
        try:
            answer = self._session.get(f"{self._url}{path}", params=parameters, timeout=_TIMEOUT_S)
        except _CLIENT_ERRORS as error:
            raise self._unreachable(error) from None
        status = answer.status_code
        if status in _REFUSED:
            advice = f"put them into the URL: --{self.name} {urlsplit(self._url).scheme}://user:password@host"
            raise ProblemError(f"asks for credentials: HTTP {status}", advice)
        if status >= _FAILED:
            raise ProblemError(f"answers HTTP {status} {answer.reason}", self._look)
        try:
            document = answer.json()
        except requests.JSONDecodeError:
            document = None
        if not answer.ok or document is None or not is_ours(document):
            server = answer.headers.get("Server")
            what = f"HTTP {status} at {path}" + ("" if server is None else f", server {server}")
            advice = (
                f"stop what uses port {self._port}, or publish {self.title} on another port and name it with"
                f" --{self.name}"
            )
            raise ProblemError(f"another program answers there, not {self.title}: {what}", advice)
        return document

    @property
    def _look(self) -> str:
        return f"`docker compose logs {self.name}` says more"

    def _unreachable(self, error: Exception) -> ProblemError:
        start = f"`docker compose up -d` starts the stack, and `docker compose ps {self.name}` shows what became of it"
        verification = _verification_error(error)
        if verification is not None:
            return ProblemError(certificate_problem(verification).found, f"check the name after --{self.name}")
        reason = connection_problem(self._host, self._port, _TIMEOUT_S)
        if reason is not None:
            return ProblemError(f"not reachable: {reason}", start)
        silence = f"accepts connections, and does not answer within {_TIMEOUT_S:g} s"
        if isinstance(error, requests.ReadTimeout):
            return ProblemError(silence, self._look)
        peer = identify(self._host, self._port, _TIMEOUT_S)
        if peer.speaks is Speaks.NOTHING:
            return ProblemError(silence, self._look)
        if peer.tls != self._is_tls:
            said, scheme = ("speaks TLS", "https") if peer.tls else ("speaks no TLS", "http")
            return ProblemError(said, f"write {scheme}:// after --{self.name}")
        found = f"another program answers there, not {self.title}: it speaks {peer.speaks.value}"
        return ProblemError(found, f"stop what uses port {self._port}, or name another with --{self.name}")

    def _ok(self, found: str, name: str | None = None) -> Check:
        return Check(name or self.name, CheckState.OK, found)

    def _problem(self, found: str, advice: str, name: str | None = None) -> Check:
        return Check(name or self.name, CheckState.PROBLEM, found, advice)


class Jaeger(_Service):
    """Jaeger's query service."""

    title = "Jaeger"

    def checks(self) -> Iterator[Check]:
        """Look whether it answers."""
        try:
            services = self._get("/api/v3/services", lambda found: isinstance(found, dict) and "services" in found)
        except ProblemError as problem:
            yield self._problem(f"{self.shown}: {problem.found}", problem.advice)
            return
        yield self._ok(f"{self.shown}: answers, services with traces: {len(services['services'] or ())}")

    def has_trace(self, trace_id: str) -> bool:
        """Whether it has a trace, by its id in hex.

        Raises:
            ProblemError: it does not answer.
        """
        try:
            answer = self._session.get(f"{self._url}/api/v3/traces/{trace_id}", timeout=_TIMEOUT_S)
        except _CLIENT_ERRORS as error:
            raise self._unreachable(error) from None
        return answer.ok and trace_id in answer.text


class Prometheus(_Service):
    """Prometheus, with its receiver, rules and exemplars.

    Args:
        url: its base URL.
        rule_groups: names of the rule groups that the stack's files have.
    """

    title = "Prometheus"

    def __init__(self, url: str, rule_groups: Collection[str]) -> None:
        super().__init__(url)
        self._rule_groups = rule_groups

    def checks(self) -> Iterator[Check]:
        """Look whether it answers, takes OTLP, keeps exemplars, and has the rules."""
        try:
            version = self._query("status/buildinfo").get("version") or "unknown"
            yield self._ok(f"{self.shown}: answers, version {version}")
            yield from self._flags()
            yield self._rules()
        except ProblemError as problem:
            yield self._problem(f"{self.shown}: {problem.found}", problem.advice)

    def newest(self, selector: str, at_s: float) -> float | None:
        """Return the value that a series has at a Unix time; None where there is no such series.

        Raises:
            ProblemError: it does not answer.
        """
        result = self._query("query", query=selector, time=f"{at_s:.3f}")["result"]
        return float(result[0]["value"][1]) if result else None

    def _query(self, path: str, **parameters: str) -> Any:
        document = self._get(
            f"/api/v1/{path}",
            lambda found: isinstance(found, dict) and found.get("status") == "success" and "data" in found,
            **parameters,
        )
        return document["data"]

    def _flags(self) -> Iterator[Check]:
        try:
            flags = self._query("status/flags")
        except ProblemError as problem:
            advice = (
                "a store that only speaks Prometheus's language must be told in its own way to take OTLP and exemplars"
            )
            yield Check("prometheus flags", CheckState.NOTE, f"not told: {problem.found}", advice)
            return
        yield self._flag_check("otlp receiver", flags.get("web.enable-otlp-receiver") == "true", _RECEIVER)
        features = str(flags.get("enable-feature", "")).split(",")
        yield self._flag_check("exemplars", "exemplar-storage" in features, _EXEMPLARS)

    def _flag_check(self, name: str, is_on: bool, option: str) -> Check:
        if is_on:
            return self._ok("on", name)
        return self._problem("off", f"start Prometheus with {option}, as docker-compose.yml does", name)

    def _rules(self) -> Check:
        groups = self._query("rules")["groups"]
        missing = sorted(set(self._rule_groups) - {group["name"] for group in groups})
        if missing:
            advice = "copy collector-config/prometheus/rules/ to where its rule_files point, and reload it"
            return self._problem(f"not loaded: {', '.join(missing)}", advice, "rules")
        broken = [rule for group in groups for rule in group["rules"] if rule.get("health") == "err"]
        if broken:
            found = "; ".join(f"{rule['name']}: {rule.get('lastError', 'fails')}" for rule in broken)
            return self._problem(found, self._look, "rules")
        return self._ok(f"{sum(len(group['rules']) for group in groups)} in {len(groups)} groups", "rules")


class Grafana(_Service):
    """Grafana, with its dashboards.

    Args:
        url: its base URL.
        dashboards: uids of the dashboards that the stack's files have.
    """

    title = "Grafana"

    def __init__(self, url: str, dashboards: Collection[str]) -> None:
        super().__init__(url)
        self._dashboards = dashboards

    def checks(self) -> Iterator[Check]:
        """Look whether it answers, and has the dashboards."""
        try:
            health = self._get("/api/health", lambda found: isinstance(found, dict) and "database" in found)
        except ProblemError as problem:
            yield self._problem(f"{self.shown}: {problem.found}", problem.advice)
            return
        if health["database"] != "ok":
            yield self._problem(f"{self.shown}: its database is {health['database']}", self._look)
            return
        yield self._ok(f"{self.shown}: answers, version {health.get('version', 'unknown')}")
        yield self._dashboards_check()

    def _dashboards_check(self) -> Check:
        name = "dashboards"
        try:
            found = self._get("/api/search", lambda found: isinstance(found, list), type="dash-db", limit="5000")
        except ProblemError as problem:
            return Check(name, CheckState.NOTE, f"not looked at: Grafana {problem.found}", problem.advice)
        missing = sorted(set(self._dashboards) - {each.get("uid") for each in found})
        if missing:
            advice = f"mount collector-config/grafana/ as docker-compose.yml does; {self._look}"
            return self._problem(f"not provisioned: {', '.join(missing)}", advice, name)
        return self._ok(f"{len(self._dashboards)} provisioned", name)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _verification_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Return the refusal of a certificate that an error of the client library came of."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error
