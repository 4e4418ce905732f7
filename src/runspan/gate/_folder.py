"""The records in a benchmark's folder, newest first, and what else lies there."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from runspan.errors import GateError
from runspan.gate._uncommitted import uncommitted_paths
from runspan.gate.record import GateRecord
from runspan.gate.storing import FOLDER, record_folder

if TYPE_CHECKING:
    from pathlib import Path

    from runspan._git import Git

__all__ = ["Found", "FoundRecord", "RecordChanges", "read_folder", "record_changes"]

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
        """Return the same with further records, which come first where age and name are the same."""
        records = sorted([*others, *self.records], key=lambda candidate: candidate.age_order, reverse=True)
        return Found(records, self.problems)


def read_folder(root: Path, benchmark_id: str, now_unix_s: float) -> Found:
    """Read a benchmark's folder; where there is none, it holds nothing.

    Raises:
        GateError: the id is no name of a folder.
    """
    folder = record_folder(root, benchmark_id)
    if os.path.islink(folder):  # noqa: PTH114 - false where nothing is told; what it leads to would change unseen
        return Found([], [f"{FOLDER}/{benchmark_id} is a symbolic link: expected the folder itself"])
    if os.path.lexists(folder / ".git"):  # nor are those of another repository this one's
        return Found([], [f"{FOLDER}/{benchmark_id} is a repository of its own: expected a folder of this one"])
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))  # noqa: PTH208 - names
    except FileNotFoundError:
        return Found([], [])
    except OSError as error:
        return Found([], [f"{FOLDER}/{benchmark_id} cannot be read: {error.strerror or error}"])
    found = Found([], [])
    for name in names:
        path = f"{FOLDER}/{benchmark_id}/{name}"
        if os.path.islink(folder / name):  # noqa: PTH114
            found.problems.append(f"{path} is no record: it is a symbolic link")
            continue
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


class RecordChanges(msgspec.Struct, frozen=True):
    """How the records here differ from those of the merge base.

    Attributes:
        added: paths of those that are new or altered, committed or not.
        lost_failures: failed ones, as they were committed there or at HEAD, that are deleted or altered.
    """

    added: frozenset[str]
    lost_failures: list[FoundRecord]


def record_changes(git: Git, merge_base: str) -> RecordChanges:
    """Compare the records of the working tree with what is committed, so that no older pass stands for a lost failure.

    Raises:
        GitError: git gives no answer.
    """
    head = git.files("HEAD", [FOLDER])
    uncommitted = set(uncommitted_paths(git, [FOLDER]))
    changed = set(git.changed_paths(merge_base)) | uncommitted
    present = {str(path.relative_to(git.top)) for path in git.top.glob(f"{FOLDER}/*/*.json")}
    added = frozenset(path for path in present if path in changed or path not in head)
    lost = {(path, entry.oid) for path, entry in git.files(merge_base, [FOLDER]).items() if path in changed}
    lost |= {(path, entry.oid) for path, entry in head.items() if path in uncommitted}
    named = sorted(item for item in lost if PurePosixPath(item[0]).match(f"{FOLDER}/*/*.json"))
    contents = git.blobs(oid for _, oid in named)
    failures = [_failure(git, path, contents[oid]) for path, oid in named]
    return RecordChanges(added, [failure for failure in failures if failure is not None])


def _failure(git: Git, path: str, content: bytes) -> FoundRecord | None:
    """Return a failed record by what was committed of it; None: it is none."""
    try:
        record = GateRecord.from_json(content)
    except GateError:
        return None
    if not record.frame_status_failed() and record.verdict != "FAIL":
        return None
    return FoundRecord(git.top / path, f"{path} (deleted or altered since it was committed)", record)
