"""Benchmarks that were measured in parts: which parts make a whole, and what the whole measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from runspan.gate.record import GateRecord  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runspan.gate.baseline import BaselineEntry

__all__ = ["Part", "aggregate_metrics", "incomplete_reason", "missing_metrics", "newest_whole", "shard_problems"]


class Part(msgspec.Struct, frozen=True):
    """A record that measured one shard.

    Attributes:
        name: its file's name.
        record: the record.
        commit: the full sha that it measured.
        index: which shard, from 0.
        count: of how many.
    """

    name: str
    record: GateRecord
    commit: str
    index: int
    count: int

    @property
    def partition(self) -> tuple[str, str, str, int]:
        """What the parts of one whole have in common."""
        return self.commit, self.record.hardware.gate_key, self.record.target_model, self.count


def newest_whole(parts: Sequence[Part]) -> list[Part] | Part | None:
    """Return the newest complete partition at one commit, the newest part of each index, in the order of the indexes.

    Args:
        parts: newest first.

    Returns:
        None when no partition is complete; a single part when one that is newer than every complete partition failed,
        which no older whole may hide.
    """
    wholes: dict[tuple[str, str, str, int], dict[int, Part]] = {}
    for part in parts:
        wholes.setdefault(part.partition, {}).setdefault(part.index, part)
    for (*_, count), found in wholes.items():
        if len(found) == count:
            return [found[index] for index in sorted(found)]
        for part in found.values():
            if _has_failed(part.record):
                return part
    return None


def incomplete_reason(parts: Sequence[Part]) -> str:
    """Say which shards the newest partition lacks.

    Args:
        parts: newest first.
    """
    if not parts:
        return "only a complete group of shards counts, and no shard stands"
    newest = parts[0]
    found = {part.index for part in parts if part.partition == newest.partition}
    first_missing = next(index for index in range(newest.count) if index not in found)
    return (
        f"only a complete group of shards at one commit counts: {len(found)} of {newest.count} stand at"
        f" {newest.record.git_sha}, shard {first_missing} is missing"
    )


def missing_metrics(parts: Sequence[Part], entry: BaselineEntry) -> list[str]:
    """Name the metrics that the entry declares and a part does not have."""
    declared = dict.fromkeys(entry.zero)
    for metric, rule in entry.aggregate.items():
        declared.update(dict.fromkeys([metric] if rule == "sum" else rule.ratio))
    return [
        f"{part.name}: shard {part.index} has no metric {metric!r}"
        for part in parts
        for metric in declared
        if metric not in part.record.metrics
    ]


def shard_problems(part: Part, entry: BaselineEntry) -> list[str]:
    """Say what is wrong with one part by itself; its metrics are judged with the others'."""
    record = part.record
    problems = []
    if _has_failed(record):
        problems.append(f"{part.name}: shard {part.index} failed: {record.verdict_reason or record.summary}")
    problems += [
        f"{part.name}: {metric} is {record.metrics[metric]}, and must be 0 in each shard"
        for metric in entry.zero
        if record.metrics[metric] != 0
    ]
    return problems


def aggregate_metrics(parts: Sequence[Part], entry: BaselineEntry) -> dict[str, float]:
    """Put the whole's metrics together from its parts; what cannot be computed is not finite, which no bound takes."""
    whole = {}
    for metric, rule in entry.aggregate.items():
        if rule == "sum":
            whole[metric] = _total(parts, metric)
        else:
            above, below = (_total(parts, name) for name in rule.ratio)
            whole[metric] = above / below if below else math.nan
    return whole


def _total(parts: Sequence[Part], metric: str) -> float:
    try:
        return math.fsum(part.record.metrics[metric] for part in parts)
    except (OverflowError, ValueError):  # beyond the range of a float, or infinities that cancel out
        return math.nan


def _has_failed(record: GateRecord) -> bool:
    return record.frame_status_failed() or record.verdict == "FAIL"
