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
    from collections.abc import Iterable, Iterator, Sequence
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
            target = os.fsencode(file.readlink())
            return _oid([target], len(target), entry) == entry.oid
        if file.is_symlink() or not file.is_file():
            return False
        with file.open("rb") as content:
            size = os.fstat(content.fileno()).st_size
            if _oid(_chunks(content), size, entry) == entry.oid:
                return True
            converted = sum(map(len, _with_line_feeds(content)))
            return converted < size and _oid(_with_line_feeds(content), converted, entry) == entry.oid
    except OSError:
        return False


def _chunks(content: IO[bytes]) -> Iterator[bytes]:
    content.seek(0)
    while chunk := content.read(_CHUNK_BYTES):
        yield chunk


def _with_line_feeds(content: IO[bytes]) -> Iterator[bytes]:
    """Yield a file with its line ends as they are committed where a checkout converts them."""
    held = b""
    for chunk in _chunks(content):
        text = held + chunk
        held = b"\r" if text.endswith(b"\r") else b""  # its line feed may be the next chunk's first byte
        yield text.removesuffix(held).replace(b"\r\n", b"\n")
    yield held


def _oid(chunks: Iterable[bytes], size_bytes: int, entry: TreeEntry) -> str:
    """Return the name that git gives to a file's content, by the hash that names the entry."""
    digest = hashlib.sha256() if len(entry.oid) == _SHA256_DIGITS else hashlib.sha1(usedforsecurity=False)
    digest.update(b"blob %d\0" % size_bytes)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _lfs_oid(file: Path) -> str | None:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        return None
