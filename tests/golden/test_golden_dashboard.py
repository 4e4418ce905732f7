"""The bytes of every message of the dashboard service: a field number that changes fails here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict

from runspan.rpc._pb import dashboard_pb2 as pb

GOLDEN: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("dashboard-messages.json").read_text("utf-8"))
#: Of the enums, whose values no message's bytes show whole.
VALUES = {
    "RunStatus": ("RUN_STATUS", "UNSPECIFIED PENDING RUNNING SUCCESS FAILED CANCELLED INTERRUPTED"),
    "Trend": ("TREND", "UNSPECIFIED RISING FALLING STABLE"),
    "AlertLevel": ("ALERT_LEVEL", "UNSPECIFIED INFO WARNING ERROR CRITICAL"),
}
METHODS = "GetStatus GetRecentMetrics Subscribe GetResourceUsage ListRuns GetFrame"


def test_every_message_is_recorded_with_every_field() -> None:
    """A message or field that has come is recorded too, and none that was recorded has gone."""
    assert set(GOLDEN) == set(pb.DESCRIPTOR.message_types_by_name)
    for name, recorded in GOLDEN.items():
        fields = {field.name for field in pb.DESCRIPTOR.message_types_by_name[name].fields}
        assert set(recorded["fields"]) == fields, name


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_the_recorded_bytes_are_read_and_written(name: str) -> None:
    """What an older program sends is understood as it was meant, and what is sent is what it understands."""
    recorded, kind = GOLDEN[name], getattr(pb, name)
    data = bytes.fromhex(recorded["bytes"])
    read = kind.FromString(data)
    assert MessageToDict(read, preserving_proto_field_name=True) == recorded["fields"]
    written = ParseDict(recorded["fields"], kind())
    assert written.SerializeToString(deterministic=True) == data


def test_enum_values_and_methods_stay() -> None:
    """Enum values keep their numbers, and methods their names."""
    assert set(VALUES) == set(pb.DESCRIPTOR.enum_types_by_name)
    for name, (prefix, values) in VALUES.items():
        found = pb.DESCRIPTOR.enum_types_by_name[name].values_by_name
        expected = {f"{prefix}_{value}": number for number, value in enumerate(values.split())}
        assert {value.name: value.number for value in found.values()} == expected
    assert " ".join(pb.DESCRIPTOR.services_by_name["DashboardService"].methods_by_name) == METHODS
