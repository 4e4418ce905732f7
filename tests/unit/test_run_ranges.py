from __future__ import annotations

from typing import TYPE_CHECKING

from runspan._run.notices import Notices
from runspan._run.ranges import ThreadRanges
from runspan.tracefile.events import OtelContext, SpanStart

if TYPE_CHECKING:
    import pytest


def _span(span_id: str) -> SpanStart:
    return SpanStart(
        id=span_id, name=span_id, start_ns=0, time_unix_nano=0, span_kind="function", otel=OtelContext("ab" * 16)
    )


def test_a_failing_nvtx_is_told_of_once_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """What NVTX raises reaches no training: one warning, and neither call is made again."""
    calls: list[str] = []

    def push(name: str) -> None:
        calls.append(name)
        if len(calls) > 1:
            raise RuntimeError("no tool")

    ranges = ThreadRanges(push, lambda: calls.append("pop"), Notices("run-1", strict=True)).of_trace("c")
    for span_id in ("a", "b", "c"):
        ranges.started(_span(span_id))
    for span_id in ("c", "b", "a"):
        ranges.ended(span_id)
    assert calls == ["c/a", "c/b"]
    assert [record.getMessage() for record in caplog.records] == [
        "run run-1: NVTX ranges are off from now on: RuntimeError: no tool"
    ]
