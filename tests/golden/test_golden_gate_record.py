"""The gate record's format, frozen: a file with every field that every later version must read and write back."""

from __future__ import annotations

from pathlib import Path

from runspan.gate.frame import FrameStatus
from runspan.gate.record import GateRecord

_GOLDEN = Path(__file__).parent / "gate-record.json"


def test_the_golden_record_is_written_back_byte_for_byte() -> None:
    """A record with every field, in the form of the system that the format comes from, survives reading and writing."""
    assert GateRecord.load(_GOLDEN).to_json() == _GOLDEN.read_bytes()


def test_the_golden_record_is_understood() -> None:
    """The golden record's fields are read as what they are, not only kept."""
    record = GateRecord.load(_GOLDEN)
    assert record.frame_status is FrameStatus.COMPLETED
    assert record.verdict is None
    assert not record.verdict_passes()
    assert record.shard() == (0, 4)
    assert record.metrics["ttft_ms"] == 12.5
    assert record.hardware.gate_key == "h100"
    assert record.hardware.sm_clock_mhz == 1980
    assert record.closure["attention"].flags == ["-O3"]
    assert record.hardware_state is not None
    assert record.hardware_state.before["clocks"]["mem"] == 2619


def test_a_later_writers_keys_are_ignored() -> None:
    """Keys that this version does not know are passed over, wherever they stand, and not written back."""
    golden = _GOLDEN.read_bytes()
    later = golden.replace(b'"schema": 1,', b'"schema": 1,\n  "later": {"a": [1]},').replace(
        b'"perf_class": "full"', b'"perf_class": "full",\n    "later": 2'
    )
    assert GateRecord.from_json(later).to_json() == golden
