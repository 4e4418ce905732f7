"""Paths of a repository as the gate's rules name them: relative to its top, compared component by component."""

from __future__ import annotations

import re
import unicodedata
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from runspan.errors import GateError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["folded", "is_gate_file", "is_under", "normalized"]

_GATE_FILE = re.compile(r"\.benchmarks/(?:bounds\.toml|[^/]+/[^/]+\.json(?:\.sig)?)")


def normalized(path: str) -> str:
    """Return a path as git prints it; ``.`` is the whole repository.

    Raises:
        GateError: it is empty, absolute, or leads out of the repository.
    """
    pure = PurePosixPath(path)
    if not path or "\0" in path or pure.is_absolute() or ".." in pure.parts:
        raise GateError(f"path {path!r}: expected one below the repository's top folder, without `..`")
    return str(pure)


def is_under(path: str, roots: Iterable[str]) -> bool:
    """Whether a path is one of these, normalized, or lies in one that is a folder."""
    return any(root in (".", path) or path.startswith(f"{root}/") for root in roots)


def folded(path: str) -> str:
    """Return a path without what some file systems do not tell apart: the case of letters, and composed letters."""
    return unicodedata.normalize("NFC", path).casefold()


def is_gate_file(path: str) -> bool:
    """Whether a path is one of the gate's own: the bounds, a record or its signature, which nothing measured reads."""
    return _GATE_FILE.fullmatch(path) is not None
