from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runspan.errors import StorageError
from runspan.storage import SqlStorage

if TYPE_CHECKING:
    from support.postgres import PostgresServer

pytestmark = pytest.mark.postgres


def test_wrong_postgres_password_is_not_repeated(postgres_server: PostgresServer) -> None:
    """A refused login is a StorageError that does not show what was tried."""
    with pytest.raises(StorageError, match="authentication failed") as caught:
        SqlStorage(postgres_server.url(password="wr0ng-secret"))  # noqa: S106 - it is refused
    assert "wr0ng-secret" not in f"{caught.value} {caught.value.__cause__}"


def test_postgres_takes_tables_of_others_but_not_of_the_same_name(postgres_server: PostgresServer) -> None:
    """A team's database may hold other tables; one with a name of ours and no schema version is refused."""
    psycopg = pytest.importorskip("psycopg")
    url = postgres_server.new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE customers (id INTEGER)")
        SqlStorage(url).close()
        connection.execute("DROP TABLE runspan_schema")
        with pytest.raises(StorageError, match="another program"):
            SqlStorage(url)


def test_postgres_connection_lost_between_calls_is_replaced(postgres_server: PostgresServer) -> None:
    """A server that dropped the idle connections, as a restart does, costs no call."""
    psycopg = pytest.importorskip("psycopg")
    storage = SqlStorage(postgres_server.new_database())
    run = storage.create_run(storage.create_experiment("e"), "r")
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    storage.log_metric(run, "m", 0, 1.0)
    assert len(storage.get_metrics(run, "m")) == 1
    storage.close()
