"""Typed reading of an injected environment.

Nothing here looks at ``os.environ``: a caller hands in a mapping. A blank variable is one that is not set. A value that
cannot be read is a :class:`~runspan.errors.ConfigError` naming variable, value and what it takes; a secret's value is
never part of it.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from runspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "PROTOCOLS",
    "PROTOCOL_NAMES",
    "EnvReader",
    "check_endpoint",
    "hide_credentials",
    "means_none",
    "parse_protocol",
    "require",
    "show_value",
]

T = TypeVar("T")

#: The OTLP transports, by every spelling that is accepted.
PROTOCOLS = {"grpc": "grpc", "http/protobuf": "http/protobuf", "http": "http/protobuf"}
_FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_SIZE = re.compile(r"(?P<number>\d{1,18}(?:\.\d{1,18})?) ?(?P<unit>[A-Za-z]*)")
_SIZE_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_NONE_WORDS = frozenset({"none", "off"})
PROTOCOL_NAMES = "grpc or http/protobuf"
_MAX_PORT = 65_535
#: Characters of a value that an error shows.
_SHOWN_CHARACTERS = 200
#: More of a value is not looked through for credentials.
_SEARCHED_CHARACTERS = 10_000


class EnvReader:
    """Reads typed values out of a mapping of environment variables.

    Every method returns None for a variable that is not set or blank, and raises ConfigError for one it cannot read.

    Args:
        environ: the variables; read at each call, never changed.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, name: str) -> str | None:
        """Return the value without surrounding white space."""
        return self._environ.get(name, "").strip() or None

    def flag(self, name: str) -> bool | None:
        """Return a boolean: true, 1, yes, on or false, 0, no, off, in any case."""
        return self.choice(name, _FLAGS, takes="true or false")

    def integer(self, name: str, *, minimum: int = 0) -> int | None:
        """Return a whole number that is at least ``minimum``."""
        takes = f"a whole number from {minimum} up"
        text = self.text(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            raise _unreadable(name, text, takes) from None
        if value < minimum:
            raise _unreadable(name, text, takes)
        return value

    def number(self, name: str, *, minimum: float = 0.0, maximum: float = math.inf) -> float | None:
        """Return a finite number between ``minimum`` and ``maximum``, both included."""
        takes = f"a finite number from {minimum:g} " + ("up" if math.isinf(maximum) else f"to {maximum:g}")
        text = self.text(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            raise _unreadable(name, text, takes) from None
        if not math.isfinite(value) or not minimum <= value <= maximum:
            raise _unreadable(name, text, takes)
        return value

    def size(self, name: str, *, minimum: int = 0) -> int | None:
        """Return a number of bytes from ``minimum`` up, plain or with a unit: ``1048576``, ``64 KiB``, ``1.5GB``."""
        takes = f"a number of bytes from {minimum} up, such as 1048576, 64KiB, 256MiB or 1GB"
        text = self.text(name)
        if text is None:
            return None
        match = _SIZE.fullmatch(text)
        unit = None if match is None else _SIZE_UNITS.get(match["unit"].lower())
        if match is None or unit is None:
            raise _unreadable(name, text, takes)
        value = int(match["number"]) * unit if match["number"].isdigit() else int(float(match["number"]) * unit)
        if value < minimum:
            raise _unreadable(name, text, takes)
        return value

    def words(self, name: str) -> tuple[str, ...] | None:
        """Return the parts of a comma-separated list, blank ones left out."""
        text = self.text(name)
        return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())

    def pairs(self, name: str, *, secret: bool = False) -> dict[str, str] | None:
        """Return a list ``key=value,key=value`` as a dict, both sides percent-decoded as OpenTelemetry says.

        Args:
            name: the variable.
            secret: whether an error message must hide the value.
        """
        text = self.text(name)
        if text is None:
            return None
        pairs = {}
        for item in text.split(","):
            key, equals, value = item.partition("=")
            try:
                key = unquote(key.strip(), errors="strict")
                value = unquote(value.strip(), errors="strict")
            except UnicodeDecodeError:
                key = ""
            if not item.strip():
                continue
            if not key or not equals:
                raise _unreadable(name, text, "a list key=value,key=value with percent-encoded values", secret=secret)
            pairs[key] = value
        return pairs

    def choice(self, name: str, values: Mapping[str, T], *, takes: str | None = None) -> T | None:
        """Return what the mapping holds for the lower-cased value.

        Args:
            name: the variable.
            values: by lower-case spelling.
            takes: what an error says the variable takes; None: the spellings.
        """
        text = self.text(name)
        if text is None:
            return None
        try:
            return values[text.lower()]
        except KeyError:
            raise _unreadable(name, text, takes or f"one of {', '.join(values)}") from None


def _unreadable(name: str, value: object, takes: str, *, secret: bool = False) -> ConfigError:
    shown = "'***'" if secret else show_value(value)
    return ConfigError(f"{name}={shown} cannot be used: {name} takes {takes}")


def show_value(value: object) -> str:
    """Return a value's repr for an error: its first 200 characters, no credentials of URLs; whatever the repr raises.

    Args:
        value: anything.
    """
    if type(value) is str:
        return repr(_shorten(hide_credentials(value) if "://" in value else value))
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a foreign object's; what is wrong with the value has to be said all the same
        return f"<{type(value).__name__} object>"
    return _shorten(re.sub(r"://\S*@", "://***@", text[:_SEARCHED_CHARACTERS]))


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def means_none(text: str) -> bool:
    """Whether the text stands for no storage, or no trace file, where a path or URL could stand: none, off."""
    return text.lower() in _NONE_WORDS


def check_endpoint(name: str, endpoint: str) -> str:
    """Return an OTLP endpoint if it is one: ``http(s)://host[:port][/path]``, or ``host:port`` (gRPC only).

    Args:
        name: the variable or field it comes from, for the error.
        endpoint: the endpoint; credentials in it are hidden in an error.

    Raises:
        ConfigError: another scheme, no host, an impossible port or white space.
    """
    parseable = endpoint if "://" in endpoint else f"//{endpoint}"
    try:
        parts = urlsplit(parseable)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    else:
        if parts.scheme in {"", "http", "https"} and host and port != 0 and not re.search(r"\s", endpoint):
            return endpoint
    raise _unreadable(
        name, hide_credentials(endpoint), f"an endpoint such as http://localhost:4318, with a port of 1 to {_MAX_PORT}"
    )


def hide_credentials(endpoint: str) -> str:
    """Return an endpoint, valid or not, without user name, password and query, to be shown."""
    return re.sub(r"^([a-zA-Z][\w+.-]*://|//)?.*@", r"\1***@", endpoint.partition("?")[0])


def parse_protocol(name: str, protocol: str) -> str:
    """Return ``grpc`` or ``http/protobuf`` for any accepted spelling.

    Args:
        name: the variable or field it comes from, for the error.
        protocol: the spelling.

    Raises:
        ConfigError: another protocol.
    """
    try:
        return PROTOCOLS[protocol.lower()]
    except (KeyError, AttributeError):
        raise _unreadable(name, protocol, PROTOCOL_NAMES) from None


def require(condition: bool, name: str, value: object, takes: str) -> None:
    """Refuse a value unless a condition holds.

    Raises:
        ConfigError: it does not; the message names the value and says what it takes.
    """
    if not condition:
        raise ConfigError(f"{name}={show_value(value)} cannot be used: it takes {takes}")
