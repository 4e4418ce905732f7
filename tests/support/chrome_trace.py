"""Checks a file by the rules of the Chrome trace event format (JSON object form), exactly, with decimal times."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["counters", "instants", "load_chrome_trace", "slices", "thread_names"]

#: What an event of each phase must have beside ``ph``, ``name``, ``pid``; ``M`` is metadata, ``X`` complete, ``i``
#: instant, ``C`` counter, ``s``, ``t`` and ``f`` the start, steps and end of a flow.
_REQUIRED = {
    "M": {"args"},
    "X": {"ts", "dur", "tid"},
    "i": {"ts", "tid", "s"},
    "C": {"ts", "args"},
    "s": {"ts", "tid", "id", "cat"},
    "t": {"ts", "tid", "id", "cat"},
    "f": {"ts", "tid", "id", "cat"},
}
_METADATA_ARGUMENTS = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def load_chrome_trace(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file that keeps every rule; fails with the rule and the event otherwise."""
    document = json.loads(path.read_bytes(), parse_constant=_refuse, parse_float=Decimal)
    assert set(document) <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] in {"ms", "ns"}
    events: list[dict[str, Any]] = document["traceEvents"]
    for event in events:
        _check_event(event)
    _check_metadata(events)
    for _, of_thread in _by(slices(events), "pid", "tid"):
        _check_nesting(list(of_thread))
    for _, flow in _by([event for event in events if event["ph"] in "stf"], "cat", "id"):
        _check_flow(list(flow), events)
    return events


def slices(events: Iterable[dict[str, Any]], name: str | None = None) -> list[dict[str, Any]]:
    """Return the complete events, of one name or all."""
    return [event for event in events if event["ph"] == "X" and name in {None, event["name"]}]


def instants(events: Iterable[dict[str, Any]], name: str | None = None) -> list[dict[str, Any]]:
    """Return the instant events, of one name or all."""
    return [event for event in events if event["ph"] == "i" and name in {None, event["name"]}]


def counters(events: Iterable[dict[str, Any]], name: str) -> list[Any]:
    """Return the values of a counter track."""
    return [event["args"]["value"] for event in events if event["ph"] == "C" and event["name"] == name]


def thread_names(events: Iterable[dict[str, Any]], pid: int) -> list[str]:
    """Return the names of a process's threads."""
    return [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == pid]


def _check_event(event: dict[str, Any]) -> None:
    phase = event["ph"]
    assert phase in _REQUIRED, event
    assert _REQUIRED[phase] <= event.keys(), event
    assert isinstance(event["name"], str), event
    for field in ("pid", "tid"):
        assert type(event.get(field, 0)) is int, event
    for field in ("ts", "dur"):
        assert type(event.get(field, 0)) in {int, Decimal}, event
    assert isinstance(event.get("args", {}), dict), event
    if phase == "X":
        assert event["dur"] >= 0, event
    elif phase == "i":
        assert event["s"] in {"g", "p", "t"}, event
    elif phase == "C":
        assert event["args"], event
        assert all(type(value) in {int, Decimal} for value in event["args"].values()), event
    elif phase == "M":
        argument, of_type = _METADATA_ARGUMENTS[event["name"]]
        assert set(event["args"]) == {argument}, event
        assert type(event["args"][argument]) is of_type, event


def _check_metadata(events: list[dict[str, Any]]) -> None:
    """Every process and thread has one name, and what is on it comes from a thread that has one."""
    named = [event for event in events if event["name"] in {"process_name", "thread_name"} and event["ph"] == "M"]
    keys = [(event["pid"], event["tid"] if event["name"] == "thread_name" else None) for event in named]
    assert len(keys) == len(set(keys))
    for event in events:
        assert (event["pid"], None) in keys, event
        if event["ph"] in "Xistf":
            assert (event["pid"], event["tid"]) in keys, event


def _check_nesting(of_thread: list[dict[str, Any]]) -> None:
    enclosing: list[dict[str, Any]] = []
    for event in sorted(of_thread, key=lambda each: (each["ts"], -each["dur"])):
        while enclosing and _end(enclosing[-1]) <= event["ts"]:
            enclosing.pop()
        assert not enclosing or _end(event) <= _end(enclosing[-1]), (enclosing[-1], event)
        enclosing.append(event)


def _check_flow(flow: list[dict[str, Any]], events: list[dict[str, Any]]) -> None:
    ordered = sorted(flow, key=lambda each: "stf".index(each["ph"]))
    phases = "".join(each["ph"] for each in ordered)
    assert phases == "s" + "t" * (len(flow) - 2) + "f", flow
    assert len({each["name"] for each in flow}) == 1, flow
    assert all(each["ts"] >= ordered[0]["ts"] for each in ordered), flow
    assert all(each["ts"] <= ordered[-1]["ts"] for each in ordered), flow
    for each in flow:
        assert any(
            (around["pid"], around["tid"]) == (each["pid"], each["tid"]) and around["ts"] <= each["ts"] <= _end(around)
            for around in slices(events)
        ), each


def _by(events: list[dict[str, Any]], *fields: str) -> Iterable[tuple[Any, Iterable[dict[str, Any]]]]:
    def key(event: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(event[field] for field in fields)

    return groupby(sorted(events, key=key), key=key)


def _end(event: dict[str, Any]) -> Any:
    return event["ts"] + event["dur"]


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
