"""What a check of the surroundings found."""

from __future__ import annotations

from enum import StrEnum

import msgspec

__all__ = ["Check", "CheckState", "ProblemError"]


class CheckState(StrEnum):
    """How a check came out."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Check(msgspec.Struct, frozen=True):
    """One finding.

    Attributes:
        name: what was looked at.
        state: fine, worth knowing, or in the way.
        found: what is there.
        advice: what to do, or what it changes.
    """

    name: str
    state: CheckState
    found: str
    advice: str | None = None


class ProblemError(Exception):
    """What was looked at is in the way; becomes a check's finding.

    Attributes:
        found: what is there.
        advice: what to do.
    """

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(found)
        self.found = found
        self.advice = advice
