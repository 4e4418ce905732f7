"""Lines that no reader would take, made shorter before they are written: a value of 100 MB must not cost its trace."""

from __future__ import annotations

from typing import Any

import msgspec

from runspan._plain import CUT
from runspan.tracefile._limits import MAX_VALUES, bounded
from runspan.tracefile._parts import MAX_LINE_BYTES
from runspan.tracefile.events import Dropped, encode

__all__ = ["MAY_NOT_FIT_BYTES", "fitting"]

#: Data up to this size fits, however many values it holds.
MAY_NOT_FIT_BYTES = MAX_VALUES
#: What is kept of each text, in characters, and of each list and map that is a user's.
_KEPT_CHARACTERS, _KEPT_ITEMS = 1 << 16, 1_000
_USER_FIELDS = ("attributes", "value")
#: What an event can be without.
_OPTIONAL_FIELDS = ("attributes", "events", "links")


def fitting(data: bytes) -> bytes:
    """Return lines as readers take them: of at most 64 MiB and a million values.

    In one that is larger, texts and a user's lists and maps are cut, with ``…`` at their end; where that does not do,
    attributes, events and links are left out. What then is still too large is lost, and a ``dropped`` line says so.

    Args:
        data: whole lines, encoded by :func:`runspan.tracefile.events.encode`.
    """
    return b"".join(line if _fits(line) else _shorten(line) for line in data.splitlines(keepends=True))


def _fits(line: bytes) -> bool:
    return len(line) <= MAX_LINE_BYTES and bounded(line) is line


def _shorten(line: bytes) -> bytes:
    fields = _cut(msgspec.json.decode(line), is_users=False)
    for shorter in (fields, _without_optional(fields)):
        line = msgspec.json.encode(shorter) + b"\n"
        if _fits(line):
            return line
    return encode(Dropped("file", "too_long", 1))


def _without_optional(fields: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in fields.items() if name not in _OPTIONAL_FIELDS}
    return {**kept, "value": CUT} if fields["kind"] == "param" else kept


def _cut(value: Any, *, is_users: bool) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _KEPT_CHARACTERS else value[:_KEPT_CHARACTERS] + CUT
    if isinstance(value, list):
        items = [_cut(item, is_users=is_users) for item in (value[:_KEPT_ITEMS] if is_users else value)]
        return [*items, CUT] if len(items) < len(value) else items
    if isinstance(value, dict):
        names = list(value)[:_KEPT_ITEMS] if is_users else list(value)
        items_by_name = {
            _cut(name, is_users=is_users): _cut(value[name], is_users=is_users or name in _USER_FIELDS)
            for name in names
        }
        return {**items_by_name, CUT: CUT} if len(names) < len(value) else items_by_name
    return value
