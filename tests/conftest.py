"""Fixtures that several folders of tests share."""

from __future__ import annotations

import os
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


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where everything must be there: with ``RUNSPAN_REQUIRE_STACK=1`` a skip is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("RUNSPAN_REQUIRE_STACK") == "1" and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
