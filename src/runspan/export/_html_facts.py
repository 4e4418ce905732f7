"""What a page tells of a run beside its numbers and spans: its start, what it logged once, and what it lost."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from runspan.export._html_spans import page_mapping, page_name, page_value
from runspan.redaction import Redactor
from runspan.tracefile.events import Artifact, Dropped, Environment, Event, Param, Tag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runspan.tracefile.events import TraceEvent

__all__ = ["PageFacts"]

_MAX_ROWS = 500
_MAX_LOSSES = 64


class PageFacts:
    """Collects them over the traces of a run.

    Args:
        tags: those that the run began with.
        origin_unix_nano: the wall time from which the page counts.
    """

    def __init__(self, tags: Mapping[str, str], origin_unix_nano: int) -> None:
        self._origin = origin_unix_nano
        self._params: dict[str, Any] = {}
        self._tags = dict(tags)
        self._artifacts: dict[str, Artifact] = {}
        self._losses: Counter[tuple[str, str]] = Counter()
        self._events: list[dict[str, Any]] = []
        self._events_left_out = 0
        self._environment: Environment | None = None

    def add(self, rank: int, event: TraceEvent) -> None:
        """Take an event; those of kinds that are shown elsewhere are passed over."""
        match event:
            case Param():
                self._params[event.key] = event.value
            case Tag():
                self._tags[event.key] = event.value
            case Artifact():
                self._artifacts[event.name] = event
            case Dropped():
                self._losses[event.signal, event.reason] += event.count
            case Environment():
                self._environment = self._environment or event
            case Event():
                self._add_event(rank, event)
            case _:
                pass

    def _add_event(self, rank: int, event: Event) -> None:
        if len(self._events) == _MAX_ROWS:
            self._events_left_out += 1
            return
        self._events.append(
            {
                "rank": rank,
                "at_ns": event.time_unix_nano - self._origin,
                "level": page_name(event.level),
                "name": page_name(event.name),
                "message": page_value(event.message),
            }
        )

    def document(self) -> dict[str, Any]:
        """Return what the page shows, secrets as ``***``."""
        redactor = Redactor()
        return {
            "environment": page_mapping(_environment_fields(self._environment)),
            "params": page_mapping(redactor.redact_mapping(self._params)),
            "tags": page_mapping(redactor.redact_mapping(self._tags)),
            "events": self._events,
            "events_left_out": self._events_left_out,
            "artifacts": [
                {"name": page_name(each.name), "bytes": each.bytes, "step": each.step}
                for each in list(self._artifacts.values())[:_MAX_ROWS]
            ],
            "losses": [
                {"signal": page_name(signal), "reason": page_name(reason), "count": count}
                for (signal, reason), count in sorted(self._losses.items())[:_MAX_LOSSES]
            ],
        }


def _environment_fields(environment: Environment | None) -> dict[str, Any]:
    if environment is None:
        return {}
    fields = {"argv": " ".join(environment.argv), "cwd": environment.cwd, "python": environment.python}
    if environment.git is not None:
        fields["git"] = f"{environment.git.sha} {environment.git.branch or ''}".rstrip()
    return fields
