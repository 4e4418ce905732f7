"""What a benchmark run reported: its last frame, and the record of the run around it."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotations
from enum import StrEnum
from typing import Any, Literal

import msgspec

from runspan.gate.hardware import HardwareStateReport  # noqa: TC001 - msgspec reads the annotations

__all__ = ["Frame", "FrameStatus", "LogLine", "RunRecord", "Table", "Verdict", "VerdictKind"]


class FrameStatus(StrEnum):
    """How far a benchmark run has come."""

    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"


class VerdictKind(StrEnum):
    """What a benchmark says of its own result."""

    PASS = "Pass"  # noqa: S105 - a verdict, no password
    FAIL = "Fail"
    INFO = "Info"


class Verdict(msgspec.Struct, frozen=True):
    """A verdict and the reason for it."""

    kind: VerdictKind
    reason: str


class LogLine(msgspec.Struct, frozen=True):
    """A line that the run logged; ``level`` is ``debug``, ``info``, ``warning`` or ``error``."""

    level: str
    message: str


class Table(msgspec.Struct, frozen=True):
    """What a person is shown of a run: each row has a cell for each header."""

    headers: list[str] = []
    rows: list[list[str]] = []


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a benchmark run at one moment.

    Attributes:
        status: how far it has come.
        phase: what it is doing, in words.
        progress: how much of it is done, 0 to 1.
        summary: one line for a person.
        table: more of it.
        verdict: what the benchmark says of the result; None: nothing.
        metrics: the measured values.
        log: what was logged, oldest first.
        elapsed: seconds since the start.
        hardware_state: the machine before and after.
        dataset_fingerprint: identity of the content that was scored.
    """

    status: FrameStatus = msgspec.field()
    phase: str = msgspec.field()
    progress: float = msgspec.field()
    summary: str = msgspec.field()
    table: Table = msgspec.field()
    verdict: Verdict | None = None
    metrics: Mapping[str, float] = msgspec.field()
    log: list[LogLine] = msgspec.field()
    elapsed: float = msgspec.field()
    hardware_state: HardwareStateReport | None = None
    dataset_fingerprint: str | None = None


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a benchmark, as it ended.

    Attributes:
        schema: 1.
        run_id: the Run's id.
        benchmark_id: which benchmark.
        benchmark_name: its name for people.
        recorded_at: when it ended, unix seconds.
        target_url: the server that was measured; empty: none.
        target_model: the model that was measured.
        params: what the benchmark was given.
        serve_overrides: recipe keys that were changed for this run.
        source: who started it.
        metrale_version: version of the measuring program.
        frame: its last frame.
    """

    schema: Literal[1] = 1
    run_id: str
    benchmark_id: str
    benchmark_name: str
    recorded_at: int
    target_url: str
    target_model: str
    params: Mapping[str, str]
    serve_overrides: Mapping[str, str]
    source: Literal["cli", "api", "unknown"]
    metrale_version: str
    frame: Frame

    def to_builtins(self) -> dict[str, Any]:
        """Return the record as plain values, for JSON."""
        return dict(msgspec.to_builtins(self))
