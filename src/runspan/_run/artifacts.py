"""Artifacts: bytes kept under their own hash below the run directory."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

__all__ = ["ArtifactStore", "StoredArtifact"]

_CHUNK = 1 << 20


class StoredArtifact(msgspec.Struct, frozen=True):
    """What was kept: its hash, its size, and where its bytes are."""

    hash: str
    bytes: int
    path: str


class ArtifactStore:
    """Keeps artifacts in a folder, the same bytes once.

    A file is streamed under a temporary name and renamed to ``sha256-<64 hex digits>``. A directory is kept as its
    sorted manifest, a JSON map from relative path to hash, and the files that it names.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, content: str | os.PathLike[str] | bytes) -> StoredArtifact:
        """Keep bytes, a file or a directory.

        Raises:
            OSError: it cannot be read, or the folder cannot be written.
        """
        if isinstance(content, bytes | bytearray | memoryview):
            return self._keep(iter([bytes(content)]))
        path = Path(content)
        return self._keep_directory(path) if path.is_dir() else self._keep(_chunks(path))

    @staticmethod
    def reference(content: str | os.PathLike[str]) -> StoredArtifact:
        """Hash a file or directory where it is, without keeping its bytes.

        Raises:
            OSError: it cannot be read.
        """
        path = Path(content)
        absolute = str(path.absolute())
        if not path.is_dir():
            digest, size = _hash(_chunks(path))
            return StoredArtifact(digest, size, absolute)
        manifest: dict[str, str] = {}
        total = 0
        for file in _files(path):
            manifest[file.relative_to(path).as_posix()], size = _hash(_chunks(file))
            total += size
        return StoredArtifact(_hash(iter([_encode_manifest(manifest)]))[0], total, absolute)

    def _keep_directory(self, directory: Path) -> StoredArtifact:
        manifest: dict[str, str] = {}
        total = 0
        for file in _files(directory):
            stored = self._keep(_chunks(file))
            manifest[file.relative_to(directory).as_posix()] = stored.hash
            total += stored.bytes
        kept = self._keep(iter([_encode_manifest(manifest)]))
        return StoredArtifact(kept.hash, total, kept.path)

    def _keep(self, chunks: Iterator[bytes]) -> StoredArtifact:
        self._folder.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        temporary = self._folder / f".incoming-{secrets.token_hex(8)}"
        try:
            with temporary.open("xb") as file:
                for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
            name = f"sha256-{digest.hexdigest()}"
            target = self._folder / name
            if target.exists():
                temporary.unlink()
            else:
                temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return StoredArtifact(name, size, str(target))


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _hash(chunks: Iterator[bytes]) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return f"sha256-{digest.hexdigest()}", size


def _encode_manifest(manifest: dict[str, str]) -> bytes:
    return msgspec.json.encode(manifest, order="sorted")
