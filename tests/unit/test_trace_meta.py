from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runspan.errors import ConfigError, TraceFormatError
from runspan.tracefile.meta import ExecutionPhase, TimingMode, TraceRunMeta, iso_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIELDS: dict[str, Any] = {
    "run_id": "run-a",
    "correlation_id": "run-a/update-3",
    "entrypoint": "train:main",
    "phase": ExecutionPhase.TRAIN,
    "timestamp": "2024-02-29T23:59:59.999Z",
    "capture_step": 3,
    "warmup_steps": 2,
    "device": "cuda:0",
    "timing_mode": TimingMode.DEVICE_SYNCHRONIZED,
    "tags": {"batch": "32", "lesson": "4"},
}


@pytest.fixture
def local_time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Let a test set TZ, and put the process's own zone back."""
    yield monkeypatch
    monkeypatch.undo()
    time.tzset()


def test_json_has_the_fields_in_order_and_leaves_candle_version_out() -> None:
    """JSON is one compact object, fields in the format's order, tags always there, candle_version only when set."""
    assert TraceRunMeta(**{**_FIELDS, "tags": {}}).to_json() == (
        b'{"run_id":"run-a","correlation_id":"run-a/update-3","entrypoint":"train:main","phase":"train",'
        b'"timestamp":"2024-02-29T23:59:59.999Z","capture_step":3,"warmup_steps":2,"device":"cuda:0",'
        b'"timing_mode":"device_synchronized","tags":{}}'
    )
    with_version = json.loads(TraceRunMeta(**_FIELDS, candle_version="0.9").to_json())
    assert list(with_version)[-1] == "candle_version"


@given(
    st.text(), st.text(), st.integers(1, 2**63 - 1), st.integers(0, 2**63 - 1), st.dictionaries(st.text(), st.text())
)
def test_json_round_trips(run_id: str, timestamp: str, step: int, warmup: int, tags: dict[str, str]) -> None:
    """What is written is read back equal; the timestamp verbatim, whatever it is."""
    changes = {"run_id": run_id, "timestamp": timestamp, "capture_step": step, "warmup_steps": warmup, "tags": tags}
    meta = TraceRunMeta(**{**_FIELDS, **changes})
    assert TraceRunMeta.from_json(meta.to_json()) == meta


def test_a_lone_surrogate_becomes_the_replacement_character() -> None:
    """A run id that UTF-8 cannot hold still gives valid JSON."""
    meta = TraceRunMeta(**{**_FIELDS, "run_id": "a\ud800"})
    assert TraceRunMeta.from_json(meta.to_json()).run_id == "a\ufffd"


def test_tags_are_sorted_and_records_are_values() -> None:
    """Tags come sorted, records with the same fields are equal with equal hashes, and none can be changed."""
    one = TraceRunMeta(**{**_FIELDS, "tags": {"b": "1", "a": "2"}})
    other = TraceRunMeta(**{**_FIELDS, "tags": {"a": "2", "b": "1"}})
    assert list(one.tags) == ["a", "b"]
    assert one == other
    assert hash(one) == hash(other)
    with pytest.raises(AttributeError):
        one.run_id = "other"  # type: ignore[misc]


@pytest.mark.parametrize("field", list(_FIELDS))
def test_a_missing_field_is_named(field: str) -> None:
    """Each field must be there, tags too; the error names the one that is not."""
    fields = json.loads(TraceRunMeta(**_FIELDS).to_json())
    del fields[field]
    with pytest.raises(TraceFormatError, match=rf"missing required field `{field}`"):
        TraceRunMeta.from_json(json.dumps(fields))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("capture_step", "3"),
        ("capture_step", 0),
        ("capture_step", True),
        ("capture_step", 1.5),
        ("warmup_steps", -1),
        ("phase", "training"),
        ("timing_mode", "device"),
        ("tags", {"a": 1}),
        ("tags", None),
        ("run_id", None),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    """A field of another type or outside its range is an error that names it."""
    fields = {**json.loads(TraceRunMeta(**_FIELDS).to_json()), field: value}
    with pytest.raises(TraceFormatError, match=field):
        TraceRunMeta.from_json(json.dumps(fields))


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{", b"[" * 5000, b"\xff"])
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    """Anything but a JSON object is a TraceFormatError."""
    with pytest.raises(TraceFormatError, match="TraceRunMeta"):
        TraceRunMeta.from_json(data)


def test_unknown_keys_are_ignored() -> None:
    """A key that this version does not know costs nothing."""
    fields = {**json.loads(TraceRunMeta(**_FIELDS).to_json()), "later": {"x": 1}}
    assert TraceRunMeta.from_json(json.dumps(fields)) == TraceRunMeta(**_FIELDS)


def test_wrong_counts_are_refused_in_construction() -> None:
    """A capture step below 1 or a negative warm-up is no record."""
    with pytest.raises(ValueError, match="capture_step"):
        TraceRunMeta(**{**_FIELDS, "capture_step": 0})
    with pytest.raises(ValueError, match="warmup_steps"):
        msgspec.structs.replace(TraceRunMeta(**_FIELDS), warmup_steps=-1)


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("train", ExecutionPhase.TRAIN),
        ("Training", ExecutionPhase.TRAIN),
        ("infer", ExecutionPhase.INFER),
        ("inference", ExecutionPhase.INFER),
        ("eval", ExecutionPhase.INFER),
        ("evaluate", ExecutionPhase.INFER),
    ],
)
def test_phases_are_read_as_people_write_them(text: str, phase: ExecutionPhase) -> None:
    """The argument takes the common words for the two phases."""
    assert ExecutionPhase.parse(text) is phase


def test_unknown_phase_and_timing_mode_name_what_they_take() -> None:
    """Another word is a ConfigError with the words that are taken."""
    with pytest.raises(ConfigError, match=r"'fit'.*train"):
        ExecutionPhase.parse("fit")
    with pytest.raises(ConfigError, match=r"'gpu'.*device_synchronized"):
        TimingMode.parse("gpu")
    assert TimingMode.parse("host") is TimingMode.HOST


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
def test_timestamps_are_utc_in_every_time_zone(local_time_zone: pytest.MonkeyPatch, zone: str) -> None:
    """Case 30: one moment has one timestamp, with milliseconds and Z, whatever TZ says."""
    local_time_zone.setitem(os.environ, "TZ", zone)
    time.tzset()
    assert iso_timestamp(1_700_000_000_123_999_999) == "2023-11-14T22:13:20.123Z"
    assert iso_timestamp(0) == "1970-01-01T00:00:00.000Z"
