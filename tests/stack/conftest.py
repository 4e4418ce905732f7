"""Fixtures over the real programs of the stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.stack import Stack, program_or_skip, running_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Return the path of the real promtool."""
    return program_or_skip("promtool")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Run one stack for the whole session; a test that stops or kills a part of it takes ``new_stack``."""
    with running_stack(tmp_path_factory.mktemp("stack")) as running:
        yield running


@pytest.fixture
def new_stack(tmp_path: Path) -> Callable[[], AbstractContextManager[Stack]]:
    """Return what runs a stack of a test's own."""
    return lambda: running_stack(tmp_path / "stack")
