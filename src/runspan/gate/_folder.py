"""The records in a benchmark's folder, newest first, and what else lies there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from runspan.errors import GateError
from runspan.gate.record import GateRecord
from runspan.gate.storing import FOLDER, record_folder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Found", "FoundRecord", "read_folder"]

_MAX_AHEAD_S = 3600


class FoundRecord(msgspec.Struct, frozen=True):
    """A record and its file.

    Attributes:
        file: the file.
        path: the same, below the repository's top.
        record: the record.
    """

    file: Path
    path: str
    record: GateRecord

    @property
    def age_order(self) -> tuple[int, str]:
        """What records are sorted by: when they were recorded, then their names."""
        return self.record.recorded_at, self.file.name


class Found(msgspec.Struct, frozen=True):
    """What a benchmark's folder holds.

    Attributes:
        records: those that may be judged, newest first.
        problems: what is wrong with each other file that looks like a record.
    """

    records: list[FoundRecord]
    problems: list[str]


def read_folder(root: Path, benchmark_id: str, now_unix_s: float) -> Found:
    """Read a benchmark's folder; where there is none, it holds nothing.

    Raises:
        GateError: the id is no name of a folder.
    """
    folder = record_folder(root, benchmark_id)
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))  # noqa: PTH208 - names
    except FileNotFoundError:
        return Found([], [])
    except OSError as error:
        return Found([], [f"{FOLDER}/{benchmark_id} cannot be read: {error.strerror or error}"])
    found = Found([], [])
    for name in names:
        path = f"{FOLDER}/{benchmark_id}/{name}"
        try:
            record = GateRecord.load(folder / name)
        except GateError as error:
            found.problems.append(f"{path} is no record: {str(error).removeprefix(f'{folder / name}: ')}")
            continue
        if record.benchmark_id != benchmark_id:
            found.problems.append(f"{path} is a record of {record.benchmark_id!r}")
        elif record.recorded_at > now_unix_s + _MAX_AHEAD_S:
            found.problems.append(f"{path} was recorded in the future: recorded_at is {record.recorded_at}")
        else:
            found.records.append(FoundRecord(folder / name, path, record))
    found.records.sort(key=lambda candidate: candidate.age_order, reverse=True)
    return found
