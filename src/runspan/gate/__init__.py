"""GateRecords: what a benchmark run measured, on what, and whether it may stand for the commit at hand."""

from __future__ import annotations

from runspan.gate._check import check
from runspan.gate._judging import check_record
from runspan.gate._results import GateOutcome, GateResult
from runspan.gate.baseline import Baseline, Bound
from runspan.gate.closure import TargetClosure
from runspan.gate.frame import Frame, FrameStatus, RunRecord, Verdict, VerdictKind
from runspan.gate.hardware import Hardware, HardwareStateReport
from runspan.gate.record import GateRecord
from runspan.gate.standing import Standing

__all__ = [
    "Baseline",
    "Bound",
    "Frame",
    "FrameStatus",
    "GateOutcome",
    "GateRecord",
    "GateResult",
    "Hardware",
    "HardwareStateReport",
    "RunRecord",
    "Standing",
    "TargetClosure",
    "Verdict",
    "VerdictKind",
    "check",
    "check_record",
]
