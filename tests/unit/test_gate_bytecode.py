from __future__ import annotations

import importlib.util
import marshal
import py_compile
from pathlib import Path
from types import CodeType

import pytest

from runspan.gate._bytecode import is_own_bytecode


def _compiled(source: Path, level: int = -1) -> Path:
    return Path(str(py_compile.compile(str(source), optimize=level)))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_python_compiled_from_the_source_is_its_own(tmp_path: Path, level: int) -> None:
    """A cache that holds what the source beside it compiles to is no change of the code."""
    source = tmp_path / "code.py"
    source.write_text('"""Text."""\nassert True\nx = {1, 2, 3}\n')
    assert is_own_bytecode(_compiled(source, level))


def test_other_code_behind_a_valid_header_is_not(tmp_path: Path) -> None:
    """A cache with the time and size of its source, and other code, is what Python would run instead of the source."""
    source = tmp_path / "code.py"
    source.write_text("x = 1\n")
    cache = _compiled(source)
    header = cache.read_bytes()[:16]
    cache.write_bytes(header + marshal.dumps(compile("x = 2\n", str(source), "exec")))
    assert not is_own_bytecode(cache)
    cache.write_bytes(header)
    assert not is_own_bytecode(cache)
    cache.write_bytes(b"\0" * 32)
    assert not is_own_bytecode(cache)


def test_another_way_out_of_an_exception_is_other_code(tmp_path: Path) -> None:
    """A function inside that differs only in where an exception leads to is not what the source compiles to."""
    source = tmp_path / "code.py"
    source.write_text("def run():\n    try:\n        return work()\n    except ValueError:\n        return 1\n")
    cache = _compiled(source)
    assert is_own_bytecode(cache)
    header, code = cache.read_bytes()[:16], compile(source.read_text(), str(source), "exec")
    forged = tuple(
        const.replace(co_exceptiontable=b"") if isinstance(const, CodeType) else const for const in code.co_consts
    )
    cache.write_bytes(header + marshal.dumps(code.replace(co_consts=forged)))
    assert not is_own_bytecode(cache)


def test_a_cache_without_a_source_is_never_loaded(tmp_path: Path) -> None:
    """What is left in __pycache__ of a module that is gone does not count; a .pyc beside the sources does."""
    cache = Path(importlib.util.cache_from_source(str(tmp_path / "gone.py")))
    cache.parent.mkdir()
    cache.write_bytes(b"")
    assert is_own_bytecode(cache)
    (tmp_path / "gone.pyc").write_bytes(b"")
    assert not is_own_bytecode(tmp_path / "gone.pyc")
    assert not is_own_bytecode(tmp_path / "code.py")
    (cache.parent / "fast.so").write_bytes(b"")
    assert not is_own_bytecode(cache.parent / "fast.so")
