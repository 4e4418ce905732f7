"""Whether an OTLP endpoint takes what a run would send; in words what is wrong, and what to do."""

from __future__ import annotations

import ssl
import urllib.request
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from requests.utils import DEFAULT_CA_BUNDLE_PATH

from runspan._env import hide_credentials
from runspan.errors import ConfigError
from runspan.redaction import MASK, Redactor
from runspan.stack._wire import Speaks, connection_problem, identify, shake_hands
from runspan.stack.findings import Check, CheckState, ProblemError
from runspan.telemetry._senders import Answer, Verdict, open_sender

if TYPE_CHECKING:
    from runspan._endpoints import OtlpEndpoint

__all__ = ["SIGNALS", "certificate_problem", "examine_endpoint", "is_taken", "send_once"]

Request = ExportTraceServiceRequest | ExportMetricsServiceRequest

#: What travels over OTLP, by the names that configuration gives it, and what an empty request is.
SIGNALS: dict[str, type[Request]] = {"traces": ExportTraceServiceRequest, "metrics": ExportMetricsServiceRequest}

_TIMEOUT_S = 3.0
_DEFAULT_PORTS = {"grpc": 4317, "http/protobuf": 4318}
_ALPN = {"grpc": ["h2"], "http/protobuf": ["http/1.1"]}
_SPOKEN = {"grpc": Speaks.HTTP_2, "http/protobuf": Speaks.HTTP_1}
_SHORTEST_SECRET = 4
_START = "start the collector or correct the endpoint; a run goes on without it, and its file is complete"
_OTHER_PROGRAM = "another program uses this port: stop it, or name another port, on which the collector listens"
_AUTHORITY = "set OTEL_EXPORTER_OTLP_CERTIFICATE to the PEM file of the authority that issued it"
#: By what OpenSSL calls them: X509_V_ERR_CERT_HAS_EXPIRED, _HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH.
_EXPIRED = 10
_OTHER_NAME = (62, 64)


def examine_endpoint(name: str, target: OtlpEndpoint, signal: str) -> Check:
    """Send an empty request as a run would send a full one, which changes nothing there; at most about 15 s.

    Args:
        name: the check's.
        target: the endpoint.
        signal: ``traces`` or ``metrics``.
    """
    shown = f"{hide_credentials(target.url)} ({target.protocol}{'' if target.insecure else ', TLS'})"
    try:
        _try(target, signal)
    except ProblemError as problem:
        found = f"{shown}: {_without_secrets(problem.found, target)}"
        return Check(name, CheckState.PROBLEM, found, problem.advice)
    return Check(name, CheckState.OK, f"{shown}: takes {signal}")


def send_once(target: OtlpEndpoint, signal: str, request: Request, timeout_s: float) -> Answer:
    """Send one request over a connection of its own; the answer's detail is free of credentials.

    Raises:
        ConfigError: a certificate or key cannot be read, or a header cannot be sent.
    """
    sender = open_sender(target, signal)
    try:
        answer = sender.send(request, timeout_s)
    finally:
        sender.abort()
    return replace(answer, detail=_without_secrets(answer.detail, target))


def is_taken(answer: Answer) -> bool:
    """Whether a receiver of OTLP accepted all of a request; a web server's "OK" page is none."""
    return answer.verdict is Verdict.ACCEPTED and not answer.code and not answer.rejected


def certificate_problem(error: ssl.SSLCertVerificationError) -> ProblemError:
    """Return what is wrong with a server's certificate, and what to do."""
    found = f"its certificate is not accepted: {error.verify_message.rstrip('.')}"
    if error.verify_code == _EXPIRED:
        return ProblemError(found, "renew the certificate; if it is valid, this machine's clock is wrong")
    if error.verify_code in _OTHER_NAME:
        return ProblemError(
            found, "write the endpoint with a name that the certificate has, or issue one for this name"
        )
    return ProblemError(found, _AUTHORITY)


def _try(target: OtlpEndpoint, signal: str) -> None:
    """Try the endpoint from the connection up, because errors tell the less the higher they come from.

    Raises:
        ProblemError: it does not take what a run would send.
    """
    host, port = _address(target)
    proxied = _is_proxied(target, host)
    if not proxied:
        reason = connection_problem(host, port, _TIMEOUT_S)
        if reason is not None:
            raise ProblemError(f"not reachable: {reason}", _port_hint(target, port) or _START)
        if not target.insecure:
            _try_tls(target, host, port)
    try:
        answer = send_once(target, signal, SIGNALS[signal](), _TIMEOUT_S)
    except ConfigError as error:
        raise ProblemError(f"cannot be used: {error}", "correct the file or header that it names") from None
    if is_taken(answer):
        return
    _raise_what_it_says(answer, target, signal)
    if proxied:
        advice = f"requests go through a proxy: set NO_PROXY={host} where the collector is reached directly"
        raise ProblemError(answer.detail, advice)
    _raise_what_it_is(answer, target, signal, host, port)


def _raise_what_it_says(answer: Answer, target: OtlpEndpoint, signal: str) -> None:
    """Take the receiver's word for what is wrong; does nothing where there is no word of a receiver's.

    Raises:
        ProblemError: what it says.
    """
    match answer.code:
        case "401" | "UNAUTHENTICATED" | "403" | "PERMISSION_DENIED":
            rejected = f"rejects the credentials in {', '.join(sorted(target.headers))}"
            found = rejected if target.headers else "asks for credentials, and no headers are set"
            advice = "set OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20<its token>"
        case "UNIMPLEMENTED":
            found = f"speaks gRPC, and takes no {signal}"
            advice = (
                f"give the collector's pipeline of {signal} the receiver otlp; if it is no collector, {_OTHER_PROGRAM}"
            )
        case "200" | "404" | "405" | "415" | "501":
            found = f"a web server that takes no {signal}"
            advice = f"a collector takes them at /v1/{signal}, and this path is {urlsplit(target.url).path}; if that is"
            advice += f" right, {_OTHER_PROGRAM}"
        case "429" | "503" | "RESOURCE_EXHAUSTED":
            found = "refuses for now"
            advice = "look at the collector's log: memory limit, full queue, or still starting"
        case "502" | "504":
            found, advice = "a proxy answers for a collector that does not", _START
        # 400 is what many servers with TLS answer a request without.
        case code if code.isdecimal() and code != "400":
            found, advice = "refuses", f"look at the collector's log; if it is no collector, {_OTHER_PROGRAM}"
        case _:
            return
    raise ProblemError(f"{found}: {answer.detail}", advice)


def _raise_what_it_is(answer: Answer, target: OtlpEndpoint, signal: str, host: str, port: int) -> None:
    """Find out what is at a port that took the connection and gave no OTLP answer.

    Raises:
        ProblemError: always.
    """
    peer = identify(host, port, _TIMEOUT_S)
    if peer.speaks is Speaks.NOTHING:
        raise _silence()
    if peer.tls and target.insecure:
        raise ProblemError(
            "speaks TLS", f"write https:// in front of the endpoint; for a private authority {_AUTHORITY}"
        )
    other = _other_protocol(target.protocol)
    if peer.speaks is _SPOKEN[other]:
        if _takes(target, signal, other):
            found = f"takes {signal} over {other}, and not over {target.protocol}"
            advice = f"set OTEL_EXPORTER_OTLP_PROTOCOL={other}, or use the port for {target.protocol}, usually"
            advice += f" {_DEFAULT_PORTS[target.protocol]}"
            raise ProblemError(found, advice)
        found = f"speaks {peer.speaks.value}, and {target.protocol} needs {_SPOKEN[target.protocol].value}"
        raise ProblemError(found, _port_hint(target, port) or _OTHER_PROGRAM)
    if peer.speaks is Speaks.OTHER:
        raise ProblemError("speaks neither gRPC nor HTTP", _OTHER_PROGRAM)
    raise ProblemError(answer.detail, f"look at the collector's log; if it is no collector, {_OTHER_PROGRAM}")


def _takes(target: OtlpEndpoint, signal: str, protocol: str) -> bool:
    """Whether the same address takes the signal over another protocol."""
    parts = urlsplit(target.url if "://" in target.url else f"//{target.url}")
    scheme = "http" if target.insecure else "https"
    path = "" if protocol == "grpc" else f"/v1/{signal}"
    sibling = replace(target, url=f"{scheme}://{parts.netloc}{path}", protocol=protocol)
    answer = send_once(sibling, signal, SIGNALS[signal](), _TIMEOUT_S)
    return is_taken(answer)


def _try_tls(target: OtlpEndpoint, host: str, port: int) -> None:
    """Make a TLS connection as a run would; gRPC tells less of what is wrong, and prints it on its own.

    Raises:
        ProblemError: there is none to be had.
    """
    try:
        context = ssl.create_default_context(cafile=target.certificate or DEFAULT_CA_BUNDLE_PATH)
        if target.client_certificate is not None:
            context.load_cert_chain(target.client_certificate, target.client_key)
    except OSError as error:
        given = filter(None, (target.certificate, target.client_certificate, target.client_key))
        found = f"a certificate or key cannot be used: {error.strerror or error}"
        raise ProblemError(found, f"these must be PEM files, the key without a password: {', '.join(given)}") from None
    try:
        chosen = shake_hands(host, port, context, _ALPN[target.protocol], _TIMEOUT_S)
    except ssl.SSLCertVerificationError as error:
        raise certificate_problem(error) from None
    except OSError as error:
        raise _handshake_problem(target, host, port, error) from None
    if target.protocol == "grpc" and chosen is None:
        raise ProblemError("speaks TLS, and not HTTP/2, which gRPC needs", _protocol_advice(target, port))


def _handshake_problem(target: OtlpEndpoint, host: str, port: int, error: OSError) -> ProblemError:
    reason = getattr(error, "reason", None) or ""
    if "NO_APPLICATION_PROTOCOL" in reason:
        return ProblemError(f"speaks TLS, and not {_SPOKEN[target.protocol].value}", _protocol_advice(target, port))
    if "ALERT" in reason:
        what = "refuses the client certificate" if target.client_certificate else "asks for a client certificate"
        advice = "set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and _CLIENT_KEY to PEM files of an identity that it accepts"
        return ProblemError(f"{what}: {reason.replace('_', ' ').lower()}", advice)
    peer = identify(host, port, _TIMEOUT_S)
    if peer.speaks is Speaks.NOTHING:
        return _silence()
    if not peer.tls:
        return ProblemError("speaks no TLS", "write http:// in front of the endpoint, or turn TLS on in the collector")
    found = f"no TLS connection: {error.strerror or reason or type(error).__name__}"
    return ProblemError(found, "look at the collector's log")


def _silence() -> ProblemError:
    found = f"accepts connections, and does not answer within {_TIMEOUT_S:g} s"
    return ProblemError(found, f"restart the collector, which hangs; if it is no collector, {_OTHER_PROGRAM}")


def _protocol_advice(target: OtlpEndpoint, port: int) -> str:
    other = _other_protocol(target.protocol)
    return (
        _port_hint(target, port) or f"set OTEL_EXPORTER_OTLP_PROTOCOL={other}; if it is no collector, {_OTHER_PROGRAM}"
    )


def _other_protocol(protocol: str) -> str:
    return next(other for other in _DEFAULT_PORTS if other != protocol)


def _address(target: OtlpEndpoint) -> tuple[str, int]:
    parts = urlsplit(target.url if "://" in target.url else f"//{target.url}")
    default = _DEFAULT_PORTS["grpc"] if target.protocol == "grpc" else 443 if parts.scheme == "https" else 80
    return parts.hostname or "", parts.port or default


def _port_hint(target: OtlpEndpoint, port: int) -> str | None:
    other = _other_protocol(target.protocol)
    if port != _DEFAULT_PORTS[other]:
        return None
    return (
        f"port {port} is usually {other}'s: set OTEL_EXPORTER_OTLP_PROTOCOL={other}, or use port"
        f" {_DEFAULT_PORTS[target.protocol]}"
    )


def _is_proxied(target: OtlpEndpoint, host: str) -> bool:
    """Whether the environment has requests go through a proxy, so that a connection from here tells nothing."""
    proxies = urllib.request.getproxies()
    names = ("grpc", "https", "http") if target.protocol == "grpc" else (urlsplit(target.url).scheme,)
    return any(name in proxies for name in (*names, "all")) and not urllib.request.proxy_bypass(host)


def _without_secrets(text: str, target: OtlpEndpoint) -> str:
    """Hide this endpoint's credentials, which a receiver may repeat, and others that show by their form."""
    parts = urlsplit(target.url if "://" in target.url else f"//{target.url}")
    secrets = {unquote(each) for each in (parts.username, parts.password) if each}
    for value in target.headers.values():
        secrets.update((value, *value.split()[-1:]))
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return Redactor().redact_text(text)
