"""What no line of a trace is: so a hostile file neither fills the memory nor brings numbers beyond every format."""

from __future__ import annotations

from typing import Any

import msgspec

from runspan._plain import INT_MAX, INT_MIN
from runspan.errors import TraceFormatError
from runspan.tracefile._kinds import Param

__all__ = ["MAX_VALUES", "RefusedLine", "bounded", "check_integers", "has_long_integer"]

#: Decoded, a value takes many times its bytes in the line. The writer cuts a user's value at a million parts.
MAX_VALUES = 1 << 20
#: An integer that does not fit into 64 bits has at least so many characters, its sign among them.
_LONG_INTEGER = b"0" * 20
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789-", b"0000000000")
_UNTYPED_FIELDS = ("attributes", "resource", "capture_contract", "fields")


class RefusedLine(bytes):
    """Stands for a line whose bytes were not kept; it is no JSON.

    Attributes:
        byte_count: how long the line is.
        reason: why it was refused.
        is_hole: whether all of it that is too long is NUL bytes: a record that a power loss has cut, and what a file
            system has put in place of those behind it.
    """

    byte_count: int
    reason: str
    is_hole: bool

    @classmethod
    def of(cls, byte_count: int, reason: str, *, is_hole: bool = False) -> RefusedLine:
        """Return the stand-in for a line of so many bytes."""
        line = cls(b"<refused>")
        line.byte_count, line.reason, line.is_hole = byte_count, reason, is_hole
        return line


def bounded(line: bytes) -> bytes:
    """Return the line, or its stand-in when it holds more values than any event."""
    if len(line) <= MAX_VALUES or _count_values(line) <= MAX_VALUES:
        return line
    return RefusedLine.of(len(line), f"a line of more than {MAX_VALUES} values")


def _count_values(line: bytes) -> int:
    """Count what begins a value: the commas and brackets outside of strings; beyond the limit it need not be exact."""
    if line.count(b",") + line.count(b"[") + line.count(b"{") <= MAX_VALUES:
        return 0
    text = line.replace(rb"\\", b"").replace(rb"\"", b"")
    count = position = 0
    while count <= MAX_VALUES:
        opening = text.find(b'"', position)
        end = len(text) if opening < 0 else opening
        count += sum(text.count(mark, position, end) for mark in (b",", b"[", b"{"))
        position = text.find(b'"', opening + 1) + 1
        if opening < 0 or not position:
            break
    return count


def has_long_integer(data: bytes) -> bool:
    """Whether an integer somewhere in these bytes may be beyond 64 bits; quick, and right about those that are."""
    return _LONG_INTEGER in data.translate(_DIGITS_AS_ZEROS)


def check_integers(record: msgspec.Struct) -> None:
    """Check that every integer of a record has 64 bits; in values without a type any integer is taken.

    Raises:
        TraceFormatError: one has more.
    """
    pending: list[Any] = [record]
    while pending:
        value = pending.pop()
        if isinstance(value, Param):
            continue
        if isinstance(value, msgspec.Struct):
            pending.extend(getattr(value, name) for name in value.__struct_fields__ if name not in _UNTYPED_FIELDS)
        elif isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
            raise TraceFormatError(f"an integer of {value.bit_length()} bits: the format's are within 64")
