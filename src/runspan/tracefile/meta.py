"""TraceRunMeta: what was traced, how, and with what; the heart of every trace file's first line."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from runspan.errors import ConfigError, TraceFormatError
from runspan.tracefile._untyped import scrub

if TYPE_CHECKING:
    from runspan.tracefile._kinds import Meta

__all__ = ["ExecutionPhase", "TimingMode", "TraceRunMeta", "check_run_meta", "iso_timestamp"]


class ExecutionPhase(StrEnum):
    """Whether the traced program trains or infers."""

    TRAIN = "train"
    INFER = "infer"

    @classmethod
    def parse(cls, value: str) -> ExecutionPhase:
        """Read a phase as people write it: train, training, infer, inference, eval or evaluate.

        Raises:
            ConfigError: it is none of these.
        """
        phase = _PHASE_NAMES.get(value.lower()) if isinstance(value, str) else None
        if phase is None:
            raise ConfigError(f"phase {value!r} is not known: use one of {', '.join(sorted(_PHASE_NAMES))}")
        return phase


_PHASE_NAMES = {
    "train": ExecutionPhase.TRAIN,
    "training": ExecutionPhase.TRAIN,
    "infer": ExecutionPhase.INFER,
    "inference": ExecutionPhase.INFER,
    "eval": ExecutionPhase.INFER,
    "evaluate": ExecutionPhase.INFER,
}


class TimingMode(StrEnum):
    """Whether durations are the host's own, or wait for the device."""

    HOST = "host"
    DEVICE_SYNCHRONIZED = "device_synchronized"

    @classmethod
    def parse(cls, value: str) -> TimingMode:
        """Read a timing mode.

        Raises:
            ConfigError: it is neither ``host`` nor ``device_synchronized``.
        """
        try:
            return cls(value)
        except ValueError:
            raise ConfigError(f"timing_mode {value!r} is not known: use one of {', '.join(cls)}") from None


def iso_timestamp(time_unix_nano: int) -> str:
    """Format a wall time as ISO-8601 UTC with milliseconds and Z, whatever the local time zone."""
    moment = datetime.fromtimestamp(time_unix_nano // 1_000_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_unix_nano // 1_000_000 % 1000:03d}Z"


class TraceRunMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The identity of one trace; equal by value.

    Attributes:
        run_id: stable id of the run.
        correlation_id: the caller's stable key, shared with profiler ranges and outside artifacts.
        entrypoint: what is analysed, such as ``train:main``.
        phase: train or infer.
        timestamp: ISO-8601 UTC, kept verbatim on reading.
        capture_step: the one-based optimizer update or inference invocation selected; 1 in a run trace.
        warmup_steps: invocations this process completed before it; 0 in a run trace.
        device: as the caller asked for it (``cpu``, ``cuda:0``).
        timing_mode: host or device_synchronized.
        tags: workload provenance, sorted by key.
        candle_version: the version of candle, where that is what ran.
    """

    run_id: str
    correlation_id: str
    entrypoint: str
    phase: ExecutionPhase
    timestamp: str
    capture_step: int
    warmup_steps: int
    device: str
    timing_mode: TimingMode
    tags: dict[str, str]
    candle_version: str | None = None

    def __post_init__(self) -> None:
        check_run_meta(self)

    def __hash__(self) -> int:
        return hash((self.run_id, self.correlation_id, self.timestamp, self.capture_step))

    def to_json(self) -> bytes:
        """Encode as one compact JSON object, fields in their fixed order; a lone surrogate becomes U+FFFD."""
        try:
            return msgspec.json.encode(self)
        except UnicodeEncodeError:
            return msgspec.json.encode(scrub(msgspec.to_builtins(self)))

    @classmethod
    def from_json(cls, data: bytes | str) -> TraceRunMeta:
        """Decode; unknown keys are ignored.

        Raises:
            TraceFormatError: no JSON object, or a field is missing or of another type; the message names it.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, RecursionError) as error:
            raise TraceFormatError(f"not a TraceRunMeta: {error}") from error


def check_run_meta(meta: TraceRunMeta | Meta) -> None:
    """Check the counts of a record that holds TraceRunMeta's fields, and sort its tags.

    Raises:
        ConfigError: ``capture_step`` is below 1 or ``warmup_steps`` below 0.
    """
    if meta.capture_step < 1:
        raise ConfigError(f"capture_step counts from 1, got {meta.capture_step}")
    if meta.warmup_steps < 0:
        raise ConfigError(f"warmup_steps cannot be negative, got {meta.warmup_steps}")
    if list(meta.tags) != sorted(meta.tags):
        msgspec.structs.force_setattr(meta, "tags", dict(sorted(meta.tags.items())))
