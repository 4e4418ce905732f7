"""Alerts: what a run tells people who are not looking at it."""

from __future__ import annotations

import msgspec

from runspan.records import AlertLevel

__all__ = ["Alert"]


class Alert(msgspec.Struct, frozen=True):
    """One alert.

    Attributes:
        title: one line.
        text: more, for who reads on.
        level: how bad it is.
        rule: the rule that fired it; ``user`` when the training program raised it.
    """

    title: str
    text: str = ""
    level: AlertLevel = AlertLevel.WARNING
    rule: str = "user"
