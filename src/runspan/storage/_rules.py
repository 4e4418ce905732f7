"""What every backend computes in the same way: a run's state, superseding, sampling, documents."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from runspan._env import show_value
from runspan.errors import InvalidStateError, RunNotFoundError, StorageError
from runspan.records import RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "AttemptRow",
    "RunState",
    "dump_json",
    "merge_by_rank",
    "require_final",
    "require_key",
    "require_limit",
    "run_not_found",
    "run_state",
    "sample_positions",
    "sum_counts",
    "superseded_from",
]

T = TypeVar("T")


class AttemptRow(msgspec.Struct, frozen=True):
    """One attempt of one rank; times are unix ns."""

    rank: int
    attempt: int
    status: RunStatus
    reason: str | None
    start_time: int
    end_time: int | None


class RunState(msgspec.Struct, frozen=True):
    """What the attempts of all ranks add up to; times are unix ns."""

    status: RunStatus = RunStatus.PENDING
    reason: str | None = None
    start_time: int | None = None
    end_time: int | None = None
    attempts: int = 0


def run_state(rows: Iterable[AttemptRow], world_size: int) -> RunState:
    """Add up the attempts of all ranks.

    A run has ended when every rank below the world size has ended its own newest attempt, and then has the worst of
    their statuses with the reason of the lowest rank that has it. Where only rank 0 has rows, rank 0 speaks for all.
    """
    rows = list(rows)
    if not rows:
        return RunState()
    newest: dict[int, AttemptRow] = {}
    for row in rows:
        if row.rank not in newest or row.attempt > newest[row.rank].attempt:
            newest[row.rank] = row
    start_time = min(row.start_time for row in rows)
    attempts = 1 + max(row.attempt for row in rows)
    all_reported = newest.keys() == {0} or newest.keys() >= set(range(world_size))
    if not all_reported or not all(row.status.is_final for row in newest.values()):
        return RunState(RunStatus.RUNNING, None, start_time, None, attempts)
    status = RunStatus.worst([row.status for row in newest.values()])
    blamed = min((row for row in newest.values() if row.status is status), key=lambda row: row.rank)
    end_time = max(row.end_time for row in newest.values() if row.end_time is not None)
    return RunState(status, blamed.reason, start_time, end_time, attempts)


def superseded_from(first_steps: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int | None]:
    """Say from which step on each attempt of a metric is superseded by later ones; None: never.

    Args:
        first_steps: the lowest step that each (rank, attempt) has.
    """
    cutoffs: dict[tuple[int, int], int | None] = {}
    lowest: dict[int, int] = {}
    for rank, attempt in sorted(first_steps, reverse=True):
        cutoffs[rank, attempt] = lowest.get(rank)
        first_step = first_steps[rank, attempt]
        lowest[rank] = min(first_step, lowest.get(rank, first_step))
    return cutoffs


def sample_positions(total: int, limit: int) -> list[int]:
    """Return at most ``limit`` evenly spread positions below ``total``, the first and the last included.

    A limit of 1 gives the last position alone.
    """
    if total <= limit:
        return list(range(total))
    if limit <= 1:
        return [total - 1] * limit
    return [-(-index * (total - 1) // (limit - 1)) for index in range(limit)]


def merge_by_rank(by_rank: Mapping[int, Mapping[str, T]]) -> dict[str, T]:
    """Merge the ranks' mappings: of a key that several have the lowest rank's value holds; rank 0's keys come first."""
    merged: dict[str, T] = {}
    for rank in sorted(by_rank):
        for key, value in by_rank[rank].items():
            merged.setdefault(key, value)
    return merged


def sum_counts(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Add counters up, key by key; integers stay integers."""
    total: dict[str, float] = {}
    for mapping in counts:
        for key, value in mapping.items():
            total[key] = total.get(key, 0) + value
    return total


def dump_json(value: Any, what: str) -> str:
    """Encode a user's value as ASCII JSON text that :func:`json.loads` restores: NaN and integers of any size too.

    Raises:
        StorageError: the value is none that JSON has.
    """
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise StorageError(
            f"{what} cannot be stored: {error}; values are str, int, float, bool, list and dict"
        ) from error


def require_final(status: RunStatus) -> None:
    """Refuse to complete a run with a status that is no end.

    Raises:
        InvalidStateError: the status is not final.
    """
    if not status.is_final:
        raise InvalidStateError(f"a run cannot be completed as {status}: use success, failed or cancelled")


def require_key(key: object) -> None:
    """Refuse a metric key that is no text.

    Raises:
        StorageError: the key is no str.
    """
    if not isinstance(key, str):
        raise StorageError(f"a metric point cannot be stored: key={show_value(key)} cannot be used: it takes a str")


def require_limit(limit: int) -> None:
    """Refuse a negative limit.

    Raises:
        ValueError: the limit is negative.
    """
    if limit < 0:
        raise ValueError(f"limit={limit} cannot be used: it takes a number from 0 up")


def run_not_found(run_id: str) -> RunNotFoundError:
    """Return the error for a run id that the storage does not have."""
    return RunNotFoundError(f"no run {run_id!r} in this storage: list the runs there are with list_runs()")
