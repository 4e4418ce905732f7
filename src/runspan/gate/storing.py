"""Where gate records stand: one file a record under ``.benchmarks/<benchmark>/``, which no rerun hides a failure in."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from runspan._output_file import whole_file
from runspan.errors import ConfigError, GateError
from runspan.gate.baseline import BOUNDS_PATH, parse_baseline
from runspan.gate.canonical import MAX_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from runspan.gate.record import GateRecord

__all__ = ["FOLDER", "read_limited", "record_folder", "save_record", "signature_path"]

FOLDER = ".benchmarks"
_BENCHMARK_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def record_folder(root: Path, benchmark_id: str) -> Path:
    """Return the folder of a benchmark's records.

    Raises:
        GateError: the id is no name of a folder.
    """
    if not _BENCHMARK_ID.fullmatch(benchmark_id):
        raise GateError(
            f"benchmark id {benchmark_id!r}: expected letters, digits, `_`, `-` and `.`, the first no `.` or `-`"
        )
    return root / FOLDER / benchmark_id


def signature_path(record: Path) -> Path:
    """Return where the signature of a record's file stands."""
    return record.with_name(f"{record.name}.sig")


def read_limited(path: Path) -> bytes:
    """Read a record's or configuration's file.

    Raises:
        GateError: it cannot be read, is no regular file, or is larger than any such file.
    """
    try:
        if not path.is_file():
            raise GateError(f"{path}: no such file" if not path.exists() else f"{path}: no regular file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise GateError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise GateError(f"{path}: larger than {MAX_BYTES} bytes")
    return data


def save_record(record: GateRecord, root: Path, *, instead_of: Path | None = None) -> Path:
    """Write a record below ``root``, a repository's top, whole or not at all, and return its path.

    The name is ``YYYY-MM-DD-<sha>[-<variant>][-s<i>of<n>].json``, the day in UTC; the variant is the model where it is
    not its hardware's default. A rerun on the same day takes the earlier record's place and drops its signature, unless
    that one failed or cannot be read: then it goes beside it, as ``YYYY-MM-DDTHHMMSSZ-…``.

    Args:
        record: the record.
        root: the repository's top.
        instead_of: what the same run has written before, which is gone afterwards.

    Raises:
        GateError: both names are taken by records that failed or cannot be read, ``bounds.toml`` cannot be read, the
            time is no date, or the record cannot be written.
    """
    folder = record_folder(root, record.benchmark_id)
    try:
        recorded = datetime.fromtimestamp(record.recorded_at, UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise GateError(f"recorded_at {record.recorded_at}: expected unix seconds of a date") from error
    model = _other_model(record, root)
    for day in (f"{recorded:%Y-%m-%d}", f"{recorded:%Y-%m-%dT%H%M%SZ}"):
        path = _path(record, folder, day, model)
        if path == instead_of or not path.exists() or _may_be_replaced(path, record):
            _write(record, path)
            if instead_of not in (None, path):
                instead_of.unlink(missing_ok=True)
            return path
    raise GateError(
        f"{path} holds a record that failed or cannot be read, which no rerun replaces: look at it, move it"
    )


def _other_model(record: GateRecord, root: Path) -> str | None:
    """Return the record's model where it is not its hardware's default."""
    bounds = root / BOUNDS_PATH
    defaults = parse_baseline(read_limited(bounds), str(bounds)).default_models if bounds.exists() else {}
    model = record.target_model
    return None if model in {"", defaults.get(record.hardware.gate_key)} else model


def _path(record: GateRecord, folder: Path, day: str, model: str | None) -> Path:
    shard = record.shard()
    part = "" if shard is None else f"-s{shard[0]}of{shard[1]}"
    stem = f"{day}-{record.git_sha}"
    if model is None:
        return folder / f"{stem}{part}.json"
    slug = re.sub(r"[^a-z0-9.]", "-", model.lower())
    path = folder / f"{stem}-{slug}{part}.json"
    holder = _loaded(path, record)
    if holder is None or holder.target_model == model:
        return path
    return folder / f"{stem}-{slug}-{hashlib.sha256(model.encode()).hexdigest()[:16]}{part}.json"


def _may_be_replaced(path: Path, record: GateRecord) -> bool:
    holder = _loaded(path, record)
    return holder is not None and holder.verdict != "FAIL" and not holder.frame_status_failed()


def _loaded(path: Path, record: GateRecord) -> GateRecord | None:
    """Return the record that stands at a path; None when there is none that can be read."""
    try:
        return type(record).load(path)
    except GateError:
        return None


def _write(record: GateRecord, path: Path) -> None:
    try:
        data = record.to_json()
        path.parent.mkdir(parents=True, exist_ok=True)
        signature_path(path).unlink(missing_ok=True)  # first: a crash in between leaves a record without one
        with whole_file(path) as target:
            target.write(data)
    except (OSError, ConfigError) as error:
        cause = error.__cause__ if isinstance(error, ConfigError) else error
        reason = cause.strerror if isinstance(cause, OSError) else None
        raise GateError(f"{path} cannot be written: {reason or error}") from error
    except ValueError as error:
        raise GateError(f"{path} cannot be written: {error}") from error
