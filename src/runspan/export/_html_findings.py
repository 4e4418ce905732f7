"""The findings of a page: what health says of each trace, and what reading it met."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runspan.export._html_spans import page_name, page_value
from runspan.tracefile._health import Finding, Severity
from runspan.tracefile.reader import TraceStatus

if TYPE_CHECKING:
    from runspan.export._sources import Source
    from runspan.tracefile.reader import TracePeek, TraceReader

__all__ = ["PageFindings", "reading_findings"]

_MAX_ROWS = 200
_MAX_IDS = 8


class PageFindings:
    """What is wrong, one row for what several files have in common."""

    def __init__(self) -> None:
        self._files: dict[tuple[bool, str, str], list[str]] = {}
        self._ids: dict[tuple[bool, str, str], tuple[str, ...]] = {}

    def add(self, finding: Finding, source: Source | None = None) -> None:
        """Add what was found in a trace; without one, the finding's message names it."""
        key = (finding.severity is not Severity.ERROR, finding.code, finding.message)
        files = self._files.setdefault(key, [])
        if source is not None:
            files.append(source.path.name if source.capture is None else f"{source.capture}/{source.path.name}")
        self._ids.setdefault(key, finding.ids[:_MAX_IDS])

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, errors first."""
        return [
            {
                "severity": str(Severity.WARNING if is_warning else Severity.ERROR),
                "code": code,
                "message": page_value(message),
                "files": [page_name(file) for file in self._files[is_warning, code, message][:_MAX_IDS]],
                "file_count": len(self._files[is_warning, code, message]),
                "ids": [page_name(each) for each in self._ids[is_warning, code, message]],
            }
            for is_warning, code, message in sorted(self._files)[:_MAX_ROWS]
        ]


def reading_findings(looked: TracePeek, reader: TraceReader) -> list[Finding]:
    """Return what the reader had to pass over, and that the trace has no end."""
    findings = []
    if looked.state.status is TraceStatus.INTERRUPTED:
        findings.append(Finding("interrupted", Severity.ERROR, "the process ended before it could close the trace"))
    if reader.torn and looked.state.status is not TraceStatus.RUNNING:
        torn = ", ".join(f"line {torn.line} ({torn.reason})" for torn in reader.torn)
        findings.append(Finding("torn_record", Severity.WARNING, f"what a crash cut off is not on this page: {torn}"))
    if reader.skipped:
        skipped = f"{reader.skipped} lines break the format and are not on this page"
        findings.append(Finding("unreadable_lines", Severity.ERROR, skipped))
    return findings
