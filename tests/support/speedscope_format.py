"""Checks what the speedscope file format asks for beyond its schema: order and balance of the events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["SCHEMA", "load_speedscope", "stacks"]

SCHEMA = Path(__file__).with_name("speedscope-schema.json")


def load_speedscope(path: Path) -> dict[str, Any]:
    """Return a file whose profiles keep the format's rules."""
    document: dict[str, Any] = json.loads(path.read_bytes(), parse_constant=_refuse)
    for profile in document["profiles"]:
        opened: list[int] = []
        reached = profile["startValue"]
        for event in profile["events"]:
            assert 0 <= event["frame"] < len(document["shared"]["frames"])
            assert event["at"] >= reached
            reached = event["at"]
            if event["type"] == "O":
                opened.append(event["frame"])
            else:
                assert opened.pop() == event["frame"]
        assert opened == []
        assert reached <= profile["endValue"]
    return document


def stacks(document: dict[str, Any], name: str) -> list[tuple[str, int, int]]:
    """Return each span of a profile in the order of its start: the path of names, its start and its end."""
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    (profile,) = [profile for profile in document["profiles"] if profile["name"] == name]
    opened: list[int] = []
    found: list[tuple[str, int, int]] = []
    for event in profile["events"]:
        if event["type"] == "O":
            opened.append(len(found))
            above = found[opened[-2]][0] + ";" if len(opened) > 1 else ""
            found.append((above + frames[event["frame"]], event["at"], event["at"]))
        else:
            position = opened.pop()
            found[position] = (*found[position][:2], event["at"])
    return found


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
