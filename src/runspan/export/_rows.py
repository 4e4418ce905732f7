"""The rows of a trace's tables: metrics, steps and usage by a scan over those lines alone, spans by a reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Annotated

import msgspec

from runspan.errors import TraceFormatError
from runspan.export._spans import read_spans
from runspan.export._values import readable
from runspan.tracefile._parts import later_parts, open_first, open_part
from runspan.tracefile.layout import TraceName
from runspan.tracefile.reader import read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from runspan.export._sources import Source
    from runspan.export._spans import JoinedSpan
    from runspan.tracefile._parts import Part

__all__ = ["RowWriter"]

#: What a table's integers can be.
_Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_FLOAT_NAMES = r"^(NaN|-?Infinity)$"
#: A float as the trace file writes it; the database reads the names of non-finite ones as they are.
_Float = float | Annotated[str, msgspec.Meta(pattern=_FLOAT_NAMES)]
#: Begins every line that runspan has written: ``kind`` comes first.
_KIND = b'{"kind":"'
_KIND_LENGTH = len(_KIND)
#: Rows that are encoded at once.
_BATCH = 4096


class _Row(msgspec.Struct, gc=False, kw_only=True):
    """A row, decoded from the line that it is; ``trace`` is the number of its trace, which no line tells."""

    trace: int | None = msgspec.field(name="_trace", default=None)


class _MetricRow(_Row, gc=False, kw_only=True):
    key: str
    step: _Integer | None
    value: _Float
    time_unix_nano: _Integer


class _StepRow(_Row, gc=False, kw_only=True):
    step: _Integer
    duration_ns: _Integer
    data_ns: _Integer | None = None
    phases: dict[str, _Integer] | None = None
    samples: _Integer | None = None
    tokens: _Integer | None = None
    total: _Integer | None = None
    time_unix_nano: _Integer


class _UsageRow(_Row, gc=False, kw_only=True):
    timestamp_ns: _Integer
    time_unix_nano: _Integer
    gpu_util: _Float | None = None
    cpu_util: _Float | None = None
    memory_used: _Integer | None = None
    memory_total: _Integer | None = None
    gpu_memory_used: _Integer | None = None
    gpu_memory_total: _Integer | None = None


class _Header(msgspec.Struct, gc=False):
    kind: str


class _MetricsLine(msgspec.Struct, gc=False, kw_only=True):
    step: _Integer | None = None
    values: dict[str, _Float]
    steps: dict[str, _Integer] | None = None
    time_unix_nano: _Integer


class _SpanRow(msgspec.Struct, gc=False, kw_only=True):
    trace: int = msgspec.field(name="_trace")
    span_id: str
    parent_id: str | None
    trace_id: str
    name: str
    span_kind: str
    step_phase: str | None
    measured: bool
    start_ns: int
    time_unix_nano: int
    duration_ns: int | None
    status: str | None
    status_message: str | None
    attributes: str


#: Takes a line and holds its rows; given None it writes what it holds.
_Adder = Callable[[bytes | None], None]
_decode_header = msgspec.json.Decoder(_Header).decode
_decode_metrics = msgspec.json.Decoder(_MetricsLine).decode
_encoder = msgspec.json.Encoder()


class RowWriter:
    """Writes the rows of traces as JSON lines, a file a table.

    Args:
        files: where to, by table: ``metrics``, ``steps``, ``usage``, ``spans``; only these are read for.

    Attributes:
        unreadable: how many lines of these tables could not be read, what a cut left aside.
        problems: what could not be read to its end, a line each.
    """

    def __init__(self, files: Mapping[str, IO[bytes]]) -> None:
        self._files = files
        self.unreadable = 0
        self.problems: list[str] = []

    def add(self, number: int, source: Source) -> None:
        """Write the rows of one trace, which are marked with its number."""
        if source.capture is None and self._files.keys() - {"spans"}:
            self._add_scanned(number, source.path)
        if "spans" in self._files:
            self._add_spans(number, source.path)

    def _add_scanned(self, number: int, path: Path) -> None:
        adders = self._adders(number)
        try:
            for part in _parts(path):
                with part:
                    while lines := part.read_lines():
                        self.unreadable += _add_lines(lines, adders)
                    if part.damage is not None:
                        self.problems.append(f"{part.path}: {part.damage}")
                    _add_lines([part.tail], adders)  # whole but for its newline, or cut: no loss of this reading
        except TraceFormatError as error:
            self.problems.append(str(error))
        for adder in adders.values():
            adder(None)

    def _adders(self, number: int) -> dict[bytes, _Adder]:
        """Return what takes the lines of each kind that is wanted."""
        adders: dict[bytes, _Adder] = {}
        if (metrics := self._files.get("metrics")) is not None:
            adders[b"metric"] = _line_adder(metrics, _MetricRow, number)
            adders[b"metrics"] = _metrics_adder(metrics, number)
        for kind, row_type in (("step", _StepRow), ("usage", _UsageRow)):
            file = self._files.get("steps" if kind == "step" else kind)
            if file is not None:
                adders[kind.encode()] = _line_adder(file, row_type, number)
        return adders

    def _add_spans(self, number: int, path: Path) -> None:
        file = self._files["spans"]
        try:
            with read(path, lenient=True) as reader:
                for span in read_spans(reader):
                    if _fits(span):
                        file.write(_encoder.encode(_span_row(number, span)) + b"\n")
                    else:
                        self.unreadable += 1
                self.unreadable += reader.skipped
        except TraceFormatError as error:
            self.problems.append(str(error))


def _add_lines(lines: list[bytes], adders: Mapping[bytes, _Adder]) -> int:
    """Give each line to what takes its kind; return how many could not be read."""
    unreadable = 0
    for line in lines:
        try:
            if line.startswith(_KIND):
                add = adders.get(line[_KIND_LENGTH : line.find(b'"', _KIND_LENGTH)])
            else:  # blank, or as another program has written it, or behind the NUL bytes of a power loss
                line = line.strip(b"\0 \t\r")  # noqa: PLW2901 - the same line
                add = adders.get(_decode_header(line).kind.encode()) if line else None
            if add is not None:
                add(line)
        except (msgspec.DecodeError, RecursionError):
            unreadable += 1
    return unreadable


def _parts(path: Path) -> Iterator[Part]:
    """Yield the parts of a trace, each open; one that is missing is passed over."""
    yield open_first(path)
    name = TraceName.parse(path.name)
    for later in later_parts(path.parent, msgspec.structs.replace(name, part=0)) if name is not None else ():
        if (part := open_part(path.parent, later)) is not None:
            yield part


def _line_adder(file: IO[bytes], row_type: type[_Row], number: int) -> _Adder:
    """Return what writes lines that are rows as they are."""
    decode = msgspec.json.Decoder(row_type).decode
    rows: list[_Row] = []

    def add(line: bytes | None) -> None:
        if line is not None:
            row = decode(line)
            row.trace = number
            rows.append(row)
        if line is None or len(rows) == _BATCH:
            file.write(_encoder.encode_lines(rows))
            rows.clear()

    return add


def _metrics_adder(file: IO[bytes], number: int) -> _Adder:
    """Return what writes a row for each value of a ``metrics`` line."""
    rows: list[_MetricRow] = []

    def add(line: bytes | None) -> None:
        if line is not None:
            metrics = _decode_metrics(line)
            steps = metrics.steps or {}
            for key, value in metrics.values.items():
                step = steps.get(key, metrics.step)
                time_unix_nano = metrics.time_unix_nano
                rows.append(_MetricRow(trace=number, key=key, step=step, value=value, time_unix_nano=time_unix_nano))
        if line is None or len(rows) >= _BATCH:
            file.write(_encoder.encode_lines(rows))
            rows.clear()

    return add


def _span_row(number: int, span: JoinedSpan) -> _SpanRow:
    start, end = span.start, span.end
    status = end.status if end is not None else None
    return _SpanRow(
        trace=number,
        span_id=start.id,
        parent_id=start.parent_id,
        trace_id=start.otel.trace_id,
        name=readable(span.name),
        span_kind=start.span_kind,
        step_phase=start.step,
        measured=start.measured,
        start_ns=start.start_ns,
        time_unix_nano=start.time_unix_nano,
        duration_ns=None if end is None else end.duration_ns,
        status=None if status is None else status.code,
        status_message=None if status is None else readable(status.message),
        attributes=_encoder.encode(readable(span.attributes)).decode(),
    )


def _fits(span: JoinedSpan) -> bool:
    """Whether a table can hold the span's times."""
    duration_ns = 0 if span.end is None else span.end.duration_ns
    return all(abs(time) < 2**63 for time in (span.start.start_ns, span.start.time_unix_nano, duration_ns))
