"""Ids derived from the run id, so that all ranks of a run agree on them without talking to each other."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "digest",
    "experiment_id",
    "foreign_span_id",
    "format_span_id",
    "format_trace_id",
    "pending_span_id",
    "run_span_id",
    "run_trace_id",
    "service_instance_id",
    "step_trace_id",
    "uuid7",
]

#: The namespace that the semantic conventions give for ``service.instance.id``.
_SERVICE_INSTANCE_NAMESPACE = uuid.UUID("4d63009a-8d0f-11ee-aad7-4c796ed8e320")
_TRACE_ID_BYTES, _SPAN_ID_BYTES = 16, 8


def digest(label: str, *fields: str | int) -> bytes:
    """Return H(label, fields…): the sha256 (32 bytes) of label and fields joined by NUL.

    Integers are written in decimal. Strings are UTF-8; a lone surrogate is encoded as if it were a character, so that
    no run id raises and different ones stay different.
    """
    joined = "\0".join([label, *map(str, fields)])
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).digest()


def experiment_id(name: str) -> str:
    """Return an experiment's id: ``exp-`` and the first 16 hex digits of its name's digest."""
    return f"exp-{digest('runspan/experiment/1', name).hex()[:16]}"


def run_trace_id(run_id: str) -> int:
    """Return the 128-bit id of the run's trace, never 0."""
    return _id_of(digest("runspan/trace/1", run_id), _TRACE_ID_BYTES)


def run_span_id(run_id: str) -> int:
    """Return the 64-bit id of the span ``run``, never 0."""
    return _id_of(digest("runspan/span/1", run_id), _SPAN_ID_BYTES)


def step_trace_id(run_id: str, step: int) -> int:
    """Return the 128-bit id of a captured step's trace, never 0."""
    return _id_of(digest("runspan/step/1", run_id, step), _TRACE_ID_BYTES)


def pending_span_id(span_id: int) -> int:
    """Return the 64-bit id of the pending span that announces the span ``span_id``, never 0."""
    return _id_of(digest("runspan/pending/1", format_span_id(span_id)), _SPAN_ID_BYTES)


def foreign_span_id(run_id: str, correlation_id: str, name: str) -> int:
    """Return the 64-bit id of a span that another program's trace calls ``name``, never 0.

    Such names count from one in each trace, so that those of two traces of a run are told apart by correlation id.
    """
    return _id_of(digest("runspan/foreign-span/1", run_id, correlation_id, name), _SPAN_ID_BYTES)


def service_instance_id(run_id: str, rank: int, attempt: int) -> str:
    """Return the UUIDv5 that tells one attempt of one rank from every other process."""
    # uuid5 encodes strictly, so what UTF-8 cannot hold is escaped; ordinary ids are hashed as they are
    name = f"{run_id}/{rank}/{attempt}".encode("utf-8", "backslashreplace").decode()
    return str(uuid.uuid5(_SERVICE_INSTANCE_NAMESPACE, name))


def uuid7(time_ns: Callable[[], int] = time.time_ns, random_bytes: Callable[[int], bytes] = os.urandom) -> str:
    """Return a UUIDv7 (RFC 9562): its first 48 bits are unix milliseconds, so ids sort by creation.

    Args:
        time_ns: the wall clock, ns since the unix epoch.
        random_bytes: returns that many random bytes.
    """
    milliseconds = (time_ns() // 1_000_000) & (1 << 48) - 1
    random_bits = int.from_bytes(random_bytes(10))
    value = milliseconds << 80 | 7 << 76 | (random_bits >> 68) << 64 | 0b10 << 62 | random_bits & (1 << 62) - 1
    return str(uuid.UUID(int=value))


def format_trace_id(trace_id: int) -> str:
    """Return a trace id as 32 lower-case hex digits."""
    return f"{trace_id:032x}"


def format_span_id(span_id: int) -> str:
    """Return a span id as 16 lower-case hex digits."""
    return f"{span_id:016x}"


def _id_of(hashed: bytes, size: int) -> int:
    """Read an id from the head of a digest; the all-zero id is invalid in OpenTelemetry and becomes 1."""
    return int.from_bytes(hashed[:size]) or 1
