"""Alerts: what a run tells people who are not looking at it, and the rules by which it finds out.

``TracingConfig.alert_rules`` names the built-in rules that are on, by default all; it also takes rules with thresholds
of their own, and plain functions::

    from runspan import AlertLevel, TracingConfig
    from runspan.alerts import Alert, AlertView, LossSpike

    def too_slow(view: AlertView) -> Alert | None:
        return Alert("slow start", level=AlertLevel.ERROR) if view.running_s > 600 and view.steps < 10 else None

    TracingConfig(alert_rules=("nonfinite_metric", LossSpike(ratio=5), too_slow))

Rules are asked about once a second, one after the other on a thread beside the training's, and return the alerts whose
conditions hold. An alert goes out when its condition begins to hold, and again only after a look at which it did not. A
rule that raises is logged once; while one does not return no other is asked, and a warning names it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from runspan._alert_rules import (
    DiskNearlyFull,
    EventsDropped,
    LossSpike,
    NonfiniteMetric,
    StalledStep,
    StragglingRank,
    ThroughputDrop,
)
from runspan._alert_view import Alert, AlertRule, AlertView, MetricLook
from runspan.records import AlertLevel

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BUILT_IN_RULES",
    "Alert",
    "AlertRule",
    "AlertView",
    "AlertWatch",
    "DiskNearlyFull",
    "EventsDropped",
    "LossSpike",
    "MetricLook",
    "NonfiniteMetric",
    "StalledStep",
    "StragglingRank",
    "ThroughputDrop",
]

#: The built-in rules with their default thresholds, by the names that ``alert_rules`` takes.
BUILT_IN_RULES: Final[dict[str, AlertRule]] = {
    rule.name: rule
    for rule in (
        NonfiniteMetric(),
        LossSpike(),
        StalledStep(),
        ThroughputDrop(),
        StragglingRank(),
        DiskNearlyFull(),
        EventsDropped(),
    )
}
#: How many alerts of one rule go out after one look; beyond that the rest are named in a last one.
_MAX_AT_ONCE = 5
_MAX_NAMED = 20

logger = logging.getLogger("runspan")


class _Watched:
    """A rule, and which of its conditions hold."""

    def __init__(self, name: str, rule: AlertRule) -> None:
        self.name = name
        self.rule = rule
        self.active: frozenset[str] = frozenset()
        self.has_failed = False


class AlertWatch:
    """Asks rules at each look, and fires each condition once. For one thread at a time.

    Args:
        rules: names of built-in rules, and functions.
        fire: called with each alert that goes out.
    """

    def __init__(self, rules: Sequence[str | AlertRule], fire: Callable[[Alert], None]) -> None:
        named = [BUILT_IN_RULES[rule] if isinstance(rule, str) else rule for rule in rules]
        self._watched = [_Watched(_name_of(rule), rule) for rule in named]
        self._fire = fire
        #: The rule that is being asked, None between two looks.
        self.asked: str | None = None

    def look(self, view: AlertView) -> None:
        """Ask every rule; a rule that raises is logged once, and its conditions stay as they were."""
        for watched in self._watched:
            self.asked = watched.name
            try:
                held = _answer(watched.rule(msgspec.structs.replace(view, active=watched.active)))
            except BaseException:  # SystemExit would end this thread, and all watching with it
                if not watched.has_failed:
                    logger.exception("alert rule %s failed; it goes on, and is not logged again", watched.name)
                watched.has_failed = True
                continue
            begun = [alert for subject, alert in held.items() if subject not in watched.active]
            watched.active = frozenset(held)
            for alert in _few(begun):
                self._fire(msgspec.structs.replace(alert, rule=watched.name))
        self.asked = None


def _name_of(rule: AlertRule) -> str:
    name = getattr(rule, "name", None) or getattr(rule, "__name__", None)
    return name if isinstance(name, str) else type(rule).__name__


def _answer(answer: object) -> dict[str, Alert]:
    """Return a rule's alerts by subject.

    Raises:
        TypeError: they are none.
        ValueError: a level is none.
    """
    if answer is None:
        return {}
    alerts = {}
    for alert in answer if isinstance(answer, Iterable) and not isinstance(answer, str | Alert) else [answer]:
        if not isinstance(alert, Alert):
            raise TypeError(f"a rule returns an Alert, several or None, not {type(alert).__name__}")
        # A level that is given as its text becomes one.
        alerts[alert.subject] = msgspec.structs.replace(alert, level=AlertLevel(alert.level))
    return alerts


def _few(alerts: list[Alert]) -> list[Alert]:
    """Return alerts as they are, or where there are too many at once the first ones and one that names the others."""
    if len(alerts) <= _MAX_AT_ONCE:
        return alerts
    shown, others = alerts[: _MAX_AT_ONCE - 1], alerts[_MAX_AT_ONCE - 1 :]
    named = ", ".join(alert.title for alert in others[:_MAX_NAMED])
    text = named if len(others) <= _MAX_NAMED else f"{named} and {len(others) - _MAX_NAMED} more"
    worst = max(others, key=lambda alert: list(AlertLevel).index(alert.level))
    return [*shown, msgspec.structs.replace(worst, title=f"{len(others)} more at once", text=text)]
