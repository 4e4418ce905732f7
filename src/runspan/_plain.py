"""A user's value as plain Python: the one conversion that trace file, export and storage start from."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

__all__ = ["CUT", "INT_MAX", "INT_MIN", "float_name", "int_text", "plain_value", "scrub_text", "single_item", "text_of"]

#: The integers that every reader of what runspan writes must keep exact.
INT_MIN, INT_MAX = -(2**63), 2**64 - 1
#: Stands in place of what is nested too deeply, contains itself, or goes on for too long.
CUT = "…"
_MAX_DEPTH = 64
#: Longer integers than this (about 1,200 digits) become text: Python itself refuses to print them without end.
_MAX_INT_BITS = 4_096
_SURROGATES = re.compile("[\ud800-\udfff]")
#: A value of more parts than this is cut: lists that share their elements can unfold without end.
_MAX_ITEMS = 1_000_000


def plain_value(value: Any) -> Any:
    """Reduce a value to None, bool, int, float, str, list and dict of exactly these types; never raises.

    numpy and tensor scalars and one-element arrays become Python numbers, longer arrays and sets lists, dataclasses
    and mappings dicts with string keys, bytes text, anything else its ``str()``. What contains itself, is nested
    deeper than 64 levels or has more than a million parts is cut there, with ``…`` in its place.
    """
    try:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int.__int__(value) if value.bit_length() <= _MAX_INT_BITS else int_text(value)
        if isinstance(value, float):
            return float.__float__(value)
        return _Unfolding().convert(value)
    except Exception:  # noqa: BLE001 - even isinstance() can raise, for a proxy whose target is gone
        return text_of(value)


def single_item(value: Any) -> Any:
    """Return the only element of another library's scalar or array; None when it is none, or has more than one."""
    try:
        item = getattr(value, "item", None)
        if not callable(item) or isinstance(value, dict | type):
            return None
        count = value.numel() if callable(getattr(value, "numel", None)) else getattr(value, "size", None)
        return item() if count == 1 else None
    except Exception:  # noqa: BLE001 - a foreign object's methods may raise anything
        return None


def int_text(value: int) -> str:
    """Return an integer's decimal digits, hexadecimal ones beyond the interpreter's limit."""
    try:
        return int.__str__(value)
    except ValueError:  # longer than sys.get_int_max_str_digits()
        return hex(value)


def float_name(value: float) -> str:
    """Return how everything that runspan writes spells a non-finite float, which JSON does not have."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def scrub_text(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate, which neither UTF-8 nor a database can hold."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def text_of(value: Any) -> str:
    """Return ``str(value)`` of anything; never raises."""
    try:
        if isinstance(value, str):
            return str.__str__(value)
        return int_text(value) if type(value) is int else str(value)
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything
        return f"<unprintable {type(value).__name__}>"


class _Unfolding:
    """One conversion, which counts the parts it made and knows the containers that it is inside."""

    def __init__(self) -> None:
        self._items_left = _MAX_ITEMS
        self._inside: set[int] = set()

    def convert(self, value: Any) -> Any:
        self._items_left -= 1
        if value is None or isinstance(value, str | int | float):
            return plain_value(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value).decode("utf-8", "replace")
        identity = id(value)
        if identity in self._inside or len(self._inside) >= _MAX_DEPTH or self._items_left < 0:
            return CUT
        self._inside.add(identity)
        try:
            return self._convert_object(value)
        except Exception:  # noqa: BLE001 - a foreign method may raise anything; its text is the fallback
            return text_of(value)
        finally:
            self._inside.discard(identity)

    def _convert_object(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._convert_mapping(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._convert_mapping(
                {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            )
        if isinstance(value, list | tuple | AbstractSet):
            converted = []
            for item in value:
                if self._items_left <= 0:
                    converted.append(CUT)
                    break
                converted.append(self.convert(item))
            return converted
        item = single_item(value)
        if item is not None:
            return self.convert(item)
        tolist = getattr(value, "tolist", None)
        if callable(tolist) and not isinstance(value, type):
            return self.convert(tolist())
        return text_of(value)

    def _convert_mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        converted: dict[str, Any] = {}
        for key, item in value.items():
            if self._items_left <= 0:
                converted[CUT] = CUT
                break
            converted[text_of(key)] = self.convert(item)
        return converted
