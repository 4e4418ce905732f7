"""NVTX ranges: how a captured span's range is called, and the join with what Nsight Systems saw of the ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runspan._plain import scrub_text
from runspan.semconv import Attr, SpanName
from runspan.tracefile._nsys import read_ranges
from runspan.tracefile.events import SpanEnd, SpanStart
from runspan.tracefile.reader import read

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from runspan.tracefile._nsys import ObservedRange

__all__ = ["NvtxJoin", "RangeJoin", "SpanPaths", "join_ranges", "range_name"]

#: Steps that were captured before they ran; the spans of others were over when they were written.
_BEFORE = "scheduled"


def range_name(correlation_id: str, path: str) -> str:
    """Return the name of a captured span's NVTX range: ``<correlation_id>/<span path>``.

    The correlation id is the capture's, such as ``<the run's>/update-101``; the path is the names from the capture's
    root to the span, joined by ``/`` (see :class:`SpanPaths`): ``<the run's>/update-101/step/forward``. Both are as the
    trace file has them, but for NUL, which no NVTX name can hold: U+FFFD stands in its place.

    Args:
        correlation_id: the ``correlation_id`` of the capture's meta event.
        path: the span's path.
    """
    return scrub_text(f"{correlation_id}/{path}").replace("\0", "\ufffd")


class SpanPaths:
    """The paths of a trace's spans: the names from the trace's root to the span, joined by ``/``.

    A name that has a ``/`` of its own is not changed. A span whose parent is not in the file begins a path.
    """

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}

    def add(self, start: SpanStart) -> str:
        """Take a span that began, in the file's order, and return its path."""
        above = None if start.parent_id is None else self._paths.get(start.parent_id)
        path = start.name if above is None else f"{above}/{start.name}"
        self._paths[start.id] = path
        return path


class RangeJoin(msgspec.Struct, frozen=True, kw_only=True):
    """The ranges of one name.

    The three durations are of three clocks, none of which is converted into another.

    Attributes:
        name: the range's name.
        expected: how many spans of the trace open such a range.
        observed: how many Nsight Systems saw.
        span_ids: those spans.
        span_duration_ns: how long they took together, by the trace; None: none has ended.
        host_duration_ns: how long the ranges took together on the host, by Nsight Systems; None: no report tells.
        device_duration_ns: the same of the device's work in them; None: no report tells.
    """

    name: str
    expected: int
    observed: int
    span_ids: list[str]
    span_duration_ns: int | None
    host_duration_ns: int | None
    device_duration_ns: int | None

    @property
    def state(self) -> str:
        """``matched``, ``missing``, ``duplicate`` (observed too often) or ``unexpected``."""
        if self.expected == 0:
            return "unexpected"
        if self.observed == self.expected:
            return "matched"
        return "missing" if self.observed < self.expected else "duplicate"


class NvtxJoin(msgspec.Struct, frozen=True):
    """Captured spans beside the ranges that Nsight Systems saw.

    It holds that ``expected = matched + missing`` and ``observed = matched + duplicate + unexpected``.

    Attributes:
        expected: captured spans that open a range.
        observed: ranges of the run that were seen; the program's other ranges do not count.
        matched: ranges that have a span of their name.
        missing: spans whose range was not seen.
        unexpected: ranges whose name is no span's.
        duplicate: ranges beyond as many as there are spans of their name.
        ranges: the ranges by name, in the trace's order, the unexpected ones last.
    """

    expected: int
    observed: int
    matched: int
    missing: int
    unexpected: int
    duplicate: int
    ranges: list[RangeJoin]

    @property
    def is_exact(self) -> bool:
        """Whether each span has its range, and each range its span."""
        return not (self.missing or self.unexpected or self.duplicate)


class _Expected:
    """The spans that open the ranges of one name."""

    def __init__(self) -> None:
        self.span_ids: list[str] = []
        self.duration_ns: int | None = None


def join_ranges(captures: Iterable[Path], reports: Iterable[Path], correlation_id: str) -> NvtxJoin:
    """Join captured spans with the CSV reports of ``nsys stats``, by name.

    Reports of one kind are added up, as those of several ranks. Reports of several kinds tell of the same ranges: the
    one that saw most of a name counts.

    A span that was over when it was written has no range: those of steps captured afterwards (slow, failed), and the
    wait for data by which a step of ``run.steps()`` begins.

    Args:
        captures: the captured steps' trace files; a trace that is none has no ranges.
        reports: ``nvtx_sum``, ``nvtx_pushpop_sum``, ``nvtx_pushpop_trace``, ``nvtx_startend_sum``,
            ``nvtx_startend_trace``, ``nvtx_gpu_proj_sum`` or ``nvtx_gpu_proj_trace``, as CSV; several may stand in one
            file.
        correlation_id: ranges are the run's where their name begins with it and a ``/``: the run's, or a capture's.

    Raises:
        TraceFormatError: a trace breaks the format, or a report is none.
    """
    expected: dict[str, _Expected] = {}
    for path in captures:
        _add_expected(path, expected)
    observed = read_ranges(reports, range_name(correlation_id, ""))
    ranges = [_joined(name, spans, observed.pop(name, None)) for name, spans in expected.items()]
    ranges += [_joined(name, _Expected(), seen) for name, seen in observed.items()]
    matched = sum(min(item.expected, item.observed) for item in ranges)
    return NvtxJoin(
        expected=sum(item.expected for item in ranges),
        observed=sum(item.observed for item in ranges),
        matched=matched,
        missing=sum(max(0, item.expected - item.observed) for item in ranges),
        unexpected=sum(item.observed for item in ranges if not item.expected),
        duplicate=sum(max(0, item.observed - item.expected) for item in ranges if item.expected),
        ranges=ranges,
    )


def _add_expected(path: Path, expected: dict[str, _Expected]) -> None:
    """Add the spans of one capture that open a range."""
    paths, open_spans = SpanPaths(), dict[str, _Expected]()
    root_id: str | None = None
    with read(path) as reader:
        correlation_id = reader.meta.correlation_id
        for event in reader:
            if isinstance(event, SpanStart):
                span_path = paths.add(event)
                if event.measured:
                    root_id = event.id
                    if (event.attributes or {}).get(Attr.STEP_CAPTURED_BECAUSE, _BEFORE) != _BEFORE:
                        return
                if root_id is None:
                    continue
                # By the step's own clock only what was over when the step was begun starts with it.
                if event.name == SpanName.DATA and event.parent_id == root_id and event.start_ns == 0:
                    continue
                spans = expected.setdefault(range_name(correlation_id, span_path), _Expected())
                spans.span_ids.append(event.id)
                open_spans[event.id] = spans
            elif isinstance(event, SpanEnd) and (ended := open_spans.pop(event.id, None)) is not None:
                ended.duration_ns = (ended.duration_ns or 0) + event.duration_ns


def _joined(name: str, spans: _Expected, seen: ObservedRange | None) -> RangeJoin:
    return RangeJoin(
        name=name,
        expected=len(spans.span_ids),
        observed=0 if seen is None else seen.instances,
        span_ids=spans.span_ids,
        span_duration_ns=spans.duration_ns,
        host_duration_ns=None if seen is None else seen.host_duration_ns,
        device_duration_ns=None if seen is None else seen.device_duration_ns,
    )
