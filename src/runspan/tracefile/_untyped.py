"""Values that have no type in the format (attributes, parameters): what a strict JSON writer takes, and back again."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

__all__ = ["INT_MAX", "INT_MIN", "float_name", "jsonable", "named_float", "scrub", "scrub_text", "unwrap"]

#: The integers that every reader of the format must keep exact.
INT_MIN, INT_MAX = -(2**63), 2**64 - 1
_FLOAT_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FLOAT_KEY = "$float"
_MAX_DEPTH = 64
#: A value of more parts than this is cut: lists that share their elements can unfold without end.
_MAX_ITEMS = 1_000_000
_CUT = "…"
_SURROGATES = re.compile("[\ud800-\udfff]")


def jsonable(value: Any) -> Any:
    """Turn a user's value into what a strict JSON writer takes, losing as little as it can; never raises.

    Integers beyond 64 bits become decimal strings (hexadecimal beyond the interpreter's limit on digits), non-finite
    floats ``{"$float": name}``, lone surrogates U+FFFD, numpy and tensor scalars Python numbers, arrays and sets lists,
    mappings dicts, bytes text, mapping keys strings; anything else its ``str()``. What contains itself, is nested
    deeper than 64 levels or has more than a million parts is cut there, with ``…`` in its place.
    """
    try:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return scrub_text(str.__str__(value))
        if isinstance(value, int):
            return int.__int__(value) if INT_MIN <= value <= INT_MAX else _big_int_text(value)
        if isinstance(value, float):
            plain = float.__float__(value)
            return plain if math.isfinite(plain) else {_FLOAT_KEY: float_name(plain)}
        return _Unfolding().convert(value)
    except Exception:  # noqa: BLE001 - even isinstance() can raise, for a proxy whose target is gone
        return _text_of(value)


class _Unfolding:
    """One conversion, which counts the parts it made and knows the containers that it is inside."""

    def __init__(self) -> None:
        self._items_left = _MAX_ITEMS
        self._inside: set[int] = set()

    def convert(self, value: Any) -> Any:
        self._items_left -= 1
        if value is None or isinstance(value, str | int | float):
            return jsonable(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value).decode("utf-8", "replace")
        identity = id(value)
        if identity in self._inside or len(self._inside) >= _MAX_DEPTH or self._items_left < 0:
            return _CUT
        self._inside.add(identity)
        try:
            return self._convert_object(value)
        except Exception:  # noqa: BLE001 - a foreign method may raise anything; its text is the fallback
            return _text_of(value)
        finally:
            self._inside.discard(identity)

    def _convert_object(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._convert_mapping(value)
        if isinstance(value, list | tuple | AbstractSet):
            converted = []
            for item in value:
                if self._items_left <= 0:
                    converted.append(_CUT)
                    break
                converted.append(self.convert(item))
            return converted
        for method in ("tolist", "item"):  # numpy and torch: exact Python numbers, or nested lists of them
            convert = getattr(value, method, None)
            if callable(convert) and not isinstance(value, type):
                return self.convert(convert())
        return _text_of(value)

    def _convert_mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        converted: dict[str, Any] = {}
        for key, item in value.items():
            if self._items_left <= 0:
                converted[_CUT] = _CUT
                break
            converted[_text_of(key)] = self.convert(item)
        # A user's map that looks like a wrapped float is wrapped once more, so that reading tells them apart.
        return {_FLOAT_KEY: converted} if converted.keys() == {_FLOAT_KEY} else converted


def unwrap(value: Any) -> Any:
    """Undo what :func:`jsonable` did to floats and to maps that look like its floats."""
    if isinstance(value, list):
        return [unwrap(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_FLOAT_KEY}:
        inner = value[_FLOAT_KEY]
        if not isinstance(inner, dict):
            return named_float(inner)
        return {key: unwrap(item) for key, item in inner.items()}
    return {key: unwrap(item) for key, item in value.items()}


def scrub(value: Any) -> Any:
    """Copy a tree of dicts, lists and strings, with U+FFFD for each lone surrogate."""
    if isinstance(value, str):
        return scrub_text(value)
    if isinstance(value, dict):
        return {scrub_text(key): scrub(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [scrub(item) for item in value]
    return value


def scrub_text(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate, which UTF-8 cannot hold."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def float_name(value: float) -> str:
    """Return how the format writes a non-finite float."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def named_float(value: Any) -> Any:
    """Return the float that the format writes as this string; any other value as it is."""
    return _FLOAT_NAMES.get(value, value) if isinstance(value, str) else value


def _big_int_text(value: int) -> str:
    try:
        return int.__str__(value)
    except ValueError:  # longer than sys.get_int_max_str_digits()
        return hex(value)


def _text_of(value: Any) -> str:
    try:
        if isinstance(value, str):
            return scrub_text(str.__str__(value))
        return _big_int_text(value) if type(value) is int else scrub_text(str(value))
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything
        return f"<unprintable {type(value).__name__}>"
