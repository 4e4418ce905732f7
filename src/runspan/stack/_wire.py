"""What a port speaks, found out below any client library, whose errors do not tell."""

from __future__ import annotations

import re
import socket
import ssl
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Peer", "Speaks", "connection_problem", "identify", "shake_hands"]

_HTTP_1 = "http/1.1"
_HTTP_2 = "h2"
_BAD_REQUEST = re.compile(rb"HTTP/1\.\d 400 ")
#: The head of HTTP/2's first frame from a server: three bytes of length, then SETTINGS.
_SETTINGS_FRAME = re.compile(rb"\x00..\x04", re.DOTALL)
_ENOUGH_BYTES = 64


class Speaks(Enum):
    """What a server speaks, with or without TLS around it."""

    HTTP_1 = "HTTP/1.1"
    HTTP_2 = "HTTP/2"
    NOTHING = "nothing"
    OTHER = "another protocol"


@dataclass(frozen=True, slots=True)
class Peer:
    """What is at a port.

    Attributes:
        tls: whether it speaks TLS.
        speaks: what it answers an HTTP/1.1 request with.
    """

    tls: bool
    speaks: Speaks


def connection_problem(host: str, port: int, timeout_s: float) -> str | None:
    """Connect, and say why that is impossible; None when it is not."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except TimeoutError:
        return f"no connection within {timeout_s:g} s"
    except UnicodeError:
        return f"{host} cannot be the name of a host"
    except OSError as error:
        return error.strerror or type(error).__name__
    return None


def identify(host: str, port: int, timeout_s: float) -> Peer:
    """Return what is at a port that accepts connections; each of at most three attempts takes ``timeout_s`` at most."""
    try:
        said = _first_words(socket.create_connection((host, port), timeout=timeout_s), host)
    except TimeoutError:
        return Peer(tls=False, speaks=Speaks.NOTHING)
    except OSError:
        said = b""
    plain = Peer(tls=False, speaks=_protocol_of(said))
    # A TLS server closes the connection, sends an alert, or explains itself with a status 400.
    if plain.speaks is Speaks.HTTP_2 or (plain.speaks is Speaks.HTTP_1 and not _BAD_REQUEST.match(said)):
        return plain
    return _identify_within_tls(host, port, timeout_s) or plain


def shake_hands(
    host: str, port: int, context: ssl.SSLContext, protocols: Sequence[str], timeout_s: float
) -> str | None:
    """Shake hands for TLS, see whether the server then accepts this client, and return the protocol it has chosen.

    Args:
        host: the name that the certificate must have.
        port: its port.
        context: which authorities are trusted, and the client's own certificate.
        protocols: what is offered (ALPN).
        timeout_s: bound on each wait.

    Raises:
        ssl.SSLError: no TLS, a certificate that is not trusted, or an alert.
        OSError: no connection, or none that lasts.
    """
    context.set_alpn_protocols(list(protocols))
    with context.wrap_socket(
        socket.create_connection((host, port), timeout=timeout_s), server_hostname=host
    ) as connection:
        chosen = connection.selected_alpn_protocol()
        # From TLS 1.3 on a client learns with its first read that its certificate is missed or refused.
        try:
            _first_words(connection, host)
        except OSError as error:
            if _is_alert(error):
                raise
            # Whatever else became of a request is for the real one to tell.
    return chosen


def _identify_within_tls(host: str, port: int, timeout_s: float) -> Peer | None:
    """Return what a server speaks within TLS, whoever certifies it; None where it speaks no TLS."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    is_tls = False
    for offered in (_HTTP_1, _HTTP_2):
        context.set_alpn_protocols([offered])
        try:
            with context.wrap_socket(
                socket.create_connection((host, port), timeout=timeout_s), server_hostname=host
            ) as connection:
                is_tls = True
                if offered == _HTTP_2 == connection.selected_alpn_protocol():
                    return Peer(tls=True, speaks=Speaks.HTTP_2)
                if _protocol_of(_first_words(connection, host)) is Speaks.HTTP_1:
                    return Peer(tls=True, speaks=Speaks.HTTP_1)
        except OSError as error:
            is_tls = is_tls or _is_alert(error)
    return Peer(tls=True, speaks=Speaks.OTHER) if is_tls else None


def _first_words(connection: socket.socket, host: str) -> bytes:
    """Send an HTTP/1.1 request and return how the answer begins; empty when the server only closes."""
    name = f"[{host}]" if ":" in host else host
    with connection:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
        return connection.recv(_ENOUGH_BYTES)


def _is_alert(error: OSError) -> bool:
    return isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or "")


def _protocol_of(said: bytes) -> Speaks:
    if said.startswith(b"HTTP/1"):
        return Speaks.HTTP_1
    return Speaks.HTTP_2 if _SETTINGS_FRAME.match(said) else Speaks.OTHER
