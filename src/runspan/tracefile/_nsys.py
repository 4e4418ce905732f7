"""Reads the NVTX reports of ``nsys stats --format csv``.

Reports are known by their columns: as they were in the versions 2021 to 2026, with other columns ignored. The text that
nsys prints around reports on stdout is passed over.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING

import msgspec

from runspan.errors import TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import TextIO

__all__ = ["ObservedRange", "read_ranges"]

#: Longer lines are no line of a report.
_MAX_LINE_CHARACTERS = 1 << 20
#: How the headers of reports begin, those of other reports too.
_FIRST_TITLES = frozenset({"Name", "Range", "Start (ns)", "Time (%)", "Time(%)"})
#: Unit of a column, behind its name, in nanoseconds: ``--timeunit`` changes it.
_UNITS_NS = {"ns": 1, "us": 1e3, "\u00b5s": 1e3, "\u03bcs": 1e3, "ms": 1e6, "s": 1e9}
_TITLE = re.compile(r"(?P<name>.+?) \((?P<unit>[a-z\u00b5\u03bc]+)\)")
#: What nsys prints before and between reports.
_AROUND = re.compile(r"\s*(\*\* |Processing |Generating |Using |SKIPPED|NOTICE|WARNING|It is |Consider |\[\d+/\d+\])")


class _Report(msgspec.Struct, frozen=True):
    """A kind of report.

    Attributes:
        names: what nsys calls the reports of this kind.
        name: the column of the range's name.
        duration: the column of its time on the host.
        instances: the column that counts ranges; None: one a row.
        projected: the column of the device's time; None: it tells none.
        also: columns that tell it from other reports.
    """

    names: str
    name: str
    duration: str
    instances: str | None = None
    projected: str | None = None
    also: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """The columns that it must have."""
        return [column for column in (self.name, self.instances, self.duration, self.projected) if column] + list(
            self.also
        )


_REPORTS = (
    _Report("nvtx_gpu_proj_sum", "Range", "Total Range Time", "Range Instances", "Total Proj Time"),
    _Report("nvtx_gpu_proj_trace", "Name", "Orig Duration", projected="Projected Duration"),
    _Report("nvtx_sum, nvtx_pushpop_sum or nvtx_startend_sum", "Range", "Total Time", "Instances"),
    _Report("nvtx_pushpop_trace or nvtx_startend_trace", "Name", "Duration", also=("Start", "End")),
)


class ObservedRange(msgspec.Struct, frozen=True):
    """What the reports tell of the ranges of one name.

    Attributes:
        instances: how many there were.
        host_duration_ns: how long they took together on the host; None: no report tells.
        device_duration_ns: how long the device's work in them took together; None: no report tells.
    """

    instances: int
    host_duration_ns: int | None = None
    device_duration_ns: int | None = None

    def plus(self, other: ObservedRange) -> ObservedRange:
        """Return the two taken together."""
        return ObservedRange(
            self.instances + other.instances,
            _sum(self.host_duration_ns, other.host_duration_ns),
            _sum(self.device_duration_ns, other.device_duration_ns),
        )


def read_ranges(paths: Iterable[Path], prefix: str) -> dict[str, ObservedRange]:
    """Read reports and return the ranges whose names begin with ``prefix``, by name, in the order they were first seen.

    Reports of one kind are added up; of several kinds, the one that has most instances of a name counts.

    Args:
        paths: the files; one that is given twice is read once.
        prefix: what the names begin with, behind the ``:`` that newer versions put before names of NVTX's own domain.

    Raises:
        TraceFormatError: a file cannot be read, holds none of the reports, or is damaged; it names file and line.
    """
    seen: dict[str, dict[_Report, ObservedRange]] = {}
    for path in {path.resolve(): path for path in paths}.values():
        for report, name, observed in _read(path, prefix):
            of_name = seen.setdefault(name, {})
            of_name[report] = of_name[report].plus(observed) if report in of_name else observed
    return {name: _combined(of_name) for name, of_name in seen.items()}


def _combined(of_name: dict[_Report, ObservedRange]) -> ObservedRange:
    """Combine what several kinds of reports tell of one name."""
    by_count = sorted(of_name.values(), key=lambda observed: -observed.instances)
    device = [observed.device_duration_ns for observed in by_count if observed.device_duration_ns is not None]
    host = [observed.host_duration_ns for observed in by_count if observed.host_duration_ns is not None]
    return ObservedRange(by_count[0].instances, host[0] if host else None, device[0] if device else None)


def _read(path: Path, prefix: str) -> Iterator[tuple[_Report, str, ObservedRange]]:
    """Yield what each row of a file's reports tells of a range."""
    found = False
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for table, row, line in _rows(file, path):
                found = True
                name = table.name_of(row, prefix)
                if name is not None:
                    yield table.report, name, table.observed(row, path, line)
    except OSError as error:
        raise TraceFormatError(f"cannot be read: {error.strerror or error}", path=str(path)) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise TraceFormatError(f"is no CSV file: {error}; {_EXPECTED}", path=str(path)) from error
    if not found:
        raise TraceFormatError(f"holds no NVTX report; {_EXPECTED}", path=str(path))


def _rows(file: TextIO, path: Path) -> Iterator[tuple[_Table, list[str], int]]:
    """Yield the rows of each report in a file, with their line numbers; the header is the first."""
    table: _Table | None = None
    rows = csv.reader(_lines(file, path), strict=True)
    for row in rows:
        is_data = table is not None and len(row) == table.width
        header = _Table.of(row) if row and (not is_data or row[0] in _FIRST_TITLES) else None
        if header is not None:
            table = header
        if table is not None and (is_data or header is not None):
            yield table, row, rows.line_num
        elif not row or _AROUND.match(row[0]):
            table = None
        elif table is not None:
            problem = f"{len(row)} values for {table.width} columns"
            raise TraceFormatError(f"{problem}; {_ANEW}", path=str(path), line=rows.line_num)


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    number = 0
    while line := file.readline(_MAX_LINE_CHARACTERS):
        number += 1
        if len(line) == _MAX_LINE_CHARACTERS:
            raise TraceFormatError(
                f"a line of more than {_MAX_LINE_CHARACTERS:,} characters; {_EXPECTED}", path=str(path), line=number
            )
        yield line


class _Table:
    """One report's header, and how its rows are read."""

    def __init__(self, report: _Report, columns: dict[str, tuple[int, float]], width: int) -> None:
        self.report = report
        self.width = width
        self._columns = columns

    @classmethod
    def of(cls, row: Sequence[str]) -> _Table | None:
        """Return the report that a row is the header of, None when it is none's."""
        columns: dict[str, tuple[int, float]] = {}
        for index, title in enumerate(row):
            match = _TITLE.fullmatch(title)
            unit_ns = None if match is None else _UNITS_NS.get(match["unit"])
            columns[title if match is None or unit_ns is None else match["name"]] = (index, unit_ns or 1)
        report = next((report for report in _REPORTS if columns.keys() >= set(report.columns)), None)
        return None if report is None else cls(report, columns, len(row))

    def name_of(self, row: Sequence[str], prefix: str) -> str | None:
        """Return the name of a row's range; None when it does not begin with the prefix."""
        name = row[self._columns[self.report.name][0]]
        return next((text for text in (name, name.removeprefix(":")) if text.startswith(prefix)), None)

    def observed(self, row: Sequence[str], path: Path, line: int) -> ObservedRange:
        """Return what a row tells.

        Args:
            row: the row.
            path: the file.
            line: its line number.

        Raises:
            TraceFormatError: a value is no number that can stand there.
        """
        report = self.report
        try:
            return ObservedRange(
                1 if report.instances is None else self._number(row, report.instances),
                self._number_or_none(row, report.duration),
                None if report.projected is None else self._number_or_none(row, report.projected),
            )
        except ValueError as error:
            raise TraceFormatError(f"{error}; {_ANEW}", path=str(path), line=line) from None

    def _number_or_none(self, row: Sequence[str], column: str) -> int | None:
        """Return a value, None where it is empty: no work was done on a device."""
        return self._number(row, column) if row[self._columns[column][0]] else None

    def _number(self, row: Sequence[str], column: str) -> int:
        """Return a value, times in nanoseconds.

        Raises:
            ValueError: it is no number from 0 up.
        """
        index, unit_ns = self._columns[column]
        text = row[index]
        try:
            number = int(text) if text.isdecimal() else float(text)
            scaled = round(number * unit_ns)
        except (ValueError, OverflowError):
            scaled = -1
        if scaled < 0:
            raise ValueError(f"{column} is {text[:40]!r}, which is no number from 0 up")
        return scaled


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def _expected() -> str:
    kinds = "; ".join(f"{report.names} has {', '.join(report.columns)}" for report in _REPORTS)
    return f"expected what `nsys stats --format csv --report nvtx_pushpop_sum` writes, with its columns ({kinds})"


_ANEW = "write the report anew with `nsys stats --format csv`"
_EXPECTED = _expected()
