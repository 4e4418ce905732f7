"""Where a dashboard is served, and how it is kept from those whom it is not for."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runspan.errors import ConfigError

if TYPE_CHECKING:
    import os

    import grpc

__all__ = ["DEFAULT_ADDRESS", "MAX_MESSAGE_BYTES", "Address", "ClientTls", "ServerTls", "checked_token"]

DEFAULT_ADDRESS = "127.0.0.1:7776"
#: The largest answer, and with a margin for it what a client takes.
MAX_MESSAGE_BYTES = 8 << 20
_MAX_PORT = 65535
_MIN_TOKEN_CHARACTERS = 16


class Address(msgspec.Struct, frozen=True):
    """A host and a port.

    Attributes:
        host: a name, or an IPv4 or IPv6 address.
        port: 1 to 65535; of a server also 0 for any free one.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, may_be_any_port: bool = False) -> Address:
        """Read ``HOST:PORT``, ``[IPv6]:PORT`` or ``:PORT``, which is on this machine.

        Raises:
            ConfigError: it is none of these.
        """
        host, colon, port = text.rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        bare = host[1:-1] if is_bracketed else host
        lowest = 0 if may_be_any_port else 1
        is_port = port.isascii() and port.isdecimal() and lowest <= int(port[:6]) <= _MAX_PORT
        if not colon or not is_port or (":" in bare and not is_bracketed) or any(mark in bare for mark in "/ @\0"):
            raise ConfigError(
                f"address {text!r} cannot be used: give HOST:PORT, such as {DEFAULT_ADDRESS} or [::1]:7776, with a port"
                f" from {lowest} to {_MAX_PORT}"
            )
        return cls(bare or "127.0.0.1", int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def is_loopback(self) -> bool:
        """Whether none but this machine reaches it.

        Raises:
            ConfigError: the name does not resolve.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"address {self} cannot be used: the name {self.host!r} does not resolve") from error
        return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


class ServerTls(msgspec.Struct, frozen=True):
    """The files of a server that speaks TLS, PEM.

    Attributes:
        certificate: its certificate, with the chain behind it.
        key: the certificate's private key.
        client_ca: the authorities of the clients' certificates; given, no client comes without one.
    """

    certificate: str | os.PathLike[str]
    key: str | os.PathLike[str]
    client_ca: str | os.PathLike[str] | None = None

    def paths(self) -> tuple[str, str, str | None]:
        """Return the paths as texts."""
        authorities = None if self.client_ca is None else str(self.client_ca)
        return str(self.certificate), str(self.key), authorities

    def credentials(self) -> grpc.ServerCredentials:
        """Return what grpc takes.

        Raises:
            ConfigError: a file cannot be read.
        """
        import grpc  # noqa: PLC0415 - heavy

        pair = (_read(self.key, "TLS key"), _read(self.certificate, "TLS certificate"))
        authorities = None if self.client_ca is None else _read(self.client_ca, "client authorities")
        return grpc.ssl_server_credentials([pair], authorities, require_client_auth=authorities is not None)


class ClientTls(msgspec.Struct, frozen=True):
    """The files of a client that speaks TLS, PEM.

    Attributes:
        ca: the authorities of the server's certificate; None: the system's.
        certificate: the client's own certificate, for a server that asks for one.
        key: that certificate's private key.
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Return what grpc takes.

        Raises:
            ConfigError: a file cannot be read, or a certificate comes without its key.
        """
        import grpc  # noqa: PLC0415 - heavy

        if (self.certificate is None) != (self.key is None):
            raise ConfigError("a client certificate and its key go together: give both or neither")
        ca = None if self.ca is None else _read(self.ca, "certificate authorities")
        key = None if self.key is None else _read(self.key, "client key")
        certificate = None if self.certificate is None else _read(self.certificate, "client certificate")
        return grpc.ssl_channel_credentials(ca, key, certificate)


def checked_token(token: str | None) -> str | None:
    """Return a token that both sides can use.

    Raises:
        ConfigError: it is short, or has characters that no header can have.
    """
    if token is None:
        return None
    if len(token) < _MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"the token cannot be used: it takes {_MIN_TOKEN_CHARACTERS} or more printable ASCII characters without"
            " spaces, such as `openssl rand -hex 32` prints"
        )
    return token


def _read(path: str | os.PathLike[str], what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read ({error.strerror}): give the path of a PEM file") from error
