"""Values that have no type in the format (attributes, parameters): what a strict JSON writer takes, and back again."""

from __future__ import annotations

import math
import reprlib
from typing import Any

from runspan._plain import INT_MAX, INT_MIN, float_name, int_text, plain_value, scrub_text

__all__ = ["jsonable", "named_float", "quoted", "scrub", "shortened", "unwrap"]

_FLOAT_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FLOAT_KEY = "$float"
_repr = reprlib.Repr()
_repr.maxstring = 100
_MAX_ERROR_CHARS = 200


def jsonable(value: Any) -> Any:
    """Turn a user's value into what a strict JSON writer takes, losing as little as it can; never raises.

    It is :func:`runspan._plain.plain_value`'s, with integers beyond 64 bits as decimal strings (hexadecimal beyond the
    interpreter's limit on digits), non-finite floats as ``{"$float": name}``, and U+FFFD for each lone surrogate.
    """
    return _escaped(plain_value(value))


def _escaped(plain: Any) -> Any:
    if isinstance(plain, str):
        return scrub_text(plain)
    if isinstance(plain, int):  # bools too, which stay as they are
        return plain if INT_MIN <= plain <= INT_MAX else int_text(plain)
    if isinstance(plain, float):
        return plain if math.isfinite(plain) else {_FLOAT_KEY: float_name(plain)}
    if isinstance(plain, list):
        return [_escaped(item) for item in plain]
    if plain is None:
        return None
    escaped = {scrub_text(key): _escaped(item) for key, item in plain.items()}
    # A user's map that looks like a wrapped float is wrapped once more, so that reading tells them apart.
    return {_FLOAT_KEY: escaped} if escaped.keys() == {_FLOAT_KEY} else escaped


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


def named_float(value: Any) -> Any:
    """Return the float that the format writes as this string; any other value as it is."""
    return _FLOAT_NAMES.get(value, value) if isinstance(value, str) else value


def quoted(text: str) -> str:
    """Return a text of a file in quotes for a message, shortened in its middle when it is long."""
    return _repr.repr(text)


def shortened(error: Exception) -> str:
    """Return what a decoder's error says, shortened when it quotes a long value of the file."""
    text = str(error)
    return text if len(text) <= _MAX_ERROR_CHARS else f"{text[: _MAX_ERROR_CHARS - 80]}…{text[-80:]}"
