"""Gate records and runs to test with."""

from __future__ import annotations

from typing import Any

import msgspec

from runspan.gate.frame import Frame, FrameStatus, LogLine, RunRecord, Table, Verdict, VerdictKind
from runspan.gate.hardware import Hardware
from runspan.gate.record import GateRecord

__all__ = ["H100", "SHA", "TIME", "a_frame", "a_record", "a_run"]

SHA = "0123456789"
#: 2026-01-02 03:04:05 UTC.
TIME = 1_767_323_045
H100 = Hardware(gpu="NVIDIA H100 80GB HBM3", driver="550.54", gpu_count=1, source="nvml")
_FRAME = Frame(
    status=FrameStatus.COMPLETED,
    phase="done",
    progress=1.0,
    summary="2 metrics",
    table=Table(["metric", "value"], [["latency_ms", "12.5"]]),
    verdict=Verdict(VerdictKind.PASS, "within bounds"),
    metrics={"latency_ms": 12.5, "tokens": 1000.0},
    log=[LogLine("info", "started")],
    elapsed=3.5,
)
_RUN = RunRecord(
    run_id="run-1",
    benchmark_id="decode",
    benchmark_name="Decoding",
    recorded_at=TIME,
    target_url="",
    target_model="",
    params={"batch": "8"},
    serve_overrides={},
    source="cli",
    metrale_version="0.1.0",
    frame=_FRAME,
)


def a_frame(**changes: Any) -> Frame:
    """Return the last frame of a run that passed, with some fields changed."""
    return msgspec.structs.replace(_FRAME, **changes)


def a_run(**changes: Any) -> RunRecord:
    """Return a run that passed; ``frame`` and other fields may be changed."""
    return msgspec.structs.replace(_RUN, **changes)


def a_record(git_sha: str = SHA, **changes: Any) -> GateRecord:
    """Return the record of a run that passed on an H100, with some of its fields changed."""
    record = GateRecord.from_run(a_run(), H100, git_sha, [], None, environ={})
    return msgspec.structs.replace(record, **changes)
