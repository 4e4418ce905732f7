from __future__ import annotations

import hashlib
import re
import uuid
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from runspan import ids

if TYPE_CHECKING:
    import pytest


def test_digest_joins_label_and_fields_by_nul() -> None:
    """H is the sha256 of label and fields joined by NUL, integers in decimal."""
    assert ids.digest("label", "a", 12) == hashlib.sha256(b"label\0a\00012").digest()


def test_ids_are_derived_as_other_programs_derive_them() -> None:
    """Each derived id is the stated head of its digest, so that any rank or program finds the same."""
    digest = ids.digest
    assert ids.run_trace_id("r") == int.from_bytes(digest("runspan/trace/1", "r")[:16])
    assert ids.run_span_id("r") == int.from_bytes(digest("runspan/span/1", "r")[:8])
    assert ids.step_trace_id("r", 7) == int.from_bytes(digest("runspan/step/1", "r", 7)[:16])
    assert ids.pending_span_id(0xAB) == int.from_bytes(digest("runspan/pending/1", "00000000000000ab")[:8])
    assert ids.foreign_span_id("r", "c", "s1") == int.from_bytes(digest("runspan/foreign-span/1", "r", "c", "s1")[:8])
    assert ids.experiment_id("mnist") == f"exp-{digest('runspan/experiment/1', 'mnist').hex()[:16]}"


def test_service_instance_id_is_the_named_uuid5() -> None:
    """The instance id is the UUIDv5 of run, rank and attempt in OpenTelemetry's namespace."""
    namespace = uuid.UUID("4d63009a-8d0f-11ee-aad7-4c796ed8e320")
    assert ids.service_instance_id("run-1", 3, 2) == str(uuid.uuid5(namespace, "run-1/3/2"))


@given(st.text(), st.integers(min_value=0))
def test_any_run_id_has_valid_ids(run_id: str, step: int) -> None:
    """Whatever a run is called, its ids exist, fit and are never the invalid 0."""
    assert 0 < ids.run_trace_id(run_id) < 2**128
    assert 0 < ids.run_span_id(run_id) < 2**64
    assert 0 < ids.step_trace_id(run_id, step) < 2**128
    assert uuid.UUID(ids.service_instance_id(run_id, 0, 0)).version == 5


def test_lone_surrogates_give_different_ids() -> None:
    """A run id that UTF-8 cannot hold raises nowhere, and does not share another's ids."""
    assert ids.run_trace_id("a\ud800") != ids.run_trace_id("a\ud801")
    assert ids.service_instance_id("a\ud800", 0, 0) != ids.service_instance_id("a\ud801", 0, 0)


def test_an_all_zero_digest_head_becomes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The all-zero id is invalid in OpenTelemetry and is never returned."""
    monkeypatch.setattr(ids, "digest", lambda *_: bytes(32))
    assert (
        ids.run_trace_id("r")
        == ids.run_span_id("r")
        == ids.pending_span_id(5)
        == ids.foreign_span_id("r", "c", "s")
        == 1
    )


def test_uuid7_holds_the_time_and_the_random_bits() -> None:
    """A UUIDv7 starts with unix milliseconds and has version 7 and the RFC's variant."""
    made = uuid.UUID(ids.uuid7(lambda: 1_700_000_000_123_999_999, lambda size: b"\xff" * size))
    assert made.int >> 80 == 1_700_000_000_123
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert str(made).endswith("7fff-bfff-ffffffffffff")


def test_uuid7_sorts_by_creation() -> None:
    """Later ids are greater as text, whatever their random part."""
    earlier = ids.uuid7(lambda: 1_000_000_000, lambda size: b"\xff" * size)
    later = ids.uuid7(lambda: 1_001_000_000, bytes)
    assert earlier < later


def test_ids_are_formatted_in_full_width() -> None:
    """Hex forms are lower-case and keep leading zeros."""
    assert ids.format_trace_id(0xA) == "0" * 31 + "a"
    assert re.fullmatch("[0-9a-f]{16}", ids.format_span_id(ids.run_span_id("r")))
