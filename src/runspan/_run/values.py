"""What a metric's value, step and key may be."""

from __future__ import annotations

import math
from typing import Any

from runspan._plain import INT_MAX, INT_MIN, single_item

__all__ = [
    "STEP_MAX",
    "InvalidValueError",
    "counter_amount",
    "describe",
    "is_array",
    "metric_key",
    "metric_step",
    "metric_value",
]

#: Steps, samples and tokens above this do not fit into a database.
STEP_MAX = 2**63 - 1


class InvalidValueError(ValueError):
    """A value, step or key that cannot be recorded; the message names it and says what is taken."""


def metric_value(value: Any) -> int | float:
    """Return a value as the float or exact int to record.

    Takes int, float, bool, and numpy or tensor scalars and one-element arrays; a bool becomes 1.0 or 0.0, an int beyond
    64 bits a float. The object itself is not kept.

    Raises:
        InvalidValueError: it is anything else.
    """
    # By the built-in types' own methods: those of a subclass may raise anything.
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int):
        return _fitting_int(int.__int__(value))
    item = single_item(value)
    if isinstance(item, bool | int | float):
        return metric_value(item)
    raise InvalidValueError(f"{describe(value)} is no metric value: use a number or a one-element array or tensor")


def counter_amount(value: Any) -> int | float:
    """Return what is to be added to a counter.

    Raises:
        InvalidValueError: it is no finite number from 0 up.
    """
    amount = metric_value(value)
    if not math.isfinite(amount) or amount < 0:
        raise InvalidValueError(f"{describe(value)} cannot be added to a counter: use a finite number from 0 up")
    return amount


def metric_step(step: Any) -> int:
    """Return a step as an int.

    Raises:
        InvalidValueError: it is no non-negative integer below 2^63 (numpy's and integral floats are, bools are not).
    """
    item = step if isinstance(step, int | float) else single_item(step)
    if type(item) is not bool:
        if isinstance(item, float) and float.is_integer(item):
            item = int(float.__float__(item))
        if isinstance(item, int) and 0 <= (number := int.__int__(item)) <= STEP_MAX:
            return number
    raise InvalidValueError(f"{describe(step)} is no step: use a non-negative integer")


def metric_key(key: Any) -> str:
    """Return a metric's key as it is.

    Raises:
        InvalidValueError: it is no string, or an empty one.
    """
    if isinstance(key, str) and (text := str.__str__(key)):
        return text
    raise InvalidValueError(f"{describe(key)} is no metric key: use a non-empty string")


def _fitting_int(value: int) -> int | float:
    if INT_MIN <= value <= INT_MAX:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def describe(value: Any) -> str:
    """Return a value as an error message shows it: its repr on part of a line, and its type."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a foreign __repr__ may raise anything
        text = "<unprintable>"
    shown = text if len(text) <= 80 else f"{text[:79]}…"  # noqa: PLR2004 - one line of a terminal
    return f"{shown} ({type(value).__name__})"


def is_array(value: Any) -> bool:
    """Whether a value is another library's array of more than one element."""
    try:
        return callable(getattr(value, "tolist", None)) and single_item(value) is None
    except Exception:  # noqa: BLE001 - a foreign object's attributes may raise anything
        return False
