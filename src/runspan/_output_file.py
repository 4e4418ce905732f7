"""A file that is there whole or not at all, gzipped where its name says so."""

from __future__ import annotations

import gzip
import io
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from runspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["whole_file"]

_BUFFER_BYTES = 1 << 17
_GZIP_LEVEL = 6


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield what to write to; the file stands under its name when the body is through, and not before.

    It is written beside its place under a temporary name and renamed, so that a reader never sees a half, and an error
    leaves an older file as it was. A symbolic link stays: the file that it leads to is replaced. A name that ends with
    ``.gz`` makes it a gzip file; equal content has equal bytes.

    Raises:
        ConfigError: the operating system refuses to write there, or a folder, device or pipe has the name.
    """
    place = _place_of(path)
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb", buffering=_BUFFER_BYTES) as target:
            if path.name.endswith(".gz"):
                with (
                    gzip.GzipFile("", "wb", _GZIP_LEVEL, target, mtime=0) as packed,
                    io.BufferedWriter(cast("Any", packed), _BUFFER_BYTES) as buffered,
                ):
                    yield cast("IO[bytes]", buffered)
            else:
                yield target
            target.flush()
            os.fsync(target.fileno())
        temporary.replace(place)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror or error}): give another path") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _place_of(path: Path) -> Path:
    """Return where a file of this name is to stand: behind symbolic links.

    Raises:
        ConfigError: something that is no file is there; a rename would put a file in the place of /dev/null itself.
    """
    try:
        mode = path.stat().st_mode
    except OSError:  # it is not there, or opening it will tell what is wrong
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise ConfigError(f"{path} cannot be written, it is {what}: give the path of a file")
    return Path(os.path.realpath(path))
