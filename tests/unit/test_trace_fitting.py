from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runspan.errors import TraceFormatError
from runspan.tracefile import _fitting, _parts
from runspan.tracefile._fitting import fitting
from runspan.tracefile._health import health
from runspan.tracefile.events import (
    Dropped,
    Event,
    Metrics,
    OtelContext,
    Param,
    SpanEnd,
    SpanEvent,
    SpanStart,
    decode,
    encode,
)
from runspan.tracefile.layout import TraceName
from runspan.tracefile.reader import read
from runspan.tracefile.writer import FileWriter
from support.traces import make_meta, make_metric, make_terminal

if TYPE_CHECKING:
    from pathlib import Path

_MIB = 1 << 20


def _write(folder: Path, *events: Any) -> Path:
    writer = FileWriter(folder, TraceName(0), make_meta(), max_file_bytes=1 << 40, durable=False)
    for event in (*events, make_terminal()):
        assert writer.write(event)
    writer.close()
    return folder / TraceName(0).filename


def _span(attributes: dict[str, Any]) -> list[Any]:
    start = SpanStart(
        id="ab" * 8,
        name="n",
        start_ns=0,
        time_unix_nano=1,
        span_kind="function",
        attributes=attributes,
        otel=OtelContext("ab" * 16),
    )
    return [start, SpanEnd(id=start.id, duration_ns=1, events=[SpanEvent("e", 1, attributes)])]


def test_a_parameter_of_70_mb_does_not_cost_its_trace(tmp_path: Path) -> None:
    """A value beyond what a line may hold is cut, marked, and everything around it is read."""
    path = _write(tmp_path, make_metric(0), Param("text", "x" * (70 * _MIB)), make_metric(1))
    with read(path) as reader:
        meta, first, param, second, terminal = reader
    assert (meta, first, second, terminal) == (make_meta(), make_metric(0), make_metric(1), make_terminal())
    assert param == Param("text", "x" * 65_536 + "…")


def test_attributes_of_millions_of_values_together_are_cut(tmp_path: Path) -> None:
    """Attributes that are each small enough, and together too many for a reader, keep their heads."""
    many = list(range(700_000))
    path = _write(tmp_path, *_span({"a": many, "b": {"c": many}, "d": 1}))
    with read(path) as reader:
        start = next(event for event in reader if isinstance(event, SpanStart))
    kept = [*range(1_000), "…"]
    assert start.attributes == {"a": kept, "b": {"c": kept}, "d": 1}
    assert not health(path)


def test_what_fits_is_written_as_it_is() -> None:
    """Long lines that readers take are not touched, nor are the short ones beside one that is cut."""
    whole = encode(Param("text", "x" * (2 * _MIB))) + encode(make_metric(0))
    assert fitting(whole) == whole
    several = encode(make_metric(0)) + encode(Param("text", ["x" * _MIB] * 70)) + encode(make_metric(1))
    first, cut, last = fitting(several).splitlines(keepends=True)
    assert (first, last) == (encode(make_metric(0)), encode(make_metric(1)))
    assert cut == encode(Param("text", ["x" * 65_536 + "…"] * 70))


@pytest.fixture
def small_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a line have 2,000 bytes at most."""
    monkeypatch.setattr(_fitting, "MAX_LINE_BYTES", 2_000)


@pytest.mark.usefixtures("small_lines")
def test_what_an_event_can_be_without_is_left_out() -> None:
    """Where cutting texts does not do, a span loses attributes, events and links, and a parameter its value."""
    attributes = {f"key-{number}": "x" * 100 for number in range(100)}
    start, end = _span(attributes)
    read_start, read_end = (decode(fitting(encode(event))) for event in (start, end))
    assert read_start == msgspec.structs.replace(start, attributes=None)
    assert read_end == SpanEnd(id=start.id, duration_ns=1)
    assert decode(fitting(encode(Param("p", ["x" * 1_000] * 5)))) == Param("p", "…")
    told = Event(name="e", level="info", message="m", attributes=attributes, time_unix_nano=1)
    assert decode(fitting(encode(told))) == Event(name="e", level="info", message="m", time_unix_nano=1)


@pytest.mark.usefixtures("small_lines")
def test_what_cannot_be_made_to_fit_is_lost_and_counted() -> None:
    """A line that stays too long becomes a dropped line, so that the file says what it lacks."""
    values = {f"key-{number}": float(number) for number in range(1_000)}
    assert decode(fitting(encode(Metrics(values=values, time_unix_nano=1)))) == Dropped("file", "too_long", 1)


def test_a_whole_line_beyond_the_limit_is_an_error_as_the_last_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cut makes a line longer than any record, newline included: nothing is taken for a torn end there."""
    monkeypatch.setattr(_parts, "MAX_LINE_BYTES", _MIB)
    path = tmp_path / TraceName(0).filename
    path.write_bytes(encode(make_meta()) + b'{"kind":"tag","key":"' + b"x" * (2 * _MIB) + b'"}\n')
    with pytest.raises(TraceFormatError, match=r":2: a line longer than 1048576 bytes"):
        list(read(path))
    lenient = read(path, lenient=True)
    assert list(lenient) == [make_meta()]
    assert (lenient.skipped, lenient.torn) == (1, ())
