"""Compresses the closed parts of a trace, behind the training's back."""

from __future__ import annotations

import gzip
import os
import shutil
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["compress_in_background"]

_NICE_GZIP = 19


def compress_in_background(path: Path) -> None:
    """Gzip a closed part on a thread of low priority; the plain part stays until the packed one is safe."""
    with suppress(RuntimeError):  # the interpreter is shutting down: the plain part is as good
        threading.Thread(target=_compress, args=(path,), name="runspan-gzip", daemon=True).start()


def _compress(path: Path) -> None:
    """Gzip a closed part under a temporary name, then put it in the plain one's place."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE_GZIP)
    compressed = path.with_name(f"{path.name}.gz")
    temporary = path.with_name(f".{path.name}.gz.tmp")
    try:
        with path.open("rb") as plain, temporary.open("wb") as target:
            with gzip.GzipFile("", "wb", 6, target) as packed:
                shutil.copyfileobj(plain, packed, 1 << 20)
            target.flush()
            os.fsync(target.fileno())  # the plain part must not go before the packed one is safe
        temporary.replace(compressed)
        path.unlink()
    except OSError:
        temporary.unlink(missing_ok=True)
