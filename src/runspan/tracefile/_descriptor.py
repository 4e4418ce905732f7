"""Whether a file descriptor is still the one that was opened: some programs close descriptors that are not theirs."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FileIdentity", "identify", "reopen"]

#: Device and inode.
FileIdentity: TypeAlias = tuple[int, int]


def identify(descriptor: int) -> FileIdentity | None:
    """Return the file that a descriptor stands for, None when it is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def reopen(path: Path, identity: FileIdentity) -> int:
    """Open a file once more for appending, and return its descriptor.

    Args:
        path: where the file was.
        identity: which file it was; another one in its place is not touched.

    Raises:
        OSError: the file is no longer there, or cannot be opened.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    if identify(descriptor) != identity:
        os.close(descriptor)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return descriptor
