"""How values look in what other programs read."""

from __future__ import annotations

import math
from typing import Any

from runspan._plain import float_name, plain_value, scrub_text

__all__ = ["readable"]

#: Readers that have doubles alone (browsers) keep integers up to here.
_MAX_EXACT = 2**53


def readable(value: Any) -> Any:
    """Return an attribute's value, or a map of them by name, as strict JSON that no reader rounds.

    Non-finite floats are their names, integers beyond 2^53 their digits, lone surrogates U+FFFD.
    """
    if isinstance(value, dict):
        return {scrub_text(key): _readable_item(item) for key, item in value.items()}
    return _readable_item(value)


def _readable_item(value: Any) -> Any:
    # Most attributes are one text or number; what is nested is cut where it is too deep for recursion.
    return _named(value if isinstance(value, str | int | float) else plain_value(value))


def _named(value: Any) -> Any:
    if isinstance(value, str):
        return scrub_text(value)
    if isinstance(value, dict):
        return {scrub_text(key): _named(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_named(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return float_name(value)
    if isinstance(value, int) and abs(value) > _MAX_EXACT:
        return str(value)
    return value
