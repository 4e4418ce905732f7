"""The JSON of gate files, byte for byte: what is read and written again is the same text.

The form: UTF-8 without escapes that are not needed, two spaces of indentation, a newline at the end. A float has the
fewest digits that read back as the same value: plain with ``.0`` for 1e-5 ≤ |x| < 1e16, else with an exponent ``e+N``
or ``e-N`` without padding. A number that was read keeps the text it had.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Self

from runspan.errors import GateError

__all__ = ["SourceFloat", "float_text", "parse", "render"]

#: How deep arrays and objects may be nested; a record needs a handful.
_MAX_DEPTH = 64
#: Far above every record, far below what would fill the memory.
MAX_BYTES = 16 * 2**20
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS = re.compile(rb"[][{}]")
_PLAIN_FROM, _PLAIN_BELOW = 1e-5, 1e16


class SourceFloat(float):
    """A float that was read from JSON, with the text that it had there."""

    __slots__ = ("text",)

    text: str

    def __new__(cls, text: str) -> Self:
        """Read a JSON number.

        Raises:
            ValueError: it is beyond the range of a float.
        """
        number = super().__new__(cls, text)
        if not math.isfinite(number):
            raise ValueError(f"the number {_shortened(text)} is beyond the range of a float")
        number.text = text
        return number


def float_text(value: float) -> str:
    """Return a finite float as JSON has it here; of one that was read, the text that it had.

    Raises:
        ValueError: it is not finite.
    """
    if isinstance(value, SourceFloat):
        return value.text
    if not math.isfinite(value):
        raise ValueError(f"JSON has no {value}")
    shortest = Decimal(repr(float(value)))
    if value == 0 or _PLAIN_FROM <= abs(value) < _PLAIN_BELOW:
        plain = f"{shortest:f}"
        return plain if "." in plain else f"{plain}.0"
    sign, digits, _ = shortest.normalize().as_tuple()
    first, *rest = map(str, digits)
    mantissa = f"{first}.{''.join(rest)}" if rest else first
    return f"{'-' if sign else ''}{mantissa}e{shortest.adjusted():+d}"


def parse(data: bytes) -> Any:
    """Read JSON strictly; floats become :class:`SourceFloat`.

    Raises:
        GateError: it is too large or nested too deeply, no UTF-8, no JSON, an object has a key twice, a number is not
            finite, or a string holds half a surrogate pair.
    """
    if len(data) > MAX_BYTES:
        raise GateError(f"{len(data)} bytes of JSON: expected at most {MAX_BYTES}")
    if (depth := _depth(data)) > _MAX_DEPTH:
        raise GateError(f"nested {depth} levels deep: expected at most {_MAX_DEPTH}")
    try:
        text = data.decode("utf-8")
        value = json.loads(
            text,
            parse_float=SourceFloat,
            parse_int=_integer,
            parse_constant=_refuse_constant,
            object_pairs_hook=_without_duplicates,
        )
        if "\\u" in text:
            render(value)  # half a surrogate pair, which only an escape can be, shows when it is written
    except ValueError as error:
        raise GateError(f"unreadable JSON: {error}") from error
    return value


def render(value: Any) -> bytes:
    """Write a value of None, bools, numbers, strings, sequences and mappings; a mapping's order is kept.

    Raises:
        ValueError: a float is not finite, or a string holds half a surrogate pair.
        TypeError: a value is of another type.
    """
    return (_rendered(value, "\n") + "\n").encode("utf-8")


def _rendered(value: Any, newline: str) -> str:
    inner = newline + "  "
    if value is None or isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, Mapping):
        items = [f"{json.dumps(key, ensure_ascii=False)}: {_rendered(item, inner)}" for key, item in value.items()]
        return _enclosed("{", items, "}", newline)
    if isinstance(value, list | tuple):
        return _enclosed("[", [_rendered(item, inner) for item in value], "]", newline)
    raise TypeError(f"no JSON for a {type(value).__name__}")


def _enclosed(opening: str, items: list[str], closing: str, newline: str) -> str:
    if not items:
        return opening + closing
    inner = newline + "  "
    return opening + inner + f",{inner}".join(items) + newline + closing


def _depth(data: bytes) -> int:
    """Count how deep the brackets outside strings are nested."""
    depth = deepest = 0
    for bracket in _BRACKETS.finditer(_STRING.sub(b"", data)):
        depth += 1 if bracket.group() in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _integer(text: str) -> int | SourceFloat:
    if text == "-0":  # an int would lose the sign
        return SourceFloat(text)
    try:
        return int(text)
    except ValueError as error:  # more digits than the interpreter converts
        raise ValueError(f"the number {_shortened(text)} has too many digits") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON: a number must be finite")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice in one object")
        found[key] = value
    return found


def _shortened(text: str) -> str:
    longest = 40
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"
