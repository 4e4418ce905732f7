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

    from runspan._git import Git

__all__ = ["Found", "FoundRecord", "added_records", "deleted_failures", "read_folder"]

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

    def also(self, others: list[FoundRecord]) -> Found:
        """Return the same with further records."""
        records = sorted([*self.records, *others], key=lambda candidate: candidate.age_order, reverse=True)
        return Found(records, self.problems)


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


def added_records(git: Git, merge_base: str) -> frozenset[str]:
    """Return the paths of records that are not, or not as they are, at the merge base; not yet committed ones too.

    Raises:
        GitError: git gives no answer.
    """
    committed = git.files("HEAD", [FOLDER])
    changed = set(git.changed_paths(merge_base))
    return frozenset(path for path in _present(git) if path in changed or path not in committed)


def deleted_failures(git: Git, merge_base: str) -> list[FoundRecord]:
    """Return the failed records of the merge base that are gone, so that deleting one lets no older pass stand for it.

    Raises:
        GitError: git gives no answer.
    """
    present, found = _present(git), []
    gone = {
        path: entry.oid
        for path, entry in git.files(merge_base, [FOLDER]).items()
        if path.endswith(".json") and path not in present and entry.mode.startswith("100")
    }
    contents = git.blobs(gone.values())
    for path, oid in gone.items():
        try:
            record = GateRecord.from_json(contents[oid])
        except GateError:
            continue
        if record.frame_status_failed() or record.verdict == "FAIL":
            found.append(FoundRecord(git.top / path, f"{path} (deleted since {merge_base[:10]})", record))
    return found


def _present(git: Git) -> set[str]:
    return {str(path.relative_to(git.top)) for path in git.top.glob(f"{FOLDER}/*/*.json")}
