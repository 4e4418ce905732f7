"""What alert rules look at, and what they answer: the records that the built-in rules and a user's share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from runspan.records import AlertLevel

if TYPE_CHECKING:
    from runspan.tracefile.steptimes import SlowRank

__all__ = ["Alert", "AlertRule", "AlertView", "MetricLook"]


class Alert(msgspec.Struct, frozen=True):
    """One alert.

    Attributes:
        title: one line.
        text: more, for who reads on.
        level: how bad it is.
        rule: the rule that fired it; ``user`` when the training program raised it.
        subject: what it is about, where a rule watches several things: a metric's key, a rank. A rule has one
            condition a subject, and each fires once.
    """

    title: str
    text: str = ""
    level: AlertLevel = AlertLevel.WARNING
    rule: str = "user"
    subject: str = ""


class MetricLook(msgspec.Struct, frozen=True, gc=False):
    """One metric that has got points since the look before.

    Attributes:
        last: the newest value, non-finite ones too.
        count: how many points it has.
        new: how many of them are new.
        new_nonfinite: how many of the new ones are NaN or infinite.
    """

    last: float
    count: int
    new: int
    new_nonfinite: int


class AlertView(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands at one look; one is taken about once a second.

    Attributes:
        time_unix_nano: the wall time, ns since the epoch.
        running_s: seconds since this process started the run, by the monotonic clock.
        metrics: the metrics that have got points since the look before, by key.
        recent: gives the newest values of a key, at most so many (up to 1,024), oldest first.
        points: how many points all metrics have together.
        steps: how many steps have ended.
        step_age_s: seconds since the newest step was seen to have ended; None before the first.
        longest_step_gap_s: the longest time between two steps so far, the present one left out, seconds.
        step_rates_hz: steps a second, oldest first, each over at least a minute and ten steps; at most 60.
        slow_ranks: the rank that the others wait for, or None, in the newest looks at the other ranks' files, the
            newest last; at most 2. Empty on other ranks than 0, and with one rank.
        disk_free: bytes free where the run directory is; None without one.
        disk_total: bytes that the file system has there.
        lost: what recording and export lost since the start, by (signal, reason).
        lost_lately: the same of the last minute alone.
        active: the subjects of this rule's conditions that hold since an earlier look: a rule may take another limit
            for these, so that a value at the limit does not fire again and again.
    """

    time_unix_nano: int = 0
    running_s: float = 0.0
    metrics: Mapping[str, MetricLook] = {}
    recent: Callable[[str, int], Sequence[float]] = lambda _key, _limit: ()
    points: int = 0
    steps: int = 0
    step_age_s: float | None = None
    longest_step_gap_s: float = 0.0
    step_rates_hz: tuple[float, ...] = ()
    slow_ranks: tuple[SlowRank | None, ...] = ()
    disk_free: int | None = None
    disk_total: int | None = None
    lost: Mapping[tuple[str, str], int] = {}
    lost_lately: Mapping[tuple[str, str], int] = {}
    active: frozenset[str] = frozenset()


#: A rule: a function of how the run stands that returns the alerts whose conditions hold now, None for none.
AlertRule: TypeAlias = Callable[[AlertView], Alert | Iterable[Alert] | None]
