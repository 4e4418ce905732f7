"""Files of the working tree that are not what is committed, told from their bytes.

What git says of changes rests on its index and on the filters of ``.gitattributes``: a filter can give any file the
committed content back, and an index entry with the right size and time is not looked at. So the bytes are hashed here.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from runspan._git import Git, TreeEntry

__all__ = ["uncommitted_paths"]

_LINK = "120000"
_SUBMODULE = "160000"
_CHUNK_BYTES = 2**20
_SHA256_DIGITS = 64
#: How Git LFS writes down what a file holds: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md.
_LFS_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:ext-.*\n)*oid sha256:([0-9a-f]{64})\nsize \d+\n"
)


def uncommitted_paths(git: Git, paths: Sequence[str]) -> list[str]:
    """Return the paths at or under these where the working tree is not, or may not be, what is committed.

    A checkout's line ends and the content of Git LFS files are no change.

    Raises:
        GitError: git gives no answer.
    """
    dirty = set(git.dirty_paths(paths))
    return sorted(dirty | set(_altered(git, paths, dirty)))


def _altered(git: Git, paths: Sequence[str], known: set[str]) -> Iterable[str]:
    """Yield the files of HEAD, those of submodules too, that have other bytes in the working tree."""
    differing = {}
    for path, entry in git.files("HEAD", paths).items():
        file = git.top / path
        if entry.mode == _SUBMODULE:
            if os.path.lexists(file / ".git"):  # one that is not checked out is dirty as a whole
                yield from (f"{path}/{inner}" for inner in _altered(git.within(path), ["."], set()))
        elif path not in known and not _is_committed(file, entry):
            differing[path] = entry.oid
    pointers = git.blobs(differing.values())
    for path, oid in differing.items():
        pointer = _LFS_POINTER.fullmatch(pointers[oid])
        if pointer is None or _lfs_oid(git.top / path) != pointer.group(1).decode("ascii"):
            yield path


def _is_committed(file: Path, entry: TreeEntry) -> bool:
    try:
        if entry.mode == _LINK and file.is_symlink():
            return _oid(os.fsencode(file.readlink()), entry) == entry.oid
        if file.is_symlink() or not file.is_file():
            return False
        with file.open("rb") as content:
            if _oid_of(content, entry) == entry.oid:
                return True
            content.seek(0)
            return _oid(content.read().replace(b"\r\n", b"\n"), entry) == entry.oid
    except OSError:
        return False


def _oid_of(content: IO[bytes], entry: TreeEntry) -> str:
    digest = _hash(entry)
    digest.update(b"blob %d\0" % os.fstat(content.fileno()).st_size)
    while chunk := content.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _oid(data: bytes, entry: TreeEntry) -> str:
    digest = _hash(entry)
    digest.update(b"blob %d\0" % len(data) + data)
    return digest.hexdigest()


def _hash(entry: TreeEntry) -> hashlib._Hash:
    """Return the hash that the repository names its objects by."""
    return hashlib.sha256() if len(entry.oid) == _SHA256_DIGITS else hashlib.sha1(usedforsecurity=False)


def _lfs_oid(file: Path) -> str | None:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        return None
