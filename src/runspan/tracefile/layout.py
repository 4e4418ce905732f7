"""Where a run's files are: the only module that builds or reads their names."""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from runspan.errors import ConfigError, TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["RunDirectory", "TraceName", "encode_run_id", "first_parts"]

#: Ranks above this world size get a folder per 256 ranks.
_FLAT_RANKS = 256
_CAPTURES, _RANKS = "captures", "ranks"
_RANK_FOLDERS = f"{_RANKS}/[0-9]*"
#: Every folder below a run directory that leads to traces.
_FOLDERS = (
    _RANKS,
    _RANK_FOLDERS,
    _CAPTURES,
    f"{_CAPTURES}/*",
    f"{_CAPTURES}/*/{_RANKS}",
    f"{_CAPTURES}/*/{_RANK_FOLDERS}",
)
_MAX_ENCODED_BYTES = 120
_NAME = re.compile(
    r"rank-(?P<rank>\d{5,})"
    r"(?:\.attempt-(?P<attempt>\d+))?"
    r"(?:\.child-(?P<child>\d+(?:-\d+)?))?"
    r"(?:\.part-(?P<part>\d{4,}))?"
    r"\.jsonl(?P<gz>\.gz)?",
    re.ASCII,
)


def encode_run_id(run_id: str) -> str:
    """Turn a run id into a folder name: percent-encoded, and cut at 120 bytes with a hash behind the cut.

    Raises:
        ConfigError: the run id is empty.
    """
    if not run_id:
        raise ConfigError("a run id cannot be empty: give one, or leave it out to get one made")
    encoded = quote(run_id, safe="", errors="surrogatepass")
    if encoded.strip(".") == "":
        encoded = encoded.replace(".", "%2E")
    if len(encoded) > _MAX_ENCODED_BYTES:
        digest = hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        encoded = f"{encoded[:_MAX_ENCODED_BYTES]}-{digest}"
    return encoded


class TraceName(msgspec.Struct, frozen=True):
    """The parts of a trace file's name.

    Attributes:
        rank: the rank that wrote it.
        attempt: the rank's attempt.
        child: ``<pid>`` or ``<pid>-<n>`` of a child process's file.
        part: which part of the trace it is; 0 for the first.
        compressed: whether it is a closed, gzipped part.
    """

    rank: int
    attempt: int = 0
    child: str | None = None
    part: int = 0
    compressed: bool = False

    @classmethod
    def parse(cls, filename: str) -> TraceName | None:
        """Read a file name; None when it is no trace file's, spelled exactly as the writer spells it."""
        match = _NAME.fullmatch(filename)
        if match is None:
            return None
        name = cls(
            rank=int(match["rank"]),
            attempt=int(match["attempt"] or 0),
            child=match["child"],
            part=int(match["part"] or 0),
            compressed=match["gz"] is not None,
        )
        return name if name.filename == filename else None

    @property
    def stem(self) -> str:
        """The name without part and ending: equal for all parts of one trace."""
        attempt = f".attempt-{self.attempt}" if self.attempt else ""
        child = f".child-{self.child}" if self.child else ""
        return f"rank-{self.rank:05d}{attempt}{child}"

    @property
    def filename(self) -> str:
        """The file name."""
        part = f".part-{self.part:04d}" if self.part else ""
        return f"{self.stem}{part}.jsonl{'.gz' if self.compressed else ''}"

    def next_part(self) -> TraceName:
        """Return the name of the part that follows."""
        return msgspec.structs.replace(self, part=self.part + 1, compressed=False)


class RunDirectory:
    """The paths of one run below its directory; nothing is created by asking for one.

    Args:
        path: the run directory, ``<root>/runs/<encoded run id>``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_run(cls, trace_dir: Path, run_id: str) -> RunDirectory:
        """Return the directory of a run id below the folder that holds the run directories."""
        return cls(trace_dir / encode_run_id(run_id))

    @classmethod
    def of_trace(cls, path: Path) -> tuple[RunDirectory, str | None]:
        """Return the directory that a trace file stands in, and the folder name of the captured step that it is of."""
        folder = path.absolute().parent
        if folder.parent.name == _RANKS:
            folder = folder.parent.parent
        if folder.parent.name == _CAPTURES:
            return cls(folder.parent.parent), folder.name
        return cls(folder), None

    @property
    def artifacts(self) -> Path:
        """Where artifact bytes are kept."""
        return self.path / "artifacts"

    @property
    def gate(self) -> Path:
        """Where gate run records are kept."""
        return self.path / "gate"

    def rank_folder(self, rank: int, world_size: int) -> Path:
        """Return the folder of a rank's trace files."""
        return _rank_folder(self.path, rank, world_size)

    def capture_folder(self, capture: str, rank: int, world_size: int) -> Path:
        """Return the folder of a rank's file of one captured step, such as ``update-000000101``."""
        return _rank_folder(self.path / _CAPTURES / capture, rank, world_size)

    def log_file(self, rank: int, world_size: int) -> Path:
        """Return the file that holds a rank's captured output."""
        return self.rank_folder(rank, world_size) / f"rank-{rank:05d}.log"

    def trace_files(self) -> list[tuple[TraceName, Path]]:
        """Return every run-trace file (captures aside), sorted by rank, attempt, child and part.

        Where a part stands both plain and gzipped (a crash between writing and renaming), the plain one is returned.
        """
        return _trace_files_in([self.path, *sorted(self.path.glob(_RANK_FOLDERS))])

    def capture_files(self) -> dict[str, list[tuple[TraceName, Path]]]:
        """Return the files of each captured step, as :meth:`trace_files` does, by the capture's folder name."""
        captures = sorted(folder for folder in self.path.glob(f"{_CAPTURES}/*") if folder.is_dir())
        return {folder.name: _trace_files_in([folder, *sorted(folder.glob(_RANK_FOLDERS))]) for folder in captures}

    def check_readable(self) -> None:
        """Make sure that every folder of traces can be listed: what is in one that cannot would be missed silently.

        Raises:
            TraceFormatError: the operating system refuses to list one.
        """
        for folder in [self.path, *(folder for pattern in _FOLDERS for folder in self.path.glob(pattern))]:
            try:
                os.scandir(folder).close()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise TraceFormatError(f"cannot be listed: {error.strerror}", path=str(folder)) from error

    def attempts_of(self, rank: int) -> list[int]:
        """Return the attempts that a rank has files of, sorted."""
        return sorted({name.attempt for name, _ in self.trace_files() if name.rank == rank and name.child is None})


def first_parts(files: Iterable[tuple[TraceName, Path]]) -> list[tuple[TraceName, Path]]:
    """Return a file of each trace: the first of its parts that is there.

    Args:
        files: as :meth:`RunDirectory.trace_files` returns them.
    """
    found: dict[str, tuple[TraceName, Path]] = {}
    for name, path in files:
        found.setdefault(name.stem, (name, path))
    return list(found.values())


def _rank_folder(folder: Path, rank: int, world_size: int) -> Path:
    return folder if world_size <= _FLAT_RANKS else folder / _RANKS / f"{rank // _FLAT_RANKS:05d}"


def _trace_files_in(folders: list[Path]) -> list[tuple[TraceName, Path]]:
    found: dict[tuple[int, int, str, int], tuple[TraceName, Path]] = {}
    for folder in folders:
        for path in folder.glob("rank-*.jsonl*"):
            name = TraceName.parse(path.name)
            if name is None:
                continue
            key = (name.rank, name.attempt, name.child or "", name.part)
            if key not in found or found[key][0].compressed:
                found[key] = (name, path)
    return [found[key] for key in sorted(found)]
