"""Fixtures that several folders of tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.postgres import PostgresServer, postgres_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Run one private PostgreSQL server for the whole session."""
    with postgres_or_skip() as server:
        yield server
