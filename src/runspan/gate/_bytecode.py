"""Python's own bytecode caches, which lie among the performance paths and are no change of them."""

from __future__ import annotations

import importlib.util
import marshal
from pathlib import Path
from types import CodeType
from typing import Any

__all__ = ["is_own_bytecode"]

_HEADER_BYTES = 16


def is_own_bytecode(path: Path) -> bool:
    """Whether a file is a bytecode cache that holds exactly what its source compiles to, or that Python ignores.

    The header alone proves nothing: its time and size can be those of the source while the code is another. A cache of
    another Python version counts as foreign, because this one cannot tell.
    """
    if path.suffix != ".pyc" or path.parent.name != "__pycache__":
        return False
    try:
        source = Path(importlib.util.source_from_cache(path))
        if not source.exists():
            return True  # a cache in __pycache__ is never loaded without its source
        data = path.read_bytes()
        if data[:4] != importlib.util.MAGIC_NUMBER:
            return False
        level = path.name.removesuffix(".pyc").rpartition(".opt-")[2] if ".opt-" in path.name else "0"
        compiled = compile(source.read_bytes(), str(source), "exec", dont_inherit=True, optimize=int(level))
        return _is_same(marshal.loads(data[_HEADER_BYTES:]), compiled)  # noqa: S302 - compared, never run
    except (OSError, SyntaxError, ValueError, TypeError, EOFError, RecursionError):
        return False


def _is_same(cached: Any, compiled: CodeType) -> bool:
    """Compare code, and what Python's own comparison leaves out: where it jumps to when an exception is raised."""
    if not isinstance(cached, CodeType) or cached != compiled:
        return False
    if cached.co_exceptiontable != compiled.co_exceptiontable:
        return False
    pairs = zip(cached.co_consts, compiled.co_consts, strict=True)
    return all(_is_same(one, other) for one, other in pairs if isinstance(other, CodeType))
