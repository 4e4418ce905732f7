"""What health finds, and how findings of one kind are kept together while a trace streams by."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Finding", "Findings", "Severity"]

#: How many ids a finding names; its message counts the rest.
_MAX_IDS = 100


class Severity(StrEnum):
    """Whether a finding makes the trace wrong, or only leaves something unknown."""

    ERROR = "error"
    WARNING = "warning"


class Finding(msgspec.Struct, frozen=True):
    """Everything of one kind that is wrong with a trace.

    Attributes:
        code: the kind, such as ``open_span``.
        severity: error or warning.
        message: the first case in words, and how many more there are.
        ids: what is concerned: spans, tensors, storages, devices or gradients; at most the first 100.
    """

    code: str
    severity: Severity
    message: str
    ids: tuple[str, ...] = ()


class Findings:
    """Collects cases and makes one finding a code of them, so that a million bad lines are not a million findings."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[Severity, str]] = {}
        self._counts: dict[str, int] = {}
        self._ids: dict[str, dict[str, None]] = {}

    def add(self, code: str, message: str, ids: Iterable[object] = (), severity: Severity = Severity.ERROR) -> None:
        """Add a case; the first one of a code gives the finding its severity and its words."""
        self._first.setdefault(code, (severity, message))
        self._counts[code] = self._counts.get(code, 0) + 1
        kept = self._ids.setdefault(code, {})
        for each in ids:
            if len(kept) < _MAX_IDS:
                kept[str(each)] = None

    def collected(self) -> list[Finding]:
        """Return the findings: errors first, each sort in the order in which it was first met."""
        findings = [
            Finding(code, severity, f"{message}{self._more(code)}", tuple(self._ids[code]))
            for code, (severity, message) in self._first.items()
        ]
        return sorted(findings, key=lambda finding: finding.severity is not Severity.ERROR)

    def _more(self, code: str) -> str:
        more = self._counts[code] - 1
        return f" (and {more} more)" if more else ""
