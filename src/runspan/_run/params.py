"""Parameters as people hold them: a mapping, a Namespace or a dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from runspan._plain import plain_value, text_of

__all__ = ["params_of"]


def params_of(source: Any) -> dict[str, Any]:
    """Return a mapping's items, a dataclass's fields or an object's attributes as parameters of plain Python values.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(source, Mapping):
        items: Mapping[Any, Any] = source
    elif dataclasses.is_dataclass(source) and not isinstance(source, type):
        items = _fields_of(source)
    elif hasattr(source, "__dict__") and not isinstance(source, type):
        items = vars(source)
    else:
        raise TypeError(f"parameters must be a mapping, a Namespace or a dataclass, got {type(source).__name__}")
    return {text_of(key): plain_value(value) for key, value in items.items()}


def _fields_of(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
