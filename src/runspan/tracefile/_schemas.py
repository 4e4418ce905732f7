"""The schemas that a trace file may have, and how each is read: the first line chooses, here and nowhere else."""

from __future__ import annotations

import re
from typing import Protocol

import msgspec

from runspan.errors import SchemaVersionError, TraceFormatError
from runspan.tracefile._candle import CANDLE_SCHEMAS, CandleDecoder
from runspan.tracefile._untyped import quoted, shortened
from runspan.tracefile.events import SCHEMA, Meta, Terminal, TraceEvent, decode, decode_fields

__all__ = ["LineDecoder", "OwnDecoder", "decode_meta", "has_terminal", "line_decoder"]

#: By the name of each format the newest number that is read: the last one that is listed.
_NEWEST = {name: int(number) for name, _, number in (each.rpartition("/") for each in (SCHEMA, *CANDLE_SCHEMAS))}
_MAX_DIGITS = 9


class LineDecoder(Protocol):
    """Turns the lines of one trace into events."""

    def decode(self, line: bytes) -> TraceEvent:
        """Decode one line, with or without its newline.

        Raises:
            TraceFormatError: it is no event.
        """

    def ending(self) -> Terminal | None:
        """Return what the end of a whole trace stands for, where its schema has no terminal event; else None."""


class OwnDecoder:
    """Turns the lines of a trace that runspan wrote into events."""

    decode = staticmethod(decode)

    def ending(self) -> None:
        """Return None: a whole trace has a terminal event."""


class _Header(msgspec.Struct):
    """As much of a first line as can be told of any schema."""

    kind: str
    schema: str | None = None


_header_decoder = msgspec.json.Decoder(_Header)


def decode_meta(line: bytes) -> Meta:
    """Decode the first line of a trace file.

    Raises:
        SchemaVersionError: the file is of another or a newer schema.
        TraceFormatError: the line is no meta event, or a field is missing or of another type.
    """
    try:
        header = _header_decoder.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceFormatError(f"the first line must be the meta event, but it is not: {shortened(error)}") from error
    if header.kind != "meta":
        raise TraceFormatError(f"the first line must be the meta event, found {quoted(header.kind)}")
    if (candle := CANDLE_SCHEMAS.get(header.schema or "")) is not None:
        return candle.meta_of(decode_fields(line))
    if header.schema != SCHEMA:
        raise SchemaVersionError(_advice(header.schema))
    event = decode(line)
    if not isinstance(event, Meta):
        raise TypeError("a meta line decodes to a Meta")
    return event


def line_decoder(meta: Meta) -> LineDecoder:
    """Return the decoder for the lines of the trace that begins with this meta event."""
    candle = CANDLE_SCHEMAS.get(meta.schema)
    return OwnDecoder() if candle is None else CandleDecoder(candle, meta)


def has_terminal(meta: Meta) -> bool:
    """Whether a whole trace that begins with this meta event ends in a terminal event."""
    candle = CANDLE_SCHEMAS.get(meta.schema)
    return candle is None or candle.has_terminal


def _advice(schema: str | None) -> str:
    known = ", ".join(map(repr, (SCHEMA, *CANDLE_SCHEMAS)))
    if schema is None:
        return f"the trace has no schema, which this version of runspan does not read: it reads {known}"
    name, _, number = schema.rpartition("/")
    newest = _NEWEST.get(name)
    # A longer number than int() would take at a file's word is newer as well.
    if newest is not None and re.fullmatch("[0-9]+", number) and (len(number) > _MAX_DIGITS or int(number) > newest):
        return (
            f"schema {quoted(schema)} was written by a newer {name.partition('/')[0]}; this version of runspan "
            f"reads up to '{name}/{newest}': update it with pip install -U runspan"
        )
    return f"the trace has the schema {quoted(schema)}, which this version of runspan does not read: it reads {known}"
